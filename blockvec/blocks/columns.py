"""ColumnBlock: column-major blocks of the host, for solvers whose steps take microseconds.

A product with a few columns of a row-major basis reads whole cache lines for parts of rows, and a checked
call takes as long as the arithmetic on some thousand rows. Here columns are contiguous: BLAS reads exactly
those that it needs, a Krylov basis needs no copies of its blocks, and every operation is one call.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.linalg import blas

from ..backends import Array, Backend, backend_for
from ..errors import LayoutError
from ..operations.arrays import Memory
from ..operations.products import sum_over
from ..operations.profile import Profile
from ..parallel import RowLayout
from .blockvector import BlockVector
from .storage import BlockStorage

# For complex vectors OpenBLAS multiplies one column at a time twice as fast as two, while both are in cache.
COMPLEX_COLUMNS = 2
_quiet = np.errstate(over="ignore", invalid="ignore")  # as in BLAS: callers look at the results
_ADJOINT = {"f": 1, "d": 1, "F": 2, "D": 2}  # BLAS's op(A): transposed or conjugated
_GEMM = {"f": blas.sgemm, "d": blas.dgemm, "F": blas.cgemm, "D": blas.zgemm}
_GEMV = {"f": blas.sgemv, "d": blas.dgemv, "F": blas.cgemv, "D": blas.zgemv}
_HOST = backend_for("cpu")


class ColumnBlock(BlockStorage):
    """A column-major block of the host with the operations of `BlockVector` that solvers use.

    Nothing is checked: operands are ColumnBlocks of the same type and rows, small matrices have its type.
    Solvers make such blocks of a BlockVector, check shapes once, and return row-major vectors.

    Parameters
    ----------
    array : array, shape (n, b)
        Copied unless it is column-major.
    layout : RowLayout, optional
        The split of the rows over processes; the array has those of this process.
    """

    __slots__ = ()

    def __init__(self, array: Array, layout: RowLayout | None = None) -> None:
        self.array, self.layout, self.backend, self._memory = np.asfortranarray(array), layout, _HOST, None

    @classmethod
    def _of(
        cls, array: Array, layout: RowLayout | None, backend: Backend = _HOST, memory: Memory | None = None
    ) -> Self:
        return cls(array, layout)

    @classmethod
    def of(cls, block: Any) -> Self:
        """Copy a block of the host."""
        return cls(np.array(block.array, order="F"), block.layout)

    @classmethod
    def random(cls, *extents: Any, **options: Any) -> Self:
        """Create a block of the random numbers that a `BlockVector` of this shape has."""
        return cls.of(BlockVector.random(*extents, **options))

    @property
    def memory(self) -> Memory:
        """Refused: kernels take row-major blocks."""
        raise LayoutError("a column-major block of a solver; copy it by BlockVector(V.array, copy=True).")

    def like(self, n_cols: int | None = None, dtype: Any = None) -> Self:
        """Create an uninitialised block with as many rows."""
        n_rows, width = self.array.shape
        shape = n_rows, width if n_cols is None else n_cols
        return type(self)(np.empty(shape, self.dtype if dtype is None else dtype, order="F"), self.layout)

    def copy(self) -> Self:
        """Copy the block."""
        return type(self)(self.array.copy(order="F"), self.layout)

    def __getitem__(self, index: tuple[slice, slice]) -> Self:
        return type(self)(self.array[index], self.layout)

    @Profile.timed(moved=lambda V, W: (W.dtype.name, V.size + (W is not V) * W.size, 0))
    def dot(self, W: ColumnBlock) -> Array:
        """Compute V^H W."""
        v, w = self.array, W.array
        char, width = w.dtype.char, w.shape[1]
        if not (v.shape[1] and w.size):  # BLAS refuses arrays without elements
            S = np.zeros((v.shape[1], width), w.dtype)
        elif width == 1:
            S = np.asarray(_GEMV[char](1.0, v, w, trans=_ADJOINT[char])).reshape(-1, 1)
        elif width <= COMPLEX_COLUMNS and w.dtype.kind == "c":
            S = np.empty((v.shape[1], width), w.dtype, order="F")
            for j in range(width):
                S[:, j] = _GEMV[char](1.0, v, w[:, j], trans=2)
        else:
            S = np.asarray(_GEMM[char](1.0, v, w, trans_a=_ADJOINT[char]))
        return S if self.layout is None else sum_over(self.layout, S)

    def gram(self) -> Array:
        """Compute V^H V."""
        G = self.dot(self)
        return (G + G.conj().T) / 2

    def combine(self, C: Array, *, alpha: complex = 1, beta: complex = 0, out: Self | None = None) -> Self:
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
        self._add_product(C, out, alpha, beta)
        return out

    @Profile.timed(moved=lambda V, C, W, *factors: (W.dtype.name, V.size + W.size, W.size))
    def _add_product(self, C: Array, W: ColumnBlock, alpha: complex, beta: complex) -> None:
        """Set W = alpha V C + beta W, without common memory; with beta = 0 W is not read."""
        v, w = self.array, W.array
        char, width = w.dtype.char, w.shape[1]
        if beta == 0:
            w.fill(0)  # BLAS reads it where it is NaN
        if not (v.shape[1] and w.size):
            w *= beta
        elif width == 1 or (width <= COMPLEX_COLUMNS and w.dtype.kind == "c"):
            for j in range(width):
                _GEMV[char](alpha, v, C[:, j], beta, w[:, j], overwrite_y=1)
        else:
            _GEMM[char](alpha, v, C, beta, w, overwrite_c=1)

    def update_gram(self, W: Self, C: Array) -> Array:
        """Set V = V - W C and compute V^H V."""
        W.combine(C, alpha=-1, beta=1, out=self)
        return self.gram()

    @_quiet
    def axpby(self, alpha: Any, X: ColumnBlock, beta: Any) -> Self:
        """Set V = alpha X + beta V."""
        product = alpha * X.array
        if np.ndim(beta) or beta != 1:
            self.array *= beta
        self.array += product
        return self

    def axpy(self, alpha: Any, X: ColumnBlock) -> Self:
        """Set V = alpha X + V."""
        return self.axpby(alpha, X, 1)

    @_quiet
    def scale(self, alpha: Any) -> Self:
        """Set V = alpha V."""
        self.array *= alpha
        return self

    def norms(self) -> Array:
        """Compute the 2-norm of each column."""
        return np.asarray(np.sqrt(self.column_dot(self).real))

    @_quiet
    def column_dot(self, W: ColumnBlock) -> Array:
        """Compute v_j^H w_j for each column."""
        return sum_over(self.layout, np.asarray(np.vecdot(self.array.T, W.array.T)))
