"""Chebyshev polynomials of an operator, which damp an interval and amplify everything outside.

On [centre - half_width, centre + half_width] the polynomial T_d((A - centre)/half_width) is bounded by 1; at
a relative distance x > 1 from the centre it is cosh(d arccosh(x)). Its recurrence is in
`solvers.functions.recurrence`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from blockvec import BlockVector, Recorder

from ..blocks import Block, ColumnBlock, LinearMap, Operator, RealArray, in_precision, project_out
from ..functions.recurrence import Recurrence
from ..runtime.processes import everywhere
from .filter import Filter, SingleCopy

MOST_REPEATS = 8  # pairs of blocks that a filter is bound to: steps have two scratch blocks, as a rule
CALLS_BEFORE_RECORDING = 2  # of a filter, in which kernels are compiled and matrices are converted
MOST_RECORDED_BYTES = 1 << 27  # of the columns of a block: larger products take longer than their calls
SINGLE_COLUMNS = 64  # in single precision up to which blockvec has kernels


def steps_within_leak(
    leak: float, above: RealArray, residuals: RealArray, half_width: float, unit: float
) -> float:
    """Return the steps in which components along computed vectors, initially their errors, stay below `leak`.

    `above` are the distances of their values from the interval, and `unit` is the unit roundoff. Components
    are amplified by T_d at 1 + distance / half_width.
    """
    outside = above > 0
    errors = np.clip(residuals[outside] / above[outside], 10 * unit, 1.0)
    growth = np.arccosh(np.maximum(leak / errors, 1.5))
    steps = growth / np.arccosh(1 + np.maximum(above[outside] / half_width, 1e-15))
    return max(1.0, float(np.floor(steps.min(initial=math.inf))))


class ChebyshevOperator:
    """The Chebyshev polynomial T_d of an operator, positive and large at the wanted end.

    The operator is restricted to the complement of the locked columns, which are projected out after so many
    steps as `project_every` says: more than one where they are eigenvectors. The recurrence runs on row-major
    blocks, whose products read the matrix once, in the precision of the operator. With a recorder, all of its
    steps are repeated by one call. `matrix` is the operator in the precision of the blocks that it is applied
    to; steps may be queued where products with noise do not fail, as those with a matrix.
    """

    def __init__(
        self,
        operator: Operator | SingleCopy,
        filter: Filter,
        locked: Block | None,
        recorder: Recorder | None = None,
        matrix: Any = None,
        project_every: int = 1,
    ) -> None:
        self._matrix, self._recorder = matrix, recorder
        self._repeats: dict[Any, Callable[[], object]] = {}  # by operands
        self._calls = 0
        self.degree, self._dtype = filter.degree, operator.dtype
        self.locked = None if locked is None else self._rows(locked)
        self._project_every = self.degree if locked is None else project_every
        sign = -1 if filter.which == "SA" else 1
        self._doubled = operator.affine(2 * sign / filter.half_width, sign * (filter.low + filter.edge) / 2)

    @property
    def may_be_queued(self) -> bool:
        """Whether steps may be queued without waiting."""
        matrix = self._matrix
        return bool(getattr(matrix, "may_be_queued", getattr(matrix, "is_recordable", False)))

    def krylov_steps(self, V: Any, b: int) -> Any:
        """Prepare the orthogonalisation of blocks T_d X by one launch, as a matrix of a GPU does."""
        make = getattr(self._matrix, "krylov_steps", None)
        steps = None if make is None else make(V, b)
        return None if steps is None else steps.without_products()

    def apply(self, X: Block, out: Block | None = None) -> Block:
        """Return T_d X in one of the two blocks; both may be overwritten."""
        if out is None:  # a block that the next call does not have
            return self._apply(X, X.like())
        self._calls += 1
        if self._recorder is None or self._calls <= CALLS_BEFORE_RECORDING:
            return self._apply(X, out)
        x, y = (cast(BlockVector, block).memory for block in (X, out))
        key = x.address, x.kind, y.address, y.kind
        if key not in self._repeats:
            if len(self._repeats) == MOST_REPEATS:  # each keeps two blocks
                self._repeats.clear()
            with self._recorder:
                self._repeats[key] = self._recorder.record(lambda: self._apply(X, out))
        self._repeats[key]()
        return X if X.dtype == self._dtype and self.degree % 2 == 0 else out

    def _apply(self, X: Block, out: Block) -> Block:
        Y = self._rows(X)
        steps = Recurrence(
            *(self._doubled, Y, out if Y is X else Y.like(), self._project), project_every=self._project_every
        )
        steps.take(self.degree)
        if Y is X:
            return steps.current
        out[:, :] = steps.current
        return out

    def _project(self, step: int, current: Block, previous: Block) -> None:
        project_out(self.locked, current)
        if self._project_every > 1 and step < self.degree:
            project_out(self.locked, previous)

    def _rows(self, block: Block) -> Block:
        """Return a block as it is, or a row-major copy in the operator's precision."""
        if isinstance(block, ColumnBlock):
            rows: type[BlockVector] = getattr(block, "rows", BlockVector)  # in the same inner product
            return rows(block.array, copy=True, dtype=self._dtype, layout=block.layout)
        return block if block.dtype == self._dtype else in_precision(block, self._dtype)


def recorder_for(operator: LinearMap, buffer: Block) -> Recorder | None:
    """Make a recorder for products with blocks like a buffer; None if recording is impossible or no gain.

    Products of wide bases in single precision are calls of cuBLAS, which cannot be recorded.
    """
    n_bytes = buffer.shape[0] * buffer.shape[1] * buffer.dtype.itemsize
    is_own = buffer.dtype.char in "dD" or buffer.shape[1] <= SINGLE_COLUMNS
    is_recordable = getattr(operator, "is_recordable", False) and is_own
    layout = getattr(buffer, "layout", None)
    if buffer.device == "cpu" or not everywhere(layout, is_recordable and n_bytes <= MOST_RECORDED_BYTES):
        return None
    return Recorder(buffer.device, None if layout is None else layout.comm)
