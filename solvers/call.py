"""A call of `eigsh`: its checked arguments, converted to the arrays of blockvec, and the plan for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from blockvec import Operator, as_operator
from blockvec.interchange import ArrayKind, is_function
from blockvec.parallel import Communicator

from .arguments import (
    check_choices,
    check_combination,
    checkpoint_for,
    device_of,
    ends,
    generator,
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
from .costs import dense_is_faster, fits_dense, is_full
from .dense import matrix_of
from .iterations.rayleigh_ritz import Selection, Tolerance
from .placement import Placement
from .planning import Plan, plan_of
from .problem import Problem, asks_for_corrections
from .runtime.processes import processes_of, same_generator, split
from .transform.penalties import Penalties

# The modes whose largest values belong to the smallest ones of each mode; that of Cayley changes its shift.
SMALLEST = {"normal": "distance", "buckling": "reciprocal", "cayley": "cayley"}
DOUBLE = {"f": np.dtype(np.float64), "F": np.dtype(np.complex128)}
CHOSEN = ("mode", "method", "convergence", "on_unconverged", "verify", "precision")
TOGETHER = ("method", "mode", "Minv", "OPinv", "preconditioner", "jd_options")
SIZES = ("block_size", "ncv", "maxiter")
# Options that a problem has as they are given.
PASSED_ON = ("verify", "callback", "method", "precision", *SIZES, "jd_options")
# Options that say how values around a number are computed.
HOW = ("OPinv", "preconditioner", "jd_options", "orthogonal_to", "maxiter")


@dataclass(slots=True)
class Call:
    """The checked arguments of a call of `eigsh`, and what is chosen for them before anything is applied."""

    given: Operands
    options: Mapping[str, Any]
    begin_s: float
    k: int | None
    interval: tuple[float, float] | None
    mode: str
    sigma: float | None
    which: str
    own: dict[str, Any]  # entries of `info` that are the caller's
    processes: Communicator | None
    home: str | None = None  # device of a result that the host computes
    penalties: Penalties | None = None
    op: Operator | None = None
    placement: Placement | None = None
    problem: Problem | None = None
    predicted_s: tuple[float, float] | None = None  # of an iteration at an end, and of factors

    @property
    def pairs(self) -> int:
        """Number of wanted pairs, where there is one."""
        return 6 if self.k is None else self.k

    @property
    def corrects(self) -> bool:
        """Whether Jacobi-Davidson is asked for."""
        how = self.options["method"], self.given.preconditioner, self.options["jd_options"]
        return asks_for_corrections(*how)

    @property
    def asks_for_nearest(self) -> bool:
        """Whether the values are those nearest to sigma, by whichever method."""
        if self.penalties is not None or self.sigma is None or self.given.M is not None:
            return False
        options = self.options
        is_free = options["method"] == "auto" and all(options[name] is None for name in HOW)
        promises = options["verify"] == "always" or options["precision"] == "mixed"  # which hold for a method
        return (self.which, self.mode) == ("LM", "normal") and is_free and not promises

    def planned(self) -> Plan:
        """Plan the solve: nothing is applied."""
        given, method = self.given, "jd" if self.corrects else self.options["method"]
        if self.asks_for_nearest:
            from .auto_end import may_be_quick

            self.op = given.operator()
            if _is_small_matrix(given.A, self.op, self.pairs, self.options):
                method = "dense"
            else:
                self.predicted_s = may_be_quick(given.A, self.op, self.pairs)
        self.placement = placement = Placement.of(
            *(given.A, given.M, device_of(given.A, given.device), self.sigma),
            k=self.pairs,
            method=method,
            mode=self.mode,
            is_given=given.OPinv is not None,
            needs_host=given.Minv is not None,
            has_interval=self.interval is not None,
        )
        if placement.is_on_host:
            given.move_to_host(placement.home)
        if placement.home is not None:  # its entries are read there
            self.home, self.op = placement.home, None
        op = self.op = given.operator() if self.op is None else self.op
        is_formed = given.are_explicit or (op.device == "cpu" and fits_dense(op))
        is_usual = given.OPinv is None and (method, self.mode, self.which) == ("auto", "normal", "LM")
        if placement.transforms and self.sigma is not None and is_usual and not is_formed:
            self.placement = placement = replace(placement, unfactored=True)
        self.problem = self._problem(op, self.sigma if placement.unfactored else None)
        return plan_of(self, self.problem, placement)

    def _problem(self, op: Operator, target: float | None) -> Problem:
        """Form the problem of an operator before it is scaled."""
        options, method = self.options, self.options["method"]
        tol = real("tol", options["tol"], "a number of at least 0", lambda x: 0 <= x < math.inf)
        seed = 0 if options["rng"] is None and self.given.start is not None else options["rng"]
        return Problem(
            operator=op,
            k=self.pairs,
            which=cast(Selection, self.which),
            tolerance=Tolerance(tol, options["convergence"], float(np.finfo(op.dtype).eps) / 2),
            rng=same_generator(generator(seed), self.processes),
            target=target,
            norm=positive("norm", options["norm"]),
            **self.given.blocks(op),
            checkpoint=checkpoint_for(options["checkpoint"], options["checkpoint_interval"], self.processes),
            time_limit=positive("time_limit", options["time_limit"]),
            begin_s=self.begin_s,
            may_be_dense=(
                method in ("auto", "dense")
                and self.penalties is None  # which a tridiagonal form has again
                and not (self.corrects or self.given.OPinv is not None)
                and fits_dense(op)
            ),
            **{name: options[name] for name in PASSED_ON},
        )


def called(
    A: Any, k: Any, M: Any, sigma: Any, which: str, options: Mapping[str, Any], begin_s: float
) -> Call:
    """Check the arguments of `eigsh`, and convert them."""
    check(M, sigma, which, options)
    k = None if k is None else whole("k", k)
    sizes = {name: options[name] for name in SIZES if options[name] is not None}
    options = {**options, **{name: whole(name, size) for name, size in sizes.items()}}
    interval = None if options["interval"] is None else ends(options["interval"])
    given = Operands.of(A, M, options)
    processes = given.split(options, interval)
    sigma = None if sigma is None else real("sigma", sigma, "a finite number", math.isfinite)
    own = {"sigma": sigma, "mode": options["mode"]} | ({"which": which} if interval is None else {})
    mode, sigma, which = _by_largest(options["mode"], sigma, which)
    return Call(given, options, begin_s, k, interval, mode, sigma, which, own, processes)


def check(M: Any, sigma: Any, which: str, options: Mapping[str, Any]) -> None:
    """Refuse options of `eigsh` that are unknown, not available, or do not go together."""
    check_choices(options["callback"], which=which, **{name: options[name] for name in CHOSEN})
    together = {"which": which, "sigma": sigma, **{name: options[name] for name in TOGETHER}}
    if options["interval"] is not None:
        from .interval import check_with_interval

        sizes = ("v0", "ncv", "maxiter", "orthogonal_to")
        check_with_interval(**together, **{name: options[name] for name in sizes})
    check_combination(M=M, **together)


def _is_small_matrix(A: Any, op: Operator, k: int, options: Mapping[str, Any]) -> bool:
    """Check whether dense LAPACK takes less time for values around sigma than factors with their solves."""
    if not is_explicit(A) or op.device != "cpu" or op.layout is not None or op.dtype.char in DOUBLE:
        return False
    if any(options[name] is not None for name in ("v0", "block_size", "checkpoint")) or not fits_dense(op):
        return False
    is_short = dense_is_faster(op.shape[0], k, op.device, "factors") is not None
    return is_short or (isinstance(A, np.ndarray) and is_full(op))


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
