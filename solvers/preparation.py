"""From the arguments of `eigsh` to a problem that is ready to be solved, and from its solution back."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from blockvec import BlockVector, Operator, as_operator
from blockvec.errors import OptionError
from blockvec.interchange import ArrayKind
from blockvec.parallel import Communicator

from .arguments import check_precision, device_of, farthest, integer, is_explicit, positive
from .blocks import column_factors, to_host
from .call import DOUBLE, Call, called
from .iterations.rayleigh_ritz import Selection
from .placement import Placement
from .planning import Plan
from .problem import Problem
from .result import ConvergenceWarning, EigenResult
from .runtime.processes import refuse_factorisation, shares
from .runtime.progress import progress_bar
from .sizes import SHORT_ROWS
from .stages import Task, run_stages
from .transform.penalties import LOST, Parts, Penalties, Request, lost_digits
from .transform.scaling import Scaling, measured, product_rounding

if TYPE_CHECKING:
    from .transform.standard_form import StandardForm


@dataclass(frozen=True, slots=True)
class Prepared:
    """A scaled problem with its matrices, and what its result needs on the way back to the caller."""

    call: Call
    task: Task
    scaling: Scaling
    single: Any  # the type of a matrix in single precision that is solved for in double precision

    @property
    def caller(self) -> ArrayKind | None:
        """The caller's kind of arrays."""
        return self.call.given.caller

    @property
    def processes(self) -> Communicator | None:
        """The processes that share the rows."""
        return self.call.processes

    def solve(self) -> EigenResult:
        """Solve the problem, and return the result for the matrices and the arrays of the caller."""
        call, task, scaling, processes = self.call, self.task, self.scaling, self.processes
        problem, interval = task.problem, call.interval
        is_shown = call.options["progress"] and (processes is None or processes.rank == 0)
        shown = progress_bar(problem.callback) if is_shown else nullcontext(problem.callback)
        with scaling.noted(), shown as callback:
            task.problem = scaled = scaling.problem(replace(problem, callback=callback))
            result = run_stages(task)
            if interval is not None:
                result = result.with_info(interval=[end if math.isfinite(end) else None for end in interval])
            if self.single is not None:
                result = _rounded(result, scaled, task.M, self.single)
            examined = scaling.examined(result, cast(Operator, problem.operator), task.A)
            result = examined.result(result, call.sigma, problem.tolerance.tol)
            if call.penalties is not None:
                result = call.penalties.result(result)
        result = result.with_info(**call.own, plan=task.plan)
        if processes is not None:
            result = result.with_info(processes=shares(call.given.A))
        if call.home is not None:
            result = result.moved(call.home)
        if problem.checkpoint is not None and result.info["stopped"] == "converged":
            problem.checkpoint.remove()
        return result


def prepare(
    A: Any, k: Any, M: Any, sigma: Any, which: str, options: Mapping[str, Any], begin_s: float
) -> Prepared | Parts:
    """Plan a call of `eigsh`, then scale its problem on the device of the plan.

    Where penalties divide the spectrum, the problem may become several.
    """
    call = called(A, k, M, sigma, which, options, begin_s)
    parts = _leave_penalties(call, A, M)
    return _prepared(call, call.planned()) if parts is None else parts


def _leave_penalties(call: Call, A: Any, M: Any) -> Parts | None:
    """Scale the rows of penalties; return the parts of a problem that they divide."""
    given, interval = call.given, call.interval
    pairs = call.pairs if interval is None else call.k
    request = Request(pairs, cast(Selection, call.which), call.sigma, interval)
    penalties, requests = _penalties(call, request)
    if penalties is None:
        return None
    if requests != [request]:

        def part(request: Request, name: str) -> Prepared:
            path = call.options["checkpoint"]
            path = None if path is None else f"{path}.{name}"
            options = {**call.options, "interval": request.interval, "checkpoint": path}
            prepared = prepare(A, request.k, M, request.sigma, request.which, options, call.begin_s)
            return cast(Prepared, prepared)

        return Parts(request, requests, penalties.given, part, given.caller, call.own)
    device = device_of(given.A, given.device)
    call.home = None if device == "cpu" else device
    given.A, given.M, given.applied, given.device = penalties.A, penalties.M, None, None
    call.penalties = penalties
    return None


def _penalties(call: Call, request: Request) -> tuple[Penalties | None, list[Request]]:
    """Look for penalties in the matrix of a problem that factors may solve, and divide what is asked for.

    Where some remain that leave few digits of wanted values, this is a warning, and an error for an interval
    if they leave none: its values would be counted by their errors.
    """
    given, options = call.given, call.options
    penalties = Penalties.of(given.A, given.M)
    if penalties is not None and penalties.are_far(request):
        return None, [request]
    others = given.OPinv, given.Minv, given.preconditioner, given.locked, options["jd_options"]
    is_usual = all(other is None for other in (*others, options["norm"], options["comm"]))
    is_usual &= options["method"] in ("auto", "lanczos") and options["precision"] != "mixed"
    is_usual &= call.mode == "normal" and (request.sigma is None or request.which == "LM")
    if penalties is not None and is_usual and (requests := penalties.requests(request)) is not None:
        return penalties, requests
    are_largest = request == Request(request.k, "LM")
    if penalties is None and are_largest:
        return None, [request]
    wanted = _wanted(request, call.mode)
    if (text := lost_digits(given.A, wanted, LOST if penalties is None else 0.0)) is not None:
        if request.interval is not None and lost_digits(given.A, wanted, LOST):
            raise OptionError(f"interval: {text}.")
        warnings.warn(f"eigsh: {text}.", ConvergenceWarning, stacklevel=6)
    return None, [request]


def _wanted(request: Request, mode: str) -> tuple[float, ...]:
    """Return values near which eigenvalues are wanted, infinite ones for the ends of the spectrum."""
    if request.interval is not None:
        return request.interval
    if request.sigma is not None and (request.which, mode) == ("LM", "normal"):
        return (request.sigma,)
    is_one = request.sigma is None and request.which in ("SA", "LA")
    return (-math.inf if request.which == "SA" else math.inf,) if is_one else (-math.inf, math.inf)


def _prepared(call: Call, plan: Plan) -> Prepared:
    """Scale the problem of a call."""
    given, options, sigma, mode = call.given, call.options, call.sigma, call.mode
    placement, interval = cast(Placement, call.placement), call.interval
    op = _formed(call, placement)
    single = op.dtype if _takes_double(call, plan, placement, op) else None
    if single is not None:
        given.A = given.A.astype(DOUBLE[single.char])
        op = as_operator(given.A)
    norm, far = positive("norm", options["norm"]), sigma if interval is None else farthest(*interval)
    problem, is_checked = cast(Problem, call.problem), options["check_hermitian"]
    accuracy = problem.tolerance.tol, options["convergence"] == "absolute"
    scaling = measured(op, given.A, given.M, far, mode, norm, is_checked, given.spacings, accuracy)
    with scaling.noted():
        op, A, M, OPinv = scaling.operands(op, given.A, given.M, given.OPinv, given.device, is_checked)
    unfactored, shift = placement.unfactored, None if sigma is None else scaling.value(sigma)
    problem = replace(
        problem,
        operator=op,
        target=shift if unfactored else None,
        tolerance=replace(
            problem.tolerance, rounding=0.0 if op.layout is not None else product_rounding(A, op.dtype)
        ),
    )
    if single is not None:
        problem = replace(problem, **given.blocks(op), dtype=single.name)

    @functools.cache
    def form() -> StandardForm:
        from .transform.standard_form import standard_form

        at, how = (None, "jd") if unfactored else (shift, options["method"])
        return standard_form(op, A, M, at, OPinv, mode, Minv=given.Minv, k=call.pairs, method=how)

    task = Task(
        problem,
        plan,
        A,
        M,
        mode,
        shift,
        form if placement.transforms else None,
        call.predicted_s,
        interval=None if interval is None else (scaling.value(interval[0]), scaling.value(interval[1])),
        most=None if call.k is None or interval is None else integer("k", call.k, 0),
    )
    return Prepared(call, task, scaling, single)


def _formed(call: Call, placement: Placement) -> Operator:
    """Form the matrices that must be factorised or counted, on the device of a problem; return A."""
    given, options, op, interval = call.given, call.options, cast(Operator, call.op), call.interval
    if placement.transforms:
        refuse_factorisation(call.processes, options["method"])
    if options["precision"] == "mixed":
        others = given.M, call.sigma, interval, given.OPinv, given.preconditioner, options["jd_options"]
        check_precision(op, method=options["method"], is_plain=all(other is None for other in others))
    if placement.transforms or interval is not None:
        is_factorised = placement.transforms and not (call.sigma is None or call.corrects)
        given.form_matrices(op, call.mode, is_factorised=is_factorised)
    return op


def _takes_double(call: Call, plan: Plan, placement: Placement, op: Operator) -> bool:
    """Check whether a matrix in single precision is solved for in double precision.

    Steps of short columns take fewer calls there, and then less time. In the other cases matrices are
    factorised. Where eigenvalues are counted, many shifts would be too near one of them for factors in single
    precision, and a shift that is an eigenvalue would be moved past others.
    """
    given, options, is_shifted = call.given, call.options, call.sigma is not None
    always = call.interval is not None or call.penalties is not None
    always |= placement.transforms and is_shifted and call.mode == "normal"
    is_end = not placement.transforms and (not is_shifted or plan.has("end"))
    is_short = op.device == "cpu" and op.shape[0] <= SHORT_ROWS
    mass = given.M if call.penalties is None else None
    others = mass, given.OPinv, given.preconditioner, options["jd_options"]
    is_plain = options["method"] in ("auto", "lanczos") and all(other is None for other in others)
    is_single = op.dtype.char in DOUBLE and op.layout is None
    return (always or (is_end and is_short)) and is_plain and is_single and is_explicit(given.A)


def _rounded(result: EigenResult, problem: Problem, M: Any, dtype: Any) -> EigenResult:
    """Round a result to single precision, and compute its residuals again."""
    theta, X = result.eigenvalues.astype(dtype.type(0).real.dtype), result.eigenvectors.astype(dtype)
    block = BlockVector(X.astype(problem.operator.dtype))
    values = to_host(theta).astype(np.float64)
    mass = block if M is None else as_operator(M).apply(block)
    R = problem.operator.apply(block.copy()).axpy(column_factors(-values, block), mass)
    residuals = to_host(R.norms()).astype(np.float64)
    columns = result.info["operator_columns"] + X.shape[1]
    counted = result.with_info(dtype=dtype.name, operator_columns=columns)
    converged = residuals <= result.limits
    return replace(counted, eigenvalues=theta, eigenvectors=X, residuals=residuals, converged=converged)
