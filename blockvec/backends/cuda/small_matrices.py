"""The inverse of a Cholesky factor in one kernel, and copies to the host that do not block."""

from __future__ import annotations

import numpy as np

from ...kernels.elementwise import inverse_factor_kernel
from ...kernels.limits import round_up
from ...kernels.problem import promote
from ..base import Array, DeviceArray
from ..host.backend import HOST
from .device import Gpu, type_name
from .elementwise import contiguous

ALIGNMENT = 64  # of copies, in bytes


def inverse_factor(gpu: Gpu, G: DeviceArray, limit: float) -> tuple[DeviceArray, DeviceArray]:
    """Compute T = R^-1 and the report of `Backend.inverse_factor`; waits if G is too wide for the kernel."""
    import cupy

    width, dtype = G.shape[0], type_name(G)
    kernel = inverse_factor_kernel(dtype, width)
    if width == 0 or kernel.shared_bytes > gpu.info.shared_bytes_per_block:
        T, report = HOST.inverse_factor(G.get(), limit)
        return cupy.asarray(T), cupy.asarray(report)
    T, report = cupy.empty_like(G, order="C"), cupy.empty((3 * width + 1, width), promote(dtype, "float64"))
    gpu.launch(kernel, (1,), contiguous(gpu, G), T, report, np.int32(width), float(limit))
    return T, report


class DeviceCopies:
    """Copies of arrays of the current device to the host, through pinned memory; calling it waits for all."""

    def __init__(self, gpu: Gpu, *arrays: DeviceArray) -> None:
        import cupy

        arrays = tuple(contiguous(gpu, array) for array in arrays)
        ends = np.cumsum([round_up(array.nbytes, ALIGNMENT) for array in arrays]).tolist()
        stream = cupy.cuda.get_current_stream()
        memory = cupy.cuda.alloc_pinned_memory(max(*ends, 1))
        self._arrays: list[Array] = []
        for array, begin in zip(arrays, (0, *ends), strict=False):
            array.data.copy_to_host_async(memory.ptr + begin, array.nbytes, stream)
            copy: Array = np.frombuffer(memory, array.dtype, array.size, begin)
            self._arrays.append(copy.reshape(array.shape))
        self._done = cupy.cuda.Event(disable_timing=True)
        self._done.record(stream)

    def __call__(self) -> list[Array]:
        """Wait for the copies and return them."""
        if self._done is not None:
            self._done.synchronize()
            self._arrays = [array.copy() for array in self._arrays]  # releases the pinned memory
            self._done = None
        return self._arrays

    def __del__(self) -> None:
        """Wait for the copies: the pinned memory must not be reused while it is written to."""
        if getattr(self, "_done", None) is not None:
            self._done.synchronize()
