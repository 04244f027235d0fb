"""Row-major SpMMV on the host: SciPy's compiled CSR kernel over row blocks, on all cores.

SciPy's own product is single-threaded, returns a new array, and has neither shift nor update. Its kernel adds
A X to a given array and releases the interpreter lock. Here it runs on several row blocks at a time, directly
into Y if Y is contiguous. Row blocks depend on matrix and width only, so results do not depend on the number
of threads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import _sparsetools  # stable since 2008; csr_array @ array calls it, too

from ...kernels.limits import ceil_div
from ...kernels.problem import Pattern, SpmmvProblem, is_complex
from ..base import Array
from . import elementwise, sparse_kernel
from .panels import QUIET, real_view
from .threads import run_in_threads

# Rows plus entries of a row block, times real columns: at most about 1.2 ms of work, whose result fits a
# third-level cache, and at least a time that is long against waking a thread. Shorter blocks return more
# often to the interpreter, which runs one thread at a time.
MOST_WORK, LEAST_WORK = 1 << 21, 1 << 17
MIN_ROWS = 1 << 12  # rows plus entries, for any width
SHARES = 8  # the number of row blocks is a multiple of it, so that few threads share them evenly


class RowBlocks:
    """A CSR matrix and its division into row blocks; its arrays are shared, not copied."""

    pattern: Pattern = "scattered"  # not used on the host
    coded = False

    def __init__(self, matrix: Any) -> None:
        self.shape: tuple[int, int] = matrix.shape
        self.indptr, self.indices, self.data = map(_in_order, (matrix.indptr, matrix.indices, matrix.data))
        self.nnz = int(self.indptr[-1])
        self.longest = int(np.diff(self.indptr).max(initial=0))
        self.index_bytes = int(matrix.indices.dtype.itemsize)
        self._cuts: dict[int, list[int]] = {}
        self.parts: dict[Any, list[sparse_kernel._Part]] = {}  # compiled kernels, by product

    def scaled(self, factor: float, dtype: np.dtype[Any]) -> Any:
        """Multiply the entries and convert them to a type; row pointers and columns are shared."""
        arrays = (self.data * factor).astype(dtype), self.indices, self.indptr
        return sp.csr_array(arrays, shape=self.shape)

    def cuts(self, width: int) -> list[int]:
        """List the first row of each row block for so many columns, and the number of rows last."""
        if width not in self._cuts:
            count = block_count(self.shape[0] + self.nnz, width)
            work = self.indptr + np.arange(len(self.indptr), dtype=np.int64)
            targets = np.linspace(0, work[-1], count + 1)
            self._cuts[width] = np.unique(np.searchsorted(work, targets)).tolist()
        return self._cuts[width]

    update_columns = sparse_kernel.update_columns

    def vector_adder(self) -> Callable[[Array, Array], object] | None:
        """Return a function that adds the product with x to y, contiguous vectors; None if compiled."""
        lanes = 2 if self.data.dtype.kind == "c" else 1
        if not sparse_kernel.reason_against(self.shape[0], self.nnz, lanes, 0):
            return None
        return functools.partial(_sparsetools.csr_matvec, *self.shape, self.indptr, self.indices, self.data)

    def add_columns(self, X: Array, Y: Array) -> str:
        """Add A X to Y, column-major arrays of the matrix's type; return the name of the kernel that did."""
        stored = *self.shape, self.indptr, self.indices, self.data
        if self.nnz > LEAST_WORK:
            run_in_threads(lambda j: _sparsetools.csr_matvec(*stored, X[:, j], Y[:, j]), X.shape[1])
        else:
            for x, y in zip(X.T, Y.T, strict=True):
                _sparsetools.csr_matvec(*stored, x, y)
        return "csr_columns"

    def adder(self, X: Array) -> Callable[[int, int, Array], None]:
        """Make a function that adds rows [begin, end) of the matrix times X to a one-dimensional array.

        X is contiguous, and both are of one type.
        """
        x, extents = X.reshape(-1), (self.shape[1], X.shape[1])
        is_converted = self.data.dtype != x.dtype

        def add(begin: int, end: int, rows: Array) -> None:
            pointers, indices, data = self.indptr[begin : end + 1], self.indices, self.data
            if is_converted:
                first, last = pointers[0], pointers[-1]
                pointers, indices, data = pointers - first, indices[first:last], data[first:last]
                data = data.astype(x.dtype)
            add_product(end - begin, *extents, pointers, indices, data, x, rows)

        return add


def add_product(
    n_rows: int, n_cols: int, width: int, indptr: Array, indices: Array, data: Array, x: Array, y: Array
) -> None:
    """Add a product with a CSR matrix to y; blocks of `width` columns are one-dimensional arrays."""
    if width == 1:  # this kernel would write beyond a result without columns
        _sparsetools.csr_matvec(n_rows, n_cols, indptr, indices, data, x, y)
    else:
        _sparsetools.csr_matvecs(n_rows, n_cols, width, indptr, indices, data, x, y)


def _in_order(array: Array) -> Array:
    """Copy an array unless its elements are contiguous and in native byte order; indices of 4 or 8 bytes."""
    dtype = array.dtype.newbyteorder("=")
    if dtype.kind in "iu" and dtype not in (np.int32, np.int64):
        dtype = np.dtype(np.int64)
    return np.ascontiguousarray(array, dtype)


def block_count(work: int, width: int) -> int:
    """Compute the number of row blocks from rows plus entries and the number of real columns."""
    many = ceil_div(work, SHARES * max(MOST_WORK // width, MIN_ROWS)) * SHARES
    few = max(1, work // max(LEAST_WORK // width, MIN_ROWS))
    return many if few >= many else 1 << few.bit_length() - 1


def spmmv(
    problem: SpmmvProblem, S: RowBlocks, X: Array, Y: Array, alpha: complex, beta: complex, shift: Any
) -> None:
    """Set Y = alpha (S - shift I) X + beta Y; `shift` is a scalar or one value per column.

    Y must not overlap X. SciPy's kernel takes contiguous operands of one type: other X are copied once, and
    products are computed in a buffer per row block if the rows of Y are not contiguous.
    """
    n_columns = problem.width * (2 if Y.dtype.kind == "c" else 1)
    cuts = [0, len(Y)] if Y.size == 0 else S.cuts(n_columns)
    is_plain = problem.alpha == "one" and problem.beta in ("zero", "one") and problem.shift == "none"
    is_plain = is_plain and X.flags.c_contiguous and Y.flags.c_contiguous
    if is_plain and problem.stored and len(cuts) == 2 and problem.dtype_matrix == problem.dtype_x:
        if problem.beta == "zero":
            Y.fill(0)
        S.adder(X)(0, len(Y), Y.reshape(-1))
        return
    start, add = _start(problem, X, Y, alpha, beta, shift), _adder(problem, S, X, Y, alpha)

    def work(block: int) -> None:
        start(cuts[block], cuts[block + 1])
        add(cuts[block], cuts[block + 1])

    with np.errstate(**QUIET):
        run_in_threads(work, len(cuts) - 1)


def _start(
    problem: SpmmvProblem, X: Array, Y: Array, alpha: complex, beta: complex, shift: Any
) -> Callable[[int, int], None]:
    """Make a function that sets a range of rows to beta Y - alpha shift X."""
    if problem.shift != "none":
        return elementwise.axpby_rows(X, None if problem.beta == "zero" else Y, Y, -alpha * shift, beta)

    def scale(begin: int, end: int) -> None:
        if beta == 0:
            Y[begin:end] = 0
        elif beta != 1:
            rows = Y[begin:end]
            np.multiply(rows, beta, out=rows)

    return scale


def _adder(
    problem: SpmmvProblem, S: RowBlocks, X: Array, Y: Array, alpha: complex
) -> Callable[[int, int], None]:
    """Make a function that adds alpha S X to a range of rows."""
    # For a real matrix, complex columns are pairs of real ones.
    by_parts = X.dtype.kind == "c" and not is_complex(problem.dtype_matrix)
    operand = np.ascontiguousarray(X, Y.dtype)
    if by_parts:
        operand = real_view(operand)
    width, add = operand.shape[1], S.adder(operand)
    flat = (real_view(Y) if by_parts else Y).reshape(-1) if Y.flags.c_contiguous else None

    def work(begin: int, end: int) -> None:
        if flat is not None and alpha == 1:
            add(begin, end, flat[begin * width : end * width])
            return
        rows = Y[begin:end]
        product = np.zeros(rows.shape, rows.dtype)
        add(begin, end, (real_view(product) if by_parts else product).reshape(-1))
        if alpha != 1:
            product *= alpha
        np.add(rows, product, out=rows)

    return work
