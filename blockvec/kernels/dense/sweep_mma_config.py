"""Sweeps over a wide basis and a narrow block: what can be chosen, what is valid, and the model."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..device import DeviceInfo
from ..problem import BetaClass, ScalarClass, SweepProblem, TsmmProblem, TsmttsmProblem, is_complex
from ..roofline import Ceilings, memory_time, traffic
from .tsmttsm_mma_config import architecture_of, ceil_div, round_up

__all__ = [
    "Config",
    "Layout",
    "Shape",
    "SweepLike",
    "choose",
    "grid",
    "layout",
    "predict",
    "refuse",
    "shape_of",
    "shared_bytes",
    "space",
    "supports",
]

SweepLike = TsmttsmProblem | TsmmProblem | SweepProblem

MIN_BASIS_OF_PRODUCTS = 64  # narrower ones are the other families'
MAX_BASIS = 512
MAX_BLOCK = 32

_STATIC_SHARED_BYTES = 1024  # bound on barriers and counters, beside the ring
_RESERVED_SHARED_BYTES = 1024  # the driver's share of every block
_MAX_REGISTERS = 255
_BULK_UNIT = 16  # bytes: alignment and granularity of bulk copies
_BULK_ROW_BYTES = 512  # rows of 128 bytes took 1.4 times memory's time in bulk copies, 1.1 times in pieces
# Beside so few columns there is little to do with a tile, and bulk copies come in bursts: 512 columns by 1, 2
# took 2 to 4 per cent longer than in pieces, launches less alike; by 4 as long, but combine_dot 2 per cent
# longer. By 16 there is no time to move pieces: up to 8 per cent longer if complex.
_MAX_PIECES_COLUMNS = 4
_MAX_STAGES = 12


@dataclass(frozen=True, slots=True)
class Config:
    """One way to run the kernel.

    Attributes
    ----------
    rows : int
        Rows of a tile.
    stages : int
        Tiles in flight or in work.
    warps : int
        Warps of a thread block.
    wc : int
        Of these, how many share the columns of the basis; the others share the rows.
    blocks : int
        Thread blocks resident on a multiprocessor.
    """

    rows: int
    stages: int
    warps: int
    wc: int
    blocks: int = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """A problem in the kernel's terms; the names are those of the .cu file."""

    K: int
    M: int
    N: int
    parts: int
    ldw: int
    ldv: int
    w_piece: int
    v_piece: int
    update: bool = False
    scale: bool = False
    dot: bool = False
    gram: bool = False
    conj: bool = False
    transposed: bool = False
    alpha: ScalarClass = "one"
    beta: BetaClass = "zero"

    @property
    def block(self) -> int:
        """Rows of an UPDATE's product, columns of the basis in a DOT's."""
        return 16 // self.parts

    @property
    def groups(self) -> int:
        """Groups of 8 columns of the block."""
        return ceil_div(self.N, 8)

    @property
    def outputs(self) -> int:
        """Groups of 8 real columns of the block."""
        return ceil_div(self.N * self.parts, 8)

    @property
    def has_sum(self) -> bool:
        """Whether there is a small result."""
        return self.dot or self.gram

    @property
    def sum_bytes(self) -> int:
        """Bytes of the small result."""
        return (self.N if self.gram else self.M) * self.N * 8 * self.parts

    @property
    def reads_v(self) -> bool:
        """Whether the block is read."""
        return not self.update or self.beta != "zero"


@dataclass(frozen=True, slots=True)
class Layout:
    """Bytes between rows in shared memory, and of its parts."""

    w_pitch: int
    v_pitch: int
    stage_bytes: int
    after_bytes: int


@functools.lru_cache(maxsize=4096)
def shape_of(problem: SweepLike) -> Shape:
    """Return a problem in the kernel's terms."""
    parts = 2 if is_complex(problem.dtype) else 1
    match problem:
        case TsmttsmProblem():
            wide = (problem.M, problem.lda, problem.align_a)
            narrow = (problem.N, problem.ldb, problem.align_b)
            transposed = problem.M < problem.N
            if transposed:
                wide, narrow = narrow, wide
            shape = _shape(problem.K, parts, wide, narrow)
            conj = parts == 2 and problem.conj
            return replace(
                *(shape,), dot=True, conj=conj, transposed=transposed, alpha=problem.alpha, beta=problem.beta
            )
        case TsmmProblem():
            wide = (problem.M, problem.lda, problem.align_a)
            shape = _shape(problem.K, parts, wide, (problem.N, problem.ldb, problem.align_b))
            return replace(shape, update=True, alpha=problem.alpha, beta=problem.beta)
        case SweepProblem():
            wide = (problem.M, problem.ldw, problem.align_w)
            shape = _shape(problem.K, parts, wide, (problem.N, problem.ldv, problem.align_v))
            shape = replace(shape, conj=parts == 2)
            if problem.operation == "combine_dot":
                return replace(shape, scale=True, dot=True)
            return replace(shape, update=True, gram=True, alpha="general", beta="one")


def _shape(K: int, parts: int, wide: tuple[int, int, int], narrow: tuple[int, int, int]) -> Shape:
    size = 8 * parts
    (M, ldw, align_w), (N, ldv, align_v) = wide, narrow
    w_piece = 16 if min(align_w, 16) == 16 and ldw * size % 16 == 0 else 8
    if (
        w_piece == _BULK_UNIT
        and M * size % _BULK_UNIT == 0
        and M * size >= _BULK_ROW_BYTES
        and N > _MAX_PIECES_COLUMNS
    ):
        w_piece = 0
    v_piece = 16 if min(align_v, 16) == 16 and ldv * size % 16 == 0 else 8
    return Shape(K, M, N, parts, ldw, ldv, w_piece, v_piece)


def supports(problem: SweepLike, device: DeviceInfo) -> str | None:
    """Say why this family cannot run a problem, or None when it can."""
    if device.kind != "cuda" or architecture_of(device) < 90:
        return f"needs bulk copies, which begin with sm_90; the device is {device.architecture}"
    types: tuple[str, ...]
    match problem:
        case TsmttsmProblem():
            types, align = (problem.dtype_a, problem.dtype_b), min(problem.align_a, problem.align_b)
        case TsmmProblem():
            types, align = (problem.dtype_a, problem.dtype_c), min(problem.align_a, problem.align_b)
        case SweepProblem():
            types = (problem.dtype_w, problem.dtype_v, problem.dtype_c)
            align = min(problem.align_w, problem.align_v)
    if len(set(types)) > 1 or types[0] not in ("float64", "complex128"):
        return f"takes float64 or complex128 throughout, not {', '.join(types)}"
    if align < 8:
        return f"operands must be aligned to 8 bytes, not {align}"
    shape = shape_of(problem)
    if min(shape.K, shape.M, shape.N) < 1:
        return "has no rows or columns to multiply"
    if isinstance(problem, TsmttsmProblem) and problem.same:
        return "one block alone: its Gram matrix needs no sweep over a basis"
    columns, least = shape.M, max(shape.N, MIN_BASIS_OF_PRODUCTS)
    if columns <= least and not isinstance(problem, SweepProblem):
        return f"takes a basis of more than {least} columns for a block of {shape.N}, not {columns}"
    if shape.M > MAX_BASIS or shape.N > MAX_BLOCK:
        return f"at most {MAX_BASIS} and {MAX_BLOCK} columns, not {shape.M} and {shape.N}"
    if not short_list(_kind(problem), device):
        return f"a basis of {shape.M} columns and a block of {shape.N} need more registers than there are"
    return None


def _tiles(shape: Shape, config: Config) -> int:
    """Return the column tiles of a warp."""
    return ceil_div(ceil_div(shape.M, shape.block), config.wc)


def _pitch(row_bytes: int, rest: int, unit: int) -> int:
    """Return the least pitch for rows that leaves `rest` bytes modulo `unit`."""
    return row_bytes + (rest - row_bytes) % unit


@functools.lru_cache(maxsize=65536)
def layout(problem: SweepLike, config: Config) -> Layout:
    """Return how shared memory is laid out."""
    shape = shape_of(problem)
    size = 8 * shape.parts
    by_rows = shape.update and shape.parts == 2
    columns = config.wc * _tiles(shape, config) * shape.block
    w_pitch = _pitch(columns * size, 64 if by_rows else 32, 128)
    width = shape.groups * 8
    if shape.gram:
        width = max(width, round_up(shape.N, shape.block))
    v_pitch = _pitch(width * size, 32, 64)
    stage = config.rows * (w_pitch + (v_pitch if shape.reads_v else 0))
    after = 0
    if shape.update:
        after += config.wc * config.rows * shape.outputs * 64 + shape.gram * config.rows * v_pitch
    if shape.scale:
        after += ceil_div(shape.N, 4) * shape.outputs * 256 + 2 * config.rows * v_pitch
    return Layout(w_pitch, v_pitch, stage, after)


def shared_bytes(problem: SweepLike, config: Config, device: DeviceInfo) -> int:
    """Return a block's dynamic shared memory: the ring and what passes between warps, later their sums."""
    where = layout(problem, config)
    shape = shape_of(problem)
    ring = config.stages * where.stage_bytes + where.after_bytes
    return max(ring, shape.sum_bytes * shape.has_sum, 32 * config.warps * 8)


def grid(problem: SweepLike, config: Config, device: DeviceInfo) -> int:
    """Return the blocks of a launch."""
    return min(device.multiprocessors * config.blocks, ceil_div(problem.K, config.rows))


def registers(problem: SweepLike, config: Config) -> int:
    """Return the registers a thread needs, by a rule that errs to the high side."""
    shape = shape_of(problem)
    tiles = _tiles(shape, config)
    doubles = 4 * tiles * shape.groups
    if not shape.update:
        return 2 * doubles + (2 * tiles + 4 * shape.groups) * shape.parts + 56
    doubles += 4 * config.rows * config.wc // (shape.block * config.warps) * shape.outputs
    if shape.gram:
        doubles += 4 * ceil_div(ceil_div(shape.N, shape.block) * shape.groups, config.warps)
    return 2 * doubles + 72


def register_limit(config: Config, device: DeviceInfo) -> int:
    """Return the registers a thread may have: a quadrant deals out a quarter of them by whole warps."""
    warps_a_quadrant = ceil_div(config.warps * config.blocks, 4)
    return min(_MAX_REGISTERS, device.registers_per_multiprocessor // 4 // warps_a_quadrant // 32 // 8 * 8)


def refuse(problem: SweepLike, config: Config, device: DeviceInfo) -> str | None:
    """Say why a configuration is not valid for a problem, or None when it is: the validity rule."""
    shape = shape_of(problem)
    if config.warps % config.wc or config.wc > ceil_div(shape.M, shape.block):
        return f"{config.wc} of {config.warps} warps cannot share {shape.M} columns"
    unit = _row_unit(shape, config.warps // config.wc)
    if config.rows < 1 or config.rows % unit:
        return f"{config.rows} rows are no multiple of {unit}"
    if config.stages < 2:
        return f"{config.stages} stages; a pipeline has at least two"
    if config.warps * 32 * config.blocks > device.threads_per_multiprocessor or config.warps > 32:
        return f"{config.blocks} blocks of {config.warps} warps on a multiprocessor"
    needed, limit = registers(problem, config), register_limit(config, device)
    if needed > limit:
        return f"needs {needed} registers of {limit}"
    if config.rows * shape.M * 8 * shape.parts >= 1 << 20:
        return "a stage is larger than a barrier can count"
    shared = shared_bytes(problem, config, device) + _STATIC_SHARED_BYTES
    if shared > device.shared_bytes_per_block:
        return f"needs {shared} bytes of shared memory of {device.shared_bytes_per_block}"
    if config.blocks * (shared + _RESERVED_SHARED_BYTES) > device.shared_bytes_per_multiprocessor:
        return f"{config.blocks} blocks of {shared} bytes of shared memory do not fit a multiprocessor"
    return None


def _row_unit(shape: Shape, wr: int) -> int:
    """Return what rows of a tile are a multiple of, with `wr` warps to share them."""
    if shape.update:
        return shape.block * wr
    return max(4 * wr, shape.block if shape.scale else 4)


def space(problem: SweepLike, device: DeviceInfo) -> Iterator[Config]:
    """Yield the configurations worth measuring, some of them not valid."""
    shape = shape_of(problem)
    tiles = ceil_div(shape.M, shape.block)
    row_bytes = shape.M * 8 * shape.parts
    for warps, blocks in ((8, 1), (4, 2), (8, 2), (16, 1)):
        for wc in (1, 2, 4, 8, 16):
            if wc > min(warps, tiles):
                continue
            unit = _row_unit(shape, warps // wc)
            counts = {unit}
            for target in (16 << 10, 32 << 10, 64 << 10, 96 << 10):
                counts.add(max(1, round(target // blocks / (unit * row_bytes))) * unit)
            for rows in sorted(counts):
                base = Config(rows, 2, warps, wc, blocks)
                where = layout(problem, base)
                share = device.shared_bytes_per_multiprocessor // blocks
                share -= _STATIC_SHARED_BYTES + _RESERVED_SHARED_BYTES + where.after_bytes
                stages = min(share // where.stage_bytes, _MAX_STAGES)
                yield replace(base, stages=max(stages, 2))


@functools.lru_cache(maxsize=4096)
def short_list(problem: SweepLike, device: DeviceInfo) -> tuple[Config, ...]:
    """Return the valid configurations that `choose` takes from; K does not matter."""
    return tuple(config for config in space(problem, device) if refuse(problem, config, device) is None)


def _kind(problem: SweepLike) -> SweepLike:
    """Return what candidates depend on: all but the number of rows."""
    return replace(problem, K=1)


# Fitted to 350 timed configurations of 76 problems on an H200, in cycles; 8 per cent (RMS) off on others.
_CLOCK_HZ = 1.755e9  # a Hopper GPU under load
_CEILINGS = Ceilings(4680, 4570, 4260, {"float64": 65e3})
_MEMORY_RATE = 0.92  # of the ceilings that was seen
_MEMORY_LATENCY_S = 0.7e-6  # of a loaded memory system: what bytes in flight must cover (Little's law)
_FEW_STAGES = 0.03  # of that time, more: few large tiles come and go in bursts
_LAUNCH_S = 2.5e-6
_MMA_CYCLES = 18  # of a quadrant's tensor pipe for one m16n8k4, beside loads
_TURN_CYCLES = 350  # waiting for a tile, meeting, loops
_COPY_CYCLES = 40  # a bulk copy, by the warp that starts it
_PIECE_CYCLES = 100  # every thread's copy of a piece and its address, with one row of the block a time ...
_LONG_PIECE_CYCLES = 25  # ... and with neighbouring pieces of a basis
_SCALE_CYCLES = 470  # a product of SCALE from loads to stores
_GRAM_CYCLES = 280  # four rows of GRAM
_FINISH_CYCLES = 90  # adding up an element a thread, and as much again for every three partial results
_SHARPNESS = 8  # exponent of the norm that joins the limits


def predict(
    problem: SweepLike, config: Config, device: DeviceInfo, ceilings: Ceilings | None = None
) -> float:
    """Return the modelled time in seconds of a valid configuration.

    A block's turn with a tile takes the longer of the memory's share and of its work, whose parts follow each
    other: tensor products of the busiest quadrant, copies, and what each mode adds. Blocks on one
    multiprocessor only share the tensor pipes.
    """
    shape = shape_of(problem)
    ceilings = ceilings or _CEILINGS
    blocks = grid(problem, config, device)
    tiles = ceil_div(shape.K, config.rows)
    turns = ceil_div(tiles, blocks)
    resident = ceil_div(blocks, device.multiprocessors)
    memory_s = memory_time(traffic(problem), ceilings) / _MEMORY_RATE * turns * blocks / tiles
    flight = resident * (config.stages - 1) * config.rows * shape.M * 8 * shape.parts
    wanted = ceilings.read_gb_s * 1e9 / min(blocks, device.multiprocessors) * _MEMORY_LATENCY_S
    memory_s *= (1 + (wanted / flight) ** 4) ** 0.25 + _FEW_STAGES / (config.stages - 1)
    products = _products(shape, config) * ceil_div(config.warps * resident, 4) * _MMA_CYCLES
    cycles = products + _TURN_CYCLES + _copy_cycles(shape, config) + _extra_cycles(shape, config)
    work_s = turns * cycles / _CLOCK_HZ
    body: float = (memory_s**_SHARPNESS + work_s**_SHARPNESS) ** (1 / _SHARPNESS)
    tail = 2e-6 + 2 * blocks * shape.sum_bytes / 3e12 if shape.has_sum and blocks > 1 else 0.0
    return _LAUNCH_S + _MEMORY_LATENCY_S + body + tail


def _products(shape: Shape, config: Config) -> int:
    """Return a warp's tensor products in a tile of DOT or UPDATE."""
    wr, tiles = config.warps // config.wc, ceil_div(ceil_div(shape.M, shape.block), config.wc)
    if shape.dot:
        return ceil_div(config.rows // 4, wr) * tiles * shape.groups * shape.parts
    return config.rows // (shape.block * wr) * (tiles * shape.block // 4) * shape.outputs


def _copy_cycles(shape: Shape, config: Config) -> float:
    """Return the cycles in which a warp starts its share of a tile's copies."""
    threads, size = 32 * config.warps, 8 * shape.parts
    if shape.w_piece:
        cycles = _LONG_PIECE_CYCLES * ceil_div(config.rows * shape.M * size, shape.w_piece * threads)
    else:
        cycles = _COPY_CYCLES * ceil_div(config.rows, config.warps)
    if shape.reads_v:
        cycles += _PIECE_CYCLES * ceil_div(config.rows * shape.N * size, shape.v_piece * threads)
    return cycles


def _extra_cycles(shape: Shape, config: Config) -> float:
    """Return the cycles that SCALE, the end of UPDATE and GRAM take."""
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


def choose(problem: SweepLike, device: DeviceInfo, ceilings: Ceilings | None = None) -> Config:
    """Return the valid configuration with the shortest modelled time; the problem must be supported."""
    candidates = short_list(_kind(problem), device)
    return min(candidates, key=lambda config: predict(problem, config, device, ceilings))
