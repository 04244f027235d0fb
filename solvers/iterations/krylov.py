"""Growth of a block Krylov decomposition: the operator is applied to pending columns, and the basis grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import Array, Block, LinearMap, ceil_div, round_up, width_padding
from ..column_block import ColumnBlock, ColumnOperator
from ..orthogonalization.factors import square
from .counts import Counts
from .krylov_space import KrylovSpace, Ritz
from .partial import LEAST_LOSS, PartialRecurrence
from .steps import ColumnSteps, QueuedSteps, Steps, is_queued


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

    Attributes
    ----------
    loss : float
        Loss of orthogonality that single columns may have.
    most : float
        Largest norm of A x so far, until `norm` is known.

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
        self.degree, self.block_size = degree, block_size
        self.loss = self.most = 0.0
        self._scratch = [buffer.like(block_size), buffer.like(block_size)]
        if width_padding(buffer) > 1:
            self._unit = block_size
        self._partial: PartialRecurrence | None = None
        self._steps = Steps()
        if isinstance(buffer, ColumnBlock) and buffer.dtype.char in "dD":
            has_inner_product = getattr(buffer, "image", None) is not None
            if (
                isinstance(operator, ColumnOperator)
                and block_size == 1
                and not (n_locked or has_inner_product)
            ):
                self._partial = PartialRecurrence(operator.add_vector, buffer)
            self._steps = ColumnSteps(buffer, self._partial)
        elif M is None and is_queued(operator, buffer):
            self._steps = QueuedSteps(operator, buffer, block_size)

    @property
    def takes_launches(self) -> bool:
        """Whether few calls queue several steps, which then take less time than a look at them."""
        return self._steps.takes_launches

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

    @property
    def scale(self) -> float:
        """A lower bound of ||A||."""
        return self.norm or self.most

    # --- steps ----------------------------------------------------------------------------------------

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
        self._steps.take(self, until, stop)

    def expand_ahead(self, steps: int) -> int:
        """Queue steps that a look at V as it is need not wait for, where launches take them.

        Returns the columns of V, for `ritz`, and for `withdraw` if these steps are not wanted.
        """
        m = self.m
        self._steps.begin_ahead(self, steps)
        return m

    def withdraw(self, m: int) -> None:
        """Drop columns that queued steps append behind the first m of V."""
        if m < self.m:
            self._steps.forget()
            self.withdraw_to(m, self.w)

    def withdraw_to(self, m: int, w: int) -> None:
        """Set the numbers of columns of V and Q back."""
        self.m, self.w, self._is_clear = m, w, False

    def settle(self, until: int | None = None) -> bool:
        """Wait for queued steps; repeat with all care the first one that was not enough, and return False."""
        return self._steps.settle(self, until)

    def expand_wide(self) -> None:
        """Apply the operator to all pending columns at once; append no random directions. For starts."""
        self.settle()
        width, begin = self.w, self.m
        W = self.operator.apply(self.columns(begin, begin + width).copy())
        self.counts.apply(width)
        self.m, self.w = begin + width, 0
        known = self.m
        S, R, count = self.append(W, scale=0.0)  # the norm of the longest column
        self.H[:known, begin:known] = S
        self.H[known : known + count, begin:known] = R
        self.full_until = self.m + self.w

    def operands(self) -> tuple[Block, Block, Block]:
        """Return a copy of the next pending columns, a block for their product, and columns for new ones."""
        step, known = min(self.block_size, self.w), self.m + self.w
        X, W = self._scratch if step == self.block_size else (self.buffer.like(step), self.buffer.like(step))
        X[:, :] = self.columns(self.m, self.m + step)
        return X, W, self.columns(known, known + min(step, self.room))

    def window(self) -> list[tuple[int, int]]:
        """Column ranges in which the product with the next pending block can have components, by symmetry.

        These are the locked columns, the block that the pending one was computed from, and all later columns.
        Other components are rounding errors, removed by the second pass. After a restart all columns couple.
        """
        if self.m < self.full_until:
            return [(0, self.n_locked + self.filled(self.m + self.w))]
        end = self.n_locked + min(round_up(self.m + self.w, self._unit), self.capacity)
        begin = self.m - ceil_div(self.w, self.block_size) * self.block_size
        return [(0, self.n_locked), (self.n_locked + begin // self._unit * self._unit, end)]

    def note(self, m: int, known: int, S: Array, R: Array, reductions: int) -> None:
        """Store the coefficients of a step whose first column was number m of V, with `known` of [V Q]."""
        self.counts.reductions += reductions
        new, step = R.shape
        if self.norm == 0:
            # The norm of all columns together is at most that of the longest one times sqrt(b).
            self.most = max(self.most, ((square(S) + square(R)) / max(step, 1)) ** 0.5)
        self.H[:known, m : m + step] = S[self.n_locked : self.n_locked + known]
        self.H[known : known + new, m : m + step] = R

    def advance(self, step: int) -> None:
        """Move columns that A has been applied to from Q to V; new ones follow Q."""
        new = min(step, self.room)
        self.counts.apply(step, self.degree)
        self.m += step
        self.w += new - step
        if new < step:
            self.full_until = self.capacity

    # --- changes other than steps ------------------------------------------------------------------

    def _changed(self, full_until: int) -> None:
        super()._changed(full_until)
        if self._partial is not None:
            self._partial.stop()

    def restart(self, ritz: Ritz, kept: NDArray[np.intp]) -> None:
        """Replace V by Ritz vectors; see the base class."""
        super().restart(ritz, kept)
        self._steps.forget()

    def truncate(self, count: int, defect: float = 0.0) -> None:
        """Drop Q and all but the first `count` columns of V, invariant but for residuals up to `defect`."""
        if self._partial is not None:
            self._partial.defect = defect
        super().truncate(count)

    def snapshot(self) -> dict[str, Any]:
        """Return the decomposition and the state that the next step depends on, on the host."""
        return super().snapshot() | {"most": self.most, "defect": self.truncation}

    def resume(self, saved: dict[str, Any]) -> None:
        """Restore a state returned by `snapshot`."""
        super().resume(saved)
        self.most = saved["most"]
        if self._partial is not None:
            self._partial.defect = saved["defect"]
