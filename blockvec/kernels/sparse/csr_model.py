"""SpMMV on CSR matrices: the configurations worth measuring, and a model of their time."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..family import Model
from ..limits import CLOCK_HZ, LAUNCH_S, LINE_BYTES, STATIC_SHARED_LIMIT, WARP, ceil_div, smooth_max
from ..problem import SpmmvProblem, is_complex, itemsize
from ..roofline import Ceilings, memory_time
from .csr import GRAM_LANES, LEAST_LONG_ROW, LEAST_WARPS, MAX_ROWS, CsrConfig, refuse, slot_bytes
from .csr_plan import MAX_VALUES
from .interface import are_aligned, entry_bytes, row_entries, widest_pack
from .model import H200_CEILINGS, l2_requests, stored_traffic, unrolls_of

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
_PASSES = 1.03  # time where a warp processes several neighbouring units, rarely less than for one
_AGAIN = 1.75  # cost of the matrix for a further tile of columns, relative to a stream
_WINDOW_BYTES = 11e6  # of rows of X in use at a time, beyond which L2 evicts rows before their last use ...
_LOST = 0.3  # ... this share of X for every further such amount, up to three
_FLAT_PACKS = 1  # per row of X, up to which products take less shared memory than entries
_FLAT_ENTRIES, _SLACK = 240, 16  # per unit: in flight per warp at a time, and a row's begin and end
_PAST_SLOT = 8 * WARP  # entries in flight at a time, at most
_CROWDED = 2.0  # cycles of shared memory more where rows begin in few banks
_SWIZZLED_LANES = 2  # per row of X, up to which the beginnings of many rows share banks
_TRUSTED_WARPS = 16  # per multiprocessor: the model was fitted to few runs with fewer
_SHARPNESS = 5  # of the smoothed maximum of five resources


@frozen
class _Choices:
    """The values that `_enumerate` combines; a tile of columns takes about `tile_bytes` of a row of X."""

    tile_bytes: tuple[int, ...]
    unrolls: int
    unit_entries: tuple[int, ...]
    long_rows: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...]
    passes: tuple[int, ...]
    planes: tuple[int, ...]
    panels: tuple[bool, ...]


_MOST_VECTORS = 4
_SPACE = _Choices(
    tile_bytes=(64, 128, 256, 512),
    unrolls=3,
    unit_entries=(48, 96, 224),
    long_rows=(4, 16),
    blocks=(
        *((4, 2), (4, 4), (4, 5), (4, 6), (4, 7), (4, 10), (8, 2), (8, 3), (8, 4), (14, 2)),
        *((16, 2), (24, 1)),
    ),
    passes=(1, 4),
    planes=(1, 2, 4),
    panels=(False, True),
)
# The model chooses from these: settings whose effect it does not describe are fixed.
_SHORT_LIST = _Choices(
    tile_bytes=(512,),
    unrolls=2,
    unit_entries=(64, 112, 224),
    long_rows=(8,),
    blocks=((4, 2), (8, 2), (4, 4), (4, 5), (8, 3), (4, 6), (4, 7), (14, 2), (8, 4)),
    passes=(1,),
    planes=(2, 4),
    panels=(False,),
)


class SpmmvCsrModel(Model[SpmmvProblem, CsrConfig]):
    """The search space of `spmmv_csr` and the modelled time of its configurations.

    If `in_order`, only configurations that sum a row in the order of its entries, long rows excepted, are
    chosen; matrices of uneven rows may have none.
    """

    def __init__(self, *, in_order: bool = False) -> None:
        self._in_order = in_order

    def space(self, problem: SpmmvProblem, device: DeviceInfo) -> Iterator[CsrConfig]:
        """Yield the configurations worth measuring; some may be refused."""
        return _enumerate(problem, _SPACE)

    def choose(
        self, problem: SpmmvProblem, device: DeviceInfo, ceilings: Ceilings | None = None
    ) -> CsrConfig:
        """Choose the valid configuration with the shortest predicted time; the problem is supported."""
        limits = ceilings or H200_CEILINGS
        return _choose(problem, device, limits.read_gb_s, limits.write_gb_s, limits.copy_gb_s, self._in_order)

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
def _choose(
    problem: SpmmvProblem,
    device: DeviceInfo,
    read_gb_s: float,
    write_gb_s: float,
    copy_gb_s: float,
    in_order: bool,
) -> CsrConfig:
    ceilings = Ceilings(read_gb_s, write_gb_s, copy_gb_s)
    configs = dict.fromkeys(_enumerate(problem, _SHORT_LIST))
    valid = [config for config in configs if refuse(problem, config, device) is None]
    if in_order:
        valid = [config for config in valid if config.split == 1 and not config.flat]
    valid = [config for config in valid if config.warps * config.blocks >= _TRUSTED_WARPS] or valid
    return min(valid, key=lambda config: _predict(problem, config, device, ceilings))


# ---- the space


def _enumerate(problem: SpmmvProblem, choices: _Choices) -> Iterator[CsrConfig]:
    average = row_entries(problem)
    for base in _gram_mappings(problem) if problem.gram else _mappings(problem, choices.tile_bytes):
        splits = [1] if problem.gram else _splits(base.lanes, average)
        for split, (flat, swizzle) in itertools.product(splits, _distributions(problem, base)):
            mapped = replace(base, split=split, flat=flat, swizzle=swizzle)
            is_narrow = mapped.tile < problem.width and mapped.tile * itemsize(problem.dtype_x) <= LINE_BYTES
            for long_rows, target in itertools.product(choices.long_rows, choices.unit_entries):
                rows, entries, long_row = _unit_shape(problem, mapped, target, long_rows)
                for unroll, (warps, blocks), passes, planes, panels in itertools.product(
                    unrolls_of(average / split, choices.unrolls),
                    choices.blocks,
                    choices.passes,
                    choices.planes if problem.pattern == "planes" else (1,),
                    choices.panels if is_narrow else (False,),
                ):
                    yield replace(
                        mapped,
                        unroll=unroll,
                        rows=rows,
                        entries=entries,
                        long_row=max(long_row, unroll * split),
                        warps=warps,
                        blocks=blocks,
                        passes=passes,
                        planes=planes,
                        panels=panels,
                    )


def _distributions(problem: SpmmvProblem, config: CsrConfig) -> list[tuple[bool, bool]]:
    """Choose flat or not, and swizzled or not, for a pattern."""
    if problem.pattern == "uneven" and config.lanes * config.vectors <= _FLAT_PACKS and not problem.gram:
        return [(True, True)]
    return [(False, True), (False, False)] if _is_crowded(problem, config) else [(False, False)]


def _is_crowded(problem: SpmmvProblem, config: CsrConfig) -> bool:
    """Check whether rows begin in few banks of shared memory, unless swizzled."""
    return problem.pattern == "scattered" and config.lanes <= _SWIZZLED_LANES


def _mappings(problem: SpmmvProblem, tile_bytes: tuple[int, ...]) -> Iterator[CsrConfig]:
    """Yield mappings of the columns of a row to lanes."""
    size, vector = itemsize(problem.dtype_x), widest_pack(problem)
    packs = problem.width // vector
    aligned_x, aligned_y = are_aligned(problem, vector)
    seen = set()
    for n_bytes in tile_bytes:
        # Tiles of nearly equal size.
        tile_packs = ceil_div(packs, ceil_div(packs * vector * size, n_bytes))
        for vectors in range(1, _MOST_VECTORS + 1):
            lanes = ceil_div(tile_packs, vectors)
            if lanes <= WARP and (vectors - 1) * lanes < tile_packs and (lanes, vectors) not in seen:
                seen.add((lanes, vectors))
                yield CsrConfig(lanes, vectors, vector, aligned_x=aligned_x, aligned_y=aligned_y)


def _gram_mappings(problem: SpmmvProblem) -> Iterator[CsrConfig]:
    """Yield mappings of the columns of a row to lanes that allow Gram matrices."""
    size_x = itemsize(problem.dtype_x)
    for lanes, vector, vectors in itertools.product(GRAM_LANES, (2, 1), (1, 2)):
        fills = (vectors - 1) * lanes * vector < problem.width <= lanes * vectors * vector
        if problem.width % vector == 0 and fills:
            aligned_x, aligned_y = are_aligned(problem, vector)
            if vector == 1 or (aligned_x and vector * size_x <= 16):
                yield CsrConfig(lanes, vectors, vector, aligned_x=aligned_x, aligned_y=aligned_y)


def _splits(lanes: int, average: float) -> list[int]:
    """List numbers of parts of a row: more than one only where each has several entries."""
    return [s for s in (1, 2, 4, 8, 16, 32) if lanes * s <= WARP and (s == 1 or average >= 4 * s)]


def _unit_shape(
    problem: SpmmvProblem, config: CsrConfig, target: int, long_rows: int
) -> tuple[int, int, int]:
    """Compute rows, entries and the length of long rows for units of about `target` entries.

    Long rows have at least `long_rows` times the average number of entries per part.
    """
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
    long_row = min(most, max(LEAST_LONG_ROW, ceil_div(round(long_rows * average), 8) * 8) * config.split)
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
    if _is_crowded(problem, config) and not config.swizzle:
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
    walk = (_PLANES[config.planes] if on_planes else 1) * (_PASSES if config.passes > 1 else 1)
    return LAUNCH_S + walk * smoothed


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
