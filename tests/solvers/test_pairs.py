"""Generalised problems of few rows: graded masses, shifts at eigenvalues, and given inverses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg as sl
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from blockvec import as_operator, models
from blockvec.errors import OptionError
from solvers import NoConvergence, eigsh
from solvers.transform.solution import refined_pairs
from tests.matrices import springs


@pytest.mark.parametrize("selection", [{"which": "SA"}, {"which": "BE"}, {"which": "SM"}, {"sigma": -1e-3}])
def test_masses_over_six_decades_cost_no_digits_of_the_lowest_values(selection: dict[str, Any]) -> None:
    rng = np.random.default_rng(4)
    K, M = springs(np.ones(61), 10 ** rng.uniform(0, 6, 60))
    d = 1 / np.sqrt(M.diagonal())
    inverse = np.linalg.inv(K.toarray()) / d[:, None] / d  # the lowest values are its highest
    expected = np.sort(1 / sl.eigvalsh((inverse + inverse.T) / 2))
    k = 60 if selection == {"which": "BE"} else 8
    result = eigsh(K, k, M=M, rng=0, return_info=True, **selection)
    np.testing.assert_allclose(result.eigenvalues[:8], expected[:8], rtol=1e-9)
    X = result.eigenvectors
    np.testing.assert_allclose(X.T @ (M @ X), np.eye(k), atol=1e-10)
    assert (np.linalg.norm(K @ X - M @ X * result.eigenvalues, axis=0) <= 2 * result.limits).all()


@pytest.mark.parametrize("selection", [{"which": "SA"}, {"which": "SM"}, {"sigma": 0.0}])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
def test_a_nearly_singular_overlap_matrix_leaves_the_levels_of_an_oscillator(
    kind: Callable[[Any], Any], selection: dict[str, Any]
) -> None:
    x = np.linspace(-6, 6, 30)  # Gaussians exp(-(x - x_j)^2)
    distance, middle = x[:, None] - x, (x[:, None] + x) / 2
    S = np.exp(-(distance**2) / 2) * np.sqrt(np.pi / 2)
    H = 0.5 * S * (1 - distance**2) + 0.5 * S * (middle**2 + 0.25)
    assert np.linalg.cond(S) > 1e10
    values = eigsh(kind(H), 6, M=kind(S), return_eigenvectors=False, rng=0, **selection)
    np.testing.assert_allclose(values, np.arange(6) + 0.5, atol=1e-12)


def test_refined_pairs_are_those_of_the_exact_problem_for_any_grading() -> None:
    rng = np.random.default_rng(1)
    for dtype in (float, complex):
        B = rng.standard_normal((20, 20)).astype(dtype)
        if dtype is complex:
            B = B + 1j * rng.standard_normal((20, 20))
        d = 10.0 ** -rng.uniform(0, 6, 20)
        A = B @ B.conj().T + 20 * np.eye(20)
        M = np.diag(1 / d**2)
        X = sl.eigh(A * d[:, None] * d, np.eye(20))[1] * d[:, None]
        values, X = refined_pairs(as_operator(A), as_operator(M), X)
        scale = np.linalg.norm(A, 2) * np.linalg.norm(X, axis=0)
        residuals = np.linalg.norm(A @ X - M @ X * values, axis=0)
        assert (residuals <= 1e-13 * scale).all()
        np.testing.assert_allclose(X.conj().T @ M @ X, np.eye(20), atol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 12])
def test_a_shift_at_an_eigenvalue_of_a_hilbert_matrix_returns_the_values_nearest_to_it(k: int) -> None:
    H = 1e12 * sl.hilbert(12)
    values = np.linalg.eigvalsh(H)
    sigma = float(values[2])
    nearest = np.sort(values[np.argsort(np.abs(values - sigma))[:k]])
    found = eigsh(sp.csr_array(H), k, sigma=sigma, return_eigenvectors=False, rng=0)
    np.testing.assert_allclose(found, nearest, atol=1e-14 * values[-1])
    np.testing.assert_allclose(eigsh(H, k, sigma=sigma, rng=0)[0], found, atol=1e-14 * values[-1])


def test_values_at_equal_distances_from_a_moved_shift_do_not_hide_the_nearest() -> None:
    values = np.array([0.0, 0.0, 1.0, 2.0, 2.0])
    found = eigsh(sp.diags_array(values, format="csr"), 2, sigma=1.0, return_eigenvectors=False, rng=0)
    assert np.abs(found - 1).min() < 1e-12


# --- given inverses ---------------------------------------------------------------------------------------


def shifted_problem() -> tuple[Any, Any, float, Any]:
    A = models.model("laplace2d:nx=20,ny=21")
    M, sigma = sp.diags_array(np.linspace(1, 2, A.shape[0]), format="csr"), 0.77
    return A, M, sigma, splu(sp.csc_array(A - sigma * M)).solve


@pytest.mark.parametrize("has_mass", [False, True])
@pytest.mark.parametrize("factor", [0.0, 0.9, -1.0])
def test_an_opinv_that_is_no_inverse_is_refused(factor: float, has_mass: bool) -> None:
    A, M, sigma, inverse = shifted_problem()
    with pytest.raises(OptionError, match=r"OPinv: is not the inverse of A - sigma M for sigma = 0\.77"):
        eigsh(A, 3, M=M if has_mass else None, sigma=sigma, OPinv=lambda X: factor * inverse(X), rng=0)


def test_the_inverse_for_another_shift_is_refused() -> None:
    A, M, sigma, inverse = shifted_problem()
    with pytest.raises(OptionError, match=r"OPinv: is not the inverse"):
        eigsh(A, 3, M=M, sigma=sigma + 0.01, OPinv=inverse, rng=0)


@pytest.mark.parametrize("relative", [1e-6, 1e-10])
def test_an_inexact_opinv_is_refined_to_pairs_of_full_accuracy(relative: float) -> None:
    A, M, sigma, inverse = shifted_problem()
    values = sl.eigh(A.toarray(), M.toarray(), eigvals_only=True)
    nearest = np.sort(values[np.argsort(np.abs(values - sigma))[:4]])
    noise, calls = np.random.default_rng(0).standard_normal(A.shape) / A.shape[0], 0

    def inexact(X: Any) -> Any:
        nonlocal calls
        calls += X.shape[1]
        Y = inverse(X)
        return Y + relative * (noise @ Y)

    result = eigsh(A, 4, M=M, sigma=sigma, OPinv=inexact, rng=0, return_info=True)
    np.testing.assert_allclose(result.eigenvalues, nearest, rtol=1e-12)
    assert result.converged.all()
    assert "refined" in result.info["why"]
    assert calls < 200


def test_an_opinv_whose_errors_remain_ends_soon_and_is_named() -> None:
    A, M, sigma, inverse = shifted_problem()
    rng, calls = np.random.default_rng(0), 0

    def erratic(X: Any) -> Any:
        nonlocal calls
        calls += X.shape[1]
        return inverse(X) + 1e-8 * rng.standard_normal(X.shape)

    with pytest.raises(NoConvergence, match="by an OPinv that is not accurate enough") as caught:
        eigsh(A, 3, M=M, sigma=sigma, OPinv=erratic, rng=0)
    assert calls < 500
    values = sl.eigh(A.toarray(), M.toarray(), eigvals_only=True)
    nearest = np.sort(values[np.argsort(np.abs(values - sigma))[:3]])
    np.testing.assert_allclose(caught.value.result.eigenvalues, nearest, atol=1e-6)
    loose = eigsh(A, 3, M=M, sigma=sigma, OPinv=erratic, tol=1e-5, rng=0, return_info=True)
    assert loose.converged.all()
