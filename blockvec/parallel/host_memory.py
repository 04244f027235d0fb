"""Memory that all processes of a host have in common: small sums and halos without messages.

A process writes data and then the number of the operation, for which the others poll. Each place exists
twice, for operations in turn: a process that has come to the next operation has read what the one before it
has brought.
"""

from __future__ import annotations

import mmap
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..backends import Array
from ..kernels.limits import round_up

if TYPE_CHECKING:
    from .communicator import MpiCommunicator

FOLDER = Path("/dev/shm")  # files in memory; without it, as outside of Linux, messages are sent
IN_ORDER = ("x86_64", "AMD64")  # processors whose writes others see in their order, without a barrier
LINE_BYTES = 64  # numbers are as far apart: neighbours in one cache line delay each other
SMALL_BYTES = 4096  # of arrays that `Mailbox` takes
MOST_KINDS = 256  # shapes and types of arrays whose views are kept

Share = Callable[[Any], Sequence[Any]]


def common_memory(share: Share, nbytes: int, is_first: bool) -> NDArray[np.uint8] | None:
    """Map zeros in all processes; None if that is not possible for all of them, which call it together.

    `share` collects an object per process; one of them is the first. The file that the memory belongs to has
    no name any more when this function returns, and ends with the last process.
    """
    file, name, memory = None, "", None
    if not FOLDER.is_dir():
        nbytes = 0
    elif is_first and nbytes:
        try:
            file = tempfile.NamedTemporaryFile(prefix="blockvec-", dir=FOLDER)  # noqa: SIM115
            os.posix_fallocate(file.fileno(), 0, nbytes)  # otherwise a write without memory ends the process
            name = file.name
        except OSError:
            nbytes = 0
    name, host = next((found for found in share((name, platform.node())) if found[0]), ("", ""))
    if name and nbytes and host == platform.node():
        try:
            with Path(name).open("r+b") as opened:
                memory = np.frombuffer(mmap.mmap(opened.fileno(), nbytes), np.uint8)
        except (OSError, ValueError):
            pass
    is_mapped = all(share(memory is not None))
    if file is not None:
        file.close()
    return memory if is_mapped else None


class Mailbox:
    """Small arrays of all processes, side by side in `memory` of `Mailbox.nbytes`.

    `wait` is called with a function that tells whether all arrays have arrived.
    """

    def __init__(self, rank: int, size: int, memory: NDArray[np.uint8]) -> None:
        self.rank, self.size, self.turn = rank, size, 0
        self._numbers = memoryview(memory[: size * LINE_BYTES]).cast("q")  # type: ignore[arg-type]
        step = LINE_BYTES // 8
        self._own, self._others = rank * step, [other * step for other in range(size) if other != rank]
        self._places = memory[size * LINE_BYTES :].reshape(2, size, SMALL_BYTES)
        self._views: dict[tuple[Any, ...], NDArray[Any]] = {}

    @staticmethod
    def nbytes(size: int) -> int:
        """Return the bytes of memory for so many processes."""
        return size * (LINE_BYTES + 2 * SMALL_BYTES)

    def swap(self, part: Array, wait: Callable[[Callable[[], bool]], None]) -> Array:
        """Write an array and return those of all processes, which the operation after the next replaces."""
        key = part.shape, part.dtype
        views = self._views.get(key)
        if views is None:
            if len(self._views) >= MOST_KINDS:
                self._views.clear()
            views = self._views[key] = (
                self._places[:, :, : part.nbytes].view(part.dtype).reshape(2, self.size, *part.shape)
            )
        self.turn = turn = self.turn + 1
        parts: Array = views[turn & 1]
        parts[self.rank] = part
        self._numbers[self._own] = turn
        numbers, others = self._numbers, self._others

        def have_arrived() -> bool:
            return all(numbers[other] >= turn for other in others)

        if not have_arrived():
            wait(have_arrived)
        return parts

    def restart(self, turn: int) -> None:
        """Begin again after a failure; all processes give the same, the most of what they have counted."""
        self.turn = self._numbers[self._own] = turn


Pending: TypeAlias = tuple[Callable[[], Array], Callable[[], object]]
"""Two functions that end an exchange: one waits for the rows, the other tells that they have been read."""


class Exchange(NamedTuple):
    """The rows that a process sends and receives for a product, in blocks of one width and type."""

    received: Sequence[tuple[int, int, int]]  # a process, first and last of its rows in the halo
    sent: Sequence[tuple[int, Any, int]]  # a process, its wanted rows of this one, and their number
    width: int
    dtype: str

    @property
    def rows(self) -> int:
        """Rows of the halo."""
        return max((end for _, _, end in self.received), default=0)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * np.dtype(self.dtype).itemsize

    @property
    def is_symmetric(self) -> bool:
        """Whether this process sends to those that it receives from."""
        return {peer for peer, _, _ in self.received} == {peer for peer, _, _ in self.sent}


class HostCopies:
    """Exchanges of rows of one width and type: a process writes them into the halo of another.

    It then writes the number of the exchange beside it. A process has two halos in turn. Neighbours receive
    from each other: the number s - 1 tells that the neighbour has come to that exchange, and therefore has
    read the halo of exchange s - 2.

    `offers` are of each process the rows of its halo, and the places of others in it.
    """

    def __init__(
        self,
        comm: MpiCommunicator,
        exchange: Exchange,
        offers: Sequence[tuple[int, dict[int, tuple[int, int]]]],
        memory: NDArray[np.uint8],
    ) -> None:
        width, dtype, row_bytes = exchange.width, exchange.dtype, exchange.row_bytes
        self._comm, self._step, self.is_open = comm, 0, True
        sizes = [halo_bytes(rows, row_bytes) for rows, _ in offers]
        starts = np.concatenate([[0], np.cumsum([2 * size for size in sizes])]) + comm.size**2 * LINE_BYTES
        self._numbers = memoryview(memory[: comm.size**2 * LINE_BYTES]).cast("q")  # type: ignore[arg-type]
        self._awaited = [self._place(comm.rank, peer) for peer, _, _ in exchange.received]

        def halos(rank: int) -> list[NDArray[Any]]:
            rows = offers[rank][0]
            begins = (int(starts[rank]) + turn * sizes[rank] for turn in range(2))
            return [memory[at : at + rows * row_bytes].view(dtype).reshape(rows, width) for at in begins]

        self._halos = halos(comm.rank)
        self._targets = []
        for peer, chosen, _ in exchange.sent:
            places = [halo[slice(*offers[peer][1][comm.rank])] for halo in halos(peer)]
            self._targets.append((places, self._place(peer, comm.rank), chosen))

    def _place(self, owner: int, writer: int) -> int:
        return (owner * self._comm.size + writer) * (LINE_BYTES // 8)

    def start(self, X: Array) -> Pending:
        wait = self._comm.started()
        self._step = step = self._step + 1
        numbers, awaited, halo = self._numbers, self._awaited, self._halos[step & 1]
        for places, number, rows in self._targets:
            copy_rows(X, rows, places[step & 1])
            numbers[number] = step

        def have_arrived() -> bool:
            return all(numbers[place] >= step for place in awaited)

        def finish() -> Array:
            if not have_arrived():
                wait(have_arrived)
            return halo

        return finish, bool


def copy_rows(X: Array, rows: Any, out: Array) -> None:
    """Copy rows of a row-major or column-major block to a row-major one."""
    if isinstance(rows, slice) or not X.flags.c_contiguous:  # `take` would copy all of such an X first
        out[...] = X[rows]
    else:
        np.take(X, rows, axis=0, out=out, mode="clip")  # otherwise NumPy copies the result once more


def halo_bytes(rows: int, row_bytes: int) -> int:
    """Return the bytes of one halo, in whole cache lines."""
    return round_up(rows * row_bytes, LINE_BYTES)
