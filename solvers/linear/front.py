"""`cg`, `minres`, `gmres` and `solve`: SciPy's calls, for one right-hand side or many."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockvec import array_namespace, factorize
from blockvec.errors import BreakdownError, OptionError, ShapeError
from blockvec.interchange import diagonal_of

from ..arguments import check_choice, integer
from ..blocks import Block, RealArray, is_explicit, to_host
from ..problem import Counts
from ..runtime.processes import together
from ..transform.scaling import NOT_HERMITIAN
from .block_cg import BlockCG, Shifted
from .calls import Run, Systems, corrected
from .gmres import block_gmres
from .minres import block_minres
from .systems import Linear, Projection
from .vectors import (
    Callback,
    by_columns,
    conjugate_gradients,
    generalized_minimum_residuals,
    minimum_residuals,
)

RESTART = 20  # steps of GMRES between restarts by default, as in SciPy
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
    callback: Callback = None,
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
    systems = Systems.of("cg", A, B, x0, M, (rtol, atol), like, comm, device)
    steps = systems.limit(maxiter, 10)
    if shifts is None:
        solved = _by_cg(systems, steps, callback)
    elif M is not None or x0 is not None or callback is not None:
        raise OptionError("shifts: share a Krylov space without M, x0 and callback; leave these out.")
    else:
        solved = _shifted(systems, shifts, steps)
    return systems.finished(solved, steps, return_info=return_info)


def _by_cg(systems: Systems, steps: int, callback: Callback = None) -> Linear:
    if systems.by_vectors() and (callback is None or systems.b == 1):
        run = by_columns(systems, conjugate_gradients, callback=callback)
    else:
        run = BlockCG(systems, callback=callback).run
    return corrected(systems, run, steps, takes_last=True)


def _shifted(systems: Systems, shifts: Any, steps: int) -> Linear:
    """Solve the systems of several shifts."""
    try:
        values = np.asarray(shifts, np.float64)
    except (TypeError, ValueError):
        values = np.array(math.nan)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise OptionError(f"shifts: got {shifts!r:.60}; give an array of finite numbers, one per shift.")
    seed = int(np.argmax(values))  # the system with the largest condition number
    others = {i: Shifted(sigma - values[seed], systems) for i, sigma in enumerate(values) if i != seed}
    runs: dict[int, Linear] = {}
    for i in (seed, *others):  # the space is common, true residuals are not
        other = others.get(i)
        each = replace(systems, X=other.X if other else systems.X, shift=values[i])
        run = BlockCG(each, () if other else list(others.values())).run
        runs[i] = last = corrected(each, run, steps, other.iterations if other else 0, takes_last=True)
    solved = [runs[i] for i in range(len(values))]
    solutions: Any = [each.X for each in solved]
    if isinstance(solutions[0], type(systems.B.array)):
        solutions = array_namespace(solutions[0]).stack(solutions)
    names = "residuals", "iterations", "initial"
    rows: dict[str, Any] = {name: np.concatenate([getattr(each, name) for each in solved]) for name in names}
    reasons = tuple(reason for each in solved for reason in each.reasons)
    return replace(last, X=solutions, reasons=reasons, **rows)


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
    callback: Callback = None,
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
    systems = Systems.of("minres", A, B, x0, M, (rtol, atol), like, comm, device)
    steps = systems.limit(maxiter, 5)
    sigma = np.asarray(to_host(shift) if np.ndim(shift) else shift)
    if sigma.dtype.kind not in "biuf" or sigma.shape not in ((), (systems.b,)):
        raise OptionError(f"shift: got {shift!r:.60}; give a real number, or one per right-hand side.")
    if check:
        systems.operator.check_hermitian()
        if systems.M is not None:
            systems.M.check_hermitian(name="M")
    solved = _by_minres(replace(systems, shift=sigma), steps, callback)
    if show:
        print(f"minres: n = {systems.n}, shift = {shift}, rtol = {rtol:.2e}, at most {steps} iterations")
        for count, residual, reason in zip(solved.iterations, solved.residuals, solved.reasons, strict=True):
            print(f"minres: {count} iterations, residual {residual:.4e}: {reason}")
    return systems.finished(solved, steps, return_info=return_info)


def _by_minres(systems: Systems, steps: int, callback: Callback = None) -> Linear:
    if systems.by_vectors(has_callback=callback is not None):
        run = by_columns(systems, minimum_residuals, callback=callback)
    else:
        run = _in_blocks(systems, block_minres)
    return corrected(systems, run, steps)


def _in_blocks(systems: Systems, solve: Callable[..., Linear]) -> Run:
    """Make a run of a solver of blocks with a Krylov space per column."""
    Q = Projection(None, systems.M and systems.M.apply, systems.counts)

    def run(R: Block, goals: RealArray, steps: int, final: float) -> tuple[NDArray[np.intp], Sequence[str]]:
        lengths = to_host(R.norms())
        tol = np.minimum(goals / np.where(lengths > 0, lengths, 1), 2.0)
        solved = solve(systems.operator, R, shift=systems.shift, tol=tol, maxiter=steps, Q=Q, final=final)
        systems.X.axpy(1, solved.X)
        return solved.iterations, solved.reasons

    return run


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
    callback: Callback = None,
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
            "gmres was called without specifying `callback_type`: 'legacy' is taken as in SciPy; give one.",
            DeprecationWarning,
            stacklevel=3,
        )
    kind = callback_type or ("legacy" if callback else "pr_norm")
    check_choice("callback_type", kind, ("x", "pr_norm", "legacy"))
    width = RESTART if restart is None else integer("restart", restart, 1)
    systems = Systems.of("gmres", A, B, x0, M, (rtol, atol), like, comm, device, restart=width)
    cycles = systems.limit(maxiter, 10, 1)
    solved = _by_gmres(systems, cycles, width, kind, callback)
    return systems.finished(solved, cycles, return_info=return_info)


def _by_gmres(
    systems: Systems, cycles: int, width: int = RESTART, kind: str = "pr_norm", callback: Callback = None
) -> Linear:
    width = min(width, systems.n)
    if systems.by_vectors(has_callback=callback is not None):
        run = by_columns(systems, generalized_minimum_residuals, width=width, kind=kind, callback=callback)
    else:
        run = _in_blocks(systems, lambda *given, final, **how: block_gmres(*given, restart=width, **how))
    return corrected(systems, run, cycles * (1 if kind == "legacy" else width))


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
    systems = Systems.of("solve", A, B, x0, M, (rtol, atol), like, comm, device)
    operator, A = systems.operator, systems.A
    methods: dict[str, Callable[[Systems], Linear]] = {
        "factors": _by_factors,
        "cg": lambda each: _by_cg(each, each.limit(maxiter, 10)),
        "minres": lambda each: _by_minres(each, each.limit(maxiter, 5)),
        "gmres": lambda each: _by_gmres(each, each.limit(maxiter, 10, 1)),
    }
    names = ["gmres"]
    if systems.n and operator.hermitian_defect()[1] <= NOT_HERMITIAN * np.finfo(operator.dtype).eps:
        is_negative = hasattr(A, "diagonal") and not diagonal_of(A).min() > 0
        names = ["minres"] if is_negative else ["cg", "minres"]
        if M is None and operator.layout is None and is_explicit(A):
            from ..factorization.work import FactorWork

            if FactorWork.of(A).factor_s(operator.device) <= FACTORED_S:
                names.insert(0, "factors")
    tried: list[Linear] = []
    for name in names:
        try:
            found = methods[name](replace(systems, X=systems.X.copy(), counts=Counts()))
        except (BreakdownError, OptionError, ShapeError):
            if name != "factors":
                raise
            continue  # a matrix without factors, such as a singular one
        tried.append(replace(found, method=name))
        if found.converged:
            break
    excess = [found.residuals / np.maximum(systems.limits, np.finfo(float).tiny) for found in tried]
    i = int(np.argmin([each.max() for each in excess]))
    best, worst = tried[i], int(np.argmax(excess[i]))
    if not (best.converged or return_info):
        raise BreakdownError(
            f"solve: {best.method} ended with a residual of {best.residuals[worst]:.2e} for right-hand "
            f"side {worst}, above {systems.limits[worst]:.2e} ({best.reasons[worst]}); give an M, "
            "more iterations (maxiter) or a larger rtol, or take what there is with return_info=True."
        )
    return best if return_info else best.X


def _by_factors(systems: Systems) -> Linear:
    """Solve with factors, and refine."""
    A = systems.operator.backend.csr(systems.A, systems.B.dtype)  # copied to a GPU once
    factors = factorize(A)
    if factors.is_singular:
        raise BreakdownError("solve: A is singular.")

    def run(R: Block, goals: RealArray, *_: Any) -> tuple[NDArray[np.intp], Sequence[str]]:
        systems.X.axpy(1, factors.solve(R))
        return np.zeros(systems.b, np.intp), ["converged"] * systems.b

    return corrected(systems, run, 1)
