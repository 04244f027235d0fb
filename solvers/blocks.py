"""Blocks and operators as solvers see them: protocols for the type checker, and operations on columns.

`blockvec.BlockVector` and `blockvec.Operator` satisfy the protocols, as does every class with these members.
So does `ColumnBlock`, the column-major block of blockvec whose operations are not checked: Lanczos runs on
such blocks for columns of up to `solvers.sizes.SHORT_ROWS` rows. It is the only name that solvers import from
blockvec and that is not public.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import blas

from blockvec import BlockVector, RowLayout, array_namespace, start_copy
from blockvec.blocks.columns import ColumnBlock as ColumnBlock

Array = NDArray[Any]  # a NumPy array, or a CuPy array, which has the same interface
RealArray = NDArray[np.float64]
Scalars = complex | Array  # one scalar, or one per column


class Block(Protocol):
    """A tall block of columns: the part of `blockvec.BlockVector` that solvers use, documented there."""

    def random_like(self, n_cols: int, rng: Any = None) -> Self: ...
    def like(self, n_cols: int | None = None, dtype: Any = None) -> Self: ...
    def copy(self) -> Self: ...

    @property
    def array(self) -> Array: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def device(self) -> str: ...
    @property
    def layout(self) -> RowLayout | None: ...
    @property
    def n_global(self) -> int: ...  # rows in all processes; `shape` counts those in this one

    def __getitem__(self, index: tuple[slice, slice], /) -> Self: ...
    def __setitem__(self, index: tuple[slice, slice], value: Self | complex, /) -> None: ...

    def dot(self, W: Self, /) -> Array: ...
    def gram(self) -> Array: ...
    def combine(
        self, C: Array, /, *, alpha: complex = 1, beta: complex = 0, out: Self | None = None
    ) -> Self: ...
    def update_gram(self, W: Self, C: Array, /) -> Array: ...

    def axpby(self, alpha: Scalars, X: Self, beta: Scalars, /) -> Self: ...
    def axpy(self, alpha: Scalars, X: Self, /) -> Self: ...
    def scale(self, alpha: Scalars, /) -> Self: ...
    def norms(self) -> Array: ...
    def column_dot(self, W: Self, /) -> Array: ...


class LinearMap(Protocol):
    """A product with a block, which returns the block that holds it: `out`, X overwritten or a new one.

    Options are those of `blockvec.Operator.apply`, as far as a map has them.
    """

    def apply(self, X: Block, *args: Any, **options: Any) -> Block: ...


class Operator(LinearMap, Protocol):
    """A Hermitian operator A: the part of `blockvec.Operator` that solvers use, documented there.

    ``nnz``, its number of stored elements, is optional.
    """

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def device(self) -> str: ...
    @property
    def layout(self) -> RowLayout | None: ...
    def affine(self, alpha: float, shift: float) -> LinearMap: ...


PADDING = 16  # columns: widths of blocks on a GPU are multiples, since every width needs a compiled kernel
ORDINARY = 1 / 6  # share of the exponents of a type that ordinary numbers have

# Inner product, update and scaling of vectors, and the product of a matrix with one.
VECTOR_CALLS: dict[str, tuple[Callable[..., Any], ...]] = {
    "d": (blas.ddot, blas.daxpy, blas.dscal, blas.dgemv),
    "D": (blas.zdotc, blas.zaxpy, blas.zscal, blas.zgemv),
}

AnyBlock = TypeVar("AnyBlock", bound=Block)


def summed(layout: RowLayout | None, part: Array) -> Array:
    """Add a small array over the processes that share the rows."""
    return part if layout is None else layout.sum(part)


def vector_calls(like: Block) -> tuple[Callable[..., Any], ...]:
    """Return calls for vectors in the columns of a block, whose rows several processes may share.

    These are dot(v, w), axpy(v, w, a) and scal(a, w) of BLAS, components(V, w) = V^H w, and
    remove(V, c, y=w): w -= V c.
    """
    dot, axpy, scale, gemv = VECTOR_CALLS[like.dtype.char]
    components = functools.partial(gemv, 1.0, trans=2 if like.dtype.kind == "c" else 1)
    remove = functools.partial(gemv, -1.0, beta=1.0, overwrite_y=1)
    if (layout := like.layout) is None:
        return dot, axpy, scale, components, remove
    return (
        lambda v, w: layout.sum(np.array([dot(v, w)]))[0],
        *(axpy, scale),
        lambda V, w: layout.sum(components(V, w)),
        remove,
    )


def empty_block(operator: Operator) -> BlockVector:
    """Make a block without columns that an operator can be applied to."""
    n, dtype = operator.shape[0], operator.dtype
    return BlockVector.empty(n, 0, dtype, device=operator.device, layout=operator.layout)


def width_padding(block: Block) -> int:
    """Return the number to whose multiples zero columns fill up blocks on the device of this one."""
    return 1 if block.device == "cpu" else PADDING


def needs_threads(operator: Operator) -> bool:
    """Check whether products on the host take longer with one thread of BLAS: not with a sparse matrix."""
    return bool(getattr(operator, "needs_threads", getattr(operator, "nnz", None) is None))


def is_explicit(A: Any, M: Any = None) -> bool:
    """Check whether A, and M if there is one, are matrices with their entries in memory, of any device."""
    has_entries = isinstance(A, np.ndarray) or sp.issparse(A) or is_on_gpu(A)
    return has_entries and (M is None or is_explicit(M))


def is_on_gpu(A: Any) -> bool:
    """Check whether A is a sparse or dense matrix of CuPy."""
    library = type(A).__module__
    is_sparse = library.startswith("cupyx.scipy.sparse.") and hasattr(A, "tocsr")
    return is_sparse or library.partition(".")[0] == "cupy"


def ceil_div(count: int, unit: int) -> int:
    """Divide and round up."""
    return -(-count // unit)


def round_up(count: int, unit: int) -> int:
    """Round up to a multiple of a unit."""
    return -(-count // unit) * unit


def padded_width(width: int, like: Block) -> int:
    """Round a number of columns up to one that blocks on the device of this one have."""
    return width if like.device == "cpu" else round_up(width, PADDING)


def whole_ranges(count: int, width: int, like: Block) -> list[tuple[int, int]]:
    """Divide columns into ranges of a width: the last one is narrower, or on a GPU begins earlier."""
    most = count if like.device == "cpu" else max(count - width, 0)
    return [(min(begin, most), min(begin + width, count)) for begin in range(0, count, width)]


def apply_in_ranges(operator: LinearMap, X: AnyBlock, out: AnyBlock, width: int) -> None:
    """Apply an operator to a wide block; on a GPU by products with `width` columns, which steps run, too."""
    if X.device == "cpu":
        operator.apply(X, out=out)
        return
    for begin, end in whole_ranges(X.shape[1], width, X):
        operator.apply(X[:, begin:end], out=out[:, begin:end])


def pick(block: AnyBlock, indices: NDArray[np.intp]) -> AnyBlock:
    """Return a copy of some columns of a block."""
    picked = block.like(len(indices))
    ends = np.flatnonzero(np.diff(indices) != 1) + 1
    for begin, end in pairwise([0, *ends.tolist(), len(indices)]):
        first = int(indices[begin]) if end > begin else 0
        picked[:, begin:end] = block[:, first : first + end - begin]
    return picked


def columns_of(array: Array, indices: NDArray[np.intp]) -> Array:
    """Return a contiguous copy of some columns of an array of the host or a device."""
    if isinstance(array, np.ndarray):
        return np.take(array, indices, axis=1)
    return pick(BlockVector(array), indices).array


def side_by_side(*blocks: Block | None) -> Block:
    """Copy the columns of some blocks into one."""
    given = [block for block in blocks if block is not None]
    both = given[0].like(sum(block.shape[1] for block in given))
    begin = 0
    for block in given:
        both[:, begin : begin + block.shape[1]] = block
        begin += block.shape[1]
    return both


def in_precision(block: AnyBlock, dtype: Any) -> AnyBlock:
    """Copy a block with elements of another type."""
    copied = block.like(dtype=dtype)
    copied[:, :] = block
    return copied


def applied(M: LinearMap | None, X: Any) -> Any:
    """Compute M X; X itself for the identity."""
    return X if M is None else M.apply(X)


def project_out(Q: AnyBlock | None, X: AnyBlock) -> AnyBlock:
    """Set X = X - Q Q^H X for orthonormal columns Q and return it; with Q None return X unchanged."""
    return X if Q is None else Q.combine(Q.dot(X), out=X, alpha=-1, beta=1)


def column_factors(values: RealArray, block: Block) -> Array:
    """Copy real factors, the last axis along columns, to a block's precision and device."""
    factors: Array = array_namespace(block.array).asarray(values.astype(block.array.real.dtype))
    return factors


def small_matrix(C: Array, block: Block, shape: tuple[int, int] | None = None) -> Array:
    """Copy a small matrix to a block's type and device, filled up to a shape by rows of the identity."""
    if shape is not None and shape != C.shape:
        larger = np.eye(*shape, dtype=C.dtype)
        larger[: C.shape[0]] = larger[:, : C.shape[1]] = 0
        larger[: C.shape[0], : C.shape[1]] = C
        C = larger
    copied: Array = array_namespace(block.array).asarray(np.ascontiguousarray(C.astype(block.dtype)))
    return copied


def assign(block: Block, values: Array) -> None:
    """Copy a host array of the same shape and type into a block."""
    if isinstance(block.array, np.ndarray):
        block.array[...] = values
    else:
        BlockVector(block.array)[:, :] = array_namespace(block.array).asarray(values)


def ordinary_exponent(dtype: Any, share: float = ORDINARY) -> int:
    """Return the largest exponent of two of an ordinary number: 21 for float32, 170 for float64."""
    return int(share * np.finfo(dtype).maxexp)


def is_ordinary(numbers: Any, dtype: Any, margin: int = 0, share: float = ORDINARY) -> Any:
    """Check whether numbers are zero or ordinary: their powers up to the fifth are in the range of a type."""
    limit = ordinary_exponent(dtype, share) - margin
    return np.isfinite(numbers) & (np.abs(np.frexp(numbers)[1]) <= limit)


def times(values: Any, exponent: int) -> Any:
    """Multiply real numbers by 2^exponent; what exceeds the range of their type becomes infinite or zero."""
    if exponent == 0:
        return values
    xp = np if isinstance(values, float) else array_namespace(values)
    with np.errstate(over="ignore", under="ignore"):
        product = np.ldexp(values if xp is np else to_host(values), exponent)
    return product if xp is np else xp.asarray(product)


def to_host(array: Array) -> Array:
    """Return a NumPy array, of a sequence as it is; waits for the device that `array` is on."""
    xp = array_namespace(array)
    if xp is np:
        return array
    host: Array = xp.asnumpy(array) if array.flags.c_contiguous else start_copy(array)()
    return host
