"""One standard Hermitian problem: which method, which sizes, and its solution as a result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np

from blockvec import BlockVector, Operator, __version__, array_namespace
from blockvec.errors import BreakdownError, OptionError, ShapeError

from .arguments import integer
from .blocks import RealArray, to_host
from .iterations.base import IterationState, LanczosOptions, LanczosResult
from .iterations.filter_design import choose_degree
from .iterations.filtered_lanczos import FilteredRestart
from .iterations.jacobi_davidson import jacobi_davidson
from .iterations.jd_options import JacobiDavidsonOptions
from .iterations.lanczos import ThickRestart, block_lanczos
from .iterations.rayleigh_ritz import (
    IDENTITY_COLUMNS,
    Selection,
    Tolerance,
    dense_eigenpairs,
)
from .linear.systems import Preconditioner
from .result import EigenResult
from .runtime.checkpoint import Checkpoint, probe
from .runtime.interrupts import deferred_interrupt
from .runtime.memory import require_memory

__all__ = [
    "DENSE_ROWS",
    "Chosen",
    "Method",
    "Request",
    "basis_sizes",
    "choose_method",
    "solve_dense",
    "solve_iteratively",
]

DENSE_ROWS = 500  # up to here dense LAPACK takes a fraction of a second and cannot miss anything
DENSE_SHARE = 3  # with k > n / DENSE_SHARE the basis of an iteration would be the whole space
DENSE_MAX_ROWS = 10000
CHECK_COLUMNS = 4  # what the Hermitian check applies the operator to, in two calls
MIN_DEGREE = 6  # below this a filter's sketch and Rayleigh-Ritz steps cost what it saves

Method = Literal["auto", "lanczos", "filter", "jd", "dense"]
Chosen = Literal["lanczos", "filter", "jd", "dense"]


@dataclass(frozen=True)
class Request:
    """The options of one call, checked."""

    operator: Operator
    k: int
    which: Selection
    tolerance: Tolerance
    block_size: int
    ncv: int
    maxiter: int
    norm: float | None
    time_limit: float | None
    verify: Literal["auto", "always", "never"]
    start: BlockVector | None
    locked: BlockVector | None
    callback: Callable[[IterationState], object] | None
    checkpoint: Checkpoint | None
    rng: np.random.Generator
    method: Chosen
    degree: int
    sigma: float | None
    preconditioner: Preconditioner | None
    jd_options: JacobiDavidsonOptions
    why: str
    begin_s: float
    checked: bool
    falls_back: bool = False  # to a filter, where values around sigma are too dense for Jacobi-Davidson
    deflated: RealArray = field(default_factory=lambda: np.zeros(0))  # eigenvalues whose vectors are locked

    @property
    def n(self) -> int:
        """Rows of the operator."""
        return self.operator.shape[0]


def choose_method(
    method: Method, op: Operator, k: int, sizes: tuple[int, int], given: list[str]
) -> tuple[Chosen, int, str]:
    """Return the method to take, the degree of its filter, and why.

    Parameters
    ----------
    method : {"auto", "lanczos", "filter", "jd", "dense"}
    op : Operator
    k : int
    sizes : tuple of int
        Block size and basis size.
    given : list of str
        Names of options that only an iteration can honour.
    """
    n, (b, ncv) = op.shape[0], sizes
    degree = choose_degree(op, b, (k + ncv) // 2)
    if method == "dense":
        for name in ("orthogonal_to", "checkpoint"):
            if name in given:
                raise OptionError(f"{name}: not available with method='dense'; use method='lanczos'.")
        return "dense", 1, "asked for"
    if method == "filter":
        return "filter", max(degree, MIN_DEGREE), "asked for"
    if method in ("lanczos", "jd"):
        return method, 1, "asked for"
    for name in ("preconditioner", "jd_options"):
        if name in given:
            return "jd", 1, f"{name} is given"
    if "sigma" in given:
        return "jd", 1, "sigma is given, and A is no matrix of the host that could be factorised"
    if not given and n <= DENSE_ROWS:
        return "dense", 1, f"n = {n} is at most {DENSE_ROWS}"
    if not given and k * DENSE_SHARE > n and n <= DENSE_MAX_ROWS:
        return "dense", 1, f"k = {k} is more than 1/{DENSE_SHARE} of n = {n}"
    if degree < MIN_DEGREE:
        return "lanczos", 1, "applying A costs as much as orthogonalising, or is of unknown cost"
    return "filter", degree, f"a step of Lanczos costs as much as {degree} applications of A"


def basis_sizes(
    op: Operator,
    k: int,
    block_size: Any,
    ncv: Any,
    locked: BlockVector | None,
    start: BlockVector | None,
    preconditioned: bool = False,
) -> tuple[int, int]:
    """Return block size and basis size, by measurement where they are not given.

    Four columns at a time halve the cost of a column against one (basis and matrix are read once for all),
    and cost a tenth more columns as long as a restart leaves room for a dozen steps. Eight are a little
    cheaper still, on a GPU by half, where a call from Python takes as long as four columns; they are taken
    where many pairs are wanted and a column is known to be cheap. Fewer pairs on the host would be done a
    fifth sooner in blocks of four, but lattices have values of multiplicity six, after which blocks of four
    need a search for further copies that can take longer than the solve. A preconditioner makes do with a
    smaller basis: 8 steps instead of 14 took a twentieth more of its applications and a fifth less of all
    other work.
    """
    n = op.shape[0]
    room = n - (0 if locked is None else locked.n_cols)
    if block_size is None:
        cheap = op.device != "cpu" or getattr(op, "nnz", None) is not None
        b = 8 if k >= 8 and cheap else 4 if k >= 4 else 2
    else:
        b = integer("block_size", block_size, 1, n)
    b = min(b, room)
    wide = 0 if start is None else start.n_cols
    if wide > room:
        raise ShapeError(f"v0 has {wide} columns, the space they live in only {room} dimensions.")
    if ncv is None:
        steps = 8 if b > 4 or preconditioned else 14
        # In whole blocks: rows are aligned then, and kernels are compiled for few widths.
        return b, min(room, -(-(k + max(k, steps * b) + wide) // b) * b)
    least = min(room, max(k, wide) + b)
    if integer("ncv", ncv, 1) < least:
        columns = f", {wide} columns of v0" if wide else ""
        raise OptionError(f"ncv: got {ncv}; k = {k}{columns} and block_size = {b} need at least {least}.")
    return b, min(room, int(ncv))


def solve_iteratively(request: Request) -> EigenResult:
    """Solve by block Lanczos, on a filter if the request says so, or by block Jacobi-Davidson."""
    op, n, b = request.operator, request.n, request.block_size
    basis = 2 * request.ncv + 4 * request.k if request.method == "jd" else request.ncv
    columns = basis + 6 * b + request.k + (0 if request.locked is None else request.locked.n_cols)
    require_memory(
        op,
        n * columns * op.dtype.itemsize,
        f"a basis of ncv = {request.ncv} vectors of {n} rows",
        "lower ncv or k",
    )
    start = request.start
    if start is None:
        start = BlockVector.random(n, b, op.dtype, device=op.device, rng=request.rng)
    elif not to_host(start.norms()).any():
        raise OptionError("v0 is zero; give a start with a direction, or leave it out.")
    if request.checkpoint is not None:
        request.checkpoint.problem = _fingerprint(request)
        request.checkpoint.image = probe(op, start, request.locked)
    with deferred_interrupt() as interrupted:
        try:
            outcome = _iterate(request, start, interrupted)
        except BreakdownError as error:
            source = "A" if request.preconditioner is None else "A or the preconditioner"
            raise BreakdownError(f"{source} returned NaN or Inf for a finite block ({error})") from error
        stopped = "interrupted" if interrupted() else outcome.reason
    counts = outcome.counts
    info = _info(request, stopped, outcome.verification, outcome.norm)
    info.update(
        block_size=b,
        ncv=request.ncv,
        degree=outcome.degree,
        operator_columns=counts.operator_columns + info["operator_columns"],
        block_applications=counts.block_applications + info["block_applications"],
        preconditioner_columns=counts.preconditioner_columns,
        verification_columns=counts.verification_columns,
        missing=outcome.missing,
        restarts=counts.restarts,
        reductions=counts.reductions,
    )
    order = np.argsort(outcome.theta, kind="stable")
    X = outcome.X.array
    return EigenResult(
        eigenvalues=_values_on_device(outcome.theta[order], X),
        eigenvectors=array_namespace(X).ascontiguousarray(X[:, order]),
        residuals=outcome.residuals[order],
        limits=outcome.limits[order],
        converged=(outcome.residuals <= outcome.limits)[order],
        info=info,
        history=outcome.history,
    )


def _fingerprint(request: Request) -> dict[str, Any]:
    """Return everything that decides about the course of an iteration, but for the operator itself."""
    names = (
        "n",
        "method",
        "k",
        "which",
        "block_size",
        "ncv",
        "norm",
        "verify",
        "degree",
        "sigma",
    )
    start, locked = (0 if block is None else block.n_cols for block in (request.start, request.locked))
    return (
        {name: getattr(request, name) for name in names}
        | asdict(request.tolerance)
        | {
            "columns of v0": start,
            "columns of orthogonal_to": locked,
            "preconditioner": request.preconditioner is not None,
            **request.jd_options.fingerprint(),
            "dtype": request.operator.dtype.name,
            "rng": type(request.rng.bit_generator).__name__,
            "blockvec": __version__,
        }
    )


def _iterate(request: Request, start: BlockVector, interrupted: Callable[[], bool]) -> LanczosResult:
    """Run the chosen iteration."""
    options: dict[str, Any] = {field.name: getattr(request, field.name) for field in fields(LanczosOptions)}
    how: dict[str, Any] = {
        "locked": request.locked,
        "random_start": request.start is None,
        "callback": request.callback,
        "interrupted": interrupted,
        "checkpoint": request.checkpoint,
        "rng": request.rng,
    }
    if request.method == "jd":
        how |= {"target": request.sigma, "preconditioner": request.preconditioner}
        how["how"] = request.jd_options
        return jacobi_davidson(request.operator, start, LanczosOptions(**options), **how)
    variant = FilteredRestart if request.method == "filter" else ThickRestart
    return block_lanczos(request.operator, start, LanczosOptions(**options), variant=variant, **how)


def solve_dense(request: Request) -> EigenResult:
    """Solve by dense LAPACK."""
    op, n = request.operator, request.n
    require_memory(
        op,
        5 * n * n * op.dtype.itemsize,
        f"a dense matrix of {n} rows and its eigenvectors",
        "use method='lanczos'",
    )
    like = BlockVector.empty(n, 0, op.dtype, device=op.device)
    theta, X, norm = dense_eigenpairs(op.apply, like, request.k, request.which)
    residuals = _residuals(op, theta, X)
    norm = norm if request.norm is None else request.norm
    limits = np.broadcast_to(request.tolerance.limits(theta, norm), theta.shape)
    info = _info(request, "converged", "not needed: dense LAPACK finds everything", norm)
    info["operator_columns"] += n + len(theta)
    info["block_applications"] += -(-n // IDENTITY_COLUMNS) + -(-len(theta) // IDENTITY_COLUMNS)
    return EigenResult(
        eigenvalues=_values_on_device(theta, X),
        eigenvectors=X,
        residuals=residuals,
        limits=limits,
        converged=residuals <= limits,
        info=info,
        history=(),
    )


def _residuals(op: Operator, theta: Any, X: Any) -> Any:
    """Return true residual norms, a few columns at a time."""
    xp = array_namespace(X)
    norms = []
    for begin in range(0, len(theta), IDENTITY_COLUMNS):
        part = slice(begin, begin + IDENTITY_COLUMNS)
        block = BlockVector(xp.ascontiguousarray(X[:, part]))
        R = op.apply(block).axpy(xp.asarray(-theta[part].astype(block.array.real.dtype)), block)
        norms.append(to_host(R.norms()))
    return np.concatenate(norms).astype(np.float64)


def _info(request: Request, stopped: str, verification: str, norm: float) -> dict[str, Any]:
    return {
        "method": request.method,
        "why": request.why,
        "stopped": stopped,
        "verification": verification,
        "n": request.n,
        "k": request.k,
        "which": request.which,
        "sigma": request.sigma,
        "tol": request.tolerance.tol,
        "convergence": request.tolerance.convergence,
        "dtype": request.operator.dtype.name,
        "device": request.operator.device,
        "norm": norm,
        "block_size": None,
        "ncv": None,
        "degree": 1,
        "operator_columns": CHECK_COLUMNS if request.checked else 0,
        "block_applications": 2 if request.checked else 0,
        "preconditioner_columns": 0,
        "verification_columns": 0,
        "missing": 0,
        "restarts": 0,
        "reductions": 0,
        "time_s": time.perf_counter() - request.begin_s,
    }


def _values_on_device(theta: Any, X: Any) -> Any:
    return array_namespace(X).asarray(theta.astype(X.real.dtype))
