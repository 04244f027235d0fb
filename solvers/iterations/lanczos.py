"""Block Lanczos with thick restart, and what makes its end believable.

Before a result is returned, residuals are computed anew from A and the vectors (and the factorisation is
repaired where its own estimates had drifted away), and missed copies of multiple eigenvalues are looked
for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, RealArray, column_factors, project_out, random_block, to_host
from ..problem import IterationOptions, Problem
from .base import Iteration, IterationState, LanczosResult
from .krylov import BlockKrylov
from .rayleigh_ritz import ranking_key, select
from .verification import Found, look_for_missed, may_have_missed

__all__ = ["ThickRestart"]


KEEP = 0.3  # share of the basis beyond the wanted vectors that survives a restart
RESTARTS_BETWEEN_CLEANING = 30  # loses at most this many u of orthogonality
MIN_SEARCH = {
    True: 100,
    False: 200,
}  # degree a search may always have, after a random and after a given start
MAX_SEARCH_WIDTH = 8  # missed copies looked for at a time, at most


class ThickRestart(Iteration):
    """Thick-restart block Lanczos for the wanted eigenpairs of a Hermitian operator."""

    PROGRESS = (*Iteration.PROGRESS, "degree", "norm", "theta", "estimates")

    def __init__(
        self,
        problem: Problem,
        options: IterationOptions,
        start: Block,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(problem, options, start, interrupted)
        n, b = start.shape[0], options.block_size
        locked, n_locked = problem.locked, problem.n_locked
        capacity = min(options.ncv + max(b, start.shape[1]), n - n_locked)
        buffer = start.like(n_locked + capacity)
        if locked is not None:
            buffer[:, :n_locked] = locked
        self.locked = buffer[:, :n_locked] if n_locked else None
        self.krylov = BlockKrylov(self.operator, buffer, n_locked, b, self.rng, self.counts)
        self.degree = 1
        self.norm = 0.0  # estimate of ||A|| from below
        self.least = np.inf  # the least wanted Ritz value seen, less its residual
        self.theta = self.estimates = np.zeros(0)  # Ritz values of V, wanted first, and their residuals
        self.residuals: RealArray | None = None  # true ones, of the vectors as they are

    def _kind(self) -> tuple[str, Any, Any, dict[str, int]]:
        krylov, b = self.krylov, self.options.block_size
        sizes = {
            "locked": krylov.n_locked,
            "capacity": krylov.n_locked + krylov.capacity,
            "start": self.start.shape[1],
            "keep": self._keep(krylov.capacity - b, b),
        }
        return "lanczos", self.operator, krylov.buffer.dtype, sizes

    def _run(self) -> LanczosResult:
        if self._resumed():
            if self.counts.restarts >= self.options.maxiter:
                return self._result(self.history[-1], "maxiter")
            self._advance()
        else:
            self._begin()
        while True:
            reason = self._cycle()
            state = self._rayleigh_ritz()
            self.history.append(state)
            if reason or (self.counts.restarts + 1) % RESTARTS_BETWEEN_CLEANING == 0:
                self.krylov.reorthonormalize()
            if self.problem.callback is not None and self.problem.callback(state) is True:
                reason = reason or "callback"
            if not reason and state.converged == self.problem.k and self._settled():
                reason = self._stopped() or "converged"
            self.counts.restarts += 1
            if not reason and self.counts.restarts >= self.options.maxiter:
                reason = "maxiter"
            if not reason and self.krylov.complete and not self.krylov.append_random(self.options.block_size):
                reason = "converged"  # the basis spans the space: nothing can be added to what it says
            self._save(reason)
            if reason:
                return self._result(state, reason)
            self._advance()

    def _advance(self) -> None:
        """Prepare the next cycle: a place for methods that change their operator."""

    def snapshot(self) -> dict[str, Any]:
        """Return the state after a restart."""
        return super().snapshot() | self.krylov.snapshot()

    def resume(self, saved: dict[str, Any]) -> None:
        """Take up a state that `snapshot` has returned."""
        super().resume(saved)
        self.krylov.resume(saved)

    def _begin(self) -> None:
        """Make the start orthonormal, fill it up to the block size, and apply A to a given one at once."""
        krylov, b = self.krylov, self.options.block_size
        if self.locked is not None and self.problem.norm is None:
            # In the complement A may be nothing but rounding, which is that of all of A.
            image = self.operator.apply(self.locked.copy())
            self.counts.apply(image.shape[1])
            self.counts.reductions += 1
            self.norm = float(to_host(image.norms()).max())
        krylov.append(self.start)
        if krylov.w < b:
            krylov.append_random(b - krylov.w)
        if not self.random_start:
            krylov.expand_wide()
            self._estimate_norm()
            if krylov.m < self.problem.k and krylov.w < b:
                krylov.append_random(b - krylov.w)

    def _estimate_norm(self) -> None:
        """Raise the estimate of ||A|| by ||A z||, z random: given vectors may know one corner only."""
        z = random_block(self.krylov.buffer, 1, self.rng)
        norms = []
        for block in (z, self.operator.apply(z)):
            project_out(self.locked, block)
            norms.append(float(to_host(block.norms())[0]))
        self.counts.apply(1)
        self.counts.reductions += 2
        self.krylov.norm = max(self.krylov.norm, norms[1] / norms[0])
        self.norm = max(self.norm, self.krylov.norm)

    def _cycle(self) -> str:
        """Expand until the buffer is full; return why to stop, or nothing."""
        krylov = self.krylov
        # A given start is looked at before anything is added to it: it may be all there is to do.
        first_look = not self.random_start and not self.history and krylov.m >= self.problem.k
        queued = krylov.m + krylov.w
        while krylov.can_expand() and not first_look:
            krylov.expand()
            if reason := self._stopped():
                return reason
            # Until what waited has been applied, a missed copy among it has not been seen.
            if krylov.m >= queued and self._seems_done():
                break
        return ""

    def _seems_done(self) -> bool:
        """Whether a cycle should end before the basis is full: a place for methods with dear steps."""
        return False

    def _keep(self, m: int, w: int) -> int:
        """How many of m Ritz vectors survive beside w columns: the wanted ones and some, in whole steps."""
        k, b = self.problem.k, self.options.block_size
        full = self.krylov.capacity - w
        keep = k + int(KEEP * (full - k))
        keep = full - max(1, (full - keep) // b) * b
        return int(min(max(keep, k), m))

    def _norm(self) -> float:
        return self.norm if self.problem.norm is None else self.problem.norm

    def _rayleigh_ritz(self) -> IterationState:
        """Restart from the wanted Ritz vectors and say where the iteration is."""
        krylov = self.krylov
        ritz = krylov.ritz()
        order = select(ritz.theta, self.which)
        self.norm = max(self.norm, krylov.norm)
        kept = order[: self._keep(len(order), krylov.w)]
        krylov.restart(ritz, kept)
        self.theta, self.estimates = ritz.theta[kept], ritz.residuals[kept]
        # The least wanted value, less its residual, bounds the spectrum but for luck.
        least = float(ranking_key(ritz.theta[order[-1]], self.which) - ritz.residuals[order[-1]])
        self.least = min(self.least, least)
        return self._state()

    def _state(self) -> IterationState:
        k = min(self.problem.k, len(self.theta))
        limits = self.problem.tolerance.limits(self.theta[:k], self._norm())
        return IterationState(
            self.counts.restarts,
            self.theta[:k],
            self.estimates[:k],
            np.broadcast_to(limits, (k,)),
            self.counts.operator_columns,
            self.elapsed_s,
        )

    # --- before the end ----------------------------------------------------------------------------

    def _settled(self) -> bool:
        """Whether residuals are what they seemed and nothing was missed; if not, extend the factorisation."""
        k, krylov, theta = self.problem.k, self.krylov, self.theta
        krylov.reorthonormalize()
        self.residuals = residuals = self._true_residuals(theta[:k])
        limits = self.problem.tolerance.limits(theta[:k], self._norm())
        failing = np.flatnonzero(residuals > limits)
        if len(failing):
            self._repair(failing)
            self.residuals = None
            return False
        if krylov.room == 0 and krylov.complete:
            self.verification = "not needed: the basis spans the space"
            self.missing = 0
            return True
        verify = self.problem.verify
        b = self.options.block_size if self.random_start else 1
        doubtful = may_have_missed(theta[:k], np.broadcast_to(limits, (k,)), self.which, b)
        if verify == "never":
            self.verification = "switched off"
            return True
        if verify == "auto" and self.random_start and not self.found_missed and not doubtful:
            self.verification = f"not needed: no eigenvalue before the last has {b} copies, the block size"
            return True
        return self._verified(np.broadcast_to(limits, (k,)))

    def _verified(self, limits: RealArray) -> bool:
        """Look for missed copies; append what is found to the factorisation."""
        krylov = self.krylov
        found = Found(
            X=krylov.columns(0, krylov.m),
            theta=self.theta,
            residuals=self.estimates,
            k=self.problem.k,
            which=self.which,
            limits=limits,
            norm=self._norm(),
            least=self.least,
            locked=self.locked,
        )
        verdict = look_for_missed(
            self.operator,
            found,
            self.search_width,
            max(self.counts.operator_columns, MIN_SEARCH[self.random_start]),
            self.rng,
            self._stopped,
        )
        counts = self.counts
        counts.operator_columns += verdict.columns
        counts.verification_columns += verdict.columns
        counts.block_applications += verdict.applications
        counts.reductions += verdict.reductions
        self.verification = verdict.text
        self.missing = 0 if verdict.missed is None else verdict.missed.shape[1]
        if verdict.missed is None:
            return True
        self.found_missed += self.missing
        self.search_width = min(2 * self.search_width, MAX_SEARCH_WIDTH)
        k, b = self.problem.k, self.options.block_size
        if krylov.m + krylov.w + self.missing + b > krylov.capacity:
            # Every search adds to what waits. What has converged needs none of it.
            krylov.truncate(k)
            self.theta, self.estimates = self.theta[:k], self.estimates[:k]
        # A step must still fit in; what does not now will be found again.
        room = max(1, krylov.capacity - krylov.m - krylov.w - b)
        _, _, count = krylov.append(verdict.missed[:, : min(room, self.missing)])
        krylov.promote(count)
        self.residuals = None
        return False

    def _chunks(self, count: int) -> list[tuple[int, int]]:
        b = self.options.block_size
        return [(begin, min(begin + b, count)) for begin in range(0, count, b)]

    def _residual_block(self, begin: int, end: int, theta: RealArray) -> Block:
        """Return A X - X theta for a range of columns."""
        X = self.krylov.columns(begin, end).copy()
        R = self.operator.apply(X)
        self.counts.apply(end - begin)
        R.axpy(column_factors(-theta[begin:end], X), X)
        project_out(self.locked, R)
        return R

    def _true_residuals(self, theta: RealArray) -> RealArray:
        norms = [self._residual_block(*chunk, theta).norms() for chunk in self._chunks(len(theta))]
        self.counts.reductions += len(norms)
        return np.concatenate([to_host(part) for part in norms]).astype(np.float64)

    def _repair(self, failing: NDArray[np.intp]) -> None:
        """Couple the true residuals into the factorisation, whose own account of them has drifted away."""
        krylov = self.krylov
        for begin, end in self._chunks(self.problem.k):
            if not np.any((failing >= begin) & (failing < end)):
                continue
            R = self._residual_block(begin, end, self.theta)
            S, coupling, count = krylov.append(R, scale=krylov.norm)
            krylov.couple(begin, S, coupling, count)

    def _result(self, state: IterationState, reason: str) -> LanczosResult:
        k = len(state.eigenvalues)
        if reason != "converged" and self.verification == "not reached":
            self.verification = "skipped: the iteration ended before"
        return LanczosResult(
            theta=state.eigenvalues,
            X=self.krylov.columns(0, k),
            residuals=self._true_residuals(state.eigenvalues) if self.residuals is None else self.residuals,
            limits=state.limits,
            reason=reason,
            verification=self.verification,
            missing=self.missing,
            norm=self._norm(),
            degree=self.degree,
            counts=self.counts,
            history=self.history,
        )
