"""Whether a run takes a filter, and which: from its residuals, and from a sketch of the spectrum."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..column_block import ColumnOperator, by_rows
from ..problem import excess
from ..transform.fold import FoldedOperator
from .filter_design import (
    FEW_PAIRS,
    LEAST_DEGREE,
    PAYING_DEGREE,
    STIFFEST,
    Filter,
    choose_degree,
    design_filter,
    most_cycles,
    separating_degree,
)
from .lanczos import ThickRestart
from .mixed_precision import LEAST_LIMIT, UNIT, SingleCopy
from .rayleigh_ritz import ranking_key

if TYPE_CHECKING:
    from ..problem import IterationState
    from .spectrum import Sketch

# Predicted cycles of Lanczos steps up to which no filter is designed, and of those on column-major blocks.
CYCLES_WITHOUT, CHEAP_CYCLES = 7.0, 10.0
CYCLES_SEEN = 20.0  # those that the residuals of two cycles predict, which fall more slowly at first
# Cycles of single columns from which on the digits gained so far predict the number of others, and the
# predicted number up to which no filter is designed: for few pairs, and for more with partial and with full
# reorthogonalisation, which takes longer. With the former so many are few.
CYCLES_TO_PREDICT, CYCLES_OF_FEW, CYCLES_OF_MORE = 5, 30.0, (22.0, 15.0)
FEW_IN_PART = 32
# Rows from which on more pairs are worth a sketch then, and the eigenvalues beyond the last wanted Ritz
# value, per pair, above which there are more copies than single columns find soon.
LONG, COPIES = 2**14, 8.0
# Cycles on other columns up to which the gaps of a sketch predict their number, and what they predict where
# no filter pays: 1.6 for values far out, 4 and more on lattices, graphs, spin chains and finite elements.
CYCLES_BY_GAPS, FEW_BY_GAPS = 6, 2.0
CYCLES_TO_SKETCH = 3  # cycles on column-major blocks before the gaps of a sketch predict their number
CYCLES_OF_BLOCKS = 20  # before the residuals of column-major blocks predict their number
SKETCH_WIDTH, SKETCH_STEPS, MAX_SKETCH_STEPS = 2, 40, 320  # vectors, and steps at first and at most
OUTSIDE = 2.0  # number of eigenvalues outside the damped interval, relative to the basis size
CROWDED = 4.0  # ratio of values outside to the planned number above which a sketch is extended
LEAST_SPREAD, MAX_SPREAD = 1e2, 1e6  # amplification of the first over that of the last wanted value
MAX_DESIGNS = 6
# Share of the degree in double precision down to which a filter is mixed: rounding errors bound the spread,
# and with it the degree where the first value is far out. A product in single precision takes half the time.
LEAST_MIXED = 0.6
OUTLIER_SHARE = 0.5  # of the wished degree that a filter without outliers needs, for which they are left out
# Calls of A in a whole solve, per degree that separates the wanted values: 15 to 80 on lattices, spin chains
# and finite elements.
CALLS_PER_DEGREE = 40.0


class Design(NamedTuple):
    """A filter, or None where none gains anything, the degree wished for, and the largest spread."""

    filter: Filter | None
    wished: int
    spread: float

    @property
    def degree(self) -> int:
        """The filter's degree, 0 without one."""
        return 0 if self.filter is None else self.filter.degree


class FilterChoice(ThickRestart):
    """Thick-restart block Lanczos that knows when a filter would pay, and designs it."""

    filter: Filter | None = None
    mixes = True  # whether filters may still be in single precision
    is_mixed = False  # whether the current one is
    _copy: SingleCopy | None = None
    _drawn: Sketch | None = None  # a sketch that no filter has been designed from yet
    designs = 0
    retired = False  # whether filters are no longer used
    outliers = 0  # values after which the run ends: a filter separates the others in the complement of theirs
    best = np.inf  # least of the largest residuals, relative to their limits, of a filtered cycle
    stalled = 0
    doubt = 1.0  # ratio of computed to predicted residuals

    def _looks_first(self) -> bool:
        """Check whether the first cycle has no filter: inside a spectrum, one is needed anyway."""
        may_choose = self._may_choose and not isinstance(self.operator, FoldedOperator)
        return may_choose and self.random_start

    @property
    def _may_choose(self) -> bool:
        """Whether neither a filter nor single precision is asked for."""
        return self.problem.method == "auto" and self.problem.precision != "mixed"

    @property
    def _is_cheap(self) -> bool:
        """Whether plain Lanczos steps are cheap, and no filter is asked for."""
        is_short = isinstance(self.operator, ColumnOperator) or self.krylov.takes_cheap_steps
        return is_short and self._may_choose

    def _converges_soon(self) -> bool:
        """Check whether few more cycles without a filter are predicted to suffice."""
        state, b = self.history[-1], self.block_size
        steps = (self.krylov.capacity - len(self.theta)) // b
        if self._is_cheap and self.krylov.takes_single_columns:
            cycles = len(self.history)
            is_soon = cycles < CYCLES_TO_PREDICT or self._cycles_left() <= self._cycles_without()
            return is_soon and not (cycles == CYCLES_TO_PREDICT and self._has_many_copies())
        if self._is_cheap:
            cycles, left = len(self.history), self._columns_left() / (steps * b)
            if cycles == CYCLES_TO_SKETCH:
                most, by_mean = most_cycles(self.problem.k), self._cycles_left()
                if left > CYCLES_WITHOUT and (by_mean > most or self._begins_with_copies()):
                    self._drawn = self._draw_sketch()
                    return self._cycles_of(self._drawn, steps) <= most
            return cycles < CYCLES_OF_BLOCKS or left <= CHEAP_CYCLES
        # The looks of a cycle tell its rate; without one, or if that does not last, whole cycles do.
        is_slow = len(self.history) > 1 and self._columns_left() > CYCLES_SEEN * steps * b
        if not is_slow and self._digits(state.residuals, state.limits) <= CYCLES_WITHOUT * steps * self.rate:
            return True
        if len(self.history) <= CYCLES_BY_GAPS:
            return self._has_wide_gaps(steps)
        self._drawn = None  # one that was enough so far may resolve too little for a filter
        return False

    def _cycles_without(self) -> float:
        """Return the predicted cycles of single columns up to which no filter is designed."""
        is_partial = self.krylov.is_oblique
        if self.problem.k <= (FEW_IN_PART if is_partial else FEW_PAIRS):
            return CYCLES_OF_FEW
        partial, full = CYCLES_OF_MORE
        return partial if is_partial else full

    def _begins_with_copies(self) -> bool:
        """Check whether the outermost values may be one, of which a block has as many copies as columns."""
        state, b = self.history[-1], self.block_size
        spread = np.ptp(state.eigenvalues[:b]) if len(state.eigenvalues) >= b else 0.0
        return bool(b > 1 and spread <= 2 * state.residuals[:b].max(initial=0.0))

    def _has_wide_gaps(self, steps: int) -> bool:
        """Check whether the gaps of a sketch predict few cycles; it need not resolve more, then."""

        def are_wide(sketch: Sketch) -> bool:
            return self._cycles_of(sketch, steps) <= FEW_BY_GAPS

        sketch = self._drawn or self._draw_sketch(are_wide)
        is_few = are_wide(sketch)
        # One that was enough in an earlier cycle may resolve too little for a filter.
        self._drawn = sketch if is_few or self._drawn is None else None
        return is_few

    def _has_many_copies(self) -> bool:
        """Check whether far more eigenvalues than pairs are wanted lie beyond the last wanted Ritz value."""
        k = self.problem.k
        if k <= FEW_PAIRS or self.operator.shape[0] < LONG:
            return False
        self._drawn = self._draw_sketch()
        last = float(ranking_key(self.theta, self.which)[k - 1])
        return self._drawn.crowd(last, self.which) > COPIES * k

    def _cycles_left(self) -> float:
        """Predict the cycles up to convergence from the digits that the wanted pairs lack in the mean.

        The largest residual says little: it falls late, and grows where one more copy is found. The mean
        falls more steadily, and faster towards the end; one more copy matters less if all cycles count.
        """
        cycles = len(self.history) - 1
        windows = [2 * cycles // 3] + [cycles] * (cycles < 2 * self._cycles_without())
        return min(self._cycles_by(window) for window in windows)

    def _cycles_by(self, window: int) -> float:
        before, now = (self._mean_digits(self.history[i]) for i in (-1 - window, -1))
        return now * window / (before - now) if now < before else np.inf

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

    def _crowding(self, sketch: Sketch) -> float:
        return sketch.crowd(self._placed(sketch)[-1], self.which) / self._outside()

    def _draw_sketch(self, is_enough: Callable[[Sketch], bool] = lambda sketch: False) -> Sketch:
        """Estimate the bounds of the spectrum and its density, up to a sketch that is enough."""
        from .spectrum import sketch_spectrum

        sketch = sketch_spectrum(
            *(self.operator, self.krylov.buffer, SKETCH_WIDTH, SKETCH_STEPS, self.rng, self.locked),
            most=MAX_SKETCH_STEPS,
            resolved=lambda sketch: self._crowding(sketch) <= CROWDED or is_enough(sketch),
        )
        counts = self.counts
        counts.operator_columns += sketch.columns
        counts.block_applications += sketch.applications
        counts.reductions += sketch.reductions
        return sketch

    def _cycles_of(self, sketch: Sketch, steps: int) -> float:
        """Predict the cycles of so many Lanczos steps without a filter, a third to a half of the real ones.

        By the Chebyshev polynomial that a cycle can be, from the gap between the last wanted value and those
        that a restart does not keep. Ritz values that have not converged yet show too large a gap, and the
        nodes of a sketch are few at an end of the spectrum: the larger value of both is nearer to the truth.
        """
        keys, kept = ranking_key(self.theta, self.which), len(self.theta)
        last = max(float(keys[self.problem.k - 1]), sketch.beyond(self.problem.k, self.which))
        edge = max(float(keys[-1]), sketch.beyond(kept, self.which))
        least = -edge if self.which == "LM" else min(self.least, sketch.least(self.which))
        rate = steps * math.acosh(1 + 2 * (last - edge) / max(edge - least, np.finfo(float).tiny))
        digits = self._digits(self.history[-1].residuals, self.history[-1].limits)
        return digits * math.log(10) / rate if rate > 0 else np.inf

    def _sketch(self) -> None:
        """Design the filter for the spectrum of a sketch."""
        sketch, self._drawn = self._drawn or self._draw_sketch(), None
        self.norm = max(self.norm, sketch.norm)
        self.least = min(self.least, sketch.least(self.which))
        self._design((*self._placed(sketch), self.least), self._crowding(sketch))

    def _design(self, values: tuple[float, float, float, float], crowding: float = 1.0) -> None:
        self.designs += 1
        limit = float(self._limits(np.full(1, abs(values[1]))).max())
        asked = self.problem.precision == "mixed"
        is_mixed = self.mixes and self.options.mixes and (asked or limit >= LEAST_LIMIT * self._norm())
        design = self._designed(values, crowding, limit, is_mixed)
        if is_mixed and not asked:
            double = self._designed(values, crowding, limit, False)
            if design.degree < LEAST_MIXED * double.degree:
                design, is_mixed = double, False
                self.mixes, self._copy = False, None
        self.filter = design.filter
        separating = separating_degree(values, self.which, self._norm(), crowding)
        self.expected_calls = 0.0 if self.filter is None else CALLS_PER_DEGREE * separating
        if self.designs > MAX_DESIGNS:
            self.filter = None
        elif self.filter is None:
            wished = min(max(design.wished, separating), STIFFEST)
            self.outliers = self._count_outliers(values, wished, design.spread)
        self.retired = self.filter is None
        self.is_mixed = is_mixed and not self.retired
        self.best, self.stalled, self.doubt = np.inf, 0, 1.0
        if self.filter is not None:
            self.degree = max(self.degree, self.filter.degree)

    def _designed(
        self, values: tuple[float, float, float, float], crowding: float, limit: float, is_mixed: bool
    ) -> Design:
        """Design a filter for matrices in single or double precision."""
        degree, unit = self.options.degree, self.problem.tolerance.unit
        if is_mixed:
            sizes = self.options.block_size, (self.problem.k + self.options.ncv) // 2
            degree = max(degree, choose_degree(self._single(), *sizes, self.operator.dtype.itemsize))
            unit = UNIT
        rounding = unit * self._norm()
        spread = min(max(1e-2 * limit / rounding, LEAST_SPREAD), MAX_SPREAD) if rounding else LEAST_SPREAD
        least = PAYING_DEGREE if self._may_choose else LEAST_DEGREE
        filter = design_filter(values, self.which, self._norm(), degree, spread, crowding, least)
        return Design(filter, degree, spread)

    def _count_outliers(self, values: tuple[float, float, float, float], degree: float, spread: float) -> int:
        """Count the wanted values so far out that a filter would separate the others without them."""
        keys = ranking_key(self.theta[: self.problem.k], self.which)
        may_leave = self.problem.checkpoint is None and self.problem.maxiter is None and self.which != "LM"
        for count in range(1, len(keys) if may_leave else 0):
            rest = (max(float(keys[count]), values[1]), *values[1:])
            filter = design_filter(rest, self.which, self._norm(), int(degree), spread)
            if filter is not None and filter.degree >= OUTLIER_SHARE * degree:
                return count
        return 0

    def _single(self) -> SingleCopy:
        """Return the matrix in single precision; it is converted once."""
        if self._copy is None:
            self._copy = SingleCopy(by_rows(self.operator), self._norm())
        return self._copy
