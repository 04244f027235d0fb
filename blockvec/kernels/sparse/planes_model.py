"""SpMMV that marches through a grid: the configurations worth a try, and a model of their time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from ..device import DeviceInfo
from ..problem import SpmmvProblem, itemsize
from ..roofline import Ceilings, memory_time, traffic
from .csr_config import WARP, ceil_div, row_entries
from .planes_config import PIECE, Config, refuse
from .planes_plan import geometry

__all__ = ["choose", "predict", "space"]

_TILE_PACKS = range(4, 17)  # of a row of X: wider tiles leave no room for patches in the ring
_MOST_VECTORS = 8
_PATCHES = ((16, 8), (8, 8), (8, 7), (16, 7), (16, 6), (12, 8), (8, 6))
_LANES = (2, 4, 8)
_UNROLLS = (1, 2, 3, 4, 7)

_CLOCK_HZ = 1.755e9  # a Hopper GPU under load
_LAUNCH_S = 4e-6
_LINE = 128  # bytes that shared memory serves in a cycle
# Fitted to forty configurations of stencils of 7 and 27 points on an H200, within 3 per cent (one sigma):
_ENTRY = 0.7  # cycles that fetch an entry's slot and value for the rows of a warp
_BATCH = 61.0  # cycles that a batch of entries waits for the first of them
_STEP = 1460.0  # cycles that a block takes for a step besides
_OF_MEMORY = 0.8
_OF_BALANCE = 0.4  # exponent: while some blocks are at work alone, memory is theirs


def space(problem: SpmmvProblem) -> Iterator[Config]:
    """Yield the configurations worth measuring, some of them not valid."""
    vector = PIECE // itemsize(problem.dtype_x)
    size_y = min(16, vector * itemsize(problem.dtype))
    aligned_y = min(problem.align_y, problem.align_z) % size_y == 0
    packs = problem.width // vector
    for tile, lanes in itertools.product(_TILE_PACKS, _LANES):
        if packs % tile or tile % lanes or tile // lanes > _MOST_VECTORS:
            continue
        for unroll, (across, lines) in itertools.product(_UNROLLS, _PATCHES):
            yield Config(
                *(lanes, tile // lanes, vector, unroll, across, lines, max(1, problem.longest)),
                aligned_y=aligned_y,
            )


def predict(
    problem: SpmmvProblem, config: Config, device: DeviceInfo, ceilings: Ceilings | None = None
) -> float:
    """Return the modelled time in seconds of a valid configuration.

    Memory and shared memory, which overlap in part only: the root of the sum of their squares, longer where
    some blocks have more to do than others. The grid is taken as a cube, as a problem does not say what it
    is.
    """
    rates = ceilings or Ceilings(4600.0, 3300.0, 4200.0)
    average, tiles = row_entries(problem), ceil_div(problem.width, config.tile)
    points, programs = config.across * config.lines, device.multiprocessors * config.blocks // tiles
    row = config.tile * itemsize(problem.dtype_x)
    entry = row + 2 * (itemsize(problem.dtype_matrix) + 2)  # bytes: what is staged is written and read
    served = average * (entry / _LINE + _ENTRY * config.lanes / WARP)
    rounds = ceil_div(points * config.lanes, WARP * config.warps)
    waited = (_BATCH * rounds * math.ceil(average / config.unroll) + _STEP) / points / config.blocks
    shared = problem.n_rows * tiles / device.multiprocessors * (served + waited) / _CLOCK_HZ
    side, patch = max(1, round(problem.n_rows ** (1 / 3))), (config.across, config.lines)
    marching = geometry(problem.n_rows, side, side * side, patch, config.entries, max(1, programs))
    both = math.hypot(_OF_MEMORY * memory_time(traffic(problem), rates), shared)
    return float(_LAUNCH_S + marching.balance**_OF_BALANCE * both)


def choose(problem: SpmmvProblem, device: DeviceInfo, ceilings: Ceilings | None = None) -> Config:
    """Return the valid configuration with the shortest modelled time; the problem must be supported."""
    valid = [c for c in dict.fromkeys(space(problem)) if refuse(problem, c, device) is None]
    return min(valid, key=lambda config: predict(problem, config, device, ceilings))
