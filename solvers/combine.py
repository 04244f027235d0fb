"""Solves in several parts: checkpoints, what is left of the time, and both ends of a spectrum in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from blockvec import BlockVector, array_namespace

from .blocks import RealArray, project_out, to_host
from .drivers import Request
from .iterations.base import IterationState
from .iterations.rayleigh_ritz import ritz_pairs
from .result import EigenResult

__all__ = [
    "both_ends",
    "continued",
    "ritz_step",
    "side_by_side",
    "staged",
    "time_left",
    "totals",
    "within_time",
]

COUNTED = ("operator_columns", "block_applications", "restarts", "reductions", "verification_columns")
GO_ON_AFTER = ("converged", "maxiter", "stagnated")  # other reasons to stop are meant for the whole solve


def staged(request: Request, name: str) -> Request:
    """Return a part of a solve, with a checkpoint of its own."""
    checkpoint = request.checkpoint
    return request if checkpoint is None else replace(request, checkpoint=checkpoint.stage(name))


def time_left(limit_s: float | None, begin_s: float) -> float | None:
    """Return what is left of a time limit."""
    return None if limit_s is None else max(limit_s - (time.perf_counter() - begin_s), 1e-3)


def within_time(request: Request) -> Request:
    """Return the same with what is left of the time limit."""
    return replace(request, time_limit=time_left(request.time_limit, request.begin_s))


def totals(first: EigenResult, second: EigenResult) -> dict[str, int]:
    """Return what two parts have cost together, as entries of `info`."""
    return {name: first.info[name] + second.info[name] for name in COUNTED}


def continued(first: EigenResult, second: EigenResult) -> Sequence[IterationState]:
    """Return the history of two parts, one after the other."""
    if not first.history:
        return second.history
    last, columns = first.history[-1], first.info["operator_columns"]
    return [
        *first.history,
        *(
            replace(
                state,
                restart=last.restart + 1 + state.restart,
                operator_columns=columns + state.operator_columns,
                time_s=last.time_s + state.time_s,
            )
            for state in second.history
        ),
    ]


def both_ends(request: Request, solve: Callable[[Request], EigenResult]) -> EigenResult:
    """Solve for the high end, then for the low end in the complement of what was found.

    The complement makes the halves orthogonal also where a multiple eigenvalue reaches from one to the other.
    A run that is stopped at the high end returns that.

    Parameters
    ----------
    request : Request
        With ``which="BE"``.
    solve : callable
        Solves for one end.
    """
    k_low = request.k // 2
    high = replace(staged(request, "LA"), which="LA", k=request.k - k_low)
    if request.start is not None:
        high = replace(high, start=request.start.copy())
    first = solve(high)
    if k_low == 0 or first.info["stopped"] not in GO_ON_AFTER:
        return replace(first, info=first.info | {"which": "BE", "k": request.k})
    X = BlockVector(first.eigenvectors)
    low = replace(within_time(staged(request, "SA")), which="SA", k=k_low, checked=False)
    if request.locked is None:  # A leads out of the user's columns, for all we know
        low = replace(low, deflated=to_host(first.eigenvalues).astype(np.float64))
    second = solve(replace(low, locked=side_by_side(X, request.locked)))
    return _joined(request, first, second)


def ritz_step(request: Request, X: BlockVector) -> tuple[RealArray, RealArray, BlockVector]:
    """Turn orthonormal columns into Ritz vectors, in place; return values, residual norms and residuals."""
    R = project_out(request.locked, request.operator.apply(X))
    theta, U = ritz_pairs(to_host(X.dot(R)))
    xp = array_namespace(X.array)
    for block in (X, R):
        block.combine(xp.asarray(U.astype(X.dtype)), out=block)
    R.axpy(xp.asarray(-theta.astype(X.array.real.dtype)), X)
    return theta, to_host(R.norms()).astype(np.float64), R


def side_by_side(*blocks: BlockVector | None) -> BlockVector:
    """Return copies of the columns of some blocks in one."""
    there = [block for block in blocks if block is not None]
    both = there[0].like(sum(block.n_cols for block in there))
    begin = 0
    for block in there:
        both[:, begin : begin + block.n_cols] = block
        begin += block.n_cols
    return both


def _joined(request: Request, high: EigenResult, low: EigenResult) -> EigenResult:
    """Return both ends as one result, after a Rayleigh-Ritz step that tells them apart to rounding."""
    X = side_by_side(*(BlockVector(part.eigenvectors) for part in (low, high)))
    theta, residuals, _ = ritz_step(request, X)
    norm = max(high.info["norm"], low.info["norm"])
    limits = np.broadcast_to(request.tolerance.limits(theta, norm), theta.shape)
    info: dict[str, Any] = {"k": request.k, "which": "BE", "norm": norm} | totals(high, low)
    info["operator_columns"] += X.n_cols
    info["block_applications"] += 1
    info["reductions"] += 2
    info["missing"] = high.info["missing"] + low.info["missing"]
    info["stopped"] = low.info["stopped"] if high.info["stopped"] == "converged" else high.info["stopped"]
    for name in ("method", "why", "verification"):
        texts = high.info[name], low.info[name]
        info[name] = texts[0] if texts[0] == texts[1] else f"high end: {texts[0]}; low end: {texts[1]}"
    info["time_s"] = time.perf_counter() - request.begin_s
    return EigenResult(
        eigenvalues=array_namespace(X.array).asarray(theta.astype(X.array.real.dtype)),
        eigenvectors=X.array,
        residuals=residuals,
        limits=limits,
        converged=residuals <= limits,
        info=low.info | info,
        history=continued(high, low),
    )
