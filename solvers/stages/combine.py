"""Solves in several parts: both ends of a spectrum in turn, and totals of costs, time and history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blockvec import BlockVector, array_namespace

from ..arguments import tall_block
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
from ..orthogonalization import orthogonalize
from ..problem import IterationState, Problem, Selection, ranking_key, staged
from ..result import EigenResult
from ..runtime.processes import delivered
from ..sizes import WIDTH
from ..small_matrices import cholesky_factor, ritz_pairs

if TYPE_CHECKING:
    from ..transform.spectral_map import SpectralMap

COUNTED = (
    *("operator_columns", "single_columns", "block_applications", "restarts", "reductions"),
    "verification_columns",
)


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
    result, told = second, _totals(first, second)
    if which is not None and lacks(second, first, which, map):
        result, stopped = first, second.info["stopped"]
        entries["stopped"] = "stagnated" if stopped == "converged" else stopped
        entries["why"] = f"{first.info['why']}; a later stage had lost pairs"
    return result.with_info(**told | entries, history=continued(first, second))


def go_on(
    first: EigenResult,
    problem: Problem,
    name: str,
    solve: Callable[[Problem], EigenResult],
    map: SpectralMap | None = None,
    **changes: Any,
) -> EigenResult:
    """Solve a changed problem from the vectors of a first result, in a stage of its own, and join both."""
    start = tall_block("v0", first.eigenvectors, problem.operator)
    later = solve(replace(staged(problem, name), start=start, **changes))
    return one_after_other(first, later, problem.which, map)


def beside(low: EigenResult, high: EigenResult, **entries: Any) -> EigenResult:
    """Join two parts of a spectrum, those of the low one first, with the doubts and the costs of both.

    `entries` replace others of the `info`.
    """
    info: Any = low.info | _totals(high, low)
    others: Any = high.info
    info["norm"] = max(others["norm"], info["norm"])
    info["missing"] += others["missing"]
    if others["stopped"] != "converged":
        info["stopped"] = others["stopped"]
    for name in ("method", "why", "verification"):
        if info[name] != others[name]:
            info[name] = f"high end: {others[name]}; low end: {info[name]}"
    verification, history = high.verification.joined(low.verification), continued(high, low)
    told = replace(low, verification=verification, info=info | entries, history=history)
    return concatenated((low, high), told)


def concatenated(parts: Sequence[EigenResult], told: EigenResult) -> EigenResult:
    """Concatenate the pairs of several parts; `told` describes the result."""
    values = np.concatenate([to_host(part.eigenvalues) for part in parts])  # CuPy would compile a kernel
    X = side_by_side(*(BlockVector(part.eigenvectors) for part in parts))
    numbers: Any = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("residuals", "limits", "converged")
    }
    values = array_namespace(told.eigenvalues).asarray(values)
    return replace(told, eigenvalues=values, eigenvectors=delivered(X.array, X.layout), **numbers)


def _totals(first: EigenResult, second: EigenResult) -> dict[str, Any]:
    parts: Any = first.info, second.info
    return {name: parts[0][name] + parts[1][name] for name in COUNTED}


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
    sides: dict[Any, RealArray] = {which: others}
    if which == "BE":
        others, low = others[:, np.argsort(others.mean(axis=0), kind="stable")], others.shape[1] // 2
        sides = {"SA": others[:, :low], "LA": others[:, low:]}
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
    join: Callable[[Problem, EigenResult], EigenResult] | None = None,
) -> EigenResult:
    """Solve for the high end, then for the low end; `join` makes their vectors orthogonal.

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
        return join(problem, beside(alone, first, k=problem.k, which="BE"))
    X, low = problem.blocks(first.eigenvectors), replace(low, checkpoint=None)
    orthogonalize(X, rng=problem.rng)  # those of an inverse are so to the digits that they have
    if stopped == "callback":
        low = replace(low, callback=lambda state: True)
    if problem.locked is None:  # the columns of a caller need not be invariant under A
        low = replace(low, deflated=to_host(first.eigenvalues).astype(np.float64))
    second = solve(replace(low, locked=side_by_side(X, problem.locked)))
    second = second if alone is None else one_after_other(alone, second)
    return join(problem, beside(second, first, k=problem.k, which="BE"))


def are_apart(low: EigenResult, high: EigenResult) -> bool:
    """Check that no value of the low end reaches those of the high end, within their errors."""
    limits = [replace(end, limits=np.maximum(end.limits, end.residuals)) for end in (low, high)]
    errors = sum(float(errors_allowed(end).max()) for end in limits)
    return float(to_host(low.eigenvalues).max()) + errors < float(to_host(high.eigenvalues).min())


def ritz_pairs_of(problem: Problem, X: Block, told: EigenResult) -> tuple[EigenResult, Block]:
    """Turn orthonormal columns into Ritz vectors, in place; return their pairs, and their residual vectors.

    `told` describes the result, with the norm of A.
    """
    R = X.like()
    apply_in_ranges(problem.operator, X, R, 2 * WIDTH)
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
    theta, residuals = (theta + errors)[order], to_host(R.norms()).astype(np.float64)
    limits, told = problem.tolerance.limits(theta, told.info["norm"]), told.with_more_columns(len(theta), 1)
    pairs = theta, delivered(X.array, problem.operator.layout), residuals, limits
    return EigenResult.from_pairs(*pairs, told.verification, told.info, told.history), R


def join_ends(problem: Problem, both: EigenResult) -> EigenResult:
    """Separate the pairs of two parts to rounding, by a Rayleigh-Ritz step.

    Solves of a shifted problem lose some orthogonality to locked columns.
    """
    X: Block = problem.blocks(both.eigenvectors)
    G = to_host(X.gram())
    _, inverse, *_, size = cholesky_factor(np.asfortranarray(G, np.result_type(G, np.float64)))
    if np.isfinite(size):
        X.combine(small_matrix(inverse, X), out=X)
    return ritz_pairs_of(problem, X, both)[0]


def with_outliers(problem: Problem, done: EigenResult, others: EigenResult) -> EigenResult:
    """Join computed values far out, and the others, which a solve without them has found."""
    told: Any = {name: others.info[name] for name in ("method", "stopped", "verification")}
    told["why"] = f"{others.info['why']}, once {len(done.residuals)} values further out were computed"
    both = beside(others, done, k=problem.k, which=problem.which, **told)
    return join_ends(problem, replace(both, verification=others.verification))
