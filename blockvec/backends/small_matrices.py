"""Small matrices: the inverse of a Cholesky factor, in NumPy and on a GPU, and copies to the host."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..kernels.compile import function
from ..kernels.inverse_factor import InverseFactorKernel
from ..kernels.request_log import note
from .base import Array
from .cuda.device import Gpu, type_name

__all__ = ["DeviceCopy", "inverse_factor", "inverse_factor_on_gpu"]


def inverse_factor(G: Array, limit: float) -> tuple[Array, Array]:
    """Return T = R^-1 and the report of `Backend.inverse_factor` for a NumPy array G."""
    width = len(G)
    wide = G.astype(np.complex128 if G.dtype.kind == "c" else np.float64)
    report = np.zeros((3 * width + 1, width), wide.dtype)
    hermitian, R, T = (report[i * width : (i + 1) * width] for i in range(3))
    hermitian[:] = (wide + wide.conj().T) / 2
    R[:] = T[:] = np.eye(width)
    report[-1, :1] = np.inf
    with contextlib.suppress(np.linalg.LinAlgError):  # not positive definite
        factor = np.linalg.cholesky(hermitian).conj().T
        inverse = np.linalg.inv(factor)
        growth = np.diagonal(wide).real @ (np.abs(inverse) ** 2).sum(axis=1)
        if growth < limit:
            R[:], T[:], report[-1, :1] = factor, inverse, growth
    return T.astype(G.dtype), report


def inverse_factor_on_gpu(gpu: Gpu, G: Array, limit: float) -> tuple[Array, Array]:
    """Return T = R^-1 and the report of `Backend.inverse_factor`; waits where G is too wide for a kernel."""
    import cupy

    width = G.shape[0]
    kernel = InverseFactorKernel(type_name(G))
    if width == 0 or kernel.refusal(width, gpu.info):
        T, report = inverse_factor(G.get(), limit)
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
    """A copy to the host, through pinned memory, of an array of the current device; called, it waits."""

    def __init__(self, array: Array) -> None:
        import cupy

        array = cupy.ascontiguousarray(array)
        stream = cupy.cuda.get_current_stream()
        memory = cupy.cuda.alloc_pinned_memory(max(array.nbytes, 1))
        self._array = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
        array.data.copy_to_host_async(memory.ptr, array.nbytes, stream)
        self._done = cupy.cuda.Event(disable_timing=True)
        self._done.record(stream)

    def __call__(self) -> Array:
        """Wait for the copy and return it."""
        if self._done is not None:
            self._done.synchronize()
            self._array, self._done = self._array.copy(), None  # others need the pinned memory
        return self._array

    def __del__(self) -> None:
        """Wait: nobody else may be given the memory while it is written to."""
        if getattr(self, "_done", None) is not None:
            self._done.synchronize()
