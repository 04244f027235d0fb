"""TSMM by ordinary multiply-adds: B = alpha A C + beta B for all types, widths, pitches and alignments.

The kernel (``cuda/tsmm_fma.cu``) has the thread mappings of Ernst et al., "Performance engineering for real and
complex tall & skinny matrix multiplication kernels on GPUs" (2021), section "TSMM", and beyond the paper a
ring in shared memory through which rows come and go as contiguous ranges, so that odd widths cost nothing.
This file holds what can be chosen, which choices are valid, and a model that orders them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..errors import OptionError
from .device import DeviceInfo
from .fma import (
    C_TYPES,
    MAX_REGISTERS,
    NAMED_BARRIERS,
    SHORT_NAMES,
    Operand,
    Slab,
    ceil_div,
    check_addresses,
    covered_rate,
    excess,
    make_slab,
    parts_of,
    round_up,
    rounded_rows,
    smooth_max,
    widest,
)
from .problem import TsmmProblem, is_complex, itemsize
from .roofline import Ceilings, memory_time, traffic
from .source import render

__all__ = [
    "Config",
    "chain_length",
    "choose",
    "kernel_name",
    "launch",
    "predict",
    "refuse",
    "shared_bytes",
    "source",
    "space",
    "supports",
]

MAX_WIDTH = 64

_STATIC_SHARED_BYTES = 64  # bound on the kernel's own variables

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
class _Plan:
    """All that follows from a problem's shape and a configuration; sizes and offsets in bytes."""

    a: Operand
    b: Operand
    slabs: tuple[Slab, Slab]
    vectors: tuple[int, int]
    c_vector: int
    c_bytes: int
    b_offset: int
    stage_bytes: int
    c_offset: int
    shared_bytes: int


def _shape(problem: TsmmProblem) -> TsmmProblem:
    """Return what source and layout depend on: not the number of rows, nor by how much rows lie apart."""
    return replace(
        problem,
        K=1,
        lda=problem.M if problem.lda == problem.M else problem.M + 1,
        ldb=problem.N if problem.ldb == problem.N else problem.N + 1,
    )


def _operands(problem: TsmmProblem, kt: int, ct: int, spread: int) -> tuple[Operand, Operand]:
    a = Operand.of(problem.M, problem.dtype_a, problem.lda, problem.align_a, kt)
    b = Operand.of(problem.N, problem.dtype, problem.ldb, problem.align_b, ct)
    return a, replace(b, tiles=spread)


@functools.lru_cache(maxsize=16384)
def _slab(
    operand: Operand, rows: int, count: int, spread: int, is_a: bool, interleaved: bool, padded: bool
) -> tuple[Slab, int]:
    """Slab of an operand and bytes of a thread's accesses; all threads of a row read the same columns of A."""

    def lanes(slab: Slab, vector: int) -> Iterator[int]:
        step = max(vector, operand.size) if interleaved else operand.tile * operand.size
        for lane in range(32):
            yield slab.offset(lane // spread * count) + (0 if is_a else lane % spread * step)

    return make_slab(operand, rows, count, lanes, is_padded=padded, is_stored=not is_a)


@functools.lru_cache(maxsize=16384)
def _plan(problem: TsmmProblem, config: Config) -> _Plan:
    """Work out a configuration; the problem is a `_shape`."""
    a, b = _operands(problem, config.kt, config.ct, config.spread)
    how = (config.rows, config.count, config.spread)
    slab_a, vector_a = _slab(a, *how, True, False, config.padded)
    slab_b, vector_b = _slab(b, *how, False, config.interleaved, config.padded)
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
    return _Plan(
        a=a,
        b=b,
        slabs=(slab_a, slab_b),
        vectors=(vector_a, vector_b),
        c_vector=c_vector,
        c_bytes=c_bytes,
        b_offset=b_offset,
        stage_bytes=stage_bytes,
        c_offset=ring,
        shared_bytes=ring + max(c_bytes, slack),
    )


def _registers(problem: TsmmProblem, config: Config) -> int:
    """Return the registers a thread needs, at least nearly."""
    a, b = _operands(problem, config.kt, config.ct, config.spread)
    words = b.real_bytes // 4
    sums = config.unroll * config.ct * b.parts * words
    rows = config.unroll * config.kt * a.size // 4
    held = problem.M if config.coefficients == "registers" else 1
    coefficients = held * config.ct * parts_of(problem.dtype_c) * words
    old = sums if problem.beta != "zero" and not config.staged_out else 0
    return sums + max(rows + coefficients, old) + 44


def shared_bytes(problem: TsmmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the dynamic shared memory of a block: the rings and the coefficients."""
    return _plan(_shape(problem), config).shared_bytes


def supports(problem: TsmmProblem, device: DeviceInfo) -> str | None:
    """Say why this family cannot run a problem, or None when it can."""
    if device.kind != "cuda":
        return f"{device.name} is not a GPU that runs CUDA"
    if not 1 <= problem.M <= MAX_WIDTH or not 1 <= problem.N <= MAX_WIDTH:
        return f"widths are 1 to {MAX_WIDTH}, not {problem.M} and {problem.N}"
    return None


def refuse(problem: TsmmProblem, config: Config, device: DeviceInfo) -> str | None:
    """Say why a configuration is not valid for a problem, or None when it is: the validity rule."""
    reason = supports(problem, device) or _misfit(problem, config)
    if reason:
        return reason
    needed, shared = _registers(problem, config), shared_bytes(problem, config, device)
    return excess(config.threads, config.blocks, needed, shared, _STATIC_SHARED_BYTES, device)


def _misfit(problem: TsmmProblem, config: Config) -> str | None:
    """Options that do not go together."""
    covered = config.spread * config.ct
    most = 0 if config.spread == 1 else config.ct - 1
    if config.spread not in (1, 2, 4, 8, 16, 32) or not 0 <= covered - problem.N <= most:
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


# ---- the space


def space(problem: TsmmProblem, device: DeviceInfo) -> tuple[Config, ...]:
    """Return the valid configurations worth measuring, a few hundred."""
    if supports(problem, device) is not None:
        return ()
    return _valid(_shape(problem), device, _SPACE)


@dataclass(frozen=True, slots=True)
class _Choices:
    """What `_enumerate` combines: tilings of a chunk, warps on a multiprocessor, ways to move rows."""

    tilings: int
    warps: tuple[int, ...]
    ways: tuple[str, ...]
    stages: tuple[int, ...]


_SPACE = _Choices(14, (4, 8, 16, 32, 64), ("direct", "in", "in and out"), (2, 3, 4, 6))
# What the model chooses from: settings whose effect it does not describe are fixed to what measured best.
_SHORT_LIST = _Choices(6, (4, 8, 16), ("in and out",), (2, 3, 4))


@functools.lru_cache(maxsize=1024)
def _valid(problem: TsmmProblem, device: DeviceInfo, choices: _Choices) -> tuple[Config, ...]:
    configs = dict.fromkeys(_enumerate(problem, choices))
    return tuple(config for config in configs if refuse(problem, config, device) is None)


def _enumerate(problem: TsmmProblem, choices: _Choices) -> Iterator[Config]:
    for base in _tilings(problem, choices.tilings):
        a, b = _operands(problem, base.kt, base.ct, base.spread)
        for warps in choices.warps:
            resident = replace(base, teams=min(warps, 8), blocks=max(1, warps // 8))
            for way in choices.ways:
                if way == "direct":
                    yield resident
                    continue
                config = replace(resident, staged_out=way == "in and out")
                gains = any(x.is_linear and x.tiles > 1 and x.row_bytes % 16 for x in (a, b))
                for padded in (False, True) if gains else (False,):
                    for stages in choices.stages:
                        yield replace(config, stages=stages, padded=padded)


def _tilings(problem: TsmmProblem, most: int) -> list[Config]:
    """Return tiles of a thread by the cycles they would take a row, if memory did not limit, the fewest first."""
    unit = max(1, 16 // itemsize(problem.dtype))  # columns of a 16-byte vector
    found = []
    for spread in (1, 2, 4, 8, 16, 32):
        columns = ceil_div(problem.N, spread)
        for ct in sorted({columns, round_up(columns, unit)}):
            for kt in sorted({min(problem.M, max(1, 16 // itemsize(problem.dtype_a))), problem.M}):
                for unroll in (1, 2, 4, 8):
                    for coefficients in ("registers", "shared"):
                        config = _tiling(problem, spread, ct, kt, unroll, coefficients)
                        if _registers(problem, config) <= MAX_REGISTERS and _misfit(problem, config) is None:
                            found.append((_row_cycles(problem, config), config))
    found.sort(key=lambda entry: entry[0])
    return [config for _, config in found[:most]]


def _tiling(
    problem: TsmmProblem, spread: int, ct: int, kt: int, unroll: int, coefficients: Any
) -> Config:
    """Return a configuration with the number of neighbouring rows and the unrolling that suit its tile."""
    row_bytes = problem.M * itemsize(problem.dtype_a) | problem.N * itemsize(problem.dtype)
    is_linear = problem.lda == problem.M or problem.ldb == problem.N
    count = min(unroll, 16 // widest(row_bytes)) if spread == 1 and is_linear else 1
    products = kt * unroll * ct * parts_of(problem.dtype_a) * parts_of(problem.dtype_c)
    tiles = ceil_div(problem.M, kt)
    unroll_k = tiles if coefficients == "registers" or tiles * products <= 256 else max(1, 128 // products)
    return Config(
        spread,
        ct,
        unroll,
        count=count,
        kt=kt,
        coefficients=coefficients,
        interleaved=spread > 1,
        unroll_k=unroll_k,
    )


# ---- the model

_CLOCK_HZ = 1.755e9  # a Hopper GPU under load
_LAUNCH_S = 3.3e-6  # and the first bytes' latency
_SHARED_CYCLES = 30  # shared memory to register
_CHUNK_INSTRUCTIONS = 130  # waiting for a stage and filling it again, besides its copies
_SM_BYTES_A_CYCLE = 64  # from L2 to one multiprocessor
_CEILINGS = Ceilings(4650, 4400, 4240)


def _tile_cycles(problem: TsmmProblem, config: Config) -> tuple[float, float, float]:
    """Return cycles of a quadrant that a warp's rows take when all four are busy: multiply-adds, their issue, loads."""
    a, b = _operands(problem, config.kt, config.ct, config.spread)
    parts_c = parts_of(problem.dtype_c)
    products = config.unroll * config.ct * problem.M * a.parts * parts_c
    # 128 bytes a cycle into the registers of 32 threads, for four quadrants: a cycle of one for a byte a thread.
    loaded = config.unroll * a.row_bytes
    if config.coefficients != "registers":
        loaded += problem.M * config.ct * parts_c * b.real_bytes
    return products * (b.real_bytes // 4), products + loaded / 16, loaded


def _row_cycles(problem: TsmmProblem, config: Config) -> float:
    """Return cycles of a multiprocessor for a row: the busier of arithmetic and loads, and part of the other."""
    fma, issue, loads = _tile_cycles(problem, config)
    return (max(fma, issue, loads) + 0.25 * min(fma, loads) + 30) / (4 * config.rows)


@functools.lru_cache(maxsize=65536)
def _chunk_cycles(problem: TsmmProblem, config: Config) -> tuple[float, float]:
    """Return cycles of a chunk: of a quadrant while its warps take turns, and of a warp by itself."""
    plan = _plan(problem, config)
    fma, issue, loads = _tile_cycles(problem, config)
    out = config.unroll * config.ct * plan.b.size
    overhead = 60.0
    groups = config.lanes // config.spread
    if config.stages:
        overhead = _CHUNK_INSTRUCTIONS + 4 * plan.slabs[0].copies(config.lanes)
    else:
        # Straight from memory, a load takes a cycle for every line of 128 bytes that the warp's rows lie in.
        lines = max(groups * plan.a.row_bytes / 128 if plan.a.is_linear else groups, plan.vectors[0] / 4)
        loads += 4 * config.unroll * plan.a.row_bytes / plan.vectors[0] * lines
        issue *= 1.1
    if config.staged_out:
        overhead += (4 if problem.beta == "zero" else 8) * plan.slabs[1].copies(config.lanes)
        loads += 2 * out
    else:
        lines = max(groups * plan.b.row_bytes / 128 if plan.b.is_linear else groups, plan.vectors[1] / 4)
        loads += 4 * out / plan.vectors[1] * lines
    steps = ceil_div(ceil_div(problem.M, config.kt), config.unroll_k)
    return max(fma, issue, loads) + overhead, max(fma, issue) + overhead + _SHARED_CYCLES * steps


def predict(
    problem: TsmmProblem, config: Config, device: DeviceInfo, ceilings: Ceilings | None = None
) -> float:
    """Return the modelled time in seconds of a valid configuration.

    The slowest of three limits, smoothed where they are close: memory, at the rate that the bytes in flight
    allow (Little's law); the busiest quadrant of a multiprocessor, whose pipes multiply, load and issue; a
    warp's own latencies.
    """
    shape = _shape(problem)
    plan = _plan(shape, config)
    grid = _grid(problem, config, device)
    turns = ceil_div(ceil_div(problem.K, config.rows), grid * config.teams)
    resident, busy = ceil_div(grid, device.multiprocessors), min(grid, device.multiprocessors)
    moved = traffic(problem)
    ahead = config.stages - 0.5 if config.stages else 0.6
    row_bytes = plan.a.row_bytes + (plan.b.row_bytes if problem.beta != "zero" and config.staged_out else 0)
    flight = resident * config.teams * min(ahead, max(turns, 1)) * config.rows * row_bytes
    limit = memory_time(moved, ceilings or _CEILINGS)
    share = min(moved.read_bytes / max(limit, 1e-12) / busy, _SM_BYTES_A_CYCLE * _CLOCK_HZ)
    quadrant, warp = _chunk_cycles(shape, config)
    warps_a_quadrant = ceil_div(resident * config.teams * config.warps, 4)
    return _LAUNCH_S + smooth_max(
        moved.read_bytes / (busy * covered_rate(share, flight)),
        turns * warps_a_quadrant * quadrant / _CLOCK_HZ,
        turns * warp / _CLOCK_HZ,
    )


@functools.lru_cache(maxsize=4096)
def _choose(
    problem: TsmmProblem, device: DeviceInfo, rates: tuple[float, float, float]
) -> Config:
    ceilings = Ceilings(*rates)
    candidates = _valid(_shape(problem), device, _SHORT_LIST) or space(problem, device)
    if not candidates:
        reason = supports(problem, device) or "no configuration fits its shared memory and registers"
        raise OptionError(
            f"tsmm_fma cannot run on {device.name}: {reason}; let dispatch take another family."
        )
    return min(candidates, key=lambda config: predict(problem, config, device, ceilings))


def choose(problem: TsmmProblem, device: DeviceInfo, ceilings: Ceilings | None = None) -> Config:
    """Return the valid configuration with the shortest modelled time.

    Raises
    ------
    OptionError
        If the family does not support the problem on this device.
    """
    known = ceilings or _CEILINGS
    normal = replace(_shape(problem), K=rounded_rows(problem.K))
    return _choose(normal, device, (known.read_gb_s, known.write_gb_s, known.copy_gb_s))


def _grid(problem: TsmmProblem, config: Config, device: DeviceInfo) -> int:
    return max(1, min(device.multiprocessors * config.blocks, ceil_div(problem.K, config.rows)))


# ---- source and launch


def chain_length(problem: TsmmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the longest chain of additions that an element of B goes through, for error bounds."""
    both = is_complex(problem.dtype_a) and is_complex(problem.dtype_c)
    return (2 if both else 1) * problem.M + (2 if problem.alpha != "one" or problem.beta != "zero" else 0)


def kernel_name(problem: TsmmProblem) -> str:
    """Return the kernel's name, as ``tsmm_fma_f64_m8_n8``."""
    kind = SHORT_NAMES[problem.dtype_a]
    if problem.dtype_c != problem.dtype_a:
        kind += "_" + SHORT_NAMES[problem.dtype_c]
    return f"tsmm_fma_{kind}_m{problem.M}_n{problem.N}"


def source(problem: TsmmProblem, config: Config, device: DeviceInfo) -> str:
    """Return the CUDA source of a configuration; it depends neither on K nor on the length of a pitch."""
    plan = _plan(_shape(problem), config)
    parts_c = parts_of(problem.dtype_c)
    types = {
        "RealA": C_TYPES[plan.a.real_bytes],
        "RealC": C_TYPES[itemsize(problem.dtype_c) // parts_c],
        "Real": C_TYPES[plan.b.real_bytes],
    }
    constants: dict[str, bool | int | float] = {
        "M": problem.M,
        "N": problem.N,
        "PA": plan.a.parts,
        "PC": parts_c,
        "ALPHA_ONE": problem.alpha == "one",
        "BETA": ("zero", "one", "general").index(problem.beta),
        "SPREAD": config.spread,
        "CT": config.ct,
        "UNROLL": config.unroll,
        "COUNT": config.count,
        "KT": config.kt,
        "UNROLL_K": config.unroll_k,
        "INTERLEAVED": config.interleaved,
        "COEFFICIENTS": ("registers", "shared", "cache").index(config.coefficients),
        "WARPS": config.warps,
        "TEAMS": config.teams,
        "BLOCKS": config.blocks,
        "STAGES": config.stages,
        "STAGED_OUT": config.staged_out,
    }
    staged = (config.stages > 0, config.staged_out)
    for name, operand, slab, vector, is_staged in zip(
        "AB", (plan.a, plan.b), plan.slabs, plan.vectors, staged, strict=True
    ):
        constants[f"{name}_LINEAR"] = slab.is_linear if is_staged else operand.is_linear
        constants[f"{name}_VECTOR"] = vector
        constants |= slab.constants(name)
    constants |= {
        "C_VECTOR": plan.c_vector,
        "B_OFFSET": plan.b_offset,
        "STAGE_BYTES": plan.stage_bytes,
        "C_OFFSET": plan.c_offset,
    }
    return render(kernel_name(problem), "tsmm_fma.cu", constants, types)


def launch(
    function: Any,
    problem: TsmmProblem,
    config: Config,
    device: DeviceInfo,
    A_ptr: int,
    C_ptr: int,
    B_ptr: int,
    alpha: complex,
    beta: complex,
) -> None:
    """Start the kernel on CuPy's current stream.

    Parameters
    ----------
    function : cupy.cuda.function.Function
        What `compile.function` made of `source`, with `shared_bytes` of dynamic shared memory.
    problem, config, device
        What `function` was made for; K and pitches may differ from launch to launch.
    A_ptr, C_ptr, B_ptr : int
        Device addresses; C is contiguous.
    alpha, beta : complex
        The factors, in the problem's classes.

    Raises
    ------
    LayoutError
        If an address is less aligned than the problem says.
    """
    if problem.K == 0:
        return
    check_addresses("tsmm", ("A", A_ptr, problem.align_a), ("B", B_ptr, problem.align_b))
    a, b = complex(alpha), complex(beta)
    arguments = (
        *(A_ptr, C_ptr, B_ptr, problem.K, problem.lda, problem.ldb),
        *(a.real, a.imag, b.real, b.imag),
    )
    grid = _grid(problem, config, device)
    function((grid,), (config.threads,), arguments, shared_mem=shared_bytes(problem, config, device))
