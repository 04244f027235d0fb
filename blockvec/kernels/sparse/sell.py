"""SpMMV on SELL-C matrices: Y = alpha (S - shift I) X + beta Y for narrow row-major blocks.

The entries of 32 rows are interleaved, so that neighbouring lanes read neighbouring entries directly into
registers (``cuda/sparse/spmmv_sell.cu``). This takes a second copy of the matrix, which
``cuda/sparse/spmmv_sell_fill.cu`` fills. Rows keep their order.

References
----------
M. Kreutzer et al., "A unified sparse matrix data format for efficient general sparse matrix-vector
multiplication on modern processors with wide SIMD units", SIAM J. Sci. Comput. 36(5), C401-C423, 2014.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..limits import WARP, ceil_div, excess
from ..problem import SpmmvProblem, is_complex, itemsize
from ..roofline import LEAST_BYTES, traffic
from ..source import Kernel, c_type, constants_of, kernel
from . import pieces
from .arrays import Array, Load, address, namespace
from .csr import LEAST_LONG_ROW, SpmmvCsr
from .csr_plan import Plan, walk
from .family import SparseFamily
from .interface import (
    alignment,
    bind_with_sums,
    constants,
    entry_bytes,
    row_entries,
    types_of,
    unroll_of,
    widest_pack,
)

CHUNK = 32  # rows, C of SELL-C: one per lane
MAX_ROW_BYTES = 64  # of X
_FASTER_ROW_BYTES = 32
_LEAST_PRODUCTS = 20  # before the matrix is converted
_PAYING_BYTES = 1e10  # bytes of products (3 ms) after which a converted form has saved its own cost
_MOST_FILLING = 1.25  # places for entries, relative to entries
_PAST_THE_END = 1 << 12  # places that a kernel counts beyond the last: a batch of entries of a chunk
_MAX_BLOCKS = 2**31 - 1  # per launch
_FILL_WARPS, _FILL_BATCH = 4, 8  # warps per block; entries per row at a time: a sector or more


@frozen
class SellConfig:
    """A configuration of the kernel."""

    # Packs of columns per lane, and columns per pack.
    vectors: int
    vector: int
    unroll: int = 4  # entries of a row whose rows of X are in flight
    # Warps per block, blocks per multiprocessor.
    warps: int = 8
    blocks: int = 4
    # Whether a block processes one patch of chunks after the other, instead of one only.
    persistent: bool = True
    # Whether packs of X and Y start at multiples of their size.
    aligned_x: bool = True
    aligned_y: bool = True

    lanes: ClassVar[int] = 1  # per row


@dataclass(frozen=True, eq=False)
class SellMatrix:
    """A matrix in SELL-C form: rows in chunks of C = 32, the entries of a chunk interleaved."""

    plan: Plan  # the matrix as it was
    # array of the index type, shape (n_chunks + 1,): first place of each chunk, and the number of places.
    starts: Array
    # Columns of the entries, -1 for padding, and their values.
    columns: Array
    values: Array

    @property
    def n_chunks(self) -> int:
        """Chunks of rows; the last may not be full."""
        return len(self.starts) - 1


@frozen
class Recipe:
    """A configuration but for the width, the types and the lengths of rows; `unroll` is the most."""

    unroll: int
    blocks: int


# In order of preference: as many warps and entries in flight as registers allow.
RECIPES = tuple(Recipe(unroll, blocks) for unroll in (8, 5, 3) for blocks in (4, 3, 2))
# Wide rows of X with fused operands take the registers of all but one block of few warps.
SPARE = tuple(Recipe(unroll, 1) for unroll in (8, 5, 3))


class SpmmvSell(SparseFamily[SellConfig]):
    """The family ``spmmv_sell``: sparse products of matrices in SELL-C form, made after some products.

    A conversion takes the time of 4 to 10 products, and saves 3 to 50 per cent of each. A row is summed in
    the order of its entries: results are those of `spmmv_csr`, which runs until the matrix is converted, with
    the configuration of `before_conversion`, to the last bit.
    """

    name = "spmmv_sell"
    converts = True
    recipes, spare = RECIPES, SPARE

    def __init__(self, csr: SpmmvCsr) -> None:
        self._csr = csr

    def converts_after(self, problem: SpmmvProblem) -> int:
        """Choose the number of products after which the matrix is converted."""
        return max(_LEAST_PRODUCTS, round(_PAYING_BYTES / traffic(problem).total_bytes))

    def before_conversion(self, problem: SpmmvProblem, device: DeviceInfo) -> tuple[SpmmvCsr, Any]:
        """Choose the family and configuration that run until then, with the same bits."""
        return self._csr, self._csr.in_order(problem, device)

    def refuse_problem(self, problem: SpmmvProblem, device: DeviceInfo) -> str | None:
        if (reason := self._csr.supports(problem, device)) is not None:
            return reason
        if problem.dots or problem.gram:
            return "makes no sums"
        if problem.width * itemsize(problem.dtype_x) > MAX_ROW_BYTES:
            return f"rows of X have at most {MAX_ROW_BYTES} bytes"
        if problem.pattern == "uneven":
            return "rows are too uneven to be padded to one length"
        if (in_order := self._csr.in_order(problem, device)) is None:
            return "before the matrix is converted, rows cannot be summed in the order of their entries"
        if problem.longest > max(LEAST_LONG_ROW, most := in_order.long_row):
            return f"rows of {problem.longest} entries; those of more than {most} are summed in parts"
        return None

    def refuse(self, problem: SpmmvProblem, config: SellConfig, device: DeviceInfo) -> str | None:
        return excess(WARP * config.warps, config.blocks, registers(problem, config), 0, device)

    def is_faster(self, problem: SpmmvProblem) -> bool:
        # On an H200, 0.6 to 0.97 of the time over stencils, lattice models and a band in all four types.
        narrow = problem.width * itemsize(problem.dtype_x) <= _FASTER_ROW_BYTES
        return narrow and traffic(problem).total_bytes >= LEAST_BYTES

    def configure(self, problem: SpmmvProblem, recipe: Recipe, device: DeviceInfo) -> SellConfig:
        vector = widest_pack(problem)
        return SellConfig(
            vectors=problem.width // vector,
            vector=vector,
            unroll=unroll_of(row_entries(problem), recipe.unroll),
            blocks=recipe.blocks,
            # Blocks that start in order stay closer together, which favours scattered rows of X.
            persistent=problem.pattern != "scattered",
            **alignment(problem, vector),
        )

    def conversion(self, problem: SpmmvProblem) -> str:
        n_bytes = problem.nnz * entry_bytes(problem)
        return (
            f"after {self.converts_after(problem)} products the matrix is kept a second time, with its rows "
            f"interleaved (reads {n_bytes / 1e6:.1f} MB once, keeps as much); "
            "until then spmmv_csr gives the same bits"
        )

    def kernels(
        self, problem: SpmmvProblem, config: SellConfig, device: DeviceInfo, plan: Plan | None = None
    ) -> dict[str, Kernel]:
        values = constants(problem, config) | constants_of(config, "unroll", "warps", "blocks")
        found = {"rows": kernel("sparse/spmmv_sell", values, types_of(problem), self.kernel_name(problem))}
        if plan is None:
            csr, in_order = self.before_conversion(problem, device)
            before = csr.kernels(problem, in_order, device)
            found |= {"fill": fill_kernel(problem), **{f"csr_{part}": each for part, each in before.items()}}
        return found

    def convert(self, problem: SpmmvProblem, plan: Plan, load: Load) -> SellMatrix | None:
        """Convert a matrix on CuPy's current stream, which may go on; None if too many places are padding."""
        try:
            starts, entries = layout(plan)
        except OverflowError:
            return None
        if entries > _MOST_FILLING * plan.nnz:
            return None
        empty = namespace(plan.indices).empty
        columns = empty(entries, plan.indices.dtype)
        values = plan.codes.table if plan.codes else empty(entries, plan.data.dtype)
        form = SellMatrix(plan, starts, columns, values)
        fill(load(fill_kernel(problem)), form, problem.coded)
        return form

    def bind(
        self,
        kernels: Mapping[str, Any],
        problem: SpmmvProblem,
        config: SellConfig,
        device: DeviceInfo,
        form: SellMatrix,
    ) -> Callable[..., None]:
        index = np.int32 if problem.index_bytes == 4 else np.int64
        most = device.multiprocessors * config.blocks if config.persistent else _MAX_BLOCKS
        blocks, order = walk(form.plan, form.n_chunks, CHUNK, most, warps=config.warps)
        arrays = map(address, (form.starts, form.columns, form.values))
        matrix = *arrays, index(form.plan.n_rows), index(form.n_chunks), *order
        rows, grid, block = kernels["rows"], (blocks, 1), (WARP * config.warps,)

        def queue(_workspace_ptr: int, given: tuple[Any, ...]) -> None:
            rows(grid, block, (*matrix, *given))

        return bind_with_sums("spmmv_sell", problem, 0, blocks, None, queue)


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


def fill_kernel(problem: SpmmvProblem) -> Kernel:
    """Describe the kernel that fills a matrix in SELL-C form."""
    values = {
        "S_COMPLEX": is_complex(problem.dtype_matrix),
        "CODED": problem.coded,
        "BATCH": _FILL_BATCH,
        "WARPS": _FILL_WARPS,
    }
    types = {"SReal": c_type(problem.dtype_matrix), "Index": types_of(problem)["Index"]}
    return kernel("sparse/spmmv_sell_fill", values, types)


def fill(loaded: Any, into: SellMatrix, coded: bool = False) -> None:
    """Queue the kernel of `fill_kernel`, which fills the columns and values of a laid-out matrix."""
    plan = into.plan
    index = np.int32 if plan.index_bytes == 4 else np.int64
    rows = address(plan.indptr), *plan.entries(coded), address(into.starts)
    entries = address(into.columns), address(into.values)
    blocks = ceil_div(into.n_chunks, _FILL_WARPS)
    loaded((blocks, 1), (WARP * _FILL_WARPS,), (*rows, index(plan.n_rows), index(into.n_chunks), *entries))


def layout(plan: Plan) -> tuple[Array, int]:
    """Compute the first places of the chunks of a matrix, and the number of places; waits for its device.

    Raises
    ------
    OverflowError
        If there are more places than the index type can count.
    """
    assert plan.load is not None  # of a matrix on a device
    n_pieces, empty = pieces.count_pieces(plan.n_rows, CHUNK), namespace(plan.indptr).empty
    counts = empty((n_pieces, 1), np.int64)
    pieces.launch(plan.load, "layout", plan.indptr, n_pieces, None, counts, None)
    before, (entries,) = pieces.add_up(counts)
    if entries > np.iinfo(plan.indptr.dtype).max - _PAST_THE_END:
        raise OverflowError(f"{entries} entries are too many for indices of {plan.index_bytes} bytes")
    starts = empty(ceil_div(plan.n_rows, CHUNK) + 1, plan.indptr.dtype)
    pieces.launch(plan.load, "layout", plan.indptr, n_pieces, before, None, starts)
    return starts, entries
