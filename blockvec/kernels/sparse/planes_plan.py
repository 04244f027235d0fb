"""How blocks march through a grid of planes, and what a plan of that keeps for a matrix.

The geometry is that of ``spmmv_planes.cuh``. Everything here runs on whichever arrays it is given,
NumPy's or CuPy's.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from .csr_config import ceil_div
from .csr_plan import Array

__all__ = ["BEFORE", "Geometry", "March", "geometry"]

BEFORE = 2  # steps of a unit that only bring rows of X
_COST_BEFORE = 1.5  # what they cost, in steps
_MOST_LAYERS = 64


@dataclass(frozen=True, slots=True)
class Geometry:
    """A grid of planes cut into units, and these dealt out to blocks.

    Attributes
    ----------
    n_rows, line, plane : int
        Rows of the matrix, of a line, and of a plane of its grid.
    across, lines, entries : int
        As in `spmmv_march_config.Config`.
    depth : int
        Planes of a unit.
    programs : int
        Blocks that march.
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
        """Patches of a plane."""
        return ceil_div(self.line, self.across) * ceil_div(ceil_div(self.plane, self.line), self.lines)

    @property
    def steps(self) -> int:
        """Steps of all units."""
        return self.patches * (self.planes + BEFORE * ceil_div(self.planes, self.depth))

    @property
    def balance(self) -> float:
        """The work of the busiest block, relative to what each had if nothing was lost."""
        turns = ceil_div(self.patches * ceil_div(self.planes, self.depth), self.programs)
        points = self.across * self.lines * self.programs
        return turns * (self.depth + _COST_BEFORE) * points / self.n_rows

    def arguments(self) -> tuple[np.int32, ...]:
        """Return what the kernels that march take."""
        numbers = self.n_rows, self.line, self.plane, self.depth, self.programs
        return tuple(map(np.int32, numbers))


@functools.lru_cache(maxsize=4096)
def geometry(
    n_rows: int, line: int, plane: int, patch: tuple[int, int], entries: int, programs: int
) -> Geometry:
    """Return the units of a patch of `patch` points whose depth keeps blocks busiest."""
    planes = ceil_div(n_rows, plane)
    depths = {ceil_div(planes, layers) for layers in range(1, min(planes, _MOST_LAYERS) + 1)}
    every = [Geometry(n_rows, line, plane, *patch, entries, depth, programs) for depth in sorted(depths)]
    return min(every, key=lambda found: found.balance)


@dataclass(frozen=True, eq=False)
class March:
    """What `spmmv_march` needs of a matrix besides its rows.

    Attributes
    ----------
    geometry : Geometry
        The march.
    counts : array of int32, shape (steps,)
        Rows of X that each step brings.
    loads : array of int32, shape (steps, most rows brought)
        Which.
    slots : array of uint16, shape (nnz,)
        Where in the ring each entry finds its row of X.
    """

    geometry: Geometry
    counts: Array
    loads: Array
    slots: Array
