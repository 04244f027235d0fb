"""The stages of a plan: iterations, shift-invert, and dense LAPACK where these fail or cost more."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from blockvec import BlockVector, Operator, as_operator
from blockvec.errors import BreakdownError

from .arguments import is_explicit
from .blocks import to_host
from .combine import errors_allowed, one_after_other, staged
from .costs import FEW_ROWS
from .dense import dense_matrix
from .drivers import solve
from .iterations.rayleigh_ritz import FLOOR
from .planning import Plan
from .problem import Problem, Verification
from .result import EigenResult, InfiniteError, SingularError
from .runtime.memory import require_memory
from .settle import is_complete
from .shift_invert import solve_or_factorise, solve_pair
from .sizes import dense_bytes

if TYPE_CHECKING:
    from .transform.standard_form import StandardForm

# Distances of other shifts, in rounding errors, where a value is nearer than `SPOILING` ||A - sigma M||.
FURTHER_MOVES, SPOILING = (3e5, 1e7), 1e-9
EXTRA = 2  # pairs: the first number of further ones around a shift that was moved
# What an iteration did that ended for each of these reasons without all pairs; others hold for every method.
FAILURES = {
    "costly": "took as many applications of A as dense LAPACK takes time for",
    "stagnated": "stagnated",
    "maxiter": "did not converge",
    "converged": "did not reach the limit that rounding sets",
}
UNDECIDED = "did not find out whether copies are missing"  # with all pairs


def fits_dense(op: Operator) -> bool:
    """Check whether dense LAPACK takes seconds."""
    return op.shape[0] <= FEW_ROWS


def matrix_of(name: str, A: Any, like: Operator) -> Any:
    """Form the dense matrix of an operator of the host that must be factorised; keep matrices.

    Only operators of few rows are formed; others are kept, too. `like` has the shape and
    the type of a function.
    """
    if is_explicit(A) or not (hasattr(A, "shape") or callable(A)):
        return A
    op = as_operator(A, shape=like.shape, dtype=like.dtype)
    if op.device != "cpu" or op.shape != like.shape or not fits_dense(op):
        return A
    require_memory(op, dense_bytes(op), f"the dense matrix of {name}", f"give {name} as a sparse matrix")
    if op is not like:  # which has been checked
        op.check_hermitian(0, name=name)
    return dense_matrix(op, BlockVector.empty(op.shape[0], 0, op.dtype))


def solve_or_densify(
    problem: Problem, iterate: Callable[[], EigenResult], densely: Callable[[], EigenResult]
) -> EigenResult:
    """Solve by `iterate`, and by `densely` where that fails and the problem may be dense."""
    if not problem.may_be_dense:
        return iterate()
    try:
        first = iterate()
    except (BreakdownError, InfiniteError, np.linalg.LinAlgError) as error:
        cause = "rounding hid values" if isinstance(error, InfiniteError) else f"broke down ({error})"
        try:
            return _explained(densely(), problem, f"the iteration {cause}")
        except (BreakdownError, InfiniteError):
            raise error from None  # of A itself
    stopped = first.info["stopped"]
    is_asked_for = stopped == "maxiter" and problem.maxiter is not None
    if is_complete(first, problem.verify) or is_asked_for or stopped not in FAILURES:
        return first
    failure = UNDECIDED if is_complete(first, "never") else FAILURES[stopped]
    result = one_after_other(first, densely())
    return _explained(result, problem, f"{first.info['method']} {failure}")


def _explained(result: EigenResult, problem: Problem, why: str) -> EigenResult:
    why = f"{why}, and n = {problem.n} is at most {FEW_ROWS}"
    return result.with_info(why=why, time_s=time.perf_counter() - problem.begin_s)


def solve_densely(
    problem: Problem, form: StandardForm | None, sigma: float | None, mode: str, op: Operator, A: Any, M: Any
) -> EigenResult:
    """Solve a problem, given with its standard form if it has one, by dense LAPACK.

    Shifts then only select values, unless neither M nor A where M is singular has an inverse.
    """
    from .transform.solution import solve_transformed
    from .transform.spectral_map import SpectralMap
    from .transform.standard_form import standard_form

    dense = replace(
        problem,
        method="dense",
        start=None,
        checkpoint=None,
        block_size=None,
        ncv=None,
        maxiter=None,
        preconditioner=None,
        jd_options=None,
    )
    if form is not None and sigma is not None:
        factors = form.factors
        if factors is not None and form.map.sigma != sigma:  # moved: an eigenvalue there counts as above it
            sigma -= FLOOR * factors.shift_rounding(sigma)
        selecting = replace(dense, target=sigma, seen=SpectralMap(sigma, mode).transformed)
        if M is None and form.inner is not form.A:
            return solve(selecting)
        if (unshifted := _without_shift(form, op, A, M)) is not None:
            return solve_transformed(unshifted, selecting)
        form = standard_form(op, A, M, sigma, mode=mode, factors=factors, method="dense")
    return solve(dense) if form is None else solve_transformed(form, dense)


def _without_shift(form: StandardForm, op: Operator, A: Any, M: Any) -> StandardForm | None:
    """Form a problem without the shift that another form of it has; None where that needs one."""
    from .transform.condensation import condensed_form
    from .transform.standard_form import standard_form

    try:
        if form.inner is form.A:
            return standard_form(op, A, M, math.inf, None, "reciprocal")
        return standard_form(op, A, M, None)
    except SingularError:
        return condensed_form(op, A, M) if op.device == "cpu" and form.inner is not form.A else None


def iterate(
    problem: Problem, plan: Plan, form: StandardForm | None, A: Any, M: Any, shift: float | None
) -> EigenResult:
    """Run the stages of a plan for a problem as it is or in its standard form, but dense LAPACK."""
    may_factorise = plan.has("shift-invert")
    if form is None:
        return solve_or_factorise(problem, A) if may_factorise else solve(problem)
    from .transform.solution import AT_THE_LIMIT, solve_proven, solve_transformed
    from .transform.spectral_map import SpectralMap
    from .transform.standard_form import standard_form

    if may_factorise:
        return solve_pair(form, A, M, problem)
    may_prove = problem.which == "LM" and problem.locked is None and form.factors is not None
    method = solve_proven if may_prove and problem.verify == "always" else solve_transformed
    result = method(form, problem)
    for distance in FURTHER_MOVES:
        # A value so near the shift that rounding errors of its solves spoil the other pairs.
        is_over = result.converged.all() or result.info["stopped"] not in AT_THE_LIMIT
        if is_over or problem.may_be_dense or problem.is_late():
            break
        if shift is None or form.factors is None or form.factors.nearest > SPOILING:
            break
        sigma = shift - distance * form.factors.shift_rounding(shift)
        form = standard_form(form.A, A, M, sigma, factors=form.factors, k=problem.k, method=problem.method)
        again = replace(staged(problem, f"moved by {distance:g}"), start=None)
        seen = SpectralMap(shift, form.map.mode)
        result = one_after_other(result, method(form, again), problem.which, seen)
        result = result.with_info(why=f"{result.info['why']}; {shift:g} is too near an eigenvalue")
    if shift is None or form.factors is None or form.map.sigma == shift or problem.which != "LM":
        return result
    return _nearest(result, shift, form, problem, method)


def _nearest(
    result: EigenResult,
    shift: float,
    form: StandardForm,
    problem: Problem,
    solve_for: Callable[[StandardForm, Problem], EigenResult],
) -> EigenResult:
    """Keep the pairs nearest to a shift, of those nearest to the one that it was moved to.

    More of these are computed until all others are known to be further away.
    """
    moved, most, extra = cast(float, form.map.sigma), form.operator.shape[0] - problem.n_locked, EXTRA
    while True:
        values = to_host(result.eigenvalues).astype(np.float64)
        distances = np.abs(values - shift)
        kept = np.sort(np.argsort(distances, kind="stable")[: problem.k])
        errors = errors_allowed(result)
        reach = float((np.abs(values - moved) + errors).max()) - abs(shift - moved)
        is_complete = distances[kept].max() <= reach + errors[kept].max() or len(values) >= most
        if is_complete or result.info["stopped"] != "converged":
            result = result.part(kept).with_info(k=problem.k)
            if is_complete or not result.verification.is_decided:
                return result
            text = f"{result.info['verification']}, but values may be nearer to sigma than to the moved shift"
            return replace(result.with_info(verification=text), verification=Verification.UNDECIDED)
        more = replace(staged(problem, f"{extra} more"), k=min(problem.k + extra, most))
        result = one_after_other(result, solve_for(form, replace(more, start=None)), "LM", form.map)
        extra *= 2
