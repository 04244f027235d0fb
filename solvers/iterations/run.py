"""The base class of what can be stopped between steps, saved, and resumed with the same bits; its costs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from blockvec import __version__

from ..blocks import RealArray
from ..problem import IterationState, Problem, stops
from ..runtime.processes import same_values
from ..runtime.progress import describe, logger

BETWEEN_LOOKS_S = 0.02  # seconds: in which processes do not ask each other whether one wants to stop
MOST_UNLOOKED = 16  # steps of the same: short steps, as of a search for copies, may come before long ones


@dataclass(slots=True)
class Counts:
    """Operation counts of a solve; those of the operator include verification."""

    operator_columns: int = 0  # columns that the operator was applied to
    block_applications: int = 0  # calls of the operator
    verification_columns: int = 0  # columns of `operator_columns` for missed eigenvalues
    reductions: int = 0  # inner products over the tall dimension
    restarts: int = 0
    preconditioner_columns: int = 0  # columns that the preconditioner was applied to
    single_columns: int = 0  # columns of `operator_columns` in single precision within a solve in double

    def apply(self, columns: int, times: int = 1) -> None:
        """Count `times` applications of the operator to a block."""
        self.operator_columns += columns * times
        self.block_applications += times

    def add(self, part: Counts, times: int = 1) -> None:
        """Add the costs of a part of the solve, whose operator applies A `times` times."""
        self.operator_columns += times * part.operator_columns
        self.block_applications += times * part.block_applications
        self.reductions += part.reductions
        self.single_columns += times * part.single_columns


def fingerprint(problem: Problem, **own: Any) -> dict[str, Any]:
    """Collect what determines a result, except the operator itself."""
    return {
        **{"n": problem.n, "norm": problem.norm},
        **asdict(problem.tolerance),
        "dtype": problem.dtype or problem.operator.dtype.name,
        "rng": type(problem.rng.bit_generator).__name__,
        "blockvec": __version__,
        **own,
    }


class Run:
    """A run for one problem: its counts, history and time, and its checkpoint.

    Derived classes list in `PROGRESS` the attributes that belong to a checkpoint, numbers, text or arrays,
    and add to `snapshot` and `resume` what else does. Between two savings of the state, `interrupted` is
    called: True stops the run.
    """

    PROGRESS: tuple[str, ...] = ()

    def __init__(self, problem: Problem, interrupted: Callable[[], bool]) -> None:
        self.problem, self.interrupted = problem, interrupted
        self.operator, self.rng = problem.operator, problem.rng
        self.counts = Counts()
        self.history: list[IterationState] = []
        self.earlier_s = 0.0  # time before a resumption
        # Calls of `_stopped` since the last look at all processes, and up to the next one; time of the last.
        self._looks, self._next_look, self._looked_s = 0, 1.0, time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Time since the call in seconds, including the time before a resumption."""
        return self.earlier_s + time.perf_counter() - self.problem.begin_s

    def _stopped(self) -> str:
        """Return the reason to stop immediately, or an empty string."""
        layout = self.operator.layout
        if self.problem.time_limit is None and layout is None:  # after every step
            return "interrupted" if self.interrupted() else ""
        found = 2 if self.interrupted() else int(self.problem.is_late())
        if layout is not None:  # all processes know the time of the slowest one
            self._looks += 1
            if self._looks < self._next_look:
                return ""
            step_s = (time.perf_counter() - self._looked_s) / self._looks
            found, step_s = layout.largest(np.array([found, step_s])).tolist()
            self._looks, self._next_look = 0, BETWEEN_LOOKS_S / max(step_s, BETWEEN_LOOKS_S / MOST_UNLOOKED)
            self._looked_s = time.perf_counter()
        return ("", "time_limit", "interrupted")[int(found)]

    def _state(self, theta: RealArray, residuals: RealArray, limits: RealArray) -> IterationState:
        columns = self.counts.operator_columns
        return IterationState(self.counts.restarts, theta, residuals, limits, columns, self.elapsed_s)

    def _report(self, state: IterationState, reason: str) -> str:
        """Append a state to the history and call the callback; return the reason to stop, if any."""
        self.history.append(state)
        layout = self.operator.layout
        if (layout is None or layout.rank == 0) and logger.isEnabledFor(logging.INFO):
            logger.info(describe(state))
        is_over = stops(self.problem.callback, state.times(self.problem.exponent))
        is_over = bool(same_values(layout, is_over, state.eigenvalues))
        return reason or ("callback" if is_over else "")

    def _resumed(self) -> bool:
        checkpoint = self.problem.checkpoint
        saved = None if checkpoint is None else checkpoint.load()
        if saved is not None:
            self.resume(saved)
        return saved is not None

    def _save(self, reason: str) -> None:
        """Write a checkpoint if one is due, or if the run stops for this reason."""
        checkpoint = self.problem.checkpoint
        if checkpoint is not None and reason != "converged":
            checkpoint.save(self.snapshot, now=bool(reason))

    def snapshot(self) -> dict[str, Any]:
        """Return the state as host arrays, numbers, text, and lists and dictionaries of these."""
        return {name: getattr(self, name) for name in self.PROGRESS} | {
            "rng": self.rng.bit_generator.state,
            "counts": asdict(self.counts),
            "history": [asdict(state) for state in self.history],
            "elapsed_s": self.elapsed_s,
        }

    def resume(self, saved: dict[str, Any]) -> None:
        """Restore a state returned by `snapshot`."""
        for name in self.PROGRESS:
            setattr(self, name, saved[name])
        self.rng.bit_generator.state = saved["rng"]
        for name, number in saved["counts"].items():
            setattr(self.counts, name, number)
        self.earlier_s = saved["elapsed_s"]
        self.history[:] = [IterationState.restored(state) for state in saved["history"]]
