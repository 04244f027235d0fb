"""Inertia counts of eigenvalues: shifts just outside a spectrum, proofs, and ends of intervals.

The numbers of negative pivots of A - mu M = L D L^H and of eigenvalues below mu are equal (Sylvester): a
factorisation counts these independently of any iteration. This proves that a shift lies outside the spectrum,
or that a result is complete.

References
----------
Grimes, Lewis, Simon, SIAM J. Matrix Anal. Appl. 15 (1994) 228, section 3 (shifts and inertia counts).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg as sl
import scipy.sparse as sp

from blockvec import Factorization, Operator, as_operator
from blockvec.errors import BreakdownError, OptionError
from blockvec.system.frozen import frozen

from ..arguments import check_shape, on_host
from ..blocks import RealArray
from ..costs import fits_dense
from ..problem import FLOOR, Selection
from ..transform.spectral_map import Norms, norm_of
from .gram import congruent, gram_factor
from .shifted import FURTHER, MOVES

CLOSEST = 1e-13  # of ||A||: the least distance of a trial shift
# Of the spread of the wanted values: a shift much closer to one of them costs the others accuracy.
CLOSE = 0.1
OUTWARDS, TRIES = 10.0, 15  # factor of the distance per trial, until no eigenvalue lies beyond the shift
COARSE = 1e6  # rounding errors of an eigenvalue: a count at a larger distance tells copies of it apart
# Distances of a count from the furthest value, in gaps to the next one. The first is for ends only: in the
# middle of the spectrum of a cube, factors a millionth of a gap away lost all digits, and took ten times as
# long.
GAPS = 0.0, 0.01, 0.5


def count_below(factors: Factorization, mu: float) -> int | None:
    """Count the eigenvalues below mu by factorising A - mu M; None if the count is not certain."""
    if factors.sigma != mu:
        factors.refactorize(mu, only_counts=True)
    return factors.inertia


def shift_outside(
    factors: Factorization,
    theta: RealArray,
    norm: float,
    which: Selection,
    *,
    may_be_zero: bool = False,
    deflated: RealArray | None = None,
    total: int | None = None,
) -> float | None:
    """Find a shift just outside the wanted end of a spectrum; None if no trial succeeds.

    `theta` approximates the wanted values from inside the spectrum, ascending; `norm` estimates the largest
    magnitude of an eigenvalue. The spectrum is that without `deflated` values, all of those further out than
    the wanted ones if the shift is to lie between both, of `total` finite eigenvalues.
    """
    known = np.zeros(0) if deflated is None else deflated
    sign, outermost = (-1.0, float(theta[0])) if which == "SA" else (1.0, float(theta[-1]))
    first = max(CLOSEST * norm, CLOSE * float(theta[-1] - theta[0]))

    def beyond(end: float) -> int:
        return int(np.count_nonzero(sign * known > sign * end))

    expected = further_out = beyond(outermost)
    if which != "SA":
        expected = (factors.shape[0] if total is None else total) - further_out
    trials = [outermost + sign * first * OUTWARDS**attempt for attempt in range(TRIES)]
    if may_be_zero and sign * outermost < 0 and beyond(0.0) == further_out:
        trials.insert(0, 0.0)  # of a definite matrix, whose end may be far closer to it than `theta` tells
    for sigma in trials:
        if beyond(sigma) != further_out:
            return None
        if count_below(factors, sigma) == expected:
            return sigma
    return None


def proof(
    factors: Factorization,
    theta: RealArray,
    errors: RealArray,
    place: float,
    deflated: RealArray | None = None,
) -> tuple[str, int | None]:
    """Count the eigenvalues nearer to a place than the furthest of those found, and compare.

    The place is a shift, or an end of the spectrum as an infinite number. `theta` are the values found,
    ascending, `errors` bounds of their errors, `deflated` further known eigenvalues. Returns the outcome in
    words and the number of eigenvalues that were not found, None where no count is certain.

    At an end the first count is as far from the last value as that may be wrong: what is missing beyond
    displaces it by no more. One that leaves out half of the range of values proves nothing, unless rounding
    errors explain it.
    """
    is_shift = math.isfinite(place)
    centre = place if is_shift else float(theta[0 if place < 0 else -1])
    distances = np.abs(theta - centre)
    last = int(np.argmax(distances))
    furthest, error = float(distances[last]), float(errors[last])
    if is_shift and furthest <= error:
        return "not needed: all values found are equal to sigma within their limits", 0
    coarse = 0.0 if is_shift else COARSE * factors.shift_rounding(float(theta[last]))
    gap = max(coarse, furthest - float(distances.max(where=distances < furthest - error, initial=0.0)))
    ends, counts = [-math.inf, math.inf], [0, factors.shape[0]]
    for i, side in enumerate((-1.0, 1.0)):
        if place == side * math.inf:
            continue
        for share in GAPS[is_shift:]:  # a shift too near to an eigenvalue has no certain count
            distance = max(share * gap, error)
            ends[i] = centre + side * (furthest - distance)
            count = count_below(factors, ends[i]) if distance <= max(furthest / 2, coarse) else None
            if count is not None:
                counts[i] = count
                break
        else:
            return "not proved: no factorisation near the furthest value counts", None
    (low, high), counted = ends, counts[1] - counts[0]
    known = theta if deflated is None else np.concatenate([theta, deflated])
    found = int(np.count_nonzero((low < known) & (known < high)))
    if counted < found:  # within their errors
        return "not proved: values found are on the other side of what was counted", None
    where = f"between {low:.12g} and {high:.12g}"
    if not is_shift:
        where = f"below {high:.8g}" if place < 0 else f"above {low:.8g}"
    return (
        f"proved by inertia: {counted} eigenvalues lie {where}, {found} of them were found",
        counted - found,
    )


BEYOND = 2.0  # rounding errors: first distance of a count from an end


class Cut(NamedTuple):
    """A shift, and the number of eigenvalues below it."""

    sigma: float
    below: int


@frozen
class Pencil:
    """Matrices A and M, and factors of A - sigma M for one shift at a time."""

    A: Operator
    M: Operator | None  # None for the identity
    matrices: tuple[Any, Any]
    factors: Factorization
    norms: Norms
    rank: int  # number of finite eigenvalues

    @classmethod
    def of(
        cls, operator: Operator, A: Any, M: Any, norm: float | None = None, *, only_counts: bool = False
    ) -> Pencil:
        """Prepare matrices; refuses an M that is not positive semidefinite.

        `operator` applies A on the device of the factors; `norm` is ||A|| if it is known. Where `only_counts`
        tells that no vectors are needed, factors are in double precision, and powers of two make rows alike:
        pivots of light parts are not lost.
        """
        mass, rank, dtype = None, operator.shape[0], operator.dtype
        dtype = np.promote_types(dtype, np.float64) if only_counts else dtype
        if M is not None:
            check_shape("M", M, operator)
            dtype = np.promote_types(dtype, M.dtype)
            M = sp.csr_array(on_host(M)).astype(dtype)
            rank = gram_factor("M", M).rank
            if only_counts and operator.device == "cpu":
                A = sp.csr_array(on_host(A))
                sizes, masses = abs(A.diagonal()).astype(np.float64), M.diagonal().real.astype(np.float64)
                sizes += masses * ((sizes.max() or 1.0) / (masses.max() or 1.0))
                logs = np.log2(sizes, where=sizes > 0, out=np.zeros(len(sizes)))
                A, M = (congruent(B, np.exp2(-np.rint(logs / 2))).astype(dtype) for B in (A, M))
                operator = as_operator(A)
            mass = as_operator(M, device=operator.device)
        if dtype != operator.dtype:
            A = A.astype(dtype)
            operator = as_operator(A, device=operator.device)
        factors = Factorization(A, M, device=operator.device)
        size, mass_size = norm_of(operator) if norm is None else norm, norm_of(mass)
        return cls(operator, mass, (A, M), factors, Norms(size, mass_size, mass_size), rank)

    def rounding(self, value: float) -> float:
        """Compute by how much rounding errors of A and M may change an eigenvalue."""
        return eigenvalue_rounding(self.A.dtype, self.norms.A / self.norms.M, value)

    def count(self, sigma: float) -> int | None:
        """Factorise for a shift and count the eigenvalues below it; None if the count is not certain."""
        if self.factors.sigma != sigma:
            self.factors.refactorize(sigma)
        # A value nearer than that could be computed on the wrong side.
        if self.factors.is_singular or self.factors.nearest <= FLOOR * np.finfo(self.A.dtype).eps / 2:
            return None
        if self.factors.inertia is None and fits_dense(self.A):  # with pivoting
            return self._dense_count(sigma)
        return self.factors.inertia

    def _dense_count(self, sigma: float) -> int:
        """Count by a dense factorisation with blocks of order one and two, as accurate as any."""
        A, M = map(on_host, self.matrices)
        n = A.shape[0]
        shifted = sp.csr_array(A) - sigma * (sp.eye_array(n, dtype=A.dtype) if M is None else M)
        dense = shifted.toarray()
        np.fill_diagonal(dense, dense.diagonal().real)  # rounding errors on it would be warned of
        D = sl.ldl(dense, hermitian=True, overwrite_a=True, check_finite=False)[1]
        blocks = np.flatnonzero(np.diagonal(D, -1))  # those of order two have one negative eigenvalue
        single = np.delete(np.diagonal(D).real, np.union1d(blocks, blocks + 1))
        return int((single < 0).sum()) + len(blocks)

    def cut(self, end: float, side: int) -> Cut:
        """Count at an end of an interval, so far beyond it (`side` is -1 or 1) that the count is certain."""
        if math.isinf(end):
            # Far below the spectrum no pivot may be negative: in the null space of M, A is definite.
            scales = (-self.norms.A / self.norms.M * FURTHER**move for move in range(MOVES))
            if self.rank < self.A.shape[0] and not any(self.count(scale) == 0 for scale in scales):
                raise OptionError(
                    "interval: M is singular, and A is not positive definite in its null space, so that the "
                    "eigenvalues up to an infinite end cannot be counted; give finite ends."
                )
            return Cut(end, 0 if side < 0 else self.rank)
        for move in range(MOVES):
            sigma = end + side * BEYOND * FURTHER**move * self.rounding(end)
            below = self.count(sigma)
            if below is not None:
                return Cut(sigma, below)
        raise uncertain(end)

    def doubtful(self, cut: Cut, end: float, side: int) -> int:
        """Count the eigenvalues that may be on the wrong side of an end, whose cut moved more than once."""
        distance = abs(cut.sigma - end)
        if math.isinf(end) or distance <= 2 * BEYOND * FURTHER * self.rounding(end):
            return 0
        return abs(cut.below - self.cut(end, -side).below)


def eigenvalue_rounding(dtype: Any, norm: float, value: float) -> float:
    """Compute by how much rounding errors may change an eigenvalue of matrices with a norm."""
    return FLOOR * float(np.finfo(dtype).eps) / 2 * ((norm + abs(value)) or 1.0)


def uncertain(sigma: float) -> BreakdownError:
    """Return the error for a shift near which no factorisation counts."""
    return BreakdownError(
        f"interval: no factorisation of A - s M with s near {sigma:.12g} counts the eigenvalues below s; "
        "move the ends a little, or use method='filter'."
    )
