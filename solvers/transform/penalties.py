"""Rows whose diagonal elements are far larger than everything else: penalties, hard walls, springs.

An element p on the diagonal that fixes a degree of freedom is often 1e10 times as large as the stiffness.
Rounding errors of products, of factors and of tridiagonal forms are u p, and so is a limit of residuals
relative to ||A||: larger than the wanted values. These belong to the other rows, in which A is accurate. With
a diagonal D of powers of two, which are one but in the rows of penalties,

    (D A D) y = lambda (D M D) y,    x = D y,

is the same problem: a congruence changes neither eigenvalues nor inertia, and powers of two cause no rounding
errors. Its norm is that of the other rows. Without a shift its standard form would have the penalties again,
so that all is done with factors of D A D - sigma D M D.

References
----------
Barlow, Demmel, SIAM J. Numer. Anal. 27 (1990) 762 (eigenvalues of scaled diagonally dominant matrices).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from blockvec import array_namespace
from blockvec.system.frozen import frozen

from ..arguments import is_explicit, on_host
from ..blocks import Array
from ..iterations.rayleigh_ritz import FLOOR
from ..placement import is_affordable
from ..result import EigenResult

LOST = 1e-3  # share of the norm of most rows: a limit of rounding above it leaves eigenvalues few digits
# Ratio of a penalty to the other elements of its row, and to the norm of most rows. Below it the limit of
# rounding, 100 u p, leaves nine digits of this norm.
FAR = 1e5
NEAR = 1e2  # the same ratio, of other rows that are scaled where there are penalties: the norm is theirs then
FURTHER, TRIALS = 10.0, 12  # factor of the next trial shift, from the norm of A on, and number of them
BISECTIONS = 8  # of the range between zero and a shift beyond the spectrum: each halves the distance


@frozen
class Penalties:
    """Matrices D A D and D M D of the host, and the D of a matrix with penalties."""

    A: Any
    M: Any
    factors: Array  # shape (n,): the diagonal of D
    end: str | None = None  # end of the spectrum, in whose place values nearest to a shift are computed

    @classmethod
    def of(cls, A: Any, M: Any, wanted: tuple[float, ...], k: int = 0) -> Penalties | None:
        """Look for penalties; None where there are none that matter, or factors take too long.

        k eigenvalues near `wanted` values are to be computed; an infinite one is an end of the spectrum.
        """
        if not _may_have(A) or not (M is None or is_explicit(M)):
            return None
        A, M = on_host(A), on_host(M)
        diagonal = np.real(A.diagonal()).astype(np.float64)
        sizes, n = np.abs(diagonal), len(diagonal)
        others = np.asarray(abs(A) @ np.ones(n), np.float64) - sizes
        compared = np.maximum(others, np.median(sizes + others))
        far = diagonal[sizes >= FAR * compared]
        if not (others.any() and compared.min()) or not len(far) or k > n - len(far):
            return None
        is_wanted = (-math.inf in wanted and far.min() < 0) or (math.inf in wanted and far.max() > 0)
        largest = max((abs(value) for value in wanted if math.isfinite(value)), default=0.0)
        mass = 1.0 if M is None else float(abs(M).max())
        if is_wanted or FAR * largest * mass > np.abs(far).min():
            return None
        if M is None:
            M = sp.eye_array(n, dtype=A.dtype, format="csr")
        if not is_affordable(A, M):
            return None
        factors = np.ones(n)
        ratios = sizes / compared
        factors[ratios > NEAR] = 2.0 ** -np.rint(np.log2(ratios[ratios > NEAR]) / 2)
        return cls(_congruent(A, factors), _congruent(M, factors), factors)

    def shift_beyond(self, end: str) -> float | None:
        """Find a shift beyond an end of the spectrum by inertia, zero where all eigenvalues have one sign.

        The values nearest to it are then those of the end. None if no factorisation counts.
        """
        from blockvec import Factorization

        from ..factorization.inertia import count_below

        double = np.promote_types(self.A.dtype, np.float64)
        factors, below = Factorization(self.A.astype(double), self.M), end == "SA"
        step = float(np.asarray(abs(self.A) @ np.ones(len(self.factors))).max() / abs(self.M).max())
        outwards = -step if below else step

        def is_beyond(sigma: float) -> bool:
            return count_below(factors, sigma) == (0 if below else len(self.factors))

        if is_beyond(0.0):
            return 0.0
        inside, trials = 0.0, [outwards * FURTHER**trial for trial in range(TRIALS)]
        outside = next((sigma for sigma in trials if is_beyond(sigma)), None)
        if outside is None:
            return None
        for _ in range(BISECTIONS):
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if is_beyond(middle) else (middle, outside)
        return outside

    def result(self, result: EigenResult) -> EigenResult:
        """Return the result for A and M; residuals remain those of D (A x - lambda M x)."""
        X = result.eigenvectors
        if self.end is not None:
            result = result.with_info(which=self.end)
        return replace(result, eigenvectors=(X * self.factors[:, None]).astype(X.dtype))


def lost_digits(A: Any, wanted: tuple[float, ...]) -> str | None:
    """Say that rounding errors of the largest rows exceed most other rows, where these have wanted values."""
    if not _may_have(A):
        return None
    A = on_host(A)
    diagonal = np.real(A.diagonal())
    far = diagonal[np.argmax(np.abs(diagonal))]
    if set(wanted) == {math.copysign(math.inf, far)}:
        return None  # the values of these rows themselves
    rows = np.asarray(abs(A) @ np.ones(len(diagonal)), np.float64)
    largest, most = float(rows.max()), float(np.median(rows[rows > 0]))  # others have no digits to lose
    rounding = FLOOR * float(np.finfo(np.promote_types(A.dtype, np.float32)).eps) / 2 * largest
    if rounding <= LOST * most:
        return None
    return (
        f"the largest row of A has the norm {largest:.1g}, so that rounding errors of eigenvalues may be "
        f"{rounding:.1g}, while most rows have a norm of {most:.1g}: digits of eigenvalues below that are "
        "lost. Reduce the largest elements, or eliminate their degrees of freedom"
    )


def _may_have(A: Any) -> bool:
    """Check whether a matrix has diagonal elements that are far larger than most."""
    if not is_explicit(A) or not hasattr(A, "diagonal") or A.ndim != 2 or A.shape[0] != A.shape[1]:
        return False
    if np.ma.is_masked(A):
        return False  # which is refused when it becomes an operator
    sizes = abs(A.diagonal())
    if sizes.dtype.kind not in "iuf" or not sizes.size:
        return False
    largest = float(sizes.max())
    if not FAR * float(sizes.min()) < largest < math.inf:
        return False  # without the median, which takes as long as the rest
    return FAR * float(array_namespace(sizes).median(sizes)) < largest


def _congruent(matrix: Any, factors: Array) -> Any:
    """Compute D A D for a matrix of the host and the diagonal of D."""
    dtype = np.promote_types(matrix.dtype, np.float32)
    if isinstance(matrix, np.ndarray):
        return (factors[:, None] * matrix * factors).astype(dtype)
    D = sp.diags_array(factors)
    return sp.csr_array(D @ sp.csr_array(matrix) @ D).astype(dtype)
