"""TSMM by ordinary multiply-adds: B = alpha A C + beta B for all types, widths, pitches and alignments.

The kernel (``tsmm_fma.cu``) has the thread mappings of Ernst et al., "Performance engineering for real
and complex tall & skinny matrix multiplication kernels on GPUs" (2021), section "TSMM", and beyond the
paper a ring in shared memory through which rows are loaded and stored as contiguous ranges, so that odd
widths are as fast as even ones.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..launch import run_rows
from ..limits import MAX_REGISTERS, WARP, ceil_div, round_up
from ..problem import FEW_ROWS, TsmmProblem, is_complex, itemsize, parts_of
from ..source import Body, Constant, c_type, constants_of
from .family import BlockConfig, DenseFamily
from .layout import Operand, Slab, make_slab, operand_constants, refuse_widths, shape_of, widest

# 32-bit multiply-adds per byte, those in double precision counted twice: 60 per cent of the H200's ratio. A
# tile queue gains 3 to 7 per cent where memory limits, and costs up to 10 where products do.
_QUEUED_PRODUCTS = 4.3

Coefficients = Literal["registers", "shared"]


@frozen
class TsmmFmaConfig(BlockConfig):
    """One way to run the kernel."""

    # Threads that share a row of B: a power of two up to 32. Columns are assigned to them cyclically
    # ("transposed" in the paper).
    spread: int
    ct: int  # columns of B per thread
    unroll: int  # rows per thread
    count: int = 1  # consecutive rows among them
    kt: int = 1  # columns of A that a thread loads at a time
    stages: int = 2  # slabs of a team's ring, through which results are stored, too
    coefficients: Coefficients = "shared"  # memory of C: ``"registers"`` or ``"shared"``
    unroll_k: int = 1  # unrolled sets of `kt` columns
    teams: int = 8  # teams of a block, of one warp each

    @property
    def rows(self) -> int:
        """Rows of a chunk."""
        return WARP // self.spread * self.unroll

    @property
    def threads(self) -> int:
        return WARP * self.teams


def operands_of(problem: TsmmProblem, kt: int, ct: int, spread: int) -> tuple[Operand, Operand]:
    """Describe A and B, cut into the tiles of a thread."""
    a = Operand.of(problem.M, problem.dtype_a, problem.lda, problem.align_a, kt)
    b = Operand.of(problem.N, problem.dtype, problem.ldb, problem.align_b, ct)
    return a, replace(b, tiles=spread)


@functools.lru_cache(maxsize=16384)
def _slab(operand: Operand, rows: int, count: int, spread: int, is_a: bool) -> tuple[Slab, int]:
    """Lay out the slab of an operand as `make_slab` does; the threads of a row share A."""

    def lanes(slab: Slab, vector: int) -> Iterator[int]:
        step = max(vector, operand.size) if spread > 1 else operand.tile * operand.size
        for lane in range(WARP):
            yield slab.offset(lane // spread * count) + (0 if is_a else lane % spread * step)

    return make_slab(operand, rows, count, lanes, is_stored=not is_a)


@functools.lru_cache(maxsize=16384)
def layout(problem: TsmmProblem, config: TsmmFmaConfig) -> tuple[dict[str, Constant], int]:
    """Lay out shared memory: the kernel's constants, and bytes; the problem is a `shape_of`."""
    a, b = operands_of(problem, config.kt, config.ct, config.spread)
    how = (config.rows, config.count, config.spread)
    slab_a, vector_a = _slab(a, *how, True)
    slab_b, vector_b = _slab(b, *how, False)
    c_row = config.ct * parts_of(problem.dtype_c) * b.real_bytes
    c_vector = 16 if c_row > 16 else widest(c_row)
    c_bytes = problem.M * round_up(c_row, c_vector) * config.spread if config.coefficients == "shared" else 0
    b_offset = round_up(slab_a.size, 128) if problem.beta != "zero" else 0
    stage_bytes = round_up(max(slab_a.size, b_offset + slab_b.size), 128)
    ring = config.teams * config.stages * stage_bytes
    # The last row's loads of columns past the width stay within the block's memory.
    slack = a.tiles * a.tile * a.size + 16
    constants = operand_constants("A", a, slab_a, vector_a) | {"C_VECTOR": c_vector, "C_OFFSET": ring}
    constants |= operand_constants("B", b, slab_b, vector_b)
    return constants | {"B_OFFSET": b_offset, "STAGE_BYTES": stage_bytes}, ring + max(c_bytes, slack)


def registers(problem: TsmmProblem, config: TsmmFmaConfig) -> int:
    """Estimate the registers per thread, on any device."""
    a, b = operands_of(problem, config.kt, config.ct, config.spread)
    words = b.real_bytes // 4
    sums = config.unroll * config.ct * b.parts * words
    rows = config.unroll * config.kt * a.size // 4
    held = problem.M if config.coefficients == "registers" else 1
    coefficients = held * config.ct * parts_of(problem.dtype_c) * words
    old = sums * config.count // config.unroll if problem.beta != "zero" else 0
    # Scaled numbers of the next rows.
    ahead = 40 if problem.dtype == "complex128" and problem.beta == "general" else 0
    return sums + max(rows + coefficients, old) + 44 + ahead


@frozen
class Recipe:
    """A configuration but for the widths; equal names mean the same."""

    spread: int
    unroll: int
    coefficients: Coefficients = "shared"
    warps: int = 8  # warps resident on a multiprocessor
    stages: int = 3


# In order of preference for few rows, and else by the bytes of a row of A and B. Of 2,300 recipes; the best
# would gain 1.2 per cent of the time that a model predicts, in the geometric mean of drawn products.
_FEW_ROWS = (
    Recipe(8, 1, "registers", 4, 4),
    Recipe(16, 2, "registers", 4, 4),
    Recipe(16, 4, warps=4),
    Recipe(4, 2, warps=4),
    Recipe(1, 1, "registers", 4, 4),
)
_SHORT_ROWS = (
    Recipe(2, 8, warps=4, stages=2),
    Recipe(1, 8),
    Recipe(4, 8, warps=4, stages=2),
    Recipe(8, 8, warps=4),
    Recipe(1, 1, "registers", 4, 4),
)
_ROWS = (
    Recipe(2, 4, stages=2),
    Recipe(4, 8, warps=4, stages=2),
    Recipe(8, 8, warps=4),
    Recipe(4, 4, warps=4, stages=2),
    Recipe(8, 4, warps=4, stages=2),
)
_LONG_ROWS = (
    Recipe(8, 8, warps=4),
    Recipe(4, 4, warps=4, stages=2),
    Recipe(2, 2, warps=4, stages=2),
    Recipe(8, 4, warps=4, stages=2),
    Recipe(16, 4, warps=4),
)
RECIPES: Sequence[Recipe] = tuple(dict.fromkeys((*_ROWS, *_LONG_ROWS, *_SHORT_ROWS, *_FEW_ROWS)))
_SHORT_BYTES, _LONG_BYTES = 352, 700  # bytes of a row of A and B
SPARE: Sequence[Recipe] = tuple(
    Recipe(spread, 1, warps=warps, stages=2) for warps in (4, 2, 1) for spread in (1, 2, 4, 8, 16, 32)
)


@functools.lru_cache(maxsize=16384)
def _tiled(
    problem: TsmmProblem, spread: int, unroll: int, coefficients: Coefficients
) -> TsmmFmaConfig | None:
    """Cut a row into tiles, with the consecutive rows and the unrolling that suit them."""
    ct, kt = ceil_div(problem.N, spread), min(problem.M, max(1, 16 // itemsize(problem.dtype_a)))
    row_bytes = problem.M * itemsize(problem.dtype_a) | problem.N * itemsize(problem.dtype)
    is_linear = problem.lda == problem.M or problem.ldb == problem.N
    count = min(unroll, 16 // widest(row_bytes)) if spread == 1 and is_linear else 1
    products = kt * unroll * ct * parts_of(problem.dtype_a) * parts_of(problem.dtype_c)
    tiles = ceil_div(problem.M, kt)
    unroll_k = tiles if coefficients == "registers" or tiles * products <= 256 else max(1, 128 // products)
    shape = spread, ct, unroll, count, kt
    config = TsmmFmaConfig(*shape, coefficients=coefficients, unroll_k=unroll_k)
    spared = 12 + 2 * unroll  # with fewer left the compiler spills some
    fits = registers(problem, config) + spared <= MAX_REGISTERS and spread * ct < 2 * problem.N
    return config if fits else None


# Products of numbers per element of A and B that memory moves, up to which multiply-adds in single precision,
# real or complex, are as fast as tensor cores, which convert what they load and store.
_FEW_PRODUCTS = 13, 10


class TsmmFma(DenseFamily[TsmmProblem, TsmmFmaConfig]):
    """The multiply-add family of TSMM."""

    name = "tsmm_fma"
    problem_type = TsmmProblem
    unit = "fma"

    static_bytes = 64  # the variables of the kernel itself
    recipes, spare = RECIPES, SPARE

    refuse_problem = staticmethod(refuse_widths)

    def body(self, problem: TsmmProblem, config: TsmmFmaConfig, device: DeviceInfo) -> Body:
        types = {"RealA": c_type(problem.dtype_a), "RealC": c_type(problem.dtype_c)}
        a, b = operands_of(problem, config.kt, config.ct, config.spread)
        products = problem.M * problem.N * a.parts * parts_of(problem.dtype_c) * (b.real_bytes // 4)
        constants: dict[str, Constant] = {
            "PA": parts_of(problem.dtype_a),
            "PC": parts_of(problem.dtype_c),
            "ALPHA_ONE": problem.alpha == "one",
            "DEALS": products < _QUEUED_PRODUCTS * (a.row_bytes + b.row_bytes),
            "RUN": max(1, run_rows(problem) // config.rows),  # chunks are large: a second one costs order
        }
        constants |= constants_of(problem, "beta") | constants_of(config)
        constants |= layout(shape_of(problem), config)[0]
        return "dense/tsmm_fma", constants, types | {"Real": c_type(problem.dtype)}

    def resources(self, problem: TsmmProblem, config: TsmmFmaConfig, device: DeviceInfo) -> tuple[int, int]:
        return registers(problem, config), layout(shape_of(problem), config)[1]

    def configure(self, problem: TsmmProblem, recipe: Recipe, device: DeviceInfo) -> TsmmFmaConfig | None:
        config = _tiled(shape_of(problem), recipe.spread, recipe.unroll, recipe.coefficients)
        if config is None:
            return None
        return replace(config, stages=recipe.stages, teams=recipe.warps)

    def is_faster(self, problem: TsmmProblem) -> bool:
        widths = problem.M, problem.N
        if (problem.lda, problem.ldb) != widths:
            return False  # views are limited by memory, which tensor cores use as well or better
        if widths == (1, 1):
            return True  # 0.98 of the roofline on an H200, 0.84 with tensor cores, 0.79 for complex numbers
        moved = problem.M + (1 if problem.beta == "zero" else 2) * problem.N
        few = _FEW_PRODUCTS[is_complex(problem.dtype)] * moved
        return problem.dtype in ("float32", "complex64") and few >= problem.M * problem.N

    def preferred(self, problem: TsmmProblem, device: DeviceInfo) -> Iterable[Recipe]:
        row_bytes = problem.M * itemsize(problem.dtype_a) + problem.N * itemsize(problem.dtype)
        if problem.K <= FEW_ROWS:
            return _FEW_ROWS
        return _SHORT_ROWS if row_bytes <= _SHORT_BYTES else _ROWS if row_bytes <= _LONG_BYTES else _LONG_ROWS
