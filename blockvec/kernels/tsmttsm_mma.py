"""TSMTTSM on FP64 tensor cores: C = alpha A^H B + beta C, or A^T B, in double precision, real and complex.

The kernel (``cuda/tsmttsm_mma.cu`` says how it works) streams A and B through a ring of stages in shared
memory, filled by bulk copies where an operand is contiguous and 16-byte aligned and by ``cp.async``
elsewhere, and sums over the blocks in a fixed order in the same launch. This file holds what can be chosen,
which choices are valid, and a model that orders them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from .device import DeviceInfo
from .problem import TsmttsmProblem, is_complex, itemsize
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

GRID_HEADER_BYTES = 128  # counters at the head of the workspace, as in cuda/reduce.cuh
_MAX_SUMS = 16  # threads that share one element's sum over the blocks, as there
_STATIC_SHARED_BYTES = 1024  # bound on barriers and counters, beside the ring
_RESERVED_SHARED_BYTES = 1024  # the driver's share of every block
_MAX_REGISTERS = 255
_PIECE_PRODUCERS = 4  # warps that issue cp.async: one a quadrant
_BULK_UNIT = 16  # bytes: alignment and granularity of bulk copies
_UNUSED_BYTES = _STATIC_SHARED_BYTES + _RESERVED_SHARED_BYTES + 2048
_GAP_BYTES = 640  # bound on what gaps between chunks and loads past the widths add to a stage
_MAX_STAGES = 24
_BANK_ROW = 128  # bytes of shared memory served in a cycle


@dataclass(frozen=True, slots=True)
class Config:
    """One way to run the kernel.

    Attributes
    ----------
    rows : int
        Folded rows of a stage, a multiple of 4.
    stages : int
        Stages of the ring.
    wm, wn, wk : int
        Warps that share the columns of A, the columns of B and the rows of a stage.
    kstep : int
        Sets of 4 rows in one tensor product: 1, 2 or 4.
    fold : int
        Consecutive rows of narrow operands taken as one.
    prefetch : bool
        Whether fragments are loaded a step ahead.
    unroll : int
        Steps unrolled where they are not.
    blocks : int
        Blocks resident on a multiprocessor.
    producers : int
        Warps that only copy; 0 when the last warp to read a stage fills it again.
    """

    rows: int
    stages: int
    wm: int
    wn: int
    wk: int
    kstep: int = 1
    fold: int = 1
    prefetch: bool = False
    unroll: int = 2
    blocks: int = 1
    producers: int = 0

    @property
    def warps(self) -> int:
        """Warps that multiply."""
        return self.wm * self.wn * self.wk

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.warps + self.producers)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a stage's operands lie in shared memory, in bytes; names as in the kernel."""

    a_piece: int
    b_piece: int
    a_row: int
    b_row: int
    a_pitch: int
    b_pitch: int
    b_offset: int
    stage_bytes: int


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)


def _architecture(device: DeviceInfo) -> int:
    return int("".join(filter(str.isdigit, device.architecture)) or 0)


def _piece(width: int, ld: int, align: int, architecture: int) -> int:
    """Bytes of a cp.async, or 0 where bulk copies can be used."""
    if architecture >= 90 and ld == width and align >= _BULK_UNIT:
        return 0
    return min(align, 16)


def _pieces(problem: TsmttsmProblem, device: DeviceInfo) -> tuple[int, int]:
    architecture = _architecture(device)
    piece_a = _piece(problem.M, problem.lda, problem.align_a, architecture)
    if problem.same:
        return piece_a, piece_a
    return piece_a, _piece(problem.N, problem.ldb, problem.align_b, architecture)


def _pitch(chunk_bytes: int) -> int:
    """Distance of two chunks, 32 bytes modulo 128: no bank conflicts in fragment loads."""
    if chunk_bytes % _BANK_ROW in (32, 96):
        return chunk_bytes
    return _up(chunk_bytes, _BANK_ROW) + 32


def _groups(problem: TsmttsmProblem, config: Config) -> tuple[int, int]:
    return _ceil(config.fold * problem.M, 8), _ceil(config.fold * problem.N, 8)


def _layout(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> _Layout:
    size = itemsize(problem.dtype)
    a_piece, b_piece = _pieces(problem, device)
    groups_m, groups_n = _groups(problem, config)
    chunk = config.rows // 4
    a_row = _up(config.fold * problem.M * size, max(a_piece, size))
    b_row = _up(config.fold * problem.N * size, max(b_piece, size))
    a_pitch, b_pitch = _pitch(chunk * a_row), _pitch(chunk * b_row)
    # The last row's loads of columns past the width stay within the stage.
    over_a = _up(groups_m, config.wm) * 8 * size - a_row
    over_b = _up(groups_n, config.wn) * 8 * size - b_row
    b_offset = _up(4 * a_pitch + over_a, _BANK_ROW)
    if problem.same:
        b_offset = 0
        stage_bytes = _up(4 * a_pitch + max(over_a, over_b), _BANK_ROW)
    else:
        stage_bytes = _up(b_offset + 4 * b_pitch + over_b, _BANK_ROW)
    return _Layout(a_piece, b_piece, a_row, b_row, a_pitch, b_pitch, b_offset, stage_bytes)


def _tile(problem: TsmttsmProblem, config: Config) -> tuple[int, int]:
    groups_m, groups_n = _groups(problem, config)
    return _ceil(groups_m, config.wm), _ceil(groups_n, config.wn)


def _is_triangle(problem: TsmttsmProblem, config: Config) -> bool:
    return problem.same and config.wm * config.wn == 1


def _tile_blocks(problem: TsmttsmProblem, config: Config) -> int:
    """8 x 8 blocks of C that a warp accumulates."""
    im, in_ = _tile(problem, config)
    return im * (im + 1) // 2 if _is_triangle(problem, config) else im * in_


def shared_bytes(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    """Return a block's dynamic shared memory: the ring, later the sums over its warps and its part of C."""
    parts = 2 if is_complex(problem.dtype) else 1
    im, in_ = _tile(problem, config)
    ring = config.stages * _layout(problem, config, device).stage_bytes
    slabs = config.wk // 2 * config.wm * config.wn * im * in_ * parts * 512
    product = config.fold**2 * problem.M * problem.N * parts * 8
    return max(ring, slabs, product, 32 * config.warps * 8)


def _registers(problem: TsmttsmProblem, config: Config) -> int:
    """Return the registers a thread needs, by a rule that errs to the high side."""
    parts = 2 if is_complex(problem.dtype) else 1
    im, in_ = _tile(problem, config)
    fragments = 2 * parts * (im + (0 if _is_triangle(problem, config) else in_)) * config.kstep
    ahead = 2 if config.prefetch else 1
    swapped = 8 * config.kstep if parts == 2 else 0
    return 4 * parts * _tile_blocks(problem, config) + ahead * fragments + swapped + 40


def _register_limit(config: Config, device: DeviceInfo) -> int:
    """Return the registers a thread may have: a quadrant deals out a quarter of them by whole warps."""
    warps_a_quadrant = _ceil((config.warps + config.producers) * config.blocks, 4)
    return min(_MAX_REGISTERS, device.registers_per_multiprocessor // 4 // warps_a_quadrant // 32 // 8 * 8)


def supports(problem: TsmttsmProblem, device: DeviceInfo) -> str | None:
    """Say why this family cannot run a problem, or None when it can."""
    if device.kind != "cuda" or _architecture(device) < 80:
        return f"{device.name} has no FP64 tensor cores"
    if problem.dtype_a != problem.dtype_b or problem.dtype not in ("float64", "complex128"):
        return f"takes two float64 or two complex128 operands, not {problem.dtype_a} and {problem.dtype_b}"
    if min(problem.K, problem.M, problem.N) < 1:
        return "has no rows or columns to multiply"
    size = itemsize(problem.dtype)
    if min(problem.align_a, problem.align_b) < 8:
        return f"operands must be aligned to 8 bytes, not {min(problem.align_a, problem.align_b)}"
    if not _short_list(_shape(problem), device):
        return (
            f"rows of {(problem.M + problem.N) * size} bytes or a {problem.M} x {problem.N} result do not fit"
        )
    return None


def refuse(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> str | None:
    """Say why a configuration is not valid for a problem, or None when it is: the validity rule."""
    a_piece, b_piece = _pieces(problem, device)
    groups_m, groups_n = _groups(problem, config)
    chunk = config.rows // 4
    if config.rows % 4 or chunk % config.kstep:
        return f"{config.rows} rows are not whole steps of {4 * config.kstep}"
    if config.prefetch and chunk // config.kstep % (2 * config.wk):
        return f"prefetching takes an even number of steps a warp: {chunk // config.kstep} over {config.wk}"
    layout = _layout(problem, config, device)
    for piece, row in ((a_piece, layout.a_row), (b_piece, layout.b_row)):
        if not piece and chunk * row % _BULK_UNIT:
            return f"a chunk of {chunk * row} bytes; bulk copies take multiples of {_BULK_UNIT}"
    if config.wm > groups_m or config.wn > groups_n:
        return f"{config.wm} x {config.wn} warps for {groups_m} x {groups_n} groups of columns"
    if config.wk > chunk // config.kstep:
        return f"{config.wk} warps for {chunk // config.kstep} steps"
    if config.threads > 1024:
        return f"{config.threads} threads; a block has at most 1024"
    if config.threads * config.blocks > device.threads_per_multiprocessor:
        return f"{config.blocks} blocks of {config.threads} threads on a multiprocessor"
    if config.fold > 1 and (a_piece or b_piece):
        return "only contiguous aligned operands can be folded"
    if (a_piece or b_piece) and config.producers == 0:
        return "operands copied in pieces need producer warps"
    needed, limit = _registers(problem, config), _register_limit(config, device)
    if limit < 64:
        return f"tensor products need 64 registers of {limit}"
    if needed > limit:
        return f"needs {needed} registers of {limit}"
    shared = shared_bytes(problem, config, device) + _STATIC_SHARED_BYTES
    if shared > device.shared_bytes_per_block:
        return f"needs {shared} bytes of shared memory of {device.shared_bytes_per_block}"
    if config.blocks * (shared + _RESERVED_SHARED_BYTES) > device.shared_bytes_per_multiprocessor:
        return f"{config.blocks} blocks of {shared} bytes of shared memory do not fit a multiprocessor"
    if 4 * chunk * config.fold * (problem.M + problem.N) * itemsize(problem.dtype) >= 1 << 20:
        return "a stage is larger than a barrier can count"
    return None


def space(problem: TsmttsmProblem, device: DeviceInfo) -> Iterator[Config]:
    """Yield the configurations worth measuring, a few hundred, some of them not valid."""
    return _enumerate(problem, device, _SPACE)


@dataclass(frozen=True, slots=True)
class _Choices:
    """What `_enumerate` combines: (prefetch, kstep), bytes of stages and rings, blocks, producers."""

    steps: tuple[tuple[bool, int], ...]
    stage_bytes: tuple[int, ...]
    ring_bytes: tuple[int, ...]
    blocks: tuple[int, ...]
    producers: tuple[int, ...]
    gapless: bool


_SPACE = _Choices(
    steps=((True, 1), (False, 1), (False, 2)),
    stage_bytes=(4 << 10, 8 << 10, 16 << 10, 32 << 10),
    ring_bytes=(64 << 10, 128 << 10, 224 << 10),
    blocks=(1, 2),
    producers=(0, 1),
    gapless=True,
)
# What the model chooses from: settings whose effect it does not describe are fixed to what measured best.
_SHORT_LIST = _Choices(
    steps=((True, 1), (False, 1)),
    stage_bytes=(4 << 10, 16 << 10, 32 << 10),
    ring_bytes=(224 << 10,),
    blocks=(1, 2),
    producers=(0,),
    gapless=False,
)


def _enumerate(problem: TsmttsmProblem, device: DeviceInfo, choices: _Choices) -> Iterator[Config]:
    in_pieces = any(_pieces(problem, device))
    fold = _fold(problem, in_pieces)
    size = itemsize(problem.dtype)
    row_bytes = fold * (problem.M + (0 if problem.same else problem.N)) * size
    single = Config(4, 2, 1, 1, 1, fold=fold)
    for wm, wn, wk in _splits(*_groups(problem, single)):
        for prefetch, kstep in choices.steps:
            base = replace(single, wm=wm, wn=wn, wk=wk, prefetch=prefetch, kstep=kstep)
            if _registers(problem, base) > _MAX_REGISTERS or (kstep == 2 and is_complex(problem.dtype)):
                continue
            unroll = _unroll(problem, base)
            for rows in _row_counts(problem, base, choices):
                for ring in choices.ring_bytes:
                    for blocks in choices.blocks:
                        share = min(ring, device.shared_bytes_per_multiprocessor) // blocks - _UNUSED_BYTES
                        stages = min(share // (rows * row_bytes + _GAP_BYTES), _MAX_STAGES)
                        if stages < 2:
                            continue
                        for producers in (_PIECE_PRODUCERS,) if in_pieces else choices.producers:
                            yield replace(
                                base,
                                rows=rows,
                                stages=stages,
                                unroll=unroll,
                                blocks=blocks,
                                producers=producers,
                            )


def _fold(problem: TsmttsmProblem, in_pieces: bool) -> int:
    """How many rows to take as one: a power of two that fills one group of 8 columns."""
    most = 8 // max(problem.M, problem.N)
    return 1 if most <= 1 or in_pieces else 1 << (most.bit_length() - 1)


def _splits(groups_m: int, groups_n: int) -> Iterator[tuple[int, int, int]]:
    """Yield ways to share 4, 8 or 16 warps between columns and rows, with the squarest tiles."""
    for tiles in (1, 2, 4, 8, 16):
        pairs = [(wm, tiles // wm) for wm in (1, 2, 4, 8, 16) if tiles % wm == 0]
        pairs = [(wm, wn) for wm, wn in pairs if wm <= groups_m and wn <= groups_n]
        if not pairs:
            return
        wm, wn = min(pairs, key=lambda pair: _ceil(groups_m, pair[0]) + _ceil(groups_n, pair[1]))
        for warps in (4, 8, 16):
            if warps >= tiles:
                yield wm, wn, warps // tiles


def _unroll(problem: TsmttsmProblem, config: Config) -> int:
    """Enough products in flight to hide the latency of loads where they are not prefetched."""
    blocks = _tile_blocks(problem, config)
    return 1 if config.prefetch or blocks > 8 else 2 if blocks > 2 else 4


def _row_counts(problem: TsmttsmProblem, config: Config, choices: _Choices) -> list[int]:
    """Rows of stages near the wanted sizes."""
    size = itemsize(problem.dtype)
    widths = [config.fold * problem.M] + ([] if problem.same else [config.fold * problem.N])
    row_bytes = sum(widths) * size
    step = config.wk * config.kstep * (2 if config.prefetch else 1)
    step = math.lcm(step, *(_BULK_UNIT // math.gcd(width * size, _BULK_UNIT) for width in widths))
    line = max(_BANK_ROW // math.gcd(width * size, _BANK_ROW) for width in widths)  # chunks of whole lines
    found = set()
    for target in choices.stage_bytes:
        chunk = max(1, target // (4 * row_bytes))
        unit = math.lcm(step, line)
        if unit > 2 * chunk:
            unit = step
        found.add(4 * max(unit, round(chunk / unit) * unit))
        # Chunks of an odd multiple of 32 bytes follow each other without a gap: a stage is one copy.
        unit = 32 // math.gcd(widths[0] * size, 32)
        plain = (chunk // unit | 1) * unit
        follows = plain * widths[0] * size % 64 == 32 and plain % config.kstep == 0
        if choices.gapless and not config.prefetch and follows and plain >= config.wk * config.kstep:
            found.add(4 * plain)
    return sorted(found)


@functools.lru_cache(maxsize=4096)
def _short_list(problem: TsmttsmProblem, device: DeviceInfo) -> tuple[Config, ...]:
    configs = dict.fromkeys(_enumerate(problem, device, _SHORT_LIST))
    return tuple(config for config in configs if refuse(problem, config, device) is None)


def _shape(problem: TsmttsmProblem) -> TsmttsmProblem:
    """Return what candidates depend on: all but the number of rows and the classes of the factors."""
    return replace(problem, K=1, alpha="one", beta="zero", conj=False)


def _grid(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    return min(device.multiprocessors * config.blocks, _ceil(problem.K, config.rows * config.fold))


# ---- the model

_CLOCK_HZ = 1.755e9  # a Hopper GPU under load; only where no arithmetic ceiling was measured
_MEMORY_LATENCY_S = 0.8e-6  # of a loaded memory system: what bytes in flight must cover (Little's law)
_LAUNCH_S = 2.5e-6
_LOAD_CYCLES = 35  # shared memory to register
_STAGE_CYCLES = 120  # waiting for a stage and giving it back, by a warp
_SM_BYTES_A_CYCLE = 64  # from L2 to one multiprocessor


@functools.lru_cache(maxsize=65536)
def _stage_cycles(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> tuple[float, float, float]:
    """Cycles a stage takes: of the busiest tensor pipe, of one warp by itself, and of shared memory."""
    parts = 2 if is_complex(problem.dtype) else 1
    architecture = _architecture(device)
    product_cycles = 16 if architecture == 90 else 32  # of an m16n8k4 in a quadrant
    groups_m, groups_n = _groups(problem, config)
    steps = _ceil(config.rows // 4 // config.kstep, config.wk)
    tiles = [
        (_share(groups_m, config.wm, m, parts == 2), _share(groups_n, config.wn, n, parts == 2))
        for m in range(config.wm)
        for n in range(config.wn)
    ]
    products = [_products(im, in_, parts, _is_triangle(problem, config)) * config.kstep for im, in_ in tiles]
    pipes = [0.0] * 4
    for warp in range(config.warps):
        turn = warp // max(4, len(tiles)) % 2 and 4 % len(tiles) == 0
        pipes[warp % 4] += products[-1 - warp % len(tiles) if turn else warp % len(tiles)]
    columns = sum(im + (0 if _is_triangle(problem, config) else in_) for im, in_ in tiles) * 8
    loaded = config.rows * columns * 8 * parts + _layout(problem, config, device).stage_bytes
    exposed = 0 if config.prefetch else _LOAD_CYCLES / config.unroll
    chain = max(max(products) * product_cycles, 30)  # products of one tile wait for each other
    return max(pipes) * steps * product_cycles, steps * (chain + exposed) + _STAGE_CYCLES, loaded / _BANK_ROW


def _share(groups: int, warps: int, warp: int, uneven: bool) -> int:
    """Return the groups of one warp; real tiles are all of one size."""
    return groups // warps + (warp < groups % warps) if uneven else _ceil(groups, warps)


def _products(im: int, in_: int, parts: int, triangle: bool) -> float:
    """Return the m16n8k4 products of a tile of im x in_ blocks, a step of 4 rows."""
    if parts == 2:
        return im * (im + 1) if triangle else 2 * im * in_
    if triangle:
        return sum(_ceil(j + 1, 2) for j in range(im))
    return _ceil(im * in_, 2)


def predict(
    problem: TsmttsmProblem, config: Config, device: DeviceInfo, ceilings: Ceilings | None = None
) -> float:
    """Return the modelled time in seconds of a valid configuration.

    The slowest of four resources, smoothed where two are close: memory, at the rate that the bytes in flight
    allow; the busiest tensor pipe, tile padding and uneven shares included; a warp's own latencies; shared
    memory. Then what does not overlap: the launch, the first stage's latency, the sums over warps and blocks.
    """
    read = ceilings.read_gb_s * 1e9 if ceilings else 4.6e12
    peak = ceilings.gflop_s.get("float64") if ceilings else None
    multiprocessors = device.multiprocessors
    clock = peak * 1e9 / (256 * multiprocessors) if peak and _architecture(device) == 90 else _CLOCK_HZ
    size = itemsize(problem.dtype)
    stage_bytes = config.rows * config.fold * (problem.M + (0 if problem.same else problem.N)) * size
    grid = _grid(problem, config, device)
    turns = _ceil(_ceil(problem.K, config.rows * config.fold), grid)
    resident = _ceil(grid, multiprocessors)
    busy = min(grid, multiprocessors)

    flight = resident * min(config.stages, turns) * stage_bytes
    share = min(read / busy, _SM_BYTES_A_CYCLE * clock)
    cover = flight / (share * _MEMORY_LATENCY_S)
    rate = share * cover / (1 + cover**4) ** 0.25
    pipe, warp, shared = _stage_cycles(_shape(problem), config, device)
    times = (
        turns * resident * stage_bytes / rate,
        turns * resident * pipe / clock,
        turns * warp / clock,
        turns * resident * shared / clock,
    )
    body: float = max(times) * sum((time / max(times)) ** 12 for time in times) ** (1 / 12)
    return _LAUNCH_S + _MEMORY_LATENCY_S + body + _tail(problem, config, device, clock)


def _tail(problem: TsmttsmProblem, config: Config, device: DeviceInfo, clock: float) -> float:
    """Seconds after the last stage: the sum over warps, then over blocks."""
    result = problem.M * problem.N * itemsize(problem.dtype)
    rounds = (config.wk - 1).bit_length()
    cycles = 200 + rounds * (100 + 3 * config.warps * _tile_blocks(problem, config) * 8)
    grid = _grid(problem, config, device)
    if grid == 1:
        return cycles / clock
    shared = grid if result > 256 else 1  # blocks that share the last sum
    return cycles / clock + 2.5e-6 + result / (32 * clock) + grid * result / shared / (32 * clock)


@functools.lru_cache(maxsize=4096)
def _choose(problem: TsmttsmProblem, device: DeviceInfo, read: float, peak: float | None) -> Config:
    ceilings = Ceilings(read, read, read, {"float64": peak} if peak else {})
    candidates = _short_list(_shape(problem), device)
    return min(candidates, key=lambda config: predict(problem, config, device, ceilings))


def choose(problem: TsmttsmProblem, device: DeviceInfo, ceilings: Ceilings | None = None) -> Config:
    """Return the valid configuration with the shortest modelled time; the problem must be supported."""
    normal = replace(problem, alpha="one", beta="zero", conj=False)
    read = ceilings.read_gb_s if ceilings else 4600.0
    return _choose(normal, device, read, ceilings.gflop_s.get("float64") if ceilings else None)


# ---- source and launch


def chain_length(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the longest chain of additions that an element of C goes through, for error bounds."""
    grid = _grid(problem, config, device)
    turns = _ceil(_ceil(problem.K, config.rows * config.fold), grid)
    steps = _ceil(config.rows // 4 // config.kstep, config.wk)
    products = turns * steps * 4 * config.kstep * (2 if is_complex(problem.dtype) else 1)
    sums = 0 if grid == 1 else _ceil(grid, min(_MAX_SUMS, grid)) + min(_MAX_SUMS, grid)
    return products + (config.wk - 1).bit_length() + config.fold + max(sums, grid if sums else 0)


def kernel_name(problem: TsmttsmProblem) -> str:
    """Return the kernel's name, as ``tsmttsm_mma_f64_m8_n8``."""
    kind = {"float64": "f64", "complex128": "c128"}[problem.dtype]
    return f"{problem.operation}_mma_{kind}_m{problem.M}_n{problem.N}"


def source(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> str:
    """Return the CUDA source of a configuration; it does not depend on K."""
    layout = _layout(problem, config, device)
    constants = {
        "M": problem.M,
        "N": problem.N,
        "COMPLEX": is_complex(problem.dtype),
        "CONJ": is_complex(problem.dtype) and problem.conj,
        "SAME": problem.same,
        "ALPHA_ONE": problem.alpha == "one",
        "BETA_ZERO": problem.beta == "zero",
        "ROWS": config.rows,
        "STAGES": config.stages,
        "WM": config.wm,
        "WN": config.wn,
        "WK": config.wk,
        "KSTEP": config.kstep,
        "FOLD": config.fold,
        "PREFETCH": config.prefetch,
        "UNROLL": config.unroll,
        "BLOCKS": config.blocks,
        "PRODUCERS": config.producers,
        "A_PIECE": layout.a_piece,
        "B_PIECE": layout.b_piece,
        "A_ROW": layout.a_row,
        "B_ROW": layout.b_row,
        "A_PITCH": layout.a_pitch,
        "B_PITCH": layout.b_pitch,
        "B_OFFSET": layout.b_offset,
        "STAGE_BYTES": layout.stage_bytes,
    }
    return render(kernel_name(problem), "tsmttsm_mma.cu", constants)


def workspace_bytes(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the bytes of workspace a launch needs.

    One workspace serves all launches of one stream. Its first `GRID_HEADER_BYTES` are zero before the first
    one; every launch leaves them zero. The rest is scratch.
    """
    size_c = problem.M * problem.N * itemsize(problem.dtype)
    return GRID_HEADER_BYTES + _grid(problem, config, device) * size_c


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
        What `function` was made for; K may differ from launch to launch.
    A_ptr, B_ptr, C_ptr : int
        Device addresses; C is contiguous.
    alpha, beta : complex
        The factors, in the problem's classes.
    workspace_ptr : int
        Device address of `workspace_bytes` bytes that belong to this stream.
    """
    a, b = complex(alpha), complex(beta)
    arguments = (
        *(A_ptr, B_ptr, C_ptr, problem.K, problem.lda, problem.ldb),
        *(a.real, a.imag, b.real, b.imag),
        workspace_ptr,
    )
    function(
        (_grid(problem, config, device),),
        (config.threads,),
        arguments,
        shared_mem=shared_bytes(problem, config, device),
    )
