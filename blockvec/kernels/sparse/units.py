"""The division of the rows of a matrix into units of bounded work, and of long rows into tasks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..limits import ceil_div
from . import pieces
from .arrays import Array, Load, namespace

TASK_ENTRIES = 2048  # of a long row, per block: some microseconds of work, long against a block's start


@dataclass(frozen=True, eq=False)
class Units:
    """A division of the rows of a matrix."""

    # array of the index type, shape (n_units + 1,), or None: first row of each unit and the number of rows;
    # None if all units but the last have equally many.
    cuts: Array | None
    n_units: int  # number of units. A long row is a unit of its own, which is left to `tasks`
    # array of int64, shape (n_tasks, 4), or None: parts of long rows: row, first entry, end, and the slot for
    # the part's sum, or -1 if the part is the whole row.
    tasks: Array | None = None
    # array of int64, shape (n_sums, 4), or None: rows of several parts: row, first slot, end, -1.
    sums: Array | None = None
    slots: int = 0  # number of partial sums


def divide(indptr: Array, rows: int, entries: int, long_row: int, load: Load) -> Units:
    """Divide rows into units of at most `rows` rows and `entries` entries, and longer rows into tasks.

    Waits for the device that the rows are on, where `load` loads the kernel that divides them.
    """
    n_rows, empty = len(indptr) - 1, namespace(indptr).empty
    n_pieces = pieces.count_pieces(n_rows, rows)
    shape = tuple(map(np.int32, (rows, entries, long_row, TASK_ENTRIES)))
    counts = empty((n_pieces, 4), np.int64)
    pieces.launch(load, "units", indptr, n_pieces, *shape, None, counts, None, None, None)
    before, (n_units, n_tasks, n_sums, slots) = pieces.add_up(counts)
    if n_tasks == 0 and n_units == ceil_div(n_rows, rows):
        return Units(None, n_units)
    cuts = empty(n_units + 1, indptr.dtype)
    tasks, sums = (empty((n, 4), np.int64) if n else None for n in (n_tasks, n_sums))
    pieces.launch(load, "units", indptr, n_pieces, *shape, before, None, cuts, tasks, sums)
    return Units(cuts, n_units, tasks, sums, slots)
