"""The division of the rows of a matrix by NumPy: the reference of the kernel, and for plans without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from blockvec.kernels.sparse import pieces
from blockvec.kernels.sparse.arrays import namespace, to_host
from blockvec.kernels.sparse.csr_plan import Plan
from blockvec.kernels.sparse.sell import CHUNK

__all__ = ["HostPlan", "assert_same", "divided", "laid_out"]


class HostPlan(Plan):
    """A plan whose rows the host divides."""

    def _divide(self, rows: int, entries: int, long_row: int) -> pieces.Units:
        if self.longest <= min(long_row, entries // rows):
            return pieces.Units(None, -(-self.n_rows // rows))
        return divided(self.indptr, rows, entries, long_row)


def divided(indptr: Any, rows: int, entries: int, long_row: int) -> pieces.Units:
    """Divide rows on the host; lists are copied to the device of the rows."""
    made, device = cut(to_host(indptr), rows, entries, long_row), namespace(indptr).asarray
    cuts, tasks, sums = (None if a is None else device(a) for a in (made.cuts, made.tasks, made.sums))
    return pieces.Units(cuts, made.n_units, tasks, sums, made.slots)


def cut(indptr: Any, rows: int, entries: int, long_row: int) -> pieces.Units:
    """Divide rows as `pieces.divide` does."""
    n_rows = len(indptr) - 1
    starts = np.arange(0, n_rows, rows)
    ends = np.minimum(starts + rows, n_rows)
    crowded = indptr[ends] - indptr[starts] > entries
    long = np.flatnonzero(np.diff(indptr) > long_row)
    crowded[long // rows] = True
    if not crowded.any():
        return pieces.Units(None, len(starts))
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
    return pieces.Units(first_rows, len(first_rows) - 1, *_tasks(indptr, long))


def _tasks(indptr: Any, long: Any) -> tuple[Any | None, Any | None, int]:
    """Divide the long rows into tasks, and list the sums over tasks and the number of slots; see `Units`."""
    if len(long) == 0:
        return None, None, 0
    row, begin, end = (numbers.astype(np.int64) for numbers in (long, indptr[long], indptr[long + 1]))
    parts = -(-(end - begin) // pieces.TASK_ENTRIES)
    of = np.repeat(np.arange(len(row)), parts)  # the long row of each task
    part = np.arange(len(of)) - np.repeat(np.cumsum(parts) - parts, parts)
    first = begin[of] + part * pieces.TASK_ENTRIES
    divided = parts[of] > 1
    slot = np.where(divided, np.cumsum(divided) - 1, -1)
    tasks = np.stack([row[of], first, np.minimum(first + pieces.TASK_ENTRIES, end[of]), slot], axis=1)
    several = parts > 1
    last = np.cumsum(parts[several])
    sums = np.stack([row[several], last - parts[several], last, np.full(len(last), -1)], axis=1)
    return tasks, sums if len(sums) else None, int(divided.sum())


def laid_out(plan: Plan) -> tuple[Any, int]:
    """Lay out the chunks of a matrix as `sell.layout` does."""
    lengths = np.zeros(-(-plan.n_rows // CHUNK) * CHUNK, np.int64)
    lengths[: plan.n_rows] = np.diff(to_host(plan.indptr))
    starts = np.concatenate([[0], np.cumsum(CHUNK * lengths.reshape(-1, CHUNK).max(axis=1))])
    return namespace(plan.indptr).asarray(starts.astype(plan.indptr.dtype)), int(starts[-1])


def assert_same(found: Any, expected: Any) -> None:
    """Fail unless two records of numbers and arrays are equal; those of the first may be on the GPU."""
    both = [record if isinstance(record, tuple) else vars(record).values() for record in (found, expected)]
    for other, value in zip(*both, strict=True):
        if isinstance(value, np.ndarray):
            assert (other.dtype, other.shape) == (value.dtype, value.shape)
            np.testing.assert_array_equal(to_host(other), value)
        else:
            assert other == value
