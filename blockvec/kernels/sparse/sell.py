"""SpMMV on SELL-C-sigma matrices: Y = alpha (S - shift I) X + beta Y for narrow row-major blocks.

The entries of 32 rows are interleaved, so that neighbouring lanes read neighbouring entries directly into
registers (``cuda/sparse/spmmv_sell.cu``). This takes a second copy of the matrix, which
``cuda/sparse/spmmv_sell_fill.cu`` fills. The search space and the time model are in `sell_model`.

References
----------
M. Kreutzer et al., "A unified sparse matrix data format for efficient general sparse matrix-vector
multiplication on modern processors with wide SIMD units", SIAM J. Sci. Comput. 36(5), C401-C423, 2014.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..limits import WARP, ceil_div, excess_registers, excess_threads
from ..problem import SpmmvProblem, is_complex, itemsize
from ..roofline import LEAST_BYTES, traffic
from ..source import SHORT_NAMES, c_type, constants_of, render
from .arrays import Load, address, namespace
from .conversion import ConvertedFamily
from .csr_plan import Plan, Walk
from .interface import constants, entry_bytes, pack_bytes, refuse_alignment, types_of
from .sell_plan import CHUNK, SellMatrix, layout

MAX_ROW_BYTES = 64  # of X
_FASTER_ROW_BYTES = 32
_MAX_SIGMA = 1 << 16  # rows: a position among them is stored in 16 bits
_MOST_FILLING = 1.25  # places for entries, relative to entries
_MAX_BLOCKS = 2**31 - 1  # per launch
_FILL_WARPS, _FILL_BATCH = 4, 8  # warps per block; entries per row at a time: a sector or more


@frozen
class SellConfig:
    """A configuration of the kernel.

    Attributes
    ----------
    vectors, vector : int
        Packs of columns per lane, and columns per pack.
    unroll : int
        Entries of a row whose rows of X are in flight.
    warps, blocks : int
        Warps per block, blocks per multiprocessor.
    persistent : bool
        Whether a block processes one patch of chunks after the other, instead of one only.
    planes : int
        On a three-dimensional grid, planes that the warps of a block process at a time.
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

    lanes: ClassVar[int] = 1  # per row


class SpmmvSell(ConvertedFamily[SellConfig]):
    """The family ``spmmv_sell``: sparse products of matrices in SELL-C-sigma form.

    A conversion takes the time of 4 to 10 products, and saves 3 to 50 per cent of each.
    """

    name = "spmmv_sell"
    Config = SellConfig

    def _refuse_matrix(self, problem: SpmmvProblem, device: DeviceInfo) -> str | None:
        if problem.width * itemsize(problem.dtype_x) > MAX_ROW_BYTES:
            return f"rows of X have at most {MAX_ROW_BYTES} bytes"
        return "rows are too uneven to be padded to one length" if problem.pattern == "uneven" else None

    def refuse(self, problem: SpmmvProblem, config: SellConfig, device: DeviceInfo) -> str | None:
        """Explain why a configuration is invalid for a problem; None if it is valid."""
        return refuse(problem, config, device)

    def is_faster(self, problem: SpmmvProblem) -> bool:
        """Check whether the family precedes `spmmv_csr` where nothing was tuned.

        On an H200 it took 0.6 to 0.97 of the time over stencils, lattice models and a band in all four types.
        """
        narrow = problem.width * itemsize(problem.dtype_x) <= _FASTER_ROW_BYTES
        return narrow and traffic(problem).total_bytes >= LEAST_BYTES

    def conversion(self, problem: SpmmvProblem, config: SellConfig) -> str:
        """Describe the form of the matrix that a configuration takes, when it is made, and its cost."""
        n_bytes = problem.nnz * entry_bytes(problem)
        return (
            f"after {self.converts_after(problem)} products the matrix is kept a second time, with its rows "
            f"interleaved (reads {n_bytes / 1e6:.1f} MB once, keeps as much); "
            "until then spmmv_csr gives the same bits"
        )

    def source(
        self, problem: SpmmvProblem, config: SellConfig, device: DeviceInfo, part: str = "rows"
    ) -> str:
        """Generate the CUDA source; see `SparseFamily.source`."""
        own = constants_of(config, "unroll", "sigma", "warps", "blocks", "planes")
        values = constants(problem, config) | own
        return render(self.kernel_name(problem), "sparse/spmmv_sell.cu", values, types_of(problem))

    def _conversion_source(self, problem: SpmmvProblem, config: SellConfig) -> str:
        return fill_source(problem, config.sigma)

    def form_key(self, problem: SpmmvProblem, config: SellConfig, device: DeviceInfo, plan: Plan) -> int:
        """Get sigma, the key of the form of a matrix that a configuration takes."""
        return config.sigma

    def convert(
        self, problem: SpmmvProblem, config: SellConfig, device: DeviceInfo, plan: Plan, load: Load
    ) -> SellMatrix | None:
        """Convert a matrix; None if padded rows would take too much memory. See `SparseFamily.convert`."""
        try:
            into = layout(plan, config.sigma)
        except OverflowError:
            return None
        if into.entries > _MOST_FILLING * plan.nnz:
            return None
        empty = namespace(plan.indices).empty
        columns = empty(into.entries, plan.indices.dtype)
        values = plan.codes.table if plan.codes else empty(into.entries, plan.data.dtype)
        form = SellMatrix(into, columns, values)
        fill(load(fill_source(problem, config.sigma), _fill_name(problem)), plan, form, problem.coded)
        return form

    def _launch(
        self, problem: SpmmvProblem, config: SellConfig, device: DeviceInfo, plan: Plan, form: SellMatrix
    ) -> tuple[int, int, tuple[Any, ...]]:
        index = np.int32 if problem.index_bytes == 4 else np.int64
        most = device.multiprocessors * config.blocks if config.persistent else _MAX_BLOCKS
        n_chunks = form.layout.n_chunks
        walk = Walk.of(plan, n_chunks, CHUNK, most, warps=config.warps, planes=config.planes)
        arrays = map(address, (form.layout.starts, form.columns, form.values, form.layout.order))
        extents = index(plan.n_rows), index(n_chunks)
        return walk.blocks, WARP * config.warps, (*arrays, *extents, *walk.arguments())


def refuse(problem: SpmmvProblem, config: SellConfig, device: DeviceInfo) -> str | None:
    """Explain why a configuration is invalid for a problem; None if it is valid."""
    threads = WARP * config.warps
    return (
        _refuse_shape(problem, config)
        or excess_threads(threads, config.blocks, device)
        or excess_registers(registers(problem, config), threads, config.blocks, device)
    )


def _refuse_shape(problem: SpmmvProblem, config: SellConfig) -> str | None:
    if config.vectors * config.vector != problem.width or pack_bytes(problem, config.vector)[0] > 16:
        return f"{config.vectors} packs of {config.vector} are not rows of {problem.width} columns"
    if (reason := refuse_alignment(problem, config)) is not None:
        return reason
    if config.sigma % CHUNK or not CHUNK <= config.sigma <= _MAX_SIGMA:
        return f"sorts every {config.sigma} rows; multiples of {CHUNK} to {_MAX_SIGMA} are possible"
    if config.warps % config.planes:
        return f"{config.warps} warps for {config.planes} planes"
    return None


def registers(problem: SpmmvProblem, config: SellConfig) -> int:
    """Estimate the registers per thread."""
    pack_x = config.vectors * config.vector * itemsize(problem.dtype_x) // 4
    pack_y = config.vectors * config.vector * itemsize(problem.dtype) // 4
    entry = entry_bytes(problem) // 4
    fused = 2 * config.vectors * config.vector + 2 if problem.shift == "column" else 0
    fused += 2 * pack_y if problem.chain in ("one", "general") else 0
    converted = pack_y // 2 if problem.dtype_x != problem.dtype else 0
    products = 4 if is_complex(problem.dtype_matrix) else 0
    around = 19 + (12 if problem.index_bytes == 8 else 0)
    gathers = config.unroll * (pack_x + entry + (1 if config.vectors > 1 else 0))
    return gathers + pack_y + fused + converted + products + around


def _fill_name(problem: SpmmvProblem) -> str:
    return f"spmmv_sell_fill_{SHORT_NAMES[problem.dtype_matrix]}"


def fill_source(problem: SpmmvProblem, sigma: int) -> str:
    """Generate the CUDA source of the kernel that fills a matrix in SELL-C-sigma form."""
    values = {
        "S_COMPLEX": is_complex(problem.dtype_matrix),
        "CODED": problem.coded,
        "SIGMA": sigma,
        "BATCH": _FILL_BATCH,
        "WARPS": _FILL_WARPS,
    }
    types = {"SReal": c_type(problem.dtype_matrix), "Index": types_of(problem)["Index"]}
    return render(_fill_name(problem), "sparse/spmmv_sell_fill.cu", values, types)


def fill(kernel: Any, plan: Plan, into: SellMatrix, coded: bool = False) -> None:
    """Queue the kernel of `fill_source`, which fills the columns and values of a laid-out matrix."""
    index = np.int32 if plan.index_bytes == 4 else np.int64
    rows = address(plan.indptr), *plan.entries(coded), *map(address, (into.layout.starts, into.layout.order))
    extents = index(plan.n_rows), index(into.layout.n_chunks)
    entries = address(into.columns), address(into.values)
    blocks = ceil_div(into.layout.n_chunks, _FILL_WARPS)
    kernel((blocks, 1), (WARP * _FILL_WARPS,), (*rows, *extents, *entries))
