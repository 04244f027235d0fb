"""Descriptions of the operations: frozen, hashable, without arrays.

A problem holds all that a choice, a model or a source may depend on. ``K`` is the number of rows of the tall
operands, ``M`` and ``N`` are widths, ``ld`` is a leading dimension in elements.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from ..system.frozen import frozen

ScalarClass = Literal["one", "general"]
BetaClass = Literal["zero", "one", "general"]
ShiftClass = Literal["none", "scalar", "column"]
ChainClass = Literal["none", "zero", "one", "general"]
Pattern = Literal["scattered", "uneven", "lines", "planes", "spins", "electrons"]

DOTS = ("xx", "xy", "yy")
GRAMS = ("xy", "yy")
ALL_ROWS = 0, 1 << 62  # rows that sums and Z take by default: more than any block has
NO_ROWS = 0, 0  # rows that sums leave out by default

MAX_ALIGNMENT = 16  # bytes: the widest load of a GPU thread and the unit of its bulk copies


class ElementType(NamedTuple):
    """An element type: its short name, letter of BLAS and NumPy's character; bytes; parts and their type."""

    short: str
    letter: str
    char: str
    size: int
    parts: int
    real: str
    cuda: int  # cudaDataType_t


TYPES = {
    "float32": ElementType("f32", "s", "f", 4, 1, "float32", 0),
    "float64": ElementType("f64", "d", "d", 8, 1, "float64", 1),
    "complex64": ElementType("c64", "c", "F", 8, 2, "float32", 4),
    "complex128": ElementType("c128", "z", "D", 16, 2, "float64", 5),
}


def itemsize(dtype: str) -> int:
    """Look up the bytes of an element."""
    return TYPES[dtype].size


def parts_of(dtype: str) -> int:
    """Count the real numbers of an element."""
    return TYPES[dtype].parts


def real_type(dtype: str) -> str:
    """Find the type of an element's parts."""
    return TYPES[dtype].real


def is_complex(dtype: str) -> bool:
    """Check for a complex type."""
    return dtype.startswith("complex")


def real_bytes(dtype: str) -> int:
    """Compute the bytes of a real number: an element, or the parts of a complex one."""
    return itemsize(TYPES[dtype].real)


@functools.cache
def promote(*dtypes: str) -> str:
    """Find the smallest of the four types that holds all given ones, as NumPy promotes them."""
    double = any(dtype in ("float64", "complex128") for dtype in dtypes)
    if any(is_complex(dtype) for dtype in dtypes):
        return "complex128" if double else "complex64"
    return "float64" if double else "float32"


def scalar_class(value: complex) -> ScalarClass:
    """Classify a factor alpha; kernels are specialised on its class, not on its value."""
    return "one" if value == 1 else "general"


def beta_class(value: complex) -> BetaClass:
    """Classify a factor beta; with ``"zero"`` the output is never read."""
    return "zero" if value == 0 else scalar_class(value)


@frozen
class TsmttsmProblem:
    """C (M x N) = alpha A^H B + beta C, or A^T B when not `conj`; A is K x M and B is K x N, row-major."""

    #: Extents.
    K: int
    M: int
    N: int
    #: Element types of A and B; C has their promoted type.
    dtype_a: str
    dtype_b: str
    #: Leading dimensions in elements.
    lda: int
    ldb: int
    #: Largest power of two, at most 16 bytes, that divides the base address and, where ld exceeds the width,
    #: the row pitch.
    align_a: int = MAX_ALIGNMENT
    align_b: int = MAX_ALIGNMENT
    conj: bool = False  #: whether A is conjugated; False for real A
    #: Classes of the factors.
    alpha: ScalarClass = "one"
    beta: BetaClass = "zero"
    same: bool = False  #: whether B is A, so that it need be read only once and, under `conj`, C is Hermitian

    @property
    def operation(self) -> str:
        """Name in profiles and tables."""
        return "gram" if self.same else "tsmttsm"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element types of the operands."""
        return self.dtype_a, self.dtype_b

    @property
    def dtype(self) -> str:
        """Element type of the result."""
        return promote(*self.dtypes)


@frozen
class TsmmProblem:
    """B (K x N) = alpha A C + beta B; A is K x M, C is a small M x N matrix, all row-major.

    Attributes are those of `TsmttsmProblem`; `inplace` says that B is A (then N <= M).
    """

    K: int
    M: int
    N: int
    dtype_a: str
    dtype_c: str
    lda: int
    ldb: int
    align_a: int = MAX_ALIGNMENT
    align_b: int = MAX_ALIGNMENT
    alpha: ScalarClass = "one"
    beta: BetaClass = "zero"
    inplace: bool = False

    operation = "tsmm"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element types of A and C."""
        return self.dtype_a, self.dtype_c

    @property
    def dtype(self) -> str:
        """Element type of the result."""
        return promote(*self.dtypes)


def real_view(problem: TsmttsmProblem | TsmmProblem) -> TsmttsmProblem | TsmmProblem:
    """Translate the product of a real block and complex numbers to a real one; leave others unchanged.

    Complex columns are pairs of real ones at the same addresses. Types of two precisions and factors that may
    be complex are left unchanged.
    """
    real, other = problem.dtypes
    if is_complex(real) or problem.alpha != "one" or problem.beta == "general":
        return problem
    if other != promote(real, "complex64"):
        return problem
    wide = replace(problem, N=2 * problem.N, ldb=2 * problem.ldb)
    return replace(wide, dtype_b=real) if isinstance(wide, TsmttsmProblem) else replace(wide, dtype_c=real)


@frozen
class SpmmvProblem:
    """Y = alpha (S - shift I) X + beta Y; S is n_rows x n_cols sparse, X and Y are row-major blocks.

    Optionally Z = delta Z + eta Y, column dots and Gram matrices of X and the new Y in the same pass.
    """

    #: Extents and stored entries of S.
    n_rows: int
    n_cols: int
    nnz: int
    width: int  #: columns of X and Y
    #: Element types of S and X; Y has their promoted type.
    dtype_matrix: str
    dtype_x: str
    #: Leading dimensions in elements.
    ldx: int
    ldy: int
    index_bytes: int = 4  #: bytes of a column index of S
    #: Largest power of two, at most 16 bytes, that divides the base address and, where ld exceeds the width,
    #: the row pitch.
    align_x: int = MAX_ALIGNMENT
    align_y: int = MAX_ALIGNMENT
    #: Classes of the factors; a shift is one scalar or one per column.
    alpha: ScalarClass = "one"
    beta: BetaClass = "zero"
    shift: ShiftClass = "none"
    chain: ChainClass = "none"  #: class of delta; ``"none"`` where there is no Z. Z has the type of Y
    #: As for X and Y; a leading dimension of 0 where there is no Z.
    ldz: int = 0
    align_z: int = MAX_ALIGNMENT
    #: Column dots to compute, in the order of `DOTS`: ``"xy"`` is x_j^H y_j for every column j.
    dots: tuple[str, ...] = ()
    gram: tuple[str, ...] = ()  #: Gram matrices to compute, in the order of `GRAMS`: ``"xy"`` is X^H Y
    #: Positions of the entries: most rows have some at a common distance from the diagonal, as on a grid
    #: (``"lines"``), or at two, as on one of three dimensions (``"planes"``); some rows have many times the
    #: average (``"uneven"``); or unknown (``"scattered"``). A chain of ``"spins"`` or ``"electrons"`` is not
    #: stored: its entries are computed in each product.
    pattern: Pattern = "scattered"
    #: Entries of the longest row of S, 0 if not counted; long rows are processed apart from the others.
    longest: int = 0
    #: Whether S has few different values, so that its entries are stored in the place of columns.
    coded: bool = False

    operation = "spmmv"

    @property
    def plain(self) -> SpmmvProblem:
        """The product without factors, shift and fused operations."""
        classes: dict[str, Any] = {"alpha": "one", "beta": "zero", "shift": "none", "chain": "none"}
        return replace(self, **classes, ldz=0, align_z=MAX_ALIGNMENT, dots=(), gram=())

    @property
    def stored(self) -> bool:
        """Whether the entries of S are in memory."""
        return self.pattern not in ("spins", "electrons")

    @property
    def fused(self) -> bool:
        """Whether anything but Y is computed."""
        return self.chain != "none" or bool(self.dots or self.gram)

    @property
    def dtype(self) -> str:
        """Element type of the result."""
        return promote(self.dtype_matrix, self.dtype_x)


@frozen
class SweepProblem:
    """B <- B - A C, then B^H B, in one pass over a basis A (K x M) and a block B (K x N).

    Attributes are those of `TsmmProblem`.
    """

    K: int
    M: int
    N: int
    dtype_a: str
    dtype_b: str
    dtype_c: str
    lda: int
    ldb: int
    align_a: int = MAX_ALIGNMENT
    align_b: int = MAX_ALIGNMENT

    operation = "update_gram"
    alpha: ClassVar[ScalarClass] = "general"
    beta: ClassVar[BetaClass] = "one"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element types of A, B and C."""
        return self.dtype_a, self.dtype_b, self.dtype_c

    @property
    def dtype(self) -> str:
        """Element type of the small result."""
        return self.dtype_b


@frozen
class StreamProblem:
    """An elementwise pass over K x M blocks: axpby, scale, column dots, norms, copies.

    `reads` and `writes` count the blocks that must be read from and written to memory.
    """

    operation: str
    K: int
    M: int
    dtype: str
    reads: int
    writes: int
    flops_per_element: int = 2


Problem = TsmttsmProblem | TsmmProblem | SweepProblem | SpmmvProblem | StreamProblem
P = TypeVar("P", bound=Problem)

FEW_ROWS, SOME_ROWS = 1 << 12, 1 << 16
ROW_CLASSES = (FEW_ROWS, SOME_ROWS, 1 << 20)
"""Numbers of rows that configurations are chosen for; those of other numbers are 1 per cent faster."""
ENTRY_CLASSES = (*range(1, 11), 12, 14, 16, 20, 24, 27, 32, 40, 48, 64, 96, 128, 192, 256)
"""Numbers of entries per row that configurations of sparse products are chosen for; above, exact ones."""


def in_class(problem: P) -> P:
    """Change the rows of a problem to the nearest of `ROW_CLASSES`, and a sparse matrix in proportion.

    Entries per row are rounded up to one of `ENTRY_CLASSES`. A configuration is valid for any number of rows
    and entries. So few different kernels serve all numbers, and those of common solves can be compiled ahead.
    """
    rows = problem.n_rows if isinstance(problem, SpmmvProblem) else problem.K
    near = min(ROW_CLASSES, key=lambda count: abs(math.log(count / max(rows, 1))))
    if not isinstance(problem, SpmmvProblem):
        return replace(problem, K=near)
    average = problem.nnz / max(rows, 1)
    entries = next((entries for entries in ENTRY_CLASSES if entries >= average), average)
    n_cols = round(problem.n_cols * near / max(rows, 1))
    return replace(problem, n_rows=near, n_cols=n_cols, nnz=round(near * entries))
