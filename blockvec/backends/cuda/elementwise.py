"""Passes over CuPy arrays: elementwise, column dots, sums, random numbers; and their small matrices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...kernels.elementwise import (
    THREADS,
    ColumnDots,
    axpby_kernel,
    blocks_of,
    fill_kernel,
    fold_kernel,
    fold_lanes,
    inverse_factor_kernel,
    philox_kernel,
    vector_length,
    within_kernel,
)
from ...kernels.limits import ceil_div, round_up
from ...kernels.problem import (
    NO_ROWS,
    StreamProblem,
    TsmttsmProblem,
    is_complex,
    itemsize,
    promote,
    real_type,
)
from ...kernels.rows import trace
from ..base import DeviceArray as Array
from ..base import is_cupy, leading_dimension
from ..host.backend import HOST
from .device import TYPE_NAMES, Gpu, type_name

_WORD = 2**64 - 1
COPY_ALIGNMENT = 64  # bytes: alignment of arrays that share a copy to the host


def copy(gpu: Gpu, source: Array, target: Array) -> None:
    """Copy a block or a row, converting its type where the target's is another one."""
    same = source.dtype == target.dtype and source.flags.c_contiguous and target.flags.c_contiguous
    if same:
        target.data.copy_from_device_async(source.data, source.nbytes)
    elif source.ndim == 1:
        weighted_sum(gpu, source[:, None], None, target[:, None], 1)
    else:
        weighted_sum(gpu, source, None, target, 1)


def contiguous(gpu: Gpu, array: Array) -> Array:
    """Return an array of a block or a row, or a contiguous copy."""
    import cupy

    if array.flags.c_contiguous:
        return array
    is_row_major = array.ndim == 1 or array.strides[-1] == array.itemsize
    if array.ndim > 2 or not is_row_major or array.dtype.char not in TYPE_NAMES:
        return cupy.ascontiguousarray(array)
    result = cupy.empty(array.shape, array.dtype)
    copy(gpu, array, result)
    return result


def fill(gpu: Gpu, out: Array, value: complex) -> None:
    """Set all elements of a block to one value."""
    if out.flags.c_contiguous and value == 0:
        out.fill(0)
        return
    dtype = type_name(out)
    parts = 2 if is_complex(dtype) else 1
    width, count = out.shape[1] * parts, out.size * parts
    if count == 0:
        return
    if parts == 1 and np.iscomplexobj(value):
        raise TypeError(f"a complex number does not fit into a {dtype} block")
    number = complex(value)
    grid = (blocks_of(count, gpu.info.multiprocessors),)
    ends = (number.real, number.imag if parts == 2 else number.real)
    gpu.launch(fill_kernel(real_type(dtype)), grid, out, leading_dimension(out) * parts, width, count, *ends)


def are_within(gpu: Gpu, ranges: Sequence[tuple[Array, int, bool]]) -> bool:
    """Check integers; see `Backend.are_within`."""
    import cupy

    outside = cupy.zeros(1, np.int32)
    for given, bound, ascends in ranges:
        values = cupy.ascontiguousarray(given, None if given.dtype.char in "ilq" else np.int64)
        kernel = within_kernel(f"int{8 * values.itemsize}")
        blocks = blocks_of(values.size, gpu.info.multiprocessors)
        gpu.launch(kernel, (blocks,), values, values.size, bound, np.int32(ascends), outside)
    return not int(outside.get()[0])


def evaluate(gpu: Gpu, function: Callable[..., Any], rows: Sequence[Array], out: Sequence[Array]) -> None:
    """Write the results of a function of rows to others."""
    count = out[0].size
    if count == 0:
        return
    kinds = ("".join([row.dtype.char for row in part]) for part in (rows, out))
    launch = _row_plan(gpu, function, *kinds, count)
    launch(count, *(number for row in (*rows, *out) for number in (row, row.strides[0] // row.itemsize)))


@functools.lru_cache(maxsize=1024)
def _row_plan(
    gpu: Gpu, function: Callable[..., Any], inputs: str, outputs: str, count: int
) -> Callable[..., None]:
    kernel = trace(function, *([np.dtype(char).name for char in part] for part in (inputs, outputs)))
    return gpu.launcher(kernel, (ceil_div(count, kernel.threads),))


def weighted_sum(gpu: Gpu, X: Array, Y: Array | None, out: Array, alpha: Any, beta: Any = 0) -> None:
    """Set out = alpha X + beta Y; `out` may be X or Y. The host does not read factors on the device."""
    if out.size == 0:
        return
    first, alpha_arguments = _factor(alpha)
    second, beta_arguments = _factor(0 if Y is None else beta)
    blocks = (X, out) if Y is None else (X, Y, out)
    layout = tuple((block.dtype.char, block.strides[0], block.data.ptr % 16) for block in blocks)
    launch, (ldx, ldy, ldo, *extents) = _axpby_plan(gpu, layout, out.shape, first, second)
    launch(X, ldx, Y, ldy, out, ldo, *extents, *alpha_arguments, *beta_arguments)


_ZERO = np.int32(0)


@functools.lru_cache(maxsize=4096)
def _axpby_plan(
    gpu: Gpu, layout: tuple[tuple[str, int, int], ...], shape: tuple[int, int], first: str, second: str
) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """Return the launch of axpby for blocks of (type, row pitch, address mod 16), and its integer arguments.

    Everything but addresses and values is settled once: a launch from Python should cost little more than
    the launch.
    """
    K, M = shape
    names = [TYPE_NAMES[char] for char, _, _ in layout]
    pitches = [
        pitch if K > 1 else M * itemsize(name) for name, (_, pitch, _) in zip(names, layout, strict=True)
    ]
    flat = all(pitch == M * itemsize(name) for name, pitch in zip(names, pitches, strict=True))
    dtype_y, vector = names[1] if len(names) == 3 else None, vector_length(*names)
    sizes = [min(16, vector * itemsize(name)) for name in names]
    aligned = all(address % size == 0 for size, (_, _, address) in zip(sizes, layout, strict=True))
    if not flat:
        aligned = aligned and M % vector == 0 and all(p % s == 0 for p, s in zip(pitches, sizes, strict=True))
    kernel = axpby_kernel(names[0], dtype_y, names[-1], first, second, flat=flat, aligned=aligned)
    units, tail = divmod(K * M, vector if aligned else 1)
    n_blocks = blocks_of(units, gpu.info.multiprocessors)
    row_step, col_step = divmod(n_blocks * THREADS * (vector if aligned else 1), M)
    lds = [pitch // itemsize(name) for name, pitch in zip(names, pitches, strict=True)]
    extents = (np.int32(M), units, np.int32(tail), row_step, np.int32(col_step))
    ldy = lds[1] if dtype_y else 0
    return gpu.launcher(kernel, (n_blocks,)), (lds[0], ldy, lds[-1], *extents)


def _factor(factor: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the kind of a factor, as `axpby_kernel` takes it, and its three kernel arguments."""
    if type(factor) in (int, float) or not (is_cupy(factor) or np.iscomplexobj(factor)):
        return "real", (float(factor), None, _ZERO)
    if not is_cupy(factor):
        return "complex", (complex(factor), None, _ZERO)
    values = factor.ravel()
    if values.dtype.char not in TYPE_NAMES:
        values = values.astype(np.float64)
    step = 0 if values.size == 1 else values.strides[0] // values.itemsize
    return type_name(values), (1.0, values, np.int32(step))


def scale(gpu: Gpu, out: Array, beta: complex) -> None:
    """Set out = beta out; out is not read if beta is zero."""
    if beta == 0:
        fill(gpu, out, 0)
    elif beta != 1:
        weighted_sum(gpu, out, None, out, beta)


def column_dots(
    gpu: Gpu,
    problem: StreamProblem,
    X: Array,
    Y: Array,
    out: Array,
    beta: complex,
    skipped: tuple[int, int] = NO_ROWS,
) -> None:
    """out_j = sum_i conj(X_ij) Y_ij + beta out_j, summed in double precision; X may be Y."""
    partials = _column_partials(gpu, X, Y, conj=True, skipped=skipped)
    fold(gpu, partials, out[None, :], 1, beta)


def column_product(
    gpu: Gpu, problem: TsmttsmProblem, A: Array, B: Array, C: Array, alpha: complex, beta: complex
) -> None:
    """C = alpha A^H B + beta C for one column each."""
    partials = _column_partials(gpu, A, B, conj=problem.conj)
    fold(gpu, partials, C, alpha, beta)


def _column_partials(
    gpu: Gpu, X: Array, Y: Array, *, conj: bool, skipped: tuple[int, int] = NO_ROWS
) -> Array:
    """Return sums of conj(X_ij) Y_ij over the rows of each block, shape (blocks, 1, width)."""
    import cupy

    cut, gap = skipped[0], skipped[1] - skipped[0]
    K, M = X.shape[0] - gap, X.shape[1]
    same = X is Y and (conj or X.dtype.kind == "f")
    dots = ColumnDots(type_name(X), type_name(Y), same, conj)
    if not _aligned(dots.vector, X, Y):
        dots = dots._replace(aligned=False)
    if K == 0 or M == 0:
        return cupy.empty((0, 1, M), dots.dtype_sum)
    launch, blocks, lanes, groups = _column_plan(gpu, dots, K, M)
    partials = cupy.empty((blocks, 1, M), dots.dtype_sum)
    launch(X, leading_dimension(X), Y, leading_dimension(Y), K, cut, gap, M, lanes, groups, partials)
    return partials


@functools.lru_cache(maxsize=4096)
def _column_plan(
    gpu: Gpu, dots: ColumnDots, K: int, M: int
) -> tuple[Callable[..., None], int, np.int32, np.int32]:
    """Return the launch of column dots, its blocks, and lanes and groups as the kernel takes them."""
    lanes, groups, tiles, blocks, threads = dots.tiling(K, M, gpu.info.multiprocessors)
    launch = gpu.launcher(dots.kernel(), (blocks, tiles), threads)
    return launch, blocks, np.int32(lanes), np.int32(groups)


def _aligned(vector: int, *blocks: Array) -> bool:
    for block in blocks:
        size = min(16, vector * block.itemsize)
        if block.data.ptr % size or leading_dimension(block) * block.itemsize % size:
            return False
    return bool(blocks[0].shape[1] % vector == 0)


def fold(
    gpu: Gpu, partials: Array, C: Array, alpha: complex, beta: complex, *, hermitian: bool = False
) -> None:
    """C = alpha (sum of partial products) + beta C, of which the sum's Hermitian part where asked.

    `partials`, contiguous, has shape (parts, M, N); no parts at all make a sum of zero. C is row-major, of
    shape (M, N).
    """
    M, N = C.shape
    if M == 0 or N == 0:
        return
    launch, lanes = _fold_plan(gpu, partials.dtype.char, C.dtype.char, M * N, hermitian, bool(beta == 0))
    operands = (partials, partials.shape[0], M * N, C, leading_dimension(C), M, N)
    launch(*operands, complex(alpha), complex(beta), lanes)


@functools.lru_cache(maxsize=4096)
def _fold_plan(
    gpu: Gpu, partial: str, out: str, n_elements: int, hermitian: bool, beta_zero: bool
) -> tuple[Callable[..., None], int]:
    lanes = fold_lanes(n_elements)
    kernel = fold_kernel(TYPE_NAMES[partial], TYPE_NAMES[out], hermitian, beta_zero)
    return gpu.launcher(kernel, (ceil_div(n_elements, lanes),)), lanes


def fill_random(gpu: Gpu, out: Array, key: int, offset: int) -> None:
    """Fill with uniform numbers on [-1, 1) of the Philox stream `key`, numbers `offset` and on."""
    parts = 2 if is_complex(type_name(out)) else 1
    width = out.shape[1] * parts
    count = out.shape[0] * width
    if count == 0:
        return
    counters = (offset + count - 1) // 4 - offset // 4 + 1
    gpu.launch(
        philox_kernel(real_type(type_name(out))),
        (ceil_div(counters, THREADS),),
        *(out, leading_dimension(out) * parts, width, count),
        *(np.uint64(number) for number in (offset, key & _WORD, key >> 64 & _WORD)),
    )


def inverse_factor(gpu: Gpu, G: Array, limit: float) -> tuple[Array, Array]:
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

    def __init__(self, gpu: Gpu, *arrays: Array) -> None:
        import cupy

        arrays = tuple(contiguous(gpu, array) for array in arrays)
        ends = np.cumsum([round_up(array.nbytes, COPY_ALIGNMENT) for array in arrays]).tolist()
        stream = cupy.cuda.get_current_stream()
        memory = cupy.cuda.alloc_pinned_memory(max(*ends, 1))
        self._arrays: list[np.ndarray[Any, Any]] = []
        for array, begin in zip(arrays, (0, *ends), strict=False):
            array.data.copy_to_host_async(memory.ptr + begin, array.nbytes, stream)
            copied: np.ndarray[Any, Any] = np.frombuffer(memory, array.dtype, array.size, begin)
            self._arrays.append(copied.reshape(array.shape))
        self._done = cupy.cuda.Event(disable_timing=True)
        self._done.record(stream)

    def __call__(self) -> list[np.ndarray[Any, Any]]:
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
