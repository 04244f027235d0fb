"""Repeated timing with a stopwatch per device, and the ceilings of a device.

On a CPU a stopwatch reads a clock; on a GPU it records events on the current stream and waits for them only
when the time is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from ..system.frozen import frozen
from .roofline import Ceilings


class Stopwatch(Protocol):
    """An interval of work on a device, which begins when the stopwatch is created."""

    def stop(self) -> None:
        """Mark the end of the interval, without waiting for the work."""

    def seconds(self) -> float:
        """Measure the interval, waiting for the work if necessary."""


class HostStopwatch:
    """A stopwatch for synchronous work."""

    __slots__ = ("_begin", "_end")

    def __init__(self) -> None:
        self._begin = self._end = time.perf_counter()

    def stop(self) -> None:
        self._end = time.perf_counter()

    def seconds(self) -> float:
        return self._end - self._begin


@frozen
class Timing:
    """Repeated runs of a call."""

    # Median and shortest time in seconds.
    median_s: float
    best_s: float
    spread: float  # interquartile range over the median
    repeats: int  # runs timed


PATIENCE_S = 2.0


def measure_beside(
    calls: Mapping[str, Callable[[], object]],
    stopwatch: Callable[[], Stopwatch] = HostStopwatch,
    *,
    budget_s: float = 0.3,
    burst: int = 4,
    min_rounds: int = 3,
    max_rounds: int = 10,
    pause_s: float = 0.0,
    before_burst: Callable[[], object] = lambda: None,
) -> dict[str, Timing]:
    """Time several calls in turn, so that disturbances affect them alike; or one.

    Each is run once beforehand, and one that takes longer than `PATIENCE_S` only once more, since the first
    run may have compiled something. A round runs each call `burst` times in a row; no further one begins
    after `budget_s` seconds per call. Before a burst there is a pause, until BLAS threads of the previous
    call stop spinning, and `before_burst` is called: if it keeps a GPU busy while the burst is queued, short
    calls follow without gaps.
    """
    once = {name: _burst(call, stopwatch, 1) for name, call in calls.items()}
    once |= {
        name: _burst(calls[name], stopwatch, 1) for name, (time_s,) in once.items() if time_s > PATIENCE_S
    }
    fast = [name for name, (time_s,) in once.items() if time_s <= PATIENCE_S]
    times: dict[str, list[float]] = {name: [] for name in fast}
    for done in range(max_rounds):
        if done >= min_rounds and sum(map(sum, times.values())) >= budget_s * len(fast):
            break
        for name in fast:
            if pause_s:
                time.sleep(pause_s)
            before_burst()
            times[name] += _burst(calls[name], stopwatch, burst)
    found = {}
    for name in calls:
        taken = times.get(name, once[name])
        lower, median, upper = np.quantile(taken, (0.25, 0.5, 0.75), method="weibull").tolist()
        found[name] = Timing(median, min(taken), (upper - lower) / (median or 1), len(taken))
    return found


def _burst(call: Callable[[], object], stopwatch: Callable[[], Stopwatch], count: int) -> list[float]:
    watches = []
    for _ in range(count):
        watch = stopwatch()
        call()
        watch.stop()
        watches.append(watch)
    return [watch.seconds() for watch in watches]


@frozen
class CeilingProbe:
    """A call that runs at a ceiling of a device."""

    # ``"read"``, ``"write"``, ``"copy"``, ``"mix"``, ``"l2"`` (bytes), or a real element type (floating-point
    # operations).
    ceiling: str
    call: Callable[[], object]
    amount: float  # bytes moved or operations per call
    write_share: float = 0.0  # share of writes in the bytes that a mix moves


def measure_ceilings(probes: Sequence[CeilingProbe], stopwatch: Callable[[], Stopwatch]) -> Ceilings:
    """Measure the best rate over all probes of each ceiling.

    A copy reads and writes at half its rate, which bounds both from below.
    """
    best: dict[str, float] = {}
    mixes: dict[float, float] = {}
    for probe in probes:
        timing = measure_beside({"": probe.call}, stopwatch, burst=8, max_rounds=6)
        rate = probe.amount / timing[""].best_s * 1e-9
        if probe.ceiling == "mix":
            mixes[probe.write_share] = max(rate, mixes.get(probe.write_share, 0.0))
        else:
            best[probe.ceiling] = max(rate, best.get(probe.ceiling, 0.0))
    rates = {name: rate for name, rate in best.items() if name.startswith("float")}
    half = best["copy"] / 2
    streams = (max(best["read"], half), max(best["write"], half), best["copy"])
    return Ceilings(*streams, rates, best.get("l2", 0.0), tuple(sorted(mixes.items())))
