"""CUDA graphs: operations repeated without their calls from Python, and what kernels cost then."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from ...kernels.measure import Stopwatch, Timing, measure
from .device import Gpu

__all__ = ["Graphs", "replay"]


class Graphs:
    """Captures operations on a stream of its own; see `blockvec.Recorder`."""

    def __init__(self, device_id: int) -> None:
        import cupy

        with cupy.cuda.Device(device_id):
            self._stream = cupy.cuda.Stream(non_blocking=True)
        # What operations allocate for a moment belongs to their graph for good.
        self._pool = cupy.cuda.MemoryPool()
        self._outside: list[Any] = []

    def enter(self) -> None:
        """Make the stream the current one, behind what the one until now has been given."""
        import cupy

        outside = cupy.cuda.get_current_stream()
        self._stream.wait_event(outside.record())
        self._stream.__enter__()
        self._outside.append(outside)

    def leave(self) -> None:
        """Go back to the stream before, which waits for this one."""
        outside = self._outside.pop()
        done = self._stream.record()
        self._stream.__exit__(None, None, None)
        outside.wait_event(done)

    def record(self, operations: Callable[[], object]) -> Callable[[], object]:
        """Return what launches the operations as a graph; themselves where none can hold them."""
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
        return functools.partial(graph.launch, self._stream)


def replay(
    gpu: Gpu, call: Callable[[], object], count: int, stopwatch: Callable[[], Stopwatch]
) -> Timing | None:
    """Time one of `count` calls in a graph; None where none can hold it, as CuPy's of cuBLAS.

    What the calls read stays in L2 where it fits. The device is CuPy's current one.
    """
    import cupy

    cupy.cuda.get_current_stream().synchronize()  # the operands are there
    with _stream(gpu) as stream:
        call()  # compiles, and takes the stream's memory for partial sums
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
    """Return the stream that graphs are captured on, always the same: each keeps memory for sums."""
    import cupy

    with cupy.cuda.Device(gpu.id):
        return cupy.cuda.Stream(non_blocking=True)
