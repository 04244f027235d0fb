"""The usual step of a Lanczos recurrence on the host, in a few NumPy calls per chunk of rows.

For blocks of some thousand rows the calls of `Decomposition` take longer than the arithmetic. This step does
the same for a block that turns out to be well conditioned, as almost all are: a projection on the last
columns, one on all of the basis, and Cholesky QR. Small matrices then show whether that was enough, by the
limits of `Adaptive`; if not, the general algorithm continues with what is left of the block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from scipy.linalg import blas, lapack

from blockvec import Profile, RowLayout, run_in_threads, single_threaded_blas

from ..blocks import Array, Block
from ..column_block import ColumnBlock, add_product, adjoint_product, both_summed, summed
from .factors import AMPLIFIED, ENOUGH, NOISE, PLAIN_GROWTH, PLAIN_NOISE

Result = TypeVar("Result")
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
    """Row-major W and V: products and updates chunk by chunk, on all cores."""

    def __init__(self, W: Array, V: Array, layout: RowLayout | None) -> None:
        self._layout = layout
        rows, n = max(LEAST_ROWS, CHUNK_BYTES // max(V.strides[0], W.strides[0], 1)), len(W)
        self._chunks = (
            [(W[i : i + rows], V[i : i + rows]) for i in range(0, n, rows)] if n > rows else [(W, V)]
        )

    def _map(self, work: Callable[[Array, Array], Result]) -> list[Result]:
        """Call a function of each chunk of W and V; return its results in their order."""
        if len(self._chunks) == 1:
            return [work(*self._chunks[0])]
        found: dict[int, Result] = {}

        def run(index: int) -> None:
            found[index] = work(*self._chunks[index])

        with single_threaded_blas:
            run_in_threads(run, len(self._chunks))
        return [found[index] for index in range(len(self._chunks))]

    def dot(self, begin: int, end: int) -> Array:
        """Compute V^H W for columns of V."""
        return summed(self._layout, _added(self._map(lambda X, U: U[:, begin:end].conj().T @ X)))

    def project(self, ranges: Sequence[tuple[int, int]], S: Array) -> tuple[Array, Array]:
        """Set W = W - V S, where S is not zero in these rows only; compute V^H W and W^H W."""

        def work(X: Array, U: Array) -> tuple[Array, Array]:
            for i, j in ranges:
                X -= U[:, i:j] @ S[i:j]
            return U.conj().T @ X, X.conj().T @ X

        products, grams = zip(*self._map(work), strict=True)
        return both_summed(self._layout, _added(products), _added(grams))

    def subtract(self, S: Array, T: Array | None) -> None:
        """Set W = W - V S, and W = W T."""

        def work(X: Array, U: Array) -> None:
            X -= U @ S
            if T is not None:
                X[:] = X @ T

        self._map(work)

    def multiply(self, T: Array) -> None:
        """Set W = W T."""

        def work(X: Array, _: Array) -> None:
            X[:] = X @ T

        self._map(work)

    def gram(self) -> Array:
        """Compute W^H W."""
        return summed(self._layout, _added(self._map(lambda X, _: X.conj().T @ X)))


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
    rest, G = blocks.project(ranges, S)
    taken = square(S)
    S += rest
    R, T, again, whole, spread = cholesky_factor(G, rest)
    length = max(scale, (whole + again + taken) ** 0.5)
    is_last = whole * spread <= ENOUGH * width**2
    if not is_enough(growth=whole * spread, again=again, spread=spread, length=length, unit=UNIT):
        blocks.subtract(rest, None)
        return S, None, length, 2
    blocks.subtract(rest, T)
    if not is_last:  # a second factorisation leaves rounding errors only
        second, T, *_ = cholesky_factor(blocks.gram())
        R = second @ R
        blocks.multiply(T)
    if into is not None:
        into[:] = W
    return S, R, length, 2 if is_last else 3


@Profile.timed("orthogonalisation")
def column_step(
    W: Array,
    V: Array,
    first: Sequence[tuple[int, int]],
    scale: float,
    layout: RowLayout | None = None,
    image: Callable[[Array], Array] | None = None,
) -> tuple[Array, Array | None, float, int]:
    """Do the work of `host_step` on column-major arrays, with one call of BLAS per product and update.

    For columns of a thousand rows each line takes as long as a product. Inner products are x^H image(y), if
    that is given.
    """
    width, MW = W.shape[1], W if image is None else image(W)
    S, removed = np.zeros((V.shape[1], width), W.dtype), 0.0
    for i, j in first:
        if i < j:
            U = V[:, i:j]
            S[i:j] = part = summed(layout, adjoint_product(U, MW))
            add_product(U, part, W, -1.0)
            removed += square(part)
    if image is not None:
        MW = image(W)
    rest, G = both_summed(layout, adjoint_product(V, MW), adjoint_product(W, MW))
    add_product(V, rest, W, -1.0)
    S += rest
    R, T, again, whole, spread = cholesky_factor(G, rest)
    length = max(scale, (whole + again + removed) ** 0.5)
    if not is_enough(growth=whole * spread, again=again, spread=spread, length=length, unit=UNIT):
        return S, None, length, 2
    if width == 1:
        W *= T[0, 0]
        return S, R, length, 2
    multiply = _LAPACK[W.dtype.char][2]
    multiply(1.0, T, W, side=1, overwrite_b=1)
    if whole * spread <= ENOUGH * width**2:
        return S, R, length, 2
    if image is not None:
        MW = image(W)
    second, T, *_ = cholesky_factor(summed(layout, adjoint_product(W, MW)))  # leaves rounding errors only
    multiply(1.0, T, W, side=1, overwrite_b=1)
    return S, second @ R, length, 3


def is_enough(
    *,
    growth: float,
    again: float,
    spread: float,
    length: float,
    unit: float,
    amplified: float = AMPLIFIED,
) -> bool:
    """Check whether two projections and Cholesky QR suffice, by bounds of what `Adaptive` looks at.

    Parameters
    ----------
    growth : float
        That of the Cholesky factorisation, as in `FactorReport`, or a bound of it: the product of the squared
        Frobenius norms of the projected block and of the inverse of its factor. NaN fails.
    again, spread : float
        Squared Frobenius norms of what the last projection removed, and of that inverse.
    length : float
        Of the longest column before the projections, or the norm of the operator.
    unit : float
        Unit roundoff.
    amplified : float
        Accepted loss of orthogonality, in u.
    """
    least = NOISE * unit * length / PLAIN_NOISE
    is_clear = spread * least**2 < 1 and growth < PLAIN_GROWTH
    return is_clear and again * spread <= 1 and growth + again * spread <= amplified**2


def square(S: Array) -> float:
    """Compute the squared Frobenius norm."""
    return float(np.vdot(S, S).real)


def cholesky_factor(G: Array, rest: Array | None = None) -> tuple[Array, Array, float, float, float]:
    """Compute R with G - rest^H rest = R^H R and its inverse, and squared norms.

    These are those of `rest`, of R, and of its inverse, which is NaN for an indefinite matrix. For the Gram
    matrix G of a block and its products `rest` with orthonormal columns, the difference is the Gram matrix of
    the projected block. It is accurate where `rest` is no larger than that, which `is_enough` requires.
    """
    again = 0.0
    if rest is not None:
        again, G = square(rest), G - rest.conj().T @ rest
    potrf, trtri, _ = _LAPACK[G.dtype.char]
    R, failed = potrf(G, clean=1)
    T, singular = trtri(R)
    whole = abs(float(G.trace().real))  # rounding may leave a negative one in a semidefinite inner product
    return R, T, again, whole, math.nan if failed or singular else square(T)


def _added(parts: Sequence[Array]) -> Array:
    """Add up arrays in their order."""
    return parts[0] if len(parts) == 1 else sum(parts[1:], start=parts[0])
