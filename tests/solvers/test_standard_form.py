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
from solvers import ConvergenceWarning, NoConvergence, eigsh
from solvers.factorization.inertia import proof, shift_outside
from solvers.transform import solution
from solvers.transform.standard_form import standard_form
from tests.matrices import element_mass, normal, random_sparse
from tests.pairwise import pairwise
from tests.solvers.answers import answered, eigenvalues, solve, torus

GRID = models.model("laplace2d:n=25")
LIMIT: dict[str, Any] = {"tol": 1e-10, "convergence": "norm"}


@pytest.mark.parametrize("method", ["auto", "lanczos"])
@pytest.mark.parametrize("pair", [("bcsstk06", "bcsstm06"), ("bcsstk08", "bcsstm08"), ("elast_A", "elast_B")])
def test_pairs_of_stiffness_and_mass(pair: Any, method: str, real_matrix: Callable[[str], Any]) -> None:
    A, M = (real_matrix(name) for name in pair)
    how: Any = {"exact": eigenvalues(A, M), "method": method, "atol": 1e-15}
    for mode in ("normal", "cayley"):
        answered(A, 6, M, sigma="20.5", mode=mode, rtol=1e-9, **how)
    answered(A, 8, M, sigma=-1.0, rtol=1e-6, **how)
    answered(A, 5, M, which="LA", rtol=1e-9, **LIMIT, **how)


@pytest.mark.parametrize("pair", [("bcsstk08", "bcsstm08"), ("bcsstk09", "bcsstm09")])
def test_the_stiff_end_of_a_pair_is_found_without_a_shift(
    pair: Any, real_matrix: Callable[[str], Any]
) -> None:
    A, M = (real_matrix(name) for name in pair)
    info = answered(A, 5, M, which="SA", rtol=1e-7, atol=0.0).info
    assert info["method"] == "shift-invert"
    assert info["verification"].startswith("proved by inertia: ")


@pytest.mark.parametrize("name", ["bcsstk08", pytest.param("mhd1280b", marks=pytest.mark.slow), "bcsstk03"])
def test_auto_factorises_at_a_stiff_end_and_proves_that_nothing_is_missing(
    name: str, real_matrix: Callable[[str], Any], reference: Callable[..., np.ndarray]
) -> None:
    exact = reference(name, 10, "SA")
    for sign, which in ((1, "SA"), (-1, "LA")):
        A = sign * real_matrix(name)
        info = answered(A, 10, exact=np.sort(sign * exact), which=which, block_size=4, **LIMIT).info
        assert info["method"] == "shift-invert"
        assert info["verification"].startswith("proved by inertia")


@pytest.mark.parametrize(
    ("mode", "which", "kind"),
    pairwise(
        ("normal", "buckling", "cayley"),
        ("LM", "SM", "LA", "SA"),
        ("real", "complex", "without M", "dense"),
    ),
)
def test_all_modes_agree_with_dense_lapack(mode: str, which: str, kind: str) -> None:
    rng, n = np.random.default_rng(0), 60
    parts = [normal(rng, n, n, dtype=complex if kind == "complex" else float) for _ in "AM"]
    definite, M = parts[0] @ parts[0].conj().T + n * np.eye(n), None
    A = definite if mode == "buckling" else parts[1] + parts[1].conj().T
    if kind in ("real", "complex"):
        M = parts[1] + parts[1].conj().T if mode == "buckling" else definite
    exact = 1 / sl.eigvalsh(np.eye(n) if M is None else M, A) if mode == "buckling" else sl.eigvalsh(A, M)
    sigma = 107.0 if M is None and mode == "buckling" else 0.7
    method = "auto" if kind == "dense" else "lanczos"
    options = {"mode": mode, "which": which, "method": method, "sigma": sigma}
    answered(A, 5, M, exact=np.sort(exact), rtol=1e-8, atol=0.0, loss=1e-13, **options)


@pytest.mark.parametrize("which", ["LA", "SA", "BE"])
def test_transformed_values_of_a_function_are_selected_or_refused(which: str) -> None:
    """Iterations without factors find the nearest values only."""
    d = -np.arange(1.0, 4001.0)
    how: dict[str, Any] = {"sigma": -1.5, "which": which, "dtype": float}
    answered(np.diag(d[:20]), 3, apply_to=lambda X: d[:20, None] * X, shape=(20, 20), block_size=1, **how)
    with pytest.raises(OptionError, match="a factorisation needs"):
        eigsh(lambda X: d[:, None] * X, 3, shape=(4000, 4000), **how)


@pytest.mark.parametrize("index", [0, 10, 624])
def test_a_shift_at_or_near_an_eigenvalue_gives_the_values_around_it(index: int) -> None:
    at = answered(GRID, 4, sigma=f"{index}")
    assert f"moved from {eigenvalues(GRID)[index]:g}, an eigenvalue to working" in at.info["why"]
    for distance in (1e-3, 1e-9, 1e-12):  # close by, one value drowns the others
        assert "moved" not in answered(GRID, 4, sigma=f"{index}+{distance}").info["why"]


@pytest.mark.parametrize("index", [300, 1700])
def test_a_shift_at_a_double_eigenvalue_of_a_stiff_pair_spoils_no_others(index: int, tmp_path: Path) -> None:
    n = 60
    grid, M = models.model(f"laplace2d:n={n}"), element_mass(n, n)
    angles = np.pi * np.arange(1, n + 1) / (n + 1)
    stiffness, masses = 2 - 2 * np.cos(angles), (4 + 2 * np.cos(angles)) / 6
    values = np.sort((np.add.outer(stiffness, stiffness) ** 2 / np.multiply.outer(masses, masses)).ravel())
    A, sigma = sp.csr_array(grid @ grid), float(values[index])
    whole = answered(A, 9, M, exact=values, sigma=sigma)
    kept: dict[str, Any] = {"checkpoint": tmp_path / "state", "checkpoint_interval": 1e-9}
    stop: dict[str, Any] = {"callback": lambda state: True, "on_unconverged": "return"}
    with pytest.warns(ConvergenceWarning, match="let the callback stop later"):
        assert solve(A, 9, M, sigma=sigma, **kept, **stop).info["stopped"] == "callback"
    assert np.array_equal(solve(A, 9, M, sigma=sigma, **kept).eigenvectors, whole.eigenvectors)
    assert not list(tmp_path.iterdir())


# --- accuracy and cost of shift-invert with the default tol -----------------------------------------


MODELS = [("laplace2d:nx=75,ny=70", 10, 3.01), ("laplace3d:n=12", 12, 3.7), ("xxz:sites=12,up=6", 8, 0.3)]


@pytest.mark.parametrize(
    ("spec", "k", "sigma"), [*((seed, 3, sigma) for seed in range(4) for sigma in (5.0, 0.0)), *MODELS]
)
def test_interior_values_converge_to_the_accuracy_of_scipy(spec: str | int, k: int, sigma: float) -> None:
    A = models.model(spec) if isinstance(spec, str) else random_sparse(spec, 600, per_row=6)
    w, X = scipy_eigsh(A, k, sigma=sigma, rng=0)
    result = answered(A, k, exact=w, sigma=sigma)
    assert result.residuals.max() <= 10 * np.linalg.norm(A @ X - X * w, axis=0).max()


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
    C = random_sparse(0, 1200 + len(near), per_row=1)
    A = (sp.diags_array(np.r_[-far, near, far]) + 1e-3 * C).tocsr()
    result = answered(A, k, sigma=0.0, which=which, method="lanczos", atol=1e-13, loss=1e-13)
    assert "as good as rounding allows" not in result.info["why"]


@pytest.mark.parametrize(("which", "seed"), [("SA", 0), ("SA", 1), ("BE", 0)])
def test_a_run_whose_search_for_copies_was_cut_short_is_not_taken_for_complete(which: str, seed: int) -> None:
    answered(torus(28)[0].astype(np.float32), 12, sigma=-0.01, which=which, rng=seed)


@pytest.mark.parametrize("place", [60, 100, 200])
def test_all_copies_of_an_eigenvalue_at_the_shift_are_on_one_side_of_it(place: int) -> None:
    A = models.model("laplace2d:n=23")
    values = eigenvalues(A)
    below = values[values < values[place] - 1e-9]
    result = solve(A, 8, sigma=float(values[place]), which="SA")
    assert np.allclose(result.eigenvalues, below[-8:], rtol=0, atol=1e-12)
    assert result.info["method"] == "lanczos"


@pytest.mark.parametrize(("mode", "which"), [("cayley", "LM"), ("buckling", "LA"), ("buckling", "BE")])
@pytest.mark.parametrize("distance", [0.0, 1e-12, -1e-9])
def test_values_at_a_shift_spoil_no_others_in_any_mode(
    mode: str, which: str, distance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On vectors in the inner product of M, and on those of a factor of A."""
    monkeypatch.setattr("solvers.costs.FEW_ROWS", 0)  # no dense LAPACK
    A, M, values = torus(34)
    A, values = sp.csr_array(A + M), values + 1
    sigma = float(values[400]) * (1 + distance)
    result = solve(A, 20, M, sigma=sigma, mode=mode, which=which)
    far, found = (part[np.abs(part - sigma) > 1e-6] for part in (values, result.eigenvalues))
    theta = far / (far - sigma)
    order = {"LM": np.argsort(-np.abs(theta)), "LA": np.argsort(-theta)}.get(which)
    if order is not None:
        np.testing.assert_allclose(found, np.sort(far[order[: len(found)]]), rtol=1e-10)
    assert (result.residuals <= result.limits).all()


def test_residuals_a_little_above_the_floor_are_accepted_and_flagged() -> None:
    rng, solve_with = np.random.default_rng(1), splu((GRID - 1.05 * sp.eye_array(625)).tocsc()).solve

    def inverse(X: Any) -> Any:  # with errors that refinement does not remove
        return solve_with(X) + 1e-13 * rng.standard_normal(X.shape)

    result = solve(GRID, 7, sigma=1.05, OPinv=inverse)
    assert result.converged.all()
    assert result.info["why"].endswith("times the floor, as good as rounding allows")


def test_a_singular_mass_matrix_of_any_kind_does_with_a_shift(real_matrix: Callable[[str], Any]) -> None:
    mass = real_matrix("bcsstm13")  # semidefinite, of rank 1241, and not only by rows of zeros
    A = sp.csr_array(mass + sp.diags_array(np.full(mass.shape[0], float(abs(mass).max()))))
    exact = np.sort(1 / sl.eigh(mass.toarray(), A.toarray(), eigvals_only=True)[-9:])
    answered(A, 4, mass, exact=exact, sigma=0.0, rtol=1e-9)


def test_what_cannot_be_an_inner_product_is_refused(real_matrix: Callable[[str], Any]) -> None:
    def common(ends: Any) -> Any:
        return sp.diags_array(np.r_[0.0, ends], format="csr")

    for A, M, options, message in (
        ("bcsstk10", "bcsstm10", {}, "M is indefinite; it must be positive definite"),
        ("bcsstk10", "bcsstm10", {"sigma": -1.0}, "M is indefinite; it must be positive definite"),
        (sp.eye_array(2003, format="csr"), "bcsstm13", {}, "M is singular; give sigma"),
        (sp.eye_array(324, format="csr"), "qc324", {}, "^M is not Hermitian"),
        (
            common(np.arange(1.0, 9.0)),
            common(np.ones(8)),
            {"sigma": 2.0},
            "^sigma: .* for sigma = 2 and .* M",
        ),
    ):
        A, M = (real_matrix(part) if isinstance(part, str) else part for part in (A, M))
        with pytest.raises(OptionError, match=message):
            eigsh(A, 3, M, **options)
    with pytest.raises(BreakdownError, match=r"OPinv.* returned NaN or Inf"):
        eigsh(GRID, 3, sigma=1.05, OPinv=lambda X: X * np.nan)
    with pytest.raises(OptionError, match="neither M nor sigma"):
        standard_form(as_operator(sp.eye_array(3)), sp.eye_array(3), None, None)


# --- proofs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "found", "error", "missing"),
    [
        ([1.0, 2.0, 2.0, 3.0], [1.0, 2.0, 3.0], 1e-9, 1),
        ([1.0, 2.0, 2.0, 3.0], [1.0, 2.0, 2.0], 1e-9, 0),
        ([1.0, 2.0, 2.0, 2.03], [1.0, 2.0, 2.03], 0.01, 1),  # up to the error of the last one
        ([1.0, 2.0, 2.0, 2.03], [1.0, 2.0, 2.0], 0.01, 0),
        ([1.0, 2.0], [1.0, 1.985, 2.0], 0.01, None),  # values on the other side of the count
    ],
)
def test_what_is_missing_at_an_end_is_counted(
    values: list[float], found: list[float], error: float, missing: int | None
) -> None:
    A, errors = sp.diags_array(np.r_[values, np.linspace(5, 9, 50)], format="csc"), np.full(3, error)
    assert proof(Factorization(A), np.array(found), errors, -np.inf)[1] == missing
    assert proof(Factorization(-A), -np.array(found)[::-1], errors, np.inf)[1] == missing


def test_what_is_missing_around_a_shift_is_counted_or_uncertain() -> None:
    A = sp.diags_array(np.r_[1.0, 2.0, np.linspace(5, 9, 50)], format="csc")
    assert proof(Factorization(A), np.array([1.0, 1.9, 2.0]), np.full(3, 0.01), 1.0)[1] is None
    A = sp.csr_array(sp.diags_array(np.r_[np.ones(6), 2.0, 3.0]))  # nothing is nearer than equal values
    text, missing = proof(Factorization(A), np.ones(3) + 1e-13, np.full(3, 1e-12), 1.0)
    assert missing == 0
    assert text.startswith("not needed")
    outside = shift_outside(Factorization(A), np.array([1.1]), 9.0, "SA")
    assert outside is not None
    assert outside < 1


@pytest.mark.parametrize("pair", [False, True])
def test_values_around_a_shift_are_proven_where_that_is_asked_for(pair: bool) -> None:
    A = models.model("laplace3d:n=8")
    n = A.shape[0]
    M = sp.diags_array([0.1, np.linspace(1, 2, n), 0.1], offsets=[-1, 0, 1], shape=(n, n)) if pair else None
    w = eigenvalues(A, M)
    info = answered(A, 20, M, sigma=3.87, verify="always").info
    said = r"proved by inertia: (\d+) eigenvalues lie between (.*) and (.*), (\d+) .* found"
    found = re.fullmatch(said, info["verification"])
    assert found is not None
    counted, low, high, known = (float(part) for part in found.groups())
    assert counted == known == np.count_nonzero((w > low + 1e-9) & (w < high - 1e-9)) >= 10
    assert info["missing"] == 0


def test_a_value_that_inertia_counts_and_nobody_found_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    A = models.model("laplace2d:nx=20,ny=21")
    answers = iter([("one is missing", 1), ("none is missing", 0)])
    monkeypatch.setattr(solution, "proof", lambda *_: next(answers))
    result = eigsh(A, 5, sigma=2.01, rng=0, verify="always", return_info=True)
    assert result.info["verification"] == "none is missing"
    assert result.info["verification_columns"] > 0
    once = eigsh(A, 5, sigma=2.01, rng=0, return_info=True)
    assert result.info["operator_columns"] > once.info["operator_columns"]
    assert np.allclose(result.eigenvalues, once.eigenvalues, atol=1e-12)
    monkeypatch.setattr(solution, "proof", lambda *_: ("one is missing", 1))
    with pytest.raises(NoConvergence, match="At least 1 copy of a wanted value is known to be missing"):
        eigsh(A, 5, sigma=2.01, rng=0, verify="always", method="lanczos")


def test_a_matrix_whose_pivots_tell_nothing_is_not_proven() -> None:
    A = random_sparse(1, 600, per_row=6)
    A.setdiag(0)
    A.eliminate_zeros()
    result = answered(A, 3, sigma=0.0, verify="always")
    assert result.info["verification"].startswith(("not proved", "proved by inertia"))


@pytest.mark.parametrize("copies", [1, 3])
def test_steps_without_refinement_lose_neither_digits_nor_copies(
    copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = sp.kron(models.model("laplace2d:n=24"), sp.eye_array(copies), format="csr")
    exact = np.sort(np.repeat(eigenvalues(models.model("laplace2d:n=24")), copies))
    k, sigma = 2 * copies + 1, 3.3
    form = standard_form(as_operator(A), A, None, sigma)
    assert form.is_rough
    assert not form.refined().is_rough
    assert form.factors is not None
    assert form.factors.pivot_error > 1e-15
    nearest = np.sort(exact[np.argsort(np.abs(exact - sigma), kind="stable")[:k]])
    for roughness in (1.0, 1e7):  # relative errors that an iteration cannot remove
        once = Factorization.solve_once

        def noisy(factors: Factorization, B: Any, roughness: float = roughness, once: Any = once) -> Any:
            X = once(factors, B)
            return X + (roughness - 1) * 1e-16 * np.random.default_rng(0).standard_normal(X.shape)

        monkeypatch.setattr(Factorization, "solve_once", noisy)
        result = eigsh(A, k, sigma=sigma, return_info=True)
        monkeypatch.setattr(Factorization, "solve_once", once)
        assert result.converged.all()
        assert (result.residuals <= result.limits).all()
        np.testing.assert_allclose(
            np.sort(np.abs(result.eigenvalues - sigma)), np.sort(np.abs(nearest - sigma)), atol=1e-12
        )


def test_differences_with_few_entries_have_factors() -> None:
    n = 60
    B = np.random.default_rng(1).standard_normal((n, n))
    M = B @ B.T / n + np.eye(n)
    C = np.full((n, n), 0.5) + 2.5 * np.eye(n)
    problems: list[tuple[Any, Any, float]] = [
        (1.5 * np.eye(3), None, 1.5),
        (2 * M, M, 2.0),
        (M + np.diag(np.linspace(0, 1, n)), M, 1.0),
        (C, np.full((n, n), 0.25) + np.eye(n), 2.0),
    ]
    for A, mass, sigma in problems:
        exact = sl.eigh(A, mass, eigvals_only=True)
        nearest = np.sort(exact[np.argsort(np.abs(exact - sigma), kind="stable")[:2]])
        for convert in (np.asarray, sp.csr_array):
            given = None if mass is None else convert(mass)
            values = eigsh(convert(A), 2, M=given, sigma=sigma, method="lanczos")[0]
            np.testing.assert_allclose(values, nearest, atol=1e-10)
    values = eigsh(lambda X: 1.5 * X, 2, shape=(3, 3), dtype=float, sigma=1.5, method="lanczos")[0]
    np.testing.assert_allclose(values, 1.5)


def test_nearly_full_masses_are_applied_as_dense_matrices() -> None:
    n = 300
    B = np.random.default_rng(1).standard_normal((n, n))
    A, M = models.laplace1d(n=n), B @ B.T / n + np.eye(n)
    exact = sl.eigh(A.toarray(), M, eigvals_only=True)
    nearest = np.sort(exact[np.argsort(np.abs(exact - 0.5))[:4]])
    for mass in (M, sp.csr_array(M)):
        form = standard_form(as_operator(A), A, mass, 0.5, k=4)
        assert form.M is not None
        assert hasattr(form.M, "matrix")
        np.testing.assert_allclose(eigsh(A, 4, M=mass, sigma=0.5, method="lanczos")[0], nearest, rtol=1e-10)


@pytest.mark.parametrize(("n", "method"), [(500, "dense"), (560, "lanczos")])
def test_full_matrices_of_500_rows_take_dense_lapack(n: int, method: str) -> None:
    A = np.random.default_rng(0).standard_normal((n, n))
    assert eigsh(A + A.T, 2, sigma=0.3, return_info=True).info["method"] == method


@pytest.mark.parametrize("rng", range(6))
def test_a_shift_at_a_value_of_a_full_pair_keeps_the_digits_of_others(rng: int) -> None:
    n, g = 420, np.random.default_rng(5)
    Q = np.linalg.qr(g.standard_normal((n, n)) + 1j * g.standard_normal((n, n)))[0]
    M = (Q * (1 + g.random(n))) @ Q.conj().T
    M = (M + M.conj().T) / 2
    A = 1.25 * M + np.diag(g.random(n))
    sigma = float(sl.eigh(A, M, eigvals_only=True)[30])
    result = eigsh(A, 20, M=M, sigma=sigma, method="lanczos", rng=rng, return_info=True)
    assert (result.residuals <= result.limits).all()


@pytest.mark.parametrize("n", [1000, 4000])
def test_a_single_negative_value_of_a_mass_is_seen(n: int) -> None:
    values = np.random.default_rng(1).uniform(0.02, 1, n)
    values[:2] = -0.001, 0.5
    mean, half = (values[::2] + values[1::2]) / 2, (values[1::2] - values[::2]) / 2
    coupling = np.zeros(n - 1)
    coupling[::2] = half
    M = sp.diags_array([coupling, np.repeat(mean, 2), coupling], offsets=[-1, 0, 1]).tocsr()
    for options in ({"sigma": 0.5}, {"sigma": 0.5, "which": "SA"}, {}):
        with pytest.raises(OptionError, match="M is indefinite"):
            eigsh(models.laplace1d(n=n), 6, M=M, rng=0, **options)


def test_a_matrix_that_buckling_factorises_is_always_checked() -> None:
    n = 300
    A = (models.laplace1d(n=n) + sp.diags_array(np.linspace(0, 0.3, n))).tolil()
    A[3, 4] += 1e-3
    with pytest.raises(OptionError, match="A is not Hermitian"):
        eigsh(A.tocsr(), 4, M=element_mass(n), sigma=-0.5, mode="buckling", check_hermitian=False)
