"""SpMMV on grids of planes: Y = alpha (S - shift I) X + beta Y, rows of X used from shared memory.

Blocks march through the planes of a three-dimensional grid with a patch each, and keep the rows of X that
the patch needs in a ring in shared memory (``spmmv_planes.cu``). Which rows are brought when, and where
each entry finds its own, is planned once for a matrix (``spmmv_planes_plan.cu``), of which nothing is
assumed but that the plan fits. A row is summed up in the order of its entries: results are those of
`spmmv_csr` in a configuration chosen ``in_order``, to the last bit.

References
----------
A. Nguyen et al., "3.5-D blocking optimization for stencil computations on modern CPUs and GPUs", SC 2010,
for the blocking of grids in two dimensions with a march along the third.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..device import DeviceInfo
from ..problem import SpmmvProblem, itemsize
from ..roofline import LEAST_BYTES, traffic
from ..source import render
from . import csr
from .csr_config import WARP, ceil_div
from .csr_plan import Plan, address
from .planes_config import PIECE, Config, brought, refuse, shared_bytes
from .planes_model import choose, predict, space
from .planes_plan import Geometry, March, geometry
from .spmmv import constants, starter, types_name, types_of

__all__ = [
    "CONVERTS_AFTER",
    "MOST_IMBALANCE",
    "PLAN_NAME",
    "Config",
    "Geometry",
    "March",
    "bind",
    "brought",
    "choose",
    "conversion",
    "form_of",
    "is_faster",
    "kernel_name",
    "make_plan",
    "plan_source",
    "predict",
    "refuse",
    "shared_bytes",
    "source",
    "sources",
    "space",
    "supports",
]

CONVERTS_AFTER = 20
"""Products before a march is planned, which takes the time of 2 to 4, and saves 7 to 13 per cent."""

PLAN_NAME = "spmmv_march_plan"

MOST_IMBALANCE = 1.35
"""Work of the busiest block, relative to an equal share, beyond which a grid is not marched through."""

_LEAST_ROW_BYTES, _FASTER_ROW_BYTES = 64, 128
_MOST_ENTRIES, _FASTER_ENTRIES = 64, 7
_PLAN_WARPS, _PLAN_TABLE = 16, 2048


def supports(problem: SpmmvProblem, device: DeviceInfo) -> str | None:
    """Say why this family cannot run a problem, or None when it can."""
    if (reason := csr.supports(problem, device)) is not None:
        return reason
    if problem.dots or problem.gram:
        return "makes no sums"
    if problem.pattern != "planes":
        return "marches through grids of planes alone"
    if problem.dtype_x != problem.dtype:
        return f"takes blocks of the result's type, {problem.dtype}"
    if problem.index_bytes != 4:
        return "takes 32-bit indices"
    row = problem.width * itemsize(problem.dtype_x)
    if row < _LEAST_ROW_BYTES or row % PIECE or problem.align_x % PIECE:
        return f"takes rows of X of {_LEAST_ROW_BYTES} bytes and more, in aligned pieces of {PIECE}"
    if problem.longest > _MOST_ENTRIES:
        return f"rows of {problem.longest} entries, at most {_MOST_ENTRIES} are possible"
    if all(refuse(problem, config, device) for config in space(problem)):
        return (
            f"no tiles of 64 to 256 bytes, of even numbers of {PIECE}, that fit make up rows of {row} bytes"
        )
    return None


def is_faster(problem: SpmmvProblem) -> bool:
    """Whether to prefer the family to `spmmv_csr` where nothing was tuned.

    On an H200 it took 0.87 to 0.93 of the time on the stencil of 7 points with 16 and more columns in double
    precision, each tuned; on that of 27 points as long with 16, and longer with more.
    """
    wide = problem.width * itemsize(problem.dtype_x) >= _FASTER_ROW_BYTES
    few = problem.longest <= _FASTER_ENTRIES
    return wide and few and problem.pattern == "planes" and traffic(problem).total_bytes >= LEAST_BYTES


def conversion(problem: SpmmvProblem) -> str:
    """Say what a matrix must be prepared for, when, and what that costs."""
    kept = 2 * problem.nnz + 9 * problem.n_rows
    return (
        f"after {CONVERTS_AFTER} products a march through its grid is planned (reads the matrix's pattern "
        f"twice, keeps {kept / 1e6:.1f} MB); until then spmmv_csr gives the same bits"
    )


def kernel_name(problem: SpmmvProblem) -> str:
    """Return the kernel's name, as ``spmmv_march_f64_w16``."""
    return f"spmmv_march_{types_name(problem)}_w{problem.width}"


def source(problem: SpmmvProblem, config: Config) -> str:
    """Return the CUDA source of a configuration.

    It depends on the width, the types, the classes of the factors and the chain alone.
    """
    own = {
        "SHARED_BYTES": shared_bytes(problem, config),
        "UNROLL": config.unroll,
        "ENTRIES": config.entries,
        "ACROSS": config.across,
        "LINES": config.lines,
        "WARPS": config.warps,
        "BLOCKS": config.blocks,
    }
    values = constants(problem, config) | own
    return render(kernel_name(problem), "sparse/spmmv_planes.cu", values, types_of(problem))


def plan_source(across: int, lines: int, entries: int) -> str:
    """Return the CUDA source of the kernel that plans a march."""
    values = {
        "ACROSS": across,
        "LINES": lines,
        "ENTRIES": entries,
        "TABLE": _PLAN_TABLE,
        "WARPS": _PLAN_WARPS,
    }
    return render(PLAN_NAME, "sparse/spmmv_planes_plan.cu", values)


def sources(problem: SpmmvProblem, config: Config) -> list[str]:
    """Return the sources that a product with a matrix will need, to compile them ahead of its first use."""
    return [source(problem, config), plan_source(config.across, config.lines, config.entries)]


def form_of(problem: SpmmvProblem, config: Config, device: DeviceInfo, plan: Plan) -> Geometry:
    """Return how a configuration marches through the grid of a matrix: what a `March` is kept by."""
    programs = max(1, device.multiprocessors * config.blocks // ceil_div(problem.width, config.tile))
    patch = config.across, config.lines
    return geometry(plan.n_rows, plan.line, plan.plane, patch, config.entries, programs)


def make_plan(kernel: Any, plan: Plan, into: March, failed: Any) -> None:
    """Plan a march on CuPy's current stream.

    Parameters
    ----------
    kernel : cupy.cuda.function.Function
        What `compile.function` made of `plan_source`.
    plan : Plan
        The matrix.
    into : March
        Its geometry, and memory for the rest.
    failed : array of int32, shape (1,)
        Zero; becomes 1 where steps need more rows of X than there is room for.
    """
    pattern, outputs = (plan.indptr, plan.indices), (into.counts, into.loads, into.slots, failed)
    kernel(
        (into.geometry.programs, 1),
        (WARP * _PLAN_WARPS,),
        (*map(address, pattern), *into.geometry.arguments(), *map(address, outputs)),
    )


def bind(
    kernel: Any, problem: SpmmvProblem, config: Config, device: DeviceInfo, plan: Plan, march: March
) -> Callable[..., None]:
    """Return what starts the kernel on CuPy's current stream, all but its operands worked out.

    Parameters
    ----------
    kernel : cupy.cuda.function.Function
        What `compile.function` made of `source`.
    problem, config, device
        What it was made for; n_rows, nnz and leading dimensions may be others.
    plan : Plan
        The matrix in compressed rows.
    march : March
        Its march, with the geometry that is the form of the configuration.

    Returns
    -------
    callable
        ``launch(X_ptr, Y_ptr, alpha, beta, shift=0, shifts_ptr=0, Z_ptr=0, delta=0, eta=0)``: see
        `spmmv.operands`.
    """
    blocks = march.geometry.programs * ceil_div(problem.width, config.tile)
    arrays = plan.indptr, plan.data, march.slots, march.counts, march.loads
    fixed = *map(address, arrays), *march.geometry.arguments()
    return starter(kernel, problem, blocks, WARP * config.warps, fixed, shared_bytes(problem, config))
