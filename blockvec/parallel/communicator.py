"""Communication between the processes that share the rows of a block.

A `Communicator` moves arrays. `MpiCommunicator` does so through the buffers of mpi4py, and between GPUs by
NCCL where each process has one. `share` collects small objects.
"""

from __future__ import annotations

import atexit
import functools
import math
import operator
import os
import pickle
import platform
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..backends import Array, array_namespace, backend_of, is_cupy
from ..errors import BlockvecError, OptionError
from ..system.config import options
from . import nccl
from .host_memory import (
    IN_ORDER,
    LINE_BYTES,
    SMALL_BYTES,
    Exchange,
    HostCopies,
    Mailbox,
    common_memory,
    halo_bytes,
)
from .launch import await_all
from .peer_copies import PeerCopies

Message: TypeAlias = tuple[int, Array]
"""A contiguous array and the process that it is sent to or received from."""

MESSAGE_BYTES = 1 << 30  # counts of MPI-3 have 32 bits: longer arrays are sent in pieces
POLLS = 64  # tests of a request between two looks for failed processes
# From so many tests on a waiting process lets others have the core, and from more on it sleeps. On a core
# that others want, too, it would not come back for milliseconds, which most waits do not take.
PATIENT_POLLS, BUSY_POLLS, REST_S = 1 << 10, 1 << 14, 5e-5
# Gives the core to another process that waits for it, as a sleep of no time does from Python 3.12 on.
let_others_run = getattr(os, "sched_yield", functools.partial(time.sleep, 0))
FAILED = 1  # tag of the message of a process that has failed


class PeerError(BlockvecError, RuntimeError):
    """Another process has failed. `agreed` turns this into the exception of that process."""


@runtime_checkable
class Communicator(Protocol):
    """Processes that share the rows of a block.

    All of them call `allgather`, `sum` and `exchange` in the same order. Thus each operation has a number,
    which tells after a failure whether it can still be completed.
    """

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""

    @property
    def size(self) -> int:
        """Number of processes."""

    def allgather(self, part: Array, /) -> Array:
        """Collect an array of equal shape and type from each process: shape (size, ...), in rank order."""

    def sum(self, part: Array, /) -> Array:
        """Add an array of equal shape and type over the processes, as `in_rank_order` adds them."""

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message], /) -> Callable[[], None]:
        """Start to send and receive contiguous arrays; the function returned waits for all of them.

        Until then arrays that are sent must not be modified. Both lists name every process at most once.
        """

    def announce(self) -> None:
        """Tell the others that this process has failed.

        Operations that it has not started raise `PeerError` on processes that wait for them.
        """

    def settle(self, report: Any, /) -> list[Any]:
        """Collect one small object per process after some may have failed; None from those that have not.

        Afterwards the communicator can be used again.
        """


class MpiCommunicator:
    """The processes of an mpi4py communicator; within a host they share memory, unless `by_messages`.

    Messages go through duplicates of it, so that they never match those of the caller. Waiting processes poll
    for messages of those that have failed. Operations on arrays of GPUs are queued on streams, and a thread
    polls beside them. `gpu_route` tells how arrays of GPUs are sent, and why not by NCCL if it is not used;
    it is empty before the first one.
    """

    def __init__(self, comm: Any, *, by_messages: bool = False) -> None:
        self.rank, self.size = int(comm.Get_rank()), int(comm.Get_size())
        self._data, self._control = comm.Dup(), comm.Dup()
        self._started = 0  # number of operations
        self._noticing = threading.Lock()  # of the next two, and of messages about failures
        self._failed: dict[int, int] = {}  # operations started by processes that have failed
        self._missed_s = math.inf  # when it was noticed that a process misses operations of this one
        self._is_cut_off = False  # whether operations between GPUs have been aborted
        self.gpu_route = ""
        self._gpus: nccl.NcclTransport | None = None
        self._watch, self._is_closed = threading.Thread(), threading.Event()
        self._notices: list[Any] = []  # messages about a failure of this process
        self._abandoned: list[Any] = []  # requests and buffers of operations that a failure has cut short
        self._latest: Any = None  # those of the latest exchange, which a failure may leave without a wait
        self._copies = weakref.WeakSet[HostCopies]()
        self._recordings = weakref.WeakSet[_Recording]()
        self._mailbox: Mailbox | None = None
        is_possible = not by_messages and platform.machine() in IN_ORDER
        memory = self._common_memory(Mailbox.nbytes(self.size)) if is_possible else None
        if memory is not None:
            self._mailbox = Mailbox(self.rank, self.size, memory)

    def allgather(self, part: Array, /) -> Array:
        if self._mailbox is not None and type(part) is np.ndarray and part.nbytes <= SMALL_BYTES:
            return self._mailbox.swap(part, self.started()).copy()
        backend = backend_of(part)
        if gpus := self._between_gpus(part):
            self._start(raises=True)
            return gpus.allgather(part)
        sent = np.ascontiguousarray(backend.to_host(part))
        parts = np.empty((self.size, *part.shape), part.dtype)
        number = self._start()
        request = self._data.Iallgather(_bytes(sent), _bytes(parts))
        self._wait(number, [request], (sent, parts))
        return parts if backend.name == "cpu" else backend.from_host(parts)

    def sum(self, part: Array, /) -> Array:
        if self._mailbox is not None and type(part) is np.ndarray and part.nbytes <= SMALL_BYTES:
            return in_rank_order(self._mailbox.swap(part, self.started()))
        if (gpus := self._between_gpus(part)) and gpus.adds(part):
            self._start(raises=True)
            return gpus.sum(part)
        return in_rank_order(self.allgather(part))

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message], /) -> Callable[[], None]:
        arrays = [array for _, array in (*sends, *receives)]
        if arrays and (gpus := self._between_gpus(arrays[0])):
            self._start(raises=True)
            gpus.exchange(sends, receives)
            return lambda: None  # what follows on the stream comes after
        sent = [(rank, backend_of(array).to_host(array)) for rank, array in sends]
        received = [
            (rank, array if isinstance(array, np.ndarray) else np.empty(array.shape, array.dtype))
            for rank, array in receives
        ]
        requests = [
            self._data.Irecv(piece, source=rank) for rank, array in received for piece in _pieces(array)
        ]
        requests += [self._data.Isend(piece, dest=rank) for rank, array in sent for piece in _pieces(array)]

        self._latest = requests, sent, received
        number = self._start()

        def wait() -> None:
            self._wait(number, requests, (sent, received))
            for (_, array), (_, host) in zip(receives, received, strict=True):
                if array is not host:
                    array[...] = backend_of(array).from_host(host)

        return wait

    def announce(self) -> None:
        if self._is_cut_off:  # the failure may follow from results of aborted operations
            return
        for rank in range(self.size):
            if rank != self.rank:
                self._notices.append(self._control.isend(self._started, rank, tag=FAILED))

    def settle(self, report: Any, /) -> list[Any]:
        report = None if self._is_cut_off else report
        found = self._control.allgather((report, bool(self._abandoned) or self._is_cut_off))
        reports = [entry for entry, _ in found]
        with self._noticing:
            for rank, entry in enumerate(reports):
                if entry is not None and rank != self.rank and rank not in self._failed:
                    self._control.recv(source=rank, tag=FAILED)
            self._failed.clear()
        for notice in self._notices:
            notice.wait()
        self._notices.clear()
        failed = [entry is not None for entry in reports]
        if any(failed) and (not all(failed) or any(abandoned for _, abandoned in found)):
            self._disconnect()
            self._data = self._control.Dup()  # messages may be left in the old one
            self._started = max(self._control.allgather(self._started))
            for copies in self._copies:
                copies.is_open = False
            if self._mailbox is not None:
                self._mailbox.restart(max(self._control.allgather(self._mailbox.turn)))
        return reports

    def host_copies(self, exchange: Exchange) -> HostCopies | None:
        """Let processes write halos into each other's memory; None where that is not possible for all.

        All processes call it.
        """
        if self._mailbox is None:
            return None
        places = {peer: (begin, end) for peer, begin, end in exchange.received}
        found = share(self, (exchange.is_symmetric, exchange.rows, places))
        memory = None
        if all(is_symmetric for is_symmetric, _, _ in found):
            halos = sum(2 * halo_bytes(rows, exchange.row_bytes) for _, rows, _ in found)
            memory = self._common_memory(self.size**2 * LINE_BYTES + halos)
        if memory is None:
            return None
        copies = HostCopies(self, exchange, [offer for _, *offer in found], memory)
        self._copies.add(copies)
        return copies

    def _common_memory(self, nbytes: int) -> NDArray[np.uint8] | None:
        return common_memory(functools.partial(share, self), nbytes, self.rank == 0)

    def peer_copies(self, exchange: Exchange) -> PeerCopies | None:
        """Let GPUs write halos into each other's memory; None where that is not possible for all of them.

        All processes call it.
        """
        if self._gpus is None:
            return None
        flags = self._common_memory(PeerCopies.flag_bytes(self.size))
        copies, offer = None, None
        reason = "" if exchange.is_symmetric else "the pattern of the matrix is not symmetric"
        if flags is None:
            reason = "processes have no memory in common"
        if options().gpu_transport == "nccl":
            reason = "gpu_transport='nccl'"
        try:
            if flags is not None and not reason:
                copies = PeerCopies(self.rank, self.size, exchange, flags, lambda: self._start(raises=True))
                offer = copies.offer()
        except ImportError:
            reason = "cuda-bindings is not installed"
        except RuntimeError as error:
            reason = f"memory cannot be shared: {error}"
        found = share(self, (reason, offer))
        if copies is not None and not any(problem for problem, _ in found):
            try:
                copies.open([offer for _, offer in found])
            except RuntimeError as error:
                reason = f"memory cannot be opened: {error}"
        problems = [problem for problem in share(self, reason) if problem]
        if not problems and copies is not None:
            self._gpus.add(copies)
        self.gpu_route = f"{self._gpus.name}, halos by " + (
            f"NCCL ({problems[0]})" if problems else "copy engines"
        )
        return None if problems else copies

    @property
    def is_recordable(self) -> bool:
        """Whether operations on arrays of GPUs are queued on their streams alone, as NCCL's are."""
        return self._gpus is not None

    def record(
        self, record: Callable[[Callable[[], object]], Callable[[], object]], operations: Callable[[], object]
    ) -> Callable[[], object]:
        """Record operations by a function like `Recorder.record`; all processes record the same ones.

        What is returned counts the operations of this communicator that it repeats, so that failures are
        noticed as without a recording. If a process cannot record, all of them call the operations again.
        """
        before = self._started
        repeat = record(operations)
        count = self._started - before
        found = share(self, (repeat is not operations, count))
        most = max(started for _, started in found)
        self._started += most - count  # of a process that stopped in the middle
        if not all(is_recorded for is_recorded, _ in found):
            return operations
        again = _Recording(functools.partial(self._start, raises=True, count=count), repeat)
        self._recordings.add(again)
        return again

    # --- failures of other processes ------------------------------------------------------------------

    def _start(self, raises: bool = False, count: int = 1) -> int:
        """Return the number of the last of new operations; raise `PeerError` if a process misses it."""
        with self._noticing:
            self._started += count
            if raises and self._is_missed(self._started):
                raise PeerError("another process has failed.")
            return self._started

    def _is_missed(self, number: int) -> bool:
        """Check whether a process has failed before it started an operation."""
        return bool(self._failed) and number > min(self._failed.values())

    def _notice(self) -> None:
        """Receive the messages of processes that have failed."""
        for rank in range(self.size):
            if rank != self.rank and rank not in self._failed:
                message = self._control.improbe(source=rank, tag=FAILED)
                if message is not None:
                    self._failed[rank] = message.recv()

    def _wait(self, number: int, requests: list[Any], buffers: Any) -> None:
        """Wait for the requests of an operation; raise `PeerError` if a process failed before it."""
        if requests:
            is_done = functools.partial(type(requests[0]).Testall, requests)
            self._poll(number, is_done, (requests, buffers))

    def started(self) -> Callable[[Callable[[], bool]], None]:
        """Start an operation; return what waits for it, given a function that tells whether it is done."""
        return functools.partial(self._poll, self._start())

    def _poll(self, number: int, is_done: Callable[[], bool], pending: Any = None) -> None:
        polls = 0
        while not is_done():
            polls += 1
            if polls % POLLS == 0:
                with self._noticing:
                    self._notice()
                    is_missed = self._is_missed(number)
                if is_missed:
                    self._abandoned.append(pending)
                    raise PeerError("another process has failed.")
                if polls > BUSY_POLLS:
                    time.sleep(REST_S)
                elif polls > PATIENT_POLLS:
                    let_others_run()

    # --- GPUs -----------------------------------------------------------------------------------------

    def _between_gpus(self, array: Array) -> nccl.NcclTransport | None:
        """Return the transport for an array, made when all processes first send one of a GPU."""
        if not is_cupy(array):
            return None
        if not self.gpu_route:
            self._connect(backend_of(array))
        return self._gpus

    def _connect(self, backend: Any) -> None:
        reason = "gpu_transport='mpi'" if options().gpu_transport == "mpi" else nccl.missing()
        place = platform.node(), nccl.place(backend.device_id)
        found = share(self, (reason, place))
        reasons = [reason for reason, _ in found if reason]
        if len({gpu for _, gpu in found}) < self.size:
            reasons = reasons or ["processes use the same GPU"]
        if reasons:
            self.gpu_route = f"MPI ({reasons[0]})"
            return
        identity = share(self, nccl.identity() if self.rank == 0 else None)[0]
        self._gpus = nccl.NcclTransport(self.rank, self.size, backend.device_id, identity)
        self.gpu_route = self._gpus.name
        self._is_closed.clear()
        self._watch = threading.Thread(target=self._look, name="blockvec-watch", daemon=True)
        self._watch.start()
        atexit.register(self._close)

    def _look(self) -> None:
        """Abort operations between GPUs that a process misses, again and again until none is left."""
        while not self._is_closed.wait(nccl.RELEASE_S if self._is_cut_off else nccl.WATCH_S):
            with self._noticing:
                self._notice()
                if not self._is_missed(self._started):
                    self._missed_s = math.inf
                elif self._missed_s == math.inf:
                    self._missed_s = time.monotonic()
                self._is_cut_off |= time.monotonic() - self._missed_s > nccl.GRACE_S
            if self._is_cut_off and self._gpus is not None:
                self._gpus.abort()

    def _close(self) -> None:
        """Let the others have what they need of this process, and end the thread before MPI ends."""
        if self._gpus is not None:
            with suppress(RuntimeError):
                self._gpus.synchronize()
            self._is_closed.set()
            self._watch.join()

    def _disconnect(self) -> None:
        """Discard the connection of GPUs after a failure; the next array of one makes another."""
        if self._gpus is not None:
            with suppress(RuntimeError):  # an error of a GPU lasts; the process must not miss what follows
                self._gpus.is_idle(nccl.GRACE_S)
            self._is_cut_off = True
            for recording in self._recordings:
                recording.discard()  # NCCL ends when nothing recorded uses it
            self._gpus.abort()
            self._close()
            atexit.unregister(self._close)
        self._gpus, self.gpu_route = None, ""
        self._missed_s, self._is_cut_off = math.inf, False


class _Recording:
    """Recorded operations of a communicator, until a failure of a process ends what they are sent by."""

    def __init__(self, start: Callable[[], object], repeat: Callable[[], object]) -> None:
        self._start, self._repeat = start, repeat

    def __call__(self) -> None:
        self._start()
        self._repeat()

    def discard(self) -> None:
        self._repeat = _refuse


def _refuse() -> None:
    raise BlockvecError(
        "operations that were recorded before a process failed cannot be repeated: record them again."
    )


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _pieces(array: Array) -> list[Array]:
    if array.dtype.kind in "fc" and 0 < array.nbytes <= MESSAGE_BYTES:  # MPI knows the type
        return [array]
    whole = _bytes(array)
    return [whole[begin : begin + MESSAGE_BYTES] for begin in range(0, len(whole), MESSAGE_BYTES)]


def communicator(comm: Any) -> Communicator | None:
    """Convert a communicator of mpi4py; None for one process, which needs no communication.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, Communicator or None
        One of mpi4py is converted once: all of its processes make the first call.

    Raises
    ------
    OptionError
        For other objects.
    """
    if comm is None:
        return None
    if hasattr(comm, "Get_attr") and hasattr(comm, "Dup"):
        return None if comm.Get_size() == 1 else _of_mpi(comm)
    if not isinstance(comm, Communicator):
        raise OptionError(f"comm: got a {type(comm).__name__}; give a communicator such as MPI.COMM_WORLD.")
    return None if comm.size == 1 else comm


_keyval: list[int] = []  # of the attribute that an mpi4py communicator holds its `MpiCommunicator` in


def _of_mpi(comm: Any) -> Communicator:
    from mpi4py import MPI

    if not _keyval:
        _keyval.append(MPI.Comm.Create_keyval())
    found: MpiCommunicator | None = comm.Get_attr(_keyval[0])
    if found is None:
        await_all(comm)
        found = MpiCommunicator(comm)
        comm.Set_attr(_keyval[0], found)
    return found


def in_rank_order(parts: Array) -> Array:
    """Add arrays in the order of the first index: the same bits wherever the parts are the same."""
    return functools.reduce(operator.add, parts)


def exchange_slices(
    comm: Communicator | None, array: Array, sends: NDArray[Any], receives: NDArray[Any]
) -> Array:
    """Send slices of a contiguous array to the processes; return those received, one after the other.

    Process r is sent the slice from `sends[r]` to `sends[r + 1]`; `receives` are the bounds of the slices in
    the result, likewise.
    """
    received: Array = array_namespace(array).empty((int(receives[-1]), *array.shape[1:]), array.dtype)
    sent, taken = (
        {rank: whole[begin:end] for rank, (begin, end) in enumerate(pairwise(bounds.tolist()))}
        for whole, bounds in ((array, sends), (received, receives))
    )
    own = 0 if comm is None else comm.rank
    taken.pop(own)[...] = sent.pop(own)
    if comm is not None:
        messages = ([(rank, part) for rank, part in parts.items() if len(part)] for parts in (sent, taken))
        comm.exchange(*messages)()
    return received


def exchange_rows(comm: Communicator | None, rows: Any, sends: NDArray[Any], receives: NDArray[Any]) -> Any:
    """Send ranges of the rows of a CSR matrix of the host, as `exchange_slices` sends slices of an array."""
    lengths = exchange_slices(comm, np.diff(rows.indptr).astype(np.int64), sends, receives)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    bounds = rows.indptr[sends], starts[receives]
    index, pointer = (np.int32 if n < 1 << 31 else np.int64 for n in (rows.shape[1], starts[-1]))
    columns = exchange_slices(comm, rows.indices.astype(index, copy=False), *bounds)
    parts = exchange_slices(comm, rows.data, *bounds), columns, starts.astype(pointer)
    return type(rows)(parts, shape=(len(lengths), rows.shape[1]))


def share(comm: Communicator, value: Any) -> list[Any]:
    """Collect one small object per process, in rank order; it is pickled."""
    packed = np.frombuffer(pickle.dumps(value), np.uint8)
    lengths = comm.allgather(np.array([len(packed)]))[:, 0]
    padded = np.zeros(lengths.max(), np.uint8)
    padded[: len(packed)] = packed
    return [pickle.loads(part[:length]) for part, length in zip(comm.allgather(padded), lengths, strict=True)]
