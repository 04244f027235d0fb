"""Cooperative launches of several steps of a recurrence."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...kernels.limits import ceil_div
from ...kernels.recurrence import THREADS, RecurrenceKernel
from ..base import DeviceArray
from .device import Gpu, type_name
from .device_csr import lanes_per_row
from .workspace import workspace

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


def _launcher(
    gpu: Gpu, matrix: Any, X: DeviceArray, Y: DeviceArray, *, lanczos: bool
) -> Callable[..., None] | None:
    """Load the kernel for a matrix and blocks like these two; None where there is none, or no gain."""
    n, b = X.shape
    kernel = RecurrenceKernel(type_name(X), b, lanczos)
    lanes, blocks = lanes_per_row(matrix, X.dtype), (X, Y)
    is_usual = lanes and all(block.flags.c_contiguous and not block.data.ptr % 16 for block in blocks)
    if not is_usual or kernel.refusal:
        return None
    used = matrix.data.nbytes + matrix.indices.nbytes + X.nbytes + Y.nbytes
    if not n or used > CACHE_SHARES[lanczos] * gpu.info.l2_bytes:
        return None
    loaded = gpu.load(kernel)
    grid = min(gpu.info.multiprocessors, ceil_div(n * lanes, THREADS))
    arrays, needed = (matrix.indptr, matrix.indices, matrix.data), kernel.work_bytes(grid)

    def launch(X: DeviceArray, Y: DeviceArray, scales: Any, log: Any, steps: int, *factors: float) -> None:
        work = workspace(gpu, needed)
        numbers = n, np.int32(steps), np.int32(lanes), *factors
        loaded((grid,), (THREADS,), (*arrays, X, Y, scales, log, work, *numbers), is_cooperative=True)

    return launch
