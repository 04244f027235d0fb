"""SpMMV on SELL-C matrices: the curated configurations, and a model of their time."""

from __future__ import annotations

import math

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..family import Model
from ..limits import CLOCK_HZ, LAUNCH_S, LINE_BYTES, smooth_max
from ..problem import SpmmvProblem, itemsize
from ..roofline import Ceilings, memory_time
from .interface import are_aligned, entry_bytes, row_entries, widest_pack
from .model import H200_CEILINGS, l2_requests, stored_traffic, unroll_of
from .sell import CHUNK, SellConfig


@frozen
class Recipe:
    """A configuration but for the width, the types and the lengths of rows; `unroll` is the most."""

    unroll: int
    warps: int
    blocks: int


# Of 36 recipes; in 228 drawn products no choice is another without the rest.
RECIPES = tuple(
    Recipe(unroll, *block) for unroll in (8, 5, 3) for block in ((8, 4), (4, 10), (8, 3), (4, 12), (8, 2))
)

# Wide rows of X with fused operands take the registers of all but one block of few warps.
SPARE = tuple(Recipe(unroll, 8, 1) for unroll in (8, 5, 3))

# Fitted to some thousand runs over stencils, lattice models and a band on an H200:
_ATTAINED = 0.88  # of the memory bandwidth
_SHARED = 0.76  # cycles of the L1 pipe per line or 128 bytes
_L2_REQUESTS_PER_SECOND = 165e9  # lines
_ENTRY_S = 5.2e-9  # per entry of a chunk, if its warp were alone and gathered one row of X at a time
_IN_FLIGHT = 0.45  # exponent of the gain by more entries in flight; more warps gain in proportion
_SHARPNESS = 4  # of the smoothed maximum of four resources


class SpmmvSellModel(Model[SpmmvProblem, SellConfig, Recipe]):
    """The model of `spmmv_sell`."""

    recipes = RECIPES
    spare = SPARE

    def configure(self, problem: SpmmvProblem, recipe: Recipe, device: DeviceInfo) -> SellConfig:
        vector = widest_pack(problem)
        aligned_x, aligned_y = are_aligned(problem, vector)
        return SellConfig(
            vectors=problem.width // vector,
            vector=vector,
            unroll=unroll_of(row_entries(problem), recipe.unroll),
            warps=recipe.warps,
            blocks=recipe.blocks,
            # Blocks that start in order stay closer together, which favours scattered rows of X.
            persistent=problem.pattern != "scattered",
            aligned_x=aligned_x,
            aligned_y=aligned_y,
        )

    def predict(
        self,
        problem: SpmmvProblem,
        config: SellConfig,
        device: DeviceInfo,
        ceilings: Ceilings | None = None,
    ) -> float:
        """Predict the time of a valid configuration in seconds.

        The slowest of four resources, smoothed where two are close: memory, lookups in L2, the L1 pipe, and
        the latency of gathers, the only one that depends on the configuration.
        """
        row, average = problem.width * itemsize(problem.dtype_x), row_entries(problem)
        chunks = problem.n_rows / CHUNK / device.multiprocessors
        lines = CHUNK if problem.pattern == "scattered" else min(CHUNK, math.ceil(CHUNK * row / LINE_BYTES))
        entry = CHUNK * entry_bytes(problem) / LINE_BYTES
        in_flight = max(1.0, average / max(1, math.ceil(average / config.unroll)))
        warps = config.warps * config.blocks
        return LAUNCH_S + smooth_max(
            memory_time(stored_traffic(problem), ceilings or H200_CEILINGS) / _ATTAINED,
            l2_requests(problem) / _L2_REQUESTS_PER_SECOND,
            _SHARED * chunks * average * (entry + config.vectors * lines) / CLOCK_HZ,
            _ENTRY_S * chunks * average / (warps * in_flight**_IN_FLIGHT),
            sharpness=_SHARPNESS,
        )
