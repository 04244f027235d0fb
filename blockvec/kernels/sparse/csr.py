"""SpMMV on CSR matrices: Y = alpha (S - shift I) X + beta Y for row-major blocks of any width and type.

The kernel (``cuda/sparse/spmmv_csr.cu``) streams the matrix through shared memory and gathers rows of X, with
lanes along the columns; ``cuda/sparse/spmmv_csr_long.cu`` sums long rows.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..family import valid
from ..limits import (
    CLOCK_HZ,
    LAUNCH_S,
    LINE_BYTES,
    RESERVED_SHARED_BYTES,
    STATIC_SHARED_LIMIT,
    WARP,
    ceil_div,
    excess,
    smooth_max,
)
from ..problem import MAX_ALIGNMENT, SpmmvProblem, itemsize, parts_of
from ..roofline import H200_CEILINGS, memory_time, traffic
from ..source import Kernel, constants_of, kernel
from .arrays import address
from .csr_config import GRAM_LANES, CsrConfig, block_bytes, gram_side, long_warps, registers, slot_bytes
from .csr_plan import MAX_VALUES, MOST_SHORT_ROWS, Plan, walk
from .family import SparseFamily
from .interface import (
    alignment,
    bind_with_sums,
    codes,
    constants,
    entry_bytes,
    n_sums,
    pack_bytes,
    partial_bytes,
    row_entries,
    totals_kernel,
    types_of,
    unroll_of,
    widest_pack,
)
from .pieces import Units

MAX_ROWS = 32  # per unit: one per lane
LEAST_LONG_ROW = 32  # entries: of no choice, shorter rows are made apart from others
LEAST_WARPS = 4  # per block: one per quadrant of a multiprocessor
_GRAM_SIDE = 2  # tiles of eight columns per side of a Gram matrix: registers grow with the square
GRAM_WIDTH = 8 * _GRAM_SIDE
# Entries per row, times tiles of eight columns per side, beyond which the warps lost to the registers of a
# Gram matrix cost more than the saved passes gain; the 27-point stencil with 16 columns just gains.
_GRAM_ENTRIES = 64
_L1_LEAST_BYTES = 32 << 10  # left to gathers by shared memory


@frozen
class Recipe:
    """A configuration but for the width, the types and the lengths of rows; equal names mean the same."""

    vectors: int
    split: int
    warps: int
    blocks: int
    entries: int  # entries per unit, about
    unroll: int  # most entries of a part in flight, of which there are as many as divide an average row well
    # For Gram matrices, lanes per row and columns per pack; 0 for products without, whose lanes follow from
    # the width.
    lanes: int = 0
    pack: int = 0


# Of 2,600 recipes; the others would gain 0.8 per cent of the predicted time in the geometric mean of drawn
# products, and 8 per cent at the most.
RECIPES: Sequence[Recipe] = (
    Recipe(1, 1, 4, 4, 64, 8),
    Recipe(1, 1, 4, 5, 224, 8),
    Recipe(1, 1, 4, 6, 224, 8),
    Recipe(1, 2, 4, 4, 64, 8),
    Recipe(1, 4, 4, 4, 64, 8),
    Recipe(2, 1, 4, 4, 64, 5),
    Recipe(2, 1, 4, 4, 64, 8),
    Recipe(2, 1, 4, 4, 224, 8),
    Recipe(2, 1, 4, 5, 224, 8),
    Recipe(2, 1, 4, 7, 224, 8),
    Recipe(2, 2, 4, 4, 64, 8),
    Recipe(3, 1, 4, 4, 64, 5),
    Recipe(3, 1, 4, 4, 64, 8),
    Recipe(3, 1, 4, 4, 224, 5),
    Recipe(3, 1, 8, 4, 224, 5),
    Recipe(3, 4, 4, 4, 64, 5),
    Recipe(4, 1, 4, 4, 64, 5),
    Recipe(4, 1, 4, 4, 64, 8),
    Recipe(4, 2, 4, 4, 64, 8),
)
# Of 860 recipes with Gram matrices; the others would gain 0.3 per cent in 19 drawn products.
GRAM_RECIPES: Sequence[Recipe] = tuple(
    Recipe(vectors, 1, *shape, lanes=lanes, pack=pack)
    for lanes, pack, vectors in itertools.product(GRAM_LANES, (2, 1), (1, 2))
    for shape in ((4, 4, 64, 8), (4, 5, 224, 8), (4, 7, 112, 8))
)
# The model was fitted to few runs with so few warps: for problems that nothing else fits.
SPARE: Sequence[Recipe] = (
    *(
        Recipe(vectors, split, 4, blocks, entries, 8)
        for vectors, split, blocks in itertools.product((1, 2, 3, 4), (1, 2), (2, 1))
        for entries in (64, 224)
    ),
    *(
        Recipe(vectors, 1, 4, blocks, entries, 8, lanes=lanes, pack=pack)
        for lanes, pack, vectors in itertools.product(GRAM_LANES, (2, 1), (1, 2))
        for blocks, entries in itertools.product((2, 1), (64, 224))
    ),
)

_PLANES_TOGETHER = 4  # planes that the warps of a block process at a time, on a grid of planes
_TILE_BYTES = 512  # of a row of X per tile of columns, about
_LONG_ROWS = 8  # times the average number of entries per part, from which rows are long

# Fitted to some hundred runs over stencils, lattice models, bands and a power-law graph on an H200:
_ATTAINED = 0.93  # of the memory bandwidth
_GATHER_S = 0.54e-6  # per batch of rows of X under load
_STEP_S = 0.32e-6  # around the gathers of one step: bounds, sums, stores
_ISSUE = 1.65  # cycles per instruction
_SHARED = 0.76  # cycles of the L1 pipe per line or 128 bytes
_APART = 0.7  # share of gathers whose rows lie apart
_UNEVEN = 0.17  # by which a step takes longer with every doubling of the rows that it waits for
_UNEVEN_ENTRIES = 8  # per row: shorter ones take one batch however uneven
_WINDOW_BYTES = 11e6  # of rows of X in use at a time, beyond which L2 evicts rows before their last use ...
_LOST = 0.3  # ... this share of X for every further such amount, up to three
_FLAT_PACKS = 1  # per row of X, up to which products take less shared memory than entries
_FLAT_ENTRIES, _SLACK = 240, 16  # per unit: in flight per warp at a time, and a row's begin and end
_PAST_SLOT = 8 * WARP  # entries in flight at a time, at most


class SpmmvCsr(SparseFamily[CsrConfig]):
    """The family ``spmmv_csr``: sparse products of matrices as they are, in compressed rows."""

    name = "spmmv_csr"
    recipes, spare = (*RECIPES, *GRAM_RECIPES), SPARE

    def alike(self, problem: SpmmvProblem) -> SpmmvProblem:
        return replace(super().alike(problem), longest=0)

    def in_order(self, problem: SpmmvProblem, device: DeviceInfo) -> CsrConfig | None:
        """Choose a configuration that sums a row in the order of its entries, long rows excepted.

        None if there is none, as for some matrices of uneven rows.
        """
        problem = self.alike(problem)
        for of_spare in (False, True):
            found = [c for c in valid(self, problem, device, of_spare) if c.split == 1 and not c.flat]
            if found:
                break
        return min(found, key=lambda config: self.predict(problem, config, device), default=None)

    def refuse_problem(self, problem: SpmmvProblem, device: DeviceInfo) -> str | None:
        if reason := super().refuse_problem(problem, device):
            return reason
        if problem.index_bytes == 4 and problem.n_rows > MOST_SHORT_ROWS:
            return f"{problem.n_rows} rows need 64-bit indices"
        if problem.gram and not 1 < problem.width <= GRAM_WIDTH:
            return f"makes Gram matrices of 2 to {GRAM_WIDTH} columns"
        if problem.gram and row_entries(problem) > (most := _GRAM_ENTRIES // ceil_div(problem.width, 8)):
            return f"Gram matrices are faster on their own beside more than {most} entries per row"
        return None

    def refuse(self, problem: SpmmvProblem, config: CsrConfig, device: DeviceInfo) -> str | None:
        shared, blocks = block_bytes(problem, config), config.blocks
        if shared > STATIC_SHARED_LIMIT:
            return f"needs {shared} bytes of shared memory of {STATIC_SHARED_LIMIT}"
        # Less than all of it, so that gathers have L1.
        taken = blocks * (shared + RESERVED_SHARED_BYTES) + _L1_LEAST_BYTES
        if taken > device.shared_bytes_per_multiprocessor:
            return f"{blocks} blocks of {shared} bytes of shared memory leave no room for gathers"
        return excess(WARP * config.warps, blocks, registers(problem, config), shared, device)

    def refuse_sums(self, problem: SpmmvProblem, config: CsrConfig) -> str | None:
        if (problem.dots or problem.gram) and problem.longest > config.long_row:
            return f"rows of {problem.longest} entries are made apart from the others, and sums take all rows"
        return None

    def configure(self, problem: SpmmvProblem, recipe: Recipe, device: DeviceInfo) -> CsrConfig | None:
        average, on_planes = row_entries(problem), problem.pattern == "planes"
        if bool(problem.gram) != bool(recipe.lanes):
            return None
        base = _gram_mapping(problem, recipe) if problem.gram else _mapping(problem, recipe.vectors)
        if base is None or (recipe.split > 1 and average < 4 * recipe.split):
            return None
        flat = problem.pattern == "uneven" and base.lanes * base.vectors <= _FLAT_PACKS and not problem.gram
        mapped = replace(base, split=recipe.split, flat=flat)
        if mapped.lanes * mapped.split > WARP:
            return None
        rows, entries, long_row = _unit_shape(problem, mapped, recipe.entries)
        unroll = unroll_of(average / recipe.split, recipe.unroll)
        return replace(
            mapped,
            unroll=unroll,
            rows=rows,
            entries=entries,
            long_row=max(long_row, unroll * recipe.split),
            warps=recipe.warps,
            blocks=recipe.blocks,
            planes=_PLANES_TOGETHER if on_planes else 1,
        )

    def predict(self, problem: SpmmvProblem, config: CsrConfig, device: DeviceInfo) -> float:
        # The slowest of four resources, smoothed where two are close: memory (every operand once, and the
        # rows of X that L2 evicts), the instructions of the gathers, the L1 pipe, the latency of a warp's
        # gathers.
        average = max(1.0, row_entries(problem))
        tiles = ceil_div(problem.width, config.tile)
        units = problem.n_rows / config.rows * tiles
        row_steps = ceil_div(config.rows, config.groups)  # per unit
        waits = average >= _UNEVEN_ENTRIES and not config.flat
        uneven = 1 + _UNEVEN * math.log2(config.groups) if waits else 1.0
        batches = row_steps * math.ceil(average / (config.split * config.unroll)) * uneven

        # Products of an entry and an element of X; in double precision they are issued twice.
        products = parts_of(problem.dtype_matrix) * parts_of(problem.dtype_x)
        products *= 1 if problem.dtype in ("float32", "complex64") else 2
        slot = 9 + config.vectors * (2 + config.vector * products)
        copies = ceil_div(slot_bytes(problem, config), 16 * WARP)
        per_step = 40 + 14 * config.vectors + 12 * (config.split.bit_length() - 1) * config.vectors
        instructions = units * (batches * config.unroll * slot + row_steps * per_step + 90 + 12 * copies)
        waves = config.vectors * _gather_cycles(problem, config) + 2
        shared = units * (row_steps * (average / config.split * uneven * waves + 6) + 8 * copies)

        resident = config.warps * config.blocks * device.multiprocessors
        row_bytes = problem.width * itemsize(problem.dtype_x)
        overflow = resident * config.rows * row_bytes / tiles / _WINDOW_BYTES - 1
        evicted = _LOST * min(3.0, max(0.0, overflow)) * problem.n_rows * row_bytes
        again = evicted + (tiles - 1) * problem.nnz * entry_bytes(problem)  # bytes read once more
        cycles, moved = CLOCK_HZ * device.multiprocessors, traffic(problem)
        if problem.coded:  # entries have no values
            read_bytes = moved.read_bytes - problem.nnz * itemsize(problem.dtype_matrix)
            moved = replace(moved, read_bytes=read_bytes)
        return LAUNCH_S + smooth_max(
            memory_time(moved, H200_CEILINGS) / _ATTAINED + again / (H200_CEILINGS.read_gb_s * 1e9),
            _ISSUE * instructions / 4 / cycles,
            _SHARED * shared / cycles,
            max(1.0, units / resident) * (batches * _GATHER_S + row_steps * _STEP_S),
        )

    def kernels(
        self, problem: SpmmvProblem, config: CsrConfig, device: DeviceInfo, plan: Plan | None = None
    ) -> dict[str, Kernel]:
        if plan is not None:
            units = _units(config, plan)
            is_needed = {"tasks": units.tasks is not None, "sums": units.sums is not None}
        else:
            if self.refuse_sums(problem, config) is not None:
                problem = replace(problem, dots=(), gram=())
            is_needed = dict.fromkeys(("tasks", "sums"), problem.longest > config.long_row)
        name, types = self.kernel_name(problem), types_of(problem)
        own = constants(problem, config, *codes(problem))
        own |= constants_of(config, omit=("aligned_x", "aligned_y"))
        taken = config.blocks * (block_bytes(problem, config) + RESERVED_SHARED_BYTES)
        carveout = min(100, ceil_div(100 * taken, device.shared_bytes_per_multiprocessor))
        found = {"rows": kernel("sparse/spmmv_csr", own, types, name, carveout=carveout)}
        warps = long_warps(problem, config)
        unroll = max(1, (8 if warps == 1 else 4) // config.vectors)
        for part in filter(is_needed.get, is_needed):
            own = constants(problem, config) | {"UNROLL": unroll, "WARPS": warps, "SUMS": part == "sums"}
            found[part] = kernel("sparse/spmmv_csr_long", own, types, f"{name}_{part}")
        return found | totals_kernel(problem, name)

    def workspace_bytes(
        self, problem: SpmmvProblem, config: CsrConfig, device: DeviceInfo, plan: Plan
    ) -> int:
        slots = _units(config, plan).slots * problem.width * itemsize(problem.dtype)
        return slots or _walk(problem, config, device, plan)[0] * partial_bytes(problem)

    def bind(
        self,
        kernels: Mapping[str, Any],
        problem: SpmmvProblem,
        config: CsrConfig,
        device: DeviceInfo,
        plan: Plan,
    ) -> Callable[..., None]:
        # The arguments of sums are those of `bind_with_sums`.
        units, tiles = _units(config, plan), ceil_div(problem.width, config.tile)
        if units.tasks is not None and n_sums(problem):
            raise ValueError(f"spmmv_csr: no sums beside rows of {plan.longest} entries, which are long")
        n_blocks, order = _walk(problem, config, device, plan)
        needed = self.workspace_bytes(problem, config, device, plan)
        index = np.int32 if problem.index_bytes == 4 else np.int64
        entries = plan.entries(problem.coded)
        matrix = address(plan.indptr), *entries, index(plan.n_rows)
        matrix = *matrix, address(units.cuts), index(units.n_units), *order
        rows = kernels["rows"]
        blocks, threads = (n_blocks * tiles, 1), (WARP * config.warps,)
        long_threads = (WARP * long_warps(problem, config),)
        long_rows = [
            (kernels[part], (len(tasks), tiles), address(tasks))
            for part, tasks in (("tasks", units.tasks), ("sums", units.sums))
            if tasks is not None
        ]

        def queue(workspace_ptr: int, given: tuple[Any, ...]) -> None:
            rows(blocks, threads, (*matrix, workspace_ptr, *given))
            for summed, long_blocks, tasks_ptr in long_rows:
                summed(long_blocks, long_threads, (tasks_ptr, *entries, workspace_ptr, *given))

        return bind_with_sums("spmmv_csr", problem, needed, n_blocks, kernels.get("totals"), queue)


@functools.lru_cache(maxsize=4096)
def _mapping(problem: SpmmvProblem, vectors: int) -> CsrConfig | None:
    """Map the columns of a row to lanes, in tiles of nearly equal size."""
    size, vector = itemsize(problem.dtype_x), widest_pack(problem)
    packs = problem.width // vector
    tile_packs = ceil_div(packs, ceil_div(packs * vector * size, _TILE_BYTES))
    lanes = ceil_div(tile_packs, vectors)
    if lanes > WARP or (vectors - 1) * lanes >= tile_packs:
        return None
    return CsrConfig(lanes, vectors, vector, **alignment(problem, vector))


def _gram_mapping(problem: SpmmvProblem, recipe: Recipe) -> CsrConfig | None:
    """Map the columns of a row to lanes as Gram matrices take them."""
    lanes, vector, vectors = recipe.lanes, recipe.pack, recipe.vectors
    fills = (vectors - 1) * lanes * vector < problem.width <= lanes * vectors * vector
    if problem.width % vector or not fills:
        return None
    config = CsrConfig(lanes, vectors, vector, **alignment(problem, vector))
    is_half = lanes == 1 and vectors * vector % 2  # a fragment has two columns of a row of one lane
    if is_half or gram_side(config) > _GRAM_SIDE:
        return None
    is_whole = config.aligned_x and pack_bytes(problem, vector)[0] <= MAX_ALIGNMENT
    return config if vector == 1 or is_whole else None


def _unit_shape(problem: SpmmvProblem, config: CsrConfig, target: int) -> tuple[int, int, int]:
    """Compute rows, entries and the length of long rows for units of about `target` entries."""
    n_bytes, shared = entry_bytes(problem), STATIC_SHARED_LIMIT
    if problem.coded:  # the table, and the places past the ends of slots
        shared -= MAX_VALUES * itemsize(problem.dtype_matrix) + LEAST_WARPS * 2 * n_bytes * _PAST_SLOT
    if config.flat:  # independent of the lengths of rows
        product_bytes = config.tile * itemsize(problem.dtype)
        # Without a table of many values, the kernel has one of a single value, aligned to a line.
        rest = shared - (0 if problem.coded else LINE_BYTES)
        fit = rest // (LEAST_WARPS * (2 * n_bytes + product_bytes))
        entries = min(max(target, _FLAT_ENTRIES) + _SLACK, fit // 32 * 32 - 32)
        return MAX_ROWS // config.groups * config.groups, entries, entries - _SLACK
    average = row_entries(problem)
    most = shared // (LEAST_WARPS * 2 * n_bytes) - 8
    long_row = min(most, max(LEAST_LONG_ROW, ceil_div(round(_LONG_ROWS * average), 8) * 8) * config.split)
    steps = max(1, round(target / max(average, 1) / config.groups))
    rows = min(steps, MAX_ROWS // config.groups) * config.groups
    # An eighth above the average keeps most units of a nearly regular matrix whole.
    entries = min(most, ceil_div(math.ceil(rows * average * 1.125) + 8, 4) * 4)
    return rows, max(entries, long_row), long_row


def _gather_cycles(problem: SpmmvProblem, config: CsrConfig) -> float:
    """Compute the cycles of the L1 pipe per warp load of one pack per lane: 128 bytes or one line each.

    Rows that neighbouring groups gather may be neighbours too and share lines: in stencils, not in graphs.
    """
    row = config.lanes * config.vector * itemsize(problem.dtype_x)
    rows = config.groups * config.split
    apart = rows * ceil_div(row, LINE_BYTES)
    together = min(apart, max(1.0, rows * row * config.vectors / LINE_BYTES))
    return _APART * apart + (1 - _APART) * together


def _units(config: CsrConfig, plan: Plan) -> Units:
    return plan.units(config.rows, config.entries, config.long_row)


def _walk(
    problem: SpmmvProblem, config: CsrConfig, device: DeviceInfo, plan: Plan
) -> tuple[int, tuple[Any, ...]]:
    most = max(1, device.multiprocessors * config.blocks // ceil_div(problem.width, config.tile))
    n_units = _units(config, plan).n_units
    return walk(plan, n_units, config.rows, most, warps=config.warps, planes=config.planes)
