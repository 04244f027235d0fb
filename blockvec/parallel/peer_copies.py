"""Halos that GPUs of one host write into each other's memory by their copy engines, beside a product."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends import Array
from .host_memory import LINE_BYTES, Exchange, Pending

FLAG_BYTES = 8  # bytes of a flag
MAPPED = 2  # cudaHostRegisterMapped: GPUs can use the memory


class PeerCopies:
    """Exchanges of rows of one width and type between processes that can open each other's memory.

    For each neighbour, a process has two flags: whether that one's halo is free for these rows, and whether
    rows of that one have arrived. It waits until the neighbour's halo is free, copies rows there and sets the
    flag that tells so, all on a stream of its own; the neighbour's stream waits for the flag and sets the
    other one when it has read the rows. Whoever has waited for a flag clears it: flags are the same before
    and after each exchange, so that it can be recorded. No multiprocessor and no host takes part.

    What is awaited depends on earlier exchanges only, and on what stands before it in the same one: branches
    of a recording may be run one after the other.

    Flags are in `flags`, memory of the host that all processes have in common (`flag_bytes`): after a failure
    the host sets them itself. A stream for that purpose could share a queue of the GPU with one that waits.
    `begin` is called at the begin of an exchange.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        exchange: Exchange,
        flags: NDArray[np.uint8],
        begin: Callable[[], object],
    ) -> None:
        import cupy
        from cuda.bindings import driver

        self._cupy, self._driver, self._runtime = cupy, driver, cupy.cuda.runtime
        self._rank, self._size, self.is_open = rank, size, True
        self._exchange, self._row_bytes, self._begin = exchange, exchange.row_bytes, begin
        total = max(exchange.rows * self._row_bytes, 1)
        self._device = cupy.cuda.Device()
        self._memory = int(self._runtime.malloc(total))
        self._peers: dict[int, int] = {}  # addresses of their memory
        self._runtime.hostRegister(flags.ctypes.data, flags.nbytes, MAPPED)
        self._release = weakref.finalize(self, _close, self._runtime, self._memory, self._peers, flags)
        self._release.atexit = False
        self._first_flag = int(_check(driver.cuMemHostGetDevicePointer(flags.ctypes.data, 0)))
        memory = cupy.cuda.UnownedMemory(self._memory, total, None)
        place = cupy.cuda.MemoryPointer(memory, 0)
        self._halo = cupy.ndarray((exchange.rows, exchange.width), exchange.dtype, place)
        self._side = cupy.cuda.Stream(non_blocking=True)
        self._ready, self._pushed = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
        # Operations on flags, as the driver takes them: making its objects takes longer than their use.
        peers = [peer for peer, _, _ in exchange.received]  # this process sends to the same ones
        arrived, free = ([self._flag(rank, peer, kind) for peer in peers] for kind in (0, 1))
        self._awaits = [step for flag in arrived for step in (self._wait(flag), self._write(flag, 0))]
        self._claims = [step for flag in free for step in (self._wait(flag), self._write(flag, 0))]
        self._own = flags.view(np.int64).reshape(size, size, -1)[rank, :, :2]
        self._own[:, 1] = 1
        self._arrivals: list[Any] = []
        self._returns: list[Any] = []
        self._targets: list[tuple[int, Any, int, Any]] = []

    @staticmethod
    def flag_bytes(size: int) -> int:
        """Return the bytes of all flags of so many processes."""
        return size**2 * LINE_BYTES

    def _flag(self, owner: int, neighbour: int, kind: int) -> Any:
        """Find a flag: rows of the neighbour have arrived (0), or its halo is free for the owner's (1)."""
        place = (owner * self._size + neighbour) * LINE_BYTES
        return self._driver.CUdeviceptr(self._first_flag + place + FLAG_BYTES * kind)

    def _write(self, flag: Any, value: int) -> Any:
        step = self._driver.CUstreamBatchMemOpParams()
        step.writeValue.operation = self._driver.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WRITE_VALUE_64
        step.writeValue.address, step.writeValue.value64 = flag, self._driver.cuuint64_t(value)
        return step

    def _wait(self, flag: Any) -> Any:
        step = self._driver.CUstreamBatchMemOpParams()
        step.waitValue.operation = self._driver.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WAIT_VALUE_64
        step.waitValue.address, step.waitValue.value64 = flag, self._driver.cuuint64_t(1)
        step.waitValue.flags = int(self._driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ)
        return step

    def _set_flags(self, stream: Any, steps: list[Any]) -> None:
        """Queue operations on flags, one after the other."""
        if steps:
            _check(self._driver.cuStreamBatchMemOp(self._driver.CUstream(stream.ptr), len(steps), steps, 0))

    def offer(self) -> Any:
        """Describe this process's memory to the others: handle, and first rows by process."""
        handle = self._runtime.ipcGetMemHandle(self._memory)
        return handle, {peer: begin for peer, begin, _ in self._exchange.received}

    def open(self, offers: Sequence[Any]) -> None:
        """Open the memory of those that this process sends to; `offers` are those of all processes."""
        width, dtype = self._exchange.width, self._exchange.dtype
        for peer, chosen, count in self._exchange.sent:
            handle, begins = offers[peer]
            there = self._peers[peer] = int(self._runtime.ipcOpenMemHandle(handle))
            first = there + begins[self._rank] * self._row_bytes
            packed = None if isinstance(chosen, slice) else self._cupy.empty((count, width), dtype)
            self._targets.append((first, chosen, count, packed))
            self._arrivals.append(self._write(self._flag(peer, self._rank, 0), 1))
            self._returns.append(self._write(self._flag(peer, self._rank, 1), 1))

    def start(self, X: Array) -> Pending:
        self._begin()
        with self._device:
            return self._start(X)

    def _start(self, X: Any) -> Pending:
        stream = self._cupy.cuda.get_current_stream()
        for _, rows, _, packed in self._targets:
            if packed is not None:
                self._cupy.take(X, rows, axis=0, out=packed)
        self._ready.record(stream)
        self._side.wait_event(self._ready)
        self._set_flags(self._side, self._claims)
        line, kind, side = self._row_bytes, self._runtime.memcpyDeviceToDevice, self._side.ptr
        for place, rows, count, packed in self._targets:
            if packed is not None:
                address, pitch = packed.data.ptr, line
            else:
                pitch = X.strides[0] if len(X) > 1 else line
                address = X.data.ptr + rows.start * pitch
            if pitch == line:
                self._runtime.memcpyAsync(place, address, count * line, kind, side)
            else:
                self._runtime.memcpy2DAsync(place, line, address, pitch, line, count, kind, side)
        self._set_flags(self._side, self._arrivals)
        self._pushed.record(self._side)
        is_awaited = True

        def finish() -> Array:
            nonlocal is_awaited
            is_awaited = False
            with self._device:
                stream.wait_event(self._pushed)  # X may be modified from here on
                self._set_flags(stream, self._awaits)
            halo: Array = self._halo
            return halo

        def free() -> None:
            if is_awaited:  # after an error: flags have to be as before
                finish()
            with self._device:
                self._set_flags(stream, self._returns)

        return finish, free

    def release(self) -> None:
        """Let streams that wait for a neighbour go on, by an exchange per call; no other one is possible."""
        self.is_open = False
        self._own[...] = 1


def _check(results: tuple[Any, ...]) -> Any:
    """Check the status of a call of the driver; return its last result."""
    if int(results[0]) != 0:
        raise RuntimeError(f"CUDA driver: {results[0]}")
    return results[-1]


def _close(runtime: Any, memory: int, peers: dict[int, int], flags: NDArray[np.uint8]) -> None:
    """Close the memory of others, and free that of this process once the GPU has ended its work."""
    for address in peers.values():
        runtime.ipcCloseMemHandle(address)
    runtime.free(memory)
    runtime.hostUnregister(flags.ctypes.data)
