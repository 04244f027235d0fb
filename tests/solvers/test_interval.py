"""All eigenpairs of an interval: complete, orthonormal, proved by counts; and the counts themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from blockvec import count_eigenvalues
from blockvec.errors import BreakdownError, OptionError
from blockvec.models import model, spectra
from solvers import EigenResult, Interrupted, NoConvergence
from solvers.factorization.inertia import Pencil
from solvers.stages import interval, slicing
from solvers.stages.slicing import Slicing
from tests.matrices import random_sparse, springs, with_values
from tests.solvers.answers import answered, eigenvalues, solve

GRID = model("laplace2d:nx=30,ny=30")
VALUES = spectra.laplace_eigenvalues([30, 30])
DOUBLE = float(VALUES[(VALUES > 1.5) & np.isclose(VALUES, np.roll(VALUES, 1), rtol=0, atol=1e-12)][0])
MASS = sp.diags_array(np.linspace(1.0, 3.0, 900)).tocsr()
INF = math.inf


def solved(A: Any, ends: tuple[float, float], M: Any = None, **options: Any) -> EigenResult:
    return solve(A, options.pop("k", None), M, interval=ends, **options)


def check(A: Any, ends: tuple[float, float], M: Any = None, **options: Any) -> EigenResult:
    """Check that the result has exactly the values of the interval, with orthonormal vectors."""
    return answered(A, None, M, interval=ends, **{"atol": 1e-13, **options})


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (1.0, 2.0),
        (-INF, 0.7),
        (7.3, INF),
        (DOUBLE, DOUBLE),
        (DOUBLE, 2.2),
        (1.2, DOUBLE),
        (4.0, 4.0),
        (2.0, 2.0001),
        (-5.0, 0.0),
        (9.0, INF),
        (-INF, INF),
    ],
)
def test_every_copy_of_every_value_of_the_closed_interval_is_found(low: float, high: float) -> None:
    result = check(GRID, (low, high), exact=VALUES)
    assert result.info["counted"] == len(result.eigenvalues)
    assert result.info["count_error"] == 0
    assert result.info["verification"].startswith(("proved by inertia", "not needed: dense"))
    assert int(count_eigenvalues(GRID, low, high)) == len(result.eigenvalues)


def random_complex(n: int = 600) -> Any:
    return random_sparse(5, n, per_row=3, dtype=complex) + sp.diags_array(np.linspace(-3, 3, n))


def disjoint_rings() -> Any:
    """Return the Laplacian of 60 equal rings of 9 and 10 vertices: values of 30 to 120 copies."""
    rings = [model(f"laplace1d:n={n},periodic=true") for n in (9, 10) for _ in range(30)]
    return sp.block_diag(rings).tocsr()


@pytest.mark.parametrize(
    ("matrix", "ends"),
    [
        (lambda: model("hofstadter:nx=24,ny=24,p=1,q=3"), (-1.0, -0.2)),
        (random_complex, (0.5, 1.5)),
        (disjoint_rings, (0.3, 1.4)),
        (lambda: model("graphene:nx=20,ny=16"), (-0.6, 0.0)),
        (lambda: GRID.astype(np.float32), (1.0, 2.0)),
        (lambda: sp.diags_array(np.logspace(-12, 0, 600)).tocsr(), (1e-10, 0.1)),
    ],
    ids=["complex", "random complex", "many copies", "mirrored", "float32", "over many scales"],
)
def test_spectra_of_all_kinds_are_complete(matrix: Callable[[], Any], ends: tuple[float, float]) -> None:
    check(matrix(), ends)


def test_single_precision_is_counted_in_double_precision() -> None:
    A, values = model("laplace2d:nx=80,ny=80").astype(np.float32), spectra.laplace_eigenvalues([80, 80])
    result = check(A, (1.0, 1.04), exact=values, atol=1e-15)
    inside = ((values >= 1.0) & (values <= 1.04)).sum()
    assert result.eigenvectors.dtype == np.float32
    assert result.info["verification"].startswith(f"proved by inertia: {inside} eigenvalues")


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_counts_of_single_precision_are_those_of_the_entries(dtype: str) -> None:
    rng, n = np.random.default_rng(0), 300
    values = np.r_[np.linspace(2.9, 3.3, n - 10), np.linspace(100, 250, 10)]
    A = sp.csr_array(with_values(values, rng, dtype))
    w = np.linalg.eigvalsh(A.toarray().astype(complex))
    for a, b in ((3.0, 3.2), (w[50], w[51]), (w[200] + 1e-9, w[250] - 1e-9)):
        counted = count_eigenvalues(A, a, b)
        assert counted.is_exact
        assert int(counted) == ((a - 1e-10 <= w) & (w <= b + 1e-10)).sum()


def test_a_value_with_many_copies_is_found_where_only_the_ends_can_be_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    certain, count = [], Pencil.count

    def count_ends(pencil: Pencil, sigma: float) -> int | None:
        below = count(pencil, sigma)
        if below is None or len(certain) == 2:
            return None
        certain.append(sigma)
        return below

    monkeypatch.setattr(Pencil, "count", count_ends)
    result = check(GRID, (3.99999, 4.00001), exact=VALUES)
    assert result.info["verification"].startswith("proved by inertia: 30 eigenvalues")


@pytest.mark.parametrize("factor", [1e200, 1e-200])
def test_units_do_not_matter(factor: float) -> None:
    one, scaled = solved(GRID, (1.0, 2.0)), solved(GRID * factor, (factor, 2 * factor))
    np.testing.assert_allclose(scaled.eigenvalues, one.eigenvalues * factor, rtol=1e-13)
    assert scaled.info["interval"] == [factor, 2 * factor]
    assert int(count_eigenvalues(GRID * factor, factor, 2 * factor)) == len(one.eigenvalues)


@pytest.mark.parametrize("ends", [(0.4, 0.9), (-INF, 0.3)])
def test_pairs_with_a_definite_mass_matrix_are_complete(ends: tuple[float, float]) -> None:
    result = check(GRID, ends, MASS)
    assert int(count_eigenvalues(GRID, *ends, MASS)) == len(result.eigenvalues)


@pytest.mark.parametrize("ends", [(0.4, 0.9), (-INF, 0.5), (3.0, INF)])
def test_a_semidefinite_mass_matrix_has_finite_values_only(ends: tuple[float, float]) -> None:
    M = sp.diags_array(np.linspace(1.0, 3.0, 900) * (np.arange(900) % 3 > 0)).tocsr()
    theta = eigenvalues(M, GRID)
    check(GRID, ends, M, exact=np.sort(1 / theta[theta > 1e-12]))


@pytest.mark.parametrize(
    ("name", "mass", "ends"),
    [
        ("bcsstk08", "bcsstm08", (1e3, 3e4)),
        ("bcsstk06", "bcsstm06", (-INF, 1e4)),
        ("elast_A", "elast_B", (0.0, 0.5)),
    ],
)
def test_the_modes_of_real_structures_are_complete(
    name: str, mass: str, ends: tuple[float, float], real_matrix: Callable[[str], Any]
) -> None:
    check(real_matrix(name), ends, real_matrix(mass))


@settings(max_examples=8, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(VALUES[::17].tolist()), st.floats(-1, 9)), min_size=3, max_size=3))
def test_counts_of_adjacent_intervals_add_up(points: list[float]) -> None:
    a, b, c = sorted(points)
    left, right, both, shared = (
        int(count_eigenvalues(GRID, *ends)) for ends in ((a, b), (b, c), (a, c), (b, b))
    )
    assert left + right - shared == both
    assert both == int(((a - 1e-12 <= VALUES) & (c + 1e-12 >= VALUES)).sum())


@pytest.mark.parametrize("ends", [(1.0, 2.0), (-INF, 0.5), (-INF, INF)])
def test_an_estimated_count_is_as_near_as_its_error_says(ends: tuple[float, float]) -> None:
    exact = int(((ends[0] <= VALUES) & (ends[1] >= VALUES)).sum())
    count = count_eigenvalues(lambda X: GRID @ X, *ends, shape=(900, 900), dtype=float, rng=0)
    assert not count.is_exact
    assert abs(count.value - exact) <= 4 * count.error + 0.5
    assert str(count).startswith(f"{count.value} ± ")
    assert count.error < 0.2 * exact


@pytest.mark.parametrize(("ends", "mass"), [((1.0, 1.2), None), ((7.8, INF), None), ((-INF, 0.1), MASS)])
def test_without_a_factorisation_the_interval_is_complete_and_its_count_an_estimate(
    ends: tuple[float, float], mass: Any
) -> None:
    result = check(GRID, ends, mass, method="filter", atol=1e-12)
    assert result.info["count_error"] > 0
    away = abs(result.info["counted"] - len(result.eigenvalues))
    assert away <= 4 * result.info["count_error"] + 0.5


def test_an_estimate_far_too_small_is_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*args: Any, **options: Any) -> Any:
        count, sketch = estimate(*args, **options)
        return type(count)(0, 1e-9, count.why), sketch

    estimate = interval.estimate
    monkeypatch.setattr(interval, "estimate", nothing)
    check(GRID, (-INF, 0.3), exact=VALUES, method="filter")


def test_k_is_a_bound_and_the_error_names_the_count() -> None:
    count = int(count_eigenvalues(GRID, 1.0, 1.5))
    assert len(solved(GRID, (1.0, 1.5), k=count).eigenvalues) == count
    for method in ("auto", "dense"):
        with pytest.raises(OptionError, match=f"k: got 3, but the interval holds {count} eigenvalues"):
            solved(GRID, (1.0, 1.5), k=3, method=method)
    with pytest.raises(OptionError, match="k: got 3, but the interval holds about"):
        solved(GRID, (-INF, 0.5), k=3, method="filter")


def test_what_a_stopped_run_lacks_is_counted(tmp_path: Path) -> None:
    stops: Any = {"checkpoint": tmp_path / "run", "callback": lambda state: True, "on_unconverged": "return"}
    first = solved(GRID, (0.5, 2.5), **stops)
    assert first.info["stopped"] == "callback"
    assert first.info["missing"] == int(count_eigenvalues(GRID, 0.5, 2.5)) - len(first.eigenvalues) > 0
    with pytest.raises(OptionError, match="interval"):
        solved(GRID, (0.5, 2.6), checkpoint=tmp_path / "run")


def test_a_time_limit_returns_what_was_found() -> None:
    stiff = GRID + sp.diags_array(1e14 * (np.arange(900) == 7))
    for A, end in ((GRID, 2.5), (stiff, INF)):
        result = solved(A, (0.5, end), time_limit=1e-9, on_unconverged="return")
        assert result.info["stopped"] == "time_limit"
        assert (result.info["counted"], result.info["count_error"]) == (None, None)
        assert result.info["missing"] > len(result.eigenvalues)


def test_ctrl_c_returns_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slicing, "_stopped", lambda self: "interrupted" if self.counts.restarts else "")
    with pytest.raises(Interrupted) as stop:
        solved(GRID, (0.5, 2.5))
    assert 0 < len(stop.value.result.eigenvalues) < stop.value.result.info["counted"]


@pytest.mark.parametrize(("place", "error"), [((0.9, 1.1), 3), ((0.9, 1.1), -1), ((1.1, 1.9), 1)])
def test_a_wrong_count_is_noticed_and_mended(
    place: tuple[float, float], error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = Pencil.count

    def wrong(self: Pencil, sigma: float) -> int | None:
        below = count(self, sigma)
        return below if below is None else below + error * (place[0] < sigma < place[1])

    monkeypatch.setattr(Pencil, "count", wrong)
    result = check(GRID, (1.0, 1.3), exact=VALUES)  # dense LAPACK takes over
    assert result.info["method"] == "dense"
    assert "were counted" in result.info["why"] or "stagnated" in result.info["why"]
    monkeypatch.setattr("solvers.call.fits_dense", lambda op: False)
    with pytest.raises((BreakdownError, NoConvergence), match=r"were counted|missing"):
        solved(GRID, (1.0, 1.3))


def test_a_copy_that_is_refused_on_both_sides_is_found_from_a_shift_nearer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where an eigenvalue lies next to a shift, solves keep pairs far from it a little above their limits."""
    A, exact = model("laplace2d:nx=60,ny=60"), np.sort(spectra.laplace_eigenvalues([60, 60]))
    doubles = exact[:-1][np.diff(exact) < 1e-12]
    measured = slicing.measured_pairs
    for place in (0.4646, 0.4555):
        refused = doubles[np.abs(doubles - place).argmin()]

        def pairs(form: Any, values: np.ndarray, *rest: Any, refused: float = refused) -> EigenResult:
            found = measured(form, values, *rest)
            if abs(form.map.sigma - refused) > 0.02:
                found.converged[np.flatnonzero(np.abs(values - refused) < 1e-9)[-1:]] = False
            return found

        monkeypatch.setattr(slicing, "measured_pairs", pairs)
        result = check(A, (0.3, 0.8), exact=exact)
        assert result.info["method"] == "shift-invert"
        assert result.info["restarts"] <= 5  # one shift for each of three parts, one or two for the copy


def test_a_shift_that_reaches_nothing_inside_an_infinite_interval_is_followed_by_others() -> None:
    rng, n = np.random.default_rng(4), 520
    chain, _ = springs(10.0 ** rng.uniform(-1, 1, n + 1), np.ones(n))
    free = np.setdiff1d(np.arange(n), rng.permutation(n)[:70])  # segments, whose lowest values are close
    A = sp.csr_array(sp.block_diag([chain[free][:, free], sp.diags_array(np.full(70, 50.0))]))
    values = np.linalg.eigvalsh(A.toarray())
    for sign in (1, -1):
        ends = sorted([-sign * np.inf, sign * values[1:3].mean()])
        result = check(sign * A, tuple(ends), exact=np.sort(sign * values), rng=4)
        assert result.info["method"] == "shift-invert"
        assert len(result.eigenvalues) == 2


def test_intervals_may_hold_all_but_the_infinite_values_and_those_of_penalties() -> None:
    chain, C = model("laplace1d:n=60"), sp.random(5, 60, 0.05, random_state=1)
    free = np.linalg.svd(C.toarray())[2][5:]  # vectors without constraints
    constrained = sp.csr_array(sp.block_array([[chain, C.T], [C, None]]))
    masses = sp.diags_array(np.repeat([1.0, 0.0], [60, 5])).tocsr()
    finite = np.linalg.eigvalsh(free @ chain @ free.T)
    result = solved(constrained, (0.0, 5.0), masses)
    np.testing.assert_allclose(result.eigenvalues, finite, atol=1e-12)
    springy = (model("laplace1d:n=57") + sp.diags_array(1.7e14 * (np.arange(57) == 20))).tocsr()
    values = np.sort(np.concatenate([eigenvalues(model(f"laplace1d:n={n}")) for n in (20, 36)]))
    result = solved(springy, (0.06, INF))
    np.testing.assert_allclose(result.eigenvalues[:-1], values[values >= 0.06], rtol=1e-10)
