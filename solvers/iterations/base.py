"""The base class of iterations, their state and their result."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from blockvec import precompiled

from ..blocks import Block, RealArray
from ..problem import IterationOptions, Problem
from .krylov import Counts
from .rayleigh_ritz import Which

__all__ = ["Iteration", "IterationResult", "IterationState"]


@dataclass(frozen=True, slots=True)
class IterationState:
    """State of an iteration after a restart or an outer iteration, for callbacks and the history.

    Attributes
    ----------
    restart : int
    eigenvalues : array, shape (k,)
        Ritz values, the most wanted first.
    residuals : array, shape (k,)
        Estimated residual norms.
    limits : array, shape (k,)
        Residual norms up to which pairs count as converged.
    operator_columns : int
    time_s : float
        Time since the start.
    """

    restart: int
    eigenvalues: RealArray
    residuals: RealArray
    limits: RealArray
    operator_columns: int
    time_s: float

    @classmethod
    def restored(cls, saved: dict[str, Any]) -> IterationState:
        """Make a state from a dictionary of its fields, with lists for arrays."""
        arrays = {name: np.array(value) for name, value in saved.items() if isinstance(value, list)}
        return cls(**(saved | arrays))

    @property
    def converged(self) -> int:
        """Number of wanted pairs whose estimated residual norm is within its limit."""
        return int(np.count_nonzero(self.residuals <= self.limits))


@dataclass(frozen=True, slots=True)
class IterationResult:
    """Result of an iteration.

    Attributes
    ----------
    theta : array, shape (k,)
        Eigenvalues, the most wanted first.
    X : BlockVector, shape (n, k)
        Orthonormal vectors: may be a view of the iteration's buffer.
    residuals : array, shape (k,)
        True residual norms ||A x - theta x||.
    limits : array, shape (k,)
    reason : {"converged", "maxiter", "callback", "time_limit", "interrupted", "stagnated"}
        Reason for stopping.
    verification : str
        Outcome of the search for missed copies.
    missing : int
        Number of wanted vectors that are known to exist and are not in X.
    norm : float
        ||A||, as given or estimated.
    degree : int
        Highest degree of a polynomial of A that was used; 1 for A itself.
    counts : Counts
    history : list of IterationState
    """

    theta: RealArray
    X: Block
    residuals: RealArray
    limits: RealArray
    reason: str
    verification: str
    missing: int
    norm: float
    degree: int
    counts: Counts
    history: list[IterationState]


class Iteration(ABC):
    """An iteration that can be stopped between steps, and saved and resumed between restarts.

    Parameters
    ----------
    problem : Problem
        Problem with one `which`, and orthonormal locked columns. Its checkpoint is read and written.
    options : IterationOptions
    start : BlockVector, shape (n, s)
        Start vectors, random if ``problem.start`` is None; overwritten.
    interrupted : callable, optional
        Called between steps; True stops the iteration.

    Notes
    -----
    Derived classes list in `PROGRESS` the attributes that belong to a checkpoint: numbers, text or arrays.
    `snapshot` and `resume` handle everything else.
    """

    PROGRESS: tuple[str, ...] = ()

    def __init__(
        self,
        problem: Problem,
        options: IterationOptions,
        start: Block,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        assert problem.which != "BE", "each end is a problem of its own"
        self.problem, self.options, self.interrupted = problem, options, interrupted
        self.which: Which = problem.which
        self.operator, self.start, self.rng = problem.operator, start, problem.rng
        self.random_start = problem.start is None
        self.begin_s = time.perf_counter()
        self.earlier_s = 0.0  # time before a resumption
        self.counts = Counts()
        self.history: list[IterationState] = []

    @property
    def elapsed_s(self) -> float:
        """Time since the start in seconds, including the time before a resumption."""
        return self.earlier_s + time.perf_counter() - self.begin_s

    def run(self) -> IterationResult:
        """Iterate until all wanted pairs have converged and none is missed, or another reason to stop."""
        method, operator, dtype, sizes = self._kind()
        with precompiled(method, operator, dtype, k=self.problem.k, b=self.options.block_size, **sizes):
            return self._run()

    @abstractmethod
    def _kind(self) -> tuple[str, Any, Any, dict[str, int]]:
        """Return what determines the kernels: method, operator, element type, and widths by name."""

    @abstractmethod
    def _run(self) -> IterationResult:
        """Iterate while kernels are being precompiled."""

    def _report(self, state: IterationState, reason: str) -> str:
        """Append a state to the history and call the callback; return the reason to stop, if any."""
        self.history.append(state)
        callback = self.problem.callback
        stops = callback is not None and callback(state) is True
        return reason or ("callback" if stops else "")

    def _state(self, theta: RealArray, residuals: RealArray, limits: RealArray) -> IterationState:
        """Describe the current state."""
        columns = self.counts.operator_columns
        return IterationState(self.counts.restarts, theta, residuals, limits, columns, self.elapsed_s)

    def _stopped(self) -> str:
        """Return the reason to stop immediately, or an empty string."""
        if self.interrupted():
            return "interrupted"
        limit = self.problem.time_limit
        return "time_limit" if limit is not None and time.perf_counter() - self.begin_s > limit else ""

    def _resumed(self) -> bool:
        """Restore the state of the checkpoint, if there is one."""
        checkpoint = self.problem.checkpoint
        saved = None if checkpoint is None else checkpoint.load()
        if saved is not None:
            self.resume(saved)
        return saved is not None

    def _save(self, reason: str) -> None:
        """Write a checkpoint if one is due, or if the iteration stops for this reason."""
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
        for name, count in saved["counts"].items():
            setattr(self.counts, name, count)
        self.earlier_s = saved["elapsed_s"]
        self.history[:] = [IterationState.restored(state) for state in saved["history"]]
