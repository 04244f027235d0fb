"""A step of a Krylov decomposition that cycles repeat on the same columns: on a GPU one graph."""

from __future__ import annotations

from collections.abc import Sequence

from blockvec import Recorder

from ..blocks import Block, LinearMap
from ..orthogonalization.queued_step import QueuedStep, queue_step
from ..runtime.processes import everywhere

MAX_BYTES = 1 << 27  # of the columns of a decomposition: larger products take longer than their calls
SINGLE_COLUMNS = 64  # in single precision up to which blockvec has kernels
MAX_STEPS = 256  # that are recorded per decomposition


def recorder_for(operator: LinearMap, buffer: Block) -> Recorder | None:
    """Make a recorder for steps on a buffer; None where recording is impossible or gains nothing.

    Products of wide bases in single precision are calls of cuBLAS, which cannot be recorded.
    """
    n_bytes = buffer.shape[0] * buffer.shape[1] * buffer.dtype.itemsize
    is_own = buffer.dtype.char in "dD" or buffer.shape[1] <= SINGLE_COLUMNS
    is_recordable = getattr(operator, "is_recordable", False) and is_own
    layout = getattr(buffer, "layout", None)
    if buffer.device == "cpu" or not everywhere(layout, is_recordable and n_bytes <= MAX_BYTES):
        return None
    return Recorder(buffer.device, None if layout is None else layout.comm)


class RecordedStep:
    """The product W = A X and the first products of its orthogonalisation, up to its first decision.

    Parameters
    ----------
    recorder : Recorder
    operator : LinearMap
        A recordable one.
    X, W, V, into : Block
        As of `queue_step`. Their memory belongs to the recording; their columns may change.
    window : sequence of (int, int)
        Columns of V for the first projection.
    """

    def __init__(
        self,
        recorder: Recorder,
        operator: LinearMap,
        X: Block,
        W: Block,
        V: Block,
        window: Sequence[tuple[int, int]],
        into: Block,
    ) -> None:
        self._operands = operator, X, W, V, window, into
        self._queued: QueuedStep | None = None
        with recorder:
            self._repeat = recorder.record(self._perform)

    def _perform(self) -> None:
        operator, X, W, V, window, into = self._operands
        operator.apply(X, out=W)
        self._queued = queue_step(W, V, window, into)

    def queue(self) -> QueuedStep:
        """Queue the step."""
        self._repeat()
        assert self._queued is not None
        return self._queued
