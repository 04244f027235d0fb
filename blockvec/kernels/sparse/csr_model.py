"""SpMMV on CSR matrices: the configurations worth a try, and a model of their time that orders them.

Nothing here touches a GPU. `space` is what a tuner measures; `choose` takes the model's best of a short
list, at once, where nothing was measured.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..device import DeviceInfo
from ..problem import SpmmvProblem, is_complex, itemsize
from ..roofline import Ceilings, memory_time, traffic
from .csr_config import (
    GRAM_LANES,
    LEAST_WARPS,
    MAX_ROWS,
    STATIC_SHARED_LIMIT,
    WARP,
    Config,
    ceil_div,
    refuse,
    row_entries,
    slot_bytes,
)

__all__ = ["choose", "mappings", "predict", "requests", "space", "unrolls_of"]

_LINE = 128  # bytes of a cache line, and of what L1 delivers in a cycle


# ---- the space


@dataclass(frozen=True, slots=True)
class _Choices:
    """What `_enumerate` combines; a tile of columns takes about `tile_bytes` of a row of X."""

    tile_bytes: tuple[int, ...]
    most_vectors: int
    unrolls: int
    unit_entries: tuple[int, ...]
    long_rows: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...]
    stages: tuple[int, ...]
    passes: tuple[int, ...]
    planes: tuple[int, ...] = (1,)


_SPACE = _Choices(
    tile_bytes=(64, 128, 256, 512),
    most_vectors=4,
    unrolls=3,
    unit_entries=(48, 96, 224),
    long_rows=(4, 16),
    blocks=((4, 2), (4, 4), (4, 5), (4, 6), (4, 7), (4, 10), (8, 2), (8, 3), (8, 4), (14, 2)),
    stages=(2,),
    passes=(1, 4),
    planes=(1, 2, 4),
)
# What the model chooses from: settings whose effect it does not describe are fixed.
_SHORT_LIST = _Choices(
    tile_bytes=(512,),
    most_vectors=4,
    unrolls=2,
    unit_entries=(64, 112, 224),
    long_rows=(8,),
    blocks=((4, 2), (8, 2), (4, 4), (4, 5), (8, 3), (4, 6), (4, 7), (14, 2), (8, 4)),
    stages=(2,),
    passes=(1,),
    planes=(2, 4),
)


def space(problem: SpmmvProblem) -> Iterator[Config]:
    """Yield the configurations worth measuring, some of them not valid."""
    return _enumerate(problem, _SPACE)


def _enumerate(problem: SpmmvProblem, choices: _Choices) -> Iterator[Config]:
    average = row_entries(problem)
    plain = mappings(problem, choices.tile_bytes, choices.most_vectors)
    for base in _gram_mappings(problem) if problem.gram else plain:
        splits = [1] if problem.gram else _splits(base.lanes, average)
        for split, (flat, swizzle) in itertools.product(splits, _kinds(problem, base)):
            dealt = replace(base, split=split, flat=flat, swizzle=swizzle)
            for long_rows, target in itertools.product(choices.long_rows, choices.unit_entries):
                rows, entries, long_row = _unit_shape(problem, dealt, target, long_rows)
                for unroll, (warps, blocks), stages, passes, planes in itertools.product(
                    unrolls_of(average / split, choices.unrolls),
                    choices.blocks,
                    choices.stages,
                    choices.passes,
                    choices.planes if problem.pattern == "planes" else (1,),
                ):
                    yield replace(
                        dealt,
                        unroll=unroll,
                        rows=rows,
                        entries=entries,
                        long_row=max(long_row, unroll * split),
                        stages=stages,
                        warps=warps,
                        blocks=blocks,
                        passes=passes,
                        planes=planes,
                    )


def _kinds(problem: SpmmvProblem, config: Config) -> list[tuple[bool, bool]]:
    """Ways to deal out entries, flat or by rows, and to keep them, swizzled or not, that suit a pattern."""
    if problem.pattern == "uneven" and config.lanes * config.vectors <= _FLAT_PACKS and not problem.gram:
        return [(True, True)]
    crowded = problem.pattern == "scattered" and config.lanes <= _SWIZZLED_LANES
    return [(False, True), (False, False)] if crowded else [(False, False)]


def mappings(problem: SpmmvProblem, tile_bytes: tuple[int, ...], most_vectors: int) -> Iterator[Config]:
    """Yield ways to share the columns of a row between lanes."""
    size = itemsize(problem.dtype_x)
    vector = max(v for v in (1, 2, 4) if v == 1 or (problem.width % v == 0 and v * size <= problem.align_x))
    packs = problem.width // vector
    aligned_x = problem.align_x % (vector * size) == 0
    aligned_y = min(problem.align_y, problem.align_z) % min(16, vector * itemsize(problem.dtype)) == 0
    seen = set()
    for n_bytes in tile_bytes:
        # Tiles of equal size, as nearly as can be.
        tile_packs = ceil_div(packs, ceil_div(packs * vector * size, n_bytes))
        for vectors in range(1, most_vectors + 1):
            lanes = ceil_div(tile_packs, vectors)
            if lanes <= WARP and (vectors - 1) * lanes < tile_packs and (lanes, vectors) not in seen:
                seen.add((lanes, vectors))
                yield Config(lanes, vectors, vector, aligned_x=aligned_x, aligned_y=aligned_y)


def _gram_mappings(problem: SpmmvProblem) -> Iterator[Config]:
    """Yield the ways to share the columns of a row that Gram matrices can be made with."""
    size_x, size_y = itemsize(problem.dtype_x), itemsize(problem.dtype)
    for lanes, vector, vectors in itertools.product(GRAM_LANES, (2, 1), (1, 2)):
        fills = (vectors - 1) * lanes * vector < problem.width <= lanes * vectors * vector
        if problem.width % vector == 0 and fills:
            aligned_x = problem.align_x % (vector * size_x) == 0
            aligned_y = min(problem.align_y, problem.align_z) % min(16, vector * size_y) == 0
            if vector == 1 or (aligned_x and vector * size_x <= 16):
                yield Config(lanes, vectors, vector, aligned_x=aligned_x, aligned_y=aligned_y)


def _splits(lanes: int, average: float) -> list[int]:
    """Parts of a row's entries: more than one only where each has several entries."""
    return [s for s in (1, 2, 4, 8, 16, 32) if lanes * s <= WARP and (s == 1 or average >= 4 * s)]


def _unit_shape(problem: SpmmvProblem, config: Config, target: int, long_rows: int) -> tuple[int, int, int]:
    """Return rows, entries and the length of long rows for units of about `target` entries.

    Rows count as long from `long_rows` times the average of each part on.
    """
    if config.flat:  # whatever the rows are like
        product_bytes = config.tile * itemsize(problem.dtype)
        fit = STATIC_SHARED_LIMIT // (LEAST_WARPS * (2 * _entry_bytes(problem) + product_bytes))
        entries = min(max(target, _FLAT_ENTRIES) + _SLACK, fit // 32 * 32 - 32)
        return MAX_ROWS // config.groups * config.groups, entries, entries - _SLACK
    average = row_entries(problem)
    most = STATIC_SHARED_LIMIT // (LEAST_WARPS * 2 * _entry_bytes(problem)) - 8
    long_row = min(most, max(32, ceil_div(round(long_rows * average), 8) * 8) * config.split)
    steps = max(1, round(target / max(average, 1) / config.groups))
    rows = min(steps, MAX_ROWS // config.groups) * config.groups
    # An eighth above the average keeps most units of a nearly regular matrix whole.
    entries = min(most, ceil_div(math.ceil(rows * average * 1.125) + 8, 4) * 4)
    return rows, max(entries, long_row), long_row


def _entry_bytes(problem: SpmmvProblem) -> int:
    return itemsize(problem.dtype_matrix) + problem.index_bytes


def unrolls_of(entries: float, count: int) -> list[int]:
    """Numbers of entries in flight that divide rows of the average length well, 8 at most."""
    entries = max(1.0, entries)
    found: list[int] = []
    for most in (8, 5, 3):
        trips = math.ceil(entries / most)
        unroll = max(1, min(most, math.ceil(entries / trips)))
        if unroll not in found:
            found.append(unroll)
    return found[:count]


# ---- the model

_CLOCK_HZ = 1.755e9  # a Hopper GPU under load
_L2_BYTES_A_SECOND = 8.0e12
_L2_REQUESTS_A_SECOND = 140e9  # lines of which one sector or more is wanted
_LAUNCH_S = 2.5e-6
# Fitted to some hundred runs over stencils, lattice models, bands and a power-law graph on an H200:
_ATTAINED = 0.93  # of the memory's rate
_L1_MISSES = 0.74  # share of gathers that L1 does not serve ...
_FAR, _NEAR = (
    2.5,
    0.15,
)  # ... and on a grid with planes: entries of a row that it does not, and of the others the share
_GATHER_S = 0.54e-6  # of a batch of rows of X under load
_STEP_S = 0.32e-6  # around the gathers of one step: bounds, sums, stores
_UNIT_S = 0.37e-6  # around a unit: its rows, its copies
_ISSUE = 1.65  # cycles an instruction
_SHARED = 0.76  # cycles of the L1 pipe a line or 128 bytes
_APART = 0.7  # share of gathers whose rows lie apart
_UNEVEN = 0.17  # by which a step lasts longer with every doubling of the rows that it waits for
_UNEVEN_ENTRIES = 8  # of a row: shorter ones take one batch however uneven
_PLANES = {1: 1.05, 2: 1.02, 4: 1.0}  # time on a grid, by the planes that the warps of a block share
_PASSES = 1.03  # time where a warp works on several neighbouring units, rarely less than on one
_AGAIN = 1.75  # cost of the matrix for a further tile of columns, relative to a stream
_WINDOW_BYTES = (
    11e6  # of rows of X worked on at a time, from which on L2 loses rows before their last use ...
)
_LOST = 0.3  # ... this share of X for every further such amount, up to three
_FLAT_PACKS = 1  # of a row of X, up to which products take less shared memory than entries
_FLAT_ENTRIES, _SLACK = 240, 16  # of a unit: what a warp has in flight at a time, and a row's begin and end
_CROWDED = 2.0  # turns of shared memory more where rows begin in few banks
_SWIZZLED_LANES = 2  # of a row of X, up to which the beginnings of many rows meet in shared memory
_TRUSTED_WARPS = 16  # of a multiprocessor
_SMOOTHING = 5  # exponent of the norm that takes the slowest of five resources


def predict(
    problem: SpmmvProblem, config: Config, device: DeviceInfo, ceilings: Ceilings | None = None
) -> float:
    """Return the modelled time in seconds of a valid configuration.

    The slowest of five resources, smoothed where two are close: memory (every operand once, and what L2
    loses of X), L2 (the rows of X that L1 does not serve), the instructions of the gathers, the L1 pipe, and
    the latency that a warp's gathers leave uncovered.
    """
    rates = ceilings or Ceilings(4600.0, 3300.0, 4200.0)
    average = max(1.0, row_entries(problem))
    tiles = ceil_div(problem.width, config.tile)
    units = problem.n_rows / config.rows * tiles
    row_steps = ceil_div(config.rows, config.groups)  # of a unit
    waits = average >= _UNEVEN_ENTRIES and not config.flat
    uneven = 1 + _UNEVEN * math.log2(config.groups) if waits else 1.0
    batches = row_steps * math.ceil(average / (config.split * config.unroll)) * uneven

    size_s, size_x = itemsize(problem.dtype_matrix), itemsize(problem.dtype_x)
    slot = 9 + config.vectors * (2 + config.vector * _multiply_cycles(problem))
    copies = ceil_div(slot_bytes(problem, config), 16 * WARP)
    sums = 12 * (config.split.bit_length() - 1) * config.vectors * config.vector
    by_step = 40 + 14 * config.vectors + sums
    instructions = units * (batches * config.unroll * slot + row_steps * by_step + 90 + 12 * copies)
    waves = config.vectors * _gather_cycles(problem, config) + 1 + max(1, size_s // 8)
    if problem.pattern == "scattered" and config.lanes <= _SWIZZLED_LANES and not config.swizzle:
        waves += _CROWDED
    shared = units * (row_steps * (average / config.split * uneven * waves + 6) + 8 * copies)

    moved = traffic(problem)
    matrix_bytes = problem.nnz * (size_s + problem.index_bytes)
    again = _AGAIN * (tiles - 1) * matrix_bytes / (rates.read_gb_s * 1e9)
    on_planes = problem.pattern == "planes"
    misses = min(1.0, _FAR / average + _NEAR) if on_planes else _L1_MISSES
    gathers = problem.nnz * problem.width * size_x * misses + tiles * matrix_bytes + moved.write_bytes
    resident = config.warps * config.blocks * device.multiprocessors
    rounds = max(1.0, units / resident)
    size_row = problem.width * size_x
    overflow = resident * config.rows * size_row / tiles / _WINDOW_BYTES - 1
    lost = _LOST * min(3.0, max(0.0, overflow)) * problem.n_rows * size_row / (rates.read_gb_s * 1e9)
    cycles = _CLOCK_HZ * device.multiprocessors
    times = (
        memory_time(moved, rates) / _ATTAINED + again + lost,
        max(gathers / _L2_BYTES_A_SECOND, requests(problem) / _L2_REQUESTS_A_SECOND),
        _ISSUE * instructions / 4 / cycles,
        _SHARED * shared / cycles,
        rounds * (batches * _GATHER_S + row_steps * _STEP_S + _UNIT_S),
    )
    slowest = max(times)
    walk = (_PLANES[config.planes] if on_planes else 1) * (_PASSES if config.passes > 1 else 1)
    smoothed = slowest * sum((time / slowest) ** _SMOOTHING for time in times) ** (1 / _SMOOTHING)
    return float(_LAUNCH_S + walk * smoothed)


def requests(problem: SpmmvProblem) -> float:
    """Return the lines asked of L2 where no two entries nearby share one."""
    if problem.pattern in ("lines", "planes"):
        return 0.0
    row = problem.width * itemsize(problem.dtype_x)
    return problem.nnz * (1 + (row - min(row & -row, _LINE)) / _LINE)


def _multiply_cycles(problem: SpmmvProblem) -> int:
    """Issue slots of multiplying an entry by an element of X; double precision takes two a product."""
    products = (2 if is_complex(problem.dtype_matrix) else 1) * (2 if is_complex(problem.dtype_x) else 1)
    return products * (1 if problem.dtype in ("float32", "complex64") else 2)


def _gather_cycles(problem: SpmmvProblem, config: Config) -> float:
    """Cycles of the L1 pipe that a warp's load of a pack a lane takes: 128 bytes or one line each.

    Rows that neighbouring groups gather may be neighbours too and share lines: stencils do, graphs do not.
    """
    row = config.lanes * config.vector * itemsize(problem.dtype_x)
    rows = config.groups * config.split
    apart = rows * ceil_div(row, _LINE)
    together = min(apart, max(1.0, rows * row * config.vectors / _LINE))
    return _APART * apart + (1 - _APART) * together


@functools.lru_cache(maxsize=4096)
def _choose(
    problem: SpmmvProblem, device: DeviceInfo, rates: tuple[float, float, float], in_order: bool
) -> Config:
    ceilings = Ceilings(*rates)
    configs = dict.fromkeys(_enumerate(problem, _SHORT_LIST))
    valid = [config for config in configs if refuse(problem, config, device) is None]
    if in_order:
        valid = [config for config in valid if config.split == 1 and not config.flat]
    # With fewer warps the model, which was fitted to few such runs, is not to be trusted.
    valid = [config for config in valid if config.warps * config.blocks >= _TRUSTED_WARPS] or valid
    return min(valid, key=lambda config: predict(problem, config, device, ceilings))


def choose(
    problem: SpmmvProblem, device: DeviceInfo, ceilings: Ceilings | None = None, *, in_order: bool = False
) -> Config:
    """Return the valid configuration with the shortest modelled time; the problem must be supported.

    With `in_order` among those that sum up a row in the order of its entries, long ones excepted; matrices of
    uneven rows may have none.
    """
    rates = (
        (ceilings.read_gb_s, ceilings.write_gb_s, ceilings.copy_gb_s)
        if ceilings
        else (4600.0, 3300.0, 4200.0)
    )
    return _choose(problem, device, rates, in_order)
