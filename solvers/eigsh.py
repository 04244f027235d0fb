"""`eigsh`: eigenpairs of Hermitian matrices and operators, with SciPy's signature and meaning."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from blockvec import BlockVector, Operator, array_namespace, as_operator
from blockvec.errors import OptionError, ShapeError

from .arguments import (
    integer,
    orthonormal_block,
    positive,
    refuse_unavailable,
    require_one_of,
    tall_block,
    tolerance_for,
)
from .block_lanczos import IterationState, LanczosOptions, ThickRestart, block_lanczos
from .factorised import proof, shift_outside
from .filtered import FilteredRestart, choose_degree
from .interrupts import deferred_interrupt
from .memory import require_memory
from .rayleigh_ritz import IDENTITY_COLUMNS, Tolerance, Which, dense_eigenpairs, to_host
from .result import ConvergenceWarning, EigenResult, Interrupted, NoConvergence
from .transformations import StandardForm, restored, standard_form

__all__ = ["choose_method", "eigsh"]

DENSE_ROWS = 500  # up to here dense LAPACK takes a fraction of a second and cannot miss anything
DENSE_SHARE = 3  # with k > n / DENSE_SHARE the basis of an iteration would be the whole space
DENSE_MAX_ROWS = 10000
MAX_RESTARTS = 5000
CHECK_COLUMNS = 4  # what the Hermitian check applies the operator to, in two calls

TRANSFORMED_DIGITS = 0.7  # share of the digits asked of a transformed problem at first
POLISHING = 20  # restarts to get the last digits where those were not enough
FACTOR_ROWS = 100_000  # up to here a sparse factorisation is tried where an iteration does not converge
SOON = 40  # restarts after which it has not converged soon
MIN_DEGREE = 3  # below this a filter's own Rayleigh-Ritz steps cost what it saves

Method = Literal["auto", "lanczos", "filter", "jd", "dense"]
Chosen = Literal["lanczos", "filter", "dense"]


@dataclass(frozen=True)
class _Request:
    """The options of one call, checked."""

    operator: Operator
    k: int
    which: Which
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
    rng: np.random.Generator
    method: Chosen
    degree: int
    why: str
    begin_s: float
    checked: bool

    @property
    def n(self) -> int:
        return self.operator.shape[0]


def eigsh(
    A: Any,
    k: int = 6,
    M: Any = None,
    sigma: float | None = None,
    which: str = "LM",
    v0: Any = None,
    ncv: int | None = None,
    maxiter: int | None = None,
    tol: float = 0,
    return_eigenvectors: bool = True,
    Minv: Any = None,
    OPinv: Any = None,
    mode: str = "normal",
    rng: Any = None,
    *,
    method: Method = "auto",
    block_size: int | None = None,
    preconditioner: Any = None,
    orthogonal_to: Any = None,
    convergence: Literal["value", "norm", "absolute"] = "value",
    norm: float | None = None,
    callback: Callable[[IterationState], object] | None = None,
    time_limit: float | None = None,
    on_unconverged: Literal["raise", "warn", "return"] = "raise",
    return_info: bool = False,
    device: str | None = None,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    verify: Literal["auto", "always", "never"] = "auto",
    check_hermitian: bool = True,
) -> Any:
    """Compute k eigenpairs of a real symmetric or complex Hermitian matrix.

    A drop-in for `scipy.sparse.linalg.eigsh` that finds all copies of multiple eigenvalues, returns
    orthonormal vectors also in clusters and for complex matrices, and takes matrices on a GPU.

    Parameters
    ----------
    A : sparse matrix or array, dense array, LinearOperator, callable, or Operator, shape (n, n)
        Of SciPy or CuPy; see `blockvec.as_operator`. Integers are promoted to float64. A callable maps a
        row-major array of shape (n, b) to one, and needs `shape`.
    k : int
        Wanted pairs, 1 to n.
    M : sparse matrix or dense array of the host, shape (n, n), optional
        For A x = lambda M x: Hermitian positive definite; with `sigma` also semidefinite, where it is
        singular by rows of zeros; in buckling mode indefinite (A is then definite). It is factorised.
    sigma : float, optional
        Shift-invert: eigenvalues near sigma. A - sigma M is factorised on the host unless `OPinv` is given.
    which : {"LM", "LA", "SA", "SM"}
        Largest magnitude, largest or smallest (algebraic) values, or smallest magnitude (shift-invert at
        zero). With `sigma` it refers, as SciPy's does, to the transformed values of `mode`.
    v0 : array or BlockVector, shape (n,) or (n, s), optional
        Start vector, or a whole block of good guesses. Default: random.
    ncv : int, optional
        Basis vectors between restarts, at least ``k + block_size``; default ``k + max(k, 14 block_size)``,
        with 8 in place of 14 for block sizes above 4, rounded up to whole blocks.
        Fewer save memory, more save applications of the operator.
    maxiter : int, optional
        Restarts at most (default 5000).
    tol : float
        Tolerance of `convergence`; 0 asks for what rounding allows.
    return_eigenvectors : bool
        Whether to return vectors beside the values.
    rng : Generator, int or None
        Seeds everything random: same seed, same device, same bits. None takes fresh entropy.
    method : {"auto", "lanczos", "filter", "dense"}
        Block Lanczos, block Lanczos on a Chebyshev polynomial of A, or dense LAPACK. "auto" takes dense
        LAPACK for n up to 500, or where k is more than a third of n, unless options that only an iteration
        can honour are given (`v0`, `block_size`, `orthogonal_to`). Else it compares the cost of applying A,
        which it knows for sparse matrices, with that of orthogonalising, and filters where that saves work.
        `info` says why. Where an extremal end of an explicit matrix of the host with up to 100 000 rows has
        not converged after 40 restarts, as at the stiff lower end of a stiffness matrix, it goes on by
        shift-invert from just outside the spectrum, and proves by an inertia count that nothing is missing
        (unless `maxiter` is given).
    block_size : int, optional
        Columns that the operator is applied to at once: default 8 for k >= 8 where applying A is known to
        be cheap (a sparse matrix, a GPU), else 4, or 2 for k < 4.
    orthogonal_to : array or BlockVector, shape (n, c), optional
        Stay in the orthogonal complement of these columns: eigenpairs of P A P there, which are A's where
        the columns span an invariant subspace.
    convergence : {"value", "norm", "absolute"}
        A pair counts when its true residual ||A x - theta x|| is at most tol abs(theta),
        tol (||A|| + abs(theta)),
        or tol; in any case when it is at most 100 u (||A|| + abs(theta)), u being the unit roundoff.
    norm : float, optional
        ||A||_2 for these rules; default: an estimate from the iteration.
    callback : callable, optional
        Called with an `IterationState` after every restart (dense LAPACK has none); stops the run by
        returning True.
    time_limit : float, optional
        Seconds after which to stop.
    on_unconverged : {"raise", "warn", "return"}
        What to do where some pairs did not converge: raise `NoConvergence`, return all pairs with a
        `ConvergenceWarning`, or return them silently (flagged in the result's `converged`).
    return_info : bool
        Return an `EigenResult` instead of arrays.
    device : {"cpu", "gpu"}, optional
        Where a callable works, or where to move a matrix of the host.
    shape, dtype
        Of a callable A.
    verify : {"auto", "always", "never"}
        Whether to look for missed copies of multiple eigenvalues before the end. "auto" does so where the
        block size leaves room for doubt.
    check_hermitian : bool
        Whether to probe A with random vectors first (four operator columns).
    OPinv : LinearOperator, Operator or callable, optional
        (A - sigma M)^-1, on the device of A.
    mode : {"normal", "buckling", "cayley"}
        What `sigma` makes of an eigenvalue: 1/(lambda - sigma), lambda/(lambda - sigma), or (lambda +
        sigma)/(lambda - sigma).
    Minv, preconditioner
        Not available: anything but the default raises `OptionError`.

    Returns
    -------
    w : array, shape (k,)
        Eigenvalues, ascending, on the device of A.
    V : array, shape (n, k)
        Orthonormal eigenvectors. With ``return_eigenvectors=False`` only w is returned, with
        ``return_info=True`` an `EigenResult`.

    Raises
    ------
    NoConvergence
        A subclass of SciPy's ArpackNoConvergence, with the converged pairs and the whole result.
    OptionError, ShapeError, DTypeError, DeviceError
        For arguments that cannot be used; the message names the argument and the remedy.
    BreakdownError
        Where A returns NaN or Inf.
    Interrupted
        A KeyboardInterrupt with what was reached, after Ctrl-C.

    References
    ----------
    Wu, Simon, SIAM J. Matrix Anal. Appl. 22 (2000) 602; Stewart, ibid. 23 (2002) 601.

    Examples
    --------
    >>> import blockvec
    >>> from solvers import eigsh
    >>> A = blockvec.models.model("laplace1d:n=1000")
    >>> w, V = eigsh(A, k=3, which="LA", rng=0)
    >>> w.round(6).tolist()
    [3.999911, 3.999961, 3.99999]
    """
    begin_s = time.perf_counter()
    refuse_unavailable(
        M=M,
        sigma=sigma,
        Minv=Minv,
        OPinv=OPinv,
        mode=mode,
        preconditioner=preconditioner,
        method=method,
        which=which,
    )
    require_one_of("on_unconverged", on_unconverged, ("raise", "warn", "return"))
    require_one_of("verify", verify, ("auto", "always", "never"))
    if M is not None or sigma is not None or which == "SM":
        if which == "SM":
            sigma, which = 0.0, "LM"
        source = A if shape is None else as_operator(A, shape=shape, dtype=dtype, device=device)
        form = standard_form(source, M, sigma, OPinv, mode, device)
        options = {"which": which, "ncv": ncv, "maxiter": maxiter, "rng": rng, "method": method}
        options |= {
            "block_size": block_size,
            "callback": callback,
            "time_limit": time_limit,
            "verify": verify,
        }
        result = _solve_transformed(
            form,
            k,
            options,
            {"v0": v0, "orthogonal_to": orthogonal_to},
            tolerance_for(tol, convergence, form.A),
            None if norm is None else positive("norm", norm),
            check_hermitian,
        )
        return _answer(result, on_unconverged, return_eigenvectors, return_info)
    op = as_operator(A, shape=shape, dtype=dtype, device=device)
    generator = np.random.default_rng(rng)
    if op.shape[0] != op.shape[1]:
        raise ShapeError(f"A is {op.shape[0]} x {op.shape[1]}; eigenvalues need a square matrix.")
    if check_hermitian:
        op.check_hermitian(generator)
    locked = None if orthogonal_to is None else orthonormal_block("orthogonal_to", orthogonal_to, op)
    k = integer("k", k, 1, op.shape[0] - (locked.shape[1] if locked is not None else 0))
    start = None if v0 is None else tall_block("v0", v0, op)
    iterative = {"v0": v0, "block_size": block_size, "orthogonal_to": orthogonal_to}
    given = [name for name, value in iterative.items() if value is not None]
    block_size, ncv = _basis_sizes(op, k, block_size, ncv, locked, start)
    chosen, degree, why = choose_method(method, op, k, (block_size, ncv), given)
    request = _Request(
        operator=op,
        k=k,
        which=which,  # type: ignore[arg-type]
        tolerance=tolerance_for(tol, convergence, op),
        block_size=block_size,
        ncv=ncv,
        maxiter=MAX_RESTARTS if maxiter is None else integer("maxiter", maxiter, 1),
        norm=None if norm is None else positive("norm", norm),
        time_limit=None if time_limit is None else positive("time_limit", time_limit),
        verify=verify,
        start=start,
        locked=locked,
        callback=callback,
        rng=generator,
        method=chosen,
        degree=degree,
        why=why,
        begin_s=begin_s,
        checked=check_hermitian,
    )
    explicit = isinstance(A, np.ndarray) or sp.issparse(A)
    if method == "auto" and explicit and maxiter is None and _is_factorable(request):
        result = _solve_or_factorise(request, A)
    else:
        result = _solve_dense(request) if chosen == "dense" else _solve_lanczos(request)
    return _answer(result, on_unconverged, return_eigenvectors, return_info)


def _answer(result: EigenResult, on_unconverged: str, return_eigenvectors: bool, return_info: bool) -> Any:
    """Report what did not converge, and return what the caller wants of a result."""
    result = result if return_eigenvectors else replace(result, eigenvectors=None)
    _report(result, on_unconverged)
    if return_info:
        return result
    return (result.eigenvalues, result.eigenvectors) if return_eigenvectors else result.eigenvalues


def choose_method(
    method: Method, op: Operator, k: int, sizes: tuple[int, int], given: list[str]
) -> tuple[Chosen, int, str]:
    """Return the method to take, the degree of its filter, and why.

    Parameters
    ----------
    method : {"auto", "lanczos", "filter", "dense"}
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
        if "orthogonal_to" in given:
            raise OptionError("orthogonal_to: not available with method='dense'; use method='lanczos'.")
        return "dense", 1, "asked for"
    if method == "filter":
        return "filter", max(degree, MIN_DEGREE), "asked for"
    if method == "lanczos":
        return "lanczos", 1, "asked for"
    if not given and n <= DENSE_ROWS:
        return "dense", 1, f"n = {n} is at most {DENSE_ROWS}"
    if not given and k * DENSE_SHARE > n and n <= DENSE_MAX_ROWS:
        return "dense", 1, f"k = {k} is more than 1/{DENSE_SHARE} of n = {n}"
    if degree < MIN_DEGREE:
        return "lanczos", 1, "applying A costs as much as orthogonalising, or is of unknown cost"
    return "filter", degree, f"a step of Lanczos costs as much as {degree} applications of A"


def _basis_sizes(
    op: Operator, k: int, block_size: Any, ncv: Any, locked: BlockVector | None, start: BlockVector | None
) -> tuple[int, int]:
    """Return block size and basis size, by measurement where they are not given.

    Four columns at a time halve the cost of a column against one (basis and matrix are read once for all),
    and cost a tenth more columns as long as a restart leaves room for a dozen steps. Eight are a little
    cheaper still, on a GPU by half, where a call from Python takes as long as four columns; they are taken
    where many pairs are wanted and a column is known to be cheap.
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
        steps = 8 if b > 4 else 14
        # In whole blocks: rows are aligned then, and kernels are compiled for few widths.
        return b, min(room, -(-(k + max(k, steps * b) + wide) // b) * b)
    least = min(room, max(k, wide) + b)
    if integer("ncv", ncv, 1) < least:
        columns = f", {wide} columns of v0" if wide else ""
        raise OptionError(f"ncv: got {ncv}; k = {k}{columns} and block_size = {b} need at least {least}.")
    return b, min(room, int(ncv))


# --- solving ----------------------------------------------------------------------------------------


def _solve_transformed(
    form: StandardForm,
    k: int,
    options: dict[str, Any],
    blocks: dict[str, Any],
    tolerance: Tolerance,
    norm: float | None,
    check_hermitian: bool,
) -> EigenResult:
    """Solve the standard problem that a generalised or shifted one has become, and come back."""
    if form.A.shape[0] != form.A.shape[1]:
        raise ShapeError(f"A is {form.A.shape[0]} x {form.A.shape[1]}; eigenvalues need a square matrix.")
    if check_hermitian:
        form.A.check_hermitian(0)
    given = {
        name: form.into(tall_block(name, block, form.A).array)
        for name, block in blocks.items()
        if block is not None
    }
    options |= {"check_hermitian": False, "on_unconverged": "return", "return_info": True}
    # The last solve, which takes the vectors back, is a step of inverse iteration more.
    options["tol"] = float(tolerance.unit**TRANSFORMED_DIGITS)
    try:
        inner = eigsh(form.operator, k, **options, **given)
        result = restored(form, inner, tolerance, norm)
        if not result.converged.all() and inner.info["stopped"] == "converged":
            polish = {"tol": 0, "maxiter": POLISHING, "verify": "never", "v0": inner.eigenvectors}
            again = restored(form, eigsh(form.operator, k, **(options | given | polish)), tolerance, norm)
            result = again if again.converged.sum() >= result.converged.sum() else result
    except Interrupted as stop:
        raise Interrupted(str(stop), restored(form, stop.result, tolerance, norm)) from None
    return result


def _is_factorable(request: _Request) -> bool:
    """Whether a factorisation of A - sigma I is affordable, and would serve what is asked for."""
    n, on_host = request.n, request.operator.device == "cpu"
    extremal = request.which in ("SA", "LA") and request.locked is None
    return on_host and extremal and request.method != "dense" and n <= FACTOR_ROWS


def _solve_or_factorise(request: _Request, A: Any) -> EigenResult:
    """Iterate; where that does not converge soon, go on by shift-invert from just outside the spectrum."""
    first = _solve_lanczos(replace(request, maxiter=SOON))
    if first.info["stopped"] != "maxiter":
        return first
    matrix = sp.csc_array(A).astype(request.operator.dtype)
    theta = to_host(first.eigenvalues).astype(np.float64)
    outermost = float(theta[0 if request.which == "SA" else -1])
    sigma = shift_outside(matrix, outermost, first.info["norm"], request.which)
    begun = {"v0": first.eigenvectors}
    limit = request.time_limit
    rest = None if limit is None else max(limit - (time.perf_counter() - request.begin_s), 1e-3)
    if sigma is None:
        return _solve_lanczos(replace(request, start=BlockVector(first.eigenvectors), time_limit=rest))
    form = standard_form(matrix, None, sigma, None, "normal", None)
    options = {"which": "LM", "rng": request.rng, "callback": request.callback, "time_limit": rest}
    options |= {"verify": request.verify, "method": "lanczos"}
    result = _solve_transformed(form, request.k, options, begun, request.tolerance, request.norm, False)
    text, missing = proof(matrix, to_host(result.eigenvalues), result.limits, request.which)
    info = {
        "method": "shift-invert",
        "why": f"{first.info['method']} had not converged after {SOON} restarts; {form.why}",
        "which": request.which,
        "verification": text,
        "missing": missing,
        "time_s": time.perf_counter() - request.begin_s,
    }
    counted = ("operator_columns", "block_applications", "restarts", "reductions", "verification_columns")
    info |= {name: first.info[name] + result.info[name] for name in counted}
    history = (*first.history, *result.history)
    return replace(result, info=result.info | info, history=history)


def _solve_lanczos(request: _Request) -> EigenResult:
    op, n, b = request.operator, request.n, request.block_size
    columns = request.ncv + 6 * b + request.k + (0 if request.locked is None else request.locked.n_cols)
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
    options = LanczosOptions(
        k=request.k,
        which=request.which,
        tolerance=request.tolerance,
        block_size=b,
        ncv=request.ncv,
        maxiter=request.maxiter,
        norm=request.norm,
        verify=request.verify,
        time_limit=request.time_limit,
        degree=request.degree,
    )
    with deferred_interrupt() as interrupted:
        outcome = block_lanczos(
            op,
            start,
            options,
            locked=request.locked,
            random_start=request.start is None,
            callback=request.callback,
            interrupted=interrupted,
            rng=request.rng,
            variant=FilteredRestart if request.method == "filter" else ThickRestart,
        )
        stopped = "interrupted" if interrupted() else outcome.reason
    counts = outcome.counts
    info = _info(request, stopped, outcome.verification, outcome.norm)
    info.update(
        block_size=b,
        ncv=request.ncv,
        degree=outcome.degree,
        operator_columns=counts.operator_columns + info["operator_columns"],
        block_applications=counts.block_applications + info["block_applications"],
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


def _solve_dense(request: _Request) -> EigenResult:
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


def _info(request: _Request, stopped: str, verification: str, norm: float) -> dict[str, Any]:
    return {
        "method": request.method,
        "why": request.why,
        "stopped": stopped,
        "verification": verification,
        "n": request.n,
        "k": request.k,
        "which": request.which,
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
        "verification_columns": 0,
        "missing": 0,
        "restarts": 0,
        "reductions": 0,
        "time_s": time.perf_counter() - request.begin_s,
    }


def _values_on_device(theta: Any, X: Any) -> Any:
    return array_namespace(X).asarray(theta.astype(X.real.dtype))


def _report(result: EigenResult, on_unconverged: str) -> None:
    """Raise or warn as the caller wants where not everything converged."""
    count, k, stopped = int(result.converged.sum()), result.info["k"], result.info["stopped"]
    if stopped == "interrupted":
        raise Interrupted(
            f"interrupted: {count} of {k} pairs had converged; see the exception's result.", result
        )
    info = result.info
    if (count == k and not info["missing"]) or on_unconverged == "return":
        return
    cause = {
        "maxiter": f"after {info['restarts']} restarts: raise maxiter or ncv, or loosen tol",
        "time_limit": f"in {info['time_s']:.3g} s: raise time_limit",
        "callback": "when the callback stopped the iteration",
        "converged": "to their limit in working precision: loosen tol",
    }[stopped]
    worst = float(np.max(result.residuals / np.maximum(result.limits, np.finfo(float).tiny), initial=0.0))
    message = f"{count} of {k} pairs converged {cause} (largest residual {worst:.2g} times its limit)."
    if info["missing"]:
        message += f" At least {info['missing']} copies of wanted values are known to be missing."
    if on_unconverged == "warn":
        warnings.warn(message, ConvergenceWarning, stacklevel=4)
        return
    raise NoConvergence(message, result)
