"""The base classes of iterations, their state and their result.

A run can be stopped between steps, saved, and resumed with the same bits.

Before an iteration returns, residuals are recomputed from A and the vectors, because rounding errors
accumulate in its estimates; if one exceeds its limit the basis is repaired. Then missed copies of multiple
eigenvalues are searched for; if any are found, the basis is extended by them. In both cases the iteration
continues.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from operator import attrgetter
from typing import Any, cast

import numpy as np

from blockvec import __version__, precompiled, start_copies
from blockvec.system.scalars import plain

from ..blocks import Block, RealArray, column_factors, project_out, to_host, whole_ranges
from ..problem import Counts, IterationOptions, IterationState, Problem, Stop, Verification, Which
from ..result import EigenResult, result_of
from ..runtime.processes import same_values
from ..runtime.progress import describe, logger
from .verification import Search

BETWEEN_LOOKS_S = 0.02  # seconds: in which processes do not ask each other whether one wants to stop
MOST_UNLOOKED = 16  # steps of the same: short steps, as of a search for copies, may come before long ones


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
    also of their parts, and add to `snapshot` and `resume` what else does. Between two savings of the state,
    `interrupted` is called: True stops the run.
    """

    PROGRESS: tuple[str, ...] = ()

    def __init__(self, problem: Problem, interrupted: Callable[[], bool]) -> None:
        self.problem, self.interrupted = problem, interrupted
        self.operator, self.rng = problem.operator, problem.rng
        self.counts = Counts()
        self.history: list[IterationState] = []
        self.begin_s = problem.begin_s  # after a resumption earlier, by the time before
        # Calls of `_stopped` since the last look at all processes, and up to the next one; time of the last.
        self._looks, self._next_look, self._looked_s = 0, 1.0, time.perf_counter()

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

    def _report(self, theta: RealArray, residuals: RealArray, limits: RealArray, reason: str) -> str:
        """Append a state to the history and call the callback; return the reason to stop, if any."""
        costs = self.counts.operator_columns, time.perf_counter() - self.begin_s
        state = IterationState(self.counts.restarts, theta, residuals, limits, *costs)
        self.history.append(state)
        layout = self.operator.layout
        if (layout is None or layout.rank == 0) and logger.isEnabledFor(logging.INFO):
            logger.info(describe(state))
        callback, is_over = self.problem.callback, False
        if callback is not None:
            is_over = plain(callback(state.times(self.problem.exponent))) is True  # NumPy's included
        if layout is not None:
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
        return {name: attrgetter(name)(self) for name in self.PROGRESS} | {
            "rng": self.rng.bit_generator.state,
            "counts": asdict(self.counts),
            "history": [asdict(state) for state in self.history],
            "elapsed_s": time.perf_counter() - self.begin_s,
        }

    def resume(self, saved: dict[str, Any]) -> None:
        """Restore a state returned by `snapshot`."""
        for name in self.PROGRESS:
            part, _, field = name.rpartition(".")
            setattr(attrgetter(part)(self) if part else self, field, saved[name])
        self.rng.bit_generator.state = saved["rng"]
        for name, number in saved["counts"].items():
            setattr(self.counts, name, number)
        self.begin_s -= saved["elapsed_s"]
        self.history[:] = [IterationState.restored(state) for state in saved["history"]]


class Iteration(Run):
    """An iteration that can be stopped between steps, and saved and resumed between restarts.

    It checks true residuals and searches for missed eigenvalues before it returns. The problem has one
    `which`, and orthonormal locked columns; its checkpoint is read and written. The start vectors, random if
    ``problem.start`` is None, are overwritten.
    """

    PROGRESS: tuple[str, ...] = ("search_width", "missing", "verification_text", "filter_calls")
    # Of the derived classes:
    norm: Any  # lower bound of ||A||
    locked: Any  # block of the locked columns, or None
    _kernels: Callable[[], dict[str, int]]  # sizes for `precompiled`
    _begin: Callable[[], None]  # makes the first columns of the basis
    _expand: Callable[[], str]  # expands the basis; returns a reason to stop, if any
    # computes values and residuals of the wanted pairs, and restarts the basis if it is full
    _restart: Callable[[], tuple[RealArray, RealArray]]
    _exhausted: Callable[[], str]  # whether the basis spans the space, or residuals no longer decrease
    _vectors: Callable[[], Block]  # the current approximations of the wanted eigenvectors
    _spans_space: Callable[[], bool]  # whether the basis spans the complement of the locked columns
    _repair: Callable[[], None]  # corrects the basis by residuals that exceed their limits
    _search: Callable[[], Search]  # makes the search beside the computed pairs
    _add_missed: Callable[[Block], None]  # extends the basis

    def __init__(
        self, problem: Problem, options: IterationOptions, start: Block, interrupted: Callable[[], bool]
    ) -> None:
        assert problem.which != "BE", "each end is a problem of its own"
        super().__init__(problem, interrupted)
        self.options, self.start = options, start
        self.which: Which = problem.which
        self.random_start = problem.start is None
        self.block_size = options.block_size  # columns per step now
        self.filter_calls = 0  # calls of the operator by filters: of a start, or in a search
        self.expected_calls = 0.0  # of the operator in all, where that can be predicted
        self.degree = 1  # highest degree of a polynomial of A
        self.state: IterationState  # after the last restart
        self.residuals: RealArray | None = None  # true residual norms of the current vectors, if known
        self.search_width = 1  # missed copies that are searched for at a time
        self.missing = 0  # wanted vectors found by the last search that are not in the result
        self.verification = Verification.SKIPPED
        self.verification_text = "skipped: the iteration ended before"

    def run(self) -> EigenResult:
        """Iterate until all wanted pairs have converged and none is missed, or another reason to stop."""
        sizes = self._kernels() | {"k": self.problem.k, "b": self.options.block_size}
        with precompiled(self.options.method, self.operator, self.start.dtype, **sizes):
            reason = ""
            if self._resumed():
                self.state = self.history[-1]
                reason = self._over() or self._advance()
            else:
                self._begin()
            while not reason:
                self.residuals = None
                reason = self._expand()
                theta, residuals = self._restart()
                reason = self._report(theta, residuals, self.limits(theta), reason)
                self.state = self.history[-1]
                if not reason and self.state.converged == self.problem.k and self._settled():
                    reason = self._stopped() or "converged"
                self.counts.restarts += 1
                reason = reason or self._exhausted() or self._over()
                self._save(reason)
                reason = reason or self._advance()
            return self._result(reason)

    def _advance(self) -> str:
        """Prepare the next cycle; return a reason to stop, if any."""
        return ""

    def _over(self) -> str:
        """Return the reason why no other cycle follows: their number, or calls of the operator."""
        return "maxiter" if self.counts.restarts >= self.options.maxiter else self.costly()

    def costly(self) -> str:
        """Return "costly" if the operator has been applied too often, without the cheap calls of filters."""
        calls, is_outpaced = self.counts.block_applications - self.filter_calls, self.options.is_outpaced
        return "costly" if is_outpaced is not None and is_outpaced(calls, self.expected_calls) else ""

    def snapshot(self) -> dict[str, Any]:
        return super().snapshot() | {"verification": self.verification.name}

    def resume(self, saved: dict[str, Any]) -> None:
        super().resume(saved)
        self.verification = Verification[saved["verification"]]

    def operator_norm(self) -> float:
        """Return ||A||, as given or estimated."""
        return self.norm if self.problem.norm is None else self.problem.norm

    def limits(self, theta: RealArray) -> RealArray:
        """Compute the residual limits of values."""
        return self.problem.tolerance.limits(theta, self.operator_norm())

    def _residual_block(self, theta: RealArray, begin: int, end: int) -> Block:
        """Compute A X - X theta for a range of the wanted vectors."""
        X = self._vectors()[:, begin:end].copy()
        R = self.operator.apply(X)
        self.counts.apply(end - begin)
        R.axpy(column_factors(-theta[begin:end], X), X)
        projected: Block = project_out(self.locked, R)
        return projected

    def _true_residuals(self, theta: RealArray) -> RealArray:
        k, b = len(theta), self.options.block_size  # not narrower: these products need no basis
        ranges = whole_ranges(k, b, self.start)
        norms = [self._residual_block(theta, begin, end).norms() for begin, end in ranges]
        self.counts.reductions += len(norms)
        residuals = np.zeros(k)
        for (begin, end), part in zip(ranges, start_copies(*norms)() if norms else (), strict=True):
            residuals[begin:end] = part
        return residuals

    def _random_norm(self, like: Block, locked: Block | None) -> float:
        """Estimate ||A|| by ||A z|| / ||z|| for a random z: a given start may not excite all of A."""
        z = like.random_like(1, self.rng)
        norms = [float(to_host(project_out(locked, V).norms())[0]) for V in (z, self.operator.apply(z))]
        self.counts.apply(1)
        self.counts.reductions += 2
        return norms[1] / norms[0]

    def _settled(self) -> bool:
        """Check whether true residuals are within their limits and no eigenvalue is missed; if not, go on."""
        self.residuals = self._true_residuals(self.state.eigenvalues)
        if (self.residuals > self.state.limits).any():
            self._repair()
            return False
        return self._is_verified()

    def _is_verified(self) -> bool:
        """Check that no eigenvalue is missed beside pairs that have converged; if one is, go on."""
        if self._spans_space():
            self._needs_no_search("the basis spans the space")
        elif self.problem.verify == "never":
            self.verification_text = "switched off"
        else:
            search, is_inside = self._search(), self.problem.target is not None
            if is_inside or self.problem.verify == "always" or search.doubtful is not None:
                return self._verified(search)
            has = "differs from it" if search.copies == 1 else f"has {search.copies} copies, the block size"
            self._needs_no_search(f"no eigenvalue before the last {has}")
        return True

    def _needs_no_search(self, reason: str) -> None:
        self.verification, self.verification_text = Verification.NOT_NEEDED, f"not needed: {reason}"
        self.missing = 0

    def _verified(self, search: Search) -> bool:
        target = self.problem.target
        search.run(self.search_width, self.rng, self._stopped)
        each = 1 if target is None else 2  # applications of A per application of the operator searched with
        self.counts.add(search.counts, each)
        self.counts.verification_columns += each * search.counts.operator_columns
        self.filter_calls += each * search.counts.block_applications
        self.verification = search.verification
        self.verification_text = search.text + ("" if target is None else ", by (A - sigma I)^2")
        self.missing = 0 if search.missed is None else search.missed.shape[1]
        if search.missed is None:
            return True
        self.search_width = min(2 * self.search_width, self.options.block_size)
        self._add_missed(search.missed)
        return False

    def _result(self, reason: str) -> EigenResult:
        if self.verification is Verification.SKIPPED and self._spans_space():
            self._needs_no_search("the basis spans the space")
        if self.residuals is None:
            self.residuals = self._true_residuals(self.state.eigenvalues)
        state, X, residuals, stopped = self.state, self._vectors(), self.residuals, cast(Stop, reason)
        # Estimates of residuals may not have told that the pairs have converged.
        has_converged = self.problem.ends_early(stopped) and bool((residuals <= state.limits).all())
        if has_converged and self._is_verified():
            stopped = "converged"
        return result_of(
            *(self.problem, self.options, state.eigenvalues, X, residuals, state.limits),
            *(self.verification, self.counts, self.history),
            stopped=stopped,
            verification=self.verification_text,
            missing=self.missing,
            norm=self.operator_norm(),
            degree=self.degree,
        )
