"""What can be chosen for the multiply-add TSMM, how it lies in memory, and which choices are valid."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ..device import DeviceInfo
from ..problem import TsmmProblem
from .layout import (
    NAMED_BARRIERS,
    Operand,
    Slab,
    ceil_div,
    excess,
    make_slab,
    parts_of,
    round_up,
    supports,
    widest,
)

__all__ = [
    "STATIC_SHARED_BYTES",
    "Coefficients",
    "Config",
    "Plan",
    "deals",
    "grid_of",
    "misfit",
    "operands_of",
    "plan_of",
    "refuse",
    "registers",
    "shape_of",
    "shared_bytes",
]

STATIC_SHARED_BYTES = 64  # bound on the kernel's own variables

# 32-bit multiply-adds a byte, those in double counting twice: 60 per cent of what an H200 makes meanwhile.
# Where memory decides, chunks that are dealt out gain 3 to 7 per cent; where products do, they cost up to 10.
_DEALT_PRODUCTS = 4.3

Coefficients = Literal["registers", "shared", "cache"]


@dataclass(frozen=True, slots=True)
class Config:
    """One way to run the kernel.

    Attributes
    ----------
    spread : int
        Threads that share a row of B: a power of two up to 32.
    ct : int
        Columns of B of a thread.
    unroll : int
        Rows of a thread.
    count : int
        How many of them are neighbours.
    kt : int
        Columns of A that a thread takes at a time.
    stages : int
        Stages of a team's ring; 0 to load straight from memory.
    staged_out : bool
        Whether results leave through shared memory.
    coefficients : str
        Where C is read: ``"registers"``, ``"shared"`` or ``"cache"``.
    interleaved : bool
        Whether columns of B are dealt out to threads in turn ("transposed"), not in blocks.
    unroll_k : int
        Sets of `kt` columns unrolled.
    warps : int
        Warps of a team.
    teams : int
        Teams of a block.
    blocks : int
        Blocks resident on a multiprocessor.
    padded : bool
        Stage contiguous rows one by one, into aligned slabs.
    """

    spread: int
    ct: int
    unroll: int
    count: int = 1
    kt: int = 1
    stages: int = 0
    staged_out: bool = False
    coefficients: Coefficients = "shared"
    interleaved: bool = True
    unroll_k: int = 1
    warps: int = 1
    teams: int = 8
    blocks: int = 1
    padded: bool = False

    @property
    def lanes(self) -> int:
        """Threads of a team."""
        return 32 * self.warps

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.teams

    @property
    def rows(self) -> int:
        """Rows of a chunk."""
        return self.lanes // self.spread * self.unroll


@dataclass(frozen=True, slots=True)
class Plan:
    """All that follows from a problem's shape and a configuration; sizes and offsets in bytes.

    `access_cycles` is what shared memory takes to serve one access of a warp, to A and to B.
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


def shape_of(problem: TsmmProblem) -> TsmmProblem:
    """Return what source and layout depend on: not the number of rows, nor by how much rows lie apart."""
    return replace(
        problem,
        K=1,
        lda=problem.M if problem.lda == problem.M else problem.M + 1,
        ldb=problem.N if problem.ldb == problem.N else problem.N + 1,
    )


def operands_of(problem: TsmmProblem, kt: int, ct: int, spread: int) -> tuple[Operand, Operand]:
    """Describe A and B, cut into the tiles of a thread."""
    a = Operand.of(problem.M, problem.dtype_a, problem.lda, problem.align_a, kt)
    b = Operand.of(problem.N, problem.dtype, problem.ldb, problem.align_b, ct)
    return a, replace(b, tiles=spread)


@functools.lru_cache(maxsize=16384)
def _slab(
    operand: Operand, rows: int, count: int, spread: int, is_a: bool, interleaved: bool, padded: bool
) -> tuple[Slab, int, int]:
    """Slab of an operand, bytes of a thread's accesses, cycles of a warp's; a row's threads share A."""

    def lanes(slab: Slab, vector: int) -> Iterator[int]:
        step = max(vector, operand.size) if interleaved else operand.tile * operand.size
        for lane in range(32):
            yield slab.offset(lane // spread * count) + (0 if is_a else lane % spread * step)

    return make_slab(operand, rows, count, lanes, is_padded=padded, is_stored=not is_a)


@functools.lru_cache(maxsize=16384)
def plan_of(problem: TsmmProblem, config: Config) -> Plan:
    """Work out a configuration; the problem is a `shape_of`."""
    a, b = operands_of(problem, config.kt, config.ct, config.spread)
    how = (config.rows, config.count, config.spread)
    slab_a, vector_a, cycles_a = _slab(a, *how, True, False, config.padded)
    slab_b, vector_b, cycles_b = _slab(b, *how, False, config.interleaved, config.padded)
    if config.stages == 0:
        vector_a = a.direct_vector(config.count)
    if not config.staged_out:
        vector_b = b.direct_vector(config.count)
    c_row = config.ct * parts_of(problem.dtype_c) * b.real_bytes
    c_vector = 16 if c_row > 16 else widest(c_row)
    c_bytes = problem.M * round_up(c_row, c_vector) * config.spread if config.coefficients == "shared" else 0
    comes = config.staged_out and problem.beta != "zero"
    b_offset = round_up(slab_a.size, 128) if comes else 0
    out = slab_b.size if config.staged_out else 0
    stage_bytes = round_up(b_offset + out if comes else max(slab_a.size, out), 128) if config.stages else 0
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


def registers(problem: TsmmProblem, config: Config) -> int:
    """Return the registers a thread needs, at least nearly."""
    a, b = operands_of(problem, config.kt, config.ct, config.spread)
    words = b.real_bytes // 4
    sums = config.unroll * config.ct * b.parts * words
    rows = config.unroll * config.kt * a.size // 4
    held = problem.M if config.coefficients == "registers" else 1
    coefficients = held * config.ct * parts_of(problem.dtype_c) * words
    old = sums * config.count // config.unroll if problem.beta != "zero" else 0
    addresses = 44 if config.staged_out else 56 + 2 * config.unroll
    if problem.dtype == "complex128" and problem.beta == "general":
        addresses += 40  # scaled numbers of the next rows
    return sums + max(rows + coefficients, old) + addresses


def shared_bytes(problem: TsmmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the dynamic shared memory of a block: the rings and the coefficients."""
    return plan_of(shape_of(problem), config).shared_bytes


def refuse(problem: TsmmProblem, config: Config, device: DeviceInfo) -> str | None:
    """Say why a configuration is not valid for a problem, or None when it is: the validity rule."""
    reason = supports(problem, device) or misfit(problem, config)
    if reason:
        return reason
    needed, shared = registers(problem, config), shared_bytes(problem, config, device)
    return excess(config.threads, config.blocks, needed, shared, STATIC_SHARED_BYTES, device)


def misfit(problem: TsmmProblem, config: Config) -> str | None:
    """Options that do not go together."""
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
    if config.interleaved and config.spread == 1:
        return "one thread a row has nothing to interleave"
    if config.stages == 1 or (config.staged_out and not config.stages):
        return f"{config.stages} stages{' and a staged result' if config.staged_out else ''}"
    if config.padded and not (config.stages and (problem.lda == problem.M or problem.ldb == problem.N)):
        return "only contiguous rows that are staged are padded"
    if config.warps > 1 and config.teams > NAMED_BARRIERS:
        return f"{config.teams} teams for {NAMED_BARRIERS} barriers"
    return None


def deals(problem: TsmmProblem, config: Config) -> bool:
    """Whether chunks are dealt out to warps as they ask for them, see ``cuda/common/queue.cuh``.

    A warp by itself tells its lanes a chunk's number by a shuffle; several would have to meet for it.
    """
    a, b = operands_of(problem, config.kt, config.ct, config.spread)
    products = problem.M * problem.N * a.parts * parts_of(problem.dtype_c) * (b.real_bytes // 4)
    is_light = products < _DEALT_PRODUCTS * (a.row_bytes + b.row_bytes)
    return config.warps == 1 and config.stages > 0 and is_light


def grid_of(problem: TsmmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the blocks of a launch."""
    return max(1, min(device.multiprocessors * config.blocks, ceil_div(problem.K, config.rows)))
