"""The search space of the multiply-add TSMM and the model that orders it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..limits import CLOCK_HZ, MAX_REGISTERS, SECTOR_BYTES, ceil_div, covered_rate, round_up, smooth_max
from ..problem import TsmmProblem, is_complex, itemsize
from ..roofline import Ceilings, memory_time
from .layout import MAX_WIDTH, parts_of, refuse_widths, shape_of, widest
from .model import ProductModel, view_traffic
from .tsmm_fma import (
    Coefficients,
    Plan,
    TsmmFmaConfig,
    grid_of,
    misfit,
    operands_of,
    plan_of,
    refuse,
    registers,
)
from .tsmm_mma_model import row_cycles as tensor_cycles

_COEFFICIENTS: tuple[Coefficients, ...] = ("registers", "shared")


@frozen
class _Choices:
    """The values that `_enumerate` combines: tilings, warps per multiprocessor, ways to move rows, stages."""

    tilings: int
    warps: tuple[int, ...]
    ways: tuple[str, ...]
    stages: tuple[int, ...]


_SPACE = _Choices(14, (4, 8, 16, 32, 64), ("direct", "in", "in and out"), (2, 3, 4, 6))
# The space of `choose`: settings whose effect the model does not describe are fixed to the best measured.
_SHORT_LIST = _Choices(6, (4, 8, 16), ("in and out",), (2, 3, 4))


def _enumerate(problem: TsmmProblem, choices: _Choices) -> Iterator[TsmmFmaConfig]:
    for base in _tilings(problem, choices.tilings):
        a, b = operands_of(problem, base.kt, base.ct, base.spread)
        for warps in choices.warps:
            resident = replace(base, teams=min(warps, 8), blocks=max(1, warps // 8))
            for way in choices.ways:
                if way == "direct":
                    yield resident
                    continue
                config = replace(resident, staged_out=way == "in and out")
                gains = any(x.is_linear and x.tiles > 1 and x.row_bytes % 16 for x in (a, b))
                for padded in (False, True) if gains else (False,):
                    for stages in choices.stages:
                        yield replace(config, stages=stages, padded=padded)


@functools.lru_cache(maxsize=1024)
def _tilings(problem: TsmmProblem, most: int) -> list[TsmmFmaConfig]:
    """List tiles of a thread, sorted by the cycles per row without the limit of memory."""
    unit = max(1, 16 // itemsize(problem.dtype))  # columns of a 16-byte vector
    found = []
    for spread in (1, 2, 4, 8, 16, 32):
        columns = ceil_div(problem.N, spread)
        for ct in sorted({columns, round_up(columns, unit)}):
            for kt in sorted({min(problem.M, max(1, 16 // itemsize(problem.dtype_a))), problem.M}):
                for unroll in (1, 2, 4, 8):
                    for coefficients in _COEFFICIENTS:
                        config = _tiling(problem, spread, ct, kt, unroll, coefficients)
                        if registers(problem, config) <= MAX_REGISTERS and misfit(problem, config) is None:
                            found.append((_row_cycles(problem, config), config))
    found.sort(key=lambda entry: entry[0])
    return [config for _, config in found[:most]]


def _tiling(
    problem: TsmmProblem, spread: int, ct: int, kt: int, unroll: int, coefficients: Coefficients
) -> TsmmFmaConfig:
    """Create a configuration with the consecutive rows and the unrolling that suit its tile."""
    row_bytes = problem.M * itemsize(problem.dtype_a) | problem.N * itemsize(problem.dtype)
    is_linear = problem.lda == problem.M or problem.ldb == problem.N
    count = min(unroll, 16 // widest(row_bytes)) if spread == 1 and is_linear else 1
    products = kt * unroll * ct * parts_of(problem.dtype_a) * parts_of(problem.dtype_c)
    tiles = ceil_div(problem.M, kt)
    unroll_k = tiles if coefficients == "registers" or tiles * products <= 256 else max(1, 128 // products)
    return TsmmFmaConfig(
        spread,
        ct,
        unroll,
        count=count,
        kt=kt,
        coefficients=coefficients,
        interleaved=spread > 1,
        unroll_k=unroll_k,
    )


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
    groups = config.lanes // config.spread
    if config.stages:
        overhead = _CHUNK_INSTRUCTIONS + _COPY_CYCLES * plan.slabs[0].copies(config.lanes)
        accesses = config.unroll // config.count * _row_tiles(problem, config, plan)
        loads += max(0.0, 4 * accesses * plan.access_cycles[0] - config.unroll * plan.a.row_bytes)
    else:
        # From memory, a load takes a cycle per line of 128 bytes that contains rows of the warp.
        lines = max(groups * plan.a.row_bytes / 128 if plan.a.is_linear else groups, plan.vectors[0] / 4)
        loads += 4 * config.unroll * plan.a.row_bytes / plan.vectors[0] * lines
        issue *= 1.1
    if config.staged_out:
        overhead += (1 if problem.beta == "zero" else 2) * _COPY_CYCLES * plan.slabs[1].copies(config.lanes)
        accesses = (
            config.unroll
            // config.count
            * plan.b.accesses(config.count, plan.vectors[1], plan.slabs[1].is_linear)
        )
        loads += out + 4 * accesses * plan.access_cycles[1]
    else:
        lines = max(groups * plan.b.row_bytes / 128 if plan.b.is_linear else groups, plan.vectors[1] / 4)
        loads += 4 * out / plan.vectors[1] * lines
    steps = ceil_div(ceil_div(problem.M, config.kt), config.unroll_k)
    return max(fma, issue, loads) + overhead, max(fma, issue) + overhead + _SHARED_CYCLES * steps


class TsmmFmaModel(ProductModel[TsmmProblem, TsmmFmaConfig]):
    """The model of the multiply-add family."""

    name = "tsmm_fma"
    ceilings = Ceilings(4650, 4400, 4240)

    supports = staticmethod(refuse_widths)
    refuse = staticmethod(refuse)
    shape = staticmethod(shape_of)

    def candidates(self, problem: TsmmProblem, device: DeviceInfo, is_short: bool) -> Iterator[TsmmFmaConfig]:
        """Yield the configurations of the space, or the fewer ones that `choose` compares."""
        return _enumerate(problem, _SHORT_LIST if is_short else _SPACE)

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
        shape = self.shape(problem)
        least = _row_cycles(shape, _tilings(shape, _SHORT_LIST.tilings)[0])
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
        row_bytes = plan.a.row_bytes + (
            plan.b.row_bytes if problem.beta != "zero" and config.staged_out else 0
        )
        flight = resident * config.teams * min(ahead, max(turns, 1)) * config.rows * row_bytes
        limit = memory_time(moved, ceilings or self.ceilings)
        if not config.staged_out and config.spread * plan.vectors[1] < SECTOR_BYTES:
            limit *= _PARTIAL_WRITES
        share = min(moved.read_bytes / max(limit, 1e-12) / busy, _SM_BYTES_PER_CYCLE * CLOCK_HZ)
        quadrant, warp = _chunk_cycles(shape, config)
        warps_per_quadrant = ceil_div(resident * config.teams * config.warps, 4)
        return _LAUNCH_S + smooth_max(
            moved.read_bytes / (busy * covered_rate(share, flight)),
            turns * warps_per_quadrant * quadrant / CLOCK_HZ,
            turns * warp / CLOCK_HZ,
        )
