"""NCCL on pretended GPUs: a thread per process is its stream, and MPI moves the data.

``mpiexec -n 2 python -m tests.pretended_nccl`` calls the functions below.
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blockvec.parallel import agreed, communicator
from blockvec.parallel.communicator import MpiCommunicator

DEADLINE_S = 30.0


class DeviceArray(np.ndarray):  # type: ignore[type-arg]
    """A NumPy array with the attributes of a CuPy array."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        """Where the data are."""
        return SimpleNamespace(ptr=self.ctypes.data, device_id=0)


DeviceArray.__module__ = "cupy"


class Device(contextlib.nullcontext[None]):
    """The only GPU of a process, whose only stream is `STREAM`."""

    def __init__(self, number: int) -> None:
        super().__init__()
        assert number == 0

    def synchronize(self) -> None:
        STREAM.synchronize()


class Stream:
    """Runs what is queued, one after the other."""

    def __init__(self) -> None:
        self._work: queue.Queue[Callable[[], None]] = queue.Queue()
        self.ptr = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._work.get()()
            self._work.task_done()

    def put(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def synchronize(self) -> None:
        """Wait, like CuPy, without looking at anything else."""
        self._work.join()


STREAM = Stream()


class Nccl:
    """`cupy.cuda.nccl.NcclCommunicator`."""

    def __init__(self, size: int, identity: bytes, rank: int) -> None:
        from mpi4py import MPI

        assert identity == b"name"
        self._comm, self._aborted = MPI.COMM_WORLD.Dup(), threading.Event()
        self._group: list[Callable[[], Any]] = []

    def allGather(self, sent: int, received: int, count: int, kind: str, stream: int) -> None:  # noqa: N802
        size = self._comm.size
        self._queue([lambda: self._comm.Iallgather(_at(sent, count), _at(received, count * size))])

    def send(self, address: int, count: int, kind: str, peer: int, stream: int) -> None:
        GROUP.append((self, lambda: self._comm.Isend(_at(address, count), peer)))

    def recv(self, address: int, count: int, kind: str, peer: int, stream: int) -> None:
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


def device_array(values: Any) -> Any:
    return np.array(values).view(DeviceArray)


def cupy(place: str) -> Any:
    """The parts of CuPy that `blockvec.parallel.nccl` uses."""
    nccl = SimpleNamespace(
        NcclCommunicator=Nccl,
        NCCL_CHAR="char",
        available=True,
        get_unique_id=lambda: b"name",
        get_version=lambda: 22809,
        groupStart=lambda: None,
        groupEnd=group_end,
    )
    return SimpleNamespace(
        ascontiguousarray=lambda array: device_array(np.ascontiguousarray(array)),
        empty=lambda shape, dtype: device_array(np.full(shape, 7, dtype)),
        cuda=SimpleNamespace(
            nccl=nccl,
            Device=Device,
            get_current_stream=lambda: STREAM,
            runtime=SimpleNamespace(deviceGetPCIBusId=lambda number: place),
        ),
    )


@contextlib.contextmanager
def pretended(patch: pytest.MonkeyPatch, place: str) -> Any:
    module = cupy(place)
    patch.setitem(sys.modules, "cupy", module)
    patch.setitem(sys.modules, "cupy.cuda", module.cuda)
    backend = SimpleNamespace(name="cuda:0", device_id=0, to_host=np.asarray, from_host=device_array)
    patch.setattr(sys.modules[MpiCommunicator.__module__], "backend_of", lambda array: backend)
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


def fail_between(comm: MpiCommunicator, error: Exception | None) -> None:
    """Raise an exception between two operations, or wait for the GPU after the second one."""
    one = device_array(np.ones(2))
    comm.allgather(one)
    if error is not None:
        raise error
    garbage = comm.allgather(one)
    STREAM.synchronize()
    if comm.rank == comm.size - 1 and (garbage != 1).any():
        raise FloatingPointError("this follows from the failure of another")
    comm.allgather(one)


def a_failure_ends_waits_for_a_gpu(comm: MpiCommunicator) -> None:
    """A process that fails between two operations leaves no other waiting, and the next ones work."""
    for failing in range(comm.size):
        begin = time.monotonic()
        with pytest.raises(OSError, match=f"^rank {failing}: no more data"), agreed(comm):
            fail_between(comm, OSError("no more data") if comm.rank == failing else None)
        assert time.monotonic() - begin < DEADLINE_S
        assert comm.gpu_route == ""
        arrays_arrive(comm)


def main() -> None:
    from mpi4py import MPI

    comm: Any = communicator(MPI.COMM_WORLD)
    with pytest.MonkeyPatch.context() as patch, pretended(patch, f"gpu {comm.rank}"):
        arrays_arrive(comm)
        assert comm.gpu_route == "NCCL 2.28.9"
        a_failure_ends_waits_for_a_gpu(comm)
    shared = MpiCommunicator(MPI.COMM_WORLD)
    with pytest.MonkeyPatch.context() as patch, pretended(patch, "the same"):
        arrays_arrive(shared)
        assert shared.gpu_route == "MPI (processes use the same GPU)"
    if comm.rank == 0:
        print("passed", flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        import traceback

        from mpi4py import MPI

        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
