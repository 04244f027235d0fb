"""SpMMV on SELL-C-sigma matrices: what can be chosen, and which choices are valid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..device import DeviceInfo
from ..problem import SpmmvProblem, is_complex, itemsize
from .csr_config import WARP, register_limit

__all__ = ["CHUNK", "Config", "refuse", "registers"]

CHUNK = 32  # rows, C of SELL-C-sigma: one a lane
_MAX_SIGMA = 1 << 16  # rows: a place among them is kept in 16 bits


@dataclass(frozen=True, slots=True)
class Config:
    """One way to run the kernel.

    Attributes
    ----------
    vectors, vector : int
        Packs of columns that a lane has, and columns of a pack.
    unroll : int
        Entries of a row whose rows of X are in flight.
    warps, blocks : int
        Warps of a block, blocks of a multiprocessor.
    persistent : bool
        Whether blocks work on one patch of chunks after the other, rather than on one each.
    planes : int
        On a grid of three dimensions, planes that the warps of a block work on at a time.
    sigma : int
        Rows that are sorted by length together; as many as a chunk has leave the rows as they are.
    aligned_x, aligned_y : bool
        Whether packs of X and Y start at multiples of their size.
    """

    vectors: int
    vector: int
    unroll: int = 4
    warps: int = 8
    blocks: int = 4
    persistent: bool = True
    planes: int = 1
    sigma: int = CHUNK
    aligned_x: bool = True
    aligned_y: bool = True

    lanes: ClassVar[int] = 1  # that share a row
    passes: ClassVar[int] = 1  # chunks that a warp works on before it moves on


def registers(problem: SpmmvProblem, config: Config) -> int:
    """Return the registers a thread needs, at least nearly."""
    pack_x = config.vectors * config.vector * itemsize(problem.dtype_x) // 4
    pack_y = config.vectors * config.vector * itemsize(problem.dtype) // 4
    entry = (itemsize(problem.dtype_matrix) + problem.index_bytes) // 4
    fused = 2 * config.vectors * config.vector + 2 if problem.shift == "column" else 0
    fused += 2 * pack_y if problem.chain in ("one", "general") else 0
    converted = pack_y // 2 if problem.dtype_x != problem.dtype else 0
    products = 4 if is_complex(problem.dtype_matrix) else 0
    around = 19 + (12 if problem.index_bytes == 8 else 0)
    gathers = config.unroll * (pack_x + entry + (1 if config.vectors > 1 else 0))
    return gathers + pack_y + fused + converted + products + around


def refuse(problem: SpmmvProblem, config: Config, device: DeviceInfo) -> str | None:
    """Say why a configuration is not valid for a problem, or None when it is: the validity rule."""
    size_x = config.vector * itemsize(problem.dtype_x)
    size_y = min(16, config.vector * itemsize(problem.dtype))
    if config.vectors * config.vector != problem.width or size_x > 16:
        return f"{config.vectors} packs of {config.vector} are not rows of {problem.width} columns"
    align_x, align_y = problem.align_x, min(problem.align_y, problem.align_z)
    if (config.aligned_x and align_x % size_x) or (config.aligned_y and align_y % size_y):
        return f"operands are aligned to {align_x} and {align_y} bytes, packs have {size_x} and {size_y}"
    if config.sigma % CHUNK or not CHUNK <= config.sigma <= _MAX_SIGMA:
        return f"sorts every {config.sigma} rows; multiples of {CHUNK} to {_MAX_SIGMA} are possible"
    if config.warps % config.planes:
        return f"{config.warps} warps for {config.planes} planes"
    threads = WARP * config.warps
    if threads > 1024 or threads * config.blocks > device.threads_per_multiprocessor:
        return f"{config.blocks} blocks of {config.warps} warps on a multiprocessor"
    needed, limit = registers(problem, config), register_limit(config.warps, config.blocks, device)
    if needed > limit:
        return f"needs {needed} registers of {limit}"
    return None
