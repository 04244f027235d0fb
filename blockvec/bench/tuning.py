"""Tuning many problems in one go, and saying what the models' order was worth."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import json
import math
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..backends import Backend
from ..dispatch import forget
from ..errors import OptionError
from ..kernels.cache import replace_file
from ..kernels.problem import MAX_ALIGNMENT, TsmmProblem, TsmttsmProblem, is_complex, itemsize
from ..kernels.roofline import Ceilings, fraction
from ..kernels.tuner import Outcome
from ..kernels.winners import Winner, representative, table_of
from ..results import kernel_record

__all__ = ["FIRST", "Tuned", "check_device", "heading", "problems", "ship", "tune_all"]

FIRST = 10  # configurations by the model's order that its quality is judged by
AHEAD = 48  # problems whose kernels are compiled while others are measured
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

    Parameters
    ----------
    operations : sequence of str
        Some of ``"dot"``, ``"gram"``, ``"combine"``, ``"inplace"``.
    dtypes : sequence of str
        Element types.
    shapes : sequence of (int, int)
        Widths M and N; Gram matrices take those that are equal, products in place those with N <= M.
    ld : int, optional
        Leading dimension of views; contiguous operands without it.
    beta : bool
        Whether ``combine`` adds to what is there.
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


@dataclass(frozen=True)
class Tuned:
    """A tuned problem.

    Attributes
    ----------
    problem : Problem
        As measured.
    winner : Winner
        The kernel now on record.
    outcome : Outcome
        How it was found.
    ceilings : Ceilings
        Measured in this process.
    """

    problem: TsmttsmProblem | TsmmProblem
    winner: Winner
    outcome: Outcome
    ceilings: Ceilings

    def best_s(self, *, places: int | None = None, own: bool = True) -> float | None:
        """Return the best time of generated kernels (of the model's first `places`), or of the others."""
        times = [
            trial.timing.median_s
            for trial in self.outcome.trials
            if trial.timing
            and (trial.entrant.place is not None) == own
            and (places is None or (trial.entrant.place or 0) < places)
        ]
        return min(times, default=None)

    def stored(self) -> dict[str, Any]:
        """Return the winner as it is stored, under the problem that stands for its kind."""
        key = representative(self.problem)
        assert key is not None
        return self.winner.record(key)

    def record(self) -> dict[str, Any]:
        """Return what goes on record: a measurement as any other, and what the models' order was worth."""
        best, trials = self.outcome.best, self.outcome.trials
        assert best.timing is not None
        others = {t.entrant.kernel: t.timing for t in trials if t.timing and t.entrant.place is None}
        peers = {name: timing for name, timing in others.items() if name != best.entrant.kernel}
        record = kernel_record(
            self.problem,
            best.entrant.kernel,
            best.timing,
            self.ceilings,
            peers,
            config=_brief(self.winner.config),
        )
        return record | {
            "choice_s": self.best_s(places=1),
            f"first_{FIRST}_s": self.best_s(places=FIRST),
            "own_s": self.best_s(),
            "trials": sum(trial.timing is not None for trial in trials),
            "left_out": self.outcome.left_out,
            "faults": [f"{t.entrant.kernel} {t.entrant.config}: {t.fault}" for t in self.outcome.faults],
        }

    def line(self) -> str:
        """Return the row of the table."""
        problem, limits = self.problem, self.ceilings

        def share(time_s: float | None) -> str:
            return f"{fraction(problem, time_s, limits):7.1%}" if time_s else "      -"

        return (
            f"{problem.operation:8} {problem.dtype:10} {problem.M:3d} {problem.N:3d} "
            f"{share(self.winner.time_s)} {share(self.best_s(places=1))} {share(self.best_s(places=FIRST))} "
            f"{share(self.best_s())} {share(self.best_s(own=False))} {len(self.outcome.trials):4d} "
            f"{len(self.outcome.faults):3d}  {self.winner.kernel} {_brief(self.winner.config)}"
        )


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


def check_device(backend: Backend) -> None:
    """Raise `OptionError` for a device on which there is nothing to tune."""
    if backend.device.kind != "cuda":
        raise OptionError("kernels on a CPU follow fixed rules; tune a GPU (--device gpu).")


def tune_all(
    todo: Sequence[TsmttsmProblem | TsmmProblem],
    backend: Backend,
    ceilings: Ceilings,
    *,
    budget_s: float,
    first: int = FIRST,
    sample: int = 0,
    limit_s: float = math.inf,
) -> Iterator[Tuned]:
    """Tune problems one after the other, while kernels of the next ones are compiled in parallel processes.

    Parameters
    ----------
    todo : sequence of Problem
        What to tune.
    backend : Backend
        A GPU's.
    ceilings : Ceilings
        Measured limits.
    budget_s : float
        Seconds of measuring for each.
    first, sample : int
        Configurations by the models' order, and drawn from the rest.
    limit_s : float
        Seconds after which no further problem is begun.
    """
    check_device(backend)
    cuda: Any = backend
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=context) as executor:
        todo_left = iter(todo)
        ahead: deque[Any] = deque()
        begin = time.perf_counter()
        while True:
            for problem in itertools.islice(todo_left, AHEAD - len(ahead)):
                ahead.append(cuda.tuning(problem, ceilings, executor, first=first, sample=sample))
            if not ahead or time.perf_counter() - begin > limit_s:
                break
            tuning = ahead.popleft()
            outcome = tuning.measure(budget_s)
            forget()
            yield Tuned(tuning.problem, tuning.winner(outcome), outcome, ceilings)
        executor.shutdown(cancel_futures=True)


def ship(folder: Path, environment: dict[str, Any], done: Sequence[Tuned]) -> list[Path]:
    """Put winners into the tables that ship with the package, ``<folder>/<operation>.json``.

    Records of other problems that are there already stay. Returns the files written.
    """
    files = []
    for operation in dict.fromkeys(tuned.problem.operation for tuned in done):
        file = folder / f"{operation}.json"
        known = json.loads(file.read_text())["records"] if file.exists() else []
        new = [tuned.stored() for tuned in done if tuned.problem.operation == operation]
        by_problem = {json.dumps(record["problem"], sort_keys=True): record for record in known + new}
        records = sorted(by_problem.values(), key=_order)
        replace_file(file, table_of(environment, records).encode())
        files.append(file)
    return files


def _order(record: dict[str, Any]) -> tuple[Any, ...]:
    problem = record["problem"]
    return (
        tuple(problem[name] for name in sorted(problem) if name not in ("M", "N")),
        problem["M"],
        problem["N"],
    )
