"""Kernels that pass over the rows of a matrix, so that these are not copied to the host.

They find its structure and diagonal, divide its rows into units of bounded work and long rows into tasks, and
lay out chunks.

Each warp takes a piece of the rows and stores its counts, which the host adds up, or a number per row. Where
results depend on the pieces before, a second launch takes the sums over those. See
``cuda/sparse/spmmv_pieces.cuh``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..limits import WARP, ceil_div
from ..problem import is_complex
from ..source import Kernel, c_type, kernel
from .arrays import Array, Load, address, namespace, to_host

KERNELS = ("structure", "units", "layout", "diagonal")
_ROUNDS = 4  # blocks of rows per lane: of 32 rows each, 1e7 rows give a multiprocessor some 20 warps
_WARPS = 4  # per block of threads
TASK_ENTRIES = 2048  # of a long row, per block: some microseconds of work, long against a block's start
_PIECE = 1 << 15  # row pointers of which lengths are computed at a time
_SAMPLE, _SAMPLE_ENTRIES = 64, 64  # rows, and entries per row, from which the grid of a matrix is inferred
_LEAST_LINE = 32  # rows: shorter lines fit a unit


def count_pieces(n_rows: int, rows: int) -> int:
    """Count the pieces of a matrix in blocks of `rows` rows."""
    return ceil_div(n_rows, rows * WARP * _ROUNDS)


def kernel_of(name: str, index: str, dtype: str = "float64") -> Kernel:
    """Describe one of the `KERNELS` for indices of a type, and entries of another."""
    types = {"Index": {"int32": "int", "int64": "long long"}[index], "Real": c_type(dtype)}
    return kernel(f"sparse/spmmv_{name}", {"ROUNDS": _ROUNDS, "WARPS": _WARPS}, types)


def launch(
    load: Load, name: str, indptr: Array, n_warps: int, *arguments: Any, dtype: str = "float64"
) -> None:
    """Queue one of the `KERNELS`, which takes the row pointers, the number of rows, and then `arguments`.

    These are numbers of NumPy, arrays, and None in the place of an array.
    """
    given = (a if isinstance(a, np.generic) else address(a) for a in arguments)
    rows = address(indptr), np.int64(len(indptr) - 1)
    function = load(kernel_of(name, indptr.dtype.name, dtype))
    function((ceil_div(n_warps, _WARPS), 1), (WARP * _WARPS,), (*rows, *given))


def diagonal(indptr: Array, indices: Array, data: Array, load: Load) -> Array:
    """Compute the diagonal of a Hermitian matrix of the GPU, in double precision, on the GPU."""
    n_rows, dtype = len(indptr) - 1, data.dtype.name
    values, parts = namespace(indptr).empty(n_rows, np.float64), np.int32(1 + is_complex(dtype))
    if n_rows:
        pieces = count_pieces(n_rows, WARP)
        launch(load, "diagonal", indptr, pieces, indices, data, parts, values, dtype=dtype)
    return values


def add_up(counts: Array) -> tuple[Array, list[int]]:
    """Compute the sums of counts over the pieces before each, on their device, and over all; waits for it."""
    found = to_host(counts)
    sums = np.cumsum(found, axis=0)
    return namespace(counts).asarray(sums - found), sums[-1].tolist()


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
    n_pieces = count_pieces(n_rows, rows)
    shape = tuple(map(np.int32, (rows, entries, long_row, TASK_ENTRIES)))
    counts = empty((n_pieces, 4), np.int64)
    launch(load, "units", indptr, n_pieces, *shape, None, counts, None, None, None)
    before, (n_units, n_tasks, n_sums, slots) = add_up(counts)
    if n_tasks == 0 and n_units == ceil_div(n_rows, rows):
        return Units(None, n_units)
    cuts = empty(n_units + 1, indptr.dtype)
    tasks, sums = (empty((n, 4), np.int64) if n else None for n in (n_tasks, n_sums))
    launch(load, "units", indptr, n_pieces, *shape, before, None, cuts, tasks, sums)
    return Units(cuts, n_units, tasks, sums, slots)


class Structure(NamedTuple):
    """Properties of a matrix that the distribution of its rows depends on."""

    longest: int  # entries of the longest row
    # Rows per line of the matrix's grid: the least distance, beyond the next rows, at which most rows have
    # entries; 0 if there is none.
    line: int
    plane: int  # rows per plane of the grid: the next such distance, beyond the neighbours of the next line


def structure_of(indptr: Array, indices: Array, load: Load | None = None) -> Structure:
    """Determine the structure of a matrix; waits for the device that it is on.

    Distances between neighbouring lines and planes are inferred from a sample of rows. `load` loads the
    kernel that looks at the rows where they are; by default the host does.
    """
    n_rows = len(indptr) - 1
    has_grid = n_rows >= _SAMPLE * _LEAST_LINE and len(indices) > 0
    if load is None or n_rows == 0:
        longest, distances = _on_host(to_host(indptr), indices, has_grid)
    else:
        longest, distances = _on_device(indptr, indices, has_grid, load)
    found, counts = np.unique(distances, return_counts=True)
    usual = found[(counts >= _SAMPLE // 2) & (found >= _LEAST_LINE)]
    # A grid with diagonal neighbours also has the adjacent distances.
    line = _middle_of_run(usual, 1)
    return Structure(longest, line, _middle_of_run(usual[usual > 2 * line], 2 * line))


def _on_host(starts: Any, indices: Array, has_grid: bool) -> tuple[int, Any]:
    """Find the longest row, and the distances |column - row| of the entries of sampled rows."""
    n_rows = len(starts) - 1
    parts = (starts[row : row + _PIECE + 1] for row in range(0, n_rows, _PIECE))  # which stay in a cache
    longest = max((int(np.diff(part).max()) for part in parts), default=0)
    if not has_grid:
        return longest, np.zeros(0, np.int64)
    columns, distances = to_host(indices), []
    for row in [sample * (n_rows - 1) // (_SAMPLE - 1) for sample in range(_SAMPLE)]:
        begin, end = starts[row : row + 2].tolist()
        distances.append(abs(columns[begin : min(end, begin + _SAMPLE_ENTRIES)].astype(np.int64) - row))
    return longest, np.concatenate(distances)


def _on_device(indptr: Array, indices: Array, has_grid: bool, load: Load) -> tuple[int, Any]:
    """Find the same by a kernel; distances of -1 take the places of entries that rows do not have."""
    n_pieces, samples = count_pieces(len(indptr) - 1, WARP), _SAMPLE if has_grid else 0
    found = namespace(indptr).empty(n_pieces + samples * _SAMPLE_ENTRIES, np.int64)
    extents = np.int64(n_pieces), np.int32(samples), np.int32(_SAMPLE_ENTRIES)
    launch(load, "structure", indptr, n_pieces + samples, indices, *extents, found)
    numbers = to_host(found)
    return int(numbers[:n_pieces].max()), numbers[n_pieces:]


def _middle_of_run(numbers: Any, gap: int) -> int:
    """Find the middle of the first run of ascending numbers at most `gap` apart; 0 if there is none."""
    if len(numbers) == 0:
        return 0
    run = numbers[: int(np.argmax(np.append(np.diff(numbers) > gap, True))) + 1]
    return int(run[len(run) // 2])
