"""BlockVector: tall and skinny row-major matrices with the products that dominate block methods."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from ..backends import Array
from ..errors import DTypeError, LayoutError, OptionError, ShapeError
from ..kernels.problem import promote
from ..operations import arrays, elementwise, products
from ..operations.arrays import REAL_TYPES, Memory, as_rows, memory_of
from ..operations.elementwise import ROOTS, RowFunction
from .storage import BlockStorage


def _inverses(xp: Any, norms: Any) -> tuple[Any]:
    return (1.0 / xp.where(norms > 0, norms, 1.0),)


INVERSES = RowFunction(_inverses)


class BlockVector(BlockStorage):
    """A block of K-vectors: a K x M row-major matrix, K large and M small, on a CPU or a GPU.

    Wraps a 2-D array without a copy: C-contiguous, or a column range of a wider one (leading dimension
    ``ld >= M``). Any object with DLPack or ``__cuda_array_interface__`` is wrapped without a copy, too.

    Parameters
    ----------
    a : array-like, shape (K, M) or (K,)
        float32, float64, complex64 or complex128. One dimension becomes one column.
    copy : bool
        Copy to contiguous row-major memory; accepts any layout.
    dtype : dtype, optional
        Convert (with a copy) if the type differs.
    layout : RowLayout, optional
        The split of the rows over processes: `a` holds those of this process. Sums are over all rows, in rank
        order. A layout of one process is the same as none.

    Raises
    ------
    ShapeError, DTypeError, LayoutError
        For arrays that are not one- or two-dimensional, of another type, or not row-major.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import BlockVector
    >>> V = BlockVector(np.ones((1000, 3)))
    >>> V
    BlockVector(1000x3, float64, ld=3, cpu)
    >>> (V.T @ V)[0, 0]
    np.float64(1000.0)
    >>> V @ np.eye(3)[:, :2]
    BlockVector(1000x2, float64, ld=2, cpu)
    """

    __slots__ = ()

    @property
    def T(self) -> Transposed:
        """Marker for ``V.T @ W``; moves no data."""
        return Transposed(self, conj=False)

    @property
    def H(self) -> Transposed:
        """Marker for ``V.H @ W``, the conjugate transpose; moves no data."""
        return Transposed(self, conj=True)

    def dot(
        self, W: Any, *, conj: bool = True, alpha: complex = 1, beta: complex = 0, out: Array | None = None
    ) -> Array:
        """Compute ``alpha V^H W + beta out``, or with ``V^T`` if `conj` is False (TSMTTSM).

        Parameters
        ----------
        W : BlockVector or row-major array, shape (K, N) or (K,)
            On the same device; mixed types are promoted as in NumPy. A plain 1-D array gives a 1-D result.
        conj : bool
            Conjugate V.
        alpha, beta : scalar
            Factors; with ``beta=0`` `out` is never read.
        out : array, shape (M, N), optional
            Output; of the promoted type, not sharing memory with V or W.

        Returns
        -------
        array, shape (M, N)
            On the same device; the call does not wait for it.

        Raises
        ------
        ShapeError, DTypeError, DeviceError, LayoutError
            For operands that do not fit together; the message gives both values.

        References
        ----------
        Ernst, Hager, Thies, Wellein, Int. J. High Perform. Comput. Appl. 35 (2021), operation TSMTTSM.

        Examples
        --------
        >>> V = BlockVector(np.ones((100, 2)))
        >>> V.dot(V, alpha=0.5).tolist()
        [[50.0, 50.0], [50.0, 50.0]]
        """
        if out is None and beta != 0:
            raise OptionError(f"dot: beta={beta!r} needs out=, the array that it multiplies.")
        a, is_block = self._memory or self.memory, isinstance(W, BlockVector)
        b = W._memory or W.memory if is_block else self._tall("dot", W)
        is_vector = not is_block and getattr(W, "ndim", 2) == 1
        if is_vector and out is not None and out.ndim == 1:
            out = out[:, None]
        product = products.dot(a, b, conj=conj, alpha=alpha, beta=beta, out=out, layout=self.layout)
        return product[:, 0] if is_vector else product

    def gram(self) -> Array:
        """Compute V^H V, shape (M, M), reading V once.

        >>> BlockVector(np.array([[3.0, 0.0], [4.0, 1.0]])).gram().tolist()
        [[25.0, 4.0], [4.0, 1.0]]
        """
        return self.dot(self)

    def combine(
        self, C: Any, *, alpha: complex = 1, beta: complex = 0, out: BlockVector | Array | None = None
    ) -> BlockVector:
        """Compute ``alpha V C + beta out`` (TSMM); operands that do not fit together raise as in `dot`.

        Parameters
        ----------
        C : array, shape (M, N) or (M,)
            Small matrix on the same device.
        alpha, beta : scalar
            Factors; with ``beta=0`` `out` is never read.
        out : BlockVector or row-major array, shape (K, N), optional
            Output. It may be the leading columns of V itself (in place); any other overlap with V is refused.

        Returns
        -------
        BlockVector, shape (K, N)

        References
        ----------
        As for `dot`, operation TSMM.

        Examples
        --------
        >>> BlockVector(np.eye(2)).combine(np.array([[1.0], [2.0]]), alpha=3).array.tolist()
        [[3.0], [6.0]]
        """
        if out is None and beta != 0:
            raise OptionError(f"combine: beta={beta!r} needs out=, the block that it multiplies.")
        C = arrays.as_array(C)
        if C.ndim == 1:
            C = C[:, None]
        target = None if out is None else self._tall("combine", out)
        b = products.combine(self._memory or self.memory, C, alpha=alpha, beta=beta, out=target)
        return out if isinstance(out, BlockVector) else self._of(b.array, self.layout, self.backend, b)

    def combine_dot(self, C: Any, W: Any) -> Array:
        """Set V = V C and compute W^H V of the new V.

        The first half of an orthogonalisation: C = R^-1 makes V orthonormal, W^H V projects it on the basis.
        Operands that do not fit together raise as in `dot`.

        Parameters
        ----------
        C : array, shape (N, N)
            Small matrix on the same device; V C must be of V's type.
        W : BlockVector or row-major array, shape (K, M)
            The basis, sharing no memory with V (other columns of one array are fine).

        Returns
        -------
        array, shape (M, N)
            On the same device, summed over the processes of V's layout; the call does not wait for it.

        References
        ----------
        Roehrig-Zoellner et al., SIAM J. Sci. Comput. 37 (2015) C695, section 4: fused kernels.

        Examples
        --------
        >>> import numpy as np
        >>> from blockvec import BlockVector
        >>> V, W = BlockVector(np.ones((100, 1))), BlockVector(np.ones((100, 2)))
        >>> V.combine_dot(np.array([[0.5]]), W).tolist()
        [[50.0], [50.0]]
        """
        basis = self._tall("combine_dot", W)
        return products.sweep("combine_dot", self.memory, arrays.as_array(C), basis, layout=self.layout)

    def update_gram(self, W: Any, C: Any) -> Array:
        """Set V = V - W C and compute V^H V of the new V, reading V once.

        The second half of an orthogonalisation: C = W^H V makes V orthogonal to the basis, and its Gram
        matrix yields the factor that makes it orthonormal. Conditions, errors and references are those of
        `combine_dot`.

        Parameters
        ----------
        W : BlockVector or row-major array, shape (K, M)
            The basis.
        C : array, shape (M, N)
            Small matrix; V - W C must be of V's type.

        Returns
        -------
        array, shape (N, N)
            Exactly Hermitian.

        Examples
        --------
        >>> import numpy as np
        >>> from blockvec import BlockVector
        >>> V, W = BlockVector(np.full((100, 1), 3.0)), BlockVector(np.ones((100, 1)))
        >>> V.update_gram(W, np.array([[2.0]])).tolist()
        [[100.0]]
        """
        basis = self._tall("update_gram", W)
        return products.sweep("update_gram", self.memory, arrays.as_array(C), basis, layout=self.layout)

    def __matmul__(self, C: Any) -> BlockVector:
        if isinstance(C, BlockVector) or not hasattr(C, "ndim"):
            return self._no_coefficients(C)
        return self.combine(C)

    def _no_coefficients(self, C: Any) -> BlockVector:
        """Explain what to write for V @ C if C is a block or an operator; leave other types to Python."""
        if isinstance(C, BlockVector):
            remedy = "V.H @ W for the inner products of two blocks"
        elif isinstance(C, Transposed):
            remedy = "V @ (W.T @ X) for the product of V W^T with a block X"
        elif hasattr(C, "apply"):
            remedy = "S @ V for the product of an operator and a block"
        else:
            return NotImplemented  # type: ignore[no-any-return]
        raise DTypeError(
            f"V @ C: got {C!r}; C is a small array with {self.n_cols} rows, as V has columns: write {remedy}."
        )

    def __imatmul__(self, C: Any) -> BlockVector:
        n_cols = np.shape(C)[-1] if np.ndim(C) == 2 else 1
        if n_cols > self.n_cols:
            raise ShapeError(
                f"V @= C: C has {n_cols} columns but V only {self.n_cols}; write V = V @ C to widen."
            )
        return self.combine(C, out=self if n_cols == self.n_cols else self[:, :n_cols])

    def __rmatmul__(self, left: Any) -> Array:
        if getattr(left, "ndim", 0) not in (1, 2):
            return NotImplemented
        if left.shape[-1] != self.n_rows:
            raise ShapeError(
                f"C @ V: C has shape {left.shape} but V has {self.n_rows} rows; the product of a block and a "
                "small array is V @ C."
            )
        try:
            rows = as_rows(left.T)
        except LayoutError:
            raise LayoutError(
                f"C @ V: C of shape {left.shape} is not the transpose of a row-major block; write W.T @ V "
                "with W = BlockVector(C.T, copy=True), and keep W for further products."
            ) from None
        product = self._wrap(rows).dot(self, conj=False)
        return product[0] if left.ndim == 1 else product

    def axpby(self, alpha: Any, X: Any, beta: Any) -> Self:
        """Set V = alpha X + beta V and return V; factors are scalars or hold one value per column.

        >>> BlockVector(np.ones((1, 2))).axpby([2, 3], np.ones((1, 2)), 10).array.tolist()
        [[12.0, 13.0]]
        """
        place = self._memory or self.memory
        elementwise.axpby("axpby", self._tall("axpby", X), place, place, alpha, beta)
        return self

    def axpy(self, alpha: Any, X: Any) -> Self:
        """Set V = V + alpha X and return V; alpha is a scalar or holds one value per column.

        >>> BlockVector(np.ones((1, 2))).axpy(2, np.ones((1, 2))).array.tolist()
        [[3.0, 3.0]]
        """
        return self.axpby(alpha, X, 1)

    def scale(self, alpha: Any) -> Self:
        """Set V = alpha V and return V; alpha is a scalar or holds one value per column.

        >>> BlockVector(np.ones((1, 2))).scale([2, 3]).array.tolist()
        [[2.0, 3.0]]
        """
        place = self._memory or self.memory
        elementwise.axpby("scale", place, None, place, alpha, 0)
        return self

    def column_dot(self, W: Any) -> Array:
        """Compute the M inner products v_j^H w_j, shape (M,).

        >>> BlockVector(np.eye(2)).column_dot(np.array([[5.0, 6.0], [7.0, 8.0]])).tolist()
        [5.0, 8.0]
        """
        v, w = self.memory, self._tall("column_dot", W)
        return products.sum_over(self.layout, elementwise.column_dot(v, w, promote(v.dtype, w.dtype)))

    def sum(self) -> Array:
        """Sum every column over the rows, shape (M,).

        >>> BlockVector(np.array([[1.0, 2.0], [3.0, 4.0]])).sum().tolist()
        [4.0, 6.0]
        """
        ones = self.like(1)
        ones[:, :] = 1
        sums: Array = ones.dot(self)[0]
        return sums

    def norms(self) -> Array:
        """Compute the Euclidean norms of the columns, shape (M,), real.

        Squares are summed in the type of the block, as in `numpy.linalg.norm`: norms beyond the roots of its
        largest and smallest numbers (1e154 and 1e-154 in float64, 1e19 and 1e-19 in float32) overflow, or
        lose digits up to all. `scale` by a power of two avoids that.

        >>> BlockVector(np.array([[3.0, 0.0], [4.0, 1.0]])).norms().tolist()
        [5.0, 1.0]
        """
        v = self._memory or self.memory
        squares = elementwise.column_dot(v, v, REAL_TYPES[v.dtype])
        norms = products.sum_over(self.layout, squares)
        ROOTS(norms, out=(norms,))
        return norms

    def normalize(self) -> Array:
        """Scale each column to norm one and return the previous norms; zero columns stay zero.

        The range of norms is that of `norms`.

        >>> V = BlockVector(np.array([[3.0], [4.0]]))
        >>> V.normalize().tolist(), V.array.tolist()
        ([5.0], [[0.6], [0.8]])
        """
        norms = self.norms()
        factors = self.backend.empty(norms.shape, norms.dtype.name)
        INVERSES(norms, out=(factors,))
        self.scale(factors)
        return norms

    def _tall(self, operation: str, other: Any) -> Memory:
        if isinstance(other, BlockVector):
            return other._memory or other.memory
        if isinstance(other, Transposed):
            raise DTypeError(
                f"{operation}: got the transposed block {other!r}; both operands are tall, as in V.T @ W."
            )
        return memory_of(as_rows(other))

    def _plus(self, other: Any, alpha: int, beta: int) -> Self:
        """Compute alpha V + beta W; W may also be a number or hold one value per column."""
        if not _is_operand(other):
            return NotImplemented  # type: ignore[no-any-return]
        if not _is_block(other):
            return (self if alpha == 1 else self * alpha)._apply(operator.add, beta * other)
        W = self._tall("+", other)
        result = self.like(dtype=products.result_type(self.array, W.array))
        elementwise.axpby("+", self.memory, W, result.memory, alpha, beta)
        return result

    def _apply(self, function: Callable[[Any, Any], Any], other: Any) -> Self:
        """Apply a broadcasting operation of NumPy or CuPy that keeps the shape of the block."""
        try:
            result = function(self.array, other.array if isinstance(other, BlockVector) else other)
        except ValueError:  # shapes that do not broadcast
            result = None
        if result is None or result.shape != self.shape:
            raise ShapeError(f"an operand of shape {other.shape} does not fit a block of shape {self.shape}.")
        return self._wrap(as_rows(result))

    def __add__(self, other: Any) -> Self:
        return self._plus(other, 1, 1)

    def __sub__(self, other: Any) -> Self:
        return self._plus(other, 1, -1)

    def __rsub__(self, other: Any) -> Self:
        return self._plus(other, -1, 1)

    def __mul__(self, other: Any) -> Self:
        if not _is_operand(other):
            return NotImplemented
        if _is_block(other):
            return self._apply(operator.mul, other)
        result = self.like(dtype=products.result_type(self.array, other))
        elementwise.axpby("*", self.memory, None, result.memory, other, 0)
        return result

    def __truediv__(self, other: Any) -> Self:
        return self._apply(operator.truediv, other) if _is_operand(other) else NotImplemented

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Self:
        return self * -1

    def __iadd__(self, other: Any) -> Self:
        return self.axpy(1, other) if _is_block(other) else self._assign(self + other)

    def __isub__(self, other: Any) -> Self:
        return self.axpy(-1, other) if _is_block(other) else self._assign(self - other)

    def __imul__(self, other: Any) -> Self:
        return self._assign(self * other) if _is_block(other) else self.scale(other)

    def __itruediv__(self, other: Any) -> Self:
        return self._assign(self / other)

    def _assign(self, result: Self) -> Self:
        """Copy the result of an operation on this block back to it."""
        elementwise.axpby("in-place operation", result.memory, None, self.memory, 1, 0)
        return self


class Transposed:
    """``V.T`` or ``V.H``: a marker for the left operand of a product of two tall blocks."""

    __slots__ = ("_block", "_conj")
    __array_ufunc__ = None
    __iter__ = None

    def __init__(self, block: BlockVector, *, conj: bool) -> None:
        self._block, self._conj = block, conj

    def __matmul__(self, W: Any) -> Array:
        if not isinstance(W, BlockVector) and hasattr(W, "apply"):
            raise DTypeError("V.T @ S with an operator S has no tall result; write V.T @ (S @ V).")
        return self._block.dot(W, conj=self._conj)

    def __rmatmul__(self, left: Any) -> Any:
        raise DTypeError(
            f"@: the right operand is {self!r}, but a transposed block is a left operand, as in V.T @ W; "
            "numpy.asarray(V.T) is the transposed array."
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        transposed = np.asarray(self._block).T
        return np.array(transposed.conj() if self._conj else transposed, dtype=dtype, copy=copy)

    @property
    def shape(self) -> tuple[int, int]:
        """Extents of the transposed block."""
        return self._block.n_cols, self._block.n_rows

    def __repr__(self) -> str:
        return f"{self._block!r}.{'H' if self._conj else 'T'}"


def _is_operand(other: Any) -> bool:
    return _is_block(other) or elementwise.is_scalar(other) or getattr(other, "ndim", 0) == 1


def _is_block(other: Any) -> bool:
    return isinstance(other, BlockVector) or getattr(other, "ndim", 0) == 2
