"""NCCL on pretended GPUs: a thread per process is its stream, and MPI moves the data.

Processes of mpiexec call `main`; see `tests.under_mpi`.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import queue
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from blockvec.parallel import communicator
from blockvec.parallel.communicator import MpiCommunicator, in_rank_order
from tests.host_memory import ends_everywhere, plan


class DeviceArray(np.ndarray):  # type: ignore[type-arg]
    """A NumPy array with the attributes of a CuPy array."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        """Where the data are."""
        return SimpleNamespace(ptr=self.ctypes.data, device_id=0)


DeviceArray.__module__ = "cupy"


captured: list[Callable[[], object]] | None = None
"""What is recorded of the work that is queued, on any stream; None if it is queued."""


class Event:
    """A place in a stream."""

    def __init__(self, disable_timing: bool = True) -> None:
        self._reached = threading.Event()

    def record(self, stream: Stream) -> None:
        if captured is not None:
            captured.append(lambda: self.record(stream))
            return
        self._reached = threading.Event()
        stream.put(self._reached.set)

    @property
    def done(self) -> bool:
        return self._reached.is_set()

    @property
    def wait(self) -> Callable[[], object]:
        return self._reached.wait


QUEUES = 3  # of a pretended GPU: further streams share them, as those of a GPU do


class Stream:
    """Runs what is queued, one after the other, with pauses."""

    known: ClassVar[list[Stream]] = []
    current: ClassVar[list[Stream]] = []

    def __init__(self, non_blocking: bool = True) -> None:
        self.ptr = len(self.known)
        self.known.append(self)
        if self.ptr >= QUEUES:
            self._work = self.known[self.ptr % QUEUES]._work
            return
        self._work: queue.Queue[Callable[[], object]] = queue.Queue()
        self._pauses = random.Random(self.ptr)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            work = self._work.get()
            time.sleep(self._pauses.choice((0, 0, 1e-4, 2e-3)))
            work()
            self._work.task_done()

    def __enter__(self) -> None:
        self.current.append(self)

    def __exit__(self, *_raised: object) -> None:
        self.current.pop()

    def put(self, work: Callable[[], object]) -> None:
        if captured is None:
            self._work.put(work)
        else:
            captured.append(lambda: self.put(work))

    def is_capturing(self) -> bool:
        return captured is not None

    def record(self, operations: Callable[[], object]) -> Callable[[], object]:
        """Return a function that queues what the operations would have queued, also on other streams."""
        global captured
        recording = captured = []
        try:
            operations()
        finally:
            captured = None
        return lambda: [again() for again in recording]

    def wait_event(self, event: Event) -> None:
        if captured is None:
            self.put(event.wait)
        else:
            captured.append(lambda: self.wait_event(event))

    def synchronize(self) -> None:
        """Wait, like CuPy, without looking at anything else."""
        self._work.join()


STREAM = Stream()
Stream.current.append(STREAM)


class Device(contextlib.nullcontext[None]):
    """The only GPU of a process, whose current stream is `STREAM`."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        assert number == 0

    def synchronize(self) -> None:
        for stream in Stream.known:
            stream.synchronize()


class Runtime:
    """Memory that processes can open, and copies on streams."""

    memcpyDeviceToDevice = 3  # noqa: N815

    def __init__(self, place: str) -> None:
        self.place, self._opened = place, dict[int, tuple[Path, mmap.mmap]]()
        self._registered: set[int] = set()
        self._folder = tempfile.TemporaryDirectory()

    def getDevice(self) -> int:  # noqa: N802
        return 0

    def deviceGetPCIBusId(self, number: int) -> str:  # noqa: N802
        return self.place

    def hostRegister(self, address: int, count: int, flags: int) -> None:  # noqa: N802
        assert address not in self._registered
        self._registered.add(address)

    def hostUnregister(self, address: int) -> None:  # noqa: N802
        self._registered.remove(address)

    def malloc(self, count: int) -> int:
        path = Path(self._folder.name, str(len(self._opened)))
        path.write_bytes(bytes(count))
        return self._address(path)

    def ipcGetMemHandle(self, address: int) -> Path:  # noqa: N802
        return self._opened[address][0]

    def ipcOpenMemHandle(self, handle: Path) -> int:  # noqa: N802
        return self._address(handle)

    def ipcCloseMemHandle(self, address: int) -> None:  # noqa: N802
        assert address in self._opened

    def free(self, address: int) -> None:
        self._opened[address][0].unlink()

    def memcpyAsync(self, target: int, source: int, count: int, kind: int, stream: int) -> None:  # noqa: N802
        Stream.known[stream].put(lambda: ctypes.memmove(target, source, count))

    def memcpy2DAsync(  # noqa: N802
        self, target: int, pitch: int, source: int, step: int, line: int, count: int, kind: int, stream: int
    ) -> None:
        for row in range(count):
            self.memcpyAsync(target + row * pitch, source + row * step, line, kind, stream)

    def _address(self, path: Path) -> int:
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._opened[address] = path, memory
        return address


class Driver:
    """Flags that streams write and wait for."""

    CUstream = CUdeviceptr = cuuint64_t = staticmethod(int)
    CUstreamWaitValue_flags = SimpleNamespace(CU_STREAM_WAIT_VALUE_EQ=1)
    CUstreamBatchMemOpType = SimpleNamespace(
        CU_STREAM_MEM_OP_WRITE_VALUE_64="write", CU_STREAM_MEM_OP_WAIT_VALUE_64="wait"
    )

    class CUstreamBatchMemOpParams:
        def __init__(self) -> None:
            self.writeValue = self.waitValue = SimpleNamespace()

    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> tuple[int, int]:  # noqa: N802
        return 0, address

    def cuStreamBatchMemOp(self, stream: int, count: int, steps: list[Any], flags: int) -> tuple[int]:  # noqa: N802
        assert count == len(steps)
        Stream.known[stream].put(lambda: [self._take(step.waitValue) for step in steps])
        return (0,)

    def _take(self, fields: Any) -> None:
        flag = ctypes.c_int64.from_address(fields.address)
        if fields.operation == "write":
            flag.value = fields.value64
        while fields.operation == "wait" and flag.value != fields.value64:
            time.sleep(1e-5)


class Nccl:
    """`cupy.cuda.nccl.NcclCommunicator`."""

    def __init__(self, size: int, identity: bytes, rank: int) -> None:
        from mpi4py import MPI

        assert identity == b"name"
        self._comm, self._aborted = MPI.COMM_WORLD.Dup(), threading.Event()
        self._group: list[Callable[[], Any]] = []

    def allGather(self, sent: int, received: int, count: int, kind: int, stream: int) -> None:  # noqa: N802
        size = self._comm.size
        self._queue([lambda: self._comm.Iallgather(_at(sent, count), _at(received, count * size))])

    def allReduce(  # noqa: N802
        self, sent: int, received: int, count: int, kind: str, operation: str, stream: int
    ) -> None:
        from mpi4py import MPI

        assert operation == "sum"
        nbytes = count * np.dtype(kind).itemsize
        arrays = [_at(address, nbytes).view(kind) for address in (sent, received)]
        self._queue([lambda: self._comm.Iallreduce(*arrays, MPI.SUM)])

    def send(self, address: int, count: int, kind: int, peer: int, stream: int) -> None:
        GROUP.append((self, lambda: self._comm.Isend(_at(address, count), peer)))

    def recv(self, address: int, count: int, kind: int, peer: int, stream: int) -> None:
        GROUP.append((self, lambda: self._comm.Irecv(_at(address, count), peer)))

    def abort(self) -> None:
        self._aborted.set()

    def _queue(self, starts: list[Callable[[], Any]]) -> None:
        if self._aborted.is_set():
            raise RuntimeError("NCCL_ERROR_INVALID_ARGUMENT")

        def work() -> None:
            requests = [] if self._aborted.is_set() else [start() for start in starts]
            while requests and not type(requests[0]).Testall(requests) and not self._aborted.is_set():
                time.sleep(1e-4)

        STREAM.put(work)


GROUP: list[tuple[Nccl, Callable[[], Any]]] = []


def group_end() -> None:
    started, GROUP[:] = list(GROUP), []
    if started:
        started[0][0]._queue([start for _, start in started])


def _at(address: int, count: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))


KEPT: list[Any] = []  # arrays, since a GPU gives memory to others in the order of its stream only


def device_array(values: Any) -> Any:
    KEPT.append(np.array(values).view(DeviceArray))
    return KEPT[-1]


def empty(shape: Any, dtype: Any) -> Any:
    return device_array(np.full(shape, 7, dtype))


def array_at(shape: tuple[int, int], dtype: str, address: int) -> Any:
    count = math.prod(shape) * np.dtype(dtype).itemsize
    return (
        np.frombuffer(_at(address, count), dtype).reshape(shape).view(DeviceArray)
        if count
        else np.empty(shape)
    )


def cupy(place: str) -> Any:
    """The parts of CuPy that `blockvec.parallel.nccl` uses."""
    nccl = SimpleNamespace(
        NcclCommunicator=Nccl,
        NCCL_CHAR=0,
        NCCL_SUM="sum",
        NCCL_FLOAT32="float32",
        NCCL_FLOAT64="float64",
        available=True,
        get_unique_id=lambda: b"name",
        get_version=lambda: 22809,
        groupStart=lambda: None,
        groupEnd=group_end,
    )
    return SimpleNamespace(
        ascontiguousarray=lambda array: device_array(np.ascontiguousarray(array)),
        empty=empty,
        dtype=np.dtype,
        ndarray=array_at,
        take=lambda a, rows, axis, out: Stream.current[-1].put(lambda: np.take(a, rows, axis, out)),
        cuda=SimpleNamespace(
            nccl=nccl,
            Device=Device,
            get_current_stream=lambda: STREAM,
            runtime=Runtime(place),
            Stream=Stream,
            Event=Event,
            UnownedMemory=lambda address, count, owner: address,
            MemoryPointer=lambda address, offset: address + offset,
        ),
    )


BACKEND: Any = SimpleNamespace(
    name="cuda:0",
    device_id=0,
    device="pretended",
    xp=SimpleNamespace(
        cuda=SimpleNamespace(get_current_stream=lambda: STREAM),
        take=lambda a, rows, axis, out: STREAM.put(lambda: np.take(a, rows, axis, out)) or out,
    ),
    to_host=np.asarray,
    from_host=device_array,
    empty=empty,
)


@contextlib.contextmanager
def pretended(patch: pytest.MonkeyPatch, place: str) -> Any:
    module = cupy(place)
    patch.setitem(sys.modules, "cupy", module)
    patch.setitem(sys.modules, "cupy.cuda", module.cuda)
    patch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=Driver()))
    patch.setattr(sys.modules[MpiCommunicator.__module__], "backend_of", lambda array: BACKEND)
    yield


def arrays_arrive(comm: MpiCommunicator) -> None:
    """Both operations move arrays, in the order in which they are queued."""
    for shape, dtype in (((3, 2), "float64"), ((5,), "complex64"), ((0, 4), "float32")):
        for turn in range(3):
            part = device_array(np.full(shape, comm.rank + 10 * turn, dtype))
            parts = comm.allgather(part)
            others = [rank for rank in range(comm.size) if rank != comm.rank]
            received = [(rank, device_array(np.empty(shape, dtype))) for rank in others]
            comm.exchange([(rank, part) for rank in others], received)()
            STREAM.synchronize()
            assert [parts[rank].tolist() for rank in others] == [array.tolist() for _, array in received]
            assert np.array_equal(
                parts[:, ...].reshape(comm.size, -1)[:, :1].ravel(),
                np.arange(comm.size)[: parts.size] + 10 * turn,
            )


def sums_are_in_rank_order(comm: MpiCommunicator) -> None:
    """The same bits as sums of gathered parts."""
    for dtype in ("float32", "float64", "complex64", "complex128"):
        part = np.random.default_rng(comm.rank).standard_normal((7, 3)).astype(dtype)
        total = comm.sum(device_array(part * (1 + 1j) if dtype.startswith("complex") else part))
        parts = comm.allgather(device_array(part * (1 + 1j) if dtype.startswith("complex") else part))
        STREAM.synchronize()
        assert total.dtype == parts.dtype
        assert np.array_equal(total, in_rank_order(np.asarray(parts)))


def a_failure_ends_waits_for_a_gpu(comm: MpiCommunicator) -> None:
    """A process that fails between two operations leaves no other waiting, and the next ones work."""
    one = device_array(np.ones(2))

    def gathers(error: Exception | None) -> None:
        comm.allgather(one)
        if error is not None:
            raise error
        garbage = comm.allgather(one)
        STREAM.synchronize()
        if comm.rank == comm.size - 1 and (garbage != 1).any():
            raise FloatingPointError("this follows from the failure of another")
        comm.allgather(one)

    for failing in range(comm.size):
        ends_everywhere(comm, failing, gathers)
        assert comm.gpu_route == ""
        arrays_arrive(comm)


def halos_follow_blocks_that_change(comm: MpiCommunicator) -> None:
    """Exchanges follow one another without a wait on the host, and blocks are modified between them."""
    halo, wanted, layout = plan(comm, BACKEND)
    first = 100.0 * np.arange(60 * comm.size)[:, None]
    seen: list[Any] = []
    for width in (3, 1, 3):
        whole = first + np.arange(width + 2)
        X = device_array(whole[layout.rows])[:, 1 : 1 + width]
        for _ in range(25):
            wait, free = halo.start(X)
            found = wait()
            STREAM.put(lambda found=found: seen.append(np.array(found)))  # type: ignore[misc]
            free()
            STREAM.put(lambda X=X: np.add(X, 0.5, out=X))  # type: ignore[misc]
        STREAM.synchronize()
        for turn, rows in enumerate(seen):
            assert np.array_equal(rows, whole[wanted, 1 : 1 + width] + 0.5 * turn)
        seen.clear()


def exchange(halo: Any, X: Any) -> None:
    """Exchange rows, which nobody reads."""
    wait, free = halo.start(X)
    wait()
    free()


def a_failure_ends_waits_for_halos(comm: MpiCommunicator) -> None:
    """Streams that wait for the halo of a process that failed go on."""
    halo, _, _ = plan(comm, BACKEND)
    X = device_array(np.ones((60, 2)))

    def exchanges(error: Exception | None) -> None:
        for turn in range(20):
            if error is not None and turn == 10:
                raise error
            exchange(halo, X)
        STREAM.synchronize()
        exchange(halo, X)

    ends_everywhere(comm, 0, exchanges)
    halos_follow_blocks_that_change(comm)
    for _ in range(3):
        exchange(halo, X)
    STREAM.synchronize()


def recorded_operations_are_repeated(comm: MpiCommunicator) -> None:
    """Recordings hold halos and sums, in all processes or in none, and failures between them are noticed."""
    halo, wanted, layout = plan(comm, BACKEND)
    whole = 100.0 * np.arange(60 * comm.size)[:, None] + np.arange(3)
    X = device_array(whole[layout.rows])
    seen: list[Any] = []

    def step() -> None:
        wait, free = halo.start(X)
        found = wait()
        parts = comm.allgather(X[:1])
        STREAM.put(lambda: seen.append((np.array(found), np.array(parts)[:, 0])))
        free()
        STREAM.put(lambda: np.add(X, 0.5, out=X))

    step()
    begin = comm._started
    again = comm.record(STREAM.record, step)
    per_turn = 2
    assert comm._started == begin + per_turn + 2  # and what processes told each other
    for _ in range(20):
        again()
        exchange(halo, X)  # others may be between them
    STREAM.synchronize()
    assert comm._started == begin + 21 * per_turn + 2 + 20
    for turn, (rows, parts) in enumerate(seen):
        assert np.array_equal(rows, whole[wanted] + 0.5 * turn)
        assert np.array_equal(parts, whole[list(layout.cuts[:-1])] + 0.5 * turn)
    assert len(seen) == 21
    cannot = comm.rank == 0
    assert comm.record((lambda operations: operations) if cannot else STREAM.record, step) is step

    def repeats(error: Exception | None) -> None:
        for turn in range(20):
            if error is not None and turn == 10:
                raise error
            again()
        STREAM.synchronize()
        again()

    ends_everywhere(comm, 0, repeats)


def main(*_: Any) -> None:
    """Call all functions, by all processes of mpiexec."""
    from mpi4py import MPI

    comm: Any = communicator(MPI.COMM_WORLD)
    with pytest.MonkeyPatch.context() as patch, pretended(patch, f"gpu {comm.rank}"):
        arrays_arrive(comm)
        assert comm.gpu_route == "NCCL 2.28.9"
        if comm.size == 2:  # otherwise sums are of operations on a stream, which pretended arrays do not have
            sums_are_in_rank_order(comm)
        a_failure_ends_waits_for_a_gpu(comm)
        halos_follow_blocks_that_change(comm)
        assert comm.gpu_route == "NCCL 2.28.9, halos by copy engines"
        a_failure_ends_waits_for_halos(comm)
        recorded_operations_are_repeated(comm)
    shared = MpiCommunicator(MPI.COMM_WORLD)
    with pytest.MonkeyPatch.context() as patch, pretended(patch, "the same"):
        arrays_arrive(shared)
        assert shared.gpu_route == "MPI (processes use the same GPU)"
