"""SpMMV on SELL-C-sigma matrices: Y = alpha (S - shift I) X + beta Y for narrow row-major blocks.

The entries of 32 rows are interleaved, so that neighbouring lanes read neighbouring entries straight into
registers (``spmmv_sell.cu``). That takes a second copy of the matrix, which ``spmmv_sell_fill.cu``
fills as `layout` says. A row is summed up in the order of its entries: results are those of `spmmv_csr` in a
configuration chosen ``in_order``, to the last bit.

References
----------
M. Kreutzer et al., "A unified sparse matrix data format for efficient general sparse matrix-vector
multiplication on modern processors with wide SIMD units", SIAM J. Sci. Comput. 36(5), C401-C423, 2014.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..device import DeviceInfo
from ..problem import SpmmvProblem, is_complex, itemsize
from ..roofline import LEAST_BYTES, traffic
from ..source import SHORT_NAMES, render
from . import csr
from .csr_config import WARP, ceil_div
from .csr_plan import Plan, address
from .sell_config import CHUNK, Config, refuse
from .sell_model import choose, predict, space
from .sell_plan import Layout, Sell, layout
from .spmmv import Walk, constants, real_type, starter, types_name, types_of

__all__ = [
    "CONVERTS_AFTER",
    "Config",
    "Layout",
    "Sell",
    "bind",
    "choose",
    "conversion",
    "convert",
    "fill_name",
    "fill_source",
    "form_of",
    "is_faster",
    "kernel_name",
    "layout",
    "predict",
    "refuse",
    "shared_bytes",
    "source",
    "sources",
    "space",
    "supports",
]

CONVERTS_AFTER = 20
"""Products before a matrix is converted, which takes the time of 4 to 10, and saves 3 to 50 per cent."""

MAX_ROW_BYTES = 64
_FASTER_ROW_BYTES = 32
_MAX_BLOCKS = 2**31 - 1  # of a launch
_FILL_WARPS, _FILL_BATCH = 4, 8  # warps of a block; entries of a row: a sector or more


def supports(problem: SpmmvProblem, device: DeviceInfo) -> str | None:
    """Say why this family cannot run a problem, or None when it can."""
    if (reason := csr.supports(problem, device)) is not None:
        return reason
    if problem.dots or problem.gram:
        return "makes no sums"
    if problem.width * itemsize(problem.dtype_x) > MAX_ROW_BYTES:
        return f"rows of X have at most {MAX_ROW_BYTES} bytes"
    if problem.pattern == "uneven":
        return "rows are too uneven to fill them up to one length"
    if problem.longest > (most := csr.choose(problem, device, in_order=True).long_row):
        return f"rows of {problem.longest} entries; those of more than {most} are summed up in parts"
    return None


def is_faster(problem: SpmmvProblem) -> bool:
    """Whether to prefer the family to `spmmv_csr` where nothing was tuned.

    On an H200 it took 0.6 to 0.97 of the time over stencils, lattice models and a band in all four types.
    """
    narrow = problem.width * itemsize(problem.dtype_x) <= _FASTER_ROW_BYTES
    return narrow and traffic(problem).total_bytes >= LEAST_BYTES


def conversion(problem: SpmmvProblem) -> str:
    """Say what a matrix must be turned into, when, and what that costs."""
    n_bytes = problem.nnz * (itemsize(problem.dtype_matrix) + problem.index_bytes)
    return (
        f"after {CONVERTS_AFTER} products the matrix is kept a second time, its rows interleaved (reads "
        f"{n_bytes / 1e6:.1f} MB once, keeps as much); until then spmmv_csr gives the same bits"
    )


def kernel_name(problem: SpmmvProblem) -> str:
    """Return the kernel's name, as ``spmmv_sell_f64_w2``."""
    return f"spmmv_sell_{types_name(problem)}_w{problem.width}"


def source(problem: SpmmvProblem, config: Config) -> str:
    """Return the CUDA source of a configuration.

    It depends on the width, the types, the classes of the factors and the chain alone.
    """
    own = {
        "UNROLL": config.unroll,
        "SIGMA": config.sigma,
        "WARPS": config.warps,
        "BLOCKS": config.blocks,
        "PLANES": config.planes,
    }
    values = constants(problem, config) | own
    return render(kernel_name(problem), "sparse/spmmv_sell.cu", values, types_of(problem))


def fill_name(problem: SpmmvProblem) -> str:
    """Return the name of the kernel that converts entries, as ``spmmv_sell_fill_f64``."""
    return f"spmmv_sell_fill_{SHORT_NAMES[problem.dtype_matrix]}"


def fill_source(problem: SpmmvProblem, sigma: int) -> str:
    """Return the CUDA source of the kernel that converts entries."""
    values = {
        "S_COMPLEX": is_complex(problem.dtype_matrix),
        "SIGMA": sigma,
        "BATCH": _FILL_BATCH,
        "WARPS": _FILL_WARPS,
    }
    types = {"SReal": real_type(problem.dtype_matrix), "Index": types_of(problem)["Index"]}
    return render(fill_name(problem), "sparse/spmmv_sell_fill.cu", values, types)


def sources(problem: SpmmvProblem, config: Config) -> list[str]:
    """Return the sources that a product with a matrix will need, to compile them ahead of its first use."""
    return [source(problem, config), fill_source(problem, config.sigma)]


def form_of(_problem: SpmmvProblem, config: Config, _device: DeviceInfo, _plan: Plan) -> int:
    """Return what the form of a matrix that a configuration takes is kept by."""
    return config.sigma


def shared_bytes(_problem: SpmmvProblem, _config: Config) -> int:
    """Return the bytes of dynamic shared memory of a block."""
    return 0


def convert(fill: Any, plan: Plan, into: Layout, columns: Any, values: Any) -> Sell:
    """Convert a matrix on CuPy's current stream.

    Parameters
    ----------
    fill : cupy.cuda.function.Function
        What `compile.function` made of `fill_source`.
    plan : Plan
        The matrix.
    into : Layout
        Where entries go.
    columns, values : array of the types of `plan`, shape (into.entries,)
        Memory for them.
    """
    index = np.int32 if plan.index_bytes == 4 else np.int64
    fill(
        (ceil_div(into.n_chunks, _FILL_WARPS), 1),
        (WARP * _FILL_WARPS,),
        (
            *(address(plan.indptr), address(plan.indices), address(plan.data)),
            *(address(into.starts), address(into.order), index(plan.n_rows), index(into.n_chunks)),
            *(address(columns), address(values)),
        ),
    )
    return Sell(into, columns, values)


def bind(
    kernel: Any, problem: SpmmvProblem, config: Config, device: DeviceInfo, plan: Plan, matrix: Sell
) -> Callable[..., None]:
    """Return what starts the kernel on CuPy's current stream, all but its operands worked out.

    Parameters
    ----------
    kernel : cupy.cuda.function.Function
        What `compile.function` made of `source`.
    problem, config, device
        What it was made for; n_rows, nnz and leading dimensions may be others.
    plan : Plan
        The matrix in compressed rows, its indices of `problem.index_bytes`.
    matrix : Sell
        The same, converted with the configuration's sigma.

    Returns
    -------
    callable
        ``launch(X_ptr, Y_ptr, alpha, beta, shift=0, shifts_ptr=0, Z_ptr=0, delta=0, eta=0)``: see
        `spmmv.operands`.
    """
    index = np.int32 if problem.index_bytes == 4 else np.int64
    most = device.multiprocessors * config.blocks if config.persistent else _MAX_BLOCKS
    walk = Walk.of(matrix.layout.n_chunks, CHUNK, most, config, plan)
    arrays = matrix.layout.starts, matrix.columns, matrix.values, matrix.layout.order
    fixed = *map(address, arrays), index(plan.n_rows), index(matrix.layout.n_chunks), *walk.arguments()
    return starter(kernel, problem, walk.blocks, WARP * config.warps, fixed)
