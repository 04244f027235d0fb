"""Products with chains that are not stored: the curated configurations, and a model of their time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..family import Model
from ..limits import (
    CLOCK_HZ,
    LAUNCH_S,
    LINE_BYTES,
    MEMORY_LATENCY_S,
    QUADRANTS,
    WARP,
    ceil_div,
    covered_rate,
    smooth_max,
)
from ..problem import SpmmvProblem, itemsize
from ..roofline import Ceilings, memory_time, traffic
from .chain import ChainConfig
from .interface import are_aligned, pack_bytes, row_entries, widest_pack
from .model import H200_CEILINGS

_TILE_BYTES = 128  # of X per row and launch, at most: with pieces of lines L2 would hold half as many rows
_L2_BYTES_PER_S, _FAR_BYTES_PER_S = 7.0e12, 3.6e12  # reads from L2, and those that L2 misses, on an H200
_L2_SHARE = 0.5  # of L2 that rows of X stay in, beside Y and copies for the other half of the device
_FAR = 0.75  # hops per row and doubling of X beyond twice that share, which L2 misses
_HOPS = 0.52  # hops per bond: half of all bonds have unequal ends at half filling
_L2_LATENCY_S = 0.6e-6  # of loads under load
_LOADING = 0.6  # share of its time in which a thread has loads in flight
_UNEQUAL = 0.5  # blocks of rows that a thread block has more than the mean
_INSTRUCTIONS = 60, 6  # of a lane per row, and per hop


@frozen
class Recipe:
    """A configuration but for the width and the types; the names are those of the configuration."""

    vectors: int
    low: int
    unroll: int
    blocks: int


# Of 288 recipes; the others would gain 0.6 per cent of the predicted time in the geometric mean of 207 drawn
# products, and 14 per cent at the most (2^24 rows, three columns).
RECIPES: Sequence[Recipe] = (
    Recipe(1, 10, 4, 2),
    Recipe(1, 10, 4, 3),
    Recipe(1, 11, 4, 2),
    Recipe(1, 11, 4, 3),
    Recipe(1, 12, 4, 2),
    Recipe(1, 12, 4, 3),
    Recipe(1, 12, 4, 4),
    Recipe(1, 13, 4, 2),
    Recipe(1, 13, 4, 3),
    Recipe(1, 13, 4, 4),
    Recipe(1, 14, 4, 2),
    Recipe(2, 10, 2, 2),
    Recipe(2, 10, 4, 2),
    Recipe(2, 11, 4, 2),
    Recipe(2, 12, 2, 2),
    Recipe(3, 13, 2, 2),
    Recipe(3, 13, 4, 2),
    Recipe(3, 13, 4, 3),
)
# Packs of four columns with several fused sums take the registers of more hops in flight.
SPARE: Sequence[Recipe] = tuple(
    Recipe(1, low, 2, blocks) for low in (10, 11, 12, 13, 14) for blocks in (2, 1)
)


class SpmmvChainModel(Model[SpmmvProblem, ChainConfig, Recipe]):
    """The model of `spmmv_chain`."""

    recipes = RECIPES
    spare = SPARE

    def configure(self, problem: SpmmvProblem, recipe: Recipe, device: DeviceInfo) -> ChainConfig | None:
        vector = widest_pack(problem)
        packs = min(problem.width // vector, max(1, _TILE_BYTES // (vector * itemsize(problem.dtype_x))))
        lanes = ceil_div(packs, recipe.vectors)
        if packs % recipe.vectors or lanes > WARP:
            return None
        aligned_x, aligned_y = are_aligned(problem, vector)
        shape = lanes, recipe.vectors, vector, recipe.low, recipe.unroll
        return ChainConfig(*shape, blocks=recipe.blocks, aligned_x=aligned_x, aligned_y=aligned_y)

    def predict(
        self,
        problem: SpmmvProblem,
        config: ChainConfig,
        device: DeviceInfo,
        ceilings: Ceilings | None = None,
    ) -> float:
        """Predict the time of a valid configuration in seconds.

        The slowest of four resources, smoothed where two are close: memory, L2, shared memory, and the issue
        of instructions; and the time in which a thread block has nothing to do but wait for its rows of X.
        """
        tiles = ceil_div(problem.width, config.tile)
        row = problem.width * itemsize(problem.dtype_x) / tiles
        hops = max(0.0, row_entries(problem) - 1)
        inner = min(hops, _HOPS * (config.low - 1))
        kept = _L2_SHARE * device.l2_bytes
        far = min(hops - inner, _FAR * max(0.0, math.log2(problem.n_rows * row / kept) - 1))
        rows, threads = problem.n_rows * tiles, WARP * config.warps * config.blocks
        pack = pack_bytes(problem, config.vector)[0]
        memory = (
            memory_time(traffic(problem), ceilings or H200_CEILINGS) + rows * far * row / _FAR_BYTES_PER_S
        )
        flight = _LOADING * threads * (config.unroll + 1) * config.vectors * pack
        l2_rate = covered_rate(_L2_BYTES_PER_S / device.multiprocessors, flight, _L2_LATENCY_S)
        from_l2 = rows * ((1 + hops - inner) * row + 2 * config.record) / (device.multiprocessors * l2_rate)
        lines = row / LINE_BYTES
        cycles = lines * ((inner + 2) * _conflicts(config, pack) + (hops - inner) * config.vectors + 1)
        once, each = _INSTRUCTIONS
        issued = (
            (once + each * (hops + 1) * config.vectors * config.vector) / (WARP // config.lanes) / QUADRANTS
        )
        per_s = device.multiprocessors * CLOCK_HZ
        shares = device.multiprocessors * config.blocks
        visits = max(1.0, rows / (0.6 * config.most_rows * shares))
        waits = visits * 2 * MEMORY_LATENCY_S / config.blocks
        busy = smooth_max(memory, from_l2, rows * cycles / per_s, rows * issued / per_s, sharpness=4)
        return LAUNCH_S * tiles + busy * (1 + _UNEQUAL / visits) + waits


def _conflicts(config: ChainConfig, pack: int) -> float:
    """Estimate the cycles per 128 bytes of rows of X at random positions in shared memory.

    The pieces of as many rows as make up 128 bytes are read at a time; a row begins at one of few banks.
    """
    together = max(1, LINE_BYTES // (config.lanes * pack))
    places = LINE_BYTES // math.gcd(config.tile // config.vector * pack, LINE_BYTES)
    return 1.0 if together == 1 else max(1.0, together / places) + 0.5
