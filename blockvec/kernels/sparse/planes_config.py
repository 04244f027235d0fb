"""SpMMV that marches through the planes of a grid: what can be chosen, and which choices are valid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..device import DeviceInfo
from ..problem import SpmmvProblem, is_complex, itemsize
from .csr_config import WARP, ceil_div, register_limit

__all__ = ["PIECE", "Config", "brought", "refuse", "registers", "shared_bytes"]

PIECE = 16  # bytes of a copy to shared memory, and of a pack of X
_ALIGN = 8  # entries: where copies of slots and values start, and the most in flight
_STEPS = 4  # whose rows of X the ring holds
_RESERVED_SHARED_BYTES = 1024  # the driver's share of every block


@dataclass(frozen=True, slots=True)
class Config:
    """One way to run the kernel.

    Attributes
    ----------
    lanes, vectors, vector : int
        Lanes that share the columns of a row, packs of columns each has, and columns of a pack.
    unroll : int
        Entries of a row whose rows of X are on their way from shared memory.
    across, lines : int
        Points of a line, and lines, of the patch of a plane that a block works on.
    entries : int
        Most entries of a row.
    warps, blocks : int
        Warps of a block, blocks of a multiprocessor.
    aligned_y : bool
        Whether packs of Y start at multiples of their size.
    """

    lanes: int
    vectors: int
    vector: int
    unroll: int
    across: int
    lines: int
    entries: int
    warps: int = 8
    blocks: int = 2
    aligned_y: bool = True

    aligned_x: ClassVar[bool] = True

    @property
    def tile(self) -> int:
        """Columns that a block covers."""
        return self.lanes * self.vectors * self.vector


def _around(across: int, lines: int) -> int:
    """Return the points of a patch and those around it."""
    return (across + 2) * (lines + 2)


def brought(across: int, lines: int) -> int:
    """Return the most rows of X that a step brings: a quarter more than a patch and the points around it."""
    around = _around(across, lines)
    return around + around // 4


def shared_bytes(problem: SpmmvProblem, config: Config) -> int:
    """Return the bytes of shared memory of a block: the ring, and the entries and lists of patches."""
    ring = _STEPS * _around(config.across, config.lines) * config.tile * itemsize(problem.dtype_x)
    segment = ceil_div(config.across * config.entries + _ALIGN, _ALIGN) * _ALIGN
    entries = config.lines * segment * (itemsize(problem.dtype_matrix) + 2)
    lists = 2 * brought(config.across, config.lines) + 3 * config.lines * (config.across + 1)
    return ring + 2 * entries + ceil_div(4 * lists, PIECE) * PIECE


def registers(problem: SpmmvProblem, config: Config) -> int:
    """Return the registers a thread needs, at least nearly."""
    packs = config.vectors * PIECE // 4
    entry = itemsize(problem.dtype_matrix) // 4 + 1
    gathering = config.unroll * (entry + packs) + (4 if is_complex(problem.dtype_matrix) else 0)
    finishing = packs if problem.shift != "none" else 0
    finishing += packs if problem.shift == "column" else 0
    finishing += packs if problem.beta != "zero" else 0
    finishing += packs if problem.chain in ("one", "general") else 0
    return packs + max(gathering, finishing) + 40


def refuse(problem: SpmmvProblem, config: Config, device: DeviceInfo) -> str | None:
    """Say why a configuration is not valid for a problem, or None when it is: the validity rule."""
    if config.vector * itemsize(problem.dtype_x) != PIECE:
        return f"packs of {config.vector} {problem.dtype_x} are not {PIECE} bytes"
    if config.lanes & (config.lanes - 1) or config.lanes > WARP:
        return f"{config.lanes} lanes share a row; powers of two are possible"
    if problem.width % config.tile:
        return f"tiles of {config.tile} columns do not make up rows of {problem.width}"
    if problem.align_x % PIECE:
        return f"rows of X are aligned to {problem.align_x} bytes, copies to {PIECE}"
    size_y = min(16, config.vector * itemsize(problem.dtype))
    if config.aligned_y and (align_y := min(problem.align_y, problem.align_z)) % size_y:
        return f"rows of Y are aligned to {align_y} bytes, packs have {size_y}"
    if problem.longest > config.entries:
        return f"rows of {problem.longest} entries, room for {config.entries}"
    threads = WARP * config.warps
    if threads > 1024 or threads * config.blocks > device.threads_per_multiprocessor:
        return f"{config.blocks} blocks of {config.warps} warps on a multiprocessor"
    if max(brought(config.across, config.lines), config.lines * (config.across + 1)) > threads:
        return f"patches of {config.across} x {config.lines} points for {threads} threads"
    if not 1 <= config.unroll <= _ALIGN:
        return f"{config.unroll} entries in flight; 1 to {_ALIGN} are possible"
    needed, limit = registers(problem, config), register_limit(config.warps, config.blocks, device)
    if needed > limit:
        return f"needs {needed} registers of {limit}"
    shared = shared_bytes(problem, config)
    room = device.shared_bytes_per_multiprocessor // config.blocks - _RESERVED_SHARED_BYTES
    if shared > (room := min(room, device.shared_bytes_per_block)):
        return f"needs {shared} bytes of shared memory of {room}"
    return None
