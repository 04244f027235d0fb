"""The eigenpairs that an iteration has found, and the interval that a search for others damps.

A search damps everything less wanted than the last wanted value, from the widest gap behind it on, and
projects out the vectors before that gap.
"""

from __future__ import annotations

import math

from blockvec.system.frozen import frozen

from ..blocks import Block, RealArray
from .chebyshev import degree_for
from .rayleigh_ritz import Which, ranking_key

UNLUCKY = 1e-4  # probability that a random unit vector has a component below UNLUCKY / sqrt(n)
SAME_VALUE = 10.0  # values within this many residual limits may be copies of one eigenvalue
DECISIVE = 10.0  # growth that damped components cannot reach
TRUSTED = 1e-2  # maximum sine of the angle of an unconverged vector that is used like an eigenvector
MARGIN = 0.05  # share of the interval's length added at its far end
NARROWEST = 1e-3  # of ||A||: half of the interval's length, at least


@frozen
class Found:
    """Computed eigenpairs of an iteration, the wanted ones first.

    With locked columns the operator is restricted to their complement.
    """

    X: Block  # orthonormal, shape (n, q): k converged vectors and further, unconverged ones
    theta: RealArray  # shape (q,), like the residuals
    residuals: RealArray
    k: int
    which: Which
    limits: RealArray  # by how much another value must be more wanted to displace one, shape (k,)
    norm: float  # ||A||
    least: float  # ranking key of the far end of the spectrum, as far as it is known
    locked: Block | None
    block_size: int  # copies of every value that have converged together; 0 where values may be left out
    scratch: Block | None = None  # columns that a search may overwrite

    @property
    def wanted(self) -> float:
        """Ranking key of the last wanted eigenvalue."""
        return float(ranking_key(self.theta[self.k - 1], self.which))


@frozen
class Interval:
    """The damped interval and the number of deflated vectors."""

    low: float  # ranking key: between it and the edge all eigenvalues that were not computed should lie
    edge: float
    target: float  # ranking key from which on everything is amplified by the full factor
    deflated: int  # number of vectors of X that are projected out

    @property
    def half_width(self) -> float:
        """Half of the interval's length."""
        return (self.edge - self.low) / 2

    def degree(self, growth: float, budget: int) -> int:
        """Choose the degree of the filter that amplifies values from the target on by a factor."""
        distance = 1 + (self.target - self.edge) / self.half_width
        return max(1, math.ceil(min(degree_for(growth, distance), budget)))


def decisive_growth(n: int) -> float:
    """Compute the factor by which a search amplifies missed vectors of so many rows."""
    return DECISIVE * math.sqrt(n) / UNLUCKY


def may_have_missed(theta: RealArray, limits: RealArray, which: Which, block_size: int) -> bool:
    """Check whether an eigenvalue before the last wanted one can have more copies than were computed.

    The Krylov space of b random columns contains min(b, multiplicity) copies of every eigenvalue, with
    probability one, and they converge together. Only an eigenvalue of which b copies or more were computed
    can have further ones. Further copies of the last wanted value do not change the result. Values, the
    wanted first, that differ by a few `limits`, those of `Found`, may be copies.

    Examples
    --------
    >>> import numpy as np
    >>> theta = np.array([3.0, 2.0, 2.0, 1.0])
    >>> [may_have_missed(theta, np.full(4, 1e-9), "LA", b) for b in (2, 3)]
    [True, False]
    """
    return least_doubtful(theta, limits, which, block_size) is not None


def least_doubtful(theta: RealArray, limits: RealArray, which: Which, block_size: int) -> float | None:
    """Return the smallest ranking key of the values that can have further copies, or None; see above."""
    # Lists, because k is small and NumPy's calls take longer.
    values, widths = ranking_key(theta, which).tolist(), (SAME_VALUE * limits).tolist()
    if not values:
        return None
    last, least, begin = values[-1] + float(limits[-1]), math.inf, 0
    for end in range(1, len(values) + 1):
        if end < len(values) and abs(values[end] - values[end - 1]) <= max(widths[end - 1 : end + 1]):
            continue
        if end - begin >= block_size and values[begin] > last:
            least = min(least, *(values[j] - widths[j] for j in range(begin, end)))
        begin = end
    return max(least, last) if least < math.inf else None


def choose_interval(found: Found, growth: float, budget: int) -> Interval:
    """Choose the interval and the deflated vectors for the widest gap behind the last wanted value.

    If that gap needs a higher degree than the budget, values within some distance of the last wanted one
    would not grow. Where computed values within it may have missed copies, or others may lie there, the edge
    moves behind the last value by that distance.
    """
    values, k, wanted = ranking_key(found.theta, found.which), found.k, found.wanted
    edge, deflated = deflation(found)
    interval = _interval(found, edge, deflated, growth, budget)
    unseen = values[:k] < interval.target
    b = found.block_size
    if b == 0 or may_have_missed(found.theta[:k][unseen], found.limits[unseen], found.which, b):
        interval = _interval(found, edge - (interval.target - wanted), deflated, growth, budget)
    return interval


def deflation(found: Found) -> tuple[float, int]:
    """Choose how many vectors to project out: those before the widest gap behind the last wanted value.

    Returns the ranking key behind that gap and the number of vectors, of which unconverged ones are close to
    eigenvectors.
    """
    values, k = ranking_key(found.theta, found.which), found.k
    candidates = values + found.residuals  # upper bounds of the eigenvalue near each Ritz value
    # For every vector between, the candidate below which its angle is trusted.
    trusted = (values - found.residuals / TRUSTED)[k:].tolist()
    edge, deflated, most = found.wanted, k, math.inf
    for d, candidate in enumerate(candidates[k:].tolist(), start=k):
        if candidate < edge and candidate <= most:
            edge, deflated = candidate, d
        most = min(most, trusted[d - k])
    return edge, deflated


def _interval(found: Found, edge: float, deflated: int, growth: float, budget: int) -> Interval:
    """Form the interval with an edge, which may move for values of largest magnitude.

    Its width must not vanish: neither for a spectrum of one point, nor for a last value of magnitude zero.
    """
    if found.which == "LM":
        edge = max(edge, float(found.limits[-1]) / 2) or 1.0
        half_width = edge
    else:
        low = found.least - MARGIN * (edge - found.least)
        half_width = max((edge - low) / 2, NARROWEST * found.norm) or 1.0
    low = edge - 2 * half_width
    nearest = edge + half_width * (math.cosh(math.acosh(growth) / budget) - 1)
    return Interval(low, edge, max(found.wanted, nearest), deflated)
