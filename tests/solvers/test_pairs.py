"""Pairs A x = lambda M x: ends, graded masses, light parts, shifts at eigenvalues, and given inverses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg as sl
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from blockvec import models
from blockvec.errors import OptionError
from solvers import NoConvergence, count_eigenvalues, eigsh
from tests.matrices import element_mass, springs
from tests.pairwise import pairwise
from tests.solvers.answers import answered, eigenvalues, solve, torus, twice

FEW_COLUMNS = 150  # of an iteration with K at the low end ten times as many are needed


def membrane(nx: int = 20, ny: int = 22, low: float = 1.0, high: float = 1.5) -> tuple[Any, Any]:
    """Form the pair of a membrane whose density grows geometrically from side to side."""
    root = sp.diags_array(np.sqrt(np.geomspace(low, high, nx * ny)))
    return models.model(f"laplace2d:nx={nx},ny={ny}"), sp.csr_array(root @ element_mass(ny, nx) @ root)


@pytest.mark.parametrize("density", [{}, {"low": 1e-6, "high": 1.0}], ids=["even", "graded"])
@pytest.mark.parametrize("which", ["SA", "BE"])
def test_the_low_end_of_a_stiffness_matrix_takes_few_solves(which: str, density: dict[str, float]) -> None:
    K, M = membrane(**density)
    info = answered(K, 7, M, which=which, rtol=1e-9, loss=1e-10).info
    assert "shift-invert" in info["method"]
    assert "dense" not in info["method"]
    assert info["operator_columns"] < FEW_COLUMNS
    assert "proved" in info["verification"]


@pytest.mark.parametrize("which", ["SA", "LA", "BE"])
def test_every_copy_of_a_doubled_pair_is_found_without_dense_lapack(which: str) -> None:
    order = np.random.default_rng(0).permutation(2 * 14 * 16)
    K, M = (A[order][:, order] for A in twice(*membrane(14, 16)))
    result = answered(K, 8, M, which=which, rtol=1e-9, loss=1e-10)
    assert "dense" not in result.info["method"]


@pytest.mark.parametrize(("shift", "which"), [(-2.0, "SA"), (-2.0, "BE"), (1e5, "SA")])
def test_a_low_end_below_zero_or_far_above_it_is_found(shift: float, which: str) -> None:
    K, M = membrane()
    A = sp.csr_array(K + shift * M)
    assert (A.diagonal() > 0).all()  # also where values are negative
    result = answered(A, 5, M, which=which, rtol=1e-9, loss=1e-10)
    assert (result.eigenvalues.min() < 0) == (shift < 0)


def test_both_ends_share_the_copies_of_a_value_between_them() -> None:
    masses, values = np.linspace(1, 2, 400), np.r_[[2.0] * 3, np.ones(397)]
    K, M = (sp.diags_array(d, format="csr") for d in (values * masses, masses))
    answered(K, 10, M, which="BE")


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("method", ["auto", "lanczos", "jd", "dense"])
def test_masses_in_single_precision_keep_its_type(method: str, dtype: Any) -> None:
    K, M = (
        sp.diags_array(d.astype(dtype), format="csr") for d in (np.arange(80) % 41.0, np.linspace(1, 2, 80))
    )
    result = answered(K, 4, M, which="LA", method=method, atol=1e-11, rtol=1e-5)
    assert result.eigenvectors.dtype == dtype


@pytest.mark.parametrize("k", [4, 17, 24])
def test_both_ends_of_a_pair_keep_their_numbers_of_values(k: int) -> None:
    A, M, values = torus(24)
    for seed in range(2):  # the least value is zero, whose vector needs more digits than those of the others
        answered(A, k, M, which="BE", exact=values, rng=seed)


@pytest.mark.parametrize("selection", [{"which": "SA"}, {"which": "BE"}, {"which": "SM"}, {"sigma": -1e-3}])
def test_masses_over_six_decades_cost_no_digits_of_the_lowest_values(selection: dict[str, Any]) -> None:
    K, M = springs(np.ones(61), 10 ** np.random.default_rng(4).uniform(0, 6, 60))
    d = 1 / np.sqrt(M.diagonal())
    inverse = np.linalg.inv(K.toarray()) / d[:, None] / d  # the lowest values are its highest
    exact = np.sort(1 / sl.eigvalsh((inverse + inverse.T) / 2))
    k = 60 if selection == {"which": "BE"} else 8
    result = answered(K, k, M, exact=exact, rtol=1e-8, loss=1e-10, **selection)
    np.testing.assert_allclose(result.eigenvalues[:8], exact[:8], rtol=1e-9)


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


@pytest.mark.parametrize(
    ("k_and_tol", "light", "sigma"),
    pairwise(((2, 0.0), (5, 1e-4), (9, 1e-4), (17, 0.0)), (2.0**-56, 2.0**-30), (-0.01, None)),
)
def test_a_light_part_has_the_values_of_a_heavy_one(
    k_and_tol: tuple[int, float], light: float, sigma: float | None
) -> None:
    k, tol = k_and_tol
    A, M, values = torus(21, light)  # few rows: M has a factor
    options = {"which": "SA"} if sigma is None else {"sigma": sigma}
    w = solve(A, k, M, tol=tol, block_size=1, method="lanczos", **options).eigenvalues
    assert np.abs(w - values[:k]).max() < max(1e-9, 10 * tol)


@pytest.mark.parametrize("light", [1e-16, 1e-12, 3.4e-9, 1e-7])
def test_counts_beside_a_light_part_prove_something(light: float) -> None:
    A, M, values = torus(18, light)
    A, values = sp.csr_array(A + M), values + 1
    for low, high in [(0.5, 1.2), (1.2, 3.3), (2.05, 30.0)]:
        assert int(count_eigenvalues(A, low, high, M=M)) == ((values >= low) & (values <= high)).sum()
    for k, tol in ((5, 1e-6), (6, 0.0), (7, 1e-4), (9, 1e-6)):
        w = solve(A, k, M, which="SA", tol=tol).eigenvalues
        assert np.abs(w - values[:k]).max() < max(1e-9, 10 * tol)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 12])
def test_a_shift_at_an_eigenvalue_of_a_hilbert_matrix_returns_the_values_nearest_to_it(k: int) -> None:
    H = 1e12 * sl.hilbert(12)
    for A in (sp.csr_array(H), H):
        answered(A, k, sigma="2", atol=1e-14)


def test_values_at_equal_distances_from_a_moved_shift_do_not_hide_the_nearest() -> None:
    A = sp.diags_array([0.0, 0.0, 1.0, 2.0, 2.0], format="csr")
    for how in ({}, {"method": "lanczos", "ncv": 3, "block_size": 1}):
        answered(A, 2, sigma=1.0, **how)


# --- given inverses ---------------------------------------------------------------------------------------


def shifted_problem() -> tuple[Any, Any, float, Any]:
    A = models.model("laplace2d:nx=20,ny=21")
    M, sigma = sp.diags_array(np.linspace(1, 2, A.shape[0]), format="csr"), 0.77
    return A, M, sigma, splu(sp.csc_array(A - sigma * M)).solve


@pytest.mark.parametrize("has_mass", [False, True])
@pytest.mark.parametrize(("factor", "distance"), [(0.0, 0.0), (0.9, 0.0), (-1.0, 0.0), (1.0, 0.01)])
def test_an_opinv_that_is_no_inverse_is_refused(factor: float, distance: float, has_mass: bool) -> None:
    A, M, sigma, inverse = shifted_problem()
    with pytest.raises(OptionError, match=r"OPinv: is not the inverse of A - sigma M for sigma = 0\.7"):
        eigsh(A, 3, M if has_mass else None, sigma + distance, OPinv=lambda X: factor * inverse(X), rng=0)


@pytest.mark.parametrize("relative", [1e-6, 1e-10])
def test_an_inexact_opinv_is_refined_to_pairs_of_full_accuracy(relative: float) -> None:
    A, M, sigma, inverse = shifted_problem()
    noise, calls = np.random.default_rng(0).standard_normal(A.shape) / A.shape[0], 0

    def inexact(X: Any) -> Any:
        nonlocal calls
        calls += X.shape[1]
        Y = inverse(X)
        return Y + relative * (noise @ Y)

    result = answered(A, 4, M, sigma=sigma, OPinv=inexact, atol=0.0, rtol=1e-12)
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
    values = eigenvalues(A, M)
    nearest = np.sort(values[np.argsort(np.abs(values - sigma))[:3]])
    np.testing.assert_allclose(caught.value.result.eigenvalues, nearest, atol=1e-6)
    assert solve(A, 3, M, sigma=sigma, OPinv=erratic, tol=1e-5).converged.all()


@pytest.mark.parametrize("which", ["SA", "BE"])
def test_values_furthest_from_a_shift_are_those_of_dense_lapack(which: str) -> None:
    K, M = membrane()
    result = eigsh(K, 5, M=M, sigma=-0.5, which=which, return_info=True)  # type: ignore[arg-type]
    exact = sl.eigh(K.toarray(), M.toarray(), eigvals_only=True)
    wanted = exact[-5:] if which == "SA" else np.r_[exact[:3], exact[-2:]]
    np.testing.assert_allclose(result.eigenvalues, wanted, rtol=1e-10)
    assert result.info["method"] == "dense"
