"""CUDA graphs: recorded operations that are repeated."""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

_idle_streams: defaultdict[tuple[int, int], list[Any]] = defaultdict(list)
"""Streams of earlier recorders per device and current stream: each stream has a workspace, which stays."""


class Graphs:
    """Captures operations on a stream of its own; see `blockvec.Recorder`."""

    def __init__(self, device_id: int) -> None:
        import cupy

        # On the same current stream, graphs of different recorders use a workspace one after the other.
        idle = _idle_streams[device_id, cupy.cuda.get_current_stream().ptr]
        try:
            self._stream = idle.pop()
        except IndexError:
            with cupy.cuda.Device(device_id):
                self._stream = cupy.cuda.Stream(non_blocking=True)
        weakref.finalize(self, idle.append, self._stream).atexit = False
        # Temporary memory of captured operations belongs to their graph for as long as it exists.
        self._pool = cupy.cuda.MemoryPool()
        self._outside: list[Any] = []

    def enter(self) -> None:
        """Direct work to the stream, after the work queued so far."""
        import cupy

        outside = cupy.cuda.get_current_stream()
        self._stream.wait_event(outside.record())
        self._stream.__enter__()
        self._outside.append(outside)

    def leave(self) -> None:
        """Direct work to the previous stream, after the work of this one."""
        outside = self._outside.pop()
        done = self._stream.record()
        self._stream.__exit__(None, None, None)
        outside.wait_event(done)

    def record(self, operations: Callable[[], object]) -> Callable[[], object]:
        """Record operations without running them; return a function that repeats them."""
        import cupy

        try:
            self._stream.begin_capture()
            try:
                with cupy.cuda.using_allocator(self._pool.malloc):
                    operations()
            finally:
                graph = self._stream.end_capture()
        except RuntimeError:
            return operations
        return functools.partial(self._launch, graph)

    def _launch(self, graph: Any) -> None:
        """Launch a graph; a method, so that the recorder's memory lives as long as its recordings."""
        import cupy

        graph.launch(cupy.cuda.get_current_stream())
