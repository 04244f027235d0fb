"""The curated configurations of the tensor-core TSMM and the model of their time."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..family import Model
from ..limits import BANK_ROW_BYTES, LINE_BYTES, QUADRANTS, architecture_of, ceil_div, smooth_max
from ..problem import TsmmProblem, is_complex, real_bytes
from ..roofline import Ceilings, Traffic, memory_time
from .layout import prefetches_ends
from .model import PARTIAL_BYTES, view_traffic
from .tsmm_mma import (
    MMA_CYCLES,
    Shape,
    TsmmMmaConfig,
    is_complex_kernel,
    pipe_share,
    rest,
    shape_of,
)


@frozen
class Recipe:
    """A configuration but for the widths.

    Attributes
    ----------
    warps, split, unroll, stages, slabs, shared_coefficients
        As in the configuration.
    tile_kb : int
        Kilobytes of rows that the groups process at a time, up to twice as many: tiles have a power of two of
        the rows that a warp multiplies at once.
    passes : int
        Instead, for complex numbers in single precision: times that a warp multiplies so many rows per tile.
    """

    warps: int
    split: int = 1
    unroll: int = 1
    stages: int = 2
    slabs: int = 2
    shared_coefficients: bool = False
    tile_kb: int = 16
    passes: int = 0


# Of 840 recipes; the others would gain 0.2 per cent of the predicted time in the geometric mean of 230 drawn
# products, and 3.1 per cent at the most.
RECIPES: Sequence[Recipe] = (
    Recipe(4, unroll=2, stages=1),
    Recipe(8, slabs=1),
    Recipe(8, slabs=1, tile_kb=32),
    Recipe(8, slabs=1, shared_coefficients=True),
    Recipe(8, slabs=1, shared_coefficients=True, tile_kb=0, passes=2),
    Recipe(8, stages=4),
    Recipe(8, stages=4, slabs=1, shared_coefficients=True, tile_kb=0, passes=1),
    Recipe(8, unroll=2, stages=4),
    Recipe(8, split=2, slabs=1),
    Recipe(8, split=2, slabs=1, shared_coefficients=True),
    Recipe(8, split=2, slabs=0, shared_coefficients=True, tile_kb=0, passes=1),
    Recipe(12, stages=3),
    Recipe(12, slabs=1, shared_coefficients=True),
    Recipe(12, unroll=2, stages=4),
    Recipe(12, unroll=2, slabs=1, shared_coefficients=True),
    Recipe(12, unroll=2, slabs=0, shared_coefficients=True, tile_kb=0, passes=1),
    Recipe(12, split=2, slabs=1),
    Recipe(12, split=2, stages=3),
    Recipe(12, split=2, stages=3, shared_coefficients=True),
    Recipe(12, split=4, stages=3),
    Recipe(12, split=4, slabs=1, shared_coefficients=True),
    Recipe(16, stages=3),
    Recipe(16, slabs=1, shared_coefficients=True, tile_kb=32),
    Recipe(16, unroll=2, slabs=0, shared_coefficients=True, tile_kb=0, passes=2),
)
SPARE: Sequence[Recipe] = tuple(
    Recipe(warps, split, unroll, stages, slabs, shared)
    for warps, split, unroll in itertools.product((4, 8), (1, 2, 4), (1, 2))
    for (stages, slabs), shared in itertools.product(((2, 1), (1, 2), (1, 1)), (False, True))
)

# Few warps keep tiles in order best, and suffice while tensor pipes are idle for more than half of the time.
_IDLE_SHARE = 0.4
_MOST_TILES = 16  # column tiles times blocks of rows that a warp multiplies at once, if several
_REGISTER_FRAGMENTS = 24  # of C, fewer of which are never loaded from shared memory


def _suits(problem: TsmmProblem, recipe: Recipe, shape: Shape) -> bool:
    """Check the numbers of warps, rows and tiles, for idle or busy tensor pipes."""
    if recipe.unroll > 1 and recipe.unroll * ceil_div(shape.nt, recipe.split) > _MOST_TILES:
        return False
    if recipe.shared_coefficients and shape.kt * shape.nt < _REGISTER_FRAGMENTS:
        return False
    if pipe_share(shape, problem) < _IDLE_SHARE:
        return recipe.warps <= 12 and recipe.unroll <= 2
    return recipe.warps >= 8 and recipe.tile_kb <= 32 and 2 <= recipe.stages <= 4


def _suits_complex(problem: TsmmProblem, recipe: Recipe, shape: Shape) -> bool:
    """Check for complex numbers in single precision; in double, large tiles are faster."""
    return shape.parts == 2 and shape.size == 8 and shape.nt >= 4


def _rows(problem: TsmmProblem, recipe: Recipe, shape: Shape) -> int | None:
    """Choose the rows of a tile; None if there is no tile of the size."""
    least = recipe.unroll * shape.block
    if recipe.passes:
        return least * recipe.passes
    row_bytes = recipe.warps // recipe.split * max(problem.M, problem.N) * shape.size
    rows = least
    while rows * row_bytes < recipe.tile_kb << 10:
        rows *= 2
    is_least = rows == least and recipe.tile_kb == 16
    return rows if is_least or rows * row_bytes < recipe.tile_kb << 11 else None


# Fitted to 2166 timed configurations of 388 problems in double precision on an H200 (2 per cent root mean
# square near the best): the first choice is within 0.6 per cent (mean) of the best measured, the best of the
# first six within 0.1.
_PIPE_RATE = 0.83  # of the rate of tensor products by themselves
_SHARED_RATE = 0.86  # of shared memory's peak
_MMA_LATENCY = 30  # cycles of a product ...
_LOAD_LATENCY = 12  # ... and more of its coefficients' way from shared memory
_CONVERTING = 1.12  # factor of the products of complex numbers besides
_CONVERSIONS = 14  # between float32 and float64, per cycle and SM
_PASS_CYCLES = 18  # going on to the next rows
_STORE_CYCLES = 36  # of a block of the result, from accumulators to the slab
_TILE_CYCLES = 600  # waiting, issuing copies ...
_BARRIER_CYCLES = 200  # ... and where warps of a group wait for each other
_MEMORY_CYCLES = 1500  # latency of a copy from loaded memory ...
_TILE_RATE = 31  # ... and the bytes per cycle at which a tile is loaded and stored
# DRAM throughput drops when many distant tiles are in flight: the loss per factor of two in the bytes of
# tiles that the groups of a multiprocessor process, in the bytes of A in flight to it, and below a size of
# stored tiles of B.
_WINDOW_BYTES, _WINDOW_COST = 26 << 10, 0.004
_FLIGHT_BYTES, _FLIGHT_COST = 24 << 10, 0.006
_STORE_BYTES, _STORE_COST = 64 << 10, 0.0012
# Where no warp waits for another: fitted to 225 timed configurations of 24 problems (6 per cent).
_ROUND_CYCLES, _COMPLEX_PASS_CYCLES = 150, 460
_SLAB_BYTES, _SPLIT_STORE_BYTES = 132, 58  # per cycle: into slabs, and from registers 32 of a row at a time
_CONVERTED_SHARE = 0.2  # of conversions that do not overlap with products
_ROW_CONVERTED_SHARES = 0.6, 0.8  # the same where families are compared, of real and complex numbers
_COMPLEX_MEMORY_RATE = 0.92  # of the copy rate
# Where results are views, fitted to 26 products on an H100 (15 per cent): in place of PARTIAL_BYTES, where
# sectors were read before and where registers are stored; the loss per factor of two in the bytes of lines in
# flight to a multiprocessor.
_READ_BYTES, _DIRECT_BYTES = 130, 380
_VIEW_BYTES, _VIEW_COST = 144 << 10, 0.12
_LAUNCH_S = 3e-6  # as fitted here
_MIXES = ((1 / 65, 4480), (1 / 9, 4490), (1 / 3, 4400), (2 / 3, 4100), (8 / 9, 3910), (64 / 65, 4060))
_CEILINGS = Ceilings(4690, 4700, 4280, {"float64": 66e3}, mixed_gb_s=_MIXES)


def _complex_cycles(problem: TsmmProblem, config: TsmmMmaConfig, shape: Shape) -> float:
    """Estimate the cycles of a round of tiles, one per group, where no warp waits for another.

    Warps of a quadrant tend to end together, and its tensor pipe waits until they have stored.
    """
    tiles, passes = config.groups, config.rows // (shape.block * config.unroll)
    products = tiles * config.rows // shape.block * shape.kt * shape.nt * MMA_CYCLES / QUADRANTS
    cycles = products + _ROUND_CYCLES + _COMPLEX_PASS_CYCLES * passes
    stored = tiles * config.rows * shape.nt * 4 * shape.size
    if not config.direct:
        cycles += stored / _SLAB_BYTES
    elif shape.size == 8 and problem.N % 2:
        cycles += stored / _SPLIT_STORE_BYTES
    if shape.size == 8:
        converted = tiles * config.rows * 8 * (shape.kt * config.split + shape.nt)
        cycles += _CONVERTED_SHARE * converted / _CONVERSIONS
    return cycles


def row_cycles(problem: TsmmProblem) -> float:
    """Estimate the cycles of a multiprocessor per row in single precision without the limit of memory."""
    parts = 2 if is_complex(problem.dtype) else 1
    products = ceil_div(problem.M, 4) * ceil_div(problem.N * parts, 8) * parts / 16
    share = _ROW_CONVERTED_SHARES[parts - 1]
    return products * MMA_CYCLES / QUADRANTS + share * (problem.M + problem.N) * parts / _CONVERSIONS


def _disorder(config: TsmmMmaConfig, tile_a: int, tile_b: int) -> float:
    """Estimate the factor of the memory time that results from distant tiles in flight."""
    window = config.groups * max(tile_a, tile_b)
    flight = config.groups * config.stages * tile_a
    return (
        1
        + _WINDOW_COST * max(0.0, math.log2(window / _WINDOW_BYTES))
        + _FLIGHT_COST * max(0.0, math.log2(flight / _FLIGHT_BYTES))
        + _STORE_COST * max(0.0, math.log2(_STORE_BYTES / tile_b))
    )


def _turn(pipe: float, apart: float, warps: int) -> float:
    """Estimate the cycles of a tile per warp where the warps of a quadrant share its tensor pipe.

    Mean value analysis: a warp that arrives finds the mean queue of a system with one warp fewer.
    """
    queue = waiting = 0.0
    for present in range(1, warps + 1):
        waiting = pipe * (1 + queue)
        queue = present * waiting / (apart + waiting)
    return apart + waiting


@functools.lru_cache(maxsize=1024)
def _imbalance(nt: int, warps: int, split: int) -> float:
    """Compute the work of the busiest quadrant over the mean; shares of columns can differ by a tile."""
    loads = [0] * QUADRANTS
    for warp in range(warps):
        share = (warp % split + warp // QUADRANTS * (split // 2)) % split
        loads[warp % QUADRANTS] += ceil_div(nt - share, split)
    return max(loads) * QUADRANTS / sum(loads)


def _piece_cycles(width: int, piece: int, config: TsmmMmaConfig, shape: Shape) -> float:
    """Estimate the cycles in which a warp copies its part of a tile in pieces, some 16 instructions each."""
    return 16 * config.rows * width * shape.size / (piece * 32 * config.split) if piece else 0.0


def _memory(problem: TsmmProblem, config: TsmmMmaConfig, is_complex_kernel: bool) -> Traffic:
    if problem.beta != "zero" or problem.inplace or (prefetches_ends(problem) and not is_complex_kernel):
        return view_traffic(problem, _READ_BYTES)
    return view_traffic(problem, _DIRECT_BYTES if config.direct else PARTIAL_BYTES)


def _view_disorder(problem: TsmmProblem, config: TsmmMmaConfig, size: int) -> float:
    """Estimate the same for results that are views: L2 holds whole lines until their rows are complete."""
    if problem.ldb == problem.N:
        return 1.0
    row_bytes = _line_bytes(problem.M, problem.lda, size)
    if problem.beta != "zero":
        row_bytes += _line_bytes(problem.N, problem.ldb, size)
    flight = config.groups * config.stages * config.rows * row_bytes
    return 1 + _VIEW_COST * max(0.0, math.log2(flight / _VIEW_BYTES))


def _line_bytes(width: int, ld: int, size: int) -> int:
    """Estimate the bytes of lines that a row takes."""
    return min(ld * size, width * size + LINE_BYTES) if ld != width else width * size


class TsmmMmaModel(Model[TsmmProblem, TsmmMmaConfig, Recipe]):
    """The model of the tensor-core family."""

    recipes, spare = RECIPES, SPARE

    def configure(self, problem: TsmmProblem, recipe: Recipe, device: DeviceInfo) -> TsmmMmaConfig | None:
        shape = shape_of(problem, device)
        if recipe.split > shape.nt:
            return None
        rows = _rows(problem, recipe, shape)
        if rows is None or not (_suits_complex if recipe.passes else _suits)(problem, recipe, shape):
            return None
        tiles = recipe.stages, recipe.slabs, recipe.shared_coefficients
        return TsmmMmaConfig(recipe.warps, recipe.split, rows, recipe.unroll, *tiles)

    def predict(
        self,
        problem: TsmmProblem,
        config: TsmmMmaConfig,
        device: DeviceInfo,
        ceilings: Ceilings | None = None,
    ) -> float:
        """Predict the time of a valid configuration in seconds.

        A smooth maximum of the times of memory; of the tensor pipes, with padding and uneven quadrants; of
        shared memory, which every byte passes two to six times; of conversions of single precision; and of
        the pipelines of the groups, whose tiles wait for the tensor pipes and for memory (Little's law).
        """
        shape = shape_of(problem, device)
        sms = device.multiprocessors
        ceilings = ceilings or _CEILINGS
        peak = ceilings.gflop_s.get("float64") or _CEILINGS.gflop_s["float64"]
        cycles_per_mma = MMA_CYCLES if architecture_of(device) >= 90 else 2 * MMA_CYCLES
        clock = peak * 1e9 / (sms * QUADRANTS * 1024 / cycles_per_mma)
        rounds = ceil_div(ceil_div(problem.K, config.rows), sms * config.groups)
        if is_complex_kernel(problem, config, shape):
            body = _complex_cycles(problem, config, shape) * rounds / clock
            memory = memory_time(_memory(problem, config, True), ceilings) / _COMPLEX_MEMORY_RATE
            return smooth_max(body, memory) + _MEMORY_CYCLES / clock + _LAUNCH_S
        beta = problem.beta != "zero"

        passes = config.rows // (shape.block * config.unroll)
        is_cyclic = rest(shape, config) > 0
        share = shape.nt / config.split if is_cyclic else ceil_div(shape.nt, config.split)
        products = config.rows // shape.block * shape.kt * shape.nt  # m16n8k4 per tile
        tensor = rounds * config.groups * products * cycles_per_mma / QUADRANTS / _PIPE_RATE
        # A group waits for its warp with the most columns, though quadrants get equal shares.
        if shape.parts == 2 and shape.size == 8:
            tensor *= _CONVERTING
        if not is_cyclic:
            tensor *= (
                _imbalance(shape.nt, config.warps, config.split) * (share * config.split / shape.nt) ** 0.6
            )

        staged = config.rows * shape.size * (problem.M + (4 if beta else 2) * problem.N)
        fragments = config.rows * shape.size * 4 * shape.kt * config.split
        if config.shared_coefficients:
            fragments += passes * shape.kt * shape.nt * 256
        shared = rounds * config.groups * (staged + fragments) / (BANK_ROW_BYTES * _SHARED_RATE)

        latency = _MMA_LATENCY + (_LOAD_LATENCY if config.shared_coefficients else 0)
        step = config.unroll * share * cycles_per_mma
        apart: float = _TILE_CYCLES + (_BARRIER_CYCLES if config.split > 1 else 0)
        apart += passes * (_PASS_CYCLES + shape.kt * max(0, latency - step))
        apart += passes * _STORE_CYCLES * config.unroll * share
        apart += _piece_cycles(problem.M, shape.piece_a, config, shape)
        apart += (2 if beta else 1) * _piece_cycles(problem.N, shape.piece_b, config, shape)
        numbers = 0  # converted per tile
        if real_bytes(problem.dtype) == 4:
            numbers = config.rows * shape.parts * (4 * shape.kt * config.split + problem.N)
        pipe = passes * shape.kt * step + numbers / config.split * QUADRANTS / _CONVERSIONS
        work = _turn(pipe, apart, config.warps // QUADRANTS)
        tile_a, tile_b = (config.rows * shape.size * width for width in (problem.M, problem.N))
        loading = (_MEMORY_CYCLES + (tile_a + tile_b) / _TILE_RATE + work) / config.stages
        memory = memory_time(_memory(problem, config, False), ceilings) * _disorder(config, tile_a, tile_b)
        memory *= _view_disorder(problem, config, shape.size)

        converted = rounds * config.groups * numbers / _CONVERSIONS
        cycles = (tensor, shared, converted, rounds * work, rounds * loading)
        limits = (memory, *(limit / clock for limit in cycles))
        return smooth_max(*limits) + _MEMORY_CYCLES / clock + _LAUNCH_S
