"""The curated configurations of the multiply-add TSMTTSM and the model that orders them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..family import Model
from ..limits import CLOCK_HZ, MAX_REGISTERS, ceil_div, covered_rate, round_up, smooth_max
from ..problem import TsmttsmProblem, is_complex, itemsize, parts_of
from ..roofline import Ceilings
from .layout import MAX_WIDTH, Operand, shape_of, widest
from .tsmttsm_fma import (
    SCRATCH_BYTES,
    Plan,
    Sums,
    TsmttsmFmaConfig,
    grid_of,
    is_single,
    operands_of,
    plan_of,
    registers,
    tiles_of,
)
from .tsmttsm_mma_model import row_cycles as tensor_cycles

_MAX_WARPS = 8  # of a team
_DIRECT_STEPS = 4  # sets of rows that are loaded from memory at a time, without stages

TILES = {
    1: (1, 2),
    2: (1, 3),
    3: (1, 3, 4, 5, 10, 16),
    4: (4, 8),
    5: (3, 4, 5, 6, 10),
    6: (3, 4, 6, 8, 12, 14, 16),
    7: (7, 11),
    8: (3, 4, 5, 6, 8, 12),
    9: (9,),
    10: (2, 3, 5, 10),
    11: (7, 11),
    12: (2, 3, 6, 8, 12),
    14: (6,),
    16: (3, 4, 5, 6, 16),
}
"""By the most columns of A per thread, those of B: both are cut into as few equal tiles as that takes.

Of all tiles of up to 16 x 16; the others would gain 0.2 per cent of the predicted time in the geometric mean
of 700 drawn products on an H200, and 7 per cent at the most in 99 of 100. None is left out that decides
between families.
"""
UNITS = (1, 4)
"""Columns to whose multiples tiles are rounded up."""


@frozen
class Recipe:
    """A configuration but for the widths.

    Attributes
    ----------
    place : int
        Place of its tiles among `TILES` in the order of the cycles per row without the limit of memory.
    interleaved : bool
        As in the configuration.
    warps : int
        Warps resident on a multiprocessor.
    stage_kb : int
        Kilobytes of a stage per warp, about; 0 to load rows directly from memory.
    """

    place: int
    interleaved: bool = False
    warps: int = 8
    stage_kb: int = 4


RECIPES: Sequence[Recipe] = (
    *(Recipe(place, interleaved) for place in range(4) for interleaved in (False, True)),
    Recipe(0, warps=16),
)
SPARE: Sequence[Recipe] = tuple(
    Recipe(place, interleaved, stage_kb=kb)
    for place in range(12)
    for interleaved, kb in ((False, 2), (True, 2), (False, 1), (False, 0), (True, 0))
)


def _tile(width: int, most: int, unit: int) -> int:
    return min(width, round_up(ceil_div(width, ceil_div(width, most)), unit))


def _count(a: Operand, b: Operand) -> int:
    """Count the consecutive rows that make up whole vectors where a thread takes whole rows, else one."""
    rows = [16 // widest(operand.row_bytes) for operand in (a, b) if operand.tiles == 1 and operand.is_linear]
    return max(rows, default=1)


def _sums(problem: TsmttsmProblem, values: int) -> Sums:
    """Choose the memory of the double precision sums: registers if the tile is small, else shared memory."""
    if not is_single(problem):
        return "plain"
    return "registers" if values * parts_of(problem.dtype) <= 48 else "shared"


@functools.lru_cache(maxsize=1024)
def _tilings(problem: TsmttsmProblem) -> list[tuple[float, TsmttsmFmaConfig]]:
    """List configurations with the different tiles, and the cycles per row, which they are sorted by."""
    sizes = {
        (_tile(problem.M, tm, unit), _tile(problem.N, tn, unit))
        for tm, seconds in TILES.items()
        for tn in seconds
        for unit in UNITS
    }
    found = []
    for tm, tn in sorted(sizes):
        a, b = operands_of(problem, tm, tn)
        tiles = a.tiles * (a.tiles + 1) // 2 if problem.same else a.tiles * b.tiles
        warps = 1 << max(0, ceil_div(tiles, 32) - 1).bit_length()
        if warps > _MAX_WARPS or (problem.same and tm != tn):
            continue
        for count in {1, _count(a, b)}:
            config = TsmttsmFmaConfig(tm, tn, count=count, warps=warps, sums=_sums(problem, tm * tn))
            if registers(problem, replace(config, stages=2)) <= MAX_REGISTERS:
                found.append((_row_cycles(problem, config, a, b, tiles), config))
    return sorted(found, key=lambda entry: entry[0])


@functools.lru_cache(maxsize=16384)
def _staged(
    problem: TsmttsmProblem, config: TsmttsmFmaConfig, stage_bytes: int, device: DeviceInfo
) -> TsmttsmFmaConfig | None:
    """Choose the steps of a stage of the wanted size, and as many stages as fit."""
    size_a, size_b = (operand.row_bytes for operand in operands_of(problem, config.tm, config.tn))
    row_bytes = size_a + (0 if problem.same else size_b)
    step_rows = max(1, config.lanes // tiles_of(problem, config)) * config.count
    kept = (
        problem.M * problem.N * parts_of(problem.dtype) * 8 + SCRATCH_BYTES if config.sums == "shared" else 0
    )
    steps = max(1, round(stage_bytes * config.warps / (step_rows * row_bytes)))
    while steps * step_rows * size_a % 16 or steps * step_rows * size_b % 16:
        steps += 1  # whole 16-byte pieces
    room = device.shared_bytes_per_multiprocessor // config.blocks - kept - 4096
    stages = min(8, room // (config.teams * (steps * step_rows * row_bytes * 9 // 8 + 256)))
    staged = replace(config, steps=steps, stages=stages)
    return replace(staged, unroll=_unroll(problem, staged)) if stages >= 2 else None


def _unroll(problem: TsmttsmProblem, config: TsmttsmFmaConfig) -> int:
    """Choose the steps to unroll, so that loads of one overlap with products of another for small tiles."""
    work = config.tm * config.tn * config.count * parts_of(problem.dtype_a) * parts_of(problem.dtype_b)
    return next((n for n in (4, 2) if config.steps % n == 0 and work * n <= 64), 1)


_CEILINGS = Ceilings(4600, 4600, 4600)
_LAUNCH_S = 3.3e-6  # including the latency of the first bytes
_SHARED_CYCLES = 30  # shared memory to register
_CONVERSION_CYCLES = 9  # of a quadrant: float32 -> float64 of a warp, 14 a clock and multiprocessor
_STEP_INSTRUCTIONS = 10  # addresses and loop of a step
_COPY_CYCLES = 28  # of a warp's copies to a stage
_CHUNK_INSTRUCTIONS = 160  # waiting for a stage and filling it again, besides its copies
_SM_BYTES_PER_CYCLE = 64  # from L2 to one multiprocessor


# Where families are compared: fitted to the faster ones of 64 widths on an H200 and 10 products on an H100.
_BUSY = 1.9, 1.45  # of the cycles that tiles take by themselves, of real and complex numbers
_LIGHT, _LIMITED = 0.46, 0.9  # of the time of memory, up to which it is the only limit, here and there
_BYTES_PER_CYCLE = 18  # from memory to one multiprocessor


def _step_cycles(
    problem: TsmttsmProblem, config: TsmttsmFmaConfig, a: Operand, b: Operand
) -> tuple[float, float, float]:
    """Estimate the cycles of a quadrant per step of a warp: products, loads, conversions."""
    is_one = problem.same and a.tiles * b.tiles == 1
    products = config.tm * (config.tm + 1) // 2 if is_one else config.tm * config.tn
    is_double = not is_single(problem)
    fma = config.count * products * a.parts * b.parts * (2 if is_double else 1)
    # 128 bytes per cycle into registers, for four quadrants: one cycle of a quadrant per byte and thread.
    load = config.count * (config.tm * a.size + (0 if is_one else config.tn * b.size))
    narrow = [tile for tile, x in ((config.tm * a.parts, a), (config.tn * b.parts, b)) if x.real_bytes == 4]
    return fma, load, _CONVERSION_CYCLES * config.count * sum(narrow) if is_double else 0


def _row_cycles(
    problem: TsmttsmProblem, config: TsmttsmFmaConfig, a: Operand, b: Operand, tiles: int
) -> float:
    """Estimate the cycles of a multiprocessor per row: the longer of products and loads, part of the rest."""
    fma, load, converted = _step_cycles(problem, config, a, b)
    busy = max(fma, load + converted) + 0.25 * min(fma, load)
    return busy * config.warps / (4 * (config.lanes // tiles) * config.count)


@functools.lru_cache(maxsize=65536)
def _chunk_cycles(problem: TsmttsmProblem, config: TsmttsmFmaConfig) -> tuple[float, float]:
    """Estimate the cycles of a chunk: of a quadrant shared by its warps, and of one warp alone."""
    plan = plan_of(problem, config)
    a, b = plan.operands
    fma, load, converted = _step_cycles(problem, config, a, b)
    is_double = not is_single(problem)
    accesses, lines, staged = 0, 0.0, 0
    for operand, slab, vector, cycles in zip(
        plan.operands, plan.slabs, plan.vectors, plan.load_cycles, strict=True
    ):
        is_linear = slab.is_linear if config.stages else operand.is_linear
        loads = operand.accesses(config.count, vector, is_linear)
        accesses += loads
        staged += 4 * loads * cycles
        # From memory, a load takes a cycle per line of 128 bytes that contains rows of the warp.
        rows = min(32, max(1, 32 // plan.tiles)) * config.count
        lines += 4 * loads * max(rows * operand.row_bytes / 128 if is_linear else rows, vector / 4)
        if problem.same and plan.is_one_tile:
            break
    issue = fma / (2 if is_double else 1) + accesses + _STEP_INSTRUCTIONS / config.unroll
    if config.stages:
        copies = plan.slabs[0].copies(config.lanes) + (
            0 if problem.same else plan.slabs[1].copies(config.lanes)
        )
        load = staged
        overhead = _CHUNK_INSTRUCTIONS + _COPY_CYCLES * copies
        exposed = _SHARED_CYCLES * config.steps / config.unroll
    else:
        issue += 2 * accesses  # 64-bit addresses
        load, overhead, exposed = lines, 40, 0
    work = config.steps * max(fma, issue, load + converted)
    return work + overhead, config.steps * max(fma, issue) + overhead + exposed


def _tail(problem: TsmttsmProblem, config: TsmttsmFmaConfig, plan: Plan, grid: int) -> float:
    """Estimate the seconds after the last chunk: the sum over a block, then over blocks."""
    values = config.tm * config.tn * parts_of(problem.dtype)
    cycles = 16 * config.threads * values / 128 + 200 * ceil_div(values, plan.passed)
    if config.sums == "shared":
        cycles *= 1 + problem.K // (plan.rows * grid * config.teams * plan.chain)
    if grid == 1:
        return cycles / CLOCK_HZ
    result = problem.M * problem.N * parts_of(problem.dtype) * 8
    shared = grid if result > 256 else 1  # blocks that share the last sum
    return 2.5e-6 + (cycles + result / 32 + grid * result / shared / 32) / CLOCK_HZ


class TsmttsmFmaModel(Model[TsmttsmProblem, TsmttsmFmaConfig, Recipe]):
    """The model of the multiply-add family."""

    recipes, spare = RECIPES, SPARE

    def configure(
        self, problem: TsmttsmProblem, recipe: Recipe, device: DeviceInfo
    ) -> TsmttsmFmaConfig | None:
        problem = replace(shape_of(problem), alpha="one", beta="zero")
        tilings = _tilings(problem)
        if recipe.place >= len(tilings):
            return None
        config = tilings[recipe.place][1]
        a, b = operands_of(problem, config.tm, config.tn)
        is_dealt = a.tiles * b.tiles > 1 and not (problem.same and config.tm == config.tn)
        if recipe.interleaved and not is_dealt:
            return None
        teams = max(1, 8 // config.warps)
        blocks = recipe.warps // (teams * config.warps)
        if not blocks:
            return None
        resident = replace(config, teams=teams, blocks=blocks, interleaved=recipe.interleaved)
        if not recipe.stage_kb:
            return replace(resident, steps=_DIRECT_STEPS)
        return _staged(problem, resident, recipe.stage_kb << 10, device)

    def is_faster(self, problem: TsmttsmProblem) -> bool:
        """Compare with tensor cores, in single precision.

        They pad widths to eight columns and convert what they load. Few multiply-adds are faster in any case,
        others where the tensor cores take longer than they and than memory.
        """
        widths = problem.M, problem.N
        if not is_single(problem) or min(widths) < 1 or max(widths) > MAX_WIDTH:
            return False
        shape = replace(shape_of(problem), alpha="one", beta="zero")
        cycles = _BUSY[is_complex(problem.dtype)] * _tilings(shape)[0][0]
        row_bytes = (problem.M + (0 if problem.same else problem.N)) * itemsize(problem.dtype)
        memory, tensor = row_bytes / _BYTES_PER_CYCLE, tensor_cycles(problem)
        return cycles < _LIGHT * memory or (cycles < tensor and tensor > _LIMITED * memory)

    def predict(
        self,
        problem: TsmttsmProblem,
        config: TsmttsmFmaConfig,
        device: DeviceInfo,
        ceilings: Ceilings | None = None,
    ) -> float:
        """Predict the time of a valid configuration in seconds.

        The slowest of three limits, smoothed where they are close: memory, at the rate that the bytes in
        flight allow (Little's law); the busiest quadrant of a multiprocessor, whose pipes multiply, load and
        issue; the latencies of a warp. Then the parts that do not overlap: the launch, the
        sums over groups of threads and over blocks.
        """
        plan = plan_of(shape_of(problem), config)
        read = (ceilings or _CEILINGS).read_gb_s * 1e9
        grid = grid_of(problem, config, device)
        turns = ceil_div(ceil_div(problem.K, plan.rows), grid * config.teams)
        resident, busy = ceil_div(grid, device.multiprocessors), min(grid, device.multiprocessors)
        # A ring refills a stage once it is read; direct loads wait for their products.
        ahead = config.stages - 0.5 if config.stages else 0.6
        flight = resident * config.teams * min(ahead, turns) * plan.rows * plan.row_bytes
        rate = covered_rate(min(read / busy, _SM_BYTES_PER_CYCLE * CLOCK_HZ), flight)
        quadrant, warp = _chunk_cycles(shape_of(problem), config)
        warps_per_quadrant = ceil_div(resident * config.teams * config.warps, 4)
        body = smooth_max(
            problem.K * plan.row_bytes / (busy * rate),
            turns * warps_per_quadrant * quadrant / CLOCK_HZ,
            turns * warp / CLOCK_HZ,
        )
        return _LAUNCH_S + body + _tail(problem, config, plan, grid)
