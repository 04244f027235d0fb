"""Plane sweeps: how blocks process a grid of planes, and the plan of a sweep for one matrix.

The geometry is that of ``cuda/sparse/spmmv_planes.cuh``. Everything here accepts NumPy and CuPy arrays.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from ...system.frozen import frozen
from ..limits import ceil_div
from .arrays import Array

BEFORE = 2  # steps of a unit that only load rows of X
_COST_BEFORE = 1.5  # their cost, in steps
_MOST_LAYERS = 64


@frozen
class Geometry:
    """A grid of planes divided into units, and these distributed over blocks.

    Attributes
    ----------
    n_rows, line, plane : int
        Rows of the matrix, of a line, and of a plane of its grid.
    across, lines, entries : int
        As in `planes.PlanesConfig`.
    depth : int
        Planes per unit.
    programs : int
        Blocks that sweep, per tile of columns.
    """

    n_rows: int
    line: int
    plane: int
    across: int
    lines: int
    entries: int
    depth: int
    programs: int

    @property
    def planes(self) -> int:
        """Planes of the grid."""
        return ceil_div(self.n_rows, self.plane)

    @property
    def patches(self) -> int:
        """Patches per plane."""
        return ceil_div(self.line, self.across) * ceil_div(ceil_div(self.plane, self.line), self.lines)

    @property
    def steps(self) -> int:
        """Steps of all units."""
        return self.patches * (self.planes + BEFORE * ceil_div(self.planes, self.depth))

    @property
    def balance(self) -> float:
        """Work of the busiest block, relative to an equal share without losses."""
        turns = ceil_div(self.patches * ceil_div(self.planes, self.depth), self.programs)
        points = self.across * self.lines * self.programs
        return turns * (self.depth + _COST_BEFORE) * points / self.n_rows

    def arguments(self) -> tuple[np.int32, ...]:
        """Compute the arguments of the kernels that sweep."""
        numbers = self.n_rows, self.line, self.plane, self.depth, self.programs
        return tuple(map(np.int32, numbers))


@functools.lru_cache(maxsize=4096)
def geometry(
    n_rows: int, line: int, plane: int, patch: tuple[int, int], entries: int, programs: int
) -> Geometry:
    """Choose the depth of units of `patch` points that balances the work of the blocks best."""
    planes = ceil_div(n_rows, plane)
    depths = {ceil_div(planes, layers) for layers in range(1, min(planes, _MOST_LAYERS) + 1)}
    every = [Geometry(n_rows, line, plane, *patch, entries, depth, programs) for depth in sorted(depths)]
    return min(every, key=lambda found: found.balance)


@dataclass(frozen=True, eq=False)
class SweepPlan:
    """The data that `spmmv_planes` needs beside a matrix in compressed rows.

    Attributes
    ----------
    geometry : Geometry
        The sweep.
    counts : array of int32, shape (steps,)
        Rows of X that each step loads.
    loads : array of int32, shape (steps, most rows per step)
        Their indices.
    slots : array of uint16, shape (nnz,)
        Slot of the ring with the row of X of each entry.
    """

    geometry: Geometry
    counts: Array
    loads: Array
    slots: Array
