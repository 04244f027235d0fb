"""SpMMV on SELL-C-sigma matrices: the configurations worth a try, and a model of their time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from ..device import DeviceInfo
from ..problem import SpmmvProblem, itemsize
from ..roofline import Ceilings, memory_time, traffic
from .csr_config import row_entries
from .csr_model import requests, unrolls_of
from .sell_config import CHUNK, Config, refuse

__all__ = ["choose", "predict", "space"]

_BLOCKS = ((8, 4), (4, 10), (8, 3), (4, 12), (8, 2), (8, 1))  # warps, blocks
_PLANES = (1, 4)
_SIGMA = 1024  # rows sorted together where lengths vary: where the longest row has ...
_VARYING = 1.25  # ... this many times the average of entries

_CLOCK_HZ = 1.755e9  # a Hopper GPU under load
_LAUNCH_S = 2.5e-6
_LINE = 128  # bytes of a cache line, and of what L1 delivers in a cycle
# Fitted to some thousand runs over stencils, lattice models and a band on an H200:
_ATTAINED = 0.88  # of the memory's rate
_SHARED = 0.76  # cycles of the L1 pipe a line or 128 bytes
_REQUESTS_A_SECOND = 165e9  # lines asked of L2
_ENTRY_S = 5.2e-9  # of an entry of a chunk, were its warp alone and gathered one row of X at a time
_IN_FLIGHT = 0.45  # exponent with which more entries in flight help; more warps do in proportion
_SMOOTHING = 4  # exponent of the norm that takes the slowest of four resources


def space(problem: SpmmvProblem) -> Iterator[Config]:
    """Yield the configurations worth measuring, some of them not valid."""
    size, average = itemsize(problem.dtype_x), row_entries(problem)
    vector = max(v for v in (1, 2, 4) if v == 1 or (problem.width % v == 0 and v * size <= problem.align_x))
    aligned_x = problem.align_x % (vector * size) == 0
    aligned_y = min(problem.align_y, problem.align_z) % min(16, vector * itemsize(problem.dtype)) == 0
    for unroll, (warps, blocks), planes, sigma in itertools.product(
        unrolls_of(average, 3),
        _BLOCKS,
        _PLANES if problem.pattern == "planes" else (1,),
        (CHUNK, _SIGMA) if problem.longest > _VARYING * average else (CHUNK,),
    ):
        yield Config(
            vectors=problem.width // vector,
            vector=vector,
            unroll=unroll,
            warps=warps,
            blocks=blocks,
            # Blocks that come and go stay closer together, which is what scattered rows of X gain by.
            persistent=problem.pattern != "scattered",
            planes=planes,
            sigma=sigma,
            aligned_x=aligned_x,
            aligned_y=aligned_y,
        )


def predict(
    problem: SpmmvProblem, config: Config, device: DeviceInfo, ceilings: Ceilings | None = None
) -> float:
    """Return the modelled time in seconds of a valid configuration.

    The slowest of four resources, smoothed where two are close: memory, lookups in L2, the L1 pipe, and the
    latency that warps and their gathers in flight leave uncovered, the only one that depends on the choice.
    """
    rates = ceilings or Ceilings(4600.0, 3300.0, 4200.0)
    row, average = problem.width * itemsize(problem.dtype_x), row_entries(problem)
    chunks = problem.n_rows / CHUNK / device.multiprocessors
    lines = CHUNK if problem.pattern == "scattered" else min(CHUNK, math.ceil(CHUNK * row / _LINE))
    entry = CHUNK * (itemsize(problem.dtype_matrix) + problem.index_bytes) / _LINE
    in_flight = max(1.0, average / max(1, math.ceil(average / config.unroll)))
    warps = config.warps * config.blocks
    times = (
        memory_time(traffic(problem), rates) / _ATTAINED,
        requests(problem) / _REQUESTS_A_SECOND,
        _SHARED * chunks * average * (entry + config.vectors * lines) / _CLOCK_HZ,
        _ENTRY_S * chunks * average / (warps * in_flight**_IN_FLIGHT),
    )
    slowest = max(times)
    total = slowest * sum((time / slowest) ** _SMOOTHING for time in times) ** (1 / _SMOOTHING)
    return float(_LAUNCH_S + total)


def choose(problem: SpmmvProblem, device: DeviceInfo, ceilings: Ceilings | None = None) -> Config:
    """Return the valid configuration with the shortest modelled time; the problem must be supported."""
    valid = [c for c in dict.fromkeys(space(problem)) if refuse(problem, c, device) is None]
    return min(valid, key=lambda config: predict(problem, config, device, ceilings))
