"""TSMM by ordinary multiply-adds: B = alpha A C + beta B for all types, widths, pitches and alignments.

The kernel (``tsmm_fma.cu``) has the thread mappings of Ernst et al., "Performance engineering for real
and complex tall & skinny matrix multiplication kernels on GPUs" (2021), section "TSMM", and beyond the
paper a ring in shared memory through which rows come and go as contiguous ranges, so that odd widths cost
nothing. What can be chosen, and which choices are valid, is in ``tsmm_fma_config``; the search space and
the model that orders it are in ``tsmm_fma_model``; this file is the family's front and makes sources and
launches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..device import DeviceInfo
from ..launch import QUEUE_BYTES, bind_product, run_rows
from ..problem import TsmmProblem, is_complex, itemsize
from ..source import C_TYPES, SHORT_NAMES, render
from .layout import parts_of, supports
from .tsmm_fma_config import Config, deals, grid_of, plan_of, refuse, shape_of, shared_bytes
from .tsmm_fma_model import choose, predict, space

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
    plan = plan_of(shape_of(problem), config)
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
        "DEALS": deals(problem, config),
        "RUN": max(1, run_rows(problem) // config.rows),  # chunks are large: a second one costs order
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
    return render(kernel_name(problem), "dense/tsmm_fma.cu", constants, types)


def workspace_bytes(problem: TsmmProblem, config: Config, device: DeviceInfo) -> int:
    """Return the bytes of workspace a launch takes: counters, zero before the first launch and after each.

    Kernels that deal nothing out leave them alone, so that all are launched alike.
    """
    return QUEUE_BYTES


def bind(function: Any, problem: TsmmProblem, config: Config, device: DeviceInfo) -> Callable[..., None]:
    """Return what starts the kernel, made of `source` with `shared_bytes`; see `launch.bind_product`."""
    blocks, shared = grid_of(problem, config, device), shared_bytes(problem, config, device)
    return bind_product(function, problem, blocks, config.threads, shared)
