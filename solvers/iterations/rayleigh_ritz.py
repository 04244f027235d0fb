"""Small dense problems: Ritz pairs, their ranking and convergence limits."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.linalg import lapack

from blockvec import Profile, single_threaded_blas
from blockvec.errors import BreakdownError
from blockvec.system.frozen import frozen

from ..blocks import RealArray

Which = Literal["LA", "SA", "LM"]
Selection = Literal["LA", "SA", "LM", "BE"]
WHICH: tuple[Which, ...] = ("LA", "SA", "LM")

FLOOR = 100.0  # residuals below FLOOR * u * (||A|| + |theta|) count as converged: the limit set by rounding
SAME_VALUE = 10.0  # residual limits within which values may be copies of one eigenvalue
SAME_RITZ_VALUE = 4.0  # Ritz values that differ by less, in eps ||A||, are copies to LAPACK's accuracy
# Share of the limits of true residuals up to which values are computed, and left out of what follows.
# Rounding errors are a tenth of the limits of the smallest tolerance; couplings of this size to the others
# vanish in a Rayleigh-Ritz step of all.
COMPUTED = 0.5
MOST_OBLIQUE = 1e-9  # angle of a rotation to first order: more would cost the orthogonality of close vectors
EIGENPAIRS = {"f": lapack.ssyevd, "d": lapack.dsyevd, "F": lapack.cheevd, "D": lapack.zheevd}


@frozen
class Tolerance:
    """Convergence criterion: a limit of the residual norm ||A x - theta x|| for ||x|| = 1.

    `tol` is relative to abs(theta), to ||A|| + abs(theta), or absolute; zero means the rounding floor. `unit`
    is the unit roundoff of the working precision, `rounding` a bound of the errors of products with A per
    ||x||: that of a row grows with its length.
    """

    tol: float
    convergence: Literal["value", "norm", "absolute"]
    unit: float
    rounding: float = 0.0

    def limits(self, theta: RealArray, norm: float) -> RealArray:
        """Compute the residual limit per value from (an estimate of) ||A||."""
        floor = self.floor(theta, norm)
        if self.convergence == "absolute":
            return np.maximum(self.tol, floor)
        return np.maximum(self.tol * (np.abs(theta) + (norm if self.convergence == "norm" else 0)), floor)

    def margins(self, theta: RealArray, norm: float) -> RealArray:
        """Compute by how much another value must be more wanted than one of these to displace it."""
        return self.limits(theta, norm)

    def floor(self, theta: RealArray, norm: float) -> RealArray:
        """Compute the rounding floor: 100 u (||A|| + abs(theta)), that of products if it is larger."""
        floor: RealArray = np.maximum(FLOOR * self.unit * (norm + np.abs(theta)), self.rounding)
        return floor


def ranking_key(theta: Any, which: Which) -> Any:
    """Compute the ranking key of values: larger for more wanted ones."""
    if which == "LA":
        return theta
    return -theta if which == "SA" else np.abs(theta)


def select(theta: RealArray, which: Selection) -> NDArray[np.intp]:
    """Sort values by ranking key, descending; for "BE" alternately from both ends. Return indices.

    Examples
    --------
    >>> import numpy as np
    >>> [select(np.array([-3.0, 1.0, 2.0]), which).tolist() for which in ("LM", "BE")]
    [[0, 2, 1], [2, 0, 1]]
    """
    if which == "BE":
        rank = np.argsort(np.argsort(-theta, kind="stable"), kind="stable")
        return np.argsort(np.minimum(2 * rank, 2 * (len(theta) - 1 - rank) + 1), kind="stable")
    return np.argsort(-ranking_key(theta, which), kind="stable")


def split_outliers(
    theta: RealArray, residuals: RealArray, limits: RealArray, which: Which
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Find the computed values that are further from all others than these are from each other.

    Returns the indices of both, ascending; of none of the first if they are not far out.

    Examples
    --------
    >>> import numpy as np
    >>> theta = np.array([1.8, 1.9, 2.0, 8.9, 9.0])
    >>> split_outliers(theta, np.zeros(5), np.ones(5), "LA")[0].tolist()
    [3, 4]
    """
    order, most, outside = select(theta, which), 1.0, 0
    keys, residuals = ranking_key(theta, which)[order], residuals[order]
    computed = int(np.argmin(np.append(residuals <= COMPUTED * limits[order], False)))
    for count in range(1, min(computed, len(keys) - 2) + 1):
        gap, rest = float(keys[count - 1] - keys[count]), keys[count:]
        spread = max(float(rest[0] - rest[-1]), float(residuals[count:].max()))
        if gap > most * spread:
            most, outside = gap / spread if spread else np.inf, count
    return np.sort(order[:outside]), np.sort(order[outside:])


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
    gaps = theta[None, :] - theta[:, None]
    is_small = np.abs(K) < MOST_OBLIQUE * np.abs(gaps)
    corrected: NDArray[Any] = Y + Y @ np.where(is_small, K / np.where(is_small, gaps, 1.0), 0.0)
    return corrected, float(np.abs(K).max(where=~is_small, initial=0.0))
