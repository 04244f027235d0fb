"""One right-hand side on the host: conjugate gradients and MINRES in calls of NumPy and BLAS, SciPy's GMRES.

For one vector the calls of blocks would take longer than the arithmetic on some thousand rows. A method
solves a `System`, and returns the number of iterations and the reason for stopping: "converged" by its
recurrence.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs
from scipy.sparse.linalg import LinearOperator
from scipy.sparse.linalg import gmres as scipy_gmres

from blockvec import BlockVector

from ..blocks import Array, Block, RealArray
from .calls import Run, Systems
from .systems import EXHAUSTED, INDEFINITE, SINGULAR, finite

Callback: TypeAlias = Callable[[Any], object] | None
Map: TypeAlias = Callable[[Array], Array]


class System(NamedTuple):
    """A system with the residual r, which is overwritten; its solution is added to x."""

    product: Map  # by A - shift I
    solve: Map  # the preconditioner
    r: Array
    x: Array
    goal: float  # norm of r
    maxiter: int
    final: float  # as of `block_minres`


def by_columns(systems: Systems, method: Callable[..., tuple[int, str]], **options: Any) -> Run:
    """Make a run that solves for the columns one by one."""
    shifts, M, counts = np.broadcast_to(systems.shift, (systems.b,)), systems.M, systems.counts

    def run(R: Block, goals: RealArray, *limits: Any) -> tuple[NDArray[np.intp], list[str]]:
        iterations, reasons = np.zeros(systems.b, np.intp), ["maxiter"] * systems.b
        for j in np.flatnonzero(goals < np.inf):
            r, x = (block.array[:, j].copy() for block in (R, systems.X))
            product = functools.partial(_product, systems.operator, counts.apply, float(shifts[j]))
            solve = functools.partial(_product, M, counts.precondition, 0.0)
            system = System(product, (lambda r: r) if M is None else solve, r, x, float(goals[j]), *limits)
            iterations[j], reasons[j] = method(system, **options)
            systems.X.array[:, j] = x
        return iterations, reasons

    return run


def _product(A: Any, count: Callable[[int], object], shift: float, x: Array) -> Array:
    """Apply A - shift I to a vector, which takes a tenth of the time of a call for a block."""
    count(1)
    matrix = getattr(A, "matrix", None)
    if matrix is None and A.dtype == x.dtype:
        y = np.empty_like(x)
        A.apply_columns(x[:, None], y[:, None], shift=shift)
        return y
    y = A.apply(BlockVector(x)).array.reshape(-1) if matrix is None else matrix @ x
    return np.asarray(y - shift * x if shift else y, x.dtype)


def conjugate_gradients(system: System, callback: Callback = None) -> tuple[int, str]:
    """Solve for positive definite A and preconditioner."""
    product, solve, r, x, goal, maxiter, _ = system
    axpy: Any = get_blas_funcs("axpy", (x,))
    size = rho_old = 0.0
    p = np.zeros_like(r)
    for step in range(maxiter):
        z = solve(r)
        rho = float(np.vdot(r, z).real)
        if rho <= 0:
            return step, "indefinite preconditioner"
        if rho_old:
            p *= rho / rho_old
        p = axpy(z, p)
        q = product(p)
        curvature = _dot(p, q)
        size = size or _norm(q) / _norm(p)  # a lower bound of ||A||
        if curvature <= 0:
            noise = INDEFINITE * float(np.finfo(x.dtype).eps) / 2 * size * _dot(p, p)
            return step, "stagnated" if curvature >= -noise else "indefinite"
        x = axpy(p, x, a=rho / curvature)
        r = axpy(q, r, a=-rho / curvature)
        rho_old = rho
        if callback is not None:
            callback(x)
        if _norm(r) <= goal:
            return step + 1, "converged"
    return maxiter, "maxiter"


def minimum_residuals(system: System, callback: Callback = None) -> tuple[int, str]:
    """Solve for Hermitian A and positive definite preconditioner.

    References
    ----------
    Paige, Saunders, SIAM J. Numer. Anal. 12 (1975) 617.
    """
    product, solve, r, x, goal, maxiter, final = system
    axpy: Any = get_blas_funcs("axpy", (x,))
    unit, norm = float(np.finfo(x.dtype).eps) / 2, 0.0
    z = solve(r)
    square = _dot(r, z)
    if square <= 0:
        return 0, "indefinite preconditioner"
    beta = phi = math.sqrt(square)
    goal *= beta / _norm(r)  # in the norm of K^-1, in which residuals decrease
    beta_old, cs, sn, dbar, epsln, least = 0.0, -1.0, 0.0, 0.0, 0.0, math.inf
    u_old, u, w, w_old = np.zeros_like(r), r, np.zeros_like(r), np.zeros_like(r)
    for step in range(1, maxiter + 1):
        v = z * (1 / beta)
        y = product(v)
        if beta_old:
            y = axpy(u_old, y, a=-beta / beta_old)
        alpha = _dot(v, y)
        y = axpy(u, y, a=-alpha / beta)
        u_old, u = u, y
        z = solve(u)
        square = _dot(u, z)
        if square < -INDEFINITE * unit * _norm(u) * _norm(z):
            return step, "indefinite preconditioner"
        beta_old, beta = beta, math.sqrt(max(square, 0.0))
        norm = max(norm, math.sqrt(alpha**2 + beta**2 + (beta_old**2 if step > 1 else 0.0)))
        delta, gbar = cs * dbar + sn * alpha, sn * dbar - cs * alpha
        epsln_old, epsln, dbar = epsln, sn * beta, -cs * beta
        gamma = math.hypot(gbar, beta)
        least = min(least, gamma)  # also a pivot of a null vector, before the norm is known
        # ||A r|| / ||r||: r may be a null vector, or belong to a small eigenvalue, which a second run tells.
        if math.hypot(gbar, dbar) <= final * norm or least <= SINGULAR * unit * norm:
            return step, "singular"
        cs, sn = gbar / gamma, beta / gamma
        w_old *= -epsln_old / gamma
        w_old = axpy(v, axpy(w, w_old, a=-delta / gamma), a=1 / gamma)
        w_old, w = w, w_old
        x = axpy(w, x, a=cs * phi)
        phi *= sn
        if callback is not None:
            callback(x.copy())
        if phi <= goal or beta <= EXHAUSTED * unit * norm:
            return step, "converged"
    return maxiter, "maxiter"


def generalized_minimum_residuals(
    system: System, width: int, kind: str, callback: Callback = None
) -> tuple[int, str]:
    """Solve for any A by SciPy's GMRES, with restarts after `width` steps and callbacks of a kind."""
    product, solve, r, x, goal, maxiter, _ = system
    shape, counted = (len(x), len(x)), []

    def noted(value: Any) -> None:
        counted.append(1)
        if callback is not None:
            callback(value)

    A, M = (LinearOperator(shape, matvec=each, dtype=x.dtype) for each in (product, solve))
    cycles = maxiter if kind == "legacy" else -(-maxiter // width)
    b = r + product(x) if x.any() else r
    options: Any = {"restart": width, "maxiter": cycles, "callback": noted, "callback_type": kind}
    x[:], is_short = scipy_gmres(A, b, x, rtol=0, atol=goal, M=M, **options)
    return (maxiter, "maxiter") if is_short else (len(counted), "converged")


def _dot(x: Array, y: Array) -> float:
    """Compute the real part of x^H y, a finite number."""
    value = float(np.vdot(x, y).real)
    if not math.isfinite(value):
        finite(np.array(value))
    return value


def _norm(x: Array) -> float:
    return math.sqrt(_dot(x, x))
