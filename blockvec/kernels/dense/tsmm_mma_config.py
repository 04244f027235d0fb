"""TSMM on FP64 tensor cores: what can be chosen, and which choices are valid."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from ..device import DeviceInfo
from ..problem import MAX_ALIGNMENT, TsmmProblem, is_complex, itemsize, real_bytes
from .tsmttsm_mma_config import architecture_of

__all__ = [
    "MMA_CYCLES",
    "QUADRANTS",
    "Config",
    "Shape",
    "invalid",
    "is_complex_kernel",
    "is_in_order",
    "pipe_share",
    "refuse",
    "register_limit",
    "registers",
    "rest",
    "shape_of",
    "shared_bytes",
    "supports",
]

MAX_WIDTH = 64
QUADRANTS = 4  # of an SM, each with a tensor pipe; warp w runs in quadrant w % 4
MMA_CYCLES = 16  # of a quadrant's tensor pipe on Hopper, for one m16n8k4 (1024 flops)

_COPY_BYTES_PER_CYCLE = 16.7  # of an SM of an H200, both directions together
# Tiles in order gain 2 to 7 per cent where memory decides, and cost up to 4 where tensor pipes do.
_IN_ORDER_SHARE = 0.8
_NAMED_BARRIERS = 15
_REGISTER_FILE = 65536  # 32-bit registers of an SM; allocated to warps in units of 8 a lane
_MAX_TILES = 2**31  # tile numbers are 32-bit


@dataclass(frozen=True, slots=True)
class Config:
    """One way to run the kernel; one thread block an SM.

    Attributes
    ----------
    warps : int
        Warps of a thread block, a multiple of four so that no quadrant of the SM idles.
    split : int
        Warps that share the columns of a tile: 1, 2 or 4. They form a group with its own pipeline.
    rows : int
        Rows of a tile.
    unroll : int
        Blocks of rows that a warp multiplies at once (16 rows of real numbers, 8 of complex ones).
    stages : int
        Tiles of A a group has in flight or in work.
    slabs : int
        Tiles of B a group has in work or on their way to memory; 0 where results go to memory straight from
        registers.
    shared_coefficients : bool
        Whether fragments of C are loaded from shared memory each time, instead of staying in registers.
    """

    warps: int
    split: int
    rows: int
    unroll: int
    stages: int
    slabs: int
    shared_coefficients: bool

    @property
    def direct(self) -> bool:
        """Whether this is the kernel without slabs."""
        return self.slabs == 0

    @property
    def groups(self) -> int:
        """Groups of warps in a thread block."""
        return self.warps // self.split


class Shape(NamedTuple):
    """What the kernel derives from a problem; the names are those of the .cu file."""

    parts: int
    size: int
    subs: int
    block: int
    kt: int
    nt: int
    piece_a: int
    piece_b: int


@functools.lru_cache(maxsize=1024)
def shape_of(problem: TsmmProblem, device: DeviceInfo) -> Shape:
    """Return a problem in the kernel's terms."""
    parts = 2 if is_complex(problem.dtype_a) else 1
    size = itemsize(problem.dtype_a)
    bulk = architecture_of(device) >= 90
    return Shape(
        parts=parts,
        size=size,
        subs=32 // size,
        block=16 // parts,
        kt=-(-problem.M // 4),
        nt=-(-problem.N * parts // 8),
        piece_a=_piece(problem.M * size, problem.lda * size, problem.align_a, bulk),
        piece_b=_piece(problem.N * size, problem.ldb * size, problem.align_b, bulk),
    )


def _piece(row_bytes: int, pitch_bytes: int, align: int, bulk: bool) -> int:
    """Return the bytes a lane moves at a time; 0 where rows are one aligned slab for bulk copies."""
    if bulk and align == MAX_ALIGNMENT and row_bytes == pitch_bytes:
        return 0
    bits = align | row_bytes | pitch_bytes
    return bits & -bits


def supports(problem: TsmmProblem, device: DeviceInfo) -> str | None:
    """Return None if the family can run a problem on a device, else the reason why not."""
    if device.kind != "cuda" or architecture_of(device) < 80:
        return f"{device.name} has no FP64 tensor cores"
    if problem.dtype_a != problem.dtype_c:
        return f"tsmm_mma takes A and C of one type, not {problem.dtype_a} and {problem.dtype_c}"
    if not (1 <= problem.M <= MAX_WIDTH and 1 <= problem.N <= MAX_WIDTH):
        return f"tsmm_mma takes widths from 1 to {MAX_WIDTH}, not M={problem.M}, N={problem.N}"
    real = real_bytes(problem.dtype)
    if min(problem.align_a, problem.align_b) < real:
        aligned = f"align_a={problem.align_a}, align_b={problem.align_b}"
        return f"tsmm_mma needs {real}-byte alignment, not {aligned}"
    if problem.inplace and (problem.N > problem.M or problem.lda != problem.ldb):
        return f"tsmm_mma in place needs N <= M and one pitch, not M={problem.M}, N={problem.N}"
    if problem.K > 8 * _MAX_TILES:
        return f"tsmm_mma numbers tiles in 32 bits, too few for K={problem.K}"
    return None


def refuse(problem: TsmmProblem, config: Config, device: DeviceInfo) -> str | None:
    """Return None if a configuration is valid for a problem on a device, else the reason why not."""
    return supports(problem, device) or invalid(problem, config, device)


def invalid(problem: TsmmProblem, config: Config, device: DeviceInfo) -> str | None:
    """Return what `refuse` does for a problem that is supported."""
    shape = shape_of(problem, device)
    if config.warps % QUADRANTS or not QUADRANTS <= config.warps <= 32:
        return f"{config.warps} warps; tensor pipes want a multiple of {QUADRANTS}, at most 32"
    if config.split not in (1, 2, 4) or config.split > shape.nt:
        return f"{config.split} warps cannot share the {shape.nt} column tiles of N={problem.N}"
    if config.unroll < 1 or config.rows < 1 or config.rows % (config.unroll * shape.block):
        return f"rows={config.rows} is no multiple of unroll={config.unroll} blocks of {shape.block} rows"
    for piece, width in ((shape.piece_a, problem.M), (shape.piece_b, problem.N)):
        if not piece and config.rows // shape.subs * width * shape.size % 16:
            return f"rows={config.rows} make no whole 16 bytes of a sub-chunk of {width} columns"
    reason = _invalid_direct(problem, config, shape) if config.direct else _invalid_slabs(config)
    if reason:
        return reason
    needed, limit = shared_bytes(problem, config, device), device.shared_bytes_per_block
    if needed > limit:
        return f"{needed} bytes of shared memory; a thread block gets {limit}"
    needed, limit = registers(problem, config, device), register_limit(config.warps)
    if needed > limit:
        return f"{needed} registers a thread estimated; {config.warps} warps leave {limit}"
    return None


def _invalid_slabs(config: Config) -> str | None:
    if config.split > 1 and config.groups > _NAMED_BARRIERS:
        return f"{config.groups} groups need a named barrier each, and there are {_NAMED_BARRIERS}"
    if config.stages < 1 or config.slabs < 1:
        return f"stages={config.stages}, slabs={config.slabs}; a pipeline has at least one of each"
    return None


def _invalid_direct(problem: TsmmProblem, config: Config, shape: Shape) -> str | None:
    if not config.shared_coefficients or not _suits_complex_kernel(problem, shape):
        return "no slabs: for complex A, contiguous, times coefficients in shared memory, and beta zero"
    if problem.align_b < shape.size:
        return f"no slabs: elements of {shape.size} bytes, but B is aligned to {problem.align_b}"
    if shape.nt < 2 * config.split:
        return f"{config.split} warps get less than 8 of {problem.N} columns each"
    if config.stages < 2:
        return f"stages={config.stages}; the next tile is there before one is done"
    return None


def _suits_complex_kernel(problem: TsmmProblem, shape: Shape) -> bool:
    return shape.parts == 2 and shape.piece_a == 0 and problem.beta == "zero"


def is_complex_kernel(problem: TsmmProblem, config: Config, shape: Shape) -> bool:
    """Return whether `tsmm_complex.cu` runs a configuration: where products, or conversions, decide."""
    if config.direct:
        return True
    alone = config.split == 1 and config.shared_coefficients and config.stages > 1 and shape.nt > 1
    if not alone or shape.piece_b or not _suits_complex_kernel(problem, shape):
        return False
    return shape.size == 8 or not is_in_order(problem, shape)


def tile_bytes(width: int, rows: int, shape: Shape) -> int:
    """Return the bytes of a staged tile: sub-chunks of 128-byte units, each skewed by 128 / subs bytes."""
    sub = -(-rows // shape.subs * width * shape.size // 128) * 128 + 128 // shape.subs
    return -(-shape.subs * sub // 128) * 128


def pipe_share(shape: Shape, problem: TsmmProblem) -> float:
    """Return the time of the tensor products over that of the memory, both by themselves."""
    pipes = shape.kt * shape.nt * MMA_CYCLES / QUADRANTS / shape.block  # cycles a row of an SM
    return pipes / ((problem.M + problem.N) * shape.size / _COPY_BYTES_PER_CYCLE)


def is_in_order(problem: TsmmProblem, shape: Shape) -> bool:
    """Return whether groups take tiles in order, from a counter, instead of in turns."""
    return pipe_share(shape, problem) < _IN_ORDER_SHARE


def shared_bytes(problem: TsmmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the dynamic shared memory of a thread block in bytes."""
    shape = shape_of(problem, device)
    tile_a, tile_b = (tile_bytes(width, config.rows, shape) for width in (problem.M, problem.N))
    stage = tile_a + (tile_b if problem.beta != "zero" else 0)
    state_bytes = 20 if is_complex_kernel(problem, config, shape) else 12
    state = -(-state_bytes * config.stages // 8) * 8
    group = config.stages * stage + config.slabs * tile_b + state
    stored = shape.nt if config.shared_coefficients else rest(shape, config)
    return config.groups * group + shape.kt * stored * 256


def rest(shape: Shape, config: Config) -> int:
    """Return the column tiles that warps with coefficients in registers take in turns, one pass each."""
    passes = config.rows // (shape.block * config.unroll)
    return 0 if config.shared_coefficients or passes % config.split else shape.nt % config.split


def register_limit(warps: int) -> int:
    """Return the registers a thread may have."""
    return min(255, _REGISTER_FILE // (32 * warps) // 8 * 8)


def registers(problem: TsmmProblem, config: Config, device: DeviceInfo) -> int:
    """Return how many registers a thread needs for the compiler to spill none.

    The reserve beside what must live at once was found by compiling some 5,000 configurations: ptxas renames
    accumulators and loads fragments far ahead, and where that nearly fits it spills.
    """
    shape = shape_of(problem, device)
    tiles = -(-shape.nt // config.split)
    if is_complex_kernel(problem, config, shape):
        groups = -(-tiles // 2)
        return 8 * config.unroll * groups + 4 * groups + 14 * config.unroll + 40
    more = rest(shape, config)
    own = (shape.nt - more) // config.split if more else tiles
    fragments = own * (1 if config.shared_coefficients else shape.kt)
    live = 2 * (fragments + 4 * config.unroll * (own + more) + 4 * config.unroll)
    reserve = 48 if config.shared_coefficients else 64 if config.warps >= 16 else 80
    extras = (problem.beta != "zero") + (shape.piece_a > 0) + (shape.piece_b > 0)
    extras += problem.alpha == "general" and problem.M % 4 > 0
    return live + reserve + 8 * extras
