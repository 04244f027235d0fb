"""Scratch memory of kernels: one piece a stream, so that launches on several streams do not meet in it."""

from __future__ import annotations

from typing import Any

from ..kernels.launch import GRID_HEADER_BYTES
from .base import Array
from .gpu import Gpu

__all__ = ["GRID_HEADER_BYTES", "Scratch", "workspace"]

MIN_WORKSPACE_BYTES = 16 << 20  # partial sums of 132 blocks of a 64 x 64 complex product are half of it

_workspaces: dict[tuple[int, int], list[Any]] = {}


def workspace(gpu: Gpu, bytes_needed: int) -> Array:
    """Return scratch memory of the current stream, whose counters at its head are zero between launches.

    Outgrown ones are kept, since a captured graph may still refer to them.
    """
    import cupy

    generations = _workspaces.setdefault((gpu.id, cupy.cuda.get_current_stream().ptr), [])
    if not generations or generations[-1].nbytes < bytes_needed:
        generations.append(cupy.zeros(max(bytes_needed, MIN_WORKSPACE_BYTES) // 8 + 1))
    return generations[-1]


class Scratch:
    """Where one kernel's workspaces are, by stream: asked at every launch, so remembered."""

    def __init__(self, gpu: Gpu, bytes_needed: int) -> None:
        import cupy

        self._gpu, self._bytes_needed = gpu, bytes_needed
        self._current_stream = cupy.cuda.get_current_stream
        self._addresses: dict[int, int] = {}

    def address(self) -> int:
        """Return the address of the current stream's workspace."""
        stream = self._current_stream().ptr
        known = self._addresses.get(stream)
        if known is None:
            known = self._addresses[stream] = workspace(self._gpu, self._bytes_needed).data.ptr
        return known
