"""`block_minres` and `block_gmres` for callers with arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

from blockvec import as_operator
from blockvec.errors import ShapeError
from blockvec.models import model
from solvers import JacobiPreconditioner, block_gmres, block_minres
from tests.matrices import normal

SOLVERS = (block_minres, block_gmres)
A = model("laplace1d:n=60") + sp.diags_array(np.linspace(0.1, 1.0, 60))
KINDS = {
    "sparse": sp.csr_array(A),
    "coordinates": sp.coo_matrix(A),
    "dense": A.toarray(),
    "linear operator": aslinearoperator(A.toarray()),
    "operator": as_operator(A),
}
SHAPES, DTYPES = ((60,), (60, 1), (60, 3)), ("float32", "float64", "complex128", ">f8", "int64")


def drawn(shape: tuple[int, ...], dtype: Any = np.float64) -> Any:
    """Draw right-hand sides."""
    return 4 * normal(3, *shape, dtype=dtype)


@pytest.mark.parametrize("solve", SOLVERS)
@pytest.mark.parametrize(
    ("kind", "shape", "dtype"),
    [(kind, SHAPES[(i + j) % 3], dtype) for i, kind in enumerate(KINDS) for j, dtype in enumerate(DTYPES)],
    ids=str,
)
def test_arrays_are_solved_for_and_returned(
    solve: Any, kind: str, shape: tuple[int, ...], dtype: str
) -> None:
    B = drawn(shape, dtype)
    solved = solve(KINDS[kind], B, shift=-0.5, tol=1e-9)
    assert type(solved.X) is np.ndarray
    assert solved.X.shape == B.shape
    assert solved.X.dtype == np.result_type(B.dtype.newbyteorder("="), np.float64)
    assert np.allclose(A @ solved.X + 0.5 * solved.X, B, atol=1e-7)
    assert solved.converged


@pytest.mark.parametrize("solve", SOLVERS)
@pytest.mark.parametrize("how", ["matrix", "function", "object"])
def test_preconditioners_and_columns_are_those_of_arrays(solve: Any, how: str) -> None:
    B, graded = drawn((60, 2)), A + sp.diags_array(np.logspace(0, 4, 60))
    inverse = sp.diags_array(1 / graded.diagonal())
    K = {"matrix": inverse, "function": lambda X: inverse @ X, "object": JacobiPreconditioner(graded)}[how]
    Q = np.linalg.qr(drawn((60, 2)))[0]
    plain, solved = solve(graded, B, tol=1e-8), solve(graded, B, tol=1e-8, preconditioner=K)
    assert solved.iterations.max() < plain.iterations.max()
    assert np.allclose(graded @ solved.X, B, atol=1e-4)
    inside = solve(graded, drawn((60,), "float64"), tol=1e-10, Q=Q).X
    assert np.abs(Q.T @ inside).max() < 1e-10


@pytest.mark.parametrize("solve", SOLVERS)
def test_right_hand_sides_of_another_length_are_refused(solve: Any) -> None:
    with pytest.raises(ShapeError, match="B has 59 rows"):
        solve(A, np.ones(59))
