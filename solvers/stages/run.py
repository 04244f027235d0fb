"""The stages of a plan, run in turn: each takes over where those before have not settled the problem."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from blockvec.errors import BreakdownError

from ..blocks import to_host
from ..costs import FEW_ROWS
from ..placement import shift_invert_s
from ..problem import IterationOptions, Verification, staged
from ..result import EigenResult, InfiniteError, is_complete
from .combine import both_ends, errors_allowed, go_on, join_ends, one_after_other
from .drivers import solve, solve_iteratively
from .end import from_end
from .shift_invert import above_zero, by_shift_invert

if TYPE_CHECKING:
    from ..call import Call
    from ..transform.standard_form import StandardForm

LEAST_S = 0.05  # s: an iteration at an end may take so long in any case
ELEMENT_S = 1e-7  # s per stored element, beside that: several times the time of a prediction
# Restarts of a pair's iteration, which solves with M in each step, until the end of its spectrum is located.
PAIR_RESTARTS = {"host": 40, "gpu": 2}
EXTRA = 2  # pairs: the first number of further ones around a shift that was moved
ENDED = ("maxiter", "costly", "stagnated")  # reasons to stop after which factors may succeed
# What an iteration did that ended for each of these reasons without all pairs; others hold for every method.
FAILURES = {
    "costly": "took as many applications of A as dense LAPACK takes time for",
    "stagnated": "stagnated",
    "maxiter": "did not converge",
    "converged": "did not reach the limit that rounding sets",
}
OF_ITERATIONS = "start", "checkpoint", "block_size", "ncv", "maxiter", "preconditioner", "jd_options"
UNDECIDED = "did not find out whether copies are missing"  # with all pairs


def run_stages(task: Call) -> EigenResult:
    """Run the stages of a plan in turn, and dense LAPACK where they fail and the problem may be dense."""
    problem, few = task.problem, f"n = {task.problem.n} is at most {FEW_ROWS}"
    if task.predicted_s is not None:
        others = task.part(predicted_s=None)
        return from_end(problem, cast(float, task.shift), task.predicted_s, lambda: run_stages(others))
    if not problem.may_be_dense:
        return _run_all(task)
    try:
        first = _run_all(task)
    except (BreakdownError, InfiniteError, np.linalg.LinAlgError) as error:
        cause = "rounding hid values" if isinstance(error, InfiniteError) else f"broke down ({error})"
        try:
            return _densely(task).with_info(why=f"the iteration {cause}, and {few}")
        except (BreakdownError, InfiniteError):
            raise error from None  # of A itself
    stopped = first.info["stopped"]
    is_asked_for = stopped == "maxiter" and problem.maxiter is not None
    if is_complete(first, problem.verify) or is_asked_for or stopped not in FAILURES:
        return first
    failure = UNDECIDED if is_complete(first, "never") else FAILURES[stopped]
    why = f"{first.info['method']} {failure}, and {few}"
    return one_after_other(first, _densely(task), why=why)


def _run_all(task: Call) -> EigenResult:
    """Run the stages but dense LAPACK, at one end of the spectrum after the other where factors may help."""
    problem, form, op = task.problem, task.form, task.problem.operator
    if not task.plan.has("shift-invert"):
        return _run_in_turn(task)
    if form is None and problem.maxiter is None:  # stops where factors take less time
        seconds = functools.cache(functools.partial(shift_invert_s, task.A, op))
        least_s = LEAST_S + ELEMENT_S * getattr(op, "nnz", problem.n**2)

        def successor(spent_s: float, whole_s: float) -> bool:
            longer_s = max(spent_s, whole_s)
            return longer_s > least_s and longer_s > seconds()

        problem = replace(problem, successor=successor)
    if problem.which != "BE":
        return _run_in_turn(task.part(problem=problem))
    join = join_ends
    if form is not None:
        from ..transform.solution import joined_ends

        join = functools.partial(joined_ends, form)
    return both_ends(problem, lambda end: _run_in_turn(task.part(problem=end)), join)


def _run_in_turn(task: Call) -> EigenResult:
    """Run a first stage, and the one that takes over if that has not settled the problem."""
    problem, plan, result = task.problem, task.plan, None
    if plan.has("above zero"):
        result = above_zero(cast("StandardForm", task.form), task.A, task.M, problem)
    result = _iterated(task) if result is None else result
    stopped, later = result.info["stopped"], None
    if plan.has("window") and stopped == "stagnated":
        later = _windowed
    elif plan.has("shift-invert") and (task.M is None or problem.locked is None):
        may_lack_copies = task.M is not None and stopped == "converged"
        if (stopped in ENDED or may_lack_copies) and not is_complete(result, problem.verify):
            later = _inverted
    if later is None or problem.maxiter is not None:
        return result
    return result.with_info(stopped="time_limit") if problem.is_late() else later(task, result)


def _iterated(task: Call) -> EigenResult:
    """Run an iteration, or dense LAPACK, for the problem as it is or in its standard form."""
    problem, form, options = task.problem, task.form, task.plan.options
    if task.ends is not None:
        from .interval import solve_interval

        return solve_interval(task, task.plan.stages[0])
    if not task.plan.has("shift-invert") or (task.M is not None and problem.locked is not None):
        return solve(problem, options) if form is None else _around_a_shift(task, form)
    begun = staged(problem, "begun")
    if form is None:
        return solve_iteratively(begun, cast(IterationOptions, options))
    soon = PAIR_RESTARTS["host" if problem.operator.device == "cpu" else "gpu"]
    return task.solve(replace(begun, maxiter=soon if problem.maxiter is None else problem.maxiter))


def _windowed(task: Call, begun: EigenResult) -> EigenResult:
    """Go on by a filter around a target, after corrections."""
    from ..transform.spectral_map import SpectralMap

    sizes: dict[str, Any] = dict.fromkeys(("block_size", "ncv", "maxiter"))
    why = f"{begun.info['why']}; corrections stagnated, since eigenvalues are dense there"
    how = {"method": "filter", "method_why": why, **sizes}
    return go_on(begun, task.problem, "window", task.solve, SpectralMap(task.problem.target), **how)


def _inverted(task: Call, begun: EigenResult) -> EigenResult:
    """Go on by shift-invert from outside the spectrum; where no shift is found, iterate on."""
    problem, options = task.problem, task.plan.options
    result = by_shift_invert(begun, task.A, task.M, staged(problem, "factorised"))
    if result is not None:
        return result
    # Sizes of a standard form are chosen within it.
    again = task.solve if options is None else functools.partial(solve_iteratively, options=options)
    return go_on(begun, problem, "continued", again, successor=None)


def _around_a_shift(task: Call, form: StandardForm) -> EigenResult:
    """Solve a problem in its standard form, for values around a shift at those nearest to the one given.

    Of those nearest to a shift that was moved, the pairs nearest to the given one are kept. More are computed
    until all others are known to be further away.
    """
    from ..transform.solution import solve_proven, solve_transformed

    problem, shift = task.problem, task.shift
    may_prove = problem.which == "LM" and problem.locked is None and form.factors is not None
    solve_for = solve_proven if may_prove and problem.verify == "always" else solve_transformed
    result, moved = solve_for(form, problem), form.map.sigma
    if shift is None or form.factors is None or moved in (None, shift) or problem.which != "LM":
        return result
    most, extra = form.operator.shape[0] - problem.n_locked, EXTRA
    while True:
        values, errors = to_host(result.eigenvalues).astype(np.float64), errors_allowed(result)
        distances = np.abs(values - shift)
        kept = np.sort(np.argsort(distances, kind="stable")[: problem.k])
        reach = float((np.abs(values - moved) + errors).max()) - abs(shift - moved)
        is_complete = distances[kept].max() <= reach + errors[kept].max() or len(values) >= most
        if is_complete or result.info["stopped"] != "converged":
            result = result.part(kept).with_info(k=problem.k)
            if is_complete or not result.verification.is_decided:
                return result
            text = f"{result.info['verification']}, but values may be nearer to sigma than to the moved shift"
            return replace(result.with_info(verification=text), verification=Verification.UNDECIDED)
        more = replace(staged(problem, f"{extra} more"), k=min(problem.k + extra, most), start=None, ncv=None)
        result = one_after_other(result, solve_for(form, more), "LM", form.map)
        extra *= 2


def _densely(task: Call) -> EigenResult:
    """Solve by dense LAPACK, for values around a shift without its factors where there is no M."""
    none: dict[str, Any] = dict.fromkeys(OF_ITERATIONS)
    dense = replace(task.problem, method="dense", **none)
    if task.ends is not None:
        from .interval import solve_interval

        return solve_interval(task.part(problem=dense), task.plan.stages[-1])
    is_plain = task.M is None and task.mode == "normal"
    return solve(replace(dense, target=task.shift)) if is_plain else task.solve(dense)
