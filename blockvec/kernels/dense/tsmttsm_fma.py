"""TSMTTSM by multiply-adds: C = alpha A^H B + beta C, or A^T B, all types, widths, pitches, alignments.

The kernel (``tsmttsm_fma.cu``) has the thread mappings of Ernst et al., "Performance engineering for
real and complex tall & skinny matrix multiplication kernels on GPUs" (2021), section "TSMTTSM", and beyond
the paper a ring in shared memory from which they are fed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..launch import pack_product, partials_bytes, partials_chain
from ..limits import WARP, architecture_of, ceil_div, excess, round_up
from ..problem import TsmttsmProblem, is_complex, parts_of
from ..source import C_TYPES, Constant, constants_of, render
from .family import DenseFamily
from .layout import (
    NAMED_BARRIERS,
    Operand,
    Slab,
    make_slab,
    operand_constants,
    refuse_widths,
    shape_of,
)

SCRATCH_BYTES = (
    24 << 10
)  # per block, for the sum of tiles over the block; with less the sum takes more passes
STATIC_SHARED_BYTES = 256  # bound on the variables of the kernel itself

_CHAIN_ROWS = {"registers": 128, "shared": 1024}  # that a thread adds up in single precision

Sums = Literal["plain", "registers", "shared"]


@frozen
class TsmttsmFmaConfig:
    """One way to run the kernel.

    Attributes
    ----------
    tm, tn : int
        Tile of C per thread.
    count : int
        Consecutive rows that a thread multiplies at a time.
    steps : int
        Sets of rows per chunk, loaded from memory or staged together.
    stages : int
        Stages of a team's ring; 0 loads directly from memory.
    warps : int
        Warps of a team, whose threads share the tiles of a row.
    teams : int
        Teams of a block.
    blocks : int
        Blocks resident on a multiprocessor.
    interleaved : bool
        Whether columns are assigned to tiles cyclically ("transposed" in the paper), not in blocks.
    unroll : int
        Unrolled steps of a stage.
    sums : str
        Accumulation: ``"plain"`` in the result's type (double precision problems), ``"registers"`` or
        ``"shared"`` in short single precision chains that are added to double precision sums there.
    """

    tm: int
    tn: int
    count: int = 1
    steps: int = 1
    stages: int = 0
    warps: int = 1
    teams: int = 8
    blocks: int = 1
    interleaved: bool = False
    unroll: int = 1
    sums: Sums = "plain"

    @property
    def lanes(self) -> int:
        """Threads of a team."""
        return WARP * self.warps

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.teams


@frozen
class Plan:
    """The mapping and memory layout of a problem and a configuration; sizes and offsets in bytes.

    `load_cycles` are the cycles in which shared memory serves one load of a warp, of A and of B.
    """

    operands: tuple[Operand, Operand]
    slabs: tuple[Slab, Slab]
    vectors: tuple[int, int]
    load_cycles: tuple[int, int]
    tiles: int
    groups: int
    rows: int
    is_same: bool
    triangle: bool
    b_offset: int
    stage_bytes: int
    passed: int
    product_offset: int
    scratch_offset: int
    shared_bytes: int
    chain: int

    @property
    def is_one_tile(self) -> bool:
        """Whether one thread holds all of C: then equal operands are loaded once."""
        return self.operands[0].tiles * self.operands[1].tiles == 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of A and B."""
        a, b = self.operands
        return a.row_bytes + (0 if self.is_same else b.row_bytes)


def is_single(problem: TsmttsmProblem) -> bool:
    """Check whether the result is in single precision."""
    return problem.dtype in ("float32", "complex64")


def operands_of(problem: TsmttsmProblem, tm: int, tn: int) -> tuple[Operand, Operand]:
    """Describe A and B, cut into the tiles of a thread."""
    a = Operand.of(problem.M, problem.dtype_a, problem.lda, problem.align_a, tm)
    if problem.same:
        return a, replace(a, tile=tn, tiles=ceil_div(problem.N, tn))
    return a, Operand.of(problem.N, problem.dtype_b, problem.ldb, problem.align_b, tn)


def tiles_of(problem: TsmttsmProblem, config: TsmttsmFmaConfig) -> int:
    """Count the tiles of C; of A^H A with square tiles, none below the diagonal."""
    across, down = ceil_div(problem.M, config.tm), ceil_div(problem.N, config.tn)
    return across * (across + 1) // 2 if _is_triangle(problem, config) else across * down


def _is_triangle(problem: TsmttsmProblem, config: TsmttsmFmaConfig) -> bool:
    return problem.same and config.tm == config.tn and not config.interleaved


@functools.lru_cache(maxsize=16384)
def _slab(
    operand: Operand, rows: int, count: int, groups: int, others: int, first: bool, interleaved: bool
) -> tuple[Slab, int, int]:
    """Lay out the slab of an operand as `make_slab` does; `others` tiles of C share each of its tiles."""

    def lanes(slab: Slab, vector: int) -> Iterator[int]:
        step = max(vector, operand.size) if interleaved else operand.tile * operand.size
        tiles = operand.tiles * others
        for lane in range(32):
            tile = lane % tiles % operand.tiles if first else lane % tiles // others
            yield slab.offset(min(lane // tiles, groups - 1) * count) + tile * step

    return make_slab(operand, rows, count, lanes)


@functools.lru_cache(maxsize=16384)
def plan_of(problem: TsmttsmProblem, config: TsmttsmFmaConfig) -> Plan:
    """Compute the plan of a configuration; the problem is a `shape_of`."""
    a, b = operands_of(problem, config.tm, config.tn)
    parts = max(a.parts, b.parts)
    tiles = tiles_of(problem, config)
    groups = max(1, config.lanes // tiles)
    rows = config.steps * groups * config.count
    how = (rows, config.count, groups)
    slab_a, vector_a, cycles_a = _slab(a, *how, b.tiles, True, config.interleaved)
    slab_b, vector_b, cycles_b = _slab(b, *how, a.tiles, False, config.interleaved)
    if config.stages == 0:
        vector_a, vector_b = a.direct_vector(config.count), b.direct_vector(config.count)
    if problem.same:
        slab_b, vector_a, cycles_b = slab_a, min(vector_a, vector_b), max(cycles_a, cycles_b)
        vector_b = vector_a
    b_offset = 0 if problem.same else round_up(slab_a.size, 128)
    stage_bytes = round_up(b_offset + slab_b.size, 128) if config.stages else 0
    ring = config.teams * config.stages * stage_bytes
    # The last row's loads of columns past the width stay within the block's memory.
    slack = (
        max(operand.tiles * operand.tile * operand.size for operand in (a, b)) + 16 if config.stages else 0
    )

    values = config.tm * config.tn * parts
    pitch = 8 * tiles * (groups * config.teams | 1)  # of one value of all threads
    is_kept = config.sums == "shared"
    passed = max(1, min(values, (SCRATCH_BYTES if is_kept else max(ring, SCRATCH_BYTES)) // pitch))
    passed = ceil_div(values, ceil_div(values, passed))  # passes of equal length
    product_offset = round_up(ring + slack, 128) if is_kept else 0
    scratch_offset = round_up(product_offset + problem.M * problem.N * parts * 8, 128)
    return Plan(
        operands=(a, b),
        slabs=(slab_a, slab_b),
        vectors=(vector_a, vector_b),
        load_cycles=(cycles_a, cycles_b),
        tiles=tiles,
        groups=groups,
        rows=rows,
        is_same=problem.same,
        triangle=_is_triangle(problem, config),
        b_offset=b_offset,
        stage_bytes=stage_bytes,
        passed=passed,
        product_offset=product_offset,
        scratch_offset=scratch_offset,
        shared_bytes=max(ring + slack, scratch_offset + max(passed * pitch, config.threads * 8)),
        chain=max(1, _CHAIN_ROWS.get(config.sums, 0) // (config.steps * config.count))
        * (config.sums in _CHAIN_ROWS),
    )


def registers(problem: TsmttsmProblem, config: TsmttsmFmaConfig, device: DeviceInfo | None = None) -> int:
    """Estimate the registers per thread; without a device, of one of an architecture before sm_100."""
    a, b = operands_of(problem, config.tm, config.tn)
    is_one = problem.same and a.tiles * b.tiles == 1
    values = config.tm * (config.tm + 1) // 2 if is_one else config.tm * config.tn
    words = 1 if is_single(problem) else 2
    # From sm_100 on the compiler adds pairs of numbers in single precision at once, and keeps some twice.
    twice = device is not None and architecture_of(device) >= 100 and config.sums in ("shared", "registers")
    sums = values * max(a.parts, b.parts) * (words + twice + (2 if config.sums == "registers" else 0))
    stored = config.tm * a.size // 4 + (0 if is_one else config.tn * b.size // 4)
    ahead = 1 if config.stages else config.steps
    converted = (
        (config.tm * a.parts + config.tn * b.parts) * words
        if 4 * words > min(a.real_bytes, b.real_bytes)
        else 0
    )
    addresses = 36 if config.stages else 32 + 4 * ahead
    chunk = (8 if config.stages else 24) if config.sums == "shared" else 0  # of the loop over chains
    return sums + stored * config.count * ahead + converted + addresses + chunk


def refuse(problem: TsmttsmProblem, config: TsmttsmFmaConfig, device: DeviceInfo) -> str | None:
    """Explain why a configuration is invalid for a problem; None if it is valid."""
    reason = refuse_widths(problem, device) or _misfit(problem, config)
    if reason:
        return reason
    shared = plan_of(shape_of(problem), config).shared_bytes + STATIC_SHARED_BYTES
    return excess(config.threads, config.blocks, registers(problem, config, device), shared, device)


def _misfit(problem: TsmttsmProblem, config: TsmttsmFmaConfig) -> str | None:
    """Explain which options exclude each other."""
    if not (1 <= config.tm <= problem.M and 1 <= config.tn <= problem.N):
        return f"tiles of {config.tm} x {config.tn} for a result of {problem.M} x {problem.N}"
    a, b = operands_of(problem, config.tm, config.tn)
    if tiles_of(problem, config) > config.lanes:
        return f"{tiles_of(problem, config)} tiles a row for {config.lanes} threads"
    if config.interleaved and a.tiles * b.tiles == 1:
        return "one tile has nothing to interleave"
    if (config.sums == "plain") == is_single(problem):
        return f"sums {config.sums!r} are not for {problem.dtype}"
    if config.stages == 1 or (config.stages and config.steps % config.unroll):
        return f"{config.stages} stages of {config.steps} steps, unrolled {config.unroll} times"
    if config.stages and config.warps > 1 and config.teams > NAMED_BARRIERS:
        return f"{config.teams} teams for {NAMED_BARRIERS} barriers"
    return None


def grid_of(problem: TsmttsmProblem, config: TsmttsmFmaConfig, device: DeviceInfo) -> int:
    """Compute the number of blocks of a launch."""
    chunks = ceil_div(problem.K, plan_of(shape_of(problem), config).rows)
    return max(1, min(device.multiprocessors * config.blocks, chunks))


class TsmttsmFma(DenseFamily[TsmttsmProblem, TsmttsmFmaConfig]):
    """The multiply-add family of TSMTTSM."""

    name = "tsmttsm_fma"
    Config = TsmttsmFmaConfig
    problem_type = TsmttsmProblem
    unit = "fma"

    refuse_problem = staticmethod(refuse_widths)
    refuse = staticmethod(refuse)
    grid = staticmethod(grid_of)
    pack = staticmethod(pack_product)

    def chain_length(self, problem: TsmttsmProblem, config: TsmttsmFmaConfig, device: DeviceInfo) -> int:
        plan = plan_of(shape_of(problem), config)
        grid = grid_of(problem, config, device)
        turns = ceil_div(ceil_div(problem.K, plan.rows), grid * config.teams)
        products = config.steps * config.count
        if is_complex(problem.dtype_a) and is_complex(problem.dtype_b):
            products *= 2
        if plan.chain:
            return min(turns, plan.chain) * products + 2  # the sums of chains are in double precision
        return turns * products + plan.groups * config.teams + partials_chain(grid) + 2

    def source(self, problem: TsmttsmProblem, config: TsmttsmFmaConfig, device: DeviceInfo) -> str:
        plan = plan_of(shape_of(problem), config)
        a, b = plan.operands
        single = is_single(problem)
        types = {
            "RealA": C_TYPES[a.real_bytes],
            "RealB": C_TYPES[b.real_bytes],
            "Real": "float" if single else "double",
            "Out": "float" if single else "double",
        }
        constants: dict[str, Constant] = {
            "M": problem.M,
            "N": problem.N,
            "PA": a.parts,
            "PB": b.parts,
            "CONJ": problem.conj and a.parts == 2,
            "SAME": problem.same,
            "ALPHA_ONE": problem.alpha == "one",
            "BETA_ZERO": problem.beta == "zero",
        }
        constants |= constants_of(config, omit=("sums",))
        constants |= {"TRIANGLE": plan.triangle, "CHAIN": plan.chain, "WIDE": config.sums == "registers"}
        constants |= operand_constants(plan.operands, plan.slabs, plan.vectors, config.stages > 0)
        constants |= constants_of(plan, "b_offset", "stage_bytes", "product_offset", "scratch_offset")
        constants["PASS"] = plan.passed
        return render(self.kernel_name(problem), "dense/tsmttsm_fma.cu", constants, types)

    def shared_bytes(self, problem: TsmttsmProblem, config: TsmttsmFmaConfig, device: DeviceInfo) -> int:
        return plan_of(shape_of(problem), config).shared_bytes

    def workspace_bytes(self, problem: TsmttsmProblem, config: TsmttsmFmaConfig, device: DeviceInfo) -> int:
        return partials_bytes(
            grid_of(problem, config, device), problem.M * problem.N * parts_of(problem.dtype)
        )
