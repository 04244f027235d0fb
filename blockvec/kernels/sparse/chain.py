"""Products with a chain of spins or electrons that is not stored: Y = alpha (H - shift I) X + beta Y.

Thread blocks process blocks of rows (`chain_plan`), with the rows of X that a block shares in shared memory
(``cuda/sparse/spmmv_chain.cu``).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..limits import WARP, ceil_div, excess, round_up
from ..problem import SpmmvProblem, is_complex, itemsize, promote
from ..source import Kernel, constants_of, kernel
from .arrays import address
from .chain_plan import CROSSINGS, Blocks, Chain, Numbers, blocks_of, dealt
from .family import SparseFamily
from .interface import (
    LaneConfig,
    alignment,
    bind_with_sums,
    codes,
    constants,
    partial_bytes,
    totals_kernel,
    types_of,
    widest_pack,
)

_STATIC_SHARED_BYTES = 66 * 16 + 8  # where the other blocks are
_ROWS = np.dtype(
    [
        *(("first", np.int64), ("count", np.int32), ("record", np.int32), ("outer", np.int32)),
        *(("outers", np.int32), ("mask", np.uint32), ("outside", np.int32)),
        ("crossing", np.uint32, CROSSINGS),
    ]
)
"""A block of rows, as the kernel reads it."""


@frozen
class ChainConfig(LaneConfig):
    """A configuration of the kernel, of which a launch takes the columns of a block."""

    low: int  # lower bits of a state, where the chain has so many: they determine the rows of a block
    unroll: int = 4  # hops whose rows of X are in flight
    # Warps per block, blocks per multiprocessor.
    warps: int = 8
    blocks: int = 2

    @property
    def record(self) -> int:
        """Numbers of a record: hops among the lower bits, crossings, one for the diagonal."""
        return round_up(self.low + CROSSINGS + 1, 8)

    @property
    def most_rows(self) -> int:
        return math.comb(self.low, self.low // 2)


class ChainPlan:
    """A chain and its tables, for each number of lower bits and of thread blocks, copied by `asarray`.

    `bound` are launches and their bytes of workspace, by family and problem.
    """

    coded = False

    def __init__(self, chain: Chain, asarray: Callable[[Numbers], Any] = np.asarray) -> None:
        self.chain, self._asarray, self.pattern = chain, asarray, chain.pattern
        self.shape, self.longest, self.scaled = chain.shape, chain.longest, chain.scaled
        self.index_bytes = chain.index_bytes
        self._tables: dict[tuple[int, int], tuple[list[Any], int, int]] = {}
        self._lock = threading.Lock()
        self.bound: dict[tuple[str, SpmmvProblem], tuple[Callable[..., None], int]] = {}

    def tables(self, config: ChainConfig, device: DeviceInfo) -> tuple[list[Any], int, int]:
        """Make the tables of `pack` for a configuration, once; with the numbers of blocks and of the grid."""
        key = config.low, config.blocks * device.multiprocessors
        with self._lock:
            if key not in self._tables:
                blocks = blocks_of(self.chain, min(config.low, self.chain.sites))
                grid = min(len(blocks.kind), key[1])
                arrays = [self._asarray(array) for array in pack(blocks, self.chain, config, grid)]
                self._tables[key] = arrays, len(blocks.kind), grid
            return self._tables[key]


def pack(blocks: Blocks, chain: Chain, config: ChainConfig, grid: int) -> tuple[Numbers, Numbers, Numbers]:
    """Pack blocks, dealt out to `grid` thread blocks, their hops and the records of all kinds."""
    spins, kinds, length = chain.pattern == "spins", blocks.kinds, config.record
    records = np.full((sum(kind.rows for kind in kinds), length), config.most_rows, np.uint16)
    starts = np.cumsum([0, *(kind.rows for kind in kinds)])
    for kind, start in zip(kinds, starts, strict=False):
        rows = records[start : start + kind.rows]
        hops = kind.inner | (kind.signs < 0) << 15
        rows[:, : hops.shape[1]] = np.where(kind.inner < 0, config.most_rows, hops)
        rows[:, length - CROSSINGS - 1 : -1] = kind.crossings | kind.occupied << 15
        rows[:, -1] = kind.inside if spins else kind.mark
    packed, rows = np.zeros(len(blocks.kind), _ROWS), np.diff(blocks.starts)
    order = dealt(blocks.order, rows, grid)
    place = np.argsort(order)
    packed["first"], packed["count"] = blocks.starts[:-1], rows
    packed["record"] = starts[blocks.kind]
    packed["outer"], packed["outers"] = blocks.outer_starts[:-1], np.diff(blocks.outer_starts)
    packed["mask"], packed["outside"] = blocks.mask, blocks.outside
    packed["crossing"] = 4 * place[blocks.crossings] + 2 * (blocks.crossing_signs < 0) + blocks.occupied
    outer = (2 * place[blocks.outer] + (blocks.outer_signs < 0)).astype(np.uint32)
    return packed[order].view(np.uint8), outer, records


@frozen
class Recipe:
    """A configuration but for the width and the types; the names are those of the configuration."""

    vectors: int
    low: int
    unroll: int
    blocks: int


# In order of preference. Of 288 recipes; a model of their times would gain 0.8 per cent by others in the
# geometric mean of drawn products on an H200, and 13 per cent at the most (2^12 rows, three columns).
RECIPES: Sequence[Recipe] = (
    Recipe(3, 13, 4, 3),
    Recipe(3, 13, 4, 2),
    Recipe(1, 13, 4, 4),
    Recipe(1, 13, 4, 3),
    Recipe(1, 12, 4, 3),
    Recipe(1, 11, 4, 3),
    Recipe(1, 11, 4, 2),
    Recipe(1, 10, 4, 3),
)
# Packs of four columns with several fused sums take the registers of more hops in flight.
SPARE: Sequence[Recipe] = tuple(
    Recipe(1, low, 2, blocks) for low in (10, 11, 12, 13, 14) for blocks in (2, 1)
)

_TILE_BYTES = 128  # of X per row and launch, at most: with pieces of lines L2 would hold half as many rows


class SpmmvChain(SparseFamily[ChainConfig]):
    """The family ``spmmv_chain``: products with chains, whose elements the kernel computes."""

    name = "spmmv_chain"
    stored = False
    recipes, spare = RECIPES, SPARE

    def refuse_problem(self, problem: SpmmvProblem, device: DeviceInfo) -> str | None:
        if problem.stored:
            return "takes chains of spins or electrons alone"
        if reason := super().refuse_problem(problem, device):
            return reason
        return "Gram matrices are made on their own" if problem.gram else None

    def refuse(self, problem: SpmmvProblem, config: ChainConfig, device: DeviceInfo) -> str | None:
        shared = shared_bytes(problem, config) + _STATIC_SHARED_BYTES
        return excess(WARP * config.warps, config.blocks, registers(problem, config), shared, device)

    def configure(self, problem: SpmmvProblem, recipe: Recipe, device: DeviceInfo) -> ChainConfig | None:
        vector = widest_pack(problem)
        packs = min(problem.width // vector, max(1, _TILE_BYTES // (vector * itemsize(problem.dtype_x))))
        lanes = ceil_div(packs, recipe.vectors)
        if packs % recipe.vectors or lanes > WARP:
            return None
        shape = lanes, recipe.vectors, vector, recipe.low, recipe.unroll
        return ChainConfig(*shape, blocks=recipe.blocks, **alignment(problem, vector))

    def kernels(
        self, problem: SpmmvProblem, config: ChainConfig, device: DeviceInfo, plan: Any = None
    ) -> dict[str, Kernel]:
        name = self.kernel_name(problem)
        values = constants(problem, config, *codes(problem))
        values |= {"SHIFTED": values["SHIFT"], "SHIFT": 0, "ELECTRONS": problem.pattern == "electrons"}
        values |= constants_of(config, "unroll", "warps", "blocks")
        values |= {"RECORD": config.record, "MOST_ROWS": config.most_rows}
        shared = shared_bytes(problem, config)
        rows = kernel("sparse/spmmv_chain", values, types_of(problem), name, shared_bytes=shared)
        return {"rows": rows} | totals_kernel(problem, name)

    def workspace_bytes(
        self, problem: SpmmvProblem, config: ChainConfig, device: DeviceInfo, plan: Any
    ) -> int:
        grid: int = plan.tables(config, device)[2]
        return grid * partial_bytes(problem)

    def bind(
        self,
        kernels: Mapping[str, Any],
        problem: SpmmvProblem,
        config: ChainConfig,
        device: DeviceInfo,
        plan: Any,
    ) -> Callable[..., None]:
        (tables, n_blocks, grid), chain = plan.tables(config, device), plan.chain
        shared = shared_bytes(problem, config)
        needed = self.workspace_bytes(problem, config, device, plan)
        real = np.dtype(problem.dtype_matrix).type
        elements = float(real(chain.hop)), float(real(chain.diagonal))
        fixed = *map(address, tables), np.int32(n_blocks), np.int32(chain.n_bonds), *elements
        tiles = [np.int32(tile) for tile in range(ceil_div(problem.width, config.tile))]
        rows, threads = kernels["rows"], (WARP * config.warps,)

        def queue(workspace_ptr: int, given: tuple[Any, ...]) -> None:
            # One after the other, so that rows of X that L2 holds are those of one tile.
            for tile in tiles:
                rows((grid, 1), threads, (*fixed, tile, workspace_ptr, *given), shared)

        return bind_with_sums("spmmv_chain", problem, needed, grid, kernels.get("totals"), queue)


def shared_bytes(problem: SpmmvProblem, config: ChainConfig) -> int:
    """Compute the dynamic shared memory of a block: rows of X and of zeros, or the dots of its groups."""
    groups = config.warps * (WARP // config.lanes)
    dots = groups * len(problem.dots) * config.tile * itemsize(promote(problem.dtype, "float64"))
    return max((config.most_rows + 1) * config.tile * itemsize(problem.dtype_x), dots)


def registers(problem: SpmmvProblem, config: ChainConfig) -> int:
    """Estimate the registers per thread."""
    elements = config.vectors * config.vector
    pack_x, pack_y = elements * itemsize(problem.dtype_x) // 4, elements * itemsize(problem.dtype) // 4
    fused = pack_y * ((problem.beta != "zero") + (problem.chain in ("one", "general")))
    fused += elements * sum(4 if kind == "xy" and is_complex(problem.dtype) else 2 for kind in problem.dots)
    partial = 4 + 4 * config.vectors if problem.width % config.tile else 0  # a lane may have fewer packs
    around = 32 + 4 * config.vectors + 6 * bool(problem.dots) + 4 * is_complex(problem.dtype)
    return (config.unroll + CROSSINGS) * pack_x + 2 * pack_y + fused + partial + config.record // 2 + around
