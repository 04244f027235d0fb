"""Chebyshev coefficients of functions on [-1, 1], and the degree from their tail.

The exponential has exp(z x) = I_0(z) + 2 sum_k I_k(z) T_k(x), modified Bessel functions of a complex z. They
follow from their recurrence backwards, I_{k-1} = (2k/z) I_k + I_{k+1}, normalised by the sum at x = 1
(Miller). In extended precision their errors are those of rounding once: a state that takes ten thousand steps
with the same coefficients keeps its norm to 1e-12. All other functions are interpolated in Chebyshev points.

References
----------
Tal-Ezer, Kosloff, J. Chem. Phys. 81 (1984) 3967; Olver, Math. Comp. 18 (1964) 65 (Miller's algorithm);
Trefethen, Approximation Theory and Approximation Practice (2013), chapters 3 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.fft

from blockvec.errors import OptionError

from ..blocks import RealArray

MOST_DEGREE = 5000  # highest degree of an interpolation
FIRST_DEGREE = 32
LOOK = 2.0  # points per degree of MOST_DEGREE where an interpolation is compared with its function
DIGITS = 45  # decimal digits that the last Bessel function of the recurrence is below the first
ALIKE = 1e-12  # relative difference of values that rounding errors explain
OUTSIDE = 1e-4  # share of the largest eigenvalue by which one may lie outside of a domain, by rounding
TINY = 1e-30  # |z| up to which all but the first two coefficients are below rounding errors


class Series(NamedTuple):
    """Coefficients of T_0 to T_d, and a bound of what those beyond add on [-1, 1].

    Both are relative to a number, about the largest magnitude of the function there.
    """

    coefficients: Any  # complex or real, shape (d + 1,)
    tail: float
    scale: float = 1.0  # that number; of an exponential the caller knows it


def cut(coefficients: Any, limit: float) -> Series:
    """Leave out the last coefficients, whose magnitudes add up to at most a limit."""
    tails = np.cumsum(np.abs(coefficients[::-1]))[::-1]  # of this coefficient and all beyond
    degree = max(int(np.count_nonzero(tails > limit)) - 1, 0)
    return Series(coefficients[: degree + 1], float(tails[degree + 1]) if degree + 1 < len(tails) else 0.0)


def exponential(z: complex, limit: float) -> Series:
    """Compute the coefficients of exp(z x) / exp(``|Re z|``) up to a tail below a limit.

    For an imaginary z, those of even degree are real and those of odd degree imaginary.

    Examples
    --------
    >>> import scipy.special
    >>> series = exponential(2j, 1e-16)
    >>> bool(abs(series.coefficients[2] + 2 * scipy.special.jv(2, 2.0)) < 1e-16)
    True
    """
    if z.real < 0:  # exp(-z x) has the coefficients with other signs of odd degrees
        mirrored = exponential(-z, limit)
        mirrored.coefficients[1::2] *= -1
        return mirrored
    if abs(z) < TINY:
        return Series(np.array([1.0, z if z.imag else z.real]), 0.0)
    is_imaginary, is_real = z.real == 0, z.imag == 0
    # J_k(y) = i^-k I_k(i y) of a real y has a recurrence of real numbers with another sign.
    y: Any = np.clongdouble(z)
    y = abs(y) if is_imaginary or is_real else y
    sign = -1 if is_imaginary else 1
    count = _terms(abs(z), is_real)
    values = np.zeros(count + 1, y.dtype)
    above, here = y.dtype.type(0), y.dtype.type(np.finfo(np.longdouble).tiny) * 1e10
    for k in range(count, 0, -1):
        values[k] = here
        above, here = here, (2 * k / y) * here + sign * above
    values[0] = here
    values[1:] *= 2
    # At x = 1, where exp(z) / exp(Re z) = exp(i Im z). Of J_k, those of even degree add up to one.
    total = values[::2].sum() if is_imaginary else values.sum()
    phase: Any = 1 if is_imaginary or is_real else np.exp(1j * np.clongdouble(z.imag))
    coefficients = (values / total * phase).astype(float if is_imaginary or is_real else complex)
    if is_imaginary:
        coefficients = coefficients * np.array([1, 1j, -1, -1j])[np.arange(count + 1) % 4]
        if z.imag < 0:
            coefficients = coefficients.conj()
    return cut(coefficients, limit)


def _terms(size: float, is_real: bool) -> int:
    """Return a degree from which all Bessel functions are negligible."""
    # Beyond k = |z| they fall like exp(-(2/3) (2/|z|)^(1/2) (k - |z|)^(3/2)), I_k(z) of a real z like
    # exp(-k^2 / (2 |z|)); and for small z like (|z|/2)^k / k!.
    nats = DIGITS * math.log(10)
    few = math.ceil(nats / max(math.log(2 / size), 1e-3)) + 2 if size < 1 else math.inf
    turning = size + (nats * 3 / (2 * math.sqrt(2))) ** (2 / 3) * size ** (1 / 3) + 40
    square = math.sqrt(2 * nats * size) + 40 if is_real else math.inf
    return int(min(few, turning, square)) + 1


def interpolation(
    f: Callable[[RealArray], Any], low: float, high: float, limit: float, most: int = MOST_DEGREE
) -> Series | None:
    """Interpolate a function between the images of -1 and 1; None if no degree has a tail below a limit."""
    degree = FIRST_DEGREE
    while degree < 4 * most:
        x = np.cos(np.pi * np.arange(degree + 1) / degree)
        values = evaluated(f, _between(low, high, x))
        scale = np.abs(values).max(initial=0.0)
        if scale == 0 and _is_near(f, low, high, np.zeros(1), 0.0):
            return Series(np.zeros(1), 0.0)
        scale = scale or 1.0
        coefficients = scipy.fft.dct(values / scale, type=1) / degree
        coefficients[[0, -1]] /= 2
        # The last quarter consists of rounding errors once the function is resolved.
        noise = np.abs(coefficients[3 * degree // 4 :]).max()
        if noise * degree <= max(limit, 8 * np.finfo(float).eps * math.sqrt(degree)):
            series = cut(coefficients, limit)
            if len(series.coefficients) > most + 1:
                return None
            if _is_near(f, low, high, series.coefficients * scale, noise=scale * max(limit, 1e-8)):
                return series._replace(scale=float(scale))
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
