"""Chebyshev filters: which interval to damp, and of which degree.

A degree costs applications of A, and saves orthogonalisations. Below some growth of the wanted values a cycle
of steps gains with the square of the degree, and more of it is always worth its price.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..blocks import Operator
from .rayleigh_ritz import Which

__all__ = ["Filter", "choose_degree", "design_filter"]

LEAST_DEGREE = 4  # less is all that widely spread wanted values leave, which A itself finds as fast
MAX_DEGREE = 64
MAX_GROWTH = 1e8  # amplification of the first wanted value: more would cost orthogonality, and gain nothing
# Logarithm of the growth of the last wanted value below which a cycle gains little: the square of its degree.
LEAST_GROWTH, STIFFEST = 2.0, 256
CROWDING_POWER = 0.4  # 1/d for the density of eigenvalues at the end of a spectrum in d = 2 to 3 dimensions
MARGIN = 0.01  # of the interval's length, added at its far end
THINNEST = 1e-3  # half of the interval's length, in units of ||A||
SLOWEST = 1e-6  # growth of the last wanted value in a step that is none, for all that rounding leaves


@dataclass(frozen=True, slots=True)
class Filter:
    """A Chebyshev polynomial in terms of `ranking_key`, where wanted values are large.

    Attributes
    ----------
    low, edge : float
        The interval that is damped.
    degree : int
        Even.
    spread : float
        Amplification of the first over that of the last wanted value.
    which : {"LA", "SA", "LM"}
    """

    low: float
    edge: float
    degree: int
    spread: float
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
        """Return the logarithm of the amplification of a value of `ranking_key`; 0 inside the interval."""
        return self.degree * math.acosh(max(1.0, 1 + (value - self.edge) / self.half_width))


def choose_degree(operator: Operator, block_size: int, basis: int) -> int:
    """Return the degree that makes applying A as costly as orthogonalising, or 1 where the cost is not known.

    Counts bytes. At this balance neither half of the work can be made much cheaper by moving it to the
    other.

    Parameters
    ----------
    operator : Operator
        Its ``nnz``, where it has one, says what applying it costs.
    block_size : int
    basis : int
        Vectors that a step orthogonalises against, on average.
    """
    nnz: int | None = getattr(operator, "nnz", None)
    if nnz is None:
        return 1
    model = HOST_COSTS if operator.device == "cpu" else DEVICE_COSTS
    n, size = max(int(operator.shape[0]), 1), int(operator.dtype.itemsize)
    applying = max(model.call, nnz * (size + INDEX_BYTES) + model.vector_passes * n * block_size * size)
    orthogonalising = model.step + n * size * (model.basis_passes * basis + model.small_passes * block_size)
    return max(1, min(round(orthogonalising / applying), MAX_DEGREE))


@dataclass(frozen=True, slots=True)
class _Costs:
    """What a step costs, in bytes at the speed of an application of A.

    Attributes
    ----------
    call, step : float
        Bytes that could be moved while the host prepares an application, which it does beside the work
        on the one before, or a step, for which it waits.
    vector_passes : float
        Reads and writes of a block in a step of the recurrence.
    basis_passes, small_passes : float
        Reads and writes of the basis and of the new block in an orthogonalisation.
    """

    call: float
    step: float
    vector_passes: float
    basis_passes: float
    small_passes: float


INDEX_BYTES = 4
# Measured on two cores of a server: orthogonalisation moves its bytes at two thirds of the speed.
HOST_COSTS = _Costs(call=2e5, step=4e6, vector_passes=2.5, basis_passes=6, small_passes=24)
# On an H200: 4 TB/s, some 60 us for a call and 1.5 ms for the small matrices of a step.
DEVICE_COSTS = _Costs(call=2.4e8, step=6e9, vector_passes=3.5, basis_passes=4, small_passes=16)


def design_filter(
    values: tuple[float, float, float, float],
    which: Which,
    norm: float,
    degree: int,
    spread: float,
    crowding: float = 1.0,
) -> Filter | None:
    """Choose the interval to damp and the degree, or None where there is nothing to gain.

    Parameters
    ----------
    values : tuple of four floats
        `ranking_key` of the first and of the last wanted value, of the edge, and of the far end.
    which : {"LA", "SA", "LM"}
    norm : float
        ||A||.
    degree : int
        Wanted degree: more is taken where the filter would hardly amplify the last wanted value, less where
        it would set the wanted values too far apart.
    spread : float
        How far they may be apart.
    crowding : float
        How many times more values than were wanted lie outside: they are closer to the last wanted one than
        the edge is.

    Examples
    --------
    >>> design_filter((0.0, -0.1, -0.5, -10.0), "SA", 10.0, 6, 100.0).degree
    6
    """
    first, last, edge, far = values
    low = far - MARGIN * (edge - far)
    half_width = max((edge - low) / 2, THINNEST * norm)
    if which == "LM":
        half_width = edge = max(edge, THINNEST * norm)
    low = edge - 2 * half_width
    if not first >= last > edge:
        return None
    rates = [math.acosh(1 + (value - edge) / half_width) for value in (first, last)]
    if rates[1] < SLOWEST:
        return None
    growth = LEAST_GROWTH * max(crowding, 1.0) ** CROWDING_POWER
    degree = max(degree, min(int(growth / rates[1]), STIFFEST))
    degree = min(degree, int(math.log(MAX_GROWTH) / rates[0]))
    if rates[0] > rates[1]:
        degree = min(degree, int(math.log(spread) / (rates[0] - rates[1])))
    degree -= degree % 2
    return (
        Filter(low, edge, degree, math.exp(degree * (rates[0] - rates[1])), which)
        if degree >= LEAST_DEGREE
        else None
    )
