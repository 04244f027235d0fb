"""`lobpcg`: identities, its histories, and starts that are ill conditioned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import lobpcg as scipy_lobpcg

from blockvec import BlockVector, as_operator, lobpcg
from blockvec.errors import OptionError, ShapeError
from blockvec.models import model
from tests.contract.blocks import host, on
from tests.matrices import normal

A = model("laplace2d:n=20")
N = A.shape[0]
MASS = sp.diags_array(np.linspace(1, 3, N), format="csr")
VALUES = np.linalg.eigvalsh(A.toarray())
QUIET = pytest.mark.filterwarnings("ignore:Exited")


def drawn(k: int, dtype: Any = np.float64) -> Any:
    return normal(2, N, k, dtype=dtype)


@QUIET  # single precision reaches the tolerance by a few per cent, or not
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", "fdFD")
def test_pairs_are_those_at_an_end_of_the_spectrum(largest: bool, dtype: str, device: str) -> None:
    tol = 1e-7 if dtype in "dD" else 1e-3
    S, start = as_operator(A.astype(dtype), device=device), on(device, drawn(4, dtype))
    w, X = (host(part) for part in lobpcg(S, start, tol=tol, maxiter=300, largest=largest))
    assert X.dtype == dtype
    assert w.dtype == X.real.dtype
    assert np.allclose(w, VALUES[::-1][:4] if largest else VALUES[:4], atol=10 * tol)
    assert np.all(np.linalg.norm(A @ X - X * w, axis=0) <= 2 * tol)
    assert np.allclose(X.conj().T @ X, np.eye(4), atol=tol)


def test_vectors_are_orthonormal_in_the_inner_product_of_b_and_to_the_constraints() -> None:
    w, V = lobpcg(A, drawn(3), B=MASS, tol=1e-8, maxiter=300, largest=False)
    assert np.allclose(V.T @ MASS @ V, np.eye(3), atol=1e-10)
    assert np.all(np.linalg.norm(A @ V - MASS @ V * w, axis=0) <= 1e-7)
    u, U = lobpcg(A, drawn(3), B=MASS, Y=V, tol=1e-8, maxiter=300, largest=False)
    assert np.abs(V.T @ MASS @ U).max() <= 1e-10
    both, _ = lobpcg(A, drawn(7), B=MASS, tol=1e-8, maxiter=300, largest=False)
    assert np.allclose(both[:6], [*w, *u], atol=1e-8)


def test_forms_of_operators_give_the_same() -> None:
    inverse = 1 / A.diagonal()
    M = sp.diags_array(inverse, format="csr")
    one = lobpcg(A, drawn(2), B=MASS, M=M, tol=1e-7, maxiter=300, largest=False)
    functions = (lambda X: A @ X), (lambda X: MASS @ X), (lambda X: X * inverse[:, None])
    other = lobpcg(functions[0], drawn(2), functions[1], functions[2], None, 1e-7, 300, False)
    block = lobpcg(A, BlockVector(drawn(2)), B=MASS, M=M, tol=1e-7, maxiter=300, largest=False)
    assert isinstance(block[1], BlockVector)
    for w, _ in (other, block):
        assert np.allclose(w, one[0], atol=1e-10)


@QUIET
@pytest.mark.parametrize("maxiter", [0, 1, 5, 20])
def test_histories_have_as_many_entries_as_with_scipy(maxiter: int) -> None:
    options = {"tol": 1e-12, "maxiter": maxiter, "largest": False}
    options |= {"retLambdaHistory": True, "retResidualNormsHistory": True}
    ours, theirs = lobpcg(A, drawn(3), **options), scipy_lobpcg(A, drawn(3), **options)
    assert [len(part) for part in ours[2:]] == [len(part) for part in theirs[2:]] == [maxiter + 3] * 2
    for one, other in zip(ours[2], theirs[2], strict=True):
        assert np.allclose(one, other, rtol=1e-5)
    assert np.allclose(ours[2][-1], ours[0])


@QUIET
def test_dependent_columns_and_tiny_tolerances_do_not_end_the_iteration() -> None:
    X = drawn(3)
    X[:, 2] = X[:, 1] * (1 + 1e-15)
    w, V = lobpcg(A, X, tol=1e-13, maxiter=400, largest=False)
    assert np.allclose(w, VALUES[:3], atol=1e-11)
    assert np.linalg.norm(A @ V - V * w, axis=0).max() <= 1e-11


def test_small_problems_are_solved_densely_with_a_warning() -> None:
    D, Y = np.diag(np.arange(1.0, 9.0)), np.eye(8, 2)
    with pytest.warns(UserWarning, match="The problem size"):
        w, V = lobpcg(D, np.ones((8, 2)), Y=Y, largest=False)
    assert np.allclose(w, [3, 4])
    assert np.allclose(np.abs(V), np.eye(8)[:, 2:4])


@pytest.mark.filterwarnings("ignore:Exited postprocessing")
@pytest.mark.parametrize(
    ("kind", "message", "arguments"),
    [
        (ShapeError, "X: give", {"X": np.ones(N)}),
        (ShapeError, "A has shape", {"A": A[:5, :5]}),
        (OptionError, "Linearly dependent constraints", {"Y": np.ones((N, 2))}),
        (UserWarning, "Exited at iteration 2", {"tol": 1e-10, "maxiter": 2}),
        (UserWarning, "Expected rank-2 array for argument Y", {"Y": np.ones(N), "tol": 1.0}),
    ],
)
def test_what_does_not_fit_is_refused_or_warned_of(kind: Any, message: str, arguments: Any) -> None:
    context = pytest.warns if kind is UserWarning else pytest.raises
    with context(kind, match=message):
        lobpcg(**{"A": A, "X": drawn(2), **arguments})
