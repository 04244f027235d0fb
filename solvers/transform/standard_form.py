"""Generalised and shift-invert problems as standard Hermitian ones, and the way back.

With a factor C C^H of the matrix of the inner product (M, or A in buckling mode) and y = C^H x,

    A x = lambda M x,                   C^-1 A C^-H y = lambda y,                       no shift
    theta = 1/(lambda - sigma),         C^H (A - sigma M)^-1 C y = theta y,             normal
    theta = (lambda + sigma)/(lambda - sigma),  the same operator, times 2 sigma, plus one,  cayley
    theta = lambda/(lambda - sigma),    C^H (A - sigma M)^-1 C y = theta y, A = C C^H,  buckling

The smallest transformed values, of SciPy's which="SM" with a shift, need no inverse of A - sigma M:

    theta = lambda - sigma,             C^-1 A C^-H y - sigma y = theta y,              distance
    theta = 1/lambda - 1/sigma,         C^-1 M C^-H y - y / sigma = theta y, A = C C^H, reciprocal

C may have fewer columns than rows: a singular M (massless degrees of freedom) makes the space of y smaller,
and infinite eigenvalues never appear. Vectors are transformed back by one more solve,
x = (A - sigma M)^-1 C y, a step of inverse iteration that reduces their errors.

On a GPU, which has no such C, the same operators run on x, in the inner product of C C^H: with
(A - sigma M)^-1 C C^H, and M^-1 A without a shift (`inner_product`).

References
----------
Ericsson, Ruhe, Math. Comp. 35 (1980) 1251; Grimes, Lewis, Simon, SIAM J. Matrix Anal. Appl. 15 (1994) 228.
Deviation: on the host, a factor of M in the operator instead of the M-inner product in the iteration.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

from blockvec import BlockVector, Factorization, Operator, array_namespace, as_operator, factorize
from blockvec.errors import BreakdownError, DTypeError, OptionError, ShapeError

from ..arguments import is_explicit, tall_block
from ..blocks import Array, Block, RealArray, column_factors, small_matrix, to_host
from ..column_block import ColumnBlock, ColumnOperator
from ..combine import continued, one_after_other, staged, totals, within_time
from ..drivers import solve
from ..factorization.gram import Factor, gram_factor
from ..factorization.inertia import proof_around
from ..factorization.root import root_factor
from ..factorization.shifted import ShiftedInverse, Solve, shifted_inverse
from ..iterations.rayleigh_ritz import Tolerance
from ..iterations.spectrum import sketch_spectrum
from ..linear.preconditioners import following
from ..problem import Problem
from ..result import EigenResult
from .inner_product import InnerProductOperator, inner_product_blocks
from .spectral_map import Norms, SpectralMap, TransformedTolerance, pair_floor, pair_limits

DIGITS = 0.7  # share of the digits of the first solve: the way back adds the others
SHARE = 0.1  # of a tolerance, where the transformation changes the norm of residuals, or for its errors
SHARE_OF_FLOOR = 0.02  # the residuals of vectors from backward stable solves
DOMINANT = 30.0  # times the least wanted magnitude: larger values limit the accuracy of that one
AT_THE_LIMIT = ("converged", "stagnated")  # reasons to stop after which rounding errors limit residuals
NEARLY_ORTHONORMAL = 0.1  # largest element of G - I, times the order, after which one Cholesky QR is enough
LOOSER = 10.0  # factor of the rounding floor that solves with small errors still reach
POLISHING = 20  # restarts for the last digits where those at first were not enough
NORM_STEPS = 10  # of Lanczos, for the norms in the convergence rule: they need one digit


@dataclass(frozen=True)
class StandardForm:
    """A problem A x = lambda M x in the form S y = theta y."""

    operator: Operator  # S, shape (r, r); on a GPU an `InnerProductOperator`
    A: Operator
    M: Operator | None  # None for the identity
    inner: Operator | None  # C C^H, in whose inner product vectors are orthonormal; None for the identity
    into: Solve  # y = C^H x of a block of vectors
    vectors: Solve  # x of each y, not normalised
    map: SpectralMap  # lambda of each theta
    why: str  # the factorisation, in words
    out_of: Solve | None = None  # C y of a block of vectors, where there is no shift and a C
    is_direct: bool = False  # whether each y is an x already
    inverse: ShiftedInverse | None = None
    blocks: type[BlockVector] = BlockVector  # of vectors, in the inner product that S is Hermitian in

    @property
    def factors(self) -> Factorization | None:
        """The factors of A - sigma M, if values nearest to sigma are those of largest magnitude."""
        return None if self.inverse is None or self.map.mode != "normal" else self.inverse.factors

    @property
    def is_shifted(self) -> bool:
        """Whether A - sigma M is inverted."""
        return self.out_of is None


def standard_form(
    operator: Operator,
    A: Any,
    M: Any,
    sigma: float | None,
    OPinv: Any = None,
    mode: str = "normal",
    factors: Factorization | None = None,
    Minv: Any = None,
) -> StandardForm:
    """Transform A x = lambda M x, with or without a shift; the arguments are those of `eigsh`.

    `operator` applies A, which need not be explicit if nothing is factorised. `factors` of A - sigma M, for
    any sigma, are reused.

    Refuses an M of the wrong definiteness, a shift that is an eigenvalue, and a matrix that is not explicit
    where a factorisation needs it.
    """
    mass = None if M is None else _mass(M, operator)
    if mass is not None and mass.shape != operator.shape:
        raise ShapeError(
            f"M is {mass.shape[0]} x {mass.shape[1]} but A is {operator.shape[0]} x {operator.shape[1]}."
        )
    dtype = operator.dtype if mass is None else np.promote_types(operator.dtype, mass.dtype)
    if sigma is None and mass is None:
        raise OptionError("standard_form: got neither M nor sigma; a standard problem needs no other form.")
    if operator.device != "cpu" and mode != "distance":
        return in_inner_product(operator, A, M, sigma, OPinv, mode, factors)
    mass_matrix = _host_matrix("M", M, dtype) if is_explicit(M) else None

    def mass_factor() -> Factor:
        if mass_matrix is not None:
            return gram_factor("M", mass_matrix)
        assert mass is not None
        inverse = None if Minv is None else as_operator(Minv, shape=mass.shape, dtype=mass.dtype)
        return root_factor(mass, inverse)

    map = SpectralMap(sigma, mode)
    if sigma is None or mode == "distance":
        if mass is None:
            return _without_inverse(operator, map, sigma or 0.0)
        return _without_shift(operator, mass, mass_factor(), "M", map, sigma or 0.0, dtype)
    if sigma == 0 and mode != "normal":
        raise OptionError(f"sigma: got 0, which mode {mode!r} maps everything to one; give another shift.")
    factor = None
    if mode in ("buckling", "reciprocal"):
        factor = gram_factor("A", _host_matrix("A", A, dtype), "in buckling mode")
        if mode == "reciprocal":
            return _without_shift(operator, mass, factor, "A", map, 1 / sigma, dtype)
    elif mass is not None:
        factor = mass_factor()
    if OPinv is None:
        if mass is not None:
            _explicit("M", M)
        inverse = shifted_inverse(_explicit("A", A), mass_matrix, float(sigma), factors=factors)
    else:
        inverse = _given(OPinv, operator, float(sigma))
    return _with_shift(operator, mass, factor, inverse, mode, np.dtype(dtype))


def given_inverse(OPinv: Any, A: Operator) -> Operator:
    """Convert a given (A - sigma M)^-1 to an operator."""
    if not (hasattr(OPinv, "shape") or callable(OPinv)):
        raise OptionError(f"OPinv: got {OPinv!r}; give a linear operator, a function or a matrix.")
    inverse = as_operator(OPinv, shape=A.shape, dtype=A.dtype, device=A.device)
    if inverse.shape != A.shape:
        raise ShapeError(f"OPinv has shape {inverse.shape} but A has {A.shape}.")
    return inverse


def _without_inverse(A: Operator, map: SpectralMap, offset: float) -> StandardForm:
    """Form A - offset I."""
    return StandardForm(
        operator=as_operator(
            lambda Y: A.apply(BlockVector(Y), shift=offset).array,
            shape=A.shape,
            dtype=A.dtype,
            device=A.device,
        ),
        A=A,
        M=None,
        inner=None,
        into=_same,
        vectors=_same,
        map=map,
        why="the values furthest from sigma need no factorisation",
        out_of=_same,
    )


def _given(OPinv: Any, A: Operator, sigma: float) -> ShiftedInverse:
    given = given_inverse(OPinv, A)
    why = f"with OPinv for sigma = {sigma:g}"
    return ShiftedInverse(lambda X, _: given.apply(BlockVector(np.ascontiguousarray(X))).array, sigma, why)


def in_inner_product(
    A: Operator,
    matrix: Any,
    M: Any,
    sigma: float | None,
    OPinv: Any = None,
    mode: str = "normal",
    factors: Factorization | None = None,
) -> StandardForm:
    """Form the operator of a shift, or M^-1 A, on blocks in the inner product of M (of A for buckling).

    The arguments are those of `standard_form`, `A` applies `matrix`.
    """
    if sigma == 0 and mode != "normal":
        raise OptionError(f"sigma: got 0, which mode {mode!r} maps everything to one; give another shift.")
    mass = None if M is None else as_operator(_explicit("M", M), device=A.device)
    if mass is not None:
        _check_semidefinite("M", M, mass, must_be=mode != "buckling")
    if mode == "buckling":
        _check_semidefinite("A", matrix, A, must_be=True)
    inner = A if mode == "buckling" else mass
    dtype = A.dtype if mass is None else np.promote_types(A.dtype, mass.dtype)
    if sigma is None:
        factored = factorize(M, device=A.device)
        if factored.is_singular:
            raise OptionError("M is singular; give sigma, with which infinite eigenvalues do no harm.")
        if factored.inertia:
            raise OptionError("M is indefinite; it must be positive definite.")

        why, shifted = "M is factorised", None
        vectors: Solve = _same

        def apply(Y: Array) -> Array:
            return factored.solve(A.apply(BlockVector(Y))).array

    else:
        if OPinv is None:
            inverse = shifted_inverse(matrix, M, float(sigma), device=A.device, factors=factors)
        else:
            inverse = _given(OPinv, A, float(sigma))
        sigma, why = inverse.sigma, inverse.why
        shifted, vectors = inverse, inverse.solve if inner is None else _after(inverse.solve, inner)
        twice = 2 * sigma

        def apply(Y: Array) -> Array:
            product = vectors(Y)
            return Y + twice * product if mode == "cayley" else product

    function = as_operator(apply, shape=A.shape, dtype=dtype, device=A.device)
    blocks = BlockVector if inner is None else inner_product_blocks(inner)
    return StandardForm(
        operator=function if inner is None else cast(Operator, InnerProductOperator(function, blocks)),
        A=A,
        M=mass,
        inner=inner,
        into=_same,
        vectors=vectors,
        map=SpectralMap(sigma, mode),
        why=why,
        out_of=_same if sigma is None else None,
        blocks=blocks,
        is_direct=True,
        inverse=shifted,
    )


def _after(solve: Solve, inner: Operator) -> Solve:
    """Compose a product and a solve."""
    return lambda Y: solve(inner.apply(BlockVector(Y)).array)


def _same(X: Array) -> Array:
    """Return an array."""
    return X


def _check_semidefinite(name: str, matrix: Any, operator: Operator, *, must_be: bool) -> None:
    """Refuse a matrix that is not Hermitian, or plainly indefinite; an iteration sees the other ones."""
    operator.check_hermitian(0, name=name)
    diagonal = matrix.diagonal().real
    if must_be and len(diagonal) and float(diagonal.min()) < 0:
        raise OptionError(f"{name} is indefinite; it must be positive definite.")


def _without_shift(
    A: Operator, M: Operator | None, factor: Factor, name: str, map: SpectralMap, offset: float, dtype: Any
) -> StandardForm:
    """Form C^-1 B C^-H - offset I, with B = A for the factor C C^H of M, or B = M for that of A."""
    if factor.solve is None or factor.solve_adjoint is None:
        raise OptionError(
            f"{name} is singular; give sigma and which='LM', with which infinite eigenvalues do no harm."
        )
    back, forth = factor.solve_adjoint, factor.solve
    inner, middle = (M, A) if name == "M" else (A, M)

    def apply(Y: Array) -> Array:
        X = np.ascontiguousarray(back(Y))
        product = forth(BlockVector(X).array if middle is None else middle.apply(BlockVector(X)).array)
        return product - offset * Y if offset else product

    return StandardForm(
        operator=as_operator(apply, shape=A.shape, dtype=dtype),
        A=A,
        M=M,
        inner=inner,
        into=factor.adjoint,
        vectors=back,
        map=map,
        why=factor.why or f"{name} is factorised",
        out_of=factor.apply,
    )


def _with_shift(
    A: Operator, M: Operator | None, factor: Factor | None, inverse: ShiftedInverse, mode: str, dtype: Any
) -> StandardForm:
    """Form the operator of a shift, by solves with A - sigma M."""
    sigma, size = inverse.sigma, A.shape[0] if factor is None else factor.rank
    out_of, into = (_same, _same) if factor is None else (factor.apply, factor.adjoint)

    def vectors(Y: Array) -> Array:
        return inverse.solve(out_of(Y))

    def apply(Y: Array) -> Array:
        product = into(vectors(Y))
        return Y + 2 * sigma * product if mode == "cayley" else product

    return StandardForm(
        operator=as_operator(apply, shape=(size, size), dtype=dtype, device=A.device, order="A"),
        A=A,
        M=M,
        inner=A if mode == "buckling" else M,
        into=into,
        vectors=vectors,
        map=SpectralMap(sigma, mode),
        why=inverse.why,
        is_direct=factor is None,
        inverse=inverse,
    )


def _mass(M: Any, A: Operator) -> Operator:
    """Convert M to an operator of the host."""
    if not (hasattr(M, "shape") or callable(M)):
        _explicit("M", M)
    mass = as_operator(M, shape=A.shape, dtype=A.dtype)
    if mass.device != "cpu":
        _explicit("M", M)
    return mass


def _explicit(name: str, A: Any) -> Any:
    """Refuse what is no matrix with real or complex entries."""
    if not is_explicit(A):
        raise OptionError(
            f"{name} is a {type(A).__name__}; a factorisation needs a sparse matrix or dense array. Give "
            "one, or OPinv."
        )
    if A.dtype.kind not in "iubfc":
        raise DTypeError(f"{name} holds {A.dtype}; give real or complex numbers.")
    return A


def _host_matrix(name: str, A: Any, dtype: Any) -> Any:
    """Convert to compressed row form in canonical format, which may share arrays with A."""
    matrix = sp.csr_array(_explicit(name, A)).astype(dtype, copy=False)
    if not np.isfinite(matrix.data).all():
        raise OptionError(f"{name} holds NaN or Inf; check its entries.")
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


# --- there and back ---------------------------------------------------------------------------------


def solve_transformed(form: StandardForm, problem: Problem) -> EigenResult:
    """Solve a problem, with `form.A` as its operator, in its standard form, and transform the pairs back."""
    norms = _norms(form, problem.norm)
    inside = _inside(form, problem, norms)
    inverse = form.inverse or ShiftedInverse(lambda B, _: B, 0.0, "")
    inverse.tolerance = _solve_tolerance(form, problem.tolerance, norms)
    try:
        inner = solve(inside)
        result = _transformed_back(form, inner, problem, norms)
        inverse.tolerance = 0.0
        improvable = inner.info["method"] != "dense" and inner.info["stopped"] in AT_THE_LIMIT
        if improvable and not result.converged.all():
            again = _transformed_back(form, _polished(inner, inside), problem, norms)
            result = _as_rounding_allows(min(again, result, key=_excess), problem, norms)
    except BreakdownError as error:
        raise BreakdownError(f"A, M, or a solve with A - sigma M (OPinv): {error}") from error
    return result


def solve_proven(form: StandardForm, problem: Problem) -> EigenResult:
    """Solve a problem around a shift, and prove by two more factorisations that no nearer value is missing.

    Where one is, the solve is repeated with a search for it.
    """
    factors, sigma = form.factors, form.map.sigma
    assert factors is not None
    assert sigma is not None
    result = solve_transformed(form, replace(problem, verify="auto"))
    for has_searched in (False, True):
        if not result.converged.all():
            break
        text, missing = proof_around(factors, sigma, to_host(result.eigenvalues), result.limits)
        result = result.with_info(verification=text, missing=missing or 0)
        if not missing or has_searched:
            break
        factors.refactorize(sigma)
        start = tall_block("v0", result.eigenvectors, form.A)
        again = replace(within_time(staged(problem, "searched")), start=start)
        result = one_after_other(result, solve_transformed(form, again))
    return result.with_info(time_s=time.perf_counter() - problem.begin_s)


def _solve_tolerance(form: StandardForm, tolerance: Tolerance, norms: Norms) -> float:
    """Choose the residuals of solves, per ||x||, that leave those of pairs near the shift below their limits.

    A pair whose vectors are x = theta^-1 (A - sigma M)^-1 x has the residual of that solve.
    """
    sigma = form.map.sigma
    if sigma is None or (tolerance.convergence == "value" and form.M is not None):
        return 0.0
    return float(SHARE * pair_limits(tolerance, np.array([sigma]), norms, 1.0, 1.0)[0])


def _excess(result: EigenResult) -> tuple[int, float]:
    """Count the pairs that have not converged, and compute the largest ratio of residual and limit."""
    return int((~result.converged).sum()), float((result.residuals / result.limits).max())


def _as_rounding_allows(result: EigenResult, problem: Problem, norms: Norms) -> EigenResult:
    """Accept residuals a little above the rounding floor, which the errors of a given inverse can cause."""
    values = to_host(result.eigenvalues).astype(np.float64)
    lengths = to_host(BlockVector(result.eigenvectors).norms()).astype(np.float64)
    floor = pair_floor(problem.tolerance.unit, values, norms, lengths)
    if result.converged.all() or (result.residuals > np.maximum(result.limits, LOOSER * floor)).any():
        return result
    factor = float((result.residuals / floor).max())
    why = f"{result.info['why']}; residuals end at {factor:.2g} times the floor, as good as rounding allows"
    limits = np.maximum(result.limits, result.residuals)
    accepted = replace(result, limits=limits, converged=np.ones(len(values), bool))
    return accepted.with_info(why=why, stopped="converged")


def _norms(form: StandardForm, norm: float | None) -> Norms:
    """Estimate the norms of a form's matrices, that of A unless it is given."""

    def estimate(operator: Operator | None) -> float:
        if operator is None:
            return 1.0
        like: Block = BlockVector.empty(operator.shape[0], 0, operator.dtype, device=operator.device)
        applied: Any = operator
        if operator.device == "cpu":
            like, applied = ColumnBlock.of(like), ColumnOperator(operator)
        return sketch_spectrum(applied, like, 1, NORM_STEPS, np.random.default_rng(0), None).norm

    A, M = estimate(form.A) if norm is None else norm, estimate(form.M)
    shift = 0.0 if form.map.mode == "reciprocal" else abs(form.map.sigma or 0.0) * M
    return Norms(A, M, A if form.inner is form.A else M, shift)


def _inside(form: StandardForm, problem: Problem, norms: Norms) -> Problem:
    """Transform a problem: its blocks, its preconditioner, and its tolerance."""
    S, asked, preconditioner = form.operator, problem.tolerance, problem.preconditioner
    unit = float(np.finfo(S.dtype).eps) / 2
    tolerance: Tolerance
    if problem.begins_with_corrections and asked.tol:
        tolerance = Tolerance(SHARE * asked.tol, asked.convergence, unit)
    elif form.is_shifted or form.blocks is not BlockVector:
        tolerance = TransformedTolerance(asked.tol, asked.convergence, unit, form.map, norms)
    else:  # the solve that transforms the vectors back is one more step of inverse iteration
        tolerance = Tolerance(float(asked.unit**DIGITS), "value", unit)
    if preconditioner is not None:
        apply, out_of = preconditioner, form.out_of
        assert out_of is not None

        def precondition(R: Block) -> Block:  # C^H K^-1 C
            X = BlockVector(np.ascontiguousarray(out_of(R.array)))
            return BlockVector(form.into(apply(X).array), copy=True, dtype=S.dtype)

        preconditioner = following(precondition, preconditioner)
    start, locked = (
        None if block is None else tall_block(name, form.into(block.array), S)
        for name, block in (("v0", problem.start), ("orthogonal_to", problem.locked))
    )
    seen = problem.seen
    return replace(
        problem,
        operator=S,
        seen=None if seen is None else lambda theta: seen(form.map.values(theta)),
        start=start,
        locked=locked,
        preconditioner=preconditioner,
        tolerance=tolerance,
        norm=None,
        exponent=form.map.degree * problem.exponent,
        has_costly_steps=form.is_shifted,
        blocks=form.blocks,
        method="lanczos" if form.blocks is not BlockVector else problem.method,
    )


def _polished(inner: EigenResult, inside: Problem) -> EigenResult:
    """Improve a result, in the complement of pairs near the shift, whose rounding errors limit the others."""
    S, corrects = inside.operator, inside.begins_with_corrections
    part = replace(
        within_time(staged(inside, "polished")),
        tolerance=replace(inside.tolerance, tol=0.0),
        verify="never",
        maxiter=inside.maxiter if corrects else POLISHING,
    )
    theta, V = to_host(inner.eigenvalues), inner.eigenvectors
    k, size = len(theta), np.abs(theta)
    near = np.flatnonzero(size > DOMINANT * size.min())
    if len(near) == 0 or corrects:
        return solve(replace(part, start=tall_block("v0", V, S)))
    xp = array_namespace(V)
    far = np.setdiff1d(np.arange(k), near)
    Y, W = (V[:, xp.asarray(columns)] for columns in (near, far))
    locked = [Y] if inside.locked is None else [Y, inside.locked.array]
    part = replace(
        part,
        k=len(far),
        start=tall_block("v0", xp.ascontiguousarray(W), S),
        locked=tall_block("orthogonal_to", xp.hstack(locked), S),
        norm=float(size[far].max()),  # of the operator in the complement
    )
    rest = solve(part)
    costs = inner.with_info(**totals(inner, rest), stopped=rest.info["stopped"])
    return EigenResult.from_pairs(
        np.concatenate([theta[near], to_host(rest.eigenvalues)]),
        xp.hstack([Y, rest.eigenvectors]),
        np.concatenate([inner.residuals[near], rest.residuals]),
        np.concatenate([inner.limits[near], rest.limits]),
        costs.info,
        continued(inner, rest),
    )


def _transformed_back(form: StandardForm, result: EigenResult, problem: Problem, norms: Norms) -> EigenResult:
    """Transform eigenpairs of S back: M-orthonormal vectors, and residuals with A and M."""
    theta = to_host(result.eigenvalues).astype(np.float64)
    # Errors of a solve lie along vectors near the shift; with these first, the others are cleaned of them.
    order = np.argsort(-np.abs(theta), kind="stable")
    values = form.map.values(theta[order])
    xp = array_namespace(result.eigenvectors)
    Y = xp.ascontiguousarray(result.eigenvectors[:, xp.asarray(order)])
    # Y may be accurate enough, without the solve of another step of inverse iteration: at the rounding floor
    # only where it is as good as what that would give.
    share = SHARE if problem.tolerance.tol else SHARE_OF_FLOOR
    for vectors in (_same, form.vectors) if form.is_direct else (form.vectors,):
        X, residuals, limits = _pairs(form, values, vectors(Y), problem.tolerance, norms)
        if (residuals <= share * limits).all():
            break
    ascending = np.argsort(values, kind="stable")
    info = result.info.copy()
    info["norm"], info["why"] = norms.A, f"{info['why']}; {form.why}"
    vectors_of = xp.ascontiguousarray(X.array[:, xp.asarray(ascending)])
    values, residuals, limits = (part[ascending] for part in (values, residuals, limits))
    return EigenResult.from_pairs(values, vectors_of, residuals, limits, info, result.history)


def _pairs(
    form: StandardForm, values: RealArray, vectors: Array, tolerance: Tolerance, norms: Norms
) -> tuple[Block, RealArray, RealArray]:
    """Orthonormalise vectors, and compute their residuals with A and M, and the limits of these.

    The tolerance is for residuals ||A x - lambda M x||, relative to ||M x|| where it is relative to
    abs(lambda).
    """
    is_on_host = form.A.device == "cpu"
    X: Block = ColumnBlock(vectors) if is_on_host else BlockVector(vectors, copy=True)
    X.scale(column_factors(1 / to_host(X.norms()), X))
    for _ in range(2):  # once is not enough for a basis far from orthonormal in M
        G = to_host(X.dot(_times(form.inner, X)))
        inverse = np.linalg.inv(np.linalg.cholesky((G + G.conj().T) / 2)).conj().T
        X = X.combine(small_matrix(inverse, X))
        if np.abs(G - np.eye(len(G))).max() < NEARLY_ORTHONORMAL / len(G):
            break
    MX = _times(form.M, X)
    R = _times(form.A, X).axpy(column_factors(-values, X), MX)
    residuals, lengths, masses = (to_host(B.norms()).astype(np.float64) for B in (R, X, MX))
    return X, residuals, pair_limits(tolerance, values, norms, lengths, masses)


def _times(M: Operator | None, X: Block) -> Any:
    """Compute M X; X itself for the identity."""
    if M is None:
        return X
    if isinstance(X, ColumnBlock):
        if M.dtype == X.dtype:
            return ColumnOperator(M).apply(X)
        return ColumnBlock(M.apply(BlockVector(np.ascontiguousarray(X.array))).array)
    return M.apply(X)
