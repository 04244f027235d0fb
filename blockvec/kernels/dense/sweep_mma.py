"""A wide basis W times a small matrix in one sweep on FP64 tensor cores (sm_90).

The kernel (``sweep_mma.cu`` explains it) serves two kinds of problems: TSMM from a wide block to a narrow one
(V = alpha W C + beta V), and `SweepProblem`, such an update of V and the Gram matrix of the rows that it has
just computed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..limits import RESERVED_SHARED_BYTES, architecture_of, ceil_div, round_up
from ..problem import FEW_ROWS, BetaClass, SweepProblem, TsmmProblem, itemsize, parts_of
from ..source import Body, Constant, constants_of
from .family import BlockConfig, DenseFamily
from .layout import widest

SweepLike = TsmmProblem | SweepProblem

MIN_BASIS_OF_PRODUCTS = 64  # columns; narrower ones run in the other families
MAX_BASIS = 512
MAX_BLOCK = 32

BULK_UNIT = 16  # bytes: alignment and granularity of bulk copies
_BULK_ROW_BYTES = 512  # rows of 128 bytes took 1.4 times the time of memory in bulk copies, 1.1 in pieces
# With so few columns of V there is little work per tile, and bulk copies come in bursts: 512 columns by 1 or
# 2 took 2 to 4 per cent longer than in pieces, with more spread; by 4 as long. By 16
# pieces take the time of the products: up to 8 per cent longer if complex.
_MAX_PIECES_COLUMNS = 4


@frozen
class SweepMmaConfig(BlockConfig):
    """One way to run the kernel."""

    rows: int  # rows of a tile
    stages: int  # tiles in flight or in use
    warps: int  # warps of a thread block
    wc: int  # warps that share the columns of the basis; the others share the rows


@frozen
class Shape:
    """A problem in the kernel's terms; the names are those of the .cu file."""

    M: int
    N: int
    parts: int
    w_piece: int
    v_piece: int
    gram: bool
    beta: BetaClass

    @property
    def block(self) -> int:
        """Rows of an update's product, columns of one of a Gram matrix."""
        return 16 // self.parts

    @property
    def groups(self) -> int:
        """Groups of 8 columns of the block."""
        return ceil_div(self.N, 8)

    @property
    def outputs(self) -> int:
        """Groups of 8 real columns of the block."""
        return ceil_div(self.N * self.parts, 8)


@functools.lru_cache(maxsize=4096)
def shape_of(problem: SweepLike) -> Shape:
    """Translate a problem into the kernel's terms."""
    M, N, size = problem.M, problem.N, itemsize(problem.dtype)
    w_piece = widest(problem.align_a, problem.lda * size)
    v_piece = widest(problem.align_b, problem.ldb * size)
    is_bulk = M * size % BULK_UNIT == 0 and M * size >= _BULK_ROW_BYTES and N > _MAX_PIECES_COLUMNS
    if w_piece == BULK_UNIT and is_bulk:
        w_piece = 0
    is_sweep = isinstance(problem, SweepProblem)
    return Shape(M, N, parts_of(problem.dtype), w_piece, v_piece, is_sweep, problem.beta)


def tiles_of(shape: Shape, config: SweepMmaConfig) -> int:
    """Count the column tiles of a warp."""
    return ceil_div(ceil_div(shape.M, shape.block), config.wc)


def _pitch(row_bytes: int, rest: int, unit: int) -> int:
    """Compute the least pitch of rows that is `rest` modulo `unit`, in bytes."""
    return row_bytes + (rest - row_bytes) % unit


@functools.lru_cache(maxsize=65536)
def layout(problem: SweepLike, config: SweepMmaConfig) -> tuple[dict[str, Constant], int, int]:
    """Lay out shared memory: distances of rows; bytes of a stage, and of the buffers after the ring."""
    shape = shape_of(problem)
    size = 8 * shape.parts
    columns = config.wc * tiles_of(shape, config) * shape.block
    w_pitch = _pitch(columns * size, 64 if shape.parts == 2 else 32, 128)
    width = shape.groups * 8
    if shape.gram:
        width = max(width, round_up(shape.N, shape.block))
    v_pitch = _pitch(width * size, 32, 64)
    stage = config.rows * (w_pitch + (v_pitch if shape.beta != "zero" else 0))
    after = config.wc * config.rows * shape.outputs * 64 + shape.gram * config.rows * v_pitch
    return {"W_PITCH": w_pitch, "V_PITCH": v_pitch}, stage, after


@frozen
class Recipe:
    """A configuration but for the widths; equal names mean the same."""

    warps: int
    wc: int
    tile_kb: int  # kilobytes of rows of the basis per multiprocessor in a tile, about; 0 for the fewest rows


# In order of preference for few rows, for a narrow block, and else. Of 80 recipes; the best would gain 1 per
# cent of the time that a model predicts, in the geometric mean of drawn sweeps and wide products.
_FEW_ROWS = (Recipe(8, 4, 16), Recipe(16, 2, 0), Recipe(8, 1, 0))
_NARROW = (Recipe(16, 2, 0), Recipe(16, 1, 0), Recipe(8, 2, 32), Recipe(8, 4, 16))
_WIDE = (Recipe(16, 2, 0), Recipe(8, 1, 0), Recipe(8, 2, 32), Recipe(8, 4, 16))
_PRODUCTS = (Recipe(8, 2, 32), Recipe(8, 4, 16), Recipe(8, 8, 64), Recipe(8, 8, 0))
RECIPES = tuple(dict.fromkeys((*_WIDE, *_NARROW, *_PRODUCTS)))
_NARROW_COLUMNS = 3
_MAX_STAGES = 12


class SweepMma(DenseFamily[SweepLike, SweepMmaConfig]):
    """The sweeps' family, for one of its two kinds of problems: TsmmProblem or SweepProblem."""

    unit = "sweep"
    static_bytes = 1024  # barriers and counters, beside the ring
    recipes = RECIPES

    def __init__(self, name: str, problem_type: type[SweepLike]) -> None:
        self.name, self.problem_type = name, problem_type

    def refuse_problem(self, problem: SweepLike, device: DeviceInfo) -> str | None:
        if device.kind != "cuda" or architecture_of(device) < 90:
            return f"needs bulk copies, which begin with sm_90; the device is {device.architecture}"
        types = problem.dtypes
        if len(set(types)) > 1 or types[0] not in ("float64", "complex128"):
            return f"takes float64 or complex128 throughout, not {', '.join(types)}"
        if (align := min(problem.align_a, problem.align_b)) < 8:
            return f"operands must be aligned to 8 bytes, not {align}"
        M, N = problem.M, problem.N
        if min(problem.K, M, N) < 1:
            return "has no rows or columns to multiply"
        if (least := max(N, MIN_BASIS_OF_PRODUCTS)) >= M and not isinstance(problem, SweepProblem):
            return f"takes a basis of more than {least} columns for a block of {N}, not {M}"
        if M > MAX_BASIS or N > MAX_BLOCK:
            return f"at most {MAX_BASIS} and {MAX_BLOCK} columns, not {M} and {N}"
        return None

    def resources(self, problem: SweepLike, config: SweepMmaConfig, device: DeviceInfo) -> tuple[int, int]:
        shape, (_, stage_bytes, after_bytes) = shape_of(problem), layout(problem, config)
        # The ring and buffers of warps, later their sums.
        ring = config.stages * stage_bytes + after_bytes
        shared = max(ring, shape.gram * shape.N**2 * 8 * shape.parts, 32 * config.warps * 8)
        rows = config.rows * config.wc // (shape.block * config.warps)
        doubles = 4 * tiles_of(shape, config) * shape.groups + 4 * rows * shape.outputs
        if shape.gram:
            doubles += 4 * ceil_div(ceil_div(shape.N, shape.block) * shape.groups, config.warps)
        return 2 * doubles + 72, shared

    def body(self, problem: SweepLike, config: SweepMmaConfig, device: DeviceInfo) -> Body:
        shape = shape_of(problem)
        constants: dict[str, Constant] = {"COMPLEX": shape.parts == 2, "ALPHA_ONE": problem.alpha == "one"}
        constants |= constants_of(shape, omit=("parts",))
        constants |= constants_of(config) | layout(problem, config)[0]
        return "dense/sweep_mma", constants, {}

    def pack(
        self, problem: SweepLike, config: SweepMmaConfig, device: DeviceInfo
    ) -> Callable[..., tuple[Any, ...]]:
        size = itemsize(problem.dtype)
        extents = problem.K, problem.lda * size, problem.ldb * size

        def combine(W: int, C: int, V: int, alpha: complex, beta: complex, _queue: int) -> tuple[Any, ...]:
            a, b = complex(alpha), complex(beta)
            return W, V, C, 0, *extents, a.real, a.imag, b.real, b.imag, 0

        def sweep(W: int, V: int, C: int, S: int, workspace: int) -> tuple[Any, ...]:
            return W, V, C, S, *extents, -1.0, 0.0, 1.0, 0.0, workspace

        return sweep if isinstance(problem, SweepProblem) else combine

    def configure(self, problem: SweepLike, recipe: Recipe, device: DeviceInfo) -> SweepMmaConfig | None:
        shape = shape_of(problem)
        if recipe.wc > ceil_div(shape.M, shape.block):
            return None
        unit = shape.block * (recipe.warps // recipe.wc)
        unit_bytes = unit * shape.M * 8 * shape.parts
        rows = max(1, round((recipe.tile_kb << 10) / unit_bytes)) * unit
        base = SweepMmaConfig(rows, 2, recipe.warps, recipe.wc)
        _, stage_bytes, after_bytes = layout(problem, base)
        reserved = self.static_bytes + RESERVED_SHARED_BYTES + after_bytes
        share = device.shared_bytes_per_multiprocessor - reserved
        return replace(base, stages=max(2, min(share // stage_bytes, _MAX_STAGES)))

    def preferred(self, problem: SweepLike, device: DeviceInfo) -> Iterable[Recipe]:
        if isinstance(problem, TsmmProblem):
            return _PRODUCTS
        return _FEW_ROWS if problem.K <= FEW_ROWS else _NARROW if problem.N <= _NARROW_COLUMNS else _WIDE
