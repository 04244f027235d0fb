"""What the models of several dense families share."""

from __future__ import annotations

import functools

from ..problem import TsmmProblem, itemsize
from ..roofline import Traffic, partial_sectors, sector_traffic

PARTIAL_BYTES = 190
"""Bytes of other traffic that take as long as a sector that a row fills in part, not read before [H100]."""


@functools.lru_cache(maxsize=1024)
def view_traffic(problem: TsmmProblem, partial_bytes: int = PARTIAL_BYTES) -> Traffic:
    """Estimate the traffic in whole sectors, and as reads what those take that rows of B fill in part."""
    moved = sector_traffic(problem)
    partial = problem.K * partial_sectors(problem.N, problem.ldb, itemsize(problem.dtype))
    return Traffic(moved.read_bytes + int(partial * partial_bytes), moved.write_bytes)
