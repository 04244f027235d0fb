"""A call of `eigsh`: its checked arguments, the plan for them, the scaled problem, and its solution back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from blockvec import BlockVector, Operator, array_namespace, as_operator, precompiled
from blockvec.errors import OptionError
from blockvec.interchange import ArrayKind, is_function
from blockvec.system.scalars import plain

from . import arguments
from .blocks import column_factors, is_explicit, to_host
from .costs import Rival, dense_is_faster, fits_dense, is_dense, is_full
from .planning import Plan, placed, plan_of, warn_of_processes
from .problem import Problem, Selection, Tolerance, asks_for_corrections
from .result import EigenResult, SingularError
from .runtime.processes import processes_of, shares, split
from .sizes import SHORT_ROWS
from .stages.dense import matrix_of
from .stages.run import run_stages, solve
from .transform.scaling import Scaling, may_have_penalties, measured, product_rounding

if TYPE_CHECKING:
    from .transform.penalties import Penalties
    from .transform.standard_form import StandardForm

# The modes whose largest values belong to the smallest ones of each mode; that of Cayley changes its shift.
SMALLEST = {"normal": "distance", "buckling": "reciprocal", "cayley": "cayley"}
DOUBLE = {"f": np.dtype(np.float64), "F": np.dtype(np.complex128)}
SIZES = ("block_size", "ncv", "maxiter")
# Options that a problem has as they are given.
PASSED_ON = ("verify", "callback", "method", "precision", *SIZES, "jd_options")


class Call:
    """A call of `eigsh`: its arguments as blockvec takes them, then its plan and the problem to solve.

    Arguments are checked; arrays and functions of torch and JAX are converted. A function A has their device
    and type. Rows of A are split over processes, if there are several. A sparse operator of the host is the
    matrix `A`, which may be factorised, and the operator `applied`.
    """

    op: Operator | None = None
    home: str | None = None  # device of a result that the host computes
    penalties: Penalties | None = None
    predicted_s: tuple[float, float] | None = None  # of an iteration at an end, and of factors
    single: Any = None  # the type of a matrix in single precision that is solved for in double precision
    narrow: Operator | None = None  # the same function in single precision, whose range limits the scale
    transforms: bool  # to another form, by a factorisation or operators in its place
    unfactored: bool  # whether sigma is a target of iterations without a factorisation
    problem: Problem
    plan: Plan
    shift: float | None = None  # sigma and the interval of the scaled problem
    ends: tuple[float, float] | None = None
    made: StandardForm | None = None

    def __init__(self, given: Mapping[str, Any], begin_s: float) -> None:
        A, M, options = given["A"], given["M"], {name: plain(value) for name, value in given.items()}
        arguments.check(options)
        sizes = {name: options[name] for name in SIZES if options[name] is not None}
        options |= {name: arguments.integer(name, size) for name, size in sizes.items()}
        self.options, self.begin_s = options, begin_s  # all arguments as they are given
        k, sigma, which, mode = itemgetter("k", "sigma", "which", "mode")(options)
        interval, like, comm = itemgetter("interval", "like", "comm")(options)
        self.device, self.dtype = options["device"], options["dtype"]
        self.interval = interval = None if interval is None else arguments.ends(interval)
        self.k: Any  # pairs, or the most that are accepted of an interval
        if interval is None:
            self.k = 6 if k is None else arguments.integer("k", k)
        else:
            self.k = None if k is None else arguments.integer("k", k, 0)
        self.caller = caller = ArrayKind.of_caller(A) if like is None else ArrayKind.of(like)
        if caller is not None and is_function(A):
            self.device, self.dtype = self.device or caller.device, self.dtype or caller.dtype
        self.spacings = arguments.spacing(A), arguments.spacing(M)  # spacings of numbers as given
        others = itemgetter("OPinv", "preconditioner", "v0", "orthogonal_to")(options)
        A, self.M, self.OPinv, self.preconditioner, *blocks = arguments.natively(caller, A, M, *others)
        self.start, self.locked = blocks
        stays = self.device is None or (isinstance(self.device, str) and self.device == "cpu")
        matrix = arguments.matrix_on_host(A) if stays and comm is None else None
        self.applied: Any = None if matrix is None else A
        A = A if matrix is None else matrix
        needed = {"M": self.M, "OPinv": self.OPinv, "like": like, "interval": interval}
        by_products = sigma is None and which != "SM" and options["method"] in ("auto", "lanczos", "filter")
        by_products &= mode == "normal" and self.has_none(*needed, "preconditioner")
        kind = {"shape": options["shape"], "dtype": self.dtype, "device": self.device, "mode": mode}
        self.A: Any = split(A, comm, **kind, by_products=by_products, **needed)
        self.processes = processes_of(self.A, comm)
        sigma = None if sigma is None else arguments.real("sigma", sigma)
        # Entries of `info` that are the caller's, and not what a stage asked for.
        self.own = {"sigma": sigma, "mode": mode}
        self.own |= {"which": which, "k": self.k} if interval is None else {}
        if which == "SM":  # the largest values of another mode
            at = 0.0 if sigma is None else -sigma if mode == "cayley" else sigma
            mode, sigma, which = mode if sigma is None else SMALLEST[mode], at, "LM"
        self.mode: str = mode
        self.sigma: float | None = sigma
        self.which: Selection = which
        # Whether A alone is given, and the values as they are or around sigma.
        self.is_plain = mode == "normal" and self.has_none("M", "OPinv")
        self.corrects = asks_for_corrections(*itemgetter("method", "preconditioner", "jd_options")(options))

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

        form, is_here = self.form, problem.operator.device == "cpu"
        if problem.method == "dense" and is_here and form.blocks is not BlockVector:  # has no dense form
            form = self.made = self._formed(on_vectors=False)
        return solve_transformed(form, problem)

    def has_none(self, *names: str) -> bool:
        """Check that none of some arguments is given."""
        return all(self.options[name] is None for name in names)

    def planned(self) -> Plan:
        """Plan the solve: nothing is applied."""
        options, method = self.options, "jd" if self.corrects else self.options["method"]
        is_shifted, is_usual = self.sigma is not None, (self.mode, self.which) == ("normal", "LM")
        is_usual &= method == "auto" and self.OPinv is None
        promises = options["verify"] == "always" or options["precision"] == "mixed"  # which hold for a method
        is_free = is_usual and not promises and self.penalties is None and self.has_none("M", *arguments.HOW)
        if is_shifted and is_free:  # the nearest values, by whichever method
            self.op = self._operator()
            if self._is_small_matrix(self.op):
                method = "dense"
            else:
                from .stages.end import may_be_quick

                self.predicted_s = may_be_quick(self.A, self.op, self.k)
        device = arguments.device_of(self.A, self.device)
        moves, self.transforms, self.unfactored = placed(self, device, method)
        if device == "cpu" or moves:
            self.A, self.M = arguments.on_host(self.A), arguments.on_host(self.M)
        if moves:  # its entries are read there
            self.device, self.home, self.op = "cpu", device, None
        op = self.op = self._operator() if self.op is None else self.op
        is_formed = is_explicit(self.A, self.M) or (op.device == "cpu" and fits_dense(op))
        self.unfactored |= self.transforms and is_shifted and is_usual and not is_formed
        if options["precision"] == "mixed":
            is_end = not is_shifted and self.has_none("M", "interval", "preconditioner", "jd_options")
            arguments.check_precision(op, options["method"], is_plain=is_end)
        if self._takes_double(op):
            self.single, wide = op.dtype, DOUBLE[op.dtype.char]
            if is_explicit(self.A):
                self.A = self.A.astype(wide)
            else:
                self.narrow, self.A = op, _widened(op, wide)
                self.spacings = float(np.finfo(op.dtype).eps), self.spacings[1]
            op = self.op = as_operator(self.A, device=self.device)
        self.problem = self._problem(op)
        self.plan = plan_of(self)
        return self.plan

    def _operator(self) -> Operator:
        """Make A an operator; a function has the shape and the type of M, if none are given."""
        similar, shape = None if self.OPinv is None else self.M, self.options["shape"]
        shape = getattr(similar, "shape", None) if shape is None else shape
        dtype = getattr(similar, "dtype", None) if self.dtype is None else self.dtype
        A = self.A if self.applied is None else self.applied
        op = arguments.square(as_operator(A, shape=shape, dtype=dtype, device=self.device))
        if self.caller is not None:  # refuses before the solve what it would after
            self.caller.share(op.backend.empty((1, 1), op.dtype.name))
        return op

    def _is_small_matrix(self, op: Operator) -> bool:
        """Check whether dense LAPACK takes less time for values around sigma than factors with their solves.

        Full matrices of 330 to 600 rows took 1.1 to 1.7 times as long by factors. The options that only
        iterations have are honoured.
        """
        is_here = op.device == "cpu" and op.layout is None and op.dtype.char not in DOUBLE
        is_small = is_here and is_explicit(self.A) and fits_dense(op)
        if not (is_small and self.has_none("v0", "block_size", "checkpoint")):
            return False
        rival: Rival = "full" if is_full(op) else "factors"
        return dense_is_faster(op.shape[0], self.k, op.device, rival) is not None

    def _problem(self, op: Operator) -> Problem:
        options, preconditioner, file = self.options, self.preconditioner, self.options["checkpoint"]
        tol = arguments.real("tol", options["tol"], "a number of at least 0", 0.0)
        seed = 0 if options["rng"] is None and self.start is not None else options["rng"]
        dtype = op.dtype if self.single is None else self.single
        if preconditioner is not None:
            preconditioner = arguments.preconditioner_for(preconditioner, op)
        # A tridiagonal form has penalties again.
        may_be_dense = options["method"] in ("auto", "dense") and self.penalties is None
        may_be_dense &= not (self.corrects or self.OPinv is not None)
        return Problem(
            operator=op,
            k=6 if self.k is None else self.k,
            which=self.which,
            tolerance=Tolerance(tol, options["convergence"], float(np.finfo(dtype).eps) / 2),
            rng=arguments.generator(seed, self.processes),
            target=self.sigma if self.unfactored else None,
            norm=arguments.positive("norm", options["norm"]),
            start=None if self.start is None else arguments.tall_block("v0", self.start, op),
            locked=None if self.locked is None else arguments.tall_block("orthogonal_to", self.locked, op),
            preconditioner=preconditioner,
            checkpoint=arguments.checkpoint_for(file, options["checkpoint_interval"], self.processes),
            time_limit=arguments.positive("time_limit", options["time_limit"]),
            begin_s=self.begin_s,
            dtype=None if self.single is None else self.single.name,
            may_be_dense=may_be_dense and fits_dense(op),
            **{name: options[name] for name in PASSED_ON},
        )

    def _takes_double(self, op: Operator) -> bool:
        """Check whether a matrix or function in single precision is solved for in double precision.

        Steps of short columns take fewer calls there, and then a third of the time. In the other cases
        matrices are factorised. Where eigenvalues are counted, many shifts would be too near one of them for
        factors in single precision, and a shift that is an eigenvalue would be moved past others.
        """
        if op.dtype.char not in DOUBLE or op.layout is not None:
            return False
        is_shifted, mass = self.sigma is not None, self.M if self.penalties is None else None
        is_free = mass is None and self.has_none("OPinv", "preconditioner", "jd_options")
        if not is_free or self.options["method"] not in ("auto", "lanczos"):
            return False
        is_matrix = is_explicit(self.A)
        if not is_matrix and (hasattr(op, "nnz") or is_dense(op)):
            return False
        if self.interval is not None or self.penalties is not None:
            return is_matrix
        if self.transforms and is_shifted and self.mode == "normal":
            return is_matrix
        is_end = not self.transforms and (not is_shifted or self.predicted_s is not None)
        return is_end and op.device == "cpu" and op.shape[0] <= SHORT_ROWS

    def scale(self) -> Scaling:
        """Check the matrices, and scale them with the numbers that belong to them.

        Those of functions of few rows that a factorisation needs are formed.
        """
        options, sigma, interval, op = self.options, self.sigma, self.interval, cast(Operator, self.op)
        if self.transforms and self.processes is not None:
            raise OptionError(
                f"sigma: method {options['method']!r} with which={self.which!r} factorises A - sigma I, "
                "which is not available for rows in several processes; use which='LM' and method='auto', "
                "'jd' or 'filter'."
            )
        if self.M is not None and options["Minv"] is not None:
            self.M = as_operator(self.M)  # which is not factorised
        elif self.M is not None:
            self.M = matrix_of("M", self.M, op)
        is_factorised = self.transforms and sigma is not None and self.OPinv is None and not self.corrects
        if self.mode in ("buckling", "reciprocal") or (is_factorised and self.mode != "distance"):
            self.A = matrix_of("A", self.A, op)
        far, is_checked = sigma, options["check_hermitian"]
        if interval is not None:
            far = arguments.farthest(*interval)
        accuracy = self.problem.tolerance.tol, options["convergence"] == "absolute"
        given = far, self.mode, self.problem.norm, is_checked, self.spacings, accuracy
        scaling = measured(op if self.narrow is None else self.narrow, self.A, self.M, *given)
        with scaling.noted():
            scaled = scaling.operands(op, self.A, self.M, self.OPinv, self.device, is_checked)
        op, self.A, self.M, self.OPinv = scaled
        self.shift = None if sigma is None else scaling.value(sigma)
        self.ends = None if interval is None else (scaling.value(interval[0]), scaling.value(interval[1]))
        rounding = 0.0 if op.layout is not None else product_rounding(self.A, op.dtype)
        tolerance = replace(self.problem.tolerance, rounding=rounding)
        target = self.shift if self.unfactored else None
        self.problem = replace(self.problem, operator=op, target=target, tolerance=tolerance)
        return scaling

    def _formed(self, on_vectors: bool | None = None) -> StandardForm:
        from .transform.standard_form import standard_form

        op, options = cast(Operator, self.problem.operator), self.options
        if self.interval is None:
            how: dict[str, Any] = {"Minv": options["Minv"], "k": self.k, "on_vectors": on_vectors}
            how["method"] = "jd" if self.unfactored else options["method"]
            at = None if self.unfactored else self.shift
            return standard_form(op, self.A, self.M, at, self.OPinv, self.mode, **how)
        try:
            return standard_form(op, self.A, self.M, None, method="interval")
        except SingularError:
            if not (self.problem.may_be_dense and op.device == "cpu"):
                raise
            finite = [end for end in cast(tuple[float, float], self.ends) if math.isfinite(end)] or [0.0]
            at = sum(finite) / len(finite)
            return standard_form(op, self.A, self.M, at, on_vectors=False)  # for dense LAPACK


def solved(call: Call) -> EigenResult:
    """Plan a call, scale its problem, solve it, and return the result for the matrices that it is given.

    Rows of penalties are scaled, or make the problem several. What an iteration on a GPU begins with is
    compiled while the matrix is checked.
    """
    if may_have_penalties(call.A):
        from .transform.penalties import taken_apart

        result = taken_apart(call, solved)
        if result is not None:
            return result
    sizes = call.planned().options
    if call.processes is not None:
        warn_of_processes(call.plan, call.op)
    if sizes is None or sizes.method not in ("lanczos", "filter"):
        return _solved_by(call)
    b, n = sizes.block_size, call.problem.n
    with precompiled("begin", cast(Operator, call.op), b=b, capacity=min(sizes.ncv + b, n)):
        return _solved_by(call)


def _solved_by(call: Call) -> EigenResult:
    given, processes, interval = call.A, call.processes, call.interval
    scaling = call.scale()
    is_shown = call.options["progress"] and (processes is None or processes.rank == 0)
    shown: AbstractContextManager[Any] = nullcontext(call.problem.callback)
    if is_shown:
        from .runtime.progress import progress_bar

        shown = progress_bar(call.problem.callback)
    with scaling.noted(), shown as callback:
        tol = call.problem.tolerance.tol
        call.problem = scaling.problem(replace(call.problem, callback=callback))
        result = run_stages(call)
        if interval is not None:
            result = result.with_info(interval=[end if math.isfinite(end) else None for end in interval])
        if call.single is not None:
            result = _rounded(result, call.problem, call.M, call.single)
        result = scaling.result(result, tol, cast(Operator, call.problem.operator), call.A)
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


def _widened(op: Operator, dtype: Any) -> Operator:
    """Make an operator of double precision from the products of one in single precision."""

    def product(X: Any) -> Any:
        Y = np.empty(X.shape, op.dtype, order="F")
        op.apply_columns(X.astype(op.dtype, order="F"), Y)
        return Y.astype(dtype)

    return as_operator(product, shape=op.shape, dtype=dtype, order="A")


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
