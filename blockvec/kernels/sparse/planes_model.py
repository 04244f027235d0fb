"""SpMMV by plane sweeps: the configurations worth measuring, and a model of their time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from ..device import DeviceInfo
from ..family import Model
from ..limits import BANK_ROW_BYTES, CLOCK_HZ, WARP, ceil_div
from ..problem import SpmmvProblem, itemsize
from ..roofline import Ceilings, memory_time, traffic
from .interface import are_aligned, row_entries
from .model import H200_CEILINGS
from .planes import PIECE, PlanesConfig, refuse
from .planes_plan import geometry

_TILE_PACKS = range(4, 17)  # per row of X: wider tiles leave no room for patches in the ring
_MOST_VECTORS = 8
_PATCHES = ((16, 8), (8, 8), (8, 7), (16, 7), (16, 6), (12, 8), (8, 6))
_LANES = (2, 4, 8)
_UNROLLS = (1, 2, 3, 4, 7)

# Fitted to forty configurations of stencils of 7 and 27 points on an H200, within 3 per cent (one sigma):
_LAUNCH_S = 4e-6  # seconds: a launch, and the first steps, which only load rows of X
_ENTRY = 0.7  # cycles to load an entry's slot and value for the rows of a warp
_BATCH = 61.0  # cycles that a batch of entries waits for the first of them
_STEP = 1460.0  # further cycles per step of a block
_OF_MEMORY = 0.8
_OF_BALANCE = 0.4  # exponent: while few blocks are still running, they share the memory bandwidth


class SpmmvPlanesModel(Model[SpmmvProblem, PlanesConfig]):
    """The search space of `spmmv_planes` and the modelled time of its configurations."""

    def space(self, problem: SpmmvProblem, device: DeviceInfo) -> Iterator[PlanesConfig]:
        """Yield the configurations worth measuring; some may be refused."""
        vector = PIECE // itemsize(problem.dtype_x)
        _, aligned_y = are_aligned(problem, vector)
        packs = problem.width // vector
        for tile, lanes in itertools.product(_TILE_PACKS, _LANES):
            if packs % tile or tile % lanes or tile // lanes > _MOST_VECTORS:
                continue
            for unroll, (across, lines) in itertools.product(_UNROLLS, _PATCHES):
                yield PlanesConfig(
                    *(lanes, tile // lanes, vector, unroll, across, lines, max(1, problem.longest)),
                    aligned_y=aligned_y,
                )

    def predict(
        self,
        problem: SpmmvProblem,
        config: PlanesConfig,
        device: DeviceInfo,
        ceilings: Ceilings | None = None,
    ) -> float:
        """Predict the time of a valid configuration in seconds.

        Memory and shared memory overlap only in part: the root of the sum of their squares, increased where
        some blocks have more work than others. The grid is assumed to be a cube, as a problem does not
        contain its extents.
        """
        average, tiles = row_entries(problem), ceil_div(problem.width, config.tile)
        points, programs = config.across * config.lines, device.multiprocessors * config.blocks // tiles
        row = config.tile * itemsize(problem.dtype_x)
        entry = row + 2 * (itemsize(problem.dtype_matrix) + 2)  # bytes: staged data is written and read
        served = average * (entry / BANK_ROW_BYTES + _ENTRY * config.lanes / WARP)
        rounds = ceil_div(points * config.lanes, WARP * config.warps)
        waited = (_BATCH * rounds * math.ceil(average / config.unroll) + _STEP) / points / config.blocks
        shared = problem.n_rows * tiles / device.multiprocessors * (served + waited) / CLOCK_HZ
        side, patch = max(1, round(problem.n_rows ** (1 / 3))), (config.across, config.lines)
        sweep = geometry(problem.n_rows, side, side * side, patch, config.entries, max(1, programs))
        both = math.hypot(_OF_MEMORY * memory_time(traffic(problem), ceilings or H200_CEILINGS), shared)
        return float(_LAUNCH_S + sweep.balance**_OF_BALANCE * both)

    def choose(
        self, problem: SpmmvProblem, device: DeviceInfo, ceilings: Ceilings | None = None
    ) -> PlanesConfig:
        """Choose the valid configuration with the shortest predicted time; the problem is supported."""
        space = dict.fromkeys(self.space(problem, device))
        valid = [config for config in space if refuse(problem, config, device) is None]
        return min(valid, key=lambda config: self.predict(problem, config, device, ceilings))
