"""TSMM on FP64 tensor cores: B = alpha A C + beta B, A and C of one type, any of the four.

Single precision is converted on its way to the tensor cores, whose peak is that of its own multiply-adds, and
rounded once on its way back.

The kernel is ``tsmm_mma.cu``: groups of warps, each with a pipeline of its own, stage tiles of rows in
shared memory, multiply them by the coefficient matrix on the tensor cores and store the results. Contiguous
operands are moved by bulk copies of whole slabs, whatever the width; views, and everything before sm_90, by
pieces of 4 to 16 bytes. Wide complex operands, whose products take longer than memory, have
``tsmm_complex.cu``, where no warp waits for another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..launch import QUEUE_BYTES, pack_product, run_rows
from ..limits import QUADRANTS, architecture_of, ceil_div, register_limit, round_up
from ..problem import MAX_ALIGNMENT, TsmmProblem, is_complex, itemsize, real_bytes
from ..source import C_TYPES, Constant, constants_of, render
from .family import DenseFamily
from .layout import prefetches_ends

MAX_WIDTH = 64
MMA_CYCLES = 16  # per m16n8k4 (1024 flops) of a quadrant's tensor pipe on Hopper; warp w is in quadrant w % 4

_COPY_BYTES_PER_CYCLE = 16.7  # per SM, both directions together [H200]
# Tiles in order gain 2 to 7 per cent where memory limits, and cost up to 4 where tensor pipes do.
_IN_ORDER_SHARE = 0.8
_NAMED_BARRIERS = 15
_MAX_TILES = 2**31  # tile numbers are 32-bit


@frozen
class TsmmMmaConfig:
    """One way to run the kernel, with one thread block per SM.

    Attributes
    ----------
    warps : int
        Warps of a thread block, a multiple of four: the same number in each quadrant.
    split : int
        Warps that share the columns of a tile: 1, 2 or 4. They form a group with its own pipeline.
    rows : int
        Rows of a tile.
    unroll : int
        Blocks of rows that a warp multiplies at once (16 rows of real numbers, 8 of complex ones).
    stages : int
        Tiles of A per group, in flight or in use.
    slabs : int
        Tiles of B per group, in use or being stored; 0 stores results directly from registers.
    shared_coefficients : bool
        Whether fragments of C are loaded from shared memory for each product, not kept in registers.
    """

    warps: int
    split: int
    rows: int
    unroll: int
    stages: int
    slabs: int
    shared_coefficients: bool

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def direct(self) -> bool:
        """Whether this is the kernel without slabs."""
        return self.slabs == 0

    @property
    def groups(self) -> int:
        """Groups of warps in a thread block."""
        return self.warps // self.split


class Shape(NamedTuple):
    """A problem in the kernel's terms; the names are those of the .cu file."""

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
    """Compute the kernel's constants of a problem."""
    parts = 2 if is_complex(problem.dtype_a) else 1
    size = itemsize(problem.dtype_a)
    bulk = architecture_of(device) >= 90
    return Shape(
        parts=parts,
        size=size,
        subs=32 // size,
        block=16 // parts,
        kt=ceil_div(problem.M, 4),
        nt=ceil_div(problem.N * parts, 8),
        piece_a=_piece(problem.M * size, problem.lda * size, problem.align_a, bulk),
        piece_b=_piece(problem.N * size, problem.ldb * size, problem.align_b, bulk),
    )


def _piece(row_bytes: int, pitch_bytes: int, align: int, bulk: bool) -> int:
    """Compute the bytes per copy of a lane; 0 where rows form one aligned slab for bulk copies."""
    if bulk and align == MAX_ALIGNMENT and row_bytes == pitch_bytes:
        return 0
    bits = align | row_bytes | pitch_bytes
    return bits & -bits


def refuse_problem(problem: TsmmProblem, device: DeviceInfo) -> str | None:
    """Explain why no configuration can run a problem."""
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


def invalid(problem: TsmmProblem, config: TsmmMmaConfig, device: DeviceInfo) -> str | None:
    """Refuse a configuration as `refuse` does, for a problem that is supported."""
    shape = shape_of(problem, device)
    if config.warps % QUADRANTS or not QUADRANTS <= config.warps <= 32:
        return f"{config.warps} warps; quadrants share a multiple of {QUADRANTS}, at most 32"
    if config.split not in (1, 2, 4) or config.split > shape.nt:
        return f"{config.split} warps cannot share the {shape.nt} column tiles of N={problem.N}"
    if config.unroll < 1 or config.rows < 1 or config.rows % (config.unroll * shape.block):
        return f"rows={config.rows} is no multiple of unroll={config.unroll} blocks of {shape.block} rows"
    for piece, width in ((shape.piece_a, problem.M), (shape.piece_b, problem.N)):
        if not piece and config.rows // shape.subs * width * shape.size % 16:
            return f"rows={config.rows} make no multiple of 16 bytes of a sub-chunk of {width} columns"
    reason = _invalid_direct(problem, config, shape) if config.direct else _invalid_slabs(config)
    if reason:
        return reason
    needed, limit = shared_bytes(problem, config, device), device.shared_bytes_per_block
    if needed > limit:
        return f"{needed} bytes of shared memory; a thread block gets {limit}"
    needed, limit = registers(problem, config, device), register_limit(config.threads, device)
    if needed > limit:
        return f"{needed} registers per thread estimated; {config.warps} warps leave {limit}"
    return None


def _invalid_slabs(config: TsmmMmaConfig) -> str | None:
    if config.split > 1 and config.groups > _NAMED_BARRIERS:
        return f"{config.groups} groups need a named barrier each, and there are {_NAMED_BARRIERS}"
    if config.stages < 1 or config.slabs < 1:
        return f"stages={config.stages}, slabs={config.slabs}; a pipeline has at least one of each"
    return None


def _invalid_direct(problem: TsmmProblem, config: TsmmMmaConfig, shape: Shape) -> str | None:
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


def is_complex_kernel(problem: TsmmProblem, config: TsmmMmaConfig, shape: Shape) -> bool:
    """Check whether `tsmm_complex.cu` runs a configuration: where products or conversions limit."""
    if config.direct:
        return True
    alone = config.split == 1 and config.shared_coefficients and config.stages > 1 and shape.nt > 1
    if not alone or shape.piece_b or not _suits_complex_kernel(problem, shape):
        return False
    return shape.size == 8 or not is_in_order(problem, shape)


def tile_bytes(width: int, rows: int, shape: Shape) -> int:
    """Compute the bytes of a staged tile: sub-chunks of 128-byte units, each skewed by 128 / subs bytes."""
    sub = round_up(ceil_div(rows, shape.subs) * width * shape.size, 128) + 128 // shape.subs
    return round_up(shape.subs * sub, 128)


def pipe_share(shape: Shape, problem: TsmmProblem) -> float:
    """Compute the ratio of the time of the tensor products to that of memory, each by itself."""
    pipes = shape.kt * shape.nt * MMA_CYCLES / QUADRANTS / shape.block  # cycles per row and SM
    return pipes / ((problem.M + problem.N) * shape.size / _COPY_BYTES_PER_CYCLE)


def is_in_order(problem: TsmmProblem, shape: Shape) -> bool:
    """Check whether groups take tiles from a tile queue, in order, instead of cyclically."""
    return pipe_share(shape, problem) < _IN_ORDER_SHARE


def shared_bytes(problem: TsmmProblem, config: TsmmMmaConfig, device: DeviceInfo) -> int:
    """Compute the dynamic shared memory of a block."""
    shape = shape_of(problem, device)
    tile_a, tile_b = (tile_bytes(width, config.rows, shape) for width in (problem.M, problem.N))
    stage = tile_a + (tile_b if problem.beta != "zero" else 0)
    state_bytes = 20 if is_complex_kernel(problem, config, shape) else 12
    state = round_up(state_bytes * config.stages, 8)
    group = config.stages * stage + config.slabs * tile_b + state
    stored = shape.nt if config.shared_coefficients else rest(shape, config)
    return config.groups * group + shape.kt * stored * 256


def rest(shape: Shape, config: TsmmMmaConfig) -> int:
    """Count the column tiles that warps with coefficients in registers process cyclically, one per pass."""
    passes = config.rows // (shape.block * config.unroll)
    return 0 if config.shared_coefficients or passes % config.split else shape.nt % config.split


def registers(problem: TsmmProblem, config: TsmmMmaConfig, device: DeviceInfo) -> int:
    """Estimate the registers per thread with which the compiler spills none.

    The reserve beside the live values was found by compiling some 5,000 configurations: ptxas renames
    accumulators and loads fragments far ahead, and spills where that nearly fits.
    """
    shape = shape_of(problem, device)
    tiles = ceil_div(shape.nt, config.split)
    if is_complex_kernel(problem, config, shape):
        groups = ceil_div(tiles, 2)
        return 8 * config.unroll * groups + 4 * groups + 14 * config.unroll + 40
    more = rest(shape, config)
    own = (shape.nt - more) // config.split if more else tiles
    fragments = own * (1 if config.shared_coefficients else shape.kt)
    live = 2 * (fragments + 4 * config.unroll * (own + more) + 4 * config.unroll)
    reserve = 48 if config.shared_coefficients else 64 if config.warps >= 16 else 80
    extras = (problem.beta != "zero") + (shape.piece_a > 0) + (shape.piece_b > 0)
    extras += problem.alpha == "general" and problem.M % 4 > 0
    if config.shared_coefficients and config.split > 1 and own >= 8 and problem.N * shape.parts % 8:
        reserve += 120  # all fragments of the last column tile, which is partial, are fetched ahead
    return live + reserve + 8 * extras


class TsmmMma(DenseFamily[TsmmProblem, TsmmMmaConfig]):
    """The tensor-core family of TSMM."""

    name = "tsmm_mma"
    Config = TsmmMmaConfig
    problem_type = TsmmProblem
    unit = "mma"

    refuse_problem = staticmethod(refuse_problem)
    shared_bytes = staticmethod(shared_bytes)

    def refuse(self, problem: TsmmProblem, config: TsmmMmaConfig, device: DeviceInfo) -> str | None:
        return refuse_problem(problem, device) or invalid(problem, config, device)

    def chain_length(self, problem: TsmmProblem, config: TsmmMmaConfig, device: DeviceInfo) -> int:
        if real_bytes(problem.dtype) == 4:
            return 2  # sums are in double precision
        return shape_of(problem, device).parts * problem.M + (problem.beta != "zero")

    def source(self, problem: TsmmProblem, config: TsmmMmaConfig, device: DeviceInfo) -> str:
        shape = shape_of(problem, device)
        constants: dict[str, Constant] = {
            "M": problem.M,
            "N": problem.N,
            "COMPLEX": shape.parts == 2,
            "ALPHA": problem.alpha == "general",
        }
        constants |= constants_of(config, omit=("shared_coefficients",))
        name, types = self.kernel_name(problem), {"Real": C_TYPES[real_bytes(problem.dtype)]}
        if is_complex_kernel(problem, config, shape):
            paired = config.direct and shape.size == 8 and problem.N % 2 == 0 and shape.piece_b in (0, 16)
            return render(name, "dense/tsmm_complex.cu", constants | {"PAIRED": paired}, types)
        constants |= constants_of(problem, "beta")
        constants |= {
            "PIECE_A": shape.piece_a,
            "PIECE_B": shape.piece_b,
            "PREFETCH_ENDS": prefetches_ends(problem),
            "SHARED_C": config.shared_coefficients,
            "IN_ORDER": is_in_order(problem, shape),
            "RUN": ceil_div(run_rows(problem), config.rows),  # tiles are small: one less loads the queue
        }
        return render(name, "dense/tsmm_mma.cu", constants, types)

    def workspace_bytes(self, problem: TsmmProblem, config: TsmmMmaConfig, device: DeviceInfo) -> int:
        return QUEUE_BYTES

    def grid(self, problem: TsmmProblem, config: TsmmMmaConfig, device: DeviceInfo) -> int:
        return min(device.multiprocessors, ceil_div(problem.K, config.rows))

    def pack(self, problem: TsmmProblem) -> Callable[..., tuple[Any, ...] | None]:
        size = itemsize(problem.dtype)
        return pack_product(problem, (problem.lda * size, problem.ldb * size))
