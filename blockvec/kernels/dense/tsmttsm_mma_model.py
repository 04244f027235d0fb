"""The search space of the tensor-core TSMTTSM and the model of its time.

Tuning measures `space`; where nothing was measured, `choose` takes the best of a short list.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
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
from .tsmttsm_mma import STATIC_SHARED_BYTES, carveout, grid, refuse, registers, tile_blocks, tiles
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
_L1_BYTES = 28 << 10  # beside all of shared memory, on sm_80 and sm_90


@frozen
class _Choices:
    """The values that `_enumerate` combines; sizes in bytes."""

    ksteps: tuple[int, ...]
    stage_bytes: tuple[int, ...]
    ring_bytes: tuple[int, ...]
    blocks: tuple[int, ...]
    producers: tuple[int, ...]
    piece_producers: tuple[int, ...]
    gapless: bool


_SPACE = _Choices(
    ksteps=(1, 2),
    stage_bytes=(8 << 10, 16 << 10, 32 << 10, 40 << 10, 64 << 10, 72 << 10),
    ring_bytes=(64 << 10, 224 << 10),
    blocks=(1, 2),
    producers=(0, 1),
    piece_producers=(4, 8),
    gapless=True,
)
# The space of `choose`: settings whose effect the model does not describe are fixed to the best measured.
_SHORT_LIST = _Choices(
    ksteps=(1,),
    stage_bytes=(8 << 10, 16 << 10, 32 << 10, 40 << 10, 64 << 10),
    ring_bytes=(224 << 10,),
    blocks=(1, 2),
    producers=(1, 0),
    piece_producers=(4,),
    gapless=False,
)
_COMPLEX_STAGES = (8 << 10, 20 << 10, 40 << 10, 64 << 10)  # of those, in single precision


def _enumerate(
    kind: type[TsmttsmMmaConfig], problem: TsmttsmProblem, device: DeviceInfo, choices: _Choices
) -> Iterator[TsmttsmMmaConfig]:
    in_pieces = any(pieces(problem, device))
    if real_bytes(problem.dtype) == 4 and not in_pieces and choices is _SHORT_LIST:
        # Products wait for conversions.
        sizes = _COMPLEX_STAGES if is_complex(problem.dtype) else choices.stage_bytes
        choices = replace(choices, ksteps=_SPACE.ksteps, blocks=(1,), stage_bytes=sizes)
    if goes_through_l1(problem, device):
        choices = replace(choices, ring_bytes=_SPACE.ring_bytes)
    for fold in [1] if has_boxes(problem, device) else _folds(problem, in_pieces):
        single = kind(4, 2, 1, 1, 1, fold=fold)
        for wm, wn, wk in _splits(*groups(problem, single)):
            for kstep in choices.ksteps:
                base = replace(single, wm=wm, wn=wn, wk=wk, kstep=kstep)
                for rows, gapless in _row_counts(problem, base, choices, device):
                    sized = replace(base, rows=rows, gapless=gapless)
                    for scheduled in _schedules(problem, sized):
                        yield from _placed(problem, scheduled, device, choices, in_pieces)


def _placed(
    problem: TsmttsmProblem, config: TsmttsmMmaConfig, device: DeviceInfo, choices: _Choices, in_pieces: bool
) -> Iterator[TsmttsmMmaConfig]:
    """Yield the rings, blocks and producers for a size of stages."""
    size = itemsize(problem.dtype)
    row_bytes = config.fold * (problem.M + (0 if problem.same else problem.N)) * size
    if has_boxes(problem, device):
        stage = layout(problem, config, device)
        row_bytes = stage.a_row + (0 if problem.same else stage.b_row)
    for ring in choices.ring_bytes:
        for blocks in choices.blocks:
            share = min(ring, device.shared_bytes_per_multiprocessor) // blocks - _UNUSED_BYTES
            stages = min(share // (config.rows * row_bytes + _GAP_BYTES), _MAX_STAGES)
            if stages < 2:
                continue
            for producers in choices.piece_producers if in_pieces else choices.producers:
                yield replace(config, stages=stages, blocks=blocks, producers=producers)


def _folds(problem: TsmttsmProblem, in_pieces: bool) -> list[int]:
    """List the rows to treat as one: powers of two that fill one group of 8 columns, or half of it.

    Half a group wastes tensor products, which do not limit here, but its rows of 32 bytes need no gaps.
    """
    most = 8 // max(problem.M, problem.N)
    if most <= 1 or in_pieces:
        return [1]
    full = 1 << (most.bit_length() - 1)
    return [full, full // 2]


def _splits(groups_m: int, groups_n: int) -> Iterator[tuple[int, int, int]]:
    """Yield the splits of 4, 8 or 16 warps between columns and rows, with the squarest tiles."""
    for count in (1, 2, 4, 8, 16):
        pairs = [(wm, count // wm) for wm in (1, 2, 4, 8, 16) if count % wm == 0]
        pairs = [(wm, wn) for wm, wn in pairs if wm <= groups_m and wn <= groups_n]
        if not pairs:
            return
        wm, wn = min(pairs, key=lambda pair: ceil_div(groups_m, pair[0]) + ceil_div(groups_n, pair[1]))
        for warps in (4, 8, 16):
            if warps >= count:
                yield wm, wn, warps // count


def _schedules(problem: TsmttsmProblem, config: TsmttsmMmaConfig) -> Iterator[TsmttsmMmaConfig]:
    """Yield the schedules of loads that registers allow."""
    blocks = tile_blocks(problem, config)
    choices = [replace(config, unroll=1 if blocks > 8 else 2 if blocks > 2 else 4)]
    groups_m, groups_n = groups(problem, config)
    # Where products take less than two thirds of the time of memory, waiting early for a stage costs more
    # than it gains.
    if is_complex(problem.dtype) and groups_m * groups_n > 2.3 * (groups_m + groups_n):
        choices.append(replace(config, unroll=1, ahead=True))
    yield from (choice for choice in choices if registers(problem, choice) <= MAX_REGISTERS)


def _row_counts(
    problem: TsmttsmProblem, config: TsmttsmMmaConfig, choices: _Choices, device: DeviceInfo
) -> list[tuple[int, bool]]:
    """List the rows per stage near the wanted sizes, and whether they are gapless."""
    size = itemsize(problem.dtype)
    widths = {config.fold * problem.M, config.fold * (problem.M if problem.same else problem.N)}
    row_bytes = config.fold * (problem.M + (0 if problem.same else problem.N)) * size
    whole = math.lcm(*(BULK_UNIT // math.gcd(width * size, BULK_UNIT) for width in widths))
    even = math.lcm(config.wk * config.kstep, whole)  # equal shares for all warps
    # Chunks of an odd multiple of 32 bytes, or of 64, have the fewest bank conflicts.
    odd = math.lcm(*(32 // math.gcd(width * size, 32) for width in widths))
    if has_boxes(problem, device):
        whole = odd = 4
        even = math.lcm(config.wk * config.kstep, whole)
    found: set[tuple[int, bool]] = set()
    for target in choices.stage_bytes:
        wanted = target // (4 * row_bytes)
        for chunk in (max(1, round(wanted / even)) * even, (wanted // odd | 1) * odd):
            if chunk % whole or chunk % config.kstep or chunk < config.wk * config.kstep:
                continue
            found.add((chunk, False))
            sparse = replace(config, rows=4 * chunk)
            tight = replace(sparse, gapless=True)
            if choices.gapless and layout(problem, sparse, device) != layout(problem, tight, device):
                found.add((chunk, True))
    return sorted((4 * chunk, gapless) for chunk, gapless in found)


@functools.lru_cache(maxsize=4096)
def short_list(
    model: TsmttsmMmaModel, problem: TsmttsmProblem, device: DeviceInfo
) -> tuple[TsmttsmMmaConfig, ...]:
    """List the valid configurations from which `choose` takes one; K does not matter."""
    found: dict[TsmttsmMmaConfig, None] = {}
    for config in _enumerate(model.kind, problem, device, _SHORT_LIST):
        # A warp that only copies is never slower, but it takes registers from the others.
        better = config.producers == 0 and replace(config, producers=1) in found
        if not better and refuse(problem, config, device) is None:
            found[config] = None
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def _has_choice(model: TsmttsmMmaModel, problem: TsmttsmProblem, device: DeviceInfo) -> bool:
    # Every problem is asked; the list itself takes a hundred times as long.
    configs = _enumerate(model.kind, problem, device, _SHORT_LIST)
    return any(refuse(problem, config, device) is None for config in configs)


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


class TsmttsmMmaModel(Model[TsmttsmProblem, TsmttsmMmaConfig]):
    """The model of the tensor-core families.

    Parameters
    ----------
    kind : type
        Their configurations.
    """

    def __init__(self, kind: type[TsmttsmMmaConfig] = TsmttsmMmaConfig) -> None:
        self.kind = kind

    def space(self, problem: TsmttsmProblem, device: DeviceInfo) -> Iterator[TsmttsmMmaConfig]:
        """Yield the configurations worth measuring, a few hundred; some may be refused."""
        return _enumerate(self.kind, problem, device, _SPACE)

    def has_choice(self, problem: TsmttsmProblem, device: DeviceInfo) -> bool:
        """Check whether any configuration of the short list is valid."""
        return _has_choice(self, _shape(problem), device)

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

    def choose(
        self, problem: TsmttsmProblem, device: DeviceInfo, ceilings: Ceilings | None = None
    ) -> TsmttsmMmaConfig:
        """Choose the valid configuration with the shortest predicted time; the problem is supported."""
        normal = replace(problem, alpha="one", beta="zero", conj=False)
        read = ceilings.read_gb_s if ceilings else 4600.0
        return _choose(self, normal, device, read, ceilings.gflop_s.get("float64") if ceilings else None)


@functools.lru_cache(maxsize=4096)
def _choose(
    model: TsmttsmMmaModel, problem: TsmttsmProblem, device: DeviceInfo, read: float, peak: float | None
) -> TsmttsmMmaConfig:
    ceilings = Ceilings(read, read, read, {"float64": peak} if peak else {})
    candidates = short_list(model, _shape(problem), device)
    return min(candidates, key=lambda config: model.predict(problem, config, device, ceilings))
