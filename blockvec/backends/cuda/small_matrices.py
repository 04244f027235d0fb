"""The inverse of a Cholesky factor in one kernel, and copies to the host that do not block."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...kernels.compile import function
from ...kernels.inverse_factor import InverseFactorKernel
from ...kernels.requests import note
from ..base import Array, DeviceArray
from ..host import small_matrices as host
from .device import Gpu, type_name


def inverse_factor(gpu: Gpu, G: DeviceArray, limit: float) -> tuple[DeviceArray, DeviceArray]:
    """Compute T = R^-1 and the report of `Backend.inverse_factor`; waits if G is too wide for the kernel."""
    import cupy

    width = G.shape[0]
    kernel = InverseFactorKernel(type_name(G))
    if width == 0 or kernel.refusal(width, gpu.info):
        T, report = host.inverse_factor(G.get(), limit)
        return cupy.asarray(T), cupy.asarray(report)
    T, report = cupy.empty_like(G, order="C"), cupy.empty((3 * width + 1, width), kernel.dtype_report)
    _launcher(gpu, kernel, width)(cupy.ascontiguousarray(G), T, report, np.int32(width), float(limit))
    return T, report


@functools.lru_cache(maxsize=256)
def _launcher(gpu: Gpu, kernel: InverseFactorKernel, width: int) -> Callable[..., None]:
    note(kernel)
    shared = kernel.shared_bytes(width)
    loaded = function(kernel.source(), kernel.name, gpu.info.architecture, shared)

    def launch(*arguments: Any) -> None:
        loaded((1,), (kernel.threads,), arguments, shared_mem=shared)

    return launch


class DeviceCopy:
    """A copy of an array of the current device to the host, through pinned memory; calling it waits."""

    def __init__(self, array: DeviceArray) -> None:
        import cupy

        array = cupy.ascontiguousarray(array)
        stream = cupy.cuda.get_current_stream()
        memory = cupy.cuda.alloc_pinned_memory(max(array.nbytes, 1))
        self._array: Array = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
        array.data.copy_to_host_async(memory.ptr, array.nbytes, stream)
        self._done = cupy.cuda.Event(disable_timing=True)
        self._done.record(stream)

    def __call__(self) -> Array:
        """Wait for the copy and return it."""
        if self._done is not None:
            self._done.synchronize()
            self._array, self._done = self._array.copy(), None  # releases the pinned memory
        return self._array

    def __del__(self) -> None:
        """Wait for the copy: the pinned memory must not be reused while it is written to."""
        if getattr(self, "_done", None) is not None:
            self._done.synchronize()
