"""The exchange of the rows of a block that other processes need for a product: its halo."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..backends import Array, Backend
from .communicator import Communicator, Message, MpiCommunicator
from .host_memory import Exchange, HostCopies, Pending, copy_rows
from .layout import RowLayout
from .peer_copies import PeerCopies
from .traffic import current_traffic

MOST_BUFFERS = 8  # widths and types of blocks whose buffers are kept

Buffers: TypeAlias = "Messages | HostCopies | PeerCopies"
"""Memory for the exchange of rows of one width and type, while ``is_open``; ``start(X)`` is `Halo.start`."""


class Halo:
    """The plan of an exchange: made once for a matrix, its buffers once for a width and type of blocks.

    All processes of a layout make their plans together; `wanted` are the rows of other processes, ascending
    and distinct. `wanted_rows` and `sent_rows` count what this process receives and sends per exchange.
    """

    def __init__(self, layout: RowLayout, wanted: NDArray[np.int64], backend: Backend) -> None:
        assert layout.comm is not None
        self._comm: Communicator = layout.comm
        self._backend, self.wanted, self.wanted_rows = backend, wanted, len(wanted)
        bounds = np.searchsorted(wanted, layout.cuts)
        self._received = [
            (rank, int(begin), int(end)) for rank, (begin, end) in enumerate(pairwise(bounds)) if end > begin
        ]
        asked = self._comm.allgather(np.diff(bounds))[:, layout.rank]
        lists = [(rank, np.empty(count, np.int64)) for rank, count in enumerate(asked.tolist()) if count]
        self._comm.exchange([(rank, wanted[begin:end]) for rank, begin, end in self._received], lists)()
        self._sent = [(rank, self._rows(rows - layout.first_row), len(rows)) for rank, rows in lists]
        self.sent_rows = sum(len(rows) for _, rows in lists)
        self._buffers: dict[tuple[int, str], Buffers] = {}
        self._recorded: list[Buffers] = []
        self._is_on_host = backend.name == "cpu"
        if not self._is_on_host:
            self._comm.allgather(backend.empty((1,), "float64"))  # connects GPUs, also those without a halo

    def _rows(self, rows: NDArray[np.int64]) -> slice | Array:
        """Convert row numbers to a range where they are one, which needs no copy of the rows."""
        first, last = int(rows[0]), int(rows[-1])
        if last - first + 1 == len(rows):
            return slice(first, last + 1)
        return self._backend.from_host(rows)

    def start(self, X: Array) -> Pending:
        """Start the exchange of rows of X; return two functions, to be called in this order.

        One waits for the wanted rows and returns them, row-major; the other one tells that they have been
        read, also after an error. X is row-major or column-major.
        """
        buffers = self._buffers_for((X.shape[1], X.dtype.char))
        traffic = current_traffic()
        traffic.exchanges += 1
        traffic.exchange_bytes += self.sent_rows * X.shape[1] * X.itemsize
        stop = traffic.watch("exchange", X)
        wait, free = buffers.start(X)
        stop()

        def finish() -> Array:
            begin_s, stop = time.perf_counter(), traffic.watch("exchange", X)
            halo = wait()
            stop()
            traffic.exchange_s += time.perf_counter() - begin_s
            return halo

        return finish, free

    def _buffers_for(self, kind: tuple[int, str]) -> Buffers:
        """Return buffers for blocks of a width and type; those of a recording last as long as the plan."""
        comm, is_host = self._comm, self._is_on_host
        is_recording = not is_host and self._backend.xp.cuda.get_current_stream().is_capturing()
        buffers = self._buffers.get(kind)
        if buffers is None or not buffers.is_open:
            exchange = Exchange(self._received, self._sent, *kind)
            if is_recording:  # what processes make together is not recorded
                return Messages(comm, exchange, self._backend)
            if len(self._buffers) >= MOST_BUFFERS:
                self._buffers.clear()
            copies: Buffers | None = None
            if isinstance(comm, MpiCommunicator):
                copies = comm.host_copies(exchange) if is_host else comm.peer_copies(exchange)
            buffers = self._buffers[kind] = copies or Messages(comm, exchange, self._backend)
        if is_recording and buffers not in self._recorded:
            self._recorded.append(buffers)
        return buffers


class Messages:
    """Buffers whose content goes through `Communicator.exchange`; a message has the rows of one process."""

    is_open = True

    def __init__(self, comm: Communicator, exchange: Exchange, backend: Backend) -> None:
        width, dtype = exchange.width, exchange.dtype
        self._comm, self._xp = comm, backend.xp
        self._sends = [
            (rank, rows, backend.empty((count, width), dtype)) for rank, rows, count in exchange.sent
        ]
        self._halo = backend.empty((exchange.rows, width), dtype)
        self._receives: list[Message] = [
            (rank, self._halo[begin:end]) for rank, begin, end in exchange.received
        ]

    def start(self, X: Array) -> Pending:
        messages = []
        for rank, rows, buffer in self._sends:
            part = X[rows] if isinstance(rows, slice) else buffer
            if part is buffer and self._xp is not np:
                self._xp.take(X, rows, axis=0, out=buffer)
            elif part is buffer or not part.flags.c_contiguous:
                copy_rows(X, rows, buffer)
                part = buffer
            messages.append((rank, part))
        wait = self._comm.exchange(messages, self._receives)

        def finish() -> Array:
            wait()
            return self._halo

        return finish, bool
