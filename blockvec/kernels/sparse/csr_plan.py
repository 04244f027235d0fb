"""CSR matrices as SpMMV kernels take them: aligned arrays, and rows divided into units of bounded work.

And the order in which the warps of a grid visit units. Everything here accepts NumPy and CuPy arrays. A
division is made once per matrix and shape of units.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..limits import ceil_div
from ..problem import Pattern

TASK_ENTRIES = 2048  # of a long row, per block: some microseconds of work, long against a block's start
MOST_SHORT_ROWS = 2**31 - 2**24  # that kernels number by 32 bits: they round them up
_PIECE = 1 << 15  # row pointers of which lengths are computed at a time
_SAMPLE, _SAMPLE_ENTRIES = 64, 64  # rows, and entries per row, from which the grid of a matrix is inferred
_LEAST_LINE = 32  # rows: shorter lines fit a unit
_UNEVEN = 8  # times the average length: rows are uneven if the longest exceeds this
_LEAST_PATCHES = 8  # per block, so that the last ones do not leave the other blocks idle for long
_ALIGNMENT = 16  # bytes: of the copies of entries to shared memory
CODE_BIT = 24  # of a coded entry: the value's place above, the column below, as in ``spmmv.cuh``
MAX_VALUES = 1 << 31 - CODE_BIT  # the sign marks padding

Array: TypeAlias = Any
"""A NumPy array or a CuPy array, in code that also uses attributes of only one of them."""


@dataclass(frozen=True, eq=False)
class Units:
    """A division of the rows of a matrix.

    Attributes
    ----------
    cuts : array of the index type, shape (n_units + 1,), or None
        First row of each unit and the number of rows; None if all units but the last have equally many.
    n_units : int
        Number of units. A long row is a unit of its own, which is left to `tasks`.
    tasks : array of int64, shape (n_tasks, 4), or None
        Parts of long rows: row, first entry, end, and the slot for the part's sum, or -1 if the part is the
        whole row.
    sums : array of int64, shape (n_sums, 4), or None
        Rows of several parts: row, first slot, end, -1.
    slots : int
        Number of partial sums.
    """

    cuts: Array | None
    n_units: int
    tasks: Array | None = None
    sums: Array | None = None
    slots: int = 0


@dataclass(frozen=True, eq=False)
class Codes:
    """The entries of a matrix of few different values, one number each, and a table of `MAX_VALUES`."""

    entries: Array
    table: Array


class Structure(NamedTuple):
    """The properties `longest`, `line` and `plane` of a `Plan`."""

    longest: int
    line: int
    plane: int


class Plan:
    """A sparse matrix in CSR form as the kernels take it.

    Arrays are shared where they have one index type and start at multiples of 16 bytes, else copied. Columns
    need not be sorted.

    Parameters
    ----------
    indptr, indices, data : array
    structure : Structure, optional
        That of the matrix, if it is known from a copy on the host.

    Attributes
    ----------
    n_rows, nnz : int
        Extents.
    indptr, indices, data : array
        The three arrays, of one index type, the last two aligned to 16 bytes.
    longest : int
        Entries of the longest row.
    line : int
        Rows per line of the matrix's grid: the least distance, beyond the next rows, at which most rows have
        entries; 0 if there is none.
    plane : int
        Rows per plane of the grid: the next such distance, beyond the neighbours of the next line; or 0.
    codes : Codes or None
        The entries in half of the memory or less, if the matrix has few different values; see `codes`.
    """

    def __init__(
        self, indptr: Array, indices: Array, data: Array, structure: Structure | None = None
    ) -> None:
        if indptr.dtype != indices.dtype:
            indptr, indices = _one_index_type(indptr, indices)
        self.indptr = indptr
        self.indices = _aligned(indices)
        self.data = _aligned(data)
        self.n_rows = len(indptr) - 1
        self.nnz = len(data)
        self.structure = structure or structure_of(self.starts, indices)
        self.longest, self.line, self.plane = self.structure
        self.codes: Codes | None = None
        self._units: dict[tuple[int, int, int], Units] = {}
        self._lock = threading.Lock()

    @property
    def index_bytes(self) -> int:
        """Bytes of an index."""
        return int(self.indices.dtype.itemsize)

    @functools.cached_property
    def starts(self) -> Any:
        """The row pointers on the host; waits for the device that they are on."""
        return to_host(self.indptr)

    def entries(self, coded: bool) -> tuple[int, int]:
        """Get the addresses of the columns and values that a kernel takes."""
        if not coded:
            return address(self.indices), address(self.data)
        assert self.codes is not None
        return address(self.codes.entries), address(self.codes.table)

    @property
    def pattern(self) -> Pattern:
        """The pattern as in `SpmmvProblem`."""
        if self.longest * self.n_rows > _UNEVEN * max(self.nnz, self.n_rows):
            return "uneven"
        return "planes" if self.plane else "lines" if self.line else "scattered"

    def units(self, rows: int, entries: int, long_row: int) -> Units:
        """Divide rows into units of at most `rows` rows and `entries` entries, and longer rows into tasks.

        Waits for the device at the first call per shape if rows are so uneven that units must be cut.
        """
        key = (rows, entries, long_row)
        with self._lock:
            if key not in self._units:
                self._units[key] = self._divide(*key)
            return self._units[key]

    def _divide(self, rows: int, entries: int, long_row: int) -> Units:
        if self.longest <= min(long_row, entries // rows):
            return Units(None, ceil_div(self.n_rows, rows))
        units = _cut(self, rows, entries, long_row)
        if (xp := namespace(self.indptr)) is not np:
            xp.cuda.get_current_stream().synchronize()  # other streams will read it too
        return units


def address(array: Array) -> int:
    """Get the address of an array's memory; 0 for None."""
    if array is None:
        return 0
    return int(array.data.ptr) if namespace(array) is not np else int(array.ctypes.data)


def namespace(array: Array) -> Any:
    """Get the module of an array's functions, NumPy or CuPy."""
    if type(array).__module__.partition(".")[0] == "cupy":
        import cupy

        return cupy
    return np


def _one_index_type(indptr: Array, indices: Array) -> tuple[Array, Array]:
    fits = len(indices) <= np.iinfo(indices.dtype).max
    dtype = indices.dtype if fits else indptr.dtype
    return indptr.astype(dtype), indices.astype(dtype, copy=False)


def _aligned(array: Array) -> Array:
    """Copy an array unless it starts at a multiple of 16 bytes."""
    if len(array) == 0 or address(array) % _ALIGNMENT == 0:
        return array
    if namespace(array) is not np:
        return array.copy()  # CuPy aligns allocations to 512 bytes
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    copy = memory[first : first + array.nbytes].view(array.dtype)
    copy[...] = array
    return copy


def structure_of(indptr: Array, indices: Array) -> Structure:
    """Determine the structure of a matrix; waits for the device that it is on.

    Distances between neighbouring lines and planes are inferred from a sample of rows.
    """
    starts = to_host(indptr)  # as for `_cut`
    n_rows = len(starts) - 1
    pieces = (starts[row : row + _PIECE + 1] for row in range(0, n_rows, _PIECE))  # which stay in a cache
    longest = max((int(np.diff(piece).max()) for piece in pieces), default=0)
    if n_rows < _SAMPLE * _LEAST_LINE or len(indices) == 0:
        return Structure(longest, 0, 0)
    rows = np.linspace(0, n_rows - 1, _SAMPLE).astype(np.int64).tolist()
    ranges = [starts[row : row + 2].tolist() for row in rows]
    neighbours = _pieces(indices, [(i, min(j, i + _SAMPLE_ENTRIES)) for i, j in ranges])
    distances = [abs(columns.astype(np.int64) - row) for columns, row in zip(neighbours, rows, strict=True)]
    found, counts = np.unique(np.concatenate(distances), return_counts=True)
    usual = found[(counts >= _SAMPLE // 2) & (found >= _LEAST_LINE)]
    # A grid with diagonal neighbours also has the adjacent distances.
    line = _middle_of_run(usual, 1)
    return Structure(longest, line, _middle_of_run(usual[usual > 2 * line], 2 * line))


def _middle_of_run(numbers: Any, gap: int) -> int:
    """Find the middle of the first run of ascending numbers at most `gap` apart; 0 if there is none."""
    if len(numbers) == 0:
        return 0
    run = numbers[: int(np.argmax(np.append(np.diff(numbers) > gap, True))) + 1]
    return int(run[len(run) // 2])


def to_host(array: Array) -> Any:
    """Copy an array of a device to the host."""
    return array if isinstance(array, np.ndarray) else array.get()


def _pieces(array: Array, ranges: list[tuple[int, int]]) -> list[Any]:
    """Copy pieces of an array to the host; waits for its device once."""
    if (xp := namespace(array)) is np:
        return [array[i:j] for i, j in ranges]
    ends, size = np.cumsum([j - i for i, j in ranges]).tolist(), array.itemsize
    memory, stream = xp.cuda.alloc_pinned_memory(max(ends[-1] * size, 1)), xp.cuda.get_current_stream()
    for (i, j), begin in zip(ranges, (0, *ends), strict=False):
        (array.data + i * size).copy_to_host_async(memory.ptr + begin * size, (j - i) * size, stream)
    stream.synchronize()
    return np.split(np.frombuffer(memory, array.dtype, ends[-1]), ends[:-1])


def _cut(plan: Plan, rows: int, entries: int, long_row: int) -> Units:
    """Cut blocks of rows into units.

    On the host: on a GPU each operation would compile a kernel at its first use, 0.3 s each.
    """
    indptr, n_rows = plan.starts, plan.n_rows
    starts = np.arange(0, n_rows, rows)
    ends = np.minimum(starts + rows, n_rows)
    crowded = indptr[ends] - indptr[starts] > entries
    if plan.longest > long_row:
        long = np.flatnonzero(indptr[1:] - indptr[:-1] > long_row)
        crowded[long // rows] = True
    else:
        long = starts[:0]
        if not crowded.any():
            return Units(None, len(starts))
    cuts = [starts]
    next_long = np.append(long, n_rows)
    at, end = starts[crowded], ends[crowded]
    # Greedy, in all crowded blocks of rows at once: a unit ends where it is full or a long row begins.
    while len(at):
        full = np.minimum(indptr[at].astype(np.int64) + entries, plan.nnz).astype(indptr.dtype)
        until = np.searchsorted(indptr, full, side="right") - 1
        barrier = next_long[np.searchsorted(next_long, at)]
        at = np.where(barrier == at, at + 1, np.minimum(np.minimum(until, barrier), end))
        more = at < end
        at, end = at[more], end[more]
        cuts.append(at)
    first_rows = np.sort(np.concatenate([*cuts, [n_rows]])).astype(indptr.dtype)
    device = namespace(plan.indptr).asarray
    tasks, sums, slots = _tasks(indptr, long)
    return Units(
        device(first_rows),
        len(first_rows) - 1,
        None if tasks is None else device(tasks),
        None if sums is None else device(sums),
        slots,
    )


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


@dataclass(frozen=True, slots=True)
class Walk:
    """The distribution of units of rows over blocks and warps: see ``cuda/sparse/spmmv_walk.cuh``.

    Attributes
    ----------
    blocks : int
        Blocks per tile of columns.
    passes, line, lots, plane : int
        As in the loop nest there.
    """

    blocks: int
    passes: int
    line: int
    lots: int
    plane: int

    @classmethod
    def of(
        cls, plan: Plan, n_units: int, rows: int, most: int, *, warps: int, planes: int, passes: int = 1
    ) -> Walk:
        """Choose the walk over units of `rows` rows that suits a matrix, with at most `most` blocks.

        The warps of a block process units of `planes` planes of a grid at a time; each processes up to
        `passes` neighbouring ones before it moves on.
        """
        lines = warps // planes
        line, plane = max(1, round(plan.line / rows)), round(plan.plane / rows)
        if n_units < 4 * line * warps:
            line = 1  # too few lines for all warps
        if planes == 1 or line == 1 or plane <= line or n_units < 4 * plane * planes:
            plane = line * lines
        lots = ceil_div(plane, line * lines)
        visits = ceil_div(n_units, plane * planes) * lots * line
        passes = max(1, min(passes, visits // (most * _LEAST_PATCHES)))
        return cls(min(most, ceil_div(visits, passes)), passes, line, lots, plane)

    def arguments(self) -> tuple[Any, ...]:
        """Compute the kernel's arguments."""
        line = np.int32(self.line), np.int64(_divisor(self.line))
        lots = np.int32(self.lots), np.int64(_divisor(self.lots))
        return np.int32(self.passes), *line, *lots, np.int32(self.plane)


def _divisor(d: int) -> int:
    """Encode a divisor for the kernel's `divide`."""
    shift = (d - 1).bit_length()
    return ceil_div(1 << 31 + shift, d) + (shift << 32)
