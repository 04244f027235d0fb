"""Blocks for tests of kernels: their values, and memory in which everything around them is NaN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from blockvec.kernels.dense.family import DenseFamily
from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.problem import (
    TsmmProblem,
    TsmttsmProblem,
    beta_class,
    is_complex,
    itemsize,
    scalar_class,
)

OPERAND_BYTES = 2 << 30  # of the wider operand of `tsmm_problem` and `tsmttsm_problem`
TYPES = ("float32", "float64", "complex64", "complex128")
GUARD = 64  # elements before and after a block
UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53, "complex64": 2.0**-24, "complex128": 2.0**-53}


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, exact: bool = True) -> np.ndarray:
    """Entries of {-1, 0, 1}, whose products sum up exactly, or uniform on [-1, 1); both parts if complex."""
    values = np.empty(shape, dtype)
    for part in (values.real, values.imag) if values.dtype.kind == "c" else (values,):
        part[...] = rng.integers(-1, 2, shape) if exact else rng.uniform(-1, 1, shape)
    return values


def framed(xp: Any, values: np.ndarray, ld: int, offset: int = 0) -> tuple[Any, Any]:
    """A block of row pitch `ld`, `offset` elements past an aligned one, and all its memory: NaN elsewhere."""
    K, width = values.shape
    unit = 16 // values.itemsize if values.itemsize < 16 else 1
    memory = xp.full(2 * GUARD + offset + K * ld + 16 * unit, xp.nan, values.dtype)
    first = GUARD + offset + (-address(memory) % 256) // values.itemsize
    block = memory[first : first + K * ld].reshape(K, ld)[:, :width]
    block[...] = xp.asarray(values)
    return block, memory


def aligned(values: np.ndarray, ld: int, align: int) -> tuple[np.ndarray, np.ndarray]:
    """Place values with row pitch `ld` at an address that `align`, and no multiple of it up to 16, divides.

    Returns
    -------
    block : array
    memory : array of uint8
        All memory around the block, of bytes 0xFF: NaN in every floating-point type.
    """
    n_rows, width = values.shape
    memory = np.full((n_rows * ld + 8) * values.itemsize + 384, 0xFF, np.uint8)
    first = -memory.ctypes.data % 256 + 128 + align % 16
    rows = memory[first : first + n_rows * ld * values.itemsize].view(values.dtype).reshape(n_rows, ld)
    block = rows[:, :width]
    block[...] = values
    return block, memory


def sectors_in_part(block: np.ndarray) -> set[int]:
    """Sectors of memory, 32 bytes each, in which a row of a block begins or ends."""
    begins = address(block) + block.strides[0] * np.arange(len(block))
    ends = np.concatenate([begins, begins + block.shape[1] * block.itemsize])
    return set((ends[ends % 32 != 0] // 32).tolist())


def parts(factors: tuple[complex, complex]) -> tuple[float, float, float, float]:
    """Split alpha and beta into the four numbers that product kernels take."""
    alpha, beta = (complex(factor) for factor in factors)
    return alpha.real, alpha.imag, beta.real, beta.imag


def address(block: Any) -> int:
    """Where a NumPy or CuPy array begins."""
    return int(block.data.ptr if hasattr(block.data, "ptr") else block.ctypes.data)


def leading_dimension(block: Any) -> int:
    """The distance of rows in elements."""
    return int(block.strides[0] // block.itemsize) if len(block) > 1 else int(block.shape[1])


def alignment(block: Any) -> int:
    """Bytes that divide the address, and the distance of rows where these are not contiguous."""
    bits = address(block) | 16
    if leading_dimension(block) != block.shape[1]:
        bits |= leading_dimension(block) * block.itemsize
    return bits & -bits


def describe_tsmttsm(A: Any, B: Any, conj: bool, alpha: complex, beta: complex) -> TsmttsmProblem:
    """Describe alpha A^H B + beta C, or A^T B without `conj`, for NumPy or CuPy arrays."""
    return TsmttsmProblem(
        *(*A.shape, B.shape[1], A.dtype.name, B.dtype.name, leading_dimension(A), leading_dimension(B)),
        *(alignment(A), alignment(B), conj and A.dtype.kind == "c"),
        *(scalar_class(alpha), beta_class(beta), A is B),
    )


def describe_tsmm(A: Any, C: Any, B: Any, alpha: complex, beta: complex) -> TsmmProblem:
    """Describe alpha A C + beta B for NumPy or CuPy arrays; in place where A and B begin at one address."""
    return TsmmProblem(
        *(*A.shape, C.shape[1], A.dtype.name, C.dtype.name, leading_dimension(A), leading_dimension(B)),
        *(alignment(A), alignment(B), scalar_class(alpha), beta_class(beta), address(A) == address(B)),
    )


def tsmttsm_problem(M: int, N: int | None = None, dtype: str = "float64", **changes: Any) -> TsmttsmProblem:
    """Describe A^H B of contiguous blocks, for M columns each or M and N, with changes of single fields."""
    N = M if N is None else N
    K = OPERAND_BYTES // (max(M, N) * itemsize(dtype))
    return replace(TsmttsmProblem(K, M, N, dtype, dtype, M, N, conj=is_complex(dtype)), **changes)


def tsmm_problem(M: int, N: int | None = None, dtype: str = "float64", **changes: Any) -> TsmmProblem:
    """Describe A C of contiguous blocks, likewise."""
    N = M if N is None else N
    K = OPERAND_BYTES // (max(M, N) * itemsize(dtype))
    return replace(TsmmProblem(K, M, N, dtype, dtype, M, N), **changes)


def wide(dtype: Any) -> type:
    """A type of higher precision for reference results."""
    return np.clongdouble if np.dtype(dtype).kind == "c" else np.longdouble


def counters_are_ready(workspace: np.ndarray) -> bool:
    """Whether the counters at the head of a workspace are as a launch must leave them for the next one."""
    header = workspace[:3].view(np.uint64)
    return not header[0] and bool(header[1] == header[2])


def bind(
    family: DenseFamily[Any, Any], kernel: Any, problem: Any, config: Any, device: DeviceInfo
) -> Callable[..., None]:
    """Bind a loaded kernel to its launch; the result takes device addresses and factors."""
    pack, described = family.pack(problem, config, device), family.kernel(problem, config, device)
    grid, block = (family.grid(problem, config, device),), (described.threads,)
    return lambda *operands: kernel(grid, block, pack(*operands), described.shared_bytes)
