"""Solves in several parts: both ends of a spectrum in turn, and totals of costs, time and history."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blockvec import BlockVector, array_namespace

from ..blocks import (
    Block,
    RealArray,
    apply_in_ranges,
    column_factors,
    project_out,
    side_by_side,
    small_matrix,
    to_host,
)
from ..iterations.rayleigh_ritz import Selection, Which, ranking_key, ritz_pairs
from ..orthogonalization import orthogonalize
from ..orthogonalization.factors import cholesky_factor
from ..problem import IterationState, Problem
from ..result import EigenResult, SolveInfo
from ..runtime.processes import delivered

if TYPE_CHECKING:
    from ..transform.spectral_map import SpectralMap

COUNTED = (
    *("operator_columns", "single_columns", "block_applications", "restarts", "reductions"),
    "verification_columns",
)
COLUMNS_AT_ONCE = 8  # columns per product on a GPU: a block size whose kernels are compiled


def staged(problem: Problem, name: str) -> Problem:
    """Give a part of a solve a checkpoint of its own."""
    checkpoint = problem.checkpoint
    return problem if checkpoint is None else replace(problem, checkpoint=checkpoint.stage(name))


def totals(first: EigenResult, second: EigenResult) -> dict[str, Any]:
    """Add the costs of two parts, as entries of `info`."""
    costs: list[dict[str, Any]] = [dict(part.info) for part in (first, second)]
    return {name: costs[0][name] + costs[1][name] for name in COUNTED}


def continued(first: EigenResult, second: EigenResult) -> Sequence[IterationState]:
    """Concatenate the histories of two parts."""
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
                time_s=max(last.time_s, state.time_s),  # a resumed one counts what came before
            )
            for state in second.history
        ),
    ]


def one_after_other(
    first: EigenResult,
    second: EigenResult,
    which: Selection | None = None,
    map: SpectralMap | None = None,
    **entries: Any,
) -> EigenResult:
    """Join a stage and the one that follows it; `entries` replace others of the `info`.

    The pairs are those of the second, with the costs and the history of both. Where it lacks a pair that the
    first had settled, among the wanted ones by `which` of the values of a `map`, they remain those of the
    first. Without `which` the first had only prepared the second.
    """
    costs: dict[str, Any] = {**totals(first, second), **entries}
    result, history = second, continued(first, second)
    if which is not None and lacks(second, first, which, map):
        stopped = second.info["stopped"]
        costs["stopped"] = "stagnated" if stopped == "converged" else stopped
        costs["why"] = f"{first.info['why']}; a later stage had lost pairs"
        result = first
    return result.with_info(**costs, history=history)


def concatenated(parts: Sequence[EigenResult], told: EigenResult) -> EigenResult:
    """Concatenate the pairs of several parts; `told` describes the result."""
    xp = array_namespace(parts[0].eigenvectors)
    numbers: Any = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("residuals", "limits", "converged")
    }
    return replace(
        told,
        eigenvalues=xp.concatenate([part.eigenvalues for part in parts]),
        eigenvectors=xp.ascontiguousarray(xp.concatenate([part.eigenvectors for part in parts], axis=1)),
        **numbers,
    )


def lacks(later: EigenResult, first: EigenResult, which: Selection, map: SpectralMap | None = None) -> bool:
    """Check whether a later result lacks a pair that a first one had settled, and has less wanted ones.

    Values are counted with their copies, and agree within the errors of both. `which` selects values of a
    `map`.
    """
    settled, others = _ranges(first)[:, first.converged], _ranges(later)
    lost = settled[:, _unmatched(settled, others)]
    if lost.shape[1] == 0:
        return False
    if map is not None:
        lost, others = map.transformed(lost), map.transformed(others)
    sides: dict[Which, RealArray] = {}
    if which == "BE":
        others, low = others[:, np.argsort(others.mean(axis=0), kind="stable")], others.shape[1] // 2
        sides = {"SA": others[:, :low], "LA": others[:, low:]}
    else:
        sides = {which: others}
    return any(
        (ranking_key(lost, side).min(axis=0) > ranking_key(ends, side).max(axis=0).min(initial=np.inf)).any()
        for side, ends in sides.items()
    )


def errors_allowed(result: EigenResult, floor: float | None = None) -> RealArray:
    """Compute how far eigenvalues may be from those computed, as far as the limits of residuals tell.

    The vectors have norm one in an inner product: an eigenvalue differs by the residual times their lengths.
    Residuals that are below their limits tell more, down to a `floor` of rounding errors, if it is given:
    where lengths are large, as beside light masses, errors that the limits allow extend over several
    eigenvalues.
    """
    X = result.eigenvectors
    lengths = to_host((X if isinstance(X, BlockVector) else BlockVector(X)).norms()).astype(np.float64)
    allowed: RealArray = result.limits * lengths
    return allowed if floor is None else np.minimum(allowed, np.maximum(result.residuals * lengths, floor))


def _ranges(result: EigenResult) -> RealArray:
    """Compute the ends of the range that each eigenvalue may be in, ascending."""
    values, errors = to_host(result.eigenvalues).astype(np.float64), errors_allowed(result)
    return np.stack([values - errors, values + errors])


def _unmatched(settled: RealArray, others: RealArray) -> list[int]:
    """Find the ranges, in ascending order, that overlap with none of others which is not taken already."""
    unmatched, taken = [], 0
    for j, (low, high) in enumerate(settled.T):
        while taken < others.shape[1] and others[1, taken] < low:
            taken += 1
        if taken < others.shape[1] and others[0, taken] <= high:
            taken += 1
        else:
            unmatched.append(j)
    return unmatched


def both_ends(
    problem: Problem,
    solve: Callable[[Problem], EigenResult],
    join: Callable[[Problem, EigenResult, EigenResult], EigenResult] | None = None,
) -> EigenResult:
    """Solve for the high end, then for the low end.

    Where their values are not apart, the low end is solved for in the complement of the vectors found, which
    makes the halves orthogonal also where both have copies of a multiple eigenvalue. After Ctrl-C at the high
    end only that is returned. Stopped by a time limit or callback there, the solve for the low end stops as
    soon as it has as many vectors as pairs are wanted.
    """
    k_low, join = problem.k // 2, join_ends if join is None else join
    high = replace(staged(problem, "LA"), which="LA", k=problem.k - k_low)
    if problem.start is not None:
        high = replace(high, start=problem.start.copy())
    low = replace(staged(problem, "SA"), which="SA", k=k_low)  # refuses a foreign file before the solve
    first = solve(high)
    stopped = first.info["stopped"]
    if k_low == 0 or stopped == "interrupted" or (stopped == "costly" and problem.may_be_dense):
        return first.with_info(which="BE", k=problem.k)
    alone = solve(low) if stopped == "converged" else None
    if alone is not None and (are_apart(alone, first) or alone.info["stopped"] == "interrupted"):
        return join(problem, first, alone)
    X, low = problem.blocks(first.eigenvectors), replace(low, checkpoint=None)
    orthogonalize(X, rng=problem.rng)  # those of an inverse are so to the digits that they have
    if stopped == "callback":
        low = replace(low, callback=lambda state: True)
    if problem.locked is None:  # the columns of a caller need not be invariant under A
        low = replace(low, deflated=to_host(first.eigenvalues).astype(np.float64))
    second = solve(replace(low, locked=side_by_side(X, problem.locked)))
    return join(problem, first, second if alone is None else one_after_other(alone, second))


def are_apart(low: EigenResult, high: EigenResult) -> bool:
    """Check that no value of the low end reaches those of the high end, within their errors."""
    limits = [replace(end, limits=np.maximum(end.limits, end.residuals)) for end in (low, high)]
    errors = sum(float(errors_allowed(end).max()) for end in limits)
    return float(to_host(low.eigenvalues).max()) + errors < float(to_host(high.eigenvalues).min())


def ritz_step(problem: Problem, X: Block) -> tuple[RealArray, RealArray, Block]:
    """Turn orthonormal columns into Ritz vectors, in place; return values, residual norms, and residuals."""
    R = X.like()
    apply_in_ranges(problem.operator, X, R, COLUMNS_AT_ONCE)
    project_out(problem.locked, R)
    theta, U = ritz_pairs(to_host(X.dot(R)))
    for block in (X, R):
        block.combine(small_matrix(U, X), out=block)
    R.axpy(column_factors(-theta, X), X)
    # Sums over long vectors may have errors above the limits of residuals; those of small numbers do not.
    errors = to_host(X.column_dot(R)).real.astype(np.float64)
    R.axpy(column_factors(-errors, X), X)
    order = np.argsort(theta + errors, kind="stable")
    if (order[1:] < order[:-1]).any():  # copies
        for block in (X, R):
            block.combine(small_matrix(np.eye(len(order))[:, order], X), out=block)
    return (theta + errors)[order], to_host(R.norms()).astype(np.float64), R


def join_ends(problem: Problem, high: EigenResult, low: EigenResult) -> EigenResult:
    """Join both ends into one result, after a Rayleigh-Ritz step that separates them to rounding.

    Solves of a shifted problem lose some orthogonality to locked columns.
    """
    X = side_by_side(*(problem.blocks(part.eigenvectors) for part in (low, high)))
    G = to_host(X.gram())
    _, inverse, *_, size = cholesky_factor(np.asfortranarray(G, np.result_type(G, np.float64)))
    if np.isfinite(size):
        X.combine(small_matrix(inverse, X), out=X)
    theta, residuals, _ = ritz_step(problem, X)
    info = described_ends(problem, high, low)
    limits = problem.tolerance.limits(theta, info["norm"])
    vectors = delivered(X.array, problem.operator.layout)
    verification, history = high.verification.joined(low.verification), continued(high, low)
    return EigenResult.from_pairs(theta, vectors, residuals, limits, verification, info, history)


def with_outliers(problem: Problem, done: EigenResult, others: EigenResult) -> EigenResult:
    """Join computed values far out, and the others, which a solve without them has found."""
    joined, info = join_ends(problem, done, others), others.info
    told: Any = {name: info[name] for name in ("method", "stopped", "verification")}
    why = f"{info['why']}, once {len(done.residuals)} values further out were computed"
    joined = replace(joined, verification=others.verification)
    return joined.with_info(which=problem.which, why=why, **told)


def described_ends(problem: Problem, high: EigenResult, low: EigenResult) -> SolveInfo:
    """Describe a result that both ends have been joined to."""
    info = both_described(high, low)
    info["k"], info["which"] = problem.k, "BE"
    info["operator_columns"] += problem.k
    info["block_applications"] += 1
    info["reductions"] += 4
    info["time_s"] = time.perf_counter() - problem.begin_s
    return info


def both_described(high: EigenResult, low: EigenResult) -> SolveInfo:
    """Describe the results of two solves as one, but for what was asked for."""
    info = low.info.copy()
    info.update(totals(high, low))  # type: ignore[typeddict-item]
    info["norm"] = max(high.info["norm"], low.info["norm"])
    info["missing"] += high.info["missing"]
    if high.info["stopped"] != "converged":
        info["stopped"] = high.info["stopped"]
    for name in ("method", "why", "verification"):
        if info[name] != high.info[name]:
            info[name] = f"high end: {high.info[name]}; low end: {info[name]}"
    return info
