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
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..launch import run_rows
from ..limits import MMA_CYCLES, QUADRANTS, architecture_of, ceil_div, round_up
from ..problem import FEW_ROWS, MAX_ALIGNMENT, TsmmProblem, is_complex, itemsize
from ..source import Body, Constant, c_type, constants_of
from .family import BlockConfig, DenseFamily
from .layout import prefetches_ends, refuse_tensor_cores, refuse_widths

_COPY_BYTES_PER_CYCLE = 16.7  # per SM, both directions together [H200]
# Tiles in order gain 2 to 7 per cent where memory limits, and cost up to 4 where tensor pipes do.
_IN_ORDER_SHARE = 0.8
_MAX_TILES = 2**31  # tile numbers are 32-bit


@frozen
class TsmmMmaConfig(BlockConfig):
    """One way to run the kernel."""

    warps: int  # warps of a thread block, a multiple of four: the same number in each quadrant
    split: int  # warps that share the columns of a tile: 1, 2 or 4. They form a group with its own pipeline
    rows: int  # rows of a tile, whole blocks (of 16 rows of real numbers, 8 of complex ones)
    stages: int  # tiles of A per group, in flight or in use
    slabs: int  # tiles of B per group, in use or being stored
    # Whether fragments of C are loaded from shared memory for each product, not kept in registers.
    shared_coefficients: bool
    three_m: bool = False  # three real products for a complex one instead of four


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


def is_complex_kernel(problem: TsmmProblem, config: TsmmMmaConfig, shape: Shape) -> bool:
    """Check whether `tsmm_complex.cu` runs a configuration: where products or conversions limit."""
    alone = config.split == 1 and config.shared_coefficients and config.stages > 1 and shape.nt > 1
    if not alone or shape.parts == 1 or shape.piece_a or shape.piece_b or problem.beta != "zero":
        return False
    return shape.size == 8 or not is_in_order(problem, shape)


def tile_bytes(width: int, rows: int, shape: Shape) -> int:
    """Compute the bytes of a staged tile: sub-chunks of 128-byte units, each skewed by 128 / subs bytes."""
    sub = round_up(ceil_div(rows, shape.subs) * width * shape.size, 128) + 128 // shape.subs
    return round_up(shape.subs * sub, 128)


def is_in_order(problem: TsmmProblem, shape: Shape) -> bool:
    """Check whether groups take tiles from a tile queue, in order, instead of cyclically."""
    pipes = shape.kt * shape.nt * MMA_CYCLES / QUADRANTS / shape.block  # cycles per row and SM
    memory = (problem.M + problem.N) * shape.size / _COPY_BYTES_PER_CYCLE  # likewise
    return pipes / memory < _IN_ORDER_SHARE


def rest(shape: Shape, config: TsmmMmaConfig) -> int:
    """Count the column tiles that warps with coefficients in registers process cyclically, one per pass."""
    passes = config.rows // shape.block
    return 0 if config.shared_coefficients or passes % config.split else shape.nt % config.split


def registers(problem: TsmmProblem, config: TsmmMmaConfig, shape: Shape) -> int:
    """Estimate the registers per thread."""
    # The reserve beside the live values was found by compiling some 5,000 configurations: ptxas renames
    # accumulators and loads fragments far ahead, and spills where that nearly fits.
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


# In order of preference. Of 840 recipes; a model of their times, fitted to 2166 timed configurations on an
# H200, would gain 0.8 per cent in the geometric mean of drawn products by others, 0.3 of 2^16 rows or more.
RECIPES: Sequence[Recipe] = (
    Recipe(8, stages=4, slabs=2),
    Recipe(8, stages=4, shared_coefficients=True, tile_kb=0),
    Recipe(12, split=2),
    Recipe(8, split=2),
    Recipe(8),
    Recipe(8, shared_coefficients=True),
    Recipe(8, split=2, shared_coefficients=True),
    Recipe(12, split=4, shared_coefficients=True),
)
SPARE: Sequence[Recipe] = tuple(
    Recipe(warps, split, stages, slabs, shared)
    for warps, split, stages, slabs in itertools.product((4, 8), (1, 2, 4), (2, 1), (2, 1))
    for shared in (False, True)
)


class TsmmMma(DenseFamily[TsmmProblem, TsmmMmaConfig]):
    """The tensor-core family of TSMM."""

    name = "tsmm_mma"
    problem_type = TsmmProblem
    unit = "mma"
    pitch_bytes = True
    recipes, spare = RECIPES, SPARE

    def refuse_problem(self, problem: TsmmProblem, device: DeviceInfo) -> str | None:
        if reason := refuse_tensor_cores(problem, device) or refuse_widths(problem, device):
            return reason
        if problem.inplace and (problem.N > problem.M or problem.lda != problem.ldb):
            return f"in place needs N <= M and one pitch, not M={problem.M}, N={problem.N}"
        if problem.K > 8 * _MAX_TILES:
            return f"numbers tiles in 32 bits, too few for K={problem.K}"
        return None

    def resources(self, problem: TsmmProblem, config: TsmmMmaConfig, device: DeviceInfo) -> tuple[int, int]:
        shape = shape_of(problem, device)
        tile_a, tile_b = (tile_bytes(width, config.rows, shape) for width in (problem.M, problem.N))
        stage = tile_a + (tile_b if problem.beta != "zero" else 0)
        state_bytes = 20 if is_complex_kernel(problem, config, shape) else 12
        state = round_up(state_bytes * config.stages, 8)
        group = config.stages * stage + config.slabs * tile_b + state
        stored = shape.nt if config.shared_coefficients else rest(shape, config)
        shared = config.warps // config.split * group + shape.kt * stored * 256
        return registers(problem, config, shape), shared

    def body(self, problem: TsmmProblem, config: TsmmMmaConfig, device: DeviceInfo) -> Body:
        shape = shape_of(problem, device)
        constants: dict[str, Constant] = {"COMPLEX": shape.parts == 2, "ALPHA": problem.alpha == "general"}
        constants |= constants_of(config, omit=("shared_coefficients", "three_m"))
        types = {"Real": c_type(problem.dtype)}
        if is_complex_kernel(problem, config, shape):
            return "dense/tsmm_complex", constants, types
        constants |= constants_of(problem, "beta")
        constants |= {
            "PIECE_A": shape.piece_a,
            "PIECE_B": shape.piece_b,
            "PREFETCH_ENDS": prefetches_ends(problem),
            "SHARED_C": config.shared_coefficients,
            "IN_ORDER": is_in_order(problem, shape),
            "RUN": ceil_div(run_rows(problem), config.rows),  # tiles are small: one less loads the queue
        }
        return "dense/tsmm_mma", constants, types

    def configure(self, problem: TsmmProblem, recipe: Recipe, device: DeviceInfo) -> TsmmMmaConfig | None:
        shape = shape_of(problem, device)
        alone = shape.parts == 2 and shape.size == 8 and shape.nt >= 4
        if recipe.split > shape.nt or (recipe.tile_kb == 0 and not alone):
            return None
        row_bytes, rows = recipe.warps // recipe.split * max(problem.M, problem.N) * shape.size, shape.block
        while rows * row_bytes < recipe.tile_kb << 10:
            rows *= 2
        for piece, width in ((shape.piece_a, problem.M), (shape.piece_b, problem.N)):
            if not piece and rows // shape.subs * width * shape.size % MAX_ALIGNMENT:
                return None
        tiles = recipe.stages, recipe.slabs, recipe.shared_coefficients
        return TsmmMmaConfig(recipe.warps, recipe.split, rows, *tiles)


ROWS_3M = 16  # rows of a tile of three real products
FEW_COLUMNS = 45  # up to which four real products for a complex one are as fast as three


class Tsmm3m(TsmmMma):
    """The same with three real products for a complex one, where four take longer than memory.

    A warp holds a tile of A in registers and multiplies it by 16 columns of C at a time; ``tsmm_3m.cu``
    explains it. For its errors see `Tsmttsm3m`.
    """

    name = "tsmm_3m"
    three_m = True
    unit = "3m"

    recipes, spare = (Recipe(8), Recipe(4)), ()

    def refuse_problem(self, problem: TsmmProblem, device: DeviceInfo) -> str | None:
        if reason := super().refuse_problem(problem, device):
            return reason
        if not is_complex(problem.dtype_a):
            return "takes complex operands"
        if problem.beta != "zero":
            return "adds nothing to B: beta must be zero"
        if shape_of(problem, device).piece_a:
            return "takes contiguous A, aligned to 16 bytes, on sm_90"
        if problem.align_b < (size := itemsize(problem.dtype)):
            return f"elements of {size} bytes, but B is aligned to {problem.align_b}"
        return None

    def resources(self, problem: TsmmProblem, config: TsmmMmaConfig, device: DeviceInfo) -> tuple[int, int]:
        shape = shape_of(problem, device)
        stage = tile_bytes(problem.M, ROWS_3M, shape)
        # Fragments of C, and a stage and a barrier per warp.
        shared = 3 * 512 * shape.kt * ceil_div(problem.N, 16) + config.warps * (stage + 8)
        return 8 * shape.kt + 124, shared

    def is_faster(self, problem: TsmmProblem) -> bool:
        return is_complex(problem.dtype) and min(problem.M, problem.N) > FEW_COLUMNS

    def body(self, problem: TsmmProblem, config: TsmmMmaConfig, device: DeviceInfo) -> Body:
        shape = shape_of(problem, device)
        constants: dict[str, Constant] = {
            "COMPLEX": True,
            "ROWS": ROWS_3M,
            "ALPHA": problem.alpha == "general",
            "RUN": ceil_div(run_rows(problem), ROWS_3M),
            "PAIRED": shape.size == 8 and problem.N % 2 == 0 and shape.piece_b in (0, 16),
        }
        return "dense/tsmm_3m", constants | constants_of(config, "warps"), {"Real": c_type(problem.dtype)}

    def preferred(self, problem: TsmmProblem, device: DeviceInfo) -> Iterable[Recipe]:
        return (Recipe(4),) if problem.K <= FEW_ROWS else ()

    def configure(self, problem: TsmmProblem, recipe: Recipe, device: DeviceInfo) -> TsmmMmaConfig:
        return TsmmMmaConfig(recipe.warps, 1, ROWS_3M, 1, 0, shared_coefficients=True, three_m=True)
