"""Sums of Chebyshev polynomials of a Hermitian operator, times a block.

A real operator on complex columns is applied to twice as many real ones, their real and imaginary parts;
real and imaginary coefficients then have sums of their own. The series of exp(-i t H) has real coefficients
of even degrees and imaginary ones of odd degrees: each step adds to one of both.

Bounds that are estimates may be too narrow. A component outside of them grows like cosh(d arccosh(x)), while
all others stay below the norm of the block. Norms are compared after groups of steps; where they have grown,
the sum begins again with wider bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from blockvec import BlockVector, Operator, Recorder
from blockvec.errors import BreakdownError

from ..arguments import blas_threads
from ..blocks import ColumnBlock, RealArray, in_precision, to_host
from ..iterations.chebyshev import CALLS_BEFORE_RECORDING, recorder_for
from ..sizes import SHORT_ROWS
from .bounds import SpectralBounds
from .coefficients import Series
from .operands import fixed
from .recurrence import Recurrence, add_multiple

GROUP = 32  # steps between two looks at the norms: outside by the half width, components grow 1e18 times
GROWTH = 1.5  # ratio of norms from which a component is outside of the bounds; others have at most 1
WIDER = (0.02, 0.1, 0.5, 2.0, 10.0)  # shares of the half width by which bounds move outwards, one by one
MOST_COLUMNS = 4  # of a block on the host up to which products by columns take less time
MOST_RECORDED_SERIES = 4  # each keeps its launches


class Polynomials:
    """Evaluate sums of polynomials of one operator, with blocks that are used again.

    Parameters
    ----------
    operator : Operator
        Hermitian.
    bounds : SpectralBounds
        Of its spectrum; replaced by wider ones where they do not hold.

    Attributes
    ----------
    steps, columns : int
        Products and columns of products so far, those of unsuccessful attempts included.
    """

    def __init__(self, operator: Operator, bounds: SpectralBounds) -> None:
        self.operator, self.bounds = operator, bounds
        self.steps = self.columns = 0
        self._doubled: Any = None
        self._work: tuple[Any, list[Any]] | None = None
        self._recorder: Recorder | None = None
        self._calls: dict[Any, list[Any]] = {}  # by coefficients: their number, or recorded groups of steps

    def sums(
        self, series_of: Callable[[SpectralBounds], Sequence[Series]], X: BlockVector
    ) -> list[BlockVector]:
        """Compute sum_k c_k T_k X for every series, in new blocks; X is not changed.

        Parameters
        ----------
        series_of : callable
            Maps bounds to the series on them. The same object is returned for the same steps of evolutions.
        X : BlockVector, shape (n, b)

        Raises
        ------
        BreakdownError
            If components grow for all bounds, as those of an operator that is not Hermitian.
        """
        norms = to_host(X.norms())
        for share in (*WIDER, None):
            series = series_of(self.bounds)
            found = self._attempt(series, X, norms)
            if found is not None:
                return found
            if share is not None:
                self.bounds, self._doubled, self._calls = self.bounds.widened(share), None, {}
        raise BreakdownError(
            f"A: T_n(A) x grows for all bounds up to {self.bounds!r}, or is NaN; check that A is Hermitian, "
            "and that its products are accurate and finite."
        )

    def _attempt(
        self, series: Sequence[Series], X: BlockVector, norms: RealArray
    ) -> list[BlockVector] | None:
        """Compute the sums; return None if norms grow."""
        degree = max(len(one.coefficients) for one in series) - 1
        splits = self.operator.dtype.kind == "f"  # into sums of real and imaginary coefficients
        rows = []
        for one in series:
            parts = [one.coefficients.real, one.coefficients.imag] if splits else [one.coefficients]
            rows += [np.pad(part, (0, degree + 1 - len(part))) for part in parts]
        are_used = [bool(row.any()) for row in rows]
        used = [row for row, is_used in zip(rows, are_used, strict=True) if is_used]
        x = as_real(X) if splits else X
        Y, out, *totals = self._blocks(x, len(used))
        Y[:, :] = x
        for total, row in zip(totals, used, strict=True):
            total[:, :] = 0
            add_multiple(total, row[0].item(), Y)
        if degree and not self._run(series, Y, out, totals, [row[1:].tolist() for row in used], norms):
            return None
        sums, results = iter(totals), []
        blocks = [next(sums) if is_used else None for is_used in are_used]
        size = len(rows) // len(series)
        for k, one in enumerate(series):
            is_complex = X.dtype.kind == "c" or np.iscomplexobj(one.coefficients) or not splits
            result = X.like(dtype=np.result_type(X.dtype, np.complex64) if is_complex else X.dtype)
            pairs = zip((1, 1j), blocks[size * k : size * (k + 1)], strict=False)
            terms = [(factor, part) for factor, part in pairs if part is not None]
            for term, (factor, part) in enumerate(terms):
                result.axpby(factor, as_block(part, result), min(term, 1))
            if not terms:
                result[:, :] = 0
            results.append(result)
        return results

    def _run(
        self,
        series: Sequence[Series],
        Y: Any,
        out: Any,
        totals: list[Any],
        rows: list[list[complex]],
        norms: RealArray,
    ) -> bool:
        """Take all steps by groups; return False if norms grow."""
        if self._doubled is None:
            half_width = self.bounds.half_width or max(map(abs, self.bounds)) or 1.0
            self._doubled = fixed(self.operator, 2 / half_width, self.bounds.centre)
        steps, degree = Recurrence(self._doubled, Y, out), len(rows[0])
        calls = self._calls.setdefault(tuple(map(id, series)), [0, series, {}])
        calls[0] += 1
        if len(self._calls) > MOST_RECORDED_SERIES:
            self._calls.pop(next(iter(self._calls)))
        limits = GROWTH * norms
        for begin in range(0, degree, GROUP):
            part = [row[begin : begin + GROUP] for row in rows]
            with np.errstate(all="ignore"), blas_threads(self.operator):
                self._group(steps, part, totals, calls)
                self.steps += len(part[0])
                self.columns += len(part[0]) * Y.n_cols
                grown = to_host(steps.current.norms()).reshape(len(norms), -1)  # of the parts of a column
            if not (np.linalg.norm(grown, axis=1) <= limits).all():
                return False
        return True

    def _group(
        self, steps: Recurrence, rows: list[list[complex]], totals: list[Any], calls: list[Any]
    ) -> None:
        """Take a group of steps; on a GPU their launches are recorded where they are repeated."""
        if calls[0] > CALLS_BEFORE_RECORDING and self._recorder is None:
            self._recorder = recorder_for(cast(Any, self.operator), cast(Any, steps.current))
        if calls[0] <= CALLS_BEFORE_RECORDING or self._recorder is None:
            steps.add(rows, totals)
            return
        recorded, begin = calls[2], steps.taken
        with self._recorder:
            if begin not in recorded:
                recorded[begin] = self._recorder.record(steps.again(rows, totals))
            recorded[begin]()
        steps.skip(len(rows[0]))

    def _blocks(self, x: BlockVector, count: int) -> list[Any]:
        """Return two blocks for the recurrence, and one for each sum; short ones of the host by columns."""
        dtype = np.result_type(self.operator.dtype, x.dtype)
        key = dtype, x.n_cols, x.layout
        if self._work is None or self._work[0] != key:
            self._work, self._calls = (key, []), {}
        blocks = self._work[1]
        while len(blocks) < 2 + count:
            blocks.append(by_columns(self.operator, x).like(dtype=dtype))
        return blocks[: 2 + count]


def by_columns(A: Operator, x: BlockVector) -> Any:
    """Copy a block to column-major order if products with a sparse matrix then take less time."""
    is_short = x.n_cols <= MOST_COLUMNS and x.n_rows * x.n_cols <= SHORT_ROWS and x.layout is None
    return ColumnBlock.of(x) if is_short and hasattr(A, "nnz") and A.device == "cpu" else x


def as_real(X: BlockVector) -> BlockVector:
    """View complex columns as pairs of real ones, their real and imaginary parts."""
    if X.dtype.kind != "c":
        return X
    return BlockVector(X.array.view(X.dtype.type(0).real.dtype), layout=X.layout)


def as_block(part: Any, like: BlockVector) -> Any:
    """View pairs of real columns as complex ones, or convert columns, as those of another block."""
    if isinstance(part, ColumnBlock):
        part = BlockVector(part.array, copy=True)
    if part.n_cols != like.n_cols:
        return BlockVector(part.array.view(like.dtype), layout=part.layout)
    return part if part.dtype == like.dtype else in_precision(part, like.dtype)
