"""Generalised problems and shift-invert: right values near a shift, M-orthonormal vectors, clear refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg as sl
import scipy.sparse as sp
from scipy.sparse.linalg import eigsh as scipy_eigsh
from scipy.sparse.linalg import splu

from blockvec import Factorization, as_operator, models
from blockvec.errors import BreakdownError, OptionError
from solvers import (
    ConvergenceWarning,
    EigenResult,
    NoConvergence,
    count_eigenvalues,
    eigsh,
)
from solvers.factorization.inertia import proof, proof_around, shift_outside
from solvers.transform import solution
from solvers.transform.standard_form import standard_form
from tests.matrices import check_pairs, nearest, random_sparse
from tests.pairwise import pairwise

METHODS = ("auto", "lanczos")


def solve(A: Any, k: int, **options: Any) -> EigenResult:
    result = eigsh(A, k, **{"rng": 0, "return_info": True, **options})
    assert isinstance(result, EigenResult)
    return result


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pair", [("bcsstk06", "bcsstm06"), ("bcsstk08", "bcsstm08"), ("elast_A", "elast_B")])
def test_pairs_of_stiffness_and_mass(pair: Any, method: str, real_matrix: Callable[[str], Any]) -> None:
    A, M = (real_matrix(name) for name in pair)
    values = sl.eigh(A.toarray(), M.toarray(), eigvals_only=True)
    middle = (values[20] + values[21]) / 2
    for mode in ("normal", "cayley"):
        result = solve(A, 6, M=M, sigma=middle, mode=mode, method=method)
        check_pairs(result, A, M, nearest(values, middle, 6))
    check_pairs(solve(A, 8, M=M, sigma=-1.0, method=method), A, M, values[:8], rtol=1e-6)
    check_pairs(solve(A, 5, M=M, which="LA", method=method, tol=1e-10, convergence="norm"), A, M, values[-5:])


@pytest.mark.parametrize("pair", [("bcsstk08", "bcsstm08"), ("bcsstk09", "bcsstm09")])
def test_the_stiff_end_of_a_pair_is_found_without_a_shift(
    pair: Any, real_matrix: Callable[[str], Any]
) -> None:
    A, M = (real_matrix(name) for name in pair)
    values = sl.eigh(A.toarray(), M.toarray(), eigvals_only=True)
    result = solve(A, 5, M=M, which="SA")
    check_pairs(result, A, M, values[:5], rtol=1e-7)
    assert result.info["method"] == "shift-invert"
    assert result.info["verification"].startswith("proved by inertia: ")


@pytest.mark.parametrize(
    ("mode", "which", "kind", "method"),
    [
        (*modes, kind, "lanczos" if kind != "dense" else "auto")
        for *modes, kind in pairwise(
            ("normal", "buckling", "cayley"),
            ("LM", "SM", "LA", "SA"),
            ("real", "complex", "without M", "dense"),
        )
    ],
)
def test_all_modes_agree_with_dense_lapack(mode: str, which: str, kind: str, method: str) -> None:
    rng = np.random.default_rng(0)
    n, sigma, k = 60, 0.7, 5
    parts = [
        rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if kind == "complex" else 0)
        for _ in "AM"
    ]
    definite = parts[0] @ parts[0].conj().T + n * np.eye(n)
    other = parts[1] + parts[1].conj().T
    A, M = (definite, other) if mode == "buckling" else (other, definite)
    if kind in ("without M", "dense"):
        M, sigma = None, 107.0 if mode == "buckling" else sigma
        definite = definite if mode == "buckling" else np.eye(n)
    values = 1 / sl.eigvalsh(np.eye(n) if M is None else M, A) if mode == "buckling" else sl.eigvalsh(A, M)
    mapped = {
        "normal": 1 / (values - sigma),
        "buckling": values / (values - sigma),
        "cayley": (values + sigma) / (values - sigma),
    }[mode]
    order = np.argsort({"LM": -np.abs(mapped), "SM": np.abs(mapped), "LA": -mapped, "SA": mapped}[which])[:k]
    result = solve(A, k, M=M, sigma=sigma, mode=mode, which=which, method=method)
    assert np.allclose(result.eigenvalues, np.sort(values[order]), rtol=1e-8)
    assert result.converged.all()
    X = result.eigenvectors
    assert np.linalg.norm(X.conj().T @ definite @ X - np.eye(k)) < 1e-13


@pytest.mark.parametrize("index", [0, 10, 624])
def test_a_shift_at_or_near_an_eigenvalue_gives_the_values_around_it(index: int) -> None:
    A = models.model("laplace2d:n=25")
    values = np.linalg.eigvalsh(A.toarray())
    sigma = values[index]
    at = solve(A, 4, sigma=sigma)
    check_pairs(at, A, None, nearest(values, sigma, 4))
    assert f"moved from {sigma:g}, an eigenvalue to working precision" in at.info["why"]
    for distance in (1e-3, 1e-9, 1e-12):  # close by, one value drowns the others
        near = solve(A, 4, sigma=sigma + distance)
        check_pairs(near, A, None, nearest(values, sigma + distance, 4))
        assert "moved" not in near.info["why"]


@pytest.mark.parametrize("index", [300, 1700])
def test_a_shift_at_a_double_eigenvalue_of_a_stiff_pair_spoils_no_others(index: int, tmp_path: Path) -> None:
    n = 60
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    mass = sp.diags_array([1 / 6, 4 / 6, 1 / 6], offsets=[-1, 0, 1], shape=(n, n))
    grid = sp.csr_array(sp.kron(line, sp.eye_array(n)) + sp.kron(sp.eye_array(n), line))
    angles = np.pi * np.arange(1, n + 1) / (n + 1)
    stiffness, masses = 2 - 2 * np.cos(angles), (4 + 2 * np.cos(angles)) / 6
    values = np.sort((np.add.outer(stiffness, stiffness) ** 2 / np.multiply.outer(masses, masses)).ravel())
    A, M, sigma = sp.csr_array(grid @ grid), sp.csr_array(sp.kron(mass, mass)), float(values[index])
    whole = solve(A, 9, M=M, sigma=sigma)
    check_pairs(whole, A, M, nearest(values, sigma, 9))
    kept: dict[str, Any] = {"checkpoint": tmp_path / "state", "checkpoint_interval": 1e-9}
    stop: dict[str, Any] = {"callback": lambda state: True, "on_unconverged": "return"}
    with pytest.warns(ConvergenceWarning, match="let the callback stop later"):
        assert solve(A, 9, M=M, sigma=sigma, **kept, **stop).info["stopped"] == "callback"
    assert np.array_equal(solve(A, 9, M=M, sigma=sigma, **kept).eigenvectors, whole.eigenvectors)
    assert not list(tmp_path.iterdir())


def test_a_pair_with_a_common_null_vector_is_refused_by_name() -> None:
    A, M = (sp.diags_array(np.r_[0.0, ends], format="csr") for ends in (np.arange(1.0, 9.0), np.ones(8)))
    with pytest.raises(
        OptionError, match="sigma: A - sigma M is singular for sigma = 2 and near it; A and M"
    ):
        eigsh(A, 3, M=M, sigma=2.0)


# --- accuracy and cost of shift-invert with the default tol -----------------------------------------


MODELS = [("laplace2d:nx=75,ny=70", 10, 3.01), ("laplace3d:n=12", 12, 3.7), ("xxz:sites=12,up=6", 8, 0.3)]


@pytest.mark.parametrize(
    ("spec", "k", "sigma"), [*((seed, 3, sigma) for seed in range(4) for sigma in (5.0, 0.0)), *MODELS]
)
def test_interior_values_converge_to_the_accuracy_of_scipy(spec: str | int, k: int, sigma: float) -> None:
    A = models.model(spec) if isinstance(spec, str) else random_sparse(spec, 600, per_row=6)
    result = solve(A, k, sigma=sigma)
    w, X = scipy_eigsh(A, k, sigma=sigma, rng=0)
    check_pairs(result, A, None, w)
    assert result.residuals.max() <= 10 * np.linalg.norm(A @ X - X * w, axis=0).max()


def test_residuals_a_little_above_the_floor_are_accepted_and_flagged() -> None:
    A = models.model("laplace2d:n=25")
    rng, solve_with = np.random.default_rng(1), splu((A - 1.05 * sp.eye_array(625)).tocsc()).solve

    def inverse(X: Any) -> Any:  # with errors that refinement does not remove
        return solve_with(X) + 1e-13 * rng.standard_normal(X.shape)

    result = solve(A, 7, sigma=1.05, OPinv=inverse)
    assert result.converged.all()
    assert result.info["why"].endswith("times the floor, as good as rounding allows")


def test_an_inverse_is_checked_by_name() -> None:
    A = models.model("laplace2d:n=25")
    with pytest.raises(BreakdownError, match=r"OPinv.* returned NaN or Inf"):
        eigsh(A, 3, sigma=1.05, OPinv=lambda X: X * np.nan)


def test_a_singular_mass_matrix_of_any_kind_does_with_a_shift(real_matrix: Callable[[str], Any]) -> None:
    mass = real_matrix("bcsstm13")  # semidefinite, of rank 1241, and not only by rows of zeros
    n = mass.shape[0]
    A = sp.csr_array(mass + sp.diags_array(np.full(n, float(abs(mass).max()))))
    with pytest.raises(OptionError, match="M is singular; give sigma"):
        eigsh(A, 3, M=mass)
    expected = np.sort(1 / sl.eigh(mass.toarray(), A.toarray(), eigvals_only=True)[-4:])
    check_pairs(solve(A, 4, M=mass, sigma=0.0), A, mass, expected)


def test_what_cannot_be_an_inner_product_is_refused(real_matrix: Callable[[str], Any]) -> None:
    A = real_matrix("bcsstk10")
    for options in ({}, {"sigma": -1.0}):
        with pytest.raises(OptionError, match="M is indefinite; it must be positive definite"):
            eigsh(A, 5, M=real_matrix("bcsstm10"), **options)
    with pytest.raises(OptionError, match="M is singular"):
        eigsh(sp.eye_array(2003, format="csr"), 5, M=real_matrix("bcsstm13"))
    with pytest.raises(OptionError, match=r"^M is not Hermitian"):
        eigsh(sp.eye_array(324, format="csr"), 5, M=real_matrix("qc324"))


@pytest.mark.parametrize("name", ["bcsstk08", pytest.param("mhd1280b", marks=pytest.mark.slow), "bcsstk03"])
def test_auto_factorises_at_a_stiff_end_and_proves_that_nothing_is_missing(
    name: str, real_matrix: Callable[[str], Any], reference: Callable[..., np.ndarray]
) -> None:
    A = real_matrix(name)
    result = solve(A, 10, which="SA", block_size=4, tol=1e-10, convergence="norm")
    assert result.converged.all()
    assert np.allclose(result.eigenvalues, reference(name, 10, "SA"), atol=1e-12 * result.info["norm"])
    assert result.info["method"] == "shift-invert"
    assert result.info["verification"].startswith("proved by inertia")
    upper = solve(-A, 10, which="LA", block_size=4, tol=1e-10, convergence="norm")
    assert np.allclose(upper.eigenvalues, -result.eigenvalues[::-1], atol=1e-12 * result.info["norm"])
    assert upper.info["verification"].startswith("proved by inertia")


def test_a_missing_value_is_counted() -> None:
    values = np.r_[1.0, 2.0, 2.0, 3.0, np.linspace(5, 9, 50)]
    A = sp.diags_array(values, format="csc")
    limits, low, high = np.full(3, 1e-9), Factorization(A), Factorization(-A)
    assert proof(low, np.array([1.0, 2.0, 3.0]), limits, "SA")[1] == 1
    assert proof(low, np.array([1.0, 2.0, 2.0]), limits, "SA")[1] == 0
    assert proof(high, -np.array([3.0, 2.0, 1.0]), limits, "LA")[1] == 1
    sigma = shift_outside(low, np.array([1.1]), 9.0, "SA")
    assert sigma is not None
    assert sigma < 1


def test_values_are_counted_up_to_the_error_of_the_last_one() -> None:
    factors = Factorization(sp.diags_array(np.r_[1.0, 2.0, 2.0, 2.03, np.linspace(5, 9, 50)], format="csc"))
    found, errors = np.array([1.0, 2.0, 2.03]), np.full(3, 0.01)
    assert proof(factors, found, errors, "SA")[1] == 1
    assert proof(factors, np.array([1.0, 2.0, 2.0]), errors, "SA")[1] == 0


def test_values_on_the_other_side_of_a_count_make_it_uncertain() -> None:
    factors = Factorization(sp.diags_array(np.r_[1.0, 2.0, np.linspace(5, 9, 50)], format="csc"))
    assert proof(factors, np.array([1.0, 1.985, 2.0]), np.full(3, 0.01), "SA")[1] is None
    assert proof_around(factors, 1.0, np.array([1.0, 1.9, 2.0]), np.full(3, 0.01))[1] is None


@pytest.mark.parametrize("pair", [False, True])
def test_values_around_a_shift_are_proven_where_that_is_asked_for(pair: bool) -> None:
    A = models.model("laplace3d:n=8")
    n = A.shape[0]
    M = sp.diags_array([0.1, np.linspace(1, 2, n), 0.1], offsets=[-1, 0, 1], shape=(n, n)) if pair else None
    w = sl.eigh(A.toarray(), None if M is None else M.toarray(), eigvals_only=True)
    result = eigsh(A, 20, M=M, sigma=3.87, rng=0, verify="always", return_info=True)
    nearest = np.sort(np.abs(w - 3.87))[:20]
    assert np.allclose(np.sort(np.abs(result.eigenvalues - 3.87)), nearest, atol=1e-10)
    text = result.info["verification"]
    found = re.fullmatch(
        r"proved by inertia: (\d+) eigenvalues lie between (.*) and (.*), (\d+) .* found", text
    )
    assert found is not None
    counted, low, high, known = (float(part) for part in found.groups())
    assert counted == known == np.count_nonzero((w > low + 1e-9) & (w < high - 1e-9)) >= 10
    assert result.info["missing"] == 0


def coupled(values: np.ndarray) -> Any:
    """Return a sparse matrix whose eigenvalues are near to these."""
    n, rng = len(values), np.random.default_rng(0)
    C = sp.random_array((n, n), density=1 / n, rng=rng, data_sampler=rng.standard_normal) * 1e-3
    return (sp.diags_array(values) + C + C.T).tocsr()


@pytest.mark.parametrize(
    ("near", "which", "k"),
    [
        ([-1e-5], "BE", 13),
        ([1e-6, 1e-2], "LA", 13),
        ([-1e-6, -1e-3, 1e-5, 1e-2], "BE", 8),
        ([-1e-6, -1e-3, 1e-5, 1e-2], "SA", 6),
        ([1e-7] * 3, "BE", 8),
        ([1e-7] * 3, "SA", 6),
    ],
)
def test_values_near_a_shift_leave_the_far_ones_their_digits(near: list[float], which: str, k: int) -> None:
    far = np.linspace(1, 100, 600)
    A = coupled(np.r_[-far, near, far])
    exact = np.linalg.eigvalsh(A.toarray())
    order = np.argsort(1 / exact)
    low = {"SA": k, "LA": 0, "BE": k // 2}[which]
    wanted = np.sort(exact[np.r_[order[:low], order[len(order) - (k - low) :]]])
    result = eigsh(A, k, sigma=0.0, which=which, method="lanczos", rng=0, return_info=True)
    assert (result.residuals <= result.limits).all()
    assert "as good as rounding allows" not in result.info["why"]
    np.testing.assert_allclose(result.eigenvalues, wanted, rtol=0, atol=1e-11)
    X = result.eigenvectors
    assert np.abs(X.T @ X - np.eye(k)).max() < 1e-13


@pytest.mark.parametrize("k", [4, 17, 24])
def test_both_ends_of_a_pair_keep_their_numbers_of_values(k: int, torus_pair: Any) -> None:
    A, M, values = torus_pair(24)
    for seed in range(2):  # the least value is zero, whose vector needs more digits than those of the others
        result = eigsh(A, k, M=M, which="BE", rng=seed, return_info=True)
        assert np.abs(result.eigenvalues - np.r_[values[: k // 2], values[k // 2 - k :]]).max() <= 1e-12


@pytest.mark.parametrize(("which", "seed"), [("SA", 0), ("SA", 1), ("BE", 0)])
def test_a_run_whose_search_for_copies_was_cut_short_is_not_taken_for_complete(
    which: str, seed: int, torus_pair: Any
) -> None:
    k, A = 12, torus_pair(28)[0].astype(np.float32)
    values = np.linalg.eigvalsh(A.toarray().astype(float))
    ends = values[-k:] if which == "SA" else np.r_[values[: k - k // 2], values[-(k // 2) :]]
    result = eigsh(A, k, sigma=-0.01, which=which, rng=seed)[0]
    assert np.abs(np.sort(result) - np.sort(ends)).max() < 1e-4


@pytest.mark.parametrize("place", [60, 100, 200])
def test_all_copies_of_an_eigenvalue_at_the_shift_are_on_one_side_of_it(place: int) -> None:
    A = models.model("laplace2d:n=23")
    values = np.linalg.eigvalsh(A.toarray())
    below = values[values < values[place] - 1e-9]
    result = eigsh(A, 8, sigma=float(values[place]), which="SA", rng=0, return_info=True)
    assert np.allclose(result.eigenvalues, below[-8:], rtol=0, atol=1e-12)
    assert result.info["method"] == "lanczos"


@pytest.mark.parametrize(("mode", "which"), [("cayley", "LM"), ("buckling", "LA"), ("buckling", "BE")])
@pytest.mark.parametrize("distance", [0.0, 1e-12, -1e-9])
def test_values_at_a_shift_spoil_no_others_in_any_mode(
    mode: str, which: str, distance: float, torus_pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On vectors in the inner product of M, and on those of a factor of A."""
    monkeypatch.setattr("solvers.costs.FEW_ROWS", 0)  # no dense LAPACK
    A, M, values = torus_pair(34)
    A, values = sp.csr_array(A + M), values + 1
    sigma = float(values[400]) * (1 + distance)
    result = eigsh(A, 20, M=M, sigma=sigma, mode=mode, which=which, rng=0, return_info=True)
    far = np.abs(values - sigma) > 1e-6
    theta = values[far] / (values[far] - sigma)
    found = result.eigenvalues[np.abs(result.eigenvalues - sigma) > 1e-6]
    count = {"LM": (0, 0), "LA": (0, len(found)), "BE": (int((found < sigma).sum()), 0)}[which]
    wanted = np.sort(values[far][np.argsort(-np.abs(theta))[: len(found)]]) if which == "LM" else found
    if which == "LA":
        wanted = np.sort(values[far][np.argsort(-theta)[: count[1]]])
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    assert (result.residuals <= result.limits).all()


@pytest.mark.parametrize(
    ("k_and_tol", "light", "sigma"),
    pairwise(((2, 0.0), (5, 1e-4), (9, 1e-4), (17, 0.0)), (2.0**-56, 2.0**-30), (-0.01, None)),
)
def test_a_light_part_has_the_values_of_a_heavy_one(
    k_and_tol: tuple[int, float], light: float, sigma: float | None, torus_pair: Any
) -> None:
    k, tol = k_and_tol
    A, M, values = torus_pair(21)  # few rows: M has a factor
    A, M = (sp.csr_array(sp.block_diag([B, light * B])) for B in (A, M))
    options = {"which": "SA"} if sigma is None else {"sigma": sigma}
    w = eigsh(A, k, M=M, tol=tol, block_size=1, method="lanczos", rng=0, return_eigenvectors=False, **options)
    assert np.abs(w - np.sort(np.r_[values, values])[:k]).max() < max(1e-9, 10 * tol)


@pytest.mark.parametrize("light", [1e-16, 1e-12, 3.4e-9, 1e-7])
def test_counts_beside_a_light_part_prove_something(light: float, torus_pair: Any) -> None:
    A, M, values = torus_pair(18)
    A, values = sp.csr_array(A + M), np.sort(np.r_[values, values]) + 1
    A, M = (sp.csr_array(sp.block_diag([B, light * B])) for B in (A, M))
    for low, high in [(0.5, 1.2), (1.2, 3.3), (2.05, 30.0)]:
        assert int(count_eigenvalues(A, low, high, M=M)) == ((values >= low) & (values <= high)).sum()
    for k, tol in ((5, 1e-6), (6, 0.0), (7, 1e-4), (9, 1e-6)):
        w = eigsh(A, k, M=M, which="SA", tol=tol, rng=0, return_eigenvectors=False)
        assert np.abs(w - values[:k]).max() < max(1e-9, 10 * tol)


def test_a_value_that_inertia_counts_and_nobody_found_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    A = models.model("laplace2d:nx=20,ny=21")
    answers = iter([("one is missing", 1), ("none is missing", 0)])
    monkeypatch.setattr(solution, "proof_around", lambda *_: next(answers))
    result = eigsh(A, 5, sigma=2.01, rng=0, verify="always", return_info=True)
    assert result.info["verification"] == "none is missing"
    assert result.info["verification_columns"] > 0
    once = eigsh(A, 5, sigma=2.01, rng=0, return_info=True)
    assert result.info["operator_columns"] > once.info["operator_columns"]
    assert np.allclose(result.eigenvalues, once.eigenvalues, atol=1e-12)
    monkeypatch.setattr(solution, "proof_around", lambda *_: ("one is missing", 1))
    with pytest.raises(NoConvergence, match="At least 1 copy of a wanted value is known to be missing"):
        eigsh(A, 5, sigma=2.01, rng=0, verify="always", method="lanczos")


def test_a_matrix_whose_pivots_tell_nothing_is_not_proven() -> None:
    rng = np.random.default_rng(1)
    A = sp.random_array((600, 600), density=0.01, rng=rng)
    A = sp.csr_array(A + A.T)
    A.setdiag(0)
    A.eliminate_zeros()
    result = eigsh(A, 3, sigma=0.0, rng=0, verify="always", return_info=True)
    w = np.linalg.eigvalsh(A.toarray())
    assert np.allclose(np.sort(np.abs(result.eigenvalues)), np.sort(np.abs(w))[:3], atol=1e-10)
    assert result.info["verification"].startswith(("not proved", "proved by inertia"))


def test_a_standard_problem_has_no_other_form() -> None:
    with pytest.raises(OptionError, match="neither M nor sigma"):
        standard_form(as_operator(sp.eye_array(3)), sp.eye_array(3), None, None)
