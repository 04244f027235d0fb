"""Sums of Chebyshev polynomials of a Hermitian operator, times a block.

A real operator on complex columns is applied to twice as many real ones, their real and imaginary parts;
real and imaginary coefficients then have sums of their own. The series of exp(-i t H) has real coefficients
of even degrees and imaginary ones of odd degrees: each step adds to one of both.

Bounds that are estimates may be too narrow. Components outside of them grow, while all others stay below the
norm of the block. Norms are compared after groups of steps; where they have grown, the sum begins again with
wider bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from blockvec import BlockVector, Operator, Recorder

from ..arguments import blas_threads
from ..blocks import ColumnBlock, RealArray, in_precision, to_host
from ..iterations.chebyshev import CALLS_BEFORE_RECORDING, recorder_for
from ..sizes import SHORT_ROWS
from .bounds import SpectralBounds
from .coefficients import Series
from .recurrence import Recurrence, add_multiple

GROUP = 32  # steps between two looks at the norms: outside by the half width, components grow 1e18 times
GROWTH = 1.5  # ratio of norms from which a component is outside of the bounds; others have at most 1
MOST_COLUMNS = 4  # of a block on the host up to which products by columns take less time
MOST_RECORDED_SERIES = 4  # each keeps its launches


@dataclass
class _Calls:
    """The calls for the same series so far, and their recorded groups of steps by the first step."""

    series: Sequence[Series]  # whose identity is that of the coefficients in the recordings
    count: int = 0
    recorded: dict[int, Callable[[], object]] = field(default_factory=dict)


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
        self._calls: dict[Any, _Calls] = {}  # by series

    def sums(self, series_of: Callable[[SpectralBounds], Sequence[Series] | None], X: BlockVector) -> Any:
        """Compute sum_k c_k T_k X for every series, in a list of new blocks.

        `series_of` maps bounds to the series on them, the same objects for the same steps of evolutions; or
        to None, which is then returned.
        """
        norms = to_host(X.norms())
        for tried in self.bounds.widening("A"):
            if tried is not self.bounds:
                self.bounds, self._doubled, self._calls = tried, None, {}
            if (series := series_of(self.bounds)) is None:
                return None
            if (found := self._attempt(series, X, norms)) is not None:
                return found
        return None  # not reached: `widening` ends with an error

    def described(self, degree: int, error: float) -> dict[str, Any]:
        """Describe sums of polynomials up to a degree."""
        plan = f"Chebyshev polynomials of degree {degree} at most, of a Hermitian matrix of "
        plan += f"{self.operator.dtype.name}, on {self.bounds!r}"
        info = described("chebyshev", degree, self.steps, self.columns, error, plan)
        return info | {"bounds": self.bounds}

    def _attempt(
        self, series: Sequence[Series], X: BlockVector, norms: RealArray
    ) -> list[BlockVector] | None:
        """Compute the sums; return None if norms grow."""
        length = max(len(one.coefficients) for one in series)
        splits = self.operator.dtype.kind == "f"  # into sums of real and imaginary coefficients
        parts: list[tuple[int, complex, list[complex]]] = []
        for k, one in enumerate(series):
            c = np.pad(one.coefficients, (0, length - len(one.coefficients)))
            of_k = ((1, c.real), (1j, c.imag)) if splits else ((1, c),)
            parts += [(k, factor, row.tolist()) for factor, row in of_k if row.any()]
        x = as_real(X) if splits else X
        Y, out, *totals = self._blocks(x, len(parts))
        Y[:, :] = x
        for total, (_, _, row) in zip(totals, parts, strict=True):
            total[:, :] = 0
            add_multiple(total, row[0], Y)
        rows = [row[1:] for _, _, row in parts]
        if rows and length > 1 and not self._run(series, Y, out, totals, rows, norms):
            return None
        results = []
        for one in series:
            is_complex = X.dtype.kind == "c" or np.iscomplexobj(one.coefficients) or not splits
            results.append(X.like(dtype=np.result_type(X.dtype, np.complex64) if is_complex else X.dtype))
            if not one.coefficients.any():
                results[-1][:, :] = 0
        are_begun = [0] * len(series)
        for (k, factor, _), total in zip(parts, totals, strict=True):
            results[k].axpby(factor, as_block(total, results[k]), are_begun[k])
            are_begun[k] = 1
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
            self._doubled = self.operator.affine(2 / half_width, self.bounds.centre)
        steps, degree = Recurrence(self._doubled, Y, out), len(rows[0])
        calls = self._calls.setdefault(tuple(map(id, series)), _Calls(series))
        calls.count += 1
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

    def _group(self, steps: Recurrence, rows: list[list[complex]], totals: list[Any], calls: _Calls) -> None:
        """Take a group of steps; on a GPU their launches are recorded where they are repeated."""
        if calls.count > CALLS_BEFORE_RECORDING and self._recorder is None:
            self._recorder = recorder_for(cast(Any, self.operator), cast(Any, steps.current))
        if calls.count <= CALLS_BEFORE_RECORDING or self._recorder is None:
            steps.add(rows, totals)
            return
        recorded, begin = calls.recorded, steps.taken
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


def described(
    method: str, degree: int, products: int, columns: int, error: float | None, plan: str
) -> dict[str, Any]:
    """Describe how a function of a matrix times a block was computed."""
    info = {"method": method, "degree": degree, "products": products, "columns": columns}
    return info | {"error_bound": error, "plan": f"{plan}: {products} products"}


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
