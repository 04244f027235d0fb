"""What all iterations share: options, result, why to stop, and how to go on from a checkpoint."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockvec import precompiled

from ..blocks import Block
from ..problem import IterationOptions, Problem
from .krylov import Counts
from .rayleigh_ritz import Which

__all__ = ["Iteration", "IterationState", "LanczosResult"]


@dataclass(frozen=True, slots=True)
class IterationState:
    """Where an iteration is after a restart or an outer iteration: for callbacks and the history.

    Attributes
    ----------
    restart : int
    eigenvalues : array, shape (k,)
        Ritz values, the most wanted first.
    residuals : array, shape (k,)
        Estimates of their residual norms.
    limits : array, shape (k,)
        Residual norms at which they count as converged.
    operator_columns : int
    time_s : float
        Since the start.
    """

    restart: int
    eigenvalues: NDArray[np.float64]
    residuals: NDArray[np.float64]
    limits: NDArray[np.float64]
    operator_columns: int
    time_s: float

    @classmethod
    def restored(cls, saved: dict[str, Any]) -> IterationState:
        """Return a state from its fields, with lists for arrays."""
        arrays = {name: np.array(value) for name, value in saved.items() if isinstance(value, list)}
        return cls(**(saved | arrays))

    @property
    def converged(self) -> int:
        """Wanted pairs whose residual estimate is within its limit."""
        return int(np.count_nonzero(self.residuals <= self.limits))


@dataclass(frozen=True, slots=True)
class LanczosResult:
    """What the iteration has reached.

    Attributes
    ----------
    theta : array, shape (k,)
        Values, the most wanted first.
    X : BlockVector, shape (n, k)
        Orthonormal vectors: a view into the iteration's buffer.
    residuals : array, shape (k,)
        True residual norms ||A x - theta x||.
    limits : array, shape (k,)
    reason : {"converged", "maxiter", "callback", "time_limit", "interrupted"}
        Why it ended.
    verification : str
        What was done about missed copies.
    missing : int
        Wanted vectors that are known to exist and are not among X.
    norm : float
        Estimate of ||A||.
    degree : int
        Highest degree of a polynomial of A that was iterated with; 1 where it was A itself.
    counts : Counts
    history : list of IterationState
    """

    theta: NDArray[np.float64]
    X: Block
    residuals: NDArray[np.float64]
    limits: NDArray[np.float64]
    reason: str
    verification: str
    missing: int
    norm: float
    degree: int
    counts: Counts
    history: list[IterationState]


class Iteration(ABC):
    """A run that can be stopped between two steps, and be saved and resumed between two restarts.

    Parameters
    ----------
    problem : Problem
        Of one end, with orthonormal locked columns. A checkpoint is resumed from, and written to.
    options : IterationOptions
    start : BlockVector, shape (n, s)
        Start vectors, random where ``problem.start`` is None; overwritten.
    interrupted : callable, optional
        Asked between steps whether to stop.

    Notes
    -----
    Derived classes name in `PROGRESS` the attributes that change as they go: numbers, text or arrays. What is
    more than that they add to `snapshot` and `resume`.
    """

    PROGRESS: tuple[str, ...] = ("least", "search_width", "found_missed", "missing", "verification")

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
        self.earlier_s = 0.0  # that a run took before it was resumed
        self.counts = Counts()
        self.history: list[IterationState] = []
        self.search_width = 1
        self.found_missed = 0
        self.missing = 0  # wanted vectors that the last search has found and the result does not hold
        self.verification = "not reached"

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start, those before a resumption included."""
        return self.earlier_s + time.perf_counter() - self.begin_s

    def run(self) -> LanczosResult:
        """Iterate until everything wanted has converged and nothing is missed, or something stops it."""
        method, operator, dtype, sizes = self._kind()
        with precompiled(method, operator, dtype, k=self.problem.k, b=self.options.block_size, **sizes):
            return self._run()

    @abstractmethod
    def _kind(self) -> tuple[str, Any, Any, dict[str, int]]:
        """List what decides about the kernels: method, operator, element type, and widths by name."""

    @abstractmethod
    def _run(self) -> LanczosResult:
        """Iterate, kernels being compiled meanwhile."""

    def _stopped(self) -> str:
        """Return why to stop at once, or nothing."""
        if self.interrupted():
            return "interrupted"
        limit = self.problem.time_limit
        return "time_limit" if limit is not None and time.perf_counter() - self.begin_s > limit else ""

    def _resumed(self) -> bool:
        """Take up the state of a checkpoint, if there is one."""
        checkpoint = self.problem.checkpoint
        saved = None if checkpoint is None else checkpoint.load()
        if saved is not None:
            self.resume(saved)
        return saved is not None

    def _save(self, reason: str) -> None:
        """Write a checkpoint if it is time, or because the run is about to stop for this reason."""
        checkpoint = self.problem.checkpoint
        if checkpoint is not None and reason != "converged":
            checkpoint.save(self.snapshot, now=bool(reason))

    def snapshot(self) -> dict[str, Any]:
        """Return the state as arrays of the host, numbers, text, and lists and dictionaries of them."""
        return {name: getattr(self, name) for name in self.PROGRESS} | {
            "rng": self.rng.bit_generator.state,
            "counts": asdict(self.counts),
            "history": [asdict(state) for state in self.history],
            "elapsed_s": self.elapsed_s,
        }

    def resume(self, saved: dict[str, Any]) -> None:
        """Take up a state that `snapshot` has returned."""
        for name in self.PROGRESS:
            setattr(self, name, saved[name])
        self.rng.bit_generator.state = saved["rng"]
        for name, count in saved["counts"].items():
            setattr(self.counts, name, count)
        self.earlier_s = saved["elapsed_s"]
        self.history[:] = [IterationState.restored(state) for state in saved["history"]]
