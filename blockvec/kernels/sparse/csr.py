"""SpMMV on CSR matrices: Y = alpha (S - shift I) X + beta Y for row-major blocks of any width and type.

The kernel (``cuda/sparse/spmmv_csr.cu`` says how it works) streams the matrix through shared memory and
gathers rows of X, lanes running along columns; long rows go to ``cuda/sparse/spmmv_csr_long.cu``. What can be
chosen, and which choices are valid, is in ``spmmv_csr_config``; the search space and the model that orders it
are in ``spmmv_csr_model``; this file is the family's front and makes sources and launches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from ..device import DeviceInfo
from ..problem import DOTS, GRAMS, SpmmvProblem, is_complex, itemsize, promote
from ..source import render
from .csr_config import (
    GRAM_WIDTH,
    WARP,
    Config,
    architecture_of,
    carveout,
    ceil_div,
    long_warps,
    refuse,
    row_entries,
)
from .csr_model import choose, predict, space
from .csr_plan import TASK_ENTRIES, Plan, Units, address, prepare
from .spmmv import Walk, constants, operands, real_type, types_name, types_of

__all__ = [
    "Config",
    "Kernels",
    "Part",
    "bind",
    "carveout",
    "chain_length",
    "choose",
    "conversion",
    "kernel_name",
    "parts",
    "predict",
    "prepare",
    "refuse",
    "refuse_sums",
    "source",
    "sources",
    "space",
    "supports",
    "workspace_bytes",
]

Part = Literal["rows", "tasks", "sums", "totals"]

_MAX_PITCH = 2**31  # bytes
# Entries of a row, times tiles of eight columns a side, beyond which the warps that a Gram matrix costs by
# its registers are worth more than the passes it saves; the 27-point stencil with 16 columns just gains.
_GRAM_ENTRIES = 64
_TOTAL_THREADS, _TOTAL_LANES = 256, 4  # of the kernel that adds up dots: 32 bytes of neighbouring ones
# Held while kernels start that hand on partial sums through a stream's workspace: those of another thread
# would overwrite them.
_HANDING_ON = threading.Lock()
_DOTS = {"xx": 1, "xy": 2, "yy": 4}
_GRAM = {"xy": 1, "yy": 2}


def supports(problem: SpmmvProblem, device: DeviceInfo) -> str | None:
    """Say why this family cannot run a problem, or None when it can."""
    if device.kind != "cuda" or architecture_of(device) < 80:
        return f"{device.name} has no asynchronous copies to shared memory"
    if min(problem.n_rows, problem.width) < 1:
        return "has no rows or columns to multiply"
    pitch = max(problem.ldx * itemsize(problem.dtype_x), problem.ldy * itemsize(problem.dtype))
    if pitch >= _MAX_PITCH:
        return f"rows are {pitch} bytes apart, at most {_MAX_PITCH - 1} are possible"
    if problem.index_bytes == 4 and problem.n_rows > 2**31 - 2**24:
        return f"{problem.n_rows} rows need 64-bit indices"
    if problem.gram and not 1 < problem.width <= GRAM_WIDTH:
        return f"makes Gram matrices of 2 to {GRAM_WIDTH} columns"
    if problem.gram and row_entries(problem) > (most := _GRAM_ENTRIES // ceil_div(problem.width, 8)):
        return f"Gram matrices are faster on their own beside more than {most} entries a row"
    return None


def refuse_sums(problem: SpmmvProblem, config: Config) -> str | None:
    """Say why a configuration cannot make a problem's sums in the pass, or None when it can."""
    if (problem.dots or problem.gram) and problem.longest > config.long_row:
        return f"rows of {problem.longest} entries are made apart from the others, and sums take all rows"
    return None


def chain_length(problem: SpmmvProblem, config: Config) -> int:
    """Return the longest chain of additions that an element of Y goes through, for error bounds."""
    parts = 2 if is_complex(problem.dtype_matrix) and is_complex(problem.dtype_x) else 1
    chain = ceil_div(min(config.long_row, max(1, problem.nnz)), config.split) + config.split.bit_length() - 1
    if problem.nnz > config.long_row:
        groups = long_warps(problem, config) * (WARP // config.lanes)
        tasks = ceil_div(problem.nnz, TASK_ENTRIES)
        tree = groups.bit_length()
        chain = max(chain, ceil_div(TASK_ENTRIES, groups) + tree + ceil_div(tasks, groups) + tree)
    return parts * chain + 3


def kernel_name(problem: SpmmvProblem, part: Part = "rows") -> str:
    """Return a kernel's name, as ``spmmv_csr_f64_w16``."""
    suffix = "" if part == "rows" else f"_{part}"
    return f"spmmv_csr_{types_name(problem)}_w{problem.width}{suffix}"


def source(problem: SpmmvProblem, config: Config, part: Part = "rows") -> str:
    """Return the CUDA source of one kernel of a configuration; see `parts`.

    It depends on the width, the types, the classes of the factors and what is fused alone.
    """
    dots = sum(_DOTS[kind] for kind in problem.dots)
    gram = sum(_GRAM[kind] for kind in problem.gram)
    if part == "totals":
        sums: dict[str, bool | int | float] = {
            "WIDTH": problem.width,
            "DOTS": dots,
            "GRAM": gram,
            "COMPLEX": is_complex(problem.dtype),
            "THREADS": _TOTAL_THREADS,
            "LANES": _TOTAL_LANES,
        }
        parts = {"XReal": real_type(problem.dtype_x), "YReal": real_type(problem.dtype)}
        return render(kernel_name(problem, part), "sparse/spmmv_totals.cu", sums, parts)
    own: dict[str, bool | int | float]
    if part == "rows":
        own = {
            "SPLIT": config.split,
            "UNROLL": config.unroll,
            "ROWS": config.rows,
            "ENTRIES": config.entries,
            "LONG_ROW": config.long_row,
            "STAGES": config.stages,
            "WARPS": config.warps,
            "BLOCKS": config.blocks,
            "PLANES": config.planes,
            "FLAT": config.flat,
            "SWIZZLE": config.swizzle,
        }
    else:
        warps = long_warps(problem, config)
        unroll = max(1, (8 if warps == 1 else 4) // config.vectors)
        own = {"UNROLL": unroll, "WARPS": warps, "SUMS": part == "sums"}
    body = "sparse/spmmv_csr.cu" if part == "rows" else "sparse/spmmv_csr_long.cu"
    shared = constants(problem, config, *((dots, gram) if part == "rows" else ()))
    return render(kernel_name(problem, part), body, shared | own, types_of(problem))


@dataclass(frozen=True, slots=True)
class Kernels:
    """The loaded kernels of a configuration; those that the matrix has no use for are None, see `parts`."""

    rows: Any
    tasks: Any = None
    sums: Any = None
    totals: Any = None


def _units(config: Config, plan: Plan) -> Units:
    return plan.units(config.rows, config.entries, config.long_row)


def parts(problem: SpmmvProblem, config: Config, plan: Plan) -> tuple[Part, ...]:
    """Return which kernels are needed: beside ``"rows"`` two for long ones, and one for sums."""
    units = _units(config, plan)
    wanted: list[Part] = ["rows"]
    wanted += ["tasks"] if units.tasks is not None else []
    wanted += ["sums"] if units.sums is not None else []
    wanted += ["totals"] if problem.dots or problem.gram else []
    return tuple(wanted)


def sources(problem: SpmmvProblem, config: Config) -> list[str]:
    """Return the sources that a product with a matrix will need, to compile them ahead of its first use."""
    if refuse_sums(problem, config) is not None:
        return sources(replace(problem, dots=(), gram=()), config)
    wanted: list[Part] = ["rows"]
    wanted += ["totals"] if problem.dots or problem.gram else []
    wanted += ["tasks", "sums"] if problem.longest > config.long_row else []
    return [source(problem, config, part) for part in wanted]


def workspace_bytes(problem: SpmmvProblem, config: Config, device: DeviceInfo, plan: Plan) -> int:
    """Return the bytes of scratch memory a launch needs, aligned to 16 bytes; most need none."""
    units = _units(config, plan)
    slots = units.slots * problem.width * itemsize(problem.dtype)
    sums = _walk(problem, config, device, plan).blocks * _sums(problem)
    return slots or sums * itemsize(promote(problem.dtype, "float64"))


def _sums(problem: SpmmvProblem) -> int:
    """Return the numbers that column dots and Gram matrices have."""
    return problem.width * (len(problem.dots) + len(problem.gram) * problem.width)


def conversion(problem: SpmmvProblem, config: Config) -> str:
    """Say what a matrix must be turned into for a configuration, and what that costs."""
    units = ceil_div(problem.n_rows, config.rows)
    return (
        f"the matrix is used as it is, its rows cut once into about {units} units "
        f"(reads {(problem.n_rows + 1) * problem.index_bytes / 1e6:.1f} MB, keeps up to "
        f"{(units + 1) * problem.index_bytes / 1e6:.1f} MB)"
    )


def _walk(problem: SpmmvProblem, config: Config, device: DeviceInfo, plan: Plan) -> Walk:
    most = max(1, device.multiprocessors * config.blocks // ceil_div(problem.width, config.tile))
    return Walk.of(_units(config, plan).n_units, config.rows, most, config, plan)


def bind(
    kernels: Kernels, problem: SpmmvProblem, config: Config, device: DeviceInfo, plan: Plan
) -> Callable[..., None]:
    """Return what starts the kernels on CuPy's current stream, all but its operands worked out.

    Parameters
    ----------
    kernels : Kernels
        What `compile.function` made of `source`, for the `parts` of this matrix.
    problem, config, device
        What they were made for; n_rows, nnz and leading dimensions may be others.
    plan : Plan
        The matrix, its indices of `problem.index_bytes`.

    Returns
    -------
    callable
        ``launch(X_ptr, Y_ptr, alpha, beta, shift=0, shifts_ptr=0, Z_ptr=0, delta=0, eta=0, workspace_ptr=0,
        dots={}, gram={})``: see `spmmv.operands`; `workspace_bytes` bytes belong to the stream; `dots` and
        `gram` map the names of the problem's column dots and Gram matrices to addresses.

    Raises
    ------
    ValueError
        If sums are asked for and the matrix has long rows; at a launch, if a workspace is needed and there is
        none.
    """
    units, tiles = _units(config, plan), ceil_div(problem.width, config.tile)
    n_sums = _sums(problem)
    if units.tasks is not None and n_sums:
        raise ValueError(f"spmmv_csr: no sums in the pass over a matrix with rows of {plan.longest} entries")
    walk, needed = _walk(problem, config, device, plan), workspace_bytes(problem, config, device, plan)
    index = np.int32 if problem.index_bytes == 4 else np.int64
    entries = address(plan.indices), address(plan.data)
    blocks, threads = (walk.blocks * tiles, 1), (WARP * config.warps,)
    matrix = address(plan.indptr), *entries, index(plan.n_rows)
    dealt = address(units.cuts), index(units.n_units), *walk.arguments()
    long_threads = (WARP * long_warps(problem, config),)
    long_rows = [
        (kernel, (len(tasks), tiles), address(tasks))
        for kernel, tasks in ((kernels.tasks, units.tasks), (kernels.sums, units.sums))
        if tasks is not None
    ]

    def launch(
        *addresses_and_factors: Any,
        workspace_ptr: int = 0,
        dots: Mapping[str, int] = MappingProxyType({}),
        gram: Mapping[str, int] = MappingProxyType({}),
        **more: Any,
    ) -> None:
        if needed and not workspace_ptr:
            raise ValueError(f"spmmv_csr: {needed} bytes of workspace are needed, got none")
        given = operands(problem, *addresses_and_factors, **more)
        with _HANDING_ON if needed else nullcontext():
            kernels.rows(blocks, threads, (*matrix, *dealt, workspace_ptr, *given))
            for kernel, long_blocks, tasks_ptr in long_rows:
                kernel(long_blocks, long_threads, (tasks_ptr, *entries, workspace_ptr, *given))
            if n_sums:
                results = *(dots.get(kind, 0) for kind in DOTS), *(gram.get(kind, 0) for kind in GRAMS)
                of_blocks = workspace_ptr, np.int32(walk.blocks)
                lanes = ceil_div(n_sums, _TOTAL_LANES)
                kernels.totals((lanes, 1), (_TOTAL_THREADS,), (*of_blocks, *results))

    return launch
