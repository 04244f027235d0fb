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
from solvers.transform.penalties import Penalties

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
        phases = sp.diags_array(np.exp(1j * np.arange(N)))
        A = sp.csr_array(phases @ A @ phases.conj().T).astype(dtype)
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
    assert int(count_eigenvalues(A, 0.0, math.inf)) == N


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


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_end_of_an_indefinite_matrix_is_found(sign: int) -> None:
    A = sign * (grid(1e15) - 2.5 * sp.eye_array(N, format="csr"))
    end, expected = ("SA", "LA")[sign < 0], np.sort(sign * reference(1e15, shift=2.5)[:5])
    result = eigsh(A, 5, which=end, rng=0, return_info=True)
    assert np.abs(result.eigenvalues - expected).max() <= 1e-12
    assert result.info["which"] == end
    assert Penalties.of(A, None, (-math.inf if sign < 0 else math.inf,)) is None  # those of the penalties


def test_penalties_themselves_are_found_at_their_end() -> None:
    A = grid(1e12)
    w = eigsh(A, 3, which="LA", rng=0)[0]
    assert np.abs(w - 1e12).max() <= 10


def test_matrices_without_penalties_are_left_alone() -> None:
    hub = sp.lil_array((N, N))
    hub[0, 1:] = hub[1:, 0] = -1e6
    hub.setdiag(np.r_[1e6 * (N - 1), np.full(N - 1, 1e6)])
    for A in (grid(0.0), grid(1e4), sp.csr_array(hub), sp.diags_array(10.0 ** np.arange(-5, 6))):
        assert Penalties.of(A, None, (0.0,)) is None
    assert Penalties.of(grid(1e8), None, (1e7,)) is None  # a shift among the penalties
    assert Penalties.of(grid(1e8), None, (0.0,), k=N) is None  # which are wanted, too


def test_a_congruence_by_powers_of_two_is_exact() -> None:
    A = grid(3e13)
    penalties = Penalties.of(A, None, (0.0,))
    assert penalties is not None
    D = sp.diags_array(1 / penalties.factors)
    assert abs(D @ penalties.A @ D - A).max() == 0
    assert abs(D @ penalties.M @ D - sp.eye_array(N)).max() == 0
    assert abs(penalties.A).max() <= 16


def test_penalties_of_many_sizes_leave_the_norm_of_the_other_rows() -> None:
    sizes = np.geomspace(1e3, 1e15, SIDE)
    A = grid(0.0) + sp.diags_array(np.r_[sizes, np.zeros(N - SIDE)])
    penalties = Penalties.of(sp.csr_array(A), None, (0.0,))
    assert penalties is not None
    assert abs(penalties.A).max() <= 50 * abs(grid(0.0)).max()


def tied() -> Any:
    """Return a grid in which two degrees of freedom are tied by a penalty: no diagonal scaling helps."""
    A = sp.lil_array(grid(0.0))
    A[:2, :2] += 1e15 * np.array([[1, -1], [-1, 1]])
    return sp.csr_array(A)


def test_where_penalties_remain_nothing_is_called_exact() -> None:
    with pytest.raises(OptionError, match="count_eigenvalues: the largest row"):
        count_eigenvalues(tied(), 0.0, 0.3)
    with pytest.raises(OptionError, match="interval: the largest row"):
        eigsh(tied(), interval=(0.0, 0.3))
    for A, options in [(tied(), {}), (grid(1e15), {"method": "dense"}), (grid(1e15), {"norm": 1e15})]:
        with pytest.warns(ConvergenceWarning, match="digits of eigenvalues below that are lost"):
            eigsh(A, 3, which="SA", rng=0, on_unconverged="return", **options)
