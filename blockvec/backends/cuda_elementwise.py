"""Elementwise passes, column dots, sums of partial products and random numbers on CuPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels.elementwise import AxpbyKernel, ColumnDotKernel, Factor, FoldKernel, PhiloxKernel, real_type
from ..kernels.problem import StreamProblem, TsmmProblem, TsmttsmProblem, is_complex
from . import is_cupy
from .base import Array
from .gpu import Gpu, leading_dimension, type_name

__all__ = [
    "axpby",
    "column_dots",
    "column_product",
    "copy",
    "fill_random",
    "fold",
    "scale_column",
    "weighted_sum",
]

_WORD = 2**64 - 1


def axpby(
    gpu: Gpu, problem: StreamProblem, X: Array, Y: Array | None, out: Array, alpha: Any, beta: Any
) -> None:
    """Out = alpha X + beta Y; `out` may be X or Y. A device array as a factor is not read by the host."""
    weighted_sum(gpu, X, Y, out, (alpha, None), (beta, None))


def copy(gpu: Gpu, source: Array, target: Array) -> None:
    """Copy a block, converting its type where the target's is another one."""
    weighted_sum(gpu, source, None, target, (1, None), (0, None))


def weighted_sum(
    gpu: Gpu, X: Array, Y: Array | None, out: Array, alpha: tuple[Any, Any], beta: tuple[Any, Any]
) -> None:
    """Out = alpha X + beta Y, a factor being a scalar times an optional array: one value a column, or one."""
    K, M = out.shape
    if K == 0 or M == 0:
        return
    blocks = [X, out] if Y is None else [X, Y, out]
    first, alpha_arguments = _factor(*alpha, out)
    second, beta_arguments = _factor(*beta, out) if Y is not None else (Factor(), (0.0, None, 0))
    flat = all(leading_dimension(block) == M or K == 1 for block in blocks)
    kernel = AxpbyKernel(
        type_name(X), None if Y is None else type_name(Y), type_name(out), first, second, flat=flat
    )
    width = K * M if flat else M
    if not _aligned(kernel.vector, blocks, 0 if flat else width, flat):
        kernel = AxpbyKernel(
            kernel.dtype_x, kernel.dtype_y, kernel.dtype_out, first, second, flat=flat, aligned=False
        )
    units, tail = divmod(K * M, kernel.vector)
    n_blocks = kernel.blocks(units, gpu.info.multiprocessors)
    row_step, col_step = divmod(n_blocks * kernel.threads * kernel.vector, M)
    gpu.launch(
        kernel,
        (n_blocks,),
        kernel.threads,
        *(X, leading_dimension(X)),
        *((None, 0) if Y is None else (Y, leading_dimension(Y))),
        *(out, leading_dimension(out), np.int32(M), units, np.int32(tail), row_step, np.int32(col_step)),
        *alpha_arguments,
        *beta_arguments,
    )


def _factor(scalar: Any, values: Any, out: Array) -> tuple[Factor, tuple[Any, ...]]:
    """Return what a factor is made of, and its three kernel arguments."""
    if is_cupy(scalar):  # its value stays on the device
        scalar, values = 1, scalar
    is_complex_scalar = np.iscomplexobj(scalar)
    scalar = complex(scalar) if is_complex_scalar else float(scalar)
    if values is None:
        return Factor(is_complex_scalar), (scalar, None, np.int32(0))
    values = values.ravel()
    if values.dtype.kind not in "fc" or values.dtype.itemsize < 4:
        values = values.astype(np.float64)
    if _within(values, out):  # a row of the block as a factor would change while it is used
        values = values.copy()
    step = 0 if values.size == 1 else values.strides[0] // values.itemsize
    return Factor(is_complex_scalar, type_name(values)), (scalar, values, np.int32(step))


def _within(values: Array, block: Array) -> bool:
    """Whether the address of an array lies among those of a block."""
    begin = block.data.ptr
    end = begin + block.shape[0] * leading_dimension(block) * block.itemsize
    return bool(begin <= values.data.ptr < end)


def _aligned(vector: int, blocks: list[Array], width: int, flat: bool) -> bool:
    """Whether rows of `width` elements split into units that start at multiples of their size."""
    for block in blocks:
        size = min(16, vector * block.itemsize)
        pitch = 0 if flat else leading_dimension(block) * block.itemsize
        if block.data.ptr % size or pitch % size:
            return False
    return width % vector == 0


def column_dots(gpu: Gpu, problem: StreamProblem, X: Array, Y: Array, out: Array) -> None:
    """out_j = sum_i conj(X_ij) Y_ij, summed in double precision; X may be Y."""
    partials = _column_partials(gpu, X, Y, conj=True)
    fold(gpu, partials, out[None, :], 1, 0)


def column_product(
    gpu: Gpu, problem: TsmttsmProblem, A: Array, B: Array, C: Array, alpha: complex, beta: complex
) -> None:
    """C = alpha A^H B + beta C for one column each."""
    partials = _column_partials(gpu, A, B, conj=problem.conj)
    fold(gpu, partials, C, alpha, beta)


def scale_column(
    gpu: Gpu, problem: TsmmProblem, A: Array, C: Array, B: Array, alpha: complex, beta: complex
) -> None:
    """B = alpha A C + beta B for one column each; C stays on the device."""
    weighted_sum(gpu, A, None if problem.beta == "zero" else B, B, (alpha, C), (beta, None))


def _column_partials(gpu: Gpu, X: Array, Y: Array, *, conj: bool) -> Array:
    """Return sums of conj(X_ij) Y_ij over the rows of each block, shape (blocks, 1, width)."""
    import cupy

    K, M = X.shape
    same = X is Y and (conj or X.dtype.kind == "f")
    kernel = ColumnDotKernel(type_name(X), type_name(Y), same, conj)
    if not _aligned(kernel.vector, [X, Y], M, flat=K == 1):
        kernel = ColumnDotKernel(kernel.dtype_x, kernel.dtype_y, same, conj, aligned=False)
    if K == 0 or M == 0:
        return cupy.empty((0, 1, M), kernel.dtype_sum)
    tiling = kernel.tiling(K, M, gpu.info.multiprocessors)
    partials = cupy.empty((tiling.blocks, 1, M), kernel.dtype_sum)
    gpu.launch(
        kernel,
        (tiling.blocks, tiling.tiles),
        tiling.threads,
        *(X, leading_dimension(X), Y, leading_dimension(Y), K, M),
        *(np.int32(tiling.lanes), np.int32(tiling.groups), partials),
    )
    return partials


def fold(
    gpu: Gpu,
    partials: Array,
    C: Array,
    alpha: complex,
    beta: complex,
    *,
    left_complex: bool = False,
    conj: bool = False,
    hermitian: bool = False,
) -> None:
    """C = alpha (sum of partial products) + beta C; see `FoldKernel` for the flags.

    Parameters
    ----------
    partials : array, shape (parts, M, N), or (parts, 2 M, N) where `left_complex`
        Contiguous; no parts at all make a sum of zero.
    C : array, shape (M, N)
        Row-major.
    """
    M, N = C.shape
    if M == 0 or N == 0:
        return
    lanes = FoldKernel.lanes_for(M * N)
    kernel = FoldKernel(
        type_name(partials), type_name(C), lanes, left_complex, conj, hermitian, beta_zero=beta == 0
    )
    part_size = partials.shape[1] * partials.shape[2]
    gpu.launch(
        kernel,
        (-(-M * N // lanes),),
        kernel.threads,
        *(partials, partials.shape[0], part_size, C, leading_dimension(C), M, N),
        *(complex(alpha), complex(beta)),
    )


def fill_random(gpu: Gpu, out: Array, key: int, offset: int) -> None:
    """Fill with uniform numbers on [-1, 1) of the Philox stream `key`, numbers `offset` and on."""
    parts = 2 if is_complex(type_name(out)) else 1
    width = out.shape[1] * parts
    count = out.shape[0] * width
    if count == 0:
        return
    kernel = PhiloxKernel(real_type(type_name(out)))
    counters = (offset + count - 1) // 4 - offset // 4 + 1
    gpu.launch(
        kernel,
        (-(-counters // kernel.threads),),
        kernel.threads,
        *(out, leading_dimension(out) * parts, width, count),
        *(np.uint64(number) for number in (offset, key & _WORD, key >> 64 & _WORD)),
    )
