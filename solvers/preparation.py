"""From the arguments of `eigsh` to a problem that is ready to be solved, and from its solution back."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from blockvec import BlockVector, Operator, as_operator
from blockvec.errors import OptionError
from blockvec.interchange import ArrayKind
from blockvec.parallel import Communicator

from .arguments import (
    check_precision,
    device_of,
    farthest,
    integer,
    is_explicit,
    positive,
)
from .blocks import column_factors, to_host
from .call import DOUBLE, Call, Operands, called
from .column_block import SHORT_ROWS
from .combine import one_after_other
from .iterations.rayleigh_ritz import Selection, Tolerance
from .placement import Placement
from .planning import Plan
from .problem import Problem
from .result import ConvergenceWarning, EigenResult
from .runtime.processes import refuse_factorisation, shares
from .runtime.progress import progress_bar
from .stages import iterate, solve_densely, solve_or_densify
from .transform.penalties import LOST, Parts, Penalties, Request, lost_digits
from .transform.scaling import Scaling, measured, product_rounding

if TYPE_CHECKING:
    from .auto_end import Attempt
    from .transform.standard_form import StandardForm


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A scaled problem with its matrices, and what its result needs on the way back to the caller."""

    problem: Problem
    plan: Plan
    A: Any
    M: Any
    form: StandardForm | None  # of a problem that is transformed
    scaling: Scaling
    penalties: Penalties | None
    mode: str
    sigma: float | None  # that is solved for
    given: dict[str, Any]  # entries of `info` that are the caller's: sigma, which and mode
    shift: float | None  # scaled
    attempt: Attempt | None  # whose problem is that of an end of the spectrum, in the place of sigma
    interval: tuple[float, float] | None  # as given
    single: Any  # the type of a matrix in single precision that is solved for in double precision
    most: int | None  # pairs of an interval
    tol: float
    home: str | None  # device of a result that the host computes
    processes: Communicator | None
    rows: Any  # the operator as it was split over these
    caller: ArrayKind | None
    shows_progress: bool

    def solve(self) -> EigenResult:
        """Solve the problem, and return the result for the matrices and the arrays of the caller."""
        problem, is_first = self.problem, self.processes is None or self.processes.rank == 0
        if self.attempt is not None:
            problem = replace(problem, callback=self.attempt)
        shown = progress_bar(problem.callback) if self.shows_progress and is_first else None
        with self.scaling.noted(), shown or nullcontext(problem.callback) as callback:
            scaled = self.scaling.problem(problem if shown is None else replace(problem, callback=callback))
            result = self._solve(scaled) if self.interval is None else self._solve_interval(scaled)
            if self.single is not None:
                result = _rounded(result, scaled, self.M, self.single)
            examined = self.scaling.examined(result, cast(Operator, problem.operator), self.A)
            result = examined.result(result, self.sigma, self.tol)
            if self.penalties is not None:
                result = self.penalties.result(result)
        if self.attempt is not None:
            if not self.attempt.is_settled(result, problem.verify):
                result = self._after(result, self.attempt.otherwise())
                return result.with_info(**self.given, plan=self.plan)
            result = self.attempt.beside.described(result)
        result = result.with_info(**self.given, plan=self.plan)
        if self.processes is not None:
            result = result.with_info(processes=shares(self.rows))
        if self.home is not None:
            result = result.moved(self.home)
        if problem.checkpoint is not None and result.info["stopped"] == "converged":
            problem.checkpoint.remove()
        return result

    def _after(self, first: EigenResult, rest: Prepared) -> EigenResult:
        """Solve a problem in another way, after an attempt at an end."""
        from .transform.spectral_map import SpectralMap

        if self.problem.checkpoint is not None:
            self.problem.checkpoint.remove()
        result = rest.solve()
        why = f"{result.info['why']}, after an attempt at the end of the spectrum beside sigma"
        return one_after_other(first, result.with_info(why=why), "LM", SpectralMap(rest.sigma))

    def _solve(self, problem: Problem) -> EigenResult:
        form, A, M = self.form, self.A, self.M

        def densely() -> EigenResult:
            return solve_densely(problem, form, self.shift, self.mode, cast(Operator, problem.operator), A, M)

        if self.attempt is not None and is_explicit(A):
            return self.attempt.beside.solve(problem)
        return solve_or_densify(problem, lambda: iterate(problem, self.plan, form, A, M, self.shift), densely)

    def _solve_interval(self, problem: Problem) -> EigenResult:
        from .interval import solve_interval

        assert self.interval is not None
        wanted = self.A, self.M, *map(self.scaling.value, self.interval), self.most
        result = solve_or_densify(
            problem,
            lambda: solve_interval(problem, *wanted),
            lambda: solve_interval(replace(problem, method="dense"), *wanted),
        )
        return result.with_info(interval=[end if math.isfinite(end) else None for end in self.interval])


def prepare(
    A: Any,
    k: Any,
    M: Any,
    sigma: Any,
    which: str,
    options: Mapping[str, Any],
    begin_s: float,
    *,
    may_be_end: bool = True,
) -> Prepared | Parts:
    """Plan a call of `eigsh`, then scale its problem on the device of the plan, and transform it.

    Values nearest to `sigma` may be those of an end of the spectrum. Where penalties divide the spectrum, the
    problem may become several.
    """
    call = called(A, k, M, sigma, which, options, begin_s)
    if (parts := _leave_penalties(call, A, M)) is not None:
        return parts
    plan = call.planned()
    if may_be_end and plan.has("end"):
        otherwise = functools.partial(prepare, A, k, M, sigma, which, options, begin_s, may_be_end=False)
        _try_an_end(call, cast(Callable[[], Prepared], otherwise))
    return _prepared(call, plan)


def _leave_penalties(call: Call, A: Any, M: Any) -> Parts | None:
    """Scale the rows of penalties; return the parts of a problem that they divide."""
    given, interval = call.given, call.interval
    pairs = call.pairs if interval is None else call.k
    request = Request(pairs, cast(Selection, call.which), call.sigma, interval)
    wanted = _wanted(call.which, call.sigma, interval, call.mode)
    penalties, requests = _penalties(given, request, wanted, call.options, call.mode)
    if penalties is not None and requests != [request]:

        def part(request: Request, name: str) -> Prepared:
            path = call.options["checkpoint"]
            path = None if path is None else f"{path}.{name}"
            options = {**call.options, "interval": request.interval, "checkpoint": path}
            prepared = prepare(A, request.k, M, request.sigma, request.which, options, call.begin_s)
            return cast(Prepared, prepared)

        return Parts(request, requests, penalties.given, part, given.caller, call.own)
    if penalties is not None:
        device = device_of(given.A, given.device)
        call.home = None if device == "cpu" else device
        given.A, given.M, given.applied, given.device = penalties.A, penalties.M, None, None
        call.penalties = penalties
    return None


def _try_an_end(call: Call, otherwise: Callable[[], Prepared]) -> None:
    """Look whether the values nearest to sigma are those of an end of the spectrum, and ask for these."""
    from .auto_end import Attempt, look

    assert call.op is not None
    assert call.sigma is not None
    assert call.predicted_s is not None
    beside = call.beside = look(call.op, call.sigma, call.predicted_s)
    if beside.end is None:
        return
    call.attempt = Attempt(beside, otherwise, call.options["callback"])
    call.sigma, call.which, call.placement = None, beside.end, None
    call.checkpoint = None if call.checkpoint is None else call.checkpoint.stage("end")


def _formed(call: Call, placement: Placement) -> tuple[Operator, bool]:
    """Form the operator and the matrices on the device of a problem.

    Also returns whether a shift is a target of iterations without a factorisation.
    """
    given, options, sigma, mode = call.given, call.options, call.sigma, call.mode
    method, transforms, interval = options["method"], placement.transforms, call.interval
    if transforms:
        refuse_factorisation(call.processes, method)
    if placement.is_on_host:
        given.move_to_host(placement.home)
    op = call.op
    if op is None or placement.home is not None:
        op = given.operator()
    if options["precision"] == "mixed":
        others = given.M, sigma, interval, given.OPinv, given.preconditioner, options["jd_options"]
        check_precision(op, method=method, is_plain=all(other is None for other in others))
    if transforms or interval is not None:
        given.form_matrices(op, mode, is_factorised=transforms and not (sigma is None or call.corrects))
    is_usual = given.OPinv is None and (method, mode, call.which) == ("auto", "normal", "LM")
    if transforms and is_usual and not given.are_explicit:
        return op, placement.unfactored or sigma is not None
    return op, placement.unfactored


def _prepared(call: Call, plan: Plan) -> Prepared:
    """Scale and transform the problem of a call."""
    given, options, sigma, mode = call.given, call.options, call.sigma, call.mode
    placement, interval = call.placement or call.place(), call.interval
    transforms, method = placement.transforms, options["method"]
    op, unfactored = _formed(call, placement)
    single = None
    always = interval is not None or call.penalties is not None
    always |= transforms and sigma is not None and mode == "normal"
    is_end = not transforms and sigma is None
    if (always or is_end) and _takes_double(op, given, options, call.penalties, always=always):
        single, given.A = op.dtype, given.A.astype(DOUBLE[op.dtype.char])
        op = as_operator(given.A)
    norm, far = positive("norm", options["norm"]), sigma if interval is None else farthest(*interval)
    is_checked = options["check_hermitian"]
    accuracy = call.tol, options["convergence"] == "absolute"
    scaling = measured(op, given.A, given.M, far, mode, norm, is_checked, given.spacings, accuracy)
    if call.beside is not None:
        scaling = scaling.after(call.beside.columns)
    shift, form = None if sigma is None else scaling.value(sigma), None
    with scaling.noted():
        operands = op, given.A, given.M, given.OPinv
        op, A, M, OPinv = scaling.operands(*operands, given.device, is_checked)
        if transforms:
            from .transform.standard_form import standard_form

            at = None if unfactored else shift
            how = "jd" if unfactored else method
            form = standard_form(op, A, M, at, OPinv, mode, Minv=given.Minv, k=call.pairs, method=how)
    problem = call.problem(
        op,
        shift if unfactored else None,
        tolerance=Tolerance(
            call.tol,
            options["convergence"],
            float(np.finfo(single or op.dtype).eps) / 2,
            0.0 if op.layout is not None else product_rounding(A, op.dtype),
        ),
        dtype=None if single is None else single.name,
    )
    return Prepared(
        problem=problem,
        plan=plan,
        A=A,
        M=M,
        form=form,
        scaling=scaling,
        penalties=call.penalties,
        mode=mode,
        sigma=sigma,
        given=call.own,
        shift=shift,
        attempt=call.attempt,
        interval=interval,
        single=single,
        most=None if call.k is None or interval is None else integer("k", call.k, 0),
        tol=call.tol,
        home=placement.home if call.home is None else call.home,
        processes=call.processes,
        rows=call.rows,
        caller=given.caller,
        shows_progress=options["progress"],
    )


def _wanted(
    which: str, sigma: float | None, interval: tuple[float, float] | None, mode: str
) -> tuple[float, ...]:
    """Return values near which eigenvalues are wanted, infinite ones for the ends of the spectrum."""
    if interval is not None:
        return interval
    if sigma is not None:
        return (sigma,) if (which, mode) == ("LM", "normal") else (-math.inf, math.inf)
    return {"SA": (-math.inf,), "LA": (math.inf,)}.get(which, (-math.inf, math.inf))


def _penalties(
    given: Operands, request: Request, wanted: tuple[float, ...], options: Mapping[str, Any], mode: str
) -> tuple[Penalties | None, list[Request]]:
    """Look for penalties in the matrix of a problem that factors may solve, and divide what is asked for.

    Where some remain that leave few digits of `wanted` values, this is a warning, and an error for an
    interval if they leave none: its values would be counted by their errors.
    """
    penalties = Penalties.of(given.A, given.M)
    if penalties is not None and penalties.are_far(request):
        return None, [request]
    others = given.OPinv, given.Minv, given.preconditioner, given.locked, options["jd_options"]
    is_usual = all(other is None for other in (*others, options["norm"], options["comm"]))
    is_usual &= options["method"] in ("auto", "lanczos") and options["precision"] != "mixed"
    is_usual &= mode == "normal" and (request.sigma is None or request.which == "LM")
    if penalties is not None and is_usual and (requests := penalties.requests(request)) is not None:
        return penalties, requests
    are_largest = request == Request(request.k, "LM")
    if penalties is None and are_largest:
        return None, [request]
    if (text := lost_digits(given.A, wanted, LOST if penalties is None else 0.0)) is not None:
        if request.interval is not None and lost_digits(given.A, wanted, LOST):
            raise OptionError(f"interval: {text}.")
        warnings.warn(f"eigsh: {text}.", ConvergenceWarning, stacklevel=5)
    return None, [request]


def _takes_double(
    op: Operator, given: Operands, options: Mapping[str, Any], penalties: Penalties | None, *, always: bool
) -> bool:
    """Check whether a matrix in single precision is solved for in double precision.

    Steps of short columns take fewer calls there, and then less time. In the other cases matrices are
    factorised. Where eigenvalues are counted, many shifts would be too near one of them for factors in single
    precision, and a shift that is an eigenvalue would be moved past others.
    """
    is_short = op.device == "cpu" and op.shape[0] <= SHORT_ROWS
    mass = given.M if penalties is None else None
    others = mass, given.OPinv, given.preconditioner, options["jd_options"]
    is_plain = options["method"] in ("auto", "lanczos") and all(other is None for other in others)
    is_single = op.dtype.char in DOUBLE and op.layout is None
    return (is_short or always) and is_plain and is_single and is_explicit(given.A)


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
