"""Krylov decompositions on a GPU, and their steps that are queued without waiting for results.

A block is divided by its Cholesky factor before the host has seen that, so that the next step can be queued
at once. The host reads the small matrices later; if a step was not enough, this one and all that were queued
after it are invalid, and it is repeated by `orthogonalize`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockvec import FactorReport, inverse_factor, start_copies
from blockvec.errors import BreakdownError

from ..blocks import Array, Block, LinearMap, ceil_div, padded_width, round_up, small_matrix, width_padding
from ..small_matrices import AMPLIFIED, ENOUGH, PLAIN_GROWTH, is_enough, square
from .krylov import PAUSE, BlockKrylov

# On a GPU: columns of a basis above which products read multiples of so many, with zeros behind the basis. So
# do all where launches take the steps, since few others need a kernel.
NARROW, WIDE_UNIT = 256, 64
# Steps whose small matrices the host has not seen: so many are lost if one was not enough. With A itself, and
# with filters, which take the device longer than the host.
MAX_QUEUED, MAX_QUEUED_FILTERS = 4, 1
LAUNCHED_PAUSE = 8  # steps between looks with A on a GPU of which one call queues several, at least
REDUCTIONS = 3  # per step
# Limits above those of steps that wait: a step that is repeated invalidates those queued after it.
QUEUED_ENOUGH = 4 * ENOUGH  # u per column: accepted loss of orthogonality within a block
QUEUED_AMPLIFIED = 2 * AMPLIFIED  # u: accepted loss of orthogonality between V and Q
LIKENESS = 2.0  # assumed upper bound of growth(step j + 1) / growth(step j)

Wait = Callable[[float], tuple[Array, "Array | None"]]
"""Maps the norm of the operator, or a lower bound, to S and R; R is None if the step was not enough."""


class DeviceKrylov(BlockKrylov):
    """A decomposition whose products read columns in whole units, as each width takes a kernel.

    Columns behind [V Q] are finite where they are read, and zero where products add them up.
    """

    def __init__(self, operator: LinearMap, buffer: Block, n_locked: int, block_size: int, *of: Any) -> None:
        super().__init__(operator, buffer, n_locked, block_size, *of)
        self.unit = 1 if width_padding(buffer) == 1 else block_size  # columns: products read multiples
        self._is_clear = False  # whether zeros follow [V Q] where products read them

    def _filled(self, count: int) -> int:
        """Round a number of columns of [V Q] up to one that products read; each takes a kernel."""
        is_wide = self.unit > 1 and (self.takes_launches or count > NARROW)
        return min(round_up(count, round_up(WIDE_UNIT, self.unit) if is_wide else self.unit), self.capacity)

    def _basis(self) -> Block:
        """Return a view of [locked V Q] and of zero columns that fill up the last block."""
        end = self.m + self.w
        filled = self._filled(end)
        if filled > end and not self._is_clear:
            self._clear()
            self._is_clear = True
        return self.columns(-self.n_locked, filled)

    def _clear(self) -> None:
        """Set the columns behind [V Q] to zero."""
        self.columns(self.m + self.w, self.capacity)[:, :] = 0

    def padded(self, count: int) -> int:
        return min(padded_width(count, self.buffer), self.capacity)

    def _window(self) -> list[tuple[int, int]]:
        if self.m < self.full_until:
            return [(0, self.n_locked + self._filled(self.m + self.w))]
        locked, (begin, _) = super()._window()
        begin = (begin - self.n_locked) // self.unit * self.unit
        end = min(round_up(self.m + self.w, self.unit), self.capacity)
        return [locked, (self.n_locked + begin, self.n_locked + end)]

    def _changed(self, full_until: int) -> None:
        super()._changed(full_until)
        self._is_clear = False

    def _rotate(self, C: Array) -> None:
        used, width = self.columns(0, self.capacity), self.padded(C.shape[1])
        used.combine(small_matrix(C, used, (self.capacity, width)), out=used[:, :width])


class QueuedKrylov(DeviceKrylov):
    """Steps on a GPU that do not wait: one per call, or several per launch."""

    def __init__(self, operator: LinearMap, buffer: Block, n_locked: int, block_size: int, *of: Any) -> None:
        super().__init__(operator, buffer, n_locked, block_size, *of)
        launches = getattr(operator, "krylov_steps", None)
        self._launches = None if launches is None else launches(buffer, block_size)
        self.takes_launches = self._launches is not None
        self.pause = LAUNCHED_PAUSE if getattr(self._launches, "multiplies", False) else PAUSE
        self._waits = False  # for each step, after one that was not enough and others like it
        # Of queued steps: m and m + w before each.
        self._reports: list[tuple[int, int, Wait]] = []

    def can_expand(self) -> bool:
        if not super().can_expand():
            self.settle()  # a step that failed leaves room
        return super().can_expand()

    def expand(self, until: int = 0, stop: Callable[[], object] = bool) -> None:
        if not self._may_queue():
            self.settle()
            self._take_carefully()
            return
        try:
            if self._launches is None:
                self._queue()
            else:
                self._launch(until)
        except (ArithmeticError, ValueError, BreakdownError):  # NumPy's LinAlgError is a ValueError
            if self.settle():
                raise  # else a function failed for the rounding errors that an earlier step had left

    def _may_queue(self) -> bool:
        return not self._waits and min(self.w, self.room) >= self.block_size

    def _queue(self) -> None:
        X, W, into = self._operands()
        W, basis = self.operator.apply(X, out=W), self._basis()
        self._reports.append((self.m, self.m + self.w, queue_step(W, basis, self._window(), into)))
        self._advance(self.block_size)
        self._bound()

    def _launch(self, until: int) -> None:
        """Queue steps up to `until` columns of V, as far as there is room, by one call."""
        launches, b, m, end = self._launches, self.block_size, self.m, self.m + self.w
        assert launches is not None
        room = min(self.capacity - end, self.room)
        # In a launch, a step takes the columns that the one before has made.
        takes_several = launches.takes_several and self.w == b
        count = max(1, min(ceil_div(until - m, b), room // b)) if takes_several else 1
        X, W, _ = self._operands()
        if not launches.multiplies and self.operator.apply(X, out=W) is X:
            X, W = W, X
        columns = (self.n_locked + size for size in (m, end, self.full_until))
        wait = launches.queue(X, W, *columns, self.n_locked, count, QUEUED_ENOUGH * b, PLAIN_GROWTH)
        for step in range(count):
            report = step_of_several(wait, step, self.buffer.dtype)
            self._reports.append((self.m, self.m + self.w, report))
            self._advance(b)
        if not takes_several:
            self._bound()

    def _bound(self) -> None:
        """Wait for the first queued step if too many would be lost with it."""
        if len(self._reports) > (MAX_QUEUED if self.degree == 1 else MAX_QUEUED_FILTERS):
            self._settle_first()

    def settle(self, until: int | None = None) -> bool:
        while self._reports and (until is None or self._reports[0][0] < until):
            if not self._settle_first():
                return False
        return True

    def _settle_first(self) -> bool:
        """Wait for the first queued step; if it was not enough, discard all, take it again, return False."""
        m, known, wait = self._reports.pop(0)
        S, R = wait(self.norm)
        if R is not None:
            self.counts.reductions += REDUCTIONS
            self._note(m, known, S, R)
            return True
        self._reports.clear()
        self.m, self.w = m, known - m
        self._clear()  # what a function made of rounding errors need not be finite
        self._take_carefully()
        return False

    def _take_carefully(self) -> Array:
        """Take a careful step, and wait for the next one if it would not be enough, either."""
        R = super()._take_carefully()
        self._waits = not is_easy(R, self.norm, self.buffer.dtype, factors_again=self.takes_launches)
        return R

    def begin_ahead(self, steps: int) -> None:
        if steps and self.takes_launches and self._may_queue() and super().can_expand():
            self.expand(self.m + steps * self.block_size)

    def withdraw(self, m: int) -> None:
        if m < self.m:
            self._reports.clear()
            self.m, self._is_clear = m, True
            self._clear()  # steps that nobody has judged need not be finite, and a rotation reads them

    def _changed(self, full_until: int) -> None:
        super()._changed(full_until)
        self._waits = False


def queue_step(W: Block, V: Block, first: Sequence[tuple[int, int]], into: Block) -> Wait:
    """Project W twice, divide it by its Cholesky factor if that is accurate, and copy it to `into`.

    The arguments are those of `orthogonalize`. The function that is returned waits for the small matrices on
    their way to the host, with W_old = V S + W_new R.
    """
    ranges = [(i, j) for i, j in first if i < j]
    views = [V if j - i == V.shape[1] else V[:, i:j] for i, j in ranges]
    parts = [U.dot(W) for U in views]
    for U, part in zip(views, parts, strict=True):
        U.combine(part, out=W, alpha=-1, beta=1)
    C = V.dot(W)
    factor = inverse_factor(W.update_gram(V, C), PLAIN_GROWTH, start=False)
    W.combine(factor.T, out=W)
    into[:, :] = W
    copies = start_copies(*parts, C, factor.report)

    def wait(scale: float) -> tuple[Array, Array | None]:
        *removed, rest, report = copies()
        before = np.zeros(rest.shape, report.dtype)
        for (begin, end), part in zip(ranges, removed, strict=True):
            before[begin:end] = part
        return _judged(before, rest.astype(report.dtype), FactorReport.of(report), W.dtype, scale)

    return wait


def step_of_several(wait: Callable[[], list[Any]], step: int, dtype: np.dtype[Any]) -> Wait:
    """Return the function of `queue_step` for one of several steps that were queued together."""

    def wait_for_all(scale: float) -> tuple[Array, Array | None]:
        found = wait()[step]
        return _judged(found.first, found.second, found.factor, dtype, scale, factors_again=True)

    return wait_for_all


def is_easy(R: Array, scale: float, dtype: np.dtype[Any], *, factors_again: bool = False) -> bool:
    """Predict whether a queued step after one with the factor R will be enough, as such factors are alike.

    `factors_again` says whether the step has a second factorisation for blocks that need one.

    Examples
    --------
    >>> R = np.array([[1.0, 0.9], [0.0, 0.4]])
    >>> scaled, dependent = R * [1, 1e-6], R * [[1], [1e-2]]
    >>> [is_easy(factor, 1.0, R.dtype) for factor in (R, scaled, dependent, R[:1])]
    [True, True, False, False]
    """
    if R.shape[0] != R.shape[1] or not np.diagonal(R).all():
        return False
    T, unit = np.linalg.inv(R), float(np.finfo(dtype).eps) / 2
    whole, spread = square(R), square(T)
    growth = float((np.linalg.norm(R, axis=0) ** 2 @ np.abs(T) ** 2).sum())
    enough = is_enough(
        growth=LIKENESS * growth,
        again=0.0,
        spread=spread,
        length=max(scale, math.sqrt(whole)),
        unit=unit,
        amplified=QUEUED_AMPLIFIED,
    )
    return enough and (factors_again or LIKENESS * growth <= QUEUED_ENOUGH * len(R))


def _judged(
    before: Array,
    rest: Array,
    found: FactorReport,
    dtype: np.dtype[Any],
    scale: float,
    *,
    factors_again: bool = False,
) -> tuple[Array, Array | None]:
    """Return S and R of a queued step from what two projections took out and the factor of the rest."""
    unit = float(np.finfo(dtype).eps) / 2
    whole, again, spread = float(found.G.trace().real), square(rest), square(found.T)
    length = max(scale, math.sqrt(whole + again + square(before)))
    is_factored = factors_again or found.growth <= QUEUED_ENOUGH * len(found.R)
    enough = is_factored and is_enough(
        growth=found.growth, again=again, spread=spread, length=length, unit=unit, amplified=QUEUED_AMPLIFIED
    )
    return before + rest, found.R if enough else None
