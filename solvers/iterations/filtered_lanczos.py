"""Chebyshev-filtered block Lanczos: thick restart with a polynomial of A that amplifies the wanted end.

A Chebyshev polynomial F = T_d of A has A's eigenvectors; it maps the unwanted part of the spectrum to [-1, 1]
and separates the values of the wanted end. A Lanczos step with F corresponds to d steps with A and needs only
one orthogonalisation: this is faster if applying A costs less than orthogonalising the result, as on
memory-bound machines. After each cycle a Rayleigh-Ritz step with A on the kept vectors gives values and true
residuals.

The first cycle is one of plain Lanczos steps, if the method may be chosen: where these are predicted to
converge soon, no filter is designed.

The damped interval need not be accurate. Its edge is computed from a sketch of the density of eigenvalues and
lies inside the unwanted part: what F does not damp is separated by Lanczos. Degrees are even, so that values
beyond a wrong far end are amplified, too: they appear among the kept vectors as Ritz values outside the
interval, and the filter is designed again. If a filter amplifies the first wanted value far more than the
last, rounding errors limit the accuracy of the last; if this limit exceeds the tolerance, plain Lanczos on A
continues from the kept vectors.

References
----------
Zhou, Saad, Tiago, Chelikowsky, J. Comput. Phys. 219 (2006) 172 (Chebyshev-filtered subspaces); Li, Xi,
Vecharynski, Yang, Saad, SIAM J. Sci. Comput. 38 (2016) A2512 (thick-restart Lanczos on a filter). Deviations:
(1) blocks; (2) the interval is approximate, chosen for the number of values outside it; (3) Rayleigh-Ritz
with A on all kept vectors after each cycle.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

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
)
from ..problem import IterationState, excess
from ..transform.fold import FoldedOperator
from .chebyshev import ChebyshevOperator, recorder_for, steps_within_leak
from .filter import (
    LEAST_DEGREE,
    LEAST_GROWTH,
    PAYING_DEGREE,
    Filter,
    choose_degree,
    degree_of,
    design_filter,
    filter_width,
    separating_degree,
)
from .krylov import BlockKrylov, Ritz
from .lanczos import ThickRestart
from .mixed_precision import LEAST_LIMIT, MOST_DAMPING, REACH, UNIT, SingleCopy
from .rayleigh_ritz import SAME_RITZ_VALUE, clusters, ranking_key, ritz_pairs, select, separate_copies

if TYPE_CHECKING:
    from .spectrum import Sketch

# A filter is designed once the residuals of so many cycles predict more than the largest number of others.
# Without filters, 12 problems of 4e3 to 4e4 rows took 1.20 times as long.
SINGLE_CYCLES = 5  # cycles of single columns, before which residuals predict little
MOST_SINGLE_CYCLES = 30.0  # cycles; with 22, filters made 2 of 31 problems 1.3 and 1.9 times as slow
BLOCK_CYCLES = 2  # cycles of blocks, on long columns and GPUs, where a step costs more beside a product
MOST_BLOCK_CYCLES = 7.0  # cycles; 3 matrices of 1.4e5 rows on a host: 0.63 to 1.10 of the time of five rules
SKETCH_WIDTH = 2  # vectors of a sketch
SKETCH_STEPS, MAX_SKETCH_STEPS = 40, 320  # Lanczos steps of a sketch, at first and at most
OUTSIDE = 2.0  # number of eigenvalues outside the damped interval, relative to the basis size
CROWDED = 4.0  # ratio of values outside to the planned number above which a sketch is extended
LEAST_SPREAD, MAX_SPREAD = 1e2, 1e6  # amplification of the first over that of the last wanted value
MAX_DESIGNS = 6  # filters of a run, after which it goes on without one
# Share of the degree in double precision down to which a filter is mixed: rounding errors bound the spread,
# and with it the degree where the first value is far out. A product in single precision takes half the time.
LEAST_MIXED = 0.6
# Calls of A in a whole solve, per degree that separates the wanted values: 15 to 80 on lattices, spin chains
# and finite elements.
CALLS_PER_DEGREE = 40.0
SINGLE_REACH = 10.0  # the same in single precision as `ROUNDING_REACH`
LEAST_REFINEMENT = 4.0  # factor of residuals from which on vectors are refined once more
SURPLUS = 2.0  # damping of rounding errors beyond what their residuals need
UNFORESEEN = 10.0  # ratio of the spread to the planned one above which the sketch was wrong
PROMISE = 0.5  # predicted residual of A in units of ||A|| r/phi: two to five times the observed one
BROKEN_PROMISE = 2.0  # safety factor after a prediction that was too small
MAX_DOUBT = 1e6
STALLED = 3  # cycles without a gain after which a filter is taken to be limited by rounding
ROUNDING_REACH = 1e4  # residuals below so many u ||A|| times the spread may be rounding errors
LEAK = 1e-3  # relative size of components along locked eigenvectors at which they are projected out again
WIDE_START = 4  # a Krylov space may start from 1/WIDE_START of the basis size


class FilteredRestart(ThickRestart):
    """Thick-restart block Lanczos on a filtered operator, or on A itself if a filter gains nothing."""

    PROGRESS = (
        *(*ThickRestart.PROGRESS, "designs", "retired", "best", "stalled"),
        *("promised", "doubt", "is_mixed", "mixes", "refined"),
    )
    KERNELS = "filter"

    filter: Filter | None = None
    mixes = True  # whether filters may still be in single precision
    is_mixed = False  # whether the current one is
    _copy: SingleCopy | None = None
    designs = 0
    retired = False  # whether filters are no longer used
    best = np.inf  # least of the largest residuals, relative to their limits, of a filtered cycle
    stalled = 0
    doubt = 1.0  # ratio of computed to predicted residuals
    refined = np.inf  # largest residual, relative to its limit, that was refined last
    is_refined = False  # whether the pending columns are refined vectors without values and residuals
    promised = np.inf  # predicted largest residual after a cycle, relative to its limit

    def _begin(self) -> None:
        if self.random_start and not self._waits_for_need:
            self._sketch()
            if self.filter is not None:
                self.krylov = self._filtered_krylov(self.filter)
        super()._begin()

    def snapshot(self) -> dict[str, Any]:
        """Return the state after a restart, including the filter."""
        return super().snapshot() | {"filter": None if self.filter is None else asdict(self.filter)}

    def resume(self, saved: dict[str, Any]) -> None:
        """Restore a state returned by `snapshot`."""
        self.norm, self.is_mixed = saved["norm"], self.options.mixes and saved["is_mixed"]
        if saved["filter"] is not None:
            self.filter = Filter(**saved["filter"])
            self.krylov = self._filtered_krylov(self.filter)
        super().resume(saved)

    def _filtered_krylov(self, filter: Filter) -> BlockKrylov:
        krylov, recorder = self.krylov, None
        # Single columns are for cheap steps; a filter reads the matrix once for all columns.
        k, options = self.problem.k, self.options
        width = min(filter_width(k), (options.ncv - k) // 2)  # two steps between restarts
        size = self.block_size = max(options.block_size, width)
        if krylov.buffer.layout is None:  # recordings are found by addresses, which differ between processes
            recorder = recorder_for(self.operator, krylov.buffer[:, :size])
        operator = ChebyshevOperator(
            *(self._single() if self.is_mixed else self.operator, filter, self.locked, recorder),
            matrix=self.operator,
            project_every=self._steps_between_projections(filter),
        )
        operands = krylov.buffer, krylov.n_locked, size, self.rng, self.counts
        return BlockKrylov(operator, *operands, filter.degree)

    def _steps_between_projections(self, filter: Filter) -> int:
        """Return the steps in which components along locked eigenvectors, initially their errors, stay small.

        Other locked columns, those of a caller, are projected out after each step.
        """
        values = self.problem.deflated
        if not len(values):
            return 1
        centre = (filter.low + filter.edge) / 2
        above = np.abs(ranking_key(values, self.which) - centre) - filter.half_width
        unit = UNIT if self.is_mixed else self.problem.tolerance.unit
        steps = steps_within_leak(LEAK, above, self._limits(values), filter.half_width, unit)
        return int(min(filter.degree, steps))

    def _cycle(self) -> str:
        if self.is_refined:
            return ""  # the refined vectors may be accurate enough
        columns = self.counts.operator_columns
        reason = super()._cycle()
        if self.is_mixed:
            self.counts.single_columns += self.counts.operator_columns - columns
        return reason

    def _excess(self, ritz: Ritz) -> float:
        """Predict from the residuals of the filter the largest one of A, relative to its limit.

        A residual r of the filter at the value phi is an error of r/phi in the vector, and of up to
        2 r/phi ||A|| in the residual of A. In practice a quarter of that is still an upper bound.
        """
        if self.filter is None:
            return super()._excess(ritz)
        best = select(ritz.theta, "LA")[: self.problem.k]
        amplified = ritz.theta[best]
        if len(best) < self.problem.k or amplified[-1] <= 1:
            self.promised = math.inf
            return math.inf
        limits = self._limits(self.filter.value(amplified))
        if self.is_mixed:
            limits = np.maximum(limits, REACH * self._norm())
        self.promised = float((PROMISE * self._norm() * ritz.residuals[best] / amplified / limits).max())
        return self.doubt * self.promised

    def _rayleigh_ritz(self) -> IterationState:
        """Restart, and compute values and residuals with A."""
        if self.filter is None:
            return super()._rayleigh_ritz()
        if not self.is_refined:
            ritz = self._ritz()
            self._excess(ritz)
            self.krylov.restart(ritz, select(ritz.theta, "LA")[: self._keep(len(ritz.theta), self.krylov.w)])
        self.is_refined = False
        self._look()
        return self._current_state()

    def _look(self) -> None:
        """Rotate the kept or refined vectors to Ritz vectors of A; compute their values and residuals."""
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
        krylov.rotate(U)
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
            krylov.rotate(copies)
        self.theta, self.estimates = theta, np.sqrt(np.maximum(np.diagonal(G).real, 0))

    # --- whether a filter pays, and which ------------------------------------------------------------

    @property
    def _may_choose(self) -> bool:
        """Whether neither a filter nor single precision is asked for."""
        return self.problem.method == "auto" and self.problem.precision != "mixed"

    @property
    def _waits_for_need(self) -> bool:
        """Whether cycles without a filter come first; inside a spectrum, one is needed anyway."""
        return self._may_choose and not isinstance(self.operator, FoldedOperator)

    def _converges_soon(self) -> bool:
        """Check whether few more cycles without a filter are predicted to suffice.

        The prediction is by the digits that the wanted pairs lack in the mean: the largest residual falls
        late, and grows where one more copy is found. The mean falls faster towards the end, and one more copy
        matters less if all cycles count: the larger rate of all and of the last two thirds is taken.
        """
        is_single, cycles = self.krylov.takes_single_columns, len(self.history) - 1
        begin, most = (SINGLE_CYCLES, MOST_SINGLE_CYCLES) if is_single else (BLOCK_CYCLES, MOST_BLOCK_CYCLES)
        if cycles + 1 < begin:
            return True
        now, windows = self._mean_digits(self.history[-1]), (cycles, max(1, 2 * cycles // 3))
        gained = max((self._mean_digits(self.history[-1 - window]) - now) / window for window in windows)
        return now <= most * gained

    @staticmethod
    def _mean_digits(state: IterationState) -> float:
        """Return the digits that the wanted pairs' residuals are above their limits in the mean."""
        return float(np.log10(np.maximum(excess(state.residuals, state.limits), 1)).mean())

    def _outside(self) -> float:
        """Return the planned number of eigenvalues outside of the damped interval."""
        return max(OUTSIDE * self.options.ncv, self.problem.k + self.options.block_size)

    def _placed(self, sketch: Sketch) -> tuple[float, float, float]:
        """Return ranking keys of the first and the last wanted value, and of the edge."""
        first, last = (sketch.beyond(count, self.which) for count in (0, self.problem.k))
        return first, last, sketch.beyond(self._outside(), self.which, below=last)

    def _sketch(self) -> None:
        """Design the filter for a sketch of the spectrum, of more steps where it is crowded."""
        from .spectrum import sketch_spectrum

        counts = self.counts
        sketch = sketch_spectrum(
            self.operator,
            self.krylov.buffer.random_like(SKETCH_WIDTH, self.rng),
            SKETCH_STEPS,
            self.locked,
            most=MAX_SKETCH_STEPS,
            resolved=lambda seen: seen.crowd(self._placed(seen)[-1], self.which) <= CROWDED * self._outside(),
        )
        counts.operator_columns += sketch.columns
        counts.block_applications += sketch.applications
        counts.reductions += sketch.reductions
        self.norm = max(self.norm, sketch.norm)
        self.least = min(self.least, sketch.least(self.which))
        self._design((*self._placed(sketch), self.least))

    def _design(self, values: tuple[float, float, float, float]) -> None:
        """Choose a filter for ranking keys of the first and last wanted value, the edge and the far end."""
        self.designs += 1
        limit = float(self._limits(np.full(1, abs(values[1]))).max())
        asked = self.problem.precision == "mixed"
        is_mixed = self.mixes and self.options.mixes and (asked or limit >= LEAST_LIMIT * self._norm())
        filter = self._designed(values, limit, is_mixed)
        if is_mixed and not asked:
            double = self._designed(values, limit, False)
            if degree_of(filter) < LEAST_MIXED * degree_of(double):
                filter, is_mixed = double, False
                self.mixes, self._copy = False, None
        self.filter = filter
        separating = separating_degree(values, self.which, self._norm())
        self.expected_calls = 0.0 if self.filter is None else CALLS_PER_DEGREE * separating
        if self.designs > MAX_DESIGNS:
            self.filter = None
        self.retired = self.filter is None
        self.is_mixed = is_mixed and not self.retired
        self.best, self.stalled, self.doubt = np.inf, 0, 1.0
        if self.filter is not None:
            self.degree = max(self.degree, self.filter.degree)

    def _designed(
        self, values: tuple[float, float, float, float], limit: float, is_mixed: bool
    ) -> Filter | None:
        """Design a filter for matrices in single or double precision."""
        degree, unit = self.options.degree, self.problem.tolerance.unit
        if is_mixed:
            sizes = self.options.block_size, (self.problem.k + self.options.ncv) // 2
            degree = max(degree, choose_degree(self._single(), *sizes, self.operator.dtype.itemsize))
            unit = UNIT
        rounding = unit * self._norm()
        spread = min(max(1e-2 * limit / rounding, LEAST_SPREAD), MAX_SPREAD) if rounding else LEAST_SPREAD
        least = PAYING_DEGREE if self._may_choose else LEAST_DEGREE
        return design_filter(values, self.which, self._norm(), degree, spread, least)

    def _single(self) -> SingleCopy:
        """Return the matrix in single precision; it is converted once."""
        if self._copy is None:
            self._copy = SingleCopy(self.operator, self._norm())
        return self._copy

    # --- the end ------------

    def _converges_in_order(self) -> bool:
        # Of largest magnitude, lambda and -lambda are one value of the filter, with the copies of both: a
        # block that is narrower than these has mixtures of them beside fewer copies of each.
        return self.which != "LM" or self.degree == 1

    def _repair(self, state: IterationState) -> None:
        if self.filter is None:
            super()._repair(state)
        else:
            self._retire()
            self.residuals = None

    def _advance(self) -> str:
        k, state = self.problem.k, self.history[-1]
        if not (self.retired or self.krylov.can_expand() or self.krylov.complete):
            self._adopt()  # pending columns, of a wide start and of missed copies, leave no room for a step
            return ""
        if self.retired or len(self.theta) <= k:
            return ""
        if self.filter is None:  # a given start has been checked
            if self._waits_for_need and self._converges_soon():
                return ""
            self._sketch()
            if reason := self._costly():
                return reason
            self._adopt()
            return ""
        worst = float(np.max(excess(state.residuals, state.limits)))
        if self.krylov.m == 0 and worst > 1:  # the refined vectors are not accurate enough
            if worst < self.refined / LEAST_REFINEMENT:
                self._refine(worst)
            else:
                self._adopt(keeps=True)
            return ""
        self.stalled = 0 if worst < max(self.best / 2, 1) else self.stalled + 1
        self.best = min(self.best, worst)
        if self.doubt * self.promised <= 1 < worst and not self.is_mixed:
            self.doubt = BROKEN_PROMISE * worst / max(self.promised, worst / MAX_DOUBT)
        stalled = self.stalled >= STALLED
        values = ranking_key(self.theta, self.which)
        wrong = self.least < self.filter.low and self.which != "LM"
        # Rounding errors of a first value further out than predicted by the sketch dominate the others.
        spread = self.filter.growth(values[0]) - self.filter.growth(values[k - 1])
        planned = math.log(UNFORESEEN * max(self.filter.spread, LEAST_SPREAD))
        wrong = wrong or (spread > planned and values[k - 1] > self.filter.edge)
        if wrong or (stalled and values[k - 1] <= self.filter.edge):
            self._redesign(values, needed=wrong)
        elif self.is_mixed and self.promised <= 1 < worst:
            self._refine(worst)
        elif stalled:
            reach = SINGLE_REACH * UNIT if self.is_mixed else ROUNDING_REACH * self.problem.tolerance.unit
            if float(state.residuals.max()) < reach * self._norm() * self.filter.spread:
                if self.is_mixed:
                    self._refine(worst)
                else:
                    self._retire()
        return ""

    def _redesign(self, values: RealArray, *, needed: bool) -> None:
        """Design another filter from ranking keys of Ritz values.

        If these allow none, and the present one is not known to be wrong (`needed`), it is kept: wanted
        values that have not converged lie inside the spectrum.
        """
        assert self.filter is not None
        former = self.filter, self.is_mixed, self.expected_calls
        first, last, edge = values[[0, self.problem.k - 1, -1]].tolist()
        # Beyond its edge lie the wanted values: the last kept one may be far from convergence.
        edge = max(edge, self.filter.edge) if last > self.filter.edge else edge
        self._design((first, last, edge, self.least))
        if self.filter is None and not needed and self.designs <= MAX_DESIGNS:
            self.filter, self.is_mixed, self.expected_calls = former
            self.retired = False
        else:
            self._adopt()

    def _refine(self, worst: float) -> None:
        """Continue in double precision, from wanted vectors without the rounding errors of single precision.

        These errors are distributed over the whole spectrum; a filter in double precision damps them. The
        largest residual is `worst` times its limit.
        """
        assert self.filter is not None
        k, b, start = self.problem.k, self.options.block_size, self.krylov.columns(0, len(self.theta)).copy()
        growth = max(self.filter.growth(float(ranking_key(self.theta, self.which)[k - 1])), LEAST_GROWTH)
        damping = min(SURPLUS * worst, MOST_DAMPING)
        degree = math.ceil(math.acosh(max(damping, 1.0)) / growth * self.filter.degree)
        filter = replace(self.filter, degree=max(degree + degree % 2, LEAST_DEGREE))
        operator = ChebyshevOperator(
            *(self.operator, filter, self.locked), project_every=self._steps_between_projections(filter)
        )
        for begin in range(0, k, b):
            part = start[:, begin : begin + b]
            self.counts.apply(part.shape[1], operator.degree)
            part[:, :] = operator.apply(part.copy())
        self.is_mixed = self.mixes = False
        self.is_refined, self.refined = True, worst
        self.best, self.stalled, self.promised = np.inf, 0, np.inf
        self.krylov = self._filtered_krylov(self.filter)
        self.krylov.append(start, keep_random=True)

    def _adopt(self, *, keeps: bool = False) -> None:
        """Start a Krylov space of a filter from the kept vectors: from all wanted ones, or from mixtures.

        Mixtures take few columns, and converge from the beginning; `keeps` preserves what has converged.
        """
        if self.filter is None:
            self._retire()
            return
        krylov = self.krylov
        width = max(self.problem.k, self.options.block_size)
        is_given = not self.random_start and self.designs == 1 and WIDE_START * width <= krylov.capacity
        if keeps or is_given:
            start = krylov.columns(0, min(width, len(self.theta))).copy()  # preserve a good start
        else:
            start = self._mixture()
        self.krylov = self._filtered_krylov(self.filter)
        self.krylov.append(start, keep_random=True)

    def _mixture(self) -> Block:
        """Return a block of random combinations of all kept vectors."""
        krylov = self.krylov
        # The worst vectors get the largest weights; all are needed, because the old space is discarded.
        largest = max(float(self.estimates.max()), np.finfo(float).tiny)
        weights = np.minimum(1.0, self.estimates / largest) + 1e-3
        mixture = weights[:, None] * self.rng.standard_normal((len(weights), self.block_size))
        return krylov.combined(mixture)

    def _retire(self) -> None:
        """Continue with A itself from the wanted vectors; apply A to them at once if there is room."""
        krylov, b = self.krylov, self.options.block_size
        plain = krylov.operator is self.operator
        self.filter, self.retired, self.is_mixed = None, True, False
        if plain:
            return
        self.block_size = b
        width = min(krylov.m, self.problem.k + b)
        fits = 2 * (width + b) <= krylov.capacity
        start = krylov.columns(0, width).copy() if fits else self._mixture()
        self.krylov = BlockKrylov(self.operator, krylov.buffer, krylov.n_locked, b, self.rng, self.counts)
        self.krylov.append(start, keep_random=not fits)
        self.krylov.norm = self.norm
        if fits:
            self.krylov.expand_wide()
