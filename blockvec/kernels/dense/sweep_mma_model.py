"""The curated configurations of sweeps and the model of their time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..family import Model
from ..limits import CLOCK_HZ, LAUNCH_S, RESERVED_SHARED_BYTES, ceil_div
from ..roofline import Ceilings, memory_time, traffic
from .sweep_mma import (
    STATIC_SHARED_BYTES,
    Shape,
    SweepLike,
    SweepMmaConfig,
    grid,
    layout,
    row_unit,
    shape_of,
)

_MAX_STAGES = 12


@frozen
class Recipe:
    """A configuration but for the widths.

    Attributes
    ----------
    warps, wc
        As in the configuration.
    tile_kb : int
        Kilobytes of rows of the basis per multiprocessor in a tile, about; 0 for the fewest rows.
    """

    warps: int
    wc: int
    tile_kb: int


# Of 80 recipes; the others would gain 0.1 per cent of the predicted time in the geometric mean of 467 drawn
# sweeps and products with wide blocks, and 4.1 per cent at the most.
RECIPES: Sequence[Recipe] = (
    Recipe(8, 1, 0),
    Recipe(8, 1, 32),
    Recipe(8, 2, 0),
    Recipe(8, 2, 32),
    Recipe(8, 2, 64),
    Recipe(8, 4, 0),
    Recipe(8, 4, 16),
    Recipe(8, 4, 32),
    Recipe(8, 4, 96),
    Recipe(8, 8, 0),
    Recipe(8, 8, 64),
    Recipe(8, 8, 96),
    Recipe(16, 1, 0),
    Recipe(16, 1, 16),
    Recipe(16, 2, 0),
    Recipe(16, 4, 32),
)


# Fitted to 350 timed configurations of 76 problems on an H200, in cycles; 8 per cent (RMS) off on others.
_CEILINGS = Ceilings(4680, 4570, 4260, {"float64": 65e3})
_MEMORY_RATE = 0.92  # of the ceilings that was reached
_MEMORY_LATENCY_S = 0.7e-6  # as fitted here, see limits.MEMORY_LATENCY_S
_FEW_STAGES = 0.03  # of that time, more: few large tiles are loaded in bursts
_MMA_CYCLES = 18  # of a quadrant's tensor pipe per m16n8k4, beside loads
_TURN_CYCLES = 350  # waiting for a tile, barriers, loops
_COPY_CYCLES = 40  # per bulk copy, of the warp that starts it
_PIECE_CYCLES = (
    100  # per copy of a piece by each thread, with its address: one row of the block at a time ...
)
_LONG_PIECE_CYCLES = 25  # ... and of neighbouring pieces of a basis
_SCALE_CYCLES = 470  # per product of SCALE, from loads to stores
_GRAM_CYCLES = 280  # per four rows of GRAM
_FINISH_CYCLES = 90  # to add up one element per thread, and as much again for every three partial results
_SHARPNESS = 8  # exponent of the norm that combines the limits


def _products(shape: Shape, config: SweepMmaConfig) -> int:
    """Count the tensor products of a warp in a tile of DOT or UPDATE."""
    wr, tiles = config.warps // config.wc, ceil_div(ceil_div(shape.M, shape.block), config.wc)
    if shape.dot:
        return ceil_div(config.rows // 4, wr) * tiles * shape.groups * shape.parts
    return config.rows // (shape.block * wr) * (tiles * shape.block // 4) * shape.outputs


def _copy_cycles(shape: Shape, config: SweepMmaConfig) -> float:
    """Estimate the cycles in which a warp starts its share of the copies of a tile."""
    threads, size = 32 * config.warps, 8 * shape.parts
    if shape.w_piece:
        cycles = _LONG_PIECE_CYCLES * ceil_div(config.rows * shape.M * size, shape.w_piece * threads)
    else:
        cycles = _COPY_CYCLES * ceil_div(config.rows, config.warps)
    if shape.reads_v:
        cycles += _PIECE_CYCLES * ceil_div(config.rows * shape.N * size, shape.v_piece * threads)
    return cycles


def _extra_cycles(shape: Shape, config: SweepMmaConfig) -> float:
    """Estimate the cycles of SCALE, the end of UPDATE, and GRAM."""
    cycles = 0.0
    if shape.scale:
        items = config.rows // shape.block * shape.outputs
        cycles += _SCALE_CYCLES * ceil_div(items, config.warps)
    if shape.update:
        elements = ceil_div(config.rows * shape.N, 32 * config.warps)
        cycles += _FINISH_CYCLES * elements * (1 + config.wc / 3)
    if shape.gram:
        cycles += _GRAM_CYCLES * ceil_div(config.rows // 4, config.warps)
    return cycles


class SweepMmaModel(Model[SweepLike, SweepMmaConfig, Recipe]):
    """The model of the sweeps' family."""

    recipes = RECIPES

    def configure(self, problem: SweepLike, recipe: Recipe, device: DeviceInfo) -> SweepMmaConfig | None:
        shape = shape_of(problem)
        if recipe.wc > ceil_div(shape.M, shape.block):
            return None
        unit = row_unit(shape, recipe.warps // recipe.wc)
        unit_bytes = unit * shape.M * 8 * shape.parts
        rows = max(1, round((recipe.tile_kb << 10) / unit_bytes)) * unit
        base = SweepMmaConfig(rows, 2, recipe.warps, recipe.wc)
        parts = layout(problem, base)
        reserved = STATIC_SHARED_BYTES + RESERVED_SHARED_BYTES + parts.after_bytes
        share = device.shared_bytes_per_multiprocessor - reserved
        return replace(base, stages=max(2, min(share // parts.stage_bytes, _MAX_STAGES)))

    def predict(
        self, problem: SweepLike, config: SweepMmaConfig, device: DeviceInfo, ceilings: Ceilings | None = None
    ) -> float:
        """Predict the time of a valid configuration in seconds.

        The time of a block per tile is the longer of its share of memory time and of its work, the sum of the
        tensor products of the busiest quadrant, copies, and the additional work of each mode.
        """
        shape = shape_of(problem)
        ceilings = ceilings or _CEILINGS
        blocks = grid(problem, config, device)
        tiles = ceil_div(shape.K, config.rows)
        turns = ceil_div(tiles, blocks)
        memory_s = memory_time(traffic(problem), ceilings) / _MEMORY_RATE * turns * blocks / tiles
        flight = (config.stages - 1) * config.rows * shape.M * 8 * shape.parts
        wanted = ceilings.read_gb_s * 1e9 / blocks * _MEMORY_LATENCY_S
        memory_s *= (1 + (wanted / flight) ** 4) ** 0.25 + _FEW_STAGES / (config.stages - 1)
        products = _products(shape, config) * ceil_div(config.warps, 4) * _MMA_CYCLES
        cycles = products + _TURN_CYCLES + _copy_cycles(shape, config) + _extra_cycles(shape, config)
        work_s = turns * cycles / CLOCK_HZ
        body: float = (memory_s**_SHARPNESS + work_s**_SHARPNESS) ** (1 / _SHARPNESS)
        tail = 2e-6 + 2 * blocks * shape.sum_bytes / 3e12 if shape.has_sum and blocks > 1 else 0.0
        return LAUNCH_S + _MEMORY_LATENCY_S + body + tail
