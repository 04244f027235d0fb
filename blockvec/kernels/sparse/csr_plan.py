"""CSR matrices as SpMMV kernels take them: aligned arrays, their structure, and rows divided into units.

And the order in which the warps of a grid visit units. Everything here accepts NumPy and CuPy arrays. A
division is made once per matrix and shape of units.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..limits import ceil_div
from ..problem import Pattern
from .arrays import Array, Load, address, aligned, namespace
from .pieces import Structure, Units, divide, structure_of

MOST_SHORT_ROWS = 2**31 - 2**24  # that kernels number by 32 bits: they round them up
_UNEVEN = 8  # times the average length: rows are uneven if the longest exceeds this
CODE_BIT = 24  # of a coded entry: the value's place above, the column below, as in ``spmmv.cuh``
MAX_VALUES = 1 << 31 - CODE_BIT  # the sign marks padding


@dataclass(frozen=True, eq=False)
class Codes:
    """The entries of a matrix of few different values, one number each, and a table of `MAX_VALUES`."""

    entries: Array
    table: Array


class Plan:
    """A sparse matrix in CSR form as the kernels take it.

    Arrays are shared where they have one index type and start at multiples of 16 bytes, else copied. Columns
    need not be sorted. `structure` is that of the matrix, if it is known from a copy on the host; `load`
    loads the kernels that look at rows on the device that they are on (see `SparseFamily.convert`), and that
    divide uneven ones; by default row pointers are copied to the host.
    """

    def __init__(
        self,
        indptr: Array,
        indices: Array,
        data: Array,
        structure: Structure | None = None,
        load: Load | None = None,
    ) -> None:
        if indptr.dtype != indices.dtype:
            fits = len(indices) <= np.iinfo(indices.dtype).max
            dtype = indices.dtype if fits else indptr.dtype
            indptr, indices = indptr.astype(dtype), indices.astype(dtype, copy=False)
        self.indptr = indptr
        self.indices = aligned(indices)
        self.data = aligned(data)
        self.n_rows = len(indptr) - 1
        self.nnz = len(data)
        self.load = load
        self.structure = structure or structure_of(indptr, self.indices, load)
        self.longest, self.line, self.plane = self.structure
        uneven = self.longest * self.n_rows > _UNEVEN * max(self.nnz, self.n_rows)
        on_grid: Pattern = "planes" if self.plane else "lines" if self.line else "scattered"
        self.pattern: Pattern = "uneven" if uneven else on_grid
        self.index_bytes = int(self.indices.dtype.itemsize)
        self.codes: Codes | None = None  # if the matrix has few different values
        self._units: dict[tuple[int, int, int], Units] = {}
        self._lock = threading.Lock()

    def entries(self, coded: bool) -> tuple[int, int]:
        """Get the addresses of the columns and values that a kernel takes."""
        if not coded:
            return address(self.indices), address(self.data)
        assert self.codes is not None
        return address(self.codes.entries), address(self.codes.table)

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
        assert self.load is not None  # of a matrix on a device
        units = divide(self.indptr, rows, entries, long_row, self.load)
        if (xp := namespace(self.indptr)) is not np:
            xp.cuda.get_current_stream().synchronize()  # other streams will read it too
        return units


def walk(
    plan: Plan, n_units: int, rows: int, most: int, *, warps: int, planes: int = 1
) -> tuple[int, tuple[Any, ...]]:
    """Distribute units of `rows` rows over at most `most` blocks, as suits a matrix, and their warps.

    The warps of a block process units of `planes` planes of a grid at a time. Returns the number of blocks
    per tile of columns, and the arguments of the kernels: see ``cuda/sparse/spmmv_walk.cuh``.
    """
    lines = warps // planes
    line, plane = max(1, round(plan.line / rows)), round(plan.plane / rows)
    if n_units < 4 * line * warps:
        line = 1  # too few lines for all warps
    if planes == 1 or line == 1 or plane <= line or n_units < 4 * plane * planes:
        plane = line * lines
    lots = ceil_div(plane, line * lines)
    visits = ceil_div(n_units, plane * planes) * lots * line
    divisors = (number for d in (line, lots) for number in (np.int32(d), np.int64(_divisor(d))))
    return min(most, visits), (*divisors, np.int32(plane))


def _divisor(d: int) -> int:
    """Encode a divisor for the kernel's `divide`."""
    shift = (d - 1).bit_length()
    return ceil_div(1 << 31 + shift, d) + (shift << 32)
