"""The usual step of a Lanczos recurrence on the host, in a few NumPy calls per chunk of rows.

For blocks of some thousand rows the calls of `Decomposition` take longer than the arithmetic. This step does
the same for a block that turns out to be well conditioned, as almost all are: a projection on the last
columns, one on all of the basis, and Cholesky QR. Small matrices then show whether that was enough, by the
limits of `Adaptive`; if not, the general algorithm continues with what is left of the block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.linalg import blas, lapack

from blockvec import Profile, RowLayout

from ..blocks import Array, Block
from ..column_block import ColumnBlock, add_product, adjoint_product, summed
from .factors import NOISE, PLAIN_GROWTH, PLAIN_NOISE
from .gram_schmidt import AMPLIFIED
from .intrablock import ENOUGH

CHUNK_BYTES = 512 << 10  # rows of the basis that stay in a second-level cache from one product to the next
LEAST_ROWS = 256
UNIT = float(np.finfo(np.float64).eps) / 2
_LAPACK = {
    "d": (lapack.dpotrf, lapack.dtrtri, blas.dtrmm),
    "D": (lapack.zpotrf, lapack.ztrtri, blas.ztrmm),
}


def is_on_host(W: Block) -> bool:
    """Check whether a block is a double-precision array of the host; one in another inner product is not."""
    is_double = W.dtype.char in "dD"  # others are added up in double precision
    return is_double and getattr(W, "inner", None) is None and W.device == "cpu"


class _Rows:
    """Row-major W and V: products and updates chunk by chunk."""

    def __init__(self, W: Array, V: Array, layout: RowLayout | None) -> None:
        self._layout = layout
        rows, n = max(LEAST_ROWS, CHUNK_BYTES // max(V.strides[0], W.strides[0], 1)), len(W)
        self._chunks = (
            [(W[i : i + rows], V[i : i + rows]) for i in range(0, n, rows)] if n > rows else [(W, V)]
        )

    def dot(self, begin: int, end: int) -> Array:
        """Compute V^H W for columns of V."""
        return self._summed([U[:, begin:end].conj().T @ X for X, U in self._chunks])

    def project(self, ranges: Sequence[tuple[int, int]], S: Array) -> Array:
        """Set W = W - V S, where S is not zero in these rows only, and compute V^H W."""
        products = []
        for X, U in self._chunks:
            for i, j in ranges:
                X -= U[:, i:j] @ S[i:j]
            products.append(U.conj().T @ X)
        return self._summed(products)

    def subtract(self, S: Array) -> Array:
        """Set W = W - V S and compute W^H W."""
        products = []
        for X, U in self._chunks:
            X -= U @ S
            products.append(X.conj().T @ X)
        return self._summed(products)

    def multiply(self, T: Array) -> None:
        """Set W = W T."""
        for X, _ in self._chunks:
            X[:] = X @ T

    def gram(self) -> Array:
        """Compute W^H W."""
        return self._summed([X.conj().T @ X for X, _ in self._chunks])

    def _summed(self, parts: list[Array]) -> Array:
        """Add up the products of the chunks in their order, and those of all processes."""
        return summed(self._layout, sum(parts[1:], start=parts[0]))


def host_step(
    block: Block, V: Array, first: Sequence[tuple[int, int]], scale: float, into: Array | None
) -> tuple[Array, Array | None, float, int]:
    """Replace a block W by an orthonormal one that is orthogonal to V, and copy it to `into`.

    Arguments are those of `orthogonalize`; V and `into` are arrays, stored as W. Returns S and R with
    W_old = V S + W_new R, the length of the longest column of W_old (or `scale`), and the number of
    reductions. R is None where the block needs more than this step: W_new is then W_old - V S.
    """
    W, layout = block.array, block.layout
    if isinstance(block, ColumnBlock):
        S, R, length, reductions = column_step(W, V, first, scale, layout)
        if into is not None and R is not None:
            into[:] = W
        return S, R, length, reductions
    return _row_step(W, V, first, scale, into, layout)


def _moved(W: Array, V: Array, first: Sequence[tuple[int, int]], *_: object) -> tuple[str, int, int]:
    """Count the elements of three passes over W, two over V, and one over its first columns."""
    columns = 2 * V.shape[1] + sum(j - i for i, j in first)
    return W.dtype.name, len(V) * columns + 3 * W.size, 2 * W.size


@Profile.timed("orthogonalisation", _moved)
def _row_step(
    W: Array,
    V: Array,
    first: Sequence[tuple[int, int]],
    scale: float,
    into: Array | None,
    layout: RowLayout | None,
) -> tuple[Array, Array | None, float, int]:
    """Do the work of `host_step` on row-major arrays."""
    width, blocks = W.shape[1], _Rows(W, V, layout)
    S = np.zeros((V.shape[1], width), W.dtype)
    ranges = [(i, j) for i, j in first if i < j]
    for i, j in ranges:
        S[i:j] = blocks.dot(i, j)
    rest = blocks.project(ranges, S)
    G = blocks.subtract(rest)
    again, whole = square(rest), float(G.trace().real)
    length = max(scale, (whole + again + square(S)) ** 0.5)
    S += rest
    R, T, spread = _factor(G)
    if not is_enough(whole=whole, again=again, spread=spread, length=length, unit=UNIT):
        return S, None, length, 3
    reductions = 3
    if whole * spread > ENOUGH * width**2:  # a second factorisation leaves rounding errors only
        blocks.multiply(T)
        second, T, _ = _factor(blocks.gram())
        R, reductions = second @ R, 4
    if into is None:
        blocks.multiply(T)
    else:
        np.matmul(W, T, out=into)
        W[:] = into
    return S, R, length, reductions


@Profile.timed("orthogonalisation")
def column_step(
    W: Array, V: Array, first: Sequence[tuple[int, int]], scale: float, layout: RowLayout | None = None
) -> tuple[Array, Array | None, float, int]:
    """Do the work of `host_step` on column-major arrays, with one call of BLAS per product and update.

    For columns of a thousand rows each line takes as long as a product.
    """
    width = W.shape[1]
    S, removed = np.zeros((V.shape[1], width), W.dtype), 0.0
    for i, j in first:
        if i < j:
            U = V[:, i:j]
            S[i:j] = part = summed(layout, adjoint_product(U, W))
            add_product(U, part, W, -1.0)
            removed += square(part)
    rest = summed(layout, adjoint_product(V, W))
    add_product(V, rest, W, -1.0)
    S += rest
    again = square(rest)
    if width == 1:
        whole = float(summed(layout, np.asarray(np.vdot(W, W).real)))
        length = max(scale, (whole + again + removed) ** 0.5)
        spread = 1 / whole if whole > 0 else math.nan
        if not is_enough(whole=whole, again=again, spread=spread, length=length, unit=UNIT):
            return S, None, length, 3
        norm = whole**0.5
        W *= 1 / norm
        return S, np.full((1, 1), norm, W.dtype), length, 3
    G = summed(layout, adjoint_product(W, W))
    whole = float(G.trace().real)
    length = max(scale, (whole + again + removed) ** 0.5)
    R, T, spread = _factor(G)
    if not is_enough(whole=whole, again=again, spread=spread, length=length, unit=UNIT):
        return S, None, length, 3
    multiply, reductions = _LAPACK[W.dtype.char][2], 3
    multiply(1.0, T, W, side=1, overwrite_b=1)
    if whole * spread > ENOUGH * width**2:  # a second factorisation leaves rounding errors only
        second, T, _ = _factor(summed(layout, adjoint_product(W, W)))
        multiply(1.0, T, W, side=1, overwrite_b=1)
        R, reductions = second @ R, 4
    return S, R, length, reductions


def is_enough(*, whole: float, again: float, spread: float, length: float, unit: float) -> bool:
    """Check whether two projections and Cholesky QR suffice, by bounds of what `Adaptive` looks at.

    Parameters
    ----------
    whole, again, spread : float
        Squared Frobenius norms of the projected block, of what its last projection removed, and of the
        inverse of its Cholesky factor. NaN fails.
    length : float
        Of the longest column before the projections, or the norm of the operator.
    unit : float
        Unit roundoff.
    """
    least = NOISE * unit * length / PLAIN_NOISE
    growth = whole * spread
    is_clear = spread * least**2 < 1 and growth < PLAIN_GROWTH
    return is_clear and again * spread <= 1 and growth + again * spread <= AMPLIFIED**2


def square(S: Array) -> float:
    """Compute the squared Frobenius norm."""
    return float(np.vdot(S, S).real)


def _factor(G: Array) -> tuple[Array, Array, float]:
    """Compute R with G = R^H R, its inverse, and the squared norm of that: NaN for an indefinite G."""
    potrf, trtri, _ = _LAPACK[G.dtype.char]
    R, failed = potrf(G, clean=1)
    T, singular = trtri(R)
    return R, T, math.nan if failed or singular else square(T)
