"""Values nearest to a number beside the spectrum: those of an end, by an iteration without factors.

The smallest values of a graph's Laplacian, and those nearest to a number below all of them, are its lowest
ones. Factors of A - sigma I fill up for spatial and random graphs, and a function has none, while steps with
A itself may be few: some per level of the graph. A few Lanczos steps tell whether values lie on both sides of
sigma, since each Ritz value is an average of eigenvalues. Where they saw one side only, an iteration for that
end runs for about as long as predicted, and what it finds tells whether the other side is empty.

How fast a Krylov space converges at a point depends on its potential, the mean of log abs(lambda - sigma)
over the spectrum: it is low for stiff matrices, most of whose values are near that end.

References
----------
Kuijlaars, SIAM Review 48 (2006) 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blockvec import Operator
from blockvec.errors import BreakdownError
from blockvec.system.frozen import frozen

from .arguments import is_explicit
from .blocks import to_host
from .costs import dense_is_faster, product_s, rates
from .drivers import prepare, run
from .iterations.rayleigh_ritz import Which
from .iterations.spectrum import Sketch, sketch_of
from .placement import place_of
from .problem import IterationState, Problem, Verify, stops
from .result import EigenResult
from .settle import is_complete
from .shift_invert import outpaced

if TYPE_CHECKING:
    from .preparation import Prepared

LOOK_STEPS = 16
NOISE, SLIGHT = 100.0, 0.01  # rounding errors of a Ritz value, and share of the limit of its residual
TINY = 1e-16  # share of the largest distance that counts as none
# Columns of a Lanczos iteration for six pairs, at least and per level of the graph: 6 to 10 were counted for
# lattices, 15 to 25 for graphs of neighbours, 5 to 40 for finite elements, and 40 for random graphs.
COLUMNS, COLUMNS_PER_LEVEL = 200, 8
# Geometric mean of the distances from sigma, as a share of the largest, below which more columns are taken:
# by the root of their ratio, as counted for graphs with hubs and rough elements. Stiff matrices have .015.
DISTANCE = 0.3
SLACK = 2.0  # times its predicted time, that an iteration may take
# Share of the predicted time of factors, which is up to eight times too long, that it may take as well; and
# seconds of factors with their solves, at least.
SHARE, LEAST_S = 0.25, 0.02
LOOSE = 0.01  # of ||A||: residuals above it do not tell that no value lies beyond sigma
# Arguments that say how values around a number are computed.
HOW = ("OPinv", "preconditioner", "jd_options", "orthogonal_to", "maxiter")


@frozen
class Beside:
    """A number, and what a look has seen on its sides.

    Attributes
    ----------
    sigma : float
        The number.
    end : {"SA", "LA"} or None
        The end of the spectrum that is nearest to it; None where no iteration for that end is tried.
    iteration_s, factors_s : float
        Predicted seconds of an iteration at that end, and of factors of A - sigma I; infinite where nothing
        can factorise.
    noise : float
        Rounding errors of a Ritz value.
    columns : int
        Operator columns of the look, each of an application of its own.
    """

    sigma: float
    end: Which | None
    iteration_s: float
    factors_s: float
    noise: float
    columns: int

    def solve(self, problem: Problem) -> EigenResult:
        """Iterate at the end, for about as long as predicted."""
        problem, options = prepare(problem)
        share = max(SHARE, SLACK * self.iteration_s / self.factors_s)
        is_outpaced = outpaced(problem, options, lambda: self.factors_s, share, least_s=0.0)
        return run(problem, replace(options, is_outpaced=is_outpaced))

    def is_crossed(self, values: Any, limits: Any) -> bool:
        """Check whether Ritz values, which are averages of eigenvalues, lie beyond sigma.

        Those of vectors that are not quite orthogonal have errors far below the limits of their residuals.
        """
        outwards = self.sigma - to_host(values).astype(np.float64)
        outwards = outwards if self.end == "SA" else -outwards
        return bool((outwards > np.maximum(SLIGHT * limits, self.noise)).any())

    def described(self, result: EigenResult) -> EigenResult:
        """Describe a solve for the end as one around sigma; no value is right if some lie beyond sigma."""
        side, nearest = ("below", "lowest") if self.end == "SA" else ("above", "highest")
        why = f"with no value {side} {self.sigma:g}, the nearest are the {nearest}: {result.info['why']}"
        if self.is_crossed(result.eigenvalues, result.limits):
            why = f"stopped when values {side} {self.sigma:g}, too, had been found"
            result = replace(result, converged=np.zeros_like(result.converged))
        return result.with_info(why=why)


class Attempt:
    """A callback that ends a solve for the end beside sigma once it finds values beyond sigma.

    `otherwise` prepares the problem without an attempt.
    """

    def __init__(
        self,
        beside: Beside,
        otherwise: Callable[[], Prepared],
        callback: Callable[[IterationState], object] | None,
    ) -> None:
        self.beside, self.otherwise = beside, otherwise
        self._callback, self._is_over = callback, False

    def __call__(self, state: IterationState) -> bool:
        """Return whether the solve ends."""
        if stops(self._callback, state):
            return True
        self._is_over = self.beside.is_crossed(state.eigenvalues, state.limits)
        return self._is_over

    def is_settled(self, result: EigenResult, verify: Verify) -> bool:
        """Check that the values nearest to sigma have been found, or the caller has stopped the solve."""
        stopped = result.info["stopped"]
        if stopped in ("interrupted", "time_limit") or (stopped == "callback" and not self._is_over):
            return True
        is_ended = stopped == "converged" and is_complete(result, verify)
        tells = float(result.residuals.max(initial=0.0)) <= LOOSE * result.info["norm"]
        return is_ended and tells and not self.beside.is_crossed(result.eigenvalues, result.limits)


def asks_for_nearest(which: str, mode: str, M: Any, options: Mapping[str, Any]) -> bool:
    """Check whether the arguments of `eigsh`, with sigma, ask for the values nearest to it, by any method."""
    is_plain = M is None and (which, mode) == ("LM", "normal")
    is_free = options["method"] == "auto" and all(options[name] is None for name in HOW)
    promises = options["verify"] == "always" or options["precision"] == "mixed"  # which hold for a method
    return is_plain and is_free and not promises


def may_be_quick(A: Any, op: Operator, k: int) -> tuple[float, float] | None:
    """Predict the seconds of an iteration at an end, and of factors; None where others take less time."""
    if k < 1 or dense_is_faster(op.shape[0], k, "cpu", "end") is not None:
        return None
    iteration_s, factors_s = _predicted_s(A, op)
    return None if iteration_s > factors_s else (iteration_s, factors_s)


def look(op: Operator, sigma: float, predicted_s: tuple[float, float]) -> Beside:
    """Look on which sides of sigma values lie; `predicted_s` is that of `may_be_quick`."""
    iteration_s, factors_s = predicted_s
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            seen = sketch_of(op, LOOK_STEPS)
    except BreakdownError:  # what follows scales the matrix, or reports it
        return Beside(sigma, None, iteration_s, factors_s, 0.0, LOOK_STEPS)
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


def _predicted_s(A: Any, op: Operator) -> tuple[float, float]:
    """Predict the seconds of an iteration at an end, and of factors."""
    from .factorization.work import FactorWork

    if not is_explicit(A) or (place := place_of(A, op.device)) is None:
        return 0.0, math.inf
    column_s = rates(op.device).column_s + product_s(op, 1)
    if not hasattr(A, "nnz") or FactorWork.of_band(A).factor_s(place) <= COLUMNS * column_s:
        return math.inf, 0.0
    work = FactorWork.of(A)
    iteration_s = column_s * (COLUMNS + COLUMNS_PER_LEVEL * work.levels)
    return iteration_s, max(work.factor_s(place), LEAST_S)
