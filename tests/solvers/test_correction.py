"""Block MINRES and GMRES: columns as if each were alone, true residuals, and the arrays of a caller."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla

from blockvec import BlockVector, as_operator, models
from blockvec.errors import BreakdownError, OptionError, ShapeError
from solvers import JacobiPreconditioner, Linear, block_gmres, block_minres
from tests.matrices import normal, orthonormal, with_values

METHODS = (block_minres, block_gmres)
PAIR = BlockVector.random(9, 2, rng=0)
GRADED = models.model("laplace1d:n=60") + sp.diags_array(np.linspace(0.1, 1.0, 60))
FORMS = (sp.csr_array, sp.coo_matrix, sp.csr_array.toarray, sla.aslinearoperator, as_operator)
SHAPES, DTYPES = ((60,), (60, 1), (60, 3)), ("float32", "float64", "complex128", ">f8", "int64")
Method = Callable[..., Linear]


def indefinite(kind: str) -> np.ndarray:
    """A Hermitian matrix with eigenvalues on both sides of zero."""
    values = np.r_[np.linspace(-3, -1, 30), np.linspace(0.5, 4, 30)]
    return with_values(values, 0, "complex128" if kind == "complex" else "float64")


def block(A: Any, b: int, seed: int = 1) -> Any:
    return BlockVector.random(A.shape[0], b, A.dtype, rng=seed)


def residual(A: Any, B: Any, solved: Linear, shift: Any = 0.0, Q: Any = None) -> np.ndarray:
    R = B.array - A @ solved.X.array + solved.X.array * shift
    return R if Q is None else R - Q.array @ (Q.array.conj().T @ R)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("steps", [1, 7, 25, 100])
def test_residuals_by_recurrence_are_the_true_ones(method: Method, kind: str, steps: int) -> None:
    A = indefinite(kind)
    B, shift = block(A, 3), np.array([0.0, -0.3, 1.02])
    kept = B.array.copy()
    whole = {"restart": 60} if method is block_gmres else {}
    solved = method(as_operator(A), B, shift=shift, tol=1e-9, maxiter=steps, **whole)
    true = np.linalg.norm(residual(A, B, solved, shift), axis=0)
    assert np.allclose(solved.residuals, true, rtol=1e-6, atol=1e-12)
    assert np.allclose(solved.initial, np.linalg.norm(kept, axis=0))
    assert np.array_equal(B.array, kept)
    assert solved.converged == (steps == 100)


def test_preconditioned_minres_takes_the_steps_of_scipys() -> None:
    A, d = models.model("laplace2d:n=12"), 1 + np.random.default_rng(0).random((144, 1))
    B = BlockVector.random(144, 1, rng=0)
    solved = block_minres(
        A, B, shift=0.2 + 0j, tol=0, maxiter=9, preconditioner=lambda R: BlockVector(R.array / d)
    )
    K = sp.diags_array(1 / d[:, 0])
    expected, _ = sla.minres(A, B.array[:, 0], shift=0.2, rtol=0, maxiter=9, M=K)
    assert np.allclose(solved.X.array[:, 0], expected, rtol=1e-10)
    R = residual(A, B, solved, 0.2)
    assert np.allclose(solved.residuals, np.sqrt(np.sum(R * (K @ R), axis=0)), rtol=1e-8)


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_gmres_minimises_over_the_krylov_space(kind: str) -> None:
    A = indefinite(kind) + np.triu(np.ones((60, 60)), 40)  # not Hermitian
    B = BlockVector.random(60, 2, A.dtype, rng=0)
    solved = block_gmres(A, B, tol=0, maxiter=8)
    for j in range(2):
        K = np.stack([np.linalg.matrix_power(A, i) @ B.array[:, j] for i in range(8)], axis=1)
        least = np.linalg.lstsq(A @ K, B.array[:, j])[0]
        best = np.linalg.norm(B.array[:, j] - A @ K @ least)
        assert np.isclose(solved.residuals[j], best, rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_columns_together_are_as_each_alone(method: Method) -> None:
    A = indefinite("complex")
    B, shift, tol = block(A, 3), np.array([0.0, -0.7, -5.0]), np.array([1e-1, 1e-9, 1e-5])
    together = method(as_operator(A), B, shift=shift, tol=tol, maxiter=18)
    assert together.reasons == ("converged", "maxiter", "converged")
    for j in range(3):
        alone = method(as_operator(A), B[:, j : j + 1], shift=shift[j], tol=tol[j], maxiter=18)
        assert alone.iterations[0] == together.iterations[j]
        assert np.allclose(alone.X.array[:, 0], together.X.array[:, j], rtol=1e-8, atol=1e-9)
    assert together.operator_columns == 3 * 18


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("preconditioned", [False, True])
def test_a_singular_shift_is_regular_in_the_complement(method: Method, preconditioned: bool) -> None:
    A = indefinite("complex")
    values, vectors = np.linalg.eigh(A)
    Q = BlockVector(np.ascontiguousarray(vectors[:, [0, 34]]))
    shift, B = values[[0, 34]], block(A, 2)
    d = 1 + np.random.default_rng(2).random((60, 1))
    solved = method(
        as_operator(A),
        B,
        shift=shift,
        tol=1e-9,
        Q=Q,
        maxiter=300,
        preconditioner=(lambda R: BlockVector(R.array / d)) if preconditioned else None,
        **({"restart": 60} if method is block_gmres else {}),
    )
    assert solved.converged
    assert np.linalg.norm(Q.array.conj().T @ solved.X.array) <= 1e-12 * np.linalg.norm(solved.X.array)
    assert np.all(np.linalg.norm(residual(A, B, solved, shift, Q), axis=0) <= 1e-7)
    assert (solved.preconditioner_columns > 0) == preconditioned


def test_gmres_says_when_a_restart_gains_nothing() -> None:
    A = np.roll(np.eye(12), 1, axis=0)  # a cyclic shift: nothing before step 12
    solved = block_gmres(A, BlockVector(np.eye(12)[:, :1]), restart=4)
    assert solved.reasons == ("stagnated",)
    assert np.isclose(solved.residuals[0], 1)
    assert block_gmres(A, BlockVector(np.eye(12)[:, :1]), restart=12).converged


def test_an_indefinite_preconditioner_is_reported_by_minres_and_taken_by_gmres() -> None:
    A = indefinite("real")
    B, d = BlockVector.random(60, 2, rng=0), np.where(np.arange(60) % 2, 1.0, -1.5)[:, None]
    options = {"preconditioner": lambda R: BlockVector(R.array / d), "tol": 1e-9}
    assert block_minres(A, B, **options).reasons == ("indefinite preconditioner",) * 2
    assert block_gmres(A, B, restart=60, **options).converged


@pytest.mark.parametrize("method", METHODS)
def test_all_columns_may_stop_with_the_first(method: Method) -> None:
    A = indefinite("real")
    B, tol = BlockVector.random(60, 3, rng=0), [1e-12, 1e-2, 1e-12]
    together = method(A, B, tol=tol, with_first=True)
    alone = method(A, B[:, 1:2], tol=1e-2)
    assert together.reasons == ("maxiter", "converged", "maxiter")
    assert together.iterations.tolist() == alone.iterations.tolist() * 3
    R = residual(A, B, together)
    assert np.allclose(np.linalg.norm(R, axis=0), together.residuals, rtol=1e-8)


@pytest.mark.parametrize(
    ("error", "message", "methods", "arguments"),
    [
        (ShapeError, "A has shape (9, 9) but B has 8 rows", METHODS, {"B": PAIR[:8]}),
        (ShapeError, "shift has shape (3,); B has 2 columns", METHODS, {"shift": [1.0, 2.0, 3.0]}),
        (OptionError, "shift: got complex numbers", METHODS, {"shift": 1j}),
        (OptionError, "block_gmres", METHODS[:1], {"shift": 1j, "B": PAIR.array + 0j}),
        (ShapeError, "Q has 8 rows but B has 9", METHODS, {"Q": BlockVector.random(8, 1, rng=0)}),
        (OptionError, "restart: got 0", METHODS[1:], {"restart": 0}),
        (
            ShapeError,
            "preconditioner: returned shape (9, 1)",
            METHODS,
            {"preconditioner": lambda R: R[:, :1]},
        ),
        (OptionError, "preconditioner: returned its argument", METHODS, {"preconditioner": lambda R: R}),
        (BreakdownError, "NaN or Inf", METHODS, {"preconditioner": lambda R: R.copy().scale(np.nan)}),
        (BreakdownError, "NaN or Inf", METHODS, {"A": np.full((9, 9), np.nan)}),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    error: Any, message: str, methods: Any, arguments: dict[str, Any]
) -> None:
    for method in methods:
        with pytest.raises(error, match=re.escape(message)):
            method(**{"A": models.model("laplace1d:n=9"), "B": PAIR, **arguments})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("form", "shape", "dtype"),
    [(form, SHAPES[(i + j) % 3], dtype) for i, form in enumerate(FORMS) for j, dtype in enumerate(DTYPES)],
)
def test_arrays_are_solved_for_and_returned(
    method: Method, form: Any, shape: tuple[int, ...], dtype: str
) -> None:
    B = 4 * normal(3, *shape, dtype=dtype)
    solved = method(form(sp.csr_array(GRADED)), B, shift=-0.5, tol=1e-9)
    assert type(solved.X) is np.ndarray
    assert solved.X.shape == B.shape
    assert solved.X.dtype == np.result_type(B.dtype.newbyteorder("="), np.float64)
    assert np.allclose(GRADED @ solved.X + 0.5 * solved.X, B, atol=1e-7)
    assert solved.converged


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", ["matrix", "function", "object"])
def test_preconditioners_and_columns_are_those_of_arrays(method: Method, how: str) -> None:
    B, A = normal(3, 60, 2), GRADED + sp.diags_array(np.logspace(0, 4, 60))
    inverse, Q = sp.diags_array(1 / A.diagonal()), orthonormal(3, 60, 2)
    K = {"matrix": inverse, "function": lambda X: inverse @ X, "object": JacobiPreconditioner(A)}[how]
    plain, solved = method(A, B, tol=1e-8), method(A, B, tol=1e-8, preconditioner=K)
    assert solved.iterations.max() < plain.iterations.max()
    assert np.allclose(A @ solved.X, B, atol=1e-4)
    assert np.abs(Q.T @ method(A, normal(4, 60), tol=1e-10, Q=Q).X).max() < 1e-10
