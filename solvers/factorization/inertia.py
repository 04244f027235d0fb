"""Inertia counts of eigenvalues, and shifts just outside a spectrum.

The numbers of negative pivots of A - mu I = L D L^H and of its negative eigenvalues are equal (Sylvester): a
factorisation counts the eigenvalues below mu independently of any iteration. This proves that a shift lies
outside the spectrum, or that a result is complete.

References
----------
Grimes, Lewis, Simon, SIAM J. Matrix Anal. Appl. 15 (1994) 228, section 3 (shifts and inertia counts).
"""

from __future__ import annotations

import numpy as np

from blockvec import Factorization

from ..blocks import RealArray
from ..iterations.rayleigh_ritz import Selection

CLOSEST = 1e-13  # of ||A||: the least distance of a trial shift
# Of the spread of the wanted values: a shift much closer to one of them costs the others accuracy.
CLOSE = 0.1
OUTWARDS, TRIES = 10.0, 15  # factor of the distance per trial, until no eigenvalue lies beyond the shift
FURTHER, COUNTS = 30.0, 10  # the same for a count that is uncertain
COARSE = 1e6  # rounding errors of an eigenvalue: a count at a larger distance tells copies of it apart
# Distances of a count from the furthest value around a shift, in gaps to the next one: in the middle of the
# spectrum of a cube, factors a millionth of a gap away lost all digits, and took ten times as long.
GAPS = 0.01, 0.1, 0.5


def count_below(factors: Factorization, mu: float) -> int | None:
    """Count the eigenvalues below mu by factorising A - mu M; None if the count is not certain."""
    if factors.sigma != mu:
        factors.refactorize(mu, only_counts=True)
    return factors.inertia


def outer_end(theta: RealArray, norm: float, which: Selection) -> tuple[float, float]:
    """Return the outermost of some wanted values, ascending, and the least distance of a shift from it."""
    outermost = theta[0] if which == "SA" else theta[-1]
    return float(outermost), max(CLOSEST * norm, CLOSE * float(theta[-1] - theta[0]))


def shift_outside(
    factors: Factorization,
    theta: RealArray,
    norm: float,
    which: Selection,
    *,
    may_be_zero: bool = False,
    deflated: RealArray | None = None,
) -> float | None:
    """Find a shift just outside the wanted end of a spectrum; None if no trial succeeds.

    `theta` approximates the wanted values from inside the spectrum, ascending; `norm` estimates the largest
    magnitude of an eigenvalue. The spectrum is that without `deflated` values, all of those further out than
    the wanted ones if the shift is to lie between both.
    """
    known = np.zeros(0) if deflated is None else deflated
    below, (outermost, first) = which == "SA", outer_end(theta, norm, which)
    further_out = _beyond(known, outermost, below)

    def is_outside(sigma: float) -> bool:
        count = count_below(factors, sigma)
        return count == (further_out if below else factors.shape[0] - further_out)

    may_be_zero &= (outermost > 0) == below and _beyond(known, 0.0, below) == further_out
    if may_be_zero and is_outside(0.0):
        return 0.0  # of a definite matrix, whose end may be far closer to zero than `theta` tells
    for attempt in range(TRIES):
        distance = first * OUTWARDS**attempt
        sigma = outermost - distance if below else outermost + distance
        if _beyond(known, sigma, below) != further_out:
            return None
        if is_outside(sigma):
            return sigma
    return None


def _beyond(values: RealArray, end: float, below: bool) -> int:
    """Count the values below an end, or above it."""
    return int(np.count_nonzero(values < end if below else values > end))


def proof(
    factors: Factorization,
    theta: RealArray,
    errors: RealArray,
    which: Selection,
    deflated: RealArray | None = None,
) -> tuple[str, int | None]:
    """Count the eigenvalues beyond the last wanted cluster, and compare with those found.

    `theta` are the wanted values, ascending, `errors` bounds of their errors, `deflated` further known
    eigenvalues. Returns the outcome in words and the number of eigenvalues that were not found, None where no
    count is certain.

    The first count is as far from the last value as that may be wrong: what is missing beyond displaces it by
    no more. One that leaves out half of the range of values proves nothing, unless rounding errors explain
    it.
    """
    below, found = which == "SA", -1
    known = theta if deflated is None else np.concatenate([theta, deflated])
    outermost, error = (theta[-1], errors[-1]) if below else (theta[0], errors[0])
    most = max(float(theta[-1] - theta[0]) / 2, COARSE * factors.shift_rounding(float(outermost)))
    for attempt in range(COUNTS):  # a shift too near to an eigenvalue has no certain count
        distance = FURTHER**attempt * float(error)
        last = float(outermost) - distance if below else float(outermost) + distance
        here = _beyond(known, last, below)
        if distance > most or (attempt and here != found):
            break
        found, count = here, count_below(factors, last)
        if count is None:
            continue
        beyond = count if below else factors.shape[0] - count
        if beyond < found:  # a value that was found is on the other side, within its error
            break
        return _proved(beyond, f"{'below' if below else 'above'} {last:.8g}", found)
    return "not proved: no factorisation beyond the last value counts", None


def _proved(counted: int, where: str, found: int) -> tuple[str, int]:
    """Describe a count, and return how many of the eigenvalues were not found."""
    text = f"proved by inertia: {counted} eigenvalues lie {where}, {found} of them were found"
    return text, counted - found


def proof_around(
    factors: Factorization, sigma: float, theta: RealArray, errors: RealArray
) -> tuple[str, int | None]:
    """Count the eigenvalues nearer to a shift than the furthest of those found, and compare.

    `theta` are the values found, `errors` bounds of their errors. Returns the outcome in words and the number
    of eigenvalues that were not found, None where no count is certain.
    """
    distances = np.abs(theta - sigma)
    last = int(np.argmax(distances))
    furthest, error = float(distances[last]), float(errors[last])
    if furthest <= error:
        return "not needed: all values found are equal to sigma within their limits", 0
    gap = furthest - float(distances.max(where=distances < furthest - error, initial=0.0))
    counted: list[tuple[float, int]] = []
    for side in (-1.0, 1.0):
        ends = (sigma + side * (furthest - max(share * gap, error)) for share in GAPS)
        counts = ((end, count_below(factors, end)) for end in ends)
        if (certain := next(((end, count) for end, count in counts if count is not None), None)) is None:
            return "not proved: no factorisation near the furthest value counts", None
        counted.append(certain)
    (low, below), (high, up_to) = counted
    inside, found = up_to - below, int(np.count_nonzero((low < theta) & (theta < high)))
    if inside < found:
        return "not proved: values found are next to the end of what was counted", None
    return _proved(inside, f"between {low:.12g} and {high:.12g}", found)
