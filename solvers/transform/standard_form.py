"""Generalised and shift-invert problems as standard Hermitian ones.

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
x = (A - sigma M)^-1 C y, a step of inverse iteration that reduces their errors. Without a C, the
decomposition of the iteration gives such a step, except for errors of rounding.

On a GPU, which has no such C, and for shifts with a large M that is not diagonal, the same operators run on
x, in the inner product of C C^H: with (A - sigma M)^-1 C C^H, and M^-1 A without a shift (`inner_product`).
With a shift these are the rows of x that have masses, so that infinite eigenvalues do not appear here either.

References
----------
Ericsson, Ruhe, Math. Comp. 35 (1980) 1251; Grimes, Lewis, Simon, SIAM J. Matrix Anal. Appl. 15 (1994) 228.
Deviation: a factor of a small M in the operator instead of the M-inner product in the iteration.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

from blockvec import BlockVector, Factorization, Operator, array_namespace, as_operator, factorize
from blockvec.errors import DTypeError, OptionError, ShapeError
from blockvec.interchange import diagonal_of
from blockvec.system.frozen import frozen

from ..arguments import check_shape, on_host
from ..blocks import Array, Block, ColumnBlock, applied, is_explicit
from ..costs import DENSE_SHARE, NEARLY_FULL, dense_rows
from ..factorization.gram import (
    ROUNDING,
    Factor,
    gram_factor,
    indefinite,
    is_diagonal,
    root_factor,
    rows_of_semidefinite,
)
from ..factorization.shifted import ShiftedInverse, Solve, checked_inverse, shifted_inverse
from ..iterations.spectrum import sketch_of
from ..result import SingularError
from .inner_product import inner_product_blocks
from .spectral_map import SpectralMap

BASIS = 64  # columns of a basis, beside those for wanted pairs
# Lanczos steps that look for a negative value. With 15 where none was seen by then, a value of -0.001 beside
# others from 0.02 to 1 was missed; no bound of its Ritz values excludes one.
DEFINITE_STEPS = 60
SINGULAR = {  # remedies for a singular M, by modes and methods that do not take it
    "no shift": "give sigma, with which infinite eigenvalues do no harm.",
    "distance": "infinite eigenvalues are the furthest ones from sigma: give another which than 'SM'.",
    "jd": "Jacobi-Davidson needs a positive definite one: leave out its options (method='jd', "
    "preconditioner, jd_options), and give sigma with A as a matrix, or with OPinv.",
    "interval": "filters and dense LAPACK need a positive definite one: leave out the method, and give A and "
    "M as matrices.",
    "reciprocal": "it must be positive definite in buckling mode.",
    "estimate": "an estimate needs a positive definite one: give method='inertia', with A and M as matrices.",
}


@frozen
class StandardForm:
    """A problem A x = lambda M x in the form S y = theta y."""

    operator: Operator  # S, shape (r, r)
    A: Operator
    M: Operator | None  # None for the identity
    factor: Factor  # C: y = C^H x
    vectors: Solve  # x of each y, not normalised
    map: SpectralMap  # lambda of each theta
    why: str  # the factorisation, in words
    inverse: ShiftedInverse | None = None  # of A - sigma M

    @property
    def blocks(self) -> type[BlockVector]:
        """The type of blocks y, in the inner product that S is Hermitian in."""
        return self.factor.blocks

    @property
    def factors(self) -> Factorization | None:
        """The factors of A - sigma M, if values nearest to sigma are those of largest magnitude."""
        return None if self.inverse is None or self.map.mode != "normal" else self.inverse.factors

    @property
    def inner_name(self) -> str:
        """The name of the matrix C C^H, in whose inner product vectors are orthonormal."""
        return "A" if self.map.mode in ("buckling", "reciprocal") else "M"

    @property
    def inner(self) -> Operator | None:
        """The operator of that matrix; None for the identity."""
        return self.A if self.inner_name == "A" else self.M

    @property
    def is_rough(self) -> bool:
        """Whether solves in S have larger errors than those for the vectors x."""
        return self.inverse is not None and self.inverse.once is not None

    def refined(self) -> StandardForm:
        """Form the problem with all solves refined."""
        if not self.is_rough:
            return self
        inverse = replace(cast(ShiftedInverse, self.inverse), once=None)
        return _with_shift(self.A, self.M, self.factor, inverse, self.map.mode, self.operator.dtype)

    def moved(self, sigma: float) -> StandardForm:
        """Form the problem around another shift, for which the factors are computed again."""
        assert self.factors is not None
        inverse = shifted_inverse(self.factors, sigma)
        return _with_shift(self.A, self.M, self.factor, inverse, self.map.mode, self.operator.dtype)


def standard_form(
    operator: Operator,
    A: Any,
    M: Any,
    sigma: float | None,
    OPinv: Any = None,
    mode: str = "normal",
    factors: Factorization | None = None,
    Minv: Any = None,
    k: int = 1,
    method: str = "auto",
    on_vectors: bool | None = None,
) -> StandardForm:
    """Transform A x = lambda M x, with or without a shift; the arguments are those of `eigsh`.

    `operator` applies A, which need not be explicit if nothing is factorised. `factors` of A - sigma M, for
    any sigma, are reused. `k` pairs are wanted, by a `method`. The iteration runs `on_vectors` x themselves
    or on y = C^H x, by default on whichever takes less time.

    Refuses an M of the wrong definiteness, a shift that is an eigenvalue, and a matrix that is not explicit
    where a factorisation needs it.
    """
    if sigma is None and M is None:
        raise OptionError("standard_form: got neither M nor sigma; a standard problem needs no other form.")
    if sigma == 0 and mode not in ("normal", "distance"):
        raise OptionError(f"sigma: got 0, which mode {mode!r} maps everything to one; give another shift.")
    mass = None if M is None else _mass(M, operator)
    dtype = operator.dtype if mass is None else np.promote_types(operator.dtype, mass.dtype)
    is_shifted = sigma is not None and mode not in ("distance", "reciprocal")
    is_on_host = operator.device == "cpu"
    if is_on_host and is_explicit(M):
        M = _host_matrix("M", M, dtype)
    if on_vectors is None:
        may_iterate = is_shifted and mode != "buckling" and OPinv is None and method != "dense"
        may_iterate &= is_on_host and is_explicit(M) and operator.shape[0] > dense_rows("solves", "cpu", k)
        on_vectors = _is_iterated(M, k) if may_iterate else not is_on_host and mode != "distance"
    if on_vectors and mass is not None:
        applied_mass = _explicit("M", M)
        if is_on_host and applied_mass.nnz * NEARLY_FULL >= applied_mass.shape[0] ** 2:
            applied_mass = applied_mass.toarray()  # .6 of the time for 340 to 1100 rows
        mass = as_operator(applied_mass, device=operator.device)
    name, matrix, inner = ("A", A, operator) if mode in ("buckling", "reciprocal") else ("M", M, mass)
    if inner is None:
        why = "the values furthest from sigma need no factorisation"
        factor = Factor(operator.shape[0], *4 * (_same,), why=why)
    elif on_vectors:
        factor = _factor_on_vectors(name, matrix, inner, is_shifted)
    elif name == "A" or is_explicit(matrix):
        factor = gram_factor(name, _host_matrix(name, matrix, dtype))
    else:
        inverse_mass = None if Minv is None else as_operator(Minv, shape=inner.shape, dtype=inner.dtype)
        factor = root_factor(inner, inverse_mass)
    if not is_shifted:
        singular = SINGULAR.get(mode) or SINGULAR.get(method) or SINGULAR["no shift"]
        return _without_shift(operator, A, mass, factor, SpectralMap(sigma, mode), np.dtype(dtype), singular)
    at = float(cast(float, sigma))
    if OPinv is not None:
        inverse = checked_inverse(given_inverse(OPinv, operator), operator, mass, at)
    else:
        M = None if M is None else _explicit("M", M)
        if factors is None:
            factors = Factorization(_explicit("A", A), M, device=operator.device)
        inverse = shifted_inverse(factors, at)
    return _with_shift(operator, mass, factor, inverse, mode, np.dtype(dtype))


def _is_iterated(M: Any, k: int) -> bool:
    """Check whether a problem of the host is solved in the inner product of M, without a factor of M.

    That takes less time than products with a factor, unless M is diagonal, and has no dense form. The space
    must have more dimensions than a basis has columns. If D M D has a diagonal of ones, its eigenvalues have
    the sum n, and their squares that of all squared elements: by Cauchy and Schwarz, n^2 over the latter is
    at most the rank.
    """
    if is_diagonal(M):
        return False
    n, diagonal = M.shape[0], M.diagonal().real
    weights = np.divide(1.0, diagonal, out=np.zeros(n), where=diagonal > 0)
    squares = sp.csr_array((abs(M.data) ** 2, M.indices, M.indptr), shape=M.shape)
    least_rank = np.count_nonzero(weights) ** 2 / max(float(weights @ (squares @ weights)), 1.0)
    return bool(least_rank >= DENSE_SHARE * (k + BASIS))


def given_inverse(OPinv: Any, A: Operator) -> Operator:
    """Convert a given (A - sigma M)^-1 to an operator."""
    if not (hasattr(OPinv, "shape") or callable(OPinv)):
        raise OptionError(f"OPinv: got {OPinv!r}; give a linear operator, a function or a matrix.")
    inverse = as_operator(OPinv, shape=A.shape, dtype=A.dtype, device=A.device)
    if inverse.shape != A.shape:
        raise ShapeError(f"OPinv has shape {inverse.shape} but A has {A.shape}.")
    return inverse


def _same(X: Array) -> Array:
    return X


def _factor_on_vectors(name: str, matrix: Any, operator: Operator, is_shifted: bool) -> Factor:
    """Form a matrix in the place of its factor C, and I in that of C^H, for blocks in its inner product.

    With a shift both are restricted to the rows of a semidefinite matrix that are not zero. Refuses a matrix
    that has negative eigenvalues: an iteration in its product might converge, to pairs that do not belong to
    the problem that was meant.
    """
    diagonal: Array = on_host(diagonal_of(matrix)).astype(np.float64)
    restrict: Solve = _same
    extend: Solve = _same
    solve: Solve | None = None
    if not (diagonal > 0).all():  # otherwise without a copy of a matrix of a GPU
        here = operator.to_host() if hasattr(operator, "to_host") else matrix  # a dense one as it is
        rows = rows_of_semidefinite(name, here, diagonal)
        if is_shifted and len(rows) < len(diagonal):
            n, xp, order = len(diagonal), operator.backend.xp, "F" if operator.device == "cpu" else "C"
            among = rows if sp.issparse(here) else array_namespace(here).asarray(rows)
            indices = xp.asarray(rows)

            def spread(Y: Array) -> Array:
                X: Array = xp.zeros((n, Y.shape[1]), Y.dtype, order=order)
                X[indices] = Y
                return X

            operator = as_operator(here[among][:, among], device=operator.device)
            diagonal, restrict, extend = diagonal[rows], lambda X: X[indices], spread
    if not is_shifted:
        factors = factorize(matrix, device=operator.device)
        if not factors.is_singular:
            if factors.inertia:
                raise indefinite(name)
            solve = lambda Y: factors.solve(BlockVector(Y)).array  # noqa: E731
    sketch = sketch_of(operator, DEFINITE_STEPS)
    if sketch.theta.min() < -ROUNDING * float(np.finfo(operator.dtype).eps) * sketch.norm:
        raise indefinite(name)
    home = ColumnBlock if operator.device == "cpu" else BlockVector
    return Factor(
        len(diagonal),
        lambda Y: extend(applied(operator, home(Y)).array),
        restrict,
        solve,
        _same,
        blocks=inner_product_blocks(operator, diagonal),
        norm=sketch.norm,
    )


def _without_shift(
    A: Operator, matrix: Any, M: Operator | None, factor: Factor, map: SpectralMap, dtype: Any, singular: str
) -> StandardForm:
    """Form C^-1 B C^-H - offset I, with B = A for the factor C C^H of M, or B = M for that of A.

    `singular` tells what to do if that has no inverse. A sparse `matrix` of A of the host may be transformed.
    """
    name = "A" if map.mode == "reciprocal" else "M"
    if factor.solve is None or factor.solve_adjoint is None:
        raise SingularError(f"{name} is singular; {singular}")
    back, forth = factor.solve_adjoint, factor.solve
    middle = A if name == "M" else M
    offset = 0.0 if map.sigma is None else map.sigma if name == "M" else 1 / map.sigma

    def apply(Y: Array) -> Array:
        X = array_namespace(Y).ascontiguousarray(back(Y))
        product = forth(BlockVector(X).array if middle is None else middle.apply(BlockVector(X)).array)
        return product - offset * Y if offset else product

    if factor.transformed is not None and name == "M" and not offset and sp.issparse(matrix):
        operator = factor.transformed(_host_matrix("A", matrix, dtype))
    else:
        operator = operator_on(apply, A.shape[0], dtype, A, factor.blocks)
    return StandardForm(operator, A, M, factor, back, map, factor.why or f"{name} is factorised")


def _with_shift(
    A: Operator, M: Operator | None, factor: Factor, inverse: ShiftedInverse, mode: str, dtype: Any
) -> StandardForm:
    """Form the operator of a shift, by solves with A - sigma M."""
    inverse = inverse if mode == "normal" else replace(inverse, once=None)
    sigma, steps = inverse.sigma, inverse.once or inverse.solve

    def vectors(Y: Array) -> Array:
        return inverse.solve(factor.apply(Y))

    def apply(Y: Array) -> Array:
        product = factor.adjoint(steps(factor.apply(Y)))
        return Y + 2 * sigma * product if mode == "cayley" else product

    operator = operator_on(apply, factor.rank, dtype, A, factor.blocks, "A")
    if inverse.factors is not None and inverse.factors.solve_width:  # of a sparse factorisation
        operator.needs_threads = False
    return StandardForm(operator, A, M, factor, vectors, SpectralMap(sigma, mode), inverse.why, inverse)


def operator_on(
    apply: Solve, size: int, dtype: Any, A: Operator, blocks: type[BlockVector], order: str = "C"
) -> Any:
    """Make a function of arrays an operator on blocks in the inner product of a type, and on no others."""
    operator: Any = as_operator(apply, shape=(size, size), dtype=dtype, device=A.device, order=order)
    operator.can_fail = True
    product, inner = operator.apply, getattr(blocks, "inner", None)

    def checked(X: Block, *arguments: Any, **options: Any) -> Block:
        # Blocks with another inner product would make wrong values of right products.
        assert getattr(X, "inner", None) is inner
        result: Block = product(X, *arguments, **options)
        return result

    operator.apply = product if inner is None else checked
    return operator


def _mass(M: Any, A: Operator) -> Operator:
    """Convert M to an operator of the host."""
    if not (hasattr(M, "shape") or callable(M)):
        _explicit("M", M)
    check_shape("M", M, A)
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
