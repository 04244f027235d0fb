"""The initial space of Jacobi-Davidson inside a spectrum, by filtered block Lanczos around the target.

Far from eigenvectors corrections reduce the residual slowly: a third of the operator columns, and more than
half of the time, was spent before the first wanted vector was isolated. A Chebyshev filter computes the
lowest eigenvectors of (A - tau I)^2 by products alone, until residuals are small compared with the
distances from tau: from there on corrections converge fast, and filters of the square slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from blockvec.system.frozen import frozen

from ..blocks import Block, Operator, RealArray
from ..costs import most_calls
from ..problem import IterationOptions, Problem
from ..transform.fold import FoldedOperator
from .counts import Counts
from .filter import choose_degree
from .filtered_lanczos import FilteredRestart
from .rayleigh_ritz import Tolerance
from .search_space import SearchSpace

NEAR = 0.03  # residual of (A - tau I)^2 that is sufficient, over d^2, with the k-th distance d from tau
BLOCK = 8  # columns per step
STEPS = 8  # steps per basis
SPARE = 4  # vectors in addition to the wanted ones
MAX_RESTARTS = 60
SHARE = 0.25  # applications, over those that take as long as dense LAPACK; each is two of A
MIN_DEGREE = 6  # products per orthogonalised block of the same cost, from which A is cheap to apply


@frozen
class _Standing(Tolerance):
    """Residuals at which eigenvectors of (A - tau I)^2 are separated from those further away."""

    def limits(self, theta: RealArray, norm: float) -> RealArray:
        """Compute the residual limits of values of the square from the norm of the square."""
        limits: RealArray = np.maximum(NEAR * np.abs(theta).max(initial=0.0), self.floor(theta, norm))
        return limits


def is_cheap(operator: Operator, basis: int) -> bool:
    """Check whether `MIN_DEGREE` applications of an operator cost no more than orthogonalising one block."""
    return choose_degree(operator, BLOCK, basis) >= MIN_DEGREE


def filtered_start(
    space: SearchSpace, problem: Problem, block_size: int, counts: Counts, interrupted: Callable[[], bool]
) -> Block:
    """Compute vectors near those of the eigenvalues nearest to the target of a search space.

    The space has room for them. Costs are added to `counts`; `block_size` is that of Jacobi-Davidson.
    """
    operator, rng = space.operator, problem.rng
    count = min(max(problem.k, min(problem.k + SPARE, space.capacity - block_size)), space.room)
    b = min(BLOCK, space.room)
    ncv = min(count + max(count, STEPS * b), space.room)
    square = Problem(
        operator=FoldedOperator(operator, space.tau, space.locked),
        k=count,
        which="SA",
        tolerance=_Standing(0.0, "absolute", problem.tolerance.unit),
        rng=rng,
        locked=space.locked,
        verify="never",
        time_limit=problem.time_limit,
        begin_s=problem.begin_s,
    )
    degree = max(2, choose_degree(operator, b, (count + ncv) // 2) // 2)
    options = IterationOptions(b, ncv, MAX_RESTARTS, degree, "filter")
    options = replace(options, most_calls=SHARE * most_calls(problem, options))
    start = space.buffer.random_like(b, rng)
    found = FilteredRestart(square, options, start, interrupted).run()
    counts.add(found.counts, 2)
    return found.X.copy()
