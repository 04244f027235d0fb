"""Orthogonalise a block against a basis and within itself, deciding the rank on the way.

Given an orthonormal basis V and a block W, `orthogonalize` returns Q, S and R with

    W = V S + Q R,   Q^H Q = I,   V^H Q = 0

to working precision, whatever W is: a zero block, repeated columns, a condition number of 1e15, columns of
wildly different length, or a block inside span(V). Directions of W that are rounding noise are replaced in
Q by random ones, and their rows of R are zero. Rank loss is therefore no special case for the caller and
shapes never change. The tall blocks stay on their device; the small matrices are worked on on the host.

How noise is told from signal: a column of W carries a rounding error of about u ||w||, or of u ||A|| where
an operator A of a larger norm made it. This level is carried through every transformation of the block, and
a direction counts as lost when its length is not above its own noise. No condition number is compared with
anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from blockvec import array_namespace
from blockvec.errors import BreakdownError

from .rayleigh_ritz import to_host

__all__ = [
    "BCGS2",
    "SVQB",
    "CholQR2",
    "Factored",
    "IntraBlock",
    "Orthogonalized",
    "RankedCholQR",
    "orthogonalize",
]

Array = Any
Block = Any

NOISE = 32.0  # a direction is lost below NOISE * u * ||w|| (or ||A||): three times what was seen
RESOLUTION = 4.0  # eigenvalues of a scaled Gram matrix below RESOLUTION * b * u are not resolved
WELL_CONDITIONED = 1e-3  # smallest eigenvalue of a scaled Gram matrix after which one more pass gives O(u)
NORM_DROP = 0.5  # a pass that leaves less of a column asks for another ("twice is enough": 1/sqrt 2)
MAX_PASSES = 4


@dataclass(frozen=True, slots=True)
class Factored:
    """What an intra-block factorisation W = Q R leaves beside Q.

    Attributes
    ----------
    R : array, shape (b, b)
    noise : array, shape (b,)
        Rounding noise in each column of Q.
    lost : array of bool, shape (b,)
        Columns of Q that are zero because their direction was noise; their rows of R are zero. They come
        last.
    reductions : int
    """

    R: Array
    noise: Array
    lost: Array
    reductions: int


class IntraBlock(Protocol):
    """A factorisation within a block, in place."""

    def factor(self, W: Block, noise: Array) -> Factored:
        """Replace W by Q with W = Q R."""


@dataclass(frozen=True)
class CholQR2:
    """Cholesky QR, twice: R is triangular, two reductions.

    Use it where the block is known to be well conditioned (kappa below 1e7 in double, 1e3 in single
    precision), as after an orthogonalisation that went well. It decides no rank: beyond that it raises.

    References
    ----------
    Yamamoto, Nakatsukasa, Yanagisawa, Fukaya, ETNA 44 (2015) 306: O(u) orthogonality for kappa < u^(-1/2).
    """

    def factor(self, W: Block, noise: Array) -> Factored:
        """Replace W by Q with W = Q R; raise `BreakdownError` where W^H W is not positive definite."""
        try:
            first = _cholesky_pass(W)
            R = _cholesky_pass(W) @ first
        except np.linalg.LinAlgError as error:
            raise BreakdownError(
                f"CholQR2: the Gram matrix of {W.shape[1]} columns is not positive definite; the block is "
                "rank deficient or holds NaN: use RankedCholQR(), which decides the rank."
            ) from error
        spread = np.abs(np.linalg.inv(R)).T @ noise
        return Factored(R, spread, np.zeros(W.shape[1], bool), 2)


@dataclass(frozen=True)
class RankedCholQR:
    """Cholesky QR with pivots that stand out from noise, up to twice: it decides the rank.

    Use it for anything: it is the default. The column whose remainder is largest against its own noise comes
    next, so that a noisy column can neither spoil nor take anything from an accurate one. The first
    pass resolves a condition number of u^(-1/2), both together resolve 1/u; pivots that the first one does
    not resolve are raised, as the shift does in shifted CholQR. The second pass is left out where the first
    shows that it is not needed. R is triangular but for the order of its columns.

    References
    ----------
    Fukaya, Kannan, Nakatsukasa, Yamamoto, Yanagisawa, SIAM J. Sci. Comput. 42 (2020) A477 (shifted CholQR).
    """

    def factor(self, W: Block, noise: Array) -> Factored:
        """Replace W by Q with W = Q R; lost columns of Q are zero and come last."""
        unit = _unit_roundoff(W)
        first, smallest = _pivoted_cholesky(_small(W.gram()), noise, unit, final=False)
        return _two_steps(W, first, smallest, unit)


@dataclass(frozen=True)
class SVQB:
    """Eigenvectors of the scaled Gram matrix, then the second pass of `RankedCholQR`: one or two reductions.

    Use it where all columns are equally accurate, as in a random or a user's block: no order of columns
    comes into the result. After a projection that took away most of some columns and little of others it
    mixes noise into the good ones; take `RankedCholQR` there.

    References
    ----------
    Stathopoulos, Wu, SIAM J. Sci. Comput. 23 (2002) 2165, algorithm 4. Deviation: eigenvectors only improve
    the condition, the rank is decided by the noise of each column instead of a fixed threshold.
    """

    def factor(self, W: Block, noise: Array) -> Factored:
        """Replace W by Q with W = Q R; lost columns of Q are zero and come last."""
        unit = _unit_roundoff(W)
        first, smallest = _eigen_step(_small(W.gram()), noise, unit)
        return _two_steps(W, first, smallest, unit)


def _two_steps(W: Block, first: _Step, smallest: float, unit: float) -> Factored:
    """Apply a first step, and a second one that decides the rank unless the first has shown it is full."""
    _transform(W, first.transform, W)
    if not first.lost.any() and smallest > WELL_CONDITIONED:
        return Factored(first.R, first.noise, first.lost, 1)
    second, _ = _pivoted_cholesky(_small(W.gram()), first.noise, unit, final=True)
    _transform(W, second.transform, W)
    return Factored(second.R @ first.R, second.noise, second.lost, 2)


@dataclass(frozen=True)
class BCGS2:
    """Block classical Gram-Schmidt, twice, around an intra-block factorisation.

    Use it for bases of any width: two passes over the basis and O(u) orthogonality. After the first pass
    the block is made orthonormal with `intra`, which must be strong (rank revealing) because what comes in
    may have any condition number; the second pass then starts from a well-conditioned block and ends with
    one Cholesky factorisation.

    References
    ----------
    Barlow, Smoktunowicz, Numer. Math. 123 (2013) 395; Carson, Lund, Ma, Oktay, arXiv:2408.10109 (BCGSI+A: a
    strong factorisation first, Cholesky afterwards).
    """

    intra: IntraBlock = RankedCholQR()


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
        Products over the tall dimension.
    """

    S: Array
    R: Array
    lost: Array
    reductions: int


def orthogonalize(
    W: Block,
    V: Block | None = None,
    *,
    policy: BCGS2 | None = None,
    scale: float | Array | None = None,
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
    policy : BCGS2, optional
        How; the default fits any block.
    scale : float, optional
        Norm of the operator that W came from: its rounding errors count as noise even in short columns.
        Without it each column's own norm is taken.
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
        Where W holds NaN or Inf.

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
    intra = (policy or BCGS2()).intra
    key = int(np.random.default_rng(rng).integers(0, 2**63))
    reductions = 0
    if scale is None:
        scale, reductions = to_host(W.norms()), 1
    noise = NOISE * _unit_roundoff(W) * (np.ones(W.shape[1]) * scale)
    S = None
    if V is not None:
        S = _project(W, V, first)
        reductions += 1 if first is None else len(first)
    factored = _factor(intra, W, noise)
    R, lost = factored.R, factored.lost
    reductions += factored.reductions
    kept = W.shape[1] if max_rank is None else min(max_rank, W.shape[1])
    if kept < W.shape[1]:
        # What is dropped must be what W has least of: rows of R say how much.
        weight = np.where(lost, -1.0, np.linalg.norm(R, axis=1))
        chosen = np.argsort(-weight, kind="stable")[:kept]
        if kept:
            _transform(W, np.eye(len(lost))[:, chosen], W[:, :kept])
        W, R, lost = W[:, :kept], R[chosen], lost[chosen]
    if kept > 0:
        _refill(W, lost, key)
        S, R, passes = _clean(W, V, S, R, into)
        reductions += passes * (1 if V is None else 2)
    if S is None:
        S = np.zeros((0, R.shape[1]), R.dtype)
    return Orthogonalized(S, R, lost, reductions)


def _factor(intra: IntraBlock, W: Block, noise: Array) -> Factored:
    try:
        factored = intra.factor(W, noise)
    except np.linalg.LinAlgError:  # LAPACK gives up on NaN
        factored = None
    if factored is None or not np.isfinite(factored.R).all():
        raise BreakdownError(
            "orthogonalize: the block holds NaN or Inf; an operator or a start block brought them in."
        )
    return factored


def _clean(
    W: Block, V: Block | None, S: Array | None, R: Array, into: Block | None
) -> tuple[Array | None, Array, int]:
    """Second pass, and more where it took much away: project on V and make orthonormal; update S and R."""
    for done in range(1, MAX_PASSES):
        if V is None or S is None:
            G = W.gram()
        else:
            coefficients = V.dot(W)
            G = W.update_gram(V, coefficients)
            S = S + _small(coefficients) @ R
        last = np.linalg.cholesky(_hermitian(_small(G))).conj().T
        inverse = np.linalg.inv(last)
        R = last @ R
        finished = done == MAX_PASSES - 1 or not _needs_another(last)
        if finished and into is not None:
            _transform(W, inverse, into)
        _transform(W, inverse, W)
        if finished:
            break
    return S, R, done


def _project(W: Block, V: Block, ranges: Sequence[tuple[int, int]] | None) -> Array:
    """W <- W - V (V^H W) on ranges of columns of V; return the coefficients, zero elsewhere."""
    if ranges is None:
        ranges = [(0, V.shape[1])]
    S = np.zeros((V.shape[1], W.shape[1]), _wide(W))
    for begin, end in ranges:
        if begin == end:
            continue
        part = V[:, begin:end]
        coefficients = part.dot(W)
        part.combine(coefficients, out=W, alpha=-1, beta=1)
        S[begin:end] = to_host(coefficients)
    return S


def _needs_another(R: Array) -> bool:
    """Whether the last pass took so much away that what is left must be cleaned once more."""
    return bool(np.min(np.abs(np.diag(R))) < NORM_DROP)


def _refill(W: Block, lost: Array, key: int) -> None:
    """Add random columns of about unit length where W's are lost, which are zero."""
    if not lost.any():
        return
    rows, columns = W.shape
    noise = type(W).random(rows, columns, W.dtype, device=W.device, rng=key)
    parts = 2 if W.dtype.kind == "c" else 1
    length = (max(rows, 1) * parts / 3) ** 0.5  # uniform on [-1, 1) has variance 1/3
    factors = (lost / length).astype(np.zeros(0, W.dtype).real.dtype)
    W.axpy(array_namespace(W.array).asarray(factors), noise)


def _cholesky_pass(W: Block) -> Array:
    """W <- W R^-1 with W^H W = R^H R; return R."""
    R = np.linalg.cholesky(_hermitian(_small(W.gram()))).conj().T
    _transform(W, np.linalg.inv(R), W)
    return R


@dataclass(frozen=True, slots=True)
class _Step:
    """Q = W transform, W = Q R up to what is lost, with the noise of Q's columns."""

    transform: Array
    R: Array
    noise: Array
    lost: Array


def _scaled_gram(G: Array, noise: Array) -> tuple[Array, Array, Array, Array]:
    """Return G for columns of unit length, their lengths, the inverses, and which are nothing but noise."""
    lengths = np.sqrt(np.maximum(np.diagonal(G).real, 0))
    dead = lengths <= noise
    inverse = np.where(dead, 0, 1 / np.where(dead, 1, lengths))
    return _hermitian(G) * inverse[:, None] * inverse[None, :], lengths, inverse, dead


def _eigen_step(G: Array, noise: Array, unit: float) -> tuple[_Step, Array]:
    """Turn W into eigenvectors of its Gram matrix; return the smallest eigenvalue of the scaled one, too.

    Eigenvalues that are not resolved are raised to the resolution, so that nothing is lost but columns
    that are zero already.
    """
    width = G.shape[0]
    scaled, lengths, inverse, dead = _scaled_gram(G, noise)
    # Dead columns get an eigenvalue of their own, far from the small ones of live columns.
    eigenvalues, vectors = np.linalg.eigh(scaled - np.diag(dead.astype(float)))
    raised = np.sqrt(np.maximum(eigenvalues, RESOLUTION * width * unit))
    lost = eigenvalues < -0.5
    live = np.where(lost, 0.0, 1.0)
    # Noise of a direction: independent contributions of the columns it is made of.
    level = np.sqrt((np.abs(vectors) ** 2).T @ (noise * inverse) ** 2)
    transform = inverse[:, None] * vectors * (live / raised)[None, :]
    R = (live * raised)[:, None] * vectors.conj().T * lengths[None, :]
    order = np.arange(width)[::-1]  # the largest eigenvalues first, lost ones last
    step = _Step(transform[:, order], R[order], (level / raised)[order], lost[order])
    return step, eigenvalues.min()


def _pivoted_cholesky(G: Array, noise: Array, unit: float, *, final: bool) -> tuple[_Step, float]:
    """Factorise a Gram matrix, the column that stands out most from its noise first.

    Returns the step and the smallest pivot.

    In the final step columns with nothing of their own beyond noise and resolution are lost: they stay in the
    factor as rows of zeros, so that shapes do not change. Before it their pivots are raised.
    """
    width = G.shape[0]
    rest, lengths, inverse, dead = _scaled_gram(G, noise)
    relative = np.where(dead, 1.0, noise * inverse)
    resolution = RESOLUTION * width * unit
    R, lost, pivots = np.zeros_like(rest), np.zeros(width, bool), np.zeros(width)
    order, left = [], list(range(width))
    for step in range(width):
        signal = [
            -1.0 if dead[j] else max(rest[j, j].real, resolution) / max(relative[j], unit) ** 2 for j in left
        ]
        column = left.pop(int(np.argmax(signal)))
        order.append(column)
        pivots[step] = rest[column, column].real
        limit = max(relative[column] ** 2, resolution) if final else -np.inf
        lost[step] = dead[column] or pivots[step] <= limit
        if not lost[step]:
            root = np.sqrt(max(pivots[step], resolution))
            R[step, left] = rest[column, left] / root
            rest = rest - R[step].conj()[:, None] * R[step][None, :]
            R[step, column] = root
    R, scales = R[:, order], relative[order] * ~dead[order]
    # A lost column becomes a unit vector of its own in the inverse, and is then zeroed.
    undo = np.linalg.inv(R + np.diag(lost.astype(float))) * np.where(lost, 0.0, 1.0)[None, :]
    place = np.argsort(lost, kind="stable")  # lost ones last
    back = np.argsort(order)
    transform = (inverse[order][:, None] * undo)[back][:, place]
    spread = np.abs(undo).T @ scales
    return _Step(transform, (R[:, back] * lengths[None, :])[place], spread[place], lost[place]), float(
        pivots.min()
    )


def _transform(W: Block, C: Array, out: Block) -> None:
    """Set out = W C; `out` may be W."""
    W.combine(array_namespace(W.array).asarray(C.astype(W.dtype)), out=out)


def _small(G: Array) -> Array:
    """Small matrices are worked on in double precision, on the host.

    On a GPU this waits for the device, some 20 us; the dozens of launches that the same work takes as
    kernels on b x b arrays cost a hundred times that.
    """
    return to_host(G).astype(np.complex128 if G.dtype.kind == "c" else np.float64, copy=False)


def _wide(W: Block) -> Any:
    return np.complex128 if W.dtype.kind == "c" else np.float64


def _hermitian(G: Array) -> Array:
    return (G + G.conj().T) / 2


def _unit_roundoff(W: Block) -> float:
    return float(np.finfo(W.dtype).eps) / 2
