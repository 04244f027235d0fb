"""Traces of functions of Hermitian matrices, by products with random vectors; log-determinants.

For a vector x of random signs, the mean of x^H f(A) x is the trace. Lanczos steps from x give a quadrature of
this number. Where few eigenvalues dominate, the trace within their space Q is computed exactly:

    tr f(A) = sum_j q_j^H f(A) q_j + E[x^H P f(A) P x],    P = I - Q Q^H

References
----------
Ubaru, Chen, Saad, SIAM J. Matrix Anal. Appl. 38 (2017) 1075 (Lanczos quadrature); Meyer, Musco, Musco,
Woodruff, SOSA (2021) 142 (Hutch++). Deviations: Q is from a polynomial near f; a first sample predicts
how many vectors are needed, with Q and without, and the cheaper way is taken.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import scipy.linalg as sl

from blockvec import BlockVector, Factorization, Operator
from blockvec.errors import OptionError
from blockvec.system.frozen import frozen

from ..arguments import blas_threads, check_choice, ends_of, integer, is_explicit, on_host, real
from ..blocks import empty_block, project_out, round_up, to_host
from ..costs import fits_dense, recurrence_s
from ..iterations.spectrum import recurrences
from ..orthogonalization import orthogonalize
from ..placement import UNASKED_ENTRIES, factor_s, is_affordable
from ..result import ConvergenceWarning
from ..runtime.processes import together
from ..stages.dense import dense_matrix
from .bounds import SpectralBounds
from .operands import generator_for, operands, random_signs
from .series import MOVED, Sums, changes, checked, interpolation, missed, points

METHODS = ("auto", "quadrature", "hutch++", "dense")
WIDTH = 16  # vectors of a block, and of the first sample
STEPS, MOST_STEPS = 24, 1536  # Lanczos steps of a first sample, and at most
DENSE_ROWS = 400  # rows up to which all eigenvalues take less time than a sample; host
MOST_VECTORS = 1024  # random vectors
MOST_DENSE_ROWS = 4096  # rows up to which all eigenvalues take less time than random vectors, one per row
BASIS = 32  # columns of Q: those of least products were 16 to 128, which vary little between
RESOLVED = 0.25  # part that a quadrature may have of the error that is reached or wanted
ROUGH = 1e-2  # tail of the polynomial that Q is from, relative to the largest magnitude of f
LOST = 3  # degrees of freedom: the sample variance of m numbers over m - 3 is that of Student's distribution
GAIN = 0.7  # products with Q, at most, per product without
CERTAINTY = 1.3  # times the vectors that a first sample predicts, whose spread is uncertain
WORTH_S = 1.0  # s, predicted: factors that take no longer are computed, since they are exact
SAMPLES = 4  # blocks of random vectors that an estimate takes, as a rule
PASSES = 3  # times the bytes of a product that a Lanczos step moves


@frozen
class TraceEstimate:
    """A trace and its error: ``value, error = estimate``.

    Attributes
    ----------
    value : float or complex
    error : float
        Standard error, with what one eigenvalue that quadratures do not see may add; an estimate of rounding
        errors for method "dense".
    products : int
        Columns that A was applied to.
    vectors : int
        Random vectors.
    method : str
        "quadrature", "hutch++" or "dense".
    why : str
        What was done.
    """

    value: Any
    error: float
    products: int
    vectors: int
    method: str
    why: str

    def __iter__(self) -> Iterator[Any]:
        return iter((self.value, self.error))


@together
def trace(
    f: Callable[[Any], Any],
    A: Any,
    tol: float = 1e-3,
    *,
    atol: float = 0.0,
    vectors: int | None = None,
    domain: tuple[float | None, float | None] = (None, None),
    method: Literal["auto", "quadrature", "hutch++", "dense"] = "auto",
    rng: Any = None,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    device: str | None = None,
    like: Any = None,
    comm: Any = None,
) -> TraceEstimate:
    """Estimate the trace of f(A), the sum of f over the eigenvalues of a Hermitian matrix.

    Parameters
    ----------
    f : callable
        Maps a NumPy array of eigenvalues to an array of numbers.
    A : sparse matrix or array, dense array, LinearOperator, callable, or Operator, shape (n, n)
        Hermitian; as for `eigsh`.
    tol, atol : float
        Vectors are added until the standard error is at most ``max(tol |value|, atol)``.
    vectors : int, optional
        Number of random vectors, whatever the error is.
    domain : (float or None, float or None)
        Numbers that eigenvalues with rounding errors are clipped to, such as ``(0, None)`` for `np.sqrt`.
    method : {"auto", "quadrature", "hutch++", "dense"}
        Random vectors alone; the same beside an exact part, in the space of the eigenvalues that dominate
        f(A); or all eigenvalues. "auto" takes the one of the least predicted work.
    rng : Generator, int or None
        Source of the random vectors.
    shape, dtype, device, like, comm
        As for `eigsh`.

    Returns
    -------
    TraceEstimate
        A pair ``(value, error)`` with the products that were used and the method.

    Raises
    ------
    OptionError, ShapeError, DTypeError, DeviceError
        For invalid arguments, an A that is not Hermitian, or an f that is not finite within the spectrum.
    BreakdownError
        If A returns NaN or Inf.

    Warns
    -----
    ConvergenceWarning
        If the error is larger than what was asked for.

    Examples
    --------
    >>> import numpy as np
    >>> import blockvec
    >>> A = blockvec.models.model("laplace2d:n=40")
    >>> value, error = blockvec.trace(np.sqrt, A, rng=0)
    >>> bool(abs(value - np.sqrt(blockvec.models.spectra.laplace_eigenvalues([40, 40])).sum()) < 3 * error)
    True
    """
    check_choice("method", method, METHODS)
    if not callable(f):
        raise OptionError(f"f: got {f!r}; give a function of an array of eigenvalues, such as np.exp.")
    goal = _goal(tol, atol, vectors)
    given = operands(A, shape=shape, dtype=dtype, device=device, like=like, comm=comm).hermitian()
    f = checked(f, ends_of(domain), given.factor)
    return Sampler(given.operator, f, *goal, generator_for(given.operator, rng)).estimate(method)


def _goal(tol: Any, atol: Any, vectors: Any) -> tuple[Callable[[Any], float], int | None]:
    """Check errors and a number of vectors; return the largest error as a function of the value."""
    accepted = "a number of at least 0", 0.0
    tol, atol = real("tol", tol, *accepted), real("atol", atol, *accepted)
    count = None if vectors is None else integer("vectors", vectors, LOST + 1)
    return lambda value: float(max(tol * abs(value), atol)), count


class Forms(NamedTuple):
    """Numbers x^H f(A) x of some vectors, and the nodes and weights of their quadratures."""

    values: Any  # shape (b,)
    doubts: Any  # what their quadratures may miss
    squares: Any  # ||x||^2
    theta: Any  # shape (q,)
    weights: Any
    f: Any  # at the nodes

    @classmethod
    def joined(cls, parts: Sequence[Sequence[Any]]) -> Forms:
        """Join the forms of several blocks."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    @property
    def centre(self) -> Any:
        """The mean of f over the spectrum."""
        return self.values.sum() / max(self.squares.sum(), np.finfo(float).tiny)

    @property
    def parts(self) -> Any:
        """The forms of f - centre, which spread less."""
        return self.values - self.centre * self.squares


class Sampler:
    """Samples quadratic forms of f(A), by so many Lanczos steps as the wanted error needs."""

    def __init__(
        self,
        op: Operator,
        f: Callable[..., Any],
        limit_of: Callable[[Any], float],
        vectors: int | None,  # None for as many as the error needs
        rng: np.random.Generator,
    ) -> None:
        self.op, self.f, self.limit_of, self.vectors, self.rng = op, f, limit_of, vectors, rng
        self.n, self.is_whole, self.unit = op.shape[0], op.layout is None, float(np.finfo(op.dtype).eps)
        self.steps, self.products = STEPS, 0
        self._x, self._f = np.zeros(0), np.zeros(0)  # points where f is compared with polynomials

    def estimate(self, method: str) -> TraceEstimate:
        """Estimate the trace by a method; see `trace`."""
        if self.n == 0:
            return TraceEstimate(0.0, 0.0, 0, 0, "dense", "there are no rows")
        is_short = self.is_whole and self.op.device == "cpu" and self.n <= DENSE_ROWS
        if method == "dense" or (method == "auto" and is_short and self.vectors is None):
            if not self.is_whole:
                raise OptionError("method: 'dense' needs the whole matrix in one process; leave out comm.")
            return self._from_eigenvalues()
        with blas_threads(self.op):
            found = self._from_samples(method)
        if self.vectors is None and found.error > (limit := self.limit_of(found.value)):
            warnings.warn(
                f"trace: the error is {found.error:.2g}, more than {limit:.2g}, {found.why}; give a larger "
                "tol, atol= for a value near zero, or method='dense'.",
                ConvergenceWarning,
                stacklevel=4,
            )
        return found

    def _from_eigenvalues(self) -> TraceEstimate:
        theta = np.linalg.eigvalsh(to_host(dense_matrix(self.op, empty_block(self.op))))
        values = self.f(theta)
        error = self.unit * float(np.abs(values).sum()) + self._moved(theta, values, np.ones(self.n))
        why, products = f"from all {self.n} eigenvalues", self.products + self.n
        return TraceEstimate(values.sum().item(), error, products, 0, "dense", why)

    def _moved(self, theta: Any, values: Any, weights: Any) -> float:
        """Compute what a sum over eigenvalues changes by where rounding moves these, across jumps of f."""
        reach = MOVED * self.unit / 2 * np.abs(theta).max(initial=0.0)
        return max(float(abs(weights @ change)) for change in changes(self.f, theta, values, reach))

    def _from_samples(self, method: str) -> TraceEstimate:
        inner, Q, columns = None, None, 0
        if self.vectors is not None and method == "hutch++":
            columns = max(self.vectors // 3, 1)
        used = size = WIDTH if self.vectors is None else max(self.vectors - 2 * columns, 4)
        sample = self._sampled(size, None)
        if self.vectors is None and method != "quadrature":
            columns = self._columns(sample, is_forced=method == "hutch++")
        if columns and (Q := self._basis(columns, sample)) is not None:
            inner = self._forms(Q.copy(), are_all=True)
            sample, used = self._sampled(size, Q), used + size
        while True:
            value, error, needed = self._combined(sample, inner)
            if method == "auto" and needed > self.n <= MOST_DENSE_ROWS and self.is_whole:
                return self._from_eigenvalues()
            taken = len(sample.values)
            more = min(needed, MOST_VECTORS) - taken
            # A first sample that seems to be enough may only have a small variance by chance.
            if more <= 0 or (taken > size and error <= self.limit_of(value)):
                break
            sample, used = Forms.joined([sample, self._sampled(more, Q)]), used + more
        basis, name = ("", "quadrature") if Q is None else (f", beside {Q.n_cols} computed ones", "hutch++")
        why = f"by {used} random vectors{basis} and {self.steps} steps"
        return TraceEstimate(value, error, self.products, used, name, why)

    def _combined(self, sample: Forms, inner: Forms | None) -> tuple[Any, float, int]:
        """Compute the trace, its error, and the number of vectors for the wanted one."""
        centre, parts = sample.centre, sample.parts  # the trace of the centre is known
        value, doubt = self.n * centre + parts.mean(), sample.doubts.mean()
        if inner is not None:
            value, doubt = value + (inner.values - centre).sum(), doubt + inner.doubts.sum()
        count, variance = len(parts), np.var(parts, ddof=LOST).item()
        doubt += self._moved(sample.theta, sample.f, sample.weights) / count
        # Quadratures have errors of up to eps per step.
        rounding = self.unit * self.steps * float(sample.weights @ np.abs(sample.f)) / count
        error, limit = math.hypot(math.sqrt(variance / count), doubt, rounding), self.limit_of(value)
        if self.vectors is not None or variance == 0:
            needed = 0
        elif limit == 0:
            needed = MOST_VECTORS
        else:
            needed = math.ceil(CERTAINTY * variance / ((1 - RESOLVED**2) * limit**2))
        return value.item(), error, round_up(needed, WIDTH)

    def _columns(self, sample: Forms, *, is_forced: bool) -> int:
        """Return the number of columns of Q, 0 where they save no products.

        Without the eigenvalues where ``|f - centre|`` is largest, the variance falls as the sum of squares.
        """
        count = min(max(self._combined(sample, None)[2], WIDTH), self.n)
        columns = min(BASIS, self.n // 4)
        spreads = np.abs(sample.f - sample.centre) ** 2
        order = np.argsort(-spreads, kind="stable")
        weights = sample.weights[order] * self.n / sample.squares.sum()  # eigenvalues per node
        shares = weights * spreads[order]
        left = shares[np.cumsum(weights) > columns].sum() / max(shares.sum(), 1e-300)
        is_less = WIDTH + 2 * columns + max(WIDTH, left * count) < GAIN * count
        return columns if is_forced or is_less else 0

    def _basis(self, columns: int, sample: Forms) -> BlockVector | None:
        """Compute an orthonormal basis of the space where f(A) is far from its mean, by a polynomial."""
        low, high, centre = sample.theta.min(), sample.theta.max(), sample.centre
        series = interpolation(lambda x: np.abs(self.f(x) - centre), low, high, ROUGH, 4 * self.steps)
        sums = Sums(self.op, SpectralBounds(low, high, False, "a sample").widened(1e-3))
        found = sums.of(lambda bounds: series, random_signs(self.op, columns, self.rng))
        if found is None:  # f is not smooth, or not finite in a gap of the spectrum
            return None
        block: BlockVector = found[0][0]
        self.products += sums.columns
        kept = block.n_cols - int(np.sum(to_host(orthogonalize(block).lost)))
        return block[:, :kept].copy() if kept else None

    def _sampled(self, count: int, Q: BlockVector | None) -> Forms:
        """Sample the forms of a number of random vectors, in the complement of Q."""
        parts = []
        for begin in range(0, count, WIDTH):
            block = random_signs(self.op, min(WIDTH, count - begin), self.rng)
            parts.append(self._forms(project_out(Q, project_out(Q, block))))
        return Forms.joined(parts)

    def _forms(self, X: BlockVector, *, are_all: bool = False) -> Forms:
        """Compute x^H f(A) x for the columns of a block, which is overwritten: samples, or all of a sum."""
        squares = to_host(X.norms()).astype(np.float64) ** 2
        count, run = 1 if are_all else len(squares), recurrences(self.op, X)
        while True:
            run.extend(self.steps)
            rows, doubt = list[Any](), 0.0
            for T, square in zip(run.projected(), squares, strict=True):
                theta, S = sl.eigh_tridiagonal(*T)
                f, weights = self.f(theta), square * S[0] ** 2
                if are_all or not rows:  # random vectors are alike
                    # Where A maps a space into itself, fewer steps are exact.
                    is_whole = len(theta) < run.steps
                    doubt = 0.0 if is_whole else self._missed(theta, T, S @ (f * S[0]))
                rows.append(([weights @ f], [square * doubt], [square], theta, weights, f))
            found = Forms.joined(rows)
            limit = self.limit_of(found.values.sum() / count)
            if self.vectors is not None:
                limit = max(limit, float(np.std(found.values)) / math.sqrt(len(squares)))
            if found.doubts.sum() / count <= RESOLVED * limit or self.steps == MOST_STEPS:
                self.products += run.steps * X.n_cols
                return found
            self.steps = min(2 * self.steps, MOST_STEPS)

    def _missed(self, theta: Any, T: Any, c: Any) -> float:
        """Bound what one eigenvalue that is not seen adds to a quadrature, also beyond the last nodes."""
        if not len(self._x) or theta[0] < self._x[-1] or theta[-1] > self._x[0]:
            low, high = 2 * theta[[0, -1]] - theta[[1, -2]]
            # A function of positive numbers may have no others.
            low = max(low, theta[0] / 10) if theta[0] > 0 else low
            high = min(high, theta[-1] / 10) if theta[-1] < 0 else high
            self._x = points(low, high)
            self._f = self.f(self._x, is_strict=False)
        return missed(self._f, self._x, T, c, 1)


@frozen
class LogDeterminant(TraceEstimate):
    """The logarithm of ``|det A|`` and its error, ``value, error = logdet(A)``; see `TraceEstimate`.

    Attributes
    ----------
    sign : float
        Sign of the determinant: 1, -1, or 0 for a matrix that is singular to working precision.
    """

    sign: float = 1.0


@together
def logdet(
    A: Any,
    tol: float = 1e-3,
    *,
    atol: float = 0.0,
    vectors: int | None = None,
    method: Literal["auto", "factors", "quadrature"] = "auto",
    rng: Any = None,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    device: str | None = None,
    like: Any = None,
    comm: Any = None,
) -> LogDeterminant:
    """Compute the logarithm of the determinant of a Hermitian matrix.

    Parameters
    ----------
    A : sparse matrix or array, dense array, LinearOperator, callable, or Operator, shape (n, n)
        Hermitian, and positive definite unless it is factorised; as for `eigsh`.
    tol, atol, vectors, rng
        Of an estimate; see `trace`.
    method : {"auto", "factors", "quadrature"}
        Factors on the host, whose pivots tell the number to rounding errors and its sign, or an estimate of
        the trace of log(A). "auto" takes factors where A is an explicit matrix and they are predicted to take
        less than a second, or less time than an estimate.
    shape, dtype, device, like, comm
        As for `eigsh`.

    Returns
    -------
    LogDeterminant
        A pair ``(value, error)`` with the sign, the products that were used, and the method.

    Raises
    ------
    OptionError, ShapeError, DTypeError, DeviceError
        For invalid arguments, and an A that is not Hermitian, or for an estimate not positive definite.

    Warns
    -----
    ConvergenceWarning
        If the error of an estimate is larger than what was asked for.

    Examples
    --------
    >>> import numpy as np
    >>> import blockvec
    >>> A = blockvec.models.model("laplace1d:n=99")  # of the determinant 100
    >>> value, error = blockvec.logdet(A)
    >>> bool(abs(value - np.log(100)) < 1e-12)
    True
    """
    check_choice("method", method, ("auto", "factors", "quadrature"))
    goal = _goal(tol, atol, vectors)
    given = operands(A, shape=shape, dtype=dtype, device=device, like=like, comm=comm).hermitian()
    op, factor, entries = given.operator, given.factor, given.entries
    why, n, products = None, op.shape[0], 0
    if method == "auto" and vectors is None:
        why = _reason(op, entries)
    elif method == "factors":
        why = "factors were asked for"
        if op.layout is not None or not (is_explicit(entries) or fits_dense(op)):
            raise OptionError(
                "method: 'factors' needs an explicit matrix in one process; give one, or use 'quadrature'."
            )
    if why is None or n == 0:
        log = checked(_positive_log, factor=factor)
        found = Sampler(op, log, *goal, generator_for(op, rng)).estimate("auto")
        return LogDeterminant(**vars(found))
    if not is_explicit(entries):
        entries, products = to_host(dense_matrix(op, empty_block(op))), n
    factors = Factorization(on_host(entries))
    factors.refactorize(0.0)
    sign, value = cast(tuple[float, float], factors.log_determinant())
    if factor != 1 and sign:
        sign, value = sign * float(np.sign(factor)) ** n, value + n * math.log(abs(factor))
    error = float(np.finfo(op.dtype).eps) * (n + 1 / factors.nearest) if sign else 0.0
    return LogDeterminant(value, error, products, 0, "factors", why, sign)


def _reason(op: Operator, entries: Any) -> str | None:
    """Return the reason to factorise A; None if an estimate takes less time, or A cannot be factorised."""
    n = op.shape[0]
    if op.layout is not None or not is_explicit(entries):
        return f"n = {n} is at most {DENSE_ROWS}" if op.layout is None and n <= DENSE_ROWS else None
    if getattr(entries, "nnz", n * n) > UNASKED_ENTRIES:
        return None
    estimate_s = SAMPLES * STEPS * PASSES * recurrence_s(op, WIDTH)
    predicted_s = factor_s(entries, "cpu", WORTH_S)
    if predicted_s > max(WORTH_S, estimate_s) or not is_affordable(entries, None):
        return None
    return f"factors are predicted to take {predicted_s:.2g} s, an estimate {estimate_s:.2g} s"


def _positive_log(theta: Any) -> Any:
    if (theta <= 0).any():
        raise OptionError(
            f"A is not positive definite: it has a Ritz value {theta.min():.6g}; use method='factors'."
        )
    return np.log(theta)
