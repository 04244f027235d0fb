"""eigsh: every copy of every value, orthonormal vectors, honest reports, the same bits for the same seed."""

from __future__ import annotations

import pickle
import signal
import threading
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import ArpackNoConvergence

from blockvec import BlockVector, models
from blockvec.errors import BreakdownError
from solvers import (
    ConvergenceWarning,
    EigenResult,
    Interrupted,
    IterationState,
    JacobiPreconditioner,
    NoConvergence,
    eigsh,
)
from solvers.iterations import lanczos
from solvers.stages import run
from tests.contract.blocks import FORMS, kept, untidy
from tests.matrices import random_sparse, with_values
from tests.pairwise import pairwise
from tests.solvers import answers, zoo
from tests.solvers.answers import dense, eigenvalues, wanted

ITERATIONS = ("lanczos", "filter", "jd")
DEGENERATE = (
    *("identity", "zero matrix", "two-valued", "rank one", "block diagonal copies"),
    "one value at 1e8, sparse",
)
GRID = models.model("laplace2d:n=25")
CUBE = models.model("laplace3d:n=12")


def solve(A: Any, k: int, which: str, **options: Any) -> EigenResult:
    """Block Lanczos, whatever the size."""
    return answers.solve(A, k, which=which, **{"method": "lanczos", **options})


def answered(A: Any, k: int, **options: Any) -> EigenResult:
    """Check an answer; vectors are orthonormal to a hundred units of rounding."""
    return answers.answered(A, k, **{"loss": 1.2e-14, **options})


@pytest.mark.parametrize(
    ("name", "which_and_k", "method"),
    pairwise(DEGENERATE, (("LA", 1), ("SA", 5), ("LM", 20), ("SA", 20)), ITERATIONS),
)
def test_degenerate_spectra_have_all_their_copies(
    name: str, which_and_k: tuple[str, int], method: str
) -> None:
    (which, k), (A, exact) = which_and_k, zoo.matrix(name)
    answered(A, k, exact=exact, which=which, method=method)


@pytest.mark.parametrize("method", ITERATIONS)
def test_many_missing_copies_come_in_through_a_small_basis(method: str) -> None:
    values = np.r_[np.repeat([4.0, 3.0], 9), np.linspace(0, 1, 150)]
    A = sp.diags_array(values, format="csr")
    answered(A, 15, which="LA", block_size=1, ncv=20, tol=1e-8, method=method)


def test_hundreds_of_restarts_of_a_small_basis_do_not_preserve_rounding_errors() -> None:
    # Nor do repairs fill up the basis, so that no step fits.
    for seed in range(4):
        w = np.repeat(np.random.default_rng(seed).uniform(-1, 1, 75), 2)
        how: dict[str, Any] = {"which": "SA", "ncv": 22, "block_size": 1, "maxiter": 4000}
        answered(sp.diags_array(w).tocsr(), 20, method="lanczos", **how)


def test_solves_at_a_multiple_value_lose_no_orthogonality() -> None:
    for seed in range(12):  # an inverse of norm 1e15, which is Hermitian up to large rounding errors only
        rng = np.random.default_rng(seed)
        A = with_values(np.repeat(rng.standard_normal(30), 2), seed)
        answered(A, 4, sigma=float(eigenvalues(A)[30]), block_size=1, method="lanczos")


def test_what_waits_in_a_full_basis_makes_room_for_missed_copies() -> None:
    A = models.model("hofstadter:nx=12,ny=12")
    values, vectors = np.linalg.eigh(A.toarray())
    options = {"block_size": 2, "tol": 1e-4, "maxiter": 60, "orthogonal_to": vectors[:, -3:]}
    for ncv in (14, 16):
        result = solve(A, 8, "LA", ncv=ncv, **options)
        assert np.allclose(result.eigenvalues, values[-11:-3], atol=1e-7)  # eight of eleven copies


@pytest.mark.parametrize("method", ITERATIONS)
@pytest.mark.parametrize("seed", range(6))
def test_random_spectra_are_found_with_their_random_multiplicities(seed: int, method: str) -> None:
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(60, 200)), int(rng.integers(1, 20))
    copies = rng.choice([1, 1, 2, 3, 5, 8], n)
    values = np.repeat(rng.standard_normal(n) * 10 ** rng.uniform(-1, 2, n), copies)[:n]
    A = sp.csr_array(with_values(values, rng, "complex128" if seed % 2 else "float64"))
    asked = {"which": str(rng.choice(["LA", "SA", "LM"])), "block_size": int(rng.choice([1, 2, 3, 5]))}
    answered(A, k, exact=values, atol=1e-9, tol=1e-10, convergence="norm", method=method, **asked)


@pytest.mark.parametrize("method", [*ITERATIONS, "dense"])
@pytest.mark.parametrize("k", [1, 2, 9, 17, 18])
def test_every_k_up_to_n_works(k: int, method: str) -> None:
    A = models.model("laplace2d:nx=3,ny=6")
    for which in ("SA", "LA", "LM", "BE"):
        answered(A, k, which=which, method=method)


def test_both_ends_of_a_transformed_and_of_a_stiff_problem(real_matrix: Callable[[str], Any]) -> None:
    answered(GRID, 5, which="BE", sigma=1.05)  # two below, and three above
    stiff = answered(real_matrix("bcsstk06"), 8, which="BE", block_size=4)
    assert "low end: proved by inertia: 3 eigenvalues" in stiff.info["verification"]


@pytest.mark.parametrize(("name", "k"), [("bcsstk03", 20), ("bcsstk10", 10), ("1138_bus", 10)])
def test_stiff_ends_are_right_to_the_floor(name: str, k: int, real_matrix: Callable[[str], Any]) -> None:
    result = answered(real_matrix(name), k, which="SA", block_size=4)
    if name == "bcsstk10":
        assert result.info["verification"].startswith("proved by inertia: 9 eigenvalues")


@pytest.mark.parametrize("method", ITERATIONS)
@pytest.mark.parametrize(
    ("name", "which", "k"),
    [
        *(("gr_30_30", "SA", 10), ("gr_30_30", "LA", 20), ("bcsstk03", "LA", 3), ("bcsstk09", "SA", 10)),
        *(("bcsstk16", "LA", 10), ("mhd1280b", "LA", 10), ("lund_a", "LA", 5), ("lund_b", "SA", 10)),
        *(("1138_bus", "LA", 10), ("elast_B", "SA", 10)),
    ],
)
def test_real_matrices_agree_with_their_reference(
    name: str,
    which: str,
    k: int,
    method: str,
    real_matrix: Callable[[str], Any],
    reference: Callable[..., np.ndarray],
) -> None:
    exact = reference(name, k, which)
    answered(real_matrix(name), k, exact=exact, which=which, tol=1e-10, convergence="norm", method=method)


@pytest.mark.parametrize(
    ("n", "dtype", "tol", "seed"),
    [
        (400, np.float32, 0, 4),
        (400, np.float32, 1e-5, 10),
        (400, np.complex64, 0, 8),
        (600, np.float32, 0, 2),
        (600, np.complex64, 1e-5, 5),
        (600, np.complex64, 0, 7),
    ],
)
def test_copies_outside_a_bulk_neither_hide_values_nor_enlarge_the_norm(
    n: int, dtype: Any, tol: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    A = with_values(np.r_[np.repeat([-1.0, 2.0], 3), rng.uniform(0, 1, n - 6)], rng, dtype)
    how: Any = {"convergence": "norm", "method": "lanczos", "tol": tol, "rng": seed}
    result = answered(A, 6, which="SA", atol=1e-13, loss=1e-12, **how)
    assert abs(result.info["norm"] - 2) <= 1e-4


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(
    ("kind", "scale"), [("sparse", 1), ("dense", 1), ("function", 1e-37), ("function", 1e36)]
)
def test_short_problems_in_single_precision_have_results_of_its_type_with_their_own_residuals(
    dtype: Any, kind: str, scale: float
) -> None:
    A = (random_sparse(1, 700, dtype=dtype) * dtype(scale)).tocsr()
    form = {"sparse": A, "dense": A.toarray(), "function": lambda X: A @ X}[kind]
    result = eigsh(form, 4, which="LA", shape=A.shape, dtype=dtype, rng=0, return_info=True)
    w, X, info = result.eigenvalues, dense(result.eigenvectors), result.info
    kinds = w.dtype, result.eigenvectors.dtype, info["dtype"]
    assert kinds == (dtype(0).real.dtype, np.dtype(dtype), np.dtype(dtype).name)
    assert result.verification.is_decided
    assert np.linalg.norm(X.conj().T @ X - np.eye(4)) <= 1e-5
    residuals = np.linalg.norm(dense(A) @ X - X * w.astype(float), axis=0)
    rounding = 0.0 if kind != "function" else 1e-6 * info["norm"]  # of products
    assert np.allclose(result.residuals, residuals, rtol=1e-3, atol=rounding)


@pytest.mark.parametrize("method", ITERATIONS)
@pytest.mark.parametrize(
    ("dtype", "which"), [("float32", "LA"), ("float64", "SA"), ("complex64", "LM"), ("complex128", "LA")]
)
def test_all_four_types_are_solved_in_their_own_precision(dtype: str, which: str, method: str) -> None:
    A = models.model("hofstadter:nx=12,ny=12" if "complex" in dtype else "laplace2d:n=12").astype(dtype)
    result = answered(A, 8, which=which, method=method, atol=2e-12)
    assert result.eigenvectors.dtype == dtype
    assert result.eigenvalues.dtype == np.zeros(0, dtype).real.dtype


@pytest.mark.parametrize(("form", "kind", "writeable"), pairwise(FORMS, ("real", "complex"), (True, False)))
def test_the_users_matrices_stay_as_they_are(
    form: Any, kind: str, writeable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, sigma = 12, 0.7
    chain = np.eye(n, k=1) + np.eye(n, k=-1)
    matrices = [np.diag(chain.sum(axis=0)) - chain, 4 * np.eye(n) + chain]  # the first is singular
    matrices.append(np.linalg.inv(matrices[0] - sigma * np.eye(n)))
    turns = np.tile([1, 1j, -1, -1j], n // 4) if kind == "complex" else np.ones(n)
    A, M, inverse = (
        untidy(turns[:, None] * matrix * turns.conj(), form, writeable=writeable) for matrix in matrices
    )
    alone, pair = eigenvalues(A), eigenvalues(A, M)
    inverted = 1 / (pair + 1e-9)  # the first of `pair` is zero, or nearly so
    with kept(A, M):
        diagonal = JacobiPreconditioner(A, M)

    def solves(values: np.ndarray, matrix: Any = A, **options: Any) -> str:
        """Assert that the values are found that are wanted; return how."""
        with kept(A, M, inverse):
            result = answers.solve(matrix, 3, tol=1e-8, **options)
        asked = {name: options[name] for name in ("which", "sigma", "mode") if name in options}
        assert np.allclose(result.eigenvalues, wanted(values, 3, **asked), atol=1e-7)
        return str(result.info["method"])

    for method in ("dense", *ITERATIONS):
        solves(alone, method=method)
    for which in ("LA", "SA", "BE"):
        solves(alone, which=which, method="lanczos")
    solves(pair, which="BE", M=M)
    solves(pair, which="LA", M=M, preconditioner=diagonal)
    solves(alone, which="SM")
    solves(pair, which="SM", M=M)
    for options in ({}, {"method": "filter"}, {"OPinv": inverse}, {"preconditioner": inverse}):
        solves(alone, sigma=sigma, **options)
    solves(pair, M=M, sigma=sigma)
    solves(pair, which="LA", M=M, sigma=sigma, mode="cayley")
    solves(inverted, matrix=M, M=A, sigma=sigma, mode="buckling")
    for name, value in {
        "shift_invert_s": lambda *_: 0,
        "ELEMENT_S": 0,
        "rates": lambda _: SimpleNamespace(inverted_s=0),
    }.items():
        monkeypatch.setattr(run, name, value)  # then on to factorisations
    monkeypatch.setitem(run.PAIR_RESTARTS, "host", 1)
    assert solves(alone, which="SA", block_size=2, ncv=6) == "shift-invert"
    assert solves(pair, which="SA", M=M, block_size=2, ncv=6) == "shift-invert"
    solves(alone, sigma=0.0)


def test_the_answer_comes_as_scipy_gives_it() -> None:
    w, X = eigsh(GRID, 4, which="LA", rng=1)
    assert type(w) is type(X) is np.ndarray
    assert X.shape == (625, 4)
    assert X.flags.c_contiguous
    assert np.allclose(GRID @ X, X * w)
    assert np.array_equal(eigsh(GRID, 4, which="LA", rng=1, return_eigenvectors=False), w)
    without = solve(GRID, 4, "LA", return_eigenvectors=False)
    assert without.eigenvectors is None


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    A = models.model("laplace3d:n=8")
    for method in ITERATIONS:
        first, second, other = (solve(A, 7, "SA", rng=seed, tol=1e-8, method=method) for seed in (3, 3, 4))
        assert np.array_equal(first.eigenvectors, second.eigenvectors)
        assert np.array_equal(first.residuals, second.residuals)
        assert not np.array_equal(first.eigenvectors, other.eigenvectors)
    first = solve(A, 7, "SA", rng=3, tol=1e-8)
    generator = np.random.default_rng(3)
    assert np.array_equal(solve(A, 7, "SA", rng=generator, tol=1e-8).eigenvectors, first.eigenvectors)


def test_what_counts_as_converged_follows_the_rule_asked_for() -> None:
    A = models.model("laplace2d:n=20")
    for rule in ("value", "norm", "absolute"):
        result = solve(A, 5, "SA", tol=1e-6, convergence=rule, norm=8.0)
        theta = np.abs(result.eigenvalues)
        limits = {"value": 1e-6 * theta, "norm": 1e-6 * (8 + theta), "absolute": np.full(5, 1e-6)}
        assert np.allclose(result.limits, limits[rule])
        assert np.all(result.residuals <= result.limits)


def test_too_few_restarts_are_reported_with_what_did_converge() -> None:
    with pytest.raises(NoConvergence, match=r"of 10 pairs converged after 1 restart: raise max") as caught:
        eigsh(CUBE, 10, which="SA", maxiter=1, rng=0, method="lanczos")
    assert isinstance(caught.value, ArpackNoConvergence)
    result = caught.value.result
    assert len(caught.value.eigenvalues) == caught.value.eigenvectors.shape[1] == int(result.converged.sum())
    true = np.linalg.norm(CUBE @ result.eigenvectors - result.eigenvectors * result.eigenvalues, axis=0)
    assert np.allclose(true, result.residuals)
    assert not result.converged.all()
    assert "not converged" in str(result)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)


def test_a_callback_sees_every_restart_and_may_stop() -> None:
    seen: list[IterationState] = []

    def stop_after_three(state: IterationState) -> bool:
        seen.append(state)
        return len(seen) == 3

    result = solve(CUBE, 6, "SA", callback=stop_after_three, on_unconverged="return")
    assert [state.restart for state in seen] == [0, 1, 2]
    assert result.info["stopped"] == "callback"
    assert result.history == seen
    assert np.all(np.diff([state.operator_columns for state in seen]) > 0)
    with pytest.raises(NoConvergence, match="when the callback stopped"):
        eigsh(CUBE, 6, which="SA", callback=lambda state: True, rng=0, method="lanczos")


ALL_WAYS: dict[str, dict[str, Any]] = {
    "lanczos": {"which": "SA", "method": "lanczos"},
    "single columns": {"which": "SA", "method": "lanczos", "block_size": 1},
    "filter": {"which": "SA", "method": "filter"},
    "jd": {"which": "SA", "method": "jd"},
    "auto": {"which": "SA", "method": "auto"},
    "both ends": {"which": "BE", "method": "lanczos"},
    "both ends by jd": {"which": "BE", "method": "jd"},
    "both ends in the complement": {"which": "BE", "method": "lanczos", "orthogonal_to": np.ones(1728)},
    "smallest magnitude": {"which": "SM", "method": "auto"},
    "sigma": {"which": "LM", "sigma": 3.03, "method": "auto"},
    "sigma, both ends": {"which": "BE", "sigma": 3.03, "method": "auto"},
    "sigma by jd": {"which": "LM", "sigma": 3.03, "method": "jd"},
    "a window": {"which": "LM", "sigma": 3.03, "method": "filter"},
    "a pair": {"which": "BE", "method": "auto", "M": sp.diags_array(np.linspace(1, 2, 1728), format="csr")},
}


@pytest.mark.parametrize("stop", ["time_limit", "callback"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_run_that_is_stopped_gives_all_pairs_flagged(way: str, stop: str) -> None:
    calls: list[IterationState] = []
    limits: dict[str, Any] = {
        "time_limit": {"time_limit": 1e-9},
        "callback": {"callback": lambda state: calls.append(state) or np.bool_(len(calls) == 1)},
    }
    with warnings.catch_warnings():  # where all have converged, but copies have not been looked for
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = solve(CUBE, 13, on_unconverged="return", **ALL_WAYS[way], **limits[stop])
    assert result.info["stopped"] == stop
    assert len(calls) == (stop == "callback")
    assert result.eigenvectors.shape == (1728, 13)
    assert len(result.eigenvalues) == len(result.residuals) == len(result.converged) == 13
    if "M" not in ALL_WAYS[way]:
        X = result.eigenvectors
        assert np.linalg.norm(X.T @ X - np.eye(13)) <= 1e-12


def test_a_second_ctrl_c_ends_a_solve_inside_its_step() -> None:
    A = models.model("laplace2d:n=24")
    applications = 0

    def apply(X: np.ndarray) -> np.ndarray:
        nonlocal applications
        applications += 1
        if applications == 5:
            signal.raise_signal(signal.SIGINT)  # ends the solve after this step
            signal.raise_signal(signal.SIGINT)
        return A @ X

    with pytest.raises(KeyboardInterrupt) as caught:
        eigsh(apply, 4, which="SA", shape=A.shape, rng=0, method="lanczos")
    assert not isinstance(caught.value, Interrupted)
    assert applications == 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_leaves_what_was_reached() -> None:

    def press(state: IterationState) -> None:
        if state.restart == 1:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="of 6 pairs had converged") as caught:
        eigsh(CUBE, 6, which="SA", callback=press, rng=0, method="lanczos")
    assert isinstance(caught.value, KeyboardInterrupt)
    assert caught.value.result.eigenvectors.shape == (12**3, 6)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_runs_outside_the_main_thread() -> None:
    found: list[EigenResult] = []
    thread = threading.Thread(target=lambda: found.append(answered(GRID, 3, which="LA", method="lanczos")))
    thread.start()
    thread.join()
    assert found


def test_a_good_block_to_start_from_is_a_cheap_exit() -> None:
    given: dict[str, Any] = {"which": "SA", "norm": 8.0, "method": "lanczos"}
    given["v0"] = answers.solve(GRID, 6, **given).eigenvectors
    warm = answered(GRID, 6, **given, verify="never", check_hermitian=False)
    assert warm.info["restarts"] == 1
    assert warm.info["operator_columns"] == 13  # A X once, its true residuals, and one column for the norm
    assert answers.solve(GRID, 6, **given).info["restarts"] == 1


@pytest.mark.parametrize("method", ITERATIONS)
def test_a_start_without_the_wanted_directions_misleads_nobody(method: str) -> None:
    wrong = np.linalg.eigh(GRID.toarray())[1][:, 50:56]
    for v0 in (wrong, wrong[:, 0]):
        answered(GRID, 6, which="SA", v0=v0, tol=1e-9, method=method)
    # Symmetric: no component along half of them.
    answered(GRID, 2, which="SA", v0=BlockVector(np.ones((625, 1))), method="lanczos")


@pytest.mark.parametrize("padding", [1, 16])
def test_pairs_orthogonal_to_given_vectors_are_the_next_ones(
    padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanczos, "width_padding", lambda block: padding)
    values, vectors = np.linalg.eigh(GRID.toarray())
    mixed = vectors[:, :4] @ np.random.default_rng(0).standard_normal((4, 5))  # five columns of rank four
    for method in ITERATIONS:
        result = solve(GRID, 6, "SA", orthogonal_to=mixed, method=method)
        assert np.allclose(result.eigenvalues, values[4:10], atol=1e-12)
        assert np.allclose(vectors[:, :4].T @ result.eigenvectors, 0, atol=1e-12)


@pytest.mark.parametrize("method", ["lanczos", "filter"])
def test_nothing_but_rounding_may_be_left_in_the_complement(method: str) -> None:
    A = sp.diags_array(np.repeat([0.0, 1.0], 8), format="csr")
    for k in (3, 7, 8):
        rest = solve(A, k, "SA", orthogonal_to=np.eye(16)[:, 8:], method=method, maxiter=3)
        assert np.allclose(rest.eigenvalues, 0, atol=1e-15)


def test_columns_to_be_orthogonal_to_need_not_be_invariant() -> None:
    A = models.model("laplace2d:n=10").toarray()
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((100, 3)))[0]
    P = np.eye(100) - Q @ Q.T
    # P A P has three more zeros, along Q, below everything else.
    expected = np.linalg.eigvalsh(P @ A @ P)[3:8]
    for method in ITERATIONS:
        result = solve(sp.csr_array(A), 5, "SA", orthogonal_to=Q, tol=1e-10, verify="always", method=method)
        assert np.allclose(result.eigenvalues, expected, atol=1e-10)


def test_info_counts_what_the_operator_was_applied_to() -> None:
    matrix = models.model("laplace3d:n=9")
    columns: list[int] = []

    def apply(X: np.ndarray) -> np.ndarray:
        columns.append(X.shape[1])
        return matrix @ X

    for block_size in (1, 4):
        columns.clear()
        info = solve(
            apply, 8, "SA", shape=matrix.shape, block_size=block_size, verify="always", tol=1e-8
        ).info
        assert info["operator_columns"] == sum(columns)
        assert info["block_applications"] == len(columns)
        assert 0 < info["verification_columns"] < sum(columns)


def test_nan_from_the_operator_is_an_error_and_no_answer() -> None:
    matrix, calls = models.model("laplace2d:n=25"), [0]

    def fails_later(X: np.ndarray) -> np.ndarray:
        calls[0] += 1
        return matrix @ X if calls[0] < 6 else np.full_like(X, np.nan)

    for method in ITERATIONS:
        calls[0] = 0
        with pytest.raises(BreakdownError, match="A returned NaN or Inf for a finite block"):
            eigsh(fails_later, 3, shape=matrix.shape, method=method)
    with pytest.raises(BreakdownError, match="A or the preconditioner returned NaN or Inf"):
        eigsh(matrix, 3, which="SA", preconditioner=lambda X: np.full_like(X, np.nan))
    with pytest.raises(BreakdownError, match="NaN or Inf"):
        eigsh(sp.csr_array(np.full((9, 9), np.inf)), 3, check_hermitian=False)
