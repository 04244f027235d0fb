"""TSMM by ordinary multiply-adds: B = alpha A C + beta B for all types, widths, pitches and alignments.

The kernel (``tsmm_fma.cu``) has the thread mappings of Ernst et al., "Performance engineering for real
and complex tall & skinny matrix multiplication kernels on GPUs" (2021), section "TSMM", and beyond the
paper a ring in shared memory through which rows are loaded and stored as contiguous ranges, so that odd
widths are as fast as even ones.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..launch import QUEUE_BYTES, pack_product, run_rows
from ..limits import WARP, ceil_div, excess, round_up
from ..problem import TsmmProblem, is_complex, itemsize, parts_of
from ..source import C_TYPES, Constant, constants_of, render
from .family import DenseFamily
from .layout import (
    Operand,
    Slab,
    make_slab,
    operand_constants,
    refuse_widths,
    shape_of,
    widest,
)

STATIC_SHARED_BYTES = 64  # bound on the variables of the kernel itself

# 32-bit multiply-adds per byte, those in double precision counted twice: 60 per cent of the H200's ratio. A
# tile queue gains 3 to 7 per cent where memory limits, and costs up to 10 where products do.
_QUEUED_PRODUCTS = 4.3

Coefficients = Literal["registers", "shared"]


@frozen
class TsmmFmaConfig:
    """One way to run the kernel.

    Attributes
    ----------
    spread : int
        Threads that share a row of B: a power of two up to 32. Columns are assigned to them cyclically
        ("transposed" in the paper).
    ct : int
        Columns of B per thread.
    unroll : int
        Rows per thread.
    count : int
        Consecutive rows among them.
    kt : int
        Columns of A that a thread loads at a time.
    stages : int
        Stages of a team's ring, through which results are stored, too; 0 loads and stores directly.
    coefficients : str
        Memory of C: ``"registers"`` or ``"shared"``.
    unroll_k : int
        Unrolled sets of `kt` columns.
    teams : int
        Teams of a block, of one warp each.
    blocks : int
        Blocks resident on a multiprocessor.
    """

    spread: int
    ct: int
    unroll: int
    count: int = 1
    kt: int = 1
    stages: int = 0
    coefficients: Coefficients = "shared"
    unroll_k: int = 1
    teams: int = 8
    blocks: int = 1

    @property
    def rows(self) -> int:
        """Rows of a chunk."""
        return WARP // self.spread * self.unroll

    @property
    def threads(self) -> int:
        """Threads of a block."""
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


def registers(problem: TsmmProblem, config: TsmmFmaConfig) -> int:
    """Estimate the registers per thread."""
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


def refuse(problem: TsmmProblem, config: TsmmFmaConfig, device: DeviceInfo) -> str | None:
    """Explain why a configuration is invalid for a problem; None if it is valid."""
    reason = refuse_widths(problem, device) or misfit(problem, config)
    if reason:
        return reason
    shared = plan_of(shape_of(problem), config).shared_bytes + STATIC_SHARED_BYTES
    return excess(config.threads, config.blocks, registers(problem, config), shared, device)


def misfit(problem: TsmmProblem, config: TsmmFmaConfig) -> str | None:
    """Explain which options exclude each other."""
    covered = config.spread * config.ct
    is_covered = covered == problem.N if config.spread == 1 else problem.N <= covered < 2 * problem.N
    if config.spread not in (1, 2, 4, 8, 16, 32) or not is_covered:
        return f"{config.spread} threads a row of {config.ct} columns for {problem.N}"
    if config.unroll % config.count:
        return f"{config.unroll} rows a thread in sets of {config.count}"
    if not 1 <= config.kt <= problem.M:
        return f"{config.kt} columns at a time of {problem.M}"
    if config.coefficients == "registers" and config.unroll_k < ceil_div(problem.M, config.kt):
        return "coefficients in registers need the loop over columns of A unrolled"
    return "1 stage is no ring" if config.stages == 1 else None


def uses_queue(problem: TsmmProblem, config: TsmmFmaConfig) -> bool:
    """Check whether warps take chunks from a tile queue, see ``cuda/common/tile_queue.cuh``."""
    a, b = operands_of(problem, config.kt, config.ct, config.spread)
    products = problem.M * problem.N * a.parts * parts_of(problem.dtype_c) * (b.real_bytes // 4)
    is_light = products < _QUEUED_PRODUCTS * (a.row_bytes + b.row_bytes)
    return config.stages > 0 and is_light


def grid_of(problem: TsmmProblem, config: TsmmFmaConfig, device: DeviceInfo) -> int:
    """Compute the number of blocks of a launch."""
    return max(1, min(device.multiprocessors * config.blocks, ceil_div(problem.K, config.rows)))


class TsmmFma(DenseFamily[TsmmProblem, TsmmFmaConfig]):
    """The multiply-add family of TSMM."""

    name = "tsmm_fma"
    Config = TsmmFmaConfig
    problem_type = TsmmProblem
    unit = "fma"

    refuse_problem = staticmethod(refuse_widths)
    refuse = staticmethod(refuse)
    grid = staticmethod(grid_of)
    pack = staticmethod(pack_product)

    def chain_length(self, problem: TsmmProblem, config: TsmmFmaConfig, device: DeviceInfo) -> int:
        both = is_complex(problem.dtype_a) and is_complex(problem.dtype_c)
        is_scaled = problem.alpha != "one" or problem.beta != "zero"
        return (2 if both else 1) * problem.M + (2 if is_scaled else 0)

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
        """Compute the workspace of a launch in bytes: the counters of the tile queue, zero between launches.

        Kernels without a queue take them too, so that all have the same arguments.
        """
        return QUEUE_BYTES
