"""One right-hand side on the host: conjugate gradients and MINRES in calls of NumPy and BLAS, SciPy's GMRES.

For one vector the calls of blocks would take longer than the arithmetic on some thousand rows. The functions
begin with a residual r, which they overwrite, add to x, and return the number of iterations and the reason
for stopping: "converged" by their recurrence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from scipy.linalg import get_blas_funcs
from scipy.sparse.linalg import LinearOperator
from scipy.sparse.linalg import gmres as scipy_gmres

from ..blocks import Array
from .systems import EXHAUSTED, INDEFINITE, SINGULAR, Reason, finite

Product: TypeAlias = Callable[[Array], Array]
Callback: TypeAlias = Callable[[Array], object] | None


def conjugate_gradients(
    product: Product,
    solve: Product | None,
    r: Array,
    x: Array,
    goal: float,
    maxiter: int,
    final: float,
    callback: Callback,
) -> tuple[int, Reason]:
    """Solve for positive definite A, preconditioned by `solve`, until ||r|| is below the goal."""
    axpy: Any = get_blas_funcs("axpy", (x,))
    size = rho_old = 0.0
    p = np.zeros_like(r)
    for step in range(maxiter):
        z = r if solve is None else solve(r)
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


def minimum_residuals(
    product: Product,
    solve: Product | None,
    r: Array,
    x: Array,
    goal: float,
    maxiter: int,
    final: float,
    callback: Callback,
) -> tuple[int, Reason]:
    """Solve for Hermitian A, preconditioned by `solve`, which is positive definite.

    References
    ----------
    Paige, Saunders, SIAM J. Numer. Anal. 12 (1975) 617.
    """
    axpy: Any = get_blas_funcs("axpy", (x,))
    unit, norm = float(np.finfo(x.dtype).eps) / 2, 0.0
    z = r if solve is None else solve(r)
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
        z = u if solve is None else solve(u)
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
            callback(x)
        if phi <= goal or beta <= EXHAUSTED * unit * norm:
            return step, "converged"
    return maxiter, "maxiter"


def generalized_minimum_residuals(
    product: Product,
    solve: Product | None,
    r: Array,
    x: Array,
    goal: float,
    maxiter: int,
    final: float,
    callback: Callable[[Any], object] | None,
    width: int,
    kind: str,
) -> tuple[int, Reason]:
    """Solve for any A by SciPy's GMRES, with restarts after `width` steps and callbacks of a kind."""
    count = 0

    def noted(value: Any) -> None:
        nonlocal count
        count += 1
        if callback is not None:
            callback(value)

    shape = len(x), len(x)
    A: Any = LinearOperator(shape, matvec=product, dtype=x.dtype)
    M: Any = None if solve is None else LinearOperator(shape, matvec=solve, dtype=x.dtype)
    cycles = maxiter if kind == "legacy" else -(-maxiter // width)
    b = r + product(x) if x.any() else r
    options: dict[str, Any] = {"restart": width, "maxiter": cycles, "callback_type": kind}
    x[:], is_short = scipy_gmres(A, b, x, rtol=0, atol=goal, M=M, callback=noted, **options)
    return (maxiter, "maxiter") if is_short else (count, "converged")


def _dot(x: Array, y: Array) -> float:
    """Compute the real part of x^H y, a finite number."""
    value = float(np.vdot(x, y).real)
    if not math.isfinite(value):
        finite(np.array(value))
    return value


def _norm(x: Array) -> float:
    return math.sqrt(_dot(x, x))
