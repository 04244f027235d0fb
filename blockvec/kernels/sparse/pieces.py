"""Kernels that pass over the rows of a matrix, so that these are not copied to the host.

They find its structure and diagonal, divide its rows into units of bounded work and long rows into tasks, and
lay out chunks.

Each warp takes a piece of the rows and stores its counts, which the host adds up, or a number per row. Where
results depend on the pieces before, a second launch takes the sums over those. See
``cuda/sparse/spmmv_pieces.cuh``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..limits import WARP, ceil_div
from ..problem import is_complex
from ..source import Kernel, c_type, kernel
from .arrays import Array, Load, address, namespace, to_host

KERNELS = ("structure", "units", "layout", "diagonal")
_ROUNDS = 4  # blocks of rows per lane: of 32 rows each, 1e7 rows give a multiprocessor some 20 warps
_WARPS = 4  # per block of threads
TASK_ENTRIES = 2048  # of a long row, per block: some microseconds of work, long against a block's start


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
