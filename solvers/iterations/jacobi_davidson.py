"""Block Jacobi-Davidson: a search space that is extended by corrections of its best vectors.

For each of a few approximate pairs (theta, x) with residual r = A x - theta x, a correction t is appended,
computed by a few steps of MINRES or GMRES on the correction equation

    (I - Q Q^H) (A - theta I) (I - Q Q^H) t = -r,    Q = [converged vectors, the block of x],

or by one application of a preconditioner. The method needs no factorisation inside a spectrum, can use a
preconditioner for all eigenvalues, and stores few vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockvec.system.frozen import frozen

from ..blocks import Block, Operator, RealArray, pick, side_by_side, small_matrix, to_host
from ..costs import PAYING_DEGREE, choose_degree
from ..problem import FLOOR, Counts, IterationOptions, IterationState, Problem, Tolerance, excess, ranking_key
from ..sizes import choose_options, outpaced
from ..small_matrices import gram_root
from .base import Iteration
from .chebyshev import SEPARATED, FoldedOperator
from .correction import AdaptiveStop, CorrectionProblem, Corrector, JacobiDavidsonOptions
from .filtering import FilteredRestart
from .search_space import SearchSpace, extended
from .verification import MIN_SEARCH, Search

STALLED = 240  # corrections without a gain, after which a run ends
KEPT_SHARE = 0.4  # share of the basis beyond the wanted vectors that a restart keeps; PRIMME's
GAIN = 0.1  # decades: decrease of all residuals together that counts as a gain
REDUCTION = 0.1  # ratio of the tolerances of successive corrections of a pair, by GMRES

# The initial space inside a spectrum is by filtered block Lanczos around the target. Far from eigenvectors
# corrections reduce the residual slowly: a third of the operator columns, and more than half of the time,
# was spent before the first wanted vector was isolated, and eight lattices took 2.9 to 4.7 times as long. A
# filter computes the lowest eigenvectors of (A - tau I)^2 by products alone, until residuals are small
# compared with the distances from tau: from there on corrections converge fast, and filters of the square
# slowly.
START_SPARE = 4  # vectors in addition to the wanted ones: without, seven solves took 1.24 times as long
START_SHARE = 0.25  # applications, over those that take as long as dense LAPACK; each is two of A


class JacobiDavidson(Iteration):
    """Block Jacobi-Davidson for the wanted eigenpairs of a Hermitian operator.

    If ``problem.start`` has k columns or more, no Lanczos steps are taken. The reason of the result is
    "stagnated" if the residuals no longer decrease.

    Raises
    ------
    OptionError
        For options that do not fit together.

    References
    ----------
    Sleijpen, van der Vorst, SIAM J. Matrix Anal. Appl. 17 (1996) 401; Roehrig-Zoellner, Thies, Kreutzer,
    Alvermann, Pieper, Basermann, Hager, Wellein, Fehske, SIAM J. Sci. Comput. 37 (2015) C697 (block form);
    Stathopoulos, Saad, ETNA 7 (1998) 163 (the restart that retains previous approximations).
    """

    PROGRESS = (
        *Iteration.PROGRESS,
        *("attempts", "best", "best_at", "previous", "updated_for", "followed"),
        *("corrector.method", "corrector.undecided", "corrector.corrections"),
    )

    def __init__(
        self, problem: Problem, options: IterationOptions, start: Block, interrupted: Callable[[], bool]
    ) -> None:
        super().__init__(problem, options, start, interrupted)
        how = problem.jd_options or JacobiDavidsonOptions()
        k, b = problem.k, options.block_size
        how.check(k, options.ncv, b)
        self.target, self.preconditioner = problem.target, problem.preconditioner
        capacity = min(options.ncv, problem.n - problem.n_locked)
        self.space = SearchSpace(problem, start, capacity, self.counts)
        kept = min(k + int(KEPT_SHARE * (capacity - k)), capacity - 2 * b)
        self.kept = how.min_basis or max(k, kept)
        self.corrector = Corrector(problem, how, self.counts)
        self.attempts = np.zeros(k, np.intp)  # corrections of each pair since it last was within its limit
        # Coefficients of the last iteration's vectors.
        self.previous = np.zeros((0, 0), np.result_type(start.dtype, np.float64))
        self.updated_for = -1  # the pair that the preconditioner was last updated for, and
        self.followed = 0.0  # its value at the time
        self.best, self.best_at = np.inf, 0

    @property
    def locked(self) -> Block | None:
        return self.space.locked

    def _kernels(self) -> dict[str, int]:
        space = self.space
        return {
            "p": space.padding,
            "capacity": space.buffer.shape[1],
            "basis": space.padded(space.capacity),
            "vectors": space.capacity,
            "after": min(self.kept + self.options.block_size, space.capacity),
            "width": min(self.options.block_size, self.problem.k),  # of a block of corrections
        }

    def snapshot(self) -> dict[str, Any]:
        return super().snapshot() | self.space.snapshot()

    def resume(self, saved: dict[str, Any]) -> None:
        self.space.resume(saved)
        self._restart()  # whose costs were counted before
        super().resume(saved)
        update = getattr(self.preconditioner, "update", None)
        if update is not None and self.updated_for >= 0:
            update(self.followed)

    def _begin(self) -> None:
        """Take filtered or plain block Lanczos steps until the basis is as large as after a restart."""
        space, b = self.space, self.options.block_size
        is_free = self.random_start and self.preconditioner is None
        degree = choose_degree(self.operator, self.options.block_size, self.options.ncv)
        if self.target is not None and is_free and degree >= PAYING_DEGREE:
            space.extend(filtered_start(space, self.problem, b, self.counts, self.interrupted))
            space.norm = max(space.norm, self._random_norm(space.buffer, None))
            self.filter_calls = self.counts.block_applications
            return
        space.extend(self.start)
        if space.m < b:
            space.extend(space.buffer.random_like(b - space.m, self.rng))
        wanted = max(self.problem.k, self.kept if is_free else 0)
        while space.m < min(wanted, space.capacity, space.m + space.room):
            space.extend(space.images(min(b, space.m)))
        if not self.random_start:
            space.norm = max(space.norm, self._random_norm(space.buffer, None))

    @property
    def norm(self) -> float:
        return self.space.norm

    def _expand(self) -> str:
        return self._stopped()  # `_advance` has expanded the space

    def _restart(self) -> tuple[RealArray, RealArray]:
        """Extract the wanted pairs, and compute their residuals."""
        k, (theta, self.Y) = self.problem.k, self.space.extract()
        theta, Y = theta[:k], self.Y[:, :k]
        self.X = self.space.vectors(Y)
        self.R = self.space.residuals(self.X, Y, theta)
        self.counts.reductions += 1
        return theta, to_host(self.R.norms()).astype(np.float64)

    def _advance(self) -> str:
        if self.state.converged < self.problem.k:  # otherwise the basis has been repaired, or extended
            self._grow(self.state)
        return ""

    def _grow(self, state: IterationState) -> None:
        """Compute corrections to the first unconverged pairs and add them to the space."""
        space, b = self.space, self.options.block_size
        failing = np.flatnonzero(state.residuals > state.limits)[:b]
        if space.padding > 1:  # kernels are compiled for blocks of b: fill up with other pairs
            others = np.setdiff1d(np.arange(self.problem.k), failing)
            failing = np.append(failing, others[::-1][: b - len(failing)])
        T = self._corrections(state, failing)
        whole = space.capacity == space.m + space.room  # the space may grow until it spans everything
        Y = self.Y[:, : self.problem.k]
        if space.m + len(failing) > space.capacity and not whole:
            self._shrink(failing)
            Y = np.eye(space.m, Y.shape[1], dtype=Y.dtype)
        self.previous = Y
        space.extend(T)

    def _shrink(self, failing: NDArray[np.intp]) -> None:
        """Restart from the best vectors and the previous approximations of the corrected ones (GD+k).

        Without these, corrections by preconditioners took 1.5 times as long (12 solves of three matrices).
        """
        m, p, b = self.space.m, len(self.previous), self.options.block_size
        kept = min(self.kept, self.space.capacity - b)
        Y = self.Y[:, :kept]
        room = min(b, self.space.capacity - kept - b)
        if room > 0 and 0 < p < m:
            older = np.zeros((m, min(room, len(failing))), Y.dtype)
            older[:p] = self.previous[:, failing[:room]]
            Y = extended(Y, older)
        self.space.shrink(Y)

    def _corrections(self, state: IterationState, failing: NDArray[np.intp]) -> Block:
        converged = np.setdiff1d(np.flatnonzero(state.residuals <= state.limits), failing)
        self.attempts[converged] = 0
        self.attempts[failing] += 1
        self._update_preconditioner(int(failing[0]), state)
        theta, X = state.eigenvalues[failing], pick(self.X, failing)
        problem = CorrectionProblem(
            self.corrector.counted,
            X,
            pick(self.R, failing),
            theta.copy(),
            np.power(REDUCTION, self.attempts[failing]),
            self.preconditioner,
            lambda: self._deflation(converged, X),
        )
        ends = {"LA": np.ones(len(theta)), "SA": -np.ones(len(theta)), "LM": np.sign(theta)}
        direction = np.zeros(len(theta)) if self.target is not None else ends[self.which]
        stop = AdaptiveStop(state.residuals[failing], state.limits[failing], direction.astype(np.intp))
        return self.corrector.solve(problem, stop, len(converged))

    def _deflation(self, converged: NDArray[np.intp], X: Block) -> Block:
        """Return locked and converged vectors, X, and zero columns up to a width that has kernels."""
        known = side_by_side(self.space.locked, pick(self.X, converged), X)
        q = known.shape[1]
        width = self.space.padded(q) if self.preconditioner is None else q
        if width == q:
            return known
        Q = known.like(width)
        Q[:, :q], Q[:, q:] = known, 0
        return Q

    def _update_preconditioner(self, first: int, state: IterationState) -> None:
        """Call the preconditioner's `update` if the first value has changed by more than its residual."""
        update = getattr(self.preconditioner, "update", None)
        theta = float(state.eigenvalues[first])
        moved = abs(theta - self.followed) > state.residuals[first]
        if update is not None and (first != self.updated_for or moved):
            update(theta)
            self.updated_for, self.followed = first, theta

    def _exhausted(self) -> str:
        """Return a reason to stop if the basis spans the space, or residuals no longer decrease."""
        if self.space.room == 0 and not self.missing:
            return "converged"
        above = np.maximum(excess(self.state.residuals, self.state.limits), 1)
        measure = float(np.log10(above).sum())
        corrections = self.counts.restarts * self.options.block_size
        if measure < self.best - GAIN:
            self.best, self.best_at = measure, corrections
        return "stagnated" if corrections - self.best_at >= STALLED else ""

    def _vectors(self) -> Block:
        return self.X

    def _spans_space(self) -> bool:
        return self.space.room == 0

    def _true_residuals(self, theta: RealArray) -> RealArray:
        _, inverse = gram_root(to_host(self.X.gram()).astype(self.Y.dtype))
        self.counts.reductions += 1
        self.X.combine(small_matrix(inverse, self.X), out=self.X)
        return super()._true_residuals(theta)

    def _repair(self) -> None:
        """Recompute the image of the basis, and correct the pairs by their true residuals."""
        assert self.residuals is not None
        self.space.refresh()
        self._grow(replace(self.state, residuals=self.residuals))

    def _search(self) -> Search:
        """Make the search beside the pairs of a state, around a target by the folded operator."""
        theta, limits, which, target = self.state.eigenvalues, self.state.limits, self.which, self.target
        # At two ends a copy may converge after less wanted values of the other sign. Around a target no
        # copies converge together: a single one may have others. In single precision 5 of 300 solves of a
        # lattice returned a value of the next cluster in the place of the last copy.
        copies = self.options.block_size
        if target is not None or self.operator.dtype.char in "fF":
            copies = 1
        if target is None and which == "LM":
            copies = 0
        operator: Operator = self.operator
        if target is not None:
            operator, which = FoldedOperator(operator, target, self.locked), "SA"
            distances = np.abs(theta - target)
            theta = distances**2
            # Another value must be nearer by the limits of A, or by more than rounding errors of the square.
            rounding = FLOOR * self.problem.tolerance.unit * (self.operator_norm() + abs(target)) ** 2
            limits = np.maximum(limits * (2 * distances + limits), rounding)
        order = np.argsort(-ranking_key(theta, which), kind="stable")
        columns = self.counts.operator_columns - self.counts.verification_columns
        search = Search(
            operator,
            X=pick(self.X, order),
            theta=theta[order],
            which=which,
            limits=limits[order],
            locked=self.locked,
            copies=copies if self.random_start else 0,
            budget=max(columns // (1 if target is None else 2), MIN_SEARCH),
        )
        if target is not None and search.last >= 0 and theta.max() > self.limits(np.array(target)) ** 2:
            search.text = "undecided: rounding errors hide values this near"
        return search

    def _add_missed(self, missed: Block) -> None:
        if self.space.m + self.missing > self.space.capacity:
            self._shrink(np.zeros(0, np.intp))
        self.previous = self.previous[:0, :0]
        self.space.extend(missed)
        self.best = np.inf


@frozen
class _Standing(Tolerance):
    """Residuals at which eigenvectors of (A - tau I)^2 are separated from those further away."""

    def limits(self, theta: RealArray, norm: float) -> RealArray:
        limits: RealArray = np.maximum(SEPARATED * np.abs(theta).max(initial=0.0), self.floor(theta, norm))
        return limits


def filtered_start(
    space: SearchSpace, problem: Problem, block_size: int, counts: Counts, interrupted: Callable[[], bool]
) -> Block:
    """Compute vectors near those of the eigenvalues nearest to the target of a search space.

    The space has room for them. Costs are added to `counts`; `block_size` is that of Jacobi-Davidson.
    """
    count = min(max(problem.k, min(problem.k + START_SPARE, space.capacity - block_size)), space.room)
    anew: dict[str, Any] = dict.fromkeys(("norm", "checkpoint", "callback", "block_size", "ncv", "maxiter"))
    square = replace(
        problem,
        operator=FoldedOperator(space.operator, space.tau, space.locked),
        k=count,
        which="SA",
        target=None,
        tolerance=_Standing(0.0, "absolute", problem.tolerance.unit),
        verify="never",
        method="filter",
        jd_options=None,
        deflated=np.zeros(0),
        **anew,
    )
    options = choose_options(square)
    options = replace(options, is_outpaced=outpaced(problem, options, START_SHARE))
    start = space.buffer.random_like(options.block_size, problem.rng)
    loop = FilteredRestart(square, options, start, interrupted)
    loop.run()
    counts.add(loop.counts, 2)
    return loop.krylov.columns(0, min(count, len(loop.theta))).copy()
