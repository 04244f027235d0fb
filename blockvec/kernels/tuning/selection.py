"""Selection of the fastest correct kernel for a problem within a time budget.

The models of the families order the configurations; the first few are compiled ahead in parallel processes,
each is checked against a reference before it is timed, and those close to the best are timed again in turns.
The caller provides the operands: nothing here needs a GPU.
"""

from __future__ import annotations

import concurrent.futures
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ...errors import CompileError
from ...system.frozen import frozen
from ..compile import build
from ..device import DeviceInfo
from ..families import FAMILIES, families_of, ranked
from ..measure import Timing
from ..problem import Problem, SpmmvProblem, TsmmProblem, TsmttsmProblem
from ..roofline import Ceilings, fraction
from .winners import Winner, find

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
    """The fastest, all trials with the latest timings of the best, and how many the budget did not reach.

    `plain_s` is measured for products of views: the seconds of plain loads and stores of the same elements.
    """

    best: Trial
    trials: tuple[Trial, ...]
    left_out: int = 0
    plain_s: float | None = None

    @property
    def seconds(self) -> float:
        """The winner's median time."""
        return _seconds(self.best)

    def best_s(self, *, places: int | None = None, own: bool = True) -> float | None:
        """Find the best time of generated kernels (of the first `places` of the model), or of the others."""
        times = [
            trial.timing.median_s
            for trial in self.trials
            if trial.timing
            and (trial.variant.place is not None) == own
            and (places is None or (trial.variant.place or 0) < places)
        ]
        return min(times, default=None)

    def winner(self, problem: TsmttsmProblem | TsmmProblem | SpmmvProblem, ceilings: Ceilings) -> Winner:
        """Create the record for the problem that was measured."""
        best, rows = self.best.variant, problem.n_rows if isinstance(problem, SpmmvProblem) else problem.K
        share = fraction(problem, self.seconds, ceilings)
        return Winner(best.kernel, best.config, rows, self.seconds, share, "")

    @property
    def faults(self) -> tuple[Trial, ...]:
        """Variants that were wrong or could not run."""
        return tuple(trial for trial in self.trials if trial.fault)


def variants(
    problem: Problem,
    device: DeviceInfo,
    ceilings: Ceilings | None = None,
    *,
    first: int = 10,
    sample: int = 0,
    seed: int = 0,
    families: str = "",
    known: Winner | None = None,
) -> list[Variant]:
    """List the configurations worth measuring, in the order of their predicted times.

    The first is the untuned choice: that of the first family that supports the problem. The `known` winner
    comes next, wherever the models place it.

    Takes the `first` by the models' order, and `sample` more drawn from the rest by `seed`, which show what
    the order is worth. Only families whose names end with `families` count.
    """
    supporting = [
        family
        for family in families_of(problem)
        if family.name.endswith(families) and family.supports(problem, device) is None
    ]
    timed = [
        (time_s, family.name, config)
        for family in supporting
        for time_s, config in ranked(family, problem, device, ceilings)
    ]
    choice = supporting and (supporting[0].name, supporting[0].choose(problem, device, ceilings))
    timed.sort(key=lambda entry: (entry[1:] != choice, entry[0]))
    order = [Variant(name, config, time_s, place) for place, (time_s, name, config) in enumerate(timed)]
    best = (known.kernel, known.config) if known else None
    earlier = [variant for variant in order[1:] if (variant.kernel, variant.config) == best]
    kept = list(dict.fromkeys([*order[:1], *earlier, *order[1:first]]))
    rest = [variant for variant in order if variant not in kept]
    return kept + random.Random(seed).sample(rest, min(sample, len(rest)))


class Preparation:
    """A problem whose variants are being compiled while others are measured.

    Processes of `executor`, which models and compiles, must be spawned: a fork would inherit CUDA's state.
    `choose` has ``first``, ``sample`` and ``families`` as for `variants`.
    """

    def __init__(
        self,
        problem: TsmttsmProblem | TsmmProblem,
        device: DeviceInfo,
        ceilings: Ceilings,
        executor: concurrent.futures.Executor,
        cache_dir: Path,
        **choose: Any,
    ) -> None:
        self.problem = problem
        self._how = device, cache_dir, executor
        self._jobs: dict[Variant, concurrent.futures.Future[str]] = {}
        self._submitted = threading.Event()
        self._field = executor.submit(
            variants, problem, device, ceilings, known=find(problem, device, cache_dir), **choose
        )
        self._field.add_done_callback(self._compile)

    def _compile(self, field: concurrent.futures.Future[list[Variant]]) -> None:
        try:
            if not field.cancelled() and field.exception() is None:  # which `wait` raises
                self._jobs = build_ahead(self.problem, field.result(), *self._how)
        finally:
            self._submitted.set()

    def wait(self) -> tuple[list[Variant], list[Trial]]:
        """Wait for the variants, in their order, and for the faults of those that could not be compiled."""
        self._field.result()
        self._submitted.wait()
        faults = {variant: _fault(job) for variant, job in self._jobs.items()}
        ready = [variant for variant, fault in faults.items() if not fault]
        return ready, [Trial(variant, None, fault) for variant, fault in faults.items() if fault]


def _fault(job: concurrent.futures.Future[str]) -> str:
    error = job.exception()
    return job.result() if error is None else f"compiling: {error}"


def build_ahead(
    problem: Problem,
    variants: Iterable[Variant],
    device: DeviceInfo,
    cache_dir: Path,
    executor: concurrent.futures.Executor,
) -> dict[Variant, concurrent.futures.Future[str]]:
    """Start compiling kernels into the cache; the futures return the faults, "" for none."""
    jobs: dict[str, concurrent.futures.Future[str]] = {}
    found = {}
    for variant in variants:
        if variant.config is not None:
            source = FAMILIES[variant.kernel].source(problem, variant.config, device)
            if source not in jobs:
                jobs[source] = executor.submit(compile_fault, source, device.architecture, cache_dir)
            found[variant] = jobs[source]
    return found


def compile_fault(source: str, architecture: str, cache_dir: Path) -> str:
    """Compile a source into the cache; describe the error, "" if there is none."""
    try:
        spilled = build(source, architecture, cache_dir=cache_dir).resources.spill_bytes
    except CompileError as error:
        return str(error)
    return f"spills {spilled} bytes" if spilled else ""


def select_fastest(
    variants: Sequence[Variant],
    check: Callable[[Variant], str],
    time_in_turns: Callable[[Sequence[Variant], float], Sequence[Timing]],
    *,
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Outcome | None:
    """Find the fastest correct variant.

    Parameters
    ----------
    variants : sequence of Variant
        In the order in which to try them; vendors' kernels come last, since some take ages, but always come.
    check : callable
        Runs a variant on known operands; returns what is wrong with it, "" for nothing. A wrong one is
        never timed and never chosen.
    time_in_turns : callable
        ``time_in_turns(variants, seconds)`` times them in turns for about that long; returns the timings.
    budget_s : float
        Seconds of timing. When too few are left, no further variant is tried; the closest are timed again.
    clock : callable
        Returns seconds.

    Returns
    -------
    Outcome or None
        None where no variant is right.
    """
    trials: list[Trial] = []
    share = budget_s * (1 - FINAL_SHARE) / max(1, len(variants))
    spent = 0.0
    for variant in sorted(variants, key=lambda variant: variant.place is None):
        if spent > budget_s * (1 - FINAL_SHARE) and variant.place is not None:
            continue
        fault = check(variant)
        begin = clock()
        timing = None if fault else time_in_turns((variant,), share)[0]
        spent += clock() - begin
        trials.append(Trial(variant, timing, fault))
    tried = len(trials)
    timed = sorted((t for t in trials if t.timing), key=_seconds)
    if not timed:
        return None
    close = [trial for trial in timed[:FINALISTS] if _seconds(trial) <= CLOSE * _seconds(timed[0])]
    if len(close) > 1:
        timings = time_in_turns([trial.variant for trial in close], budget_s * FINAL_SHARE)
        finals = [Trial(trial.variant, timing) for trial, timing in zip(close, timings, strict=True)]
        trials = [t for t in trials if t not in close] + finals
        close = sorted(finals, key=_seconds)
    return Outcome(close[0], tuple(trials), len(variants) - tried)


def _seconds(trial: Trial) -> float:
    return trial.timing.median_s if trial.timing else float("inf")
