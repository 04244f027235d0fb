"""Chebyshev filters: the damped interval, the degree, and the polynomial of an operator.

On [centre - half_width, centre + half_width] the polynomial T_d((A - centre)/half_width) is bounded by 1; at
a relative distance x > 1 from the centre it is cosh(d arccosh(x)). Its recurrence is in
`solvers.functions.recurrence`. A higher degree costs applications of A and saves orthogonalisations. While
the growth of the wanted values is small, the gain of a cycle grows with the square of the degree, so that a
higher degree is always worthwhile.

A filter may have the matrix in single precision within a solve in double precision. An application of a
filter is one or two hundred products of the matrix with a block, which take the time that memory needs for
their operands: in single precision about half. Everything else stays in double precision, so that a basis is
orthonormal, and values and residuals are those of A. docs/theory/lanczos.md derives what the rounding errors
of such a filter do to a Krylov decomposition, and how they are removed at the end.

Around a number tau, (A - tau I)^2 maps eigenvalues to the lower end of a spectrum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from blockvec import BlockVector, Recorder
from blockvec.system.frozen import frozen

from ..blocks import Block, ColumnBlock, LinearMap, Operator, RealArray, in_precision, project_out
from ..costs import SINGLE
from ..functions.recurrence import Recurrence
from ..problem import Which
from ..runtime.processes import everywhere
from ..small_matrices import UNIT as DOUBLE

LEAST_DEGREE = 4  # for widely spread wanted values only lower degrees are possible; A itself is as fast then
# Amplification of the first wanted value: more costs orthogonality without a gain.
MAX_GROWTH = 1 / math.sqrt(DOUBLE)
# Logarithm of the growth of the last wanted value below which the gain grows with the square of the degree.
LEAST_GROWTH, STIFFEST = 2.0, 256
MARGIN = 0.01  # share of the interval's length added at its far end
THINNEST = 1e-3  # minimum half-width of the interval, in units of ||A||


class Filter(NamedTuple):
    """A Chebyshev polynomial in terms of the ranking key, which is large for wanted values."""

    low: float  # lower end of the damped interval; the edge is the upper one
    edge: float
    degree: int  # even
    which: Which

    def scaled(self, factor: float) -> Filter:
        """Return the same polynomial for a positive multiple of the operator."""
        return self._replace(low=factor * self.low, edge=factor * self.edge)

    @property
    def half_width(self) -> float:
        """Half of the interval's length."""
        return (self.edge - self.low) / 2

    def value(self, amplified: Any) -> Any:
        """Return ranking keys from values of T_degree; the edge for values within [-1, 1]."""
        x = np.cosh(np.arccosh(np.maximum(amplified, 1.0)) / self.degree)
        return self.edge + (x - 1) * self.half_width

    def estimates(self, amplified: RealArray, residuals: RealArray, norm: float) -> RealArray:
        """Predict residuals of A, of a norm, from those of T_degree at its values.

        A residual r at the value phi is an error of r/phi in the vector, and of up to 2 r/phi ||A|| in the
        residual of A. In practice half of that is still an upper bound.
        """
        return norm * residuals / np.maximum(amplified, 1.0)

    def growth(self, value: float) -> float:
        """Return the logarithm of the amplification at a ranking key; 0 inside the interval."""
        return self.degree * math.acosh(max(1.0, 1 + (value - self.edge) / self.half_width))

    def separating_degree(self, last: float) -> float:
        """Return the degree from which its gain grows no more than in proportion, for the last wanted key."""
        return LEAST_GROWTH * self.degree / self.growth(last)


def design_filter(
    values: tuple[float, float, float, float],
    which: Which,
    norm: float,
    degree: int,
    spread: float,
    least: int = LEAST_DEGREE,
) -> Filter | None:
    """Choose the damped interval and the degree; return None if a filter gains nothing.

    `values` are the ranking keys of the first and the last wanted value, of the edge, and of the far end. The
    preferred degree is raised if the filter would amplify the last wanted value too little, and lowered if it
    would amplify the first one by more than `spread` relative to the last. Below `least` a filter gains
    nothing.

    Examples
    --------
    >>> design_filter((0.0, -0.1, -0.5, -10.0), "SA", 10.0, 6, 100.0).degree
    6
    """
    first, last, edge, far = values
    low = far - MARGIN * (edge - far)
    half_width = max((edge - low) / 2, THINNEST * norm)
    if which == "LM":
        half_width = edge = max(edge, THINNEST * norm)
    if not first >= last > edge:
        return None
    rates = [math.acosh(1 + (value - edge) / half_width) for value in (first, last)]
    if not rates[1]:
        return None
    least = min(degree // 2 * 2, least)
    degree = max(degree, int(min(LEAST_GROWTH / rates[1], STIFFEST)))
    degree = min(degree, int(math.log(MAX_GROWTH) / rates[0]))
    if rates[0] > rates[1]:
        degree = min(degree, int(math.log(spread) / (rates[0] - rates[1])))
    degree -= degree % 2
    return None if degree < least else Filter(edge - 2 * half_width, edge, degree, which)


UNIT = float(np.finfo(np.float32).eps) / 2
# Residuals of the decomposition, without the errors of its products, down to which it is continued, and from
# which limit "auto" mixes; in units of ||A||, in which those errors are 3e-8 to 1e-7.
REACH = 3e-9
MOST_DAMPING = 1e3  # of these errors by the last filter, in double precision: others are no smaller


def single_copy(operator: Operator, norm: float) -> tuple[Operator, float]:
    """Convert a matrix A to single precision, times a power of two that puts ||A||, `norm`, into its range.

    Returns the copy and that factor.
    """
    factor = math.ldexp(1.0, -math.frexp(norm)[1])
    copy = operator.converted(SINGLE[operator.dtype.char], factor)  # type: ignore[attr-defined]
    return cast(Operator, copy), factor


MOST_REPEATS = 8  # pairs of blocks that a filter is bound to: steps have two scratch blocks, as a rule
CALLS_BEFORE_RECORDING = 2  # of a filter, in which kernels are compiled and matrices are converted
MOST_RECORDED_BYTES = 1 << 27  # bytes of a block; the products of larger ones outlast their calls (one GPU)
SINGLE_COLUMNS = 64  # in single precision up to which blockvec has kernels


class ChebyshevOperator:
    """The Chebyshev polynomial T_d of an operator, positive and large at the wanted end.

    The operator is restricted to the complement of the locked columns. The recurrence runs on row-major
    blocks, whose products read the matrix once, in the precision of the operator. With a recorder, all of its
    steps are repeated by one call. `matrix` is the operator in the precision of the blocks that it is applied
    to; steps may be queued where products with noise do not fail, as those with a matrix.
    """

    def __init__(
        self,
        operator: Operator,
        filter: Filter,
        locked: Block | None,
        recorder: Recorder | None = None,
        matrix: Any = None,
    ) -> None:
        self._matrix, self._recorder = matrix, recorder
        self._repeats: dict[Any, Callable[[], object]] = {}  # by operands
        self._calls = 0
        self.degree, self._dtype = filter.degree, operator.dtype
        self.may_be_queued = getattr(matrix, "may_be_queued", getattr(matrix, "is_recordable", False))
        self.locked = None if locked is None else self._rows(locked)
        sign = -1 if filter.which == "SA" else 1
        self._doubled = operator.affine(2 * sign / filter.half_width, sign * (filter.low + filter.edge) / 2)

    def krylov_steps(self, V: Any, b: int) -> Any:
        """Prepare the orthogonalisation of blocks T_d X by one launch, as a matrix of a GPU does."""
        make = getattr(self._matrix, "krylov_steps", None)
        steps = None if make is None else make(V, b)
        return None if steps is None else steps.without_products()

    def apply(self, X: Block, out: Block | None = None) -> Block:
        """Return T_d X in one of the two blocks; both may be overwritten."""
        if out is None:  # a block that the next call does not have
            return self._apply(X, X.like())
        self._calls += 1
        if self._recorder is None or self._calls <= CALLS_BEFORE_RECORDING:
            return self._apply(X, out)
        x, y = (cast(BlockVector, block).memory for block in (X, out))
        key = x.address, x.kind, y.address, y.kind
        if not everywhere(getattr(X, "layout", None), key in self._repeats):  # addresses of processes differ
            if len(self._repeats) == MOST_REPEATS:  # each keeps two blocks
                self._repeats.clear()
            with self._recorder:
                self._repeats[key] = self._recorder.record(lambda: self._apply(X, out))
        self._repeats[key]()
        return X if X.dtype == self._dtype and self.degree % 2 == 0 else out

    def _apply(self, X: Block, out: Block) -> Block:
        Y = self._rows(X)
        steps = Recurrence(self._doubled, Y, out if Y is X else Y.like())
        count = self.degree if self.locked is None else 1
        while steps.taken < self.degree:
            steps.take(count)
            project_out(self.locked, steps.current)
        if Y is X:
            return steps.current
        out[:, :] = steps.current
        return out

    def _rows(self, block: Block) -> Block:
        """Return a block as it is, or a row-major copy in the operator's precision."""
        if isinstance(block, ColumnBlock):
            rows: type[BlockVector] = getattr(block, "rows", BlockVector)  # in the same inner product
            return rows(block.array, copy=True, dtype=self._dtype, layout=block.layout)
        return block if block.dtype == self._dtype else in_precision(block, self._dtype)


def recorder_for(operator: LinearMap, buffer: Block) -> Recorder | None:
    """Make a recorder for products with blocks like a buffer; None if recording is impossible or no gain.

    Products of wide bases in single precision are calls of cuBLAS, which cannot be recorded.
    """
    n_bytes = buffer.shape[0] * buffer.shape[1] * buffer.dtype.itemsize
    is_own = buffer.dtype.char in "dD" or buffer.shape[1] <= SINGLE_COLUMNS
    is_recordable = getattr(operator, "is_recordable", False) and is_own
    layout = getattr(buffer, "layout", None)
    pays = layout is not None or n_bytes <= MOST_RECORDED_BYTES
    if buffer.device == "cpu" or not everywhere(layout, is_recordable and pays):
        return None
    return Recorder(buffer.device, None if layout is None else layout.comm)


# Share of the distance from a target, or of both squared: up to it residuals are those of separated vectors.
SEPARATED = 0.03


class FoldedOperator:
    """(A - tau I)^2: eigenvalues around a target become those at the lower end.

    With a shift s >= 0 it is (A - (tau - s^(1/2)) I) (A - (tau + s^(1/2)) I): two applications of A and no
    other pass. A is restricted to the complement of the `locked` columns.
    """

    def __init__(self, operator: Operator, tau: float, locked: Block | None = None) -> None:
        self.operator, self.tau, self.locked = operator, tau, locked
        self.shape, self.dtype, self.device = operator.shape, operator.dtype, operator.device
        self.layout = operator.layout
        self.nnz = getattr(operator, "nnz", None)  # None for the function of a user
        self.is_recordable = getattr(operator, "is_recordable", False)

    def apply(self, X: Block, out: Block | None = None, alpha: complex = 1, beta: complex = 0) -> Block:
        """Compute ``alpha (A - tau I)^2 X + beta out``."""
        inner = project_out(self.locked, self.operator.apply(X, shift=self.tau))
        return self.operator.apply(inner, out=out, alpha=alpha, beta=beta, shift=self.tau)

    def affine(self, alpha: float, shift: float) -> LinearMap:
        """Prepare ``alpha ((A - tau I)^2 - shift I)`` for repeated application, with a shift from 0 on."""
        root, affine = math.sqrt(shift), self.operator.affine
        return _Product(affine(alpha, self.tau + root), affine(1, self.tau - root), self.locked)


@frozen
class _Product:
    """The product of two operators, each restricted to the complement of the locked columns."""

    left: LinearMap
    right: LinearMap
    locked: Block | None

    def apply(self, X: Block, out: Block | None = None, alpha: complex = 1, beta: complex = 0) -> Block:
        inner = project_out(self.locked, self.right.apply(X))
        return self.left.apply(inner, out=out, alpha=alpha, beta=beta)
