"""The fastest correct kernel for a problem: each is checked, then timed, those close to the best twice.

The caller provides the operands: nothing here needs a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from blockvec.errors import CompileError
from blockvec.kernels.build import machine_code
from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.families import FAMILIES, families_of
from blockvec.kernels.measure import Timing
from blockvec.kernels.problem import Problem
from blockvec.system.frozen import frozen
from tests.devices import resources_of

__all__ = ["Outcome", "Trial", "Variant", "compile_fault", "faults_ahead", "select_fastest", "variants"]

FINALISTS = 4
CLOSE = 1.10  # within this factor of the best, a few runs do not tell
FINAL_SHARE = 0.3  # of the budget


@frozen
class Variant:
    """A kernel to time: a configuration of a family, or a vendor kernel (`config` and `place` None).

    `place` is the configuration's place in the model's order, `predicted_s` its modelled time.
    """

    kernel: str
    config: Any = None
    predicted_s: float | None = None
    place: int | None = None


@frozen
class Trial:
    """A variant and its time, or the reason why it has none."""

    variant: Variant
    timing: Timing | None = None
    fault: str = ""


@frozen
class Outcome:
    """The fastest, and all trials with the latest timings of the best."""

    best: Trial
    trials: tuple[Trial, ...]

    @property
    def seconds(self) -> float:
        """The winner's median time."""
        return _seconds(self.best)

    @property
    def choice_s(self) -> float | None:
        """The time of the kernel that is selected without measurements, the first in the model's order."""
        times = [t.timing.median_s for t in self.trials if t.timing and t.variant.place == 0]
        return times[0] if times else None

    @property
    def faults(self) -> tuple[Trial, ...]:
        """Variants that were wrong or could not run."""
        return tuple(trial for trial in self.trials if trial.fault)


def variants(problem: Problem, device: DeviceInfo, *, first: int = 10) -> list[Variant]:
    """List the `first` configurations of all families by their predicted times.

    The first is the choice without measurements: that of the first family that supports the problem.
    """
    supporting = [family for family in families_of(problem) if family.supports(problem, device) is None]
    timed = [
        (family.predict(problem, config, device), family.name, config)
        for family in supporting
        for config in family.configurations(problem, device)
    ]
    choice = supporting and (supporting[0].name, supporting[0].choose(problem, device))
    timed.sort(key=lambda entry: (entry[1:] != choice, entry[0]))
    return [Variant(name, config, time_s, i) for i, (time_s, name, config) in enumerate(timed[:first])]


def faults_ahead(sources: Iterable[str], architecture: str, cache_dir: Path, threads: int) -> dict[str, str]:
    """Compile sources into the cache in parallel; return their faults, "" for none."""
    every = list(dict.fromkeys(sources))
    with ThreadPoolExecutor(threads) as executor:
        faults = executor.map(lambda source: compile_fault(source, architecture, cache_dir), every)
        return dict(zip(every, faults, strict=True))


def compile_fault(source: str, architecture: str, cache_dir: Path) -> str:
    """Compile a source into the cache; describe the error, "" if there is none."""
    try:
        spilled = resources_of(machine_code(source, architecture, cache_dir=cache_dir).log).spill_bytes
    except CompileError as error:
        return str(error)
    return f"spills {spilled} bytes" if spilled else ""


def source_of(problem: Problem, variant: Variant, device: DeviceInfo) -> str:
    """Generate the source of a configuration of a family of dense products."""
    return FAMILIES[variant.kernel].kernel(problem, variant.config, device).source()


def select_fastest(
    field: Sequence[Variant],
    check: Callable[[Variant], str],
    time_in_turns: Callable[[Sequence[Variant], float], Sequence[Timing]],
    *,
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Outcome | None:
    """Find the fastest correct variant; None where none is right.

    Parameters
    ----------
    field : sequence of Variant
        In the order in which to try them; vendors' kernels come last, since some take ages, but always come.
    check : callable
        Runs a variant on known operands; returns what is wrong with it, "" for nothing.
    time_in_turns : callable
        ``time_in_turns(variants, seconds)`` times them in turns for about that long; returns the timings.
    budget_s : float
        Seconds of timing, after most of which no further variant is tried.
    clock : callable
        Returns seconds.
    """
    trials: list[Trial] = []
    share = budget_s * (1 - FINAL_SHARE) / max(1, len(field))
    spent = 0.0
    for variant in sorted(field, key=lambda variant: variant.place is None):
        if spent > budget_s * (1 - FINAL_SHARE) and variant.place is not None:
            continue
        fault = check(variant)
        begin = clock()
        timing = None if fault else time_in_turns((variant,), share)[0]
        spent += clock() - begin
        trials.append(Trial(variant, timing, fault))
    timed = sorted((t for t in trials if t.timing), key=_seconds)
    if not timed:
        return None
    close = [trial for trial in timed[:FINALISTS] if _seconds(trial) <= CLOSE * _seconds(timed[0])]
    if len(close) > 1:
        timings = time_in_turns([trial.variant for trial in close], budget_s * FINAL_SHARE)
        finals = [Trial(trial.variant, timing) for trial, timing in zip(close, timings, strict=True)]
        trials = [t for t in trials if t not in close] + finals
        close = sorted(finals, key=_seconds)
    return Outcome(close[0], tuple(trials))


def _seconds(trial: Trial) -> float:
    return trial.timing.median_s if trial.timing else float("inf")
