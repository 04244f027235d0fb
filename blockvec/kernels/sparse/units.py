"""The division of the rows of a matrix into units of bounded work, and of long rows into tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..limits import ceil_div
from . import pieces
from .arrays import Array, Load, namespace, to_host

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


def divide(indptr: Array, rows: int, entries: int, long_row: int, load: Load | None = None) -> Units:
    """Divide rows into units of at most `rows` rows and `entries` entries, and longer rows into tasks.

    Waits for the device that the rows are on. `load` loads the kernel that divides rows there; by default the
    host does, and lists are copied to the device.
    """
    if load is not None:
        return _divide_on_device(indptr, rows, entries, long_row, load)
    units, device = cut(to_host(indptr), rows, entries, long_row), namespace(indptr).asarray
    cuts, tasks, sums = (None if a is None else device(a) for a in (units.cuts, units.tasks, units.sums))
    return Units(cuts, units.n_units, tasks, sums, units.slots)


def _divide_on_device(indptr: Array, rows: int, entries: int, long_row: int, load: Load) -> Units:
    """Divide rows as `cut` does."""
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


def cut(indptr: Any, rows: int, entries: int, long_row: int) -> Units:
    """Divide rows on the host, the reference of the kernel."""
    n_rows = len(indptr) - 1
    starts = np.arange(0, n_rows, rows)
    ends = np.minimum(starts + rows, n_rows)
    crowded = indptr[ends] - indptr[starts] > entries
    long = np.flatnonzero(np.diff(indptr) > long_row)
    crowded[long // rows] = True
    if not crowded.any():
        return Units(None, len(starts))
    cuts = [starts]
    next_long = np.append(long, n_rows)
    at, end = starts[crowded], ends[crowded]
    # Greedy, in all crowded blocks of rows at once: a unit ends where it is full or a long row begins.
    while len(at):
        full = np.minimum(indptr[at].astype(np.int64) + entries, indptr[-1]).astype(indptr.dtype)
        until = np.searchsorted(indptr, full, side="right") - 1
        barrier = next_long[np.searchsorted(next_long, at)]
        at = np.where(barrier == at, at + 1, np.minimum(np.minimum(until, barrier), end))
        more = at < end
        at, end = at[more], end[more]
        cuts.append(at)
    first_rows = np.sort(np.concatenate([*cuts, [n_rows]])).astype(indptr.dtype)
    return Units(first_rows, len(first_rows) - 1, *_tasks(indptr, long))


def _tasks(indptr: Array, long: Array) -> tuple[Array | None, Array | None, int]:
    """Divide the long rows into tasks, and list the sums over tasks and the number of slots; see `Units`."""
    if len(long) == 0:
        return None, None, 0
    row, begin, end = (numbers.astype(np.int64) for numbers in (long, indptr[long], indptr[long + 1]))
    parts = -(-(end - begin) // TASK_ENTRIES)
    of = np.repeat(np.arange(len(row)), parts)  # the long row of each task
    part = np.arange(len(of)) - np.repeat(np.cumsum(parts) - parts, parts)
    first = begin[of] + part * TASK_ENTRIES
    divided = parts[of] > 1
    slot = np.where(divided, np.cumsum(divided) - 1, -1)
    tasks = np.stack([row[of], first, np.minimum(first + TASK_ENTRIES, end[of]), slot], axis=1)
    several = parts > 1
    last = np.cumsum(parts[several])
    sums = np.stack([row[several], last - parts[several], last, np.full(len(last), -1)], axis=1)
    return tasks, sums if len(sums) else None, int(divided.sum())
