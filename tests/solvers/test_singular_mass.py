"""Problems with a singular M: rows without masses, dependent rows, constraints, and what is refused."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg as sl
import scipy.sparse as sp

from blockvec import models
from blockvec.errors import OptionError, ShapeError
from solvers import NoConvergence, count_eigenvalues, eigsh
from tests.matrices import element_mass, gauged, nearest, normal
from tests.pairwise import pairwise
from tests.solvers.answers import answered, solve

N = 1300  # rows, of which 1040 have masses: more than M is factorised for
FEW = 150


@functools.cache
def pencil(n: int = N, kind: str = "massless") -> tuple[Any, Any, np.ndarray]:
    """Return a stiffness and a mass matrix, and the finite eigenvalues."""
    A = sp.diags_array([-np.ones(n - 1), np.linspace(2, 3, n), -np.ones(n - 1)], offsets=[-1, 0, 1])
    M = element_mass(n)
    if kind != "definite":
        keep = sp.diags_array((np.arange(n) % 5 != 1).astype(float))
        M = keep @ M @ keep
    if kind == "complex":
        A, M = gauged(A, 0.1), gauged(M, 0.1)
    A, M = sp.csr_array(A), sp.csr_array(M)
    return A, M, finite_values(A, M)


def finite_values(A: Any, M: Any) -> np.ndarray:
    """Compute the finite eigenvalues by a Schur complement, for rows without masses or dependent ones."""
    A, M = (matrix.toarray() if sp.issparse(matrix) else matrix for matrix in (A, M))
    m = M.any(axis=1)
    if m.all():
        masses, U = np.linalg.eigh(M)
        m = masses > 1e-10 * masses.max()
        A, M = U.conj().T @ A @ U, np.diag(masses)
    K = A[m][:, m] - A[m][:, ~m] @ np.linalg.solve(A[~m][:, ~m], A[~m][:, m])
    return sl.eigh((K + K.conj().T) / 2, M[m][:, m], eigvals_only=True)


def beam(elements: int) -> tuple[Any, Any]:
    """Return matrices of a clamped beam; lumped masses leave its rotations without any."""
    h, n = 1 / elements, 2 * elements + 2
    k = [[12, 6 * h, -12, 6 * h], [6 * h, 4 * h * h, -6 * h, 2 * h * h]]
    k += [[-12, -6 * h, 12, -6 * h], [6 * h, 2 * h * h, -6 * h, 4 * h * h]]
    K = np.zeros((n, n))
    for i in range(0, n - 2, 2):
        K[i : i + 4, i : i + 4] += np.array(k) / h**3
    mass = np.zeros(n)
    mass[::2] = h
    mass[-2] = h / 2
    return sp.csr_array(K[2:, 2:]), sp.diags_array(mass[2:])


@pytest.mark.parametrize("kind", ["massless", "definite"])
@pytest.mark.parametrize("method", ["dense", "filter", "lanczos"])
def test_the_method_is_the_one_asked_for_without_a_factor_of_m(method: Any, kind: str) -> None:
    A, M, values = pencil(N, kind)
    result = answered(A, 5, M, exact=values, sigma=0.9, method=method)
    assert result.info["method"] == method


@pytest.mark.parametrize(
    ("n", "which", "mode"), pairwise([FEW, N], ["LM", "SA", "LA", "BE"], ["normal", "cayley"])
)
def test_values_are_selected_by_their_transforms(mode: Any, which: str, n: int) -> None:
    A, M, values = pencil(n)
    answered(A, 6, M, exact=values, sigma=0.9, which=which, mode=mode)


@pytest.mark.parametrize("n", [FEW, N])
def test_known_vectors_are_left_out(n: int) -> None:
    A, M, values = pencil(n)
    known = answered(A, 4, M, exact=values, sigma=0.0).eigenvectors
    rest = answered(A, 4, M, exact=values[4:], sigma=0.0, orthogonal_to=known)
    assert np.abs(known.T @ (M @ rest.eigenvectors)).max() < 1e-10
    answered(A, 4, M, exact=values, sigma=0.0, orthogonal_to=1.0 - M.diagonal().astype(bool)[:, None])


@pytest.mark.parametrize("kind", ["massless", "complex"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    A, M, _ = pencil(N, kind)
    options: dict[str, Any] = {"sigma": 0.9, "ncv": 12, "block_size": 2, "tol": 1e-9}
    whole = solve(A, 6, M, **options)
    assert whole.info["restarts"] > 2
    path = tmp_path / "run.npz"
    solve(A, 6, M, checkpoint=path, maxiter=2, on_unconverged="return", checkpoint_interval=0, **options)
    assert path.exists()
    resumed = solve(A, 6, M, checkpoint=path, **options)
    assert np.array_equal(resumed.eigenvalues, whole.eigenvalues)
    assert np.array_equal(resumed.eigenvectors, whole.eigenvectors)
    assert not path.exists()


@pytest.mark.parametrize("n", [FEW, N])
def test_no_more_values_than_masses_can_be_asked_for(n: int) -> None:
    A, M, values = pencil(n)
    rank = len(values)
    with pytest.raises(OptionError, match=rf"k: got {rank + 1}; M has rank {rank}"):
        eigsh(A, rank + 1, M, sigma=0.9)
    if n == FEW:
        answered(A, rank, M, exact=values, sigma=0.9)


@pytest.mark.parametrize("n", [FEW, 600])
def test_buckling_modes_of_few_loaded_rows_are_finite_or_refused(n: int) -> None:
    A, loads = pencil(n)[0], np.zeros(n)
    loads[10:15] = 1, 2, -3, 4, -5
    M = sp.csr_array(sp.diags_array(loads))
    theta = sl.eigvalsh(M.toarray(), A.toarray())
    values = np.sort(1 / theta[np.abs(theta) > 1e-12])
    options: dict[str, Any] = {"sigma": 0.9 * values[values > 0][0], "mode": "buckling", "rng": 0}
    answered(A, 3, M, exact=values, **options)
    for k, which in ((5, "LM"), (5, "LA"), (6, "BE")):
        with pytest.raises(OptionError, match="of the wanted eigenvalues are finite"):
            eigsh(A, k, M, which=which, **options)
    with pytest.raises(OptionError, match="only 0 of the wanted"):
        eigsh(A, 3, 0 * M, **options)


@pytest.mark.parametrize("n", [FEW, N])
def test_eigenvalues_of_a_singular_mass_are_counted(n: int) -> None:
    A, M, values = pencil(n)
    low, high = values[[2, 17]] + values[[3, 18]]
    for a, b in ((low / 2, high / 2), (-np.inf, high / 2), (high / 2, np.inf), (values[4], values[9])):
        counted = count_eigenvalues(A, a, b, M=M)
        assert counted.is_exact
        assert int(counted) == ((a <= values) & (values <= b)).sum()
    with pytest.raises(OptionError, match=r"M is singular; .* give method='inertia'"):
        count_eigenvalues(A, 0.0, 1.0, M=M, method="estimate")


@pytest.mark.parametrize("which", ["LM", "SA", "LA", "BE"])
@pytest.mark.parametrize("k", [3, 20])
def test_modes_far_from_the_shift_are_as_accurate_as_near_ones(k: int, which: str) -> None:
    """Those of a beam extend over seven digits, and rotations have no masses."""
    K, M = beam(20)
    answered(K, k, M, exact=finite_values(K, M), sigma=0.0, which=which, rtol=1e-8, atol=0)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_dependent_rows_leave_as_many_values_as_the_rank(dtype: Any) -> None:
    C = normal(2, 60, 23, dtype=dtype).astype(np.result_type(dtype, float))
    A, M = pencil(60, "definite")[0].toarray().astype(C.dtype), C @ C.conj().T
    values = finite_values(A, M)
    answered(A, 23, M, exact=values, sigma=0.0)
    with pytest.raises(OptionError, match="M has rank 23"):
        eigsh(A, 24, M, sigma=0.0)
    w = eigsh(A.astype(dtype), 5, M.astype(dtype), sigma=0.0, rng=0)[0]
    assert np.allclose(w, values[:5], rtol=1e-4)


@pytest.mark.parametrize(("rank", "which", "block_size"), pairwise([2, 30, 100], ["LM", "BE"], [1, 2]))
def test_a_low_rank_in_many_rows_is_a_small_problem(rank: int, which: str, block_size: int) -> None:
    """No row is zero, and a basis has more columns than there are dimensions."""
    rng = np.random.default_rng(rank)
    n, parts = 1100, rng.integers(0, rank, 1100)
    C = sp.csr_array((rng.uniform(0.5, 1, n), (range(n), parts)), shape=(n, rank))
    A, M = pencil(n, "definite")[0], sp.csr_array(C @ C.T)
    values = np.sort(1 / np.linalg.eigvalsh(C.T @ np.linalg.solve(A.toarray(), C.toarray())))
    answered(A, min(rank, 6), M, exact=values, sigma=0.0, which=which, block_size=block_size)


@pytest.mark.parametrize("n", [FEW, N])
def test_lagrange_multipliers_leave_the_values_of_the_constrained_problem(n: int) -> None:
    K, M, _ = pencil(n, "definite")
    c = 4
    B = sp.csr_array((np.tile([1.0, -1.0], c), (np.repeat(range(c), 2), range(5, 5 + 2 * c))), shape=(c, n))
    A = sp.csr_array(sp.block_array([[K, B.T], [B, None]]))
    mass = sp.csr_array(sp.block_diag([M, sp.csr_array((c, c))]))
    Z = np.eye(n)
    Z[range(5, 5 + 2 * c, 2), range(6, 6 + 2 * c, 2)] = 1  # equal displacements
    Z = np.delete(Z, range(5, 5 + 2 * c, 2), axis=1)
    values = sl.eigh(Z.T @ (K @ Z), Z.T @ (M @ Z), eigvals_only=True)
    for sigma, which in ((0.0, "LM"), (0.9, "LM"), (0.9, "LA"), (values[20], "LM")):
        answered(A, 6, mass, exact=values, sigma=sigma, which=which)
    for which, k in (("SA", 3), ("LM", n - c + 1)) if n == FEW else (("SA", 3),):
        with pytest.raises(OptionError, match="of the wanted eigenvalues are finite"):
            eigsh(A, k, mass, sigma=0.0, which=which, rng=0)


@pytest.mark.parametrize("n", [FEW, N])
@pytest.mark.parametrize("sigma", [None, 0.9])
def test_what_is_no_mass_matrix_is_refused_by_what_is_wrong_with_it(n: int, sigma: float | None) -> None:
    A, M, _ = pencil(n)
    large, small = (sp.coo_array(([size, size], ([0, 1], [1, 0])), shape=(n, n)) for size in (1e-3, 1e-9))
    indefinite = [sp.csr_array(M + each) * scale for each in (large, small) for scale in (1.0, 1e-12, 1e9)]
    for error, message, masses in (
        (OptionError, "M is zero", [0 * M, sp.csr_array((n, n))]),
        (OptionError, r"M is indefinite; .* zero on the diagonal", indefinite),
        (ShapeError, rf"M has shape \({n},\) but A is {n} x {n}", [np.ones(n)]),
    ):
        for mass in masses:
            with pytest.raises(error, match=message):
                eigsh(A, 3, mass, sigma=sigma)


def test_values_far_from_a_shift_that_do_not_converge_are_explained() -> None:
    A, M, _ = pencil()
    options: dict[str, Any] = {"sigma": 0.0, "method": "lanczos", "maxiter": 2}
    with pytest.raises(NoConvergence, match=r"which='SA' selects .* nearest to sigma are which='LM'"):
        eigsh(A, 5, M, which="SA", **options)


@pytest.mark.parametrize("n", [FEW, N])
def test_a_start_without_masses_is_named(n: int) -> None:
    A, M, _ = pencil(n)
    without_masses = 1.0 - M.diagonal().astype(bool)
    for v0, message in ((without_masses, "v0 lies in the null space of M"), (np.zeros(n), "v0 is zero")):
        with pytest.raises(OptionError, match=message):
            eigsh(A, 3, M, sigma=0.0, v0=v0, method="lanczos")


def test_remedies_for_a_singular_mass_are_those_of_the_call() -> None:
    A, M, _ = pencil(FEW)
    for options, remedy in (
        ({}, "give sigma"),
        ({"sigma": 0.5, "method": "jd"}, "leave out its options"),
        ({"which": "SA", "preconditioner": sp.eye_array(FEW)}, "leave out its options"),
        ({"sigma": 0.5, "which": "SM"}, "another which than 'SM'"),
        ({"interval": (0.1, 0.5), "method": "filter"}, "leave out the method"),
    ):
        with pytest.raises(OptionError, match=f"M is singular; .*{remedy}"):
            eigsh(A, M=M, **({} if "interval" in options else {"k": 3}), **options)


@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
@pytest.mark.parametrize("M_kind", ["massless", "definite"])
def test_every_format_of_scipy_has_the_same_values(form: str, kind: str, M_kind: str) -> None:
    A, M, values = pencil(FEW, M_kind)
    convert = getattr(sp, f"{form}_{kind}")
    w = eigsh(convert(A), 4, convert(M), sigma=0.9, rng=0)[0]
    assert np.allclose(w, np.sort(nearest(values, 0.9, 4)), rtol=1e-10)
    assert int(count_eigenvalues(convert(A), values[3], values[8], M=convert(M))) == 6


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5, 9, 20])
def test_an_interval_is_sliced_where_finite_values_are_fewer_than_the_columns_of_a_basis(rank: int) -> None:
    n, rng = 80, np.random.default_rng(rank)
    A, C = models.model(f"laplace1d:n={n}"), np.zeros((n, rank))
    C[rng.choice(n, rank, replace=False)] = np.eye(rank) + np.tril(rng.uniform(0, 0.2, (rank, rank)))
    values = np.sort(1 / np.linalg.eigvalsh(C.T @ np.linalg.solve(A.toarray(), C)))
    ends = values[0] / 2, 2 * values[-1]
    result = answered(A, None, sp.csr_array(C @ C.T), exact=values, interval=ends, rtol=1e-10)
    assert result.info["method"] == "shift-invert"
