"""TSMTTSM by ordinary multiply-adds: C = alpha A^H B + beta C, or A^T B, for all types, widths, pitches and alignments.

The kernel (``cuda/tsmttsm_fma.cu``) has the thread mappings of Ernst et al., "Performance engineering for real and
complex tall & skinny matrix multiplication kernels on GPUs" (2021), section "TSMTTSM", and beyond the paper a
ring in shared memory that feeds them. This file holds what can be chosen, which choices are valid, and a
model that orders them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..errors import OptionError
from .device import DeviceInfo
from .fma import (
    C_TYPES,
    MAX_REGISTERS,
    NAMED_BARRIERS,
    SHORT_NAMES,
    Operand,
    Slab,
    ceil_div,
    check_addresses,
    covered_rate,
    excess,
    make_slab,
    parts_of,
    round_up,
    rounded_rows,
    smooth_max,
    widest,
)
from .problem import TsmttsmProblem, is_complex
from .roofline import Ceilings
from .source import render

__all__ = [
    "Config",
    "chain_length",
    "choose",
    "kernel_name",
    "launch",
    "predict",
    "refuse",
    "shared_bytes",
    "source",
    "space",
    "supports",
    "workspace_bytes",
]

MAX_WIDTH = 64

_GRID_HEADER_BYTES = 128  # counters at the head of the workspace, as in cuda/reduce.cuh
_MAX_SUMS = 16  # threads that share one element's sum over the blocks, as there
_STATIC_SHARED_BYTES = 256  # bound on the kernel's own variables
_SCRATCH_BYTES = 24 << 10  # for tiles on their way to the block's sum; less takes more passes
_CHAIN_ROWS = {"registers": 128, "shared": 1024}  # rows that a thread adds up in single precision

Sums = Literal["plain", "double", "registers", "shared"]
Reduction = Literal["partials", "blocks", "threads"]


@dataclass(frozen=True, slots=True)
class Config:
    """One way to run the kernel.

    Attributes
    ----------
    tm, tn : int
        Tile of C that a thread accumulates.
    count : int
        Consecutive rows that a thread takes at a time.
    steps : int
        Sets of rows in a chunk: loaded together from memory, or staged together.
    stages : int
        Stages of a team's ring; 0 to load straight from memory.
    warps : int
        Warps of a team, whose threads share the tiles of a row.
    teams : int
        Teams of a block.
    blocks : int
        Blocks resident on a multiprocessor.
    leapfrog : bool
        Whether a step's operands are loaded during the step before.
    interleaved : bool
        Whether columns are dealt out to tiles in turn ("transposed"), not in blocks.
    unroll : int
        Steps unrolled where they are staged.
    sums : str
        How long single precision chains are kept short: ``"plain"`` not at all (double precision problems), ``"double"``:
        all in double precision, ``"registers"`` or ``"shared"``: chains are added to double precision sums kept there.
    reduction : str
        ``"partials"``: over the blocks in a fixed order; ``"blocks"``, ``"threads"``: by atomic additions of each.
    padded : bool
        Stage contiguous rows one by one, into aligned slabs.
    """

    tm: int
    tn: int
    count: int = 1
    steps: int = 1
    stages: int = 0
    warps: int = 1
    teams: int = 8
    blocks: int = 1
    leapfrog: bool = False
    interleaved: bool = False
    unroll: int = 1
    sums: Sums = "plain"
    reduction: Reduction = "partials"
    padded: bool = False

    @property
    def lanes(self) -> int:
        """Threads of a team."""
        return 32 * self.warps

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.teams



@dataclass(frozen=True, slots=True)
class _Plan:
    """All that follows from a problem's shape and a configuration; sizes and offsets in bytes."""

    operands: tuple[Operand, Operand]
    slabs: tuple[Slab, Slab]
    vectors: tuple[int, int]
    tiles: int
    groups: int
    rows: int
    is_same: bool
    triangle: bool
    b_offset: int
    stage_bytes: int
    passed: int
    product_offset: int
    scratch_offset: int
    shared_bytes: int
    chain: int

    @property
    def is_one_tile(self) -> bool:
        """Whether one thread holds all of C: then operands that are the same are loaded once."""
        return self.operands[0].tiles * self.operands[1].tiles == 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of A and B."""
        a, b = self.operands
        return a.row_bytes + (0 if self.is_same else b.row_bytes)


def _is_single(problem: TsmttsmProblem) -> bool:
    return problem.dtype in ("float32", "complex64")


def _shape(problem: TsmttsmProblem) -> TsmttsmProblem:
    """What source and layout depend on: not the number of rows, nor by how much rows lie apart."""
    return replace(
        problem,
        K=1,
        lda=problem.M if problem.lda == problem.M else problem.M + 1,
        ldb=problem.N if problem.ldb == problem.N else problem.N + 1,
    )


def _operands(problem: TsmttsmProblem, tm: int, tn: int) -> tuple[Operand, Operand]:
    a = Operand.of(problem.M, problem.dtype_a, problem.lda, problem.align_a, tm)
    if problem.same:
        return a, replace(a, tile=tn, tiles=ceil_div(problem.N, tn))
    return a, Operand.of(problem.N, problem.dtype_b, problem.ldb, problem.align_b, tn)


def _tiles(problem: TsmttsmProblem, config: Config) -> int:
    """Tiles of a row: for A^T A only those on and above the diagonal, where tiles are square blocks."""
    across, down = ceil_div(problem.M, config.tm), ceil_div(problem.N, config.tn)
    return across * (across + 1) // 2 if _is_triangle(problem, config) else across * down


def _is_triangle(problem: TsmttsmProblem, config: Config) -> bool:
    return problem.same and config.tm == config.tn and not config.interleaved


@functools.lru_cache(maxsize=16384)
def _slab(
    operand: Operand, rows: int, count: int, groups: int, others: int, first: bool, interleaved: bool, padded: bool
) -> tuple[Slab, int]:
    """Slab of an operand and bytes of a thread's loads; `others` tiles of the other operand share each of its."""

    def lanes(slab: Slab, vector: int) -> Iterator[int]:
        step = max(vector, operand.size) if interleaved else operand.tile * operand.size
        tiles = operand.tiles * others
        for lane in range(32):
            tile = lane % tiles % operand.tiles if first else lane % tiles // others
            yield slab.offset(min(lane // tiles, groups - 1) * count) + tile * step

    return make_slab(operand, rows, count, lanes, is_padded=padded)


@functools.lru_cache(maxsize=16384)
def _plan(problem: TsmttsmProblem, config: Config) -> _Plan:
    """Work out a configuration; the problem is a `_shape`."""
    a, b = _operands(problem, config.tm, config.tn)
    parts = max(a.parts, b.parts)
    tiles = _tiles(problem, config)
    groups = max(1, config.lanes // tiles)
    rows = config.steps * groups * config.count
    how = (rows, config.count, groups)
    slab_a, vector_a = _slab(a, *how, b.tiles, True, config.interleaved, config.padded)
    slab_b, vector_b = _slab(b, *how, a.tiles, False, config.interleaved, config.padded)
    if config.stages == 0:
        vector_a, vector_b = a.direct_vector(config.count), b.direct_vector(config.count)
    if problem.same:
        slab_b, vector_a = slab_a, min(vector_a, vector_b)
        vector_b = vector_a
    b_offset = 0 if problem.same else round_up(slab_a.size, 128)
    stage_bytes = round_up(b_offset + slab_b.size, 128) if config.stages else 0
    ring = config.teams * config.stages * stage_bytes
    # The last row's loads of columns past the width stay within the block's memory.
    slack = max(operand.tiles * operand.tile * operand.size for operand in (a, b)) + 16 if config.stages else 0

    values = config.tm * config.tn * parts
    pitch = 8 * tiles * (groups * config.teams | 1)  # of one value of all threads
    is_kept = config.sums == "shared"
    passed = max(1, min(values, (_SCRATCH_BYTES if is_kept else max(ring, _SCRATCH_BYTES)) // pitch))
    passed = ceil_div(values, ceil_div(values, passed))  # passes of equal length
    product_offset = round_up(ring + slack, 128) if is_kept else 0
    scratch_offset = round_up(product_offset + problem.M * problem.N * parts * 8, 128)
    return _Plan(
        operands=(a, b),
        slabs=(slab_a, slab_b),
        vectors=(vector_a, vector_b),
        tiles=tiles,
        groups=groups,
        rows=rows,
        is_same=problem.same,
        triangle=_is_triangle(problem, config),
        b_offset=b_offset,
        stage_bytes=stage_bytes,
        passed=passed,
        product_offset=product_offset,
        scratch_offset=scratch_offset,
        shared_bytes=max(ring + slack, scratch_offset + max(passed * pitch, config.threads * 8)),
        chain=max(1, _CHAIN_ROWS.get(config.sums, 0) // (config.steps * config.count)) * (config.sums in _CHAIN_ROWS),
    )


def _registers(problem: TsmttsmProblem, config: Config) -> int:
    """Registers a thread needs, at least nearly."""
    a, b = _operands(problem, config.tm, config.tn)
    is_one = problem.same and a.tiles * b.tiles == 1
    values = config.tm * (config.tm + 1) // 2 if is_one else config.tm * config.tn
    words = 2 if not _is_single(problem) or config.sums == "double" else 1
    sums = values * max(a.parts, b.parts) * (words + (2 if config.sums == "registers" else 0))
    stored = config.tm * a.size // 4 + (0 if is_one else config.tn * b.size // 4)
    ahead = (1 if config.stages else config.steps) * (2 if config.leapfrog else 1)
    converted = (config.tm * a.parts + config.tn * b.parts) * words if 4 * words > min(a.real_bytes, b.real_bytes) else 0
    addresses = 36 if config.stages else 32 + 4 * ahead
    return sums + stored * config.count * ahead + converted + addresses + (8 if config.sums == "shared" else 0)


def shared_bytes(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the dynamic shared memory of a block: the rings, and the sums of tiles over the block."""
    return _plan(_shape(problem), config).shared_bytes


def supports(problem: TsmttsmProblem, device: DeviceInfo) -> str | None:
    """Say why this family cannot run a problem, or None when it can."""
    if device.kind != "cuda":
        return f"{device.name} is not a GPU that runs CUDA"
    if not 1 <= problem.M <= MAX_WIDTH or not 1 <= problem.N <= MAX_WIDTH:
        return f"widths are 1 to {MAX_WIDTH}, not {problem.M} and {problem.N}"
    return None


def refuse(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> str | None:
    """Say why a configuration is not valid for a problem, or None when it is: the validity rule."""
    reason = supports(problem, device) or _misfit(problem, config)
    if reason:
        return reason
    needed, shared = _registers(problem, config), shared_bytes(problem, config, device)
    return excess(config.threads, config.blocks, needed, shared, _STATIC_SHARED_BYTES, device)


def _misfit(problem: TsmttsmProblem, config: Config) -> str | None:
    """Options that do not go together."""
    if not (1 <= config.tm <= problem.M and 1 <= config.tn <= problem.N):
        return f"tiles of {config.tm} x {config.tn} for a result of {problem.M} x {problem.N}"
    a, b = _operands(problem, config.tm, config.tn)
    if _tiles(problem, config) > config.lanes:
        return f"{_tiles(problem, config)} tiles a row for {config.lanes} threads"
    if config.interleaved and a.tiles * b.tiles == 1:
        return "one tile has nothing to interleave"
    if (config.sums == "plain") == _is_single(problem):
        return f"sums {config.sums!r} are not for {problem.dtype}"
    if config.stages == 1 or (config.stages and config.steps % config.unroll):
        return f"{config.stages} stages of {config.steps} steps, unrolled {config.unroll} times"
    if config.stages and config.leapfrog and config.steps == 1:
        return "one step a stage has no next one to load ahead"
    if config.padded and not (config.stages and (a.is_linear or b.is_linear)):
        return "only contiguous rows that are staged are padded"
    if config.stages and config.warps > 1 and config.teams > NAMED_BARRIERS:
        return f"{config.teams} teams for {NAMED_BARRIERS} barriers"
    return None


# ---- the space


def space(problem: TsmttsmProblem, device: DeviceInfo) -> tuple[Config, ...]:
    """Return the valid configurations worth measuring, a few hundred."""
    if supports(problem, device) is not None:
        return ()
    return _valid(_shape(problem), device, _SPACE)


@dataclass(frozen=True, slots=True)
class _Choices:
    """What `_enumerate` combines.

    `tilings` of the result; whether rows are staged (bytes of a stage a warp) or loaded directly (steps); `warps`
    on a multiprocessor.
    """

    tilings: int
    warps: tuple[int, ...]
    stage_bytes: tuple[int, ...]
    steps: tuple[int, ...]
    leapfrog: tuple[bool, ...]


_SPACE = _Choices(8, (8, 16, 32, 64), (2 << 10, 4 << 10, 8 << 10), (1, 2, 4), (False, True))
# What the model chooses from: settings whose effect it does not describe are fixed to what measured best.
_SHORT_LIST = _Choices(4, (8, 16), (4 << 10,), (), (False,))


@functools.lru_cache(maxsize=1024)
def _valid(problem: TsmttsmProblem, device: DeviceInfo, choices: _Choices) -> tuple[Config, ...]:
    configs = dict.fromkeys(_enumerate(problem, device, choices))
    return tuple(config for config in configs if refuse(problem, config, device) is None)


def _enumerate(problem: TsmttsmProblem, device: DeviceInfo, choices: _Choices) -> Iterator[Config]:
    for base in _tilings(problem, choices.tilings):
        a, b = _operands(problem, base.tm, base.tn)
        is_dealt = a.tiles * b.tiles > 1 and not (problem.same and base.tm == base.tn)
        for interleaved in (True, False) if is_dealt else (False,):
            for leapfrog in choices.leapfrog:
                config = replace(base, interleaved=interleaved, leapfrog=leapfrog)
                for steps in choices.steps:
                    for warps in choices.warps:
                        yield from _residence(replace(config, steps=steps), warps)
                gains = any(x.is_linear and x.tiles > 1 and x.row_bytes % 16 for x in (a, b))
                for padded in (False, True) if gains else (False,):
                    yield from _staged(problem, replace(config, padded=padded), device, choices)


def _tilings(problem: TsmttsmProblem, most: int) -> list[Config]:
    """Tiles by the cycles they would take a row, if memory did not limit, the fewest first."""
    found = []
    sizes_m, sizes_n = _tile_sizes(problem.M), _tile_sizes(problem.N)
    for tm in sizes_m:
        for tn in (tm,) if problem.same else sizes_n:
            a, b = _operands(problem, tm, tn)
            tiles = a.tiles * (a.tiles + 1) // 2 if problem.same else a.tiles * b.tiles
            warps = 1 << max(0, ceil_div(tiles, 32) - 1).bit_length()
            if warps > 8:
                continue
            for count in _counts(a, b):
                config = Config(tm, tn, count=count, warps=warps, sums=_sums(problem, tm * tn))
                if _registers(problem, replace(config, stages=2)) <= MAX_REGISTERS:
                    cycles = _row_cycles(problem, config, a, b, tiles)
                    found.append((cycles, config))
    found.sort(key=lambda entry: entry[0])
    return [config for _, config in found[:most]]


def _tile_sizes(width: int) -> list[int]:
    """Sizes of equal tiles, at most 16 columns, and those rounded up to whole vectors."""
    even = {ceil_div(width, tiles) for tiles in range(1, width + 1)}
    rounded = {min(width, round_up(size, unit)) for size in even for unit in (1, 2, 4)}
    return sorted(size for size in rounded if size <= 16)


def _counts(a: Operand, b: Operand) -> list[int]:
    """Neighbouring rows of a thread: one, or what makes those of untiled contiguous operands whole vectors."""
    rows = [16 // widest(operand.row_bytes) for operand in (a, b) if operand.tiles == 1 and operand.is_linear]
    return sorted({1, max(rows, default=1)})


def _sums(problem: TsmttsmProblem, values: int) -> Sums:
    """How chains are kept short: double precision sums go where a tile leaves room."""
    if not _is_single(problem):
        return "plain"
    return "registers" if values * parts_of(problem.dtype) <= 48 else "shared"


def _residence(config: Config, warps: int) -> Iterator[Config]:
    """Blocks of about eight warps that put `warps` on a multiprocessor."""
    teams = max(1, 8 // config.warps)
    blocks = warps // (teams * config.warps)
    if blocks:
        yield replace(config, teams=teams, blocks=blocks)


def _staged(
    problem: TsmttsmProblem, config: Config, device: DeviceInfo, choices: _Choices
) -> Iterator[Config]:
    """Steps that make stages of the wanted sizes, and as many stages as fit."""
    size_a, size_b = (operand.row_bytes for operand in _operands(problem, config.tm, config.tn))
    row_bytes = size_a + (0 if problem.same else size_b)
    step_rows = max(1, config.lanes // _tiles(problem, config)) * config.count
    kept = problem.M * problem.N * parts_of(problem.dtype) * 8 + _SCRATCH_BYTES if config.sums == "shared" else 0
    for stage_bytes in choices.stage_bytes:
        steps = max(1, round(stage_bytes * config.warps / (step_rows * row_bytes)))
        while steps * step_rows * size_a % 16 or steps * step_rows * size_b % 16:
            steps += 1  # whole 16-byte pieces
        for warps in choices.warps:
            for resident in _residence(replace(config, steps=steps), warps):
                room = device.shared_bytes_per_multiprocessor // resident.blocks - kept - 4096
                stages = min(8, room // (resident.teams * (steps * step_rows * row_bytes * 9 // 8 + 256)))
                if stages >= 2:
                    yield replace(resident, stages=stages, unroll=_unroll(problem, resident))


def _unroll(problem: TsmttsmProblem, config: Config) -> int:
    """Steps unrolled so that loads of one hide behind products of another, where tiles are small."""
    work = config.tm * config.tn * config.count * parts_of(problem.dtype_a) * parts_of(problem.dtype_b)
    for unroll in (4, 2):
        if config.steps % unroll == 0 and work * unroll <= 64:
            return unroll
    return 1


# ---- the model

_CLOCK_HZ = 1.755e9  # a Hopper GPU under load
_LAUNCH_S = 3.3e-6  # and the first bytes' latency
_SHARED_CYCLES = 30  # shared memory to register
_CONVERSION_CYCLES = 9  # of a quadrant: float32 -> float64 of a warp, 14 a clock and multiprocessor
_STEP_INSTRUCTIONS = 10  # addresses and loop of a step
_CHUNK_INSTRUCTIONS = 110  # waiting for a stage and filling it again, besides its copies
_SM_BYTES_A_CYCLE = 64  # from L2 to one multiprocessor


def _step_cycles(problem: TsmttsmProblem, config: Config, a: Operand, b: Operand) -> tuple[float, float, float]:
    """Cycles of a quadrant that a warp's step takes when all four are busy: multiply-adds, loads, conversions."""
    is_one = problem.same and a.tiles * b.tiles == 1
    products = config.tm * (config.tm + 1) // 2 if is_one else config.tm * config.tn
    is_double = not _is_single(problem) or config.sums == "double"
    fma = config.count * products * a.parts * b.parts * (2 if is_double else 1)
    # 128 bytes a cycle into the registers of 32 threads, for four quadrants: a cycle of one for a byte a thread.
    load = config.count * (config.tm * a.size + (0 if is_one else config.tn * b.size))
    converted = config.count * (config.tm * a.parts + config.tn * b.parts)
    return fma, load, _CONVERSION_CYCLES * converted if is_double and _is_single(problem) else 0


def _row_cycles(problem: TsmttsmProblem, config: Config, a: Operand, b: Operand, tiles: int) -> float:
    """Cycles of a multiprocessor for a row: the busier of arithmetic and operand loads, and part of the other."""
    fma, load, converted = _step_cycles(problem, config, a, b)
    busy = max(fma, load + converted) + 0.25 * min(fma, load)
    return busy * config.warps / (4 * (config.lanes // tiles) * config.count)


@functools.lru_cache(maxsize=65536)
def _chunk_cycles(problem: TsmttsmProblem, config: Config) -> tuple[float, float]:
    """Cycles of a chunk: of a quadrant while its warps take turns, and of a warp by itself."""
    plan = _plan(problem, config)
    a, b = plan.operands
    fma, load, converted = _step_cycles(problem, config, a, b)
    is_double = not _is_single(problem) or config.sums == "double"
    accesses, lines = 0, 0.0
    for operand, slab, vector in zip(plan.operands, plan.slabs, plan.vectors, strict=True):
        is_linear = slab.is_linear if config.stages else operand.is_linear
        loads = operand.accesses(config.count, vector, is_linear)
        accesses += loads
        # Straight from memory, a load takes a cycle for every line of 128 bytes that the warp's rows lie in.
        rows = min(32, max(1, 32 // plan.tiles)) * config.count
        lines += 4 * loads * max(rows * operand.row_bytes / 128 if is_linear else rows, vector / 4)
        if problem.same and plan.is_one_tile:
            break
    issue = fma / (2 if is_double else 1) + accesses + _STEP_INSTRUCTIONS / config.unroll
    if config.stages:
        copies = plan.slabs[0].copies(config.lanes) + (0 if problem.same else plan.slabs[1].copies(config.lanes))
        overhead = _CHUNK_INSTRUCTIONS + 4 * copies
        exposed = _SHARED_CYCLES * config.steps / config.unroll * (0.3 if config.leapfrog else 1)
    else:
        issue += 2 * accesses  # 64-bit addresses
        load, overhead, exposed = lines, 40, 0
    work = config.steps * max(fma, issue, load + converted)
    return work + overhead, config.steps * max(fma, issue) + overhead + exposed


def predict(
    problem: TsmttsmProblem, config: Config, device: DeviceInfo, ceilings: Ceilings | None = None
) -> float:
    """Return the modelled time in seconds of a valid configuration.

    The slowest of three limits, smoothed where they are close: memory, at the rate that the bytes in flight allow (Little's
    law); the busiest quadrant of a multiprocessor, whose pipes multiply, load and issue; a warp's own latencies. Then what
    does not overlap: the launch, the sums over groups of threads and over blocks.
    """
    plan = _plan(_shape(problem), config)
    read = ceilings.read_gb_s * 1e9 if ceilings else 4.6e12
    grid = _grid(problem, config, device)
    turns = ceil_div(ceil_div(problem.K, plan.rows), grid * config.teams)
    resident, busy = ceil_div(grid, device.multiprocessors), min(grid, device.multiprocessors)
    # A ring fills a stage again once it is read; direct loads wait for their products unless they leap ahead.
    ahead = config.stages - 0.5 if config.stages else 1.0 if config.leapfrog else 0.6
    flight = resident * config.teams * min(ahead, turns) * plan.rows * plan.row_bytes
    rate = covered_rate(min(read / busy, _SM_BYTES_A_CYCLE * _CLOCK_HZ), flight)
    quadrant, warp = _chunk_cycles(_shape(problem), config)
    warps_a_quadrant = ceil_div(resident * config.teams * config.warps, 4)
    body = smooth_max(
        problem.K * plan.row_bytes / (busy * rate),
        turns * warps_a_quadrant * quadrant / _CLOCK_HZ,
        turns * warp / _CLOCK_HZ,
    )
    return _LAUNCH_S + body + _tail(problem, config, plan, grid)


def _tail(problem: TsmttsmProblem, config: Config, plan: _Plan, grid: int) -> float:
    """Seconds after the last chunk: the sum over a block, then over blocks."""
    values = config.tm * config.tn * parts_of(problem.dtype)
    cycles = 16 * config.threads * values / 128 + 200 * ceil_div(values, plan.passed)
    if config.sums == "shared":
        cycles *= 1 + problem.K // (plan.rows * grid * config.teams * plan.chain)
    if grid == 1:
        return cycles / _CLOCK_HZ
    result = problem.M * problem.N * parts_of(problem.dtype) * 8
    shared = grid if result > 256 else 1  # blocks that share the last sum
    return 2.5e-6 + (cycles + result / 32 + grid * result / shared / 32) / _CLOCK_HZ


@functools.lru_cache(maxsize=4096)
def _choose(problem: TsmttsmProblem, device: DeviceInfo, read: float) -> Config:
    ceilings = Ceilings(read, read, read)
    candidates = _valid(_shape(problem), device, _SHORT_LIST) or space(problem, device)
    if not candidates:
        reason = supports(problem, device) or "no configuration fits its shared memory and registers"
        raise OptionError(
            f"tsmttsm_fma cannot run on {device.name}: {reason}; let dispatch take another family."
        )
    return min(candidates, key=lambda config: predict(problem, config, device, ceilings))


def choose(problem: TsmttsmProblem, device: DeviceInfo, ceilings: Ceilings | None = None) -> Config:
    """Return the valid configuration with the shortest modelled time.

    Raises
    ------
    OptionError
        If the family does not support the problem on this device.
    """
    normal = replace(_shape(problem), K=rounded_rows(problem.K), alpha="one", beta="zero")
    return _choose(normal, device, ceilings.read_gb_s if ceilings else 4600.0)


def _grid(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    chunks = ceil_div(problem.K, _plan(_shape(problem), config).rows)
    return max(1, min(device.multiprocessors * config.blocks, chunks))


# ---- source and launch


def chain_length(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the longest chain of additions in the result's precision that an element of C goes through, for error bounds."""
    plan = _plan(_shape(problem), config)
    grid = _grid(problem, config, device)
    turns = ceil_div(ceil_div(problem.K, plan.rows), grid * config.teams)
    products = config.steps * config.count * (2 if is_complex(problem.dtype_a) and is_complex(problem.dtype_b) else 1)
    if plan.chain:
        return min(turns, plan.chain) * products + 2  # the sums of chains are in double precision
    if config.sums == "double":
        return 2
    groups = plan.groups * config.teams
    sums = 0 if grid == 1 else ceil_div(grid, min(_MAX_SUMS, grid)) + min(_MAX_SUMS, grid)
    if config.reduction != "partials":
        sums = max(grid, grid * groups if config.reduction == "threads" else 0)
    return turns * products + groups + sums + 2


def kernel_name(problem: TsmttsmProblem) -> str:
    """Return the kernel's name, as ``tsmttsm_fma_f64_m8_n8``."""
    kind = SHORT_NAMES[problem.dtype_a]
    if problem.dtype_b != problem.dtype_a:
        kind += "_" + SHORT_NAMES[problem.dtype_b]
    return f"{problem.operation}_fma_{kind}_m{problem.M}_n{problem.N}"


def source(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> str:
    """Return the CUDA source of a configuration; it depends neither on K nor on the length of a pitch."""
    plan = _plan(_shape(problem), config)
    a, b = plan.operands
    single = _is_single(problem)
    types = {
        "RealA": C_TYPES[a.real_bytes],
        "RealB": C_TYPES[b.real_bytes],
        "Real": "float" if single and config.sums != "double" else "double",
        "Out": "float" if single else "double",
    }
    constants: dict[str, bool | int | float] = {
        "M": problem.M,
        "N": problem.N,
        "PA": a.parts,
        "PB": b.parts,
        "CONJ": problem.conj and a.parts == 2,
        "SAME": problem.same,
        "ALPHA_ONE": problem.alpha == "one",
        "BETA_ZERO": problem.beta == "zero",
        "TM": config.tm,
        "TN": config.tn,
        "INTERLEAVED": config.interleaved,
        "TRIANGLE": plan.triangle,
        "COUNT": config.count,
        "STEPS": config.steps,
        "UNROLL": config.unroll,
        "LEAPFROG": config.leapfrog,
        "WARPS": config.warps,
        "TEAMS": config.teams,
        "BLOCKS": config.blocks,
        "STAGES": config.stages,
        "CHAIN": plan.chain,
        "WIDE": config.sums == "registers",
        "REDUCTION": ("partials", "blocks", "threads").index(config.reduction),
    }
    for name, operand, slab, vector in zip("AB", plan.operands, plan.slabs, plan.vectors, strict=True):
        constants[f"{name}_LINEAR"] = slab.is_linear if config.stages else operand.is_linear
        constants[f"{name}_VECTOR"] = vector
        constants |= slab.constants(name)
    constants |= {
        "B_OFFSET": plan.b_offset,
        "STAGE_BYTES": plan.stage_bytes,
        "PASS": plan.passed,
        "PRODUCT_OFFSET": plan.product_offset,
        "SCRATCH_OFFSET": plan.scratch_offset,
    }
    return render(kernel_name(problem), "tsmttsm_fma.cu", constants, types)


def workspace_bytes(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the bytes of workspace a launch needs.

    One workspace serves all launches of one stream. Its first 128 bytes are zero before the first one; every launch leaves
    them zero. The rest is scratch.
    """
    parts = parts_of(problem.dtype)
    partials = _grid(problem, config, device) if config.reduction == "partials" else 1
    return _GRID_HEADER_BYTES + partials * problem.M * problem.N * parts * 8


def launch(
    function: Any,
    problem: TsmttsmProblem,
    config: Config,
    device: DeviceInfo,
    A_ptr: int,
    B_ptr: int,
    C_ptr: int,
    alpha: complex,
    beta: complex,
    workspace_ptr: int,
) -> None:
    """Start the kernel on CuPy's current stream.

    Parameters
    ----------
    function : cupy.cuda.function.Function
        What `compile.function` made of `source`, with `shared_bytes` of dynamic shared memory.
    problem, config, device
        What `function` was made for; K and pitches may differ from launch to launch.
    A_ptr, B_ptr, C_ptr : int
        Device addresses; C is contiguous.
    alpha, beta : complex
        The factors, in the problem's classes.
    workspace_ptr : int
        Device address of `workspace_bytes` bytes that belong to this stream.

    Raises
    ------
    LayoutError
        If an address is less aligned than the problem says.
    """
    if problem.K > 0:
        check_addresses("tsmttsm", ("A", A_ptr, problem.align_a), ("B", B_ptr, problem.align_b))
    a, b = complex(alpha), complex(beta)
    arguments = (
        *(A_ptr, B_ptr, C_ptr, problem.K, problem.lda, problem.ldb),
        *(a.real, a.imag, b.real, b.imag),
        workspace_ptr,
    )
    grid = _grid(problem, config, device)
    function((grid,), (config.threads,), arguments, shared_mem=shared_bytes(problem, config, device))
