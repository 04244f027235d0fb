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
import itertools
import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..launch import QUEUE_BYTES, run_rows
from ..limits import (
    BANK_ROW_BYTES,
    MMA_CYCLES,
    QUADRANTS,
    TENSOR_CLOCK_HZ,
    architecture_of,
    ceil_div,
    mma_cycles,
    round_up,
    smooth_max,
)
from ..problem import MAX_ALIGNMENT, TsmmProblem, is_complex, itemsize, real_bytes
from ..roofline import H200_CEILINGS, Traffic, memory_time, partial_sectors, sector_traffic
from ..source import C_TYPES, Constant, constants_of, render
from .family import DenseFamily
from .layout import MAX_WIDTH, prefetches_ends

_COPY_BYTES_PER_CYCLE = 16.7  # per SM, both directions together [H200]
# Tiles in order gain 2 to 7 per cent where memory limits, and cost up to 4 where tensor pipes do.
_IN_ORDER_SHARE = 0.8
_NAMED_BARRIERS = 15
_MAX_TILES = 2**31  # tile numbers are 32-bit


@frozen
class TsmmMmaConfig:
    """One way to run the kernel, with one thread block per SM."""

    warps: int  # warps of a thread block, a multiple of four: the same number in each quadrant
    split: int  # warps that share the columns of a tile: 1, 2 or 4. They form a group with its own pipeline
    rows: int  # rows of a tile, whole blocks (of 16 rows of real numbers, 8 of complex ones)
    stages: int  # tiles of A per group, in flight or in use
    slabs: int  # tiles of B per group, in use or being stored; 0 stores results directly from registers
    # Whether fragments of C are loaded from shared memory for each product, not kept in registers.
    shared_coefficients: bool

    blocks: ClassVar[int] = 1  # per multiprocessor

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def direct(self) -> bool:
        return self.slabs == 0

    @property
    def groups(self) -> int:
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


def rest(shape: Shape, config: TsmmMmaConfig) -> int:
    """Count the column tiles that warps with coefficients in registers process cyclically, one per pass."""
    passes = config.rows // shape.block
    return 0 if config.shared_coefficients or passes % config.split else shape.nt % config.split


@frozen
class Recipe:
    """A configuration but for the widths; equal names mean the same."""

    warps: int
    split: int = 1
    stages: int = 2
    slabs: int = 1
    shared_coefficients: bool = False
    # Kilobytes of rows that the groups process at a time, up to twice as many: tiles have a power of two of
    # the rows that a warp multiplies at once. 0 is one, for complex numbers in single precision alone.
    tile_kb: int = 16


# Of 840 recipes; the others would gain 0.5 per cent of the predicted time in the geometric mean of drawn
# products, and 8 per cent at the most.
RECIPES: Sequence[Recipe] = (
    Recipe(8),
    Recipe(8, tile_kb=32),
    Recipe(8, shared_coefficients=True),
    Recipe(8, stages=4, slabs=2),
    Recipe(8, stages=4, shared_coefficients=True, tile_kb=0),
    Recipe(8, split=2),
    Recipe(8, split=2, shared_coefficients=True),
    Recipe(8, split=2, slabs=0, shared_coefficients=True, tile_kb=0),
    Recipe(12, stages=3, slabs=2),
    Recipe(12, split=2),
    Recipe(12, split=4, shared_coefficients=True),
    Recipe(16, stages=3, slabs=2),
)
SPARE: Sequence[Recipe] = tuple(
    Recipe(warps, split, stages, slabs, shared)
    for warps, split, stages, slabs in itertools.product((4, 8), (1, 2, 4), (2, 1), (2, 1))
    for shared in (False, True)
)

# Few warps keep tiles in order best, and suffice while tensor pipes are idle for more than half of the time.
_IDLE_SHARE = 0.4
_REGISTER_FRAGMENTS = 24  # of C, fewer of which are never loaded from shared memory


# Fitted to 2166 timed configurations of 388 problems in double precision on an H200.
_PIPE_RATE = 0.83  # rate of tensor products beside other work, as a share of the rate without it
_SHARED_RATE = 0.86  # rate of shared memory, as a share of its peak
_MMA_LATENCY = 30  # cycles: one tensor product that waits for the one before
_TILE_CYCLES = 600  # cycles per tile: waiting for it, issuing copies
_MEMORY_CYCLES = 1500  # cycles: latency of a copy while memory is busy
_TILE_RATE = 31  # bytes per cycle: loading and storing one tile, after that latency
_FLIGHT_BYTES, _FLIGHT_COST = 24 << 10, 0.006  # of A in flight to a multiprocessor; loss per factor of two
_ROUND_CYCLES, _COMPLEX_PASS_CYCLES = 150, 460  # where no warp waits for another
# Bytes of other traffic that take as long as a sector that a row fills in part, not read before: of slabs
# that are stored [H100], and of registers.
_PARTIAL_BYTES, _DIRECT_BYTES = 190, 380
_CONVERSIONS = 14  # between float32 and float64, per cycle and SM
_CONVERTED_SHARES = 0.6, 0.8  # of conversions that do not overlap with products, of real and complex numbers
_LAUNCH_S = 3e-6  # as fitted here


@functools.lru_cache(maxsize=1024)
def view_traffic(problem: TsmmProblem, partial_bytes: int = _PARTIAL_BYTES) -> Traffic:
    """Estimate the traffic in whole sectors, and as reads what those take that rows of B fill in part."""
    moved = sector_traffic(problem)
    partial = problem.K * partial_sectors(problem.N, problem.ldb, itemsize(problem.dtype))
    return Traffic(moved.read_bytes + int(partial * partial_bytes), moved.write_bytes)


def row_cycles(problem: TsmmProblem) -> float:
    """Estimate the cycles of a multiprocessor per row in single precision without the limit of memory."""
    parts = 2 if is_complex(problem.dtype) else 1
    products = ceil_div(problem.M, 4) * ceil_div(problem.N * parts, 8) * parts / 16
    share = _CONVERTED_SHARES[parts - 1]
    return products * MMA_CYCLES / QUADRANTS + share * (problem.M + problem.N) * parts / _CONVERSIONS


class TsmmMma(DenseFamily[TsmmProblem, TsmmMmaConfig]):
    """The tensor-core family of TSMM."""

    name = "tsmm_mma"
    Config = TsmmMmaConfig
    problem_type = TsmmProblem
    unit = "mma"
    pitch_bytes = True
    recipes, spare = RECIPES, SPARE

    refuse_problem = staticmethod(refuse_problem)

    def misfit(self, problem: TsmmProblem, config: TsmmMmaConfig, device: DeviceInfo) -> str | None:
        shape = shape_of(problem, device)
        if config.warps % QUADRANTS or config.warps < QUADRANTS:
            return f"{config.warps} warps; quadrants share a multiple of {QUADRANTS}"
        if config.split not in (1, 2, 4) or config.split > shape.nt:
            return f"{config.split} warps cannot share the {shape.nt} column tiles of N={problem.N}"
        if config.rows < 1 or config.rows % shape.block:
            return f"rows={config.rows} is no multiple of blocks of {shape.block} rows"
        for piece, width in ((shape.piece_a, problem.M), (shape.piece_b, problem.N)):
            if not piece and config.rows // shape.subs * width * shape.size % 16:
                return f"rows={config.rows} make no multiple of 16 bytes of a sub-chunk of {width} columns"
        if not config.direct:
            if config.split > 1 and config.groups > _NAMED_BARRIERS:
                return f"{config.groups} groups need a named barrier each, and there are {_NAMED_BARRIERS}"
            if config.stages < 1:
                return f"stages={config.stages}; a pipeline has at least one"
            return None
        if not config.shared_coefficients or not _suits_complex_kernel(problem, shape):
            return "no slabs: for complex A, contiguous, times coefficients in shared memory, and beta zero"
        if problem.align_b < shape.size:
            return f"no slabs: elements of {shape.size} bytes, but B is aligned to {problem.align_b}"
        if shape.nt < 2 * config.split:
            return f"{config.split} warps get less than 8 of {problem.N} columns each"
        if config.stages < 2:
            return f"stages={config.stages}; the next tile is there before one is done"
        return None

    def registers(self, problem: TsmmProblem, config: TsmmMmaConfig, device: DeviceInfo) -> int:
        # The reserve beside the live values was found by compiling some 5,000 configurations: ptxas renames
        # accumulators and loads fragments far ahead, and spills where that nearly fits.
        shape = shape_of(problem, device)
        tiles = ceil_div(shape.nt, config.split)
        if is_complex_kernel(problem, config, shape):
            groups = ceil_div(tiles, 2)
            return 12 * groups + 54
        more = rest(shape, config)
        own = (shape.nt - more) // config.split if more else tiles
        fragments = own * (1 if config.shared_coefficients else shape.kt)
        live = 2 * (fragments + 4 * (own + more) + 4)
        reserve = 48 if config.shared_coefficients else 64 if config.warps >= 16 else 80
        extras = (problem.beta != "zero") + (shape.piece_a > 0) + (shape.piece_b > 0)
        extras += problem.alpha == "general" and problem.M % 4 > 0
        if config.shared_coefficients and config.split > 1 and own >= 8 and problem.N * shape.parts % 8:
            reserve += 120  # all fragments of the last column tile, which is partial, are fetched ahead
        return live + reserve + 8 * extras

    def shared_bytes(self, problem: TsmmProblem, config: TsmmMmaConfig, device: DeviceInfo) -> int:
        shape = shape_of(problem, device)
        tile_a, tile_b = (tile_bytes(width, config.rows, shape) for width in (problem.M, problem.N))
        stage = tile_a + (tile_b if problem.beta != "zero" else 0)
        state_bytes = 20 if is_complex_kernel(problem, config, shape) else 12
        state = round_up(state_bytes * config.stages, 8)
        group = config.stages * stage + config.slabs * tile_b + state
        stored = shape.nt if config.shared_coefficients else rest(shape, config)
        return config.groups * group + shape.kt * stored * 256

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

    def configure(self, problem: TsmmProblem, recipe: Recipe, device: DeviceInfo) -> TsmmMmaConfig | None:
        shape = shape_of(problem, device)
        if recipe.tile_kb == 0:
            is_suited = shape.parts == 2 and shape.size == 8 and shape.nt >= 4
        else:
            is_idle = pipe_share(shape, problem) < _IDLE_SHARE
            is_suited = recipe.warps <= 12 if is_idle else recipe.warps >= 8
            is_suited &= not recipe.shared_coefficients or shape.kt * shape.nt >= _REGISTER_FRAGMENTS
        if recipe.split > shape.nt or not is_suited:
            return None
        row_bytes, rows = recipe.warps // recipe.split * max(problem.M, problem.N) * shape.size, shape.block
        while rows * row_bytes < recipe.tile_kb << 10:
            rows *= 2
        tiles = recipe.stages, recipe.slabs, recipe.shared_coefficients
        return TsmmMmaConfig(recipe.warps, recipe.split, rows, *tiles)

    def predict(self, problem: TsmmProblem, config: TsmmMmaConfig, device: DeviceInfo) -> float:
        # A smooth maximum of the times of memory; of the tensor pipes; of shared memory, which every byte
        # passes two to six times; and of the pipelines of the groups, whose tiles wait for the tensor pipes
        # and for memory (Little's law).
        shape = shape_of(problem, device)
        turns = ceil_div(ceil_div(problem.K, config.rows), device.multiprocessors * config.groups)
        passes = config.rows // shape.block
        products = passes * shape.kt * shape.nt * mma_cycles(device) / QUADRANTS  # of a tile
        tile_a, tile_b = (config.rows * shape.size * width for width in (problem.M, problem.N))
        memory = memory_time(
            view_traffic(problem, _DIRECT_BYTES if config.direct else _PARTIAL_BYTES), H200_CEILINGS
        )
        memory *= 1 + _FLIGHT_COST * max(
            0.0, math.log2(config.groups * config.stages * tile_a / _FLIGHT_BYTES)
        )
        latency = _MEMORY_CYCLES / TENSOR_CLOCK_HZ + _LAUNCH_S
        if is_complex_kernel(problem, config, shape):
            cycles = config.groups * products + _ROUND_CYCLES + _COMPLEX_PASS_CYCLES * passes
            return smooth_max(turns * cycles / TENSOR_CLOCK_HZ, memory) + latency
        moved = tile_a + (2 if problem.beta == "zero" else 4) * tile_b
        moved += config.rows * shape.size * 4 * shape.kt * config.split
        if config.shared_coefficients:
            moved += passes * shape.kt * shape.nt * 256
        step = ceil_div(shape.nt, config.split) * mma_cycles(device)
        apart = _TILE_CYCLES + passes * (shape.kt * max(0, _MMA_LATENCY - step) + 2 * step)
        warps = config.warps // QUADRANTS
        work = max(passes * shape.kt * step * warps, passes * shape.kt * step + apart)
        loading = (_MEMORY_CYCLES + (tile_a + tile_b) / _TILE_RATE + work) / config.stages
        shared = config.groups * moved / BANK_ROW_BYTES
        cycles = max(config.groups * products / _PIPE_RATE, shared / _SHARED_RATE)
        return smooth_max(memory, *(turns * c / TENSOR_CLOCK_HZ for c in (cycles, work, loading))) + latency
