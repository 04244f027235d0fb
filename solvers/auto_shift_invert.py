"""Shift-invert from just outside the spectrum, for ends that an iteration reaches slowly, with a proof.

At the stiff lower end of a stiffness matrix wanted values are a millionth of ||A|| apart. Where the matrix is
explicit and a few factorisations take seconds, the iteration only needs to locate the end roughly.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, cast

import numpy as np

import blockvec
from blockvec import BlockVector, Factorization, array_namespace, as_operator
from blockvec.errors import CapacityError

from .arguments import on_host, tall_block
from .blocks import Operator, to_host
from .combine import both_ends, one_after_other, staged, within_time
from .drivers import prepare, run, solve_iteratively
from .factorization.inertia import proof, shift_outside
from .placement import DENSE_ROWS, factor_place, is_small
from .problem import IterationOptions, Problem
from .result import EigenResult, counted
from .transform.standard_form import StandardForm, solve_transformed, standard_form

# Restarts after which shift-invert takes over; those of a filter take many applications, and are few.
SOON = {"lanczos": 40, "filter": 10}
SOON_SHIFTED = 10  # restarts of shift-invert that locate a better shift
SHIFTS = 4
# On a GPU an iteration may take the time of a factorisation by a model before that begins, so that both
# together never take much more than twice the faster one. Seconds of a third of an analysis by cuDSS: at
# least, and per stored element; per call of a product, byte that it moves, and step of an iteration.
LEAST_S, ENTRY_S, CALL_S, BYTE_S, STEP_S = 0.1, 8e-8, 2e-5, 3e-13, 2e-3
MOST_ENTRIES = 100_000_000  # of a matrix that is factorised unasked
MASS_RESTARTS = 2  # on a GPU, with solves in each step, that locate the end of the spectrum of a pair
ENDED = ("maxiter", "costly", "stagnated")  # reasons to stop after which shift-invert may succeed


def is_factorable(A: Operator, which: str) -> bool:
    """Check whether a factorisation of A - sigma M takes seconds, and helps at the wanted end.

    On a GPU, dense LAPACK takes less time where it is small enough for that.
    """
    n = A.shape[0]
    entries = getattr(A, "nnz", n * n)
    if which not in ("SA", "LA") or entries > MOST_ENTRIES:
        return False
    if A.device == "cpu":
        return is_small(n, entries)
    return n > DENSE_ROWS and factor_place(n, entries, A.device) is not None


def _patience(problem: Problem, options: IterationOptions) -> IterationOptions:
    """Limit an iteration to the time after which a factorisation pays."""
    op, b = problem.operator, options.block_size
    if op.device == "cpu":
        return replace(options, maxiter=SOON[options.method], most_calls=math.inf)
    entries, size = getattr(op, "nnz", 0), op.dtype.itemsize
    bytes_moved = entries * (size + 4) + 3 * problem.n * b * size
    call_s = CALL_S + BYTE_S * bytes_moved + STEP_S / options.degree
    return replace(options, most_calls=(LEAST_S + ENTRY_S * entries) / call_s)


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
    invariant = problem.locked is None or len(problem.deflated) > 0
    if not (invariant and is_factorable(problem.operator, problem.which)):
        return run(problem, options)
    soon = options if problem.maxiter is not None else _patience(problem, options)
    first = solve_iteratively(staged(problem, "begun"), soon)
    if first.info["stopped"] not in ENDED or problem.maxiter is not None:
        return first
    result = _by_shift_invert(first, matrix, None, staged(problem, "factorised"))
    if result is None:
        rest = replace(within_time(staged(problem, "continued")), start=BlockVector(first.eigenvectors))
        result = solve_iteratively(rest, options)
    return result


def solve_pair(form: StandardForm, A: Any, M: Any, problem: Problem) -> EigenResult:
    """Iterate on the standard form of a pair; continue by shift-invert if it converges slowly."""
    soon = SOON["lanczos"] if problem.operator.device == "cpu" else MASS_RESTARTS
    maxiter = soon if problem.maxiter is None else problem.maxiter
    first = solve_transformed(form, replace(within_time(staged(problem, "begun")), maxiter=maxiter))
    is_over = first.info["stopped"] not in (*ENDED, "converged") or problem.maxiter is not None
    if first.converged.all() or is_over:
        return first
    result = _by_shift_invert(first, A, M, staged(problem, "factorised"))
    if result is None:
        rest = within_time(staged(problem, "continued"))
        result = solve_transformed(form, replace(rest, start=tall_block("v0", first.eigenvectors, form.A)))
    return result


def _by_shift_invert(first: EigenResult, matrix: Any, mass: Any, problem: Problem) -> EigenResult | None:
    """Improve a first result by shift-invert; None if no shift outside the spectrum is found.

    The first result may be far off, and the shift with it. A few restarts then give a better shift. Without
    a `mass` the matrix of the inner product is the identity. A small matrix of a GPU is factorised on the
    host.
    """
    operator, home = problem.operator, array_namespace(first.eigenvectors)
    place = factor_place(problem.n, getattr(operator, "nnz", problem.n**2), operator.device)
    assert place is not None
    if place != operator.device:
        matrix, mass = on_host(matrix), on_host(mass)
        operator = as_operator(matrix)
        first = replace(first, eigenvectors=to_host(first.eigenvectors))
        if problem.locked is not None:
            problem = replace(problem, locked=tall_block("orthogonal_to", problem.locked, operator))
    try:
        factors = Factorization(matrix, mass, device=place)
        result = _from_shifts(first, matrix, mass, replace(problem, operator=operator), factors)
    except CapacityError:
        return None
    if result is None:
        return None
    moved = home.asarray(result.eigenvalues), home.asarray(result.eigenvectors)
    return replace(result, eigenvalues=moved[0], eigenvectors=moved[1])


def _from_shifts(
    first: EigenResult, matrix: Any, mass: Any, problem: Problem, factors: Factorization
) -> EigenResult | None:
    """Solve from shifts that come closer to the end of the spectrum, and prove that nothing is missing."""
    end, result, why = problem.which, first, ""
    assert end != "BE"
    largest = 1.0 if mass is None else factors.largest_mass
    for attempt in range(SHIFTS):
        theta = to_host(result.eigenvalues).astype(np.float64)
        sigma = shift_outside(factors, theta, first.info["norm"] / largest, end)
        if sigma is None:
            return None if attempt == 0 else result
        op = cast(blockvec.Operator, problem.operator)
        form = standard_form(op, matrix, mass, sigma, factors=factors)
        inverted = replace(
            within_time(staged(problem, f"shift{attempt + 1}")),
            operator=form.A,
            which="LM",
            method="lanczos",
            start=tall_block("v0", result.eigenvectors, form.A),
            ncv=None,
            block_size=None,
            maxiter=SOON_SHIFTED if attempt < SHIFTS - 1 else None,
        )
        latest = solve_transformed(form, inverted)
        result, why = one_after_other(result, latest), form.why
        if latest.info["stopped"] != "maxiter":
            break
    values = to_host(result.eigenvalues)
    text, missing = proof(factors, values, result.limits, end, problem.deflated)
    before = f"{first.info['method']} had not converged after {counted(first.info['restarts'], 'restart')}"
    return result.with_info(
        method="shift-invert",
        why=f"{before}; {why}",
        which=end,
        verification=text,
        missing=missing,
        time_s=time.perf_counter() - problem.begin_s,
    )
