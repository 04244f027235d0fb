"""The exchange of the rows of a block that other processes need for a product: its halo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends import Array, Backend
from .communicator import Communicator, Message
from .layout import RowLayout

MOST_BUFFERS = 8  # widths and types of blocks whose buffers are kept


class Halo:
    """The plan of an exchange: made once for a matrix, its buffers once for a width and type of blocks.

    Parameters
    ----------
    layout : RowLayout
        All processes make their plans together.
    wanted : array of int64, shape (h,)
        Rows of other processes, ascending and distinct.

    Attributes
    ----------
    wanted_rows, sent_rows : int
        Rows that this process receives and sends per exchange.
    """

    def __init__(self, layout: RowLayout, wanted: NDArray[np.int64], backend: Backend) -> None:
        assert layout.comm is not None
        self._comm: Communicator = layout.comm
        self._backend, self.wanted_rows = backend, len(wanted)
        bounds = np.searchsorted(wanted, layout.cuts)
        self._received = [
            (rank, int(begin), int(end)) for rank, (begin, end) in enumerate(pairwise(bounds)) if end > begin
        ]
        lists = self._asked_for(layout, wanted, np.diff(bounds))
        self._sent = [(rank, self._rows(rows - layout.first_row)) for rank, rows in lists]
        self.sent_rows = sum(len(rows) for _, rows in lists)
        self._buffers: dict[tuple[int, str], tuple[Array, list[Message], list[Message]]] = {}
        if backend.name != "cpu":
            self._comm.allgather(backend.empty((1,), "float64"))  # connects GPUs, also those without a halo

    def _asked_for(
        self, layout: RowLayout, wanted: NDArray[np.int64], counts: NDArray[Any]
    ) -> Sequence[tuple[int, NDArray[np.int64]]]:
        """Tell each owner the rows that this process wants; return those that others want from this one."""
        asked = self._comm.allgather(counts)[:, layout.rank]
        lists = [(rank, np.empty(count, np.int64)) for rank, count in enumerate(asked.tolist()) if count]
        self._comm.exchange([(rank, wanted[begin:end]) for rank, begin, end in self._received], lists)()
        return lists

    def _rows(self, rows: NDArray[np.int64]) -> slice | Array:
        """Convert row numbers to a range where they are one, which needs no copy of the rows."""
        first, last = int(rows[0]), int(rows[-1])
        if last - first + 1 == len(rows):
            return slice(first, last + 1)
        return self._backend.from_host(rows)

    def start(self, X: Array) -> Callable[[], Array]:
        """Start the exchange of rows of X; the function returned waits and returns the wanted rows.

        They are valid until the next exchange.
        """
        key = X.shape[1], X.dtype.name
        if key not in self._buffers:
            if len(self._buffers) >= MOST_BUFFERS:
                self._buffers.clear()
            self._buffers[key] = self._allocated(*key)
        halo, sends, receives = self._buffers[key]
        messages = []
        for (rank, rows), (_, buffer) in zip(self._sent, sends, strict=True):
            if isinstance(rows, slice) and X.flags.c_contiguous:
                buffer = X[rows]
            elif isinstance(rows, slice):
                buffer[...] = X[rows]
            else:
                self._backend.xp.take(X, rows, axis=0, out=buffer)
            messages.append((rank, buffer))
        wait = self._comm.exchange(messages, receives)

        def finish() -> Array:
            wait()
            return halo

        return finish

    def _allocated(self, width: int, dtype: str) -> tuple[Array, list[Message], list[Message]]:
        """Allocate the wanted rows of a block and what is sent of it."""
        halo = self._backend.empty((self.wanted_rows, width), dtype)
        receives = [(rank, halo[begin:end]) for rank, begin, end in self._received]
        sends = []
        for rank, rows in self._sent:
            count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
            sends.append((rank, self._backend.empty((count, width), dtype)))
        return halo, sends, receives
