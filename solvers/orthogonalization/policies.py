"""Policies of orthogonalisation: block Gram-Schmidt against a basis, and Cholesky QR within a block.

==============  ==========  =============================  ==================================================
policy          reductions  orthonormal to O(u) for        use
==============  ==========  =============================  ==================================================
`Adaptive`      2 to 4      any block                      default
`BCGSIPlus`     4           any block                      if the second half must never be omitted
`PIPPlus`       2           kappa([V W]) < u^(-1/2)        many processes: a reduction costs more than a pass
`RankedCholQR`  1 to 3      any block, without V           default without V
`CholQR2`       2           kappa(W) < u^(-1/2), no V      if R must be triangular, without rank decisions
==============  ==========  =============================  ==================================================

With the first two, an ill-conditioned block adds one or two reductions and a loss of rank adds two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockvec.errors import BreakdownError, OptionError
from blockvec.system.frozen import frozen

from ..blocks import Array
from .decomposition import Decomposition
from .factors import AMPLIFIED, ENOUGH, Step, cholesky, ranked

WELL_CONDITIONED = 1e3  # growth per column that one more Cholesky factorisation reduces to O(u)
NORM_DROP = 0.5  # ratio of lengths after and before a pass, below which another follows; "twice is enough"
MAX_PASSES = 4  # passes over V in all
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
        Growth of rounding errors per column up to which no further pass follows. Gram-Schmidt policies that
        process the block again afterwards allow more.

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
class CholQR2:
    """Cholesky QR, twice: R is triangular, two reductions.

    Use it if the block is known to be well conditioned (kappa below 1e7 in double, 1e3 in single precision),
    for example after an earlier orthogonalisation. It does not detect the rank: other blocks raise an error.

    References
    ----------
    Yamamoto, Nakatsukasa, Yanagisawa, Fukaya, ETNA 44 (2015) 306: O(u) orthogonality for kappa < u^(-1/2).
    """

    def __call__(self, d: Decomposition) -> None:
        """Raise `BreakdownError` if X^H X is not positive definite."""
        for _ in range(2):
            d.factorize(lambda G: _definite(G, d, "CholQR2"))


@frozen
class PIPPlus:
    """Block Gram-Schmidt by the Pythagorean theorem, twice: O(u) orthogonality if O(u) kappa^2 <= 1/2.

    With S = V^H W the Gram matrix of W - V S is W^H W - S^H S, so that one reduction per pass is sufficient.
    Use it with many processes: no two-pass method has fewer reductions. On one device `Adaptive` moves less
    data.

    References
    ----------
    Carson, Lund, Rozloznik, SIAM J. Matrix Anal. Appl. 42 (2021) 1365, algorithm BCGS-PIP; Carson, Lund, Ma,
    Oktay, arXiv:2405.01298, algorithm BCGS-PIP+.
    """

    def __call__(self, d: Decomposition) -> None:
        """Raise `BreakdownError` if kappa^2 exceeds 1/u."""
        for _ in range(2):
            S = d.dot()
            G = d.gram()
            d.project(S)
            d.apply(_definite(G - S.host.conj().T @ S.host, d, "PIPPlus"))


@frozen
class BCGSIPlus:
    """Project, factorise within the block, project, Cholesky: four reductions and O(u) orthogonality.

    The first factorisation must handle every block that can occur; the second projection starts from a
    well-conditioned block and ends with Cholesky QR.

    Parameters
    ----------
    intra : callable
        A policy within a block.

    References
    ----------
    Barlow, Smoktunowicz, Numer. Math. 123 (2013) 395; Carson, Lund, Ma, Oktay, arXiv:2408.10109 (BCGSI+A).
    """

    intra: Callable[[Decomposition], None] = RankedCholQR(WELL_CONDITIONED)

    def __call__(self, d: Decomposition) -> None:
        """Set lost columns of X to zero."""
        d.project(d.dot())
        self.intra(d)
        d.limit_rank()
        d.project(d.dot())
        d.factorize(lambda G: _definite(G, d, "BCGSIPlus"), last=True)


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
    for _ in range(MAX_PASSES - 1):
        d.project(d.dot())
        G = d.gram()
        if np.linalg.norm(G - identity) <= CLEAN * d.unit * len(G):
            return
        step = cholesky(G)
        d.apply(step)
        if np.diagonal(step.R).real.min(initial=1) >= NORM_DROP:
            return


def check_policy(policy: Any, taken: int, first: Sequence[tuple[int, int]] | None) -> None:
    """Refuse a policy that ignores the basis, or the columns of the basis to begin with.

    Raises
    ------
    OptionError
    """
    name = type(policy).__name__
    if taken and isinstance(policy, RankedCholQR | CholQR2):
        raise OptionError(
            f"orthogonalize: {name} works within a block, and a basis is given; use BCGSIPlus({name}())."
        )
    if first is not None and isinstance(policy, BCGSIPlus | PIPPlus):
        raise OptionError(
            f"orthogonalize: {name} always projects against all of V, and first is given; leave first out, "
            "or use Adaptive()."
        )


def _definite(G: Array, d: Decomposition, policy: str) -> Step:
    """Compute the Cholesky step of a policy without rank detection, or raise `BreakdownError`."""
    try:
        return cholesky(G, d.lost)
    except np.linalg.LinAlgError as error:
        raise BreakdownError(
            f"{policy}: the Gram matrix of {len(G)} columns is not positive definite: the block is rank "
            f"deficient, or its condition number is above {d.unit**-0.5:.0e}. Adaptive(), the default, "
            "works for every block."
        ) from error
