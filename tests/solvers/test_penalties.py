"""Penalties on the diagonal, far larger than the wanted eigenvalues: right answers, or a word about them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.linalg as sl
import scipy.sparse as sp

from blockvec.errors import OptionError
from solvers import ConvergenceWarning, count_eigenvalues, eigsh
from tests.matrices import gauged
from tests.pretended_gpu import pretended_gpu

SIDE = 16  # rows of a grid, and degrees of freedom that are fixed
N = SIDE * SIDE


def grid(penalty: float, dtype: Any = float) -> Any:
    """Return the stiffness of a grid whose first side is fixed by penalties."""
    ones = np.ones(SIDE)
    chain = sp.diags_array([-ones[1:], np.r_[1, 2 * ones[2:], 1], -ones[1:]], offsets=[-1, 0, 1])
    eye = sp.eye_array(SIDE)
    side = np.r_[np.full(SIDE, penalty), np.zeros(N - SIDE)]
    A = sp.csr_array(sp.kron(chain, eye) + sp.kron(eye, chain) + sp.diags_array(side)).astype(dtype)
    if np.dtype(dtype).kind == "c":  # a change of phases keeps the eigenvalues
        A = gauged(A).astype(dtype)
    return A


def reference(penalty: float, masses: Any = None, shift: float = 0.0) -> Any:
    """Compute the eigenvalues far below the penalties: fixed degrees of freedom are eliminated by them."""
    A = grid(0.0).toarray()
    free, fixed = A[SIDE:, SIDE:], A[SIDE:, :SIDE]
    inverse = np.linalg.inv(A[:SIDE, :SIDE] + penalty * np.eye(SIDE))
    mass = np.eye(N - SIDE) if masses is None else np.diag(masses[SIDE:])
    # Of second order in 1/penalty the masses of the fixed ones remain.
    moved = fixed @ inverse
    mass = mass + moved @ np.diag(np.ones(SIDE) if masses is None else masses[:SIDE]) @ moved.T
    return sl.eigh(free - moved @ fixed.T, mass, eigvals_only=True) - shift


PENALTIES = [1e6, 1e10, 1e15]
MASSES = np.linspace(1, 2, N)


@pytest.mark.parametrize("has_mass", [False, True])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_the_lowest_values_are_those_of_the_matrix_without_fixed_rows(penalty: float, has_mass: bool) -> None:
    masses = MASSES if has_mass else None
    M = sp.diags_array(MASSES, format="csr") if has_mass else None
    expected = reference(penalty, masses)
    A = grid(penalty)
    atol = 1e-12 if penalty > 1e6 else 2e-12
    for options in ({"which": "SA"}, {"which": "SM"}, {"sigma": -0.3}):
        w, V = eigsh(A, 5, M=M, rng=0, **options)
        assert np.abs(w - expected[:5]).max() <= atol, options
        mass = V if M is None else M @ V
        assert np.abs(V.T @ mass - np.eye(5)).max() <= 1e-12
    nearest = np.sort(expected[np.argsort(abs(expected - 0.5))[:5]])
    assert np.abs(eigsh(A, 5, M=M, sigma=0.5, rng=0)[0] - nearest).max() <= 1e-12


@pytest.mark.parametrize("penalty", PENALTIES)
def test_intervals_and_counts_do_not_see_penalties(penalty: float) -> None:
    A, expected = grid(penalty), reference(penalty)
    for low, high in [(0.0, 0.3), (-math.inf, 0.3), (0.2, 1.0)]:
        inside = expected[(expected > low) & (expected < high)]
        w = eigsh(A, interval=(low, high), rng=0)[0]
        assert len(w) == len(inside)
        assert np.abs(w - inside).max() <= 1e-12
        count = count_eigenvalues(A, low, high)
        assert count.is_exact
        assert int(count) == len(inside)
    ones = np.ones(N)
    mass = sp.diags_array([ones[1:] / 6, ones * 2 / 3, ones[1:] / 6], offsets=[-1, 0, 1], format="csr")
    for M in (None, mass):
        assert int(count_eigenvalues(A, 0.0, math.inf, M=M)) == N


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.complex128])
def test_other_types_and_dense_arrays_have_the_same_values(dtype: Any) -> None:
    A, expected = grid(1e14, dtype), reference(1e14)
    atol = 2e-6 if np.finfo(dtype).eps > 1e-10 else 1e-12
    for given in (A, A.toarray()):
        for options in ({"which": "SA"}, {"sigma": 0.0}):
            result = eigsh(given, 5, rng=0, return_info=True, **options)
            assert np.abs(result.eigenvalues - expected[:5]).max() <= atol
            assert result.eigenvectors.dtype == dtype
            assert (result.residuals <= result.limits).all()
            assert result.limits.max() <= 1e4 * np.finfo(dtype).eps
        assert int(count_eigenvalues(given, 0.0, 0.3)) == int((expected < 0.3).sum())


@pytest.mark.parametrize(
    ("penalty", "k", "seed"), [(1e13, 3, 7), (1e13, 5, 7), (2e13, 3, 0), (2e13, 3, 9), (2e13, 5, 5)]
)
def test_no_penalty_is_left_out_that_its_cluster_hides(penalty: float, k: int, seed: int) -> None:
    A = grid(penalty)
    result = eigsh(A, k, which="LA", rng=seed, return_info=True)
    # They are 1e-13 of their size apart, and those of the first rows except for parts of 1 / penalty.
    side = A[:SIDE, :SIDE].toarray() - penalty * np.eye(SIDE)
    others = np.linalg.qr(result.eigenvectors[:SIDE], mode="complete")[0][:, k:]
    highest = penalty + np.linalg.eigvalsh(others.T @ side @ others)[-1]
    assert highest <= result.eigenvalues[0] + 2 * result.limits[0]


def measured(A: Any, M: Any, result: Any) -> np.ndarray:
    """Compute the residuals of a result; checks that its vectors are orthonormal."""
    X = result.eigenvectors.astype(np.complex128)
    mass = X if M is None else M @ X
    loss = 100 * np.finfo(result.eigenvectors.dtype).eps
    assert np.abs(X.conj().T @ mass - np.eye(X.shape[1])).max() <= loss
    return np.linalg.norm(A @ X - mass * result.eigenvalues.astype(float), axis=0)


@pytest.mark.parametrize("has_mass", [False, True])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_both_ends_are_as_right_as_each_of_them(penalty: float, has_mass: bool) -> None:
    masses = MASSES if has_mass else None
    M = sp.diags_array(MASSES, format="csr") if has_mass else None
    A, expected = grid(penalty), reference(penalty, masses)
    few = eigsh(A, 6, M=M, which="BE", rng=0, return_info=True)
    many = eigsh(A, 2 * SIDE + 8, M=M, which="BE", rng=0, return_info=True)
    above = eigsh(A, SIDE + 4, M=M, which="LA", rng=0, return_info=True)
    assert np.abs(few.eigenvalues[:3] - expected[:3]).max() <= 2e-12
    assert np.abs(many.eigenvalues[: SIDE + 4] - expected[: SIDE + 4]).max() <= 2e-12
    for result in (many, above):
        assert np.abs(result.eigenvalues[-SIDE - 4 : -SIDE] - expected[-4:]).max() <= 1e-11
    for result, which in ((few, "BE"), (many, "BE"), (above, "LA")):
        assert (result.info["which"], result.info["sigma"]) == (which, None)
        assert result.info["k"] == len(result.eigenvalues)
        assert (measured(A, M, result) <= result.limits).all()
        held = result.eigenvalues > penalty / 4
        assert np.allclose(result.eigenvalues[held] * (MASSES[0] if has_mass else 1), penalty, rtol=0.1)
        assert result.limits[~held].max(initial=0) <= 1e-12


@pytest.mark.parametrize("penalty", PENALTIES)
def test_intervals_without_an_end_hold_the_penalties_too(penalty: float) -> None:
    A, expected = grid(penalty), reference(penalty)
    for low in (6.0, -math.inf) if penalty == 1e10 else (6.0,):
        inside = expected[expected > low]
        result = eigsh(A, interval=(low, math.inf), rng=0, return_info=True)
        assert len(result.eigenvalues) == result.info["counted"] == len(inside) + SIDE
        assert np.abs(result.eigenvalues[:-SIDE] - inside).max() <= 1e-11
        assert result.info["interval"] == [None if low < 0 else low, None]
    assert len(eigsh(A, interval=(10.0, math.inf), rng=0)[0]) == SIDE
    held = int((expected > 6).sum()) + SIDE
    assert len(eigsh(A, held, interval=(6.0, math.inf), rng=0)[0]) == held
    with pytest.raises(OptionError, match=f"k: got {held - 1}, but the interval holds {held}"):
        eigsh(A, held - 1, interval=(6.0, math.inf), rng=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_residuals_are_those_of_the_matrices_that_were_given(penalty: float, dtype: Any) -> None:
    A = grid(penalty, dtype)
    u, M = np.finfo(dtype).eps / 2, sp.diags_array(MASSES, format="csr").astype(dtype)
    for options in ({"sigma": 0.5, "k": 5}, {"which": "SA", "k": 5}, {"interval": (0.2, 1.0)}):
        for mass in (None, M):
            if mass is not None and u > 1e-10:
                continue
            result = eigsh(A, M=mass, rng=0, return_info=True, **options)
            assert np.allclose(measured(A, mass, result), result.residuals, rtol=0.1, atol=10 * u)
            assert (result.residuals <= result.limits).all()
            assert result.limits.max() <= 2e3 * u


def test_penalties_of_both_signs_are_apart_from_the_rest() -> None:
    half = SIDE // 2
    signs = np.r_[np.full(half, 1e12), np.full(half, -1e12), np.zeros(N - SIDE)]
    A = sp.csr_array(grid(0.0) + sp.diags_array(signs))
    plain = grid(0.0).toarray()[SIDE:, SIDE:]
    inside = np.linalg.eigvalsh(plain)
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
