"""The filtered iteration: what the sketch of a spectrum says, and what happens when it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import BlockVector, as_operator, models
from solvers import NoConvergence, eigsh
from solvers.iterations import chebyshev, filtering
from solvers.iterations.chebyshev import ChebyshevOperator, Filter, design_filter
from solvers.iterations.spectrum import Sketch, sketch_spectrum
from solvers.stages import run
from tests.matrices import normal
from tests.solvers.answers import answered


def sketch(values: np.ndarray, steps: int = 20, locked: Any = None, dtype: str = "float64") -> Sketch:
    operator = as_operator(sp.diags_array(values.astype(dtype), format="csr"))
    return sketch_spectrum(operator, BlockVector.random(len(values), 4, dtype, rng=0), steps, locked)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_a_sketch_bounds_the_spectrum_and_counts_what_lies_beyond(dtype: str) -> None:
    values = np.r_[np.linspace(-1, 1, 3000), 5.0, 6.0]
    seen = sketch(values, dtype=dtype)
    assert seen.low <= -1
    assert seen.high >= 6 - 1e-5
    assert seen.norm == pytest.approx(6, abs=1e-4)
    assert seen.counts.sum() == pytest.approx(3002, rel=1e-4)
    assert seen.beyond(0, "LA") == pytest.approx(6, abs=1e-4)
    assert 0.5 < seen.beyond(300, "LA") < 0.95  # three hundred and two lie beyond 0.8
    assert -seen.beyond(300, "SA") == pytest.approx(-0.8, abs=0.2)
    assert seen.columns == 4 * 20
    few = sketch(np.repeat([2.0, 7.0], [30, 10]))  # stops where nothing is left
    assert np.allclose(np.unique(few.theta.round(12)), [2, 7])
    assert few.counts.sum() == pytest.approx(40)
    assert sketch(np.zeros(20)).norm == 0


@pytest.mark.parametrize("noise", [0.0, 0.01])  # with noise the locked columns are no eigenvectors
def test_a_sketch_is_that_of_the_restricted_operator(noise: float) -> None:
    values = np.r_[np.linspace(-1, 1, 198), 10, 10]
    locked = np.linalg.qr(np.eye(200)[:, 198:] + noise * normal(2, 200, 2))[0]
    made = sketch(values, locked=BlockVector(locked))
    P = np.eye(200) - locked @ locked.T
    restricted = np.linalg.eigvalsh(P @ np.diag(values) @ P)
    assert restricted[0] - 1e-12 <= made.theta.min()
    assert made.theta.max() <= restricted[-1] + 1e-12
    assert made.counts.sum() == pytest.approx(198)


@pytest.mark.parametrize(("which", "wanted"), [("LA", 1.5), ("SA", -1.5), ("LM", 1.5), ("LM", -1.5)])
@pytest.mark.parametrize("degree", [1, 2, 3, 8])
def test_the_filter_is_the_chebyshev_polynomial_of_the_interval(
    which: Any, wanted: float, degree: int
) -> None:
    values = np.array([wanted, 0.4, -0.2, 1.0, -1.0])
    low = -1.0
    operator = ChebyshevOperator(
        as_operator(sp.diags_array(values, format="csr")), Filter(low, 1.0, degree, which), None
    )
    X = BlockVector(np.eye(5))
    result = operator.apply(X, X.like()).array
    sign = -1 if which == "SA" else 1
    assert np.allclose(result, np.diag(np.polynomial.Chebyshev.basis(degree)(sign * values)))


@hypothesis.given(
    gaps=st.tuples(*[st.floats(1e-8, 1e3) for _ in range(3)]),
    which=st.sampled_from(["LA", "SA", "LM"]),
    degree=st.integers(1, 400),
    spread=st.floats(10, 1e12),
)
def test_the_first_value_is_never_amplified_beyond_the_spread(
    gaps: tuple[float, float, float], which: Any, degree: int, spread: float
) -> None:
    last, edge = -gaps[0], -gaps[0] - gaps[1]
    values = (0.0, last, edge, edge - gaps[2])
    if which == "LM":
        values = tuple(value - edge + gaps[2] for value in values)  # type: ignore[assignment]
    made = design_filter(values, which, sum(gaps), degree, spread)
    if made is not None:
        ratio = made.growth(values[0]) - made.growth(values[1])
        assert ratio <= np.log(spread) * (1 + 1e-9)
        assert made.growth(values[0]) <= np.log(chebyshev.MAX_GROWTH) * (1 + 1e-9)
        assert made.degree % 2 == 0


@pytest.mark.parametrize("which", ["LA", "SA", "LM"])
def test_a_wrong_bound_of_the_far_end_is_noticed(which: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.r_[-40.0, np.linspace(-1, 1, 1500), 3.0, 3.1, 40.0]
    true = sketch_spectrum

    def blind(*arguments: Any, **longer: Any) -> Sketch:
        seen = true(*arguments, **longer)
        inside = np.abs(seen.theta) < 5
        return Sketch(seen.theta[inside], seen.counts[inside], -1.0, 1.0, 0, 0)

    monkeypatch.setattr("solvers.iterations.spectrum.sketch_spectrum", blind)
    A = sp.diags_array(values, format="csr")
    answered(A, 6, exact=np.sort(values), which=which, method="filter", tol=1e-9, atol=1e-9)


@pytest.mark.parametrize("which", ["LA", "SA"])
def test_values_are_predicted_until_pairs_seem_to_have_converged(
    which: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    true = filtering.FilteredRestart._rayleigh_ritz
    monkeypatch.setattr(
        filtering.FilteredRestart,
        "_rayleigh_ritz",
        lambda self, count: steps.append(count) or true(self, count),
    )
    A = models.model("laplace3d:n=20")
    how: dict[str, Any] = {"which": which, "method": "filter", "ncv": 40, "rng": 0, "return_info": True}
    result = eigsh(A, 20, **how)
    assert len(steps) < result.info["restarts"]
    # The values and residuals of a run that is stopped before are those of A and the vectors.
    early = eigsh(A, 20, **how, maxiter=2, on_unconverged="return")
    X, theta = early.eigenvectors, early.eigenvalues
    assert not early.converged.all()
    assert np.allclose(np.diagonal(X.T @ (A @ X)), theta, rtol=0, atol=1e-12)
    assert np.allclose(np.linalg.norm(A @ X - X * theta, axis=0), early.residuals, rtol=1e-6, atol=1e-12)


def test_a_function_of_unknown_cost_is_filtered_when_asked() -> None:
    A = models.model("laplace2d:n=30")
    asked: dict[str, Any] = {"apply_to": lambda X: A @ X, "which": "SA", "shape": A.shape}
    assert answered(A, 5, method="filter", **asked).info["degree"] > 1
    assert answered(A, 5, **asked).info["method"] == "lanczos"


@pytest.mark.parametrize("seed", range(3))
def test_copies_of_both_signs_are_found_where_there_are_more_than_columns(seed: int) -> None:
    A = models.model("graphene:nx=16,ny=16")  # six copies of a value, and six of its negative
    answered(A, 18, which="LM", tol=1e-8, convergence="norm", method="filter", rng=seed)


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_a_wider_filter_after_single_columns_finds_all_copies(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its start, two mixtures of one Krylov space, has one copy of every value, not two.
    monkeypatch.setattr(filtering, "SINGLE_CYCLES", 2)
    monkeypatch.setattr(filtering, "MOST_SINGLE_CYCLES", 0.0)
    place = np.abs(np.arange(48) - 23.5)
    inside = np.flatnonzero(np.hypot(place[:, None], place[None, :]) < 24)
    A = sp.csr_array(models.model("laplace2d:n=48")[inside][:, inside]) * 24**2  # has many double values
    info = answered(A, 10, which="SA", tol=1e-9, convergence="norm", rng=seed).info
    assert (info["method"], info["block_size"]) == ("filter", 1)


@pytest.mark.parametrize(("which", "dtype", "tol"), [("LA", "float64", 0.0), ("SA", "complex128", 1e-8)])
def test_values_far_out_and_others_are_computed_together(
    which: str, dtype: str, tol: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solvers.planning.is_factorable", lambda A, which: False)
    values = np.r_[np.linspace(2, 30, 16) ** 1.5, [164.3] * 2, np.random.default_rng(0).uniform(0, 1, 5000)]
    values *= 1 if which == "LA" else -1
    A = sp.diags_array(values, format="csr").astype(dtype)
    how: Any = {"tol": tol, "convergence": "norm", "block_size": 4}
    result = answered(A, 30, apply_to=as_operator(A), exact=np.sort(values), which=which, **how)
    assert (result.info["k"], result.info["stopped"]) == (30, "converged")
    assert result.info["restarts"] >= len(result.history) - 2


def far_out(copies: int, sign: int, dtype: str = "float64") -> tuple[np.ndarray, sp.csr_array]:
    """Return values of which so many copies of nine lie far out, ascending, and their diagonal matrix."""
    rng = np.random.default_rng(7)
    values = np.r_[np.linspace(2, 30, 9) ** 1.5, rng.uniform(0, 1, 6000 // copies)].repeat(copies)
    return np.sort(sign * values), sp.diags_array(sign * rng.permutation(values)).tocsr().astype(dtype)


@pytest.mark.parametrize(
    ("which", "sign", "copies", "b", "dtype"),
    [
        ("LA", 1, 1, 8, "float64"),
        ("SA", -1, 6, 4, "float64"),  # more copies than columns
        ("LM", -1, 2, 4, "complex128"),
    ],
)
def test_values_beside_those_that_leave_no_filter_are_computed_in_their_complement(
    which: Any, sign: int, copies: int, b: int, dtype: str
) -> None:
    values, A = far_out(copies, sign, dtype)
    k = 9 * copies + 12
    options: dict[str, Any] = {"method": "filter", "block_size": b, "ncv": k + 10 * b, "rng": 3}
    result = eigsh(A, k, which=which, return_info=True, **options)
    unit = np.finfo(dtype).eps / 2
    expected = values[-k:] if sign > 0 else values[:k]
    assert "further out were computed" in result.info["why"]
    assert result.verification.is_decided
    assert result.info["degree"] >= 8
    assert abs(result.eigenvalues - expected).max() <= 200 * unit * abs(values).max()
    X = result.eigenvectors
    assert np.linalg.norm(A @ X - X * result.eigenvalues, axis=0).max() <= 200 * unit * abs(values).max()
    assert np.abs(X.conj().T @ X - np.eye(k)).max() < 1e5 * unit
    states = [state.operator_columns for state in result.history]
    assert states == sorted(states)
    assert result.info["operator_columns"] >= states[-1]


def test_both_ends_beside_values_far_out() -> None:
    values = np.r_[np.random.default_rng(0).uniform(-1, 1, 4000), 3.0, 3.5, 3.5]
    A, expected = sp.diags_array(values).tocsr(), np.sort(values)
    result = eigsh(A, 24, which="BE", method="filter", block_size=8, rng=0, return_info=True)
    assert "further out were computed" in result.info["why"]
    assert np.allclose(result.eigenvalues, np.r_[expected[:12], expected[-12:]], rtol=0, atol=1e-12)


def test_values_left_out_that_are_not_the_first_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    values, A = far_out(1, 1)
    monkeypatch.setattr(run, "split_outliers", lambda *_: (np.arange(3), np.arange(3, 21)))  # the last
    options: dict[str, Any] = {"method": "filter", "block_size": 8, "ncv": 101, "rng": 3}
    result = eigsh(A, 21, which="LA", return_info=True, **options)
    assert "no answer together" in result.info["why"]
    assert np.allclose(result.eigenvalues, values[-21:], rtol=0, atol=1e-11)


@pytest.mark.parametrize("option", ["v0", "checkpoint"])
def test_what_a_caller_gives_for_all_values_is_not_for_a_part_of_them(option: str, tmp_path: Path) -> None:
    values, A = far_out(1, 1)
    given = {"v0": np.ones(len(values)), "checkpoint": tmp_path / "state"}[option]
    options: dict[str, Any] = {"method": "filter", "block_size": 8, "ncv": 101, "rng": 3, option: given}
    result = eigsh(A, 21, which="LA", maxiter=25, on_unconverged="return", return_info=True, **options)
    assert (result.info["stopped"], result.info["restarts"]) == ("maxiter", 25)
    assert np.allclose(result.eigenvalues[-9:], values[-9:], rtol=0, atol=1e-11)


def test_a_number_of_restarts_is_that_of_both_parts() -> None:
    values, A = far_out(1, 1)
    options: dict[str, Any] = {"method": "filter", "block_size": 8, "ncv": 45, "rng": 3}
    with pytest.raises(NoConvergence) as error:
        eigsh(A, 21, which="LA", maxiter=11, **options)
    info = error.value.result.info
    assert "further out" in info["why"]
    assert (info["stopped"], info["restarts"], info["k"]) == ("maxiter", 11, 21)
    assert np.allclose(error.value.result.eigenvalues[-9:], values[-9:], rtol=0, atol=1e-11)


@pytest.mark.parametrize("which", ["LA", "BE"])
def test_sums_over_long_vectors_leave_joined_pairs_within_their_limits(which: Any) -> None:
    """The eigenvector of the degree is constant, and its Rayleigh quotient a sum of equal numbers."""
    rng, n = np.random.default_rng(1), 2100
    steps = [sp.eye_array(n, format="csr")[rng.permutation(n)] for _ in range(30)]
    A = sp.csr_array(sum(steps) + sum(steps).T)
    options: dict[str, Any] = {"method": "filter", "block_size": 4, "ncv": 12, "rng": 0}
    result = eigsh(A, 4, which=which, return_info=True, **options)
    assert result.converged.all()
    assert result.info["method"] == "filter"
    assert (np.diff(result.eigenvalues) >= 0).all()
