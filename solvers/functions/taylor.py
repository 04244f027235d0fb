"""exp(t A) times a block by Taylor polynomials, for matrices without structure.

exp(t A) B is computed in s steps of exp(t A / s), each by a Taylor polynomial of degree m of A - mu I, with
the mean of the eigenvalues mu. Degree and steps follow from norms of powers of A, so that the polynomial is
the exponential of a matrix next to A, within rounding. Terms end where they no longer change the sum.

References
----------
Al-Mohy, Higham, SIAM J. Sci. Comput. 33 (2011) 488, algorithm 3.2 and table 3.1. Deviations: norms of
columns where a sum ends; where an operator has no adjoint, norms are estimated by its products alone, and
steps in which the series has not converged are halved.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any

import numpy as np

from blockvec import BlockVector, Operator
from blockvec.errors import BreakdownError, OptionError

from ..arguments import blas_threads
from ..blocks import ColumnBlock, to_host
from .norms import WIDTH, power_norm
from .operands import Matrix, fixed
from .polynomial import as_block, as_real, by_columns
from .recurrence import add_multiple

# ||A|| up to which a Taylor polynomial of a degree has a backward error of one unit roundoff [table 3.1].
THETA = {
    "d": {
        **{5: 2.4e-3, 10: 1.4e-1, 15: 6.4e-1, 20: 1.4, 25: 2.4, 30: 3.5},
        **{35: 4.7, 40: 6.0, 45: 7.2, 50: 8.5, 55: 9.9},
    },
    "f": {
        **{5: 1.3e-1, 10: 1.0, 15: 2.2, 20: 3.6, 25: 4.9, 30: 6.3},
        **{35: 7.7, 40: 9.1, 45: 11.0, 50: 12.0, 55: 13.0},
    },
}
MOST_DEGREE = 55
MOST_POWER = 8  # the largest p with p (p - 1) <= MOST_DEGREE + 1
TRACE_VECTORS = 4  # random vectors of the estimate of a trace
UNSURE = 2.0  # factor of norms that are estimated without an adjoint
GAIN = 0.9  # ratio of the norms of successive powers, by their roots, below which the next is estimated
MOST_HALVINGS = 30
BETWEEN_LOOKS = 3  # terms, until they are nearly negligible
NEARLY = 1e3  # units of roundoff of the largest term, above which the sum is not looked at


class Taylor:
    """exp(t A) X for a matrix without structure.

    Parameters
    ----------
    matrix : Matrix
    trace : scalar, optional
        Of A without its factor; estimated where it is missing and there are no entries.
    X : BlockVector
        A block as those that follow.

    Attributes
    ----------
    steps, columns : int
        Products and columns of products so far.
    degree : int
        The largest degree.
    """

    def __init__(self, matrix: Matrix, trace: complex | None, X: BlockVector) -> None:
        self._factor, self._operator, self._entries = matrix.factor, matrix.operator, matrix.entries
        self.steps = self.columns = self.degree = 0
        self._like, n = X.like(0, dtype=np.result_type(X.dtype, matrix.operator.dtype)), X.n_global
        if trace is None:
            if matrix.is_linear_operator:
                warnings.warn(
                    "Trace of LinearOperator not available, it will be estimated. "
                    "Provide `traceA` to ensure performance.",
                    stacklevel=4,
                )
            trace = self._trace()
        mean = complex(trace) / n
        self._shift: Any = mean.real if mean.imag == 0 else mean
        self._scaled: dict[complex, Operator] = {}
        self._norms: dict[int, float] = {}
        self._plans: dict[complex, tuple[int, int]] = {}

    def apply(self, t: float, X: BlockVector) -> BlockVector:
        """Compute exp(t A) X.

        Raises
        ------
        BreakdownError
            If the series does not converge: A returned NaN or Inf.
        OptionError
            If the result overflows.
        """
        z: Any = t * self._factor
        z = z.real if np.imag(z) == 0 else z
        kinds = X.dtype, self._operator.dtype, *[np.dtype(np.complex64)] * np.iscomplexobj(z)
        dtype = np.result_type(*kinds, *[np.dtype(np.complex64)] * np.iscomplexobj(self._shift))
        whole = X.like(dtype=dtype)
        whole[:, :] = X
        is_real = "c" not in self._operator.dtype.kind + np.asarray(z * self._shift).dtype.kind
        rows = as_real(whole) if is_real else whole
        F: Any = by_columns(self._operator, rows)
        if z == 0:
            return whole
        if z not in self._plans:
            self._plans[z] = self._plan(z, X.n_cols)
        degree, count = self._plans[z]
        done, halvings, total, exponent = 0, 0, count, 0
        with np.errstate(all="ignore"), blas_threads(self._operator):
            while done < total:
                found = self._step(z / total, degree, F, math.inf if self._is_sure else math.exp(12))
                if found is not None:
                    F, done = found, done + 1
                    exponent += _within_range(F)
                    continue
                done, total, halvings = 2 * done, 2 * total, halvings + 1
                if halvings > MOST_HALVINGS:
                    raise BreakdownError(
                        "exp(t A) B: the series does not converge; check that A returns finite numbers."
                    )
            if exponent > np.finfo(dtype).maxexp:
                raise OptionError("exp(t A) B overflows; take a shorter time, or another unit.")
            result: BlockVector = as_block(F.scale(math.ldexp(1.0, exponent)) if exponent else F, whole)
            return result

    def _step(self, z: complex, degree: int, B: Any, most: float) -> Any:
        """Compute exp(z A) B by one polynomial; None if its terms do not end, or cancel.

        Terms are powers of a matrix of norm one, about, times B, with coefficients.
        """
        scale = 2.0 ** math.ceil(math.log2(max(abs(z) * self._norm(1), 1e-300)))
        if z not in self._scaled:
            self._scaled = {z: fixed(self._operator, z / scale, self._shift)}
        A, F, term, following, coefficient = self._scaled[z], B.copy(), B.copy(), B.like(), 1.0
        unit = float(np.finfo(B.dtype).eps) / 2
        before = largest = total = start = to_host(B.norms())
        is_near, is_vector = False, isinstance(B, ColumnBlock) and B.shape[1] == 1
        add = A.vector_adder() if is_vector and B.dtype == A.dtype else None
        for j in range(1, degree + 1):
            coefficient *= scale / j
            if F.device != "cpu":
                A.apply(term, out=following, z=F, eta=coefficient)  # in one pass
            else:
                if add is not None:
                    following.array.fill(0)
                    add(term.array[:, 0], following.array[:, 0])
                else:
                    A.apply(term, out=following)
                add_multiple(F, coefficient, following)
            term, following = following, term
            self.steps, self.columns = self.steps + 1, self.columns + B.shape[1]
            if j % BETWEEN_LOOKS and j < degree and not is_near:
                continue
            size = coefficient * to_host(term.norms())
            largest, self.degree = np.maximum(largest, size), max(self.degree, j)
            is_near = bool((size <= NEARLY * unit * largest).all())
            if is_near:
                total = to_host(F.norms())
                if (before + size <= unit * total).all():
                    break
            before = size
        else:
            total = to_host(F.norms())
            if degree and not self._is_sure and not (before + size <= 1e3 * unit * total).all():
                return None
        if not np.isfinite(total).all() or (largest > most * np.maximum(total, start)).any():
            return None
        return F.scale(np.exp(z * self._shift).item())

    def _plan(self, z: complex, width: int) -> tuple[int, int]:
        """Choose degree and steps by the fewest products."""
        theta, size = THETA["f" if self._like.dtype.char in "fF" else "d"], abs(z)
        norm = size * self._norm(1)
        if not norm:
            return 0, 1
        whole = {m: math.ceil(norm / limit) for m, limit in theta.items()}
        # Where norms of powers, which need products themselves, may save more than they cost [eq. 3.13].
        worth = 2 * WIDTH * MOST_POWER * (MOST_POWER + 3) * theta[MOST_DEGREE] / (width * MOST_DEGREE)
        if norm > worth or not self._is_sure:
            before = norm
            for p in range(2, MOST_POWER + 1):
                alpha = size * max(self._norm(q) ** (1 / q) for q in (p, p + 1))
                if alpha > GAIN * before:  # higher powers will gain no more
                    break
                before = alpha
                for m in theta:
                    if p * (p - 1) - 1 <= m:
                        whole[m] = min(whole[m], max(1, math.ceil(alpha / theta[m])))
        return min(whole.items(), key=lambda plan: plan[0] * plan[1])

    @property
    def _is_sure(self) -> bool:
        """Whether norms are those of entries, or estimated with an adjoint."""
        return self._entries is not None or self._adjoint is not None

    @functools.cached_property
    def _shifted(self) -> Operator:
        """A - mu I, for estimates of norms."""
        return fixed(self._operator, 1, self._shift) if self._shift else self._operator

    @functools.cached_property
    def _adjoint(self) -> Operator | None:
        """The adjoint of A - mu I; None for split rows, whose largest ones are not known to all processes."""
        try:
            return None if self._like.layout is not None else self._shifted.H
        except OptionError:  # a function, or a linear operator that has none
            return None

    def _norm(self, power: int) -> float:
        """Return the norm of a power of A - mu I, estimated unless the entries give it."""
        if power not in self._norms:
            if power == 1 and self._entries is not None:
                self._norms[1] = _one_norm(self._entries, self._shift)
            else:
                found = power_norm(self._shifted, self._adjoint, self._like, power)
                self._norms[power] = found if self._is_sure else found * UNSURE**power
        return self._norms[power]

    def _trace(self) -> complex:
        """Compute the trace, or estimate it by a few random vectors: any number is a valid shift."""
        if self._entries is not None:
            return complex(self._entries.diagonal().sum())
        X = self._like.random_like(TRACE_VECTORS, 0)
        products = to_host(X.column_dot(self._operator.apply(X)))
        return complex((products / to_host(X.norms()) ** 2).mean() * X.n_global)


def _within_range(F: BlockVector) -> int:
    """Divide a block by a power of two if its next squares may overflow; return the exponent."""
    largest = float(to_host(F.norms()).max())
    exponent = math.frexp(largest)[1]
    if exponent <= np.finfo(F.dtype).maxexp // 8:
        return 0
    F.scale(math.ldexp(1.0, -exponent))
    return exponent


def _one_norm(entries: Any, shift: complex) -> float:
    """Compute ``||A - shift I||_1`` of a matrix."""
    diagonal = entries.diagonal()
    sums = abs(entries).sum(axis=0).ravel() - abs(diagonal) + abs(diagonal - shift)
    return float(sums.max())
