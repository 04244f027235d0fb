"""Tuning of many problems, with a comparison of the models' predicted order with measurements."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from ..backends import Backend, backend_for
from ..config import option_context, options
from ..errors import OptionError
from ..kernels.problem import MAX_ALIGNMENT, Problem, TsmmProblem, TsmttsmProblem, is_complex, itemsize
from ..kernels.roofline import Ceilings, fraction
from ..kernels.tuning.selection import Outcome, Preparation, Trial, Variant
from ..kernels.tuning.winners import Winner, store
from ..profile import ceilings
from ..system.frozen import frozen
from .precompile import COMPILE_S
from .records import kernel_record
from .workers import LostError, Workers, notice

FIRST = 10  # configurations by the model's order that its quality is judged by
AHEAD = 32  # problems whose kernels are compiled while others are measured
STEP_S = 30.0  # for a kernel's check and its timing, which take milliseconds
ROWS = 1 << 24  # any number that makes problems large; tuning takes its own


def problems(
    operations: Sequence[str],
    dtypes: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    *,
    ld: int | None = None,
    beta: bool = False,
) -> Iterator[TsmttsmProblem | TsmmProblem]:
    """Yield the problems to tune.

    Operations are ``"dot"``, ``"gram"`` for equal widths M and N, ``"combine"``, which adds to its output if
    `beta`, and ``"inplace"`` for N <= M. Operands are contiguous, or views of leading dimension `ld`.
    """
    for dtype in dtypes:
        for operation in operations:
            for M, N in shapes:
                lda, ldb = ld or M, ld or N
                align = MAX_ALIGNMENT if ld is None else min(itemsize(dtype), MAX_ALIGNMENT)
                conj = is_complex(dtype)
                layout: dict[str, Any] = {"lda": lda, "ldb": ldb, "align_a": align, "align_b": align}
                if max(M, N) > min(lda, ldb) and ld is not None:
                    raise OptionError(
                        f"a view of {max(M, N)} columns does not fit a leading dimension of {ld}."
                    )
                if operation == "dot":
                    yield TsmttsmProblem(ROWS, M, N, dtype, dtype, conj=conj, **layout)
                elif operation == "gram" and M == N:
                    yield TsmttsmProblem(ROWS, M, N, dtype, dtype, conj=conj, same=True, **layout)
                elif operation == "combine":
                    yield TsmmProblem(ROWS, M, N, dtype, dtype, beta="general" if beta else "zero", **layout)
                elif operation == "inplace" and N <= M:
                    yield TsmmProblem(ROWS, M, N, dtype, dtype, inplace=True, **(layout | {"ldb": lda}))


@frozen
class Todo:
    """A problem to tune, whose number of rows does not matter, and how.

    `budget_s` is for measuring; `choose` has ``first``, ``sample`` and ``families`` as for `variants`.
    """

    problem: TsmttsmProblem | TsmmProblem
    budget_s: float
    choose: dict[str, Any] = field(default_factory=dict)
    table: str = ""


@frozen
class Tuned:
    """A problem as measured, the kernel now on record, and the limits measured in the same process."""

    problem: TsmttsmProblem | TsmmProblem
    winner: Winner
    outcome: Outcome
    ceilings: Ceilings
    todo: Todo

    def record(self) -> dict[str, Any]:
        """Create the record: a measurement, and the quality of the models' order."""
        config = dataclasses.asdict(self.winner.config) if self.winner.config else ""
        families = self.todo.choose.get("families")
        trials = self.outcome.trials
        return outcome_record(self.problem, self.outcome, self.ceilings, config=config) | {
            **({"families": families} if families else {}),
            "choice": next((t.variant.kernel for t in trials if t.variant.place == 0), ""),
            f"first_{FIRST}_s": self.outcome.best_s(places=FIRST),
        }

    def line(self) -> str:
        """Return the row of the table."""
        problem, limits, best_s = self.problem, self.ceilings, self.outcome.best_s

        times = self.winner.time_s, best_s(places=1), best_s(places=FIRST), best_s(), best_s(own=False)
        shares = columns(problem, times, self.outcome, limits)
        return f"{_head(problem)} {shares}  {self.winner.kernel} {_brief(self.winner.config)}"


def columns(problem: Problem, times: Sequence[float | None], outcome: Outcome, ceilings: Ceilings) -> str:
    """Format times as fractions of the roofline, then the numbers of variants and of wrong ones."""
    shares = [f"{fraction(problem, time_s, ceilings):7.1%}" if time_s else f"{'-':>7}" for time_s in times]
    return f"{' '.join(shares)} {len(outcome.trials):4d} {len(outcome.faults):3d}"


def outcome_record(problem: Problem, outcome: Outcome, ceilings: Ceilings, **facts: Any) -> dict[str, Any]:
    """Create the record of the winner's measurement, with the times and faults of the other variants."""
    best, trials = outcome.best, outcome.trials
    assert best.timing is not None
    others = {t.variant.kernel: t.timing for t in trials if t.timing and t.variant.place is None}
    peers = {name: timing for name, timing in others.items() if name != best.variant.kernel}
    record = kernel_record(problem, best.variant.kernel, best.timing, ceilings, peers, **facts)
    return record | {
        "choice_s": outcome.best_s(places=1),
        "own_s": outcome.best_s(),
        **({"plain_s": outcome.plain_s} if outcome.plain_s else {}),
        "trials": sum(trial.timing is not None for trial in trials),
        "left_out": outcome.left_out,
        "faults": [f"{t.variant.kernel} {t.variant.config}: {t.fault}" for t in outcome.faults],
    }


def _head(problem: TsmttsmProblem | TsmmProblem) -> str:
    return f"{problem.operation:8} {problem.dtype:10} {problem.M:3d} {problem.N:3d}"


def _brief(config: Any) -> str:
    if config is None:
        return ""
    values = dataclasses.asdict(config)
    return ",".join(f"{name}={value}" for name, value in values.items())


def heading() -> str:
    """Return the head of the table; fractions are of the roofline."""
    return (
        f"{'call':8} {'type':10} {'M':>3} {'N':>3} {'best':>7} {'model':>7} {f'top {FIRST}':>7} {'own':>7} "
        f"{'others':>7} {'runs':>4} {'bad':>3}  winner"
    )


def tune_all(
    todo: Iterable[Todo],
    backend: Backend,
    *,
    limit_s: float = math.inf,
    say: Callable[[str], None] = print,
) -> Iterator[Tuned]:
    """Tune problems one after the other, while kernels of the next ones are compiled in parallel processes.

    Everything runs in processes of its own, which are given up and replaced when they hang or crash: a kernel
    that does is reported and left out, and the others of its problem are measured without it.

    No problem is begun after `limit_s` seconds. `say` takes a line about each kernel that hangs and each
    problem that no kernel is right for.

    Raises
    ------
    OptionError
        On a CPU, whose kernels follow fixed rules.
    """
    backend.check_tunable()
    cuda: Any = backend
    with Workers(os.cpu_count() or 1, COMPILE_S) as compilers, Workers(1, STEP_S) as device:
        begin = time.perf_counter()
        for _ in range(os.cpu_count() or 1):
            compilers.submit(_start)
        ceilings = device.submit(_ceilings, backend.name).result()
        left, ahead = iter(todo), deque[tuple[Todo, Preparation]]()
        while True:
            for each in itertools.islice(left, AHEAD - len(ahead)):
                ahead.append((each, cuda.prepare(each.problem, ceilings, compilers, **each.choose)))
            if not ahead or time.perf_counter() - begin > limit_s:
                return
            each, preparation = ahead.popleft()
            outcome = _select(cuda, preparation, each.budget_s, device, say)
            if outcome is not None:
                problem: Any = preparation.problem
                winner = outcome.winner(problem, ceilings)
                if not each.choose.get("families"):
                    store(problem, winner, backend.device, options().cache_dir)
                yield Tuned(problem, winner, outcome, ceilings, each)


def _select(
    backend: Any, preparation: Preparation, budget_s: float, device: Workers, say: Callable[[str], None]
) -> Outcome | None:
    """Select the fastest variant of a problem on the device, without those that crash it."""
    problem: Any = preparation.problem
    ready, faults = preparation.wait()
    remaining = [*backend.other_variants(problem), *ready]
    outcome = None
    while remaining:
        measured = problem, remaining, budget_s
        try:
            outcome = device.submit(_measure, backend.name, options().cache_dir, *measured).result()
            break
        except LostError as lost:
            if lost.step not in remaining:
                faults.append(Trial(Variant("operands"), None, str(lost)))
                break
            remaining.remove(lost.step)
            faults.append(Trial(lost.step, None, str(lost)))
    if outcome is not None:
        outcome = dataclasses.replace(outcome, trials=(*outcome.trials, *faults))
        faults = list(outcome.faults)
    for trial in faults:
        fault = " ".join(trial.fault.split())[:300]
        say(f"{_head(problem)} {trial.variant.kernel} {_brief(trial.variant.config)}: {fault}")
    if outcome is None:
        say(f"{_head(problem)} no kernel is right")
    return outcome


def _start() -> None:
    """Import all modules in a compiler process, before the first job."""


def _ceilings(name: str) -> Ceilings:
    """Measure the ceilings, in the process of the device."""
    return ceilings(backend_for(name), refresh=True, before_each=lambda: notice(None))


def _measure(
    name: str, cache_dir: Path, problem: Any, remaining: Sequence[Variant], budget_s: float
) -> Outcome | None:
    """Measure the variants of a problem, in the process of the device."""
    backend: Any = backend_for(name)
    with option_context(cache_dir=cache_dir):
        outcome: Outcome | None = backend.select_fastest(problem, remaining, budget_s, notice)
    return outcome and dataclasses.replace(outcome, plain_s=backend.plain_s(problem))
