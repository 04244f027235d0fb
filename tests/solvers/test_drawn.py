"""Calls drawn by seed are answered rightly; the check of the answers finds what it must find."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from threadpoolctl import threadpool_limits

from blockvec.models import spectra
from solvers import eigsh
from tests.drawn import matrices, oracle
from tests.drawn.judge import attempt, is_accepted, judge, judge_count
from tests.drawn.pool import run
from tests.drawn.problems import KINDS, Draw, build
from tests.pretended_gpu import pretended_gpu

SAMPLE = {"doubled": 70, "generalised": 80, "sizeable": 10, "single": 20, "penalty": 10}
SMALL = 250  # rows of the sample
MANY = {"doubled": 2000, "generalised": 5000, "sizeable": 2000, "single": 2000, "penalty": 300}
CHUNK = 500
REFUSED = 0.002  # share of calls that may be refused, with a reason; none of doubled values
LARGEST = 20_000  # rows of many calls
GRID = Draw("doubled", 0, ("laplace2d:nx=7,seed=0",), "SA", 4, copies=2, join="gauged")
LOOSE: dict[str, Any] = {"tol": 1e-6, "convergence": "norm"}
SINGULAR: dict[str, Any] = {"masses": "massless:decades=4", "place": "at:0.07"}
EVERYWHERE: dict[str, Any] = {"convergence": "norm", "verify": "always"}


def springs(*ends: tuple[int, int, int], **others: Any) -> dict[str, Any]:
    """Describe copies of chains by their numbers of masses, decades of stiffness, and seeds."""
    texts = (f"springs:n={n},decades={decades},ends=2,seed={seed}" for n, decades, seed in ends)
    return {"pieces": tuple(texts), "which": "SA", "join": "permuted", **LOOSE, **others}


ONCE_WRONG = {
    "copies missed with a mass matrix": Draw(
        "doubled", 0, k=6, copies=2, **springs((90, 0, 0), (90, 0, 1), masses="diagonal:decades=1")
    ),
    "a proof that stopped before the last copies": Draw(
        "doubled", 18, k=16, copies=3, **springs((20, 1, 18), (19, 0, 68), masses="consistent:decades=4")
    ),
    "pairs kept of more around a shift that was moved": Draw(
        "single", 151, ("random:n=48,row=4,seed=381",), "SM", 15, dtype="float32", tol=1e-4, method="lanczos"
    ),
    "the value at the shift lost with a singular M": Draw(
        "generalised", 1228, ("grid:nx=4,ny=4,seed=739",), "LM", 11, tol=1e-9, **SINGULAR
    ),
    "more values around a shift that was moved, after a proof elsewhere": Draw(
        *("penalty", 253, ("grid:nx=26,ny=27,seed=972",), "LM", 4, "diagonal:decades=2", 1e13),
        place="at:0.22",
        **EVERYWHERE,
    ),
    "an interval of few rows with a singular M": Draw(
        *("generalised", 63, ("grid:nx=3,ny=3,seed=310",), "interval", 3, "massless:decades=0"),
        place="inside:0.02",
        **LOOSE | {"tol": 1e-4},
    ),
}


@pytest.mark.parametrize("name", ONCE_WRONG)
def test_calls_that_were_once_wrong_are_right(name: str) -> None:
    with threadpool_limits(1):
        assert attempt(ONCE_WRONG[name]).outcome == "right"


def quick_draws(kind: str) -> list[Draw]:
    """Draw the sample of a kind, without named methods around a shift with M: these take seconds."""
    draws = (KINDS[kind](seed, SMALL) for seed in itertools.count())
    quick = (d for d in draws if d.method == "auto" or not d.masses or (not d.place and d.which != "SM"))
    return list(itertools.islice(quick, SAMPLE[kind]))


@pytest.mark.parametrize(
    ("kind", "first"), [(kind, first) for kind in KINDS for first in range(0, SAMPLE[kind], 10)]
)
def test_small_drawn_calls_are_answered_rightly(kind: str, first: int) -> None:
    with threadpool_limits(1):
        verdicts = [(draw, attempt(draw)) for draw in quick_draws(kind)[first : first + 10]]
    wrong = [f"{v.outcome}: {draw} # {v.reason}" for draw, v in verdicts if not is_accepted(draw, v.outcome)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "first"), [(kind, first) for kind in KINDS for first in range(0, MANY[kind], CHUNK)]
)
def test_drawn_calls_are_answered_rightly(kind: str, first: int) -> None:
    draws = {seed: KINDS[kind](seed, LARGEST) for seed in range(first, min(first + CHUNK, MANY[kind]))}
    how: dict[str, Any] = {"processes": 1, "device": "cpu", "largest": LARGEST, "limit_s": 120}
    records = list(run([(kind, seed) for seed in draws], **how))
    wrong = [r for r in records if not is_accepted(draws[r["seed"]], r["outcome"])]
    text = "\n".join(f"{r['outcome']}: {r['call']} # {r['reason']}" for r in wrong)
    refused = [r for r in wrong if r["outcome"] == "refused"]
    allowed = 0 if kind == "doubled" else REFUSED * len(records)
    assert len(wrong) == len(refused) <= allowed, text


def solved(draw: Draw, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Solve a drawn problem for k pairs by LAPACK."""
    problem = build(draw)
    M = None if problem.M is None else matrices.dense(problem.M)
    values, X = scipy.linalg.eigh(matrices.dense(problem.A), M)
    order = {"LA": -values, "SA": values, "LM": -np.abs(values), "SM": np.abs(values)}[draw.which]
    chosen = np.sort(np.argsort(order)[:k])
    return values[chosen], X[:, chosen]


@pytest.mark.parametrize("which", ["LA", "SA", "LM", "SM"])
@pytest.mark.parametrize("masses", ["", "consistent:decades=3"])
@pytest.mark.parametrize("missing", range(4))
def test_a_result_without_one_copy_is_wrong_in_silence(which: str, masses: str, missing: int) -> None:
    draw = replace(GRID, which=which, masses=masses, tol=1e-6)
    w, X = solved(draw, 5)
    kept = {"LA": 4 - missing, "LM": 4 - missing}.get(which, missing)
    assert judge(build(draw), *solved(draw, 4)) == ""
    assert "off by" in judge(build(draw), np.delete(w, kept), np.delete(X, kept, axis=1))


def test_both_ends_and_intervals_without_one_copy_are_wrong() -> None:
    w, X = solved(replace(GRID, which="SA"), 112)
    ends = build(replace(GRID, which="BE", k=5))
    for places, wrong in (([0, 1, -3, -2, -1], False), ([0, 2, -3, -2, -1], True)):
        assert ("off by" in judge(ends, w[places], X[:, places])) == wrong
    inside = build(replace(GRID, which="interval", place="inside:0.3"))
    assert inside.interval is not None
    places = np.flatnonzero((w > inside.interval[0]) & (w < inside.interval[1]))
    assert judge(inside, w[places], X[:, places]) == ""
    assert "values inside" in judge(inside, w[places[1:]], X[:, places[1:]])
    counts = (len(places), True), (len(places) - 1, False), (len(places) - 1, True)
    assert [judge_count(inside, *count) != "" for count in counts] == [False, False, True]


def test_vectors_and_values_that_are_no_eigenpairs_are_wrong() -> None:
    w, X = solved(GRID, 4)
    for answer, reason in (
        ((w, X), ""),
        ((w, X[:, [0, 0, 2, 3]]), "orthonormality"),
        ((w + 1e-6, X), "residual"),
        ((w + 1e-6, X, np.full(4, 1e-3)), "off by"),  # a limit that is too loose counts for nothing
        ((w[::-1], X[:, ::-1]), "ascending"),
        ((np.full(4, math.nan), X), "finite"),
        ((w[:3], X[:, :3]), "3 values"),
    ):
        said = judge(build(GRID), *answer)
        assert reason in said
        assert bool(reason) == bool(said)


def test_a_wrong_result_is_silent_and_an_exception_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = replace(GRID, k=3)
    assert attempt(draw).outcome == "right"

    def skips(A: Any, k: int, **how: Any) -> Any:
        result = eigsh(A, k + 1, **how)
        return result.part(slice(1, None))

    def raises(*given: Any, **how: Any) -> Any:
        raise ValueError("no")

    monkeypatch.setattr("tests.drawn.judge.eigsh", skips)
    assert attempt(draw).outcome == "silent"
    monkeypatch.setattr("tests.drawn.judge.eigsh", raises)
    verdict = attempt(draw)
    assert (verdict.outcome, verdict.reason) == ("refused", "raw ValueError: no")


def test_a_call_is_drawn_again_from_its_seed_and_from_its_text() -> None:
    for kind, draw in KINDS.items():
        for seed in range(20):
            assert draw(seed, 3000) == draw(seed, 3000) == eval(repr(draw(seed, 3000)))
            assert draw(seed, 3000).kind == kind


@pytest.mark.parametrize("kind", KINDS)
def test_the_drawn_matrices_have_the_spectrum_that_answers_are_compared_with(kind: str) -> None:
    for seed in range(100, 112):
        draw = KINDS[kind](seed, 150)
        problem = build(draw)
        if draw.masses.startswith("massless") or draw.penalty:
            continue  # LAPACK alone does not solve these
        M = None if problem.M is None else matrices.dense(problem.M)
        values = oracle.of_pair(matrices.dense(problem.A), M, problem.unit)
        away = np.abs(values.values - problem.spectrum.values)
        assert (away <= values.errors + problem.spectrum.errors).all(), draw


def test_the_spectrum_of_a_chain_is_right_within_its_error_bounds() -> None:
    A = matrices.dense(matrices.matrix("springs:n=40,decades=0,ends=2,seed=0"))
    spectrum = oracle.of_pair(A, None, 2.0**-53)
    exact = spectra.laplace_eigenvalues([40])
    assert (np.abs(spectrum.values - exact) <= spectrum.errors).all()
    assert spectrum.errors.max() < 1e-13


@pytest.mark.parametrize("penalty", [1e6, 1e15])
def test_values_below_penalties_keep_their_digits(penalty: float) -> None:
    draw = Draw("penalty", 0, ("springs:n=30,decades=0,ends=0,seed=0",), "SA", 3, penalty=penalty)
    spectrum = build(draw).spectrum
    exact = 2 - 2 * np.cos((2 * np.arange(1, 30) - 1) * np.pi / 59)  # one end fixed, 29 masses
    away = np.abs(spectrum.values[:29] / exact - 1)
    assert (away <= 4 / penalty + 1e-12).all()
    assert (spectrum.errors[:29] <= 1e-12).all()


def test_processes_judge_calls_and_outlive_one_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLOCKVEC_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))  # restored after the test
    calls = [("generalised", seed) for seed in range(3)]
    how: dict[str, Any] = {"processes": 1, "device": "cpu", "largest": 50}
    assert [record["outcome"] for record in run(calls, limit_s=60, **how)] == ["right"] * 3
    (late,) = run(calls[:1], limit_s=1e-4, **how)
    assert late["outcome"] == "refused"
    assert "s of computing" in late["reason"]


@pytest.mark.parametrize("seed", [70113, 70179, 70339])
def test_named_methods_fill_the_space_of_a_small_matrix_on_a_gpu(seed: int) -> None:
    # Blocks of a GPU end in columns of zeros, which took the room of the last directions.
    with pretended_gpu():
        verdict = attempt(KINDS["doubled"](seed, 20_000), "gpu")
    assert verdict.outcome == "right", verdict.reason
