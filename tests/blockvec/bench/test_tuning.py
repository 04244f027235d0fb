"""Problems to tune, what is reported of them, and the tables that ship."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockvec.bench import tuning
from blockvec.errors import OptionError
from blockvec.kernels.device import H200
from blockvec.kernels.measure import Timing
from blockvec.kernels.problem import TsmmProblem, TsmttsmProblem
from blockvec.kernels.roofline import Ceilings, time_limit
from blockvec.kernels.tuner import Entrant, Outcome, Trial, entrants
from blockvec.kernels.winners import Winner, representative

LIMITS = Ceilings(4600, 4400, 4200, {"float64": 66e3})
ENVIRONMENT = {"device": "NVIDIA H200"}


def tuned(problem: TsmttsmProblem | TsmmProblem) -> tuning.Tuned:
    """A problem whose third configuration was the fastest, at the roofline; one kernel was wrong."""
    limit_s = time_limit(problem, LIMITS)
    first, second, third = entrants(problem, H200, first=3)
    readings = [(Entrant("cublas"), 5.0), (first, 2.0), (second, 1.5), (third, 1.0)]
    trials = [Trial(e, Timing(x * limit_s, x * limit_s, 0.01, 9)) for e, x in readings]
    winner = Winner(third.kernel, third.config, problem.K, limit_s, 1.0, "")
    outcome = Outcome(trials[-1], (*trials, Trial(first, None, "differs from the reference")))
    return tuning.Tuned(problem, winner, outcome, LIMITS)


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
    assert record["choice_s"] == pytest.approx(2 * limit_s)
    assert record["first_10_s"] == record["own_s"] == pytest.approx(limit_s)
    assert record["peers"] == {"cublas": pytest.approx(5 * limit_s)}
    assert (record["operation"], record["M"], record["fraction"]) == ("tsmttsm", 8, 1.0)
    assert record["trials"] == 4
    assert len(record["faults"]) == 1
    assert "100.0%" in result.line()
    assert len(result.line().split()) >= len(tuning.heading().split())


def test_shipping_keeps_what_is_there_and_replaces_what_is_new(tmp_path: Path) -> None:
    both = [tuned(p) for p in tuning.problems(["dot", "combine"], ["float64"], [(8, 8)])]
    files = tuning.ship(tmp_path, ENVIRONMENT, both)
    assert [file.name for file in files] == ["tsmttsm.json", "tsmm.json"]
    more = [tuned(p) for p in tuning.problems(["dot"], ["float64"], [(4, 4), (8, 8)])]
    (file,) = tuning.ship(tmp_path, ENVIRONMENT, more)
    table = json.loads(file.read_text())
    assert [record["problem"]["M"] for record in table["records"]] == [4, 8]
    assert table["environment"] == ENVIRONMENT
