"""TSMTTSM by multiply-adds: C = alpha A^H B + beta C, or A^T B, all types, widths, pitches, alignments.

The kernel (``tsmttsm_fma.cu``) has the thread mappings of Ernst et al., "Performance engineering for
real and complex tall & skinny matrix multiplication kernels on GPUs" (2021), section "TSMTTSM", and beyond
the paper a ring in shared memory that feeds them. What can be chosen, and which choices are valid, is in
``tsmttsm_fma_config``; the search space and the model that orders it are in ``tsmttsm_fma_model``; this
file is the family's front and makes sources and launches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..device import DeviceInfo
from ..launch import bind_product, partials_bytes
from ..problem import TsmttsmProblem, is_complex
from ..source import C_TYPES, SHORT_NAMES, render
from .layout import ceil_div, parts_of, supports
from .tsmttsm_fma_config import Config, grid_of, is_single, plan_of, refuse, shape_of, shared_bytes
from .tsmttsm_fma_model import choose, predict, space

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

_MAX_SUMS = 16  # threads that share one element's sum over the blocks, as there


def chain_length(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the longest chain of additions, in the result's precision, that makes an element of C."""
    plan = plan_of(shape_of(problem), config)
    grid = grid_of(problem, config, device)
    turns = ceil_div(ceil_div(problem.K, plan.rows), grid * config.teams)
    products = (
        config.steps
        * config.count
        * (2 if is_complex(problem.dtype_a) and is_complex(problem.dtype_b) else 1)
    )
    if plan.chain:
        return min(turns, plan.chain) * products + 2  # the sums of chains are in double precision
    if config.sums == "double":
        return 2
    groups = plan.groups * config.teams
    sums = 0 if grid == 1 else ceil_div(grid, min(_MAX_SUMS, grid)) + min(_MAX_SUMS, grid)
    if config.reduction != "partials":
        sums = max(grid, grid * groups if config.reduction == "threads" else 0)
    return turns * products + groups + sums + 2


def kernel_name(problem: TsmttsmProblem) -> str:
    """Return the kernel's name, as ``tsmttsm_fma_f64_m8_n8``."""
    kind = SHORT_NAMES[problem.dtype_a]
    if problem.dtype_b != problem.dtype_a:
        kind += "_" + SHORT_NAMES[problem.dtype_b]
    return f"{problem.operation}_fma_{kind}_m{problem.M}_n{problem.N}"


def source(problem: TsmttsmProblem, config: Config, device: DeviceInfo, *, is_summed: bool = True) -> str:
    """Return the CUDA source of a configuration; it depends neither on K nor on the length of a pitch.

    Not summed, it leaves no result, as with `Config.reduction` ``"none"``.
    """
    plan = plan_of(shape_of(problem), config)
    a, b = plan.operands
    single = is_single(problem)
    types = {
        "RealA": C_TYPES[a.real_bytes],
        "RealB": C_TYPES[b.real_bytes],
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
        "REDUCTION": ("partials", "blocks", "threads", "none").index(
            config.reduction if is_summed else "none"
        ),
    }
    for name, operand, slab, vector in zip("AB", plan.operands, plan.slabs, plan.vectors, strict=True):
        constants[f"{name}_LINEAR"] = slab.is_linear if config.stages else operand.is_linear
        constants[f"{name}_VECTOR"] = vector
        constants |= slab.constants(name)
    constants |= {
        "B_OFFSET": plan.b_offset,
        "STAGE_BYTES": plan.stage_bytes,
        "PASS": plan.passed,
        "PRODUCT_OFFSET": plan.product_offset,
        "SCRATCH_OFFSET": plan.scratch_offset,
    }
    return render(kernel_name(problem), "dense/tsmttsm_fma.cu", constants, types)


def workspace_bytes(problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the bytes of workspace a launch needs; see `launch.partials_bytes`."""
    parts = parts_of(problem.dtype)
    partials = grid_of(problem, config, device) if config.reduction == "partials" else 1
    return partials_bytes(partials, problem.M * problem.N * parts)


def bind(function: Any, problem: TsmttsmProblem, config: Config, device: DeviceInfo) -> Callable[..., None]:
    """Return what starts the kernel, made of `source` with `shared_bytes`; see `launch.bind_product`."""
    blocks, shared = grid_of(problem, config, device), shared_bytes(problem, config, device)
    return bind_product(function, problem, blocks, config.threads, shared)
