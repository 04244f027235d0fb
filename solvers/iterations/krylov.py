"""Steps of a block Krylov decomposition: the operator is applied to pending columns, and the basis grows.

There are four kinds of steps: queued on a GPU without waiting for their results, in place on column-major
columns of the host, by a recurrence of single columns, and the careful one, for which nothing is assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from blockvec import Profile
from blockvec.errors import BreakdownError

from ..blocks import Array, Block, LinearMap, assign, ceil_div, round_up, to_host, width_padding
from ..column_block import ColumnBlock, ColumnOperator
from ..orthogonalization import orthogonalize
from ..orthogonalization.factors import PLAIN_GROWTH, square
from ..orthogonalization.host_step import host_step
from ..orthogonalization.queued_step import (
    QUEUED_ENOUGH,
    REDUCTIONS,
    QueuedStep,
    ReportOfSeveral,
    StepReport,
    is_easy,
    queue_step,
)
from ..runtime.processes import everywhere
from .counts import Counts
from .krylov_space import KrylovSpace, Ritz
from .partial import LEAST_LOSS, PartialRecurrence
from .recorded_step import MAX_STEPS, RecordedStep, recorder_for

# Steps whose small matrices the host has not seen: so many are lost if one was not enough. With A itself, and
# with filters, which take the device longer than the host.
MAX_QUEUED, MAX_QUEUED_FILTERS = 4, 1


def is_queued(operator: LinearMap, buffer: Block) -> bool:
    """Check whether steps are queued without waiting: those on a device whose products are no solves.

    After a step that was not enough the next ones work on noise, at which solves may fail.
    """
    may_be = getattr(operator, "may_be_queued", getattr(operator, "is_recordable", False))
    return buffer.device != "cpu" and everywhere(getattr(buffer, "layout", None), may_be)


class BlockKrylov(KrylovSpace):
    """A decomposition A V = V T + Q B that grows by steps of a number of columns.

    Parameters
    ----------
    operator, buffer, n_locked, rng, counts, M, rank
        As for `KrylovSpace`.
    block_size : int
        Columns per step.
    degree : int
        Applications of A per application of `operator`.

    References
    ----------
    As for `KrylovSpace`. Deviation: T is computed by projection against the whole basis, so that T = V^H A V
    regardless of rounding errors in the three-term recurrence; steps of single columns do so where they have
    lost orthogonality.
    """

    def __init__(
        self,
        operator: LinearMap,
        buffer: Block,
        n_locked: int,
        block_size: int,
        rng: Any,
        counts: Counts,
        degree: int = 1,
        M: LinearMap | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(operator, buffer, n_locked, rng, counts, M, rank)
        self.degree = degree
        self.block_size = block_size
        self._is_by_columns = isinstance(buffer, ColumnBlock) and buffer.dtype.char in "dD"
        self.loss = 0.0  # of orthogonality that single columns may have
        self._partial: PartialRecurrence | None = None
        self._inner: Callable[[Array], Array] | None = getattr(buffer, "image", None)  # products with M
        is_single = block_size == 1 and n_locked == 0 and self._is_by_columns and self._inner is None
        if is_single and isinstance(operator, ColumnOperator):
            self._partial = PartialRecurrence(operator.add_vector, cast(ColumnBlock, buffer))
        if width_padding(buffer) > 1:
            self._unit = block_size
        self._scratch = [buffer.like(block_size), buffer.like(block_size)]
        self._queues = M is None and is_queued(operator, buffer)
        self._waits = False  # for each step, after one that was not enough and others like it
        self._reports: list[
            tuple[int, int, StepReport | ReportOfSeveral]
        ] = []  # of queued steps: m and m + w before each
        make_steps = getattr(operator, "krylov_steps", None) if self._queues else None
        self._steps = None if make_steps is None else make_steps(buffer, block_size)
        self._recorder = recorder_for(operator, buffer)
        self._recorded: dict[tuple[Any, ...], RecordedStep | None] = {}
        self.most = 0.0  # largest norm of A x so far, until `norm` is known
        self._next: Block | None = None  # a contiguous copy of the pending columns, if available

    @property
    def n_bytes(self) -> int:
        """Bytes of all columns."""
        return int(self.buffer.shape[0] * self.buffer.shape[1] * self.buffer.dtype.itemsize)

    @property
    def takes_launches(self) -> bool:
        """Whether few calls queue several steps, which then take less time than a look at them."""
        return self._steps is not None

    @property
    def takes_single_columns(self) -> bool:
        """Whether steps are those of a recurrence of single vectors."""
        return self._partial is not None

    @property
    def is_oblique(self) -> bool:
        """Whether steps of single columns may have lost orthogonality."""
        return self._partial is not None and self.loss >= LEAST_LOSS

    @property
    def truncation(self) -> float:
        """Largest residual of invariant vectors that the decomposition leaves out."""
        return 0.0 if self._partial is None else self._partial.defect

    def can_expand(self) -> bool:
        """Check whether columns are pending and the buffer has room for the result of a step."""
        step = min(self.block_size, self.w)
        return self.w > 0 and self.m + self.w + min(step, self.room) <= self.capacity

    def can_go_on(self) -> bool:
        """Check the same, of a full buffer once queued steps are judged: one that failed leaves room."""
        if self.can_expand():
            return True
        self.settle()
        return self.can_expand()

    def expand(self, until: int = 0, stop: Callable[[], object] = bool) -> None:
        """Apply the operator to the next pending columns and append new directions.

        On a GPU this queues the step and does not wait for it; `settle` does. Where steps are cheap, it takes
        more until V has `until` columns; those of single vectors end sooner if `stop`, called after each,
        returns a true value.
        """
        if self._queues and not self._waits and min(self.w, self.room) >= self.block_size:
            try:
                self._queue_next(until)
            except (ArithmeticError, ValueError, BreakdownError):  # NumPy's LinAlgError is a ValueError
                if self.settle():
                    raise  # else a function failed for the rounding errors that an earlier step had left
        elif self._is_by_columns and self.room >= min(self.block_size, self.w):
            if not self._expand_singly(until, stop):
                self._expand_in_place()
        else:
            self.settle()
            self._expand_carefully()

    def expand_ahead(self, steps: int) -> int:
        """Queue steps that a look at V as it is need not wait for, where launches take them.

        Returns the columns of V, for `ritz`, and for `withdraw` if these steps are not wanted.
        """
        m = self.m
        if steps and self._launches_next and self.can_expand():
            self.expand(m + steps * self.block_size)
        return m

    def withdraw(self, m: int) -> None:
        """Drop columns that queued steps append behind the first m of V."""
        if m < self.m:
            self._reports.clear()
            self.m, self._next, self._is_clear = m, None, False

    def expand_wide(self) -> None:
        """Apply the operator to all pending columns at once; append no random directions. For starts."""
        self.settle()
        width, begin = self.w, self.m
        W = self.columns(begin, begin + width).copy()
        W = self.operator.apply(W)
        self.counts.apply(width)
        self.m, self.w = begin + width, 0
        known = self.m
        S, R, count = self.append(W, scale=0.0)  # the norm of the longest column
        self._H[:known, begin:known] = S
        self._H[known : known + count, begin:known] = R
        self._full_until = self.m + self.w

    def _operands(self) -> tuple[Block, Block, Block]:
        """Return the next pending columns X, a block for A X, and columns for the new directions."""
        step, known = min(self.block_size, self.w), self.m + self.w
        new = min(step, self.room)
        into = self.columns(known, known + new)
        X = self._take(step)
        return X, self._other_scratch(X, step), into

    def _take(self, step: int) -> Block:
        """Return the next pending columns as a contiguous block."""
        if self._next is not None and self._next.shape[1] == step:
            return self._next
        X = self._scratch[0] if step == self.block_size else self.buffer.like(step)
        X[:, :] = self.columns(self.m, self.m + step)
        return X

    def _other_scratch(self, X: Block, step: int) -> Block:
        if step != self.block_size:
            return self.buffer.like(step)
        return self._scratch[1] if X is self._scratch[0] else self._scratch[0]

    def _window(self) -> list[tuple[int, int]]:
        """Column ranges in which the product with the next pending block can have components, by symmetry.

        These are the locked columns, the block that the pending one was computed from, and all later columns.
        Other components are rounding errors, removed by the second pass. After a restart all columns couple.
        """
        if self.m < self._full_until:
            return [(0, self.n_locked + self._filled(self.m + self.w))]
        end = self.n_locked + min(round_up(self.m + self.w, self._unit), self.capacity)
        steps_ago = ceil_div(self.w, self.block_size)
        begin = self.m - steps_ago * self.block_size
        return [(0, self.n_locked), (self.n_locked + begin // self._unit * self._unit, end)]

    def _note(self, m: int, known: int, S: Array, R: Array, reductions: int) -> None:
        """Store the coefficients of a step whose first column was number m of V, with `known` of [V Q]."""
        self.counts.reductions += reductions
        new, step = R.shape
        if self.norm == 0:
            # The norm of all columns together is at most that of the longest one times sqrt(b).
            self.most = max(self.most, ((square(S) + square(R)) / max(step, 1)) ** 0.5)
        self._H[:known, m : m + step] = S[self.n_locked : self.n_locked + known]
        self._H[known : known + new, m : m + step] = R

    def _advance(self, step: int, W: Block) -> None:
        """Move columns that A has been applied to from Q to V, behind the new ones, which W holds, too."""
        new = min(step, self.room)
        self.counts.apply(step, self.degree)
        self.m += step
        self.w += new - step
        if new < step:
            self._full_until = self.capacity
        self._next = W if new == step == self.w and not self._is_by_columns else None

    # --- steps on the host -------------------------------------------------------------------------

    @Profile.timed("orthogonalisation")
    def _expand_singly(self, until: int, stop: Callable[[], object]) -> bool:
        """Take steps of the recurrence of single vectors, where that is enough."""
        begin, partial = self.m, self._partial
        if partial is None or self.w != 1:
            return False
        end = min(max(until, begin + 1), self.capacity - 1, begin + self.room)
        H, loss, counts = self._H, self.loss, self.counts
        while self.m < end:
            m, scale = self.m, self.norm or self.most
            reductions = partial.step(H, m, scale, loss) if loss >= LEAST_LOSS else 0
            if partial.is_lost:
                partial.is_lost = False
                self.reorthonormalize()
            if not reductions:
                if self.buffer.layout is not None:
                    break
                window = 0 if m < self._full_until else max(m - 1, 0)
                reductions, length = partial.full_step(H, m, window, scale)
                if not reductions:
                    counts.apply(1)  # which is computed again
                    break
                self.most = max(self.most, length)
            counts.reductions += reductions
            self.m += 1
            if stop():
                break
        counts.apply(1, self.m - begin)
        return self.m > begin

    def _expand_in_place(self) -> None:
        """Apply the operator to column-major columns of the buffer, and orthonormalise the result there.

        Columns are contiguous blocks, which need no copies; the usual case takes no call of `orthogonalize`.
        """
        step = min(self.block_size, self.w)
        begin, end = self.n_locked + self.m, self.n_locked + self.m + self.w
        columns, scale, layout = self.buffer.array, self.norm or self.most, self.buffer.layout
        blocks = cast(type[ColumnBlock], type(self.buffer))
        X, W = (blocks(columns[:, i : i + step], layout) for i in (begin, end))
        self.operator.apply(X, out=W)
        S, R, length, reductions = host_step(W, columns[:, :end], self._window(), scale, self._inner)
        if R is None:
            result = orthogonalize(W, self.basis, scale=length, rng=self.rng)
            S, R, reductions = S + result.S, result.R, reductions + result.reductions
        self._note(self.m, self.m + self.w, S, R, reductions)
        self._advance(step, W)
        if self._partial is not None and self.w == 1:
            self._partial.began(self._H, self.m)

    def _expand_carefully(self) -> None:
        """Take a step for which nothing is assumed."""
        X, W, into = self._operands()
        W = self.operator.apply(X, out=W)
        result = self._orthogonalize(W, self._filled_basis(), into, self.norm or self.most, self._window())
        self._note(self.m, self.m + self.w, result.S, result.R, 0)
        self._advance(X.shape[1], W)
        if self._waits:
            scale, dtype = self.norm or self.most, self.buffer.dtype
            self._waits = not is_easy(result.R, scale, dtype, factors_again=self.takes_launches)

    # --- queued steps on a GPU ---------------------------------------------------------------------

    @property
    def _launches_next(self) -> bool:
        """Whether a launch takes the next step."""
        return self._steps is not None and not self._waits and min(self.w, self.room) >= self.block_size

    def _queue_next(self, until: int) -> None:
        """Queue a step, or several up to `until` columns of V."""
        if self._steps is not None:
            self._queue_several(until)
            return
        X, W, into = self._operands()
        W, step = self._queue(X, W, into)
        columns = self.n_locked + self._filled(self.m + self.w)
        self._reports.append((self.m, self.m + self.w, StepReport(step, columns)))
        self._advance(self.block_size, W)
        self._bound_queue()

    def _queue_several(self, until: int) -> None:
        """Queue steps up to `until` columns of V, as far as there is room, by one call."""
        assert self._steps is not None
        b, end = self.block_size, self.m + self.w
        room = min(self.capacity - end, self.room)
        # In a launch, a step takes the columns that the one before has made.
        takes_several = self._steps.takes_several and self.w == b
        count = max(1, min(ceil_div(until - self.m, b), room // b)) if takes_several else 1
        X, W, _ = self._operands()
        if all(X is not block for block in self._scratch):
            X, given = self._scratch[0], X
            X[:, :], W = given, self._scratch[1]
        if not self._steps.multiplies and self.operator.apply(X, out=W) is X:
            X, W = W, X
        columns = (self.n_locked + size for size in (self.m, end, self._full_until))
        wait = self._steps.queue(X, W, *columns, self.n_locked, count, QUEUED_ENOUGH * b, PLAIN_GROWTH)
        for step in range(count):
            report = ReportOfSeveral(wait, step, self.buffer.dtype)
            self._reports.append((self.m, self.m + self.w, report))
            self._advance(b, W if count % 2 else X)
        if not takes_several:
            self._bound_queue()

    def _queue(self, X: Block, W: Block, into: Block) -> tuple[Block, QueuedStep]:
        """Queue a step, by one call where cycles repeat it; return the block that holds its result, too.

        The operations are called in the first cycle, which compiles kernels, and if they cannot be recorded.
        """
        window, basis = self._window(), self._filled_basis()
        recorder = self._recorder
        kind = id(self.operator), X is self._scratch[0], self.m, self.w, *window
        if recorder is not None and getattr(self.operator, "is_recordable", False):
            if kind in self._recorded:
                step = self._recorded[kind]
                if step is None:
                    step = RecordedStep(recorder, self.operator, X, W, basis, window, into)
                    self._recorded[kind] = step
                return W, step.queue()
            if len(self._recorded) < MAX_STEPS:
                self._recorded[kind] = None
        W = self.operator.apply(X, out=W)
        return W, queue_step(W, basis, window, into)

    def _bound_queue(self) -> None:
        """Wait for the first queued step if too many would be lost with it."""
        if len(self._reports) > (MAX_QUEUED if self.degree == 1 else MAX_QUEUED_FILTERS):
            self._settle_first()

    def settle(self, until: int | None = None) -> bool:
        """Wait for queued steps; repeat with all care the first one that was not enough, and return False."""
        while self._reports and (until is None or self._reports[0][0] < until):
            if not self._settle_first():
                return False
        return True

    def _settle_first(self) -> bool:
        """Wait for the first queued step; if it was not enough, discard all, take it again, return False."""
        m, known, report = self._reports.pop(0)
        S, R = report.wait(self.norm or self.most)
        if R is not None:
            self._note(m, known, S, R, REDUCTIONS)
            return True
        self._reports.clear()
        self._waits = self.degree > 1 or self._steps is not None
        self.m, self.w, self._next, self._is_clear = m, known - m, None, False
        self.free[:, :] = 0  # what a function made of rounding errors need not be finite
        self._expand_carefully()
        return False

    # --- changes other than steps ------------------------------------------------------------------

    def _changed(self, full_until: int, *, keeps_pending: bool = False) -> None:
        super()._changed(full_until)
        if not keeps_pending:
            self._next = None
        self._image = None
        if self._partial is not None:
            self._partial.stop()

    def restart(self, ritz: Ritz, kept: NDArray[np.intp]) -> None:
        """Replace V by Ritz vectors; see the base class."""
        super().restart(ritz, kept)
        self._waits = False

    def truncate(self, count: int, defect: float = 0.0) -> None:
        """Drop Q and all but the first `count` columns of V, invariant but for residuals up to `defect`."""
        if self._partial is not None:
            self._partial.defect = defect
        super().truncate(count)

    def snapshot(self) -> dict[str, Any]:
        """Return the decomposition and the state that the next step depends on, on the host."""
        saved = super().snapshot()
        if self._next is not None:
            saved["next"] = to_host(self._next.array)
        return saved | {"most": self.most, "defect": self.truncation}

    def resume(self, saved: dict[str, Any]) -> None:
        """Restore a state returned by `snapshot`."""
        super().resume(saved)
        self.most = saved["most"]
        if self._partial is not None:
            self._partial.defect = saved["defect"]
        self._next = None
        if "next" in saved:
            self._next = self._scratch[0] if self.w == self.block_size else self.buffer.like(self.w)
            assign(self._next, saved["next"])
