"""Orthogonalise a block against a basis and within itself, and determine its rank.

Given an orthonormal basis V and a block W, `orthogonalize` returns Q, S and R with

    W = V S + Q R,   Q^H Q = I,   V^H Q = 0

to working precision for every W: a zero block, repeated columns, a condition number of 1e15, columns of
very different lengths, or a block inside span(V), as long as squares of its entries neither overflow (an
error) nor underflow (lost columns). Directions of W that are rounding noise are replaced in
Q by random ones, and their rows of R are zero. Rank loss is therefore no special case for the caller, and
shapes never change. Tall blocks stay on their device; small matrices are processed on the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import blas

from blockvec import Profile
from blockvec.errors import DTypeError, OptionError, ShapeError
from blockvec.system.exports import on_first_use
from blockvec.system.frozen import frozen

from ..blocks import Array, Block, ColumnBlock, applied
from ..small_matrices import ENOUGH, UNIT, cholesky_factor, is_enough, square

if not TYPE_CHECKING:
    policies = (
        "Adaptive BCGSIPlus CholQR2 PIP PIPPlus Policy RandomizedCholQR RankedCholQR SVQB ShiftedCholQR3 TSQR"
    )
    __getattr__, __dir__ = on_first_use(
        __name__, {}, removed=dict.fromkeys(policies.split(), "orthogonalize without a policy")
    )

__all__ = ["Orthogonalized", "orthogonalize"]

_TRMM = {"d": blas.dtrmm, "D": blas.ztrmm}


@frozen
class Orthogonalized:
    """Result of `orthogonalize`: W = V S + Q R, with Q stored in W.

    Attributes
    ----------
    S : array, shape (m, b)
    R : array, shape (b', b)
        For a Q of b' columns.
    lost : array of bool, shape (b',)
        Columns of Q that are random directions; their rows of R are zero, and they come last.
    reductions : int
        Number of synchronising reductions over the tall dimension. Products of the same state of the block
        are independent and count as one.
    """

    S: Array
    R: Array
    lost: Array
    reductions: int


@Profile.timed("orthogonalisation")
def host_step(
    block: Block, basis: Block, first: Sequence[tuple[int, int]], scale: float, M: Any = None
) -> tuple[Array, Array | None, float, int]:
    """Take the usual step of a recurrence: make a block W orthonormal, and orthogonal to V.

    For columns of some thousand rows the calls of `Decomposition` take longer than the arithmetic. This step
    does the same for a block in double precision that turns out to be well conditioned, as almost all are: a
    projection on the last columns, one on all of the basis, and Cholesky QR. Small matrices then show whether
    that was enough. Without it easy problems with shifts take 1.14 times as long in the mean of two draws,
    all 60 of them 1.06.

    Arguments are those of `orthogonalize`, column-major blocks. Returns S and R with
    W_old = V S + W_new R, the length of the longest column of W_old (or `scale`), and the number of
    reductions. R is None where the block needs more than this step: W_new is then W_old - V S.
    """
    M = getattr(block, "inner", None) if M is None else M
    W, V = ColumnBlock(block.array, block.layout), ColumnBlock(basis.array, basis.layout)
    S = np.zeros((V.shape[1], W.shape[1]), W.dtype)
    views = [(i, j, V[:, i:j]) for i, j in first if i < j]
    MW = applied(M, W) if views else W
    for i, j, U in views:
        S[i:j] = U.dot(MW)
    for i, j, U in views:
        U.combine(S[i:j], alpha=-1, beta=1, out=W)
    MW = applied(M, W)
    rest, G, taken = V.dot(MW), W.dot(MW), square(S)
    S += rest
    R, T, again, whole, spread = cholesky_factor(G, rest)
    growth, length = whole * spread, max(scale, math.sqrt(whole + again + taken))
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
    if len(T) == 1:  # BLAS takes six times as long for a column
        W *= T[0, 0]
    else:
        _TRMM[T.dtype.char](1.0, T, W, side=1, overwrite_b=1)


@Profile.timed("orthogonalisation")
def orthogonalize(
    W: Block,
    V: Block | None = None,
    *,
    policy: None = None,
    M: Any = None,
    scale: float | None = None,
    first: Sequence[tuple[int, int]] | None = None,
    filled: int | None = None,
    max_rank: int | None = None,
    into: Block | None = None,
    rng: Any = 0,
) -> Orthogonalized:
    """Replace W by an orthonormal Q, orthogonal to V, with W = V S + Q R.

    Parameters
    ----------
    W : BlockVector, shape (K, b)
        Overwritten by Q.
    V : BlockVector, shape (K, m), optional
        Orthonormal columns.
    policy : None
        Of earlier versions: the algorithm is suitable for every block.
    M : Operator, optional
        Hermitian positive definite matrix of the inner product x^H M y, also that in which V is orthonormal.
        It is applied once per reduction.
    scale : float, optional
        (Estimate of the) norm of the operator that produced W: rounding errors of this size are noise even
        in short columns. A longer column of W replaces it; without `scale` each column has its own level.
    first : sequence of (begin, end), optional
        Column ranges of V for the first pass, if W is known to be nearly orthogonal to the others (Lanczos
        recurrence). The second pass always covers all of V.
    filled : int, optional
        Number of columns of V before others that are zero. These take no room in the space; products may
        read them, since every width needs a kernel of its own.
    max_rank : int, optional
        Number of columns to keep in Q, if the complement of V has no room for all.
    into : BlockVector, shape (K, b'), optional
        Receives a second copy of Q, for example behind the basis; it must not overlap W or V.
    rng : Generator or int
        Source of replacement directions; one number is drawn per call, whether or not it is needed.

    Returns
    -------
    Orthogonalized

    Raises
    ------
    BreakdownError
        If W holds NaN, Inf, or numbers whose squares overflow, or M is not positive definite.
    ShapeError
        For more columns than the space has dimensions.
    DTypeError, OptionError
        If W is no block, or for a policy.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import BlockVector, orthogonalize
    >>> W = BlockVector(np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
    >>> result = orthogonalize(W)
    >>> result.lost.tolist()
    [False, True]
    >>> np.allclose(W.gram(), np.eye(2))
    True
    """
    if policy is not None:
        raise OptionError(f"policy: got {policy!r}; the algorithm is suitable for every block: leave it out.")
    key = int(np.random.default_rng(rng).bit_generator.random_raw()) >> 1  # a faster call than `integers`
    before, reductions = None, 0
    if not hasattr(W, "n_global"):
        raise DTypeError(f"orthogonalize: W is a {type(W).__name__}; give a block, as BlockVector(W).")
    rows, width = W.n_global, W.shape[1]
    most = width if max_rank is None else min(max_rank, width)
    taken = filled if filled is not None else 0 if V is None else V.shape[1]
    if most + taken > rows:
        raise ShapeError(
            f"orthogonalize: a space of dimension {rows} has no room for {most} columns besides a basis of "
            f"{taken}; give max_rank={max(rows - taken, 0)}."
        )
    is_usual = isinstance(W, ColumnBlock) and W.dtype.char in "dD" and 0 < width == most
    if is_usual and first is not None:
        before, R, length, reductions = host_step(W, W[:, :0] if V is None else V, first, scale or 0.0, M)
        if R is not None:
            if into is not None:
                into[:, :] = W
            return Orthogonalized(before, R, np.zeros(len(R), bool), reductions)
        scale, first = None if scale is None else length, None
    from .decomposition import Decomposition

    d = Decomposition(W, V, M, scale)
    if width:
        d.orthonormalise(first, most)
    lost = d.lost
    if lost.any():
        d.refill(key)
        d.clean()
    if into is not None:
        into[:, :] = d.X
    S = d.S if before is None else before + d.S
    return Orthogonalized(S, d.R, lost, reductions + d.reductions)


orthogonalize.orthogonalize = orthogonalize  # type: ignore[attr-defined]  # its path in 0.2; leaves in 0.4
