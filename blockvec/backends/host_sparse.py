"""Row-major SpMMV on the host: SciPy's compiled CSR kernel over row blocks, on all cores.

SciPy's own product is single-threaded, returns a fresh array, and knows neither shift nor update. Its kernel,
though, adds A X to memory it is given and works without the interpreter. Here it runs on row blocks, several
at a time, straight into Y where Y is contiguous; what else is asked for is made of a block while the block is
in cache. Row blocks depend on matrix and width alone, so results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import _sparsetools  # stable since 2008; csr_array @ array goes through it too

from ..kernels.problem import Pattern, SpmmvProblem, is_complex
from . import streams
from .base import Array, Fused
from .panels import quiet_arithmetic, real_view
from .threads import map_items

__all__ = ["RowBlocks", "spmmv"]

# Rows plus entries of a row block, times columns (of real numbers): at most about 0.3 ms of work, so that its
# result stays in a second-level cache, and no less than what is long against waking a thread.
MOST_WORK, LEAST_WORK = 1 << 19, 1 << 17
MIN_ROWS = 1 << 12  # rows plus entries, however wide the block
SHARES = 8  # blocks come in multiples of it, which few threads share evenly


class RowBlocks:
    """A CSR matrix and where to cut it into row blocks; its arrays are shared, not copied.

    Attributes
    ----------
    shape : tuple of int
        Rows and columns.
    longest : int
        Entries of the longest row.
    """

    pattern: Pattern = "scattered"  # of no consequence here

    def __init__(self, matrix: Any) -> None:
        self.shape = matrix.shape
        self._indptr, self._indices, self._data = matrix.indptr, matrix.indices, matrix.data
        self.longest = int(np.diff(self._indptr).max(initial=0))
        self._cuts: dict[int, Array] = {}

    def cuts(self, width: int) -> Array:
        """Return the row where each block begins, and the number of rows at the end, for so many columns."""
        count = _block_count(self.shape[0] + int(self._indptr[-1]), width)
        if count not in self._cuts:
            work = self._indptr + np.arange(len(self._indptr), dtype=np.int64)
            targets = np.linspace(0, work[-1], count + 1)
            self._cuts[count] = np.unique(np.searchsorted(work, targets))
        return self._cuts[count]

    def entries(self, begin: int, end: int) -> int:
        """Return the number of entries of rows [begin, end)."""
        return int(self._indptr[end] - self._indptr[begin])

    def add_product(self, begin: int, end: int, X: Array, Y: Array, alpha: complex = 1) -> None:
        """Add alpha times rows [begin, end) of the matrix times X to Y; both contiguous and of one type."""
        pointers, indices, data = self._indptr[begin : end + 1], self._indices, self._data
        if alpha != 1 or data.dtype != X.dtype:
            first, last = pointers[0], pointers[-1]
            pointers, indices = pointers - first, indices[first:last]
            data = np.multiply(data[first:last], alpha, dtype=X.dtype)
        matrix = pointers, indices, data
        extents, width = (end - begin, self.shape[1]), X.shape[1]
        if width == 1:
            _sparsetools.csr_matvec(*extents, *matrix, X.reshape(-1), Y.reshape(-1))
        else:
            _sparsetools.csr_matvecs(*extents, width, *matrix, X.reshape(-1), Y.reshape(-1))


def _block_count(work: int, width: int) -> int:
    """Return the number of row blocks for so many rows plus entries and columns of real numbers."""
    many = SHARES * -(-work // (SHARES * max(MOST_WORK // width, MIN_ROWS)))
    few = max(1, work // max(LEAST_WORK // width, MIN_ROWS))
    return many if few >= many else 1 << few.bit_length() - 1


def spmmv(
    problem: SpmmvProblem,
    S: RowBlocks,
    X: Array,
    Y: Array,
    alpha: complex,
    beta: complex,
    shift: Any,
    fused: Fused | None = None,
) -> None:
    """Y = alpha (S - shift I) X + beta Y; `shift` is a scalar or one value a column. Y must not overlap X.

    SciPy's kernel wants contiguous operands of one type: other X are copied once, and products go through
    scratch memory of a row block where the rows of Y are apart.
    """
    if Y.size == 0:
        cuts = np.array([0, len(Y)])
    else:
        cuts = S.cuts(problem.width * (2 if is_complex(problem.dtype) else 1))
    start = _start(problem, X, Y, alpha, beta, shift)
    add = _adder(problem, S, X, Y, alpha)
    rest = _Rest(problem, X, Y, fused, len(cuts) - 1)

    def work(block: int) -> None:
        begin, end = int(cuts[block]), int(cuts[block + 1])
        start(begin, end)
        add(begin, end)
        rest.take(block, begin, end)

    with quiet_arithmetic():
        if len(cuts) == 2:
            work(0)
        else:
            map_items(work, len(cuts) - 1)
        rest.finish()


def _start(
    problem: SpmmvProblem, X: Array, Y: Array, alpha: complex, beta: complex, shift: Any
) -> Callable[[int, int], None]:
    """Return what sets a range of rows to beta Y - alpha shift X."""
    if problem.shift != "none":
        return streams.axpby_rows(X, None if problem.beta == "zero" else Y, Y, -alpha * shift, beta)

    def work(begin: int, end: int) -> None:
        if problem.beta == "zero":
            Y[begin:end] = 0
        elif problem.beta == "general":
            np.multiply(Y[begin:end], beta, out=Y[begin:end])

    return work


def _adder(
    problem: SpmmvProblem, S: RowBlocks, X: Array, Y: Array, alpha: complex
) -> Callable[[int, int], None]:
    """Return what adds alpha S X to a range of rows."""
    # A real matrix treats real and imaginary parts alike: complex columns are pairs of real ones.
    by_parts = is_complex(problem.dtype_x) and not is_complex(problem.dtype_matrix)
    operand = np.ascontiguousarray(X, problem.dtype)
    if by_parts:
        operand = real_view(operand)
    mixes_parts = by_parts and complex(alpha).imag != 0
    if by_parts and not mixes_parts:
        alpha = complex(alpha).real

    def work(begin: int, end: int) -> None:
        rows = Y[begin:end]
        # Either the entries are multiplied by alpha, or their product with X is, in three passes over it.
        many_entries = problem.alpha != "one" and S.entries(begin, end) > 2 * rows.size
        scales_product = mixes_parts or many_entries
        if rows.flags.c_contiguous and not scales_product:
            S.add_product(begin, end, operand, real_view(rows) if by_parts else rows, alpha)
            return
        product = np.zeros(rows.shape, rows.dtype)
        target = real_view(product) if by_parts else product
        S.add_product(begin, end, operand, target, 1 if scales_product else alpha)
        if scales_product:
            product *= alpha
        np.add(rows, product, out=rows)

    return work


class _Rest:
    """What is made of the rows of a block after Y; sums are added up in the order of the blocks."""

    def __init__(self, problem: SpmmvProblem, X: Array, Y: Array, fused: Fused | None, n_blocks: int) -> None:
        self._chain: Callable[[int, int], None] | None = None
        self._sums: list[tuple[Callable[[int, int], Array], list[Any], Array]] = []
        if fused is None:
            return
        if (Z := fused.Z) is not None:
            old = None if problem.chain == "zero" else Z
            self._chain = streams.axpby_rows(Y, old, Z, fused.eta, fused.delta)
        blocks = {"x": X, "y": Y}
        for name, out in fused.dots.items():
            work = streams.column_dot_rows(blocks[name[0]], blocks[name[1]])
            self._sums.append((work, [None] * n_blocks, out))

    def take(self, block: int, begin: int, end: int) -> None:
        """Work on the rows of a block."""
        if self._chain is not None:
            self._chain(begin, end)
        for work, parts, _ in self._sums:
            parts[block] = work(begin, end)

    def finish(self) -> None:
        """Store the sums over all blocks."""
        for _, parts, out in self._sums:
            streams.store_dots(parts, out)
