"""exp(t A) times a block by Taylor polynomials, for matrices without structure.

exp(t A) B is computed in steps, each by a Taylor polynomial of A - mu I with the mean mu of the eigenvalues.
The steps follow from a bound of the norm of A - mu I, or if that gives many from the growth of random vectors
under its powers. The same growth bounds all further terms: they end where together they no longer change the
sum, and not where a single one is small, which larger ones may follow. A step in which terms do not end, or
cancel, is divided.

References
----------
Al-Mohy, Higham, SIAM J. Sci. Comput. 33 (2011) 488, algorithm 3.2 and table 3.1. Deviations: the largest
degree for all steps, norms of columns and a bound of the remainder where a sum ends, and norms of powers by
products of random vectors, which need no adjoint.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from blockvec import BlockVector
from blockvec.errors import BreakdownError

from ..arguments import blas_threads, brought_in_range, scale_by_powers
from ..blocks import RealArray, in_precision, to_host
from .operands import Operands, check_finite, random_signs
from .recurrence import apply_to_sums
from .series import Work, as_block, as_real, by_columns

DEGREE = 54  # largest degree of a polynomial, a multiple of the terms between looks
LIMIT = 9.9  # norm up to which such a polynomial has a backward error of u in double precision [table 3.1]
FEW_STEPS = 4  # by the norm, up to which the growth of powers is not measured
POWERS = 8  # largest power whose growth is measured
UNSURE = 2.0  # factor of that growth: random vectors grow less than others
BETWEEN_LOOKS = 3  # terms
RANDOM_VECTORS = 2  # for the growth of powers
TRACE_VECTORS = 8
SURE = 1.5  # standard deviations of their numbers, above which the mean is taken for the trace
LEAST_STEP = 2.0**-30  # shortest step, as a share of z
MOST_GROWTH = math.exp(12)  # largest ratio of terms to the result
NEARLY = 1e3  # units of roundoff of the largest term, above which the sum is not looked at


class Taylor(Work):
    """exp(t A) of a matrix without structure."""

    is_unitary, rate = False, 0  # see `Exponential`

    def __init__(self, given: Operands, traceA: complex | None) -> None:
        super().__init__("taylor", "Taylor polynomials of no multiple of a Hermitian matrix", error=None)
        self._given, op, trace = given, given.operator, traceA
        self._longest = math.inf  # size of z that one polynomial may be enough for
        if trace is not None:
            trace = complex(trace) / given.factor
        elif given.entries is not None:
            trace = complex(given.entries.diagonal().sum())
        else:
            if given.is_linear_operator:
                warnings.warn(
                    "Trace of LinearOperator not available, it will be estimated. "
                    "Provide `traceA` to ensure performance.",
                    stacklevel=5,
                )
            X = random_signs(op, TRACE_VECTORS, 0)
            found = to_host(X.column_dot(op.apply(X))).astype(complex)
            # Large elements off the diagonal leave their noise, by which a shift would lengthen all steps.
            trace = complex(found.mean() if abs(found.mean()) > SURE * found.std() else 0)
        self._shift = _real(trace / given.B.n_global)
        self._shifted = op.affine(1, self._shift)
        # Of m products for each of them, m = 1, 2, ..., at most: a bound, or what was measured.
        self._norm, self._growth = _bound(given.entries, self._shift), np.full(1, np.inf)

    def after(self, times: RealArray, X: BlockVector) -> list[BlockVector]:
        """Compute exp(t A) X for the first time, in steps."""
        op, z = self._given.operator, _real(complex(times[0] * self._given.factor))
        is_complex = np.iscomplexobj(z) or np.iscomplexobj(self._shift)
        whole = in_precision(X, np.result_type(X.dtype, op.dtype, *[np.complex64] * is_complex))
        if z == 0 or not X.n_cols:
            return [whole]
        is_real = op.dtype.kind == "f" and not np.iscomplexobj(z * self._shift)
        F: Any = by_columns(op, as_real(whole) if is_real else whole)
        rest, exponents, rates = z, np.zeros(F.n_cols, int), self._rates(abs(z), whole)
        self._longest = min(self._longest, LIMIT / max(float(rates[-1]), 1e-300))
        with np.errstate(all="ignore"), blas_threads(op):
            while rest:
                steps = max(1, math.ceil(abs(rest) / self._longest))
                exponents += brought_in_range("exp(t A) B", F)
                found = self._step(rest / steps, F, rates)
                if found is not None:
                    F = found.scale(np.exp(rest / steps * self._shift).item())
                    rest = rest * ((steps - 1) / steps)
                    continue
                self._longest = abs(rest) / steps / 2
                if self._longest < LEAST_STEP * abs(z):
                    raise BreakdownError(
                        "exp(t A) B: the series does not converge; check that A returns finite numbers."
                    )
            scale_by_powers(F, exponents)
        result: BlockVector = as_block(F, whole)
        check_finite(result)
        return [result]

    def _rates(self, size: float, X: BlockVector) -> RealArray:
        """Bound the factor of each of m products by which they lengthen blocks like X, or estimate it."""
        if size * self._norm > FEW_STEPS * LIMIT and not np.isfinite(self._growth).all():
            X, sizes = X.like(0).random_like(RANDOM_VECTORS, 0), list[float]()
            X.normalize()
            for _ in range(POWERS):
                X = self._shifted.apply(X)
                sizes.append(float(to_host(X.norms()).max()))
                if not math.isfinite(sizes[-1]):
                    raise BreakdownError("A returned NaN or Inf for a finite block; check its entries.")
                if sizes[-1] == 0:
                    break
                X.scale(1 / sizes[-1])
            with np.errstate(divide="ignore"):
                roots = np.exp(np.cumsum(np.log(sizes)) / np.arange(1, len(sizes) + 1))
            self._growth = UNSURE * np.append(roots[:-1], roots[-2:].max())
        rates: RealArray = np.minimum(self._norm, self._growth)
        return rates

    def _step(self, z: complex, B: Any, rates: RealArray) -> Any:
        """Compute exp(z (A - mu I)) B by one polynomial; None if its terms do not end, or cancel."""
        A, F, term, following = self._shifted, B.copy(), B.copy(), B.like()
        coefficient: complex = 1.0
        numbers = np.finfo(B.dtype)
        unit, most = float(numbers.eps) / 2, 2.0 ** (numbers.maxexp // 8)  # of powers of A - mu I times B
        largest = start = to_host(B.norms())
        for j in range(1, DEGREE + 1):
            coefficient = coefficient * (z / j)
            apply_to_sums(A, term, following, [(coefficient, F)])
            term, following = following, term
            if j % BETWEEN_LOOKS:
                continue
            self.count(BETWEEN_LOOKS, B.shape[1], j)
            norms = to_host(term.norms())
            last = abs(coefficient) * norms
            largest = np.maximum(largest, last)
            if not np.isfinite(last).all():
                break
            if (last <= NEARLY * unit * largest).all():
                total = to_host(F.norms())
                if not norms.any() or (last * _further(abs(z) * rates, j) <= unit * total).all():
                    is_cancelled = (largest > MOST_GROWTH * np.maximum(total, start)).any()
                    return None if is_cancelled else F
            if norms.max() > most:
                size = 2.0 ** math.frexp(float(norms.max()))[1]
                term.scale(1 / size)
                coefficient = coefficient * size
        return None


def _further(sizes: RealArray, j: int) -> float:
    """Bound the sum of all terms beyond degree j by that of this degree; infinite where they may grow."""
    m = np.arange(1, len(sizes) + 1)
    terms = np.exp(m * np.log(sizes) - np.cumsum(np.log(j + m)))
    ratio = float(sizes[-1] / (j + m[-1] + 1))  # of those beyond these
    return float(terms.sum() + terms[-1] * ratio / (1 - ratio)) if ratio < 1 else math.inf


def _bound(entries: Any, shift: complex) -> float:
    """Bound the norm of A - mu I by sums of its entries; infinite without them."""
    if entries is None:
        return math.inf
    diagonal, sizes = entries.diagonal(), abs(entries)
    change = abs(diagonal - shift) - abs(diagonal)
    rows, columns = (float((sizes.sum(axis=axis).ravel() + change).max()) for axis in (1, 0))
    return math.sqrt(rows * columns)


def _real(z: complex) -> Any:
    """Return a number without an imaginary part of zero."""
    return z if z.imag else z.real
