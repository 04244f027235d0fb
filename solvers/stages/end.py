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
from dataclasses import replace
from typing import Any, cast

import numpy as np

from blockvec import Operator
from blockvec.errors import BreakdownError
from blockvec.system.frozen import frozen

from ..arguments import is_explicit
from ..blocks import to_host
from ..costs import dense_is_faster, product_s, rates
from ..iterations.rayleigh_ritz import Which
from ..iterations.spectrum import Sketch, sketch_of
from ..placement import place_of
from ..problem import STOPPED, IterationState, Problem, Successor, stops
from ..result import EigenResult
from ..settle import is_complete
from .drivers import solve

LOOK_STEPS = 16  # columns
NOISE = 100.0  # rounding errors of a Ritz value
SLIGHT = 0.01  # share of the limit of the residual of a Ritz value that its error may be
TINY = 1e-16  # share of the largest distance that counts as none
COLUMNS = 200  # columns of a Lanczos iteration for six pairs, at least
# Further columns per level of the graph: 6 to 10 were counted for lattices, 15 to 25 for graphs of
# neighbours, 5 to 40 for finite elements, and 40 for random graphs.
COLUMNS_PER_LEVEL = 8
# Geometric mean of the distances from sigma, as a share of the largest, below which more columns are taken:
# by the root of their ratio, as counted for graphs with hubs and rough elements. Stiff matrices have .015.
DISTANCE = 0.3
SLACK = 2.0  # times its predicted time, that an iteration may take
SHARE = 0.25  # share of the time predicted for factors, up to eight times too long, added to an iteration's
LEAST_S = 0.02  # s: of factors with their solves
LOOSE = 0.01  # residuals relative to ||A|| above which values beyond sigma may be hidden


def may_be_quick(A: Any, op: Operator, k: int) -> tuple[float, float] | None:
    """Predict the seconds of an iteration at an end, and of factors; None where others take less time.

    Where nothing can factorise these are infinite.
    """
    from ..factorization.work import FactorWork

    if k < 1 or dense_is_faster(op.shape[0], k, "cpu", "end") is not None:
        return None
    if not is_explicit(A) or (place := place_of(A, op.device)) is None:
        return 0.0, math.inf
    column_s = rates(op.device).column_s + product_s(op, 1)
    if not hasattr(A, "nnz") or FactorWork.of_band(A).factor_s(place) <= COLUMNS * column_s:
        return None
    work = FactorWork.of(A)
    iteration_s = column_s * (COLUMNS + COLUMNS_PER_LEVEL * work.levels)
    factors_s = max(work.factor_s(place), LEAST_S)
    return None if iteration_s > factors_s else (iteration_s, factors_s)


@frozen
class Beside:
    """A number, and what a look has seen on its sides."""

    sigma: float
    end: Which | None  # end of the spectrum nearest to the number; None where it is not iterated for
    iteration_s: float  # predicted, at that end
    factors_s: float  # predicted, of A - sigma I; infinite where nothing can factorise
    noise: float = 0.0  # rounding errors of a Ritz value
    columns: int = LOOK_STEPS  # of the look, each of an application of its own

    def solve(self, problem: Problem) -> tuple[EigenResult, bool]:
        """Iterate at the end, for about as long as predicted; also whether that settles the nearest values.

        The solve ends once it finds values beyond sigma.
        """
        callback, exponent, crossed = problem.callback, problem.exponent, False

        def is_over(state: IterationState) -> bool:
            nonlocal crossed
            if stops(callback, state):
                return True
            scaled = state.times(-exponent)
            crossed = self._is_crossed(scaled.eigenvalues, scaled.limits)
            return crossed

        share = max(SHARE, SLACK * self.iteration_s / self.factors_s)
        result = solve(
            replace(
                problem,
                which=cast(Which, self.end),
                target=None,
                callback=is_over,
                successor=Successor(lambda: self.factors_s, share),
            )
        )
        is_crossed, stopped = self._is_crossed(result.eigenvalues, result.limits), result.info["stopped"]
        is_ended = stopped == "converged" and is_complete(result, problem.verify)
        tells = float(result.residuals.max(initial=0.0)) <= LOOSE * result.info["norm"]
        is_settled = stopped in STOPPED and not (stopped == "callback" and crossed)
        is_settled |= is_ended and tells and not is_crossed
        return (self._described(result, is_crossed) if is_settled else result), is_settled

    def _is_crossed(self, values: Any, limits: Any) -> bool:
        """Check whether Ritz values, which are averages of eigenvalues, lie beyond sigma.

        Those of vectors that are not quite orthogonal have errors far below the limits of their residuals.
        """
        outwards = self.sigma - to_host(values).astype(np.float64)
        outwards = outwards if self.end == "SA" else -outwards
        return bool((outwards > np.maximum(SLIGHT * limits, self.noise)).any())

    def _described(self, result: EigenResult, is_crossed: bool) -> EigenResult:
        """Describe a solve for the end as one around sigma; no value is right if some lie beyond sigma."""
        side, nearest = ("below", "lowest") if self.end == "SA" else ("above", "highest")
        why = f"with no value {side} {self.sigma:g}, the nearest are the {nearest}: {result.info['why']}"
        if is_crossed:
            why = f"stopped when values {side} {self.sigma:g}, too, had been found"
            result = replace(result, converged=np.zeros_like(result.converged))
        return result.with_info(why=why)


def look(op: Operator, sigma: float, predicted_s: tuple[float, float]) -> Beside:
    """Look on which sides of sigma values lie; `predicted_s` are those of `may_be_quick`."""
    iteration_s, factors_s = predicted_s
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            seen = sketch_of(op, LOOK_STEPS)
    except BreakdownError:  # what follows scales the matrix, or reports it
        return Beside(sigma, None, iteration_s, factors_s)
    distances = seen.theta - sigma
    noise = NOISE * float(np.finfo(op.dtype).eps) * max(seen.norm, abs(sigma))
    end: Which | None = None
    if (distances >= -noise).all() or (distances <= noise).all():
        iteration_s *= max(1.0, math.sqrt(DISTANCE / _mean_distance(seen, sigma)))
        if iteration_s <= factors_s:
            end = "SA" if distances.max() > noise else "LA"
    return Beside(sigma, end, iteration_s, factors_s, noise, seen.columns)


def _mean_distance(seen: Sketch, sigma: float) -> float:
    """Compute the geometric mean of the distances of eigenvalues from sigma, as a share of the largest."""
    distances = np.abs(seen.theta - sigma)
    shares = np.maximum(distances / (distances.max() or 1.0), TINY)
    return float(np.exp(np.average(np.log(shares), weights=seen.counts)))
