"""Checks before an iteration returns: true residuals, and a search for missed eigenvalues.

Residuals are recomputed from A and the vectors, because rounding errors accumulate in the estimates of an
iteration; if one exceeds its limit the basis is repaired. Then missed copies of multiple eigenvalues are
searched for; if any are found, the basis is extended by them. In both cases the iteration continues.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np

from ..blocks import Block, RealArray, column_factors, project_out, random_block, to_host
from ..problem import IterationOptions, Problem
from ..transform.fold import FoldedOperator
from .base import Iteration, IterationResult, IterationState
from .verification import Found, look_for_missed, may_have_missed

__all__ = ["MIN_SEARCH", "VerifiedIteration"]

MIN_SEARCH = 200  # degree of a search that is always allowed
MAX_SEARCH_WIDTH = 8  # maximum number of missed copies searched for at a time


class VerifiedIteration(Iteration):
    """An iteration that checks true residuals and searches for missed eigenvalues before it returns.

    Parameters
    ----------
    problem, options, start, interrupted
        As of `Iteration`.
    """

    PROGRESS = (*Iteration.PROGRESS, "least", "search_width", "found_missed", "missing", "verification")

    least: float  # lower bound of the ranking keys, of (A - target I)^2 with a target

    def __init__(
        self,
        problem: Problem,
        options: IterationOptions,
        start: Block,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(problem, options, start, interrupted)
        self.degree = 1  # highest degree of a polynomial of A
        self.residuals: RealArray | None = None  # true residual norms of the current vectors, if known
        self.search_width = 1
        self.found_missed = 0
        self.missing = 0  # wanted vectors found by the last search that are not in the result
        self.verification = "not reached"

    # --- to be defined by iterations ----------------------------------------------------------------

    @property
    @abstractmethod
    def locked(self) -> Block | None:
        """The locked columns."""

    @abstractmethod
    def _norm(self) -> float:
        """Return ||A||, as given or estimated."""

    @abstractmethod
    def _vectors(self) -> Block:
        """Return the current approximations of the wanted eigenvectors."""

    @abstractmethod
    def _spans_space(self) -> bool:
        """Whether the basis spans the complement of the locked columns."""

    @abstractmethod
    def _converges_in_order(self) -> bool:
        """Whether copies of an eigenvalue converge together, before any less wanted value."""

    @abstractmethod
    def _repair(self, state: IterationState) -> None:
        """Correct the basis by the true residuals, some of which exceed their limits."""

    @abstractmethod
    def _found(self, state: IterationState) -> Found:
        """Describe the computed eigenpairs for a search."""

    @abstractmethod
    def _search_budget(self) -> int:
        """Return the maximum degree of a search."""

    @abstractmethod
    def _add_missed(self, missed: Block) -> None:
        """Extend the basis by missed vectors."""

    # --- residuals ----------------------------------------------------------------------------------

    def _limits(self, theta: RealArray) -> RealArray:
        """Compute the residual limits of values."""
        return np.broadcast_to(self.problem.tolerance.limits(theta, self._norm()), theta.shape)

    def _residual_block(self, theta: RealArray, begin: int, end: int) -> Block:
        """Compute A X - X theta for a range of the wanted vectors."""
        X = self._vectors()[:, begin:end].copy()
        R = self.operator.apply(X)
        self.counts.apply(end - begin)
        R.axpy(column_factors(-theta[begin:end], X), X)
        return project_out(self.locked, R)

    def _true_residuals(self, theta: RealArray) -> RealArray:
        """Compute the norms ||A x - theta x||, one block of columns at a time."""
        k, b = len(theta), self.options.block_size
        norms = [self._residual_block(theta, i, min(i + b, k)).norms() for i in range(0, k, b)]
        self.counts.reductions += len(norms)
        return np.concatenate([to_host(part) for part in norms]).astype(np.float64)

    def _random_norm(self, like: Block, locked: Block | None) -> float:
        """Estimate ||A|| by ||A z|| / ||z|| for a random z: a given start may not excite all of A."""
        z = random_block(like, 1, self.rng)
        norms = [float(to_host(project_out(locked, V).norms())[0]) for V in (z, self.operator.apply(z))]
        self.counts.apply(1)
        self.counts.reductions += 2
        return norms[1] / norms[0]

    # --- checks -------------------------------------------------------------------------------------

    def _settled(self, state: IterationState) -> bool:
        """Whether true residuals are within their limits and no eigenvalue is missed; if not, go on."""
        self.residuals = self._true_residuals(state.eigenvalues)
        if (self.residuals > state.limits).any():
            self._repair(state)
            return False
        if self._spans_space():
            self.verification = "not needed: the basis spans the space"
            self.missing = 0
            return True
        verify, b = self.problem.verify, self.options.block_size
        if verify == "never":
            self.verification = "switched off"
            return True
        in_order = self.random_start and not self.found_missed and self._converges_in_order()
        doubtful = not in_order or may_have_missed(state.eigenvalues, state.limits, self.which, b)
        if verify == "auto" and not doubtful:
            self.verification = f"not needed: no eigenvalue before the last has {b} copies, the block size"
            return True
        return self._verified(state)

    def _verified(self, state: IterationState) -> bool:
        """Search for missed eigenvalues; extend the basis by what is found."""
        target, counts = self.problem.target, self.counts
        folded = self.operator if target is None else FoldedOperator(self.operator, target, self.locked)
        each = 1 if target is None else 2  # applications of A per application of the operator searched with
        found, budget = self._found(state), self._search_budget()
        verdict = look_for_missed(folded, found, self.search_width, budget, self.rng, self._stopped)
        counts.operator_columns += each * verdict.columns
        counts.verification_columns += each * verdict.columns
        counts.block_applications += each * verdict.applications
        counts.reductions += verdict.reductions
        self.verification = verdict.text + ("" if target is None else ", by (A - sigma I)^2")
        self.missing = 0 if verdict.missed is None else verdict.missed.shape[1]
        if verdict.missed is None:
            return True
        self.found_missed += self.missing
        self.search_width = min(2 * self.search_width, MAX_SEARCH_WIDTH)
        self._add_missed(verdict.missed)
        return False

    def _result(self, state: IterationState, reason: str) -> IterationResult:
        if reason != "converged" and self.verification == "not reached":
            self.verification = "skipped: the iteration ended before"
        if self.residuals is None:
            self.residuals = self._true_residuals(state.eigenvalues)
        return IterationResult(
            theta=state.eigenvalues,
            X=self._vectors(),
            residuals=self.residuals,
            limits=state.limits,
            reason=reason,
            verification=self.verification,
            missing=self.missing,
            norm=self._norm(),
            degree=self.degree,
            counts=self.counts,
            history=self.history,
        )
