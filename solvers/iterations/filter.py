"""Design of Chebyshev filters: the damped interval and the degree.

A higher degree costs applications of A and saves orthogonalisations. While the growth of the wanted values is
small, the gain of a cycle grows with the square of the degree, so that a higher degree is always worthwhile.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from blockvec.system.frozen import frozen

from ..blocks import CostedOperator
from ..costs import recurrence_s, step_s
from .rayleigh_ritz import Which

LEAST_DEGREE = 4  # for widely spread wanted values only lower degrees are possible; A itself is as fast then
# Below this, filters that nobody asked for take longer than Lanczos steps with A: 1.1 to 1.8 times as long
# with degrees of 4 and 6 on an H100 (five graphs and meshes of 3e5 to 1e6 rows).
PAYING_DEGREE = 8
MAX_DEGREE = 64
MAX_GROWTH = 1e8  # amplification of the first wanted value: more costs orthogonality without a gain
# Logarithm of the growth of the last wanted value below which the gain grows with the square of the degree.
LEAST_GROWTH, STIFFEST = 2.0, 256
MARGIN = 0.01  # share of the interval's length added at its far end
THINNEST = 1e-3  # minimum half-width of the interval, in units of ||A||
PAIR, FEW_PAIRS = 2, 10  # columns of a filter's block after single columns, for so many pairs; else four
SLOWEST = 1e-6  # growth rate of the last wanted value that is not distinguished from zero


@frozen
class Filter:
    """A Chebyshev polynomial in terms of the ranking key, which is large for wanted values."""

    low: float  # lower end of the damped interval; the edge is the upper one
    edge: float
    degree: int  # even
    spread: float  # amplification of the first wanted value relative to the last
    which: Which

    @property
    def half_width(self) -> float:
        """Half of the interval's length."""
        return (self.edge - self.low) / 2

    def value(self, amplified: Any) -> Any:
        """Return ranking keys from values of T_degree; the edge for values within [-1, 1]."""
        x = np.cosh(np.arccosh(np.maximum(amplified, 1.0)) / self.degree)
        return self.edge + (x - 1) * self.half_width

    def growth(self, value: float) -> float:
        """Return the logarithm of the amplification at a ranking key; 0 inside the interval."""
        return self.degree * math.acosh(max(1.0, 1 + (value - self.edge) / self.half_width))


def degree_of(filter: Filter | None) -> int:
    """Return a filter's degree, 0 without one."""
    return 0 if filter is None else filter.degree


def filter_width(k: int) -> int:
    """Return the least number of columns of a filter's block, for which it reads the matrix once."""
    return min(k, PAIR) if k <= FEW_PAIRS else 2 * PAIR


def choose_degree(operator: CostedOperator, block_size: int, basis: int, itemsize: int | None = None) -> int:
    """Return the degree at which applying A costs as much as orthogonalising, or 1 if the cost is unknown.

    At this balance shifting work from one part to
    the other gains little. `basis` is the mean number of vectors that a step orthogonalises against, and
    `itemsize` the size of their elements in bytes, by default that of the operator's.
    """
    if getattr(operator, "nnz", None) is None:
        return 1
    n, size = max(int(operator.shape[0]), 1), itemsize or int(operator.dtype.itemsize)
    orthogonalising_s = step_s(operator.device, n, size, block_size, basis)
    return max(1, min(round(orthogonalising_s / recurrence_s(operator, block_size)), MAX_DEGREE))


def design_filter(
    values: tuple[float, float, float, float],
    which: Which,
    norm: float,
    degree: int,
    spread: float,
    least: int = LEAST_DEGREE,
) -> Filter | None:
    """Choose the damped interval and the degree; return None if a filter gains nothing.

    Parameters
    ----------
    values : tuple of four floats
        Ranking keys of the first and the last wanted value, of the edge, and of the far end.
    which : {"LA", "SA", "LM"}
    norm : float
        ||A||.
    degree : int
        Preferred degree. It is raised if the filter would amplify the last wanted value too little, and
        lowered if it would exceed `spread`.
    spread : float
        Maximum amplification of the first wanted value relative to the last.
    least : int
        Degree below which a filter gains nothing; the preferred one if that is lower.

    Examples
    --------
    >>> design_filter((0.0, -0.1, -0.5, -10.0), "SA", 10.0, 6, 100.0).degree
    6
    """
    first, last, *_ = values
    edge, half_width = _interval(values, which, norm)
    low = edge - 2 * half_width
    if not first >= last > edge:
        return None
    rates = [math.acosh(1 + (value - edge) / half_width) for value in (first, last)]
    if rates[1] < SLOWEST:
        return None
    least = min(degree // 2 * 2, least)
    degree = max(degree, int(min(separating_degree(values, which, norm), STIFFEST)))
    degree = min(degree, int(math.log(MAX_GROWTH) / rates[0]))
    if rates[0] > rates[1]:
        degree = min(degree, int(math.log(spread) / (rates[0] - rates[1])))
    degree -= degree % 2
    return (
        Filter(low, edge, degree, math.exp(degree * (rates[0] - rates[1])), which)
        if degree >= least
        else None
    )


def separating_degree(values: tuple[float, float, float, float], which: Which, norm: float) -> float:
    """Return the degree from which the gain of a filter grows no more than in proportion to it.

    The arguments are those of `design_filter`, which may choose a lower degree. It is 0 where no wanted value
    lies outside of the interval.
    """
    edge, half_width = _interval(values, which, norm)
    if not values[1] > edge:
        return 0.0
    rate = math.acosh(1 + (values[1] - edge) / half_width)
    return LEAST_GROWTH / max(rate, SLOWEST)


def _interval(values: tuple[float, float, float, float], which: Which, norm: float) -> tuple[float, float]:
    """Return the edge of the damped interval, and half of its length."""
    _, _, edge, far = values
    low = far - MARGIN * (edge - far)
    half_width = max((edge - low) / 2, THINNEST * norm)
    if which == "LM":
        half_width = edge = max(edge, THINNEST * norm)
    return edge, half_width
