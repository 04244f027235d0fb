"""exp(t A) times a block by Taylor polynomials, for matrices without structure.

exp(t A) B is computed in s steps of exp(t A / s), each by a Taylor polynomial of A - mu I with the mean mu of
the eigenvalues. The steps follow from the norm of A, or if that gives many from the growth of random vectors
under powers of A, which is less for matrices that are not normal. Terms end where they no longer change the
sum; a step in which they do not end, or cancel, is halved.

References
----------
Al-Mohy, Higham, SIAM J. Sci. Comput. 33 (2011) 488, algorithm 3.2 and table 3.1. Deviations: the largest
degree for all steps, norms of columns where a sum ends, and norms of powers by products of random vectors,
which need no adjoint, in place of estimates from below that hold for all vectors.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any

import numpy as np

from blockvec import BlockVector
from blockvec.errors import BreakdownError, OptionError

from ..arguments import blas_threads
from ..blocks import ColumnBlock, in_precision, to_host
from .operands import Matrix
from .polynomial import as_block, as_real, by_columns
from .recurrence import add_multiple

DEGREE = 55  # largest degree of a polynomial
# ||A|| up to which such a polynomial has a backward error of one unit roundoff [table 3.1].
LIMITS = {"d": 9.9, "f": 13.0}
FEW_STEPS = 4  # by the norm, up to which the growth of powers is not measured
POWERS = 8  # largest power of A whose growth is measured
RANDOM_VECTORS = 2  # for the growth of powers, and for a trace
UNSURE = 2.0  # factor of that growth: random vectors grow less than others
MOST_HALVINGS = 30
MOST_GROWTH = math.exp(12)  # largest ratio of terms to the result
BETWEEN_LOOKS = 3  # terms
NEARLY = 1e3  # units of roundoff of the largest term, above which the sum is not looked at


class Taylor:
    """exp(t A) X for a matrix without structure and blocks like X; counts `steps` and `columns` of products.

    The trace is that of A without its factor, and estimated where it is None and there are no entries.
    """

    def __init__(self, matrix: Matrix, trace: complex | None, X: BlockVector) -> None:
        self._factor, self._operator, self._entries = matrix.factor, matrix.operator, matrix.entries
        self.steps = self.columns = self.degree = 0
        self._grown: tuple[float, float] | None = None
        self._like = X.like(0, dtype=np.result_type(X.dtype, matrix.operator.dtype))
        if trace is None:
            if matrix.is_linear_operator:
                warnings.warn(
                    "Trace of LinearOperator not available, it will be estimated. "
                    "Provide `traceA` to ensure performance.",
                    stacklevel=4,
                )
            trace = self._trace()
        self._shift = _real(complex(trace) / X.n_global)

    def apply(self, t: float, X: BlockVector) -> BlockVector:
        """Compute exp(t A) X."""
        z = _real(t * self._factor)
        is_complex = np.iscomplexobj(z) or np.iscomplexobj(self._shift)
        dtype = np.result_type(X.dtype, self._operator.dtype, *[np.complex64] * is_complex)
        whole = in_precision(X, dtype)
        if z == 0:
            return whole
        is_real = self._operator.dtype.kind == "f" and not np.iscomplexobj(z * self._shift)
        F: Any = by_columns(self._operator, as_real(whole) if is_real else whole)
        total, done, halvings, exponent = self._count(abs(z)), 0, 0, 0
        with np.errstate(all="ignore"), blas_threads(self._operator):
            while done < total:
                found = self._step(z / total, F)
                if found is None:
                    done, total, halvings = 2 * done, 2 * total, halvings + 1
                    if halvings > MOST_HALVINGS:
                        raise BreakdownError(
                            "exp(t A) B: the series does not converge; check that A returns finite numbers."
                        )
                    continue
                F, done = found, done + 1
                power = math.frexp(float(to_host(F.norms()).max()))[1]
                if power > np.finfo(dtype).maxexp // 8:  # the next squares may overflow
                    F.scale(math.ldexp(1.0, -power))
                    exponent += power
            if exponent > np.finfo(dtype).maxexp:
                raise OptionError("exp(t A) B overflows; take a shorter time, or another unit.")
            result: BlockVector = as_block(F.scale(math.ldexp(1.0, exponent)) if exponent else F, whole)
        return result

    def _step(self, z: complex, B: Any) -> Any:
        """Compute exp(z A) B by one polynomial; None if its terms do not end, or cancel.

        Terms are powers of a matrix of norm one, about, times B, with coefficients.
        """
        A, F, term, following, coefficient = self._scaled, B.copy(), B.copy(), B.like(), _real(1.0 + 0 * z)
        is_vector = type(B) is ColumnBlock and B.shape[1] == 1 and B.dtype == A.dtype
        add, unit = A.vector_adder() if is_vector else None, float(np.finfo(B.dtype).eps) / 2
        largest = start = to_host(B.norms())
        for j in range(1, DEGREE + 1):
            before, coefficient = abs(coefficient), coefficient * (z * self._unit / j)
            if F.device != "cpu":
                A.apply(term, out=following, z=F, eta=coefficient)  # in one pass
            else:
                if add is not None:
                    following.array.fill(0)
                    add(term.array[:, 0], following.array[:, 0])
                elif type(term) is ColumnBlock:  # without checks
                    A.apply_columns(term.array, following.array)
                else:
                    A.apply(term, out=following)
                add_multiple(F, coefficient, following)
            term, following = following, term
            self.steps, self.columns = self.steps + 1, self.columns + B.shape[1]
            if j % BETWEEN_LOOKS and j < DEGREE:
                continue
            last = abs(coefficient) * to_host(term.norms())
            largest, self.degree = np.maximum(largest, last), max(self.degree, j)
            if j < DEGREE and not (last <= NEARLY * unit * largest).all():
                continue
            left, total = last + before * to_host(following.norms()), to_host(F.norms())
            if (left <= unit * total).all():
                break
        is_ended = (left <= NEARLY * unit * total).all() and np.isfinite(total).all()
        if not is_ended or (largest > MOST_GROWTH * np.maximum(total, start)).any():
            return None
        return F.scale(np.exp(z * self._shift).item())

    def _count(self, size: float) -> int:
        """Choose the steps for a factor ``size`` of A."""
        limit = LIMITS["f" if self._like.dtype.char in "fF" else "d"]
        steps = size * self._norm / limit
        if steps > FEW_STEPS:
            steps = min(steps, UNSURE * size * self._growth()[1] / limit)
        return max(1, math.ceil(steps))

    @functools.cached_property
    def _unit(self) -> float:
        """A power of two, about the norm of A - mu I."""
        size = self._norm if math.isfinite(self._norm) else self._growth()[0]
        return 2.0 ** math.ceil(math.log2(max(size, 1e-300)))

    @functools.cached_property
    def _scaled(self) -> Any:
        """A - mu I, divided by the unit."""
        return self._operator.affine(1 / self._unit, self._shift)

    @functools.cached_property
    def _norm(self) -> float:
        """The 1-norm of A - mu I from the entries; infinite without them."""
        if self._entries is None:
            return math.inf
        diagonal = self._entries.diagonal()
        sums = abs(self._entries).sum(axis=0).ravel() - abs(diagonal) + abs(diagonal - self._shift)
        return float(sums.max())

    def _growth(self) -> tuple[float, float]:
        """Measure by which factors random vectors grow in one product, and per product in several.

        It waits for all processes, and is no `cached_property`: before Python 3.12 these hold a lock of the
        class, so that processes which are threads would wait for each other without end.
        """
        if self._grown is not None:
            return self._grown
        X, sizes = self._like.random_like(RANDOM_VECTORS, 0), list[float]()
        X.normalize()
        shifted = self._operator.affine(1, self._shift)
        for _ in range(POWERS):
            X = shifted.apply(X)
            sizes.append(float(to_host(X.norms()).max()))
            if not math.isfinite(sizes[-1]):
                raise BreakdownError("A returned NaN or Inf for a finite block; check its entries.")
            if sizes[-1] == 0:
                break
            X.scale(1 / sizes[-1])
        with np.errstate(divide="ignore"):
            roots = np.exp(np.cumsum(np.log(sizes)) / np.arange(1, len(sizes) + 1))
        self._grown = sizes[0], float(roots[-2:].max())
        return self._grown

    def _trace(self) -> complex:
        """Compute the trace, or estimate it by a few random vectors: any number is a valid shift."""
        if self._entries is not None:
            return complex(self._entries.diagonal().sum())
        X = self._like.random_like(RANDOM_VECTORS, 0)
        products = to_host(X.column_dot(self._operator.apply(X)))
        return complex((products / to_host(X.norms()) ** 2).mean() * X.n_global)


def _real(z: complex) -> Any:
    """Return a number without an imaginary part of zero."""
    return z.real if np.imag(z) == 0 else z
