"""Chebyshev coefficients of functions on [-1, 1], and the degree from their tail.

A function is interpolated in Chebyshev points, by a cosine transform of its values there. That of exp(z x) is
in extended precision, so that the errors of its coefficients are those of rounding once: a state that takes
ten thousand steps with the same coefficients keeps its norm to 1e-12.

References
----------
Tal-Ezer, Kosloff, J. Chem. Phys. 81 (1984) 3967; Trefethen, Approximation Theory and Approximation Practice
(2013), chapters 3 and 4.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.fft

from blockvec.errors import OptionError

from ..blocks import RealArray

MOST_SERIES = 64  # exponentials whose coefficients are kept
MOST_DEGREE = 5000  # highest degree of an interpolation
FIRST_DEGREE = 32
LOOK = 2.0  # points per degree of MOST_DEGREE where an interpolation is compared with its function
ALIKE = 1e-12  # relative difference of values that rounding errors explain
OUTSIDE = 1e-4  # share of the largest eigenvalue by which one may lie outside of a domain, by rounding


class Series(NamedTuple):
    """Coefficients of T_0 to T_d, and a bound of what those beyond add on [-1, 1]."""

    coefficients: Any  # complex or real, shape (d + 1,)
    tail: float  # relative to the largest magnitude of the function there


def cut(coefficients: Any, limit: float) -> Series:
    """Leave out the last coefficients, whose magnitudes add up to at most a limit."""
    tails = np.cumsum(np.abs(coefficients[::-1]))[::-1]  # of this coefficient and all beyond
    degree = max(int(np.count_nonzero(tails > limit)) - 1, 0)
    return Series(coefficients[: degree + 1], float(tails[degree + 1]) if degree + 1 < len(tails) else 0.0)


@functools.lru_cache(maxsize=MOST_SERIES)
def exponential(z: complex, limit: float) -> Series:
    """Compute the coefficients of exp(z x) / exp(``|Re z|``) up to a tail below a limit.

    Results are kept: equal steps of an evolution have the same objects.

    They are 2 I_k(z) / exp(``|Re z|``), modified Bessel functions, which beyond k = ``|z|`` fall like
    exp(-(2/3) (2/``|z|``)^(1/2) (k - ``|z|``)^(3/2)), and for a real z like exp(-k^2 / (2 ``|z|``)). For an
    imaginary z, those of even degree are real and those of odd degree imaginary.

    Examples
    --------
    >>> import scipy.special
    >>> series = exponential(2j, 1e-16)
    >>> bool(abs(series.coefficients[2] + 2 * scipy.special.jv(2, 2.0)) < 1e-16)
    True
    """
    size = abs(z)
    most = size + 14 * size ** (1 / 3)  # from there on they are below 21 digits, those of extended precision
    degree = math.ceil(min(most, math.sqrt(96 * size)) if z.imag == 0 else most) + 40
    x = np.cos(np.arccos(np.longdouble(-1)) * np.arange(degree + 1) / degree)
    damping, angles = np.exp(z.real * x - abs(z.real)), z.imag * x
    parts = [_transformed(damping * wave(angles)) for wave in (np.cos, np.sin)[: 1 + (z.imag != 0)]]
    for part in parts:
        part[np.abs(part) < size * np.finfo(part.dtype).eps / math.sqrt(degree)] = 0  # rounding of z x
    if z.real == 0:  # the cosine is even, the sine odd
        for k, part in enumerate(parts):
            part[1 - k :: 2] = 0
    coefficients = parts[0] + 1j * parts[1] if z.imag else parts[0]
    return cut(coefficients.astype(complex if z.imag else float), limit)


def _transformed(values: Any) -> Any:
    """Compute Chebyshev coefficients from values in Chebyshev points."""
    coefficients = scipy.fft.dct(values, type=1) / (len(values) - 1)
    coefficients[[0, -1]] /= 2
    return coefficients


def interpolation(
    f: Callable[[RealArray], Any], low: float, high: float, limit: float, most: int = MOST_DEGREE
) -> list[Series] | None:
    """Interpolate a function between the images of -1 and 1, by one series.

    Returns None if no degree has a tail below a limit, or f is not finite there.
    """
    degree = FIRST_DEGREE
    while degree < 4 * most:
        x = np.cos(np.pi * np.arange(degree + 1) / degree)
        try:
            values = evaluated(f, _between(low, high, x))
        except OptionError:
            return None
        scale = np.abs(values).max() or 1.0
        coefficients = _transformed(values / scale)
        # The last quarter consists of rounding errors once the function is resolved.
        noise = np.abs(coefficients[3 * degree // 4 :]).max()
        if noise * degree <= max(limit, 8 * np.finfo(float).eps * math.sqrt(degree)):
            series = cut(coefficients, limit)
            if len(series.coefficients) > most + 1:
                return None
            series = series._replace(coefficients=series.coefficients * scale)
            if _is_near(f, low, high, series.coefficients, noise=scale * max(limit, 1e-8)):
                return [series]
        degree *= 2
    return None


def _between(low: float, high: float, x: RealArray) -> RealArray:
    """Map [-1, 1] to low and high, in either order."""
    images: RealArray = np.clip((low + high) / 2 + (high - low) / 2 * x, min(low, high), max(low, high))
    return images


def _is_near(f: Callable[[RealArray], Any], low: float, high: float, coefficients: Any, noise: float) -> bool:
    """Look between the points of an interpolation, where a narrow peak would be."""
    x = np.linspace(-1, 1, int(LOOK * MOST_DEGREE) + 1)[1:-1]
    with np.errstate(all="ignore"):
        values = np.asarray(f(_between(low, high, x)))
    difference = np.abs(values - np.polynomial.chebyshev.chebval(x, coefficients))
    return not (difference > noise).any()  # where f is not finite there may be no eigenvalue


def hidden(f: Callable[[RealArray], Any], nodes: RealArray) -> float:
    """Return how much a function varies between nodes, if it has the same value at all of them; else 0.

    A sum over nodes, as of Lanczos, has then settled on a function that it has not seen.
    """
    seen = evaluated(f, nodes)
    noise = ALIKE * np.abs(seen).max(initial=0.0)
    if not len(nodes) or (np.abs(seen - seen[0]) > noise).any():
        return 0.0
    between = evaluated(f, np.linspace(nodes.min(), nodes.max(), int(LOOK * MOST_DEGREE) + 1))
    most = float(np.abs(between - seen[0]).max())
    return most if most > noise else 0.0


def checked(
    f: Callable[[RealArray], Any], domain: tuple[float, float] = (-math.inf, math.inf), factor: float = 1
) -> Callable[[RealArray], Any]:
    """Make a function of eigenvalues, times a factor, that is evaluated within a domain."""
    return lambda theta: evaluated(f, within(factor * theta, domain))


def within(theta: Any, domain: tuple[float, float]) -> RealArray:
    """Move eigenvalues into a domain that rounding errors have moved out of it; refuse others."""
    moved: RealArray = np.clip(theta, *domain)
    away = np.abs(theta - moved)
    if (away > OUTSIDE * np.abs(theta).max(initial=0.0)).any():
        raise OptionError(
            f"domain: got {domain}, but an eigenvalue of A is about {theta[away.argmax()]:.6g}; give one "
            "that holds all of them."
        )
    return moved


def evaluated(f: Callable[[RealArray], Any], x: RealArray) -> Any:
    """Evaluate a function at real numbers, and check what it returns."""
    with np.errstate(all="ignore"):
        values = np.asarray(f(x))
    values = np.broadcast_to(values, x.shape) if values.ndim == 0 else values
    if values.shape != x.shape or values.dtype.kind not in "biufc":
        raise OptionError(
            f"f: returned shape {values.shape} for {len(x)} numbers; give a function as np.exp."
        )
    wrong = ~np.isfinite(values)
    if wrong.any():
        raise OptionError(
            f"f: is {values[wrong][0]} at {x[wrong][0]:.6g}, which is within the bounds of the spectrum, "
            f"{x.min():.6g} to {x.max():.6g}; give domain=(low, high), where f is finite."
        )
    return values.astype(complex if values.dtype.kind == "c" else float)
