"""Drivers of standard problems: the run of the chosen method, and its result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np

from blockvec import BlockVector, single_threaded_blas
from blockvec.errors import BreakdownError, OptionError, ShapeError

from ..arguments import blas_threads, tall_block
from ..blocks import (
    Block,
    ColumnBlock,
    ceil_div,
    column_factors,
    empty_block,
    project_out,
    side_by_side,
    to_host,
    whole_ranges,
)
from ..costs import FEW_ROWS, is_dense
from ..iterations.base import Iteration, fingerprint
from ..iterations.lanczos import ThickRestart
from ..iterations.rayleigh_ritz import Which, ranking_key, split_outliers
from ..orthogonalization import orthogonalize
from ..problem import Counts, IterationOptions, Problem, Verification
from ..result import EigenResult, result_of
from ..runtime.checkpoint import probe
from ..runtime.memory import require_memory
from ..runtime.processes import largest
from ..runtime.progress import deferred_interrupt
from ..sizes import choose_options, completed, has_short_columns
from ..transform.inner_product import inner_product_columns
from .combine import both_ends, one_after_other, with_outliers
from .dense import PANEL, dense_bytes, dense_eigenpairs


def solve(problem: Problem, options: IterationOptions | None = None) -> EigenResult:
    """Solve a standard problem by a method and sizes, by default those for the problem."""
    problem, options = prepare(problem, options)
    if options.method == "dense":
        return _solve_densely(problem, options)
    if options.method == "filter" and problem.target is not None:
        from .window import solve_window

        return solve_window(problem, options, solve_iteratively)
    if problem.which == "BE":
        return both_ends(problem, lambda end: solve_iteratively(end, options))
    return solve_iteratively(problem, options)


def prepare(problem: Problem, options: IterationOptions | None = None) -> tuple[Problem, IterationOptions]:
    """Orthonormalise the locked columns; choose method and sizes unless these are given."""
    if problem.locked is not None:
        block = tall_block("orthogonal_to", problem.locked, problem.operator)
        if block.n_cols >= problem.n:
            raise ShapeError(f"orthogonal_to has {block.n_cols} columns for {problem.n} rows; give fewer.")
        if problem.blocks is not BlockVector:
            block = problem.blocks(block.array)
        rank = block.n_cols - int(orthogonalize(block).lost.sum())
        problem = replace(problem, locked=block[:, :rank].copy() if rank else None)
    return problem, choose_options(problem) if options is None else options


def solve_iteratively(problem: Problem, options: IterationOptions) -> EigenResult:
    """Solve by block Lanczos, with or without a filter, or by block Jacobi-Davidson."""
    given, options = problem, completed(problem, options)
    op = problem.operator
    start: Block = empty_block(op) if problem.start is None else problem.start
    if options.method != "jd" and has_short_columns(problem):
        inner = problem.blocks
        columns = ColumnBlock if inner is BlockVector else inner_product_columns(inner)
        start = columns.of(start)
        if problem.locked is not None:
            problem = replace(problem, locked=columns.of(problem.locked))
    elif problem.blocks is not BlockVector:
        start = problem.blocks(start.array)
    threads = single_threaded_blas if isinstance(start, ColumnBlock) else blas_threads(op)
    if problem.start is None and not start.shape[1]:
        start = start.random_like(options.block_size, problem.rng)
    else:
        with threads:
            is_zero = not to_host(start.norms()).any()
        if is_zero:
            raise OptionError("v0 is zero; give a start with a direction, or leave it out.")
    if problem.checkpoint is not None:
        problem.checkpoint.problem = _fingerprint(problem, options)
        problem.checkpoint.image = probe(op, start, problem.locked)
        problem.checkpoint.layout = op.layout
    iteration: type[Iteration] = ThickRestart
    if options.method == "filter":
        from ..iterations.filtering import FilteredRestart

        iteration = FilteredRestart
    elif options.method == "jd":
        from ..iterations.jacobi_davidson import JacobiDavidson

        iteration = JacobiDavidson
    with threads, deferred_interrupt() as interrupted:
        try:
            result = iteration(problem, options, start, interrupted).run()
        except BreakdownError as error:
            source = "A" if problem.preconditioner is None else "A or the preconditioner"
            raise BreakdownError(
                f"{source} returned NaN or Inf for a finite block, numbers whose squares overflow, or "
                f"products that are not those of one Hermitian matrix ({error})"
            ) from error
        if largest(op.layout, interrupted()):
            return result.with_info(stopped="interrupted")
    return _beside_outliers(given, options, result) if result.info["stopped"] == "outliers" else result


def _beside_outliers(problem: Problem, options: IterationOptions, first: EigenResult) -> EigenResult:
    """Go on in the complement of values far out; without a filter, if that is no answer to its limits."""
    which, k = cast(Which, problem.which), problem.k
    theta, limits = to_host(first.eigenvalues).astype(np.float64), np.full(k, first.limits.min())
    far, _ = split_outliers(theta, first.residuals, limits, which)
    if len(far):
        done = first.part(far)
        locked = side_by_side(problem.blocks(done.eigenvectors), problem.locked)
        rest, _ = prepare(replace(problem, k=k - len(far), locked=locked, precision="double"), options)
        left = options.maxiter - first.info["restarts"]
        others = solve_iteratively(rest, replace(options, maxiter=left))
        first = with_outliers(problem, done, others)
        last, least = (ranking_key(to_host(part.eigenvalues), which).min() for part in (done, others))
        if first.info["stopped"] != "converged" or (last >= least and first.converged.all()):
            return first
    left = options.maxiter - first.info["restarts"]
    if left < 1:
        return first.with_info(stopped="maxiter")
    why = "values far out and the others were no answer together"
    plain = replace(options, maxiter=left, method="lanczos", degree=1, why=why)
    start = tall_block("v0", first.eigenvectors, problem.operator)
    return one_after_other(first, solve_iteratively(replace(problem, start=start), plain), which)


def _fingerprint(problem: Problem, options: IterationOptions) -> dict[str, Any]:
    from ..iterations.correction import JacobiDavidsonOptions

    own: dict[str, Any] = {name: getattr(problem, name) for name in ("k", "which", "verify")}
    own |= {name: getattr(options, name) for name in ("method", "block_size", "ncv", "degree")}
    own |= (problem.jd_options or JacobiDavidsonOptions()).fingerprint()
    own |= {"exponent of two": problem.exponent} if problem.exponent else {}
    own |= {"precision": problem.precision} if options.mixes else {}
    own |= {"sigma": problem.target, "columns of v0": problem.start_width}
    own |= {"columns of orthogonal_to": problem.n_locked}
    return fingerprint(problem, **own, preconditioner=problem.preconditioner is not None)


def _solve_densely(problem: Problem, options: IterationOptions) -> EigenResult:
    """Solve by dense LAPACK."""
    from ..transform.spectral_map import SpectralMap

    op, n = problem.operator, problem.n
    purpose = f"a dense matrix of {n} rows and its eigenvectors"
    require_memory(op, dense_bytes(op), purpose, "use method='lanczos'")
    if op.layout is not None and n > FEW_ROWS:
        raise OptionError(
            f"method: dense LAPACK runs in every process, for up to {FEW_ROWS} rows; A has {n}: use "
            "method='lanczos', or leave out comm."
        )
    around = None if problem.target is None else SpectralMap(problem.target).transformed
    wanted = problem.k, problem.which, around
    theta, X, norm = dense_eigenpairs(op, empty_block(op), *wanted, problem.locked)
    norm = norm if problem.norm is None else problem.norm
    counts, k = Counts(), len(theta)
    formed = 0 if is_dense(op) else n  # columns by products
    counts.apply(formed + k)
    counts.block_applications = ceil_div(formed, PANEL) + ceil_div(k, PANEL)
    limits = np.broadcast_to(problem.tolerance.limits(theta, norm), theta.shape)
    vectors = BlockVector(X, layout=op.layout)
    R = vectors.like()
    for begin, end in whole_ranges(k, PANEL, vectors):
        op.apply(vectors[:, begin:end], out=R[:, begin:end])
    R.axpy(column_factors(-theta, vectors), vectors)
    residuals = to_host(project_out(problem.locked, R).norms()).astype(np.float64)
    return result_of(
        *(problem, options, theta, vectors, residuals, limits, Verification.NOT_NEEDED, counts),
        stopped="converged",
        verification="not needed: dense LAPACK finds everything",
        missing=0,
        norm=norm,
        degree=1,
    )
