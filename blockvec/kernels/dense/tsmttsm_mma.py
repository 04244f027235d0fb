"""TSMTTSM on FP64 tensor cores: C = alpha A^H B + beta C, or A^T B, for two operands of one of four types.

Single precision is converted on its way to the tensor cores, whose peak is that of its own multiply-adds:
products are exact and sums in double precision.

The kernel (``tsmttsm_mma.cu`` says how it works) streams A and B through a ring of stages in shared
memory, filled by bulk copies where an operand is contiguous and 16-byte aligned and by ``cp.async``
elsewhere, and sums over the blocks in a fixed order in the same launch. What can be chosen, and which choices
are valid, is in ``tsmttsm_mma_config``; the search space and the model that orders it are in
``tsmttsm_mma_model``; this file is the family's front and makes sources and launches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..device import DeviceInfo
from ..launch import bind_product, partials_bytes
from ..problem import TsmttsmProblem, is_complex, itemsize, real_bytes
from ..source import C_TYPES, SHORT_NAMES, render
from .tsmttsm_mma_config import (
    Config,
    architecture_of,
    carveout,
    ceil_div,
    grid,
    layout,
    refuse,
    shared_bytes,
)
from .tsmttsm_mma_model import choose, has_choice, predict, space

__all__ = [
    "Config",
    "bind",
    "carveout",
    "chain_length",
    "choose",
    "kernel_name",
    "predict",
    "refuse",
    "shared_bytes",
    "source",
    "space",
    "supports",
    "workspace_bytes",
]

_MAX_SUMS = 16  # threads that share one element's sum over the blocks, as there


def supports(problem: TsmttsmProblem, device: DeviceInfo) -> str | None:
    """Say why this family cannot run a problem, or None when it can."""
    if device.kind != "cuda" or architecture_of(device) < 80:
        return f"{device.name} has no FP64 tensor cores"
    if problem.dtype_a != problem.dtype_b:
        return f"takes operands of one type, not {problem.dtype_a} and {problem.dtype_b}"
    if min(problem.K, problem.M, problem.N) < 1:
        return "has no rows or columns to multiply"
    size = itemsize(problem.dtype)
    real = real_bytes(problem.dtype)
    if min(problem.align_a, problem.align_b) < real:
        return f"operands must be aligned to {real} bytes, not {min(problem.align_a, problem.align_b)}"
    if not has_choice(problem, device):
        return (
            f"rows of {(problem.M + problem.N) * size} bytes or a {problem.M} x {problem.N} result do not fit"
        )
    return None


def chain_length(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the longest chain of additions, in the result's precision, that makes an element of C."""
    if real_bytes(problem.dtype) == 4:
        return 2  # sums are in double precision
    blocks = grid(problem, config, device)
    turns = ceil_div(ceil_div(problem.K, config.rows * config.fold), blocks)
    steps = config.rows // 4 // config.kstep
    chain = ceil_div(turns, config.wk) * steps if config.takes_turns else turns * ceil_div(steps, config.wk)
    products = chain * 4 * config.kstep * (2 if is_complex(problem.dtype) else 1)
    sums = 0 if blocks == 1 else ceil_div(blocks, min(_MAX_SUMS, blocks)) + min(_MAX_SUMS, blocks)
    return products + (config.wk - 1).bit_length() + config.fold + max(sums, blocks if sums else 0)


def kernel_name(problem: TsmttsmProblem) -> str:
    """Return the kernel's name, as ``tsmttsm_mma_f64_m8_n8``."""
    return f"{problem.operation}_mma_{SHORT_NAMES[problem.dtype]}_m{problem.M}_n{problem.N}"


def source(problem: TsmttsmProblem, config: Config, device: DeviceInfo, *, is_summed: bool = True) -> str:
    """Return the CUDA source of a configuration; it does not depend on K.

    Without its sums over warps and blocks the kernel has no result: it tells what these take.
    """
    where = layout(problem, config, device)
    constants = {
        "M": problem.M,
        "N": problem.N,
        "COMPLEX": is_complex(problem.dtype),
        "CONJ": is_complex(problem.dtype) and problem.conj,
        "SAME": problem.same,
        "ALPHA_ONE": problem.alpha == "one",
        "BETA_ZERO": problem.beta == "zero",
        "SUMMED": is_summed,
        "ROWS": config.rows,
        "STAGES": config.stages,
        "WM": config.wm,
        "WN": config.wn,
        "WK": config.wk,
        "KSTEP": config.kstep,
        "FOLD": config.fold,
        "UNROLL": config.unroll,
        "AHEAD": config.ahead,
        "BLOCKS": config.blocks,
        "PRODUCERS": config.producers,
        "A_PIECE": where.a_piece,
        "B_PIECE": where.b_piece,
        "A_ROW": where.a_row,
        "B_ROW": where.b_row,
        "A_PITCH": where.a_pitch,
        "B_PITCH": where.b_pitch,
        "A_GAP": where.a_gap,
        "B_GAP": where.b_gap,
        "B_OFFSET": where.b_offset,
        "STAGE_BYTES": where.stage_bytes,
    }
    return render(
        kernel_name(problem), "dense/tsmttsm_mma.cu", constants, {"Real": C_TYPES[real_bytes(problem.dtype)]}
    )


def workspace_bytes(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the bytes of workspace a launch needs; see `launch.partials_bytes`."""
    doubles = problem.M * problem.N * (2 if is_complex(problem.dtype) else 1)
    return partials_bytes(grid(problem, config, device), doubles)


def bind(function: Any, problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> Callable[..., None]:
    """Return what starts the kernel, made of `source` with `shared_bytes`; see `launch.bind_product`."""
    blocks, shared = grid(problem, config, device), shared_bytes(problem, config, device)
    return bind_product(function, problem, blocks, config.threads, shared)
