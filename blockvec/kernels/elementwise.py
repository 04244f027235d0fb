"""Small kernels on a GPU: axpby, column dots, random numbers, sums of partial products, small inverses.

A kernel is a frozen record with its source and its launch geometry; the backend compiles and launches it.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from ..system.frozen import frozen
from .device import DeviceInfo
from .limits import ceil_div, round_up
from .problem import TYPES, is_complex, itemsize, promote
from .source import Constant, c_type, constants_of, render, short_names

VECTOR_BYTES = 16  # the widest load of a thread
# Whole waves of the 3 to 6 blocks that registers allow a multiprocessor.
AXPBY_BLOCKS = 12
COLUMN_DOT_BLOCKS = 8


class Kernel(Protocol):
    """One kernel, ready to be compiled; equal records mean equal machine code."""

    def __hash__(self) -> int:
        """Hash the record, the key of its loaded kernel."""

    @property
    def name(self) -> str:
        """Name of the function in the source."""

    def source(self) -> str:
        """Generate the CUDA source."""


def vector_length(*dtypes: str) -> int:
    """Count the elements of a unit: those of the widest type that fill the widest load."""
    return max(1, VECTOR_BYTES // max(itemsize(dtype) for dtype in dtypes))


@frozen
class Factor:
    """A factor of axpby: a double-precision scalar, times one value per column of type `columns` if given."""

    is_complex: bool = False
    columns: str | None = None

    @property
    def code(self) -> str:
        """Part of a kernel's name."""
        return ("z" if self.is_complex else "d") + (f"c{TYPES[self.columns].letter}" if self.columns else "")


@frozen
class AxpbyKernel:
    """out = alpha X + beta Y; see cuda/elementwise/axpby.cu."""

    # Element types; `dtype_y` is None where there is no Y.
    dtype_x: str
    dtype_y: str | None
    dtype_out: str
    # Kinds of the factors.
    alpha: Factor = Factor()
    beta: Factor = Factor()
    flat: bool = True  # whether all blocks are contiguous and count as one long row
    # Whether units of `vector` elements start at multiples of their size; without it a unit is one element.
    aligned: bool = True

    threads = 256

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element types of all blocks."""
        blocks = (self.dtype_x, self.dtype_y, self.dtype_out)
        return tuple(dtype for dtype in blocks if dtype is not None)

    @property
    def vector(self) -> int:
        """Elements of a unit."""
        return vector_length(*self.dtypes) if self.aligned else 1

    @property
    def unroll(self) -> int:
        """Units in flight per thread: 64 KB per multiprocessor and operand with 16-byte loads."""
        return 4 if self.vector * itemsize(self.dtype_x) >= 8 else 8

    def blocks(self, units: int, multiprocessors: int) -> int:
        return max(1, min(multiprocessors * AXPBY_BLOCKS, ceil_div(units, self.threads)))

    @property
    def name(self) -> str:
        y = f"{TYPES[self.dtype_y].letter}_{self.beta.code}" if self.dtype_y else "none"
        layout = ("flat" if self.flat else "rows") + ("" if self.aligned else "_unaligned")
        blocks = f"{TYPES[self.dtype_x].letter}_{self.alpha.code}_{y}_{TYPES[self.dtype_out].letter}"
        return f"axpby_{blocks}_{layout}"

    def source(self) -> str:
        dtype_y, factors = self.dtype_y or self.dtype_x, {"ALPHA": self.alpha, "BETA": self.beta}
        blocks = {"X": self.dtype_x, "Y": dtype_y, "OUT": self.dtype_out}
        columns = [factor.columns for factor in factors.values() if factor.columns]
        types = {"Real": c_type(promote(*self.dtypes, *columns))}
        types |= {f"{name.title()}Real": c_type(dtype) for name, dtype in blocks.items()}
        constants: dict[str, Constant] = {
            f"{name}_COMPLEX": is_complex(dtype) for name, dtype in blocks.items()
        }
        constants |= {"HAS_Y": self.dtype_y is not None, **constants_of(self, "flat", "aligned")}
        for name, factor in factors.items():
            values = factor.columns or "float64"
            types[f"{name.title()}Real"] = c_type(values)
            constants[f"{name}_COMPLEX"] = factor.is_complex
            constants[f"{name}_COLUMNS"] = factor.columns is not None
            constants[f"{name}_COLUMNS_COMPLEX"] = is_complex(values)
        constants |= constants_of(self, "vector", "threads", "unroll")
        return render(self.name, "elementwise/axpby.cu", constants, types)


@frozen
class Tiling:
    """Threads of column dots: `groups` rows per block with `lanes` threads each, `tiles` of columns."""

    lanes: int
    groups: int
    tiles: int
    blocks: int

    @property
    def threads(self) -> int:
        """Threads of a block, whole warps."""
        return round_up(self.lanes * self.groups, 32)


@frozen
class ColumnDotKernel:
    """Column dots of X and Y, one partial sum per block; see cuda/elementwise/column_dot.cu."""

    # Element types.
    dtype_x: str
    dtype_y: str
    same: bool = False  # whether Y is X; the sums are then real
    conj: bool = True  # whether X is conjugated
    # Whether rows split into units of `vector` elements that start at multiples of their size.
    aligned: bool = True

    threads = 256

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

    def tiling(self, rows: int, width: int, multiprocessors: int) -> Tiling:
        """Assign rows and columns to threads, from extents alone, so that results repeat."""
        units = ceil_div(width, self.vector)
        tiles = ceil_div(units, self.threads)
        lanes = min(units, self.threads)
        groups = self.threads // lanes
        most = max(1, multiprocessors * COLUMN_DOT_BLOCKS // tiles)
        return Tiling(lanes, groups, tiles, max(1, min(most, ceil_div(rows, groups * self.unroll))))

    @property
    def name(self) -> str:
        other = "same" if self.same else TYPES[self.dtype_y].letter
        suffix = ("" if self.conj else "_plain") + ("" if self.aligned else "_unaligned")
        return f"column_dot_{TYPES[self.dtype_x].letter}_{other}{suffix}"

    def source(self) -> str:
        types = {"XReal": c_type(self.dtype_x), "YReal": c_type(self.dtype_y)}
        constants = {
            "X_COMPLEX": is_complex(self.dtype_x),
            "Y_COMPLEX": is_complex(self.dtype_y),
            **constants_of(self, "same", "conj", "aligned", "vector", "threads", "unroll"),
        }
        return render(self.name, "elementwise/column_dot.cu", constants, types)


@frozen
class FoldKernel:
    """C = alpha (sum of partial products) + beta C; see cuda/elementwise/fold.cu."""

    # Element types.
    dtype_partial: str
    dtype_out: str
    lanes: int  # neighbouring elements that a block sums; a power of two
    hermitian: bool = False  # whether C is made exactly Hermitian (symmetric) before the factors
    beta_zero: bool = True  # whether C is not read

    threads = 256

    @staticmethod
    def lanes_for(n_elements: int) -> int:
        """Choose the lanes for a result of `n_elements`: no thread idle, long sums shared."""
        return min(32, 1 << max(0, n_elements - 1).bit_length())

    @property
    def name(self) -> str:
        words = ["hermitian"] * self.hermitian + ["beta"] * (not self.beta_zero)
        types = TYPES[self.dtype_partial].letter + "_" + TYPES[self.dtype_out].letter
        return "_".join(["fold", types, str(self.lanes), *words])

    def source(self) -> str:
        types = {"PartialReal": c_type(self.dtype_partial), "OutReal": c_type(self.dtype_out)}
        constants = {
            "PARTIAL_COMPLEX": is_complex(self.dtype_partial),
            "OUT_COMPLEX": is_complex(self.dtype_out),
            **constants_of(self, "hermitian", "beta_zero", "threads", "lanes"),
        }
        return render(self.name, "elementwise/fold.cu", constants, types)


@frozen
class _OfType:
    """A kernel of one type of numbers, which threads take in turn; see cuda/elementwise for the `body`."""

    dtype: str

    body: ClassVar[str]
    threads = 256

    def blocks(self, count: int, multiprocessors: int) -> int:
        return max(1, min(multiprocessors * AXPBY_BLOCKS, ceil_div(count, self.threads)))

    @property
    def name(self) -> str:
        return f"{self.body}_{TYPES[self.dtype].letter if self.dtype in TYPES else self.dtype}"

    def source(self) -> str:
        index = {"int32": "int", "int64": "long long"}.get(self.dtype)
        types = {"Index": index} if index else {"Real": c_type(self.dtype)}
        return render(self.name, f"elementwise/{self.body}.cu", {"THREADS": self.threads}, types)


class PhiloxKernel(_OfType):
    """Uniform numbers of a real type."""

    body = "philox"


class FillKernel(_OfType):
    """A block of one value, with parts of a real type."""

    body = "fill"


class WithinKernel(_OfType):
    """A check of the indices of a matrix, int32 or int64."""

    body = "within"


@frozen
class InverseFactorKernel:
    """T = R^-1 with G = R^H R, in the shared memory of one block; see cuda/elementwise/inverse_factor.cu."""

    dtype: str

    threads = 512

    @property
    def dtype_report(self) -> str:
        """Element type of the report to the host, in double precision."""
        return promote(self.dtype, "float64")

    def shared_bytes(self, width: int) -> int:
        """Compute the shared memory for a matrix of `width` columns."""
        return (16 if is_complex(self.dtype) else 8) * width**2 + 16 * width

    def refusal(self, width: int, device: DeviceInfo) -> str:
        """Explain why a matrix of `width` columns is too large; empty if it fits."""
        fits = self.shared_bytes(width) <= device.shared_bytes_per_block
        return "" if fits else f"{width} columns do not fit in shared memory"

    @property
    def name(self) -> str:
        return f"inverse_factor_{short_names(self.dtype)}"

    def source(self) -> str:
        constants = {"COMPLEX": is_complex(self.dtype), "THREADS": self.threads}
        types = {"Real": c_type(self.dtype)}
        return render(self.name, "elementwise/inverse_factor.cu", constants, types)
