"""A matrix in SELL-C-sigma form: rows in chunks of C = 32, the entries of a chunk interleaved.

Everything here runs on whichever arrays it is given, NumPy's or CuPy's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .csr_config import ceil_div
from .csr_plan import Array, Plan, namespace
from .sell_config import CHUNK

__all__ = ["Layout", "Sell", "layout"]

_PAST_THE_END = 1 << 12  # places that a kernel counts beyond the last: a batch of entries of a chunk


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the entries of the rows of a matrix go.

    Attributes
    ----------
    sigma : int
        Rows that were sorted by length together.
    starts : array of the index type, shape (n_chunks + 1,)
        Where each chunk begins, and their end.
    order : array of uint16, shape (CHUNK * n_chunks,), or None
        The place that each row had among `sigma` ones before they were sorted; None where none were.
    entries : int
        Places for entries, those that fill up rows included.
    """

    sigma: int
    starts: Array
    order: Array | None
    entries: int

    @property
    def n_chunks(self) -> int:
        """Chunks of rows, the last of which may not be full."""
        return len(self.starts) - 1


@dataclass(frozen=True, eq=False)
class Sell:
    """A converted matrix: its layout, the columns of its entries (-1 for none) and their values."""

    layout: Layout
    columns: Array
    values: Array


def layout(plan: Plan, sigma: int) -> Layout:
    """Lay out the rows of a matrix; waits for the device.

    Raises
    ------
    OverflowError
        Where there would be more places than the index type can count.
    """
    xp = namespace(plan.indptr)
    n_chunks = ceil_div(plan.n_rows, CHUNK)
    lengths = xp.zeros(n_chunks * CHUNK, np.int64)
    lengths[: plan.n_rows] = plan.indptr[1:] - plan.indptr[:-1]
    order = None
    if sigma > CHUNK:
        row = xp.arange(len(lengths))
        window, place = row // sigma, row % sigma
        # One number a row, all different: by window, then the longest first, then as they were.
        sorted_rows = xp.argsort(((window + 1) * (plan.longest + 1) - lengths) * sigma + place)
        lengths = lengths[sorted_rows]
        order = (sorted_rows % sigma).astype(np.uint16)
    starts = xp.zeros(n_chunks + 1, np.int64)
    xp.cumsum(CHUNK * lengths.reshape(n_chunks, CHUNK).max(axis=1), out=starts[1:])
    entries = int(starts[-1])
    if entries > np.iinfo(plan.indptr.dtype).max - _PAST_THE_END:
        raise OverflowError(f"{entries} entries are too many for indices of {plan.index_bytes} bytes")
    return Layout(sigma, starts.astype(plan.indptr.dtype), order, entries)
