"""A wide basis W times a narrow block V, and back, in one sweep over both on FP64 tensor cores (sm_90).

The kernel (``sweep_mma.cu`` says how it works) serves three kinds of problems: TSMTTSM where one operand
is wide (W^H V or V^H W), TSMM that leads from a wide block to a narrow one (V = alpha W C + beta V), and
`SweepProblem`, two products of which the second takes up the rows that the first has just made. Here is the
family's front; what can be chosen and the model that orders it are in ``sweep_mma_config``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..device import DeviceInfo
from ..launch import partials_bytes
from ..problem import SweepProblem, TsmmProblem, TsmttsmProblem
from ..source import render
from .sweep_mma_config import (
    Config,
    SweepLike,
    choose,
    grid,
    layout,
    predict,
    refuse,
    shape_of,
    shared_bytes,
    space,
    supports,
)
from .tsmttsm_mma_config import ceil_div

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


def chain_length(problem: SweepLike, config: Config, device: DeviceInfo) -> int:
    """Return the longest chain of additions that an element of a result goes through, for error bounds."""
    shape = shape_of(problem)
    update = shape.parts * ceil_div(shape.M, config.wc) + config.wc + 1 if shape.update else 0
    scale = shape.parts * shape.N if shape.scale else 0
    if not shape.has_sum:
        return update
    blocks = grid(problem, config, device)
    turns = ceil_div(ceil_div(shape.K, config.rows), blocks)
    shares = config.warps if shape.gram else config.warps // config.wc
    rows = turns * ceil_div(config.rows // 4, shares) * 4 * shape.parts
    sums = 0 if blocks == 1 else ceil_div(blocks, min(_MAX_SUMS, blocks)) + min(_MAX_SUMS, blocks)
    return update + scale + rows + shares + max(sums, blocks if sums else 0)


def kernel_name(problem: SweepLike) -> str:
    """Return the kernel's name, as ``combine_dot_mma_f64_m128_n8``."""
    kind = "c128" if shape_of(problem).parts == 2 else "f64"
    return f"{problem.operation}_sweep_{kind}_m{problem.M}_n{problem.N}"


def source(problem: SweepLike, config: Config, device: DeviceInfo) -> str:
    """Return the CUDA source of a configuration; it depends neither on K nor on the length of a pitch."""
    shape, where = shape_of(problem), layout(problem, config)
    constants: dict[str, bool | int | float] = {
        "M": shape.M,
        "N": shape.N,
        "COMPLEX": shape.parts == 2,
        "UPDATE": shape.update,
        "SCALE": shape.scale,
        "DOT": shape.dot,
        "GRAM": shape.gram,
        "CONJ": shape.conj,
        "TRANSPOSED": shape.transposed,
        "ALPHA_ONE": shape.alpha == "one",
        "BETA": ("zero", "one", "general").index(shape.beta),
        "W_PIECE": shape.w_piece,
        "V_PIECE": shape.v_piece,
        "ROWS": config.rows,
        "STAGES": config.stages,
        "WARPS": config.warps,
        "WC": config.wc,
        "BLOCKS": config.blocks,
        "W_PITCH": where.w_pitch,
        "V_PITCH": where.v_pitch,
    }
    return render(kernel_name(problem), "dense/sweep_mma.cu", constants)


def workspace_bytes(problem: SweepLike, config: Config, device: DeviceInfo) -> int:
    """Return the bytes of workspace a launch takes, 0 for A C: see `launch.partials_bytes`."""
    shape = shape_of(problem)
    if not shape.has_sum:
        return 0
    return partials_bytes(grid(problem, config, device), shape.sum_bytes // 8)


def bind(function: Any, problem: SweepLike, config: Config, device: DeviceInfo) -> Callable[..., None]:
    """Return what starts the kernel on CuPy's current stream.

    Parameters
    ----------
    function : Kernel
        What `compile.function` made of `source`, with `shared_bytes` of dynamic shared memory.
    problem, config, device
        What `function` was made for; K and pitches may be others.

    Returns
    -------
    callable
        By type of problem, all pointers being device addresses: TSMTTSM ``(A, B, C, alpha, beta,
        workspace)``; TSMM ``(A, C, B, alpha, beta)``; a sweep ``(W, V, C, S, workspace)``. Small matrices
        are contiguous; the workspace has `workspace_bytes` that belong to the stream.
    """
    shape = shape_of(problem)
    blocks, threads = (grid(problem, config, device),), (32 * config.warps,)
    shared = shared_bytes(problem, config, device)
    size = 8 * shape.parts
    extents = shape.K, shape.ldw * size, shape.ldv * size

    def start(W: int, V: int, C: int, S: int, alpha: complex, beta: complex, workspace: int) -> None:
        a, b = complex(alpha), complex(beta)
        factors = a.real, a.imag, b.real, b.imag
        function(blocks, threads, (W, V, C, S, *extents, *factors, workspace), shared)

    def dot(A: int, B: int, S: int, alpha: complex, beta: complex, workspace: int) -> None:
        W, V = (B, A) if shape.transposed else (A, B)
        start(W, V, 0, S, alpha, beta, workspace)

    def combine(W: int, C: int, V: int, alpha: complex, beta: complex) -> None:
        start(W, V, C, 0, alpha, beta, 0)

    def sweep(W: int, V: int, C: int, S: int, workspace: int) -> None:
        start(W, V, C, S, -1, 1, workspace)  # the factors of an update; the other sweep has none

    match problem:
        case TsmttsmProblem():
            return dot
        case TsmmProblem():
            return combine
        case SweepProblem():
            return sweep
