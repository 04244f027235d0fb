"""All eigenpairs in an interval: by spectrum slicing, or without a factorisation by an iteration.

An iteration computes one pair more than the interval holds: the first value outside shows that no other one
inside is missing, as far as its search for missed copies tells. An estimate of the number says how many pairs
to ask for, and is corrected if none of them lies outside.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from blockvec import BlockVector, Operator

from ..arguments import blas_threads
from ..blocks import RealArray, pick, to_host
from ..costs import dense_is_faster, require_factors, require_memory
from ..counting import estimate
from ..factorization.inertia import Pencil, eigenvalue_rounding
from ..planning import Stage
from ..problem import Problem, Verification, staged
from ..result import EigenResult, described, refuse_more
from ..transform.solution import as_rounding_allows
from ..transform.spectral_map import SpectralMap
from .combine import one_after_other
from .run import deferred_interrupt
from .slicing import PER_SHIFT, Slicing

if TYPE_CHECKING:
    from ..call import Call

SURE = 4.0  # standard errors within which an estimate is taken to be right
SPARE = 2  # pairs asked for beyond the estimate and its error
GROWTH = 2  # of their number, while none of them lies outside
BASES = 4  # vectors of a slice, beside those found, per pair in it
AROUND = "values around the middle of the interval are wanted, and nothing is factorised"


def solve_interval(task: Call, problem: Problem, stage: Stage) -> EigenResult:
    """Compute all eigenpairs of a task in its interval, by a stage of its plan."""
    low, high = cast(tuple[float, float], task.ends)
    if stage.name == "dense":
        return _densely(task, problem, low, high, stage.why)
    solve = _by_slices if stage.name == "slices" else _by_iteration
    return solve(task, problem, low, high)


def _by_slices(task: Call, problem: Problem, low: float, high: float) -> EigenResult:
    A, M = task.A, task.M
    require_factors(A, M, problem.operator, "use method='filter'")
    pencil = Pencil.of(cast(Operator, problem.operator), A, M, problem.norm)
    left, is_late = pencil.cut(low, -1), problem.is_late()
    right = left if is_late else pencil.cut(high, 1)
    count, n = right.below - left.below, problem.n
    problem = replace(problem, operator=pencil.A)
    why = dense_is_faster(n, count, problem.operator.device, "interval") if M is None else None
    if why is not None and problem.checkpoint is None:
        return _densely(task, problem, low, high, why)
    refuse_more(count, task.k)
    size = n * (count + BASES * min(count, PER_SHIFT)) * problem.operator.dtype.itemsize
    purpose = f"{count} eigenvectors of {n} rows"
    require_memory(problem.operator, size, purpose, "give smaller intervals, one after the other")
    with blas_threads(problem.operator), deferred_interrupt() as interrupted:
        slices = Slicing(problem, pencil, left, right, interrupted)
        stopped = "time_limit" if is_late else slices.run()
        stopped = "interrupted" if interrupted() else stopped
    result = _collected(slices, low, high, stopped)
    if not is_late:
        return result if result.info["missing"] else as_rounding_allows(result, problem, pencil.norms)
    text = "skipped: the time limit had passed before the eigenvalues were counted"
    result = result.with_info(verification=text, missing=1, counted=None, count_error=None)
    return replace(result, verification=Verification.SKIPPED)


def _collected(slices: Slicing, low: float, high: float, stopped: str) -> EigenResult:
    """Form a result of the pairs in an interval, of those that slices have."""
    left, right, count = slices.cuts[0], slices.cuts[-1], slices.wanted
    inside, near = _inside(slices.theta, low, high, slices.pencil.rounding)
    missing, dropped = count - slices.found, slices.found - len(inside)
    text = (
        f"{'counted' if missing else 'proved'} by inertia: {count} eigenvalues lie between "
        f"{left.sigma:.12g} and {right.sigma:.12g}, {slices.found} of them were found"
    )
    text += f", {dropped} of them outside of the interval" if dropped else ""
    text += f"; {near} on an end, as far as rounding errors tell" if near else ""
    factorisations = slices.counts.restarts + len(slices.cuts)  # about: without those for an infinite end
    info = described(
        slices.problem,
        slices.counts,
        method="shift-invert",
        why=f"A - sigma M is factorised for {factorisations} shifts",
        stopped=stopped,
        verification=text,
        k=len(inside) + missing,
        which="interval",
        counted=count - dropped,
        count_error=0.0,
        norm=slices.pencil.norms.A,
        **slices.sizes,
        degree=1,
        missing=missing,
    )
    theta, residuals, limits = (part[inside] for part in (slices.theta, slices.residuals, slices.limits))
    pairs = theta, pick(slices.X, inside).array, residuals, limits
    return EigenResult.from_pairs(*pairs, Verification.PROVED, info, slices.history)


def _inside(theta: RealArray, low: float, high: float, rounding: Any) -> tuple[NDArray[np.intp], int]:
    """Find values in an interval widened by rounding errors: their indices, and how many are on an end."""
    first, last = (0.0 if math.isinf(end) else rounding(end) for end in (low, high))
    order = np.argsort(theta, kind="stable")
    inside = order[(theta[order] >= low - first) & (theta[order] <= high + last)]
    return inside, int(((theta[inside] <= low + first) | (theta[inside] >= high - last)).sum())


def _densely(task: Call, problem: Problem, low: float, high: float, why: str) -> EigenResult:
    n = problem.n if task.form is None else task.form.operator.shape[0]
    whole = replace(problem, method="dense", method_why=why, k=n, which="SA", block_size=None)
    result = _selected(task.solve(whole), low, high, task.k)
    return result.with_info(counted=float(result.info["k"]), count_error=0.0)


def _selected(result: EigenResult, low: float, high: float, most: int | None) -> EigenResult:
    """Select the pairs in an interval."""
    info, theta = result.info, to_host(result.eigenvalues).astype(np.float64)
    inside, _ = _inside(theta, low, high, partial(eigenvalue_rounding, info["dtype"], info["norm"]))
    refuse_more(len(inside), most)
    return result.part(inside).with_info(k=len(inside), which="interval", sigma=None)


def _by_iteration(task: Call, problem: Problem, low: float, high: float) -> EigenResult:
    """Compute pairs around the middle of the interval, or from an end of the spectrum, until one is out."""
    form, most = task.form, task.k
    operator, blocks = (problem.operator, BlockVector) if form is None else (form.operator, form.blocks)
    count, sketch = estimate(operator, low, high, problem.rng, blocks=blocks)
    refuse_more(count.value - SURE * count.error, most, "about ")
    from_low, from_high = low <= sketch.low, high >= sketch.high
    target = None if from_low or from_high else low + (high - low) / 2
    part = replace(
        problem,
        which="SA" if from_low else "LA" if from_high else "LM",
        target=target,
        method="filter" if target is not None else "auto",
        method_why=problem.method_why if problem.method == "filter" else AROUND,
    )
    n, result = problem.n, None
    wanted = math.ceil(count.value + SURE / 2 * count.error) + SPARE
    for turn in itertools.count():
        k = min(wanted, n)
        latest = task.solve(replace(staged(part, f"round {turn}"), k=k))
        if result is not None:
            latest = one_after_other(result, latest, part.which, SpectralMap(target))
        result = latest
        theta = to_host(result.eigenvalues).astype(np.float64)
        if target is None:  # whose other values are all inside
            theta = theta[-1:] if part.which == "SA" else theta[:1]
        is_complete = k == n or bool(((theta < low) | (theta > high)).any())
        if is_complete or result.info["stopped"] != "converged":
            break
        wanted = math.ceil(GROWTH * k)
        if form is None:
            part = replace(part, start=BlockVector(result.eigenvectors))
    assert result is not None
    result = _selected(result, low, high, most).with_more_columns(sketch.columns, sketch.applications)
    info, found = result.info, result.info["k"]
    text = f"{info['verification']}; about {count} were expected in the interval, {found} were found"
    return result.with_info(
        verification=text if is_complete else f"{text}, none of which lies beyond its ends",
        missing=info["missing"] + (not is_complete),
        counted=float(count.value),
        count_error=count.error,
    )
