"""Traces of functions of Hermitian matrices, by products with random vectors.

For a vector x of random signs, the mean of x^H f(A) x is the trace. Lanczos steps from x give a Gauss
quadrature of this number, and the spread over several vectors its standard error. Where few eigenvalues
dominate f(A), the trace within their space Q is computed exactly, and random vectors estimate the rest:

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
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.linalg as sl

from blockvec import BlockVector, Operator
from blockvec.errors import OptionError
from blockvec.system.frozen import frozen

from ..arguments import blas_threads, check_choice, ends_of, integer, real
from ..blocks import ceil_div, empty_block, project_out, to_host
from ..iterations.spectrum import started
from ..orthogonalization import orthogonalize
from ..result import ConvergenceWarning
from ..runtime.processes import together
from ..stages.dense import dense_matrix
from .bounds import SpectralBounds
from .coefficients import checked, hidden, interpolation
from .operands import generator_for, hermitian_matrix, random_signs
from .polynomial import Polynomials

METHODS = ("auto", "quadrature", "hutch++", "dense")
WIDTH = 16  # vectors of a block, and of the first sample
STEPS, MOST_STEPS = 24, 1536  # Lanczos steps of a first sample, and at most
DENSE_ROWS = 400  # rows up to which all eigenvalues take less time than a sample; host
MOST_VECTORS = 1024  # random vectors
MOST_DENSE_ROWS = 4096  # rows up to which all eigenvalues take less time than random vectors, one per row
MOST_BASIS = 512  # columns of Q
RESOLVED = 0.25  # part that a quadrature may have of the error that is reached or wanted
ROUGH = 1e-2  # tail of the polynomial that Q is from, relative to the largest magnitude of f
LOST = 3  # degrees of freedom: the sample variance of m numbers over m - 3 is that of Student's distribution
ROUNDING = 4.0  # units of eps of the trace of |f(A)|: errors of Lanczos were up to 6
GAIN = 0.7  # products with Q, at most, per product without
CERTAINTY = 1.3  # times the vectors that a first sample predicts, whose spread is uncertain


@frozen
class TraceEstimate:
    """A trace and its error: ``value, error = estimate``.

    Attributes
    ----------
    value : float or complex
    error : float
        Standard error, with that of quadratures; an estimate of rounding errors for method "dense".
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
    limit_of, count = goal(tol, atol, vectors)
    matrix = hermitian_matrix(A, shape=shape, dtype=dtype, device=device, like=like, comm=comm)
    values_of, random = checked(f, ends_of(domain), matrix.factor.real), generator_for(matrix.operator, rng)
    return estimated(matrix.operator, values_of, limit_of, count, method, random)


def goal(tol: Any, atol: Any, vectors: Any) -> tuple[Callable[[Any], float], int | None]:
    """Check errors and a number of vectors; return the largest error as a function of the value."""
    accepted = "a number of at least 0", lambda x: 0 <= x < math.inf
    tol, atol = real("tol", tol, *accepted), real("atol", atol, *accepted)
    count = None if vectors is None else integer("vectors", vectors, LOST + 1)
    return lambda value: float(max(tol * abs(value), atol)), count


class Forms(NamedTuple):
    """Numbers x^H f(A) x of some vectors, and the nodes and weights of their quadratures."""

    values: Any  # shape (b,)
    doubts: Any  # changes of the values by the last half of the steps
    squares: Any  # ||x||^2
    theta: Any  # shape (q,)
    weights: Any  # shape (q,)

    @classmethod
    def of(cls, parts: Any, f: Callable[[Any], Any], squares: Any) -> Forms:
        """Compute forms from the diagonals of projected matrices, and with half of the steps."""
        rows = []
        for (alpha, beta), square in zip(parts, squares, strict=True):
            found = []
            for length in ((len(alpha) + 1) // 2, len(alpha)):
                theta, S = sl.eigh_tridiagonal(alpha[:length], beta[: length - 1])
                weights = square * S[0] ** 2
                found.append(weights @ f(theta))
            rows.append(cls([found[1]], [found[1] - found[0]], [square], theta, weights))
        return cls.joined(rows)

    @classmethod
    def joined(cls, parts: Sequence[Forms]) -> Forms:
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


def estimated(
    op: Operator,
    f: Callable[[Any], Any],
    limit_of: Callable[[Any], float],
    vectors: int | None,
    method: str,
    rng: np.random.Generator,
) -> TraceEstimate:
    """Estimate a trace by a method; see `trace`."""
    n = op.shape[0]
    is_here = op.device == "cpu" and op.layout is None
    if n == 0:
        return TraceEstimate(0.0, 0.0, 0, 0, "dense", "there are no rows")
    if method == "dense" or (method == "auto" and vectors is None and is_here and n <= DENSE_ROWS):
        if op.layout is not None:
            raise OptionError("method: 'dense' needs the whole matrix in one process; leave out comm.")
        return from_eigenvalues(op, f)
    with blas_threads(op):
        estimate = Sampler(op, f, limit_of, rng).estimate(vectors, method)
    if vectors is None and estimate.error > (limit := limit_of(estimate.value)):
        warnings.warn(
            f"trace: the error is {estimate.error:.2g}, more than {limit:.2g}, {estimate.why}; give a larger "
            "tol, atol= for a value near zero, or method='dense'.",
            ConvergenceWarning,
            stacklevel=4,
        )
    return estimate


def from_eigenvalues(op: Operator, f: Callable[[Any], Any], products: int = 0) -> TraceEstimate:
    """Compute a trace from all eigenvalues, after a number of products."""
    n, theta = op.shape[0], np.linalg.eigvalsh(to_host(dense_matrix(op, empty_block(op))))
    values, unit = f(theta), float(np.finfo(op.dtype).eps)
    moved = theta + unit * np.abs(theta).max() * np.sign(theta.mean() - theta)  # by their errors, inwards
    error = unit * float(np.abs(values).sum()) + float(np.linalg.norm(f(moved) - values))
    return TraceEstimate(values.sum().item(), error, products + n, 0, "dense", f"from all {n} eigenvalues")


class Sampler:
    """Samples quadratic forms of f(A), by so many Lanczos steps as the wanted error needs."""

    def __init__(
        self,
        op: Operator,
        f: Callable[[Any], Any],
        limit_of: Callable[[Any], float],
        rng: np.random.Generator,
    ) -> None:
        self._op, self._f, self._limit_of, self._rng = op, f, limit_of, rng
        self._n, self._steps, self.products = op.shape[0], min(STEPS, op.shape[0]), 0
        self._is_fixed = False  # the number of vectors

    def estimate(self, vectors: int | None, method: str) -> TraceEstimate:
        """Estimate the trace with a number of vectors, or to the wanted error."""
        self._is_fixed = vectors is not None
        third = 0 if vectors is None or method != "hutch++" else max(vectors // 3, 1)
        size = WIDTH if vectors is None else max(vectors - 2 * third, 4)
        sample, inner, Q, used, columns = self._sampled(size, None), None, None, size, third
        if vectors is None and method != "quadrature":
            count = self._predicted(sample, self._limit_of(self._combined(sample, None)[0]))
            columns = self._columns(sample, min(count, self._n), forced=method == "hutch++")
        if columns and (Q := self._basis(columns, sample)) is not None:
            inner = self._forms(Q.copy(), are_all=True)
            sample, used = self._sampled(size, Q), used + size
        while True:
            value, error = self._combined(sample, inner)
            limit, taken = self._limit_of(value), len(sample.values)
            needed = 0 if vectors is not None else self._predicted(sample, limit)
            if method == "auto" and needed > self._n <= MOST_DENSE_ROWS and self._op.layout is None:
                return from_eigenvalues(self._op, self._f, self.products)
            more = min(needed, MOST_VECTORS) - taken
            # A first sample that seems to be enough may only have a small variance by chance.
            if more <= 0 or (taken > size and error <= limit):
                break
            sample, used = Forms.joined([sample, self._sampled(more, Q)]), used + more
        basis = "" if Q is None else f", beside {Q.n_cols} computed ones"
        why = f"by {used} random vectors{basis} and {self._steps} steps"
        name = "quadrature" if Q is None else "hutch++"
        return TraceEstimate(value, error, self.products, used, name, why)

    def _combined(self, sample: Forms, inner: Forms | None) -> tuple[Any, float]:
        """Compute the trace and its error from random vectors and the exact part."""
        centre, parts = sample.centre, sample.parts  # the trace of the centre is known
        value, doubt = self._n * centre + parts.mean(), sample.doubts.mean()
        if inner is not None:
            value, doubt = value + (inner.values - centre).sum(), doubt + inner.doubts.sum()
        spread = math.sqrt(np.var(parts, ddof=LOST).item() / len(parts))
        size = float(sample.weights @ np.abs(self._f(sample.theta))) / len(parts)
        rounding = ROUNDING * float(np.finfo(self._op.dtype).eps) * size
        return value.item(), math.hypot(spread, abs(doubt), rounding)

    def _predicted(self, sample: Forms, limit: float) -> int:
        """Predict the number of vectors for an error."""
        parts = sample.parts
        if limit <= 0:
            return MOST_VECTORS if np.var(parts) > 0 else len(parts)
        needed = CERTAINTY * np.var(parts, ddof=LOST).item() / ((1 - RESOLVED**2) * limit**2)
        return WIDTH * ceil_div(max(math.ceil(needed), len(parts)), WIDTH)

    def _columns(self, sample: Forms, count: int, *, forced: bool) -> int:
        """Choose the number of columns of Q by the predicted products; 0 for none.

        Without the eigenvalues where ``|f - centre|`` is largest, the variance falls as the sum of squares.
        """
        if count <= WIDTH and not forced:
            return 0
        spreads = np.abs(self._f(sample.theta) - sample.centre) ** 2
        order = np.argsort(-spreads, kind="stable")
        spreads = spreads[order]
        counts = sample.weights[order] * self._n / max(sample.squares.sum(), 1e-300)
        reached, rest = np.cumsum(counts), np.cumsum((spreads * counts)[::-1])[::-1]
        best, columns, most = (math.inf if forced else GAIN * count), 0, min(MOST_BASIS, self._n // 4)
        width = WIDTH
        while width <= most:
            left = rest[min(int(np.searchsorted(reached, width)), len(rest) - 1)] / max(rest[0], 1e-300)
            cost = WIDTH + 2 * width + max(WIDTH, count * left)
            if cost < best:
                best, columns = cost, width
            width *= 2
        return columns

    def _basis(self, columns: int, sample: Forms) -> BlockVector | None:
        """Compute an orthonormal basis of the space where f(A) is far from its mean."""
        low, high, centre = sample.theta.min(), sample.theta.max(), sample.centre
        series = interpolation(lambda x: np.abs(self._f(x) - centre), low, high, ROUGH, 4 * self._steps)
        polynomials = Polynomials(self._op, SpectralBounds(low, high, False, "a sample").widened(1e-3))
        found = polynomials.sums(lambda bounds: series, random_signs(self._op, columns, self._rng))
        if found is None:  # f is not smooth, or not finite in a gap of the spectrum
            return None
        ((block,), _) = found
        self.products += polynomials.columns
        result = orthogonalize(block)
        basis: BlockVector = block[:, : block.n_cols - int(np.sum(to_host(result.lost)))].copy()
        return basis

    def _sampled(self, count: int, Q: BlockVector | None) -> Forms:
        """Sample the forms of a number of random vectors, in the complement of Q."""
        parts = []
        for begin in range(0, count, WIDTH):
            block = random_signs(self._op, min(WIDTH, count - begin), self._rng)
            parts.append(self._forms(project_out(Q, project_out(Q, block))))
        return Forms.joined(parts)

    def _forms(self, X: BlockVector, *, are_all: bool = False) -> Forms:
        """Compute x^H f(A) x for the columns of a block, which is overwritten: samples, or all of a sum."""
        squares = to_host(X.norms()).astype(np.float64) ** 2
        run = started(self._op, X)
        while True:
            run.extend(self._steps)
            found = Forms.of(run.projected(), self._f, squares)
            if self._steps < self._n and (unseen := hidden(self._f, found.theta)):
                found = found._replace(doubts=squares * unseen / self._steps)  # a node has about this weight
            count = 1 if are_all else len(squares)
            limit = self._limit_of(found.values.sum() / count)
            if self._is_fixed:
                limit = max(limit, float(np.std(found.values)) / math.sqrt(len(squares)))
            is_resolved = abs(found.doubts.sum() / count) <= RESOLVED * limit
            if is_resolved or 2 * self._steps > min(MOST_STEPS, self._n):
                break
            self._steps *= 2
        self.products += run.steps * X.n_cols
        return found
