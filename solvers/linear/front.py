"""`cg`, `minres`, `gmres` and `solve`: SciPy's calls, for one right-hand side or many."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from blockvec import array_namespace, as_operator, factorize
from blockvec.errors import BreakdownError, OptionError, ShapeError

from ..arguments import blas_threads, check_choice, integer, is_explicit
from ..blocks import to_host
from ..runtime.processes import together
from . import vectors
from .block_cg import BlockCG
from .calls import Systems
from .gmres import block_gmres
from .minres import block_minres
from .systems import AGAIN, DOUBTFUL, PROGRESS, TRIAL, Linear, finite

MOST_COLUMNS = 32  # of a block: small matrices would take longer than what wider blocks save
NOT_HERMITIAN = 1e4  # eps: relative difference of u^H A w and w^H A u, above which `solve` takes GMRES
FACTORED_S = 5.0  # s, predicted: a factorisation that `solve` prefers to an iteration of unknown length


@together
def cg(
    A: Any,
    B: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Any], object] | None = None,
    shifts: Any = None,
    return_info: bool = False,
    like: Any = None,
    comm: Any = None,
    device: str | None = None,
) -> Any:
    """Solve A X = B for Hermitian positive definite A by block conjugate gradients.

    A replacement for `scipy.sparse.linalg.cg` and CuPy's that takes several right-hand sides. All are solved
    for in one Krylov space, which takes fewer iterations than each needs alone, and A is read once for all.

    Parameters
    ----------
    A : sparse matrix, array, LinearOperator, callable, or Operator, shape (n, n)
        Of SciPy, CuPy, torch or JAX; see `blockvec.as_operator`.
    B : array or BlockVector, shape (n,) or (n, b)
    x0 : array, of the shape of B, or "Mb", optional
        Initial solutions; "Mb" is M B. Default: zero.
    rtol, atol : float
        True residual norms to reach, per column: max(rtol ||b||, atol).
    maxiter : int, optional
        Maximum number of iterations; default 10 n.
    M : matrix, LinearOperator, Operator or callable, optional
        Preconditioner: approximation of the inverse of A, Hermitian positive definite. A callable maps an
        array of shape (n, c) to a new one, such as a `MultigridPreconditioner`.
    callback : callable, optional
        Called with the solutions after every iteration.
    shifts : array of float, shape (s,), optional
        Solve (A - shifts[i] I) X_i = B for all i in the Krylov space of one, without M and x0. X has the
        shape (s, n) or (s, n, b), or is a list where it is no array of NumPy or CuPy. For one shift per
        column see `minres`.
    return_info : bool
        Return a `Linear` with the true residuals, iterations and reasons per column.
    like, comm, device
        As for `eigsh`. With `comm`, B and x0 are this process's rows, and X is a `BlockVector`.

    Returns
    -------
    X : array, of the shape of B
        Columns of zeros for those of B.
    info : int
        The worst code of the columns: 0 if all have converged; the number of iterations if not, `maxiter` or
        where rounding errors prevent smaller residuals; -1, with a `ConvergenceWarning`, if A or M is not
        positive definite.

    Raises
    ------
    ShapeError, OptionError, DTypeError
        For arguments that do not fit; all are subclasses of ValueError or TypeError.
    BreakdownError
        If A or M returns NaN or Inf.

    References
    ----------
    O'Leary, Linear Algebra Appl. 29 (1980) 293; Dubrulle, Electron. Trans. Numer. Anal. 12 (2001) 216
    (residuals as products); Birk, Frommer, Numer. Algorithms 67 (2014) 507 (shifts).

    Examples
    --------
    >>> import numpy as np
    >>> import blockvec
    >>> A = blockvec.models.model("laplace2d:n=30")
    >>> B = np.random.default_rng(0).standard_normal((900, 4))
    >>> X, info = blockvec.cg(A, B, rtol=1e-8)
    >>> info, bool(np.linalg.norm(A @ X - B) <= 1e-8 * np.linalg.norm(B))
    (0, True)
    """
    systems = Systems.of(A, B, x0, M, (rtol, atol), like, comm, device)
    steps = 10 * systems.n if maxiter is None else integer("maxiter", maxiter, 0)
    if shifts is not None:
        if M is not None or x0 is not None or callback is not None:
            raise OptionError("shifts: share a Krylov space without M, x0 and callback; leave these out.")
        return _shifted(systems, shifts, steps, return_info=return_info)
    if systems.by_vectors() and (callback is None or systems.b == 1):
        alone = functools.partial(vectors.conjugate_gradients, maxiter=steps, callback=callback)
        return systems.finished(systems.each(alone), steps, return_info=return_info)
    noted = None if callback is None else lambda X: callback(systems.returned(X))
    runs, X, limits = [], systems.X, systems.limits
    for begin in range(0, systems.b, MOST_COLUMNS):
        which = slice(begin, begin + MOST_COLUMNS)
        is_all = systems.b <= MOST_COLUMNS
        B, start = (block if is_all else block[:, which].copy() for block in (systems.B, X))
        run = BlockCG(
            systems.operator, B, start, limits[which], systems.preconditioner, steps, callback=noted
        )
        run.run(is_zero=systems.is_zero)
        if not is_all:
            X[:, which] = start
        runs.append(run)
    return systems.finished(_together(systems, runs), steps, return_info=return_info)


def _together(systems: Systems, runs: Sequence[BlockCG]) -> Linear:
    """Assemble the result of runs for some columns each."""
    residuals, iterations = (
        np.concatenate([getattr(run, name) for run in runs]) for name in ("residuals", "iterations")
    )
    counts = np.sum([(run.columns, run.applications, run.preconditioned) for run in runs], axis=0)
    return systems.linear(residuals, iterations, [reason for run in runs for reason in run.reasons], counts)


def _shifted(systems: Systems, shifts: Any, steps: int, *, return_info: bool) -> Any:
    """Solve the systems of several shifts."""
    values = np.asarray(shifts, np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise OptionError(f"shifts: got {shifts!r:.60}; give an array of finite numbers, one per shift.")
    seed = int(np.argmax(values))  # the system with the largest condition number
    others = [i for i in range(len(values)) if i != seed]
    limits, largest = systems.limits, float(values[seed])
    relative = [float(values[i]) - largest for i in others]
    run = BlockCG(systems.operator, systems.B, systems.X, limits, None, steps, shift=largest, others=relative)
    run.run(is_zero=True)
    runs = [run] * len(values)
    for i, other in zip(others, run.others, strict=True):  # the space is common, true residuals are not
        runs[i] = BlockCG(systems.operator, systems.B, other.X, limits, None, steps, shift=float(values[i]))
        runs[i].steps = run.steps
        runs[i].iterations = other.iterations
        runs[i].run(is_zero=False)
    solutions = [systems.returned(each.X) for each in runs]
    result = systems.finished(_together(systems, runs), steps, return_info=True)
    is_array = not hasattr(solutions[0], "n_global") and systems.kind is None
    X = array_namespace(solutions[0]).stack(solutions) if is_array else solutions
    result = replace(result, X=X, initial=np.tile(result.initial, len(values)))
    return result if return_info else (result.X, result.info)


@together
def minres(
    A: Any,
    B: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    shift: Any = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Any], object] | None = None,
    show: bool = False,
    check: bool = False,
    atol: float = 0.0,
    return_info: bool = False,
    like: Any = None,
    comm: Any = None,
    device: str | None = None,
) -> Any:
    """Solve (A - shift I) X = B for Hermitian A, indefinite or singular, by MINRES.

    A replacement for `scipy.sparse.linalg.minres` and CuPy's that takes several right-hand sides and complex
    matrices. Arguments and results that are not described here are those of `cg`. Deviation from SciPy: the
    residual norms to reach are max(rtol ||b||, atol), not rtol ||A|| ||x||.

    Parameters
    ----------
    A, B, x0, rtol, atol, M, return_info, like, comm, device
        As for `cg`.
    shift : float or array, shape (b,)
        One, or one per column.
    maxiter : int, optional
        Maximum number of iterations; default 5 n.
    callback : callable, optional
        Called with the solution after every iteration; several right-hand sides are then solved for one after
        the other.
    show : bool
        Whether to print a summary.
    check : bool
        Whether to check that A and M are Hermitian, with random vectors.

    Returns
    -------
    X : array, of the shape of B
    info : int
        As for `cg`; -1 with a `ConvergenceWarning` also where A - shift I is singular and a system has no
        solution: X minimises the residual then. A singular system with a solution is solved.

    References
    ----------
    Paige, Saunders, SIAM J. Numer. Anal. 12 (1975) 617.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import minres
    >>> A = np.diag([1.0, -2.0, 0.0])
    >>> x, info = minres(A, np.array([1.0, 2.0, 0.0]))
    >>> x.round(6).tolist(), info
    ([1.0, -1.0, 0.0], 0)
    """
    systems = Systems.of(A, B, x0, M, (rtol, atol), like, comm, device)
    steps = 5 * systems.n if maxiter is None else integer("maxiter", maxiter, 0)
    sigma = np.asarray(to_host(shift) if np.ndim(shift) else shift)
    if np.iscomplexobj(sigma) or sigma.shape not in ((), (systems.b,)):
        raise OptionError(f"shift: got {shift!r:.60}; give a real number, or one per right-hand side.")
    if check:
        systems.operator.check_hermitian()
        if systems.preconditioner is not None:
            given = {
                "shape": systems.operator.shape,
                "dtype": systems.B.dtype,
                "device": systems.operator.device,
            }
            K = as_operator(lambda X: systems.preconditioned(X), **given, layout=systems.operator.layout)
            K.check_hermitian(name="M")
    if systems.by_vectors(has_callback=callback is not None):
        noted = None if callback is None else lambda x: callback(x.copy())
        alone = functools.partial(vectors.minimum_residuals, maxiter=steps, callback=noted)
        solved = systems.each(alone, sigma)
    else:

        def solve_block(R: Any, tol: Any, left: int, *, is_trial: bool) -> Linear:
            final = None if is_trial else DOUBTFUL * (float(np.finfo(R.dtype).eps) / 2) ** 0.5
            K = systems.preconditioner
            options: dict[str, Any] = {"shift": sigma, "preconditioner": K, "final": final}
            return block_minres(systems.operator, R, tol=tol, maxiter=left, **options)

        with blas_threads(systems.operator):
            solved = _corrected(systems, sigma, steps, solve_block)
    if show:
        print(f"minres: n = {systems.n}, shift = {shift}, rtol = {rtol:.2e}, at most {steps} iterations")
        for j in range(systems.b):
            print(
                f"minres: {solved.iterations[j]} iterations, residual {solved.residuals[j]:.4e}: "
                f"{solved.reasons[j]}"
            )
    return systems.finished(solved, steps, return_info=return_info)


def _corrected(systems: Systems, sigma: Any, steps: int, solve: Callable[..., Linear]) -> Linear:
    """Solve for corrections of X with a solver of blocks until true residuals are small, or stagnate."""
    operator, X, limits = systems.operator, systems.X, systems.limits
    shift = operator.backend.xp.asarray(sigma) if np.ndim(sigma) else float(sigma)
    counts, iterations, reasons = np.zeros(3, int), np.zeros(systems.b, np.intp), ["maxiter"] * systems.b
    before, again, is_zero = np.full(systems.b, np.inf), 1.0, systems.is_zero
    doubtful = tried = np.zeros(systems.b, bool)
    kept = X
    while True:
        R = systems.B.copy() if is_zero else operator.apply(X, shift=shift).axpby(1, systems.B, -1)
        counts[:2] += (0, 0) if is_zero else (systems.b, 1)
        residuals = np.asarray(finite(to_host(R.norms())), np.float64)
        left = np.array([reason == "maxiter" for reason in reasons])
        stagnated = left & (residuals > limits) & (residuals > PROGRESS * before)
        for j in np.flatnonzero(left & (residuals <= limits)):
            reasons[j] = "converged"
        for j in np.flatnonzero(stagnated):
            reasons[j] = "singular" if tried[j] else "stagnated"
            if tried[j]:  # null vectors that rounding has added may have any length
                X[:, j : j + 1], residuals[j] = kept[:, j : j + 1], before[j]
        left &= (residuals > limits) & ~stagnated
        spent = int(iterations[left].max(initial=0))
        if not left.any() or spent >= steps:
            return systems.linear(residuals, iterations, reasons, counts)
        tol = np.where(left, again * limits / np.where(residuals > 0, residuals, 1), 2.0)
        most, is_trial = steps - spent, bool(doubtful.any())
        kept = X.copy() if is_trial else X
        solved = solve(R, np.minimum(tol, 2.0), min(most, TRIAL) if is_trial else most, is_trial=is_trial)
        for j in np.flatnonzero(left):
            if solved.reasons[j] == "indefinite preconditioner":
                reasons[j] = solved.reasons[j]
        tried = doubtful
        doubtful = left & np.array([reason == "singular" for reason in solved.reasons]) & (not is_trial)
        X.axpy(1, solved.X)
        iterations += np.where(left, solved.iterations, 0)
        counts += (solved.operator_columns, solved.block_applications, solved.preconditioner_columns)
        before = np.where(doubtful, np.inf, residuals)
        again, is_zero = AGAIN, False


@together
def gmres(
    A: Any,
    B: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    restart: int | None = None,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Any], object] | None = None,
    callback_type: str | None = None,
    return_info: bool = False,
    like: Any = None,
    comm: Any = None,
    device: str | None = None,
) -> Any:
    """Solve A X = B by restarted GMRES.

    A replacement for `scipy.sparse.linalg.gmres` and CuPy's that takes several right-hand sides. Arguments
    and results that are not described here are those of `cg`.

    Parameters
    ----------
    A, B, x0, rtol, atol, return_info, like, comm, device
        As for `cg`; A need not be Hermitian.
    restart : int, optional
        Iterations between restarts; default 20.
    maxiter : int, optional
        Maximum number of restarts, default 10 n; of iterations with the callback type "legacy".
    M : matrix, LinearOperator, Operator or callable, optional
        Approximation of the inverse of A. One vector is preconditioned on the left, as in SciPy, blocks are
        on the right.
    callback : callable, optional
        Several right-hand sides are solved for one after the other if it is given.
    callback_type : {"x", "pr_norm", "legacy"}
        Whether it is called with the solution after every restart, or with the norm of the preconditioned
        residual, relative to ||b||, after every iteration.

    Returns
    -------
    X : array, of the shape of B
    info : int
        As for `cg`, with `maxiter` as the positive code.

    References
    ----------
    Saad, Schultz, SIAM J. Sci. Stat. Comput. 7 (1986) 856.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import gmres
    >>> x, info = gmres(np.array([[2.0, 1.0], [0.0, 4.0]]), np.array([3.0, 4.0]))
    >>> x.round(6).tolist(), info
    ([1.0, 1.0], 0)
    """
    if callback is not None and callback_type is None:
        warnings.warn(
            "gmres was called without specifying `callback_type`, and takes 'legacy' as SciPy does; give "
            "callback_type='pr_norm' or 'legacy'.",
            DeprecationWarning,
            stacklevel=3,
        )
    kind = "legacy" if callback_type is None else callback_type
    check_choice("callback_type", kind, ("x", "pr_norm", "legacy"))
    systems = Systems.of(A, B, x0, M, (rtol, atol), like, comm, device)
    cycles = 10 * systems.n if maxiter is None else integer("maxiter", maxiter, 1)
    width = min(20 if restart is None else integer("restart", restart, 1), systems.n)
    if systems.by_vectors(has_callback=callback is not None):

        def solve(product: Any, precondition: Any, b: Any, x: Any, limit: float) -> vectors.Outcome:
            length = float(np.linalg.norm(b))
            on_step = callback and kind != "x" and (lambda norm: callback(norm / length))
            on_cycle = callback if kind == "x" else None
            most = cycles if callback and kind == "legacy" else np.inf
            return vectors.generalized_minimum_residuals(
                product,
                precondition,
                b,
                x,
                limit,
                cycles=cycles,
                restart=width,
                steps_left=most,
                on_step=on_step or None,
                on_cycle=on_cycle,
            )

        return systems.finished(systems.each(solve), cycles, return_info=return_info)

    def solve_block(R: Any, tol: Any, left: int, *, is_trial: bool) -> Linear:
        K = systems.preconditioner
        return block_gmres(systems.operator, R, tol=tol, maxiter=left, restart=width, preconditioner=K)

    with blas_threads(systems.operator):
        solved = _corrected(systems, 0.0, cycles * width, solve_block)
    return systems.finished(solved, cycles, return_info=return_info)


@together
def solve(
    A: Any,
    B: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-8,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    return_info: bool = False,
    like: Any = None,
    comm: Any = None,
    device: str | None = None,
) -> Any:
    """Solve A X = B by the method that A permits.

    Hermitian matrices whose factorisation is predicted to be quick are factorised. Otherwise, and where
    factors miss the tolerance, conjugate gradients are tried if the diagonal is positive or unknown, then
    MINRES. A that is not Hermitian, which two random vectors show, takes GMRES.

    Parameters
    ----------
    A, B, x0, rtol, atol, maxiter, M, like, comm, device
        As for `cg`. With M nothing is factorised.
    return_info : bool
        Return a `Linear` whose `method` says what was done, and whose residuals may miss the tolerance.

    Returns
    -------
    X : array, of the shape of B, or Linear

    Raises
    ------
    BreakdownError
        If a true residual is not as small as max(rtol ||b||, atol), unless `return_info`.

    Examples
    --------
    >>> import numpy as np
    >>> import blockvec
    >>> A = blockvec.models.model("laplace2d:n=30")
    >>> solved = blockvec.solve(A, np.ones((900, 2)), return_info=True)
    >>> solved.method, solved.converged
    ('factors', True)
    """
    options: dict[str, Any] = {
        "rtol": rtol,
        "atol": atol,
        "return_info": True,
        "like": like,
        "comm": comm,
        "device": device,
    }
    systems = Systems.of(A, B, x0, M, (rtol, atol), like, comm, device)
    operator = systems.operator
    defect = operator.hermitian_defect()[1]
    is_hermitian = defect <= NOT_HERMITIAN * np.finfo(operator.dtype).eps
    methods = ["cg", "minres"] if is_hermitian else ["gmres"]
    if is_hermitian and hasattr(A, "diagonal") and not (to_host(A.diagonal()).real > 0).all():
        methods = ["minres"]
    if is_hermitian and M is None and operator.layout is None and _is_quick(A, operator.device):
        methods.insert(0, "factors")
    solved = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for method in methods:
            if method == "factors":
                found = _by_factors(A, systems)
            else:
                iteration: Any = {"cg": cg, "minres": minres, "gmres": gmres}[method]
                found = iteration(A, B, x0, maxiter=maxiter, M=M, **options)
            if found is not None:
                solved = replace(found, method=method)
            if solved is not None and solved.converged:
                break
    assert solved is not None
    if not (solved.converged or return_info):
        worst = int(np.argmax(solved.residuals / np.maximum(systems.limits, np.finfo(float).tiny)))
        raise BreakdownError(
            f"solve: {solved.method} ended with a residual of {solved.residuals[worst]:.2e} for right-hand "
            f"side {worst}, above {systems.limits[worst]:.2e} ({solved.reasons[worst]}); give an M, "
            "more iterations (maxiter) or a larger rtol, or take what there is with return_info=True."
        )
    return solved if return_info else solved.X


def _is_quick(A: Any, device: str) -> bool:
    """Check whether the factors of a matrix are predicted to take little time."""
    from ..factorization.work import FactorWork

    return is_explicit(A) and FactorWork.of(A).factor_s(device) <= FACTORED_S


def _by_factors(A: Any, systems: Systems) -> Linear | None:
    """Solve with factors; None for a matrix that has none, such as a singular one."""
    try:
        factors = factorize(A, device=systems.operator.device)
        X = None if factors.is_singular else factors.solve(systems.B)
    except (BreakdownError, OptionError, ShapeError):
        return None
    if X is None:
        return None
    systems.X[:, :] = X
    R = systems.operator.apply(systems.X).axpby(1, systems.B, -1)
    residuals = np.asarray(finite(to_host(R.norms())), np.float64)
    reasons = ["converged" if good else "stagnated" for good in residuals <= systems.limits]
    solved = systems.linear(residuals, np.zeros(systems.b), reasons, (systems.b, 1, 0))
    return replace(solved, X=systems.returned(systems.X))
