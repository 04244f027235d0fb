"""Blocks in the inner product x^H M y, for operators that are Hermitian in it.

With a factor C C^H = M the vectors y = C^H x have the standard inner product. Where such a factor would cost
more than the solve, an iteration runs on the x themselves: all its inner products and norms are those of the
block type that `inner_product_blocks` makes.

A search for missed copies relies on random vectors z with a component u^H M z along each vector u. Where M is
badly scaled, one that lives on its small rows would have next to none. Divided by the roots of the diagonal D
of M, z has about alike components along all: u^H M z has the variance u^H M D^-1 M u, and z^H M z the mean n.
For finite elements the eigenvalues of D^-1 M lie within a factor of four or so, whatever the mesh.

References
----------
Ericsson, Ruhe, Math. Comp. 35 (1980) 1251; Grimes, Lewis, Simon, SIAM J. Matrix Anal. Appl. 15 (1994) 228,
section 2; Wathen, IMA J. Numer. Anal. 7 (1987) 449 (D^-1 M).
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from blockvec import BlockVector, Operator, RowFunction, array_namespace, as_operator

from ..blocks import Array, Block, ColumnBlock, applied, small_matrix
from ..orthogonalization import orthogonalize

AnyType = TypeVar("AnyType", BlockVector, ColumnBlock)


def _lengths(xp: Any, squares: Any) -> tuple[Any]:
    return (xp.sqrt(xp.maximum(squares, 0.0)),)


LENGTHS = RowFunction(_lengths)


def inner_product_blocks(M: Operator, diagonal: Array | None = None) -> type[BlockVector]:
    """Make a type of blocks whose inner products are x^H M y, for a Hermitian positive semidefinite M.

    With the diagonal of M, an array of the host, random blocks have alike components along all vectors.
    """
    weights: Array | None = None
    if diagonal is not None and diagonal.size and diagonal.max() > diagonal.min():
        least = float(np.finfo(diagonal.dtype).eps) ** 2
        weights = 1 / np.sqrt(np.maximum(diagonal / diagonal.max(), least))[:, None]
        weights = weights if M.device == "cpu" else BlockVector(weights).to_device(M.device).array
    return _with_inner_product(BlockVector, M, weights)


def inner_product_columns(blocks: type[BlockVector]) -> type[ColumnBlock]:
    """Return the type of column-major blocks with the inner product of a type of blocks."""
    inner: Any = blocks
    columns: Any = _with_inner_product(ColumnBlock, inner.inner, inner.weights)
    columns.rows = blocks
    return columns  # type: ignore[no-any-return]


def isotropic(
    blocks: type[BlockVector], n: int, width: int, dtype: Any, device: str, rng: Any
) -> BlockVector:
    """Make random vectors x with E[x x^H] = M^-1: their parts along all vectors orthonormal in M are alike.

    With the weights D of a type of blocks and a random z, x = D (D M D)^(-1/2) z. Refuses an M that is
    ill-conditioned even with a diagonal of ones.
    """
    Z = BlockVector.random(n, width, dtype, rng=rng, device=device)
    M: Operator | None = getattr(blocks, "inner", None)
    if M is None:
        return Z
    from ..factorization.gram import root_factor

    D: Any = 1.0 if blocks.weights is None else blocks.weights  # type: ignore[attr-defined]
    scaled = as_operator(
        lambda X: D * M.apply(BlockVector(D * X)).array, shape=M.shape, dtype=M.dtype, device=device
    )
    return blocks(D * root_factor(scaled).solve(Z.array))  # type: ignore[misc]


def orthonormal(X: Block, inner: Operator | None) -> Block:
    """Orthonormalise columns in their order: each changes by parts along those before it only. Overwrites X.

    Rough vectors can be dependent to rounding: a solve amplifies what they share of the pairs nearest to the
    shift. Their own parts are then resolved by repeated passes, or replaced by random directions, whose
    residuals tell that they have not converged.
    """
    R = orthogonalize(X, M=inner, first=()).R
    if not np.tril(R, -1).any():
        return X
    return X.combine(small_matrix(np.linalg.qr(R)[0], X))  # the order is that of pivots


def _with_inner_product(base: type[AnyType], M: Operator, factors: Array | None) -> type[AnyType]:
    """Derive a type of blocks whose inner products are x^H M y; rows of random ones have these factors."""

    class InnerProductBlock(base):  # type: ignore[misc, valid-type]
        __slots__ = ()
        inner, weights = M, factors

        def random_like(self, n_cols: int, rng: Any = None) -> Any:
            X = super().random_like(n_cols, rng)
            if factors is not None:
                X.array[...] *= factors
            return X

        def dot(self, W: Any, **options: Any) -> Array:
            product: Array = super().dot(applied(M, W), **options)
            return product

        # In terms of `dot` and `combine`, of any block.
        gram, update_gram = ColumnBlock.gram, ColumnBlock.update_gram

        def column_dot(self, W: Any) -> Array:
            product: Array = super().column_dot(applied(M, W))
            return product

        def norms(self) -> Array:
            squares = self.column_dot(self).real
            norms: Array = array_namespace(self.array).empty(squares.shape, squares.dtype)
            LENGTHS(squares, out=(norms,))
            return norms

    return InnerProductBlock
