"""Policies against a basis: variants of block classical Gram-Schmidt.

===========  ==========  ==========================  =======================================================
policy       reductions  loss of orthogonality       use
===========  ==========  ==========================  =======================================================
`PIP`        1           O(u) kappa^2                if that loss is acceptable
`PIPPlus`    2           O(u) if kappa < u^(-1/2)    many processes: a reduction costs more than a pass
`BCGSIPlus`  4           O(u)                        if the cost must not depend on the block
`Adaptive`   2 to 4      O(u)                        default, for every block
===========  ==========  ==========================  =======================================================

kappa is the condition number of [V W]. For the last two, an ill-conditioned block adds one or two reductions
and a loss of rank adds two.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from blockvec.system.frozen import frozen

from .decomposition import Decomposition
from .factors import AMPLIFIED, ENOUGH, cholesky
from .intrablock import RankedCholQR, definite

WELL_CONDITIONED = 1e3  # growth per column that one more Cholesky factorisation reduces to O(u)
NORM_DROP = 0.5  # another pass follows if a pass leaves less of a column ("twice is enough": 1/sqrt 2)
MAX_PASSES = 4
FIRST = RankedCholQR(WELL_CONDITIONED)  # within the block, if a second half always follows ...
WITHIN = RankedCholQR()  # ... and if it may be omitted
CLEAN = 8.0  # ||X^H X - I||_F per column, in u, that rounding alone causes


@frozen
class PIP:
    """Block classical Gram-Schmidt by the Pythagorean theorem: one reduction.

    With S = V^H W the Gram matrix of W - V S is W^H W - S^H S, so that one product with [V W] is sufficient.
    Use it if the loss of orthogonality O(u) kappa^2 is acceptable.

    References
    ----------
    Carson, Lund, Rozloznik, SIAM J. Matrix Anal. Appl. 42 (2021) 1365, algorithm BCGS-PIP.
    """

    def __call__(self, d: Decomposition) -> None:
        """Raise `BreakdownError` if kappa^2 exceeds 1/u."""
        S = d.dot()
        G = d.gram()
        d.project(S)
        d.apply(definite(G - S.host.conj().T @ S.host, d, type(self).__name__))


@frozen
class PIPPlus(PIP):
    """`PIP`, twice: two reductions and O(u) orthogonality if O(u) kappa^2 <= 1/2.

    Use it with many processes: no two-pass method has fewer reductions. On one device `Adaptive` moves less
    data.

    References
    ----------
    Carson, Lund, Ma, Oktay, arXiv:2405.01298, algorithm BCGS-PIP+.
    """

    def __call__(self, d: Decomposition) -> None:
        """Raise `BreakdownError` if kappa^2 exceeds 1/u."""
        super().__call__(d)
        super().__call__(d)


@frozen
class BCGSIPlus:
    """Project, factorise within the block, project, Cholesky: four reductions and O(u) orthogonality.

    Use it if the cost must not depend on the block. The first factorisation must handle every block that can
    occur; the second projection starts from a well-conditioned block and ends with Cholesky QR.

    Parameters
    ----------
    intra : callable
        A policy within a block.

    References
    ----------
    Barlow, Smoktunowicz, Numer. Math. 123 (2013) 395; Carson, Lund, Ma, Oktay, arXiv:2408.10109 (BCGSI+A).
    """

    intra: Callable[[Decomposition], None] = FIRST

    def __call__(self, d: Decomposition) -> None:
        """Set lost columns of X to zero."""
        d.project(d.dot())
        self.intra(d)
        d.limit_rank()
        d.project(d.dot())
        d.factorize(lambda G: definite(G, d, "BCGSIPlus"), last=True)


@frozen
class Adaptive:
    """`BCGSIPlus` without its second half if small matrices prove that the first was sufficient.

    The default, for every block. The first half multiplies rounding errors by ||R^-1||, and propagates the
    loss of orthogonality of V by a factor ||S R^-1||; if this factor is at most one, errors do not accumulate
    over many blocks. Both are computed from small matrices that are on the host. The second half is repeated
    while a pass removes half of a column or more. If the first projection covers a part of V, one on all of V
    follows before the host waits.

    Parameters
    ----------
    intra : callable
        A policy within a block.

    References
    ----------
    As for `BCGSIPlus`; Daniel, Gragg, Kaufman, Stewart, Math. Comp. 30 (1976) 772 (when to reorthogonalise).
    """

    intra: Callable[[Decomposition], None] = WITHIN

    def __call__(self, d: Decomposition) -> None:
        """Set lost columns of X to zero."""
        if d.projected is None:
            for _ in range(1 if d.first is None else 2):
                d.project(d.dot())
        assert d.projected is not None
        self.intra(d)
        d.limit_rank()
        if not len(d.lost) or d.lost.any():
            return  # random replacements must be projected, together with the other columns
        amplified = d.error.max() > AMPLIFIED * d.unit or d.growth > ENOUGH * d.width
        if (
            amplified
            or len(d.lost) < d.width
            or np.linalg.norm(np.linalg.solve(d.R.T, d.projected.host.T)) > 1
        ):
            clean(d)


FULL_BASIS = (PIP, PIPPlus, BCGSIPlus)  # always project against all of V


def clean(d: Decomposition) -> None:
    """Project and orthonormalise until a pass changes little; no column of X may be zero."""
    identity = np.eye(len(d.lost))
    for _ in range(MAX_PASSES - 1):
        d.project(d.dot())
        G = d.gram()
        if np.linalg.norm(G - identity) <= CLEAN * d.unit * len(G):
            return
        step = cholesky(G)
        d.apply(step)
        if np.diagonal(step.R).real.min(initial=1) >= NORM_DROP:
            return
