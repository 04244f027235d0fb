"""Small kernels on a GPU: axpby, column dots, random numbers, sums of partial products, small inverses.

Descriptions and launch geometry; the backend compiles and launches them. See ``cuda/elementwise``.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from .limits import ceil_div, round_up
from .problem import TYPES, is_complex, itemsize, promote
from .source import Constant, Kernel, c_type, kernel

VECTOR_BYTES = 16  # the widest load of a thread
THREADS = 256  # of a block
INVERSE_THREADS = 512
# Whole waves of the 3 to 6 blocks that registers allow a multiprocessor.
AXPBY_BLOCKS = 12
COLUMN_DOT_BLOCKS = 8


def vector_length(*dtypes: str) -> int:
    """Count the elements of a unit: those of the widest type that fill the widest load."""
    return max(1, VECTOR_BYTES // max(itemsize(dtype) for dtype in dtypes))


def blocks_of(units: int, multiprocessors: int) -> int:
    """Choose the blocks of a kernel whose threads take units in turn."""
    return max(1, min(multiprocessors * AXPBY_BLOCKS, ceil_div(units, THREADS)))


def axpby_kernel(
    dtype_x: str,
    dtype_y: str | None,
    dtype_out: str,
    alpha: str = "real",
    beta: str = "real",
    *,
    flat: bool = True,
    aligned: bool = True,
) -> Kernel:
    """Describe out = alpha X + beta Y; `dtype_y` is None where there is no Y.

    Factors are double-precision scalars, ``"real"`` or ``"complex"``, or one value per column of some type.
    With `flat` all blocks are contiguous and count as one long row. Without `aligned` units do not start at
    multiples of their size, and are single elements.
    """
    dtypes = [dtype for dtype in (dtype_x, dtype_y, dtype_out) if dtype is not None]
    factors = {"ALPHA": alpha, "BETA": beta}
    blocks = {"X": dtype_x, "Y": dtype_y or dtype_x, "OUT": dtype_out}
    columns = {name: factor for name, factor in factors.items() if factor in TYPES}
    types = {"Real": c_type(promote(*dtypes, *columns.values()))}
    types |= {f"{name.title()}Real": c_type(dtype) for name, dtype in blocks.items()}
    constants: dict[str, Constant] = {f"{name}_COMPLEX": is_complex(dtype) for name, dtype in blocks.items()}
    constants |= {"HAS_Y": dtype_y is not None, "FLAT": flat, "ALIGNED": aligned}
    for name, factor in factors.items():
        values = columns.get(name, "float64")
        types[f"{name.title()}Real"] = c_type(values)
        constants[f"{name}_COMPLEX"] = factor == "complex"
        constants[f"{name}_COLUMNS"] = name in columns
        constants[f"{name}_COLUMNS_COMPLEX"] = is_complex(values)
    vector = vector_length(*dtypes) if aligned else 1
    # Units in flight per thread: 64 KB per multiprocessor and operand with 16-byte loads.
    unroll = 4 if vector * itemsize(dtype_x) >= 8 else 8
    constants |= {"VECTOR": vector, "THREADS": THREADS, "UNROLL": unroll}
    return kernel("elementwise/axpby", constants, types, threads=THREADS)


class ColumnDots(NamedTuple):
    """Column dots of X and Y, one partial sum per block, with types of elements."""

    dtype_x: str
    dtype_y: str
    same: bool = False  # whether Y is X; the sums are then real
    conj: bool = True  # whether X is conjugated
    # Whether rows split into units of `vector` elements that start at multiples of their size.
    aligned: bool = True

    @property
    def vector(self) -> int:
        """Elements of a unit."""
        return vector_length(self.dtype_x, self.dtype_y) if self.aligned else 1

    @property
    def unroll(self) -> int:
        """Rows in flight per thread: 64 bytes of loads, where they are of 8 bytes and more."""
        operands = 1 if self.same else 2
        return min(8, 64 // (operands * self.vector * itemsize(self.dtype_x)))

    @property
    def dtype_sum(self) -> str:
        """Type of a partial sum."""
        complex_sums = not self.same and is_complex(promote(self.dtype_x, self.dtype_y))
        return "complex128" if complex_sums else "float64"

    def tiling(self, rows: int, width: int, multiprocessors: int) -> tuple[int, int, int, int, int]:
        """Assign rows and columns to threads, from extents alone, so that results repeat.

        Returns threads per row, rows per block, tiles of columns, blocks, and threads of a block.
        """
        units = ceil_div(width, self.vector)
        tiles, lanes = ceil_div(units, THREADS), min(units, THREADS)
        groups = THREADS // lanes
        most = max(1, multiprocessors * COLUMN_DOT_BLOCKS // tiles)
        blocks = max(1, min(most, ceil_div(rows, groups * self.unroll)))
        return lanes, groups, tiles, blocks, round_up(lanes * groups, 32)

    def kernel(self) -> Kernel:
        constants = {
            "X_COMPLEX": is_complex(self.dtype_x),
            "Y_COMPLEX": is_complex(self.dtype_y),
            **{"SAME": self.same, "CONJ": self.conj, "ALIGNED": self.aligned},
            **{"VECTOR": self.vector, "THREADS": THREADS, "UNROLL": self.unroll},
        }
        types = {"XReal": c_type(self.dtype_x), "YReal": c_type(self.dtype_y)}
        return kernel("elementwise/column_dot", constants, types)


def fold_lanes(n_elements: int) -> int:
    """Choose the neighbouring elements that a block sums: no thread idle, long sums shared."""
    return min(32, 1 << max(0, n_elements - 1).bit_length())


def fold_kernel(
    dtype_partial: str, dtype_out: str, hermitian: bool = False, beta_zero: bool = True
) -> Kernel:
    """Describe C = alpha (sum of partial products) + beta C.

    With `hermitian`, C is made exactly Hermitian (symmetric) before the factors; with `beta_zero` C is not
    read.
    """
    constants: dict[str, Constant] = {
        "PARTIAL_COMPLEX": is_complex(dtype_partial),
        "OUT_COMPLEX": is_complex(dtype_out),
        **{"HERMITIAN": hermitian, "BETA_ZERO": beta_zero, "THREADS": THREADS},
    }
    types = {"PartialReal": c_type(dtype_partial), "OutReal": c_type(dtype_out)}
    return kernel("elementwise/fold", constants, types, threads=THREADS)


@functools.cache
def philox_kernel(dtype: str) -> Kernel:
    """Describe uniform numbers of a real type."""
    return kernel("elementwise/philox", {"THREADS": THREADS}, {"Real": c_type(dtype)}, threads=THREADS)


@functools.cache
def fill_kernel(dtype: str) -> Kernel:
    """Describe a block of one value, with parts of a real type."""
    return kernel("elementwise/fill", {"THREADS": THREADS}, {"Real": c_type(dtype)}, threads=THREADS)


@functools.cache
def within_kernel(dtype: str) -> Kernel:
    """Describe a check of the indices of a matrix, int32 or int64."""
    types = {"Index": {"int32": "int", "int64": "long long"}[dtype]}
    return kernel("elementwise/within", {"THREADS": THREADS}, types, threads=THREADS)


@functools.cache
def inverse_factor_kernel(dtype: str, width: int) -> Kernel:
    """Describe T = R^-1 with G = R^H R of `width` columns, in the shared memory of one block."""
    constants = {"COMPLEX": is_complex(dtype), "THREADS": INVERSE_THREADS}
    shared = (16 if is_complex(dtype) else 8) * width**2 + 16 * width
    types = {"Real": c_type(dtype)}
    body = "elementwise/inverse_factor"
    return kernel(body, constants, types, threads=INVERSE_THREADS, shared_bytes=shared)
