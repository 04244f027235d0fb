"""The structure of a sparse matrix: the length of its longest row, and the grid that its rows may be on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..limits import WARP
from . import pieces
from .arrays import Array, Load, namespace, to_host

_PIECE = 1 << 15  # row pointers of which lengths are computed at a time
_SAMPLE, _SAMPLE_ENTRIES = 64, 64  # rows, and entries per row, from which the grid of a matrix is inferred
_LEAST_LINE = 32  # rows: shorter lines fit a unit


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
    n_pieces, samples = pieces.count_pieces(len(indptr) - 1, WARP), _SAMPLE if has_grid else 0
    found = namespace(indptr).empty(n_pieces + samples * _SAMPLE_ENTRIES, np.int64)
    extents = np.int64(n_pieces), np.int32(samples), np.int32(_SAMPLE_ENTRIES)
    pieces.launch(load, "structure", indptr, n_pieces + samples, indices, *extents, found)
    numbers = to_host(found)
    return int(numbers[:n_pieces].max()), numbers[n_pieces:]


def _middle_of_run(numbers: Any, gap: int) -> int:
    """Find the middle of the first run of ascending numbers at most `gap` apart; 0 if there is none."""
    if len(numbers) == 0:
        return 0
    run = numbers[: int(np.argmax(np.append(np.diff(numbers) > gap, True))) + 1]
    return int(run[len(run) // 2])
