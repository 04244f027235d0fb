"""Which kernels are measured, which wins, and whether a converted matrix is worth its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from blockvec.kernels.measure import Timing
from blockvec.kernels.problem import SpmmvProblem
from blockvec.kernels.roofline import Ceilings
from tests.benchmarks.contest import Outcome, Trial, Variant, select_fastest
from tests.benchmarks.sparse_operands import variants_of
from tests.benchmarks.tune import without_conversion
from tests.devices import H200

LIMITS = Ceilings(4600.0, 3300.0, 4200.0)
NARROW = SpmmvProblem(10**7, 10**7, 7 * 10**7, 2, "float64", "float64", 2, 2, pattern="planes", longest=7)


def test_both_families_meet_the_preferred_one_first() -> None:
    field = variants_of(NARROW, H200, 3)
    assert [variant.kernel for variant in field] == ["spmmv_sell"] * 3 + ["spmmv_csr"] * 3
    assert [variant.place for variant in field] == list(range(6))
    for problem in (replace(NARROW, dots=("xy",)), replace(NARROW, pattern="uneven", longest=10**5)):
        assert {variant.kernel for variant in variants_of(problem, H200, 3)} == {"spmmv_csr"}


@pytest.mark.parametrize(("sell_s", "winner"), [(0.9, "spmmv_sell"), (0.99, "cusparse"), (1.2, "cusparse")])
def test_a_converted_matrix_wins_where_it_gains_more_than_measuring_tells(sell_s: float, winner: str) -> None:
    times = {"spmmv_csr": 1.1, "spmmv_sell": sell_s, "cusparse": 1.0}
    trials = [Trial(Variant(name), Timing(seconds, seconds, 0.0, 1)) for name, seconds in times.items()]
    best = min(trials, key=lambda trial: times[trial.variant.kernel])
    found = without_conversion(Outcome(best, tuple(trials)))
    assert found.best.variant.kernel == winner
    assert found.trials == tuple(trials)


class Course:
    """A device on which variants take known times, and a clock that runs while they are timed."""

    def __init__(self, times: dict[str, float]) -> None:
        self.times, self.clock_s, self.timed = times, 0.0, []

    def time_in_turns(self, field: Sequence[Variant], seconds: float) -> list[Timing]:
        self.clock_s += seconds
        self.timed.append([variant.kernel for variant in field])
        return [Timing(self.times[v.kernel], self.times[v.kernel], 0.0, 1) for v in field]


FIELD = [Variant("vendor"), *(Variant(name, (), 1.0, place) for place, name in enumerate("abcdef"))]


def contest(course: Course, wrong: str = "") -> Outcome | None:
    return select_fastest(
        FIELD,
        lambda variant: "differs" if variant.kernel in wrong else "",
        course.time_in_turns,
        budget_s=1.0,
        clock=lambda: course.clock_s,
    )


TIMES = {"vendor": 3.0, "a": 2.0, "b": 1.0, "c": 1.05, "d": 4.0, "e": 0.5, "f": 5.0}


def test_the_fastest_right_kernel_wins_and_those_close_to_it_are_timed_again() -> None:
    course = Course(TIMES)
    outcome = contest(course, wrong="e")
    assert outcome is not None
    assert (outcome.best.variant.kernel, outcome.seconds, outcome.choice_s) == ("b", 1.0, 2.0)
    assert [trial.variant.kernel for trial in outcome.faults] == ["e"]
    assert course.timed[-1] == ["b", "c"]
    assert ["vendor"] in course.timed
    assert contest(Course(TIMES), wrong="abcdefvendor") is None


def test_when_time_is_short_the_last_of_the_order_are_left_out_but_no_vendor() -> None:
    course = Course(TIMES)
    slow = course.time_in_turns
    course.time_in_turns = lambda field, seconds: slow(field, 3 * seconds)  # type: ignore[method-assign]
    outcome = contest(course)
    assert outcome is not None
    tried = [trial.variant.kernel for trial in outcome.trials]
    assert "f" not in tried
    assert {"a", "vendor"} <= {*tried}
