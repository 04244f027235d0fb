"""Elementwise passes over blocks on the host: axpby and column inner products.

Chunks are cut so that what one NumPy call leaves is still in cache for the next, and contiguous narrow
blocks are read as long rows, since NumPy's loops run over the last axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..kernels.problem import StreamProblem, is_complex
from .base import Array
from .panels import CHUNK_BYTES, real_view, spread_rows

__all__ = ["axpby", "axpby_rows", "column_dot_rows", "column_dots", "store_dots"]

LONG_ROW = 256  # elements of a folded row: per-column factors are repeated that far
DOT_ROWS = 128  # the longest chain of additions in the type of the operands
WIDE = 16  # real columns from where one strided BLAS dot a column loses to a pass along the rows


def axpby(problem: StreamProblem, X: Array, Y: Array | None, out: Array, alpha: Any, beta: Any) -> None:
    """Out = alpha X + beta Y, factors scalar or one a column; `out` may be X or Y. Y None: out = alpha X."""
    spread_rows(problem, axpby_rows(X, Y, out, alpha, beta), problem.K)


def axpby_rows(X: Array, Y: Array | None, out: Array, alpha: Any, beta: Any) -> Callable[[int, int], None]:
    """Return what does that for a range of rows."""
    if Y is not None and _same_memory(X, out):
        X, Y, alpha, beta = Y, X, beta, alpha  # so that only Y is overwritten while X is still needed
    width = out.shape[1]
    fold = _fold(width, out, X, Y)
    rows = max(fold, CHUNK_BYTES // max(1, width * out.itemsize) // fold * fold)
    factors = [_factor(alpha, out.dtype), _factor(beta, out.dtype)]

    def work(begin: int, end: int) -> None:
        scratch = np.empty((min(rows, end - begin), width), out.dtype)
        for row in range(begin, end, rows):
            stop = min(row + rows, end)
            side = fold if (stop - row) % fold == 0 else 1
            shape = ((stop - row) // side, side * width)
            a, b = (np.tile(f, side) if np.ndim(f) else f for f in factors)
            Xp, target = X[row:stop].reshape(shape), out[row:stop].reshape(shape)
            if Y is None:
                np.multiply(Xp, a, out=target, casting="same_kind")
                continue
            term = scratch[: stop - row].reshape(shape)
            np.multiply(Xp, a, out=term, casting="same_kind")
            _scale(Y[row:stop].reshape(shape), b, target)
            np.add(target, term, out=target)

    return work


def _same_memory(X: Array, out: Array) -> bool:
    return bool(X.ctypes.data == out.ctypes.data) and X.dtype == out.dtype


def _factor(factor: Any, dtype: np.dtype[Any]) -> Any:
    """Give a factor the precision of the result, real where it is real."""
    kind = "c" if np.iscomplexobj(factor) else "f"
    return np.asarray(factor, f"{kind}{dtype.itemsize // (1 if kind == dtype.kind else 2)}")[()]


def _scale(Y: Array, beta: Any, out: Array) -> None:
    if np.ndim(beta) == 0 and beta == 1:
        if not _same_memory(Y, out):
            np.copyto(out, Y)
    else:
        np.multiply(Y, beta, out=out, casting="same_kind")


def _fold(width: int, *blocks: Array | None) -> int:
    """Rows to read as one long row; 1 for views."""
    if width == 0 or any(block is not None and not block.flags.c_contiguous for block in blocks):
        return 1
    return max(1, LONG_ROW // width)


def column_dots(problem: StreamProblem, X: Array, Y: Array, out: Array) -> None:
    """out_j = sum_i conj(X_ij) Y_ij; chains of `DOT_ROWS` are added up in double precision. X may be Y."""
    store_dots(spread_rows(problem, column_dot_rows(X, Y), problem.K), out)


def column_dot_rows(X: Array, Y: Array) -> Callable[[int, int], Array]:
    """Return what sums over a range of rows, for `store_dots` to finish."""
    if X is Y:  # |x|^2 is the sum of the squares of the parts
        X = Y = real_view(X)
    width = X.shape[1]
    dtype = np.complex128 if is_complex(Y.dtype.name) or is_complex(X.dtype.name) else np.float64
    group = max(1, CHUNK_BYTES // max(1, DOT_ROWS * width * X.itemsize))

    def work(begin: int, end: int) -> Array:
        total = np.zeros(width, dtype)
        while begin < end:
            count = min(group, (end - begin) // DOT_ROWS)
            rows = DOT_ROWS if count else end - begin
            count = max(count, 1)
            stop = begin + count * rows
            shape = (count, rows, width)
            total += _panel_dots(X[begin:stop].reshape(shape), Y[begin:stop].reshape(shape), dtype)
            begin = stop
        return total

    return work


def store_dots(parts: Sequence[Array], out: Array) -> None:
    """Set `out` to the sum of at least one part."""
    total: Array = sum(parts[1:], start=parts[0])
    out[...] = total if len(total) == len(out) else total[0::2] + total[1::2]


def _panel_dots(X: Array, Y: Array, dtype: Any) -> Array:
    if dtype is np.float64 and X.shape[2] >= WIDE:
        dots = np.einsum("pij,pij->pj", X, Y)
    else:
        dots = np.vecdot(X.swapaxes(1, 2), Y.swapaxes(1, 2))
    return dots.sum(axis=0, dtype=dtype)
