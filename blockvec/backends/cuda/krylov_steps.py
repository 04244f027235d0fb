"""Cooperative launches of several Lanczos steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...kernels.build import build
from ...kernels.krylov_steps import KrylovStepsKernel
from ...kernels.limits import ceil_div
from ..base import DeviceArray
from .device import Gpu, type_name
from .device_csr import lanes_per_row
from .workspace import workspace

MOST_BYTES = 1 << 30  # of the basis: of larger ones, products by kernels of their own take less time
# A launch multiplies by the matrix up to so many bytes of the basis, and entries; longer steps gain nothing.
SEVERAL_BYTES, SEVERAL_ENTRIES = 1 << 27, 1 << 25
ROWS_PER_BLOCK = 128  # at least: partial sums of more blocks take longer than their rows


def krylov_steps(gpu: Gpu, matrix: Any, V: DeviceArray, b: int) -> KrylovSteps | None:
    """Prepare steps of b columns on a basis in the columns of V; None where there is no kernel for it."""
    piece = 8 if (V.data.ptr | V.strides[0]) % 16 else 16
    kernel = KrylovStepsKernel(type_name(V), b, ceil_div(V.shape[1], 32), piece)
    if V.dtype.char not in "dD" or V.nbytes > MOST_BYTES or kernel.refusal(gpu.info):
        return None
    return KrylovSteps(gpu, kernel, matrix, V)


@functools.lru_cache(maxsize=256)
def _loaded(gpu: Gpu, kernel: KrylovStepsKernel) -> Any:
    shared = kernel.shared_bytes(gpu.info)
    return build(kernel.source(gpu.info), kernel.name, gpu.info.architecture, shared)


class KrylovSteps:
    """Steps on one basis, with the products of a matrix or without; see `Backend.krylov_steps`."""

    def __init__(self, gpu: Gpu, kernel: KrylovStepsKernel, matrix: Any, V: DeviceArray) -> None:
        self.columns, self._kernel, self._gpu, self._V = kernel.columns, kernel, gpu, V
        blocks = max(1, min(gpu.info.multiprocessors, ceil_div(V.shape[0], ROWS_PER_BLOCK)))
        self._grid, self._threads = (blocks,), (32 * kernel.warps(gpu.info),)
        self._shared, self._work_bytes = kernel.shared_bytes(gpu.info), kernel.work_bytes(blocks)
        self._arrays, self._group, self.multiplies = (V, V, V), 2, False
        lanes = lanes_per_row(matrix, V.dtype)
        if lanes:
            self._arrays, self._group = (matrix.indptr, matrix.indices, matrix.data), lanes
            self.multiplies = V.nbytes <= SEVERAL_BYTES and matrix.nnz <= SEVERAL_ENTRIES
        self._on_device = gpu.on_device(self._queue)

    def __call__(self, *arguments: Any) -> DeviceArray:
        return self._on_device(*arguments)

    def _queue(
        self,
        X: DeviceArray,
        W: DeviceArray,
        m: int,
        end: int,
        back: int,
        full_until: int,
        locked: int,
        steps: int,
        multiplies: bool,
        enough: float,
        limit: float,
        product: Callable[[DeviceArray, DeviceArray], object] | None = None,
    ) -> DeviceArray:
        import cupy

        kernel, V = self._kernel, self._V
        loaded, work = _loaded(self._gpu, kernel), workspace(self._gpu, self._work_bytes)
        report = cupy.empty((steps, kernel.report_rows, kernel.b), V.dtype)
        rows, ld, report_ptr = V.shape[0], V.strides[0] // V.itemsize, report.data.ptr
        at_once = steps if product is None else 1
        same = back, full_until, locked, at_once, multiplies, self._group
        constant = *map(np.int32, same), float(enough), float(limit)
        for step in range(0, steps, at_once):
            if product is not None:
                product(X, W)
            ends = np.int32(m + step * kernel.b), np.int32(end + step * kernel.b)
            at = report_ptr + step * kernel.report_rows * kernel.b * V.itemsize
            arguments = *self._arrays, V, X, W, at, work, rows, ld, *ends, *constant
            loaded(self._grid, self._threads, arguments, self._shared, is_cooperative=True)
            X, W = W, X
        return report
