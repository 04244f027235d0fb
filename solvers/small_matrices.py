"""Small dense problems, on the host: factorisations with ranks, and Ritz pairs.

A factorisation takes the Gram matrix of a block X and returns a `Step`: a matrix T and its inverse R such
that X T is orthonormal, or closer to it, and X = (X T) R.

Noise is distinguished from signal as follows: a column of W carries a rounding error of about u ||w||, or
u ||A|| if it was computed by an operator A of larger norm. This level is updated in every transformation of
the block, and a direction is lost if its length does not exceed its own noise level. No threshold on a
condition number is used.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.linalg import lapack

from blockvec import Profile, single_threaded_blas
from blockvec.errors import BreakdownError
from blockvec.system.frozen import frozen

from .blocks import Array, RealArray

UNIT = float(np.finfo(np.float64).eps) / 2  # unit roundoff of double precision
NOISE = 32.0  # u ||w|| or u ||A||: length below which a direction is lost; three times the noise observed
RESOLUTION = 4.0  # b u: eigenvalues of a scaled Gram matrix below it are not resolved
PLAIN_GROWTH = 1e3  # growth of rounding errors below which a Cholesky factorisation needs no pivoting
PLAIN_NOISE = 1e-4  # relative noise of columns below which it needs none either
ENOUGH = 5.0  # growth per column that leaves a block orthonormal to a few u
CLEAN = 8.0  # u per column: ||X^H X - I||_F that rounding alone causes
AMPLIFIED = 2 * CLEAN  # u: accepted loss of orthogonality between V and Q
_LAPACK = {"d": (lapack.dpotrf, lapack.dtrtri), "D": (lapack.zpotrf, lapack.ztrtri)}
SAME_RITZ_VALUE = 4.0  # Ritz values that differ by less, in eps ||A||, are copies to LAPACK's accuracy
MOST_OBLIQUE = 1e-9  # angle of a rotation to first order: more would cost the orthogonality of close vectors
EIGENPAIRS = {"f": lapack.ssyevd, "d": lapack.dsyevd, "F": lapack.cheevd, "D": lapack.zheevd}


@frozen
class Step:
    """A transformation X = (X T) R, except for lost directions."""

    T: Array  # shape (b, b); columns of lost directions are zero
    R: Array
    lost: Array  # mask of lost directions, which come last; their rows of R are zero
    # ||T||_F^2 for columns of X scaled to unit length: X T is orthonormal to about u times this.
    growth: float


def square(S: Array) -> float:
    """Compute the squared Frobenius norm."""
    return float(np.vdot(S, S).real)


def cholesky_factor(G: Array, rest: Array | None = None) -> tuple[Array, Array, float, float, float]:
    """Compute R with G - rest^H rest = R^H R and its inverse, and squared norms.

    These are those of `rest`, of R, and of its inverse, which is NaN for an indefinite matrix. For the Gram
    matrix G of a block and its products `rest` with orthonormal columns, the difference is the Gram matrix of
    the projected block. It is accurate where `rest` is no larger than that, which `is_enough` requires.
    """
    again = 0.0
    if rest is not None:
        again, G = square(rest), G - rest.conj().T @ rest
    potrf, trtri = _LAPACK[G.dtype.char]
    R, failed = potrf(G, clean=1)
    T, singular = trtri(R)
    whole = abs(float(G.trace().real))  # rounding may leave a negative one in a semidefinite inner product
    return R, T, again, whole, math.nan if failed or singular else square(T)


def is_enough(
    *, growth: float, again: float, spread: float, length: float, unit: float, amplified: float = AMPLIFIED
) -> bool:
    """Check whether two projections and Cholesky QR suffice, by bounds of what `Decomposition` looks at.

    `growth` is that of the factorisation, as in `FactorReport`, or a bound: the product of the squared
    Frobenius norms of the projected block and of the inverse of its factor; NaN fails. `spread` is the latter
    norm, and `again` that of what the last projection removed. `length` is that of the longest column before,
    or the norm of the operator, and `amplified` the accepted loss of orthogonality in units of `unit`.
    """
    least = NOISE * unit * length / PLAIN_NOISE
    is_clear = spread * least**2 < 1 and growth < PLAIN_GROWTH
    return is_clear and again * spread <= 1 and growth + again * spread <= amplified**2


def gram_root(G: Array) -> tuple[Array, Array]:
    """Compute R and its inverse with G = R^H R, of columns that rounding errors alone keep from orthonormal.

    Raises
    ------
    BreakdownError
        If they are not linearly independent.
    """
    try:
        R = np.linalg.cholesky((G + G.conj().T) / 2).conj().T
    except np.linalg.LinAlgError:
        R = np.full_like(G, np.nan)
    if not np.isfinite(R).all():  # as the factor of NaN is
        raise BreakdownError(
            f"the Gram matrix of {len(G)} columns, which should be orthonormal, is not positive definite: "
            "products are inaccurate, not those of one Hermitian matrix, or hold NaN or Inf."
        )
    return R, np.linalg.inv(R)


def plain(G: Array, noise: Array) -> Step | None:
    """Compute a Cholesky step without pivoting; None where that is not accurate."""
    squares = np.diagonal(G).real
    if not (noise**2 < PLAIN_NOISE**2 * squares).all():
        return None
    R, T, *_, spread = cholesky_factor(G)
    growth = math.inf if math.isnan(spread) else float((squares @ np.abs(T) ** 2).sum())
    return Step(T, R, np.zeros(len(R), bool), growth) if growth < PLAIN_GROWTH else None


def ranked(G: Array, noise: Array, unit: float, *, final: bool) -> Step:
    """Compute a Cholesky step with pivoting by signal-to-noise ratio, the largest first.

    With this order noisy columns do not perturb accurate ones. In the final step columns whose pivot does not
    exceed noise and resolution are lost; in earlier steps such pivots are raised to the resolution, like
    the shift in shifted CholQR.
    """
    lengths = np.sqrt(np.maximum(np.diagonal(G).real, 0))
    dead = lengths <= noise
    inverse = np.where(dead, 0, 1 / np.where(dead, 1, lengths))
    scaled = G * inverse[:, None] * inverse  # of columns of unit length
    R, order, lost = _pivoted(scaled, np.where(dead, 1.0, noise * inverse), dead, unit, final)
    # Lost columns are replaced by unit vectors for the inverse, and then set to zero.
    undo = np.linalg.inv(R + np.diag(lost.astype(float))) * ~lost
    place, back = np.argsort(lost, kind="stable"), np.argsort(order)  # lost columns last
    T = (inverse[order][:, None] * undo)[back][:, place]
    R = (R[:, back] * lengths)[place]
    return Step(T, R, lost[place], float((np.abs(undo) ** 2).sum()))


def _pivoted(
    rest: Array, relative: Array, dead: Array, unit: float, final: bool
) -> tuple[Array, Array, Array]:
    """Return the triangular factor in pivot order, this order, and the mask of lost pivots.

    Rows of lost pivots are zero, so that shapes do not change. `relative` holds the noise of columns of unit
    length, and `dead` is the mask of columns that are noise.
    """
    width = len(rest)
    resolution = RESOLUTION * width * unit
    R, lost = np.zeros_like(rest), np.zeros(width, bool)
    order: list[int] = []
    left = list(range(width))
    for step in range(width):
        pivots = np.maximum(np.diagonal(rest).real[left], resolution)
        signal = np.where(dead[left], -1.0, pivots / np.maximum(relative[left], unit) ** 2)
        column = left.pop(int(np.argmax(signal)))
        order.append(column)
        pivot = rest[column, column].real
        lost[step] = dead[column] or (final and pivot <= max(relative[column] ** 2, resolution))
        if not lost[step]:
            root = np.sqrt(max(pivot, resolution))
            # Enforce |g_ij|^2 <= g_ii g_jj: small pivots would amplify its violation by rounding.
            bound = np.sqrt(np.maximum(np.diagonal(rest).real[left], 0))
            row = rest[column, left] / root
            R[step, left] = row * np.minimum(1, bound / np.maximum(np.abs(row), np.finfo(float).tiny))
            rest = rest - R[step].conj()[:, None] * R[step]
            R[step, column] = root
    return R[:, order], np.array(order, int), lost


def clusters(theta: RealArray, width: float | RealArray) -> list[tuple[int, int]]:
    """Group neighbouring values that differ by at most `width` into index ranges (begin, end).

    Examples
    --------
    >>> import numpy as np
    >>> clusters(np.array([1.0, 1.0, 3.0]), 1e-8)
    [(0, 2), (2, 3)]
    """
    widths = np.maximum(width[:-1], width[1:]) if isinstance(width, np.ndarray) else width
    cuts = np.flatnonzero(np.abs(theta[1:] - theta[:-1]) > widths) + 1
    bounds = [0, *cuts.tolist(), len(theta)]
    return [(begin, end) for begin, end in itertools.pairwise(bounds) if end > begin]


def separate_copies(theta: RealArray, G: NDArray[Any], width: float) -> tuple[RealArray, NDArray[Any]]:
    """Sort the copies of each multiple Ritz value by their residuals, the smallest first.

    LAPACK returns an arbitrary basis of the Ritz vectors of one value, in which converged copies are mixed
    with unconverged ones, so that none of them appears converged: of thirty copies each, a third of 40 pairs
    did not converge within 80 restarts without this, where all do with it. Neighbours among the ascending
    values that differ by less than `width` are copies of one value; G holds the inner products of the
    residuals.

    Returns
    -------
    theta : array, shape (m,)
        Equal for all copies of a value, so that a stable sort preserves their order.
    U : array, shape (m, m)
        Unitary factor of the Ritz vectors.

    Examples
    --------
    >>> import numpy as np
    >>> r = np.array([[3.0, 4.0]])  # two copies whose residuals are parallel
    >>> theta, U = separate_copies(np.ones(2), r.T @ r, 1e-15)
    >>> np.abs(r @ U).round(12).tolist()
    [[0.0, 5.0]]
    """
    theta, U = theta.copy(), np.eye(len(theta), dtype=G.dtype)
    for begin, end in clusters(theta, width):
        if end - begin > 1:
            theta[begin:end] = theta[begin:end].mean()
            U[begin:end, begin:end] = np.linalg.eigh(G[begin:end, begin:end])[1]
    return theta, U


@Profile.timed("Rayleigh-Ritz")
def ritz_pairs(T: NDArray[Any]) -> tuple[RealArray, NDArray[Any]]:
    """Compute eigenvalues, ascending, and eigenvectors of the Hermitian part of a projected matrix.

    Raises
    ------
    BreakdownError
        If T holds NaN or Inf, which must come from the operator or the start.
    """
    if not np.isfinite(T).all():
        raise BreakdownError(
            "the projected matrix holds NaN or Inf: the operator returned them for a finite block."
        )
    T = (T + T.conj().T) / 2
    if not len(T):
        return np.zeros(0), T
    # For matrices this small BLAS threads cost more than they gain, in particular on busy cores.
    with single_threaded_blas:
        theta, Y, failed = EIGENPAIRS[T.dtype.char](T, lower=1)  # in 0.85 of the time of NumPy's
        if failed:  # divide and conquer does for values of multiplicity six
            theta, Y = scipy.linalg.eigh(T, driver="ev")
    return theta, Y


def oblique(
    T: NDArray[Any], theta: RealArray, Y: NDArray[Any], noise: float = 0.0
) -> tuple[NDArray[Any], float]:
    """Correct the eigenvectors of the Hermitian part of T to those of T, to first order.

    Returns these and the largest coupling that remains, between vectors whose values are too close. Where T
    is Hermitian up to `noise`, they are left as they are.

    For a basis V that is orthonormal up to an error E only, A V = V T + ... has (I + E) T Hermitian, not T.
    With the eigenvectors of T there is no error of the order of E in A (V y) = theta (V y) + ..., and V Y is
    orthonormal up to E^2. Without it 20 pairs of a cubic torus took three times as many columns, or did not
    converge, while others took as long.
    """
    K = (T - T.conj().T) / 2
    if not np.abs(K).max(initial=0.0) > noise:
        return Y, 0.0
    K = Y.conj().T @ K @ Y
    gaps, sizes = theta[None, :] - theta[:, None], np.abs(K)
    is_small = sizes < MOST_OBLIQUE * np.abs(gaps)
    corrected: NDArray[Any] = Y + Y @ (K / np.where(is_small, gaps, np.inf))
    return corrected, float(sizes[~is_small].max(initial=0.0))
