"""SpMMV on SELL-C-sigma matrices: the configurations worth a try, and a model of their time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from .device import DeviceInfo
from .problem import SpmmvProblem, itemsize
from .roofline import Ceilings, memory_time, traffic
from .spmmv_csr_config import row_entries
from .spmmv_csr_model import unrolls_of
from .spmmv_sell_config import CHUNK, Config, refuse

__all__ = ["choose", "predict", "space"]

_BLOCKS = ((8, 4), (4, 10), (8, 3), (4, 12), (8, 2))  # warps, blocks
_SIGMA = 1024  # rows; sorted together where lengths vary so much:
_VARYING = 1.25  # times the average, the length of the longest row
_LAUNCH_S = 2.5e-6
_ATTAINED = 0.95


def space(problem: SpmmvProblem) -> Iterator[Config]:
    """Yield the configurations worth measuring, some of them not valid."""
    size = itemsize(problem.dtype_x)
    vector = max(v for v in (1, 2, 4) if v == 1 or (problem.width % v == 0 and v * size <= problem.align_x))
    aligned_x = problem.align_x % (vector * size) == 0
    aligned_y = min(problem.align_y, problem.align_z) % min(16, vector * itemsize(problem.dtype)) == 0
    for unroll, (warps, blocks), persistent, planes, passes, sigma in itertools.product(
        unrolls_of(row_entries(problem), 3),
        _BLOCKS,
        (True, False),
        (1, 2) if problem.pattern == "planes" else (1,),
        (1, 4),
        (CHUNK, _SIGMA) if problem.longest > _VARYING * row_entries(problem) else (CHUNK,),
    ):
        if passes > 1 and not persistent:
            continue
        yield Config(
            *(problem.width // vector, vector, unroll, warps, blocks, persistent, passes, planes, sigma),
            *(aligned_x, aligned_y),
        )


def predict(
    problem: SpmmvProblem, config: Config, device: DeviceInfo, ceilings: Ceilings | None = None
) -> float:
    """Return the modelled time in seconds of a valid configuration."""
    rates = ceilings or Ceilings(4600.0, 3300.0, 4200.0)
    return _LAUNCH_S + memory_time(traffic(problem), rates) / _ATTAINED


def choose(problem: SpmmvProblem, device: DeviceInfo, ceilings: Ceilings | None = None) -> Config:
    """Return the valid configuration with the shortest modelled time; the problem must be supported."""
    valid = [c for c in dict.fromkeys(space(problem)) if refuse(problem, c, device) is None]
    return min(valid, key=lambda config: predict(problem, config, device, ceilings))
