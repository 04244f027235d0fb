"""SpMMV by plane sweeps: the curated configurations, and a model of their time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..family import Model
from ..limits import BANK_ROW_BYTES, CLOCK_HZ, WARP, ceil_div
from ..problem import SpmmvProblem, itemsize
from ..roofline import Ceilings, memory_time, traffic
from .interface import are_aligned, row_entries
from .model import H200_CEILINGS
from .planes import PIECE, PlanesConfig
from .planes_plan import geometry


@frozen
class Recipe:
    """A configuration but for the width and the types; `packs` per tile are shared by `lanes`."""

    packs: int
    lanes: int
    unroll: int
    across: int = 16
    lines: int = 8


# Of 260 recipes; the others would gain 0.7 per cent of the predicted time in the geometric mean of 83 drawn
# products, and 6.2 per cent at the most; on an H200 0.4 and 5.7.
RECIPES: Sequence[Recipe] = (
    Recipe(4, 2, 7, lines=7),
    Recipe(4, 4, 7, across=8),
    Recipe(4, 4, 7, across=8, lines=6),
    Recipe(6, 2, 4, lines=7),
    Recipe(6, 2, 4, across=8),
    Recipe(6, 2, 4, across=8, lines=6),
    Recipe(8, 2, 3, lines=7),
    Recipe(8, 4, 4, across=8),
    Recipe(8, 4, 4, across=8, lines=6),
    Recipe(10, 2, 2, across=12),
    Recipe(10, 2, 2, across=8),
    Recipe(10, 2, 2, across=8, lines=7),
    Recipe(12, 4, 4, across=8),
    Recipe(12, 4, 4, across=8, lines=6),
    Recipe(14, 2, 2, across=8, lines=7),
    Recipe(16, 4, 3, across=8),
    Recipe(16, 4, 3, across=8, lines=7),
)

# Fitted to forty configurations of stencils of 7 and 27 points on an H200, within 3 per cent (one sigma):
_LAUNCH_S = 4e-6  # seconds: a launch, and the first steps, which only load rows of X
_ENTRY = 0.7  # cycles to load an entry's slot and value for the rows of a warp
_BATCH = 61.0  # cycles that a batch of entries waits for the first of them
_STEP = 1460.0  # further cycles per step of a block
_OF_MEMORY = 0.8
_OF_BALANCE = 0.4  # exponent: while few blocks are still running, they share the memory bandwidth


class SpmmvPlanesModel(Model[SpmmvProblem, PlanesConfig, Recipe]):
    """The model of `spmmv_planes`."""

    recipes = RECIPES

    def configure(self, problem: SpmmvProblem, recipe: Recipe, device: DeviceInfo) -> PlanesConfig | None:
        """Make the configuration of a recipe for a problem; None if they do not fit."""
        vector = PIECE // itemsize(problem.dtype_x)
        if problem.width // vector % recipe.packs:
            return None
        mapping = recipe.lanes, recipe.packs // recipe.lanes, vector, recipe.unroll
        entries, aligned_y = max(1, problem.longest), are_aligned(problem, vector)[1]
        return PlanesConfig(*mapping, recipe.across, recipe.lines, entries, aligned_y=aligned_y)

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
