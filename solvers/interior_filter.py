"""Eigenvalues inside a spectrum by a polynomial filter, without a factorisation.

The eigenvalues of A nearest to sigma are the lowest of (A - sigma I)^2, and a Chebyshev polynomial of degree
d of that is one of degree 2 d of A, large in a window around sigma and small on both sides: the best there
is for a window in the middle of the spectrum. So the filtered iteration finds them as it finds an end, with
all of its guards: bounds that are noticed where they are wrong, and the search for missed copies.

Squaring loses two things, and both are given back by a Rayleigh-Ritz step with A on what was found. Values at
equal distances on both sides of sigma have become copies of one: a mixture x of both that has lost its
partners finds them in (A - sigma I) x. And a residual r of the square is one of about r/delta in A, for the
distance delta of the furthest value wanted, so that the square is solved as accurately as that asks for, and
as rounding lets it: residuals of A stay above some 100 u ||A||^2 / delta.

References
----------
Wang, Zunger, J. Chem. Phys. 100 (1994) 2394 (folding); Pieper et al., J. Comput. Phys. 325 (2016) 226
(windows by filters). Deviation: the window is never given, it is what the wanted number of pairs needs.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blockvec import BlockVector, array_namespace

from .blocks import RealArray, pick
from .combine import continued, ritz_step, side_by_side, staged, totals, within_time
from .drivers import Request, solve_iteratively
from .iterations.rayleigh_ritz import Tolerance
from .orthogonalize import orthogonalize
from .result import EigenResult
from .transform.fold import FoldedOperator

__all__ = ["solve_window"]

SPARE = 2  # pairs more than are wanted: the last ones converge slowest
MIXED = 0.03  # residuals beyond so many distances from sigma are those of mixtures
SHARE = 0.3  # of the residual that the square may have by the estimate
TIGHTER = 0.1  # times that in another round
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class SquaredTolerance(Tolerance):
    """Residuals that (A - sigma I)^2 may have for those of A to count as converged.

    Attributes
    ----------
    sigma : float
    share : float
        Of the residual that the estimate allows.
    norm : float or None
        ||A|| where it is given.
    """

    sigma: float = 0.0
    share: float = SHARE
    norm: float | None = None

    def limits(self, theta: RealArray, norm: float) -> RealArray:
        """Return the largest residual for each value of the square, given the norm of the square."""
        distance = np.sqrt(np.abs(theta))
        nearest = np.abs(abs(self.sigma) - distance)  # what abs(lambda) is at least
        wanted = Tolerance.limits(self, nearest, _norm_of_root(norm, self.sigma, self.norm))
        limits: RealArray = np.maximum(
            self.share * wanted * distance.max(initial=0.0), self.floor(theta, norm)
        )
        return limits


def _norm_of_root(norm: float, sigma: float, given: float | None) -> float:
    """Return ||A||, at least, from the norm of (A - sigma I)^2."""
    root = math.sqrt(norm)
    return max(root - abs(sigma), root / 2) if given is None else given


def solve_window(request: Request) -> EigenResult:
    """Return the k eigenpairs nearest to `request.sigma`.

    Callbacks and the history see eigenvalues and residuals of (A - sigma I)^2.

    Parameters
    ----------
    request : Request
        With ``method="filter"`` and a sigma.
    """
    assert request.sigma is not None
    folded: Any = FoldedOperator(request.operator, request.sigma, request.locked)
    room = request.n - (0 if request.locked is None else request.locked.n_cols)
    asked = request.tolerance
    tolerance = SquaredTolerance(
        asked.tol, asked.convergence, asked.unit, sigma=request.sigma, norm=request.norm
    )
    extra, start, result = SPARE, request.start, None
    for turn in range(ROUNDS):
        k = min(request.k + extra, room)
        part = replace(
            within_time(staged(request, f"window {turn}")),
            operator=folded,
            k=k,
            which="SA",
            sigma=None,
            norm=None,
            ncv=min(max(request.ncv, k + request.block_size) + extra, room),
            degree=max(2, request.degree // 2),
            tolerance=tolerance,
            checked=request.checked and turn == 0,
            start=start,
            verify=request.verify if turn == 0 else "never",
        )
        square = solve_iteratively(part)
        found, start = _unfolded(request, square), BlockVector(square.eigenvectors)
        if result is not None:
            info = found.info | totals(result, found)
            info |= {name: result.info[name] for name in ("verification", "missing")}
            found = replace(found, info=info, history=tuple(continued(result, found)))
        result = found
        if result.converged.all() or square.info["stopped"] != "converged":
            break
        extra += request.block_size  # further values: rounding hurts less where the furthest is not at sigma
        tolerance = replace(tolerance, share=TIGHTER * tolerance.share)
    assert result is not None
    return result


def _unfolded(request: Request, square: EigenResult) -> EigenResult:
    """Return what was found as eigenpairs of A, the k nearest to sigma, ascending."""
    assert request.sigma is not None
    sigma, X = request.sigma, BlockVector(square.eigenvectors)
    theta, residuals, R = ritz_step(request, X)
    columns, blocks = X.n_cols, 1
    norm = _norm_of_root(square.info["norm"], sigma, request.norm)
    # ||(A - sigma I) x||: a mixture of values on both sides is no nearer than they are.
    distance = np.hypot(theta - sigma, residuals)
    known = side_by_side(X, request.locked)
    failed = residuals > np.maximum(MIXED * distance, request.tolerance.limits(theta, norm))
    mixed = np.flatnonzero(failed)[: request.n - known.n_cols]
    if len(mixed):
        partners = pick(R, mixed)
        orthogonalize(partners, known)
        X = side_by_side(X, partners)
        theta, residuals, _ = ritz_step(request, X)
        columns, blocks = columns + X.n_cols, 2
        distance = np.hypot(theta - sigma, residuals)
    nearest = np.sort(np.argsort(distance, kind="stable")[: request.k])
    theta, residuals = theta[nearest], residuals[nearest]
    limits = np.broadcast_to(request.tolerance.limits(theta, norm), theta.shape)
    info = square.info | {"k": request.k, "which": "LM", "sigma": sigma, "norm": norm}
    info |= {"tol": request.tolerance.tol, "convergence": request.tolerance.convergence}
    # Each application of the square is two of A.
    info["operator_columns"] = 2 * info["operator_columns"] + columns
    info["block_applications"] = 2 * info["block_applications"] + blocks
    info["degree"] = 2 * info["degree"]
    info["time_s"] = time.perf_counter() - request.begin_s
    xp = array_namespace(X.array)
    return EigenResult(
        eigenvalues=xp.asarray(theta.astype(X.array.real.dtype)),
        eigenvectors=xp.ascontiguousarray(X.array[:, xp.asarray(nearest)]),
        residuals=residuals,
        limits=limits,
        converged=residuals <= limits,
        info=info,
        history=square.history,
    )
