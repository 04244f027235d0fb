"""Halos that GPUs of one host write into each other's memory by their copy engines, beside a product."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ..backends import Array
from ..kernels.limits import round_up
from .host_memory import Exchange

HEADER_BYTES = 256  # of the flags, or a multiple; keeps rows aligned
RELEASED = 1 << 62  # a flag that no exchange waits for


class PeerCopies:
    """Exchanges of rows of one width and type between processes that can open each other's memory.

    A process copies rows into the halo of a neighbour and then writes the number of the exchange to a flag
    there, both on a stream of its own; the neighbour's stream waits for the flag. No multiprocessor and no
    host takes part. A process has two halos in turn. Neighbours receive from each other: the flag of exchange
    s - 1 tells that the neighbour's stream has come to it, and therefore has read the halo of exchange s - 2.

    `begin` is called at the begin of an exchange.
    """

    def __init__(self, rank: int, size: int, exchange: Exchange, begin: Callable[[], object]) -> None:
        import cupy
        from cuda.bindings import driver

        self._cupy, self._driver, self._runtime = cupy, driver, cupy.cuda.runtime
        self._rank, self._step, self.is_open = rank, 0, True
        self._exchange, self._row_bytes, self._begin = exchange, exchange.row_bytes, begin
        self._header = round_up(8 * size, HEADER_BYTES)
        self._slot = round_up(exchange.rows * self._row_bytes, HEADER_BYTES)
        total = self._header + 2 * self._slot
        self._device = cupy.cuda.Device()
        self._memory = int(self._runtime.malloc(total))
        self._peers: dict[int, int] = {}  # addresses of their memory
        self._release = weakref.finalize(self, _close, self._runtime, self._memory, self._peers)
        self._release.atexit = False
        self._runtime.memset(self._memory, 0, total)
        self._device.synchronize()
        memory = cupy.cuda.UnownedMemory(self._memory, total, None)
        slots = (cupy.cuda.MemoryPointer(memory, self._header + slot * self._slot) for slot in range(2))
        shape, dtype = (exchange.rows, exchange.width), exchange.dtype
        self._halos = [cupy.ndarray(shape, dtype, slot) for slot in slots]
        self._side, self._rescue = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        self._ready, self._pushed = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
        # The driver's objects for addresses and streams take longer to make than their use takes.
        self._flags = [driver.CUdeviceptr(self._memory + 8 * peer) for peer, _, _ in exchange.received]
        self._targets: list[tuple[tuple[int, int], Any, Any, int, Any]] = []

    def offer(self) -> Any:
        """Describe this process's memory to the others: handle, bytes per halo, and first rows by process."""
        handle = self._runtime.ipcGetMemHandle(self._memory)
        return handle, self._slot, {peer: begin for peer, begin, _ in self._exchange.received}

    def open(self, offers: Sequence[Any]) -> None:
        """Open the memory of those that this process sends to; `offers` are those of all processes."""
        width, dtype = self._exchange.width, self._exchange.dtype
        for peer, chosen, count in self._exchange.sent:
            handle, slot, begins = offers[peer]
            there = self._peers[peer] = int(self._runtime.ipcOpenMemHandle(handle))
            first = there + self._header + begins[self._rank] * self._row_bytes
            flag = self._driver.CUdeviceptr(there + 8 * self._rank)
            packed = None if isinstance(chosen, slice) else self._cupy.empty((count, width), dtype)
            self._targets.append(((first, first + slot), flag, chosen, count, packed))

    def start(self, X: Array) -> Callable[[], Array]:
        self._begin()
        with self._device:
            return self._start(X)

    def _start(self, X: Any) -> Callable[[], Array]:
        self._step += 1
        turn, stream = self._step % 2, self._cupy.cuda.get_current_stream()
        for _, _, rows, _, packed in self._targets:
            if packed is not None:
                self._cupy.take(X, rows, axis=0, out=packed)
        self._ready.record(stream)
        self._side.wait_event(self._ready)
        line, kind, side = self._row_bytes, self._runtime.memcpyDeviceToDevice, self._side.ptr
        to = self._driver.CUstream(side)
        for places, flag, rows, count, packed in self._targets:
            if packed is not None:
                address, pitch = packed.data.ptr, line
            else:
                pitch = X.strides[0] if len(X) > 1 else line
                address = X.data.ptr + rows.start * pitch
            if pitch == line:
                self._runtime.memcpyAsync(places[turn], address, count * line, kind, side)
            else:
                self._runtime.memcpy2DAsync(places[turn], line, address, pitch, line, count, kind, side)
            _check(self._driver.cuStreamWriteValue64(to, flag, self._step, 0))
        self._pushed.record(self._side)

        def finish() -> Array:
            with self._device:
                here, driver = self._driver.CUstream(stream.ptr), self._driver
                equal_or_more = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
                for flag in self._flags:
                    _check(driver.cuStreamWaitValue64(here, flag, self._step, equal_or_more))
                stream.wait_event(self._pushed)  # X may be modified from here on
            halo: Array = self._halos[turn]
            return halo

        return finish

    def release(self) -> None:
        """Let all streams go on that wait for a neighbour; no other exchange is possible."""
        self.is_open = False
        with self._device:
            for flag in self._flags:
                rescue = self._driver.CUstream(self._rescue.ptr)
                _check(self._driver.cuStreamWriteValue64(rescue, flag, self._step + RELEASED, 0))


def _check(results: tuple[Any, ...]) -> None:
    if int(results[0]) != 0:
        raise RuntimeError(f"CUDA driver: {results[0]}")


def _close(runtime: Any, memory: int, peers: dict[int, int]) -> None:
    """Close the memory of others, and free that of this process."""
    for address in peers.values():
        runtime.ipcCloseMemHandle(address)
    runtime.free(memory)
