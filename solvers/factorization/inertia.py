"""Inertia counts of eigenvalues, and shifts just outside a spectrum.

The numbers of negative pivots of A - mu I = L D L^H and of its negative eigenvalues are equal (Sylvester): a
factorisation counts the eigenvalues below mu independently of any iteration. This proves that a shift lies
outside the spectrum, or that a result is complete.

References
----------
Grimes, Lewis, Simon, SIAM J. Matrix Anal. Appl. 15 (1994) 228, section 3 (shifts and inertia counts).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from ..blocks import RealArray
from ..iterations.rayleigh_ritz import Selection
from .sparse_lu import factorise

TRUSTED = 1e-8  # relative residual of a solve up to which the pivots of a factorisation are trusted
CLOSEST = 1e-13  # of ||A||: the least distance of a trial shift
# Of the spread of the wanted values: a shift much closer to one of them costs the others accuracy.
CLOSE = 0.1
FURTHER = 30.0  # factor of the distance per trial, until no eigenvalue lies beyond the shift
TRIES = 10


def count_below(matrix: Any, mu: float, mass: Any = None) -> int | None:
    """Count the eigenvalues of a Hermitian matrix below mu; None if the count is not certain.

    With a positive definite `mass`, those of the pair.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> count_below(sp.diags_array([1.0, 2.0, 2.0, 5.0]), 3.0)
    3
    """
    n = matrix.shape[0]
    shifted = sp.csc_array(matrix - mu * (sp.eye_array(n, dtype=matrix.dtype) if mass is None else mass))
    lu: Any = factorise(shifted)
    if lu is None or not np.array_equal(lu.perm_r, lu.perm_c):
        return None
    pivots = lu.U.diagonal()
    b = np.random.default_rng(0).standard_normal(n).astype(shifted.dtype)
    x = lu.solve(b)
    scale = abs(shifted).sum(axis=1).max() * np.linalg.norm(x) + np.linalg.norm(b)
    if not np.linalg.norm(shifted @ x - b) <= TRUSTED * scale:
        return None  # without row exchanges pivots can be small by accident
    return int(np.count_nonzero(pivots.real < 0))


def shift_outside(
    matrix: Any, theta: RealArray, norm: float, which: Selection, mass: Any = None
) -> float | None:
    """Find a shift just outside the wanted end of a spectrum; None if no trial succeeds.

    `theta` approximates the wanted values from inside the spectrum, ascending; `norm` estimates the largest
    magnitude of an eigenvalue.
    """
    below = which == "SA"
    outermost = float(theta[0 if below else -1])
    first = max(CLOSEST * norm, CLOSE * float(theta[-1] - theta[0]))
    for attempt in range(TRIES):
        distance = first * FURTHER**attempt
        sigma = outermost - distance if below else outermost + distance
        if count_below(matrix, sigma, mass) == (0 if below else matrix.shape[0]):
            return sigma
    return None


def proof(
    matrix: Any,
    theta: RealArray,
    limits: RealArray,
    which: Selection,
    deflated: RealArray | None = None,
    mass: Any = None,
) -> tuple[str, int]:
    """Count the eigenvalues beyond the last wanted cluster, and compare with those found.

    `theta` are the wanted values, ascending, `limits` bounds of their errors, `deflated` further known
    eigenvalues. Returns the outcome in words and the number of eigenvalues that were not found.
    """
    below = which == "SA"
    last = float(theta[-1] - 10 * limits[-1]) if below else float(theta[0] + 10 * limits[0])
    known = theta if deflated is None else np.concatenate([theta, deflated])
    found = int(np.count_nonzero(known < last) if below else np.count_nonzero(known > last))
    count = count_below(matrix, last, mass)
    if count is None:
        return "not proved: the factorisation needs row exchanges", 0
    beyond = count if below else matrix.shape[0] - count
    side = "below" if below else "above"
    text = f"proved by inertia: {beyond} eigenvalues lie {side} {last:.8g}, {found} of them were found"
    return text, max(0, beyond - found)
