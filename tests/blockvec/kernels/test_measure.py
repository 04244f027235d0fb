"""Timing with a stopwatch whose seconds are known beforehand."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from blockvec.kernels.measure import CeilingProbe, measure_beside, measure_ceilings


class FakeStopwatch:
    """Returns the next of given times."""

    def __init__(self, times: Iterable[float]) -> None:
        self.times = iter(times)

    def __call__(self) -> FakeStopwatch:
        return self

    def stop(self) -> None:
        """Do nothing."""

    def seconds(self) -> float:
        return next(self.times)


def test_median_best_and_spread_are_those_of_the_runs() -> None:
    watch = FakeStopwatch([1.0, 0.4, 0.1, 0.3, 0.2, 0.5, 0.6, 0.7, 0.8])
    timing = measure_beside({"": lambda: None}, watch, budget_s=0.1, min_rounds=1, burst=8)[""]
    assert timing.repeats == 8
    assert timing.median_s == pytest.approx(0.45)
    assert timing.best_s == 0.1
    assert timing.spread == pytest.approx((0.675 - 0.225) / 0.45)


def test_a_ceiling_is_the_best_rate_of_all_its_probes() -> None:
    times = {"slow": 0.2, "fast": 0.1}
    running = ""

    def probe(ceiling: str, name: str, amount: float, share: float = 0.0) -> CeilingProbe:
        def call() -> None:
            nonlocal running
            running = name

        return CeilingProbe(ceiling, call, amount, share)

    class Watch:
        def __init__(self) -> None:
            self.name = ""

        def stop(self) -> None:
            self.name = running

        def seconds(self) -> float:
            return times[self.name]

    probes = [
        probe("read", "fast", 4e9),
        probe("read", "slow", 4e9),
        probe("write", "slow", 4e9),
        probe("copy", "fast", 6e9),
        probe("mix", "slow", 5e9, 0.8),
        probe("mix", "fast", 5e9, 0.2),
        probe("mix", "fast", 4e9, 0.8),
        probe("float64", "slow", 1e9),
        probe("float64", "fast", 1e9),
    ]
    limits = measure_ceilings(probes, Watch)
    assert limits.read_gb_s == pytest.approx(40)
    assert limits.copy_gb_s == pytest.approx(60)
    assert dict(limits.gflop_s) == pytest.approx({"float64": 10})
    assert limits.mixed_gb_s == ((0.2, pytest.approx(50)), (0.8, pytest.approx(40)))
    # The write probe reached 20 GB/s, but the copy wrote 30.
    assert limits.write_gb_s == pytest.approx(30)
