"""Search for eigenvalues that an iteration has missed.

A Krylov space contains at most as many copies of a multiple eigenvalue as its start block has columns;
further copies enter through rounding errors, late or never. Before a result is returned, a Chebyshev filter
is therefore applied to random vectors orthogonal to the computed eigenvectors. It damps everything less
wanted than the last wanted value and amplifies everything else by a known factor. Missed eigenvectors would
grow by this factor; if no vector grows, none was missed, with a probability that determines the factor.

The filter costs applications of the operator and almost no orthogonalisation. Unlike a Lanczos run in the
complement it needs no basis: components along computed eigenvectors stay small if they are projected out
before they have grown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockvec import Recorder, start_copy
from blockvec.errors import BreakdownError
from blockvec.system.frozen import frozen

from ..blocks import (
    Block,
    Operator,
    RealArray,
    column_factors,
    padded_width,
    project_out,
    small_matrix,
    to_host,
)
from ..orthogonalization import orthogonalize
from ..problem import Verification
from .chebyshev import Recurrence, recorder_for, steps_within, steps_within_leak
from .counts import Counts
from .rayleigh_ritz import ranking_key
from .search_interval import DECISIVE, MARGIN, Found, choose_interval, decisive_growth

LEAK = 0.1  # relative size of components along computed vectors at which they are projected out again
OVERFLOW_GROWTH = 1e8  # maximum growth between two checks of norms, whose squares must not overflow float32
# The same on a GPU, where checks are read one late, by the character of the type.
DEVICE_GROWTH = {"f": 1e4, "d": 1e30}
AT_ONCE = 16  # steps that are repeated as one graph, at most
SEPARATED = 1e-2  # residual, relative to a gap between Ritz values, that resolves it
FALLING = 1e-3  # of a residual in a round: one vector separates from others, and the next round does the rest
WIDEST = 16  # columns that vectors grow to
FILLED_BYTES = 1 << 28  # of a copy of found vectors that fills their number up, where no columns are free
ROUNDS, MAX_BUDGETS = 12, 4  # rounds, and sum of their degrees in budgets, after which a search is undecided


@frozen
class Verdict:
    """Outcome of a search."""

    missed: Block | None  # orthonormal vectors, orthogonal to X, with wanted Ritz values
    counts: Counts
    verification: Verification | None  # None where nothing is decided, and another search may do so
    text: str  # outcome in words


@frozen
class _Schedule:
    """When a filter projects and looks at norms, in steps after the first few."""

    opening: int  # those first steps
    group: int  # steps that are taken at once: a divisor or a multiple of `project_every`
    project_every: int
    look_every: int  # a multiple of `group`


class Search:
    """Search for eigenvalues more wanted than the last wanted one, in the complement of the computed vectors.

    Parameters
    ----------
    width : int
        Number of random start vectors, and thus of missed copies that can be found.
    budget : int
        Maximum degree of the filter. If the gap behind the last wanted value needs a higher degree, the
        search covers only values further out.
    stop : callable
        Called after every application, on a GPU after several; a true value aborts the search.
    """

    def __init__(
        self, operator: Operator, found: Found, width: int, budget: int, rng: Any, stop: Callable[[], object]
    ) -> None:
        self.operator, self.found, self.rng, self.stop = operator, found, rng, stop
        n = operator.shape[0]
        self.most = max(1, n - found.X.shape[1])
        self.width = min(width, self.most)
        self.budget = budget
        self.growth = decisive_growth(n)
        self.counts = Counts()
        self.far_ends = 0
        self.generic = 0  # columns that have grown from random ones
        self._recorder: Recorder | None = None
        self._set_interval(found)

    def _set_interval(self, found: Found) -> None:
        self.found = found
        self.interval = choose_interval(found, self.growth, self.budget)
        self.deflated = self._filled_up(self.interval.deflated)
        self.residual = 0.0  # of what has grown most, once something has
        self.outgrown = 0.0  # logarithm of the growth of a missed value relative to that observed
        self.degree = self.interval.degree(self.growth, self.budget)

    def _filled_up(self, count: int) -> Block:
        """Return the first vectors found, with zeros to a width that other blocks have if there is memory."""
        vectors, free = self.found.X[:, :count], self.found.scratch
        width = padded_width(count, vectors)
        if width == count:
            return vectors
        if free is not None and width <= free.shape[1]:
            filled = free[:, free.shape[1] - width :]
        elif vectors.shape[0] * width * vectors.dtype.itemsize <= FILLED_BYTES:
            # Kernels of found vectors expect the columns of a wider block.
            filled = vectors.like(padded_width(width + 1, vectors))[:, :width]
        else:
            return vectors
        filled[:, :count] = vectors
        filled[:, count:] = 0
        return filled

    def run(self) -> Verdict:
        """Filter random vectors until what grows in them is decided."""
        Y = self._random()
        self._recorder = recorder_for(self.operator, Y)
        steps = 0
        for _ in range(ROUNDS):
            if steps >= MAX_BUDGETS * self.budget:
                break
            Y = self._filter(Y)
            steps += self.degree
            if self.stop():
                return self._verdict(None, Verification.UNDECIDED, "cut short")
            self._project(Y)
            if not self._norms(Y).max() > DECISIVE:
                return self._passed("nothing grew in the complement of what was found")
            Y, verdict = self._judge(Y)
            if verdict is not None:
                return verdict
        text = f"undecided after {steps} steps: a cluster surrounds the last value"
        return self._verdict(None, Verification.UNDECIDED, text)

    def _passed(self, outcome: str) -> Verdict:
        """Describe a search without missed values, and its range if the gap was too narrow for the budget."""
        covers = self.interval.target <= self.found.wanted + self.found.limits[-1]
        if covers or self.found.norm == 0:
            return self._verdict(None, Verification.SEARCHED, f"passed: {outcome}")
        value = float(ranking_key(self.interval.target, self.found.which))
        text = f"{outcome} (looked for values beyond {value:.6g})"
        if self.found.block_size == 0:  # nothing tells that no value lies between
            return self._verdict(None, Verification.UNDECIDED, f"undecided: {text}")
        return self._verdict(None, Verification.SEARCHED, f"passed: {text}")

    def _random(self) -> Block:
        X = self.found.X
        Y = X.random_like(self.width, self.rng)
        self.generic = self.width
        self._project(Y)
        return self._normalized(Y)

    def _filter(self, Y: Block) -> Block:
        """Apply the filter to columns of norm one, projecting out the deflated vectors."""
        interval, locked, counts = self.interval, self.found.locked, self.counts
        schedule = self._schedule(Y)
        opening, group, every = schedule.opening, schedule.group, schedule.project_every

        within = every <= group  # otherwise between groups

        def project(step: int, current: Block, previous: Block) -> None:
            if locked is not None:  # they need not be invariant under A
                project_out(locked, current)
            if within and (step - opening) % every == 0:
                project_out(self.deflated, current)
                project_out(self.deflated, previous)

        sign = -1 if self.found.which == "SA" else 1
        doubled = self.operator.affine(2 / interval.half_width, sign * (interval.low + interval.edge) / 2)
        is_short = self.degree <= opening + 2 * group  # not worth a recording
        recorder = None if is_short else self._recorder
        is_projected = within or locked is not None
        steps = Recurrence(
            doubled,
            X=Y,
            out=Y.like(),
            project=project if is_projected else None,
            recorder=recorder,
            project_every=every if locked is None else 1,
        )
        norms: Callable[[], RealArray] | None = None
        while steps.taken < self.degree:
            count = group if steps.taken >= opening else opening
            if is_short:
                count = min(count, self.degree - steps.taken)
            begin = steps.taken - opening
            steps.take(count)
            end = steps.taken - opening
            counts.apply(Y.shape[1], count)
            counts.reductions += (0 if locked is None else count) + 2 * (end // every - begin // every)
            if not within and end % every == 0:
                project_out(self.deflated, steps.current)
                project_out(self.deflated, steps.previous)
            if self.stop():
                break
            if end % schedule.look_every or end <= 0:
                continue
            # On a GPU the next steps are queued before norms are read.
            earlier, norms = norms, self._start_norms(steps.current)
            seen = norms if opening == 0 else earlier
            if seen is not None and seen().max() > self.growth:
                break
        return steps.current

    def _schedule(self, Y: Block) -> _Schedule:
        """Choose when to project and to look at norms; on a GPU all happens between groups of steps.

        Groups take the last few steps beyond the degree. They are even, so that both blocks have their roles
        again.
        """
        found, interval = self.found, self.interval
        project_every = self._steps_between_projections()
        reach = 1 + 2 * (found.norm + abs(interval.edge)) / interval.half_width
        if Y.device == "cpu":
            return _Schedule(0, 1, project_every, steps_within(OVERFLOW_GROWTH, reach))
        look_every = steps_within(DEVICE_GROWTH[Y.dtype.char.lower()], reach)
        project_every, look_every = (steps - steps % 2 or 1 for steps in (project_every, look_every))
        group = min(AT_ONCE, look_every)
        if project_every <= group:
            group -= group % project_every
        else:
            project_every -= project_every % group
        return _Schedule(2, group, project_every, look_every - look_every % group)

    def _steps_between_projections(self) -> int:
        """Return the steps in which components along deflated vectors, initially their errors, stay small."""
        found, interval = self.found, self.interval
        above = ranking_key(found.theta[: interval.deflated], found.which) - interval.edge
        unit = float(np.finfo(found.X.dtype).eps)
        residuals = found.residuals[: interval.deflated]
        return int(min(self.degree, steps_within_leak(LEAK, above, residuals, interval.half_width, unit)))

    def _judge(self, Y: Block) -> tuple[Block, Verdict | None]:
        """Compute Ritz values of the grown vectors; return the vectors and a verdict, or None."""
        found = self.found
        result = orthogonalize(Y, self.deflated, first=[(0, self.deflated.shape[1])], rng=self.rng)
        self.counts.reductions += result.reductions
        Y = Y[:, : min(Y.shape[1], _usual_width(Y.shape[1] - int(result.lost.sum())))]
        AY = self.operator.apply(Y.copy())
        self.counts.apply(Y.shape[1])
        if found.locked is not None:
            self._project_out(found.locked, AY)
        # For "LM" the Ritz values of A^2 are computed.
        small = to_host(AY.gram() if found.which == "LM" else Y.dot(AY)).astype(complex)
        self.counts.reductions += 1
        values, Z = np.linalg.eigh((small + small.conj().T) / 2)
        values = np.sqrt(np.abs(values)) if found.which == "LM" else ranking_key(values, found.which)
        missed = values > found.wanted + found.limits[-1]
        if missed.any():
            text = f"found {int(missed.sum())} more"
            return Y, self._verdict(_combined(Y, Z[:, missed]), Verification.UNDECIDED, text)
        if values.min() < self.interval.low:
            # The far end is beyond the interval: extend it, further each time.
            self.far_ends += 1
            reach = float(values.min()) - 2**self.far_ends * MARGIN * self.interval.half_width
            self._set_interval(replace(found, least=reach))
            return self._random(), None
        best = int(np.argmax(values))
        y, spread = _combined(Y, Z[:, [best]]), _combined(AY, Z[:, [best]])
        value, scale = float(ranking_key(values[best], found.which)), 1.0
        if found.which == "LM":
            spread = self.operator.apply(spread)
            self.counts.apply(1)
            value, scale = float(values[best] ** 2), max(float(values[best]), np.finfo(float).tiny)
            if found.locked is not None:
                self._project_out(found.locked, spread)
        spread.axpy(-value, y)
        residual = float(self._norms(spread)[0]) / scale
        # A missed value as wanted as the last one would have outgrown this one by the decisive factor.
        gain = self._rate(found.wanted) - self._rate(values[best])
        self.outgrown += self.degree * max(gain, 0.0)
        self.generic = min(self.generic, Y.shape[1])
        mixed = max(self.growth * math.exp(-self.outgrown), 1.0)
        highest = values[best] + _error_bound(np.sort(values)[::-1], residual, self.generic, mixed)
        decided = highest < found.wanted + found.limits[-1] or residual <= found.limits[-1]
        if decided or self.outgrown > math.log(self.growth):
            return Y, self._passed("what grew in the complement is less wanted than the last value")
        is_falling, self.residual = residual <= FALLING * self.residual, residual
        if is_falling:  # alone: beside it, orthonormal vectors may be noise of the filter
            Y, self.generic = y, 1
        elif room := self._room_beside(Y):
            # In a cluster one vector grows into a mixture, which its residual separates; random ones tell
            # whether there are more values in it.
            width = Y.shape[1]
            wider = Y.like(width + room)
            wider[:, :width], wider[:, width : width + 1] = Y, spread
            if room > 1:
                wider[:, width + 1 :] = Y.random_like(room - 1, self.rng)
            self.generic += room - 1
            self._project(wider)
            Y = wider
        return self._normalized(Y), None

    def _room_beside(self, Y: Block) -> int:
        """Return the columns that may join Y, up to the next usual width."""
        width = Y.shape[1]
        return max(min(_usual_width(width + 1), WIDEST, self.most) - width, 0)

    def _rate(self, value: float) -> float:
        """Return the logarithm of the growth per step of the filter at a ranking key."""
        return math.acosh(max(1.0, 1 + (value - self.interval.edge) / self.interval.half_width))

    def _project(self, Y: Block) -> None:
        if self.found.locked is not None:
            self._project_out(self.found.locked, Y)
        self._project_out(self.deflated, Y)
        self._project_out(self.deflated, Y)

    def _project_out(self, V: Block, Y: Block) -> None:
        project_out(V, Y)
        self.counts.reductions += 1

    def _norms(self, Y: Block) -> RealArray:
        return self._start_norms(Y)()

    def _start_norms(self, Y: Block) -> Callable[[], RealArray]:
        """Queue the computation of norms; return a function that waits for them."""
        self.counts.reductions += 1
        computed = Y.norms()
        copy = (lambda: computed) if Y.device == "cpu" else start_copy(computed)

        def wait() -> RealArray:
            norms = copy().astype(np.float64)
            if not np.isfinite(norms).all():
                raise BreakdownError("verification: the operator returned NaN or Inf for a finite block.")
            return norms

        return wait

    def _normalized(self, Y: Block) -> Block:
        norms = self._norms(Y)
        factors = 1 / np.where(norms > 0, norms, 1)
        Y.scale(column_factors(factors, Y))
        return Y

    def _verdict(self, missed: Block | None, verification: Verification, text: str) -> Verdict:
        return Verdict(missed, self.counts, verification, text)


def _error_bound(values: RealArray, residual: float, generic: int, mixed: float = 1.0) -> float:
    """Bound how far above the first of descending Ritz values an eigenvalue is that its vector has a part of.

    A random vector has parts of all, also of the highest one of a cluster: of 1 / `mixed` of its length, that
    is `mixed` residuals above at most. The inequality of Kato and Temple holds where a gap follows that is
    far wider than a residual: vectors that are deflated before they have converged keep it from falling
    further. All values before the gap are known if they are fewer than the vectors that have grown from
    random ones.
    """
    gaps = values[0] - values
    count = int(np.argmax(gaps >= residual / SEPARATED))  # before the gap; 0 if there is none
    return residual**2 * count / float(gaps[count]) if 0 < count < generic else residual * mixed


def _usual_width(width: int) -> int:
    """Round up to a power of two: every width needs a compiled kernel on a GPU."""
    return 1 << max(width - 1, 0).bit_length()


def _combined(Y: Block, Z: NDArray[Any]) -> Block:
    """Compute Y Z for a small host matrix."""
    C = Z if Y.dtype.kind == "c" else Z.real
    return Y.combine(small_matrix(C, Y))
