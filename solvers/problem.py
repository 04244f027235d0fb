"""The options of a call: what every form of a problem passes on, and a request to solve made from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from blockvec import BlockVector, Operator, precompiled
from blockvec.errors import ShapeError

from .arguments import (
    corrects,
    integer,
    orthonormal_block,
    positive,
    preconditioner_for,
    tall_block,
    tolerance_for,
)
from .combine import both_ends, continued, staged, totals
from .drivers import Method, Request, basis_sizes, choose_method, solve_dense, solve_iteratively
from .interior_filter import solve_window
from .iterations.base import IterationState
from .iterations.jd_options import JacobiDavidsonOptions
from .iterations.rayleigh_ritz import Selection
from .result import EigenResult
from .runtime.checkpoint import Checkpoint

__all__ = ["Options", "request_for", "solve", "solve_standard"]

MAX_RESTARTS = 5000
MAX_OUTER = 100_000  # outer iterations of Jacobi-Davidson, which may be a single step each
MANY_PAIRS = 20
LEAST_STEPS = 8  # of a large block that a basis is to have room for
SHORT_COLUMN = 1 << 11  # rows, for each pair that is wanted, up to which calls are what counts
# Vectors of a window's basis at most, and bytes: in the middle of a spin chain's spectrum (12 870 rows) 256
# took half of the time and a third of the columns of 82, on a sheet of graphene as much as those.
WINDOW_BASIS, WINDOW_BYTES = 256, 1 << 30


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `eigsh` as they were given, but for what makes another problem of A.

    Attributes
    ----------
    which, ncv, maxiter, tol, v0, rng, method, block_size, preconditioner, jd_options, orthogonal_to,
    convergence, norm, callback, time_limit, verify, check_hermitian
        Of `eigsh`.
    target : float or None
        `sigma`, where Jacobi-Davidson or a filter looks for the eigenvalues nearest to it.
    checkpoint : Checkpoint or None
    begin_s : float
        When the call began.
    """

    which: Selection
    rng: np.random.Generator
    begin_s: float
    ncv: int | None = None
    maxiter: int | None = None
    tol: float = 0
    v0: Any = None
    method: Method = "auto"
    block_size: int | None = None
    preconditioner: Any = None
    jd_options: JacobiDavidsonOptions | None = None
    orthogonal_to: Any = None
    convergence: Literal["value", "norm", "absolute"] = "value"
    norm: float | None = None
    callback: Callable[[IterationState], object] | None = None
    time_limit: float | None = None
    verify: Literal["auto", "always", "never"] = "auto"
    check_hermitian: bool = True
    target: float | None = None
    checkpoint: Checkpoint | None = None

    @property
    def is_around(self) -> bool:
        """Whether they ask for values around a target by whatever finds them."""
        return self.target is not None and self.method == "auto"

    @property
    def asks_to_correct(self) -> bool:
        """Whether they ask for Jacobi-Davidson, by name or by an option of its own."""
        return corrects(self.method, self.preconditioner, self.jd_options)

    @property
    def corrects(self) -> bool:
        """Whether they ask for Jacobi-Davidson, or for values around a target by whatever finds them."""
        return self.is_around or self.asks_to_correct


def request_for(op: Operator, k: Any, options: Options) -> Request:
    """Check the options against an operator, and choose the method.

    Raises
    ------
    OptionError, ShapeError, DTypeError, BreakdownError
        As `eigsh` does.
    """
    n = op.shape[0]
    if n != op.shape[1]:
        raise ShapeError(f"A is {n} x {op.shape[1]}; eigenvalues need a square matrix.")
    if options.check_hermitian:
        with precompiled("check", op):
            op.check_hermitian(options.rng)
    complement = options.orthogonal_to
    locked = None if complement is None else orthonormal_block("orthogonal_to", complement, op)
    k = integer("k", k, 1, n - (0 if locked is None else locked.n_cols))
    start = None if options.v0 is None else tall_block("v0", options.v0, op)
    names = ("v0", "block_size", "orthogonal_to", "preconditioner", "jd_options", "checkpoint")
    given = [name for name in names if getattr(options, name) is not None]
    block_size, preconditioned = options.block_size, options.preconditioner is not None
    if options.corrects and block_size is None:
        around = options.target is not None and getattr(op, "nnz", None) is not None
        is_short = op.device != "cpu" or n <= SHORT_COLUMN * k
        block_size = min(corrected_at_once(is_short, k, options.ncv, preconditioned or around), n)
    block_size, ncv = basis_sizes(op, k, block_size, options.ncv, locked, start, preconditioned)
    if options.target is not None and options.method == "filter" and options.ncv is None:
        ncv = _window_basis(op, ncv)
    if options.is_around:
        given.append("sigma")
    method, degree, why = choose_method(options.method, op, k, (block_size, ncv), given)
    most = MAX_OUTER if options.corrects else MAX_RESTARTS
    preconditioner, norm, limit = options.preconditioner, options.norm, options.time_limit
    return Request(
        operator=op,
        k=k,
        which=options.which,
        tolerance=tolerance_for(options.tol, options.convergence, op),
        block_size=block_size,
        ncv=ncv,
        maxiter=most if options.maxiter is None else integer("maxiter", options.maxiter, 1),
        norm=None if norm is None else positive("norm", norm),
        time_limit=None if limit is None else positive("time_limit", limit),
        verify=options.verify,
        start=start,
        locked=locked,
        callback=options.callback,
        checkpoint=options.checkpoint,
        rng=options.rng,
        method=method,
        degree=degree,
        sigma=options.target,
        preconditioner=None if preconditioner is None else preconditioner_for(preconditioner, op),
        jd_options=JacobiDavidsonOptions() if options.jd_options is None else options.jd_options,
        why=why,
        begin_s=options.begin_s,
        checked=options.check_hermitian,
        falls_back=options.is_around and not options.asks_to_correct,
    )


def corrected_at_once(is_short: bool, k: int, ncv: Any, guided: bool) -> int:
    """Return the block size of Jacobi-Davidson, for a basis of `ncv` vectors where that is given.

    Blocks take more columns, and fewer calls, which is what counts while columns are short (`is_short`, as
    they are on a GPU up to a million rows at least), the more the more pairs are wanted. On two cores, in
    bases of the default size, ten pairs of seven matrices of 900 to 14 000 rows in blocks of eight took 0.43
    to 0.74 of the time of blocks of two and 0.67 to 1.1 of that of four, five pairs 0.4 to 0.6 and 0.5 to 0.8
    of it on about 1000 rows, but 1.0 to 1.4 of both on 8000 to 14 000. Beyond, many pairs pay for a block of
    four, and few do where a preconditioner or a filter around a target guides them (`guided`).
    """
    if k < 4:
        return 2
    if is_short and (ncv is None or integer("ncv", ncv, 1) >= k + 8 * LEAST_STEPS):
        return 8
    return 4 if guided or k >= MANY_PAIRS else 2


def _window_basis(op: Operator, ncv: int) -> int:
    """Return the basis size of a window where it is not given, at least that of an end of a spectrum."""
    n = op.shape[0]
    return max(ncv, min(WINDOW_BASIS, WINDOW_BYTES // (n * op.dtype.itemsize), n // 8))


def solve(request: Request) -> EigenResult:
    """Solve a standard problem by the method of the request."""
    if request.method == "dense":
        return solve_dense(request)
    if request.falls_back:
        return _solve_around(request)
    if request.method == "filter" and request.sigma is not None:
        return solve_window(request)
    return both_ends(request, solve_iteratively) if request.which == "BE" else solve_iteratively(request)


def _solve_around(request: Request) -> EigenResult:
    """Look for values around a target by Jacobi-Davidson, and by a filter where they are too dense for it."""
    first = solve_iteratively(request)
    if first.info["stopped"] != "stagnated":
        return first
    op, k = request.operator, request.k
    start = BlockVector(first.eigenvectors)
    b, ncv = basis_sizes(op, k, None, None, request.locked, start)
    ncv = _window_basis(op, ncv)
    method, degree, _ = choose_method("filter", op, k, (b, ncv), [])
    part = replace(
        staged(request, "window"),
        method=method,
        degree=degree,
        block_size=b,
        ncv=ncv,
        maxiter=MAX_RESTARTS,
        start=start,
        checked=False,
        why=f"{request.why}; corrections came to a standstill, since values are dense there",
    )
    second = solve_window(part)
    history = tuple(continued(first, second))
    return replace(second, info=second.info | totals(first, second), history=history)


def solve_standard(op: Operator, k: int, options: Options) -> EigenResult:
    """Solve a standard problem."""
    return solve(request_for(op, k, options))
