"""The stages of a plan, run in turn: each takes over where those before have not settled the problem.

Below them stands the run of one standard problem, by the method and the sizes of an iteration.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from blockvec import BlockVector, single_threaded_blas
from blockvec.errors import BreakdownError, OptionError, ShapeError

from ..arguments import blas_threads, tall_block
from ..blocks import Block, ColumnBlock, empty_block, side_by_side, to_host
from ..costs import FEW_ROWS, rates, shift_invert_s
from ..iterations.base import Iteration, fingerprint
from ..iterations.lanczos import ThickRestart
from ..orthogonalization import orthogonalize
from ..problem import IterationOptions, Problem, Verification, Which, ranking_key, split_outliers, staged
from ..result import EigenResult, InfiniteError, is_complete
from ..runtime.checkpoint import probe
from ..runtime.processes import largest
from ..sizes import FEW_RESTARTS, choose_options, completed, has_short_columns
from ..transform.inner_product import inner_product_columns
from .combine import both_ends, errors_allowed, go_on, join_ends, one_after_other, with_outliers
from .dense import solve_densely

if TYPE_CHECKING:
    from ..call import Call
    from ..transform.standard_form import StandardForm

ELEMENT_S = 1e-7  # s per stored element: several times the time of a prediction
PAIR_RESTARTS = {"host": FEW_RESTARTS, "gpu": 2}  # until the end of the spectrum of a pair is located
EXTRA = 2  # pairs: the first number of further ones around a shift that was moved
# What an iteration did that ended for each of these reasons without all pairs; others hold for every method.
FAILURES = {
    "costly": "took as many applications of A as dense LAPACK takes time for",
    "stagnated": "stagnated",
    "maxiter": "did not converge",
    "converged": "did not reach the limit that rounding sets",
}
OF_ITERATIONS = "start", "checkpoint", "block_size", "ncv", "maxiter", "preconditioner", "jd_options"
UNDECIDED = "did not find out whether copies are missing"  # with all pairs


def run_stages(task: Call, *, tries_end: bool = True) -> EigenResult:
    """Run the stages of a plan in turn, and dense LAPACK where they fail and the problem may be dense."""
    problem, few = task.problem, f"n = {task.problem.n} is at most {FEW_ROWS}"
    if tries_end and task.predicted_s is not None:
        from .end import from_end

        others = functools.partial(run_stages, task, tries_end=False)
        return from_end(problem, cast(float, task.shift), task.predicted_s, others)
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
    may_fail = stopped == "converged" or problem.ends_early(stopped)
    if is_complete(first, problem.verify) or not may_fail:
        return first
    failure = UNDECIDED if is_complete(first, "never") else FAILURES[stopped]
    why = f"{first.info['method']} {failure}, and {few}"
    return one_after_other(first, _densely(task), why=why)


def _run_all(task: Call) -> EigenResult:
    """Run the stages but dense LAPACK, at one end of the spectrum after the other where factors may help."""
    problem, form, op = task.problem, task.form, task.problem.operator
    if task.ends is not None:
        from .interval import solve_interval

        return solve_interval(task, problem, task.plan.stages[0])
    if not task.plan.has("shift-invert"):
        return _run_in_turn(task, problem)
    if form is None and problem.maxiter is None:  # stops where factors take less time
        seconds = functools.cache(functools.partial(shift_invert_s, task.A, op))
        least_s = rates(op.device).inverted_s + ELEMENT_S * getattr(op, "nnz", problem.n**2)

        def successor(spent_s: float, whole_s: float) -> bool:
            longer_s = max(spent_s, whole_s)
            return longer_s > least_s and longer_s > seconds()

        problem = replace(problem, successor=successor)
    if problem.which != "BE":
        return _run_in_turn(task, problem)
    join = join_ends
    if form is not None:
        from ..transform.solution import joined_ends

        join = functools.partial(joined_ends, form)
    return both_ends(problem, functools.partial(_run_in_turn, task), join)


def _run_in_turn(task: Call, problem: Problem) -> EigenResult:
    """Run a first stage, and the one that takes over if that has not settled the problem."""
    plan, form, result = task.plan, task.form, None
    may_invert = plan.has("shift-invert") and (task.M is None or problem.locked is None)
    if plan.has("above zero"):
        from .shift_invert import above_zero

        result = above_zero(cast("StandardForm", form), task.A, task.M, problem)
    if result is None:
        begun = staged(problem, "begun") if may_invert else problem
        if form is None:
            result = solve(begun, plan.options)
        elif may_invert:
            soon = PAIR_RESTARTS["host" if problem.operator.device == "cpu" else "gpu"]
            result = task.solve(replace(begun, maxiter=soon if problem.maxiter is None else problem.maxiter))
        else:
            result = _around_a_shift(task, problem, form)
    stopped, later = result.info["stopped"], None
    if plan.has("window") and stopped == "stagnated":
        later = _windowed
    elif may_invert and not is_complete(result, problem.verify):
        may_lack_copies = task.M is not None and stopped == "converged"
        later = _inverted if problem.ends_early(stopped) or may_lack_copies else None
    if later is None or problem.maxiter is not None:
        return result
    return result.with_info(stopped="time_limit") if problem.is_late() else later(task, problem, result)


def _windowed(task: Call, problem: Problem, begun: EigenResult) -> EigenResult:
    """Go on by a filter around a target, after corrections."""
    from ..transform.spectral_map import SpectralMap

    sizes: dict[str, Any] = dict.fromkeys(("block_size", "ncv", "maxiter"))
    why = f"{begun.info['why']}; corrections stagnated, since eigenvalues are dense there"
    how = {"method": "filter", "method_why": why, **sizes}
    return go_on(begun, problem, "window", task.solve, SpectralMap(problem.target), **how)


def _inverted(task: Call, problem: Problem, begun: EigenResult) -> EigenResult:
    """Go on by shift-invert from outside the spectrum; where no shift is found, iterate on."""
    from .shift_invert import by_shift_invert

    result = by_shift_invert(begun, task.A, task.M, staged(problem, "factorised"))
    if result is not None:
        return result
    # Sizes of a standard form are chosen within it.
    options = task.plan.options
    again = task.solve if options is None else functools.partial(solve_iteratively, options=options)
    return go_on(begun, problem, "continued", again, successor=None)


def _around_a_shift(task: Call, problem: Problem, form: StandardForm) -> EigenResult:
    """Solve a problem in its standard form, for values around a shift at those nearest to the one given.

    Of those nearest to a shift that was moved, the pairs nearest to the given one are kept. More are computed
    until all others are known to be further away.
    """
    from ..transform.solution import solve_proven, solve_transformed

    shift = task.shift
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

        return solve_interval(task, dense, task.plan.stages[-1])
    is_plain = task.M is None and task.mode == "normal"
    return solve(replace(dense, target=task.shift)) if is_plain else task.solve(dense)


def solve(problem: Problem, options: IterationOptions | None = None) -> EigenResult:
    """Solve a standard problem by a method and sizes, by default those for the problem."""
    if problem.locked is not None:
        problem = replace(problem, locked=_orthonormal(problem))
    options = choose_options(problem) if options is None else options
    if options.method == "dense":
        return solve_densely(problem, options)
    if options.method == "filter" and problem.target is not None:
        from .window import solve_window

        return solve_window(problem, options, solve_iteratively)
    if problem.which == "BE":
        return both_ends(problem, lambda end: solve_iteratively(end, options))
    return solve_iteratively(problem, options)


def _orthonormal(problem: Problem) -> Block | None:
    """Orthonormalise the locked columns of a problem, and leave out those that depend on others."""
    block = tall_block("orthogonal_to", problem.locked, problem.operator)
    if block.n_cols >= problem.n:
        raise ShapeError(f"orthogonal_to has {block.n_cols} columns for {problem.n} rows; give fewer.")
    if problem.blocks is not BlockVector:
        block = problem.blocks(block.array)
    rank = block.n_cols - int(orthogonalize(block).lost.sum())
    return block[:, :rank].copy() if rank else None


def solve_iteratively(problem: Problem, options: IterationOptions) -> EigenResult:
    """Solve by block Lanczos, with or without a filter, or by block Jacobi-Davidson."""
    given, options = problem, completed(problem, options)
    op = problem.operator
    start: Block = empty_block(op) if problem.start is None else problem.start
    if options.method != "jd" and has_short_columns(problem):
        inner = problem.blocks
        columns = ColumnBlock if inner is BlockVector else inner_product_columns(inner)
        start = columns.of(start)
        if problem.locked is not None:
            problem = replace(problem, locked=columns.of(problem.locked))
    elif problem.blocks is not BlockVector:
        start = problem.blocks(start.array)
    threads = single_threaded_blas if isinstance(start, ColumnBlock) else blas_threads(op)
    if problem.start is None:
        start = start.random_like(options.block_size, problem.rng)
    else:
        with threads:
            is_zero = not to_host(start.norms()).any()
        if is_zero:
            raise OptionError("v0 is zero; give a start with a direction, or leave it out.")
    if problem.checkpoint is not None:
        problem.checkpoint.problem = _fingerprint(problem, options)
        problem.checkpoint.image = probe(op, start, problem.locked)
        problem.checkpoint.layout = op.layout
    iteration: type[Iteration] = ThickRestart
    if options.method == "filter":
        from ..iterations.filtering import FilteredRestart

        iteration = FilteredRestart
    elif options.method == "jd":
        from ..iterations.jacobi_davidson import JacobiDavidson

        iteration = JacobiDavidson
    with threads, deferred_interrupt() as interrupted:
        try:
            result = iteration(problem, options, start, interrupted).run()
        except BreakdownError as error:
            source = "A" if problem.preconditioner is None else "A or the preconditioner"
            raise BreakdownError(
                f"{source} returned NaN or Inf for a finite block, numbers whose squares overflow, or "
                f"products that are not those of one Hermitian matrix ({error})"
            ) from error
        if largest(op.layout, interrupted()):
            return result.with_info(stopped="interrupted")
    return _beside_outliers(given, options, result) if result.info["stopped"] == "outliers" else result


def _beside_outliers(problem: Problem, options: IterationOptions, first: EigenResult) -> EigenResult:
    """Go on in the complement of values far out; without a filter, if that is no answer to its limits."""
    which, k = cast(Which, problem.which), problem.k
    theta, limits = to_host(first.eigenvalues).astype(np.float64), np.full(k, first.limits.min())
    far, _ = split_outliers(theta, first.residuals, limits, which)
    if len(far):
        done = first.part(far)
        locked = side_by_side(problem.blocks(done.eigenvectors), problem.locked)
        rest = replace(problem, k=k - len(far), locked=locked, precision="double")
        left = options.maxiter - first.info["restarts"]
        others = solve(rest, replace(options, maxiter=left))
        first = with_outliers(problem, done, others)
        last, least = (ranking_key(to_host(part.eigenvalues), which).min() for part in (done, others))
        if first.info["stopped"] != "converged" or (last >= least and first.converged.all()):
            return first
    left = options.maxiter - first.info["restarts"]
    if left < 1:
        return first.with_info(stopped="maxiter")
    why = "values far out and the others were no answer together"
    plain = replace(options, maxiter=left, method="lanczos", degree=1, why=why)
    start = tall_block("v0", first.eigenvectors, problem.operator)
    return one_after_other(first, solve_iteratively(replace(problem, start=start), plain), which)


def _fingerprint(problem: Problem, options: IterationOptions) -> dict[str, Any]:
    from ..iterations.correction import JacobiDavidsonOptions

    own: dict[str, Any] = {name: getattr(problem, name) for name in ("k", "which", "verify")}
    own |= {name: getattr(options, name) for name in ("method", "block_size", "ncv", "degree")}
    own |= (problem.jd_options or JacobiDavidsonOptions()).fingerprint()
    own |= {"exponent of two": problem.exponent} if problem.exponent else {}
    own |= {"precision": problem.precision} if options.mixes else {}
    own |= {"sigma": problem.target, "columns of v0": problem.start_width}
    own |= {"columns of orthogonal_to": problem.n_locked}
    return fingerprint(problem, **own, preconditioner=problem.preconditioner is not None)


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Defer the first Ctrl-C within a block; yield a function that tells whether it was pressed.

    A second Ctrl-C raises KeyboardInterrupt at once. Outside the main thread, or if a program has its own
    handler, signals are handled as before.
    """
    pending: list[int] = []

    def remember(signum: int, frame: FrameType | None) -> None:
        if pending:
            raise KeyboardInterrupt
        pending.append(signum)

    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield functools.partial(bool, pending)
        return
    signal.signal(signal.SIGINT, remember)
    try:
        yield functools.partial(bool, pending)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
