"""Sums of Chebyshev polynomials of a Hermitian operator, times a block.

A real operator on complex columns is applied to twice as many real ones, their real and imaginary parts;
real and imaginary coefficients then have sums of their own. The series of exp(-i t H) has real coefficients
of even degrees and imaginary ones of odd degrees: each step adds to one of both.

Bounds that are estimates may be too narrow. Components outside of them grow, while all others stay below the
norm of the block. Norms are compared after groups of steps; where they have grown, the sum begins again with
wider bounds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from blockvec import BlockVector, Operator, Recorder

from ..arguments import blas_threads
from ..blocks import ColumnBlock, in_precision, to_host
from ..iterations.chebyshev import CALLS_BEFORE_RECORDING, recorder_for
from ..sizes import SHORT_ROWS
from .bounds import EVERYWHERE, SpectralBounds
from .coefficients import Series
from .recurrence import Recurrence, add_multiple

GROUP = 32  # steps between two looks at the norms: outside by the half width, components grow 1e18 times
GROWTH = 1.5  # ratio of norms from which a component is outside of the bounds; others have at most 1
MOST_COLUMNS = 4  # of a block on the host up to which products by columns take less time
MOST_GROUPS = 64  # groups of steps whose calls are counted; those that are repeated keep their launches


class Polynomials:
    """Evaluate sums of polynomials of one operator, with blocks that are used again.

    Parameters
    ----------
    operator : Operator
        Hermitian.
    bounds : SpectralBounds
        Of its spectrum; replaced by wider ones where they do not hold.
    domain : (float, float)
        Numbers that these stay between.

    Attributes
    ----------
    steps, columns : int
        Products and columns of products so far, those of unsuccessful attempts included.
    """

    def __init__(
        self, operator: Operator, bounds: SpectralBounds, domain: tuple[float, float] = EVERYWHERE
    ) -> None:
        self.operator, self.bounds, self._domain = operator, bounds, domain
        self.steps = self.columns = 0
        self._prepared: Any = None  # the type and the bounds that all below is for
        self._doubled: Any = None
        self._blocks: list[Any] = []
        self._recorder: Recorder | None = None
        self._calls: dict[Any, int] = {}  # counts by a group's first step and coefficients
        self._recorded: dict[Any, Callable[[], object]] = {}

    def sums(
        self, series_of: Callable[[SpectralBounds], Sequence[Series] | None], X: BlockVector
    ) -> tuple[list[BlockVector], Sequence[Series]] | None:
        """Compute sum_k c_k T_k X for every series on the bounds that hold; return new blocks and the series.

        `series_of` maps bounds to the series on them; or to None, which is then returned.
        """
        for bounds in self.bounds.widening("A", self._domain):
            self.bounds = bounds
            if (series := series_of(bounds)) is None:
                return None
            if (found := self._attempt(series, X)) is not None:
                return found, series
        return None  # not reached: `widening` ends with an error

    def described(self, degree: int, error: float) -> dict[str, Any]:
        """Describe sums of polynomials up to a degree."""
        plan = f"Chebyshev polynomials of degree {degree} at most, of a Hermitian matrix of "
        plan += f"{self.operator.dtype.name}, on {self.bounds!r}"
        info = described("chebyshev", degree, self.steps, self.columns, error, plan)
        return info | {"bounds": self.bounds}

    def _attempt(self, series: Sequence[Series], X: BlockVector) -> list[BlockVector] | None:
        """Compute the sums; return None if norms grow."""
        length = max(len(one.coefficients) for one in series)
        splits = self.operator.dtype.kind == "f"  # into sums of real and imaginary coefficients
        parts: list[tuple[int, complex, list[complex]]] = []
        for k, one in enumerate(series):
            c = np.pad(one.coefficients, (0, length - len(one.coefficients)))
            of_k = ((1, c.real), (1j, c.imag)) if splits else ((1, c),)
            parts += [(k, factor, row.tolist()) for factor, row in of_k if factor == 1 or row.any()]
        Y, out, *totals = self._prepare(as_real(X) if splits else X, len(parts))
        for total, (_, _, row) in zip(totals, parts, strict=True):
            total[:, :] = 0
            add_multiple(total, row[0], Y)
        steps, limits = Recurrence(self._doubled, Y, out), GROWTH * to_host(X.norms())
        for begin in range(1, length, GROUP):
            rows = [row[begin : begin + GROUP] for _, _, row in parts]
            with np.errstate(all="ignore"), blas_threads(self.operator):
                self._group(steps, rows, totals)
                # Norms of each column's parts.
                grown = to_host(steps.current.norms()).reshape(len(limits), -1)
            self.steps += len(rows[0])
            self.columns += len(rows[0]) * Y.n_cols
            if not (np.linalg.norm(grown, axis=1) <= limits).all():
                return None
        dtype = np.result_type(X.dtype, self.operator.dtype)
        kinds = [np.result_type(dtype, *[np.complex64] * np.iscomplexobj(one.coefficients)) for one in series]
        results = [X.like(dtype=kind) for kind in kinds]
        for (k, factor, _), total in zip(parts, totals, strict=True):
            results[k].axpby(factor, as_block(total, results[k]), int(factor != 1))
        return results

    def _prepare(self, x: BlockVector, count: int) -> list[Any]:
        """Return two blocks for the recurrence from x, and one for each sum; short ones by columns."""
        dtype = np.result_type(self.operator.dtype, x.dtype)
        key = dtype, x.n_cols, self.bounds
        if key != self._prepared:
            half_width = self.bounds.half_width or max(map(abs, self.bounds)) or 1.0
            self._doubled = self.operator.affine(2 / half_width, self.bounds.centre)
            self._prepared, self._blocks, self._calls, self._recorded = key, [], {}, {}
        while len(self._blocks) < 2 + count:
            self._blocks.append(by_columns(self.operator, x).like(dtype=dtype))
        self._blocks[0][:, :] = x
        return self._blocks[: 2 + count]

    def _group(self, steps: Recurrence, rows: list[list[complex]], totals: list[Any]) -> None:
        """Take a group of steps; on a GPU their launches are recorded where they are repeated."""
        if steps.current.device == "cpu":
            steps.add(rows, totals)
            return
        key, count = (steps.taken, *map(tuple, rows)), len(rows[0])
        if len(self._calls) > MOST_GROUPS:
            self._calls, self._recorded = {}, {}
        self._calls[key] = calls = self._calls.get(key, 0) + 1
        if calls > CALLS_BEFORE_RECORDING and self._recorder is None:
            self._recorder = recorder_for(cast(Any, self.operator), cast(Any, steps.current))
        if calls <= CALLS_BEFORE_RECORDING or self._recorder is None:
            steps.add(rows, totals)
            return
        with self._recorder:
            if key not in self._recorded:
                first = copy.copy(steps)
                self._recorded[key] = self._recorder.record(lambda: copy.copy(first).add(rows, totals))
            self._recorded[key]()
        steps.skip(count)


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
