"""Problems to tune, what is reported of them, and the tables that ship."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from blockvec.bench import records as results
from blockvec.bench import tuning
from blockvec.bench.workers import Workers, notice
from blockvec.errors import FormatError, OptionError
from blockvec.kernels.device import H200
from blockvec.kernels.measure import Timing
from blockvec.kernels.problem import TsmmProblem, TsmttsmProblem
from blockvec.kernels.roofline import Ceilings, time_limit
from blockvec.kernels.tuning.selection import Outcome, Trial, Variant, variants
from blockvec.kernels.tuning.winners import Winner, representative
from tests.benchmarks import tuned_tables as tables

LIMITS = Ceilings(4600, 4400, 4200, {"float64": 66e3})
ENVIRONMENT = {"device": "NVIDIA H200"}


def tuned(problem: TsmttsmProblem | TsmmProblem, table: str = "") -> tuning.Tuned:
    """A problem whose third configuration was the fastest, at the roofline; one kernel was wrong."""
    limit_s = time_limit(problem, LIMITS)
    first, second, third = variants(problem, H200, first=3)
    readings = [(Variant("cublas"), 5.0), (first, 2.0), (second, 1.5), (third, 1.0)]
    trials = [Trial(e, Timing(x * limit_s, x * limit_s, 0.01, 9)) for e, x in readings]
    winner = Winner(third.kernel, third.config, problem.K, limit_s, 1.0, "")
    outcome = Outcome(trials[-1], (*trials, Trial(first, None, "differs from the reference")))
    return tuning.Tuned(problem, winner, outcome, LIMITS, tuning.Todo(problem, 1.0, table=table))


def test_operations_give_their_problems() -> None:
    shapes = [(4, 4), (4, 2), (2, 4)]
    found = list(tuning.problems(["dot", "gram", "combine", "inplace"], ["float64"], shapes))
    assert [(p.operation, p.M, p.N) for p in found] == [
        *(("tsmttsm", M, N) for M, N in shapes),
        ("gram", 4, 4),
        *(("tsmm", M, N) for M, N in shapes),
        *(("tsmm", M, N) for M, N in shapes[:2]),
    ]
    assert [p.inplace for p in found if isinstance(p, TsmmProblem)] == [False] * 3 + [True] * 2
    for problem in found:
        assert representative(problem) is not None


@pytest.mark.parametrize(("dtype", "align"), [("float32", 4), ("float64", 8), ("complex128", 16)])
def test_views_are_aligned_to_an_element(dtype: str, align: int) -> None:
    for problem in tuning.problems(["dot", "combine", "inplace"], [dtype], [(8, 8)], ld=61, beta=True):
        assert (problem.lda, problem.ldb, problem.align_a, problem.align_b) == (61, 61, align, align)


def test_a_view_cannot_be_wider_than_its_pitch() -> None:
    with pytest.raises(OptionError, match="64 columns does not fit a leading dimension of 61"):
        list(tuning.problems(["dot"], ["float64"], [(64, 64)], ld=61))


def test_a_record_says_what_the_models_order_was_worth() -> None:
    (problem,) = tuning.problems(["dot"], ["float64"], [(8, 8)])
    result = tuned(problem)
    limit_s = time_limit(problem, LIMITS)
    record = result.record()
    assert record["choice"] == "tsmttsm_mma"
    assert record["choice_s"] == pytest.approx(2 * limit_s)
    assert record["first_10_s"] == record["own_s"] == pytest.approx(limit_s)
    assert record["peers"] == {"cublas": pytest.approx(5 * limit_s)}
    assert (record["operation"], record["M"], record["fraction"]) == ("tsmttsm", 8, 1.0)
    assert record["trials"] == 4
    assert len(record["faults"]) == 1
    assert "100.0%" in result.line()
    assert len(result.line().split()) >= len(tuning.heading().split())


def kinds() -> list[TsmttsmProblem | TsmmProblem]:
    every = ["dot", "gram", "combine", "inplace"]
    return [
        *tuning.problems(every, ["float64", "complex64"], [(8, 8), (9, 4)]),
        *tuning.problems(["dot", "combine", "inplace"], ["complex128"], [(8, 8)], ld=61, beta=True),
    ]


@pytest.mark.parametrize("problem", kinds(), ids=str)
def test_a_record_holds_its_problem_and_the_winners_configuration(
    problem: TsmttsmProblem | TsmmProblem, tmp_path: Path
) -> None:
    result = tuned(problem)
    record = json.loads(json.dumps(result.record()))
    assert tables.problem_of(record) == problem
    (file,) = tables.ship(tmp_path, [results.document(ENVIRONMENT, LIMITS, [record])])
    (stored,) = json.loads(file.read_text())["records"]
    key = representative(problem)
    assert key is not None
    assert stored == json.loads(json.dumps(result.winner.record(key) | {"fraction": record["fraction"]}))


@pytest.mark.parametrize("content", ["a thesis", "[]", "{}"])
def test_a_file_that_is_no_table_is_not_replaced(content: str, tmp_path: Path) -> None:
    (problem,) = tuning.problems(["dot"], ["float64"], [(8, 8)])
    (tmp_path / "tsmttsm.json").write_text(content)
    with pytest.raises(FormatError, match=r"tsmttsm\.json: this is no table of winners"):
        tables.ship(tmp_path, [results.document(ENVIRONMENT, LIMITS, [tuned(problem).record()])])
    assert (tmp_path / "tsmttsm.json").read_text() == content


def test_shipping_keeps_what_is_there_and_replaces_what_is_new(tmp_path: Path) -> None:
    def document(*widths: int, operations: tuple[str, ...] = ("dot",)) -> dict[str, Any]:
        shapes = [(width, width) for width in widths]
        records = [tuned(p).record() for p in tuning.problems(operations, ["float64"], shapes)]
        return results.document(ENVIRONMENT, LIMITS, records)

    files = tables.ship(tmp_path, [document(8, operations=("dot", "combine"))])
    assert [file.name for file in files] == ["tsmttsm.json", "tsmm.json"]
    (file,) = tables.ship(tmp_path, [document(4), document(8)])
    table = json.loads(file.read_text())
    assert [record["problem"]["M"] for record in table["records"]] == [4, 8]
    assert table["environment"] == ENVIRONMENT


def test_winners_of_a_family_alone_and_other_results_are_not_shipped(tmp_path: Path) -> None:
    (problem,) = tuning.problems(["dot"], ["float64"], [(8, 8)])
    result = tuned(problem)
    alone = dataclasses.replace(result, todo=tuning.Todo(problem, 1.0, {"families": "fma"})).record()
    other = {key: value for key, value in result.record().items() if key != "trials"}
    assert tables.ship(tmp_path, [results.document(ENVIRONMENT, LIMITS, [alone, other])]) == []


def test_winners_that_would_be_refused_today_are_left_out_and_named(tmp_path: Path) -> None:
    known, *others = (
        tuned(p).record() for p in tuning.problems(["dot"], ["float64"], [(8, 8), (4, 4), (3, 3)])
    )
    others[0]["config"] = {"colour": 3}
    others[1]["config"] |= {"stages": 1000}
    said: list[str] = []
    (file,) = tables.ship(tmp_path, [results.document(ENVIRONMENT, LIMITS, [known, *others])], said.append)
    assert [record["problem"]["M"] for record in json.loads(file.read_text())["records"]] == [8]
    assert any("'M': 4" in line and "knows no configuration {'colour': 3}" in line for line in said)
    assert any("'M': 3" in line and "shared memory" in line for line in said)
    assert len(said) == 2


def test_tables_hold_every_problem_once() -> None:
    todo = list(tables.todo(list(tables.TABLES)))
    keys = [(representative(each.problem), each.problem.lda, each.choose["families"]) for each in todo]
    assert len(set(keys)) == len(keys)
    assert {each.table for each in todo} == set(tables.TABLES)
    plain = [each.problem for each in todo if each.problem.M == each.problem.N == each.problem.lda]
    equal = {(p.operation, p.dtype, p.M) for p in plain}
    for dtype in ("float32", "float64", "complex64", "complex128"):
        for operation in ("tsmttsm", "tsmm"):
            assert {(operation, dtype, width) for width in range(1, 65)} <= equal


def test_a_run_that_is_resumed_measures_the_rest(tmp_path: Path) -> None:
    todo = [
        tuning.Todo(p, 1.0, table="dots") for p in tuning.problems(["dot"], ["float64"], [(4, 4), (8, 8)])
    ]
    ledger = tables.Ledger(tmp_path, ENVIRONMENT)
    ledger.add(tuned(todo[0].problem, "dots"))
    ledger.write()
    again = tables.Ledger(tmp_path, ENVIRONMENT, resume=True)
    assert list(again.left(todo)) == todo[1:]
    again.add(tuned(todo[1].problem, "dots"))
    again.write()
    assert [r["M"] for r in results.read(tmp_path / "dots.json")["records"]] == [4, 8]
    assert list(tables.Ledger(tmp_path, ENVIRONMENT).left(todo)) == todo


# ---- what is on record

RECORDS = Path(__file__).parents[3] / "docs" / "results" / "h200"


@pytest.mark.parametrize("file", sorted(RECORDS.glob("*.json")), ids=lambda file: file.stem)
def test_choices_where_nothing_was_tuned_are_close_to_tuned_ones(file: Path) -> None:
    ratios: dict[tuple[str, str], list[float]] = {}
    for r in results.read(file)["records"]:
        if r.get("choice_s") and r.get("own_s"):
            ratios.setdefault((r["operation"], r["dtype"]), []).append(r["choice_s"] / r["own_s"])
    for kind, values in ratios.items():
        assert math.exp(statistics.fmean(map(math.log, values))) < 1.10, kind
    if file.stem == "equal":
        assert len(ratios) >= 4


# ---- kernels that hang


class _Prepared:
    """Variants that were compiled, but for one."""

    def __init__(self, problem: TsmttsmProblem | TsmmProblem, ready: list[Variant]) -> None:
        self.problem, self.ready = problem, ready

    def wait(self) -> tuple[list[Variant], list[Trial]]:
        return self.ready, [Trial(Variant("broken", place=3), None, "compiling: not done after 60 s")]


class _Rivals:
    name = "cuda:0"

    def other_variants(self, problem: Any) -> list[Variant]:
        return [Variant("cublas")]


def _measuring(name: str, cache_dir: Path, problem: Any, entered: list[Variant], budget_s: float) -> Outcome:
    """One hangs, one brings its process down; the last that is left wins."""
    for variant in entered:
        notice(variant)
        if variant.kernel == "hangs":
            time.sleep(1000)
        if variant.kernel == "crashes":
            os._exit(1)
    timing = Timing(1.0, 1.0, 0.0, 1)
    return Outcome(Trial(entered[-1], timing), tuple(Trial(e, timing) for e in entered))


def test_kernels_that_hang_or_crash_are_named_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (problem,) = tuning.problems(["dot"], ["float64"], [(8, 8)])
    monkeypatch.setattr(tuning, "_measure", _measuring)
    ready = [Variant(name, place=i) for i, name in enumerate(("hangs", "crashes", "runs"))]
    said: list[str] = []
    with Workers(1, 1.0) as device:
        outcome = tuning._select(_Rivals(), _Prepared(problem, ready), 1.0, device, said.append)
    assert outcome is not None
    assert outcome.best.variant.kernel == "runs"
    assert {(t.variant.kernel, t.fault) for t in outcome.faults} == {
        ("broken", "compiling: not done after 60 s"),
        ("hangs", "not done after 1 s"),
        ("crashes", "its process ended with exit code 1"),
    }
    assert len(said) == 3
    assert all(line.startswith("tsmttsm  float64      8   8 ") for line in said)
