"""Orthogonalise a block against a basis and within itself, deciding the rank on the way.

Given an orthonormal basis V and a block W, `orthogonalize` returns Q, S and R with

    W = V S + Q R,   Q^H Q = I,   V^H Q = 0

to working precision, whatever W is: a zero block, repeated columns, a condition number of 1e15, columns of
wildly different length, or a block inside span(V). Directions of W that are rounding noise are replaced in
Q by random ones, and their rows of R are zero. Rank loss is therefore no special case for the caller and
shapes never change. The tall blocks stay on their device; the small matrices are worked on on the host.

How it is done is a *policy*: anything that takes a `Decomposition` W = V S + X R and changes X until it is
orthonormal. `gram_schmidt` and `intrablock` hold them, a few lines each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from blockvec.errors import OptionError, ShapeError

from ..blocks import Array, Block
from .decomposition import Decomposition
from .gram_schmidt import PIP, Adaptive, BCGSIPlus, PIPPlus, clean
from .intrablock import SVQB, TSQR, CholQR2, RandomizedCholQR, RankedCholQR, ShiftedCholQR3

__all__ = [
    "PIP",
    "SVQB",
    "TSQR",
    "Adaptive",
    "BCGSIPlus",
    "CholQR2",
    "Orthogonalized",
    "PIPPlus",
    "Policy",
    "RandomizedCholQR",
    "RankedCholQR",
    "ShiftedCholQR3",
    "orthogonalize",
]


BLIND = (PIP, PIPPlus, BCGSIPlus)  # to what a first pass over a part of the basis has left
WITHIN = (CholQR2, RankedCholQR, ShiftedCholQR3, SVQB, TSQR, RandomizedCholQR)


class Policy(Protocol):
    """How a block is made orthonormal."""

    def __call__(self, d: Decomposition) -> None:
        """Change X in W = V S + X R until X^H X = I and V^H X = 0, but for columns of zeros that are lost."""


@dataclass(frozen=True, slots=True)
class Orthogonalized:
    """W = V S + Q R, where Q has taken W's place.

    Attributes
    ----------
    S : array, shape (m, b)
    R : array, shape (b', b)
        With b' columns left in Q.
    lost : array of bool, shape (b',)
        Columns of Q that are random directions; their rows of R are zero, and they come last.
    reductions : int
        States of the block that products over the tall dimension were taken of. Products of one state need
        not wait for one another.
    """

    S: Array
    R: Array
    lost: Array
    reductions: int


def orthogonalize(
    W: Block,
    V: Block | None = None,
    *,
    policy: Policy | None = None,
    M: Any = None,
    scale: float | None = None,
    first: Sequence[tuple[int, int]] | None = None,
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
    policy : Policy, optional
        How; the default, `Adaptive`, fits any block. Without V one within a block does as well.
    M : Operator, optional
        Hermitian positive definite: x^H M y is the inner product of all that is called orthonormal here, V
        included. It is applied once for each reduction.
    scale : float, optional
        Norm of the operator that W came from, as far as it is known: its rounding errors count as noise even
        in short columns. A longer column of W stands for it; without `scale` each column for itself.
    first : sequence of (begin, end), optional
        Column ranges of V that the first pass works on, where W is known to be nearly orthogonal to the
        rest (a Lanczos recurrence). The second pass always takes all of V.
    max_rank : int, optional
        Columns to keep in Q, the others being dropped, where the complement of V has no room for more.
    into : BlockVector, shape (K, b'), optional
        Where to put a second copy of Q, beside the basis for instance; it must not overlap W or V.
    rng : Generator or int
        Where replaced directions come from; one draw a call, whether it is needed or not.

    Returns
    -------
    Orthogonalized

    Raises
    ------
    BreakdownError
        Where W holds NaN or Inf, M is not positive definite, or a policy that decides no rank meets a
        block that it cannot factorise.
    OptionError, ShapeError
        For a policy within a block beside V, `first` with one that cannot see what is left, and where there
        is no room.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import BlockVector
    >>> from solvers.orthogonalize import orthogonalize
    >>> W = BlockVector(np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
    >>> result = orthogonalize(W)
    >>> result.lost.tolist()
    [False, True]
    >>> np.allclose(W.gram(), np.eye(2))
    True
    """
    policy = policy or Adaptive()
    _check(W, V, policy, first, max_rank)
    key = int(np.random.default_rng(rng).integers(0, 2**63))
    d = Decomposition(W, V, M=M, scale=scale, first=first, max_rank=max_rank)
    if d.width:
        policy(d)
    d.limit_rank()
    lost = d.lost
    if lost.any():
        d.refill(key)
        clean(d)
    S = d.finish(into)
    return Orthogonalized(S, d.R, lost, d.reductions)


def _check(W: Block, V: Block | None, policy: Policy, first: Any, max_rank: int | None) -> None:
    name, taken = type(policy).__name__, 0 if V is None else V.shape[1]
    if taken and isinstance(policy, WITHIN):
        raise OptionError(
            f"orthogonalize: {name} works within a block, and a basis is given; take BCGSIPlus({name}())."
        )
    if first is not None and isinstance(policy, BLIND):
        raise OptionError(
            f"orthogonalize: {name} does not look at what a pass over a part of V has left; leave first out, "
            "or take Adaptive()."
        )
    columns = W.shape[1] if max_rank is None else min(max_rank, W.shape[1])
    if getattr(W, "comm", None) is None and columns + taken > W.shape[0]:
        raise ShapeError(
            f"orthogonalize: vectors of {W.shape[0]} elements have no room for {columns} columns beside a "
            f"basis of {taken}; give max_rank={max(W.shape[0] - taken, 0)}."
        )
