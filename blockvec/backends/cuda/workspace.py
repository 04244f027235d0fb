"""Scratch memory of kernels: one piece per stream, so that launches on several streams do not share it."""

from __future__ import annotations

import threading
from typing import Any

from ..base import DeviceArray as Array
from .device import Gpu

MIN_WORKSPACE_BYTES = 16 << 20  # partial sums of 132 blocks of a 64 x 64 complex product are half of it

PER_THREAD = 2  # the number under which every thread of a process may have a default stream of its own

_workspaces: dict[tuple[int, tuple[int, int]], list[Any]] = {}


def workspace(gpu: Gpu, bytes_needed: int) -> Array:
    """Return the workspace of the current stream; the counters at its start are zero between launches.

    Outgrown ones are kept, since a captured graph may still refer to them.
    """
    import cupy

    stream = cupy.cuda.get_current_stream()
    generations = _workspaces.setdefault((gpu.id, _key(stream.ptr)), [])
    if not generations or generations[-1].nbytes < bytes_needed:
        doubles = max(bytes_needed, MIN_WORKSPACE_BYTES) // 8 + 1
        # Not from a pool of the user's, which may go while this stays.
        with cupy.cuda.using_allocator(cupy.get_default_memory_pool().malloc):
            generations.append(_zeros_now(doubles) if stream.is_capturing() else cupy.zeros(doubles))
    return generations[-1]


def _key(stream: int) -> tuple[int, int]:
    """Compute the key of a stream: its number, and the thread for a per-thread default stream."""
    return stream, threading.get_ident() if stream == PER_THREAD else 0


def _zeros_now(doubles: int) -> Array:
    """Return zeros that are written before a capture ends: products outside its graph may read them."""
    import cupy

    with cupy.cuda.Stream(non_blocking=True) as aside:
        zeros = cupy.zeros(doubles)
        aside.synchronize()
    return zeros


class Scratch:
    """Addresses of a kernel's workspaces per stream, cached because every launch needs one."""

    def __init__(self, gpu: Gpu, bytes_needed: int) -> None:
        import cupy

        self._gpu, self._bytes_needed = gpu, bytes_needed
        self._current_stream = cupy.cuda.get_current_stream
        self._addresses: dict[tuple[int, int], int] = {}

    def address(self) -> int:
        """Return the address of the current stream's workspace."""
        key = _key(self._current_stream().ptr)
        known = self._addresses.get(key)
        if known is None:
            known = self._addresses[key] = workspace(self._gpu, self._bytes_needed).data.ptr
        return known
