"""Timing what a kernel costs in a replayed CUDA graph: without the call from Python."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from ..kernels.measure import Stopwatch, Timing, measure
from .gpu import Gpu

__all__ = ["replay"]


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
