"""Policies of orthogonalisation: block Gram-Schmidt against a basis, and Cholesky QR within a block.

================  ==========  ==============================================
policy            reductions  use
================  ==========  ==============================================
`Adaptive`        2 to 4      default
`RankedCholQR`    1 to 3      within a block; what the default is without V
================  ==========  ==============================================

Both make any block orthonormal to O(u). With `Adaptive`, an ill-conditioned block adds one or two reductions
and a loss of rank adds two.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from blockvec.system.frozen import frozen

from ..blocks import Array
from .decomposition import Decomposition
from .factors import AMPLIFIED, ENOUGH, Step, cholesky, ranked

NORM_DROP = 0.5  # ratio of lengths after and before a pass, below which another follows; "twice is enough"
MAX_PASSES = 3  # passes over V after the first
CLEAN = 8.0  # u per column: ||X^H X - I||_F that rounding alone causes


@frozen
class RankedCholQR:
    """Cholesky QR with pivoting by signal-to-noise ratio, repeated until a pass is well conditioned.

    The default without a basis, for every block. The first pass resolves a condition number of u^(-1/2), the
    second 1/u, and determines the rank; a third follows if the second was ill conditioned. R is triangular
    after one pass, and otherwise triangular up to the order of its columns.

    Parameters
    ----------
    enough : float
        Growth of rounding errors per column up to which no further pass follows. Policies that process the
        block again afterwards may allow more.

    References
    ----------
    Fukaya, Kannan, Nakatsukasa, Yamamoto, Yanagisawa, SIAM J. Sci. Comput. 42 (2020) A477 (shifted CholQR).
    """

    enough: float = ENOUGH

    def __call__(self, d: Decomposition) -> None:
        """Set lost columns of X to zero."""
        for final in (False, True, True):

            def otherwise(G: Array, final: bool = final) -> Step:
                return ranked(G, d.noise, d.unit, final=final)

            d.factorize(otherwise)
            if d.growth <= self.enough * len(d.lost):
                break


@frozen
class Adaptive:
    """Block Gram-Schmidt, twice, without the second half if small matrices prove that one was sufficient.

    The default, for every block. The first half projects and factorises within the block. It multiplies
    rounding errors by ||R^-1||, and propagates the loss of orthogonality of V by a factor ||S R^-1||; if this
    factor is at most one, errors do not accumulate over many blocks. Both are computed from small matrices
    that are on the host. The second half is repeated while a pass removes half of a column or more. If the
    first projection covers a part of V, one on all of V follows before the host waits.

    Parameters
    ----------
    intra : callable
        A policy within a block.

    References
    ----------
    Barlow, Smoktunowicz, Numer. Math. 123 (2013) 395; Carson, Lund, Ma, Oktay, arXiv:2408.10109 (BCGSI+A);
    Daniel, Gragg, Kaufman, Stewart, Math. Comp. 30 (1976) 772 (when to reorthogonalise).
    """

    intra: Callable[[Decomposition], None] = RankedCholQR()

    def __call__(self, d: Decomposition) -> None:
        """Set lost columns of X to zero."""
        for _ in range(1 if d.first is None else 2):
            C = d.dot()
            d.project(C)
        self.intra(d)
        d.limit_rank()
        if not len(d.lost) or d.lost.any():
            return  # random replacements must be projected, together with the other columns
        amplified = d.error.max() > AMPLIFIED * d.unit or d.growth > ENOUGH * d.width
        is_narrowed = len(d.lost) < d.width
        if amplified or is_narrowed or np.linalg.norm(np.linalg.solve(d.R.T, C.host.T)) > 1:
            clean(d)


def clean(d: Decomposition) -> None:
    """Project and orthonormalise until a pass changes little; no column of X may be zero."""
    identity = np.eye(len(d.lost))
    for _ in range(MAX_PASSES):
        d.project(d.dot())
        G = d.gram()
        if np.linalg.norm(G - identity) <= CLEAN * d.unit * len(G):
            return
        step = cholesky(G)
        d.apply(step)
        if np.diagonal(step.R).real.min(initial=1) >= NORM_DROP:
            return
