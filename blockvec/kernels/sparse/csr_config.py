"""SpMMV on CSR matrices: what can be chosen, and which choices are valid."""

from __future__ import annotations

from dataclasses import dataclass

from ..device import DeviceInfo
from ..problem import SpmmvProblem, is_complex, itemsize, promote

__all__ = [
    "GRAM_LANES",
    "GRAM_SIDE",
    "GRAM_WIDTH",
    "LEAST_WARPS",
    "MAX_ROWS",
    "STATIC_SHARED_LIMIT",
    "WARP",
    "Config",
    "architecture_of",
    "carveout",
    "ceil_div",
    "long_warps",
    "refuse",
    "register_limit",
    "registers",
    "row_entries",
    "shared_bytes",
    "slot_bytes",
]

WARP = 32
MAX_ROWS = 32  # of a unit: a lane each
LEAST_WARPS = 4  # of a block: one a quadrant of a multiprocessor
STATIC_SHARED_LIMIT = 48 << 10
_SLOT_ALIGN, _SWIZZLED_ALIGN = 4, 32  # entries, as in the kernel
_RESERVED_SHARED_BYTES = 1024  # the driver's share of every block
_L1_LEAST_BYTES = 32 << 10  # what shared memory must leave to gathers
GRAM_LANES = (1, 2, 4, 8)  # of a row, where the rows that a warp completes at a time fill whole fragments
GRAM_SIDE = 2  # tiles of eight columns a side of a Gram matrix: registers grow with the square
GRAM_WIDTH = 8 * GRAM_SIDE
_TENSOR_REGISTERS = 56  # with fewer the compiler refuses FP64 tensor-core products
_LONG_WARPS = 2  # at most, of a block that sums up a part of a long row: most are little longer than others
_LONG_LANES = 2  # of a row of X, up to which one warp has enough of a part in flight


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
        Neighbouring units that a warp works on before it moves on.
    planes : int
        On a grid of three dimensions, planes that the warps of a block work on at a time.
    flat : bool
        Whether entries are dealt out to lanes whatever row they are of.
    swizzle : bool
        Whether rows of a power of two entries are kept from beginning in one bank of shared memory.
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
    planes: int = 1
    flat: bool = False
    swizzle: bool = False
    aligned_x: bool = True
    aligned_y: bool = True

    @property
    def tile(self) -> int:
        """Columns that a block covers."""
        return self.lanes * self.vectors * self.vector

    @property
    def groups(self) -> int:
        """Rows that a warp works on at a time."""
        return WARP // (self.lanes * self.split)


def ceil_div(value: int, unit: int) -> int:
    """Return how many units hold a value."""
    return -(-value // unit)


def architecture_of(device: DeviceInfo) -> int:
    """Return 90 for ``"sm_90"``, and 0 where there is no number."""
    return int("".join(filter(str.isdigit, device.architecture)) or 0)


def row_entries(problem: SpmmvProblem) -> float:
    """Return the entries of a row, on average."""
    return problem.nnz / max(1, problem.n_rows)


def _slot_entries(config: Config) -> int:
    unit = _SWIZZLED_ALIGN if config.swizzle else _SLOT_ALIGN
    return (config.entries + 2 * (_SLOT_ALIGN - 1) + unit - _SLOT_ALIGN) // unit * unit


def slot_bytes(problem: SpmmvProblem, config: Config) -> int:
    """Return the bytes that the entries of a unit take in shared memory."""
    return _slot_entries(config) * (itemsize(problem.dtype_matrix) + problem.index_bytes)


def shared_bytes(problem: SpmmvProblem, config: Config) -> int:
    """Return the bytes of shared memory of a block: its slots, at the end taken by its sums."""
    size_sum = itemsize(promote(problem.dtype, "float64"))
    elements = _slot_entries(config) * config.tile if config.flat else config.vector
    slots = config.stages * slot_bytes(problem, config) + elements * itemsize(problem.dtype)
    a_warp = max(slots, len(problem.dots) * config.tile * size_sum)
    return max(config.warps * a_warp, len(problem.gram) * problem.width**2 * size_sum)


def carveout(problem: SpmmvProblem, config: Config, device: DeviceInfo) -> int:
    """Return the per cent of shared memory's most that the blocks need; the rest is L1 for gathers."""
    needed = config.blocks * (shared_bytes(problem, config) + _RESERVED_SHARED_BYTES)
    return min(100, ceil_div(100 * needed, device.shared_bytes_per_multiprocessor))


def long_warps(problem: SpmmvProblem, config: Config) -> int:
    """Return the warps of a block that sums up a part of a long row; shared memory holds a sum a lane."""
    if config.lanes <= _LONG_LANES:
        return 1
    warp_bytes = WARP * config.vectors * config.vector * itemsize(problem.dtype)
    return max(1, min(_LONG_WARPS, (STATIC_SHARED_LIMIT - 1024) // warp_bytes))


def registers(problem: SpmmvProblem, config: Config) -> int:
    """Return the registers a thread needs, at least nearly."""
    pack_x = config.vectors * config.vector * itemsize(problem.dtype_x) // 4
    pack_y = config.vectors * config.vector * itemsize(problem.dtype) // 4
    fused = pack_y if problem.beta != "zero" else 0
    fused += pack_y if problem.chain in ("one", "general") else 0
    elements = config.vectors * config.vector
    fused += sum(4 if kind == "xy" and is_complex(problem.dtype) else 2 for kind in problem.dots) * elements
    fused += _gram_registers(problem, config) + (2 * elements + 2 if problem.shift == "column" else 0)
    wide = 12 if problem.index_bytes == 8 else 0
    ahead = 4 * (config.stages - 2) + (4 if config.split > 1 else 0)
    converted = pack_y // 4 if problem.dtype_x != problem.dtype else 0
    products = 8 if is_complex(problem.dtype_matrix) else 0
    temporary = (12 if problem.chain != "none" else 0) + (6 if problem.dots and products else 0)
    temporary += 4 if is_complex(problem.dtype) and problem.beta == "general" else 0
    gathers = config.unroll * (pack_x + 2)  # with their addresses
    around = 22 + 4 * (config.vectors - 1) + (4 if config.vector > 2 else 0)
    around += 6 if config.tile < problem.width else 0
    needed = gathers + pack_y + fused + wide + ahead + converted + products + temporary + around
    return max(needed, _TENSOR_REGISTERS) if problem.gram else needed


def _gram_side(config: Config) -> int:
    """Return the tiles a side of a Gram matrix, as in the kernel: rows of few lanes share fragments."""
    elements = config.vectors * config.vector
    return elements // 2 if config.lanes < max(GRAM_LANES) and elements % 2 == 0 else elements


def _gram_registers(problem: SpmmvProblem, config: Config) -> int:
    """Return the registers of the tiles, X^H Y whole and the half of Y^H Y, and of fragments beside."""
    if not problem.gram:
        return 0
    side, parts = _gram_side(config), 2 if is_complex(problem.dtype) else 1
    tiles = {"xy": side**2, "yy": side * (side + 1) // 2}
    return parts * (sum(4 * tiles[kind] for kind in problem.gram) + 8 * side - 4)


def _refuse_gram(config: Config, width: int) -> str | None:
    """Say why a configuration cannot make Gram matrices, or None when it can."""
    elements = config.vectors * config.vector
    whole = config.lanes in GRAM_LANES and (config.lanes > 1 or elements % 2 == 0)
    if not whole or config.split > 1 or config.tile < width:
        return f"{config.lanes} lanes in {config.split} parts do not fill fragments for Gram matrices"
    if _gram_side(config) > GRAM_SIDE:
        return f"{elements} columns a lane make too many tiles of Gram matrices"
    return None


def register_limit(warps: int, blocks: int, device: DeviceInfo) -> int:
    """Return the registers a thread may have: a quadrant of a multiprocessor deals out a quarter of them."""
    warps_a_quadrant = ceil_div(warps * blocks, 4)
    return min(255, device.registers_per_multiprocessor // 4 // warps_a_quadrant // WARP // 8 * 8)


def refuse(problem: SpmmvProblem, config: Config, device: DeviceInfo) -> str | None:
    """Say why a configuration is not valid for a problem, or None when it is: the validity rule."""
    size_x = config.vector * itemsize(problem.dtype_x)
    size_y = min(16, config.vector * itemsize(problem.dtype))
    if config.lanes * config.split > WARP or config.split & (config.split - 1):
        return f"{config.lanes} lanes and {config.split} parts do not share a warp"
    if problem.width % config.vector or size_x > 16:
        return f"packs of {config.vector} do not make up rows of {problem.width} columns"
    if config.tile - config.lanes * config.vector >= problem.width and config.vectors > 1:
        return f"{config.vectors} packs a lane for {problem.width} columns"
    align_x, align_y = problem.align_x, min(problem.align_y, problem.align_z)
    if (config.aligned_x and align_x % size_x) or (config.aligned_y and align_y % size_y):
        return f"operands are aligned to {align_x} and {align_y} bytes, packs have {size_x} and {size_y}"
    if problem.gram and (reason := _refuse_gram(config, problem.width)) is not None:
        return reason
    if not config.groups <= config.rows <= MAX_ROWS or config.rows % config.groups:
        return f"{config.rows} rows for {config.groups} groups of lanes"
    if not config.unroll * config.split <= config.long_row <= config.entries < 2**16 - 8:
        return f"long rows of {config.long_row} entries for units of {config.entries}"
    if config.warps % config.planes:
        return f"{config.warps} warps for {config.planes} planes"
    if config.stages < 2:
        return f"{config.stages} stages are too few"
    if WARP * config.warps > 1024 or WARP * config.warps * config.blocks > device.threads_per_multiprocessor:
        return f"{config.blocks} blocks of {config.warps} warps on a multiprocessor"
    needed, limit = registers(problem, config), register_limit(config.warps, config.blocks, device)
    if needed > limit:
        return f"needs {needed} registers of {limit}"
    shared = shared_bytes(problem, config)
    if shared > STATIC_SHARED_LIMIT:
        return f"needs {shared} bytes of shared memory of {STATIC_SHARED_LIMIT}"
    room = device.shared_bytes_per_multiprocessor - _L1_LEAST_BYTES
    if config.blocks * (shared + _RESERVED_SHARED_BYTES) > room:
        return f"{config.blocks} blocks of {shared} bytes of shared memory leave no room for gathers"
    return None
