"""CUDA graphs: repeat recorded operations, and time kernels without their calls from Python."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from ...kernels.measure import Stopwatch, Timing, measure
from .device import Gpu

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
        """Make the recorder's stream the current one; it waits for the work queued before."""
        import cupy

        outside = cupy.cuda.get_current_stream()
        self._stream.wait_event(outside.record())
        self._stream.__enter__()
        self._outside.append(outside)

    def leave(self) -> None:
        """Make the previous stream the current one, after the work of the recorder's."""
        outside = self._outside.pop()
        done = self._stream.record()
        self._stream.__exit__(None, None, None)
        outside.wait_event(done)

    def record(self, operations: Callable[[], object]) -> Callable[[], object]:
        """Capture operations; return a function that launches their graph, or them if capture fails."""
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


def replay(
    gpu: Gpu, call: Callable[[], object], count: int, stopwatch: Callable[[], Stopwatch]
) -> Timing | None:
    """Time one of `count` calls in a graph; None if they cannot be captured, as CuPy's cuBLAS calls cannot.

    The operands stay in L2 if they fit. The device must be CuPy's current one.
    """
    import cupy

    cupy.cuda.get_current_stream().synchronize()  # the operands must be complete
    with _stream(gpu) as stream:
        call()  # compiles, and allocates the stream's workspace
        stream.begin_capture()
        try:
            for _ in range(count):
                call()
        except RuntimeError:
            return None
        finally:
            graph = stream.end_capture()
        timing = measure(lambda: graph.launch(stream), stopwatch, budget_s=0.01, max_repeats=20)
    median_s, best_s = timing.median_s / count, timing.best_s / count
    return dataclasses.replace(timing, median_s=median_s, best_s=best_s)


@functools.cache
def _stream(gpu: Gpu) -> Any:
    """Make the stream that graphs are captured on, one per device: each stream has a workspace."""
    import cupy

    with cupy.cuda.Device(gpu.id):
        return cupy.cuda.Stream(non_blocking=True)
