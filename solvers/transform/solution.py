"""Problems solved in their standard form, and pairs transformed back."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, cast

import numpy as np
import scipy.linalg as sl
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from blockvec import BlockVector, Factorization, Operator
from blockvec.errors import BreakdownError, OptionError

from ..arguments import blas_threads, tall_block
from ..blocks import Array, Block, ColumnBlock, RealArray, applied, column_factors, columns_of, to_host
from ..factorization.inertia import proof
from ..linear.preconditioners import following
from ..problem import FLOOR, STOPPED, Problem, Tolerance, Verification, Which, select, staged
from ..result import EigenResult, InfiniteError
from ..sizes import FEW_RESTARTS
from ..small_matrices import MOST_OBLIQUE, ritz_pairs
from ..stages.combine import (
    COUNTED,
    errors_allowed,
    lacks,
    one_after_other,
)
from ..stages.run import solve
from .deflation import SLACK, solve_around
from .inner_product import orthonormal
from .spectral_map import SHARE, Norms, TransformedTolerance, norm_of, pair_floor, pair_limits
from .standard_form import StandardForm

DIGITS = 0.7  # share of the digits of the first solve: the way back adds the others
AT_THE_LIMIT = ("converged", "stagnated")  # reasons to stop after which rounding errors limit residuals


def solve_transformed(form: StandardForm, problem: Problem) -> EigenResult:
    """Solve a problem, with `form.A` as its operator, in its standard form, and transform the pairs back.

    Solves in steps are refined where others than the nearest values are wanted, and where the pairs found
    without that do not reach their limits.
    """
    form = form if problem.which == "LM" else form.refined()
    with blas_threads(form.A):
        norms = _norms(form, problem.norm)
        inside = _inside(form, problem, norms)
    try:
        inner = solve_around(form, inside)
        result = _accurate(form, inner, inside, problem, norms)
        if form.is_rough and inner.info["stopped"] in AT_THE_LIMIT and not result.converged.all():
            again = solve_transformed(form.refined(), staged(problem, "refined"))
            return one_after_other(result, again, problem.which, form.map)
        is_skipped = problem.verify != "never" and result.verification is Verification.SKIPPED
        if is_skipped and result.converged.all() and problem.ends_early(inner.info["stopped"]):
            # The solve asked for more digits than the pairs need, and had not come to its search.
            reached = Tolerance(float(inner.residuals.max()), "absolute", inside.tolerance.unit)
            searched = replace(_begun_with(inner, inside, "searched"), tolerance=reached)
            again = _accurate(form, solve(searched), inside, problem, norms)
            result = one_after_other(result, again, problem.which, form.map)
    except (BreakdownError, np.linalg.LinAlgError) as error:
        raise BreakdownError(f"A, M, or a solve with A - sigma M (OPinv): {error}") from error
    return result


def solve_proven(form: StandardForm, problem: Problem) -> EigenResult:
    """Solve a problem around a shift, and prove by two more factorisations that no nearer value is missing.

    Where one is, or no count is certain, the solve is repeated with a search for it.
    """
    factors, sigma = cast(Factorization, form.factors), cast(float, form.map.sigma)
    if factors.sigma != sigma:  # since an earlier proof
        factors.refactorize(sigma)
    return proven(form, solve_transformed(form, replace(problem, verify="auto")), problem)


def proven(
    form: StandardForm,
    result: EigenResult,
    problem: Problem,
    end: Which | None = None,
    *,
    is_doubtful: bool = False,
) -> EigenResult:
    """Prove by a count that no eigenvalue is missing; else solve a problem with a search, and count again.

    The values are those around the shift, or at an end of the spectrum. A doubtful result is searched in any
    case.
    """
    factors, sigma = cast(Factorization, form.factors), cast(float, form.map.sigma)
    place = {None: sigma, "SA": -math.inf}.get(end, math.inf)
    for has_searched in (False, True):
        is_over = problem.is_late() or result.info["stopped"] in STOPPED
        if is_over or not result.converged.all():
            break
        theta = to_host(result.eigenvalues).astype(np.float64)
        floor = FLOOR * factors.shift_rounding(float(np.abs(theta).max()))
        text, missing = proof(factors, theta, errors_allowed(result, floor), place, problem.deflated)
        if missing is not None:
            proved = replace(result, verification=Verification.PROVED)
            result = proved.with_info(verification=text, missing=missing)
        is_settled = missing == 0 or (missing is None and problem.verify == "never")
        if has_searched or (is_settled and not is_doubtful):
            break
        factors.refactorize(sigma)
        searched = solve_transformed(form, _begun_with(result, problem, "searched"))
        wanted = (problem.which, form.map) if end is None else (end, None)
        result = one_after_other(result, searched, *wanted)
    return result.with_info(time_s=time.perf_counter() - problem.begin_s)


def _begun_with(result: EigenResult, problem: Problem, name: str) -> Problem:
    """Start a solve from all vectors of a result, for which a caller's basis may have no room."""
    start = tall_block("v0", result.eigenvectors, problem.operator)
    ncv = problem.ncv if start.shape[1] <= problem.k else None
    return replace(staged(problem, name), start=start, ncv=ncv)


def joined_ends(form: StandardForm, problem: Problem, both: EigenResult) -> EigenResult:
    """Join both ends of a pair: the vectors of the high one are made orthogonal to those of the low one.

    That is accurate, as values far out are many times as large, and so the errors of their vectors.
    """
    values = to_host(both.eigenvalues).astype(np.float64)
    with blas_threads(form.A):
        norms = _norms(form, problem.norm)
        told = both.with_more_columns(len(values), 1)
        result = measured_pairs(form, values, both.eigenvectors, problem, norms, told)
    return as_rounding_allows(result.part(np.argsort(values, kind="stable")), problem, norms)


def as_rounding_allows(result: EigenResult, problem: Problem, norms: Norms) -> EigenResult:
    """Accept residuals a little above the rounding floor, which errors of solves can cause."""
    values = to_host(result.eigenvalues).astype(np.float64)
    lengths = to_host(BlockVector(result.eigenvectors).norms()).astype(np.float64)
    floor = pair_floor(problem.tolerance, values, norms, lengths)
    is_as_good = result.residuals <= np.maximum(result.limits, SLACK * floor)  # and not NaN
    if result.converged.all() or not is_as_good.all():
        return result
    factor = float((result.residuals / floor).max())
    why = f"{result.info['why']}; residuals end at {factor:.2g} times the floor, as good as rounding allows"
    limits = np.maximum(result.limits, result.residuals)
    accepted = replace(result, limits=limits, converged=np.ones(len(values), bool))
    stopped = result.info["stopped"]
    return accepted.with_info(why=why, stopped=stopped if stopped in STOPPED else "converged")


def _norms(form: StandardForm, norm: float | None) -> Norms:
    A, known = norm_of(form.A) if norm is None else norm, form.factor.norm
    M = norm_of(form.M) if known is None or form.inner is not form.M else known
    shift = 0.0 if form.map.mode == "reciprocal" else abs(form.map.sigma or 0.0) * M
    return Norms(A, M, A if form.inner is form.A else M, shift)


def _inside(form: StandardForm, problem: Problem, norms: Norms) -> Problem:
    """Transform a problem: its blocks, its preconditioner, and its tolerance."""
    S, on_vectors = form.operator, form.blocks is not BlockVector
    factors = None if form.inverse is None else form.inverse.factors
    rank, name = S.shape[0], form.inner_name
    if rank < form.A.shape[0] and problem.k > rank:
        kind = "finite" if name == "M" else "nonzero"
        raise OptionError(
            f"k: got {problem.k}; {name} has rank {rank}, and the problem no more {kind} eigenvalues than "
            f"that: give an integer from 1 to {rank}."
        )
    start, locked = (
        None if block is None else tall_block(name, form.factor.adjoint(block.array), S)
        for name, block in (("v0", problem.start), ("orthogonal_to", problem.locked))
    )
    if start is not None and not to_host(form.blocks(start.array).norms()).any():
        assert problem.start is not None
        if to_host(problem.start.norms()).any():  # otherwise it is refused as zero
            raise OptionError(
                f"v0 lies in the null space of {name}: {name} v0 is zero, and so is its part along every "
                "wanted vector; give a start with a component outside of it, or leave it out."
            )
    return replace(
        problem,
        operator=S,
        start=start,
        locked=locked,
        deflated=form.map.transformed(problem.deflated),
        preconditioner=_preconditioner(form, problem),
        tolerance=_tolerance(form, problem, norms),
        norm=None,
        exponent=form.map.degree * problem.exponent,
        has_costly_steps=form.inverse is not None,
        solve_width=0 if factors is None else factors.solve_width,
        blocks=form.blocks,
        method="lanczos" if on_vectors and problem.method != "filter" else problem.method,
    )


def _tolerance(form: StandardForm, problem: Problem, norms: Norms) -> Tolerance:
    asked, unit = problem.tolerance, float(np.finfo(form.operator.dtype).eps) / 2
    if problem.begins_with_corrections and asked.tol:
        return Tolerance(SHARE * asked.tol, asked.convergence, unit)
    if form.inverse is not None or form.blocks is not BlockVector:
        error = form.inverse.error if form.inverse is not None else 0.0
        step_unit = SHARE * form.factors.pivot_error if form.is_rough and form.factors is not None else 0.0
        given = asked.tol, asked.convergence, unit, asked.rounding
        return TransformedTolerance(*given, form.map, norms, error, step_unit)
    # The solve that transforms the vectors back is one more step of inverse iteration.
    return Tolerance(float(asked.unit**DIGITS), "value", unit)


def _preconditioner(form: StandardForm, problem: Problem) -> Any:
    """Transform a preconditioner K^-1 to C^H K^-1 C."""
    apply, factor = problem.preconditioner, form.factor
    if apply is None:
        return None

    def precondition(R: Block) -> Block:
        X = BlockVector(np.ascontiguousarray(factor.apply(R.array)))
        return BlockVector(factor.adjoint(apply(X).array), copy=True, dtype=form.operator.dtype)

    return following(precondition, getattr(apply, "update", None))


def _refuse_infinite(form: StandardForm, theta: RealArray, norm: float) -> None:
    """Refuse values that are infinite to working precision, where the form does not leave these out.

    It leaves out vectors without masses. Beside Lagrange multipliers there are others, and in buckling mode
    all.
    """
    end, has_all = form.map.at_infinity, form.operator.shape == form.A.shape
    if end is None or (has_all and form.inner is not form.A):
        return
    error = FLOOR * float(np.finfo(form.operator.dtype).eps) * max(norm, abs(end))
    k, finite = len(theta), int((np.abs(theta - end) > error).sum())
    if finite < k:
        remedy = f"k={finite}, or another sigma or which" if finite else "another sigma or which"
        raise InfiniteError(
            f"k: got {k}; M is singular, and only {finite} of the wanted eigenvalues are finite, or near "
            f"enough to sigma to be told from infinite ones: give {remedy}."
        )


def _polished(inner: EigenResult, inside: Problem) -> EigenResult:
    """Continue a solve until nothing but rounding errors limits its residuals."""
    last = replace(
        _begun_with(inner, inside, "polished"),
        tolerance=replace(inside.tolerance, tol=0.0),
        verify="never",
        maxiter=inside.maxiter if inside.begins_with_corrections else FEW_RESTARTS,
    )
    # What was searched and how is told of the first solve: the last one has sizes of its own.
    names = ("verification", "missing", "method", "why", "block_size", "ncv", "degree")
    told: dict[str, Any] = {name: value for name, value in inner.info.items() if name in names}
    result = one_after_other(inner, solve(last), **told)
    return replace(result, verification=inner.verification)


def _accurate(
    form: StandardForm, inner: EigenResult, inside: Problem, problem: Problem, norms: Norms
) -> EigenResult:
    """Transform pairs back; improve them where rounding errors keep them from their limits."""
    with blas_threads(form.A):
        result = _transformed_back(form, inner, problem, norms)
    if inner.info["stopped"] not in AT_THE_LIMIT or result.converged.all() or form.is_rough:
        return result
    is_dense = inner.info["method"] == "dense"
    if is_dense and form.A.device == "cpu":
        result = _refined(form, inner, inside, problem, norms)
    elif form.inverse is not None and form.inverse.error:
        result = result.with_info(stopped="inexact")
    elif not is_dense:
        again = _transformed_back(form, _polished(inner, inside), problem, norms)
        costs: dict[str, Any] = {name: dict(again.info)[name] for name in COUNTED}
        if (stopped := again.info["stopped"]) in STOPPED:
            result = result.with_info(stopped=stopped)
        is_better = _excess(again) < _excess(result) and not lacks(again, result, problem.which, form.map)
        result = (again if is_better else result).with_info(**costs, history=again.history)
    return as_rounding_allows(result, problem, norms)


def _excess(result: EigenResult) -> tuple[int, float]:
    """Count the pairs that have not converged, and compute the largest ratio of residual and limit."""
    return int((~result.converged).sum()), float((result.residuals / result.limits).max())


def _transformed_back(form: StandardForm, result: EigenResult, problem: Problem, norms: Norms) -> EigenResult:
    """Transform eigenpairs of S back: M-orthonormal vectors, and residuals with A and M."""
    theta = to_host(result.eigenvalues).astype(np.float64)
    _refuse_infinite(form, theta, result.info["norm"])
    # Errors of a solve lie along vectors near the shift; with these first, the others are cleaned of them.
    order = np.argsort(-np.abs(theta), kind="stable")
    theta, Y = theta[order], columns_of(result.eigenvectors, order)
    X = form.vectors(Y)
    if form.is_rough:  # the refined solves of the vectors give the values without the errors of the steps
        image = ColumnBlock(np.asfortranarray(form.factor.adjoint(X)))
        theta, U = ritz_pairs(Y.conj().T @ applied(getattr(form.blocks, "inner", None), image).array)
        order = np.argsort(-np.abs(theta), kind="stable")
        theta, X = theta[order], X @ U[:, order]
    values = form.map.values(theta)
    told = result.with_info(norm=norms.A, why=f"{result.info['why']}; {form.why}")
    found = measured_pairs(form, values, X, problem, norms, told)
    ascending = np.argsort(values, kind="stable")
    if len(theta) > problem.k:  # others than the wanted ones, which these have been cleaned of
        wanted = select(theta, problem.which)[: problem.k]
        ascending = ascending[np.isin(ascending, wanted)]
    return found.part(ascending)


def _refined(
    form: StandardForm, inner: EigenResult, inside: Problem, problem: Problem, norms: Norms
) -> EigenResult:
    whole = solve(replace(inside, k=inside.n - inside.n_locked, which="SA", ncv=None))
    is_swapped = form.inner is form.A
    A, M = (form.M, form.A) if is_swapped else (form.A, form.M)
    values, X = refined_pairs(A, M, form.vectors(whole.eigenvectors))
    if is_swapped:
        with np.errstate(divide="ignore"):
            values = 1 / values
    wanted = select(form.map.transformed(values), problem.which)[: len(inner.eigenvalues)]
    wanted = wanted[np.argsort(values[wanted], kind="stable")]
    why = f"{inner.info['why']}; {form.why}"
    told = one_after_other(inner, whole).with_info(k=problem.k, which=problem.which, norm=norms.A, why=why)
    result = measured_pairs(form, values[wanted], X[:, wanted], problem, norms, told)
    return result.part(np.arange(len(wanted)))  # rows one after the other


def measured_pairs(
    form: StandardForm, values: RealArray, vectors: Array, problem: Problem, norms: Norms, told: EigenResult
) -> EigenResult:
    """Orthonormalise vectors, and compute their residuals with A and M, and the limits of these.

    The tolerance is for residuals ||A x - lambda M x||, relative to ||M x|| where it is relative to
    abs(lambda). `told` describes the result.
    """
    is_here = form.A.device == "cpu"
    X: Block = ColumnBlock(np.array(vectors, order="F")) if is_here else BlockVector(vectors, copy=True)
    X.scale(column_factors(1 / to_host(X.norms()), X))
    X = orthonormal(X, form.inner)
    MX = applied(form.M, X)
    R = applied(form.A, X).axpy(column_factors(-values, X), MX)
    residuals, lengths, masses = (to_host(B.norms()).astype(np.float64) for B in (R, X, MX))
    limits = pair_limits(problem.tolerance, values, norms, lengths, masses)
    pairs = values, X.array, residuals, limits
    return EigenResult.from_pairs(*pairs, told.verification, told.info, told.history)


PASSES = 5  # Rayleigh-Ritz steps at most
FIRST_ORDER = 1e-3  # largest coefficient of one vector in another that is corrected to first order


def refined_pairs(A: Operator | None, M: Operator | None, X: Array) -> tuple[RealArray, Array]:
    """Improve all finite eigenpairs of A x = lambda M x on the host; None stands for the identity.

    Values of C^-1 A C^-H, with M = C C^H, have errors of u ||C^-1 A C^-H||. Where masses differ by orders of
    magnitude, or M is nearly singular, that is far above u ||A|| / ||M||. The matrices X^H A X and X^H M X of
    all computed vectors, nearly diagonal, have elements with errors of u ``|x_i|^H |A| |x_j|``, however small
    these are beside others. Corrections of first order element by element keep that, as steps of Jacobi's
    method do and a reduction to tridiagonal form does not. Without them 2 of 160 drawn pairs had no answer.

    References
    ----------
    Ogita, Aishima, Japan J. Indust. Appl. Math. 35 (2018) 1007 (correction of all vectors); Demmel, Veselic,
    SIAM J. Matrix Anal. Appl. 13 (1992) 1204 (graded matrices).
    """
    for _ in range(PASSES):
        blocks = (applied(operator, BlockVector(np.ascontiguousarray(X))) for operator in (A, M))
        T, G = (X.conj().T @ block.array for block in blocks)
        scale = 1 / np.sqrt(G.diagonal().real)
        X, scales = X * scale, scale[:, None] * scale / 2
        T, G = (T + T.conj().T) * scales, (G + G.conj().T) * scales
        theta = T.diagonal().real
        for members in _mixed(T, G, theta):
            U = sl.eigh(T[np.ix_(members, members)], G[np.ix_(members, members)])[1]
            for rows in (X, T, G):
                rows[:, members] = rows[:, members] @ U
            for columns in (T, G):
                columns[members] = U.conj().T @ columns[members]
        theta = T.diagonal().real.copy()
        # X + X E diagonalises both matrices, to first order.
        gaps = theta[None, :] - theta[:, None]
        R = T - np.diag(T.diagonal()) - theta * (G - np.diag(G.diagonal()))
        is_apart = np.abs(R) < np.abs(gaps)
        E = np.where(is_apart, R / np.where(is_apart, gaps, 1.0), (np.eye(len(G)) - G) / 2)
        is_small = np.abs(E) <= FIRST_ORDER * np.sqrt(len(E))  # others are left to the next pass
        E = np.where(is_small, E, 0)
        X = X + X @ E
        if is_small.all() and np.abs(E).max() <= MOST_OBLIQUE:
            break
    return theta, X


def _mixed(T: NDArray[Any], G: NDArray[Any], theta: RealArray) -> list[NDArray[np.intp]]:
    """Find groups of vectors that are mixed too much for corrections of first order."""
    gaps, coupling = np.abs(theta[None, :] - theta[:, None]), np.abs(T - theta * G)
    is_strong = np.maximum(coupling, coupling.T) > FIRST_ORDER * gaps
    labels = connected_components(is_strong, directed=False)[1]
    groups = (np.flatnonzero(labels == label) for label in np.unique(labels))
    return [members for members in groups if len(members) > 1]
