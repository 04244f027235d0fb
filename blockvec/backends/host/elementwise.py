"""Elementwise passes over blocks on the host: axpby and inner products per column.

Chunks are short enough that the result of one NumPy call is still in cache for the next. Contiguous narrow
blocks are read as long rows, since NumPy's loops run over the last axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ...kernels.problem import NO_ROWS, StreamProblem
from ..base import Array
from .panels import CHUNK_BYTES, real_view, spread_rows

LONG_ROW = 256  # elements of a folded row: per-column factors are repeated that far
DOT_ROWS = 128  # the longest chain of additions in the type of the operands


def axpby(problem: StreamProblem, X: Array, Y: Array | None, out: Array, alpha: Any, beta: Any) -> None:
    """Set out = alpha X + beta Y, or alpha X if Y is None; see `blockvec.operations.elementwise.axpby`."""
    spread_rows(axpby_rows(X, Y, out, alpha, beta), problem.K, (problem.reads + problem.writes) * out.nbytes)


def axpby_rows(X: Array, Y: Array | None, out: Array, alpha: Any, beta: Any) -> Callable[[int, int], None]:
    """Make a function that does the work of `axpby` on a range of rows."""
    width = out.shape[1]
    fold = _fold(width, out, X, Y)
    rows = max(fold, CHUNK_BYTES // max(1, width * out.itemsize) // fold * fold)
    a, b = _factor(alpha, out.dtype), _factor(beta, out.dtype)
    unscaled = isinstance(b, np.generic) and b == 1
    in_place = Y is not None and (Y is out or _address(Y) == _address(out))

    def work(begin: int, end: int) -> None:
        scratch = None if Y is None else np.empty((min(rows, end - begin), width), out.dtype)
        for row in range(begin, end, rows):
            stop = min(row + rows, end)
            side = fold if (stop - row) % fold == 0 else 1
            shape = ((stop - row) // side, side * width)
            Xp, target = X[row:stop].reshape(shape), out[row:stop].reshape(shape)
            if Y is None or scratch is None:
                np.multiply(Xp, _tile(a, side), out=target, casting="same_kind")
                continue
            term = scratch[: stop - row].reshape(shape)
            np.multiply(Xp, _tile(a, side), out=term, casting="same_kind")
            Yp = target if in_place else Y[row:stop].reshape(shape)
            if not unscaled:
                np.multiply(Yp, _tile(b, side), out=target, casting="same_kind")
            elif not in_place:
                np.copyto(target, Yp)
            np.add(target, term, out=target)

    return work


def _address(block: Array) -> tuple[int, np.dtype[Any]]:
    return block.__array_interface__["data"][0], block.dtype


def _factor(factor: Any, dtype: np.dtype[Any]) -> Any:
    """Convert a factor to the precision of the result; real factors stay real."""
    kind = "c" if np.iscomplexobj(factor) else "f"
    return np.asarray(factor, f"{kind}{dtype.itemsize // (1 if kind == dtype.kind else 2)}")[()]


def _tile(factor: Any, side: int) -> Any:
    """Repeat one value per column for `side` rows side by side; a scalar stays as it is."""
    return np.tile(factor, side) if side > 1 and isinstance(factor, np.ndarray) else factor


def _fold(width: int, *blocks: Array | None) -> int:
    """Compute the number of rows to read as one long row; 1 for views."""
    if width == 0:
        return 1
    for block in blocks:
        if block is not None and not block.flags.c_contiguous:
            return 1
    return max(1, LONG_ROW // width)


def column_dots(
    problem: StreamProblem,
    X: Array,
    Y: Array,
    out: Array,
    beta: complex,
    skipped: tuple[int, int] = NO_ROWS,
) -> None:
    """Set out_j = sum_i conj(X_ij) Y_ij + beta out_j; X may be Y.

    Sums of `DOT_ROWS` rows are added in double precision. It consists of a few long calls of NumPy, since the
    interpreter runs one thread at a time.
    """
    if skipped != NO_ROWS:
        for end in (slice(0, skipped[0]), slice(skipped[1], None)):
            x = X[end]
            y = x if X is Y else Y[end]
            column_dots(replace(problem, K=len(x)), x, y, out, beta)
            beta = 1
        return
    if X is Y:  # |x|^2 is the sum of the squares of the parts
        X = Y = real_view(X)
    width, real = X.shape[1], "c" not in (X.dtype.kind, Y.dtype.kind)
    fold = _fold(width, X, Y) if real else 1  # NumPy's own loops over complex numbers are slow

    def work(begin: int, end: int) -> list[Array]:
        sums = []
        for count, chain, side in _panels(end - begin, fold):
            stop, shape = begin + count * chain * side, (count, chain, side * width)
            left, right = X[begin:stop].reshape(shape), Y[begin:stop].reshape(shape)
            if real:
                dots = np.einsum("pij,pij->pj", left, right)
            else:
                dots = np.vecdot(left.swapaxes(1, 2), right.swapaxes(1, 2))
            sums.append(dots.reshape(count * side, width))
            begin = stop
        return sums

    rows = [sums for part in spread_rows(work, problem.K, problem.reads * X.nbytes) for sums in part]
    total = np.zeros(len(out))
    if rows:
        total = np.concatenate(rows).sum(axis=0, dtype=np.result_type(rows[0].dtype, np.float64))
    if len(total) != len(out):
        total = total[0::2] + total[1::2]
    out[...] = total if beta == 0 else total + beta * out


def _panels(n_rows: int, fold: int) -> Iterator[tuple[int, int, int]]:
    """Split rows into panels: yield their count, the folded rows per panel, and the rows per fold."""
    for side in dict.fromkeys((fold, 1)):
        whole, n_rows = divmod(n_rows, DOT_ROWS * side)
        chain, n_rows = divmod(n_rows, side)
        if whole:
            yield whole, DOT_ROWS, side
        if chain:
            yield 1, chain, side
