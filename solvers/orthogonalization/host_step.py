"""The usual step of a Lanczos recurrence on the host, in a few NumPy or BLAS calls.

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
Ranges = Sequence[tuple[int, int]]
CHUNK_BYTES = 512 << 10  # bytes: rows of the basis that stay in a second-level cache between two products
LEAST_ROWS = 256  # rows of a chunk
UNIT = float(np.finfo(np.float64).eps) / 2
_LAPACK = {
    "d": (lapack.dpotrf, lapack.dtrtri, blas.dtrmm),
    "D": (lapack.zpotrf, lapack.ztrtri, blas.ztrmm),
}


def is_on_host(W: Block) -> bool:
    """Check whether a block is a double-precision array of the host; one in another inner product is not."""
    is_double = W.dtype.char in "dD"  # others are added up in double precision
    return is_double and getattr(W, "inner", None) is None and W.device == "cpu"


class _Columns:
    """Column-major W and V: one call of BLAS per product and update; inner products are x^H image(y).

    For columns of a thousand rows each line of Python takes as long as a product.
    """

    def __init__(
        self, W: Array, V: Array, layout: RowLayout | None, image: Callable[[Array], Array] | None
    ) -> None:
        self._W, self._V, self._layout, self._image = W, V, layout, image

    def products(self, ranges: Ranges, S: Array) -> None:
        """Set S = V^H W for these columns of V."""
        MW = self._W if self._image is None else self._image(self._W)
        for i, j in ranges:
            S[i:j] = summed(self._layout, adjoint_product(self._V[:, i:j], MW))

    def project(self, ranges: Ranges, S: Array) -> tuple[Array, Array]:
        """Set W = W - V S, where S is not zero in these rows only; compute V^H W and W^H W."""
        W, V = self._W, self._V
        for i, j in ranges:
            add_product(V[:, i:j], S[i:j], W, -1.0)
        MW = W if self._image is None else self._image(W)
        return both_summed(self._layout, adjoint_product(V, MW), adjoint_product(W, MW))

    def update(self, S: Array, T: Array | None) -> None:
        """Set W = W - V S, and W = W T for a triangular T."""
        add_product(self._V, S, self._W, -1.0)
        if T is not None:
            self.multiply(T)

    def multiply(self, T: Array) -> None:
        """Set W = W T for a triangular T."""
        if len(T) == 1:
            self._W *= T[0, 0]
        else:
            _LAPACK[T.dtype.char][2](1.0, T, self._W, side=1, overwrite_b=1)

    def gram(self) -> Array:
        """Compute W^H W."""
        W = self._W
        return summed(self._layout, adjoint_product(W, W if self._image is None else self._image(W)))


class _Rows:
    """Row-major W and V, with the operations of `_Columns`, chunk by chunk of rows, on all cores."""

    def __init__(self, W: Array, V: Array, layout: RowLayout | None) -> None:
        self._layout = layout
        rows, n = max(LEAST_ROWS, CHUNK_BYTES // max(V.strides[0], W.strides[0], 1)), len(W)
        self._chunks = [(W[i : i + rows], V[i : i + rows]) for i in range(0, max(n, 1), rows)]

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

    def products(self, ranges: Ranges, S: Array) -> None:
        for i, j in ranges:
            parts = self._map(lambda X, U, i=i, j=j: U[:, i:j].conj().T @ X)  # type: ignore[misc]
            S[i:j] = summed(self._layout, _added(parts))

    def project(self, ranges: Ranges, S: Array) -> tuple[Array, Array]:
        def work(X: Array, U: Array) -> tuple[Array, Array]:
            for i, j in ranges:
                X -= U[:, i:j] @ S[i:j]
            return U.conj().T @ X, X.conj().T @ X

        products, grams = zip(*self._map(work), strict=True)
        return both_summed(self._layout, _added(products), _added(grams))

    def update(self, S: Array, T: Array | None) -> None:
        def work(X: Array, U: Array) -> None:
            X -= U @ S
            if T is not None:
                X[:] = X @ T

        self._map(work)

    def multiply(self, T: Array) -> None:
        def work(X: Array, _: Array) -> None:
            X[:] = X @ T

        self._map(work)

    def gram(self) -> Array:
        return summed(self._layout, _added(self._map(lambda X, _: X.conj().T @ X)))


def _moved(block: Block, V: Array, first: Ranges, *_: object) -> tuple[str, int, int]:
    """Count the elements of three passes over W, two over V, and one over its first columns."""
    name = block.dtype.name
    if isinstance(block, ColumnBlock):  # whose products are recorded on their own
        return name, 0, 0
    columns, size = 2 * V.shape[1] + sum(j - i for i, j in first), block.array.size
    return name, len(V) * columns + 3 * size, 2 * size


@Profile.timed("orthogonalisation", _moved)
def host_step(
    block: Block,
    V: Array,
    first: Ranges,
    scale: float,
    image: Callable[[Array], Array] | None = None,
) -> tuple[Array, Array | None, float, int]:
    """Replace a block W by an orthonormal one that is orthogonal to V.

    Arguments are those of `orthogonalize`; V is an array, stored as W. Inner products of a `ColumnBlock` are
    x^H image(y), if that is given. Returns S and R with W_old = V S + W_new R, the length of the longest
    column of W_old (or `scale`), and the number of reductions. R is None where the block needs more than this
    step: W_new is then W_old - V S.
    """
    W, layout = block.array, block.layout
    tall = _Columns(W, V, layout, image) if isinstance(block, ColumnBlock) else _Rows(W, V, layout)
    S = np.zeros((V.shape[1], W.shape[1]), W.dtype)
    ranges = [(i, j) for i, j in first if i < j]
    tall.products(ranges, S)
    rest, G = tall.project(ranges, S)
    taken = square(S)
    S += rest
    R, T, again, whole, spread = cholesky_factor(G, rest)
    growth, length = whole * spread, max(scale, (whole + again + taken) ** 0.5)
    if not is_enough(growth=growth, again=again, spread=spread, length=length, unit=UNIT):
        tall.update(rest, None)
        return S, None, length, 2
    tall.update(rest, T)
    if growth <= ENOUGH * len(R) ** 2:
        return S, R, length, 2
    second, T, *_ = cholesky_factor(tall.gram())  # leaves rounding errors only
    tall.multiply(T)
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
