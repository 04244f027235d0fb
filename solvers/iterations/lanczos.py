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
    ceil_div,
    column_factors,
    project_out,
    small_matrix,
    to_host,
    width_padding,
)
from ..problem import IterationOptions, Problem, excess, ranking_key, select
from ..sizes import LEAST_STEPS
from ..small_matrices import SAME_RITZ_VALUE, clusters, gram_root, ritz_pairs, separate_copies
from .base import Iteration
from .chebyshev import Filter
from .krylov import Ritz, krylov_of
from .verification import MIN_SEARCH, Search

KEPT = 0.3  # share of the basis beyond the wanted vectors that a restart keeps
MAX_REPAIRS = 5  # a run stagnates if its true residuals were not halved by so many successive repairs
RESTARTS_BETWEEN_CLEANING = 30  # the loss of orthogonality is at most this many times that of a cycle


class ThickRestart(Iteration):
    """Thick-restart block Lanczos for the wanted eigenpairs of a Hermitian operator.

    A derived class may put a polynomial of the operator in its place, for some cycles or all.
    """

    PROGRESS = (
        *(*Iteration.PROGRESS, "degree", "norm", "least", "theta", "estimates"),
        *("next_look", "looked_at", "digits"),
    )
    filter: Filter | None = None  # the polynomial of this cycle
    is_refined = False  # whether the pending columns are refined vectors, without values yet

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
        self.krylov = krylov_of(self.operator, buffer, n_fixed, b, self.rng, self.counts)
        if problem.has_costly_steps:
            self.krylov.pause = 1
            self.krylov.may_lose = False
        self.norm = 0.0  # lower bound of ||A||
        self.least = np.inf  # smallest ranking key of a Ritz value so far, less its residual
        self.excess = np.inf  # least ratio of true residuals and limits so far
        self.repairs = 0  # since that was last halved
        # Columns that A has been applied to at the next look for convergence, and at the last one, when the
        # largest residual was so many digits above its limit.
        self.next_look, self.looked_at, self.digits = 0, 0, math.inf
        self.seen: Ritz | None = None  # Ritz pairs of V as it was at the last look
        self.theta = self.estimates = np.zeros(0)  # Ritz values of V, wanted first, and their residuals

    @property
    def locked(self) -> Block | None:
        """The locked columns, after zeros that round their number up."""
        n_locked = self.krylov.n_locked
        return self.krylov.buffer[:, :n_locked] if n_locked else None

    def _kernels(self) -> dict[str, int]:
        krylov, b = self.krylov, self.options.block_size
        return {
            "locked": krylov.n_locked,
            "capacity": krylov.n_locked + krylov.capacity,
            "start": self.start.shape[1],
            "keep": krylov.padded(self._keep(krylov.capacity - b, b)),
            "last": krylov.padded(self.problem.k + b),
            "p": width_padding(krylov.buffer),
        }

    def _exhausted(self) -> str:
        """Return a reason to stop where repairs do not help, or random directions do not extend the basis."""
        if self.repairs >= MAX_REPAIRS:
            return "stagnated"
        krylov = self.krylov
        return "converged" if not krylov.w and not krylov.append_random(self.block_size) else ""

    def snapshot(self) -> dict[str, Any]:
        return super().snapshot() | self.krylov.snapshot()

    def resume(self, saved: dict[str, Any]) -> None:
        super().resume(saved)
        self.krylov.resume(saved)

    def _begin(self) -> None:
        """Orthonormalise the start, extend it to the block size, and apply A to a given one at once."""
        krylov, b = self.krylov, self.block_size
        if self.locked is not None and self.problem.norm is None:
            # In the complement A may be zero up to rounding errors, which scale with the norm of all of A.
            lengths = np.abs(self.problem.deflated)
            if not len(lengths):
                image = self.locked.like(self.krylov.n_locked)
                apply_in_ranges(self.operator, self.locked, image, b)
                self.counts.apply(image.shape[1])
                self.counts.reductions += 1
                lengths = to_host(image.norms())
            self.norm = float(lengths.max())
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
        if self.is_refined or (not self.random_start and not self.history and krylov.m >= k):
            return ""
        queued = krylov.m + krylov.w
        first = max(k - krylov.m, 0) + krylov.pause * self.block_size
        self.next_look = max(self.next_look, self.counts.operator_columns + first * krylov.degree)
        while krylov.can_expand():
            left = ceil_div(self.next_look - self.counts.operator_columns, krylov.degree)
            left = max(left, queued - krylov.m)
            if left > 0:
                krylov.expand(krylov.m + left, self._stopped)  # otherwise steps were taken ahead
            reason = self._stopped()
            if reason:
                krylov.settle()
            if reason == "interrupted" or (reason and krylov.m >= k):
                return reason  # with a vector for every wanted pair, except after Ctrl-C
            # A missed copy may be among the columns that were pending at the beginning of the cycle.
            if krylov.m >= queued and self.counts.operator_columns >= self.next_look:
                m = krylov.m
                if krylov.takes_launches:
                    krylov.begin_ahead(krylov.pause)  # which a GPU takes meanwhile
                self.seen = krylov.ritz(m)
                if self._look(self.seen) <= 1:
                    if krylov.takes_launches:
                        krylov.withdraw(len(self.seen.theta))
                    break
        return ""

    def _look(self, ritz: Ritz) -> float:
        """Return the largest excess of these Ritz pairs, and plan the next look by the pace of that."""
        krylov, largest = self.krylov, self._excess(ritz)
        now = self.counts.operator_columns - (krylov.m - len(ritz.theta)) * krylov.degree
        digits = math.log10(max(largest, 1.0))
        passed, gained = now - self.looked_at, self.digits - digits
        self.looked_at, self.digits, left = now, digits, krylov.pause * self.block_size * krylov.degree
        if passed and math.isfinite(gained):
            # Without the pace 25 easy problems take 1.22 times as long.
            left = max(left, int(min(digits * passed / gained if gained > 0 else now, now)))
        self.next_look = now + left
        return largest

    def _excess(self, ritz: Ritz) -> float:
        """Return the largest residual of the wanted Ritz pairs, relative to its limit."""
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

    def _restart(self) -> tuple[RealArray, RealArray]:
        """Replace the basis by wanted Ritz vectors; return values of A and estimates of residuals.

        Those of a filter's cycle are predicted where that tells that some pair has not converged.
        """
        krylov, filter, predicts = self.krylov, self.filter, False
        if not self.is_refined:
            seen, self.seen = self.seen, None
            ritz = seen if seen is not None and len(seen.theta) == krylov.m else krylov.ritz()
            if ritz is not seen:
                self._look(ritz)
            order = select(ritz.theta, self.which if filter is None else "LA")
            kept = order[: self._keep(len(order), krylov.w)]
            krylov.restart(ritz, kept)
            # Of largest magnitude, values may have either sign.
            predicts = filter is not None and self.which != "LM" and 1 < self._excess(ritz) < math.inf
        self.is_refined, least = False, self.least
        if filter is None:
            self.theta, self.estimates = ritz.theta[kept], ritz.residuals[kept]
            # The smallest ranking key, less its residual, bounds the spectrum with high probability.
            least = ranking_key(ritz.theta[order[-1]], self.which) - ritz.residuals[order[-1]]
        elif predicts:
            keys, norm = filter.value(ritz.theta[kept]), self.operator_norm()
            self.theta = -keys if self.which == "SA" else keys
            self.estimates = filter.estimates(ritz.theta[kept], ritz.residuals[kept], norm)
        else:
            self.theta, self.estimates = self._rayleigh_ritz(krylov.m or krylov.w)
            least = ranking_key(self.theta, self.which).min()
        self.least = min(self.least, float(least))
        if (self.counts.restarts + 1) % RESTARTS_BETWEEN_CLEANING == 0:
            krylov.reorthonormalize()
        return self.theta[: self.problem.k], self.estimates[: self.problem.k]

    def _rayleigh_ritz(self, count: int) -> tuple[RealArray, RealArray]:
        """Rotate the first vectors to Ritz vectors of A itself; compute their values and residual norms.

        The projected matrix knows no values of A if it is one of a filter, nor what couples copies of a value
        that separate runs found, as much as their residuals. Vectors that steps of single columns and
        restarts leave orthonormal to less than rounding become so.
        """
        krylov = self.krylov
        wide, begin = krylov.padded(count), krylov.m + krylov.w
        fits = begin + wide <= krylov.capacity
        AX = krylov.columns(begin, begin + wide) if fits else krylov.buffer.like(wide)
        AX[:, count:] = 0
        X = krylov.columns(0, wide)
        apply_in_ranges(self.operator, X[:, :count], AX[:, :count], self.block_size)
        self.counts.apply(count)
        project_out(self.locked, AX)
        G, T = (to_host(C)[:count, :count].astype(krylov.H.dtype) for C in (X.gram(), X.dot(AX)))
        R, inverse = gram_root(G)
        theta, Y = ritz_pairs(inverse.conj().T @ T @ inverse)
        self.norm = max(self.norm, float(np.abs(theta).max(initial=0.0)))
        width = 2 * SAME_RITZ_VALUE * self.problem.tolerance.unit * self.norm
        distinct = len(clusters(theta, width)) == len(theta)
        order = select(theta, self.which) if distinct else np.arange(count)
        theta, Y = theta[order], Y[:, order]
        krylov.transform(inverse @ Y, Y.conj().T @ R)
        AX.combine(small_matrix(inverse @ Y, AX, (wide, wide)), out=AX)
        AX[:, :count].axpy(column_factors(-theta, X), X[:, :count])
        G = to_host(AX.gram())[:count, :count].astype(Y.dtype)
        self.counts.reductions += 2
        if not distinct:
            theta, copies = separate_copies(theta, G, width)
            order = select(theta, self.which)
            copies = copies[:, order]
            theta, G = theta[order], copies.conj().T @ G @ copies
            krylov.transform(copies, copies.conj().T)
        return theta, np.sqrt(np.maximum(np.diagonal(G).real, 0))

    def _vectors(self) -> Block:
        theta = self.theta[: self.problem.k]
        if self._is_inverse and theta.all():  # one more step of inverse iteration, without a solve
            X = self.krylov.combined(self.krylov.H[: self.krylov.m + self.krylov.w, : len(theta)])
            return X.scale(column_factors(1 / theta, X))
        return self.krylov.columns(0, len(theta))

    @property
    def _is_inverse(self) -> bool:
        """Whether the operator is an inverse, and its caller checks the residuals of what is inverted."""
        return self.problem.has_costly_steps and self.krylov.degree == 1

    def _true_residuals(self, theta: RealArray) -> RealArray:
        krylov, k = self.krylov, len(theta)
        if self._is_inverse or not (krylov.takes_single_columns and k):
            krylov.reorthonormalize()
            return self.estimates[:k] if self._is_inverse else super()._true_residuals(theta)
        theta, norms = self._rayleigh_ritz(k)
        krylov.H[:k, :k] = np.diag(theta)
        self.theta, self.estimates = np.r_[theta, self.theta[k:]], np.r_[norms, self.estimates[k:]]
        self.state = replace(self.state, eigenvalues=theta, residuals=norms)
        return norms

    def _spans_space(self) -> bool:
        return self.krylov.room == 0 and self.krylov.w == 0

    def _search(self) -> Search:
        # Of largest magnitude, lambda and -lambda are one value of the filter, with the copies of both: a
        # block that is narrower than these has mixtures of them beside fewer copies of each. Where a basis
        # has no room for two steps beside the wanted pairs, one copy may be lost in hundreds of restarts, and
        # where it has none for eight, a value at one end may converge before a larger one at the other end.
        k, b, is_both = self.problem.k, self.options.block_size, self.which == "LM"
        has_room = self.options.ncv >= k + (LEAST_STEPS if is_both else 2) * b
        in_order = has_room and not (is_both and self.degree > 1)
        return Search(
            self.operator,
            X=self.krylov.columns(0, k),
            theta=self.theta[:k],
            which=self.which,
            limits=self.problem.tolerance.margins(self.state.eigenvalues, self.operator_norm()),
            locked=self.locked,
            # A wider block that is made from the Krylov space of b columns contains no more copies.
            copies=min(b, self.block_size) if self.random_start and in_order else 0,
            budget=max(self.counts.operator_columns, MIN_SEARCH // 2 if self.random_start else MIN_SEARCH),
        )

    def _add_missed(self, missed: Block) -> None:
        """Append missed vectors; plain steps go on from them in the complement of the wanted ones.

        Filters converge within few steps: the next search needs the other vectors, which it projects out.
        """
        self.repairs = 0
        if self.krylov.m >= self.problem.k and (self.krylov.degree == 1 or self._room() < self.missing):
            self._keep_wanted()
        if self.krylov.takes_single_columns:  # a mixture of all preserves their recurrence
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

    def _repair(self) -> None:
        """Couple the true residuals to the decomposition, whose own residuals have drifted away."""
        assert self.residuals is not None
        krylov, k, b = self.krylov, self.problem.k, self.block_size
        excess = self.residuals / self.state.limits
        failing = [begin for begin in range(0, k, b) if excess[begin : begin + b].max() > 1]
        if krylov.capacity - krylov.m - krylov.w < b * (len(failing) + 1) and krylov.m >= k:
            self._keep_wanted()  # every repair adds pending columns, beside which a step must fit
        for begin in failing[: max(1, self._room() // b)]:
            R = self._residual_block(self.theta, begin, min(begin + b, k))
            S, coupling, count = krylov.append(R, scale=krylov.norm)
            krylov.couple(begin, S, coupling, count)
        self.repairs += 1
        if excess.max() < self.excess / 2:
            self.excess, self.repairs = float(excess.max()), 0
