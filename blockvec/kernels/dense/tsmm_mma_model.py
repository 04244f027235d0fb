"""TSMM on FP64 tensor cores: the configurations worth a try, and a model of their time that orders them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from ...errors import OptionError
from ..device import DeviceInfo
from ..problem import TsmmProblem, real_bytes, rounded_rows
from ..roofline import Ceilings, memory_time, traffic
from .tsmm_mma_config import (
    MMA_CYCLES,
    QUADRANTS,
    Config,
    Shape,
    invalid,
    is_complex_kernel,
    pipe_share,
    rest,
    shape_of,
    supports,
)
from .tsmttsm_mma_config import architecture_of

__all__ = ["choose", "predict", "space"]

_SHARED_BYTES_PER_CYCLE = 128
# Few warps disturb the order least, and suffice while tensor pipes are idle for more than half of the time.
_IDLE_SHARE = 0.4


def space(problem: TsmmProblem, device: DeviceInfo) -> tuple[Config, ...]:
    """Return every valid configuration worth trying, a few hundred, in no order of merit."""
    if supports(problem, device) is not None:
        return ()
    candidates = dict.fromkeys((*_candidates(problem, device), *_complex_candidates(problem, device)))
    return tuple(config for config in candidates if invalid(problem, config, device) is None)


def _candidates(problem: TsmmProblem, device: DeviceInfo) -> Iterator[Config]:
    shape = shape_of(problem, device)
    row_bytes = max(problem.M, problem.N) * shape.size
    idle = pipe_share(shape, problem) < _IDLE_SHARE
    unrolls, warp_counts = ((1, 2), (4, 8, 12)) if idle else ((1, 2, 4), (8, 12, 16))
    depths = ((2, 1), (2, 2), (3, 2), (4, 2), *(((1, 2), (6, 2)) if idle else ()))  # stages and slabs
    most_bytes = (128 if idle else 64) << 10  # of the tiles that all groups work at
    for shared in (False, True):
        if shared and shape.kt * shape.nt < 24:
            continue  # such fragments fit any register budget
        for split in (1, 2, 4):
            if split > shape.nt:
                continue
            tiles = -(-shape.nt // split)
            for unroll in unrolls:
                if unroll > 1 and unroll * tiles > 16:
                    continue
                for warps in warp_counts:
                    for rows in _row_counts(unroll * shape.block, warps // split * row_bytes, most_bytes):
                        columns = device.shared_bytes_per_block // (warps // split * rows * shape.size)
                        for stages, slabs in depths:
                            if stages * problem.M + slabs * problem.N > columns:
                                continue  # as refuse() would say, at greater length
                            yield Config(warps, split, rows, unroll, stages, slabs, shared)


def _complex_candidates(problem: TsmmProblem, device: DeviceInfo) -> Iterator[Config]:
    """Yield small tiles, or without slabs, of single precision; in double precision slabs do better."""
    shape = shape_of(problem, device)
    if shape.parts == 1 or shape.size > 8 or shape.nt < 4:
        return
    for split, unroll, passes in itertools.product((1, 2), (1, 2), (1, 2)):
        rows = unroll * shape.block * passes
        for warps, stages in itertools.product((8, 12, 16), (2, 4)):
            yield Config(warps, split, rows, unroll, stages, 0, True)
            if split == 1:
                yield Config(warps, split, rows, unroll, stages, 1, True)


def _row_counts(least: int, row_bytes: int, most_bytes: int) -> list[int]:
    """Return tile heights: multiples of `least` that make 16 KB or more of rows, but not too many."""
    counts = [least * 2**i for i in range(10)]
    return [rows for rows in counts if 16 << 10 <= rows * row_bytes <= most_bytes] or [least]


def predict(
    problem: TsmmProblem, config: Config, device: DeviceInfo, ceilings: Ceilings | None = None
) -> float:
    """Return the expected time in seconds.

    The limits, each a time: memory; the tensor pipes, with padding and uneven quadrants; shared memory, which
    every byte passes two to six times; conversions of single precision; and the groups' own pipelines, whose
    tiles wait for their turn at the tensor pipes and for memory (Little's law). A smooth maximum joins them:
    limits that are close get in each other's way.
    """
    shape = shape_of(problem, device)
    sms = device.multiprocessors
    ceilings = ceilings or _CEILINGS
    peak = ceilings.gflop_s.get("float64") or _CEILINGS.gflop_s["float64"]
    cycles_per_mma = MMA_CYCLES if architecture_of(device) >= 90 else 2 * MMA_CYCLES
    clock = peak * 1e9 / (sms * QUADRANTS * 1024 / cycles_per_mma)
    tiles = -(-problem.K // config.rows) if problem.K else 0
    rounds = -(-tiles // (sms * config.groups))
    if is_complex_kernel(problem, config, shape):
        body = _complex_cycles(problem, config, shape) * rounds / clock
        memory = memory_time(traffic(problem), ceilings) / _COMPLEX_MEMORY_RATE
        longest = max(body, memory)
        joint = longest * ((body / longest) ** _SHARPNESS + (memory / longest) ** _SHARPNESS) ** (
            1 / _SHARPNESS
        )
        return float(joint + _MEMORY_CYCLES / clock + _LAUNCH_S)
    beta = problem.beta != "zero"

    passes = config.rows // (shape.block * config.unroll)
    turns = rest(shape, config) > 0
    share = shape.nt / config.split if turns else -(-shape.nt // config.split)
    products = config.rows // shape.block * shape.kt * shape.nt  # m16n8k4 a tile
    tensor = rounds * config.groups * products * cycles_per_mma / QUADRANTS / _PIPE_RATE
    # A group waits for its warp with the most columns, though quadrants get equal shares.
    if shape.parts == 2 and shape.size == 8:
        tensor *= _CONVERTING
    if not turns:
        tensor *= _imbalance(shape.nt, config.warps, config.split) * (share * config.split / shape.nt) ** 0.6

    staged = config.rows * shape.size * (problem.M + (4 if beta else 2) * problem.N)
    fragments = config.rows * shape.size * 4 * shape.kt * config.split
    if config.shared_coefficients:
        fragments += passes * shape.kt * shape.nt * 256
    shared = rounds * config.groups * (staged + fragments) / (_SHARED_BYTES_PER_CYCLE * _SHARED_RATE)

    latency = _MMA_LATENCY + (_LOAD_LATENCY if config.shared_coefficients else 0)
    step = config.unroll * share * cycles_per_mma
    apart: float = _TILE_CYCLES + (_BARRIER_CYCLES if config.split > 1 else 0)
    apart += passes * (_PASS_CYCLES + shape.kt * max(0, latency - step))
    apart += passes * _STORE_CYCLES * config.unroll * share
    apart += _piece_cycles(problem.M, shape.piece_a, config, shape)
    apart += (2 if beta else 1) * _piece_cycles(problem.N, shape.piece_b, config, shape)
    numbers = 0  # that a tile converts
    if real_bytes(problem.dtype) == 4:
        numbers = config.rows * shape.parts * (4 * shape.kt * config.split + problem.N)
    pipe = passes * shape.kt * step + numbers / config.split * QUADRANTS / _CONVERSIONS
    work = _turn(pipe, apart, config.warps // QUADRANTS)
    tile_a, tile_b = (config.rows * shape.size * width for width in (problem.M, problem.N))
    loading = (_MEMORY_CYCLES + (tile_a + tile_b) / _TILE_RATE + work) / config.stages
    memory = memory_time(traffic(problem), ceilings) * _disorder(config, tile_a, tile_b)

    converted = rounds * config.groups * numbers / _CONVERSIONS
    cycles = (tensor, shared, converted, rounds * work, rounds * loading)
    limits = (memory, *(limit / clock for limit in cycles))
    longest = max(limits)
    joint = longest * sum((limit / longest) ** _SHARPNESS for limit in limits) ** (1 / _SHARPNESS)
    return float(joint + _MEMORY_CYCLES / clock + _LAUNCH_S)


# Fitted to 2166 timed configurations of 388 problems in double precision on an H200 (2 per cent root mean
# square near the best): the first choice is within 0.6 per cent (mean) of the best that was seen, the best of
# the first six within 0.1.
_PIPE_RATE = 0.83  # of the rate of tensor products by themselves
_SHARED_RATE = 0.86  # of shared memory's peak
_MMA_LATENCY = 30  # cycles of a product ...
_LOAD_LATENCY = 12  # ... and more of its coefficients' way from shared memory
_CONVERTING = 1.12  # what conversions cost the products of complex numbers beside that
_CONVERSIONS = 14  # between float32 and float64, a cycle and SM
_PASS_CYCLES = 18  # going on to the next rows
_STORE_CYCLES = 36  # of a block of the result, from accumulators to the slab
_TILE_CYCLES = 600  # waiting, issuing copies ...
_BARRIER_CYCLES = 200  # ... and where warps of a group wait for each other
_MEMORY_CYCLES = 1500  # of a copy on its way from busy memory ...
_TILE_RATE = 31  # ... and the bytes a cycle in which a tile arrives and leaves
# Memory likes few places at a time: what a factor of two costs in tiles that the groups of a multiprocessor
# work at, in bytes of A on their way to it, and below a tile of B that is written at once.
_WINDOW_BYTES, _WINDOW_COST = 26 << 10, 0.004
_FLIGHT_BYTES, _FLIGHT_COST = 24 << 10, 0.006
_STORE_BYTES, _STORE_COST = 64 << 10, 0.0012
_SHARPNESS = 8
# Where no warp waits for another: fitted to 225 timed configurations of 24 problems (6 per cent).
_ROUND_CYCLES, _COMPLEX_PASS_CYCLES = 150, 460
_SLAB_BYTES, _SPLIT_STORE_BYTES = 132, 58  # a cycle: into slabs, and from registers 32 of a row at a time
_CONVERTED_SHARE = 0.2  # of conversions that products do not hide
_COMPLEX_MEMORY_RATE = 0.92  # of the copy rate
_LAUNCH_S = 3e-6
_MIXES = ((1 / 65, 4480), (1 / 9, 4490), (1 / 3, 4400), (2 / 3, 4100), (8 / 9, 3910), (64 / 65, 4060))
_CEILINGS = Ceilings(4690, 4700, 4280, {"float64": 66e3}, mixed_gb_s=_MIXES)


def _complex_cycles(problem: TsmmProblem, config: Config, shape: Shape) -> float:
    """Return the cycles of a round of tiles, one a group, where no warp waits for another.

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


def _disorder(config: Config, tile_a: int, tile_b: int) -> float:
    """Return what the places at which a multiprocessor is at work cost memory, as a factor of its time."""
    window = config.groups * max(tile_a, tile_b)
    flight = config.groups * config.stages * tile_a
    return (
        1
        + _WINDOW_COST * max(0.0, math.log2(window / _WINDOW_BYTES))
        + _FLIGHT_COST * max(0.0, math.log2(flight / _FLIGHT_BYTES))
        + _STORE_COST * max(0.0, math.log2(_STORE_BYTES / tile_b))
    )


def _turn(pipe: float, apart: float, warps: int) -> float:
    """Return the cycles of a warp's tile where warps of a quadrant take turns at its tensor pipe.

    A warp that comes to the pipe finds the queue that one warp fewer would leave on average.
    """
    queue = waiting = 0.0
    for present in range(1, warps + 1):
        waiting = pipe * (1 + queue)
        queue = present * waiting / (apart + waiting)
    return apart + waiting


@functools.lru_cache(maxsize=1024)
def _imbalance(nt: int, warps: int, split: int) -> float:
    """Return the work of the busiest quadrant over the mean; shares of columns can differ by a tile."""
    loads = [0] * QUADRANTS
    for warp in range(warps):
        share = (warp % split + warp // 4 * (split // 2)) % split
        loads[warp % QUADRANTS] += -(-(nt - share) // split)
    return max(loads) * QUADRANTS / sum(loads)


def _piece_cycles(width: int, piece: int, config: Config, shape: Shape) -> float:
    """Return the cycles in which a warp moves its part of a tile by pieces, some 16 instructions each."""
    return 16 * config.rows * width * shape.size / (piece * 32 * config.split) if piece else 0.0


def choose(problem: TsmmProblem, device: DeviceInfo, ceilings: Ceilings | None = None) -> Config:
    """Return the best configuration by the model.

    Raises
    ------
    OptionError
        If the family does not support the problem on this device.
    """
    ceilings = ceilings or _CEILINGS
    rates = tuple(sorted(ceilings.gflop_s.items()))
    bandwidths = (ceilings.read_gb_s, ceilings.write_gb_s, ceilings.copy_gb_s)
    return _choose(replace(problem, K=rounded_rows(problem.K)), device, bandwidths, rates)


@functools.lru_cache(maxsize=4096)
def _choose(
    problem: TsmmProblem,
    device: DeviceInfo,
    bandwidths: tuple[float, float, float],
    rates: tuple[tuple[str, float], ...],
) -> Config:
    ceilings = Ceilings(*bandwidths, gflop_s=dict(rates))
    configs = space(problem, device)
    if not configs:
        reason = supports(problem, device) or "no configuration fits its shared memory"
        raise OptionError(
            f"tsmm_mma cannot run on {device.name}: {reason}; let dispatch take another family."
        )
    return min(configs, key=lambda config: predict(problem, config, device, ceilings))
