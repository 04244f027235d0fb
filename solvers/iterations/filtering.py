"""The filter of a Lanczos iteration: whether a polynomial of A takes its place, and which.

A Chebyshev polynomial F = T_d of A has A's eigenvectors; it maps the unwanted part of the spectrum to [-1, 1]
and separates the values of the wanted end. A Lanczos step with F corresponds to d steps with A and needs only
one orthogonalisation: this is faster if applying A costs less than orthogonalising the result, as on
memory-bound machines. Where the filter's residuals predict convergence, a Rayleigh-Ritz step with A on the
kept vectors gives values and true residuals.

The first cycle is one of plain Lanczos steps, if the method may be chosen: where these are predicted to
converge soon, no filter is designed.

The damped interval need not be accurate. Its edge is computed from a sketch of the density of eigenvalues and
lies inside the unwanted part: what F does not damp is separated by Lanczos. Degrees are even, so that values
beyond a wrong far end are amplified, too: they appear among the kept vectors as Ritz values outside the
interval. If a filter amplifies the first wanted value far more than the last, rounding errors limit the
accuracy of the last. If residuals stall at this limit, or for a wrong interval, plain Lanczos on A continues
from the kept vectors. Where values far out leave no filter, as the degree of a graph does, plain Lanczos ends
once it has computed these: the others are a problem of their own, in the complement of their vectors.

References
----------
Zhou, Saad, Tiago, Chelikowsky, J. Comput. Phys. 219 (2006) 172 (Chebyshev-filtered subspaces); Li, Xi,
Vecharynski, Yang, Saad, SIAM J. Sci. Comput. 38 (2016) A2512 (thick-restart Lanczos on a filter). Deviations:
(1) blocks; (2) the interval is approximate, chosen for the number of values outside it; (3) Rayleigh-Ritz
with A on all kept vectors if the filter's residuals predict convergence, which is defined by true residuals.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..blocks import Block, LinearMap, Operator
from ..costs import PAYING_DEGREE, choose_degree
from ..problem import IterationOptions, IterationState, Problem, excess, ranking_key, select, split_outliers
from ..result import EigenResult
from ..sizes import filter_width
from .chebyshev import (
    LEAST_DEGREE,
    LEAST_GROWTH,
    MOST_DAMPING,
    REACH,
    UNIT,
    ChebyshevOperator,
    Filter,
    FoldedOperator,
    design_filter,
    recorder_for,
    single_copy,
)
from .krylov import Ritz, krylov_of
from .lanczos import ThickRestart

Values = tuple[float, float, float, float]  # ranking keys of first and last wanted value, edge and far end

# A filter is designed once the residuals of so many cycles predict more than the largest number of others.
# Without filters, a path takes 1.7 times as long and a lattice of 63 000 rows 1.3 times.
SINGLE_CYCLES = 10  # cycles of single columns, before which residuals predict little
MOST_SINGLE_CYCLES = 60.0  # cycles; with 30 after 5 cycles, ten lattices took 1.13 times as long
BLOCK_CYCLES = 2  # cycles of blocks, on long columns and GPUs, where a step costs more beside a product
MOST_BLOCK_CYCLES = 7.0  # cycles; 3 matrices of 1.4e5 rows on a host: 0.63 to 1.10 of the time of five rules
SKETCH_WIDTH = 2  # vectors of a sketch
# Lanczos steps of a sketch, at first and at most. With 40 alone a Laplacian of 320^3 rows took 1.6 times as
# long on an H200, one of 200^3 rows 1.3 times: the degree followed from an edge that was too far inside.
SKETCH_STEPS, MOST_SKETCH_STEPS = 40, 320
OUTSIDE = 2.0  # number of eigenvalues outside the damped interval, relative to the basis size
LEAST_SPREAD, MAX_SPREAD = 1e2, 1e6  # amplification of the first over that of the last wanted value
# Calls of A in a whole solve, per degree that separates the wanted values: 15 to 80 on lattices, spin chains
# and finite elements.
CALLS_PER_DEGREE = 40.0
SURPLUS = 2.0  # damping of rounding errors beyond what their residuals need
STALLED = 3  # cycles without a gain after which a filter is taken to be limited by rounding
ROUNDING_REACH = 1e4  # residuals below so many u ||A|| times the spread may be rounding errors


class FilteredRestart(ThickRestart):
    """Thick-restart block Lanczos with a polynomial of the operator in its place where that takes less time.

    A filter replaces the decomposition where another one begins.
    """

    PROGRESS = (
        *ThickRestart.PROGRESS,
        *("filter", "is_mixed", "mixes", "retired", "best", "stalled", "promised"),
    )

    def __init__(
        self, problem: Problem, options: IterationOptions, start: Block, interrupted: Callable[[], bool]
    ) -> None:
        super().__init__(problem, options, start, interrupted)
        self.is_mixed = False  # whether the filter is in single precision
        self.mixes = options.mixes  # whether others may be
        self.retired = False  # whether filters are no longer used
        self.best = math.inf  # least of the largest residuals, relative to their limits, of a filtered cycle
        self.stalled = 0  # cycles without a gain
        self.promised = math.inf  # predicted largest residual after a cycle, relative to its limit
        # Whether neither a filter nor single precision is asked for; and whether cycles without a filter come
        # first: inside a spectrum, one is needed anyway.
        self._may_choose = problem.method == "auto" and problem.precision != "mixed"
        self._waits_for_need = self._may_choose and not isinstance(self.operator, FoldedOperator)
        self._copy: tuple[Operator, float] | None = None  # of A in single precision, and its factor
        self._spread: Values | None = None  # that left no filter, with none far out at the other end

    def resume(self, saved: dict[str, Any]) -> None:
        super().resume(saved)
        self.mixes, self.is_mixed = self.options.mixes and self.mixes, self.options.mixes and self.is_mixed
        if self.filter is not None:
            self.filter = Filter(*self.filter)
            self._begin_with(None)
            self.krylov.resume(saved)
            self.digits = saved["digits"]

    def _begin(self) -> None:
        """Design a filter before the first step, where one is needed anyway."""
        if self.random_start and not self._waits_for_need and self._designed_by_sketch() is not None:
            self._begin_with(None)
        super()._begin()

    def _begin_with(self, start: Block | None) -> None:
        """Replace the decomposition by one of the filter, or of A, that begins with some columns."""
        operator: LinearMap = self.operator
        krylov, size, degree = self.krylov, self.options.block_size, 1
        if self.filter is not None:
            # Single columns are for cheap steps; a filter reads the matrix once for all columns.
            k, degree = self.problem.k, self.filter.degree
            size = max(size, min(filter_width(k), (self.options.ncv - k) // 2))  # two steps between restarts
            recorder = recorder_for(operator, krylov.buffer[:, :size])
            A, factor = self._single() if self.is_mixed else (self.operator, 1.0)
            operator = ChebyshevOperator(A, self.filter.scaled(factor), self.locked, recorder, self.operator)
        self.block_size, self.digits = size, math.inf
        how = krylov.n_locked, size, self.rng, self.counts, degree, self.is_mixed
        self.krylov = krylov_of(operator, krylov.buffer, *how)
        if start is not None:
            self.krylov.append(start, keep_random=True)

    def _excess(self, ritz: Ritz) -> float:
        """Predict from the residuals of the filter the largest one of A, relative to its limit."""
        if self.filter is None:
            return super()._excess(ritz)
        best = select(ritz.theta, "LA")[: self.problem.k]
        amplified = ritz.theta[best]
        if len(best) < self.problem.k or amplified[-1] <= 1:
            self.promised = math.inf
            return math.inf
        limits, norm = self.limits(self.filter.value(amplified)), self.operator_norm()
        if self.is_mixed:
            limits = np.maximum(limits, REACH * norm)
        self.promised = float((self.filter.estimates(amplified, ritz.residuals[best], norm) / limits).max())
        return self.promised

    def _designed_by_sketch(self) -> Filter | None:
        """Design the filter for a sketch of the spectrum, of more steps where its end is crowded."""
        from .spectrum import Sketch, sketch_spectrum

        which, options, k = self.which, self.options, self.problem.k
        outside = max(OUTSIDE * options.ncv, k + options.block_size)  # of the damped interval

        def is_resolved(sketch: Sketch) -> bool:
            edge = sketch.beyond(outside, which, below=sketch.beyond(k, which))
            return float(sketch.counts[ranking_key(sketch.theta, which) > edge].sum()) <= 2 * outside

        V, most = self.krylov.buffer.random_like(SKETCH_WIDTH, self.rng), MOST_SKETCH_STEPS
        sketch = sketch_spectrum(self.operator, V, SKETCH_STEPS, self.locked, most=most, resolved=is_resolved)
        self.counts.apply(SKETCH_WIDTH, sketch.applications)
        self.counts.reductions += (2 if self.locked is None else 3) * sketch.applications
        self.norm = max(self.norm, sketch.norm)
        self.least = min(self.least, sketch.least(which))
        first, last = (sketch.beyond(count, which) for count in (0, k))
        values = first, last, sketch.beyond(outside, which, below=last), self.least
        made = self._design(values)
        self.retired = made is None
        end = -sketch.beyond(outside, "SA" if which == "LA" else "LA")  # of all but few values
        if made is None and (which == "LM" or end - self.least < values[2] - end):
            self._spread = values
        return made

    def _design(self, values: Values) -> Filter | None:
        """Choose a filter and its precision, and make it the present one; None if there is none."""
        limit = float(self.limits(np.full(1, abs(values[1]))).max())
        asked = self.problem.precision == "mixed"
        is_mixed = self.mixes and (asked or limit >= REACH * self.operator_norm())
        made = self._designed(values, limit, is_mixed)
        if is_mixed and not asked:
            double = self._designed(values, limit, False)
            degrees = [0 if filter is None else filter.degree for filter in (made, double)]
            if 2 * degrees[0] < degrees[1]:  # a product in single precision takes half the time
                made, is_mixed, self.mixes = double, False, False
        if made is None:
            return None
        self.expected_calls = CALLS_PER_DEGREE * made.separating_degree(values[1])
        self.degree = max(self.degree, made.degree)
        self.filter, self.is_mixed = made, is_mixed
        return made

    def _designed(self, values: Values, limit: float, is_mixed: bool) -> Filter | None:
        options = self.options
        degree, unit, norm = options.degree, self.problem.tolerance.unit, self.operator_norm()
        if is_mixed:
            sizes = options.block_size, (self.problem.k + options.ncv) // 2
            degree = max(degree, choose_degree(self._single()[0], *sizes, self.operator.dtype.itemsize))
            unit = UNIT
        rounding = unit * norm
        spread = LEAST_SPREAD
        if rounding:
            spread = min(max(limit / (LEAST_SPREAD * rounding), LEAST_SPREAD), MAX_SPREAD)
        least = PAYING_DEGREE if self._may_choose else LEAST_DEGREE
        return design_filter(values, self.which, norm, degree, spread, least)

    def _single(self) -> tuple[Operator, float]:
        if self._copy is None:
            self._copy = single_copy(self.operator, self.operator_norm())
        return self._copy

    def _advance(self) -> str:
        """Choose the operator of the next cycle; return a reason to stop, if any."""
        now = self.state
        if not self.krylov.w:
            return ""
        if self.retired:
            return self._without_outliers(now)
        if self.filter is not None and not self.krylov.can_expand():
            self._adopt()  # pending columns, as of missed copies, leave no room for a step
            return ""
        if len(self.theta) <= self.problem.k:
            return ""
        if self.filter is None:  # a given start has been checked
            if self._waits_for_need and converges_soon(self.history, self.krylov.takes_single_columns):
                return ""
            made = self._designed_by_sketch()
            if reason := self.costly():
                return reason
            if made is not None:
                self._adopt(keeps=not self.random_start)
            return ""
        worst = float(np.max(excess(now.residuals, now.limits)))
        if self.krylov.m == 0 and worst > 1:  # the refined vectors are not accurate enough
            self._adopt(keeps=True)
        else:
            self._judge(self.filter, now, worst)
        return ""

    @property
    def _is_beyond(self) -> bool:
        """Whether the filter amplifies values beyond its far end, which would be taken for wanted ones."""
        return self.filter is not None and self.least < self.filter.low and self.which != "LM"

    def _settled(self) -> bool:
        return not self._is_beyond and super()._settled()

    def _result(self, reason: str) -> EigenResult:
        if self.filter is not None and self.residuals is None:  # values may be predicted
            theta, residuals = self._rayleigh_ritz(self.krylov.m or self.krylov.w)
            theta, residuals = theta[: self.problem.k], residuals[: self.problem.k]
            limits = self.limits(theta)
            self.state = replace(self.state, eigenvalues=theta, residuals=residuals, limits=limits)
        return super()._result(reason)

    def _without_outliers(self, now: IterationState) -> str:
        """End, if values far out are computed and there is a filter for the others; return the reason.

        Without it 20 pairs of a random graph with 107 000 rows took 620 restarts on a GPU; 3 of 10 stagnated.
        """
        problem = self.problem
        is_plain = problem.checkpoint is None and self.random_start and problem.precision != "mixed"
        is_plain &= not (problem.has_costly_steps or isinstance(self.operator, FoldedOperator))
        if self._spread is None or not is_plain or self.krylov.takes_single_columns:
            return ""
        limits = np.full(problem.k, now.limits.min())
        far, others = split_outliers(now.eigenvalues, now.residuals, limits, self.which)
        first = float(ranking_key(now.eigenvalues[others], self.which).max())
        values = (first, *self._spread[1:])
        made = self._designed(values, float(limits[0]), False) if len(far) else None
        if made is None:
            return ""
        if converges_soon(self.history[len(self.history) // 2 :], False, len(far)):
            return ""
        self.residuals = self._true_residuals(now.eigenvalues)
        if not len(split_outliers(now.eigenvalues, self.residuals, limits, self.which)[0]):
            self._spread = None  # the decomposition has drifted away
            return ""
        self.expected_calls = CALLS_PER_DEGREE * made.separating_degree(values[1])
        return self.costly() or "outliers"

    def _judge(self, filter: Filter, now: IterationState, worst: float) -> None:
        """Go on with a filter, in double precision or without one, by what it has gained.

        None of 134 drawn solves had a wrong filter, so that none is designed again.
        """
        self.stalled = 0 if worst < max(self.best / 2, 1) else self.stalled + 1
        self.best = min(self.best, worst)
        stalled, is_limited = self.stalled >= STALLED, False
        if stalled and not self.is_mixed:
            # Rounding errors of a first value that is amplified more than the last one dominate that.
            first, last = ranking_key(self.theta, self.which)[[0, self.problem.k - 1]].tolist()
            spread = filter.growth(first) - filter.growth(last)  # its logarithm
            noise = self.problem.tolerance.unit * self.operator_norm()
            reach = math.log(float(now.residuals.max()) / (ROUNDING_REACH * noise))
            is_limited = last <= filter.edge or reach < spread
        if self._is_beyond or is_limited:
            self._retire()
        elif self.is_mixed and worst > 1 and (stalled or self.promised <= 1):
            self._refine(filter, worst)

    def _refine(self, filter: Filter, worst: float) -> None:
        """Continue in double precision, from wanted vectors without the rounding errors of single precision.

        These errors are distributed over the whole spectrum; a filter in double precision damps them. The
        largest residual is `worst` times its limit.
        """
        k, b = self.problem.k, self.options.block_size
        start = self.krylov.columns(0, len(self.theta)).copy()
        growth = max(filter.growth(float(ranking_key(self.theta, self.which)[k - 1])), LEAST_GROWTH)
        damping = min(SURPLUS * worst, MOST_DAMPING)
        degree = math.ceil(math.acosh(max(damping, 1.0)) / growth * filter.degree)
        refining = filter._replace(degree=max(degree + degree % 2, LEAST_DEGREE))
        operator = ChebyshevOperator(self.operator, refining, self.locked)
        for begin in range(0, k, b):
            part = start[:, begin : begin + b]
            self.counts.apply(part.shape[1], operator.degree)
            part[:, :] = operator.apply(part.copy())
        self.is_mixed = self.mixes = False
        self.is_refined = True
        self.best, self.stalled, self.promised = math.inf, 0, math.inf
        self._begin_with(start)

    def _adopt(self, *, keeps: bool = False) -> None:
        """Start a Krylov space of the filter, or of A, from the kept vectors: from mixtures, or wanted ones.

        Mixtures take few columns, and converge from the beginning; `keeps` preserves what has converged,
        where the wanted vectors leave room for steps.
        """
        krylov, b = self.krylov, self.options.block_size
        width = min(max(self.problem.k, b), len(self.theta))
        if keeps and 2 * (width + b) <= krylov.capacity:
            self._begin_with(krylov.columns(0, width).copy())
            return
        # The worst vectors get the largest weights; all are needed, because the old space is discarded.
        largest = max(float(self.estimates.max()), np.finfo(float).tiny)
        weights = np.minimum(1.0, self.estimates / largest) + 1e-3
        mixtures = weights[:, None] * self.rng.standard_normal((len(weights), b))
        self._begin_with(krylov.combined(mixtures))

    def _repair(self) -> None:
        """Do without the filter if true residuals exceed their limits."""
        if self.filter is None:
            super()._repair()
        else:
            self._retire()
            self.residuals = None

    def _retire(self) -> None:
        """Continue with A itself from the wanted vectors."""
        self.filter, self.retired, self.is_mixed = None, True, False
        self._adopt(keeps=True)
        self.krylov.norm = self.norm


def converges_soon(history: list[IterationState], is_single: bool, outside: int = 0) -> bool:
    """Check whether few more cycles without a filter are predicted to suffice, beside values far out.

    The prediction is by the digits that the wanted pairs lack in the mean: the largest residual falls late,
    and grows where one more copy is found. Where a search has found more copies, what came before does not
    count.
    """
    least, most = (SINGLE_CYCLES, MOST_SINGLE_CYCLES) if is_single else (BLOCK_CYCLES, MOST_BLOCK_CYCLES)
    recent = list(
        itertools.takewhile(lambda state: (state.residuals > state.limits).any(), reversed(history))
    )
    if len(recent) < least:
        return True
    if len(recent) >= 2 * least:  # first cycles may be fast: a filter would wait for hundreds of slow ones
        recent = recent[: len(recent) // 2 + 1]
    above = [np.maximum(excess(state.residuals, state.limits), 1) for state in (recent[-1], recent[0])]
    first, now = np.log10(above)[:, outside:].mean(axis=1)
    return bool(now * (len(recent) - 1) <= most * (first - now))
