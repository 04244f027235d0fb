"""Communication between GPUs by NCCL: each process has a GPU of its own."""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..backends import Array
from ..errors import DeviceError
from .peer_copies import PeerCopies

WATCH_S = 0.05  # between two looks for failed processes
RELEASE_S = 1e-4  # between two releases of halos after one: each lets streams go one exchange on
GRACE_S = 1.0  # for operations that all processes have started to end, before the others are aborted
ABORT_S = 2.0  # that an abort waits for a call that queues work, which may itself wait for a failed process


_UNCHANGED = nullcontext()


class NcclTransport:
    """Operations on CuPy arrays of one GPU per process, queued on CuPy's current stream.

    All processes make it together, with the `identity` that NCCL gave one of them.
    """

    def __init__(self, rank: int, size: int, device_id: int, identity: bytes) -> None:
        import cupy
        from cupy.cuda import nccl

        self._cupy, self._nccl, self._char = cupy, nccl, int(nccl.NCCL_CHAR)
        self._current_stream, self._current_device = cupy.cuda.get_current_stream, cupy.cuda.runtime.getDevice
        self.size, self.device_id = size, device_id
        self._queueing, self._aborting = threading.Lock(), threading.Lock()
        single, double = nccl.NCCL_FLOAT32, nccl.NCCL_FLOAT64
        self._types = {"f": (single, 1), "d": (double, 1), "F": (single, 2), "D": (double, 2)}
        self._copies = weakref.WeakSet[PeerCopies]()
        self._abortion: threading.Thread | None = None
        with cupy.cuda.Device(device_id):
            self._comm = nccl.NcclCommunicator(size, identity, rank)
        version = nccl.get_version()
        self.name = f"NCCL {version // 10000}.{version // 100 % 100}.{version % 100}"

    def allgather(self, part: Array) -> Array:
        """Collect an array of equal shape and type from each process: shape (size, ...), in rank order."""
        gather, nbytes, kind = self._comm.allGather, part.nbytes, self._char
        shape = self.size, *part.shape
        return self._queued(part, shape, lambda *ends, stream: gather(*ends, nbytes, kind, stream))

    def adds(self, part: Array) -> bool:
        """Check whether `sum` adds an array: of two processes, whose parts have one sum in any order."""
        return self.size == 2 and part.dtype.char in self._types

    def sum(self, part: Array) -> Array:
        """Add a real or complex array over two processes."""
        kind, count = self._types[part.dtype.char]
        kinds = count * part.size, kind, self._nccl.NCCL_SUM
        reduce = self._comm.allReduce
        return self._queued(part, part.shape, lambda *ends, stream: reduce(*ends, *kinds, stream))

    def _queued(self, part: Array, shape: tuple[int, ...], operation: Callable[..., object]) -> Array:
        """Queue an operation from an array to a new one of its type."""
        self._check_device(part)
        with self._on_device():
            sent: Any = part if part.flags.c_contiguous else self._cupy.ascontiguousarray(part)
            result: Any = self._cupy.empty(shape, part.dtype)
            with self._queueing:
                operation(sent.data.ptr, result.data.ptr, stream=self._current_stream().ptr)
        found: Array = result
        return found

    def exchange(self, sends: Sequence[tuple[int, Any]], receives: Sequence[tuple[int, Any]]) -> None:
        """Send and receive contiguous arrays; each list names every process at most once."""
        for _, array in (*sends, *receives):
            self._check_device(array)
        char = self._char
        with self._queueing, self._on_device():
            stream = self._current_stream().ptr
            self._nccl.groupStart()
            try:
                for rank, array in sends:
                    self._comm.send(array.data.ptr, array.nbytes, char, rank, stream)
                for rank, array in receives:
                    self._comm.recv(array.data.ptr, array.nbytes, char, rank, stream)
            finally:
                self._nccl.groupEnd()

    def is_idle(self, seconds: float) -> bool:
        """Wait for the work queued on the current stream, but not longer; check whether it has ended."""
        end_s = time.monotonic() + seconds
        with self._on_device():
            done = self._cupy.cuda.Event(disable_timing=True)
            done.record(self._current_stream())
            while not done.done and time.monotonic() < end_s:
                time.sleep(WATCH_S / 10)
            return bool(done.done)

    def synchronize(self) -> None:
        """Wait for the GPU, and for an abort."""
        self._cupy.cuda.Device(self.device_id).synchronize()
        if self._abortion is not None:
            self._abortion.join(2 * ABORT_S)

    def add(self, copies: PeerCopies) -> None:
        """Include an exchange by copy engines in `abort`."""
        self._copies.add(copies)

    def abort(self) -> None:
        """Start to end all operations that are queued, with undefined results; no others are possible.

        Call it again and again while `synchronize` waits: flags may be written by others until they end, too.
        """
        with self._aborting:
            for copies in list(self._copies):  # first, since NCCL waits for what is queued before it ends
                copies.release()
            if self._abortion is None:
                self._abortion = threading.Thread(target=self._abort, name="blockvec-abort", daemon=True)
                self._abortion.start()

    def _abort(self) -> None:
        is_free = self._queueing.acquire(timeout=ABORT_S)
        try:
            self._comm.abort()
        finally:
            if is_free:
                self._queueing.release()

    def _on_device(self) -> AbstractContextManager[Any]:
        """Make this GPU CuPy's current device inside a ``with`` block; quickly where it is already."""
        is_current = self._current_device() == self.device_id
        return _UNCHANGED if is_current else self._cupy.cuda.Device(self.device_id)

    def _check_device(self, array: Any) -> None:
        if array.data.device_id != self.device_id:
            raise DeviceError(
                f"this process communicates on cuda:{self.device_id}, but an array is on "
                f"cuda:{array.data.device_id}; give all blocks of a communicator to one GPU."
            )


def missing() -> str:
    """Say why NCCL cannot be used by this process; empty if it can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns where a library is missing
        from cupy.cuda import nccl
    from mpi4py import MPI

    if not nccl.available:
        return "NCCL is not installed"
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return "this MPI cannot be called by two threads"
    return ""


def identity() -> bytes:
    """Return what NCCL identifies a group of processes by; one of them calls it, for all."""
    from cupy.cuda import nccl

    name: bytes = nccl.get_unique_id()
    return name


def place(device_id: int) -> str:
    """Return an address that tells the GPUs of one host apart."""
    import cupy

    return str(cupy.cuda.runtime.deviceGetPCIBusId(device_id))
