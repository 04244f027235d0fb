"""Matrices in SELL-C-sigma form: rows in chunks of C = 32, the entries of a chunk interleaved.

Everything here accepts NumPy and CuPy arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..limits import ceil_div
from . import pieces
from .arrays import Array, Load, namespace, to_host
from .csr_plan import Plan

CHUNK = 32  # rows, C of SELL-C-sigma: one per lane
# Rows that are sorted on the host. On a GPU each operation here compiles a kernel of CuPy at its first use:
# ten take 2 s, in which a host sorts the lengths of so many rows several times.
_MOST_HOST_ROWS = 1 << 22
_PAST_THE_END = 1 << 12  # places that a kernel counts beyond the last: a batch of entries of a chunk


@dataclass(frozen=True, eq=False)
class Layout:
    """The places of the entries of a matrix.

    Attributes
    ----------
    sigma : int
        Rows that are sorted by length together.
    starts : array of the index type, shape (n_chunks + 1,)
        First place of each chunk, and the number of places.
    order : array of uint16, shape (CHUNK * n_chunks,), or None
        Position of each row among its `sigma` rows before sorting; None if rows are not sorted.
    entries : int
        Places for entries, padding included.
    """

    sigma: int
    starts: Array
    order: Array | None
    entries: int

    @property
    def n_chunks(self) -> int:
        """Chunks of rows; the last may not be full."""
        return len(self.starts) - 1


@dataclass(frozen=True, eq=False)
class SellMatrix:
    """A converted matrix: its layout, the columns of its entries (-1 for padding) and their values."""

    layout: Layout
    columns: Array
    values: Array


def layout(plan: Plan, sigma: int) -> Layout:
    """Lay out the rows of a matrix; waits for the device that it is on.

    Rows are sorted on the host unless they are many.

    Raises
    ------
    OverflowError
        If there are more places than the index type can count.
    """
    is_sorted = sigma > CHUNK
    if plan.load is not None and not is_sorted:
        return _on_device(plan, plan.load)
    is_on_host = plan.n_rows <= _MOST_HOST_ROWS or not is_sorted
    indptr = to_host(plan.indptr) if is_on_host else plan.indptr
    xp, device = namespace(indptr), namespace(plan.indptr).asarray
    n_chunks, order = ceil_div(plan.n_rows, CHUNK), None
    if plan.longest * plan.n_rows == plan.nnz and not is_sorted:
        starts = np.arange(n_chunks + 1) * (CHUNK * plan.longest)
    else:
        lengths = xp.zeros(n_chunks * CHUNK, indptr.dtype)
        xp.subtract(indptr[1:], indptr[:-1], out=lengths[: plan.n_rows])
        if is_sorted:
            row = xp.arange(len(lengths))
            window, place = row // sigma, row % sigma
            # One distinct key per row: by window, then the longest first, then in the original order.
            sorted_rows = xp.argsort(((window + 1) * (plan.longest + 1) - lengths) * sigma + place)
            lengths = lengths[sorted_rows]
            order = (sorted_rows % sigma).astype(np.uint16)
        starts = xp.zeros(n_chunks + 1, np.int64)
        widths = lengths.reshape(n_chunks, CHUNK).max(axis=1)
        xp.cumsum(CHUNK * widths.astype(np.int64), out=starts[1:])
    entries = int(starts[-1])
    _refuse_excess(entries, plan)
    return Layout(
        sigma, device(starts.astype(indptr.dtype)), None if order is None else device(order), entries
    )


def _on_device(plan: Plan, load: Load) -> Layout:
    """Lay out the rows of a matrix in their order, by a kernel."""
    empty, n_pieces = namespace(plan.indptr).empty, pieces.count_pieces(plan.n_rows, CHUNK)
    counts = empty((n_pieces, 1), np.int64)
    pieces.launch(load, "layout", plan.indptr, n_pieces, None, counts, None)
    before, (entries,) = pieces.add_up(counts)
    _refuse_excess(entries, plan)
    starts = empty(ceil_div(plan.n_rows, CHUNK) + 1, plan.indptr.dtype)
    pieces.launch(load, "layout", plan.indptr, n_pieces, before, None, starts)
    return Layout(CHUNK, starts, None, entries)


def _refuse_excess(entries: int, plan: Plan) -> None:
    if entries > np.iinfo(plan.indptr.dtype).max - _PAST_THE_END:
        raise OverflowError(f"{entries} entries are too many for indices of {plan.index_bytes} bytes")
