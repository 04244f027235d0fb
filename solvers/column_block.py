"""Column-major blocks on the host, for problems whose steps take microseconds.

A product with a few columns of a row-major basis reads whole cache lines for parts of rows, and a checked
call per operation takes as long as the arithmetic on some thousand rows. Here columns are contiguous: BLAS
reads exactly those that it needs, a Krylov basis needs no copies of its blocks, and every operation is one
call. Solvers use `ColumnBlock` as any other block (`solvers.blocks.Block`).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from scipy.linalg import blas

from blockvec import BlockVector, Profile, RowLayout, single_threaded_blas
from blockvec import Operator as ArrayOperator

from .blocks import Array, Scalars

SHORT_ROWS = 1 << 17  # of columns up to which blocks on the host are column-major
# For complex vectors OpenBLAS multiplies one column at a time twice as fast as two, while both are in cache.
COMPLEX_COLUMNS = 2
# Up to which products with one triangle of a dense matrix, column by column, take less time than with both.
SYMMETRIC_COLUMNS = 6
_quiet = np.errstate(over="ignore", invalid="ignore")  # as in BLAS: callers look at the results
_ADJOINT = {"f": 1, "d": 1, "F": 2, "D": 2}  # BLAS's op(A): transposed or conjugated
_GEMM = {"f": blas.sgemm, "d": blas.dgemm, "F": blas.cgemm, "D": blas.zgemm}
_GEMV = {"f": blas.sgemv, "d": blas.dgemv, "F": blas.cgemv, "D": blas.zgemv}


@Profile.timed(moved=lambda V, W: (W.dtype.name, V.size + (W is not V) * W.size, 0))
def adjoint_product(V: Array, W: Array) -> Array:
    """Compute V^H W for column-major arrays."""
    char, width = W.dtype.char, W.shape[1]
    if not (V.shape[1] and W.size):  # BLAS refuses arrays without elements
        return np.zeros((V.shape[1], width), W.dtype)
    if width == 1:
        return np.asarray(_GEMV[char](1.0, V, W, trans=_ADJOINT[char])).reshape(-1, 1)
    if width <= COMPLEX_COLUMNS and W.dtype.kind == "c":
        gemv = _GEMV[char]
        S = np.empty((V.shape[1], width), W.dtype, order="F")
        for j in range(width):
            S[:, j] = gemv(1.0, V, W[:, j], trans=2)
        return S
    return np.asarray(_GEMM[char](1.0, V, W, trans_a=_ADJOINT[char]))


@Profile.timed(moved=lambda V, C, W, *factors: (W.dtype.name, V.size + W.size, W.size))
def add_product(V: Array, C: Array, W: Array, alpha: complex = 1.0, beta: complex = 1.0) -> None:
    """Set W = alpha V C + beta W for column-major arrays; with beta = 0 W is not read."""
    char = W.dtype.char
    if beta == 0:
        W.fill(0)  # BLAS reads it where it is NaN
    if not (V.shape[1] and W.size):
        W *= beta
    elif W.shape[1] == 1 or (W.shape[1] <= COMPLEX_COLUMNS and W.dtype.kind == "c"):
        gemv = _GEMV[char]
        for j in range(W.shape[1]):
            gemv(alpha, V, C[:, j], beta, W[:, j], overwrite_y=1)
    else:
        _GEMM[char](alpha, V, C, beta, W, overwrite_c=1)


def summed(layout: RowLayout | None, part: Array) -> Array:
    """Add a small array over the processes that share the rows."""
    return part if layout is None else layout.sum(part)


def both_summed(layout: RowLayout | None, P: Array, G: Array) -> tuple[Array, Array]:
    """Add two small arrays of as many columns over the processes, in one message."""
    if layout is None:
        return P, G
    total = layout.sum(np.concatenate([P, G]))
    return total[: len(P)], total[len(P) :]


class ColumnBlock:
    """A column-major array of the host with the operations of `solvers.blocks.Block`.

    Parameters
    ----------
    array : array, shape (n, b)
        Copied unless it is column-major.
    layout : RowLayout, optional
        The split of the rows over processes; the array has those of this process.
    """

    __slots__ = ("array", "dtype", "layout", "shape")

    device = "cpu"

    def __init__(self, array: Array, layout: RowLayout | None = None) -> None:
        self.array = np.asfortranarray(array)
        self.shape: tuple[int, int] = array.shape
        self.dtype, self.layout = array.dtype, layout

    @classmethod
    def of(cls, block: Any) -> ColumnBlock:
        """Copy a block of the host."""
        return cls(np.array(block.array, order="F"), block.layout)

    @classmethod
    def random(cls, n_rows: int, n_cols: int, dtype: Any = np.float64, **options: Any) -> ColumnBlock:
        """Create a block of the random numbers that a `BlockVector` of this shape has."""
        return cls.of(BlockVector.random(n_rows, n_cols, dtype, **options))

    @property
    def n_global(self) -> int:
        """Number of rows in all processes."""
        return self.shape[0] if self.layout is None else self.layout.n_global

    def random_like(self, n_cols: int, rng: Any = None) -> ColumnBlock:
        """Create a random block with as many rows."""
        return self.random(self.n_global, n_cols, self.dtype, rng=rng, layout=self.layout)

    def like(self, n_cols: int | None = None, dtype: Any = None) -> ColumnBlock:
        """Create an uninitialised block with as many rows."""
        shape = self.shape[0], self.shape[1] if n_cols is None else n_cols
        return type(self)(np.empty(shape, self.dtype if dtype is None else dtype, order="F"), self.layout)

    def copy(self) -> ColumnBlock:
        """Copy the block."""
        return type(self)(self.array.copy(order="F"), self.layout)

    def __getitem__(self, index: tuple[slice, slice]) -> ColumnBlock:
        return type(self)(self.array[index], self.layout)

    def __setitem__(self, index: tuple[slice, slice], value: ColumnBlock | complex) -> None:
        self.array[index] = value.array if isinstance(value, ColumnBlock) else value

    def dot(self, W: ColumnBlock) -> Array:
        """Compute V^H W."""
        return summed(self.layout, adjoint_product(self.array, W.array))

    def gram(self) -> Array:
        """Compute V^H V."""
        G = self.dot(self)
        return (G + G.conj().T) / 2

    def combine(
        self, C: Array, *, alpha: complex = 1, beta: complex = 0, out: ColumnBlock | None = None
    ) -> ColumnBlock:
        """Compute alpha V C + beta out; `out` may be columns of V."""
        C = np.asarray(C, self.dtype)
        if out is None:
            out = self.like(C.shape[1])
        elif np.may_share_memory(out.array, self.array):
            product = self.combine(C, alpha=alpha)
            if beta != 0:
                product.array += beta * out.array
            out.array[...] = product.array
            return out
        add_product(self.array, C, out.array, alpha, beta)
        return out

    def update_gram(self, W: ColumnBlock, C: Array) -> Array:
        """Set V = V - W C and compute V^H V."""
        W.combine(C, alpha=-1, beta=1, out=self)
        return self.gram()

    @_quiet
    def axpby(self, alpha: Scalars, X: ColumnBlock, beta: Scalars) -> ColumnBlock:
        """Set V = alpha X + beta V."""
        product = alpha * X.array
        if np.ndim(beta) or beta != 1:
            self.array *= beta
        self.array += product
        return self

    def axpy(self, alpha: Scalars, X: ColumnBlock) -> ColumnBlock:
        """Set V = alpha X + V."""
        return self.axpby(alpha, X, 1)

    @_quiet
    def scale(self, alpha: Scalars) -> ColumnBlock:
        """Set V = alpha V."""
        self.array *= alpha
        return self

    def norms(self) -> Array:
        """Compute the 2-norm of each column."""
        return np.asarray(np.sqrt(self.column_dot(self).real))

    @_quiet
    def column_dot(self, W: ColumnBlock) -> Array:
        """Compute v_j^H w_j for each column."""
        return summed(self.layout, np.asarray(np.vecdot(self.array.T, W.array.T)))


class ColumnOperator:
    """A Hermitian operator of the host on column-major blocks; see `solvers.blocks.Operator`.

    `apply` returns `out` where it is given, and never changes X. ``add(X, Y)`` adds A X to Y for column-major
    arrays, ``add_vector(x, y)`` for vectors. With `has_threads` products have the threads of BLAS that
    `single_threaded_blas` keeps from others.
    """

    device = "cpu"

    def __init__(self, operator: ArrayOperator, *, has_threads: bool = False) -> None:
        self.operator, self._has_threads = operator, has_threads
        self.shape, self.dtype, self.layout = operator.shape, operator.dtype, operator.layout
        self.nnz = getattr(operator, "nnz", None)
        self._triangle: Array | None = None  # of a dense symmetric matrix, half of which is read then
        matrix = getattr(operator, "matrix", None)
        if matrix is not None and matrix.dtype.char == "d" and matrix.flags.forc:
            self._triangle = matrix if matrix.flags.f_contiguous else matrix.T
        add = functools.partial(operator.apply_columns, beta=1)
        self.add = add if self._triangle is None else self._add_symmetric
        self.add_vector = operator.vector_adder() if self._triangle is None else self._add_symmetric_vector
        self._set = operator.apply_columns
        if has_threads:
            threads = single_threaded_blas.lifted()
            self.add, self._set = threads(self.add), threads(self._set)
            self.add_vector = threads(self.add_vector)

    def _add_symmetric_vector(self, x: Array, y: Array) -> None:
        blas.dsymv(1.0, self._triangle, x, 1.0, y, overwrite_y=1)

    def _add_symmetric(self, X: Array, Y: Array) -> None:
        if X.shape[1] > SYMMETRIC_COLUMNS:
            self.operator.apply_columns(X, Y, beta=1)
            return
        for j in range(X.shape[1]):
            self._add_symmetric_vector(X[:, j], Y[:, j])

    @Profile.timed("products")
    def apply(
        self,
        X: ColumnBlock,
        out: ColumnBlock | None = None,
        alpha: complex = 1,
        beta: complex = 0,
        shift: Any = 0,
    ) -> ColumnBlock:
        """Compute alpha (A - shift I) X + beta out."""
        if out is None:
            out = X.like()
        if self._triangle is not None and alpha == 1 and beta == 0 and np.ndim(shift) == 0 and shift == 0:
            out.array.fill(0)
            self.add(X.array, out.array)
        else:
            self._set(X.array, out.array, alpha, beta, shift)
        return out

    def affine(self, alpha: float, shift: float) -> ShiftedColumns:
        """Make alpha (A - shift I) an operator of its own."""
        scaled = ColumnOperator(self.operator.affine(alpha, 0.0), has_threads=self._has_threads)
        return ShiftedColumns(scaled, alpha * shift)


def by_rows(operator: Any) -> Any:
    """Return the operator on row-major blocks behind one on column-major blocks; others as they are."""
    return operator.operator if isinstance(operator, ColumnOperator) else operator


class ShiftedColumns:
    """B - shift I for an operator B on column-major blocks.

    For some hundred products: a sparse matrix with the shift takes longer to form.
    """

    def __init__(self, operator: ColumnOperator, shift: float) -> None:
        self.operator, self.shift = operator, shift

    def apply(
        self, X: ColumnBlock, out: ColumnBlock | None = None, alpha: complex = 1, beta: complex = 0
    ) -> ColumnBlock:
        """Compute alpha (B - shift I) X + beta out."""
        return self.operator.apply(X, out, alpha, beta, self.shift)
