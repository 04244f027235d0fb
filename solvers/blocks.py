"""The interfaces that solvers require of blocks and operators, as protocols for the type checker.

`blockvec.BlockVector` and `blockvec.Operator` satisfy them, and so does every class with these members.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, Self, overload

import numpy as np
from numpy.typing import NDArray

from blockvec import Applied

__all__ = [
    "AffineOperator",
    "Array",
    "Block",
    "FusedOperator",
    "Operator",
    "RealArray",
    "random_block",
]

Array = NDArray[Any]  # a NumPy array, or a CuPy array, which has the same interface
RealArray = NDArray[np.float64]
Scalars = complex | Array  # one scalar, or one per column


class Block(Protocol):
    """A tall block of columns: the part of `blockvec.BlockVector` that solvers use."""

    @classmethod
    def random(cls, n_rows: int, n_cols: int, dtype: Any = ..., *, rng: Any = ..., device: str = ...) -> Self:
        """Return a block of uniform random numbers in [-1, 1)."""

    def like(self, n_cols: int | None = None, dtype: Any = None) -> Self:
        """Return an uninitialised block of this size, type and device."""

    def copy(self) -> Self:
        """Return a contiguous copy."""

    @property
    def array(self) -> Array:
        """The wrapped array."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""

    @property
    def device(self) -> str:
        """``"cpu"``, or a device such as ``"cuda:0"``."""

    def __getitem__(self, index: tuple[slice, slice], /) -> Self:
        """Return a view of a range of columns."""

    def __setitem__(self, index: tuple[slice, slice], value: Self, /) -> None:
        """Copy a block into a range of columns."""

    def dot(self, W: Self, /) -> Array:
        """Return V^H W."""

    def gram(self) -> Array:
        """Return V^H V."""

    def combine(self, C: Array, /, *, alpha: complex = 1, beta: complex = 0, out: Self | None = None) -> Self:
        """Return alpha V C + beta out, in `out` where it is given."""

    def combine_dot(self, C: Array, W: Self, /) -> Array:
        """Set V = V C and return W^H V."""

    def update_gram(self, W: Self, C: Array, /) -> Array:
        """Set V = V - W C and return V^H V."""

    def axpby(self, alpha: Scalars, X: Self, beta: Scalars, /) -> Self:
        """Set V = alpha X + beta V and return it."""

    def axpy(self, alpha: Scalars, X: Self, /) -> Self:
        """Set V = alpha X + V and return it."""

    def scale(self, alpha: Scalars, /) -> Self:
        """Set V = alpha V and return it."""

    def norms(self) -> Array:
        """Return the Euclidean norms of the columns."""

    def column_dot(self, W: Self, /) -> Array:
        """Return v_j^H w_j of every column."""


class AffineOperator(Protocol):
    """The product with a fixed affine function of an operator."""

    def apply(self, X: Block, out: Block | None = None, alpha: complex = 1, beta: complex = 0) -> Block:
        """Return alpha Op X + beta out, in `out` where it is given."""


class Operator(Protocol):
    """A Hermitian operator A: the part of `blockvec.Operator` that eigensolvers use.

    An attribute ``nnz`` (stored elements, or None) is optional: it tells the cost of an application.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""

    @property
    def device(self) -> str:
        """``"cpu"``, or a device such as ``"cuda:0"``."""

    def apply(
        self, X: Block, out: Block | None = None, alpha: complex = 1, beta: complex = 0, shift: Any = 0
    ) -> Block:
        """Return alpha (A - shift I) X + beta out, in `out` where it is given."""

    def affine(self, alpha: float, shift: float) -> AffineOperator:
        """Return alpha (A - shift I), prepared for repeated application."""


class FusedOperator(Protocol):
    """An operator that computes column dots in the same pass: the part that linear solvers use."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @overload
    def apply(
        self, X: Block, out: Block | None = None, alpha: complex = 1, beta: complex = 0, shift: Any = 0
    ) -> Block: ...

    @overload
    def apply(
        self,
        X: Block,
        out: Block | None = None,
        alpha: complex = 1,
        beta: complex = 0,
        shift: Any = 0,
        *,
        dots: Literal["xy"],
    ) -> Applied: ...


def random_block(like: Block, n_cols: int, rng: Any) -> Block:
    """Return a block of random columns with the rows, type and device of another block."""
    return type(like).random(like.shape[0], n_cols, like.dtype, device=like.device, rng=rng)
