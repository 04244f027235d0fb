"""Matrices that are Hermitian to the caller's rounding errors only, or a little less."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse.csgraph import laplacian
from scipy.sparse.linalg import LinearOperator

from blockvec.errors import OptionError
from blockvec.models import model
from solvers import NoConvergence, count_eigenvalues, eigsh
from tests.matrices import normal
from tests.solvers.answers import dense, eigenvalues, solve, wanted

N = 240


def function(A: Any) -> LinearOperator:
    return LinearOperator(A.shape, matmat=lambda X: A @ X, matvec=lambda x: A @ x, dtype=A.dtype)


def picked(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in ("which", "sigma")}


def normed_laplacian(seed: int = 0) -> Any:
    """Make the normalised Laplacian of a random graph in single precision, whose roots round apart."""
    graph = sp.random_array((N, N), density=0.05, rng=np.random.default_rng(seed), dtype=np.float32)
    return laplacian((graph + graph.T).tocsr(), normed=True).tocsr()


def hermitian_part(A: Any) -> Any:
    """Compute the Hermitian part in double precision."""
    return (dense(A) + dense(A).conj().T) / 2


def lopsided(size: float, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Draw a symmetric matrix with an asymmetry of this size, and all values of its Hermitian part."""
    S = normal(0, n, n)
    A = S + S.T + size * np.sqrt(2) * normal(1, n, n)
    return A, eigenvalues(hermitian_part(A))


def singles() -> dict[str, Any]:
    """Make matrices that are Hermitian to rounding errors of single precision."""
    a, b = normal(0, N, N, dtype=np.complex64), normal(0, N, N, dtype=np.float32)
    overlap = (np.eye(N, dtype=np.float32) + (b @ b.T) / N).astype(np.float32)
    overlap *= (1 + np.float32(1e-7) * np.sign(b)).astype(np.float32)
    return {
        "a * a^H": a * a.conj().T,
        "a @ a^H": a @ a.conj().T,
        "b @ b^T with noise": overlap,
        "normed Laplacian": normed_laplacian(),
    }


@pytest.mark.parametrize("name", singles())
@pytest.mark.parametrize("kind", [None, sp.csr_array, function], ids=["as it is", "sparse", "operator"])
@pytest.mark.parametrize(
    "options", [{"which": "SA"}, {"sigma": 0.7}, {"which": "LA", "method": "lanczos"}], ids=str
)
def test_matrices_in_single_precision_are_hermitian_to_their_own_rounding(
    name: str, kind: Any, options: dict[str, Any]
) -> None:
    A = singles()[name]
    exact = eigenvalues(hermitian_part(A))
    w = solve(A if kind is None else kind(A), 4, **options).eigenvalues
    assert w.dtype == np.float32
    assert np.allclose(w, wanted(exact, 4, **picked(options)), atol=2e-5 * abs(exact).max())


def test_a_mass_matrix_in_single_precision_goes_with_a_matrix_in_double_precision() -> None:
    A = model("laplace2d:n=20")[:N, :N]
    M = (sp.eye_array(N) + 0.1 * normed_laplacian()).astype(np.float32).tocsr()
    assert abs(M - M.T).max() > 0
    exact = eigenvalues(A, hermitian_part(M))
    end = float(exact[4]) * 1.01
    for options in ({"k": 5, "sigma": -0.1}, {"k": 5, "which": "SA"}, {"interval": (0.0, end)}):
        assert np.allclose(solve(A, M=M, **options).eigenvalues, exact[:5], rtol=1e-7)
    assert count_eigenvalues(A, 0.0, end, M).value == 5


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array], ids=("dense", "sparse"))
@pytest.mark.parametrize("size", [1e-12, 1e-11, 1e-10, 1e-9])
def test_the_hermitian_part_is_solved_where_the_asymmetry_is_below_the_tolerance(
    kind: Any, size: float
) -> None:
    A, exact = lopsided(size)
    for options in ({"which": "LA"}, {"which": "SA", "method": "lanczos"}, {"sigma": 0.3}):
        result = solve(kind(A), 4, tol=1e-8, convergence="norm", **options)
        assert np.allclose(result.eigenvalues, wanted(exact, 4, **picked(options)), atol=1e-7)
        assert 0.5 * size < result.info["asymmetry"]["A"] < 2 * size
        assert re.search(r"Hermitian part of A is solved, from which it differs by \d", result.info["why"])


@pytest.mark.parametrize("size", [1e-11, 1e-10, 1e-9])
def test_an_asymmetry_above_the_tolerance_is_the_reason_that_is_given(size: float) -> None:
    A = sp.csr_array(lopsided(size)[0])
    reasons = r"A differs from A\^H by \d|A is not Hermitian"
    with pytest.raises((NoConvergence, OptionError), match=reasons) as told:
        eigsh(A, 4, sigma=0.3, rng=0)
    assert "loosen tol" not in str(told.value)
    assert "(A + A.conj().T) / 2" in str(told.value)
    eigsh(A, 4, sigma=0.3, rng=0, tol=3 * size, convergence="norm")  # the remedy


def test_an_asymmetry_that_the_check_misses_is_the_reason_too() -> None:
    """The check has two random vectors, which may be nearly orthogonal in the skew part."""
    A = lopsided(3e-13, 60)[0]
    for seed in range(30):
        with pytest.raises(NoConvergence, match=r"A differs from A\^H by [3-6]\.\de-13"):
            eigsh(A, 4, which="LA", rng=seed)


def test_inverses_of_ill_conditioned_matrices_are_solved_to_their_asymmetry() -> None:
    C = np.diag(np.logspace(0, 5, N)) + 0.1 * hermitian_part(normal(0, N, N)) / N
    A = np.linalg.inv(scipy.linalg.hilbert(N) + C)
    w = solve(A, 4, which="LA", tol=1e-9).eigenvalues
    assert np.allclose(w, eigenvalues(hermitian_part(A))[-4:], rtol=1e-9)


def test_symmetric_matrices_are_left_as_they_are() -> None:
    A = model("laplace2d:n=30")
    assert "asymmetry" not in eigsh(A, 3, which="SA", return_info=True, rng=0, tol=1e-3).info
    wrong = A + sp.coo_array(([1e-3], ([3], [5])), shape=A.shape)
    with pytest.raises(OptionError, match="A is not Hermitian"):
        eigsh(wrong, 3, which="SA", tol=1e-1)
