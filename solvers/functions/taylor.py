"""exp(t A) times a block by Taylor polynomials, for matrices without structure.

exp(t A) B is computed in s steps of exp(t A / s), each by a Taylor polynomial of degree m of A - mu I, with
the mean of the eigenvalues mu. Degree and steps follow from norms of powers of A, so that the polynomial is
the exponential of a matrix next to A, within rounding. Terms end where they no longer change the sum.

References
----------
Al-Mohy, Higham, SIAM J. Sci. Comput. 33 (2011) 488, algorithm 3.2 and table 3.1. Deviations: norms of
columns where a sum ends; where an operator has no adjoint, norms are estimated by its products alone, and
steps in which the series has not converged are halved.
Higham, Tisseur, SIAM J. Matrix Anal. Appl. 21 (2000) 1185, algorithm 2.4 (norms of powers). Deviation: no
search for parallel columns; unit vectors are not taken twice, which ends the iteration as well.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any

import numpy as np

from blockvec import BlockVector, Operator, array_namespace
from blockvec.errors import BreakdownError, OptionError

from ..arguments import blas_threads
from ..blocks import ColumnBlock, in_precision, to_host
from .operands import Matrix
from .polynomial import as_block, as_real, by_columns
from .recurrence import add_multiple

# ||A|| up to which a Taylor polynomial of a degree has a backward error of one unit roundoff [table 3.1].
DEGREES = range(5, 60, 5)
THETA = {
    "d": dict(zip(DEGREES, (2.4e-3, 1.4e-1, 6.4e-1, 1.4, 2.4, 3.5, 4.7, 6.0, 7.2, 8.5, 9.9), strict=True)),
    "f": dict(zip(DEGREES, (1.3e-1, 1.0, 2.2, 3.6, 4.9, 6.3, 7.7, 9.1, 11.0, 12.0, 13.0), strict=True)),
}
MOST_POWER = 8  # the largest p with p (p - 1) <= 56, one more than the largest degree
TRACE_VECTORS = 4  # random vectors of the estimate of a trace
WIDTH = 2  # columns of the estimate of a norm
MOST_ITERATIONS = 5  # of that estimate
UNSURE = 2.0  # factor of norms that are estimated without an adjoint
GAIN = 0.9  # ratio of the norms of successive powers, by their roots, below which the next is estimated
MOST_HALVINGS = 30
MOST_GROWTH = math.exp(12)  # of terms beyond the result, where norms are unsure
BETWEEN_LOOKS = 3  # terms, until they are nearly negligible
NEARLY = 1e3  # units of roundoff of the largest term, above which the sum is not looked at


class Taylor:
    """exp(t A) X for a matrix without structure and blocks like X; counts `steps` and `columns` of products.

    The trace is that of A without its factor, and estimated where it is None and there are no entries.
    """

    def __init__(self, matrix: Matrix, trace: complex | None, X: BlockVector) -> None:
        self._factor, self._operator, self._entries = matrix.factor, matrix.operator, matrix.entries
        self.steps = self.columns = self.degree = 0
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
        self._scaled: dict[complex, Operator] = {}
        self._norms: dict[int, float] = {}
        self._plans: dict[complex, tuple[int, int]] = {}

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
        if z not in self._plans:
            self._plans[z] = self._plan(abs(z), X.n_cols)
        degree, total = self._plans[z]
        done = halvings = exponent = 0
        with np.errstate(all="ignore"), blas_threads(self._operator):
            while done < total:
                found = self._step(z / total, degree, F)
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

    def _step(self, z: complex, degree: int, B: Any) -> Any:
        """Compute exp(z A) B by one polynomial; None if its terms do not end, or cancel.

        Terms are powers of a matrix of norm one, about, times B, with coefficients.
        """
        scale = 2.0 ** math.ceil(math.log2(max(abs(z) * self._norm(1), 1e-300)))
        if z not in self._scaled:
            self._scaled = {z: self._operator.affine(z / scale, self._shift)}
        A, F, term, following, coefficient = self._scaled[z], B.copy(), B.copy(), B.like(), 1.0
        is_vector = type(B) is ColumnBlock and B.shape[1] == 1 and B.dtype == A.dtype
        add, unit = A.vector_adder() if is_vector else None, float(np.finfo(B.dtype).eps) / 2
        before = size = largest = total = start = to_host(B.norms())
        is_near = False
        for j in range(1, degree + 1):
            coefficient *= scale / j
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
            if j % BETWEEN_LOOKS and j < degree and not is_near:
                continue
            before, size = size, coefficient * to_host(term.norms())
            largest, self.degree = np.maximum(largest, size), max(self.degree, j)
            is_near = bool((size <= NEARLY * unit * largest).all())
            total = to_host(F.norms()) if is_near or j == degree else total
            if is_near and (before + size <= unit * total).all():
                break
        else:
            if degree and not self._is_sure and not (before + size <= 1e3 * unit * total).all():
                return None
        most = math.inf if self._is_sure else MOST_GROWTH
        if not np.isfinite(total).all() or (largest > most * np.maximum(total, start)).any():
            return None
        return F.scale(np.exp(z * self._shift).item())

    def _plan(self, size: float, width: int) -> tuple[int, int]:
        """Choose degree and steps for ``|z|`` by the fewest products."""
        theta = THETA["f" if self._like.dtype.char in "fF" else "d"]
        norm, most = size * self._norm(1), DEGREES[-1]
        if not norm:
            return 0, 1
        steps = {m: math.ceil(norm / limit) for m, limit in theta.items()}
        # Where norms of powers, which need products themselves, may save more than they cost [eq. 3.13].
        worth = 2 * WIDTH * MOST_POWER * (MOST_POWER + 3) * theta[most] / (width * most)
        if norm > worth or not self._is_sure:
            before = norm
            for p in range(2, MOST_POWER + 1):
                alpha = size * max(self._norm(q) ** (1 / q) for q in (p, p + 1))
                if alpha > GAIN * before:  # higher powers will gain no more
                    break
                before = alpha
                for m in DEGREES[max(0, (p * (p - 1) - 2) // 5) :]:
                    steps[m] = min(steps[m], max(1, math.ceil(alpha / theta[m])))
        return min(steps.items(), key=lambda plan: plan[0] * plan[1])

    @functools.cached_property
    def _diagonal(self) -> Any:
        return self._entries.diagonal()

    @property
    def _is_sure(self) -> bool:
        """Whether norms are those of entries, or estimated with an adjoint."""
        return self._entries is not None or self._adjoint is not None

    @functools.cached_property
    def _shifted(self) -> Operator:
        """A - mu I, for estimates of norms."""
        return self._operator.affine(1, self._shift) if self._shift else self._operator

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
                sums = abs(self._entries).sum(axis=0).ravel() - abs(self._diagonal)
                sums += abs(self._diagonal - self._shift)
                self._norms[1] = float(sums.max())
            else:
                found = power_norm(self._shifted, self._adjoint, self._like, power)
                self._norms[power] = found if self._is_sure else found * UNSURE**power
        return self._norms[power]

    def _trace(self) -> complex:
        """Compute the trace, or estimate it by a few random vectors: any number is a valid shift."""
        if self._entries is not None:
            return complex(self._diagonal.sum())
        X = self._like.random_like(TRACE_VECTORS, 0)
        products = to_host(X.column_dot(self._operator.apply(X)))
        return complex((products / to_host(X.norms()) ** 2).mean() * X.n_global)


def _real(z: complex) -> Any:
    """Return a number without an imaginary part of zero."""
    return z.real if np.imag(z) == 0 else z


def power_norm(A: Operator, adjoint: Operator | None, like: BlockVector, power: int) -> float:
    """Estimate ``||A^p||_1`` from below, mostly within a factor of 3.

    Without an adjoint the columns are random signs, whose images are a poorer estimate. `like` is a block
    without columns that A is applied to.
    """

    def powered(operator: Operator, X: BlockVector) -> BlockVector:
        for _ in range(power):
            X = operator.apply(X)
        return X

    n, xp = like.n_global, array_namespace(like.array)
    signs = np.random.default_rng(0).choice((-1.0, 1.0), (like.n_rows, WIDTH))
    signs[:, 0] = 1
    X = BlockVector(xp.asarray((signs[:, : min(WIDTH, n)] / n).astype(like.dtype)), layout=like.layout)
    best, used = 0.0, set[int]()
    for _ in range(MOST_ITERATIONS):
        Y = powered(A, X)
        size = abs(Y.array)
        sums = size.sum(axis=0)
        found = float(to_host(sums if Y.layout is None else Y.layout.sum(sums)).max())
        if not found > best or adjoint is None:
            return max(best, found)
        best = found
        S = BlockVector(xp.where(size == 0, 1, Y.array / xp.where(size == 0, 1, size)), copy=True)
        rows = to_host(abs(powered(adjoint, S).array).max(axis=1))
        order = [int(i) for i in np.argsort(-rows)[: WIDTH + len(used)] if int(i) not in used][:WIDTH]
        if not order:
            return best
        used.update(order)
        unit = np.zeros((n, len(order)), like.dtype)
        unit[order, range(len(order))] = 1
        X = BlockVector(xp.asarray(unit))
    return best
