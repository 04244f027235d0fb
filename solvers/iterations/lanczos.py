"""Thick-restart block Lanczos with verified convergence, with A or a polynomial of A."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..blocks import (
    Block,
    RealArray,
    apply_in_ranges,
    bordered,
    column_factors,
    project_out,
    small_matrix,
    to_host,
    width_padding,
)
from ..orthogonalization.factors import cholesky_factor
from ..problem import IterationOptions, IterationState, Problem, excess
from ..result import EigenResult
from .base import MIN_SEARCH, Iteration
from .filtering import Filtering
from .krylov import BlockKrylov, Ritz
from .rayleigh_ritz import SAME_RITZ_VALUE, clusters, ranking_key, ritz_pairs, select, separate_copies
from .steps import MOST_LOSS
from .verification import Found

KEPT = 0.3  # share of the basis beyond the wanted vectors that a restart keeps
MAX_REPAIRS = 5  # a run stagnates if its true residuals were not halved by so many successive repairs
RESTARTS_BETWEEN_CLEANING = 30  # the loss of orthogonality is at most this many times that of a cycle
LOOK_AT_NORM = 2  # columns of V from which on the norm of A is roughly known
LOSS = 1e-2  # of orthogonality, as a share of the limits of residuals relative to ||A||


class Looks:
    """When to look for convergence: by the pace of the residuals of one operator, over restarts."""

    def __init__(self, degree: int) -> None:
        self.degree = degree  # of the operator, which is applied to `columns` of a block so far
        self.next = 0  # columns from which on the next look is worth while
        self._columns, self._digits = 0, math.inf

    def plan(self, columns: int, pause: int, largest: float) -> None:
        """Plan the look after one at which the largest residual is `largest` times its limit.

        It comes `pause` columns later or more.
        """
        digits = math.log10(max(largest, 1.0))
        passed, gained = columns - self._columns, self._digits - digits
        self._columns, self._digits = columns, digits
        if passed and math.isfinite(gained):
            # Without the pace 25 easy problems take 1.22 times as long.
            predicted = digits * passed / gained if gained > 0 else columns
            pause = max(pause, int(min(predicted, columns)))
        self.next = columns + pause


class ThickRestart(Iteration):
    """Thick-restart block Lanczos for the wanted eigenpairs of a Hermitian operator.

    A `Filtering` may put a polynomial of the operator in its place, for some cycles or all.
    """

    PROGRESS = (*Iteration.PROGRESS, "degree", "norm", "least", "theta", "estimates")

    def __init__(
        self, problem: Problem, options: IterationOptions, start: Block, interrupted: Callable[[], bool]
    ) -> None:
        super().__init__(problem, options, start, interrupted)
        n, b = start.n_global, options.block_size
        locked, n_locked = problem.locked, problem.n_locked
        capacity = min(options.ncv + max(b, start.shape[1]), n - n_locked)
        self._zeros = -n_locked % width_padding(start) if n > 2 * (n_locked + capacity) else 0
        n_fixed = self._zeros + n_locked
        buffer = start.like(n_fixed + capacity)
        if width_padding(start) > 1:
            buffer[:, :] = 0  # products may be wider than the basis
        if locked is not None:
            buffer[:, self._zeros : n_fixed] = locked
        self.krylov = BlockKrylov(self.operator, buffer, n_fixed, b, self.rng, self.counts)
        if problem.has_costly_steps:
            self.krylov.steps.pause = 1
        self.norm = 0.0  # lower bound of ||A||
        self.least = np.inf  # smallest ranking key of a Ritz value so far, less its residual
        self.excess = np.inf  # least ratio of true residuals and limits so far
        self.repairs = 0  # since that was last halved
        self.looks = Looks(1)
        self.seen: Ritz | None = None  # Ritz pairs of V as it was at the last look
        self.theta = self.estimates = np.zeros(0)  # Ritz values of V, wanted first, and their residuals
        self.filtering = Filtering(self) if options.method == "filter" else None

    @property
    def locked(self) -> Block | None:
        """The locked columns, after zeros that round their number up."""
        n_locked = self.krylov.n_locked
        return self.krylov.buffer[:, :n_locked] if n_locked else None

    def _kind(self) -> tuple[str, Any, Any, dict[str, int]]:
        krylov, b = self.krylov, self.options.block_size
        sizes = {
            "locked": krylov.n_locked,
            "capacity": krylov.n_locked + krylov.capacity,
            "start": self.start.shape[1],
            "keep": krylov.padded(self._keep(krylov.capacity - b, b)),
            "last": krylov.padded(self.problem.k + b),
            "p": width_padding(krylov.buffer),
        }
        return self.options.method, self.operator, krylov.buffer.dtype, sizes

    def _run(self) -> EigenResult:
        if self._resumed():
            is_over = self.counts.restarts >= self.options.maxiter
            reason = "maxiter" if is_over else self.costly() or self._advance(self.history[-1])
            if reason:
                return self._result(self.history[-1], reason)
        else:
            self._begin()
        while True:
            columns = self.counts.operator_columns
            reason = self._expand()
            if self.filtering is not None and self.filtering.state.is_mixed:
                self.counts.single_columns += self.counts.operator_columns - columns
            state = self._restart()
            if reason or (self.counts.restarts + 1) % RESTARTS_BETWEEN_CLEANING == 0:
                self.krylov.reorthonormalize()
            reason = self._report(state, reason)
            if not reason and state.converged == self.problem.k and self._settled(state):
                reason = self._stopped() or "converged"
            if not reason and self.repairs >= MAX_REPAIRS:
                reason = "stagnated"
            self.counts.restarts += 1
            if not reason and self.counts.restarts >= self.options.maxiter:
                reason = "maxiter"
            reason = reason or self.costly()
            if not reason and self.krylov.complete and not self.krylov.append_random(self.block_size):
                reason = "converged"  # the basis spans the space
            self._save(reason)
            reason = reason or self._advance(self.history[-1])
            if reason:
                return self._result(state, reason)

    def _advance(self, state: IterationState) -> str:
        """Choose the operator of the next cycle; return a reason to stop."""
        return "" if self.filtering is None else self.filtering.advance(state)

    def snapshot(self) -> dict[str, Any]:
        filtering = {} if self.filtering is None else self.filtering.snapshot()
        return super().snapshot() | self.krylov.snapshot() | filtering | {"looks": vars(self.looks)}

    def resume(self, saved: dict[str, Any]) -> None:
        super().resume(saved)
        vars(self.looks).update(saved["looks"])
        if self.filtering is not None:
            self.filtering.resume(saved)
        self.krylov.resume(saved)

    def _begin(self) -> None:
        """Orthonormalise the start, extend it to the block size, and apply A to a given one at once."""
        if self.filtering is not None:
            self.filtering.begin()
        krylov, b = self.krylov, self.block_size
        if self.locked is not None and self.problem.norm is None:
            # In the complement A may be zero up to rounding errors, which scale with the norm of all of A.
            image = self.locked.like(self.krylov.n_locked)
            apply_in_ranges(self.operator, self.locked, image, b)
            self.counts.apply(image.shape[1])
            self.counts.reductions += 1
            self.norm = float(to_host(image.norms()).max())
        krylov.append(self.start)
        if krylov.w < b:
            krylov.append_random(b - krylov.w)
        if not self.random_start:
            krylov.expand_wide()
            krylov.norm = max(krylov.norm, self._random_norm(krylov.buffer, self.locked))
            self.norm = max(self.norm, krylov.norm)
            if krylov.m < self.problem.k and krylov.w < b:
                krylov.append_random(b - krylov.w)

    def _expand(self) -> str:
        """Expand until the buffer is full or all pairs seem converged; return a reason to stop, if any."""
        krylov, k = self.krylov, self.problem.k
        # The Ritz pairs of a given start are checked first, and refined ones: they may be converged already.
        if not self.random_start and not self.history and krylov.m >= k:
            return ""
        if self.filtering is not None and self.filtering.is_refined:
            return ""
        queued = krylov.m + krylov.w
        while krylov.steps.takes_single_columns and krylov.m < LOOK_AT_NORM and krylov.can_expand():
            krylov.expand(LOOK_AT_NORM)
        krylov.loss = self._loss()
        if self.looks.degree != krylov.degree:
            self.looks = Looks(krylov.degree)
        first = max(krylov.m, k) + krylov.steps.pause * self.block_size
        self.looks.next = max(self.looks.next, self._columns() + first - krylov.m)
        while krylov.can_go_on():
            if (left := max(self.looks.next - self._columns(), queued - krylov.m)) > 0:
                krylov.expand(krylov.m + left, self._stopped)  # otherwise steps were taken ahead
            reason = self._stopped()
            if reason:
                krylov.settle()
            if reason == "interrupted" or (reason and krylov.m >= k):
                return reason  # with a vector for every wanted pair, except after Ctrl-C
            # A missed copy may be among the columns that were pending at the beginning of the cycle.
            if krylov.m >= queued and self._seems_done():
                break
        return ""

    def _loss(self) -> float:
        """Choose the loss of orthogonality that single vectors may have, for limits that are known."""
        theta, scale = self.theta[: self.problem.k], max(self.operator_norm(), self.krylov.most)
        if not len(theta):
            theta = np.zeros(1)
            if self.problem.tolerance.convergence == "value":
                return 0.0
        limits = self.problem.tolerance.limits(theta, self.operator_norm() or scale)
        return min(MOST_LOSS, LOSS * float(np.min(limits)) / scale) if scale else 0.0

    def _seems_done(self) -> bool:
        """Look for convergence, if that is due: a cycle may end early."""
        krylov = self.krylov
        if self._columns() < self.looks.next:
            return False
        m = krylov.m
        krylov.steps.begin_ahead(krylov, krylov.steps.pause)  # which a GPU takes meanwhile
        self.seen = krylov.ritz(m)
        m = len(self.seen.theta)
        is_done = self._plan_look(self.seen) <= 1
        if is_done:
            krylov.withdraw(m)
        return is_done

    def _columns(self) -> int:
        """Count the columns that the operator of this cycle would have been applied to so far."""
        return self.counts.operator_columns // self.krylov.degree

    def _plan_look(self, ritz: Ritz) -> float:
        """Plan the next look by these Ritz pairs, and return their largest excess."""
        krylov, largest = self.krylov, self._excess(ritz)
        ahead = krylov.m - len(ritz.theta)
        self.looks.plan(self._columns() - ahead, krylov.steps.pause * self.block_size, largest)
        return largest

    def _excess(self, ritz: Ritz) -> float:
        """Return the largest residual of the wanted Ritz pairs, relative to its limit."""
        if self.filtering is not None and (filter := self.filtering.state.filter) is not None:
            return self.filtering.excess(filter, ritz)
        best = select(ritz.theta, self.which)[: self.problem.k]
        self.norm = max(self.norm, self.krylov.norm)
        if len(best) < self.problem.k:
            return math.inf
        return float(excess(ritz.residuals[best], self.limits(ritz.theta[best])).max())

    def _keep(self, m: int, w: int) -> int:
        """Count the Ritz vectors of m that a restart keeps besides w pending columns, in whole steps."""
        k, b = self.problem.k, self.block_size
        full = self.krylov.capacity - w
        keep = k + int(KEPT * (full - k))
        keep = full - max(1, (full - keep) // b) * b
        return int(min(max(keep, k), m))

    def _ritz(self) -> Ritz:
        """Return the Ritz pairs of V at the end of a cycle, which the last look may have computed."""
        seen, self.seen = self.seen, None
        if seen is None or len(seen.theta) != self.krylov.m:
            seen = self.krylov.ritz()
            self._plan_look(seen)
        return seen

    def _restart(self) -> IterationState:
        """Replace the basis by wanted Ritz vectors; return the state, with values and residuals of A."""
        if self.filtering is None or self.filtering.state.filter is None:
            self._restart_plainly(self._ritz())
        else:
            if not self.filtering.is_refined:
                ritz = self._ritz()
                kept = select(ritz.theta, "LA")[: self._keep(len(ritz.theta), self.krylov.w)]
                self.krylov.restart(ritz, kept)
            self.filtering.is_refined = False
            self._rayleigh_ritz()
        return self._current_state()

    def _restart_plainly(self, ritz: Ritz) -> None:
        """Replace the basis by wanted Ritz vectors, by few where all that are wanted have converged."""
        krylov, k = self.krylov, self.problem.k
        order = select(ritz.theta, self.which)
        self.norm = max(self.norm, krylov.norm)
        keep = self._keep(len(order), krylov.w)
        theta = ritz.theta[order[:k]]
        settled = len(order) >= k and bool((ritz.residuals[order[:k]] <= self.limits(theta)).all())
        if settled and not self._doubtful(theta):
            keep = min(keep, k + self.block_size)
        kept = order[:keep]
        krylov.restart(ritz, kept)
        self.theta, self.estimates = ritz.theta[kept], ritz.residuals[kept]
        # The smallest ranking key, less its residual, bounds the spectrum with high probability.
        least = float(ranking_key(ritz.theta[order[-1]], self.which) - ritz.residuals[order[-1]])
        self.least = min(self.least, least)

    def _rayleigh_ritz(self) -> None:
        """Rotate the vectors of a filter to Ritz vectors of A; compute their values and residuals."""
        krylov, which = self.krylov, self.which
        count = krylov.m or krylov.w
        wide, begin = krylov.padded(count), krylov.m + krylov.w
        fits = begin + wide <= krylov.capacity
        AX = krylov.columns(begin, begin + wide) if fits else krylov.buffer.like(wide)
        AX[:, count:] = 0
        apply_in_ranges(self.operator, krylov.columns(0, count), AX[:, :count], self.block_size)
        self.counts.apply(count)
        project_out(self.locked, AX)
        theta, U = ritz_pairs(to_host(krylov.columns(0, wide).dot(AX))[:count, :count])
        self.norm = max(self.norm, float(np.abs(theta).max()))
        self.least = min(self.least, float(ranking_key(theta, which).min()))
        width = 2 * SAME_RITZ_VALUE * self.problem.tolerance.unit * self.norm
        distinct = len(clusters(theta, width)) == len(theta)
        order = select(theta, which) if distinct else np.arange(len(theta))
        theta, U = theta[order], U[:, order]
        krylov.transform(U, U.conj().T)
        AX.combine(small_matrix(bordered(U, wide, wide), AX), out=AX)
        X = krylov.columns(0, count)
        AX[:, :count].axpy(column_factors(-theta, X), X)
        G = to_host(AX.gram())[:count, :count].astype(U.dtype)
        self.counts.reductions += 2
        if not distinct:
            theta, copies = separate_copies(theta, G, width)
            order = select(theta, which)
            copies = copies[:, order]
            theta, G = theta[order], copies.conj().T @ G @ copies
            krylov.transform(copies, copies.conj().T)
        self.theta, self.estimates = theta, np.sqrt(np.maximum(np.diagonal(G).real, 0))

    def _current_state(self) -> IterationState:
        theta, estimates = self.theta[: self.problem.k], self.estimates[: self.problem.k]
        return self._state(theta, estimates, self.limits(theta))

    def _vectors(self) -> Block:
        theta = self.theta[: self.problem.k]
        if self._is_inverse and theta.all():  # one more step of inverse iteration, without a solve
            X = self.krylov.images(len(theta))
            return X.scale(column_factors(1 / theta, X))
        return self.krylov.columns(0, len(theta))

    @property
    def _is_inverse(self) -> bool:
        """Whether the operator is an inverse, and its caller checks the residuals of what is inverted."""
        return self.problem.has_costly_steps and self.krylov.degree == 1

    def _true_residuals(self, theta: RealArray) -> RealArray:
        if self._is_inverse:
            return self.estimates[: len(theta)]
        if not self.krylov.steps.takes_single_columns:
            return super()._true_residuals(theta)
        return self._refined(len(theta))

    def _refined(self, k: int) -> RealArray:
        """Take a Rayleigh-Ritz step with A itself on the first vectors; return the norms of residuals.

        What separate runs found of the copies of a value is coupled by as much as their residuals, which the
        projected matrix does not hold. The vectors, which steps of single columns and restarts leave
        orthonormal to less than rounding, become so.
        """
        krylov = self.krylov
        X = krylov.columns(0, k)
        AX = self.operator.apply(X)
        self.counts.apply(k)
        R, inverse, *_ = cholesky_factor(X.gram())
        theta, Y = ritz_pairs(inverse.conj().T @ X.dot(AX) @ inverse)
        order = select(theta, self.which)
        theta, Y = theta[order], Y[:, order]
        U = inverse @ Y
        krylov.transform(U, Y.conj().T @ R)
        krylov.H[:k, :k] = np.diag(theta)
        AX = AX.combine(U).axpy(-theta, X)
        norms = np.asarray(AX.norms(), np.float64)
        self.counts.reductions += 3
        self.theta, self.estimates = self.theta.copy(), self.estimates.copy()
        self.theta[:k], self.estimates[:k] = theta, norms
        return norms

    def _result(self, state: IterationState, reason: str) -> EigenResult:
        if self.krylov.steps.takes_single_columns and len(self.theta) >= len(state.eigenvalues):
            if self.residuals is None:
                self.residuals = self._true_residuals(state.eigenvalues)
            state = self._current_state()
        return super()._result(state, reason)

    def _spans_space(self) -> bool:
        return self.krylov.room == 0 and self.krylov.complete

    def _converges_in_order(self) -> bool:
        # Of largest magnitude, lambda and -lambda are one value of the filter, with the copies of both: a
        # block that is narrower than these has mixtures of them beside fewer copies of each. Where a basis
        # has no room for two steps beside the wanted pairs, one copy may be lost in hundreds of restarts.
        has_room = self.options.ncv >= self.problem.k + 2 * self.options.block_size
        return has_room and (self.which != "LM" or self.degree == 1)

    def _search_budget(self) -> int:
        least = MIN_SEARCH // 2 if self.random_start else MIN_SEARCH
        return max(self.counts.operator_columns, least)

    def _settled(self, state: IterationState) -> bool:
        is_refined = self.krylov.steps.takes_single_columns and not self._is_inverse
        if self.counts.restarts and not is_refined:  # otherwise V has been rotated once
            self.krylov.reorthonormalize()
        is_over = super()._settled(state)
        if not is_over and is_refined:
            k = self.problem.k
            values, residuals = self.theta[:k], self.estimates[:k]
            self.history[-1] = replace(self.history[-1], eigenvalues=values, residuals=residuals)
        return is_over

    def _found(self, state: IterationState) -> Found:
        k = self.problem.k
        return Found(
            X=self.krylov.columns(0, k),
            theta=self.theta[:k],
            which=self.which,
            limits=self._margins(state.eigenvalues),
            locked=self.locked,
            block_size=self._copies_together,
        )

    def _add_missed(self, missed: Block) -> None:
        """Append missed vectors; plain steps go on from them in the complement of the wanted ones.

        Filters converge within few steps: the next search needs the other vectors, which it projects out.
        """
        self.repairs, self.residuals = 0, None
        if self.krylov.m >= self.problem.k and (self.krylov.degree == 1 or self._room() < self.missing):
            self._keep_wanted()
        if self.krylov.steps.takes_single_columns:  # a mixture of all preserves their recurrence
            weights = self.rng.standard_normal((self.missing, 1))
            missed = missed.combine(small_matrix(weights, missed))
        # The next search finds those again for which there is no room.
        self.krylov.append(missed[:, : self._room()])

    def _keep_wanted(self) -> None:
        k = self.problem.k
        self.krylov.truncate(k, float(self.estimates[:k].max(initial=0.0)))
        self.theta, self.estimates = self.theta[:k], self.estimates[:k]

    def _room(self) -> int:
        """Count the columns that may be appended so that a step still fits."""
        krylov = self.krylov
        return max(1, krylov.capacity - krylov.m - krylov.w - self.block_size)

    def _repair(self, state: IterationState) -> None:
        """Couple the true residuals to the decomposition, whose own residuals have drifted away."""
        assert self.residuals is not None
        if self.filtering is not None and self.filtering.state.filter is not None:
            self.filtering.retire()
            self.residuals = None
            return
        krylov, k, b = self.krylov, self.problem.k, self.block_size
        excess = self.residuals / state.limits
        failing = [begin for begin in range(0, k, b) if excess[begin : begin + b].max() > 1]
        if self._room() < b * len(failing) and krylov.m >= k:
            self._keep_wanted()  # every repair adds pending columns
        for begin in failing[: max(1, self._room() // b)]:
            R = self._residual_block(self.theta, begin, min(begin + b, k))
            S, coupling, count = krylov.append(R, scale=krylov.norm)
            krylov.couple(begin, S, coupling, count)
        self.repairs += 1
        if excess.max() < self.excess / 2:
            self.excess, self.repairs = float(excess.max()), 0
        self.residuals = None
