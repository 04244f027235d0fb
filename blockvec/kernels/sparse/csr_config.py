"""Configurations of SpMMV on CSR matrices, and the registers and shared memory that they take."""

from __future__ import annotations

from ...system.frozen import frozen
from ..limits import STATIC_SHARED_LIMIT, WARP, ceil_div
from ..problem import SpmmvProblem, is_complex, itemsize, promote
from .csr_plan import MAX_VALUES
from .interface import LaneConfig, entry_bytes

GRAM_LANES = (1, 2, 4, 8)  # per row, so that the rows that a warp completes at a time fill whole fragments
_TENSOR_REGISTERS = 56  # the compiler refuses FP64 tensor-core products with fewer
_SLOT_ALIGN, _SWIZZLED_ALIGN = 4, 32  # entries, as in the kernel
_COPY_ALIGN, _LINE_ALIGN = 16, 128  # bytes, likewise
_LONG_WARPS = 2  # at most, per block that sums a part of a long row: most are little longer than others
_LONG_LANES = 2  # per row of X, up to which one warp has enough loads in flight
_STAGES = 2  # units per warp in shared memory, as in the kernel


@frozen
class CsrConfig(LaneConfig):
    """A configuration of the kernel."""

    split: int = 1  # parts into which the entries of a row are divided, a power of two
    unroll: int = 4  # entries of a part whose rows of X are in flight
    # Most rows and entries per unit.
    rows: int = 32
    entries: int = 256
    long_row: int = 128  # rows with more entries are summed by whole blocks
    # Warps per block, blocks per multiprocessor.
    warps: int = 8
    blocks: int = 3
    planes: int = 1  # on a three-dimensional grid, planes that the warps of a block process at a time
    # Whether entries are distributed over lanes regardless of their rows, and permuted in shared memory to
    # avoid bank conflicts between rows whose lengths are multiples of a power of two.
    flat: bool = False

    @property
    def groups(self) -> int:
        """Rows that a warp processes at a time."""
        return WARP // (self.lanes * self.split)


def _slot_unit(config: CsrConfig) -> int:
    return _SWIZZLED_ALIGN if config.flat else _SLOT_ALIGN


def _slot_entries(config: CsrConfig) -> int:
    unit = _slot_unit(config)
    return (config.entries + 2 * (_SLOT_ALIGN - 1) + unit - _SLOT_ALIGN) // unit * unit


def slot_bytes(problem: SpmmvProblem, config: CsrConfig) -> int:
    """Compute the bytes that the entries of a unit take in shared memory."""
    entries = _slot_entries(config)
    if not problem.coded:
        return entries * entry_bytes(problem)
    ahead = config.unroll * (WARP // config.lanes if config.flat else config.split)
    ahead = ceil_div(ahead, _slot_unit(config)) * _slot_unit(config)
    n_bytes = (entries + ahead) * problem.index_bytes + itemsize(problem.dtype_matrix)
    return _aligned(n_bytes, config)


def _aligned(n_bytes: int, config: CsrConfig) -> int:
    alignment = _LINE_ALIGN if config.flat else _COPY_ALIGN
    return ceil_div(n_bytes, alignment) * alignment


def block_bytes(problem: SpmmvProblem, config: CsrConfig) -> int:
    """Compute the static shared memory of a block: its slots, which its sums overwrite at the end."""
    size_sum = itemsize(promote(problem.dtype, "float64"))
    elements = _slot_entries(config) * config.tile if config.flat else config.vector
    slots = _STAGES * slot_bytes(problem, config) + elements * itemsize(problem.dtype)
    table = (MAX_VALUES if problem.coded else 1) * itemsize(problem.dtype_matrix)
    dots = config.warps * len(problem.dots) * config.tile * size_sum
    grams = len(problem.gram) * problem.width**2 * size_sum
    return _aligned(max(config.warps * slots + table, dots, grams), config)


def long_warps(problem: SpmmvProblem, config: CsrConfig) -> int:
    """Compute the warps of a block that sums a part of a long row; shared memory holds one sum per lane."""
    if config.lanes <= _LONG_LANES:
        return 1
    warp_bytes = WARP * config.vectors * config.vector * itemsize(problem.dtype)
    return max(1, min(_LONG_WARPS, (STATIC_SHARED_LIMIT - 1024) // warp_bytes))


def registers(problem: SpmmvProblem, config: CsrConfig) -> int:
    """Estimate the registers per thread."""
    pack_x = config.vectors * config.vector * itemsize(problem.dtype_x) // 4
    pack_y = config.vectors * config.vector * itemsize(problem.dtype) // 4
    fused = pack_y if problem.beta != "zero" else 0
    fused += pack_y if problem.chain in ("one", "general") else 0
    elements = config.vectors * config.vector
    fused += sum(4 if kind == "xy" and is_complex(problem.dtype) else 2 for kind in problem.dots) * elements
    fused += _gram_registers(problem, config) + (2 * elements + 2 if problem.shift == "column" else 0)
    wide = 12 if problem.index_bytes == 8 else 0
    ahead = 4 if config.split > 1 else 0
    converted = pack_y // 4 if problem.dtype_x != problem.dtype else 0
    products = 8 if is_complex(problem.dtype_matrix) else 0
    temporary = (12 if problem.chain != "none" else 0) + (6 if problem.dots and products else 0)
    temporary += 4 if is_complex(problem.dtype) and problem.beta == "general" else 0
    gathers = config.unroll * (pack_x + 2)  # with their addresses
    around = 22 + 4 * (config.vectors - 1) + (4 if config.vector > 2 else 0)
    around += 6 if config.tile < problem.width else 0
    needed = gathers + pack_y + fused + wide + ahead + converted + products + temporary + around
    return max(needed, _TENSOR_REGISTERS) if problem.gram else needed


def gram_side(config: CsrConfig) -> int:
    """Compute the tiles per side of a Gram matrix, as in the kernel: rows of few lanes share fragments."""
    elements = config.vectors * config.vector
    return elements // 2 if config.lanes < max(GRAM_LANES) and elements % 2 == 0 else elements


def _gram_registers(problem: SpmmvProblem, config: CsrConfig) -> int:
    """Compute the registers of the tiles, all of X^H Y and half of Y^H Y, and of fragments."""
    if not problem.gram:
        return 0
    side, parts = gram_side(config), 2 if is_complex(problem.dtype) else 1
    tiles = {"xy": side**2, "yy": side * (side + 1) // 2}
    return parts * (sum(4 * tiles[kind] for kind in problem.gram) + 8 * side - 4)
