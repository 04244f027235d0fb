"""Common parts of the models of sparse products."""

from __future__ import annotations

import math
from dataclasses import replace

from ..limits import LINE_BYTES
from ..problem import SpmmvProblem, itemsize
from ..roofline import Ceilings, Traffic, traffic

H200_CEILINGS = Ceilings(4600.0, 3300.0, 4200.0)
"""Measured limits of an H200, for where none are given."""


def stored_traffic(problem: SpmmvProblem) -> Traffic:
    """Compute the bytes of a product with a matrix as it is stored: coded entries have no values."""
    moved = traffic(problem)
    saved = problem.nnz * itemsize(problem.dtype_matrix) if problem.coded else 0
    return replace(moved, read_bytes=moved.read_bytes - saved)


def unroll_of(entries: float, most: int) -> int:
    """Choose a number of entries in flight, at most `most`, that divides an average row well."""
    entries = max(1.0, entries)
    trips = math.ceil(entries / most)
    return max(1, min(most, math.ceil(entries / trips)))


def l2_requests(problem: SpmmvProblem) -> float:
    """Count the lines requested from L2 where no two nearby entries share one."""
    if problem.pattern in ("lines", "planes"):
        return 0.0
    row = problem.width * itemsize(problem.dtype_x)
    return problem.nnz * (1 + (row - min(row & -row, LINE_BYTES)) / LINE_BYTES)
