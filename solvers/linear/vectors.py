"""One right-hand side on the host: conjugate gradients, MINRES and GMRES in calls of NumPy and BLAS.

For one vector the calls of blocks would take longer than the arithmetic on some thousand rows. Every function
iterates from x, which it overwrites, and returns the true residual norm, the number of iterations and the
reason for stopping. Recurrences drift from the true residual by rounding: where they are below the limit and
the residual is not, the iteration starts again from x, unless that does not help.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from ..blocks import Array
from .systems import AGAIN, DOUBTFUL, EXHAUSTED, INDEFINITE, PROGRESS, SINGULAR, TRIAL, Reason, finite

Product: TypeAlias = Callable[[Array], Array]
Outcome: TypeAlias = tuple[float, int, Reason]


def conjugate_gradients(
    product: Product,
    solve: Product | None,
    b: Array,
    x: Array,
    limit: float,
    *,
    maxiter: int,
    callback: Callable[[Array], object] | None,
) -> Outcome:
    """Solve A x = b for positive definite A, preconditioned by `solve`."""
    axpy: Any = get_blas_funcs("axpy", (x,))
    unit = float(np.finfo(x.dtype).eps) / 2
    steps, before = 0, math.inf
    while True:
        r = b - product(x) if x.any() else b.copy()
        residual = _norm(r)
        if residual <= limit:
            return residual, steps, "converged"
        if steps >= maxiter:
            return residual, steps, "maxiter"
        if residual > PROGRESS * before:
            return residual, steps, "stagnated"
        goal = limit if before == math.inf else AGAIN * limit
        before, rho_old, p = residual, 0.0, np.zeros_like(r)
        while residual > goal and steps < maxiter:
            z = r if solve is None else solve(r)
            rho = float(np.vdot(r, z).real)
            if rho <= 0:
                return _norm(b - product(x)), steps, "indefinite preconditioner"
            if rho_old:
                p *= rho / rho_old
            p = axpy(z, p)
            q = product(p)
            curvature = _dot(p, q)
            if curvature <= 0:
                noise = INDEFINITE * unit * _norm(product(b)) / _norm(b) * _dot(p, p)  # of ||A|| ||p||^2
                return _norm(b - product(x)), steps, "stagnated" if curvature >= -noise else "indefinite"
            x = axpy(p, x, a=rho / curvature)
            r = axpy(q, r, a=-rho / curvature)
            rho_old, residual = rho, _norm(r)
            steps += 1
            if callback is not None:
                callback(x)


def minimum_residuals(
    product: Product,
    solve: Product | None,
    b: Array,
    x: Array,
    limit: float,
    *,
    maxiter: int,
    callback: Callable[[Array], object] | None,
) -> Outcome:
    """Solve A x = b for Hermitian A, preconditioned by `solve`, which is positive definite.

    References
    ----------
    Paige, Saunders, SIAM J. Numer. Anal. 12 (1975) 617.
    """
    axpy: Any = get_blas_funcs("axpy", (x,))
    unit = float(np.finfo(x.dtype).eps) / 2
    steps, before, norm, hit, is_trial, kept = 0, math.inf, 0.0, False, False, x
    while True:
        r = b - product(x) if x.any() else b.copy()
        residual = _norm(r)
        if residual <= limit:
            return residual, steps, "converged"
        if is_trial and residual > PROGRESS * before:
            x[:] = kept  # null vectors that rounding has added may have any length
            return before, steps, "singular"
        if steps >= maxiter:
            return residual, steps, "maxiter"
        if residual > PROGRESS * before and not hit:
            return residual, steps, "stagnated"
        goal, before = limit / residual * (1.0 if before == math.inf else AGAIN), residual
        is_trial, kept = hit and not is_trial, x.copy()
        z = r if solve is None else solve(r)
        square = _dot(r, z)
        if square <= 0:
            return residual, steps, "indefinite preconditioner"
        beta = phi = math.sqrt(square)
        goal *= beta  # in the norm of K^-1, in which residuals decrease
        final = SINGULAR * unit if is_trial else DOUBTFUL * math.sqrt(unit)
        last = min(maxiter, steps + TRIAL) if is_trial else maxiter
        beta_old, cs, sn, dbar, epsln, hit = 0.0, -1.0, 0.0, 0.0, 0.0, False
        u_old, u, w, w_old = np.zeros_like(r), r, np.zeros_like(r), np.zeros_like(r)
        while steps < last:
            steps += 1
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
                return _norm(b - product(x)), steps, "indefinite preconditioner"
            beta_old, beta = beta, math.sqrt(max(square, 0.0))
            norm = max(norm, math.sqrt(alpha**2 + beta**2 + (beta_old**2 if steps > 1 else 0.0)))
            delta, gbar = cs * dbar + sn * alpha, sn * dbar - cs * alpha
            epsln_old, epsln, dbar = epsln, sn * beta, -cs * beta
            gamma = math.hypot(gbar, beta)
            # ||A r|| / ||r||: r may be a null vector, or belong to a small eigenvalue, which a trial tells.
            if math.hypot(gbar, dbar) <= final * norm or gamma <= SINGULAR * unit * norm:
                hit = True
                break
            cs, sn = gbar / gamma, beta / gamma
            w_old *= -epsln_old / gamma
            w_old = axpy(v, axpy(w, w_old, a=-delta / gamma), a=1 / gamma)
            w_old, w = w, w_old
            x = axpy(w, x, a=cs * phi)
            phi *= sn
            if callback is not None:
                callback(x)
            if phi <= goal or beta <= EXHAUSTED * unit * norm:
                break


def generalized_minimum_residuals(
    product: Product,
    solve: Product | None,
    b: Array,
    x: Array,
    limit: float,
    *,
    cycles: int,
    restart: int,
    steps_left: float,
    on_step: Callable[[float], object] | None,
    on_cycle: Callable[[Array], object] | None,
) -> Outcome:
    """Solve A x = b by GMRES, preconditioned on the left by `solve`, by at most `cycles` of `restart` steps.

    `on_step` is called with the norm of the preconditioned residual, `on_cycle` with x. Deviation from Saad
    and Schultz: classical Gram-Schmidt, twice, in products of BLAS.
    """
    lartg: Any = get_lapack_funcs("lartg", (x,))
    unit = float(np.finfo(x.dtype).eps) / 2
    V = np.empty((len(x), restart + 1), x.dtype, order="F")
    steps, factor, passed = 0, 1.0, False
    for cycle in range(cycles + 1):
        r = b - product(x) if x.any() else b.copy()
        residual = _norm(r)
        if residual <= limit:
            return residual, steps, "converged"
        if cycle == cycles or steps >= steps_left:
            break
        z = r if solve is None else solve(r)
        size = _norm(z)
        if size == 0:
            return residual, steps, "singular"
        if cycle:  # the norm of the preconditioned residual may say too early that x is good enough
            factor = max(unit, 0.25 * factor) if passed else min(1.0, 1.5 * factor)
        goal, is_exhausted = size * min(factor, limit / residual), False
        V[:, 0] = z / size
        H, g = np.zeros((restart + 1, restart), x.dtype), np.zeros(restart + 1, x.dtype)
        turns: list[tuple[Any, Any]] = []
        g[0] = size
        for k in range(restart):
            w = product(V[:, k])
            w = w if solve is None else solve(w)
            length = _norm(w)
            basis, h = V[:, : k + 1], np.zeros(k + 1, x.dtype)
            for _ in range(2):  # twice is enough
                part = basis.conj().T @ w if x.dtype.kind == "c" else basis.T @ w
                w = w - basis @ part
                h += part
            rest = _norm(w)
            is_exhausted = not rest > EXHAUSTED * unit * length
            H[: k + 1, k] = h
            for i, (c, s) in enumerate(turns):
                H[i, k], H[i + 1, k] = c * H[i, k] + s * H[i + 1, k], c * H[i + 1, k] - np.conj(s) * H[i, k]
            c, s, H[k, k] = lartg(H[k, k], 0 if is_exhausted else rest)
            turns.append((c, s))
            g[k], g[k + 1] = c * g[k], -np.conj(s) * g[k]
            steps += 1
            finite(g[: k + 2])
            if on_step is not None:
                on_step(np.float64(abs(g[k + 1])))
            if is_exhausted or abs(g[k + 1]) <= goal or steps >= steps_left:
                break
            V[:, k + 1] = w / rest
        passed, T = abs(g[k + 1]) <= goal, H[: k + 1, : k + 1]
        is_singular = abs(T[k, k]) <= SINGULAR * unit * np.abs(T).max(initial=0)
        if is_singular:  # no combination of directions reduces the residual by the last one
            T, g, k = T[:k, :k], g[:k], k - 1
        x += V[:, : k + 1] @ np.linalg.solve(T, g[: k + 1])
        if on_cycle is not None:
            on_cycle(x)
        if is_singular or is_exhausted:
            before, residual = residual, _norm(b - product(x))
            if residual <= limit:
                return residual, steps, "converged"
            if residual > PROGRESS * before:
                return residual, steps, "singular" if is_singular else "stagnated"
    return residual, steps, "maxiter"


def _dot(x: Array, y: Array) -> float:
    """Compute the real part of x^H y, a finite number."""
    value = float(np.vdot(x, y).real)
    if not math.isfinite(value):
        finite(np.array(value))
    return value


def _norm(x: Array) -> float:
    return math.sqrt(_dot(x, x))
