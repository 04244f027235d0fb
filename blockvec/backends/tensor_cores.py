"""The two products of tall blocks through blockvec's own FP64 tensor-core kernels, on CuPy arrays."""

from __future__ import annotations

import functools
from typing import Any

from ..kernels import tsmm_mma, tsmttsm_mma
from ..kernels.compile import function
from ..kernels.problem import TsmmProblem, TsmttsmProblem
from .base import Array
from .gpu import Gpu

__all__ = ["configuration", "refusal", "tsmm", "tsmttsm"]

MIN_WORKSPACE_BYTES = 16 << 20  # partial sums of 132 blocks of a 64 x 64 complex product are half of it


def refusal(gpu: Gpu, problem: TsmttsmProblem | TsmmProblem) -> str:
    """Return why the kernels cannot run a problem; empty when they can."""
    if problem.K == 0:
        return "there are no rows"
    if isinstance(problem, TsmttsmProblem):
        return tsmttsm_mma.supports(problem, gpu.info) or ""
    return tsmm_mma.supports(problem, gpu.info) or ""


def configuration(gpu: Gpu, problem: TsmttsmProblem | TsmmProblem) -> str:
    """Return the configuration that the model chooses for a problem, as text."""
    family: Any = tsmttsm_mma if isinstance(problem, TsmttsmProblem) else tsmm_mma
    return f"{family.choose(problem, gpu.info)}, the model's choice"


def tsmttsm(
    gpu: Gpu, problem: TsmttsmProblem, A: Array, B: Array, C: Array, alpha: complex, beta: complex
) -> None:
    """C = alpha A^H B + beta C, or with A^T where the problem is not `conj`."""
    config, kernel, bytes_needed = _prepared_tsmttsm(gpu, problem)
    pointers = (A.data.ptr, B.data.ptr, C.data.ptr)
    workspace = _workspace(gpu, bytes_needed)
    tsmttsm_mma.launch(kernel, problem, config, gpu.info, *pointers, alpha, beta, workspace.data.ptr)


def tsmm(gpu: Gpu, problem: TsmmProblem, A: Array, C: Array, B: Array, alpha: complex, beta: complex) -> None:
    """B = alpha A C + beta B."""
    config, kernel = _prepared_tsmm(gpu, problem)
    tsmm_mma.launch(kernel, problem, config, gpu.info, A.data.ptr, C.data.ptr, B.data.ptr, alpha, beta)


@functools.lru_cache(maxsize=4096)
def _prepared_tsmttsm(gpu: Gpu, problem: TsmttsmProblem) -> tuple[Any, Any, int]:
    config = tsmttsm_mma.choose(problem, gpu.info)
    source = tsmttsm_mma.source(problem, config, gpu.info)
    shared = tsmttsm_mma.shared_bytes(problem, config, gpu.info)
    kernel = function(source, tsmttsm_mma.kernel_name(problem), gpu.info.architecture, shared)
    return config, kernel, tsmttsm_mma.workspace_bytes(problem, config, gpu.info)


@functools.lru_cache(maxsize=4096)
def _prepared_tsmm(gpu: Gpu, problem: TsmmProblem) -> tuple[Any, Any]:
    config = tsmm_mma.choose(problem, gpu.info)
    source = tsmm_mma.source(problem, config, gpu.info)
    shared = tsmm_mma.shared_bytes(problem, config, gpu.info)
    return config, function(source, tsmm_mma.kernel_name(problem), gpu.info.architecture, shared)


_workspaces: dict[tuple[int, int], list[Any]] = {}


def _workspace(gpu: Gpu, bytes_needed: int) -> Array:
    """Return scratch memory of the current stream, whose counters at its head are zero between launches.

    Outgrown ones are kept, since a captured graph may still refer to them.
    """
    import cupy

    generations = _workspaces.setdefault((gpu.id, cupy.cuda.get_current_stream().ptr), [])
    if not generations or generations[-1].nbytes < bytes_needed:
        generations.append(cupy.zeros(max(bytes_needed, MIN_WORKSPACE_BYTES) // 8 + 1))
    return generations[-1]
