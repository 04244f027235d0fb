"""Policies within a block: factorisations X = Q R of a tall block.

All but `CholQR2` determine the rank: the first step reduces the condition number of any block to a moderate
value, and a Cholesky factorisation of the well-resolved block then separates signal from noise.

==================  ==========  ========================  ================================================
policy              reductions  orthonormal to O(u) for   use
==================  ==========  ========================  ================================================
`CholQR2`           2           kappa < u^(-1/2)          if the block is known to be well conditioned
`RankedCholQR`      1 to 3      any block                 default
`ShiftedCholQR3`    3           any block                 if the cost must not depend on the block
`SVQB`              2 or 3      any block                 if the order of columns must not matter
`TSQR`              2           any block                 if no condition number may be squared
`RandomizedCholQR`  2           any block, very likely    ill-conditioned blocks on many processes
==================  ==========  ========================  ================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockvec import array_namespace
from blockvec.errors import BreakdownError, OptionError
from blockvec.parallel import share
from blockvec.system.frozen import frozen

from ..blocks import Array, to_host
from .decomposition import Decomposition
from .factors import ENOUGH, Step, cholesky, eigenvectors, ranked, shifted, triangular

MIXED = 2.0  # likewise, after a step by which each column takes part of the noise of all
SLAB_ROWS = 512  # minimum rows per leaf of TSQR's tree: up to 64 columns fit a core's cache
OVERSAMPLING = 8  # rows of a sketch in addition to twice the columns of the block


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
            d.factorize(lambda G: definite(G, d, "CholQR2"))


@frozen
class RankedCholQR:
    """Cholesky QR with pivoting by signal-to-noise ratio, repeated until a pass is well conditioned.

    The default, for every block. The first pass resolves a condition number of u^(-1/2), the second 1/u, and
    determines the rank; a third follows if the second was ill conditioned. R is triangular after one pass,
    and otherwise triangular up to the order of its columns.

    Parameters
    ----------
    enough : float
        Growth of rounding errors per column up to which no further pass follows. Gram-Schmidt policies that
        process the block again afterwards allow more.

    References
    ----------
    Fukaya et al., SIAM J. Sci. Comput. 42 (2020) A477 (shifted CholQR).
    """

    enough: float = ENOUGH

    def __call__(self, d: Decomposition) -> None:
        """Set lost columns of X to zero."""
        _resolve(d, (False, True, True), self.enough)


@frozen
class ShiftedCholQR3:
    """Cholesky QR of G + s I, then Cholesky QR twice: three reductions for every block.

    Use it if the cost must not depend on the block, and with an inner product, for which it was analysed. For
    a well-conditioned block no shift is needed, and none is used.

    References
    ----------
    Fukaya, Kannan, Nakatsukasa, Yamamoto, Yanagisawa, SIAM J. Sci. Comput. 42 (2020) A477, algorithm 4.2.
    """

    def __call__(self, d: Decomposition) -> None:
        """Set lost columns of X to zero."""
        d.factorize(lambda G: shifted(G, d.noise, d.unit))
        for final in (False, True):
            _resolve(d, (final,))


@frozen
class SVQB:
    """Eigenvectors of the scaled Gram matrix, then Cholesky QR once or twice.

    Use it if all columns are equally accurate, as in a random block: the result does not depend on an order
    of columns. After a projection that removed most of some columns and little of others it mixes noise into
    the accurate ones; use `RankedCholQR` then.

    References
    ----------
    Stathopoulos, Wu, SIAM J. Sci. Comput. 23 (2002) 2165, algorithm 4.
    """

    def __call__(self, d: Decomposition) -> None:
        """Set lost columns of X to zero."""
        d.apply(eigenvectors(d.gram(), d.noise, d.unit))
        _resolve(d, enough=MIXED)


@frozen
class TSQR:
    """The triangular factor from a tree of QR factorisations, X <- X R^-1, then Cholesky QR.

    Use it if no condition number may be squared, not even in the first factor: R is computed by orthogonal
    transformations only. The leaves use LAPACK (cuSOLVER on a GPU), which run far below memory bandwidth.

    References
    ----------
    Demmel, Grigori, Hoemmen, Langou, SIAM J. Sci. Comput. 34 (2012) A206. Deviation: Q is not
    formed from the tree; multiplication by R^-1 and a Cholesky pass cost less and give O(u), too.
    """

    def __call__(self, d: Decomposition) -> None:
        """Set lost columns of X to zero."""
        _refuse_inner_product(d, "TSQR")
        X, comm = d.rows()
        leaf = _tree_factor(X)
        leaves = [leaf] if comm is None else share(comm, leaf)
        F: Array = np.asarray(np.linalg.qr(np.concatenate(leaves), mode="r"))
        d.apply(_from_factor(d, F))
        _resolve(d)


@frozen
class RandomizedCholQR:
    """The triangular factor from a random sketch of the block, X <- X R^-1, then Cholesky QR.

    Use it with many processes for blocks that are known to be ill conditioned: two reductions instead of the
    three of `RankedCholQR`. On one device generating the random numbers costs more than a reduction.
    The sketch S X, with 2 b + 8 rows, has the singular values of X up to a small factor, and no condition
    number is squared. S^H needs memory in addition to the block.

    Parameters
    ----------
    seed : int
        Seed of the sketch.

    References
    ----------
    Balabanov, arXiv:2210.09953; Higgins, Szyld, Boman, Yamazaki, arXiv:2309.05868 (rand_cholQR). Deviation:
    one dense sketch of uniform random numbers, which is affordable for blocks of few columns.
    """

    seed: int = 0

    def __call__(self, d: Decomposition) -> None:
        """Set lost columns of X to zero."""
        _refuse_inner_product(d, "RandomizedCholQR")
        d.apply(_from_factor(d, d.sketch(2 * d.width + OVERSAMPLING, self.seed)))
        _resolve(d)


WITHIN = (CholQR2, RankedCholQR, ShiftedCholQR3, SVQB, TSQR, RandomizedCholQR)


def _resolve(d: Decomposition, finals: Sequence[bool] = (True, True), enough: float = ENOUGH) -> None:
    """Apply Cholesky QR, with pivoting if ill conditioned, until a pass is well conditioned."""
    for final in finals:

        def otherwise(G: Array, final: bool = final) -> Step:
            return ranked(G, d.noise, d.unit, final=final)

        d.factorize(otherwise)
        if d.growth <= enough * len(d.lost):
            break


def definite(G: Array, d: Decomposition, policy: str) -> Step:
    """Compute the Cholesky step of a policy without rank detection, or raise `BreakdownError`."""
    try:
        return cholesky(G, d.lost)
    except np.linalg.LinAlgError as error:
        raise BreakdownError(
            f"{policy}: the Gram matrix of {len(G)} columns is not positive definite: the block is rank "
            f"deficient, or its condition number is above {d.unit**-0.5:.0e}. Adaptive(), the default, "
            "works for every block."
        ) from error


def _from_factor(d: Decomposition, F: Array) -> Step:
    """Compute the step from a triangular factor of X."""
    if not np.isfinite(F).all():
        raise BreakdownError("orthogonalize: the block holds NaN or Inf.")
    d.learn_rounding((np.abs(F) ** 2).sum(axis=0))
    return triangular(F, d.noise, d.unit)


def _refuse_inner_product(d: Decomposition, policy: str) -> None:
    if d.M is not None:
        raise OptionError(
            f"{policy} works in the standard inner product, and M is given; use RankedCholQR() or "
            "ShiftedCholQR3()."
        )


def _tree_factor(X: Any) -> Array:
    """Return R of a tall array on the host, by a tree of QR factorisations of row slabs."""
    xp = array_namespace(X)
    rows, width = X.shape
    height = max(SLAB_ROWS, 4 * width)
    while rows > height:
        whole = rows // height * height
        factors = xp.linalg.qr(X[:whole].reshape(-1, height, width), mode="r").reshape(-1, width)
        X = xp.concatenate([factors, X[whole:]])
        rows = X.shape[0]
    return to_host(X)
