"""Chebyshev polynomials of an operator: small on an interval, growing as fast as possible outside.

On [centre - half_width, centre + half_width] the polynomial T_d((A - centre)/half_width) stays within [-1,
1]; at a relative distance x > 1 from the centre it is cosh(d arccosh(x)). A step of the recurrence is one
application of S = 2/half_width (A - centre), made once for all steps, with an update,

    Y_{j+1} = S Y_j - Y_{j-1},    Y_1 = S Y_0 / 2,

and needs no inner product.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

__all__ = ["amplification", "degree_for", "filtered", "steps_within"]

Block = Any


def degree_for(growth: float, distance: float) -> float:
    """Return the degree that amplifies by `growth` what lies at `distance` > 1 half-widths from the centre.

    Examples
    --------
    >>> round(degree_for(1e6, 1.01), 1)
    102.7
    """
    return math.acosh(max(growth, 1.0)) / math.acosh(distance)


def amplification(degree: float, distance: float) -> float:
    """Return T_degree(distance) for distance >= 1, infinite where it overflows."""
    exponent = degree * math.acosh(max(distance, 1.0))
    return math.cosh(exponent) if exponent < 700 else math.inf


def steps_within(growth: float, distance: float) -> int:
    """Return how many steps keep the amplification at `distance` under `growth`; at least one."""
    if distance <= 1 or growth <= 1:
        return 1
    return max(1, int(degree_for(growth, distance)))


def filtered(
    operator: Any,
    Y: Block,
    centre: float,
    half_width: float,
    degree: int,
    after_step: Callable[[int, Block, Block], bool],
) -> Block:
    """Return T_degree((A - centre)/half_width) Y; Y is overwritten.

    Parameters
    ----------
    operator : Operator
        With ``affine(alpha, shift)``.
    Y : BlockVector, shape (n, p)
    centre, half_width : float
        The interval that is damped.
    degree : int
        At least 1.
    after_step : callable
        Called as ``after_step(j, Y_j, Y_{j-1})``; may project both blocks, and ends the recurrence by
        returning True.
    """
    doubled = operator.affine(2 / half_width, centre)
    previous = Y
    current = doubled.apply(previous, out=Y.like(), alpha=0.5)
    for step in range(1, degree):
        if after_step(step, current, previous):
            return current
        following = doubled.apply(current, out=previous, beta=-1)
        previous, current = current, following
    after_step(degree, current, previous)
    return current
