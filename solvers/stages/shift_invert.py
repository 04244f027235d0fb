"""Shift-invert from just outside the spectrum, for ends that an iteration reaches slowly, with a proof.

At the stiff lower end of a stiffness matrix wanted values are a millionth of ||A|| apart. Where the matrix is
explicit and factorisations are predicted to take less time, the iteration only needs to locate the end
roughly.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import blockvec
from blockvec import array_namespace, as_operator
from blockvec.errors import CapacityError

from ..arguments import on_host, tall_block
from ..blocks import small_matrix, to_host
from ..costs import factor_s, place_of, require_factors
from ..problem import Problem, Which, split_outliers, staged
from ..result import EigenResult, counted
from ..sizes import FEW_RESTARTS, why_dense
from .combine import COUNTED, lacks, one_after_other, with_outliers

if TYPE_CHECKING:
    from ..transform.standard_form import StandardForm

AT_ONCE_S = 0.3  # s, predicted: of factors that are computed before an iteration with a diagonal M is tried
UNFACTORED = "use method='lanczos' or method='filter', which factorise nothing of A"
# Restarts at a first shift, which locate the end for the last one; with up to six shifts 14 stiff matrices
# took .98 of the time.
LOCATING = 2


def above_zero(form: StandardForm, A: Any, M: Any, problem: Problem) -> EigenResult | None:
    """Solve for the low end of a pair by shift-invert at zero; None where values may lie below that.

    Stiffness matrices are semidefinite. A diagonal element below zero shows that a matrix is not. Factors of
    A take about as long as those of an M that is not diagonal, which the iteration needs: it took 2.6 to 6.8
    times as long for eight pairs of plane meshes.
    """
    from ..transform.solution import proven, solve_transformed
    from ..transform.standard_form import standard_form

    if problem.which != "SA" or problem.locked is not None or problem.operator.device != "cpu":
        return None
    if why_dense(problem) is not None or (A.diagonal().real < 0).any():
        return None
    is_lumped = getattr(M, "nnz", math.inf) <= M.shape[0]
    if is_lumped and factor_s(A, "cpu", AT_ONCE_S) > AT_ONCE_S:
        return None
    above = standard_form(form.A, A, M, 0.0, k=problem.k)
    if above.factors is None or above.factors.inertia != 0:
        return None
    inverted = replace(problem, operator=above.A, which="LM", method="lanczos")
    soon = FEW_RESTARTS if problem.maxiter is None else problem.maxiter
    result = solve_transformed(above, replace(_unproved(inverted, "above"), maxiter=soon))
    if not result.converged.all():
        return result.with_info(which="SA")
    return _told(proven(above, result, inverted, "SA"), "SA", "no value is below zero", above)


def by_shift_invert(first: EigenResult, matrix: Any, mass: Any, problem: Problem) -> EigenResult | None:
    """Improve a first result by shift-invert; None without a place for factors, or a shift outside.

    Without a `mass` the matrix of the inner product is the identity. A matrix of a GPU may be factorised on
    the host.
    """
    operator, home = problem.operator, array_namespace(first.eigenvectors)
    if (place := place_of(matrix, operator.device)) is None:
        return None
    if place != operator.device:
        matrix, mass = on_host(matrix), on_host(mass)
        operator = as_operator(matrix)
        first = replace(first, eigenvectors=to_host(first.eigenvectors))
        if problem.locked is not None:
            problem = replace(problem, locked=tall_block("orthogonal_to", problem.locked, operator))
    require_factors(matrix, mass, operator, UNFACTORED)
    problem = replace(problem, operator=operator, successor=None)
    try:
        factors = blockvec.Factorization(matrix, mass, device=place)
        result = _beyond_outliers(first, matrix, problem, factors) if mass is None else None
        if result is None:
            result = _from_shifts(first, matrix, mass, problem, factors)
    except CapacityError as error:
        raise CapacityError(f"{error} Or {UNFACTORED}.") from error
    if result is None:
        return None
    moved = home.asarray(result.eigenvalues), home.asarray(result.eigenvectors)
    return replace(result, eigenvalues=moved[0], eigenvectors=moved[1])


def _beyond_outliers(
    first: EigenResult, matrix: Any, problem: Problem, factors: blockvec.Factorization
) -> EigenResult | None:
    """Go on from a shift between values far out, which are computed, and the others.

    Without it chains with three to five values far out took 20 to 60 times as long, one without an answer.
    None where there are none, or the shift is not beyond just as many eigenvalues.
    """
    end, theta = cast(Which, problem.which), to_host(first.eigenvalues).astype(np.float64)
    far, others = split_outliers(theta, first.residuals, first.limits, end)
    if not len(far) or problem.checkpoint is not None:
        return None
    values = np.concatenate([problem.deflated, theta[far]])
    # In single precision, products would hide the others behind those far out.
    rest = replace(problem, k=problem.k - len(far), start=None, precision="double", deflated=values)
    towards: Which = "LA" if end == "SA" else "SA"
    second = _from_shifts(first.part(others), matrix, None, rest, factors, towards)
    if second is None:
        return None
    done = first.part(far).with_info(**dict.fromkeys(COUNTED, 0), history=())
    return with_outliers(problem, done, second)


def _from_shifts(
    first: EigenResult,
    matrix: Any,
    mass: Any,
    problem: Problem,
    factors: blockvec.Factorization,
    towards: Which | None = None,
) -> EigenResult | None:
    """Solve from shifts that come closer to the end of the spectrum, and prove that nothing is missing.

    The first result may be far off, and the shift with it. Two restarts then give a better one. Wanted are
    the values on one side of it, if others are known to be on the other (`towards`). None if no shift is
    outside.
    """
    from ..factorization.inertia import shift_outside
    from ..transform.solution import proven, solve_transformed
    from ..transform.standard_form import standard_form

    end, result, op = cast(Which, problem.which), first, cast(blockvec.Operator, problem.operator)
    norm = first.info["norm"] / (1.0 if mass is None else factors.largest_mass)
    b = 4 if op.device == "cpu" else 8
    sizes: Any = {"block_size": b, "ncv": None}
    for is_last in (False, True):
        theta = to_host(result.eigenvalues).astype(np.float64)
        theta = theta[:b] if end == "SA" else theta[-b:]  # the others are less accurate as yet
        may_be_zero, deflated = not is_last, problem.deflated
        sigma = shift_outside(factors, theta, norm, end, may_be_zero=may_be_zero, deflated=deflated)
        if sigma is None:
            return None
        form = standard_form(op, matrix, mass, sigma, factors=factors, k=problem.k)
        # Random combinations of all columns: these themselves would leave room for few steps, in blocks of
        # widths that no other solve has.
        X = tall_block("v0", result.eigenvectors, form.A)
        k = X.shape[1]
        start = X.combine(small_matrix(problem.rng.standard_normal((k, min(b, k))), X))
        inverted = replace(problem, operator=form.A, which=towards or "LM", method="lanczos", **sizes)
        begun = replace(_unproved(inverted, f"shift{1 + is_last}"), start=start)
        latest = solve_transformed(form, replace(begun, maxiter=None if is_last else LOCATING))
        result = one_after_other(result, latest)
        if latest.info["stopped"] != "maxiter":
            break
        if problem.is_late():
            result = result.with_info(stopped="time_limit")
            break
        again = _beyond_outliers(latest, matrix, problem, factors) if mass is None and not is_last else None
        if again is not None:
            return one_after_other(result, again, end)
    before = f"{first.info['method']} had not converged after {counted(first.info['restarts'], 'restart')}"
    result = proven(form, result, inverted, end, is_doubtful=lacks(result, first, end))
    return _told(result, end, before, form)


def _unproved(problem: Problem, name: str) -> Problem:
    """Leave out the search for copies, which a count takes the place of, unless it is asked for."""
    return replace(staged(problem, name), verify="always" if problem.verify == "always" else "never")


def _told(result: EigenResult, end: Which, reason: str, form: StandardForm) -> EigenResult:
    return result.with_info(method="shift-invert", why=f"{reason}; {form.why}", which=end)
