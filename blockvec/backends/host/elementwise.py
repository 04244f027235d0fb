"""Elementwise passes over blocks on the host: axpby and column inner products.

Chunks are cut so that what one NumPy call leaves is still in cache for the next, and contiguous narrow
blocks are read as long rows, since NumPy's loops run over the last axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...kernels.problem import StreamProblem
from ..base import Array
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


def column_dot_rows(X: Array, Y: Array) -> Callable[[int, int], list[Array]]:
    """Return what sums over a range of rows, for `store_dots` to finish.

    A few long calls of NumPy's and little else: the interpreter runs one thread at a time.
    """
    if X is Y:  # |x|^2 is the sum of the squares of the parts
        X = Y = real_view(X)
    width, real = X.shape[1], "c" not in (X.dtype.kind, Y.dtype.kind)
    fold = _fold(width, X, Y) if real else 1  # NumPy's own loops over complex numbers are slow

    def work(begin: int, end: int) -> list[Array]:
        sums = []
        for count, chain, side in _panels(end - begin, fold):
            stop, shape = begin + count * chain * side, (count, chain, side * width)
            left, right = X[begin:stop].reshape(shape), Y[begin:stop].reshape(shape)
            if real and side * width >= WIDE:
                dots = np.einsum("pij,pij->pj", left, right)
            else:
                dots = np.vecdot(left.swapaxes(1, 2), right.swapaxes(1, 2))
            sums.append(dots.reshape(count * side, width))
            begin = stop
        return sums

    return work


def _panels(n_rows: int, fold: int) -> Iterator[tuple[int, int, int]]:
    """Yield what to cut rows into: so many panels, chains of so many folded rows each, the rows of a fold."""
    for side in dict.fromkeys((fold, 1)):
        whole, n_rows = divmod(n_rows, DOT_ROWS * side)
        chain, n_rows = divmod(n_rows, side)
        if whole:
            yield whole, DOT_ROWS, side
        if chain:
            yield 1, chain, side


def store_dots(parts: Sequence[list[Array]], out: Array) -> None:
    """Set `out` to the sum of the rows of all arrays in all parts, added up in double precision."""
    rows = [sums for part in parts for sums in part]
    if not rows:
        out[...] = 0
        return
    dtype = np.complex128 if rows[0].dtype.kind == "c" else np.float64
    total = np.concatenate(rows).sum(axis=0, dtype=dtype)
    out[...] = total if len(total) == len(out) else total[0::2] + total[1::2]
