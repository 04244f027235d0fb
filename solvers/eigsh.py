"""`eigsh`: eigenpairs of Hermitian matrices and operators, with SciPy's signature and meaning."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from blockvec import BlockVector, Operator, array_namespace, as_operator
from blockvec.errors import BreakdownError, OptionError, ShapeError

from .arguments import (
    checkpoint_for,
    corrects,
    finite,
    generator,
    integer,
    is_explicit,
    orthonormal_block,
    positive,
    preconditioner_for,
    refuse_unavailable,
    require_one_of,
    tall_block,
    tolerance_for,
)
from .factorised import proof, shift_outside
from .iteration import IterationState
from .jd_options import JacobiDavidsonOptions
from .preconditioners import following
from .rayleigh_ritz import RealArray, Selection, Tolerance, to_host
from .result import ConvergenceWarning, EigenResult, Interrupted, NoConvergence
from .stages import both_ends, continued, staged, time_left, totals, within_time
from .standard import Method, Request, basis_sizes, choose_method, solve_dense, solve_iteratively
from .transformations import StandardForm, form_at_zero, restored, standard_form

__all__ = ["eigsh"]

MAX_RESTARTS = 5000
MAX_OUTER = 100_000  # outer iterations of Jacobi-Davidson, which may be a single step each
TRANSFORMED_DIGITS = 0.7  # share of the digits asked of a transformed problem at first
TRANSFORMED_SHARE = 0.1  # of a tolerance, where the transformation changes the norm of residuals
DOMINANT = 30.0  # times the least wanted magnitude, from which on one drowns the digits of that
POLISHING = 20  # restarts to get the last digits where those were not enough
FACTOR_ROWS = 20_000  # up to here a few sparse factorisations take seconds, whatever their fill
FACTOR_ENTRIES = 2_000_000
SOON = 40  # restarts after which it has not converged soon
MANY_PAIRS = 20  # from here on, or with a preconditioner, Jacobi-Davidson corrects four vectors at a time


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
    jd_options: JacobiDavidsonOptions | None = None,
    checkpoint: Any = None,
    checkpoint_interval: float = 60.0,
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
        For A x = lambda M x: Hermitian positive definite; with `sigma` (but not Jacobi-Davidson) also
        semidefinite; in buckling mode indefinite (A is then definite). It is factorised.
    sigma : float, optional
        Shift-invert: eigenvalues near sigma. A - sigma M is factorised on the host unless `OPinv` is given.
        With ``method="jd"`` the eigenvalues nearest to sigma, without a factorisation.
    which : {"LM", "LA", "SA", "BE", "SM"}
        Largest magnitude, largest or smallest (algebraic) values, both ends (half of them from each, the
        larger half from the high one), or smallest magnitude (shift-invert at zero). With `sigma` it refers,
        as SciPy's does, to the transformed values of `mode`.
    v0 : array or BlockVector, shape (n,) or (n, s), optional
        Start vector, or a whole block of good guesses. Default: random.
    ncv : int, optional
        Basis vectors between restarts, at least ``k + block_size``; default ``k + max(k, 14 block_size)``,
        with 8 in place of 14 for block sizes above 4, rounded up to whole blocks.
        Fewer save memory, more save applications of the operator.
    maxiter : int, optional
        Restarts at most (default 5000), outer iterations of Jacobi-Davidson (default 100 000).
    tol : float
        Tolerance of `convergence`; 0 asks for what rounding allows.
    return_eigenvectors : bool
        Whether to return vectors beside the values.
    rng : Generator, int or None
        Seeds everything random: same seed, same device, same bits. None takes fresh entropy.
    method : {"auto", "lanczos", "filter", "jd", "dense"}
        Block Lanczos, block Lanczos on a Chebyshev polynomial of A, block Jacobi-Davidson, or dense LAPACK.
        "auto" takes Jacobi-Davidson where `preconditioner` or `jd_options` is given, otherwise dense
        LAPACK for n up to 500, or where k is more than a third of n, unless options that only an iteration
        can honour are given (`v0`, `block_size`, `orthogonal_to`). Else it compares the cost of applying A,
        which it knows for sparse matrices, with that of orthogonalising, and filters where that saves work.
        `info` says why. Where an extremal end of an explicit matrix or pair of the host of up to 20 000 rows
        has not converged after 40 restarts, as at the stiff lower end of a stiffness matrix, it goes on by
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
    preconditioner : matrix, LinearOperator, Operator or callable, optional
        For Jacobi-Davidson: Hermitian, about (A - sigma M)^-1, or A^-1 less something beyond the wanted end.
        A callable maps a row-major array of shape (n, b) to one.
    jd_options : JacobiDavidsonOptions, optional
        How Jacobi-Davidson computes corrections, extracts vectors and restarts.
    checkpoint : path-like, optional
        A file that the state of the iteration is written to between restarts, in one step each time. Where it
        exists, the run goes on from it, bit for bit as if it had never ended; one that is broken or belongs
        to another matrix or other options is refused. `maxiter`, `time_limit`, `callback` and `v0` may be
        others (`maxiter` counts restarts before and after). The file holds about ``ncv`` vectors; it is
        deleted once everything has converged. Solves in several stages add files ``<checkpoint>.<stage>``.
    checkpoint_interval : float
        Seconds between two writings (default 60), more where writing takes over a twentieth of the time. A
        run that stops for `maxiter`, `time_limit`, a callback or Ctrl-C writes in any case.
    Minv
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
        jd_options=jd_options,
        method=method,
        which=which,
    )
    require_one_of("on_unconverged", on_unconverged, ("raise", "warn", "return"))
    require_one_of("verify", verify, ("auto", "always", "never"))
    saved = checkpoint_for(checkpoint, checkpoint_interval)
    if not (callback is None or callable(callback)):
        raise OptionError(f"callback: got {callback!r}; give a function of an IterationState.")
    source_of_random = generator(rng)
    sigma = None if sigma is None else finite("sigma", sigma)
    at_zero = which == "SM"
    if at_zero:
        sigma, which = 0.0, "LM"
    by_corrections = corrects(method, preconditioner, jd_options)
    if M is not None or (sigma is not None and not by_corrections):
        source = A if shape is None else as_operator(A, shape=shape, dtype=dtype, device=device)
        if at_zero and not by_corrections:
            form = form_at_zero(source, M, OPinv, mode, device)
        else:
            form = standard_form(source, M, None if by_corrections else sigma, OPinv, mode, device)
        options: dict[str, Any] = {"which": which, "ncv": ncv, "maxiter": maxiter, "method": method}
        options |= {"block_size": block_size, "callback": callback, "time_limit": time_limit}
        options |= {"verify": verify, "rng": source_of_random, "checkpoint": saved}
        if by_corrections:
            options |= {"sigma": sigma, "jd_options": jd_options, "tol": tol, "convergence": convergence}
            if preconditioner is not None:
                apply = preconditioner_for(preconditioner, form.A)
                options["preconditioner"] = following(form.preconditioner(apply), preconditioner)
        tolerance = tolerance_for(tol, convergence, form.A)
        norm = None if norm is None else positive("norm", norm)
        alone = sigma is None and maxiter is None and orthogonal_to is None and is_explicit(A)
        if method == "auto" and alone and not by_corrections and _is_factorable(form.A, which):
            matrix, mass = (sp.csc_array(given).astype(form.operator.dtype) for given in (A, M))
            end = _End(matrix, mass, which, k, tolerance, norm, begin_s)  # type: ignore[arg-type]
            result = _solve_pair(form, end, options, v0, check_hermitian)
        else:
            blocks = {"v0": v0, "orthogonal_to": orthogonal_to}
            result = _solve_transformed(form, k, options, blocks, tolerance, norm, check_hermitian)
    else:
        op = as_operator(A, shape=shape, dtype=dtype, device=device)
        if op.shape[0] != op.shape[1]:
            raise ShapeError(f"A is {op.shape[0]} x {op.shape[1]}; eigenvalues need a square matrix.")
        if check_hermitian:
            op.check_hermitian(source_of_random)
        locked = None if orthogonal_to is None else orthonormal_block("orthogonal_to", orthogonal_to, op)
        k = integer("k", k, 1, op.shape[0] - (locked.shape[1] if locked is not None else 0))
        start = None if v0 is None else tall_block("v0", v0, op)
        iterative = {"v0": v0, "block_size": block_size, "orthogonal_to": orthogonal_to}
        iterative |= {"preconditioner": preconditioner, "jd_options": jd_options, "checkpoint": saved}
        given = [name for name, value in iterative.items() if value is not None]
        if by_corrections and block_size is None:
            many = k >= MANY_PAIRS or (preconditioner is not None and k >= 4)
            block_size = min(4 if many else 2, op.shape[0])
        block_size, ncv = basis_sizes(op, k, block_size, ncv, locked, start)
        chosen, degree, why = choose_method(method, op, k, (block_size, ncv), given)
        request = Request(
            operator=op,
            k=k,
            which=which,  # type: ignore[arg-type]
            tolerance=tolerance_for(tol, convergence, op),
            block_size=block_size,
            ncv=ncv,
            maxiter=(MAX_OUTER if by_corrections else MAX_RESTARTS)
            if maxiter is None
            else integer("maxiter", maxiter, 1),
            norm=None if norm is None else positive("norm", norm),
            time_limit=None if time_limit is None else positive("time_limit", time_limit),
            verify=verify,
            start=start,
            locked=locked,
            callback=callback,
            checkpoint=saved,
            rng=source_of_random,
            method=chosen,
            degree=degree,
            sigma=sigma,
            preconditioner=None if preconditioner is None else preconditioner_for(preconditioner, op),
            jd_options=JacobiDavidsonOptions() if jd_options is None else jd_options,
            why=why,
            begin_s=begin_s,
            checked=check_hermitian,
        )
        result = _solve(request, A if method == "auto" and maxiter is None and is_explicit(A) else None)
    if saved is not None and saved is not checkpoint and result.info["stopped"] == "converged":
        saved.remove()
    return _answer(result, on_unconverged, return_eigenvectors, return_info)


def _answer(result: EigenResult, on_unconverged: str, return_eigenvectors: bool, return_info: bool) -> Any:
    """Report what did not converge, and return what the caller wants of a result."""
    result = result if return_eigenvectors else replace(result, eigenvectors=None)
    _report(result, on_unconverged)
    if return_info:
        return result
    return (result.eigenvalues, result.eigenvectors) if return_eigenvectors else result.eigenvalues


# --- solving ----------------------------------------------------------------------------------------


def _solve(request: Request, matrix: Any) -> EigenResult:
    """Solve a standard problem; `matrix` is the explicit one where it may be factorised, else None."""
    if request.method == "dense":
        return solve_dense(request)
    if request.which == "BE":
        return both_ends(request, lambda end: _solve(end, matrix))
    invariant = request.locked is None or len(request.deflated) > 0
    if matrix is not None and invariant and _is_factorable(request.operator, request.which):
        return _solve_or_factorise(request, matrix)
    return solve_iteratively(request)


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
    if options.get("tol"):
        options["tol"] *= TRANSFORMED_SHARE
    else:
        # The last solve, which takes the vectors back, is a step of inverse iteration more.
        options |= {"tol": float(tolerance.unit**TRANSFORMED_DIGITS), "convergence": "value"}
    try:
        inner = eigsh(form.operator, k, **options, **given)
        result = restored(form, inner, tolerance, norm)
        if not result.converged.all() and inner.info["stopped"] == "converged":
            polish = {"tol": 0, "verify": "never", "v0": inner.eigenvectors}
            polish |= {} if "jd_options" in options else {"maxiter": POLISHING}
            if options["checkpoint"] is not None:
                polish["checkpoint"] = options["checkpoint"].stage("polished")
            again = restored(form, _polished(form, inner, options | given | polish), tolerance, norm)
            result = again if again.converged.sum() >= result.converged.sum() else result
    except Interrupted as stop:
        raise Interrupted(str(stop), restored(form, stop.result, tolerance, norm)) from None
    except BreakdownError as error:
        raise BreakdownError(f"A, M, or a solve with A - sigma M (OPinv): {error}") from error
    return result


def _polished(form: StandardForm, inner: EigenResult, options: dict[str, Any]) -> EigenResult:
    """Go on from a result, in the complement of pairs so near to the shift that they drown the others."""
    k, theta = len(inner.eigenvalues), np.abs(to_host(inner.eigenvalues))
    near = np.flatnonzero(theta > DOMINANT * theta.min())
    rest: EigenResult
    if len(near) == 0:
        rest = eigsh(form.operator, k, **options)
        return rest
    xp = array_namespace(inner.eigenvectors)
    Y, W = (inner.eigenvectors[:, xp.asarray(part)] for part in (near, np.setdiff1d(np.arange(k), near)))
    locked = [Y] if "orthogonal_to" not in options else [Y, options["orthogonal_to"]]
    options = options | {"v0": xp.ascontiguousarray(W), "orthogonal_to": xp.hstack(locked)}
    rest = eigsh(form.operator, k - len(near), **options)
    return replace(
        rest,
        eigenvalues=xp.concatenate([inner.eigenvalues[xp.asarray(near)], rest.eigenvalues]),
        eigenvectors=xp.hstack([Y, rest.eigenvectors]),
        info=inner.info | totals(inner, rest),
        history=continued(inner, rest),
    )


@dataclass(frozen=True)
class _End:
    """One end of the spectrum of an explicit matrix or pair on the host, whose factors are affordable."""

    matrix: Any
    mass: Any
    which: Selection
    k: int
    tolerance: Tolerance
    norm: float | None
    begin_s: float
    locked: BlockVector | None = None
    deflated: RealArray = field(default_factory=lambda: np.zeros(0))


def _is_factorable(A: Operator, which: str) -> bool:
    """Whether a factorisation of A - sigma M takes seconds, and serves what is asked for."""
    n = A.shape[0]
    small = n <= FACTOR_ROWS and getattr(A, "nnz", n * n) <= FACTOR_ENTRIES
    return A.device == "cpu" and small and which in ("SA", "LA")


def _solve_or_factorise(request: Request, A: Any) -> EigenResult:
    """Iterate; where that does not converge soon, go on by shift-invert from just outside the spectrum."""
    first = solve_iteratively(replace(staged(request, "begun"), maxiter=SOON))
    if first.info["stopped"] != "maxiter":
        return first
    end = _End(
        matrix=sp.csc_array(A).astype(request.operator.dtype),
        mass=None,
        **{name: getattr(request, name) for name in ("which", "k", "tolerance", "norm", "begin_s")},
        locked=request.locked,
        deflated=request.deflated,
    )
    rest = within_time(staged(request, "factorised"))
    options = {
        name: getattr(rest, name) for name in ("rng", "callback", "time_limit", "verify", "checkpoint")
    }
    result = _by_shift_invert(first, end, options)
    if result is None:
        request = replace(request, start=BlockVector(first.eigenvectors))
        result = solve_iteratively(within_time(staged(request, "continued")))
    return result


def _solve_pair(
    form: StandardForm, end: _End, options: dict[str, Any], v0: Any, check_hermitian: bool
) -> EigenResult:
    """Do the same for a pair: iterate on its standard form, then go on by shift-invert."""

    def part(name: str) -> dict[str, Any]:
        saved = options["checkpoint"]
        return options | {
            "time_limit": time_left(options["time_limit"], end.begin_s),
            "checkpoint": None if saved is None else saved.stage(name),
        }

    how = end.tolerance, end.norm, check_hermitian
    first = _solve_transformed(form, end.k, part("begun") | {"maxiter": SOON}, {"v0": v0}, *how)
    if first.converged.all() or first.info["stopped"] not in ("maxiter", "converged"):
        return first
    result = _by_shift_invert(first, end, part("factorised"))
    if result is None:
        result = _solve_transformed(form, end.k, part("continued"), {"v0": first.eigenvectors}, *how)
    return result


def _by_shift_invert(first: EigenResult, end: _End, options: dict[str, Any]) -> EigenResult | None:
    """Go on from a first result by shift-invert; None where no shift outside the spectrum is found."""
    theta = to_host(first.eigenvalues).astype(np.float64)
    scale = first.info["norm"] if end.mass is None else first.info["norm"] / float(abs(end.mass).max())
    sigma = shift_outside(end.matrix, theta, scale, end.which, end.mass)
    if sigma is None:
        return None
    form = standard_form(end.matrix, end.mass, sigma, None, "normal", None)
    options = options | {"which": "LM", "method": "lanczos"}
    blocks = {"v0": first.eigenvectors, "orthogonal_to": end.locked}
    result = _solve_transformed(form, end.k, options, blocks, end.tolerance, end.norm, False)
    values = to_host(result.eigenvalues)
    text, missing = proof(end.matrix, values, result.limits, end.which, end.deflated, end.mass)
    before = f"{first.info['method']} had not converged after {first.info['restarts']} restarts"
    info = {
        "method": "shift-invert",
        "why": f"{before}; {form.why}",
        "which": end.which,
        "verification": text,
        "missing": missing,
        "time_s": time.perf_counter() - end.begin_s,
    }
    info |= totals(first, result)
    return replace(result, info=result.info | info, history=continued(first, result))


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
        "stagnated": "before the residuals ceased to fall: raise ncv or block_size, give a "
        "preconditioner, or loosen tol",
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
