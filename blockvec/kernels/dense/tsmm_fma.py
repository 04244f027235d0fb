"""TSMM by ordinary multiply-adds: B = alpha A C + beta B for all types, widths, pitches and alignments.

The kernel (``tsmm_fma.cu``) has the thread mappings of Ernst et al., "Performance engineering for real
and complex tall & skinny matrix multiplication kernels on GPUs" (2021), section "TSMM", and beyond the
paper a ring in shared memory through which rows are loaded and stored as contiguous ranges, so that odd
widths are as fast as even ones.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..launch import QUEUE_BYTES, run_rows
from ..limits import CLOCK_HZ, MAX_REGISTERS, QUADRANTS, WARP, ceil_div, covered_rate, round_up, smooth_max
from ..problem import TsmmProblem, is_complex, itemsize, parts_of
from ..roofline import H200_CEILINGS, memory_time, traffic
from ..source import C_TYPES, Constant, constants_of, render
from .family import DenseFamily
from .layout import MAX_WIDTH, Operand, Slab, make_slab, operand_constants, refuse_widths, shape_of, widest
from .tsmm_mma import row_cycles as tensor_cycles

# 32-bit multiply-adds per byte, those in double precision counted twice: 60 per cent of the H200's ratio. A
# tile queue gains 3 to 7 per cent where memory limits, and costs up to 10 where products do.
_QUEUED_PRODUCTS = 4.3

Coefficients = Literal["registers", "shared"]


@frozen
class TsmmFmaConfig:
    """One way to run the kernel."""

    # Threads that share a row of B: a power of two up to 32. Columns are assigned to them cyclically
    # ("transposed" in the paper).
    spread: int
    ct: int  # columns of B per thread
    unroll: int  # rows per thread
    count: int = 1  # consecutive rows among them
    kt: int = 1  # columns of A that a thread loads at a time
    # Stages of a team's ring, through which results are stored, too; 0 loads and stores directly.
    stages: int = 0
    coefficients: Coefficients = "shared"  # memory of C: ``"registers"`` or ``"shared"``
    unroll_k: int = 1  # unrolled sets of `kt` columns
    teams: int = 8  # teams of a block, of one warp each
    blocks: int = 1  # blocks resident on a multiprocessor

    @property
    def rows(self) -> int:
        """Rows of a chunk."""
        return WARP // self.spread * self.unroll

    @property
    def threads(self) -> int:
        return WARP * self.teams


@frozen
class Plan:
    """The mapping and memory layout of a problem and a configuration; sizes and offsets in bytes.

    `access_cycles` are the cycles in which shared memory serves one access of a warp, to A and to B.
    """

    a: Operand
    b: Operand
    slabs: tuple[Slab, Slab]
    vectors: tuple[int, int]
    access_cycles: tuple[int, int]
    c_vector: int
    c_bytes: int
    b_offset: int
    stage_bytes: int
    c_offset: int
    shared_bytes: int


def operands_of(problem: TsmmProblem, kt: int, ct: int, spread: int) -> tuple[Operand, Operand]:
    """Describe A and B, cut into the tiles of a thread."""
    a = Operand.of(problem.M, problem.dtype_a, problem.lda, problem.align_a, kt)
    b = Operand.of(problem.N, problem.dtype, problem.ldb, problem.align_b, ct)
    return a, replace(b, tiles=spread)


@functools.lru_cache(maxsize=16384)
def _slab(operand: Operand, rows: int, count: int, spread: int, is_a: bool) -> tuple[Slab, int, int]:
    """Lay out the slab of an operand as `make_slab` does; the threads of a row share A."""

    def lanes(slab: Slab, vector: int) -> Iterator[int]:
        step = max(vector, operand.size) if spread > 1 else operand.tile * operand.size
        for lane in range(WARP):
            yield slab.offset(lane // spread * count) + (0 if is_a else lane % spread * step)

    return make_slab(operand, rows, count, lanes, is_stored=not is_a)


@functools.lru_cache(maxsize=16384)
def plan_of(problem: TsmmProblem, config: TsmmFmaConfig) -> Plan:
    """Compute the plan of a configuration; the problem is a `shape_of`."""
    a, b = operands_of(problem, config.kt, config.ct, config.spread)
    how = (config.rows, config.count, config.spread)
    slab_a, vector_a, cycles_a = _slab(a, *how, True)
    slab_b, vector_b, cycles_b = _slab(b, *how, False)
    if config.stages == 0:
        vector_a, vector_b = a.direct_vector(config.count), b.direct_vector(config.count)
    c_row = config.ct * parts_of(problem.dtype_c) * b.real_bytes
    c_vector = 16 if c_row > 16 else widest(c_row)
    c_bytes = problem.M * round_up(c_row, c_vector) * config.spread if config.coefficients == "shared" else 0
    b_offset = round_up(slab_a.size, 128) if config.stages and problem.beta != "zero" else 0
    stage_bytes = round_up(max(slab_a.size, b_offset + slab_b.size), 128) if config.stages else 0
    ring = config.teams * config.stages * stage_bytes
    # The last row's loads of columns past the width stay within the block's memory.
    slack = a.tiles * a.tile * a.size + 16 if config.stages else 0
    return Plan(
        a=a,
        b=b,
        slabs=(slab_a, slab_b),
        vectors=(vector_a, vector_b),
        access_cycles=(cycles_a, cycles_b),
        c_vector=c_vector,
        c_bytes=c_bytes,
        b_offset=b_offset,
        stage_bytes=stage_bytes,
        c_offset=ring,
        shared_bytes=ring + max(c_bytes, slack),
    )


def registers(problem: TsmmProblem, config: TsmmFmaConfig, device: DeviceInfo | None = None) -> int:
    """Estimate the registers per thread, on any device."""
    a, b = operands_of(problem, config.kt, config.ct, config.spread)
    words = b.real_bytes // 4
    sums = config.unroll * config.ct * b.parts * words
    rows = config.unroll * config.kt * a.size // 4
    held = problem.M if config.coefficients == "registers" else 1
    coefficients = held * config.ct * parts_of(problem.dtype_c) * words
    old = sums * config.count // config.unroll if problem.beta != "zero" else 0
    addresses = 44 if config.stages else 56 + 2 * config.unroll
    if problem.dtype == "complex128" and problem.beta == "general":
        addresses += 40  # scaled numbers of the next rows
    return sums + max(rows + coefficients, old) + addresses


def uses_queue(problem: TsmmProblem, config: TsmmFmaConfig) -> bool:
    """Check whether warps take chunks from a tile queue, see ``cuda/common/tile_queue.cuh``."""
    a, b = operands_of(problem, config.kt, config.ct, config.spread)
    products = problem.M * problem.N * a.parts * parts_of(problem.dtype_c) * (b.real_bytes // 4)
    is_light = products < _QUEUED_PRODUCTS * (a.row_bytes + b.row_bytes)
    return config.stages > 0 and is_light


@frozen
class Recipe:
    """A configuration but for the widths; equal names mean the same."""

    spread: int
    unroll: int
    coefficients: Coefficients = "shared"
    warps: int = 8  # warps resident on a multiprocessor
    stages: int = 3


# Of 2,300 recipes; the others would gain 0.5 per cent of the predicted time in the geometric mean of drawn
# products, and 8 per cent at the most in 99 of 100.
RECIPES: Sequence[Recipe] = (
    Recipe(1, 1, "registers", 4, 4),
    Recipe(1, 4, stages=2),
    Recipe(1, 8),
    Recipe(1, 8, "registers", 16),
    Recipe(2, 1, "registers", stages=4),
    Recipe(2, 2, warps=4, stages=2),
    Recipe(2, 2, "registers", stages=4),
    Recipe(2, 4, stages=2),  # which decides between families
    Recipe(2, 8, warps=4, stages=2),
    Recipe(4, 2, warps=4),
    Recipe(4, 4, warps=4, stages=2),
    Recipe(4, 8, warps=4, stages=2),
    Recipe(8, 1, "registers", 4, 4),
    Recipe(8, 2, "registers", stages=4),
    Recipe(8, 4, stages=2),
    Recipe(8, 4, warps=4, stages=2),
    Recipe(8, 8, warps=4),
    Recipe(16, 2, "registers", 4, 4),
    Recipe(16, 4, warps=4),
    Recipe(32, 4, warps=4),
)
SPARE: Sequence[Recipe] = (
    *(Recipe(spread, 1, warps=4, stages=2) for spread in (1, 2, 4, 8, 16, 32)),
    *(Recipe(spread, unroll, stages=0) for spread in (1, 2, 4, 8, 16, 32) for unroll in (1, 2)),
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
    fits = registers(problem, config) <= MAX_REGISTERS and spread * ct < 2 * problem.N
    return config if fits else None


# Fitted to runs of 64 widths on an H200 and of 8 products on an H100.
_LAUNCH_S = 3.3e-6  # including the latency of the first bytes
_COPY_CYCLES = 28  # cycles: one copy of a warp to or from a stage
_CHUNK_INSTRUCTIONS = 130  # instructions per stage: waiting for it and filling it, besides its copies
_DIRECT = 8  # time of loads from memory, of rows that lie apart, relative to loads from a stage
_BUSY = 1.5, 1.24  # cycles of tiles beside other work, relative to those without it: real, complex
_LIGHT = 0.9  # time of products, as a share of the time of memory, up to which they cost nothing
_BYTES_PER_CYCLE = 18  # bytes per cycle: one multiprocessor to or from memory


def _tile_cycles(problem: TsmmProblem, config: TsmmFmaConfig) -> tuple[float, float, float]:
    """Estimate the cycles of a quadrant for the rows of a warp: products, their issue, loads."""
    a, b = operands_of(problem, config.kt, config.ct, config.spread)
    parts_c = parts_of(problem.dtype_c)
    products = config.unroll * config.ct * problem.M * a.parts * parts_c
    # 128 bytes per cycle into registers, for four quadrants: one cycle of a quadrant per byte and thread.
    loaded = config.unroll * a.row_bytes
    if config.coefficients != "registers":
        loaded += problem.M * config.ct * parts_c * b.real_bytes
    return products * (b.real_bytes // 4), products + loaded / 16, loaded


def _row_cycles(problem: TsmmProblem, config: TsmmFmaConfig) -> float:
    """Estimate the cycles of a multiprocessor per row: the longer of products and loads, part of the rest."""
    fma, issue, loads = _tile_cycles(problem, config)
    return (max(fma, issue, loads) + 0.25 * min(fma, loads) + 30) / (4 * config.rows)


@functools.lru_cache(maxsize=65536)
def _chunk_cycles(problem: TsmmProblem, config: TsmmFmaConfig) -> float:
    """Estimate the cycles of a chunk in a quadrant that its warps share."""
    fma, issue, loads = _tile_cycles(problem, config)
    if not config.stages:
        return max(fma, issue, _DIRECT * loads) + _CHUNK_INSTRUCTIONS
    plan = plan_of(problem, config)
    (a_slab, b_slab), (a_cycles, b_cycles) = plan.slabs, plan.access_cycles
    copies = a_slab.copies(WARP) + (1 if problem.beta == "zero" else 2) * b_slab.copies(WARP)
    sets, tiles = config.unroll // config.count, ceil_div(problem.M, config.kt)
    a_loads = sets * tiles * plan.a.accesses(config.count, plan.vectors[0], a_slab.is_linear)
    b_loads = sets * plan.b.accesses(config.count, plan.vectors[1], b_slab.is_linear)
    loads += max(0.0, 4 * a_loads * a_cycles - config.unroll * plan.a.row_bytes)
    loads += config.unroll * config.ct * plan.b.size + 4 * b_loads * b_cycles
    return max(fma, issue, loads) + _CHUNK_INSTRUCTIONS + _COPY_CYCLES * copies


@functools.lru_cache(maxsize=4096)
def _least_row_cycles(problem: TsmmProblem) -> float:
    """Estimate the fewest cycles of a multiprocessor per row without the limit of memory."""
    tiled = (_tiled(problem, recipe.spread, recipe.unroll, recipe.coefficients) for recipe in RECIPES)
    return min(_row_cycles(problem, config) for config in tiled if config is not None)


class TsmmFma(DenseFamily[TsmmProblem, TsmmFmaConfig]):
    """The multiply-add family of TSMM."""

    name = "tsmm_fma"
    Config = TsmmFmaConfig
    problem_type = TsmmProblem
    unit = "fma"

    static_bytes = 64  # the variables of the kernel itself
    recipes, spare = RECIPES, SPARE

    refuse_problem = staticmethod(refuse_widths)
    registers = staticmethod(registers)

    def grid(self, problem: TsmmProblem, config: TsmmFmaConfig, device: DeviceInfo) -> int:
        return max(1, min(device.multiprocessors * config.blocks, ceil_div(problem.K, config.rows)))

    def source(self, problem: TsmmProblem, config: TsmmFmaConfig, device: DeviceInfo) -> str:
        plan = plan_of(shape_of(problem), config)
        parts_c = parts_of(problem.dtype_c)
        types = {
            "RealA": C_TYPES[plan.a.real_bytes],
            "RealC": C_TYPES[itemsize(problem.dtype_c) // parts_c],
            "Real": C_TYPES[plan.b.real_bytes],
        }
        constants: dict[str, Constant] = {
            "M": problem.M,
            "N": problem.N,
            "PA": plan.a.parts,
            "PC": parts_c,
            "ALPHA_ONE": problem.alpha == "one",
        }
        constants |= constants_of(problem, "beta") | constants_of(config)
        constants |= {
            "DEALS": uses_queue(problem, config),
            "RUN": max(1, run_rows(problem) // config.rows),  # chunks are large: a second one costs order
        }
        constants |= operand_constants((plan.a, plan.b), plan.slabs, plan.vectors, config.stages > 0)
        constants |= constants_of(plan, "c_vector", "b_offset", "stage_bytes", "c_offset")
        return render(self.kernel_name(problem), "dense/tsmm_fma.cu", constants, types)

    def shared_bytes(self, problem: TsmmProblem, config: TsmmFmaConfig, device: DeviceInfo) -> int:
        return plan_of(shape_of(problem), config).shared_bytes

    def workspace_bytes(self, problem: TsmmProblem, config: TsmmFmaConfig, device: DeviceInfo) -> int:
        return QUEUE_BYTES  # also without a queue, so that all kernels have the same arguments

    def configure(self, problem: TsmmProblem, recipe: Recipe, device: DeviceInfo) -> TsmmFmaConfig | None:
        config = _tiled(shape_of(problem), recipe.spread, recipe.unroll, recipe.coefficients)
        if config is None:
            return None
        return replace(
            config, stages=recipe.stages, teams=min(recipe.warps, 8), blocks=max(1, recipe.warps // 8)
        )

    def is_faster(self, problem: TsmmProblem) -> bool:
        # Compare with tensor cores, in single precision and for one column. They pad widths and convert what
        # they load and store. Of views memory is the limit, which they use as well or better.
        is_single = problem.dtype in ("float32", "complex64")
        widths = problem.M, problem.N
        is_view = (problem.lda, problem.ldb) != widths
        if widths == (1, 1) and not is_view:
            return True  # 0.98 of the roofline on an H200, 0.84 with tensor cores, 0.79 for complex numbers
        if not is_single or is_view or min(widths) < 1 or max(widths) > MAX_WIDTH:
            return False
        least = _least_row_cycles(shape_of(problem))
        moved = problem.M + (1 if problem.beta == "zero" else 2) * problem.N
        memory = moved * itemsize(problem.dtype) / _BYTES_PER_CYCLE
        return _BUSY[is_complex(problem.dtype)] * least < max(_LIGHT * memory, tensor_cycles(problem))

    def predict(self, problem: TsmmProblem, config: TsmmFmaConfig, device: DeviceInfo) -> float:
        # The slower of two limits, smoothed where they are close: memory, at the rate that the bytes in
        # flight allow (Little's law); the busiest quadrant of a multiprocessor, whose pipes multiply, load
        # and issue.
        shape = shape_of(problem)
        plan = plan_of(shape, config)
        grid = self.grid(problem, config, device)
        turns = ceil_div(ceil_div(problem.K, config.rows), grid * config.teams)
        resident, busy = ceil_div(grid, device.multiprocessors), min(grid, device.multiprocessors)
        moved = traffic(problem)
        row_bytes = plan.a.row_bytes + (plan.b.row_bytes if problem.beta != "zero" and config.stages else 0)
        flight = resident * config.teams * max(config.stages - 0.5, 0.6) * config.rows * row_bytes
        share = moved.read_bytes / max(memory_time(moved, H200_CEILINGS), 1e-12) / busy
        warps = ceil_div(resident * config.teams, QUADRANTS)
        return _LAUNCH_S + smooth_max(
            moved.read_bytes / (busy * covered_rate(share, flight)),
            turns * warps * _chunk_cycles(shape, config) / CLOCK_HZ,
        )
