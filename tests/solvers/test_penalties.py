"""Penalties on the diagonal, far larger than the wanted eigenvalues: right answers, or a word about them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.linalg as sl
import scipy.sparse as sp

from blockvec.errors import OptionError
from solvers import ConvergenceWarning, EigenResult, count_eigenvalues, eigsh
from tests.matrices import element_mass, gauged
from tests.pretended_gpu import pretended_gpu
from tests.solvers.answers import eigenvalues, solve

SIDE = 16  # rows of a grid, and degrees of freedom that are fixed
N = SIDE * SIDE


def grid(penalty: float, dtype: Any = float) -> Any:
    """Return the stiffness of a grid whose first side is fixed by penalties."""
    chain = sp.diags_array(
        [-1.0, np.r_[1, np.full(SIDE - 2, 2.0), 1], -1.0], offsets=[-1, 0, 1], shape=(SIDE, SIDE)
    )
    eye = sp.eye_array(SIDE)
    side = np.r_[np.full(SIDE, penalty), np.zeros(N - SIDE)]
    A = sp.csr_array(sp.kron(chain, eye) + sp.kron(eye, chain) + sp.diags_array(side)).astype(dtype)
    if np.dtype(dtype).kind == "c":  # a change of phases keeps the eigenvalues
        A = gauged(A).astype(dtype)
    return A


def reference(penalty: float, masses: Any = None) -> Any:
    """Compute the eigenvalues far below the penalties: fixed degrees of freedom are eliminated by them."""
    A = grid(0.0).toarray()
    free, fixed = A[SIDE:, SIDE:], A[SIDE:, :SIDE]
    inverse = np.linalg.inv(A[:SIDE, :SIDE] + penalty * np.eye(SIDE))
    mass = np.eye(N - SIDE) if masses is None else np.diag(masses[SIDE:])
    # Of second order in 1/penalty the masses of the fixed ones remain.
    moved = fixed @ inverse
    mass = mass + moved @ np.diag(np.ones(SIDE) if masses is None else masses[:SIDE]) @ moved.T
    return sl.eigh(free - moved @ fixed.T, mass, eigvals_only=True)


PENALTIES = [1e6, 1e10, 1e15]
MASSES = np.linspace(1, 2, N)
MASS = sp.diags_array(MASSES, format="csr")


def solved(A: Any, k: int | None, M: Any = None, **options: Any) -> EigenResult:
    """Solve; check the residuals, their limits, and that the vectors are orthonormal."""
    result = solve(A, k, M, **options)
    eps = np.finfo(result.eigenvectors.dtype).eps
    X = result.eigenvectors.astype(np.complex128)
    mass = X if M is None else M @ X
    assert np.abs(X.conj().T @ mass - np.eye(X.shape[1])).max(initial=0) <= 100 * eps
    residuals = np.linalg.norm(A @ X - mass * result.eigenvalues.astype(float), axis=0)
    assert (residuals <= result.limits).all()
    assert np.allclose(residuals, result.residuals, rtol=0.1, atol=5 * eps * np.maximum(result.limits, 1))
    return result


def nearest(values: np.ndarray, sigma: float) -> np.ndarray:
    return np.sort(values[np.argsort(abs(values - sigma))[:5]])


@pytest.mark.parametrize("has_mass", [False, True])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_the_lowest_values_are_those_of_the_matrix_without_fixed_rows(penalty: float, has_mass: bool) -> None:
    M, exact = (MASS, reference(penalty, MASSES)) if has_mass else (None, reference(penalty))
    asked = [{"which": "SA"}, {"which": "SM"}, {"sigma": -0.3}, {"sigma": 0.5}]
    for options in asked:
        w = eigsh(grid(penalty), 5, M=M, rng=0, return_eigenvectors=False, **options)
        assert np.abs(w - nearest(exact, options.get("sigma", -1.0))).max() <= 2e-12, options


@pytest.mark.parametrize("penalty", PENALTIES)
def test_intervals_and_counts_do_not_see_penalties(penalty: float) -> None:
    A, exact = grid(penalty), reference(penalty)
    for low, high in [(0.0, 0.3), (-math.inf, 0.3), (0.2, 1.0)]:
        inside = exact[(exact > low) & (exact < high)]
        w = eigsh(A, interval=(low, high), rng=0)[0]
        assert len(w) == len(inside)
        assert np.abs(w - inside).max() <= 1e-12
        count = count_eigenvalues(A, low, high)
        assert count.is_exact
        assert int(count) == len(inside)
    for M in (None, element_mass(N)):
        assert int(count_eigenvalues(A, 0.0, math.inf, M=M)) == N


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_other_types_and_dense_arrays_have_the_same_values(dtype: Any, penalty: float) -> None:
    A, exact, eps = grid(penalty, dtype), reference(penalty), np.finfo(dtype).eps
    atol = 2e-6 if eps > 1e-10 else 2e-12
    for options in ({"which": "SA"}, {"sigma": 0.5}):
        right = nearest(exact, options.get("sigma", -1.0))
        for given, M in ((A, None), (A.toarray(), None), (A, MASS.astype(dtype))):
            if M is not None and eps > 1e-10:
                continue
            result = solved(given, 5, M, **options)
            assert M is not None or np.abs(result.eigenvalues - right).max() <= atol
            assert result.eigenvectors.dtype == dtype
            assert result.limits.max() <= 1e3 * eps
    solved(A, None, interval=(0.2, 1.0))
    assert int(count_eigenvalues(A.toarray(), 0.0, 0.3)) == int((exact < 0.3).sum())


@pytest.mark.parametrize(
    ("penalty", "k", "seed"), [(1e13, 3, 7), (1e13, 5, 7), (2e13, 3, 0), (2e13, 3, 9), (2e13, 5, 5)]
)
def test_no_penalty_is_left_out_that_its_cluster_hides(penalty: float, k: int, seed: int) -> None:
    A = grid(penalty)
    result = solve(A, k, which="LA", rng=seed)
    # They are 1e-13 of their size apart, and those of the first rows except for parts of 1 / penalty.
    side = A[:SIDE, :SIDE].toarray() - penalty * np.eye(SIDE)
    others = np.linalg.qr(result.eigenvectors[:SIDE], mode="complete")[0][:, k:]
    highest = penalty + np.linalg.eigvalsh(others.T @ side @ others)[-1]
    assert highest <= result.eigenvalues[0] + 2 * result.limits[0]


@pytest.mark.parametrize("has_mass", [False, True])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_both_ends_are_as_right_as_each_of_them(penalty: float, has_mass: bool) -> None:
    M, exact = (MASS, reference(penalty, MASSES)) if has_mass else (None, reference(penalty))
    A = grid(penalty)
    few, many = (solved(A, k, M, which="BE") for k in (6, 2 * SIDE + 8))
    above = solved(A, SIDE + 4, M, which="LA")
    assert np.abs(few.eigenvalues[:3] - exact[:3]).max() <= 2e-12
    assert np.abs(many.eigenvalues[: SIDE + 4] - exact[: SIDE + 4]).max() <= 2e-12
    for result, which in ((few, "BE"), (many, "BE"), (above, "LA")):
        assert (result.info["which"], result.info["sigma"]) == (which, None)
        assert result.info["k"] == len(result.eigenvalues)
        assert result is few or np.abs(result.eigenvalues[-SIDE - 4 : -SIDE] - exact[-4:]).max() <= 1e-11
        held = result.eigenvalues > penalty / 4
        assert np.allclose(result.eigenvalues[held] * (MASSES[0] if has_mass else 1), penalty, rtol=0.1)
        assert result.limits[~held].max(initial=0) <= 1e-12


@pytest.mark.parametrize(("penalty", "low"), [*((p, 6.0) for p in PENALTIES), (1e10, -math.inf)])
def test_intervals_without_an_end_hold_the_penalties_too(penalty: float, low: float) -> None:
    exact = reference(penalty)
    inside = exact[exact > low]
    result = solve(grid(penalty), interval=(low, math.inf))
    assert len(result.eigenvalues) == result.info["counted"] == len(inside) + SIDE
    assert np.abs(result.eigenvalues[:-SIDE] - inside).max() <= 1e-11
    assert result.info["interval"] == [None if low < 0 else low, None]


def test_penalties_of_both_signs_are_apart_from_the_rest() -> None:
    half = SIDE // 2
    signs = np.r_[np.full(half, 1e12), np.full(half, -1e12), np.zeros(N - SIDE)]
    A, inside = sp.csr_array(grid(0.0) + sp.diags_array(signs)), eigenvalues(grid(0.0)[SIDE:, SIDE:])
    low = eigsh(A, half + 3, which="SA", rng=0)[0]
    assert np.abs(low[half:] - inside[:3]).max() <= 1e-10
    assert (low[:half] < -9e11).all()
    ends = eigsh(A, 2 * half + 4, which="BE", rng=0)[0]
    assert np.abs(ends[half:-half] - inside[[0, 1, -2, -1]]).max() <= 1e-10
    everything = eigsh(A, interval=(-math.inf, math.inf), rng=0)[0]
    assert np.abs(everything[half:-half] - inside).max() <= 1e-10


@pytest.mark.parametrize("options", [{"which": "BE"}, {"which": "SA"}, {"interval": (6.0, math.inf)}])
def test_matrices_of_a_gpu_are_solved_as_those_of_the_host(options: dict[str, Any]) -> None:
    k = None if "interval" in options else 6
    expected = eigsh(grid(1e12), k, rng=0, **options)[0]
    with pretended_gpu():
        w, V = eigsh(grid(1e12), k, rng=0, device="gpu", **options)
        assert (w.get() == expected).all()
        assert V.shape == (N, len(expected))


def tied(penalty: float) -> Any:
    """Return a grid in which two degrees of freedom are tied by a penalty: no diagonal scaling helps."""
    A = sp.lil_array(grid(0.0))
    A[:2, :2] += penalty * np.array([[1, -1], [-1, 1]])
    return sp.csr_array(A)


def test_where_penalties_remain_nothing_is_called_exact() -> None:
    with pytest.raises(OptionError, match="count_eigenvalues: the largest row"):
        count_eigenvalues(tied(1e15), 0.0, 0.3)
    with pytest.raises(OptionError, match="interval: the largest row"):
        eigsh(tied(1e15), interval=(0.0, 0.3))
    for A, k, options in [
        (tied(1e15), 3, {"which": "SA"}),
        (tied(1e13), 3, {"which": "SA"}),
        (tied(1e13), 6, {"which": "BE"}),
        (grid(1e15), 3, {"which": "SA", "method": "dense"}),
        (grid(1e15), 3, {"which": "SA", "norm": 1e15}),
        (grid(1e6), 3, {"which": "SA", "method": "filter", "tol": 1e-4, "convergence": "norm"}),
        (grid(1e6), 1, {"which": "SA", "method": "jd", "maxiter": 1}),
        (grid(1e6), SIDE + 1, {"which": "LM"}),
    ]:
        with pytest.warns(ConvergenceWarning, match="digits of eigenvalues below that are lost"):
            eigsh(A, k, rng=0, on_unconverged="return", **options)


def test_values_of_the_largest_rows_are_not_warned_of() -> None:
    for which in ("LA", "LM"):
        eigsh(grid(1e9), 3, which=which, rng=0)
        eigsh(tied(1e13), 1, which=which, rng=0)
