"""Arithmetic of a block column by column: scaling, sums, norms, and the operators that spell them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from . import elementwise, products
from .arrays import Memory, as_rows, memory_of
from .backends import Array, array_namespace
from .block import Block
from .errors import DTypeError, ShapeError
from .transposed import Transposed

__all__ = ["Arithmetic"]


class Arithmetic(Block):
    """The part of `BlockVector` that works element by element."""

    __slots__ = ()

    # --- arithmetic -----------------------------------------------------------------------------

    def axpby(self, alpha: Any, X: Any, beta: Any) -> Self:
        """Set V = alpha X + beta V; factors are scalars or hold one value a column. Returns V."""
        elementwise.axpby("axpby", self._tall("axpby", X).array, self.array, self.array, alpha, beta)
        return self

    def axpy(self, alpha: Any, X: Any) -> Self:
        """Set V = V + alpha X; alpha is a scalar or holds one value a column. Returns V."""
        return self.axpby(alpha, X, 1)

    def scale(self, alpha: Any) -> Self:
        """Set V = alpha V; alpha is a scalar or holds one value a column. Returns V."""
        elementwise.axpby("scale", self.array, None, self.array, alpha, 0)
        return self

    def column_dot(self, W: Any) -> Array:
        """Return the M inner products v_j^H w_j, shape (M,)."""
        other = self._tall("column_dot", W).array
        part = elementwise.column_dot(self.array, other, products.result_type(self.array, other))
        return products.sum_over(self.comm, part)

    def norms(self) -> Array:
        """Return the Euclidean norms of the columns, shape (M,), real."""
        real = np.zeros(0, self.dtype).real.dtype
        squares = products.sum_over(self.comm, elementwise.column_dot(self.array, self.array, real))
        return array_namespace(squares).sqrt(squares)

    def normalize(self) -> Array:
        """Scale each column to norm one and return the norms it had; zero columns stay zero."""
        norms = self.norms()
        self.scale(1 / array_namespace(norms).where(norms > 0, norms, 1))
        return norms

    def _tall(self, operation: str, other: Any) -> Memory:
        """Return where the other tall operand lies."""
        if isinstance(other, Block):
            return other._place()
        if isinstance(other, Transposed):
            raise DTypeError(f"{operation}: got a transposed block; both operands are tall, as in V.T @ W.")
        return memory_of(as_rows(other))

    def _plus(self, other: Any, alpha: int, beta: int) -> Any:
        """Return alpha V + beta W, where W may also be a number or hold one value a column."""
        if not _is_operand(other):
            return NotImplemented
        if not _is_block(other):
            return (self if alpha == 1 else self * alpha)._apply(operator.add, beta * other)
        W = self._tall("+", other).array
        elementwise.check_same_shape("+", self.array, W)
        result = self.like(dtype=products.result_type(self.array, W))
        elementwise.axpby("+", self.array, W, result.array, alpha, beta)
        return result

    def _apply(self, function: Callable[[Any, Any], Any], other: Any) -> Self:
        """Apply a broadcasting operation of NumPy or CuPy, which may not widen the block."""
        result = function(self.array, other.array if isinstance(other, Block) else other)
        if result.shape != self.shape:
            raise ShapeError(f"an operand of shape {other.shape} does not fit a block of shape {self.shape}.")
        return self._wrap(as_rows(result))

    def __add__(self, other: Any) -> Self:
        return self._plus(other, 1, 1)  # type: ignore[no-any-return]

    def __sub__(self, other: Any) -> Self:
        return self._plus(other, 1, -1)  # type: ignore[no-any-return]

    def __rsub__(self, other: Any) -> Self:
        return self._plus(other, -1, 1)  # type: ignore[no-any-return]

    def __mul__(self, other: Any) -> Self:
        if not _is_operand(other):
            return NotImplemented
        if _is_block(other):
            return self._apply(operator.mul, other)
        result = self.like(dtype=products.result_type(self.array, other))
        elementwise.axpby("*", self.array, None, result.array, other, 0)
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
        """Overwrite this block with the result of an operation on it."""
        elementwise.axpby("in-place operation", result.array, None, self.array, 1, 0)
        return self


def _is_operand(other: Any) -> bool:
    return _is_block(other) or elementwise.is_scalar(other) or getattr(other, "ndim", 0) == 1


def _is_block(other: Any) -> bool:
    return isinstance(other, Block) or getattr(other, "ndim", 0) == 2
