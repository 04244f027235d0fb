"""Policies within a block: factorisations X = Q R of a tall block, each by a few small matrices.

All but `CholQR2` decide the rank: a first step brings any block to a moderate condition number, and a
Cholesky factorisation of what is then well resolved tells signal from noise and makes it orthonormal.

==================  ==========  ========================  ================================================
policy              reductions  orthonormal to O(u) for   use it
==================  ==========  ========================  ================================================
`CholQR2`           2           kappa < u^(-1/2)          where the block is known to be well conditioned
`RankedCholQR`      1 to 3      any block                 always: the default
`ShiftedCholQR3`    3           any block                 where costs must not depend on the block
`SVQB`              2 or 3      any block                 where the order of columns shall not matter
`TSQR`              2           any block                 where no condition number shall be squared
`RandomizedCholQR`  2           any block, very likely    for ill-conditioned blocks, over many processes
==================  ==========  ========================  ================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from blockvec import array_namespace
from blockvec.errors import BreakdownError, OptionError

from ..blocks import Array, to_host
from .decomposition import Decomposition
from .factors import Step, cholesky, eigenvectors, ranked, shifted, triangular

__all__ = [
    "SVQB",
    "TSQR",
    "CholQR2",
    "RandomizedCholQR",
    "RankedCholQR",
    "ShiftedCholQR3",
    "definite",
]


ENOUGH = 5.0  # growth a column that leaves a block orthonormal to a few units of rounding
SLAB_ROWS = 512  # of a leaf of TSQR's tree, at least: fits a core's cache to 64 columns
OVERSAMPLING = 8  # columns of a sketch beyond twice those of the block


@dataclass(frozen=True)
class CholQR2:
    """Cholesky QR, twice: R is triangular, two reductions.

    Use it where the block is known to be well conditioned (kappa below 1e7 in double, 1e3 in single
    precision), as after an orthogonalisation that went well. It decides no rank: beyond that it raises.

    References
    ----------
    Yamamoto, Nakatsukasa, Yanagisawa, Fukaya, ETNA 44 (2015) 306: O(u) orthogonality for kappa < u^(-1/2).
    """

    def __call__(self, d: Decomposition) -> None:
        """Raise `BreakdownError` where X^H X is not positive definite."""
        for _ in range(2):
            d.factorize(lambda G: definite(G, d, "CholQR2"))


@dataclass(frozen=True)
class RankedCholQR:
    """Cholesky QR with pivots that stand out from noise, until the last pass was well conditioned.

    Use it for anything: it is the default. The first pass resolves a condition number of u^(-1/2), two
    resolve 1/u and decide the rank, a third one is there for what two had to resolve. R is triangular where
    one pass was enough, and else but for the order of its columns.

    Parameters
    ----------
    enough : float
        Growth of rounding errors, a column, after which no pass follows. A Gram-Schmidt policy that works
        on the block again afterwards allows more.

    References
    ----------
    Fukaya et al., SIAM J. Sci. Comput. 42 (2020) A477 (shifted CholQR).
    """

    enough: float = ENOUGH

    def __call__(self, d: Decomposition) -> None:
        """Lost columns of X become zero."""
        for final in (False, True, True):
            resolve(d, final=final)
            if d.growth <= self.enough * len(d.lost):
                break


@dataclass(frozen=True)
class ShiftedCholQR3:
    """Cholesky QR of G + s I, then Cholesky QR twice: three reductions, whatever the block.

    Use it where costs must not depend on the block, and with an inner product: it was analysed for that. A
    well-conditioned block needs no shift, and gets none.

    References
    ----------
    Fukaya, Kannan, Nakatsukasa, Yamamoto, Yanagisawa, SIAM J. Sci. Comput. 42 (2020) A477, algorithm 4.2.
    """

    def __call__(self, d: Decomposition) -> None:
        """Lost columns of X become zero."""
        d.factorize(lambda G: shifted(G, d.noise, d.unit))
        resolve(d, final=False)
        resolve(d, final=True)


@dataclass(frozen=True)
class SVQB:
    """Eigenvectors of the scaled Gram matrix, then Cholesky QR once or twice.

    Use it where all columns are equally accurate, as in a random or a user's block: no order of columns
    comes into the result. After a projection that took away most of some columns and little of others it
    mixes noise into the good ones; take `RankedCholQR` there.

    References
    ----------
    Stathopoulos, Wu, SIAM J. Sci. Comput. 23 (2002) 2165, algorithm 4.
    """

    def __call__(self, d: Decomposition) -> None:
        """Lost columns of X become zero."""
        d.apply(eigenvectors(d.gram(), d.noise, d.unit))
        _decide(d)


@dataclass(frozen=True)
class TSQR:
    """The triangular factor from a tree of QR factorisations, X <- X R^-1, then Cholesky QR.

    Use it where even the first factor shall carry no squared condition number: R comes from orthogonal
    transformations alone. Its leaves are LAPACK's (cuSOLVER's on a GPU), which are far from the speed of the
    memory.

    References
    ----------
    Demmel, Grigori, Hoemmen, Langou, SIAM J. Sci. Comput. 34 (2012) A206. Deviation: the tree is not gone
    back for Q; multiplying by R^-1 and a Cholesky pass cost less and leave O(u) as well.
    """

    def __call__(self, d: Decomposition) -> None:
        """Lost columns of X become zero."""
        _refuse_inner_product(d, "TSQR")
        X, comm = d.rows()
        leaf = _tree_factor(X)
        leaves = [leaf] if comm is None else comm.allgather(leaf)
        F: Array = np.asarray(np.linalg.qr(np.concatenate(leaves), mode="r"))
        d.apply(_from_factor(d, F))
        _decide(d)


@dataclass(frozen=True)
class RandomizedCholQR:
    """The triangular factor from a random sketch of the block, X <- X R^-1, then Cholesky QR.

    Use it over many processes for blocks that are known to be ill conditioned: two reductions where
    `RankedCholQR` needs three. On one device the random numbers cost more than that.
    The sketch S X, with 2 b + 8 rows, has the singular values of X to within a small factor, and no condition
    number is squared. It needs memory for S^H beside the block.

    Parameters
    ----------
    seed : int
        Of the sketch.

    References
    ----------
    Balabanov, arXiv:2210.09953; Higgins, Szyld, Boman, Yamazaki, arXiv:2309.05868 (rand_cholQR). Deviation:
    one dense sketch of uniform numbers, which blocks of few columns afford.
    """

    seed: int = 0

    def __call__(self, d: Decomposition) -> None:
        """Lost columns of X become zero."""
        _refuse_inner_product(d, "RandomizedCholQR")
        d.apply(_from_factor(d, d.sketch(2 * d.width + OVERSAMPLING, self.seed)))
        _decide(d)


def resolve(d: Decomposition, *, final: bool) -> None:
    """Cholesky QR, with pivots that stand out from noise where the block is not well conditioned."""
    d.factorize(lambda G: ranked(G, d.noise, d.unit, final=final))


def definite(G: Array, d: Decomposition, policy: str) -> Step:
    """Return the Cholesky step of a policy that decides no rank, or say what to use instead."""
    try:
        return cholesky(G, d.lost)
    except np.linalg.LinAlgError as error:
        raise BreakdownError(
            f"{policy}: the Gram matrix of {len(G)} columns is not positive definite: the block is rank "
            f"deficient, or its condition number is above {d.unit**-0.5:.0e}. Adaptive(), the default, "
            "takes any block."
        ) from error


def _decide(d: Decomposition) -> None:
    """Cholesky QR that decides the rank, and once more where it was not well conditioned itself."""
    for _ in range(2):
        resolve(d, final=True)
        if d.growth <= ENOUGH * len(d.lost):
            break


def _from_factor(d: Decomposition, F: Array) -> Step:
    """Return the step of a factor of X that was found without a Gram matrix."""
    if not np.isfinite(F).all():
        raise BreakdownError("orthogonalize: the block holds NaN or Inf.")
    d.learn_rounding((np.abs(F) ** 2).sum(axis=0))
    return triangular(F, d.noise, d.unit)


def _refuse_inner_product(d: Decomposition, policy: str) -> None:
    if d.M is not None:
        raise OptionError(
            f"{policy} works in the standard inner product, and M is given; take RankedCholQR() or "
            "ShiftedCholQR3()."
        )


def _tree_factor(X: Any) -> Array:
    """Return R of a tall array on the host, by QR factorisations of slabs of rows, of their factors, ..."""
    xp = array_namespace(X)
    rows, width = X.shape
    height = max(SLAB_ROWS, 4 * width)
    while rows > height:
        whole = rows // height * height
        factors = xp.linalg.qr(X[:whole].reshape(-1, height, width), mode="r").reshape(-1, width)
        X = xp.concatenate([factors, X[whole:]])
        rows = X.shape[0]
    return to_host(X)
