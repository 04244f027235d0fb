"""The curated configurations of the multiply-add TSMM and the model that orders them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..family import Model
from ..limits import (
    CLOCK_HZ,
    MAX_REGISTERS,
    SECTOR_BYTES,
    WARP,
    ceil_div,
    covered_rate,
    round_up,
    smooth_max,
)
from ..problem import TsmmProblem, is_complex, itemsize, parts_of
from ..roofline import Ceilings, memory_time
from .layout import MAX_WIDTH, shape_of, widest
from .model import view_traffic
from .tsmm_fma import (
    Coefficients,
    Plan,
    TsmmFmaConfig,
    grid_of,
    misfit,
    operands_of,
    plan_of,
    registers,
)
from .tsmm_mma_model import row_cycles as tensor_cycles


@frozen
class Recipe:
    """A configuration but for the widths.

    Attributes
    ----------
    spread, unroll, coefficients, stages
        As in the configuration.
    rounded : bool
        Whether columns of B per thread make up whole vectors of 16 bytes.
    whole : bool
        Whether a thread loads whole rows of A at a time, not 16 bytes.
    warps : int
        Warps resident on a multiprocessor.
    """

    spread: int
    unroll: int
    coefficients: Coefficients = "shared"
    rounded: bool = False
    whole: bool = False
    warps: int = 8
    stages: int = 3


# Of 2,300 recipes; none is missed in the geometric mean of 620 drawn products, and 7 per cent of the time
# at the most in 99 of 100.
RECIPES: Sequence[Recipe] = (
    Recipe(1, 1, "registers", warps=4, stages=4),
    Recipe(1, 2, warps=4),
    Recipe(1, 4, stages=2),
    Recipe(1, 4, "registers", whole=True, warps=4, stages=4),
    Recipe(1, 8),
    Recipe(1, 8, "registers", warps=16),
    Recipe(2, 1, "registers", stages=4),
    Recipe(2, 2, warps=4, stages=2),
    Recipe(2, 2, "registers", stages=4),
    Recipe(2, 4, stages=2),
    Recipe(2, 8, warps=4, stages=2),
    Recipe(4, 2, warps=4),
    Recipe(4, 4, stages=2),
    Recipe(4, 4, warps=4, stages=2),
    Recipe(4, 4, "registers", stages=4),
    Recipe(4, 8, stages=2),
    Recipe(4, 8, warps=4, stages=2),
    Recipe(8, 1, "registers", warps=4, stages=4),
    Recipe(8, 2, whole=True, warps=4, stages=2),
    Recipe(8, 2, "registers", stages=4),
    Recipe(8, 4, stages=2),
    Recipe(8, 4, warps=4, stages=2),
    Recipe(8, 4, "registers"),
    Recipe(8, 4, "registers", warps=4, stages=4),
    Recipe(8, 8, stages=2),
    Recipe(8, 8, warps=4),
    Recipe(16, 2, "registers"),
    Recipe(16, 2, "registers", warps=4, stages=4),
    Recipe(16, 4, stages=2),
    Recipe(16, 4, warps=4),
    Recipe(32, 4, warps=4),
)
SPARE: Sequence[Recipe] = (
    *(Recipe(spread, 1, warps=4, stages=2) for spread in (1, 2, 4, 8, 16, 32)),
    *(Recipe(spread, unroll, stages=0) for spread in (1, 2, 4, 8, 16, 32) for unroll in (1, 2)),
)
_TILINGS = 8  # with the fewest cycles per row, of which configurations are made


@functools.lru_cache(maxsize=16384)
def _tiled(
    problem: TsmmProblem, spread: int, unroll: int, coefficients: Coefficients, rounded: bool, whole: bool
) -> TsmmFmaConfig | None:
    """Cut a row into tiles, with the consecutive rows and the unrolling that suit them."""
    vector = max(1, 16 // itemsize(problem.dtype))
    ct, kt = ceil_div(problem.N, spread), min(problem.M, max(1, 16 // itemsize(problem.dtype_a)))
    if (rounded and ct % vector == 0) or (whole and kt == problem.M):
        return None  # the same without
    ct, kt = round_up(ct, vector) if rounded else ct, problem.M if whole else kt
    row_bytes = problem.M * itemsize(problem.dtype_a) | problem.N * itemsize(problem.dtype)
    is_linear = problem.lda == problem.M or problem.ldb == problem.N
    count = min(unroll, 16 // widest(row_bytes)) if spread == 1 and is_linear else 1
    products = kt * unroll * ct * parts_of(problem.dtype_a) * parts_of(problem.dtype_c)
    tiles = ceil_div(problem.M, kt)
    unroll_k = tiles if coefficients == "registers" or tiles * products <= 256 else max(1, 128 // products)
    config = TsmmFmaConfig(
        *(spread, ct, unroll, count, kt),
        coefficients=coefficients,
        unroll_k=unroll_k,
    )
    fits = registers(problem, config) <= MAX_REGISTERS and misfit(problem, config) is None
    return config if fits else None


_CEILINGS = Ceilings(4650, 4400, 4240)
_LAUNCH_S = 3.3e-6  # including the latency of the first bytes
_SHARED_CYCLES = 30  # shared memory to register
_COPY_CYCLES = 28  # of a warp's copies to or from a stage
_CHUNK_INSTRUCTIONS = 130  # waiting for a stage and filling it again, besides its copies
_PARTIAL_WRITES = 1.4  # times as long, where threads write less than a sector at a time
_SM_BYTES_PER_CYCLE = 64  # from L2 to one multiprocessor


# Where families are compared: fitted to the faster ones of 64 widths on an H200 and 8 products on an H100.
_BUSY = 1.5, 1.24  # of the cycles that tiles take by themselves, of real and complex numbers
_LIGHT = 0.9  # of the time of memory: products that never wait
_BYTES_PER_CYCLE = 18  # to or from memory, of one multiprocessor


def _tile_cycles(problem: TsmmProblem, config: TsmmFmaConfig) -> tuple[float, float, float]:
    """Estimate the cycles of a quadrant for the rows of a warp: products, their issue, loads."""
    a, b = operands_of(problem, config.kt, config.ct, config.spread)
    parts_c = parts_of(problem.dtype_c)
    products = config.unroll * config.ct * problem.M * a.parts * parts_c
    # 128 bytes per cycle into registers, for four quadrants: one cycle of a quadrant per byte and thread.
    loaded = config.unroll * a.row_bytes
    if config.coefficients != "registers":
        loaded += problem.M * config.ct * parts_c * b.real_bytes
    return products * (b.real_bytes // 4), products + loaded / 16, loaded


def _row_cycles(problem: TsmmProblem, config: TsmmFmaConfig) -> float:
    """Estimate the cycles of a multiprocessor per row: the longer of products and loads, part of the rest."""
    fma, issue, loads = _tile_cycles(problem, config)
    return (max(fma, issue, loads) + 0.25 * min(fma, loads) + 30) / (4 * config.rows)


def _row_tiles(problem: TsmmProblem, config: TsmmFmaConfig, plan: Plan) -> int:
    """Count the loads of a thread from a stage for all columns of its consecutive rows."""
    return ceil_div(problem.M, config.kt) * plan.a.accesses(
        config.count, plan.vectors[0], plan.slabs[0].is_linear
    )


@functools.lru_cache(maxsize=65536)
def _chunk_cycles(problem: TsmmProblem, config: TsmmFmaConfig) -> tuple[float, float]:
    """Estimate the cycles of a chunk: of a quadrant shared by its warps, and of one warp alone."""
    plan = plan_of(problem, config)
    fma, issue, loads = _tile_cycles(problem, config)
    out = config.unroll * config.ct * plan.b.size
    overhead = 60.0
    groups = WARP // config.spread
    if config.stages:
        overhead = _CHUNK_INSTRUCTIONS + _COPY_CYCLES * plan.slabs[0].copies(WARP)
        accesses = config.unroll // config.count * _row_tiles(problem, config, plan)
        loads += max(0.0, 4 * accesses * plan.access_cycles[0] - config.unroll * plan.a.row_bytes)
        overhead += (1 if problem.beta == "zero" else 2) * _COPY_CYCLES * plan.slabs[1].copies(WARP)
        accesses = (
            config.unroll
            // config.count
            * plan.b.accesses(config.count, plan.vectors[1], plan.slabs[1].is_linear)
        )
        loads += out + 4 * accesses * plan.access_cycles[1]
    else:
        # From memory, a load takes a cycle per line of 128 bytes that contains rows of the warp.
        lines = max(groups * plan.a.row_bytes / 128 if plan.a.is_linear else groups, plan.vectors[0] / 4)
        loads += 4 * config.unroll * plan.a.row_bytes / plan.vectors[0] * lines
        issue *= 1.1
        lines = max(groups * plan.b.row_bytes / 128 if plan.b.is_linear else groups, plan.vectors[1] / 4)
        loads += 4 * out / plan.vectors[1] * lines
    steps = ceil_div(ceil_div(problem.M, config.kt), config.unroll_k)
    return max(fma, issue, loads) + overhead, max(fma, issue) + overhead + _SHARED_CYCLES * steps


def _tiles(recipe: Recipe) -> tuple[int, int, Coefficients, bool, bool]:
    return recipe.spread, recipe.unroll, recipe.coefficients, recipe.rounded, recipe.whole


@functools.lru_cache(maxsize=4096)
def _best(problem: TsmmProblem) -> list[TsmmFmaConfig]:
    """List the tilings of the list with the fewest cycles per row without the limit of memory."""
    tiled = (_tiled(problem, *tiles) for tiles in dict.fromkeys(map(_tiles, RECIPES)))
    found = [config for config in tiled if config is not None]
    return sorted(found, key=lambda config: _row_cycles(problem, config))[:_TILINGS]


class TsmmFmaModel(Model[TsmmProblem, TsmmFmaConfig, Recipe]):
    """The model of the multiply-add family."""

    recipes, spare = RECIPES, SPARE

    def configure(self, problem: TsmmProblem, recipe: Recipe, device: DeviceInfo) -> TsmmFmaConfig | None:
        problem = shape_of(problem)
        config = _tiled(problem, *_tiles(recipe))
        if config is None or (recipe in RECIPES and config not in _best(problem)):
            return None
        return replace(
            config, stages=recipe.stages, teams=min(recipe.warps, 8), blocks=max(1, recipe.warps // 8)
        )

    def is_faster(self, problem: TsmmProblem) -> bool:
        """Compare with tensor cores, in single precision.

        They pad widths and convert what they load and store. Of views memory is the limit, which they use as
        well or better.
        """
        is_single = problem.dtype in ("float32", "complex64")
        widths = problem.M, problem.N
        is_view = (problem.lda, problem.ldb) != widths
        if not is_single or is_view or min(widths) < 1 or max(widths) > MAX_WIDTH:
            return False
        shape = shape_of(problem)
        least = _row_cycles(shape, _best(shape)[0])
        moved = problem.M + (1 if problem.beta == "zero" else 2) * problem.N
        memory = moved * itemsize(problem.dtype) / _BYTES_PER_CYCLE
        return _BUSY[is_complex(problem.dtype)] * least < max(_LIGHT * memory, tensor_cycles(problem))

    def predict(
        self,
        problem: TsmmProblem,
        config: TsmmFmaConfig,
        device: DeviceInfo,
        ceilings: Ceilings | None = None,
    ) -> float:
        """Predict the time of a valid configuration in seconds.

        The slowest of three limits, smoothed where they are close: memory, at the rate that the bytes in
        flight allow (Little's law); the busiest quadrant of a multiprocessor, whose pipes multiply, load and
        issue; the latencies of a warp.
        """
        shape = shape_of(problem)
        plan = plan_of(shape, config)
        grid = grid_of(problem, config, device)
        turns = ceil_div(ceil_div(problem.K, config.rows), grid * config.teams)
        resident, busy = ceil_div(grid, device.multiprocessors), min(grid, device.multiprocessors)
        moved = view_traffic(problem)
        ahead = config.stages - 0.5 if config.stages else 0.6
        row_bytes = plan.a.row_bytes + (plan.b.row_bytes if problem.beta != "zero" and config.stages else 0)
        flight = resident * config.teams * min(ahead, max(turns, 1)) * config.rows * row_bytes
        limit = memory_time(moved, ceilings or _CEILINGS)
        if not config.stages and config.spread * plan.vectors[1] < SECTOR_BYTES:
            limit *= _PARTIAL_WRITES
        share = min(moved.read_bytes / max(limit, 1e-12) / busy, _SM_BYTES_PER_CYCLE * CLOCK_HZ)
        quadrant, warp = _chunk_cycles(shape, config)
        warps_per_quadrant = ceil_div(resident * config.teams, 4)
        return _LAUNCH_S + smooth_max(
            moved.read_bytes / (busy * covered_rate(share, flight)),
            turns * warps_per_quadrant * quadrant / CLOCK_HZ,
            turns * warp / CLOCK_HZ,
        )
