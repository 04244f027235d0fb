"""Shift-invert from just outside the spectrum, for ends that an iteration reaches slowly, with a proof.

At the stiff lower end of a stiffness matrix wanted values are a millionth of ||A|| apart. Where the matrix is
explicit and a few factorisations take seconds, the iteration only needs to locate the end roughly.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from blockvec import BlockVector, Factorization, as_operator

from .arguments import tall_block
from .blocks import Operator, to_host
from .combine import both_ends, one_after_other, staged, within_time
from .drivers import prepare, run, solve_iteratively
from .factorization.inertia import proof, shift_outside
from .problem import IterationOptions, Problem
from .result import EigenResult, counted
from .transform.standard_form import StandardForm, solve_transformed, standard_form

FACTOR_ROWS = 20_000  # up to here a few sparse factorisations take seconds, whatever their fill
FACTOR_ENTRIES = 2_000_000
# Restarts after which shift-invert takes over; those of a filter take many applications, and are few.
SOON = {"lanczos": 40, "filter": 10}
SOON_SHIFTED = 10  # restarts of shift-invert that locate a better shift
SHIFTS = 4


def is_factorable(A: Operator, which: str) -> bool:
    """Check whether a factorisation of A - sigma M takes seconds, and helps at the wanted end."""
    n = A.shape[0]
    small = n <= FACTOR_ROWS and getattr(A, "nnz", n * n) <= FACTOR_ENTRIES
    return A.device == "cpu" and small and which in ("SA", "LA")


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
    if problem.maxiter is None:
        soon = replace(options, maxiter=SOON[options.method], most_calls=math.inf)
    else:
        soon = options
    first = solve_iteratively(staged(problem, "begun"), soon)
    if first.info["stopped"] != "maxiter" or problem.maxiter is not None:
        return first
    explicit = sp.csc_array(matrix).astype(problem.operator.dtype)
    result = _by_shift_invert(first, explicit, None, staged(problem, "factorised"))
    if result is None:
        rest = replace(within_time(staged(problem, "continued")), start=BlockVector(first.eigenvectors))
        result = solve_iteratively(rest, options)
    return result


def solve_pair(form: StandardForm, A: Any, M: Any, problem: Problem) -> EigenResult:
    """Iterate on the standard form of a pair; continue by shift-invert if it converges slowly."""
    maxiter = SOON["lanczos"] if problem.maxiter is None else problem.maxiter
    first = solve_transformed(form, replace(within_time(staged(problem, "begun")), maxiter=maxiter))
    is_over = first.info["stopped"] not in ("maxiter", "converged") or problem.maxiter is not None
    if first.converged.all() or is_over:
        return first
    A, M = (sp.csc_array(matrix).astype(form.operator.dtype) for matrix in (A, M))
    result = _by_shift_invert(first, A, M, staged(problem, "factorised"))
    if result is None:
        rest = within_time(staged(problem, "continued"))
        result = solve_transformed(form, replace(rest, start=tall_block("v0", first.eigenvectors, form.A)))
    return result


def _by_shift_invert(first: EigenResult, matrix: Any, mass: Any, problem: Problem) -> EigenResult | None:
    """Improve a first result by shift-invert; None if no shift outside the spectrum is found.

    The first result may be far off, and the shift with it. A few restarts then give a better shift. Without
    a `mass` the matrix of the inner product is the identity.
    """
    end, result, why = problem.which, first, ""
    assert end != "BE"
    factors = Factorization(matrix, mass)
    for attempt in range(SHIFTS):
        theta = to_host(result.eigenvalues).astype(np.float64)
        scale = first.info["norm"] / (1.0 if mass is None else float(abs(mass).max()))
        sigma = shift_outside(factors, theta, scale, end)
        if sigma is None:
            return None if attempt == 0 else result
        form = standard_form(as_operator(matrix), matrix, mass, sigma, factors=factors)
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
