"""Cooperative launches of several steps, of Lanczos or of a recurrence."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...kernels.limits import ceil_div
from ...kernels.problem import itemsize
from ...kernels.steps import THREADS, KrylovStepsKernel, RecurrenceKernel
from ..base import DeviceArray
from .device import Gpu, type_name, workspace
from .device_csr import lanes_per_row

MOST_BYTES = 1 << 30  # of the basis: of larger ones, products by kernels of their own take less time
# A launch multiplies by the matrix up to so many bytes of the basis, and entries; longer steps gain nothing.
SEVERAL_BYTES, SEVERAL_ENTRIES = 1 << 27, 1 << 25
ROWS_PER_BLOCK = 128  # at least: partial sums of more blocks take longer than their rows


def krylov_steps(gpu: Gpu, matrix: Any, V: DeviceArray, b: int) -> KrylovSteps | None:
    """Prepare steps of b columns on a basis in the columns of V; None where there is no kernel for it."""
    kernel = kernel_for(gpu, type_name(V), V.shape[0], V.shape[1], b, V.data.ptr | V.strides[0])
    return None if kernel is None else KrylovSteps(gpu, kernel, matrix, V)


def kernel_for(
    gpu: Gpu, dtype: str, rows: int, columns: int, b: int, addresses: int
) -> KrylovStepsKernel | None:
    """Choose the kernel for a basis whose rows are aligned as `addresses` are."""
    kernel = KrylovStepsKernel(dtype, b, ceil_div(columns, 32), 8 if addresses % 16 else 16)
    is_double = dtype in ("float64", "complex128")
    fits = rows * columns * itemsize(dtype) <= MOST_BYTES
    return kernel if is_double and fits and kernel.fits(gpu.info) else None


class KrylovSteps:
    """Steps on one basis of up to `columns` columns, whose launches multiply by a matrix if `multiplies`.

    A call queues steps and returns their report; the last block is in W if their number is odd, else in X.
    Its arguments are those of `blockvec.operators.krylov_steps.KrylovSteps.queue`, the number of columns
    before m that A X can couple to, whether a launch multiplies by the matrix, and None or a function of X
    and W that does so before each step, which then is a launch of its own.
    """

    def __init__(self, gpu: Gpu, kernel: KrylovStepsKernel, matrix: Any, V: DeviceArray) -> None:
        self.columns, self._kernel, self._gpu, self._V = kernel.columns, kernel, gpu, V
        blocks = max(1, min(gpu.info.multiprocessors, ceil_div(V.shape[0], ROWS_PER_BLOCK)))
        self._blocks, self._work_bytes = (blocks,), kernel.work_bytes(blocks)
        self._launch: Callable[..., None] | None = None
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
        if self._launch is None:
            described = kernel.kernel(self._gpu.info)
            self._launch = self._gpu.launcher(described, self._blocks, is_cooperative=True)
        work = workspace(self._gpu, self._work_bytes)
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
            self._launch(*self._arrays, V, X, W, at, work, rows, ld, *ends, *constant)
            X, W = W, X
        return report


CACHE_SHARES = {False: 0.2, True: 0.8}
"""Parts of the second-level cache that operands may fill, with given coefficients and with those of Lanczos.

Of larger ones single launches take less time, although a call is 10 us and a step of Lanczos has 11.
"""


def recurrence(
    gpu: Gpu,
    matrix: Any,
    X: DeviceArray,
    Y: DeviceArray,
    alpha: complex,
    beta: complex,
    shift: complex,
    turns: int,
) -> Callable[[], None] | None:
    """Bind a product of two blocks that take turns to its operands; see `Backend.recurrence`."""
    factors = [complex(factor) for factor in (alpha, beta, shift)]
    launch = None if any(factor.imag for factor in factors) else _launcher(gpu, matrix, X, Y, lanczos=False)
    if launch is None:
        return None
    numbers = [factor.real for factor in factors]
    return gpu.on_device(functools.partial(launch, X, Y, None, None, turns, *numbers))


def lanczos_recurrence(
    gpu: Gpu, matrix: Any, X: DeviceArray, norms: Callable[[], DeviceArray]
) -> Callable[[int], DeviceArray] | None:
    """Prepare the Lanczos recurrences of the columns of a block; see `Backend.lanczos_recurrence`."""
    import cupy

    launch = _launcher(gpu, matrix, X, X, lanczos=True)
    if launch is None:
        return None
    scales = cupy.ones((2, X.shape[1]))
    scales[1] = norms()
    blocks = [X, cupy.zeros_like(X)]  # nothing is before the first vectors

    def take(steps: int) -> DeviceArray:
        log = cupy.empty((2 * steps, X.shape[1]))
        launch(*blocks, scales, log, steps, 0.0, 0.0, 0.0)
        if steps % 2:
            blocks.reverse()
        return log

    return gpu.on_device(take)


def recurrence_kernel(gpu: Gpu, matrix: Any, dtype: str, b: int, lanczos: bool) -> RecurrenceKernel | None:
    """Choose the kernel for a matrix and blocks of b columns; None where there is none, or no gain."""
    kernel, n = RecurrenceKernel(dtype, b, lanczos), matrix.shape[0]
    if not n or not lanes_per_row(matrix, np.dtype(dtype)) or not kernel.fits:
        return None
    used = matrix.data.nbytes + matrix.indices.nbytes + 2 * n * b * itemsize(dtype)
    return kernel if used <= CACHE_SHARES[lanczos] * gpu.info.l2_bytes else None


def _launcher(
    gpu: Gpu, matrix: Any, X: DeviceArray, Y: DeviceArray, *, lanczos: bool
) -> Callable[..., None] | None:
    """Load the kernel for a matrix and blocks like these two; None where there is none, or no gain."""
    n, b = X.shape
    kernel, lanes = recurrence_kernel(gpu, matrix, type_name(X), b, lanczos), lanes_per_row(matrix, X.dtype)
    if kernel is None or any(not block.flags.c_contiguous or block.data.ptr % 16 for block in (X, Y)):
        return None
    blocks = min(gpu.info.multiprocessors, ceil_div(n * lanes, THREADS))
    launch = gpu.launcher(kernel.kernel(), (blocks,), is_cooperative=True)
    arrays, needed = (matrix.indptr, matrix.indices, matrix.data), kernel.work_bytes(blocks)

    def take(X: DeviceArray, Y: DeviceArray, scales: Any, log: Any, steps: int, *factors: float) -> None:
        numbers = n, np.int32(steps), np.int32(lanes), *factors
        launch(*arrays, X, Y, scales, log, workspace(gpu, needed), *numbers)

    return take
