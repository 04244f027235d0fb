"""Which kernels of sparse products are measured, and whether a converted matrix is worth its memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockvec.backends.cuda.tuning.sparse import variants_of, without_conversion
from blockvec.kernels.device import H200
from blockvec.kernels.measure import Timing
from blockvec.kernels.problem import SpmmvProblem
from blockvec.kernels.roofline import Ceilings
from blockvec.kernels.tuning.selection import Outcome, Trial, Variant

LIMITS = Ceilings(4600.0, 3300.0, 4200.0)
NARROW = SpmmvProblem(10**7, 10**7, 7 * 10**7, 2, "float64", "float64", 2, 2, pattern="planes", longest=7)


def test_both_families_meet_the_preferred_one_first() -> None:
    field = variants_of(NARROW, H200, LIMITS, 3)
    assert [variant.kernel for variant in field] == ["spmmv_sell"] * 3 + ["spmmv_csr"] * 3
    assert [variant.place for variant in field] == list(range(6))
    for problem in (replace(NARROW, dots=("xy",)), replace(NARROW, pattern="uneven", longest=10**5)):
        assert {variant.kernel for variant in variants_of(problem, H200, LIMITS, 3)} == {"spmmv_csr"}


@pytest.mark.parametrize(("sell_s", "winner"), [(0.9, "spmmv_sell"), (0.99, "cusparse"), (1.2, "cusparse")])
def test_a_converted_matrix_wins_where_it_gains_more_than_measuring_tells(sell_s: float, winner: str) -> None:
    times = {"spmmv_csr": 1.1, "spmmv_sell": sell_s, "cusparse": 1.0}
    trials = [Trial(Variant(name), Timing(seconds, seconds, 0.0, 1)) for name, seconds in times.items()]
    best = min(trials, key=lambda trial: times[trial.variant.kernel])
    found = without_conversion(Outcome(best, tuple(trials)))
    assert found.best.variant.kernel == winner
    assert found.trials == tuple(trials)
