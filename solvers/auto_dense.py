"""Dense LAPACK where an iteration fails on a matrix of a few thousand rows, or costs more."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blockvec import BlockVector, Operator, as_operator
from blockvec.errors import BreakdownError, OptionError

from .arguments import is_explicit
from .combine import one_after_other
from .costs import FEW_ROWS
from .drivers import solve
from .iterations.rayleigh_ritz import dense_matrix
from .problem import Problem
from .result import EigenResult
from .runtime.memory import SMALL_BYTES, available_bytes
from .runtime.processes import largest
from .storage import dense_bytes

if TYPE_CHECKING:
    from .transform.standard_form import StandardForm

# What an iteration did that ended for each of these reasons without all pairs; others hold for every method.
FAILURES = {
    "costly": "took as many applications of A as dense LAPACK takes time for",
    "stagnated": "stagnated",
    "maxiter": "did not converge",
    "converged": "did not reach the limit that rounding sets",
}


def fits_dense(op: Operator) -> bool:
    """Check whether dense LAPACK takes seconds and its matrices fit in free memory."""
    if op.shape[0] > FEW_ROWS:
        return False
    needed = dense_bytes(op)
    if op.device == "cpu" and needed <= SMALL_BYTES:
        return True
    free = available_bytes(op)
    return not largest(op.layout, free is not None and needed > free)  # a decision of all processes


def matrix_of(name: str, A: Any, like: Operator) -> Any:
    """Form the dense matrix of an operator of the host that must be factorised; keep matrices.

    Only operators of few rows are formed, if memory permits; others are kept, too. `like` has the shape and
    the type of a function.
    """
    if is_explicit(A) or not (hasattr(A, "shape") or callable(A)):
        return A
    op = as_operator(A, shape=like.shape, dtype=like.dtype)
    if op.device != "cpu" or op.shape != like.shape or not fits_dense(op):
        return A
    if op is not like:  # which has been checked
        op.check_hermitian(0, name=name)
    return dense_matrix(op.apply, BlockVector.empty(op.shape[0], 0, op.dtype))


def solve_or_densify(
    problem: Problem, iterate: Callable[[], EigenResult], densely: Callable[[], EigenResult]
) -> EigenResult:
    """Solve by `iterate`, and by `densely` where that fails and the problem may be dense."""
    if not problem.may_be_dense:
        return iterate()
    try:
        first = iterate()
    except (BreakdownError, np.linalg.LinAlgError) as error:
        try:
            return _explained(densely(), problem, f"the iteration broke down ({error})")
        except BreakdownError:
            raise error from None  # of A itself
    stopped = first.info["stopped"]
    is_verified = problem.verify == "never" or "skipped" not in first.info["verification"]
    is_complete = first.converged.all() and not first.info["missing"] and is_verified
    is_asked_for = stopped == "maxiter" and problem.maxiter is not None
    if is_complete or is_asked_for or stopped not in FAILURES:
        return first
    result = one_after_other(first, densely())
    return _explained(result, problem, f"{first.info['method']} {FAILURES[stopped]}")


def _explained(result: EigenResult, problem: Problem, why: str) -> EigenResult:
    why = f"{why}, and n = {problem.n} is at most {FEW_ROWS}"
    return result.with_info(why=why, time_s=time.perf_counter() - problem.begin_s)


def solve_densely(
    problem: Problem, form: StandardForm | None, sigma: float | None, mode: str, op: Operator, A: Any, M: Any
) -> EigenResult:
    """Solve a problem, given with its standard form if it has one, by dense LAPACK.

    Shifts then only select values, except with a singular M.
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
        sigma = sigma if form.map.sigma is None else form.map.sigma  # perhaps moved off an eigenvalue
        try:
            if form.inner is form.A:
                form = standard_form(op, A, M, math.inf, None, "reciprocal")
            else:
                form = None if M is None else standard_form(op, A, M, None)
            dense = replace(dense, target=sigma, seen=SpectralMap(sigma, mode).transformed)
        except OptionError:
            pass  # M is singular
    return solve(dense) if form is None else solve_transformed(form, dense)
