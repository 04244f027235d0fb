"""Values nearest to a number beside the spectrum: those of an end, by an iteration without factors.

The smallest values of a graph's Laplacian, and those nearest to a number below all of them, are its lowest
ones. Factors of A - sigma I fill up for spatial and random graphs, and a function has none, while steps with
A itself may be few: some per level of the graph. A few Lanczos steps tell whether values lie on both sides of
sigma, since each Ritz value is an average of eigenvalues. Where they saw one side only, an iteration for that
end runs for about as long as predicted, and what it finds tells whether the other side is empty. Without it,
values nearest to -0.01 of four random graphs of 2000 to 6000 rows took 5 to 23 times as long.

How fast a Krylov space converges at a point depends on its potential, the mean of log abs(lambda - sigma)
over the spectrum: it is low for stiff matrices, most of whose values are near that end.

References
----------
Kuijlaars, SIAM Review 48 (2006) 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from blockvec import Operator
from blockvec.errors import BreakdownError
from blockvec.system.scalars import plain

from ..blocks import is_explicit, to_host
from ..costs import dense_is_faster, place_of, product_s, rates
from ..iterations.spectrum import sketch_of
from ..problem import FLOOR, STOPPED, IterationState, Problem, Which, staged
from ..result import EigenResult, is_complete
from .combine import one_after_other
from .run import solve

LOOK_STEPS = 16  # columns
SLIGHT = 0.01  # share of the limit of the residual of a Ritz value that its error may be
COLUMNS = 200  # columns of a Lanczos iteration for six pairs, at least
# Further columns per level of the graph: 6 to 10 were counted for lattices, 15 to 25 for graphs of
# neighbours, 5 to 40 for finite elements, and 40 for random graphs.
COLUMNS_PER_LEVEL = 8
# Geometric mean of the distances from sigma, as a share of the largest, below which more columns are taken:
# by the root of their ratio, as counted for graphs with hubs and rough elements. Stiff matrices have .015.
DISTANCE = 0.3
SLACK = 2.0  # times its predicted time, that an iteration may take
# Share of the time predicted for factors that it may take in any case: where these fill in, giving up early
# took 28 s in place of 0.6 (a doubled random graph of 14,000 rows).
SHARE = 0.25
LOOSE = 0.01  # residuals relative to ||A|| above which values beyond sigma may be hidden


def may_be_quick(A: Any, op: Operator, k: int) -> tuple[float, float] | None:
    """Predict the seconds of an iteration at an end, and of factors; None where others take less time.

    Where nothing can factorise both are infinite: there is nothing that an iteration could take longer than.
    """
    from ..factorization.work import FactorWork

    if k < 1 or dense_is_faster(op.shape[0], k, "cpu", "end") is not None:
        return None
    if not is_explicit(A) or (place := place_of(A, op.device)) is None:
        return math.inf, math.inf
    column_s = rates(op.device).call_s + product_s(op, 1)
    if not hasattr(A, "nnz") or FactorWork.banded(A).factor_s(place) <= column_s * COLUMNS:
        return None
    work = FactorWork.of(A)
    iteration_s = column_s * (COLUMNS + COLUMNS_PER_LEVEL * work.levels)
    factors_s = work.factor_s(place)
    return None if iteration_s > factors_s else (iteration_s, factors_s)


def from_end(
    problem: Problem, sigma: float, predicted_s: tuple[float, float], otherwise: Callable[[], EigenResult]
) -> EigenResult:
    """Iterate at the end of the spectrum nearest to sigma, for about as long as predicted.

    `predicted_s` are those of `may_be_quick`. The problem is solved `otherwise` where a look sees values on
    both sides, or factors take less time, and after an iteration that has not settled the nearest values,
    which ends once it finds values beyond sigma.
    """
    (iteration_s, factors_s), op = predicted_s, problem.operator
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            seen = sketch_of(op, LOOK_STEPS)
    except BreakdownError:  # what follows scales the matrix, or reports it
        return otherwise().with_more_columns(LOOK_STEPS, LOOK_STEPS)
    distances = seen.theta - sigma
    noise = FLOOR * float(np.finfo(op.dtype).eps) * max(seen.norm, abs(sigma))
    if (distances < -noise).any() and (distances > noise).any():
        return otherwise().with_more_columns(seen.columns, seen.columns)
    away = np.abs(distances)
    shares = np.maximum(away / (away.max() or 1.0), np.finfo(float).eps)
    mean = float(np.exp(np.average(np.log(shares), weights=seen.counts)))
    iteration_s *= max(1.0, math.sqrt(DISTANCE / mean))
    if iteration_s > factors_s:
        return otherwise().with_more_columns(seen.columns, seen.columns)
    end: Which = "SA" if distances.max() > noise else "LA"
    callback, exponent, crossed = problem.callback, problem.exponent, False

    def is_crossed(values: Any, limits: Any) -> bool:
        # Ritz values are averages of eigenvalues. Those of vectors that are not quite orthogonal have errors
        # far below the limits of their residuals.
        outwards = (sigma - to_host(values).astype(np.float64)) * (1 if end == "SA" else -1)
        return bool((outwards > np.maximum(SLIGHT * limits, noise)).any())

    def is_over(state: IterationState) -> bool:
        nonlocal crossed
        if callback is not None and plain(callback(state)) is True:
            return True
        scaled = state.times(-exponent)
        crossed = is_crossed(scaled.eigenvalues, scaled.limits)
        return crossed

    attempt = staged(problem, "end")
    most_s = max(SHARE * factors_s, SLACK * iteration_s)

    def successor(spent_s: float, whole_s: float) -> bool:
        return spent_s > most_s or whole_s > factors_s

    result = solve(replace(attempt, which=end, target=None, callback=is_over, successor=successor))
    is_wrong, stopped = is_crossed(result.eigenvalues, result.limits), result.info["stopped"]
    is_ended = stopped == "converged" and is_complete(result, problem.verify)
    tells = float(result.residuals.max(initial=0.0)) <= LOOSE * result.info["norm"]
    is_settled = stopped in STOPPED and not (stopped == "callback" and crossed)
    if not (is_settled or (is_ended and tells and not is_wrong)):
        if attempt.checkpoint is not None:
            attempt.checkpoint.remove()
        from ..transform.spectral_map import SpectralMap

        then = otherwise()
        why = f"{then.info['why']}, after an attempt at the end of the spectrum beside sigma"
        result = one_after_other(result, then.with_info(why=why), "LM", SpectralMap(sigma))
        return result.with_more_columns(seen.columns, seen.columns)
    side, nearest = ("below", "lowest") if end == "SA" else ("above", "highest")
    why = f"with no value {side} {sigma:g}, the nearest are the {nearest}: {result.info['why']}"
    if is_wrong:  # no value is right then
        why = f"stopped when values {side} {sigma:g}, too, had been found"
        result = replace(result, converged=np.zeros_like(result.converged))
    return result.with_info(why=why).with_more_columns(seen.columns, seen.columns)
