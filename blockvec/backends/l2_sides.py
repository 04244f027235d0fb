"""Finds out which part of L2 each multiprocessor of a GPU is beside."""

from __future__ import annotations

import functools

import numpy as np

from ..kernels.probes import SidesProbe
from ..kernels.sides import Sides, classify
from .gpu import Gpu

__all__ = ["l2_sides"]


@functools.cache
def l2_sides(gpu: Gpu) -> Sides | None:
    """Return the sides of the current device's L2, or None where it has one; waits once."""
    import cupy

    probe, count = SidesProbe(), gpu.info.multiprocessors
    places = cupy.zeros(probe.lines * probe.stride, np.uint32)
    latencies = cupy.zeros((count, probe.lines), np.uint32)
    gpu.launch(probe, (count,), probe.threads, places, latencies)
    side = classify(latencies.get())
    return None if side is None else Sides(cupy.asarray(side), float(np.mean(side == 0)))
