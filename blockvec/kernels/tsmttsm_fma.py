"""TSMTTSM by ordinary multiply-adds: C = alpha A^H B + beta C, or A^T B, for all types, widths, pitches and alignments.

The kernel (``cuda/tsmttsm_fma.cu``) has the thread mappings of Ernst et al., "Performance engineering for real and
complex tall & skinny matrix multiplication kernels on GPUs" (2021), section "TSMTTSM", and beyond the paper a
ring in shared memory that feeds them. This file holds what can be chosen, which choices are valid, and a
model that orders them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..errors import LayoutError, OptionError
from .device import DeviceInfo
from .problem import TsmttsmProblem, is_complex, itemsize
from .roofline import Ceilings
from .source import render
from .staging import Slab, make_slab, widest

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
    "workspace_bytes",
]

MAX_WIDTH = 64

_GRID_HEADER_BYTES = 128  # counters at the head of the workspace, as in cuda/reduce.cuh
_MAX_SUMS = 16  # threads that share one element's sum over the blocks, as there
_STATIC_SHARED_BYTES = 256  # bound on the kernel's own variables
_RESERVED_SHARED_BYTES = 1024  # the driver's share of every block
_MAX_REGISTERS = 255
_NAMED_BARRIERS = 14  # left for teams of several warps
_SHORT = {"float32": "f32", "float64": "f64", "complex64": "c64", "complex128": "c128"}
_C_TYPES = {4: "float", 8: "double"}

Sums = Literal["plain", "double", "registers", "shared"]
Reduction = Literal["partials", "blocks", "threads"]


@dataclass(frozen=True, slots=True)
class Config:
    """One way to run the kernel.

    Attributes
    ----------
    tm, tn : int
        Tile of C that a thread accumulates.
    count : int
        Consecutive rows that a thread takes at a time.
    steps : int
        Sets of rows in a chunk: loaded together from memory, or staged together.
    stages : int
        Stages of a team's ring; 0 to load straight from memory.
    warps : int
        Warps of a team, whose threads share the tiles of a row.
    teams : int
        Teams of a block.
    blocks : int
        Blocks resident on a multiprocessor.
    leapfrog : bool
        Whether a step's operands are loaded during the step before.
    interleaved : bool
        Whether columns are dealt out to tiles in turn ("transposed"), not in blocks.
    unroll : int
        Steps unrolled where they are staged.
    sums : str
        How long single precision chains are kept short: ``"plain"`` not at all (double precision problems), ``"double"``:
        all in double precision, ``"registers"`` or ``"shared"``: chains are added to double precision sums kept there.
    reduction : str
        ``"partials"``: over the blocks in a fixed order; ``"blocks"``, ``"threads"``: by atomic additions of each.
    padded : bool
        Stage contiguous rows one by one, into aligned slabs.
    """

    tm: int
    tn: int
    count: int = 1
    steps: int = 1
    stages: int = 0
    warps: int = 1
    teams: int = 8
    blocks: int = 1
    leapfrog: bool = False
    interleaved: bool = False
    unroll: int = 1
    sums: Sums = "plain"
    reduction: Reduction = "partials"
    padded: bool = False

    @property
    def lanes(self) -> int:
        """Threads of a team."""
        return 32 * self.warps

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.teams


_CHAIN_ROWS = {"registers": 128, "shared": 1024}  # rows that a thread adds up in single precision


@dataclass(frozen=True, slots=True)
class _Operand:
    """What the kernel must know of A or B."""

    width: int
    parts: int
    real_bytes: int
    is_linear: bool
    align: int
    tile: int
    tiles: int

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.parts * self.real_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * self.size


@dataclass(frozen=True, slots=True)
class _Plan:
    """All that follows from a problem's shape and a configuration."""

    operands: tuple[_Operand, _Operand]
    slabs: tuple[Slab, Slab]
    vectors: tuple[int, int]
    tiles: int
    groups: int
    rows: int
    triangle: bool
    b_offset: int
    stage_bytes: int
    passed: int
    product_offset: int
    scratch_offset: int
    shared_bytes: int
    chain: int


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)


def _up(value: int, unit: int) -> int:
    return _ceil(value, unit) * unit


def _parts(dtype: str) -> int:
    return 2 if is_complex(dtype) else 1


def _is_single(problem: TsmttsmProblem) -> bool:
    return problem.dtype in ("float32", "complex64")


def _shape(problem: TsmttsmProblem) -> TsmttsmProblem:
    """What source and layout depend on: not the number of rows, nor by how much rows lie apart."""
    return replace(
        problem,
        K=1,
        lda=problem.M if problem.lda == problem.M else problem.M + 1,
        ldb=problem.N if problem.ldb == problem.N else problem.N + 1,
    )


def _operands(problem: TsmttsmProblem, config: Config) -> tuple[_Operand, _Operand]:
    def operand(width: int, dtype: str, ld: int, align: int, tile: int) -> _Operand:
        parts = _parts(dtype)
        return _Operand(width, parts, itemsize(dtype) // parts, ld == width, align, tile, _ceil(width, tile))

    M, N = problem.M, problem.N
    a = operand(M, problem.dtype_a, problem.lda, problem.align_a, config.tm)
    if problem.same:
        return a, replace(a, tile=config.tn, tiles=_ceil(N, config.tn))
    return a, operand(N, problem.dtype_b, problem.ldb, problem.align_b, config.tn)


def _direct_vector(operand: _Operand, count: int) -> int:
    """Bytes of a thread's loads from memory; columns past the width are not touched."""
    if operand.tiles == 1 and operand.is_linear:
        return widest(operand.align, count * operand.row_bytes)
    return widest(operand.align, operand.row_bytes, operand.tile * operand.size)


def _staged_vector(operand: _Operand, config: Config, is_linear: bool) -> Any:
    """Bytes of a thread's loads from a slab, by its pitch."""

    def vector(pitch: int) -> int:
        if operand.tiles == 1:
            return widest(config.count * operand.row_bytes) if is_linear else 16
        return widest(pitch, operand.tile * operand.size)

    return vector


@functools.lru_cache(maxsize=8192)
def _slab(operand: _Operand, config: Config, rows: int, groups: int, others: int, first: bool) -> tuple[Slab, int]:
    """Slab of an operand and bytes of a thread's loads; `others` tiles of the other operand share each of its."""
    is_linear = operand.is_linear and not config.padded
    vector = _staged_vector(operand, config, is_linear)

    def lanes(slab: Slab) -> Iterator[int]:
        step = max(vector(slab.pitch), operand.size) if config.interleaved else operand.tile * operand.size
        for lane in range(32):
            number = lane % (operand.tiles * others)
            tile = number % operand.tiles if first else number // others
            group = min(lane // (operand.tiles * others), groups - 1)
            yield slab.offset(group * config.count) + tile * step

    # The alignment of contiguous rows is that of their first one.
    align = operand.align if is_linear or not operand.is_linear else widest(operand.align, operand.row_bytes)
    return make_slab(rows, operand.row_bytes, is_linear, align, config.count, vector, lanes)


@functools.lru_cache(maxsize=8192)
def _plan(problem: TsmttsmProblem, config: Config) -> _Plan:
    """Work out a configuration; the problem is a `_shape`."""
    a, b = operands = _operands(problem, config)
    parts = max(a.parts, b.parts)
    triangle = problem.same and config.tm == config.tn and not config.interleaved
    tiles = a.tiles * (a.tiles + 1) // 2 if triangle else a.tiles * b.tiles
    groups = max(1, config.lanes // tiles)
    rows = config.steps * groups * config.count
    slabs_and_vectors = (
        _slab(a, config, rows, groups, b.tiles, True),
        _slab(b, config, rows, groups, a.tiles, False),
    )
    slabs = slabs_and_vectors[0][0], slabs_and_vectors[1][0]
    vectors = slabs_and_vectors[0][1], slabs_and_vectors[1][1]
    if config.stages == 0:
        vectors = _direct_vector(a, config.count), _direct_vector(b, config.count)
    if problem.same:
        slabs = slabs[0], slabs[0]
        vectors = min(vectors), min(vectors)
    b_offset = _up(slabs[0].size, 128)
    stage_bytes = _up(b_offset + (0 if problem.same else slabs[1].size), 128) if config.stages else 0
    ring = config.teams * config.stages * stage_bytes
    slack = max(operand.tiles * operand.tile * operand.size for operand in operands) + 16 if config.stages else 0

    values = config.tm * config.tn * parts
    pitch = 8 * tiles * (groups * config.teams | 1)  # bytes of one value of all threads
    passed = min(values, max(1, max(ring, 24 << 10) // pitch))
    passed = _ceil(values, _ceil(values, passed))  # passes of equal length
    product = problem.M * problem.N * parts * 8
    product_offset = ring if config.sums == "shared" else 0
    scratch_offset = _up(product_offset + product, 128)
    scratch = max(passed * pitch, config.threads * 8)
    return _Plan(
        operands=operands,
        slabs=slabs,
        vectors=vectors,
        tiles=tiles,
        groups=groups,
        rows=rows,
        triangle=triangle,
        b_offset=0 if problem.same else b_offset,
        stage_bytes=stage_bytes,
        passed=passed,
        product_offset=product_offset,
        scratch_offset=scratch_offset,
        shared_bytes=max(ring + slack, scratch_offset + scratch),
        chain=max(1, _CHAIN_ROWS[config.sums] // (config.steps * config.count)) if config.sums in _CHAIN_ROWS else 0,
    )


def _loads(operand: _Operand, count: int, vector: int, is_linear: bool) -> int:
    """Load instructions of a thread for `count` rows of an operand."""
    if operand.tiles == 1 and is_linear:
        return count * operand.row_bytes // vector
    return count * _ceil(operand.tile * operand.size, vector)


def _registers(problem: TsmttsmProblem, config: Config) -> int:
    """Registers a thread needs, at least nearly; a few per cent above what the compiler takes."""
    a, b = _operands(problem, config)
    parts = max(a.parts, b.parts)
    shared = problem.same and a.tiles * b.tiles == 1
    values = config.tm * (config.tm + 1) // 2 if shared else config.tm * config.tn
    words = 2 if not _is_single(problem) or config.sums == "double" else 1
    sums = values * parts * (words + (2 if config.sums == "registers" else 0))
    stored = config.tm * a.size // 4 + (0 if shared else config.tn * b.size // 4)
    held = stored * config.count * (config.steps if config.stages == 0 else 1) * (2 if config.leapfrog else 1)
    converted = (config.tm * a.parts + config.tn * b.parts) * words if words * 4 != min(a.real_bytes, b.real_bytes) else 0
    return sums + held + converted + _BASE_REGISTERS


_BASE_REGISTERS = 36


def _register_limit(config: Config, device: DeviceInfo) -> int:
    """Registers a thread may have: each quadrant of a multiprocessor deals out a quarter of them by whole warps."""
    warps_a_quadrant = _ceil(config.warps * config.teams * config.blocks, 4)
    limit = device.registers_per_multiprocessor // 4 // warps_a_quadrant // 32 // 8 * 8
    return min(_MAX_REGISTERS, limit)


def shared_bytes(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the dynamic shared memory of a block: the rings, and the sums of tiles over the block."""
    return _plan(_shape(problem), config).shared_bytes


def supports(problem: TsmttsmProblem, device: DeviceInfo) -> str | None:
    """Say why this family cannot run a problem, or None when it can."""
    if device.kind != "cuda":
        return f"{device.name} is not a GPU that runs CUDA"
    if not 1 <= problem.M <= MAX_WIDTH or not 1 <= problem.N <= MAX_WIDTH:
        return f"widths are 1 to {MAX_WIDTH}, not {problem.M} and {problem.N}"
    return None


def refuse(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> str | None:
    """Say why a configuration is not valid for a problem, or None when it is: the validity rule."""
    return supports(problem, device) or _misfit(problem, config) or _excess(problem, config, device)


def _misfit(problem: TsmttsmProblem, config: Config) -> str | None:
    """Options that do not go together."""
    if not (1 <= config.tm <= problem.M and 1 <= config.tn <= problem.N):
        return f"tiles of {config.tm} x {config.tn} for a result of {problem.M} x {problem.N}"
    a, b = _operands(problem, config)
    tiles = _plan(_shape(problem), config).tiles
    if tiles > config.lanes:
        return f"{tiles} tiles a row for {config.lanes} threads"
    if config.interleaved and a.tiles * b.tiles == 1:
        return "one tile has nothing to interleave"
    if (config.sums == "plain") == _is_single(problem):
        return f"sums {config.sums!r} are not for {problem.dtype}"
    if config.stages == 1 or (config.stages and config.steps % config.unroll):
        return f"{config.stages} stages of {config.steps} steps, unrolled {config.unroll} times"
    if config.stages and config.leapfrog and config.steps == 1:
        return "one step a stage has no next one to load ahead"
    if config.padded and not (config.stages and (a.is_linear or b.is_linear)):
        return "only contiguous rows that are staged are padded"
    return None


def _excess(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> str | None:
    """What a configuration needs and a multiprocessor does not have."""
    if config.threads > 1024 or config.threads * config.blocks > device.threads_per_multiprocessor:
        return f"{config.blocks} blocks of {config.threads} threads on a multiprocessor"
    if config.stages and config.warps > 1 and config.teams > _NAMED_BARRIERS:
        return f"{config.teams} teams for {_NAMED_BARRIERS} barriers"
    needed, limit = _registers(problem, config), _register_limit(config, device)
    if needed > limit:
        return f"needs {needed} registers of {limit}"
    shared = shared_bytes(problem, config, device) + _STATIC_SHARED_BYTES
    if shared > device.shared_bytes_per_block:
        return f"needs {shared} bytes of shared memory of {device.shared_bytes_per_block}"
    if config.blocks * (shared + _RESERVED_SHARED_BYTES) > device.shared_bytes_per_multiprocessor:
        return f"{config.blocks} blocks of {shared} bytes of shared memory do not fit a multiprocessor"
    return None


def _grid(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    chunks = _ceil(problem.K, _plan(_shape(problem), config).rows)
    return max(1, min(device.multiprocessors * config.blocks, chunks))


# ---- source and launch


def chain_length(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the longest chain of additions in the result's precision that an element of C goes through, for error bounds."""
    plan = _plan(_shape(problem), config)
    grid = _grid(problem, config, device)
    turns = _ceil(_ceil(problem.K, plan.rows), grid * config.teams)
    products = config.steps * config.count * (2 if is_complex(problem.dtype_a) and is_complex(problem.dtype_b) else 1)
    if plan.chain:
        return min(turns, plan.chain) * products + 2  # the sums of chains are in double precision
    if config.sums == "double":
        return 2
    groups = plan.groups * config.teams
    sums = 0 if grid == 1 else _ceil(grid, min(_MAX_SUMS, grid)) + min(_MAX_SUMS, grid)
    if config.reduction != "partials":
        sums = max(grid, grid * groups if config.reduction == "threads" else 0)
    return turns * products + groups + sums + 2


def kernel_name(problem: TsmttsmProblem) -> str:
    """Return the kernel's name, as ``tsmttsm_fma_f64_m8_n8``."""
    kind = _SHORT[problem.dtype_a]
    if problem.dtype_b != problem.dtype_a:
        kind += "_" + _SHORT[problem.dtype_b]
    return f"{problem.operation}_fma_{kind}_m{problem.M}_n{problem.N}"


def source(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> str:
    """Return the CUDA source of a configuration; it depends neither on K nor on the length of a pitch."""
    plan = _plan(_shape(problem), config)
    a, b = plan.operands
    single = _is_single(problem)
    types = {
        "RealA": _C_TYPES[a.real_bytes],
        "RealB": _C_TYPES[b.real_bytes],
        "Real": "float" if single and config.sums != "double" else "double",
        "Out": "float" if single else "double",
    }
    constants: dict[str, bool | int | float] = {
        "M": problem.M,
        "N": problem.N,
        "PA": a.parts,
        "PB": b.parts,
        "CONJ": problem.conj and a.parts == 2,
        "SAME": problem.same,
        "ALPHA_ONE": problem.alpha == "one",
        "BETA_ZERO": problem.beta == "zero",
        "TM": config.tm,
        "TN": config.tn,
        "INTERLEAVED": config.interleaved,
        "TRIANGLE": plan.triangle,
        "COUNT": config.count,
        "STEPS": config.steps,
        "UNROLL": config.unroll,
        "LEAPFROG": config.leapfrog,
        "WARPS": config.warps,
        "TEAMS": config.teams,
        "BLOCKS": config.blocks,
        "STAGES": config.stages,
        "CHAIN": plan.chain,
        "WIDE": config.sums == "registers",
        "REDUCTION": ("partials", "blocks", "threads").index(config.reduction),
    }
    for name, operand, slab, vector in zip("AB", plan.operands, plan.slabs, plan.vectors, strict=True):
        constants |= {
            f"{name}_LINEAR": slab.is_linear if config.stages else operand.is_linear,
            f"{name}_VECTOR": vector,
            f"{name}_PIECE": slab.piece,
            f"{name}_PITCH": slab.pitch,
            f"{name}_PAD_ROWS": slab.pad_rows,
            f"{name}_PAD": slab.pad,
        }
    constants |= {
        "B_OFFSET": plan.b_offset,
        "STAGE_BYTES": plan.stage_bytes,
        "PASS": plan.passed,
        "PRODUCT_OFFSET": plan.product_offset,
        "SCRATCH_OFFSET": plan.scratch_offset,
    }
    return render(kernel_name(problem), "tsmttsm_fma.cu", constants, types)


def workspace_bytes(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the bytes of workspace a launch needs.

    One workspace serves all launches of one stream. Its first 128 bytes are zero before the first one; every launch leaves
    them zero. The rest is scratch.
    """
    parts = _parts(problem.dtype)
    partials = _grid(problem, config, device) if config.reduction == "partials" else 1
    return _GRID_HEADER_BYTES + partials * problem.M * problem.N * parts * 8


def launch(
    function: Any,
    problem: TsmttsmProblem,
    config: Config,
    device: DeviceInfo,
    A_ptr: int,
    B_ptr: int,
    C_ptr: int,
    alpha: complex,
    beta: complex,
    workspace_ptr: int,
) -> None:
    """Start the kernel on CuPy's current stream.

    Parameters
    ----------
    function : cupy.cuda.function.Function
        What `compile.function` made of `source`, with `shared_bytes` of dynamic shared memory.
    problem, config, device
        What `function` was made for; K and pitches may differ from launch to launch.
    A_ptr, B_ptr, C_ptr : int
        Device addresses; C is contiguous.
    alpha, beta : complex
        The factors, in the problem's classes.
    workspace_ptr : int
        Device address of `workspace_bytes` bytes that belong to this stream.

    Raises
    ------
    LayoutError
        If an address is less aligned than the problem says.
    """
    for name, pointer, align in (("A", A_ptr, problem.align_a), ("B", B_ptr, problem.align_b)):
        if pointer % align and problem.K > 0:
            raise LayoutError(
                f"tsmttsm: {name} lies at address {pointer:#x} but was described as aligned to {align} bytes; "
                "describe the array that is passed."
            )
    a, b = complex(alpha), complex(beta)
    arguments = (
        *(A_ptr, B_ptr, C_ptr, problem.K, problem.lda, problem.ldb),
        *(a.real, a.imag, b.real, b.imag),
        workspace_ptr,
    )
    grid = _grid(problem, config, device)
    function((grid,), (config.threads,), arguments, shared_mem=shared_bytes(problem, config, device))
