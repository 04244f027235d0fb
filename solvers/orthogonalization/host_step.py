"""The usual step of a recurrence on column-major blocks of the host, in a few calls of BLAS.

For columns of some thousand rows the calls of `Decomposition` take longer than the arithmetic. This step does
the same for a block that turns out to be well conditioned, as almost all are: a projection on the last
columns, one on all of the basis, and Cholesky QR. Small matrices then show whether that was enough, by the
limits of `adaptive`; if not, the general algorithm continues with what is left of the block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import blas

from blockvec import Profile

from ..blocks import Array, Block, ColumnBlock, applied
from .factors import AMPLIFIED, ENOUGH, NOISE, PLAIN_GROWTH, PLAIN_NOISE, UNIT, cholesky_factor, square

_TRMM = {"d": blas.dtrmm, "D": blas.ztrmm}


@Profile.timed("orthogonalisation")
def host_step(
    block: Block, basis: Block, first: Sequence[tuple[int, int]], scale: float
) -> tuple[Array, Array | None, float, int]:
    """Replace a block W in double precision by an orthonormal one that is orthogonal to V.

    Arguments are those of `orthogonalize`, column-major blocks. Returns S and R with
    W_old = V S + W_new R, the length of the longest column of W_old (or `scale`), and the number of
    reductions. R is None where the block needs more than this step: W_new is then W_old - V S.
    """
    M = getattr(block, "inner", None)
    W, V = ColumnBlock(block.array, block.layout), ColumnBlock(basis.array, basis.layout)
    S = np.zeros((V.shape[1], W.shape[1]), W.dtype)
    views = [(i, j, V[:, i:j]) for i, j in first if i < j]
    MW = applied(M, W)
    for i, j, U in views:
        S[i:j] = U.dot(MW)
    for i, j, U in views:
        U.combine(S[i:j], alpha=-1, beta=1, out=W)
    MW = applied(M, W)
    rest, G, taken = V.dot(MW), W.dot(MW), square(S)
    S += rest
    R, T, again, whole, spread = cholesky_factor(G, rest)
    growth, length = whole * spread, max(scale, (whole + again + taken) ** 0.5)
    V.combine(rest, alpha=-1, beta=1, out=W)
    if not is_enough(growth=growth, again=again, spread=spread, length=length, unit=UNIT):
        return S, None, length, 2
    _multiply(W.array, T)
    if growth <= ENOUGH * len(R) ** 2:
        return S, R, length, 2
    second, T, *_ = cholesky_factor(W.dot(applied(M, W)))  # leaves rounding errors only
    _multiply(W.array, T)
    return S, second @ R, length, 3


def _multiply(W: Array, T: Array) -> None:
    if len(T) == 1:
        W *= T[0, 0]
    else:
        _TRMM[T.dtype.char](1.0, T, W, side=1, overwrite_b=1)


def is_enough(
    *,
    growth: float,
    again: float,
    spread: float,
    length: float,
    unit: float,
    amplified: float = AMPLIFIED,
) -> bool:
    """Check whether two projections and Cholesky QR suffice, by bounds of what `adaptive` looks at.

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
