"""Row-major SpMMV on the host: SciPy's compiled CSR kernel over row blocks, on all cores.

SciPy's kernel is single-threaded and returns a fresh array; here it runs on row blocks that share the
matrix's memory, several at a time, and shift, scale and the update of Y are applied while a block's
result is in cache.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..kernels.problem import SpmmvProblem, is_complex
from .base import Array
from .panels import real_view
from .threads import map_items

__all__ = ["RowBlocks", "spmmv"]

BLOCK_WORK = 1 << 17  # rows plus entries of a row block: long against a call, its result within L2 at width 8


@dataclass(frozen=True)
class RowBlocks:
    """A CSR matrix cut into row blocks that share its values and column indices.

    Attributes
    ----------
    shape : tuple of int
        Extents of the whole matrix.
    cuts : list of int
        Row where each block begins, and the number of rows at the end.
    blocks : list of csr_array
        The row blocks.
    """

    shape: tuple[int, int]
    cuts: list[int]
    blocks: list[Any]

    @classmethod
    def of(cls, matrix: Any) -> RowBlocks:
        """Cut a matrix; blocks hold about `BLOCK_WORK` rows plus entries, one row at least."""
        n_rows, n_cols = matrix.shape
        indptr = matrix.indptr
        work = indptr.astype(np.int64) + np.arange(n_rows + 1)
        targets = np.arange(0, work[-1], BLOCK_WORK)
        cuts = np.unique(np.append(np.searchsorted(work, targets), n_rows)).tolist()
        blocks = []
        for begin, end in itertools.pairwise(cuts):
            first, last = indptr[begin], indptr[end]
            parts = (matrix.data[first:last], matrix.indices[first:last], indptr[begin : end + 1] - first)
            blocks.append(sp.csr_array(parts, shape=(end - begin, n_cols)))
        return cls((n_rows, n_cols), cuts, blocks)


def spmmv(
    problem: SpmmvProblem,
    S: RowBlocks,
    X: Array,
    Y: Array,
    alpha: complex,
    beta: complex,
    shift: Any,
) -> None:
    """Y = alpha (S - shift I) X + beta Y; `shift` is a scalar or one value a column. Y must not overlap X.

    SciPy's kernel wants contiguous rows, so a view with ld > width is copied once.
    """
    X = np.ascontiguousarray(X)
    # A real matrix treats real and imaginary parts alike: complex columns are pairs of real ones.
    by_parts = is_complex(problem.dtype_x) and not is_complex(problem.dtype_matrix)
    operand = real_view(X) if by_parts else X

    def work(index: int) -> None:
        begin, end = S.cuts[index], S.cuts[index + 1]
        product = S.blocks[index] @ operand
        if by_parts:
            product = product.view(problem.dtype)
        if problem.shift != "none":
            product = product - np.multiply(shift, X[begin:end], dtype=Y.dtype)
        if problem.alpha != "one":
            product = product * alpha
        if problem.beta != "zero":
            product = product + (Y[begin:end] if problem.beta == "one" else beta * Y[begin:end])
        Y[begin:end] = product

    map_items(work, len(S.blocks))
