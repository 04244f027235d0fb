"""The plan of a solve: what is decided from arguments, sizes and patterns, before the first product.

It depends on the class of the device, never on free memory or the clock.
"""

from __future__ import annotations

import inspect
import math
import platform
import textwrap
import time
import warnings
from dataclasses import asdict, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import blockvec
from blockvec.errors import DeviceError, ShapeError
from blockvec.parallel import share
from blockvec.system.frozen import frozen
from blockvec.system.installation import install_command

from .arguments import integer
from .blocks import ceil_div, is_explicit
from .costs import (
    EXCHANGE_S,
    QUICK_S,
    RECEIVED,
    STEP_VECTORS,
    call_s,
    can_factorise,
    dense_is_faster,
    dense_s,
    factor_s,
    fits_dense,
    is_factorable,
    is_full,
    is_small,
    place_of,
    product_s,
    rates,
)
from .problem import IterationOptions, Problem
from .runtime.processes import largest
from .sizes import SHORT_ROWS, DescribedOperator, basis_bytes, choose_options
from .stages.dense import dense_bytes

if TYPE_CHECKING:
    from .call import Call

StageName = Literal["end", "above zero", "iterate", "shift-invert", "window", "slices", "dense"]
SLOWER = 1.2  # times: predicted times are that much apart before a call warns of processes
# Factorisation above which values around a shift are computed without one. For random graphs, where this
# matters, the prediction is some five times too high.
LONGEST_S = 600.0  # s, predicted
# Real entries of a matrix and these vectors up to which steps on the host take less time than the launches of
# their kernels on a GPU.
HOST_WORK = 40_000  # entries
HOST_PAIRS = 20  # pairs: the same up to here
LAPACK_ROWS = 256  # rows: up to here LAPACK takes as long as a GPU's, which compiles kernels at first
FACTOR_WIDTH = 2  # columns that SuperLU solves for at full speed (blockvec/backends/host/superlu.py)


@frozen
class Stage:
    """A method that a plan runs, first or under a condition.

    Attributes
    ----------
    name : str
        What it is for.
    method : {"lanczos", "filter", "jd", "dense", "shift-invert"}
    why : str
        The reason for the method.
    when : str
        The condition under which it takes over from the stages before; empty for the first.
    block_size, ncv, degree
        Sizes of an iteration, and the degree of its filter, as far as they are known before.
    seconds : float or None
        Predicted time, of iterations from one restart to the next.
    nbytes : int or None
        Memory beside that of the matrix; None for factors, whose size their analysis tells.
    """

    name: StageName
    method: str
    why: str
    when: str = ""
    block_size: int | None = None
    ncv: int | None = None
    degree: int = 1
    seconds: float | None = None
    nbytes: int | None = None

    def __str__(self) -> str:
        sizes = ""
        if self.ncv is not None:
            sizes = f" in blocks of {self.block_size} with a basis of {self.ncv} vectors"
        if self.degree > 1:
            sizes += f" and a filter of degree {self.degree} at most"
        per = "" if self.ncv is None else " per restart"
        costs = [] if self.seconds is None else [f"about {self.seconds:.1g} s{per}"]
        costs += [] if self.nbytes is None else [f"{self.nbytes / 1e6:.2g} MB"]
        told = f" ({', '.join(costs)})" if costs else ""
        return f"{METHODS[self.method]}{sizes}{told}: {self.why}"


CLOSE = "wanted values are close together"  # a reason for factors
METHODS = {
    "lanczos": "block Lanczos",
    "filter": "block Lanczos",
    "jd": "block Jacobi-Davidson",
    "dense": "dense LAPACK",
    "shift-invert": "shift-invert",
}


@frozen
class Plan:
    """What `eigsh` does for its arguments: `print(plan)` says it in words.

    Attributes
    ----------
    n, k : int
        Rows, and wanted eigenpairs; k is None for all in an interval.
    device : str
        Where the problem is solved.
    home : str or None
        Device of the matrix, where the host solves the problem in its place.
    transformation : str
        The form in which the problem is solved.
    stages : tuple of Stage
        In the order in which they may run.
    options : IterationOptions or None
        All sizes of the first iteration; None where the form of the problem decides about them.
    processes : int
        Processes that the rows are split over.
    alone_s : float or None
        Predicted time in the place of `Stage.seconds` of the first stage if one process had all rows: on one
        GPU, or with all cores of a computer. None for functions, sums of operators, and one process.
    """

    n: int
    k: int | None
    device: str
    home: str | None
    transformation: str
    stages: tuple[Stage, ...]
    options: IterationOptions | None = None
    processes: int = 1
    alone_s: float | None = None

    def has(self, name: StageName) -> bool:
        """Check whether a stage may run."""
        return name in map(attrgetter("name"), self.stages)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers, lists and text, ready for JSON."""
        names = ("n", "k", "device", "home", "transformation", "processes", "alone_s")
        shown = {name: getattr(self, name) for name in names}
        return {**shown, "stages": [asdict(stage) for stage in self.stages]}

    def __str__(self) -> str:
        pairs = "all eigenpairs in the interval" if self.k is None else f"{self.k} eigenpairs"
        place = self.device if self.home is None else f"the host, in place of {self.home}"
        text = [f"Compute {pairs} of {self.n} rows on {place}, {self.transformation}."]
        text += [f"{f'If {each.when}' if each.when else 'First'}, {each}." for each in self.stages]
        if self.alone_s is not None:
            text.append(
                f"Rows are split over {self.processes} processes; one alone takes {self.alone_s:.1g} s."
            )
        return textwrap.fill(" ".join(text), 100)


def plan(
    A: Any, k: int | None = None, M: Any = None, sigma: float | None = None, which: str = "LM", **options: Any
) -> Plan:
    """Plan a solve: say what `eigsh` would do with the same arguments, without any product with A.

    Returns
    -------
    Plan

    Examples
    --------
    >>> import blockvec
    >>> from solvers import plan
    >>> [stage.method for stage in plan(blockvec.models.model("laplace2d:n=60"), 6, which="LA").stages]
    ['filter', 'shift-invert']
    """
    from .call import Call
    from .eigsh import eigsh

    given = inspect.signature(eigsh).bind(A, k, M, sigma, which, **options)
    given.apply_defaults()
    return Call(given.arguments, time.perf_counter()).planned()


def warn_of_processes(plan: Plan, op: Any) -> None:
    """Warn once if one process alone is predicted to take less time than several."""
    seconds, alone_s = plan.stages[0].seconds, plan.alone_s
    is_slower = seconds is not None and alone_s is not None and seconds > SLOWER * alone_s
    if not is_slower or plan.n <= SHORT_ROWS or op.layout.rank > 0:
        return
    warnings.warn(
        f"eigsh: {plan.processes} processes are predicted to take {seconds:.1g} s per restart, one alone "
        f"{alone_s:.1g} s: each product needs {op.halo_rows} rows of other processes beside "
        f"{op.layout.n_local} own ones. Leave out comm if one has the memory, or number rows by Partition.",
        stacklevel=5,
    )


def plan_of(call: Call) -> Plan:
    """Plan the solve of the problem of a call, at its place."""
    problem, sigma, is_pair = call.problem, call.sigma, call.M is not None
    n, op = problem.n, problem.operator
    if problem.n_locked >= n:
        raise ShapeError(f"orthogonal_to has {problem.n_locked} columns for {n} rows; give fewer.")
    form, options = "without a transformation", None
    if call.interval is not None:
        stages = [_interval_stage(call)]
        form = "by counts of eigenvalues" if stages[0].name == "slices" else form
    else:
        integer("k", problem.k, 1, n - problem.n_locked)
        is_shifted = sigma is not None and not call.unfactored and call.mode != "distance"
        inside = problem
        if call.transforms:
            form, inside = _transformation(sigma, call.mode, is_pair), _described(call, is_shifted)
        elif sigma is not None:
            form = f"around {sigma:g} without factors"
        options = choose_options(inside)
        stages = iteration_stages(inside, options)
        if not is_shifted and _factors_may_help(call, stages[0].method):
            when = "it is predicted to take longer than factors of a matrix that is shifted beyond the end"
            when = "it converges slowly" if is_pair else when
            stages = [*stages, Stage("shift-invert", "shift-invert", CLOSE, when)]
            if is_pair and problem.which != "LA":
                proof = "factors of A prove that no value is below zero"
                above = Stage("above zero", "shift-invert", "these are those nearest to zero", proof)
                stages = [above, replace(stages[0], when="they do not"), *stages[1:]]
        options = None if call.transforms else options
    if call.predicted_s is not None:
        seen = "16 steps see values on one side of sigma only"
        first = Stage("end", "lanczos", "the nearest values are those of an end", seen)
        when = "it takes longer than factors, or there are values on both sides"
        stages = [first, replace(stages[0], when=when), *stages[1:]]
    if problem.may_be_dense and stages[0].method != "dense":
        stages.append(_dense_stage(problem, f"n = {n} is few", "that fails, or takes longer"))
    k = problem.k if call.interval is None else None
    processes, alone_s = 1 if op.layout is None else op.layout.size, None
    is_known = processes > 1 and hasattr(op, "halo_rows")
    if is_known and options is not None and stages[0].seconds is not None:
        alone_s, stages[0] = stages[0].seconds, replace(stages[0], seconds=_split_s(problem, options))
    return Plan(n, k, op.device, call.home, form, tuple(stages), options, processes, alone_s)


def _described(call: Call, is_shifted: bool) -> Problem:
    """Describe the standard form of a problem, without zeros that it may have."""
    problem, op = call.problem, call.problem.operator
    dtype = np.dtype(np.promote_types(op.dtype, getattr(call.M, "dtype", None) or op.dtype))
    described: Any = DescribedOperator(op.shape, None, dtype, op.device)
    width = FACTOR_WIDTH if is_shifted and call.OPinv is None else 0
    return replace(problem, operator=described, has_costly_steps=is_shifted, solve_width=width)


def _factors_may_help(call: Call, first: str) -> bool:
    """Check whether factors that nobody asked for may take over from the first method, at an end.

    Locked columns need not be invariant.
    """
    problem, op = call.problem, call.problem.operator
    iterates = first in ("lanczos", "filter") and problem.method == "auto" and problem.target is None
    is_free = iterates and problem.locked is None and not problem.asks_for_corrections
    if not (is_free and is_explicit(call.A, call.M) and is_factorable(op, problem.which)):
        return False
    if call.M is None:
        return not (problem.may_be_dense and is_full(op))  # whose values take as long as some shifts
    return can_factorise(op, call.A, call.M, elsewhere=True)  # iterations tell little about their time


def _transformation(sigma: float | None, mode: str, is_pair: bool) -> str:
    pair = "A - sigma M" if is_pair else "A - sigma I"
    if sigma is None:
        return "as C^-1 A C^-H with M = C C^H, or in the inner product of M"
    if mode in ("distance", "reciprocal"):
        return f"by their distance from {sigma:g}"
    return f"by the inverse of {pair} with sigma = {sigma:g}" + ("" if mode == "normal" else f", mode {mode}")


def _interval_stage(call: Call) -> Stage:
    problem, op, M = call.problem, call.problem.operator, call.M
    why = dense_is_faster(problem.n, 0, op.device, "interval") if M is None else None
    if problem.method == "dense" or (problem.method == "auto" and why is not None):
        return _dense_stage(problem, why or problem.method_why)
    mass = M if is_explicit(M) or not fits_dense(op) else None  # of few rows it will be formed
    if problem.method == "auto" and can_factorise(op, call.A, mass):
        return Stage("slices", "shift-invert", "factors at several shifts count all values")
    return Stage("iterate", "filter", "nothing is factorised")


def iteration_stages(problem: Problem, options: IterationOptions) -> list[Stage]:
    """List the stages of a problem as it is: an iteration, or dense LAPACK."""
    if options.method == "dense":
        return [_dense_stage(problem, options.why)]
    sizes = options.block_size, options.ncv, options.degree
    costs = _cycle_s(problem, options), basis_bytes(problem, options)
    first = Stage("iterate", options.method, options.why, "", *sizes, *costs)
    is_around = problem.target is not None and (problem.method, options.method) == ("auto", "jd")
    if is_around and not problem.may_be_dense:
        return [first, Stage("window", "filter", "eigenvalues are dense there", "corrections stagnate")]
    return [first]


def _dense_stage(problem: Problem, why: str, when: str = "") -> Stage:
    op, seconds = problem.operator, dense_s(problem.operator.device, problem.n)
    return Stage("dense", "dense", why, when, seconds=seconds, nbytes=dense_bytes(op))


def _cycle_s(problem: Problem, options: IterationOptions, exchange_s: float = 0.0) -> float | None:
    """Predict the seconds from one restart to the next; None for functions, whose time is not known.

    `exchange_s` are added per product.
    """
    if product_s(problem.operator, 0) == 0:
        return None
    b = options.block_size
    steps = ceil_div(max(options.ncv - problem.k, b), b)
    return steps * options.degree * (call_s(problem, options, b) + exchange_s)


def _split_s(problem: Problem, options: IterationOptions) -> float | None:
    """Predict the same with rows in several processes, all of which call this function.

    Each GPU has its share of the work; the processes of one computer do what one would do with all cores.
    """
    op: Any = problem.operator
    layout = op.layout
    parts = len(set(share(layout.comm, (platform.node(), op.device))))
    rows = problem.n // parts
    own: Any = DescribedOperator((rows, rows), op.nnz // parts, op.dtype, op.device)
    received = largest(layout, op.halo_rows) * options.block_size * op.dtype.itemsize
    exchange_s = EXCHANGE_S + RECEIVED * rates(op.device).byte_s * received if received else 0.0
    return _cycle_s(replace(problem, operator=own), options, exchange_s)


def placed(call: Call, device: str, method: str) -> tuple[bool, bool, bool]:
    """Place the problem of a call on its device, or on the host.

    Returns whether a problem of a GPU moves to the host, whether it is transformed, by a factorisation or
    operators in its place, and whether a shift is a target of iterations without a factorisation. Steps with
    a small matrix of a GPU take less time on the host than their launches would.

    Raises
    ------
    DeviceError
        For a problem that needs factors that nothing on this machine can compute.
    """
    factors = None  # where A - sigma M is factorised, if that is needed and takes less time than iterations
    if not (call.M is None and call.sigma is None and call.interval is None):
        factors = place_of(call.A, device, QUICK_S if call.is_plain else LONGEST_S, call.M)
        # A place on the host for a matrix of a GPU has been predicted to be quick.
        may_take_long = call.is_plain and call.sigma is not None and method == "auto" and factors == device
        if may_take_long and not is_small(call.A):
            factors = factors if factor_s(call.A, device, LONGEST_S) <= LONGEST_S else None
    is_target = call.which == "LM" and factors is None  # iterations find the nearest values only
    by_products = method in ("filter", "dense") or (method == "auto" and is_target)
    unfactored = method == "jd" or (call.is_plain and by_products)
    is_shifted = call.sigma is not None and not unfactored
    transforms = call.interval is None and (call.M is not None or is_shifted)
    return device != "cpu" and _moves(call, device, method, factors, transforms), transforms, unfactored


def _moves(call: Call, device: str, method: str, factors: str | None, transforms: bool) -> bool:
    """Check whether the host solves a problem of a GPU, of which A has factors at a place."""
    M, mode, sigma = call.M, call.mode, call.sigma
    if call.interval is not None:
        return method == "auto" and factors == "cpu"
    is_on_host = method in ("jd", "dense") or mode in ("distance", "reciprocal")
    needs_host = is_on_host or call.options["Minv"] is not None
    is_given = call.OPinv is not None and not needs_host
    if not transforms or is_given or (M is None and mode == "distance"):
        return call.is_plain and sigma is None and method == "auto" and is_short(call.A, call.k)
    if factors is None and sigma is None and not needs_host and place_of(M, device, 0.0) is not None:
        return False  # blocks are copied to small factors of M on the host and back
    if factors is None or (factors != "cpu" and needs_host):
        raise DeviceError(
            f"A: is on {device}, where a factorisation of this size needs cuDSS: "
            f"{install_command('cuda13')} (cuda12 for CUDA 12). Or give A as a matrix of the host, or OPinv."
        )
    return factors == "cpu"


def is_short(A: Any, k: int) -> bool:
    """Check whether A is a matrix that the host solves sooner: of few rows, or with steps of microseconds."""
    parts = {"f": math.inf, "F": math.inf, "d": 1, "D": 2}.get(getattr(getattr(A, "dtype", None), "char", ""))
    is_stored = hasattr(A, "nnz") or is_explicit(A)
    if isinstance(A, blockvec.Operator):
        is_stored = hasattr(getattr(A, "prepared", None), "to_host")
    if parts is None or not is_stored:
        return False
    if A.shape[0] <= LAPACK_ROWS:
        return True
    work = parts * (getattr(A, "nnz", math.inf) + STEP_VECTORS * A.shape[0])
    return 0 < k <= HOST_PAIRS and bool(work <= HOST_WORK)
