"""Blocks and operators as solvers see them: protocols for the type checker, and operations on columns.

`blockvec.BlockVector` and `blockvec.Operator` satisfy the protocols, as does every class with these members.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, Protocol, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from blockvec import Applied, array_namespace

__all__ = [
    "AffineOperator",
    "Array",
    "Block",
    "FusedOperator",
    "LinearMap",
    "Operator",
    "RealArray",
    "SystemOperator",
    "assign",
    "column_factors",
    "pick",
    "project_out",
    "random_block",
    "small_matrix",
    "to_host",
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


class LinearMap(Protocol):
    """A product with a block, which may be overwritten."""

    def apply(self, X: Block, out: Block | None = None) -> Block:
        """Return the block that holds the product: `out`, X or a new one."""


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


class SystemOperator(Protocol):
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


class FusedOperator(SystemOperator, Operator, Protocol):
    """A Hermitian operator that computes column dots in the same pass."""


AnyBlock = TypeVar("AnyBlock", bound=Block)


def random_block(like: AnyBlock, n_cols: int, rng: Any) -> AnyBlock:
    """Return random columns with the number of rows, the type and the device of another block."""
    return type(like).random(like.shape[0], n_cols, like.dtype, device=like.device, rng=rng)


def pick(block: AnyBlock, indices: NDArray[np.intp]) -> AnyBlock:
    """Return a copy of some columns of a block.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import BlockVector
    >>> pick(BlockVector(np.array([[1.0, 2.0, 3.0]])), np.array([2, 0])).array.tolist()
    [[3.0, 1.0]]
    """
    picked = block.like(len(indices))
    ends = np.flatnonzero(np.diff(indices) != 1) + 1
    for begin, end in pairwise([0, *ends.tolist(), len(indices)]):
        first = int(indices[begin]) if end > begin else 0
        picked[:, begin:end] = block[:, first : first + end - begin]
    return picked


def project_out(Q: AnyBlock | None, X: AnyBlock) -> AnyBlock:
    """Set X = X - Q Q^H X for orthonormal columns Q and return it; with Q None return X unchanged."""
    return X if Q is None else Q.combine(Q.dot(X), out=X, alpha=-1, beta=1)


def column_factors(values: RealArray, block: Block) -> Array:
    """Copy real factors, the last axis along columns, to a block's precision and device."""
    factors: Array = array_namespace(block.array).asarray(values.astype(block.array.real.dtype))
    return factors


def small_matrix(C: Array, block: Block) -> Array:
    """Copy a small matrix to a block's type and device."""
    copied: Array = array_namespace(block.array).asarray(np.ascontiguousarray(C.astype(block.dtype)))
    return copied


def assign(block: Block, values: Array) -> None:
    """Copy a host array into a block."""
    block.array[...] = array_namespace(block.array).asarray(values)


def to_host(array: Array) -> Array:
    """Return a NumPy array; waits for the device that `array` is on."""
    xp = array_namespace(array)
    host: Array = array if xp is np else xp.asnumpy(array)
    return host
