"""Dense LAPACK where an iteration fails on a matrix of a few thousand rows, or costs more."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blockvec import BlockVector, Operator, as_operator
from blockvec.errors import BreakdownError

from .arguments import is_explicit
from .combine import one_after_other
from .costs import FEW_ROWS
from .dense import dense_matrix
from .drivers import solve
from .iterations.rayleigh_ritz import FLOOR
from .problem import Problem
from .result import EigenResult, InfiniteError, SingularError
from .runtime.memory import require_memory
from .settle import is_complete
from .sizes import dense_bytes

if TYPE_CHECKING:
    from .transform.standard_form import StandardForm

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
