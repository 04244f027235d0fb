"""SpMMV on CSR matrices: Y = alpha (S - shift I) X + beta Y for row-major blocks of any width and type.

The kernel (``cuda/spmmv_csr.cu`` says how it works) streams the matrix through shared memory and
gathers rows of X, lanes running along columns; long rows go to ``cuda/spmmv_csr_long.cu``. This file holds
what can be chosen, which choices are valid, and a model that orders them.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from .csr_plan import TASK_ENTRIES, Plan, Units, address, prepare
from .device import DeviceInfo
from .problem import MAX_ALIGNMENT, SpmmvProblem, is_complex, itemsize
from .roofline import Ceilings, memory_time, traffic
from .source import render

__all__ = [
    "Config",
    "Kernels",
    "Part",
    "chain_length",
    "choose",
    "kernel_name",
    "launch",
    "parts",
    "predict",
    "prepare",
    "refuse",
    "source",
    "space",
    "supports",
    "workspace_bytes",
]

Part = Literal["rows", "tasks", "sums"]

_WARP = 32
_MAX_ROWS = 32  # of a unit: a lane each
_SLOT_ALIGN = 4  # entries, as in the kernel
_STATIC_SHARED_LIMIT = 48 << 10
_RESERVED_SHARED_BYTES = 1024  # the driver's share of every block
_L1_LEAST_BYTES = 32 << 10  # what shared memory must leave to gathers
_LEAST_WARPS = 4  # of a block: one a quadrant of a multiprocessor
_LONG_WARPS = 8  # at most, of a block that sums up a part of a long row
_MAX_PITCH = 2**31  # bytes
_LINE = 128  # bytes of a cache line, and of what L1 delivers in a cycle


@dataclass(frozen=True, slots=True)
class Config:
    """One way to run the kernel.

    Attributes
    ----------
    lanes, vectors, vector : int
        Lanes that share the columns of a row, packs of columns each has, and columns of a pack.
    split : int
        Parts that the entries of a row are dealt out to, a power of two.
    unroll : int
        Entries of a part whose rows of X are in flight.
    rows, entries : int
        Most rows and entries of a unit.
    long_row : int
        Rows with more entries are summed up by whole blocks.
    stages : int
        Units of a warp in shared memory.
    warps, blocks : int
        Warps of a block, blocks of a multiprocessor.
    passes : int
        Consecutive units of a warp before it moves on.
    prefetch : bool
        Whether rows of X are brought to L2 a unit ahead.
    streaming : bool
        Whether the matrix and Y are the first to leave L2.
    aligned_x, aligned_y : bool
        Whether packs of X and Y start at multiples of their size.
    """

    lanes: int
    vectors: int
    vector: int
    split: int = 1
    unroll: int = 4
    rows: int = 32
    entries: int = 256
    long_row: int = 128
    stages: int = 2
    warps: int = 8
    blocks: int = 3
    passes: int = 4
    prefetch: bool = False
    streaming: bool = True
    aligned_x: bool = True
    aligned_y: bool = True

    @property
    def tile(self) -> int:
        """Columns that a block covers."""
        return self.lanes * self.vectors * self.vector

    @property
    def groups(self) -> int:
        """Rows that a warp works on at a time."""
        return _WARP // (self.lanes * self.split)


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)


def _architecture(device: DeviceInfo) -> int:
    return int("".join(filter(str.isdigit, device.architecture)) or 0)


def _row_entries(problem: SpmmvProblem) -> float:
    """Entries of a row, on average."""
    return problem.nnz / max(1, problem.n_rows)


def _slot_bytes(problem: SpmmvProblem, config: Config) -> int:
    slot = (config.entries + 2 * (_SLOT_ALIGN - 1)) // _SLOT_ALIGN * _SLOT_ALIGN
    return slot * (itemsize(problem.dtype_matrix) + problem.index_bytes)


def _shared_bytes(problem: SpmmvProblem, config: Config) -> int:
    return config.warps * config.stages * _slot_bytes(problem, config)


def _long_warps(problem: SpmmvProblem, config: Config) -> int:
    """Warps of a block that sums up a part of a long row: the sums of all its lanes lie in shared memory."""
    warp_bytes = _WARP * config.vectors * config.vector * itemsize(problem.dtype)
    return max(1, min(_LONG_WARPS, (_STATIC_SHARED_LIMIT - 1024) // warp_bytes))


def _registers(problem: SpmmvProblem, config: Config) -> int:
    """Return the registers a thread needs, at least nearly."""
    pack_x = config.vectors * config.vector * itemsize(problem.dtype_x) // 4
    pack_y = config.vectors * config.vector * itemsize(problem.dtype) // 4
    fused = (pack_x if problem.shift != "none" else 0) + (pack_y if problem.beta != "zero" else 0)
    wide = 10 if problem.index_bytes == 8 else 0
    ahead = 4 * (config.stages - 2) + (4 if config.prefetch else 0)
    converted = pack_y // 4 if problem.dtype_x != problem.dtype else 0
    products = 8 if problem.dtype_matrix == problem.dtype_x == "complex128" else 0
    return config.unroll * pack_x + pack_y + fused + wide + ahead + converted + products + 40


def _register_limit(config: Config, device: DeviceInfo) -> int:
    """Return the registers a thread may have: a quadrant of a multiprocessor deals out a quarter of them."""
    warps_a_quadrant = _ceil(config.warps * config.blocks, 4)
    return min(255, device.registers_per_multiprocessor // 4 // warps_a_quadrant // _WARP // 8 * 8)


def supports(problem: SpmmvProblem, device: DeviceInfo) -> str | None:
    """Say why this family cannot run a problem, or None when it can."""
    if device.kind != "cuda" or _architecture(device) < 80:
        return f"{device.name} has no asynchronous copies to shared memory"
    if min(problem.n_rows, problem.width) < 1:
        return "has no rows or columns to multiply"
    pitch = max(problem.ldx * itemsize(problem.dtype_x), problem.ldy * itemsize(problem.dtype))
    if pitch >= _MAX_PITCH:
        return f"rows are {pitch} bytes apart, at most {_MAX_PITCH - 1} are possible"
    if problem.index_bytes == 4 and problem.n_rows > 2**31 - 2**24:
        return f"{problem.n_rows} rows need 64-bit indices"
    return None


def refuse(
    problem: SpmmvProblem,
    config: Config,
    device: DeviceInfo,
    align_x: int = MAX_ALIGNMENT,
    align_y: int = MAX_ALIGNMENT,
) -> str | None:
    """Say why a configuration is not valid for a problem, or None when it is: the validity rule.

    `align_x` and `align_y` are the bytes, at most 16, that base address and row pitch of X and Y share.
    """
    size_x = config.vector * itemsize(problem.dtype_x)
    size_y = min(16, config.vector * itemsize(problem.dtype))
    if config.lanes * config.split > _WARP or config.split & (config.split - 1):
        return f"{config.lanes} lanes and {config.split} parts do not share a warp"
    if problem.width % config.vector or size_x > 16:
        return f"packs of {config.vector} do not make up rows of {problem.width} columns"
    if config.tile - config.lanes * config.vector >= problem.width and config.vectors > 1:
        return f"{config.vectors} packs a lane for {problem.width} columns"
    if (config.aligned_x and align_x % size_x) or (config.aligned_y and align_y % size_y):
        return f"operands are aligned to {align_x} and {align_y} bytes, packs have {size_x} and {size_y}"
    if not config.groups <= config.rows <= _MAX_ROWS or config.rows % config.groups:
        return f"{config.rows} rows for {config.groups} groups of lanes"
    if not config.unroll * config.split <= config.long_row <= config.entries < 2**16 - 8:
        return f"long rows of {config.long_row} entries for units of {config.entries}"
    if config.stages < (3 if config.prefetch else 2):
        return f"{config.stages} stages are too few"
    if (
        _WARP * config.warps > 1024
        or _WARP * config.warps * config.blocks > device.threads_per_multiprocessor
    ):
        return f"{config.blocks} blocks of {config.warps} warps on a multiprocessor"
    needed, limit = _registers(problem, config), _register_limit(config, device)
    if needed > limit:
        return f"needs {needed} registers of {limit}"
    shared = _shared_bytes(problem, config)
    if shared > _STATIC_SHARED_LIMIT:
        return f"needs {shared} bytes of shared memory of {_STATIC_SHARED_LIMIT}"
    room = device.shared_bytes_per_multiprocessor - _L1_LEAST_BYTES
    if config.blocks * (shared + _RESERVED_SHARED_BYTES) > room:
        return f"{config.blocks} blocks of {shared} bytes of shared memory leave no room for gathers"
    return None


@dataclass(frozen=True, slots=True)
class _Choices:
    """What `_enumerate` combines."""

    most_vectors: int
    unrolls: int
    unit_entries: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...]
    ahead: tuple[tuple[int, bool], ...]
    passes: tuple[int, ...]
    streaming: tuple[bool, ...]


_SPACE = _Choices(
    most_vectors=4,
    unrolls=2,
    unit_entries=(48, 96, 224),
    blocks=((4, 2), (4, 4), (4, 7), (4, 10), (8, 2), (8, 3), (8, 4), (14, 2)),
    ahead=((2, False), (3, False), (3, True)),
    passes=(1, 4),
    streaming=(True, False),
)
# What the model chooses from: settings whose effect it does not describe are fixed.
_SHORT_LIST = _Choices(
    most_vectors=4,
    unrolls=2,
    unit_entries=(64, 224),
    blocks=((4, 2), (4, 4), (4, 7), (8, 4), (4, 10)),
    ahead=((2, False),),
    passes=(4,),
    streaming=(True,),
)


def space(
    problem: SpmmvProblem, device: DeviceInfo, align_x: int = MAX_ALIGNMENT, align_y: int = MAX_ALIGNMENT
) -> Iterator[Config]:
    """Yield the configurations worth measuring, some of them not valid."""
    return _enumerate(problem, _SPACE, align_x, align_y)


def _enumerate(problem: SpmmvProblem, choices: _Choices, align_x: int, align_y: int) -> Iterator[Config]:
    average = _row_entries(problem)
    for base in _mappings(problem, choices.most_vectors, align_x, align_y):
        for split in _splits(base.lanes, average):
            dealt = replace(base, split=split)
            for rows, entries, long_row in _unit_shapes(problem, dealt, choices.unit_entries):
                for unroll, (warps, blocks), (stages, prefetch), passes, streaming in itertools.product(
                    _unrolls(average / split, choices.unrolls),
                    choices.blocks,
                    choices.ahead,
                    choices.passes,
                    choices.streaming,
                ):
                    yield replace(
                        dealt,
                        unroll=unroll,
                        rows=rows,
                        entries=entries,
                        long_row=max(long_row, unroll * split),
                        stages=stages,
                        warps=warps,
                        blocks=blocks,
                        passes=passes,
                        prefetch=prefetch,
                        streaming=streaming,
                    )


def _mappings(problem: SpmmvProblem, most_vectors: int, align_x: int, align_y: int) -> Iterator[Config]:
    """Yield ways to share the columns of a row between lanes."""
    size = itemsize(problem.dtype_x)
    vector = max(v for v in (1, 2, 4) if v == 1 or (problem.width % v == 0 and v * size <= align_x))
    packs = problem.width // vector
    aligned_x = align_x % (vector * size) == 0
    aligned_y = align_y % min(16, vector * itemsize(problem.dtype)) == 0
    seen = set()
    for tiles in (1, 2) if packs <= _WARP * most_vectors else (_ceil(packs, _WARP), _ceil(packs, 2 * _WARP)):
        for vectors in range(1, most_vectors + 1):
            lanes = _ceil(_ceil(packs, tiles), vectors)
            narrow = tiles > 1 and lanes * vectors * vector * size < 128  # a line of X and more a row
            if (
                lanes <= _WARP
                and (vectors - 1) * lanes < packs
                and not narrow
                and (lanes, vectors) not in seen
            ):
                seen.add((lanes, vectors))
                yield Config(lanes, vectors, vector, aligned_x=aligned_x, aligned_y=aligned_y)


def _splits(lanes: int, average: float) -> list[int]:
    """Parts of a row's entries: more than one only where each has several entries."""
    return [s for s in (1, 2, 4, 8, 16, 32) if lanes * s <= _WARP and (s == 1 or average >= 4 * s)]


def _unit_shapes(
    problem: SpmmvProblem, config: Config, targets: tuple[int, ...]
) -> Iterator[tuple[int, int, int]]:
    """Yield rows, entries and the length of long rows for units of about so many entries."""
    average = _row_entries(problem)
    most = (
        _STATIC_SHARED_LIMIT // (_LEAST_WARPS * 2 * (itemsize(problem.dtype_matrix) + problem.index_bytes))
        - 8
    )
    long_row = min(most, max(32, _ceil(round(4 * average), 8) * 8) * config.split)
    seen = set()
    for target in targets:
        steps = max(1, round(target / max(average, 1) / config.groups))
        rows = min(steps, _MAX_ROWS // config.groups) * config.groups
        if rows not in seen:
            seen.add(rows)
            # An eighth above the average keeps most units of a nearly regular matrix whole.
            entries = min(most, _ceil(math.ceil(rows * average * 1.125) + 8, 4) * 4)
            yield rows, max(entries, long_row), long_row


def _unrolls(entries: float, count: int) -> list[int]:
    """Numbers of entries in flight that divide rows of the average length well, 8 at most."""
    entries = max(1.0, entries)
    found: list[int] = []
    for most in (8, 5, 3):
        trips = math.ceil(entries / most)
        unroll = max(1, min(most, math.ceil(entries / trips)))
        if unroll not in found:
            found.append(unroll)
    return found[:count]


# ---- the model

_CLOCK_HZ = 1.755e9  # a Hopper GPU under load
_L2_BYTES_A_SECOND = 9.7e12
_L1_MISSES = (
    0.5  # share of gathers that L1 does not serve; half is a guess between stencils and random graphs
)
_GATHER_S = 0.9e-6  # of a row of X under load, partly from memory
_STEP_S = 0.15e-6  # around the gathers of one step: bounds, sums, stores
_LAUNCH_S = 2.5e-6


def predict(
    problem: SpmmvProblem, config: Config, device: DeviceInfo, ceilings: Ceilings | None = None
) -> float:
    """Return the modelled time in seconds of a valid configuration.

    The slowest of five resources, smoothed where two are close: memory (every operand once), L2 (the rows
    of X that L1 does not serve), the instructions of the gathers, the L1 pipe, and the latency that a warp's
    gathers leave uncovered.
    """
    rates = ceilings or Ceilings(4600.0, 3300.0, 4200.0)
    average = _row_entries(problem)
    tiles = _ceil(problem.width, config.tile)
    trips = max(1, math.ceil(average / (config.split * config.unroll)))
    steps = problem.n_rows / config.groups * tiles  # of all warps
    steps_a_unit = config.rows // config.groups
    units = steps / steps_a_unit

    size_s, size_x = itemsize(problem.dtype_matrix), itemsize(problem.dtype_x)
    slot = 9 + config.vectors * (2 + config.vector * _multiply_cycles(problem))
    copies = _ceil(_slot_bytes(problem, config), 16 * _WARP)
    instructions = steps * (trips * config.unroll * slot + 40 + 14 * config.vectors) + units * (
        90 + 12 * copies
    )
    waves = config.vectors * _gather_cycles(problem, config) + 1 + max(1, size_s // 8)
    shared = steps * (average / config.split * waves + 6) + units * 2 * copies * 4

    matrix = traffic(problem)
    matrix_bytes = problem.nnz * (size_s + problem.index_bytes)
    again = (tiles - 1) * matrix_bytes / (rates.read_gb_s * 1e9)
    gathers = problem.nnz * problem.width * size_x * _L1_MISSES + tiles * matrix_bytes + matrix.write_bytes
    resident = config.warps * config.blocks * device.multiprocessors
    rounds = max(1.0, units / resident)
    latency = rounds * steps_a_unit * (trips * _GATHER_S + _STEP_S)
    cycles = _CLOCK_HZ * device.multiprocessors
    times = (
        memory_time(matrix, rates) + again,
        gathers / _L2_BYTES_A_SECOND,
        instructions / 4 / cycles,
        shared / cycles,
        latency,
    )
    slowest = max(times)
    return float(_LAUNCH_S + slowest * sum((time / slowest) ** 8 for time in times) ** (1 / 8))


def _multiply_cycles(problem: SpmmvProblem) -> int:
    """Issue slots of multiplying an entry by an element of X; double precision takes two a product."""
    products = (2 if is_complex(problem.dtype_matrix) else 1) * (2 if is_complex(problem.dtype_x) else 1)
    return products * (1 if problem.dtype in ("float32", "complex64") else 2)


def _gather_cycles(problem: SpmmvProblem, config: Config) -> float:
    """Cycles of the L1 pipe that a warp's load of a pack a lane takes: 128 bytes or one line each.

    Rows that neighbouring groups gather may be neighbours too and share lines, which is counted half:
    stencils do, graphs do not.
    """
    row = config.lanes * config.vector * itemsize(problem.dtype_x)
    rows = config.groups * config.split
    apart = rows * _ceil(row, _LINE)
    together = max(1.0, rows * row / _LINE) if config.vectors == 1 else apart
    return (apart + together) / 2


@functools.lru_cache(maxsize=4096)
def _choose(
    problem: SpmmvProblem, device: DeviceInfo, align_x: int, align_y: int, rates: tuple[float, float, float]
) -> Config:
    ceilings = Ceilings(*rates)
    configs = dict.fromkeys(_enumerate(problem, _SHORT_LIST, align_x, align_y))
    valid = [config for config in configs if refuse(problem, config, device, align_x, align_y) is None]
    return min(valid, key=lambda config: predict(problem, config, device, ceilings))


def choose(
    problem: SpmmvProblem,
    device: DeviceInfo,
    ceilings: Ceilings | None = None,
    align_x: int = MAX_ALIGNMENT,
    align_y: int = MAX_ALIGNMENT,
) -> Config:
    """Return the valid configuration with the shortest modelled time; the problem must be supported."""
    rates = (
        (ceilings.read_gb_s, ceilings.write_gb_s, ceilings.copy_gb_s)
        if ceilings
        else (4600.0, 3300.0, 4200.0)
    )
    return _choose(problem, device, align_x, align_y, rates)


# ---- source and launch

_SHORT = {"float32": "f32", "float64": "f64", "complex64": "c64", "complex128": "c128"}
_C_TYPES = {"float32": "float", "float64": "double", "complex64": "float", "complex128": "double"}
_SHIFT = {"none": 0, "scalar": 1, "column": 2}


def chain_length(problem: SpmmvProblem, config: Config) -> int:
    """Return the longest chain of additions that an element of Y goes through, for error bounds."""
    parts = 2 if is_complex(problem.dtype_matrix) and is_complex(problem.dtype_x) else 1
    chain = _ceil(min(config.long_row, max(1, problem.nnz)), config.split) + config.split.bit_length() - 1
    if problem.nnz > config.long_row:
        groups = _long_warps(problem, config) * (_WARP // config.lanes)
        tasks = _ceil(problem.nnz, TASK_ENTRIES)
        tree = groups.bit_length()
        chain = max(chain, _ceil(TASK_ENTRIES, groups) + tree + _ceil(tasks, groups) + tree)
    return parts * chain + 3


def kernel_name(problem: SpmmvProblem, part: Part = "rows") -> str:
    """Return a kernel's name, as ``spmmv_csr_f64_w16``."""
    types = dict.fromkeys((_SHORT[problem.dtype_matrix], _SHORT[problem.dtype_x]))
    suffix = "" if part == "rows" else f"_{part}"
    return f"spmmv_csr_{'_'.join(types)}_w{problem.width}{suffix}"


def source(problem: SpmmvProblem, config: Config, part: Part = "rows") -> str:
    """Return the CUDA source of one kernel of a configuration.

    It depends on the width, the types and the classes of the factors alone. ``"tasks"`` and ``"sums"`` are
    for matrices with long rows, see `parts`.
    """
    constants: dict[str, bool | int | float] = {
        "WIDTH": problem.width,
        "S_COMPLEX": is_complex(problem.dtype_matrix),
        "X_COMPLEX": is_complex(problem.dtype_x),
        "ALPHA_ONE": problem.alpha == "one",
        "BETA_ZERO": problem.beta == "zero",
        "BETA_ONE": problem.beta == "one",
        "SHIFT": _SHIFT[problem.shift],
        "X_ALIGNED": config.aligned_x,
        "Y_ALIGNED": config.aligned_y,
        "LANES": config.lanes,
        "VECTORS": config.vectors,
        "VECTOR": config.vector,
        "STREAMING": config.streaming,
    }
    if part == "rows":
        constants |= {
            "SPLIT": config.split,
            "UNROLL": config.unroll,
            "ROWS": config.rows,
            "ENTRIES": config.entries,
            "LONG_ROW": config.long_row,
            "STAGES": config.stages,
            "WARPS": config.warps,
            "BLOCKS": config.blocks,
            "PREFETCH": config.prefetch,
        }
    else:
        unroll, warps = max(1, 4 // config.vectors), _long_warps(problem, config)
        constants |= {"UNROLL": unroll, "WARPS": warps, "SUMS": part == "sums"}
    types = {
        "SReal": _C_TYPES[problem.dtype_matrix],
        "XReal": _C_TYPES[problem.dtype_x],
        "YReal": _C_TYPES[problem.dtype],
        "Index": "int" if problem.index_bytes == 4 else "long long",
    }
    body = "spmmv_csr.cu" if part == "rows" else "spmmv_csr_long.cu"
    return render(kernel_name(problem, part), body, constants, types)


@dataclass(frozen=True, slots=True)
class Kernels:
    """The loaded kernels of a configuration; those that the matrix has no use for are None, see `parts`."""

    rows: Any
    tasks: Any = None
    sums: Any = None


def _units(config: Config, plan: Plan) -> Units:
    return plan.units(config.rows, config.entries, config.long_row)


def parts(config: Config, plan: Plan) -> tuple[Part, ...]:
    """Return which kernels a matrix needs."""
    units = _units(config, plan)
    wanted: list[Part] = ["rows"]
    wanted += ["tasks"] if units.tasks is not None else []
    wanted += ["sums"] if units.sums is not None else []
    return tuple(wanted)


def workspace_bytes(problem: SpmmvProblem, config: Config, plan: Plan) -> int:
    """Return the bytes of scratch memory a launch needs, aligned to 16 bytes; most matrices need none."""
    return _units(config, plan).slots * problem.width * itemsize(problem.dtype)


def launch(
    kernels: Kernels,
    problem: SpmmvProblem,
    config: Config,
    device: DeviceInfo,
    plan: Plan,
    X_ptr: int,
    Y_ptr: int,
    alpha: complex = 1,
    beta: complex = 0,
    shift: complex = 0,
    shifts_ptr: int = 0,
    workspace_ptr: int = 0,
) -> None:
    """Start the kernels on CuPy's current stream.

    Parameters
    ----------
    kernels : Kernels
        What `compile.function` made of `source`, for the `parts` of this matrix.
    problem, config, device
        What they were made for; n_rows, nnz, ldx and ldy may differ from launch to launch.
    plan : Plan
        The matrix, its indices of `problem.index_bytes`.
    X_ptr, Y_ptr : int
        Device addresses, aligned as the configuration says.
    alpha, beta, shift : complex
        The factors, in the problem's classes.
    shifts_ptr : int
        Device address of one shift a column, of Y's type and contiguous, for ``shift="column"``.
    workspace_ptr : int
        Device address of `workspace_bytes` bytes that belong to this stream.
    """
    units = _units(config, plan)
    tiles = _ceil(problem.width, config.tile)
    most = device.multiprocessors * config.blocks
    passes = max(1, min(config.passes, units.n_units // (config.warps * most)))
    grid = min(most, _ceil(units.n_units, config.warps * passes))
    index = np.int32 if problem.index_bytes == 4 else np.int64
    entries = (address(plan.indices), address(plan.data))
    blocks = (
        X_ptr,
        problem.ldx,
        Y_ptr,
        problem.ldy,
        complex(alpha),
        complex(beta),
        complex(shift),
        shifts_ptr,
    )
    kernels.rows(
        (grid, tiles),
        (_WARP * config.warps,),
        (
            *(address(plan.indptr), *entries, index(plan.n_rows)),
            *(address(units.cuts), index(units.n_units), np.int32(passes)),
            *blocks,
        ),
    )
    for kernel, tasks in ((kernels.tasks, units.tasks), (kernels.sums, units.sums)):
        if tasks is not None:
            arguments = (address(tasks), *entries, workspace_ptr, *blocks)
            kernel((len(tasks), tiles), (_WARP * _long_warps(problem, config),), arguments)
