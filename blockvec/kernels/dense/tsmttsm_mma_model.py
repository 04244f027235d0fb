"""The curated configurations of the tensor-core TSMTTSM and the model of their time."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..family import Model
from ..launch import FLAGGED_DOUBLES
from ..limits import (
    BANK_ROW_BYTES,
    LINE_BYTES,
    MAX_REGISTERS,
    QUADRANTS,
    RESERVED_SHARED_BYTES,
    TENSOR_CLOCK_HZ,
    architecture_of,
    ceil_div,
    covered_rate,
    smooth_max,
)
from ..problem import TsmttsmProblem, is_complex, itemsize, real_bytes
from ..roofline import Ceilings
from .tsmttsm_mma import STATIC_SHARED_BYTES, carveout, grid, registers, tile_blocks, tiles
from .tsmttsm_mma_ring import (
    BULK_UNIT,
    TsmttsmMmaConfig,
    conflicts,
    copies,
    goes_through_l1,
    groups,
    has_boxes,
    layout,
    pieces,
)

_PIECE_PRODUCERS = 4  # warps that issue cp.async: one a quadrant
_UNUSED_BYTES = STATIC_SHARED_BYTES + RESERVED_SHARED_BYTES + 2048
_GAP_BYTES = 640  # bound on what gaps between chunks and loads past the widths add to a stage
_MAX_STAGES = 24
_COMPLEX_STAGE_KB = 20  # of a stage of complex numbers in single precision, which is none of others
_L1_BYTES = 28 << 10  # beside all of shared memory, on sm_80 and sm_90
_L1_RING_BYTES = 64 << 10  # of a ring that leaves room for copies through L1


@frozen
class Recipe:
    """A configuration but for the widths.

    Attributes
    ----------
    columns, warps : int
        Warps that share the columns of A and B, of all warps that multiply.
    stage_kb : int
        Kilobytes of a stage, about.
    odd : bool
        Whether chunks are odd multiples of 32 bytes, which have the fewest bank conflicts, instead of equal
        shares for all warps.
    kstep, ahead, blocks, producers
        As in the configuration; operands in pieces have `_PIECE_PRODUCERS`.
    half : bool
        Whether rows of narrow operands fill half a group of columns, not all of it.
    small : bool
        Whether the ring leaves most of shared memory to L1.
    """

    columns: int
    warps: int
    stage_kb: int
    odd: bool = False
    kstep: int = 1
    ahead: bool = False
    blocks: int = 1
    producers: int = 1
    half: bool = False
    small: bool = False


# Of 2,900 recipes; the others would gain 0.9 per cent of the predicted time in the geometric mean of 230
# drawn products, and 4.6 per cent at the most.
RECIPES: Sequence[Recipe] = (
    Recipe(1, 4, 8, blocks=2, small=True),
    Recipe(1, 4, 8),
    Recipe(1, 4, 16),
    Recipe(1, 4, 40),
    Recipe(1, 4, 40, ahead=True),
    Recipe(1, 4, 40, blocks=2),
    Recipe(1, 4, 64),
    Recipe(1, 8, 16, small=True),
    Recipe(1, 8, 32, kstep=2),
    Recipe(1, 8, 64, kstep=2),
    Recipe(2, 4, 8, odd=True, blocks=2, small=True),
    Recipe(2, 4, 16, blocks=2),
    Recipe(2, 4, 20),
    Recipe(2, 4, 32, odd=True),
    Recipe(2, 4, 32, ahead=True),
    Recipe(2, 8, 64, kstep=2, producers=0),
    Recipe(2, 8, 64, ahead=True, producers=0),
    Recipe(4, 4, 8),
    Recipe(4, 4, 8, ahead=True),
    Recipe(4, 4, 8, odd=True, blocks=2),
    Recipe(4, 4, 16, blocks=2),
    Recipe(4, 4, 40, odd=True, ahead=True),
    Recipe(4, 8, 8, ahead=True),
    Recipe(4, 8, 40, odd=True),
    Recipe(4, 8, 40, kstep=2),
    Recipe(4, 8, 40, ahead=True, producers=0),
    Recipe(4, 8, 40, ahead=True),
    Recipe(4, 8, 64, odd=True, ahead=True, producers=0),
    Recipe(8, 8, 8, kstep=2),
    Recipe(8, 8, 40, ahead=True),
    Recipe(8, 8, 40),
    Recipe(16, 16, 8, odd=True),
)
# Of 2,900 recipes with three real products for a complex one; the others would gain 1 per cent in the mean of
# 186 drawn products, and 4.5 per cent at the most.
RECIPES_3M: Sequence[Recipe] = (
    Recipe(1, 4, 8),
    Recipe(1, 4, 16, small=True),
    Recipe(1, 4, 40),
    Recipe(1, 8, 32),
    Recipe(1, 8, 40, kstep=2),
    Recipe(1, 8, 40, kstep=2, producers=0),
    Recipe(1, 8, 64, kstep=2),
    Recipe(2, 4, 8),
    Recipe(2, 4, 40),
    Recipe(2, 8, 8, kstep=2),
    Recipe(2, 8, 64, producers=0),
    Recipe(2, 8, 64, kstep=2, producers=0),
    Recipe(4, 4, 8, odd=True),
    Recipe(4, 4, 8, ahead=True),
    Recipe(4, 4, 8, odd=True, ahead=True),
    Recipe(4, 4, 16, small=True),
    Recipe(4, 4, 40, odd=True, ahead=True),
    Recipe(4, 4, 64, ahead=True),
    Recipe(4, 8, 40, ahead=True, producers=0),
    Recipe(4, 8, 64, kstep=2, producers=0),
    Recipe(4, 8, 64, odd=True, ahead=True, producers=0),
    Recipe(8, 8, 16, odd=True),
    Recipe(8, 8, 40, ahead=True, producers=0),
    Recipe(8, 8, 40, odd=True),
)
SPARE: Sequence[Recipe] = tuple(
    Recipe(*warps, kb, odd=odd, producers=producers)
    for warps in ((1, 4), (2, 4), (4, 4), (4, 8), (8, 8), (16, 16))
    for kb, odd, producers in itertools.product((8, 16), (False, True), (1, 0))
)


def _suits(problem: TsmttsmProblem, recipe: Recipe, device: DeviceInfo) -> bool:
    """Check settings whose effect the model does not describe, and which are the best measured elsewhere."""
    if recipe.small and not goes_through_l1(problem, device):
        return False
    if real_bytes(problem.dtype) == 8 or any(pieces(problem, device)):
        return recipe.kstep == 1 and recipe.stage_kb != _COMPLEX_STAGE_KB
    # Products wait for conversions.
    if is_complex(problem.dtype):
        return recipe.blocks == 1 and recipe.stage_kb in (8, _COMPLEX_STAGE_KB, 40, 64)
    return recipe.blocks == 1 and recipe.stage_kb != _COMPLEX_STAGE_KB


def _fold(problem: TsmttsmProblem, recipe: Recipe, device: DeviceInfo) -> int | None:
    """Choose the rows to treat as one: a power of two that fills one group of 8 columns, or half of it.

    Half a group wastes tensor products, which do not limit here, but its rows of 32 bytes need no gaps.
    """
    most = 8 // max(problem.M, problem.N)
    if most <= 1 or has_boxes(problem, device) or any(pieces(problem, device)):
        return None if recipe.half else 1
    full = 1 << (most.bit_length() - 1)
    return full // 2 if recipe.half else full


@functools.lru_cache(maxsize=4096)
def _split(groups_m: int, groups_n: int, columns: int) -> tuple[int, int] | None:
    """Split warps between the columns of A and of B, with the squarest tiles."""
    pairs = [(wm, columns // wm) for wm in (1, 2, 4, 8, 16) if columns % wm == 0]
    pairs = [(wm, wn) for wm, wn in pairs if wm <= groups_m and wn <= groups_n]
    return min(
        pairs, key=lambda pair: ceil_div(groups_m, pair[0]) + ceil_div(groups_n, pair[1]), default=None
    )


def _rows(
    problem: TsmttsmProblem, config: TsmttsmMmaConfig, recipe: Recipe, device: DeviceInfo
) -> int | None:
    """Choose the rows of a stage near the wanted size."""
    size = itemsize(problem.dtype)
    widths = {config.fold * problem.M, config.fold * (problem.M if problem.same else problem.N)}
    row_bytes = config.fold * (problem.M + (0 if problem.same else problem.N)) * size
    if has_boxes(problem, device):
        whole = odd = 4
    else:
        whole = math.lcm(*(BULK_UNIT // math.gcd(width * size, BULK_UNIT) for width in widths))
        odd = math.lcm(*(32 // math.gcd(width * size, 32) for width in widths))
    wanted = (recipe.stage_kb << 10) // (4 * row_bytes)
    even = math.lcm(config.wk * config.kstep, whole)  # equal shares for all warps
    chunk = (wanted // odd | 1) * odd if recipe.odd else max(1, round(wanted / even)) * even
    if chunk % whole or chunk % config.kstep or chunk < config.wk * config.kstep:
        return None
    return 4 * chunk


def _stages(problem: TsmttsmProblem, config: TsmttsmMmaConfig, recipe: Recipe, device: DeviceInfo) -> int:
    """Count the stages that fit."""
    row_bytes = config.fold * (problem.M + (0 if problem.same else problem.N)) * itemsize(problem.dtype)
    if has_boxes(problem, device):
        stage = layout(problem, config, device)
        row_bytes = stage.a_row + (0 if problem.same else stage.b_row)
    ring = device.shared_bytes_per_multiprocessor
    if recipe.small:
        ring = min(ring, _L1_RING_BYTES)
    share = min(ring, 224 << 10) // config.blocks - _UNUSED_BYTES
    return min(share // (config.rows * row_bytes + _GAP_BYTES), _MAX_STAGES)


@functools.lru_cache(maxsize=4096)
def _shape(problem: TsmttsmProblem) -> TsmttsmProblem:
    """Reduce a problem to what its configurations depend on: neither K nor the classes of the factors."""
    return replace(problem, K=1, alpha="one", beta="zero", conj=False)


# Fitted to 1,850 timed configurations of 60 problems on an H200: the model's first choice is within 1 per
# cent (geometric mean) of the best that was seen, and the best of its first ten within 0.1.
_MEMORY_LATENCY_S = 0.9e-6  # as fitted here, see limits.MEMORY_LATENCY_S
_LAUNCH_S = 2.0e-6  # as fitted here, without the latency of the first stage
_STAGE_CYCLES = 180  # per stage, to wait for it and to release it, of a warp
_BUBBLE_CYCLES = 175  # of a tensor pipe where warps go on to the next stage together ...
_AHEAD_BUBBLE_CYCLES = 300  # ... and where they wait for it a step early, which costs more when it is late
_FILL_CYCLES = 300  # to wait for an empty stage and announce its bytes, of the warp that fills it ...
_COPY_CYCLES = 16  # ... and per bulk copy
_REFILL_CYCLES = 165  # more where the last reader fills a stage: a fence and an atomic
_PIECE_CYCLES = 50  # per 32 cp.async of a producer warp, with their addresses
_SM_BYTES_PER_CYCLE = 32  # from L2 to one multiprocessor, with few blocks on the device
# Share of the read rate that stages of 32 KB reach, with copies that keep the offset in a 128-byte line and
# with others, and the exponent of its growth with the size of a stage.
_GAPLESS_RATE, _GAPPED_RATE, _SIZE_EXPONENT = 0.976, 0.969, 0.0076
_PIPE_RATE, _AHEAD_PIPE_RATE = 0.82, 0.95  # of the rate of tensor products alone
# Where fragments are converted: with one block, whose warps have registers to load far ahead of the products,
# and with several.
_CONVERTING_RATE = (0.93, 0.82)
_ALTERNATING_RATE = 0.87  # of that where each product waits for the conversion of its own four rows
_CONVERSIONS = 14  # float32 -> float64, per cycle and multiprocessor
_CONVERTED_SHARE = 0.5  # of conversions that do not overlap with products


@functools.lru_cache(maxsize=65536)
def _stage_cycles(problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> tuple[float, ...]:
    """Estimate the cycles per stage: the busiest tensor pipe, a warp, shared memory, copies, conversions."""
    parts = 2 if is_complex(problem.dtype) else 1
    size = itemsize(problem.dtype)
    product_cycles = 16 if architecture_of(device) == 90 else 32  # of an m16n8k4 in a quadrant
    stage = layout(problem, config, device)
    chunk = config.rows // 4
    # Per warp and stage; the mean where warps process stages cyclically.
    steps = (
        chunk / config.kstep / config.wk if config.takes_turns else ceil_div(chunk // config.kstep, config.wk)
    )
    shares = tiles(problem, config)
    products = [
        _products(im, in_, parts, triangle, config.three_m) * config.kstep for im, in_, triangle in shares
    ]
    conflicts_a = conflicts(stage.a_pitch, stage.a_gap, size, swaps=stage.swaps)
    conflicts_b = (
        conflicts_a if problem.same else conflicts(stage.b_pitch, stage.b_gap, size, swaps=stage.swaps)
    )
    groups_a = sum(im for im, _, _ in shares)
    groups_b = sum(in_ for _, in_, triangle in shares if not triangle)
    read = groups_a * conflicts_a + groups_b * conflicts_b
    shared = (config.rows * read * 8 * size + stage.stage_bytes) / BANK_ROW_BYTES

    single = real_bytes(problem.dtype) == 4
    converted = config.rows * (groups_a + groups_b) * 8 * parts / _CONVERSIONS if single else 0.0
    fill = _fill_cycles(problem, config, device)
    pipe = _busiest_pipe(config, products) * steps * product_cycles
    warp = steps * max(max(products) * product_cycles, 30)  # products of one tile wait for each other
    if config.ahead:
        pipe = pipe / _AHEAD_PIPE_RATE + _AHEAD_BUBBLE_CYCLES / config.blocks
        warp += _AHEAD_BUBBLE_CYCLES / (config.wk if config.takes_turns else 1)
    else:
        im, in_, triangle = shares[0]
        loads = (im * conflicts_a + (0 if triangle else in_ * conflicts_b)) * config.kstep * size // 4
        rate = _CONVERTING_RATE[config.blocks > 1] if single else _PIPE_RATE
        if single and (config.kstep == 1 or config.warps * config.blocks < 8):
            rate *= _ALTERNATING_RATE
        # Warps with small tiles wait for those with large ones at every turn of the ring.
        pipe *= max(products) * len(products) / sum(products) / rate
        pipe += _BUBBLE_CYCLES / config.blocks
        warp += steps * loads / config.unroll + _STAGE_CYCLES
    if config.producers == 0:
        warp += _REFILL_CYCLES + fill
    return pipe, warp, shared, fill, converted


def _busiest_pipe(config: TsmttsmMmaConfig, products: list[float]) -> float:
    """Count the products per step in the busiest quadrant, the mean over the blocks of a multiprocessor."""
    pipes = [0.0] * 4
    for block in range(config.blocks):
        for index in range(config.warps):
            backwards = (index // max(4, len(products)) + block) % 2 and 4 % len(products) == 0
            which = index % len(products)
            pipes[index % 4] += products[-1 - which if backwards else which] / config.blocks
    return max(pipes)


def _fill_cycles(problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> float:
    """Estimate the cycles of the warp that fills a stage, or of the busiest of several."""
    cycles = _FILL_CYCLES + _COPY_CYCLES * copies(problem, config, device)
    size = itemsize(problem.dtype)
    operands = tuple(zip(pieces(problem, device), (problem.M, problem.N), strict=True))
    for piece, width in operands[: 2 - problem.same]:
        if piece:
            lanes = config.rows * ceil_div(width * size, piece)
            cycles += _PIECE_CYCLES * ceil_div(lanes, 32 * max(config.producers, 1))
    return cycles


def _products(im: int, in_: int, parts: int, triangle: bool, three_m: bool) -> float:
    """Count the m16n8k4 products of a tile of im x in_ blocks per step of 4 rows.

    The additions of the 3M method, two cycles per group of columns on the same pipe, are an eighth of one.
    """
    if three_m:
        return 3 * _products(im, in_, 1, triangle, False) + (im + in_) / 8
    if parts == 2:
        return im * (im + 1) if triangle else 2 * im * in_
    if triangle:
        return sum(ceil_div(j + 1, 2) for j in range(im))
    return ceil_div(im * in_, 2)


def row_cycles(problem: TsmttsmProblem) -> float:
    """Estimate the cycles of a multiprocessor per row in single precision without the limit of memory."""
    parts = 2 if is_complex(problem.dtype) else 1
    groups_m, groups_n = ceil_div(problem.M, 8), ceil_div(problem.N, 8)
    products = _products(groups_m, groups_n, parts, problem.same, three_m=False)
    converted = (groups_m + (0 if problem.same else groups_n)) * 8 * parts
    return products * 16 / 4 / QUADRANTS + _CONVERTED_SHARE * converted / _CONVERSIONS


def _l1_flight(problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo) -> float:
    """Compute the bytes in flight that the lines of L1 allow, where copies go through it."""
    percent = carveout(problem, config, device)
    if percent is None:
        return math.inf
    row_bytes = min(problem.M, problem.N) * itemsize(problem.dtype)
    l1_bytes = device.shared_bytes_per_multiprocessor * (1 - percent / 100) + _L1_BYTES
    return l1_bytes / LINE_BYTES * row_bytes / (1 + row_bytes / LINE_BYTES)


def _tail(problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo, clock: float) -> float:
    """Estimate the seconds after the last stage: the sum over warps, then over blocks."""
    doubles = problem.M * problem.N * (2 if is_complex(problem.dtype) else 1)
    rounds = (config.wk - 1).bit_length()
    cycles = 200 + rounds * (100 + 3 * config.warps * tile_blocks(problem, config) * 8)
    blocks = grid(problem, config, device)
    if blocks == 1:
        return cycles / clock
    slices = min(blocks, ceil_div(doubles, 8))
    moved = 8 * doubles * (1 + blocks / slices)  # by each block that sums a slice
    if doubles <= FLAGGED_DOUBLES:
        return cycles / clock + 0.5e-6 + 2 * moved / (32 * clock)
    return cycles / clock + 1.5e-6 + 4e-9 * blocks + moved / (32 * clock)  # arrivals on one counter


class TsmttsmMmaModel(Model[TsmttsmProblem, TsmttsmMmaConfig, Recipe]):
    """The model of the tensor-core families.

    Parameters
    ----------
    kind : type
        Their configurations.
    """

    spare = SPARE

    def __init__(self, kind: type[TsmttsmMmaConfig] = TsmttsmMmaConfig) -> None:
        self.kind = kind
        self.recipes = RECIPES_3M if kind.three_m else RECIPES

    def configure(
        self, problem: TsmttsmProblem, recipe: Recipe, device: DeviceInfo
    ) -> TsmttsmMmaConfig | None:
        fold = _fold(problem, recipe, device)
        if fold is None or not _suits(problem, recipe, device):
            return None
        base = self.kind(4, 2, 1, 1, 1, fold=fold, kstep=recipe.kstep, blocks=recipe.blocks)
        groups_m, groups_n = groups(problem, base)
        if (split := _split(groups_m, groups_n, recipe.columns)) is None:
            return None
        base = replace(base, wm=split[0], wn=split[1], wk=recipe.warps // recipe.columns)
        if (rows := _rows(problem, base, recipe, device)) is None:
            return None
        tile = tile_blocks(problem, base)
        if recipe.ahead:
            # Where products take less than two thirds of the time of memory, waiting early for a stage costs
            # more than it gains.
            if not is_complex(problem.dtype) or groups_m * groups_n <= 2.3 * (groups_m + groups_n):
                return None
            base = replace(base, rows=rows, unroll=1, ahead=True)
        else:
            base = replace(base, rows=rows, unroll=1 if tile > 8 else 2 if tile > 2 else 4)
        if registers(problem, base) > MAX_REGISTERS:
            return None
        stages = _stages(problem, base, recipe, device)
        in_pieces = any(pieces(problem, device))
        producers = _PIECE_PRODUCERS if in_pieces else recipe.producers
        return replace(base, stages=stages, producers=producers) if stages >= 2 else None

    def predict(
        self,
        problem: TsmttsmProblem,
        config: TsmttsmMmaConfig,
        device: DeviceInfo,
        ceilings: Ceilings | None = None,
    ) -> float:
        """Predict the time of a valid configuration in seconds.

        The slowest of seven resources, smoothed where two are close: memory, at the rate that the bytes in
        flight and the size of the copies allow; the busiest tensor pipe, tile padding and uneven shares
        included; the latencies of a warp; shared memory with its conflicts; the warps that issue copies;
        conversions of single precision. Then the parts that do not overlap: the launch, the latency of the
        first stage, the products of the last one, the sums over warps and blocks.
        """
        read = ceilings.read_gb_s * 1e9 if ceilings else 4.6e12
        peak = ceilings.gflop_s.get("float64") if ceilings else None
        multiprocessors = device.multiprocessors
        clock = (
            peak * 1e9 / (256 * multiprocessors)
            if peak and architecture_of(device) == 90
            else TENSOR_CLOCK_HZ
        )
        shape = _shape(problem)
        size = itemsize(problem.dtype)
        operands = 1 if problem.same else 2
        stage_bytes = config.rows * config.fold * (problem.M + (0 if problem.same else problem.N)) * size
        blocks = grid(problem, config, device)
        turns = ceil_div(ceil_div(problem.K, config.rows * config.fold), blocks)
        resident = ceil_div(blocks, multiprocessors)
        busy = min(blocks, multiprocessors)

        flight = min(resident * min(config.stages, turns) * stage_bytes, _l1_flight(problem, config, device))
        quality = _GAPLESS_RATE if copies(shape, config, device) <= operands else _GAPPED_RATE
        quality *= (stage_bytes / (32 << 10)) ** _SIZE_EXPONENT
        share = min(read * quality / busy, _SM_BYTES_PER_CYCLE * clock)
        rate = covered_rate(share, flight, _MEMORY_LATENCY_S)
        pipe, warp, shared, fill, converted = _stage_cycles(shape, config, device)
        # Products that take as long as memory leave no time to refill a ring of two stages.
        refill = 0.8 * resident * stage_bytes / share + _MEMORY_LATENCY_S if config.ahead else 0.0
        body = smooth_max(
            turns * resident * stage_bytes / rate,
            turns * refill / max(config.stages - 1, 1),
            turns * resident * pipe / clock,
            turns * warp / clock,
            turns * resident * shared / clock,
            turns * fill / clock,
            turns * resident * converted / clock,
        )
        last = warp / clock  # without copies meanwhile
        return _LAUNCH_S + _MEMORY_LATENCY_S + body + last + _tail(problem, config, device, clock)
