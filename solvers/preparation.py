"""From the arguments of `eigsh` to a problem that is ready to be solved, and from its solution back."""

from __future__ import annotations

import functools
import logging
import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from blockvec import BlockVector, Operator, as_operator
from blockvec.errors import OptionError
from blockvec.interchange import ArrayKind, is_function
from blockvec.parallel import Communicator

from .arguments import (
    check_choices,
    check_combination,
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
from .auto_dense import fits_dense, matrix_of, solve_densely, solve_or_densify
from .auto_shift_invert import is_factorable_pair, solve_or_factorise, solve_pair
from .blocks import column_factors, to_host
from .choice import DENSE_ROWS_AROUND, DENSE_ROWS_AROUND_PER_PAIR
from .column_block import SHORT_ROWS
from .combine import one_after_other, staged
from .costs import is_full
from .drivers import solve
from .iterations.rayleigh_ritz import Selection, Tolerance
from .placement import Placement
from .problem import Problem, asks_for_corrections
from .result import ConvergenceWarning, EigenResult
from .runtime.processes import processes_of, refuse_factorisation, same_generator, shares, split
from .runtime.progress import logger, progress_bar
from .transform.penalties import Penalties, lost_digits
from .transform.scaling import Scaling, measured, product_rounding

if TYPE_CHECKING:
    from .auto_end import Attempt
    from .transform.standard_form import StandardForm

# The modes whose largest values belong to the smallest ones of each mode; that of Cayley changes its shift.
SMALLEST = {"normal": "distance", "buckling": "reciprocal", "cayley": "cayley"}
DOUBLE = {"f": np.dtype(np.float64), "F": np.dtype(np.complex128)}
# Distances of other shifts, in rounding errors, where a value is nearer than `SPOILING` ||A - sigma M||.
FURTHER_MOVES, SPOILING = (3e5, 1e7), 1e-9
SIZES = ("block_size", "ncv", "maxiter")
EXTRA = 2  # pairs: the first number of further ones around a shift that was moved
# Options that a problem has as they are given.
PASSED_ON = ("verify", "callback", "method", "precision", *SIZES, "jd_options")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A scaled problem with its matrices, and what its result needs on the way back to the caller."""

    problem: Problem
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
                return self._after(result, self.attempt.otherwise())
            result = self.attempt.beside.described(result)
        result = result.with_info(**self.given)
        if self.processes is not None:
            result = result.with_info(processes=shares(self.rows))
        if self.home is not None:
            result = result.moved(self.home)
        if is_first and logger.isEnabledFor(logging.INFO):
            logger.info(result.summary())
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
        return solve_or_densify(problem, lambda: _iterate(problem, form, A, M, self.shift), densely)

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


def _iterate(problem: Problem, form: StandardForm | None, A: Any, M: Any, shift: float | None) -> EigenResult:
    """Solve a problem as it is or in its standard form; with method "auto" perhaps by shift-invert."""
    are_explicit = is_explicit(A) and (M is None or is_explicit(M))
    may_factorise = problem.method == "auto" and not problem.asks_for_corrections and are_explicit
    if form is None:
        return solve_or_factorise(problem, A) if may_factorise else solve(problem)
    from .transform.solution import AT_THE_LIMIT, solve_proven, solve_transformed
    from .transform.spectral_map import SpectralMap
    from .transform.standard_form import standard_form

    unrestricted = not form.is_shifted and problem.locked is None
    if may_factorise and unrestricted and is_factorable_pair(form.A, A, M, problem.which):
        return solve_pair(form, A, M, problem)
    may_prove = problem.which == "LM" and problem.locked is None and form.factors is not None
    method = solve_proven if may_prove and problem.verify == "always" else solve_transformed
    result = method(form, problem)
    for distance in FURTHER_MOVES:
        # A value so near the shift that rounding errors of its solves spoil the other pairs.
        is_over = result.converged.all() or result.info["stopped"] not in AT_THE_LIMIT
        if is_over or problem.may_be_dense or problem.is_late():
            break
        if shift is None or form.factors is None or form.factors.nearest > SPOILING:
            break
        sigma = shift - distance * form.factors.shift_rounding(shift)
        form = standard_form(form.A, A, M, sigma, factors=form.factors, k=problem.k, method=problem.method)
        again = replace(staged(problem, f"moved by {distance:g}"), start=None)
        seen = SpectralMap(shift, form.map.mode)
        result = one_after_other(result, method(form, again), problem.which, seen)
        result = result.with_info(why=f"{result.info['why']}; {shift:g} is too near an eigenvalue")
    if shift is None or form.factors is None or form.map.sigma == shift or problem.which != "LM":
        return result
    return _nearest(result, shift, form, problem, method)


def _nearest(
    result: EigenResult,
    shift: float,
    form: StandardForm,
    problem: Problem,
    solve_for: Callable[[StandardForm, Problem], EigenResult],
) -> EigenResult:
    """Keep the pairs nearest to a shift, of those nearest to the one that it was moved to.

    More of these are computed until all others are known to be further away.
    """
    moved, most, extra = cast(float, form.map.sigma), form.operator.shape[0] - problem.n_locked, EXTRA
    while True:
        values = to_host(result.eigenvalues).astype(np.float64)
        distances = np.abs(values - shift)
        kept = np.sort(np.argsort(distances, kind="stable")[: problem.k])
        reach = float((np.abs(values - moved) + result.limits).max()) - abs(shift - moved)
        is_complete = distances[kept].max() <= reach or len(values) >= most
        if is_complete or result.info["stopped"] != "converged":
            missing = max(result.info["missing"], 0 if is_complete else 1)  # those that may be nearer
            return result.part(kept).with_info(k=problem.k, missing=missing)
        more = replace(staged(problem, f"{extra} more"), k=min(problem.k + extra, most))
        result = one_after_other(result, solve_for(form, replace(more, start=None)), "LM", form.map)
        extra *= 2


def check(M: Any, sigma: Any, which: str, options: Mapping[str, Any]) -> None:
    """Refuse options of `eigsh` that are unknown, not available, or do not go together."""

    def named(*names: str) -> dict[str, Any]:
        return {name: options[name] for name in names}

    choices = named("mode", "method", "convergence", "on_unconverged", "verify", "precision")
    check_choices(options["callback"], which=which, **choices)
    together = {"which": which, "sigma": sigma} | named("method", "mode", "Minv", "OPinv")
    together |= named("preconditioner", "jd_options")
    if options["interval"] is not None:
        from .interval import check_with_interval

        check_with_interval(**together, **named("v0", "ncv", "maxiter", "orthogonal_to"))
        ends(options["interval"])
    check_combination(M=M, **together)


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
) -> Prepared:
    """Check and convert the arguments of `eigsh`: place the problem on a device, scale and transform it.

    Values nearest to `sigma` may be those of an end of the spectrum.
    """
    check(M, sigma, which, options)
    k = None if k is None else whole("k", k)
    sizes = {name: options[name] for name in SIZES if options[name] is not None}
    options = {**options, **{name: whole(name, size) for name, size in sizes.items()}}
    pairs = 6 if k is None else k
    interval = None if options["interval"] is None else ends(options["interval"])
    given = Operands.of(A, M, options)
    processes = given.split(options, interval)
    rows = given.A
    checkpoint = checkpoint_for(options["checkpoint"], options["checkpoint_interval"], processes)
    seed = 0 if options["rng"] is None and given.start is not None else options["rng"]
    rng = same_generator(generator(seed), processes)
    sigma = None if sigma is None else real("sigma", sigma, "a finite number", math.isfinite)
    own = {"sigma": sigma, "mode": options["mode"]} | ({"which": which} if interval is None else {})
    mode, sigma, which = _by_largest(options["mode"], sigma, which)
    method = options["method"]
    corrects = asks_for_corrections(method, given.preconditioner, options["jd_options"])
    tol = real("tol", options["tol"], "a number of at least 0", lambda x: 0 <= x < math.inf)
    op = beside = attempt = home = None
    is_small = False
    penalties = _penalties(
        given,
        pairs,
        _wanted(which, sigma, interval, mode),
        options,
        is_largest=sigma is None and interval is None and which == "LM",
    )
    if penalties is not None:
        device = device_of(given.A, given.device)
        home = None if device == "cpu" else device
        given.A, given.M, given.applied, given.device = penalties.A, penalties.M, None, None
        if sigma is None and interval is None and (shift := penalties.shift_beyond(which)) is not None:
            penalties, sigma, which = replace(penalties, end=which), shift, "LM"
    elif may_be_end and sigma is not None:
        from .auto_end import Attempt, asks_for_nearest, look

        if asks_for_nearest(which, mode, given.M, options):
            op = given.operator()
            is_small = _is_small_matrix(given.A, op, pairs, options)
            beside = None if is_small else look(given.A, op, sigma, pairs)
        if beside is not None and beside.end is not None:
            given_as = A, k, M, sigma, which, options, begin_s
            otherwise = functools.partial(prepare, *given_as, may_be_end=False)
            attempt = Attempt(beside, otherwise, options["callback"])
            sigma, which = None, beside.end
            checkpoint = None if checkpoint is None else checkpoint.stage("end")
    placement = Placement.of(
        *(given.A, given.M, device_of(given.A, given.device), sigma),
        k=pairs,
        method="jd" if corrects else "dense" if is_small else method,
        mode=mode,
        is_given=given.OPinv is not None,
        needs_host=given.Minv is not None,
        has_interval=interval is not None,
    )
    transforms, unfactored = placement.transforms, placement.unfactored
    if transforms:
        refuse_factorisation(processes, method)
    if placement.is_on_host:
        given.move_to_host(placement.home)
    if op is None or placement.home is not None:
        op = given.operator()
    if options["precision"] == "mixed":
        others = given.M, sigma, interval, given.OPinv, given.preconditioner, options["jd_options"]
        check_precision(op, method=method, is_plain=all(other is None for other in others))
    if transforms or interval is not None:
        given.form_matrices(op, mode, is_factorised=transforms and not (sigma is None or corrects))
    is_usual = given.OPinv is None and (method, mode, which) == ("auto", "normal", "LM")
    if transforms and is_usual and not given.are_explicit:
        unfactored = unfactored or sigma is not None
    single = None
    factorises = transforms and sigma is not None and mode == "normal"
    is_end = not transforms and sigma is None
    always = factorises or interval is not None
    if penalties is not None:
        factorises = always = True
    if (factorises or is_end) and _takes_double(op, given, options, penalties, always=always):
        single, given.A = op.dtype, given.A.astype(DOUBLE[op.dtype.char])
        op = as_operator(given.A)
    norm, far = positive("norm", options["norm"]), sigma if interval is None else farthest(*interval)
    is_checked = options["check_hermitian"]
    accuracy = tol, options["convergence"] == "absolute"
    scaling = measured(op, given.A, given.M, far, mode, norm, is_checked, given.spacings, accuracy)
    if beside is not None:
        scaling = scaling.after(beside.columns)
    shift, form = None if sigma is None else scaling.value(sigma), None
    with scaling.noted():
        operands = op, given.A, given.M, given.OPinv
        op, A, M, OPinv = scaling.operands(*operands, given.device, is_checked)
        if transforms:
            from .transform.standard_form import standard_form

            at = None if unfactored else shift
            how = "jd" if unfactored else method
            form = standard_form(op, A, M, at, OPinv, mode, Minv=given.Minv, k=pairs, method=how)
    problem = Problem(
        operator=op,
        k=pairs,
        which=cast(Selection, which),
        tolerance=Tolerance(
            tol,
            options["convergence"],
            float(np.finfo(single or op.dtype).eps) / 2,
            0.0 if op.layout is not None else product_rounding(A, op.dtype),
        ),
        rng=rng,
        target=shift if unfactored else None,
        norm=norm,
        **given.blocks(op),
        checkpoint=checkpoint,
        time_limit=positive("time_limit", options["time_limit"]),
        begin_s=begin_s,
        dtype=None if single is None else single.name,
        may_be_dense=(
            method in ("auto", "dense")
            and penalties is None  # which a tridiagonal form has again
            and not (corrects or OPinv is not None)
            and fits_dense(op)
        ),
        **{name: options[name] for name in PASSED_ON},
    )
    return Prepared(
        problem=problem,
        A=A,
        M=M,
        form=form,
        scaling=scaling,
        penalties=penalties,
        mode=mode,
        sigma=sigma,
        given=own,
        shift=shift,
        attempt=attempt,
        interval=interval,
        single=single,
        most=None if k is None or interval is None else integer("k", k, 0),
        tol=tol,
        home=placement.home if home is None else home,
        processes=processes,
        rows=rows,
        caller=given.caller,
        shows_progress=options["progress"],
    )


def _is_small_matrix(A: Any, op: Operator, k: int, options: Mapping[str, Any]) -> bool:
    """Check whether dense LAPACK takes less time for values around sigma than factors with their solves."""
    if not is_explicit(A) or op.device != "cpu" or op.layout is not None or op.dtype.char in DOUBLE:
        return False
    if any(options[name] is not None for name in ("v0", "block_size", "checkpoint")) or not fits_dense(op):
        return False
    is_short = op.shape[0] <= DENSE_ROWS_AROUND + DENSE_ROWS_AROUND_PER_PAIR * k
    return is_short or (isinstance(A, np.ndarray) and is_full(op))


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
    given: Operands, k: int, wanted: tuple[float, ...], options: Mapping[str, Any], *, is_largest: bool
) -> Penalties | None:
    """Look for penalties in the matrix of a problem that factors may solve.

    Where there are some that remain, and leave no digit of `wanted` values, this is an error for an interval,
    whose values would be counted by their errors, and else a warning.
    """
    others = given.OPinv, given.Minv, given.preconditioner, given.locked, options["jd_options"]
    is_usual = all(other is None for other in (*others, options["norm"], options["comm"]))
    is_usual &= options["method"] in ("auto", "lanczos") and options["precision"] != "mixed"
    penalties = Penalties.of(given.A, given.M, wanted, k) if is_usual else None
    if penalties is None and not is_largest and (text := lost_digits(given.A, wanted)) is not None:
        if options["interval"] is not None:
            raise OptionError(f"interval: {text}.")
        warnings.warn(f"eigsh: {text}.", ConvergenceWarning, stacklevel=5)
    return penalties


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


def _by_largest(mode: str, sigma: float | None, which: str) -> tuple[str, float | None, str]:
    """Ask for the largest values of another mode where the smallest ones are wanted ("SM")."""
    if which != "SM":
        return mode, sigma, which
    if sigma is None:
        return mode, 0.0, "LM"
    return SMALLEST[mode], -sigma if mode == "cayley" else sigma, "LM"


@dataclass(slots=True)
class Operands:
    """Matrices, functions and blocks of a call as blockvec takes them, and the caller's kind of arrays.

    A sparse operator of the host is the matrix `A`, which may be factorised, and the operator `applied`.
    """

    caller: ArrayKind | None
    applied: Operator | None
    A: Any
    M: Any
    Minv: Any
    OPinv: Any
    preconditioner: Any
    start: Any
    locked: Any
    device: str | None
    shape: Any
    dtype: Any
    spacings: tuple[float, float]  # eps of the types that A and M are given in

    @classmethod
    def of(cls, A: Any, M: Any, options: Mapping[str, Any]) -> Operands:
        """Convert arrays and functions of torch and JAX; a function A has their device and type."""
        device, dtype, like = options["device"], options["dtype"], options["like"]
        caller = ArrayKind.of_caller(A) if like is None else ArrayKind.of(like)
        if caller is not None and is_function(A):
            device = caller.device if device is None else device
            dtype = caller.dtype if dtype is None else dtype
        spacings = spacing(A), spacing(M)
        others = (options["OPinv"], options["preconditioner"], options["v0"], options["orthogonal_to"])
        A, M, OPinv, preconditioner, start, locked = natively(caller, A, M, *others)
        stays = device is None or (isinstance(device, str) and device == "cpu")
        matrix = matrix_on_host(A) if stays and options["comm"] is None else None
        applied = None if matrix is None else A
        given = A if matrix is None else matrix, M, options["Minv"], OPinv, preconditioner, start, locked
        return cls(caller, applied, *given, device, options["shape"], dtype, spacings)

    def split(self, options: Mapping[str, Any], interval: Any) -> Communicator | None:
        """Split the rows of A over processes, if there are several; return these."""
        whole = {"M": self.M, "OPinv": self.OPinv, "like": options["like"], "interval": interval}
        kind = {"shape": self.shape, "dtype": self.dtype, "device": self.device, "mode": options["mode"]}
        self.A = split(self.A, options["comm"], **kind, **whole)
        return processes_of(self.A, options["comm"])

    @property
    def are_explicit(self) -> bool:
        """Whether A and M have their entries in memory."""
        return is_explicit(self.A) and (self.M is None or is_explicit(self.M))

    def move_to_host(self, home: str | None) -> None:
        """Copy the matrices to the host, which solves a problem of the device `home`, or of its own."""
        self.A, self.M = on_host(self.A), on_host(self.M)
        self.device = self.device if home is None else "cpu"

    def operator(self) -> Operator:
        """Make A an operator; a function has the shape and the type of M, if none are given."""
        similar = None if self.OPinv is None else self.M
        shape = getattr(similar, "shape", None) if self.shape is None else self.shape
        dtype = getattr(similar, "dtype", None) if self.dtype is None else self.dtype
        A = self.A if self.applied is None else self.applied
        op = square(as_operator(A, shape=shape, dtype=dtype, device=self.device))
        if self.caller is not None:  # refuses before the solve what it would after
            self.caller.share(op.backend.empty((1, 1), op.dtype.name))
        return op

    def form_matrices(self, op: Operator, mode: str, *, is_factorised: bool) -> None:
        """Form the matrices of operators that must be factorised or counted."""
        if self.Minv is not None:
            self.M = as_operator(self.M)  # which is not factorised
        elif self.M is not None:
            self.M = matrix_of("M", self.M, op)
        is_factorised = is_factorised and self.OPinv is None and mode != "distance"
        if mode in ("buckling", "reciprocal") or is_factorised:
            self.A = matrix_of("A", self.A, op)

    def blocks(self, op: Operator) -> dict[str, Any]:
        """Convert the given blocks and the preconditioner to the type and the device of an operator."""
        start = None if self.start is None else tall_block("v0", self.start, op)
        locked = None if self.locked is None else tall_block("orthogonal_to", self.locked, op)
        given = self.preconditioner
        preconditioner = None if given is None else preconditioner_for(given, op)
        return {"start": start, "locked": locked, "preconditioner": preconditioner}
