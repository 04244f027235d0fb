"""SpMMV on CSR matrices: the curated configurations, and a model of their time."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..family import Model
from ..limits import CLOCK_HZ, LAUNCH_S, LINE_BYTES, STATIC_SHARED_LIMIT, WARP, ceil_div, smooth_max
from ..problem import SpmmvProblem, is_complex, itemsize
from ..roofline import Ceilings, memory_time
from .csr import GRAM_LANES, LEAST_LONG_ROW, LEAST_WARPS, MAX_ROWS, CsrConfig, slot_bytes
from .csr_plan import MAX_VALUES
from .interface import are_aligned, entry_bytes, row_entries, widest_pack
from .model import H200_CEILINGS, l2_requests, stored_traffic, unroll_of

# Fitted to some hundred runs over stencils, lattice models, bands and a power-law graph on an H200:
_L2_BYTES_PER_SECOND = 8.0e12
_L2_REQUESTS_PER_SECOND = 140e9  # lines of which one sector or more is read
_ATTAINED = 0.93  # of the memory bandwidth
_L1_MISSES = 0.74  # share of gathers that miss L1 ...
_FAR, _NEAR = 2.5, 0.15  # ... and on a grid with planes: entries per row that miss, and share of the others
_GATHER_S = 0.54e-6  # per batch of rows of X under load
_STEP_S = 0.32e-6  # around the gathers of one step: bounds, sums, stores
_UNIT_S = 0.37e-6  # around a unit: its rows, its copies
_ISSUE = 1.65  # cycles per instruction
_SHARED = 0.76  # cycles of the L1 pipe per line or 128 bytes
_APART = 0.7  # share of gathers whose rows lie apart
_UNEVEN = 0.17  # by which a step takes longer with every doubling of the rows that it waits for
_UNEVEN_ENTRIES = 8  # per row: shorter ones take one batch however uneven
_PLANES = {1: 1.05, 2: 1.02, 4: 1.0}  # time on a grid, by the planes that the warps of a block share
_AGAIN = 1.75  # cost of the matrix for a further tile of columns, relative to a stream
_WINDOW_BYTES = 11e6  # of rows of X in use at a time, beyond which L2 evicts rows before their last use ...
_LOST = 0.3  # ... this share of X for every further such amount, up to three
_FLAT_PACKS = 1  # per row of X, up to which products take less shared memory than entries
_FLAT_ENTRIES, _SLACK = 240, 16  # per unit: in flight per warp at a time, and a row's begin and end
_PAST_SLOT = 8 * WARP  # entries in flight at a time, at most
_CROWDED = 2.0  # cycles of shared memory more where rows begin in few banks ...
_CROWDED_LANES = 2  # ... as where so few lanes take a row of X
_SHARPNESS = 5  # of the smoothed maximum of five resources


@frozen
class Recipe:
    """A configuration but for the width, the types and the lengths of rows.

    Attributes
    ----------
    vectors, split, warps, blocks
        As in the configuration.
    entries : int
        Entries per unit, about.
    unroll : int
        Most entries of a part in flight, of which there are as many as divide an average row well.
    lanes, pack : int
        For Gram matrices, lanes per row and columns per pack; 0 for products without, whose lanes follow from
        the width.
    """

    vectors: int
    split: int
    warps: int
    blocks: int
    entries: int
    unroll: int
    lanes: int = 0
    pack: int = 0


# Of 2,600 recipes; the others would gain 0.5 per cent of the predicted time in the geometric mean of 211
# drawn products, and 7.5 per cent at the most.
RECIPES: Sequence[Recipe] = (
    Recipe(1, 1, 4, 4, 64, 8),
    Recipe(1, 1, 4, 5, 112, 8),
    Recipe(1, 1, 4, 5, 224, 8),
    Recipe(1, 1, 4, 6, 224, 8),
    Recipe(1, 1, 4, 7, 224, 8),
    Recipe(1, 1, 8, 2, 112, 8),
    Recipe(1, 1, 8, 4, 112, 8),
    Recipe(1, 2, 4, 4, 64, 8),
    Recipe(1, 2, 4, 5, 64, 8),
    Recipe(1, 2, 8, 3, 224, 8),
    Recipe(1, 4, 4, 4, 64, 8),
    Recipe(2, 1, 4, 4, 64, 5),
    Recipe(2, 1, 4, 4, 64, 8),
    Recipe(2, 1, 4, 4, 112, 5),
    Recipe(2, 1, 4, 4, 224, 8),
    Recipe(2, 1, 4, 5, 224, 8),
    Recipe(2, 1, 4, 7, 224, 8),
    Recipe(2, 2, 4, 4, 64, 8),
    Recipe(2, 2, 8, 3, 224, 8),
    Recipe(3, 1, 4, 4, 64, 5),
    Recipe(3, 1, 4, 4, 64, 8),
    Recipe(3, 1, 4, 4, 224, 5),
    Recipe(3, 1, 8, 4, 224, 5),
    Recipe(3, 4, 4, 4, 64, 5),
    Recipe(4, 1, 4, 4, 64, 5),
    Recipe(4, 1, 4, 4, 64, 8),
    Recipe(4, 1, 4, 4, 224, 5),
    Recipe(4, 2, 4, 4, 64, 8),
)
# Of 860 recipes with Gram matrices; the others would gain 0.3 per cent in 19 drawn products.
GRAM_RECIPES: Sequence[Recipe] = tuple(
    Recipe(vectors, 1, *shape, lanes=lanes, pack=pack)
    for lanes, pack, vectors in itertools.product(GRAM_LANES, (2, 1), (1, 2))
    for shape in ((4, 4, 64, 8), (4, 5, 224, 8), (4, 7, 112, 8), (8, 4, 112, 8))
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


class SpmmvCsrModel(Model[SpmmvProblem, CsrConfig, Recipe]):
    """The model of `spmmv_csr`."""

    recipes = (*RECIPES, *GRAM_RECIPES)
    spare = SPARE

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

    def predict(
        self,
        problem: SpmmvProblem,
        config: CsrConfig,
        device: DeviceInfo,
        ceilings: Ceilings | None = None,
    ) -> float:
        """Predict the time of a valid configuration in seconds.

        The slowest of five resources, smoothed where two are close: memory (every operand once, and the rows
        of X that L2 evicts), L2 (the rows of X that miss L1), the instructions of the gathers, the L1 pipe,
        and the latency of a warp's gathers.
        """
        return _predict(problem, config, device, ceilings or H200_CEILINGS)


@functools.lru_cache(maxsize=4096)
def _mapping(problem: SpmmvProblem, vectors: int) -> CsrConfig | None:
    """Map the columns of a row to lanes, in tiles of nearly equal size."""
    size, vector = itemsize(problem.dtype_x), widest_pack(problem)
    packs = problem.width // vector
    tile_packs = ceil_div(packs, ceil_div(packs * vector * size, _TILE_BYTES))
    lanes = ceil_div(tile_packs, vectors)
    if lanes > WARP or (vectors - 1) * lanes >= tile_packs:
        return None
    aligned_x, aligned_y = are_aligned(problem, vector)
    return CsrConfig(lanes, vectors, vector, aligned_x=aligned_x, aligned_y=aligned_y)


def _gram_mapping(problem: SpmmvProblem, recipe: Recipe) -> CsrConfig | None:
    """Map the columns of a row to lanes as Gram matrices take them."""
    lanes, vector, vectors = recipe.lanes, recipe.pack, recipe.vectors
    fills = (vectors - 1) * lanes * vector < problem.width <= lanes * vectors * vector
    if problem.width % vector or not fills:
        return None
    aligned_x, aligned_y = are_aligned(problem, vector)
    if vector > 1 and not (aligned_x and vector * itemsize(problem.dtype_x) <= 16):
        return None
    return CsrConfig(lanes, vectors, vector, aligned_x=aligned_x, aligned_y=aligned_y)


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


# ---- the model


def _predict(problem: SpmmvProblem, config: CsrConfig, device: DeviceInfo, rates: Ceilings) -> float:
    average = max(1.0, row_entries(problem))
    tiles = ceil_div(problem.width, config.tile)
    units = problem.n_rows / config.rows * tiles
    row_steps = ceil_div(config.rows, config.groups)  # per unit
    waits = average >= _UNEVEN_ENTRIES and not config.flat
    uneven = 1 + _UNEVEN * math.log2(config.groups) if waits else 1.0
    batches = row_steps * math.ceil(average / (config.split * config.unroll)) * uneven

    size_s, size_x = itemsize(problem.dtype_matrix), itemsize(problem.dtype_x)
    slot = 9 + config.vectors * (2 + config.vector * _multiply_slots(problem))
    copies = ceil_div(slot_bytes(problem, config), 16 * WARP)
    sums = 12 * (config.split.bit_length() - 1) * config.vectors * config.vector
    per_step = 40 + 14 * config.vectors + sums
    instructions = units * (batches * config.unroll * slot + row_steps * per_step + 90 + 12 * copies)
    waves = config.vectors * _gather_cycles(problem, config) + 1 + max(1, size_s // 8)
    if problem.pattern == "scattered" and config.lanes <= _CROWDED_LANES:
        waves += _CROWDED
    shared = units * (row_steps * (average / config.split * uneven * waves + 6) + 8 * copies)

    moved, read_rate = stored_traffic(problem), rates.read_gb_s * 1e9
    matrix_bytes = problem.nnz * entry_bytes(problem)
    again = _AGAIN * (tiles - 1) * matrix_bytes / read_rate
    on_planes = problem.pattern == "planes"
    misses = min(1.0, _FAR / average + _NEAR) if on_planes else _L1_MISSES
    gathers = problem.nnz * problem.width * size_x * misses + tiles * matrix_bytes + moved.write_bytes
    resident = config.warps * config.blocks * device.multiprocessors
    rounds = max(1.0, units / resident)
    size_row = problem.width * size_x
    overflow = resident * config.rows * size_row / tiles / _WINDOW_BYTES - 1
    lost = _LOST * min(3.0, max(0.0, overflow)) * problem.n_rows * size_row / read_rate
    cycles = CLOCK_HZ * device.multiprocessors
    smoothed = smooth_max(
        memory_time(moved, rates) / _ATTAINED + again + lost,
        max(gathers / _L2_BYTES_PER_SECOND, l2_requests(problem) / _L2_REQUESTS_PER_SECOND),
        _ISSUE * instructions / 4 / cycles,
        _SHARED * shared / cycles,
        rounds * (batches * _GATHER_S + row_steps * _STEP_S + _UNIT_S),
        sharpness=_SHARPNESS,
    )
    return LAUNCH_S + (_PLANES[config.planes] if on_planes else 1) * smoothed


def _multiply_slots(problem: SpmmvProblem) -> int:
    """Count the issue slots of multiplying an entry by an element of X; double precision takes two each."""
    products = (2 if is_complex(problem.dtype_matrix) else 1) * (2 if is_complex(problem.dtype_x) else 1)
    return products * (1 if problem.dtype in ("float32", "complex64") else 2)


def _gather_cycles(problem: SpmmvProblem, config: CsrConfig) -> float:
    """Compute the cycles of the L1 pipe per warp load of one pack per lane: 128 bytes or one line each.

    Rows that neighbouring groups gather may be neighbours too and share lines: in stencils, not in graphs.
    """
    row = config.lanes * config.vector * itemsize(problem.dtype_x)
    rows = config.groups * config.split
    apart = rows * ceil_div(row, LINE_BYTES)
    together = min(apart, max(1.0, rows * row * config.vectors / LINE_BYTES))
    return _APART * apart + (1 - _APART) * together
