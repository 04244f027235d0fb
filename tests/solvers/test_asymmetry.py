"""Matrices that are Hermitian to the caller's rounding errors only, or a little less."""

from __future__ import annotations

import re
import warnings
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

N = 240


def drawn(dtype: Any, seed: int = 0, n: int = N) -> Any:
    """Draw a square array."""
    return normal(seed, n, n, dtype=dtype)


def normed_laplacian(seed: int = 0) -> Any:
    """Make the normalised Laplacian of a random graph in single precision, whose roots round apart."""
    graph = sp.random_array((N, N), density=0.05, rng=np.random.default_rng(seed), dtype=np.float32)
    return laplacian((graph + graph.T).tocsr(), normed=True).tocsr()


def hermitian_part(A: Any) -> Any:
    """Compute the Hermitian part in double precision."""
    dense = (A.toarray() if sp.issparse(A) else A).astype(np.result_type(A.dtype, np.float64))
    return (dense + dense.conj().T) / 2


def singles() -> dict[str, Any]:
    """Make matrices that are Hermitian to rounding errors of single precision."""
    a, b = drawn(np.complex64), drawn(np.float32)
    overlap = (np.eye(N, dtype=np.float32) + (b @ b.T) / N).astype(np.float32)
    overlap *= (1 + np.float32(1e-7) * np.sign(b)).astype(np.float32)
    return {
        "a * a^H": a * a.conj().T,
        "a @ a^H": a @ a.conj().T,
        "b @ b^T with noise": overlap,
        "normed Laplacian": normed_laplacian(),
    }


@pytest.mark.parametrize("name", singles())
@pytest.mark.parametrize("kind", ["as it is", "sparse", "operator"])
@pytest.mark.parametrize(
    "options", [{"which": "SA"}, {"sigma": 0.7}, {"which": "LA", "method": "lanczos"}], ids=str
)
def test_matrices_in_single_precision_are_hermitian_to_their_own_rounding(
    name: str, kind: str, options: dict[str, Any]
) -> None:
    A = singles()[name]
    given = {
        "as it is": A,
        "sparse": sp.csr_array(A),
        "operator": LinearOperator(A.shape, matmat=lambda X: A @ X, matvec=lambda x: A @ x, dtype=A.dtype),
    }[kind]
    exact = np.linalg.eigvalsh(hermitian_part(A))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        w = eigsh(given, 4, rng=0, **options)[0]
    order = np.argsort(abs(exact - 0.7)) if "sigma" in options else np.argsort(exact)
    order = order[-4:] if options.get("which") == "LA" else order[:4]
    assert w.dtype == np.float32
    assert np.allclose(w, np.sort(exact[order]), atol=2e-5 * abs(exact).max())


def test_a_mass_matrix_in_single_precision_goes_with_a_matrix_in_double_precision() -> None:
    A = model("laplace2d:n=20")[:N, :N]
    M = (sp.eye_array(N) + 0.1 * normed_laplacian()).astype(np.float32).tocsr()
    assert abs(M - M.T).max() > 0
    exact = scipy.linalg.eigh(A.toarray(), hermitian_part(M), eigvals_only=True)
    for options in ({"sigma": -0.1}, {"which": "SA"}, {"interval": (0.0, float(exact[4]) * 1.01), "k": None}):
        found = eigsh(A, **({"k": 5} | options), M=M, rng=0)[0]
        assert np.allclose(found, exact[:5], rtol=1e-7)
    assert count_eigenvalues(A, 0.0, float(exact[4]) * 1.01, M).value == 5


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array], ids=("dense", "sparse"))
@pytest.mark.parametrize("size", [1e-12, 1e-11, 1e-10, 1e-9])
def test_the_hermitian_part_is_solved_where_the_asymmetry_is_below_the_tolerance(
    kind: Any, size: float
) -> None:
    S = drawn(np.float64) + drawn(np.float64).T
    A = S + size * drawn(np.float64, 1) * np.sqrt(2)
    exact = np.linalg.eigvalsh(hermitian_part(A))
    for options in ({"which": "LA"}, {"which": "SA", "method": "lanczos"}, {"sigma": 0.3}):
        result = eigsh(kind(A), 4, tol=1e-8, convergence="norm", rng=0, return_info=True, **options)
        order = np.argsort(abs(exact - 0.3)) if "sigma" in options else np.arange(N)
        order = order[-4:] if options.get("which") == "LA" else order[:4]
        assert np.allclose(result.eigenvalues, np.sort(exact[order]), atol=1e-7)
        assert 0.5 * size < result.info["asymmetry"]["A"] < 2 * size
        assert re.search(r"Hermitian part of A is solved, from which it differs by \d", result.info["why"])


@pytest.mark.parametrize("size", [1e-11, 1e-10, 1e-9])
def test_an_asymmetry_above_the_tolerance_is_the_reason_that_is_given(size: float) -> None:
    S = drawn(np.float64) + drawn(np.float64).T
    A = sp.csr_array(S + size * drawn(np.float64, 1) * np.sqrt(2))
    with pytest.raises(
        (NoConvergence, OptionError), match=r"A differs from A\^H by \d|A is not Hermitian"
    ) as told:
        eigsh(A, 4, sigma=0.3, rng=0)
    assert "loosen tol" not in str(told.value)
    assert "(A + A.conj().T) / 2" in str(told.value)
    eigsh(A, 4, sigma=0.3, rng=0, tol=3 * size, convergence="norm")  # the remedy


def test_an_asymmetry_that_the_check_misses_is_the_reason_too() -> None:
    """The check has two random vectors, which may be nearly orthogonal in the skew part."""
    S = drawn(np.float64, n=60) + drawn(np.float64, n=60).T
    A = S + 3e-13 * drawn(np.float64, 1, n=60) * np.sqrt(2)
    for seed in range(30):
        with pytest.raises(NoConvergence, match=r"A differs from A\^H by [3-6]\.\de-13"):
            eigsh(A, 4, which="LA", rng=seed)


def test_inverses_of_ill_conditioned_matrices_are_solved_to_their_asymmetry() -> None:
    C = np.diag(np.logspace(0, 5, N)) + 0.1 * (drawn(np.float64) + drawn(np.float64).T) / N
    A = np.linalg.inv(scipy.linalg.hilbert(N) + C)
    exact = np.linalg.eigvalsh(hermitian_part(A))
    w = eigsh(A, 4, which="LA", tol=1e-9, rng=0)[0]
    assert np.allclose(w, exact[-4:], rtol=1e-9)


def test_symmetric_matrices_are_left_as_they_are() -> None:
    A = model("laplace2d:n=30")
    assert "asymmetry" not in eigsh(A, 3, which="SA", return_info=True, rng=0, tol=1e-3).info
    wrong = A + sp.coo_array(([1e-3], ([3], [5])), shape=A.shape)
    with pytest.raises(OptionError, match="A is not Hermitian"):
        eigsh(wrong, 3, which="SA", tol=1e-1)
