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

from ..arguments import blas_threads, check_choice, ends_of, integer, on_host, real
from ..blocks import empty_block, is_explicit, project_out, round_up, to_host
from ..costs import UNASKED_ENTRIES, dense_s, factor_s, fits_dense, is_affordable, recurrence_s
from ..iterations.spectrum import recurrences
from ..orthogonalization import orthogonalize
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
TRIDIAGONAL_S = 1.5e-7  # s per vector and squared step, of eigenvalues; two cores, 100 to 800 steps


class DenseIsFasterError(Exception):
    """A sample needs so many steps or vectors that all eigenvalues take less time."""


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
    given = operands(A, shape=shape, dtype=dtype, device=device, like=like, comm=comm).hermitian()
    f = checked(f, ends_of(domain), given.factor)
    return Sampler(given.operator, f, tol, atol, vectors, rng).estimate(method)


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
        """Join the forms of several vectors or blocks."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    @property
    def centre(self) -> Any:
        """The mean of f over the spectrum."""
        return self.values.sum() / max(self.squares.sum(), np.finfo(float).tiny)


class Sampler:
    """Samples quadratic forms of f(A), by so many vectors and Lanczos steps as the wanted error needs."""

    def __init__(
        self, op: Operator, f: Callable[..., Any], tol: Any, atol: Any, vectors: Any, rng: Any
    ) -> None:
        accepted = "a number of at least 0", 0.0
        self._tol, self._atol = real("tol", tol, *accepted), real("atol", atol, *accepted)
        self._given = None if vectors is None else integer("vectors", vectors, LOST + 1)
        self._op, self._f, self._rng = op, f, generator_for(op, rng)
        self._n, self._is_whole, self._unit = op.shape[0], op.layout is None, float(np.finfo(op.dtype).eps)
        self._steps, self._products, self._drawn = STEPS, 0, 0
        self._may_be_dense = False  # where that is faster
        self._x, self._values = np.zeros(0), np.zeros(0)  # points where f is compared with polynomials

    def estimate(self, method: str) -> TraceEstimate:
        """Estimate the trace by a method; see `trace`."""
        if self._n == 0:
            return TraceEstimate(0.0, 0.0, 0, 0, "dense", "there are no rows")
        is_short = self._is_whole and self._op.device == "cpu" and self._n <= DENSE_ROWS
        if method == "dense" or (method == "auto" and is_short and self._given is None):
            if not self._is_whole:
                raise OptionError("method: 'dense' needs the whole matrix in one process; leave out comm.")
            found = self._from_eigenvalues()
        else:
            is_free = method == "auto" and self._given is None
            self._may_be_dense = is_free and self._is_whole and self._n <= MOST_DENSE_ROWS
            try:
                with blas_threads(self._op):
                    found = self._from_samples(method)
            except DenseIsFasterError:
                found = self._from_eigenvalues()
        if self._given is None and found.error > (limit := self._limit(found.value)):
            exact = "" if found.method == "dense" else " or method='dense',"
            warnings.warn(
                f"trace: the error is {found.error:.2g}, more than {limit:.2g}, {found.why}; give a larger "
                f"tol,{exact} or atol= for a value near zero.",
                ConvergenceWarning,
                stacklevel=4,
            )
        return found

    def _limit(self, value: Any) -> float:
        return float(max(self._tol * abs(value), self._atol))

    def _from_eigenvalues(self) -> TraceEstimate:
        theta = np.linalg.eigvalsh(to_host(dense_matrix(self._op, empty_block(self._op))))
        values = self._f(theta)
        error = self._unit * float(np.abs(values).sum()) + self._moved(theta, values, np.ones(self._n))
        why, products = f"from all {self._n} eigenvalues", self._products + self._n
        return TraceEstimate(values.sum().item(), error, products, 0, "dense", why)

    def _moved(self, theta: Any, values: Any, weights: Any) -> float:
        """Compute what a sum over eigenvalues changes by where rounding moves these, across jumps of f."""
        reach = MOVED * self._unit / 2 * np.abs(theta).max(initial=0.0)
        return max(float(abs(weights @ change)) for change in changes(self._f, theta, values, reach))

    def _from_samples(self, method: str) -> TraceEstimate:
        size, inner, Q = self._given or WIDTH, None, None
        if method == "hutch++" and self._given:
            size = max(size // 2, LOST + 1)  # one half for the basis, one beside it
        sample = self._sampled(size)
        value, error, needed = self._combined(sample)
        if method != "quadrature":
            Q = self._basis(sample, needed, is_forced=method == "hutch++")
        if Q is not None:
            inner = self._forms(Q.copy(), are_all=True)
            sample = self._sampled(size, Q)
            value, error, needed = self._combined(sample, inner)
        elif self._given and self._given > size:  # all for an average without a basis
            sample = Forms.joined([sample, self._sampled(self._given - size)])
            value, error, needed = self._combined(sample)
        while True:
            if self._may_be_dense and needed > self._n:
                raise DenseIsFasterError
            taken = len(sample.values)
            more = min(needed, MOST_VECTORS) - taken
            # A first sample that seems to be enough may only have a small variance by chance.
            if more <= 0 or (taken > size and error <= self._limit(value)):
                break
            sample = Forms.joined([sample, self._sampled(more, Q)])
            value, error, needed = self._combined(sample, inner)
        basis, name = ("", "quadrature") if Q is None else (f", beside {Q.n_cols} computed ones", "hutch++")
        why = f"by {self._drawn} random vectors{basis} and {self._steps} steps"
        return TraceEstimate(value, error, self._products, self._drawn, name, why)

    def _combined(self, sample: Forms, inner: Forms | None = None) -> tuple[Any, float, int]:
        """Compute the trace, its error, and the number of vectors for the wanted one."""
        centre = sample.centre  # the trace of the centre is known, and forms of f - centre spread less
        parts = sample.values - centre * sample.squares
        value, doubt = self._n * centre + parts.mean(), sample.doubts.mean()
        if inner is not None:
            value, doubt = value + (inner.values - centre).sum(), doubt + inner.doubts.sum()
        count, variance = len(parts), np.var(parts, ddof=LOST).item()
        doubt += self._moved(sample.theta, sample.f, sample.weights) / count
        # Quadratures have errors of up to eps per step.
        rounding = self._unit * self._steps * float(sample.weights @ np.abs(sample.f)) / count
        error, limit = math.hypot(math.sqrt(variance / count), doubt, rounding), self._limit(value)
        if self._given is not None or variance == 0:
            needed = 0
        elif limit == 0:
            needed = MOST_VECTORS
        else:
            needed = math.ceil(CERTAINTY * variance / ((1 - RESOLVED**2) * limit**2))
        return value.item(), error, round_up(needed, WIDTH)

    def _basis(self, sample: Forms, needed: int, *, is_forced: bool) -> BlockVector | None:
        """Compute an orthonormal basis of the space where f(A) is far from its mean, by a polynomial.

        None where it saves no products: without the eigenvalues where ``|f - centre|`` is largest, the
        variance falls as the sum of squares. None, too, if f is not smooth, or not finite in a gap.
        """
        columns, centre = min(BASIS, self._n // 4), sample.centre
        spreads = np.abs(sample.f - centre) ** 2
        order = np.argsort(-spreads, kind="stable")
        weights = sample.weights[order] * self._n / sample.squares.sum()  # eigenvalues per node
        shares = weights * spreads[order]
        left = shares[np.cumsum(weights) > columns].sum() / max(shares.sum(), 1e-300)
        needed = min(max(needed, WIDTH), self._n)
        is_less = WIDTH + 2 * columns + max(WIDTH, left * needed) < GAIN * needed
        if not (columns and (is_forced or is_less)):
            return None
        low, high = sample.theta.min(), sample.theta.max()
        series = interpolation(lambda x: np.abs(self._f(x) - centre), low, high, ROUGH, 4 * self._steps)
        sums = Sums(self._op, SpectralBounds(low, high, False, "a sample").widened(1e-3))
        found = sums.of(lambda bounds: series, random_signs(self._op, columns, self._rng))
        if found is None:
            return None
        block: BlockVector = found[0][0]
        self._products += sums.columns
        kept = block.n_cols - int(np.sum(to_host(orthogonalize(block).lost)))
        return block[:, :kept].copy() if kept else None

    def _sampled(self, count: int, Q: BlockVector | None = None) -> Forms:
        """Sample the forms of a number of random vectors, in the complement of Q."""
        self._drawn += count
        widths = [min(WIDTH, count - begin) for begin in range(0, count, WIDTH)]
        blocks = (random_signs(self._op, width, self._rng) for width in widths)
        return Forms.joined([self._forms(project_out(Q, project_out(Q, block))) for block in blocks])

    def _forms(self, X: BlockVector, *, are_all: bool = False) -> Forms:
        """Compute x^H f(A) x for the columns of a block, which is overwritten: samples, or all of a sum."""
        squares = to_host(X.norms()).astype(np.float64) ** 2
        count, run = 1 if are_all else len(squares), recurrences(self._op, X)
        while True:
            run.extend(self._steps)
            rows, doubt = list[Any](), 0.0
            for T, square in zip(run.projected(), squares, strict=True):
                theta, S = sl.eigh_tridiagonal(*T)
                f, weights = self._f(theta), square * S[0] ** 2
                if are_all or not rows:  # random vectors are alike
                    # Where A maps a space into itself, fewer steps are exact.
                    is_whole = len(theta) < run.steps
                    doubt = 0.0 if is_whole else self._missed(theta, T, S @ (f * S[0]))
                rows.append(([weights @ f], [square * doubt], [square], theta, weights, f))
            found = Forms.joined(rows)
            limit = self._limit(found.values.sum() / count)
            if self._given is not None:
                limit = max(limit, float(np.std(found.values)) / math.sqrt(len(squares)))
            is_last = self._steps == MOST_STEPS
            is_resolved = found.doubts.sum() / count <= RESOLVED * limit
            steps = min(2 * self._steps, MOST_STEPS)
            sample_s = steps * (PASSES * recurrence_s(self._op, X.n_cols) + TRIDIAGONAL_S * X.n_cols * steps)
            is_slower = self._may_be_dense and (is_last or sample_s > dense_s("cpu", self._n))
            if is_resolved or is_last or is_slower:
                self._products += run.steps * X.n_cols
                if is_slower and not is_resolved:
                    raise DenseIsFasterError
                return found
            self._steps = steps

    def _missed(self, theta: Any, T: Any, c: Any) -> float:
        """Bound what one eigenvalue that is not seen adds to a quadrature, also beyond the last nodes."""
        if not len(self._x) or theta[0] < self._x[-1] or theta[-1] > self._x[0]:
            low, high = 2 * theta[[0, -1]] - theta[[1, -2]]
            # A function of positive numbers may have no others.
            low = max(low, theta[0] / 10) if theta[0] > 0 else low
            high = min(high, theta[-1] / 10) if theta[-1] < 0 else high
            self._x = points(low, high)
            self._values = self._f(self._x, is_strict=False)
        return missed(self._values, self._x, T, c, 1)


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
    given = operands(A, shape=shape, dtype=dtype, device=device, like=like, comm=comm).hermitian()
    op, factor, entries, n = given.operator, given.factor, given.entries, given.operator.shape[0]
    sampler = Sampler(op, checked(_positive_log, factor=factor), tol, atol, vectors, rng)
    why, products = None, 0
    if method == "auto" and vectors is None:
        why = _reason(op, entries)
    elif method == "factors":
        why = "factors were asked for"
        if op.layout is not None or not (is_explicit(entries) or fits_dense(op)):
            raise OptionError(
                "method: 'factors' needs an explicit matrix in one process; give one, or use 'quadrature'."
            )
    if why is None or n == 0:
        return LogDeterminant(**vars(sampler.estimate("auto")))
    if not is_explicit(entries):
        entries, products = to_host(dense_matrix(op, empty_block(op))), n
    factors = Factorization(on_host(entries))
    factors.refactorize(0.0)
    sign, value = cast(tuple[float, float], factors.log_determinant())
    if not sign:
        return LogDeterminant(value, 0.0, products, 0, "factors", why, 0.0)
    error = float(np.finfo(op.dtype).eps) * (n + 1 / factors.nearest)
    sign, value = sign * float(np.sign(factor)) ** n, value + n * math.log(abs(factor))
    return LogDeterminant(value, error, products, 0, "factors", why, sign)


def _reason(op: Operator, entries: Any) -> str | None:
    """Return the reason to factorise A; None if an estimate takes less time, or A cannot be factorised."""
    n = op.shape[0]
    if not is_explicit(entries):
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
