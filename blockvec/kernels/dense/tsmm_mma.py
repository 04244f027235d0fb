"""TSMM on FP64 tensor cores: B = alpha A C + beta B, A and C of one type, any of the four.

Single precision is converted on its way to the tensor cores, whose peak is that of its own multiply-adds, and
rounded once on its way back.

The kernel is ``tsmm_mma.cu``: groups of warps, each with a pipeline of its own, stage tiles of rows in
shared memory, multiply them by the coefficient matrix on the tensor cores and send finished tiles back.
Contiguous operands move by bulk copies of whole slabs, whatever the width; views, and everything before
sm_90, by pieces of 4 to 16 bytes.
Wide complex operands, whose products take longer than memory, have ``tsmm_complex.cu`` beside it: no
warp waits for another there. Here is the family's front; ``tsmm_mma_config`` says which configurations are
valid, ``tsmm_mma_model`` orders them. Nothing needs a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..device import DeviceInfo
from ..launch import QUEUE_BYTES, bind_product, run_rows
from ..problem import TsmmProblem, itemsize, real_bytes
from ..source import C_TYPES, SHORT_NAMES, render
from .tsmm_mma_config import Config, is_complex_kernel, is_in_order, refuse, shape_of, shared_bytes, supports
from .tsmm_mma_model import choose, predict, space

__all__ = [
    "Config",
    "bind",
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


def chain_length(problem: TsmmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the longest chain of additions, in the result's precision, that makes an element of B."""
    if real_bytes(problem.dtype) == 4:
        return 2  # sums are in double precision
    return shape_of(problem, device).parts * problem.M + (problem.beta != "zero")


def kernel_name(problem: TsmmProblem) -> str:
    """Return the kernel's name, as profilers show it."""
    return f"tsmm_mma_{SHORT_NAMES[problem.dtype]}_m{problem.M}_n{problem.N}"


def source(problem: TsmmProblem, config: Config, device: DeviceInfo) -> str:
    """Return the CUDA source of a configuration; it depends neither on K nor on the length of a pitch."""
    shape = shape_of(problem, device)
    constants: dict[str, bool | int | float] = {
        "M": problem.M,
        "N": problem.N,
        "COMPLEX": shape.parts == 2,
        "ALPHA": problem.alpha == "general",
        "WARPS": config.warps,
        "SPLIT": config.split,
        "ROWS": config.rows,
        "UNROLL": config.unroll,
        "STAGES": config.stages,
        "SLABS": config.slabs,
    }
    types = {"Real": C_TYPES[real_bytes(problem.dtype)]}
    if is_complex_kernel(problem, config, shape):
        paired = config.direct and shape.size == 8 and problem.N % 2 == 0 and shape.piece_b in (0, 16)
        return render(kernel_name(problem), "dense/tsmm_complex.cu", constants | {"PAIRED": paired}, types)
    constants |= {
        "BETA": ("zero", "one", "general").index(problem.beta),
        "PIECE_A": shape.piece_a,
        "PIECE_B": shape.piece_b,
        "SHARED_C": config.shared_coefficients,
        "IN_ORDER": is_in_order(problem, shape),
        "RUN": -(-run_rows(problem) // config.rows),  # tiles are small: one less asks too often
    }
    return render(kernel_name(problem), "dense/tsmm_mma.cu", constants, types)


def workspace_bytes(problem: TsmmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the bytes of workspace a launch takes: counters, zero before the first launch and after each."""
    return QUEUE_BYTES


def bind(function: Any, problem: TsmmProblem, config: Config, device: DeviceInfo) -> Callable[..., None]:
    """Return what starts the kernel, made of `source` with `shared_bytes`; see `launch.bind_product`."""
    size = itemsize(problem.dtype)
    pitches = problem.lda * size, problem.ldb * size
    blocks, shared = (
        min(device.multiprocessors, -(-problem.K // config.rows)),
        shared_bytes(problem, config, device),
    )
    return bind_product(function, problem, blocks, 32 * config.warps, shared, pitches)
