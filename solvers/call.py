"""A call of `eigsh`: its checked arguments, the plan for them, the scaled problem, and its solution back."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from blockvec import BlockVector, Operator, array_namespace, as_operator, precompiled
from blockvec.errors import OptionError
from blockvec.interchange import ArrayKind, is_function
from blockvec.parallel import Communicator
from blockvec.system.scalars import plain

from .arguments import (
    check,
    check_precision,
    checkpoint_for,
    device_of,
    ends,
    farthest,
    generator,
    integer,
    is_explicit,
    matrix_on_host,
    natively,
    on_host,
    positive,
    preconditioner_for,
    real,
    spacing,
    square,
    tall_block,
    whole,
)
from .blocks import column_factors, to_host
from .costs import dense_is_faster, fits_dense, is_full
from .iterations.rayleigh_ritz import Selection, Tolerance
from .placement import placed
from .planning import Plan, plan_of, warn_of_processes
from .problem import IterationOptions, Problem, asks_for_corrections
from .result import ConvergenceWarning, EigenResult, SingularError
from .runtime.processes import processes_of, same_generator, shares, split
from .runtime.progress import progress_bar
from .sizes import SHORT_ROWS
from .stages.dense import matrix_of
from .stages.drivers import solve
from .stages.end import may_be_quick
from .stages.run import run_stages
from .transform.penalties import (
    LOST,
    Penalties,
    Request,
    lost_digits,
    may_have_penalties,
    solve_in_parts,
)
from .transform.scaling import Scaling, measured, product_rounding

if TYPE_CHECKING:
    from .transform.standard_form import StandardForm

# The modes whose largest values belong to the smallest ones of each mode; that of Cayley changes its shift.
SMALLEST = {"normal": "distance", "buckling": "reciprocal", "cayley": "cayley"}
DOUBLE = {"f": np.dtype(np.float64), "F": np.dtype(np.complex128)}
SIZES = ("block_size", "ncv", "maxiter")
# Options that a problem has as they are given.
PASSED_ON = ("verify", "callback", "method", "precision", *SIZES, "jd_options")
# Options that say how values around a number are computed.
HOW = ("OPinv", "preconditioner", "jd_options", "orthogonal_to", "maxiter")


@dataclass
class Call:
    """A call of `eigsh`: its arguments as blockvec takes them, then its plan and the problem to solve.

    A sparse operator of the host is the matrix `A`, which may be factorised, and the operator `applied`.
    Matrices and numbers of the problem are scaled by `scale`.
    """

    caller: ArrayKind | None  # kind of arrays
    applied: Operator | None
    A: Any
    M: Any
    OPinv: Any
    preconditioner: Any
    start: Any
    locked: Any
    device: str | None
    dtype: Any
    spacings: tuple[float, float]  # eps of the types that A and M are given in
    processes: Communicator | None
    options: Mapping[str, Any]  # all arguments as they are given
    begin_s: float
    k: int | None  # pairs, or the most that are accepted of an interval
    interval: tuple[float, float] | None
    mode: str
    sigma: float | None
    which: str
    own: dict[str, Any]  # entries of `info` that are the caller's
    home: str | None = None  # device of a result that the host computes
    penalties: Penalties | None = None
    op: Operator | None = None
    predicted_s: tuple[float, float] | None = None  # of an iteration at an end, and of factors
    single: Any = None  # the type of a matrix in single precision that is solved for in double precision
    transforms: bool = False  # to another form, by a factorisation or operators in its place
    unfactored: bool = False  # whether sigma is a target of iterations without a factorisation
    problem: Problem = field(init=False)
    plan: Plan = field(init=False)
    shift: float | None = None  # sigma and the interval of the scaled problem
    ends: tuple[float, float] | None = None
    made: StandardForm | None = None

    def of(self, problem: Problem) -> Call:
        """Return the call for a part of its problem."""
        part = copy.copy(self)
        part.problem = problem
        return part

    @property
    def form(self) -> StandardForm | None:
        """The standard form of the problem, made when first asked for; None where it is solved as it is."""
        is_pair_inside = self.M is not None and self.interval is not None
        if self.made is None and (self.transforms or is_pair_inside):
            self.made = self._formed()
        return self.made

    def solve(self, problem: Problem) -> EigenResult:
        """Solve a part of the problem, in its standard form if it has one."""
        if self.form is None:
            return solve(problem)
        from .transform.solution import solve_transformed

        return solve_transformed(self.form, problem)

    @property
    def is_plain(self) -> bool:
        """Whether A alone is given, and the values as they are or around sigma."""
        return self.M is None and self.OPinv is None and self.mode == "normal"

    def has_none(self, *names: str) -> bool:
        """Check that none of some arguments is given."""
        return all(self.options[name] is None for name in names)

    @property
    def pairs(self) -> int:
        """Number of wanted pairs, where there is one."""
        return 6 if self.k is None else self.k

    @property
    def corrects(self) -> bool:
        """Whether Jacobi-Davidson is asked for."""
        return asks_for_corrections(self.options["method"], self.preconditioner, self.options["jd_options"])

    @property
    def asks_for_nearest(self) -> bool:
        """Whether the values are those nearest to sigma, by whichever method."""
        if self.penalties is not None or self.sigma is None or self.M is not None:
            return False
        how = self.options["method"], self.options["verify"], self.options["precision"]
        promises = how[1] == "always" or how[2] == "mixed"  # which hold for a method
        is_free = how[0] == "auto" and not promises and self.has_none(*HOW)
        return (self.which, self.mode) == ("LM", "normal") and is_free

    def planned(self) -> Plan:
        """Plan the solve: nothing is applied."""
        options, method = self.options, "jd" if self.corrects else self.options["method"]
        if self.asks_for_nearest:
            self.op = self._operator()
            if self._is_small_matrix():
                method = "dense"
            else:
                self.predicted_s = may_be_quick(self.A, self.op, self.pairs)
        device = device_of(self.A, self.device)
        moves, self.transforms, self.unfactored = placed(self, device, method)
        if device == "cpu" or moves:
            self.A, self.M = on_host(self.A), on_host(self.M)
        if moves:  # its entries are read there
            self.device, self.home, self.op = "cpu", device, None
        op = self.op = self._operator() if self.op is None else self.op
        are_explicit = is_explicit(self.A) and (self.M is None or is_explicit(self.M))
        is_formed = are_explicit or (op.device == "cpu" and fits_dense(op))
        is_usual = self.OPinv is None and (method, self.mode, self.which) == ("auto", "normal", "LM")
        self.unfactored |= self.transforms and self.sigma is not None and is_usual and not is_formed
        if options["precision"] == "mixed":
            is_end = self.sigma is None and self.has_none("M", "interval", "preconditioner", "jd_options")
            check_precision(op, options["method"], is_plain=is_end)
        if self._takes_double(op):
            self.single, self.A = op.dtype, self.A.astype(DOUBLE[op.dtype.char])
            op = self.op = as_operator(self.A, device=self.device)
        self.problem = self._problem(op, self.sigma if self.unfactored else None)
        self.plan = plan_of(self)
        return self.plan

    def _operator(self) -> Operator:
        """Make A an operator; a function has the shape and the type of M, if none are given."""
        similar, shape = None if self.OPinv is None else self.M, self.options["shape"]
        shape = getattr(similar, "shape", None) if shape is None else shape
        dtype = getattr(similar, "dtype", None) if self.dtype is None else self.dtype
        A = self.A if self.applied is None else self.applied
        op = square(as_operator(A, shape=shape, dtype=dtype, device=self.device))
        if self.caller is not None:  # refuses before the solve what it would after
            self.caller.share(op.backend.empty((1, 1), op.dtype.name))
        return op

    def _is_small_matrix(self) -> bool:
        """Check whether dense LAPACK takes less time for values around sigma than factors with their solves.

        Dense matrices of 200 to 330 rows took 2.3 to 2.8 times as long by these.
        The options that only iterations have are honoured.
        """
        op = cast(Operator, self.op)
        is_here = op.device == "cpu" and op.layout is None and op.dtype.char not in DOUBLE
        if not (is_here and is_explicit(self.A) and fits_dense(op)):
            return False
        if not self.has_none("v0", "block_size", "checkpoint"):
            return False
        is_short = dense_is_faster(op.shape[0], self.pairs, op.device, "factors") is not None
        return is_short or (isinstance(self.A, np.ndarray) and is_full(op))

    def _problem(self, op: Operator, target: float | None) -> Problem:
        options, method = self.options, self.options["method"]
        tol = real("tol", options["tol"], "a number of at least 0", lambda x: 0 <= x < math.inf)
        seed = 0 if options["rng"] is None and self.start is not None else options["rng"]
        dtype, preconditioner = op.dtype if self.single is None else self.single, self.preconditioner
        return Problem(
            operator=op,
            k=self.pairs,
            which=cast(Selection, self.which),
            tolerance=Tolerance(tol, options["convergence"], float(np.finfo(dtype).eps) / 2),
            rng=same_generator(generator(seed), self.processes),
            target=target,
            norm=positive("norm", options["norm"]),
            start=None if self.start is None else tall_block("v0", self.start, op),
            locked=None if self.locked is None else tall_block("orthogonal_to", self.locked, op),
            preconditioner=None if preconditioner is None else preconditioner_for(preconditioner, op),
            checkpoint=checkpoint_for(options["checkpoint"], options["checkpoint_interval"], self.processes),
            time_limit=positive("time_limit", options["time_limit"]),
            begin_s=self.begin_s,
            dtype=None if self.single is None else self.single.name,
            may_be_dense=(
                method in ("auto", "dense")
                and self.penalties is None  # which a tridiagonal form has again
                and not (self.corrects or self.OPinv is not None)
                and fits_dense(op)
            ),
            **{name: options[name] for name in PASSED_ON},
        )

    def _takes_double(self, op: Operator) -> bool:
        """Check whether a matrix in single precision is solved for in double precision.

        Steps of short columns take fewer calls there, and then a third of the time. In the other cases
        matrices are factorised. Where eigenvalues are counted, many shifts would be too near one of them for
        factors in single precision, and a shift that is an eigenvalue would be moved past others.
        """
        options, is_shifted = self.options, self.sigma is not None
        always = self.interval is not None or self.penalties is not None
        always |= self.transforms and is_shifted and self.mode == "normal"
        is_end = not self.transforms and (not is_shifted or self.predicted_s is not None)
        is_short = op.device == "cpu" and op.shape[0] <= SHORT_ROWS
        mass = self.M if self.penalties is None else None
        is_free = mass is None and self.has_none("OPinv", "preconditioner", "jd_options")
        is_free &= options["method"] in ("auto", "lanczos")
        is_single = op.dtype.char in DOUBLE and op.layout is None
        return (always or (is_end and is_short)) and is_free and is_single and is_explicit(self.A)

    def scale(self) -> Scaling:
        """Check the matrices, and scale them with the numbers that belong to them."""
        options, sigma, mode, interval, op = self.options, self.sigma, self.mode, self.interval, self.op
        assert op is not None
        self._form_matrices(op)
        far, is_checked = sigma if interval is None else farthest(*interval), options["check_hermitian"]
        accuracy = self.problem.tolerance.tol, options["convergence"] == "absolute"
        norm, operands = self.problem.norm, (self.A, self.M)
        scaling = measured(op, *operands, far, mode, norm, is_checked, self.spacings, accuracy)
        with scaling.noted():
            scaled = scaling.operands(op, *operands, self.OPinv, self.device, is_checked)
        op, self.A, self.M, self.OPinv = scaled
        self.shift = None if sigma is None else scaling.value(sigma)
        self.ends = None if interval is None else (scaling.value(interval[0]), scaling.value(interval[1]))
        rounding = 0.0 if op.layout is not None else product_rounding(self.A, op.dtype)
        tolerance = replace(self.problem.tolerance, rounding=rounding)
        target = self.shift if self.unfactored else None
        self.problem = replace(self.problem, operator=op, target=target, tolerance=tolerance)
        return scaling

    def _form_matrices(self, op: Operator) -> None:
        """Form matrices that a factorisation needs, of functions of few rows."""
        options, mode, transforms = self.options, self.mode, self.transforms
        if transforms and self.processes is not None:
            raise OptionError(
                f"sigma: method {options['method']!r} with which={self.which!r} factorises A - sigma I, "
                "which is not available for rows in several processes; use which='LM' and method='auto', "
                "'jd' or 'filter'."
            )
        if not transforms and self.interval is None:
            return
        if options["Minv"] is not None:
            self.M = as_operator(self.M)  # which is not factorised
        elif self.M is not None:
            self.M = matrix_of("M", self.M, op)
        is_factorised = transforms and self.sigma is not None and self.OPinv is None and mode != "distance"
        if mode in ("buckling", "reciprocal") or (is_factorised and not self.corrects):
            self.A = matrix_of("A", self.A, op)

    def _formed(self) -> StandardForm:
        from .transform.standard_form import standard_form

        op, options = cast(Operator, self.problem.operator), self.options
        if self.interval is None:
            at, how = (None, "jd") if self.unfactored else (self.shift, options["method"])
            given = at, self.OPinv, self.mode
            return standard_form(op, self.A, self.M, *given, Minv=options["Minv"], k=self.pairs, method=how)
        try:
            return standard_form(op, self.A, self.M, None, method="interval")
        except SingularError:
            if not (self.problem.may_be_dense and op.device == "cpu"):
                raise
            finite = [end for end in cast(tuple[float, float], self.ends) if math.isfinite(end)] or [0.0]
            return standard_form(op, self.A, self.M, sum(finite) / len(finite))  # for dense LAPACK


def called(given: Mapping[str, Any], begin_s: float) -> Call:
    """Check the arguments of `eigsh` by name, and convert arrays and functions of torch and JAX.

    A function A has their device and type. Rows of A are split over processes, if there are several.
    """
    A, M, options = given["A"], given["M"], {name: plain(value) for name, value in given.items()}
    check(options)
    options |= {name: whole(name, options[name]) for name in SIZES if options[name] is not None}
    k, sigma, which, mode, interval = (options[name] for name in ("k", "sigma", "which", "mode", "interval"))
    device, dtype, like, comm = (options[name] for name in ("device", "dtype", "like", "comm"))
    interval = None if interval is None else ends(interval)
    if k is not None:
        k = whole("k", k) if interval is None else integer("k", k, 0)
    caller = ArrayKind.of_caller(A) if like is None else ArrayKind.of(like)
    if caller is not None and is_function(A):
        device = caller.device if device is None else device
        dtype = caller.dtype if dtype is None else dtype
    spacings = spacing(A), spacing(M)
    others = (options[name] for name in ("OPinv", "preconditioner", "v0", "orthogonal_to"))
    A, M, OPinv, preconditioner, start, locked = natively(caller, A, M, *others)
    stays = device is None or (isinstance(device, str) and device == "cpu")
    matrix = matrix_on_host(A) if stays and comm is None else None
    applied, A = (None, A) if matrix is None else (A, matrix)
    needed = {"M": M, "OPinv": OPinv, "like": like, "interval": interval}
    by_products = sigma is None and which != "SM" and options["method"] in ("auto", "lanczos", "filter")
    by_products &= mode == "normal" and all(value is None for value in (*needed.values(), preconditioner))
    kind = {"shape": options["shape"], "dtype": dtype, "device": device, "mode": mode}
    A = split(A, comm, **kind, by_products=by_products, **needed)
    processes = processes_of(A, comm)
    sigma = None if sigma is None else real("sigma", sigma, "a finite number", math.isfinite)
    own = {"sigma": sigma, "mode": mode} | ({"which": which} if interval is None else {})
    if which == "SM":  # the largest values of another mode
        at = 0.0 if sigma is None else -sigma if mode == "cayley" else sigma
        mode, sigma, which = mode if sigma is None else SMALLEST[mode], at, "LM"
    matrices = caller, applied, A, M, OPinv, preconditioner, start, locked, device, dtype, spacings, processes
    return Call(*matrices, options, begin_s, k, interval, mode, sigma, which, own)


def solved(call: Call) -> EigenResult:
    """Plan a call, scale its problem, solve it, and return the result for the matrices that it is given.

    The rows of penalties are scaled; where they divide the spectrum, the problem becomes several.
    """
    pairs = call.pairs if call.interval is None else call.k
    request = Request(pairs, cast(Selection, call.which), call.sigma, call.interval)
    penalties, requests = _penalties(call, request)
    if penalties is not None and requests != [request]:
        path = call.options["checkpoint"]

        def part(request: Request, name: str) -> EigenResult:
            names = ("k", "which", "sigma", "interval")
            others = {name: getattr(request, name) for name in names}
            others["checkpoint"] = None if path is None else f"{path}.{name}"
            return solved(called({**call.options, **others}, call.begin_s))

        return solve_in_parts(request, requests, penalties.given, part).with_info(**call.own)
    if penalties is not None:
        device = device_of(call.A, call.device)
        call.home = None if device == "cpu" else device
        call.A, call.M, call.applied, call.device = penalties.A, penalties.M, None, None
        call.penalties = penalties
    plan = call.planned()
    warn_of_processes(plan, call.op)
    with _first_kernels(call.problem, plan.options):
        return _solved_by(call)


def _first_kernels(problem: Problem, options: IterationOptions | None) -> AbstractContextManager[None]:
    """Compile what an iteration on a GPU begins with, while the matrix is checked."""
    if options is None or options.method not in ("lanczos", "filter"):
        return nullcontext()
    b = options.block_size
    return precompiled(
        "begin", cast(Operator, problem.operator), b=b, capacity=min(options.ncv + b, problem.n)
    )


def _solved_by(call: Call) -> EigenResult:
    given, processes, interval = call.A, call.processes, call.interval
    scaling = call.scale()
    is_shown = call.options["progress"] and (processes is None or processes.rank == 0)
    shown = progress_bar(call.problem.callback) if is_shown else nullcontext(call.problem.callback)
    with scaling.noted(), shown as callback:
        tol = call.problem.tolerance.tol
        call.problem = scaling.problem(replace(call.problem, callback=callback))
        result = run_stages(call)
        if interval is not None:
            result = result.with_info(interval=[end if math.isfinite(end) else None for end in interval])
        if call.single is not None:
            result = _rounded(result, call.problem, call.M, call.single)
        examined = scaling.examined(result, cast(Operator, call.problem.operator), call.A)
        result = examined.result(result, tol)
        if call.penalties is not None:
            result = call.penalties.result(result)
    if result.info["stopped"] == "converged" and not result.converged.all():
        result = result.with_info(stopped="stagnated")  # transformed pairs converged, not these
    result = result.with_info(**call.own, plan=call.plan)
    if processes is not None:
        result = result.with_info(processes=shares(given))
    if call.home is not None:
        X = BlockVector(result.eigenvectors).to_device(call.home)
        why = f"{result.info['why']}; on the host, which takes less time than {X.device}"
        values = array_namespace(X.array).asarray(result.eigenvalues)
        result = replace(result.with_info(why=why), eigenvalues=values, eigenvectors=X.array)
    if call.problem.checkpoint is not None and result.info["stopped"] == "converged":
        call.problem.checkpoint.remove()
    return result


def _penalties(call: Call, request: Request) -> tuple[Penalties | None, list[Request]]:
    """Look for penalties in the matrix of a problem that factors may solve, and divide what is asked for.

    Where some remain that leave few digits of wanted values, this is a warning, and an error for an interval
    if they leave none: its values would be counted by their errors.
    """
    if not may_have_penalties(call.A):
        return None, [request]
    options, penalties = call.options, Penalties.of(call.A, call.M)
    if penalties is not None and penalties.are_far(request):
        return None, [request]
    others = "OPinv", "preconditioner", "orthogonal_to", "Minv", "jd_options", "norm", "comm"
    is_usual = call.has_none(*others) and options["precision"] != "mixed" and call.mode == "normal"
    is_usual &= options["method"] in ("auto", "lanczos")
    is_usual &= request.sigma is None or request.which == "LM"
    if penalties is not None and is_usual and (requests := penalties.requests(request)) is not None:
        return penalties, requests
    are_largest = request == Request(request.k, "LM")
    if penalties is None and are_largest:
        return None, [request]
    wanted = _wanted(request, call.mode)
    if (text := lost_digits(call.A, wanted, LOST if penalties is None else 0.0)) is not None:
        if request.interval is not None and lost_digits(call.A, wanted, LOST):
            raise OptionError(f"interval: {text}.")
        warnings.warn(f"eigsh: {text}.", ConvergenceWarning, stacklevel=5)
    return None, [request]


def _wanted(request: Request, mode: str) -> tuple[float, ...]:
    """Return values near which eigenvalues are wanted, infinite ones for the ends of the spectrum."""
    if request.interval is not None:
        return request.interval
    if request.sigma is not None and (request.which, mode) == ("LM", "normal"):
        return (request.sigma,)
    is_one = request.sigma is None and request.which in ("SA", "LA")
    return (-math.inf if request.which == "SA" else math.inf,) if is_one else (-math.inf, math.inf)


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
