"""The policy of orthogonalisation: block Gram-Schmidt, and Cholesky QR within the block.

It takes two to four reductions beside a basis, and one to three without: an ill-conditioned block adds one or
two, and a loss of rank adds two.
"""

from __future__ import annotations

import numpy as np

from .decomposition import Decomposition
from .factors import AMPLIFIED, ENOUGH, cholesky

NORM_DROP = 0.5  # ratio of lengths after and before a pass, below which another follows; "twice is enough"
MAX_PASSES = 3  # passes over V after the first
CLEAN = 8.0  # u per column: ||X^H X - I||_F that rounding alone causes


def adaptive(d: Decomposition) -> None:
    """Project and factorise, twice, or once if small matrices prove that this was sufficient.

    The first half multiplies rounding errors by ||R^-1||, and propagates the loss of orthogonality of V by a
    factor ||S R^-1||; if this factor is at most one, errors do not accumulate over many blocks. Both are
    computed from small matrices that are on the host. The second half is repeated while a pass removes half
    of a column or more. If the first projection covers a part of V, one on all of V follows before the host
    waits. Lost columns of X become zero.

    References
    ----------
    Barlow, Smoktunowicz, Numer. Math. 123 (2013) 395; Carson, Lund, Ma, Oktay, arXiv:2408.10109 (BCGSI+A);
    Daniel, Gragg, Kaufman, Stewart, Math. Comp. 30 (1976) 772 (when to reorthogonalise); Fukaya, Kannan,
    Nakatsukasa, Yamamoto, Yanagisawa, SIAM J. Sci. Comput. 42 (2020) A477 (shifted CholQR).
    """
    for _ in range(1 if d.first is None else 2):
        C = d.dot()
        d.project(C)
    # The first division resolves a condition number of u^(-1/2), the second 1/u, and determines the rank; a
    # third one follows if the second was ill conditioned.
    for final in (False, True, True):
        d.factorize(final=final)
        if d.growth <= ENOUGH * len(d.lost):
            break
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
