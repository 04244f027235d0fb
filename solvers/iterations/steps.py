"""Steps of a block Krylov decomposition, of which an object of one kind is chosen once per decomposition.

Steps on a GPU are queued without waiting for their results, and single column-major vectors of the host have
steps of their own (`partial`). All others, and those that need more, are taken with care.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from blockvec.errors import BreakdownError

from ..blocks import Array, Block, ColumnBlock, LinearMap, ceil_div, round_up
from ..orthogonalization.factors import PLAIN_GROWTH, square
from ..orthogonalization.host_step import (
    QUEUED_ENOUGH,
    REDUCTIONS,
    Wait,
    is_easy,
    queue_step,
    step_of_several,
)
from ..runtime.processes import everywhere

if TYPE_CHECKING:
    from .krylov import BlockKrylov

# Steps whose small matrices the host has not seen: so many are lost if one was not enough. With A itself, and
# with filters, which take the device longer than the host.
MAX_QUEUED, MAX_QUEUED_FILTERS = 4, 1
# Steps between looks for convergence, at least. Where their number followed from predicted times of looks, 58
# easy and 28 harder problems took .99 to 1.01 times as long.
PAUSE = 2
LAUNCHED_PAUSE = 8  # the same of steps with A on a GPU of which one call queues several


def is_queued(operator: LinearMap, buffer: Block) -> bool:
    """Check whether steps are queued without waiting: those on a device whose products are no solves.

    After a step that was not enough the next ones work on noise, at which solves may fail.
    """
    may_be = getattr(operator, "may_be_queued", getattr(operator, "is_recordable", False))
    return buffer.device != "cpu" and everywhere(getattr(buffer, "layout", None), may_be)


class Steps:
    """Careful steps, for which nothing is assumed."""

    takes_single_columns = False  # whether they are those of a recurrence of single vectors
    takes_launches = False  # whether few calls queue several steps, in less time than a look at them
    pause = PAUSE
    _scratch: tuple[Block, Block] | None = None

    def take(self, space: BlockKrylov, until: int, stop: Callable[[], object]) -> None:
        """Take a step; where they are cheap more, until V has `until` columns or `stop` says so."""
        self._take_carefully(space)

    def _take_carefully(self, space: BlockKrylov) -> Array:
        """Take a careful step; return the factor of its new block."""
        X, W, into = self._operands(space)
        W = space.operator.apply(X, out=W)
        result = space.orthogonalize_into(into, W, space.scale, self._window(space))
        self._note(space, space.m, space.m + space.w, result.S, result.R, 0)
        self._advance(space, X.shape[1])
        return result.R

    def _operands(self, space: BlockKrylov) -> tuple[Block, Block, Block]:
        """Return the next pending columns, a block for their product, and columns for new ones.

        The first two are copies that are contiguous; column-major ones are contiguous where they are.
        """
        step, known = min(space.block_size, space.w), space.m + space.w
        if isinstance(space.buffer, ColumnBlock) and step <= space.room:
            into = space.columns(known, known + step)
            return space.columns(space.m, space.m + step), into, into
        if self._scratch is None or self._scratch[0].shape[1] != step:
            self._scratch = space.buffer.like(step), space.buffer.like(step)
        X, W = self._scratch
        X[:, :] = space.columns(space.m, space.m + step)
        return X, W, space.columns(known, known + min(step, space.room))

    def _window(self, space: BlockKrylov) -> list[tuple[int, int]]:
        """Column ranges in which the product with the next pending block can have components, by symmetry.

        These are the locked columns, the block that the pending one was computed from, and all later columns.
        Other components are rounding errors, removed by the second pass. After a restart all columns couple.
        """
        if space.m < space.full_until:
            return [(0, space.n_locked + space.filled(space.m + space.w))]
        end = space.n_locked + min(round_up(space.m + space.w, space.unit), space.capacity)
        begin = space.m - ceil_div(space.w, space.block_size) * space.block_size
        return [(0, space.n_locked), (space.n_locked + begin // space.unit * space.unit, end)]

    def _note(self, space: BlockKrylov, m: int, known: int, S: Array, R: Array, reductions: int) -> None:
        """Store the coefficients of a step whose first column was number m of V, with `known` of [V Q]."""
        space.counts.reductions += reductions
        new, step = R.shape
        if space.norm == 0:
            # The norm of all columns together is at most that of the longest one times sqrt(b).
            space.most = max(space.most, ((square(S) + square(R)) / max(step, 1)) ** 0.5)
        space.H[:known, m : m + step] = S[space.n_locked : space.n_locked + known]
        space.H[known : known + new, m : m + step] = R

    def _advance(self, space: BlockKrylov, step: int) -> None:
        """Move columns that A has been applied to from Q to V; new ones follow Q."""
        new = min(step, space.room)
        space.counts.apply(step, space.degree)
        space.m += step
        space.w += new - step
        if new < step:
            space.full_until = space.capacity

    def settle(self, space: BlockKrylov, until: int | None = None) -> bool:
        """Wait for queued steps, or those of the first columns of V up to a number.

        Repeats with all care the first one that was not enough, and returns False then.
        """
        return True

    def begin_ahead(self, space: BlockKrylov, steps: int) -> None:
        """Queue steps while the host looks at the decomposition, where launches take them."""

    def forget(self) -> None:
        """Drop queued steps without waiting for them, and what was learned from them."""

    def note_change(self) -> None:
        """Note that columns of the basis were changed."""


class QueuedSteps(Steps):
    """Steps on a GPU that do not wait: one per call, or several per launch."""

    def __init__(self, operator: LinearMap, buffer: Block, block_size: int) -> None:
        launches = getattr(operator, "krylov_steps", None)
        self._launches = None if launches is None else launches(buffer, block_size)
        self.takes_launches = self._launches is not None
        self.pause = LAUNCHED_PAUSE if getattr(self._launches, "multiplies", False) else PAUSE
        self._waits = False  # for each step, after one that was not enough and others like it
        # Of queued steps: m and m + w before each.
        self._reports: list[tuple[int, int, Wait]] = []

    def take(self, space: BlockKrylov, until: int, stop: Callable[[], object]) -> None:
        if not self._may_queue(space):
            self.settle(space)
            self._take_carefully(space)
            return
        try:
            if self._launches is None:
                self._queue(space)
            else:
                self._launch(space, until)
        except (ArithmeticError, ValueError, BreakdownError):  # NumPy's LinAlgError is a ValueError
            if self.settle(space):
                raise  # else a function failed for the rounding errors that an earlier step had left

    def _may_queue(self, space: BlockKrylov) -> bool:
        return not self._waits and min(space.w, space.room) >= space.block_size

    def _queue(self, space: BlockKrylov) -> None:
        X, W, into = self._operands(space)
        W, basis = space.operator.apply(X, out=W), space.filled_basis()
        wait = queue_step(W, basis, self._window(space), into)
        self._reports.append((space.m, space.m + space.w, wait))
        self._advance(space, space.block_size)
        self._bound(space)

    def _launch(self, space: BlockKrylov, until: int) -> None:
        """Queue steps up to `until` columns of V, as far as there is room, by one call."""
        launches, b, m, end = self._launches, space.block_size, space.m, space.m + space.w
        assert launches is not None
        room = min(space.capacity - end, space.room)
        # In a launch, a step takes the columns that the one before has made.
        takes_several = launches.takes_several and space.w == b
        count = max(1, min(ceil_div(until - m, b), room // b)) if takes_several else 1
        X, W, _ = self._operands(space)
        if not launches.multiplies and space.operator.apply(X, out=W) is X:
            X, W = W, X
        columns = (space.n_locked + size for size in (m, end, space.full_until))
        wait = launches.queue(X, W, *columns, space.n_locked, count, QUEUED_ENOUGH * b, PLAIN_GROWTH)
        for step in range(count):
            report = step_of_several(wait, step, space.buffer.dtype)
            self._reports.append((space.m, space.m + space.w, report))
            self._advance(space, b)
        if not takes_several:
            self._bound(space)

    def _bound(self, space: BlockKrylov) -> None:
        """Wait for the first queued step if too many would be lost with it."""
        if len(self._reports) > (MAX_QUEUED if space.degree == 1 else MAX_QUEUED_FILTERS):
            self._settle_first(space)

    def settle(self, space: BlockKrylov, until: int | None = None) -> bool:
        while self._reports and (until is None or self._reports[0][0] < until):
            if not self._settle_first(space):
                return False
        return True

    def _settle_first(self, space: BlockKrylov) -> bool:
        """Wait for the first queued step; if it was not enough, discard all, take it again, return False."""
        m, known, wait = self._reports.pop(0)
        S, R = wait(space.scale)
        if R is not None:
            self._note(space, m, known, S, R, REDUCTIONS)
            return True
        self._reports.clear()
        space.m, space.w = m, known - m
        space.clear()  # what a function made of rounding errors need not be finite
        self._take_carefully(space)
        return False

    def _take_carefully(self, space: BlockKrylov) -> Array:
        """Take a careful step, and wait for the next one if it would not be enough, either."""
        R = super()._take_carefully(space)
        self._waits = not is_easy(R, space.scale, space.buffer.dtype, factors_again=self.takes_launches)
        return R

    def begin_ahead(self, space: BlockKrylov, steps: int) -> None:
        if steps and self.takes_launches and self._may_queue(space) and space.can_expand():
            self.take(space, space.m + steps * space.block_size, bool)

    def forget(self) -> None:
        self._reports.clear()
        self._waits = False
