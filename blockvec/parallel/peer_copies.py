"""Halos that GPUs of one host write into each other's memory by their copy engines, beside a product."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ..backends import Array

HEADER_BYTES = 256  # of the flags, or a multiple; keeps rows aligned
RELEASED = 1 << 62  # a flag that no exchange waits for


class PeerCopies:
    """Exchanges of rows of one width and type between processes that can open each other's memory.

    A process copies rows into the halo of a neighbour and then writes the number of the exchange to a flag
    there, both on a stream of its own; the neighbour's stream waits for the flag. No multiprocessor and no
    host takes part. A process has two halos in turn. Neighbours receive from each other: the flag of exchange
    s - 1 tells that the neighbour's stream has come to it, and therefore has read the halo of exchange s - 2.

    Parameters
    ----------
    rank, size : int
    received : sequence of (int, int, int)
        Process, first and last of its rows in the halo.
    sent : sequence of (int, slice or array, int)
        Process, its wanted rows of this one, and their number.
    width : int
    dtype : str
    begin : callable
        Called at the begin of an exchange.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        received: Sequence[tuple[int, int, int]],
        sent: Sequence[tuple[int, Any, int]],
        width: int,
        dtype: str,
        begin: Callable[[], None],
    ) -> None:
        import cupy
        from cuda.bindings import driver

        self._cupy, self._driver, self._runtime = cupy, driver, cupy.cuda.runtime
        self._rank, self._step, self.is_open = rank, 0, True
        self._received, self._sent, self._begin = received, sent, begin
        rows = max((end for _, _, end in received), default=0)
        self._header = -(-8 * size // HEADER_BYTES) * HEADER_BYTES
        self._row_bytes = width * cupy.dtype(dtype).itemsize
        self._slot = -(-rows * self._row_bytes // HEADER_BYTES) * HEADER_BYTES
        total = self._header + 2 * self._slot
        self._device = cupy.cuda.Device()
        self._memory = int(self._runtime.malloc(total))
        self._peers: dict[int, int] = {}  # addresses of their memory
        self._release = weakref.finalize(self, _close, self._runtime, self._memory, self._peers)
        self._release.atexit = False
        self._runtime.memset(self._memory, 0, total)
        self._device.synchronize()
        memory = cupy.cuda.UnownedMemory(self._memory, total, None)
        self._halos = [
            cupy.ndarray(
                (rows, width), dtype, cupy.cuda.MemoryPointer(memory, self._header + slot * self._slot)
            )
            for slot in range(2)
        ]
        self._packed = {
            peer: cupy.empty((count, width), dtype)
            for peer, chosen, count in sent
            if not isinstance(chosen, slice)
        }
        self._side, self._rescue = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        self._ready, self._pushed = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
        self._places: dict[int, tuple[int, int]] = {}

    def offer(self) -> Any:
        """Describe this process's memory to the others: handle, bytes per halo, and first rows by process."""
        handle = self._runtime.ipcGetMemHandle(self._memory)
        return handle, self._slot, {peer: begin for peer, begin, _ in self._received}

    def open(self, offers: Sequence[Any]) -> None:
        """Open the memory of those that this process sends to; `offers` are those of all processes."""
        for peer, _, _ in self._sent:
            handle, slot, begins = offers[peer]
            self._peers[peer] = int(self._runtime.ipcOpenMemHandle(handle))
            self._places[peer] = slot, begins[self._rank] * self._row_bytes

    def start(self, X: Array) -> Callable[[], Array]:
        """Start the exchange of rows of X; the function returned lets the stream wait for the halo."""
        self._begin()
        with self._device:
            return self._start(X)

    def _start(self, X: Any) -> Callable[[], Array]:
        runtime, side = self._runtime, self._side
        self._step += 1
        turn, stream, source = self._step % 2, self._cupy.cuda.get_current_stream(), X.data.ptr
        pitch = X.strides[0] if len(X) > 1 else self._row_bytes
        for peer, rows in self._packed_rows():
            self._cupy.take(X, rows, axis=0, out=self._packed[peer])
        self._ready.record(stream)
        side.wait_event(self._ready)
        for peer, rows, count in self._sent:
            slot, offset = self._places[peer]
            target = self._peers[peer] + self._header + turn * slot + offset
            begin, step = self._packed[peer].data.ptr if peer in self._packed else 0, self._row_bytes
            if not begin:
                begin, step = source + rows.start * pitch, pitch
            line, kind = self._row_bytes, runtime.memcpyDeviceToDevice
            if step == line:
                runtime.memcpyAsync(target, begin, count * line, kind, side.ptr)
            else:
                runtime.memcpy2DAsync(target, line, begin, step, line, count, kind, side.ptr)
            self._write(side, self._peers[peer] + 8 * self._rank, self._step)
        self._pushed.record(side)

        def finish() -> Array:
            with self._device:
                for peer, _, _ in self._received:
                    self._wait(stream, self._memory + 8 * peer, self._step)
                stream.wait_event(self._pushed)  # X may be modified from here on
            halo: Array = self._halos[turn]
            return halo

        return finish

    def release(self) -> None:
        """Let all streams go on that wait for a neighbour; no other exchange is possible."""
        self.is_open = False
        with self._device:
            for peer, _, _ in self._received:
                self._write(self._rescue, self._memory + 8 * peer, self._step + RELEASED)

    def _packed_rows(self) -> list[tuple[int, Any]]:
        return [(peer, rows) for peer, rows, _ in self._sent if peer in self._packed]

    def _write(self, stream: Any, address: int, value: int) -> None:
        driver = self._driver
        _check(
            driver.cuStreamWriteValue64(driver.CUstream(stream.ptr), driver.CUdeviceptr(address), value, 0)
        )

    def _wait(self, stream: Any, address: int, value: int) -> None:
        driver = self._driver
        flag = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        where = driver.CUdeviceptr(address)
        _check(driver.cuStreamWaitValue64(driver.CUstream(stream.ptr), where, value, flag))


def refusal(received: Sequence[tuple[int, int, int]], sent: Sequence[tuple[int, Any, int]]) -> str:
    """Say why a process's exchange cannot use copies; empty if it can."""
    if {peer for peer, _, _ in received} != {peer for peer, _, _ in sent}:
        return "the pattern of the matrix is not symmetric"
    try:
        from cuda.bindings import driver  # noqa: F401
    except ImportError:
        return "cuda-bindings is not installed"
    return ""


def _check(results: tuple[Any, ...]) -> None:
    if int(results[0]) != 0:
        raise RuntimeError(f"CUDA driver: {results[0]}")


def _close(runtime: Any, memory: int, peers: dict[int, int]) -> None:
    """Close the memory of others, and free that of this process."""
    for address in peers.values():
        runtime.ipcCloseMemHandle(address)
    runtime.free(memory)
