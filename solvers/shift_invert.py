"""Shift-invert from just outside the spectrum, for ends that an iteration reaches slowly, with a proof.

At the stiff lower end of a stiffness matrix wanted values are a millionth of ||A|| apart. Where the matrix is
explicit and factorisations are predicted to take less time, the iteration only needs to locate the end
roughly.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import blockvec
from blockvec import BlockVector, array_namespace, as_operator
from blockvec.errors import CapacityError

from .arguments import on_host, tall_block
from .blocks import Block, round_up, small_matrix, to_host
from .combine import (
    after_outliers,
    both_ends,
    computed_outwards,
    errors_allowed,
    lacks,
    one_after_other,
    staged,
)
from .costs import product_s, rates, step_s
from .drivers import prepare, run, solve_iteratively
from .iterations.filter import filter_width
from .iterations.rayleigh_ritz import Which
from .placement import factor_s, place_of, require_factors, shift_invert_s
from .problem import STOPPED, IterationOptions, Problem, Verification
from .result import EigenResult, counted
from .settle import is_complete
from .sizes import why_dense

if TYPE_CHECKING:
    from .transform.standard_form import StandardForm

SHARE = 1.0  # of the time of a factorisation with its solves, which an iteration may take before
LEAST_S, ELEMENT_S = 0.05, 1e-7  # at least, and per stored element: several times that of the prediction
PAIR_RESTARTS = {"host": 40, "gpu": 2}  # with solves in each step, that locate the end of a pair's spectrum
AT_ONCE_S = 0.3  # predicted, of factors that are computed before an iteration with a diagonal M is tried
SHIFTS = 6
UNFACTORED = "use method='lanczos' or method='filter', which factorise nothing of A"
NEAR = 10.0  # times its least distance: a shift that is closer to the wanted values need not be moved
STEPS, FEW_STEPS = 16, 4  # of shift-invert before a restart, and to locate an end for more pairs than a block
SOON = 10  # restarts at a shift that seems to be near
ENDED = ("maxiter", "costly", "stagnated")  # reasons to stop after which shift-invert may succeed
LEAST_SPREAD = float(np.finfo(np.float64).tiny)


def outpaced(
    problem: Problem, options: IterationOptions, factors_s: Callable[[], float], share: float, least_s: float
) -> Callable[[float, float], bool]:
    """Return the check whether an iteration takes longer than factors, both predicted.

    It may take a share of the time of factors, and at least `least_s`.
    """
    op, is_single = problem.operator, options.block_size == 1
    b = filter_width(problem.k) if is_single and options.method == "filter" else options.block_size
    rate, own_s = rates(op.device), step_s(op.device, problem.n, op.dtype.itemsize, b, options.ncv)
    block_s = rate.call_s + product_s(op, b) + own_s / options.degree
    each_s = rate.column_s + product_s(op, 1) if is_single else block_s
    others_s = functools.cache(factors_s)

    def is_outpaced(calls: float, expected: float) -> bool:
        spent_s, whole_s = calls * each_s, expected * block_s
        if max(spent_s, whole_s) <= least_s:
            return False
        return spent_s > share * others_s() or whole_s > others_s()

    return is_outpaced


def solve_or_factorise(problem: Problem, matrix: Any) -> EigenResult:
    """Iterate on a matrix; where that converges slowly, go on by shift-invert outside the spectrum."""
    problem, options = prepare(problem)
    if options.method in ("dense", "jd"):
        return run(problem, options)
    if problem.which == "BE":
        return both_ends(problem, lambda end: _iterate_or_factorise(end, options, matrix))
    return _iterate_or_factorise(problem, options, matrix)


def _iterate_or_factorise(problem: Problem, options: IterationOptions, matrix: Any) -> EigenResult:
    """Iterate at one end; continue by shift-invert if the iteration converges slowly."""
    if problem.locked is not None and not len(problem.deflated):  # which need not be invariant
        return run(problem, options)
    soon = options
    if problem.maxiter is None:
        op = problem.operator
        least_s = LEAST_S + ELEMENT_S * getattr(op, "nnz", problem.n**2)
        is_outpaced = outpaced(problem, options, lambda: shift_invert_s(matrix, op), SHARE, least_s)
        soon = replace(options, is_outpaced=is_outpaced)
    first = solve_iteratively(staged(problem, "begun"), soon)
    if first.info["stopped"] not in ENDED or problem.maxiter is not None:
        return first
    if problem.is_late():
        return first.with_info(stopped="time_limit")
    if problem.checkpoint is None and (count := _count_outliers(first, problem.which)):

        def factorise(rest: Problem, others: EigenResult) -> EigenResult | None:
            return _by_shift_invert(others, matrix, None, prepare(rest)[0])

        if (result := after_outliers(problem, first, count, factorise)) is not None:
            return result
    return _factorise_or_iterate(first, problem, options, matrix)


def _factorise_or_iterate(
    first: EigenResult, problem: Problem, options: IterationOptions, matrix: Any
) -> EigenResult:
    """Continue by shift-invert; where no shift is found, iterate on."""
    result = _by_shift_invert(first, matrix, None, staged(problem, "factorised"))
    if result is None:
        rest = replace(staged(problem, "continued"), start=BlockVector(first.eigenvectors))
        result = one_after_other(first, solve_iteratively(rest, options), problem.which)
    return result


def _count_outliers(first: EigenResult, which: str) -> int:
    """Count the computed values that a shift further out than all others would have to be beyond; or zero.

    From there those others are alike, if they lie closer together than to the computed ones.
    """
    theta, residuals = to_host(first.eigenvalues).astype(np.float64), first.residuals
    if which == "LA":
        theta, residuals = -theta[::-1], residuals[::-1]
    most, outside = 1.0, 0
    for count in range(1, min(computed_outwards(first, which), len(theta) - 2) + 1):
        gap, rest = float(theta[count] - theta[count - 1]), theta[count:]
        spread = max(float(rest[-1] - rest[0]), float(residuals[count:].max()), LEAST_SPREAD)
        if gap > most * spread:
            most, outside = gap / spread, count
    return outside


def solve_pair(form: StandardForm, A: Any, M: Any, problem: Problem) -> EigenResult:
    """Solve a pair: an end above zero by shift-invert at once, others by an iteration on its standard form.

    Where that converges slowly, shift-invert continues. Both ends are solved for on their own.
    """
    from .transform.solution import joined_ends, solve_transformed

    if problem.which == "BE":
        return both_ends(
            problem,
            lambda end: solve_pair(form, A, M, end) if end.locked is None else solve_transformed(form, end),
            lambda asked, high, low: joined_ends(form, asked, high, low),
        )
    first = _above_zero(form, A, M, problem) if _may_be_above_zero(problem, A, M) else None
    if first is None:
        soon = PAIR_RESTARTS["host" if problem.operator.device == "cpu" else "gpu"]
        maxiter = soon if problem.maxiter is None else problem.maxiter
        first = solve_transformed(form, replace(staged(problem, "begun"), maxiter=maxiter))
    is_over = first.info["stopped"] not in (*ENDED, "converged") or problem.maxiter is not None
    if is_complete(first, problem.verify) or is_over:
        return first
    if problem.is_late():
        return first.with_info(stopped="time_limit")
    result = _by_shift_invert(first, A, M, staged(problem, "factorised"))
    if result is None:
        rest = replace(staged(problem, "continued"), start=tall_block("v0", first.eigenvectors, form.A))
        result = one_after_other(first, solve_transformed(form, rest), problem.which)
    return result


def _may_be_above_zero(problem: Problem, A: Any, M: Any) -> bool:
    """Check whether factors of A, which tell if a pair is above zero, are worth a trial for its low end.

    Stiffness matrices are semidefinite. A diagonal element below zero shows that a matrix is not. Factors of
    A take about as long as those of an M that is not diagonal, which the iteration needs.
    """
    if problem.which != "SA" or problem.operator.device != "cpu":
        return False
    if why_dense(problem) is not None:
        return False
    if (A.diagonal().real < 0).any():
        return False
    is_lumped = getattr(M, "nnz", math.inf) <= M.shape[0]
    return not is_lumped or factor_s(A, "cpu", AT_ONCE_S) <= AT_ONCE_S


def _above_zero(form: StandardForm, A: Any, M: Any, problem: Problem) -> EigenResult | None:
    """Solve for the low end of a pair by shift-invert at zero; None where values may lie below that."""
    from .transform.solution import solve_transformed
    from .transform.standard_form import standard_form

    above = standard_form(form.A, A, M, 0.0, k=problem.k)
    if above.factors is None or above.factors.inertia != 0:
        return None
    inverted = replace(
        staged(problem, "above"),
        operator=above.A,
        which="LM",
        method="lanczos",
        maxiter=SOON if problem.maxiter is None else problem.maxiter,
        verify="always" if problem.verify == "always" else "never",
    )
    result = solve_transformed(above, inverted)
    if not result.converged.all():
        return result.with_info(which="SA")
    return _proven(result, above, replace(inverted, maxiter=None), problem, "no value is below zero")


def _by_shift_invert(first: EigenResult, matrix: Any, mass: Any, problem: Problem) -> EigenResult | None:
    """Improve a first result by shift-invert; None without a place for factors, or a shift outside.

    The first result may be far off, and the shift with it. A few steps then give a better shift. Without a
    `mass` the matrix of the inner product is the identity. A matrix of a GPU may be factorised on the host.
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
    try:
        factors = blockvec.Factorization(matrix, mass, device=place)
        result = _from_shifts(first, matrix, mass, replace(problem, operator=operator), factors)
    except CapacityError as error:
        raise CapacityError(f"{error} Or {UNFACTORED}.") from error
    if result is None:
        return None
    moved = home.asarray(result.eigenvalues), home.asarray(result.eigenvectors)
    return replace(result, eigenvalues=moved[0], eigenvectors=moved[1])


def _from_shifts(
    first: EigenResult, matrix: Any, mass: Any, problem: Problem, factors: blockvec.Factorization
) -> EigenResult | None:
    """Solve from shifts that come closer to the end of the spectrum, and prove that nothing is missing.

    Where something is, or no count is certain, the solve is repeated with a search for it.
    """
    from .factorization.inertia import outer_end, shift_outside
    from .transform.solution import solve_transformed
    from .transform.standard_form import standard_form

    end, result = problem.which, first
    assert end != "BE"
    norm = first.info["norm"] / (1.0 if mass is None else factors.largest_mass)
    op = cast(blockvec.Operator, problem.operator)
    b = 4 if op.device == "cpu" else 8
    is_wide = problem.k > b  # then a block of pairs locates the end, else the start is checked first
    sigma, form, locates = None, None, True
    for attempt in range(SHIFTS):
        theta = to_host(result.eigenvalues).astype(np.float64)
        theta = theta[:b] if end == "SA" else theta[-b:]  # the others are less accurate as yet
        outermost, least = outer_end(theta, norm, end)
        is_near = locates and sigma is not None and abs(sigma - outermost) <= NEAR * least
        if form is None or not is_near:
            may_be_zero, deflated = attempt == 0, problem.deflated
            sigma = shift_outside(factors, theta, norm, end, may_be_zero=may_be_zero, deflated=deflated)
            if sigma is None:
                return None
            form = standard_form(op, matrix, mass, sigma, factors=factors, k=problem.k)
        is_last = attempt == SHIFTS - 1
        locates = not (is_near or is_last)
        is_rough = locates and is_wide
        k, steps = (b, FEW_STEPS) if is_rough else (problem.k, STEPS)
        inverted = replace(
            staged(problem, f"shift{attempt + 1}"),
            operator=form.A,
            which="LM",
            method="lanczos",
            k=k,
            # The vectors of a rough look are too few, and too accurate, for the start of all.
            start=_mixture(
                tall_block("v0", first.eigenvectors if is_wide else result.eigenvectors, form.A),
                b,
                problem.rng,
            ),
            ncv=min(round_up(k, b) + steps * b, problem.n),
            block_size=b,
            verify="always" if problem.verify == "always" else "never",
            maxiter=None if is_last else (1 if is_wide else 2) if locates else SOON,
        )
        latest = solve_transformed(form, inverted)
        result = one_after_other(result, latest)
        if latest.info["stopped"] not in (("maxiter", "converged") if is_rough else ("maxiter",)):
            break
        if problem.is_late():
            result = result.with_info(stopped="time_limit")
            break

    before = f"{first.info['method']} had not converged after {counted(first.info['restarts'], 'restart')}"
    return _proven(result, cast("StandardForm", form), inverted, problem, before, first)


def _proven(
    result: EigenResult,
    form: StandardForm,
    inverted: Problem,
    problem: Problem,
    reason: str,
    first: EigenResult | None = None,
) -> EigenResult:
    """Prove by inertia that nothing is missing from an end; else repeat the solve with a search."""
    from .factorization.inertia import proof
    from .transform.solution import solve_transformed

    factors, end = cast(blockvec.Factorization, form.factors), cast(Which, problem.which)

    def proven(result: EigenResult) -> EigenResult:
        if problem.is_late() or result.info["stopped"] in STOPPED:
            return result
        theta = to_host(result.eigenvalues)
        return result.with_count(*proof(factors, theta, errors_allowed(result), end, problem.deflated))

    result = proven(result)
    if first is not None and lacks(result, first, end):
        result = result.with_info(missing=max(result.info["missing"], 1))
    may_search = result.info["stopped"] == "converged" and not problem.is_late()
    if may_search and not is_complete(result, problem.verify):
        factors.refactorize(cast(float, form.map.sigma))
        start = tall_block("v0", result.eigenvectors, inverted.operator)
        searched = replace(staged(problem, "searched"), operator=inverted.operator, start=start)
        searched = replace(searched, which="LM", method="lanczos", ncv=inverted.ncv)
        searched = replace(searched, block_size=inverted.block_size)
        again = one_after_other(result, solve_transformed(form, searched), end)
        result = proven(again) if result.verification is Verification.PROVED else again
    return result.with_info(
        method="shift-invert",
        why=f"{reason}; {form.why}",
        which=end,
        time_s=time.perf_counter() - problem.begin_s,
    )


def _mixture(X: Block, width: int, rng: np.random.Generator) -> Block:
    """Form random combinations of all columns, as a start of a block of `width` columns.

    All of them as a start would leave room for few steps, in blocks of widths that no other solve has.
    """
    k = X.shape[1]
    return X.combine(small_matrix(rng.standard_normal((k, min(width, k))), X))
