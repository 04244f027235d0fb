"""Policies against a basis: block classical Gram-Schmidt in the forms that differ in cost and in strength.

===========  ==========  ==========================  =======================================================
policy       reductions  loss of orthogonality       use it
===========  ==========  ==========================  =======================================================
`PIP`        1           O(u) kappa^2                where that does no harm
`PIPPlus`    2           O(u) if kappa < u^(-1/2)    over many processes: a reduction costs more than a pass
`BCGSIPlus`  4           O(u)                        where costs must not depend on the block
`Adaptive`   2 to 4      O(u)                        always: the default
===========  ==========  ==========================  =======================================================

kappa is the condition number of [V W]. An ill-conditioned block adds a reduction or two to the last ones, and
a loss of rank adds two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .decomposition import Decomposition
from .factors import cholesky
from .intrablock import ENOUGH, RankedCholQR, definite

__all__ = ["PIP", "Adaptive", "BCGSIPlus", "PIPPlus", "clean"]


WELL_CONDITIONED = 1e3  # growth a column that one more Cholesky factorisation turns into O(u)
NORM_DROP = 0.5  # a pass that leaves less of a column asks for another ("twice is enough": 1/sqrt 2)
MAX_PASSES = 4
FIRST = RankedCholQR(WELL_CONDITIONED)  # within the block, where a second half follows ...
WITHIN = RankedCholQR()  # ... and where it may not
AMPLIFIED = 16.0  # growth of rounding errors between V and Q that is left as it is
CLEAN = 8.0  # distance of a Gram matrix from I, in u a column, that rounding alone explains


@dataclass(frozen=True)
class PIP:
    """Block classical Gram-Schmidt by the Pythagorean theorem: one reduction.

    With S = V^H W the Gram matrix of W - V S is W^H W - S^H S, so that one product with [V W] is enough.
    Use it where the loss of orthogonality O(u) kappa^2 does no harm.

    References
    ----------
    Carson, Lund, Rozloznik, SIAM J. Matrix Anal. Appl. 42 (2021) 1365, algorithm BCGS-PIP.
    """

    def __call__(self, d: Decomposition) -> None:
        """Raise `BreakdownError` where kappa^2 is beyond 1/u."""
        S = d.dot()
        G = d.gram()
        d.project(S)
        d.apply(definite(G - S.host.conj().T @ S.host, d, type(self).__name__))


@dataclass(frozen=True)
class PIPPlus(PIP):
    """`PIP`, twice: two reductions and O(u) orthogonality where O(u) kappa^2 <= 1/2.

    Use it over many processes: no two-pass method has fewer reductions. On one device `Adaptive` moves less.

    References
    ----------
    Carson, Lund, Ma, Oktay, arXiv:2405.01298, algorithm BCGS-PIP+.
    """

    def __call__(self, d: Decomposition) -> None:
        """Raise `BreakdownError` where kappa^2 is beyond 1/u."""
        super().__call__(d)
        super().__call__(d)


@dataclass(frozen=True)
class BCGSIPlus:
    """Project, factorise within the block, project, Cholesky: four reductions and O(u) orthogonality.

    Use it where costs must not depend on the block. The first factorisation must be strong where blocks may
    be; the second projection starts from a well-conditioned block and ends with Cholesky QR.

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
        """Lost columns of X become zero."""
        d.project(d.dot())
        self.intra(d)
        d.limit_rank()
        d.project(d.dot())
        d.factorize(lambda G: definite(G, d, "BCGSIPlus"), last=True)


@dataclass(frozen=True)
class Adaptive:
    """`BCGSIPlus` without its second half where small matrices show that the first was enough.

    Use it for anything: it is the default. The first half multiplies rounding errors by ||R^-1||, and passes
    on what V lacks in orthogonality by a factor ||S R^-1||; where that is at most one nothing builds up over
    many blocks. Both come from matrices that are at hand. The second half goes on as long as a pass takes
    half of a column. Where the first projection covers a part of V, one on all of it follows before anything
    is waited for.

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
        """Lost columns of X become zero."""
        for _ in range(1 if d.first is None else 2):
            S = d.dot()
            d.project(S)
        self.intra(d)
        d.limit_rank()
        if not len(d.lost) or d.lost.any():
            return  # what takes their place must be projected, and everything else with it
        amplified = d.error.max() > AMPLIFIED * d.unit or d.growth > ENOUGH * d.width
        if amplified or len(d.lost) < d.width or np.linalg.norm(np.linalg.solve(d.R.T, S.host.T)) > 1:
            clean(d)


def clean(d: Decomposition) -> None:
    """Project and make orthonormal until a pass takes little; no column of X may be zero."""
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
