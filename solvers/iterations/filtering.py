"""The filter of a Lanczos iteration: whether a polynomial of A takes its place, and which.

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
continues from the kept vectors. Where values far out leave no filter, as the degree of a graph does, plain
Lanczos ends once it has computed these: the others are a problem of their own, in the complement of their
vectors.

References
----------
Zhou, Saad, Tiago, Chelikowsky, J. Comput. Phys. 219 (2006) 172 (Chebyshev-filtered subspaces); Li, Xi,
Vecharynski, Yang, Saad, SIAM J. Sci. Comput. 38 (2016) A2512 (thick-restart Lanczos on a filter). Deviations:
(1) blocks; (2) the interval is approximate, chosen for the number of values outside it; (3) Rayleigh-Ritz
with A on all kept vectors after each cycle.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..blocks import Block, Operator
from ..problem import IterationState, excess
from .chebyshev import (
    LEAST_DEGREE,
    LEAST_GROWTH,
    LEAST_LIMIT,
    MOST_DAMPING,
    PAYING_DEGREE,
    REACH,
    UNIT,
    ChebyshevOperator,
    Filter,
    FoldedOperator,
    choose_degree,
    design_filter,
    filter_width,
    recorder_for,
    separating_degree,
    single_copy,
)
from .krylov import BlockKrylov, Ritz
from .rayleigh_ritz import ranking_key, select, split_outliers

if TYPE_CHECKING:
    from .lanczos import ThickRestart
    from .spectrum import Sketch

Values = tuple[float, float, float, float]  # ranking keys of first and last wanted value, edge and far end

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
STALLED = 3  # cycles without a gain after which a filter is taken to be limited by rounding
ROUNDING_REACH = 1e4  # residuals below so many u ||A|| times the spread may be rounding errors


@dataclass
class FilterState:
    """The state of a filter between cycles; a checkpoint stores its fields."""

    filter: Filter | None = None
    is_mixed: bool = False  # whether it is in single precision
    mixes: bool = True  # whether others may be
    designs: int = 0
    retired: bool = False  # whether filters are no longer used
    best: float = math.inf  # least of the largest residuals, relative to their limits, of a filtered cycle
    stalled: int = 0
    promised: float = math.inf  # predicted largest residual after a cycle, relative to its limit
    refined: float = math.inf  # largest residual, relative to its limit, that was refined last


class Filtering:
    """The filter of a Lanczos iteration, which replaces its decomposition where another one begins."""

    def __init__(self, loop: ThickRestart) -> None:
        self.loop, self.problem, self.options = loop, loop.problem, loop.options
        self.state = FilterState(mixes=loop.options.mixes)
        # Whether neither a filter nor single precision is asked for; and whether cycles without a filter come
        # first: inside a spectrum, one is needed anyway.
        self._may_choose = self.problem.method == "auto" and self.problem.precision != "mixed"
        self._waits_for_need = self._may_choose and not isinstance(loop.operator, FoldedOperator)
        self.is_refined = False  # whether the pending columns are refined vectors, without values yet
        self._copy: tuple[Operator, float] | None = None  # of A in single precision, and its factor
        self._spread: Values | None = None  # that left no filter, with none far out at the other end

    def begin(self) -> None:
        """Design a filter before the first step, where one is needed anyway."""
        if self.loop.random_start and not self._waits_for_need:
            made = self._designed_by_sketch()
            if made is not None:
                self.loop.krylov = self.krylov_of(made)

    def snapshot(self) -> dict[str, Any]:
        return {"filtering": asdict(self.state)}

    def resume(self, saved: dict[str, Any]) -> None:
        fields = saved["filtering"]
        filter = fields.pop("filter")
        self.state = FilterState(**fields)
        self.state.mixes = self.options.mixes and self.state.mixes
        self.state.is_mixed = self.options.mixes and self.state.is_mixed
        if filter is not None:
            self.state.filter = Filter(**filter)
            self.loop.krylov = self.krylov_of(self.state.filter)

    def krylov_of(self, filter: Filter) -> BlockKrylov:
        loop, k, options = self.loop, self.problem.k, self.options
        buffer, recorder = loop.krylov.buffer, None
        # Single columns are for cheap steps; a filter reads the matrix once for all columns.
        width = min(filter_width(k), (options.ncv - k) // 2)  # two steps between restarts
        size = loop.block_size = max(options.block_size, width)
        if buffer.layout is None:  # recordings are found by addresses, which differ between processes
            recorder = recorder_for(loop.operator, buffer[:, :size])
        A, factor = self._single() if self.state.is_mixed else (loop.operator, 1.0)
        operator = ChebyshevOperator(A, filter.scaled(factor), loop.locked, recorder, loop.operator)
        n_locked, how = loop.krylov.n_locked, (filter.degree, self.state.is_mixed)
        return BlockKrylov(operator, buffer, n_locked, size, loop.rng, loop.counts, *how)

    def excess(self, filter: Filter, ritz: Ritz) -> float:
        """Predict from the residuals of the filter the largest one of A, relative to its limit.

        A residual r of the filter at the value phi is an error of r/phi in the vector, and of up to
        2 r/phi ||A|| in the residual of A. In practice a quarter of that is still an upper bound.
        """
        loop, state, best = self.loop, self.state, select(ritz.theta, "LA")[: self.problem.k]
        amplified = ritz.theta[best]
        if len(best) < self.problem.k or amplified[-1] <= 1:
            state.promised = math.inf
            return math.inf
        limits, norm = loop.limits(filter.value(amplified)), loop.operator_norm()
        if state.is_mixed:
            limits = np.maximum(limits, REACH * norm)
        state.promised = float((PROMISE * norm * ritz.residuals[best] / amplified / limits).max())
        return state.promised

    def _designed_by_sketch(self) -> Filter | None:
        """Design the filter for a sketch of the spectrum, of more steps where it is crowded."""
        from .spectrum import sketch_spectrum

        loop, options = self.loop, self.options
        outside = max(OUTSIDE * options.ncv, self.problem.k + options.block_size)  # of the damped interval

        def placed(sketch: Sketch) -> tuple[float, float, float]:
            first, last = (sketch.beyond(count, loop.which) for count in (0, self.problem.k))
            return first, last, sketch.beyond(outside, loop.which, below=last)

        def is_resolved(sketch: Sketch) -> bool:
            beyond = ranking_key(sketch.theta, loop.which) > placed(sketch)[-1]
            return float(sketch.counts[beyond].sum()) <= CROWDED * outside

        sketch = sketch_spectrum(
            loop.operator,
            loop.krylov.buffer.random_like(SKETCH_WIDTH, loop.rng),
            SKETCH_STEPS,
            loop.locked,
            most=MAX_SKETCH_STEPS,
            resolved=is_resolved,
        )
        loop.counts.apply(SKETCH_WIDTH, sketch.applications)
        loop.counts.reductions += (2 if loop.locked is None else 3) * sketch.applications
        loop.norm = max(loop.norm, sketch.norm)
        loop.least = min(loop.least, sketch.least(loop.which))
        values = (*placed(sketch), loop.least)
        made = self._design(values)
        self.state.retired = made is None
        end = -sketch.beyond(outside, "SA" if loop.which == "LA" else "LA")  # of all but few values
        if made is None and (loop.which == "LM" or end - loop.least < values[2] - end):
            self._spread = values
        return made

    def _design(self, values: Values) -> Filter | None:
        """Choose a filter and its precision, and make it the present one; None if there is none."""
        loop, state = self.loop, self.state
        state.designs += 1
        limit = float(loop.limits(np.full(1, abs(values[1]))).max())
        asked = self.problem.precision == "mixed"
        is_mixed = state.mixes and (asked or limit >= LEAST_LIMIT * loop.operator_norm())
        made = self._designed(values, limit, is_mixed)
        if is_mixed and not asked:
            double = self._designed(values, limit, False)
            degrees = [0 if filter is None else filter.degree for filter in (made, double)]
            if degrees[0] < LEAST_MIXED * degrees[1]:
                made, is_mixed, state.mixes = double, False, False
        if made is None or state.designs > MAX_DESIGNS:
            return None
        loop.expected_calls = CALLS_PER_DEGREE * separating_degree(values, loop.which, loop.operator_norm())
        loop.degree = max(loop.degree, made.degree)
        state.filter, state.is_mixed = made, is_mixed
        state.best, state.stalled = math.inf, 0
        return made

    def _designed(self, values: Values, limit: float, is_mixed: bool) -> Filter | None:
        loop, options = self.loop, self.options
        degree, unit, norm = options.degree, self.problem.tolerance.unit, loop.operator_norm()
        if is_mixed:
            sizes = options.block_size, (self.problem.k + options.ncv) // 2
            degree = max(degree, choose_degree(self._single()[0], *sizes, loop.operator.dtype.itemsize))
            unit = UNIT
        rounding = unit * norm
        spread = min(max(1e-2 * limit / rounding, LEAST_SPREAD), MAX_SPREAD) if rounding else LEAST_SPREAD
        least = PAYING_DEGREE if self._may_choose else LEAST_DEGREE
        return design_filter(values, loop.which, norm, degree, spread, least)

    def _single(self) -> tuple[Operator, float]:
        if self._copy is None:
            self._copy = single_copy(self.loop.operator, self.loop.operator_norm())
        return self._copy

    def advance(self, now: IterationState) -> str:
        """Choose the operator of the next cycle; return a reason to stop, if any."""
        loop, state, k = self.loop, self.state, self.problem.k
        if loop.krylov.complete:
            return ""
        if state.retired:
            return self._without_outliers(now)
        if state.filter is not None and not loop.krylov.can_expand():
            self._adopt(state.filter)  # pending columns, as of missed copies, leave no room for a step
            return ""
        if len(loop.theta) <= k:
            return ""
        if state.filter is None:  # a given start has been checked
            if self._waits_for_need and converges_soon(loop.history, loop.krylov.steps.takes_single_columns):
                return ""
            made = self._designed_by_sketch()
            if reason := loop.costly():
                return reason
            if made is not None:
                self._adopt(made, keeps=not loop.random_start)
            return ""
        worst = float(np.max(excess(now.residuals, now.limits)))
        if loop.krylov.m == 0 and worst > 1:  # the refined vectors are not accurate enough
            if worst < state.refined / LEAST_REFINEMENT:
                self._refine(state.filter, worst)
            else:
                self._adopt(state.filter, keeps=True)
        else:
            self._judge(state.filter, now, worst)
        return ""

    def _without_outliers(self, now: IterationState) -> str:
        """End, if values far out are computed and there is a filter for the others; return the reason.

        Without it 20 pairs of a random graph with 107 000 rows took 620 restarts on a GPU; 3 of 10 stagnated.
        """
        loop, problem = self.loop, self.problem
        is_plain = problem.checkpoint is None and loop.random_start and problem.precision != "mixed"
        is_plain &= not (problem.has_costly_steps or isinstance(loop.operator, FoldedOperator))
        if self._spread is None or not is_plain or loop.krylov.steps.takes_single_columns:
            return ""
        limits = np.full(problem.k, now.limits.min())
        far, others = split_outliers(now.eigenvalues, now.residuals, limits, loop.which)
        first = float(ranking_key(now.eigenvalues[others], loop.which).max())
        values = (first, *self._spread[1:])
        if not len(far) or self._designed(values, float(limits[0]), False) is None:
            return ""
        if converges_soon(loop.history[len(loop.history) // 2 :], True, len(far)):
            return ""
        loop.residuals = loop._true_residuals(now.eigenvalues)
        if not len(split_outliers(now.eigenvalues, loop.residuals, limits, loop.which)[0]):
            self._spread = None  # the decomposition has drifted away
            return ""
        loop.expected_calls = CALLS_PER_DEGREE * separating_degree(values, loop.which, loop.operator_norm())
        return loop.costly() or "outliers"

    def _judge(self, filter: Filter, now: IterationState, worst: float) -> None:
        """Go on with a filter, another one or none, by what it has gained."""
        loop, state, k = self.loop, self.state, self.problem.k
        state.stalled = 0 if worst < max(state.best / 2, 1) else state.stalled + 1
        state.best = min(state.best, worst)
        stalled = state.stalled >= STALLED
        values = ranking_key(loop.theta, loop.which)
        first, last, edge = values[[0, k - 1, -1]].tolist()
        # Rounding errors of a first value further out than predicted by the sketch dominate the others.
        spread = filter.growth(first) - filter.growth(last)
        is_wrong = spread > math.log(UNFORESEEN * max(filter.spread, LEAST_SPREAD)) and last > filter.edge
        is_wrong = is_wrong or (loop.least < filter.low and loop.which != "LM")
        if is_wrong or (stalled and last <= filter.edge):
            # Beyond its edge lie the wanted values: the last kept one may be far from convergence.
            edge = max(edge, filter.edge) if last > filter.edge else edge
            made = self._design((first, last, edge, loop.least))
            if made is not None:
                self._adopt(made)
            elif is_wrong or state.designs > MAX_DESIGNS:
                self.retire()
        elif state.is_mixed and state.promised <= 1 < worst:
            self._refine(filter, worst)
        elif stalled:
            reach = SINGLE_REACH * UNIT if state.is_mixed else ROUNDING_REACH * self.problem.tolerance.unit
            if float(now.residuals.max()) < reach * loop.operator_norm() * filter.spread:
                if state.is_mixed:
                    self._refine(filter, worst)
                else:
                    self.retire()

    def _refine(self, filter: Filter, worst: float) -> None:
        """Continue in double precision, from wanted vectors without the rounding errors of single precision.

        These errors are distributed over the whole spectrum; a filter in double precision damps them. The
        largest residual is `worst` times its limit.
        """
        loop, state, k, b = self.loop, self.state, self.problem.k, self.options.block_size
        start = loop.krylov.columns(0, len(loop.theta)).copy()
        growth = max(filter.growth(float(ranking_key(loop.theta, loop.which)[k - 1])), LEAST_GROWTH)
        damping = min(SURPLUS * worst, MOST_DAMPING)
        degree = math.ceil(math.acosh(max(damping, 1.0)) / growth * filter.degree)
        refining = replace(filter, degree=max(degree + degree % 2, LEAST_DEGREE))
        operator = ChebyshevOperator(loop.operator, refining, loop.locked)
        for begin in range(0, k, b):
            part = start[:, begin : begin + b]
            loop.counts.apply(part.shape[1], operator.degree)
            part[:, :] = operator.apply(part.copy())
        state.is_mixed = state.mixes = False
        self.is_refined, state.refined = True, worst
        state.best, state.stalled, state.promised = math.inf, 0, math.inf
        loop.krylov = self.krylov_of(filter)
        loop.krylov.append(start, keep_random=True)

    def _adopt(self, filter: Filter, *, keeps: bool = False) -> None:
        """Start a Krylov space of a filter from the kept vectors: from mixtures, or from all wanted ones.

        Mixtures take few columns, and converge from the beginning; `keeps` preserves what has converged.
        """
        loop = self.loop
        start, _ = self._start(max(self.problem.k, self.options.block_size), keeps=keeps)
        loop.krylov = self.krylov_of(filter)
        loop.krylov.append(start, keep_random=True)

    def _start(self, width: int, *, keeps: bool = True) -> tuple[Block, bool]:
        """Return the first vectors if they leave room for steps, or random combinations of all; and which."""
        loop, krylov, b = self.loop, self.loop.krylov, self.options.block_size
        width = min(width, len(loop.theta))
        if keeps and 2 * (width + b) <= krylov.capacity:
            return krylov.columns(0, width).copy(), True
        # The worst vectors get the largest weights; all are needed, because the old space is discarded.
        largest = max(float(loop.estimates.max()), np.finfo(float).tiny)
        weights = np.minimum(1.0, loop.estimates / largest) + 1e-3
        return krylov.combined(weights[:, None] * loop.rng.standard_normal((len(weights), b))), False

    def retire(self) -> None:
        """Continue with A itself from the wanted vectors; apply A to them at once if there is room."""
        loop, b = self.loop, self.options.block_size
        self.state.filter, self.state.retired, self.state.is_mixed = None, True, False
        start, fits = self._start(self.problem.k + b)
        krylov, loop.block_size = loop.krylov, b
        loop.krylov = BlockKrylov(loop.operator, krylov.buffer, krylov.n_locked, b, loop.rng, loop.counts)
        loop.krylov.append(start, keep_random=not fits)
        loop.krylov.norm = loop.norm
        if fits:
            loop.krylov.expand_wide()


def converges_soon(history: list[IterationState], is_single: bool, outside: int = 0) -> bool:
    """Check whether few more cycles without a filter are predicted to suffice, beside values far out.

    The prediction is by the digits that the wanted pairs lack in the mean: the largest residual falls late,
    and grows where one more copy is found. Where a search has found more copies, what came before does not
    count.
    """
    ends = [i for i, state in enumerate(history, start=1) if state.converged == len(state.eigenvalues)]
    history = history[ends[-1] :] if ends else history
    cycles = len(history) - 1
    begin, most = (SINGLE_CYCLES, MOST_SINGLE_CYCLES) if is_single else (BLOCK_CYCLES, MOST_BLOCK_CYCLES)
    if cycles + 1 < begin:
        return True
    first, now = (_mean_digits(history[i], outside) for i in (0, -1))
    return now * cycles <= most * (first - now)


def _mean_digits(state: IterationState, outside: int) -> float:
    """Return the mean digits that residuals are above their limits, but those of the first pairs."""
    return float(np.log10(np.maximum(excess(state.residuals, state.limits), 1))[outside:].mean())
