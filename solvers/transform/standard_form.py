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

from typing import Any, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from blockvec import (
    BlockVector,
    Factorization,
    Operator,
    array_namespace,
    as_operator,
    factorize,
)
from blockvec.errors import DTypeError, OptionError, ShapeError
from blockvec.system.frozen import frozen

from ..arguments import check_shape, is_explicit
from ..blocks import Array, to_host
from ..column_block import ColumnBlock
from ..costs import DENSE_SHARE
from ..factorization.gram import Factor, gram_factor, rows_of_semidefinite
from ..factorization.root import root_factor
from ..factorization.shifted import ShiftedInverse, Solve, checked_inverse, shifted_inverse
from ..result import SingularError
from .inner_product import InnerProductOperator, applied, inner_product_blocks
from .spectral_map import SpectralMap

FACTOR_ROWS = 1000  # of an M that has a factor: a singular one then makes the problem smaller
BASIS = 64  # columns of a basis, beside those for wanted pairs
SINGULAR = {  # remedies for a singular M, by modes and methods that do not take it
    "no shift": "give sigma, with which infinite eigenvalues do no harm.",
    "distance": "infinite eigenvalues are the furthest ones from sigma: give another which than 'SM'.",
    "jd": "Jacobi-Davidson needs a positive definite one: leave out its options (method='jd', "
    "preconditioner, jd_options), and give sigma with A as a matrix, or with OPinv.",
    "interval": "filters and dense LAPACK need a positive definite one: leave out the method, and give A and "
    "M as matrices.",
    "estimate": "an estimate needs a positive definite one: give method='inertia', with A and M as matrices.",
}


@frozen
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
    def solve_width(self) -> int:
        """Columns of the narrowest block that is solved for at full speed; 0 where nothing is factorised."""
        factors = None if self.inverse is None else self.inverse.factors
        return 0 if factors is None else factors.solve_width

    def solve_within(self, tolerance: float) -> None:
        """Let solves with A - sigma M have residuals of tolerance ||x||."""
        if self.inverse is not None:
            self.inverse.tolerance = tolerance

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
    k: int = 1,
    method: str = "auto",
) -> StandardForm:
    """Transform A x = lambda M x, with or without a shift; the arguments are those of `eigsh`.

    `operator` applies A, which need not be explicit if nothing is factorised. `factors` of A - sigma M, for
    any sigma, are reused. `k` pairs are wanted, by a `method`.

    Refuses an M of the wrong definiteness, a shift that is an eigenvalue, and a matrix that is not explicit
    where a factorisation needs it.
    """
    mass = None if M is None else _mass(M, operator)
    dtype = operator.dtype if mass is None else np.promote_types(operator.dtype, mass.dtype)
    if sigma is None and mass is None:
        raise OptionError("standard_form: got neither M nor sigma; a standard problem needs no other form.")
    if operator.device != "cpu" and mode != "distance":
        return in_inner_product(operator, A, M, sigma, OPinv, mode, factors)
    mass_matrix = _host_matrix("M", M, dtype) if is_explicit(M) else None
    is_shifted = sigma is not None and mode in ("normal", "cayley") and OPinv is None
    may_iterate = is_shifted and mass_matrix is not None and method != "dense"
    if may_iterate and _is_iterated(mass_matrix, k):
        return in_inner_product(operator, A, mass_matrix, sigma, mode=mode, factors=factors)

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
        singular = SINGULAR.get(mode) or SINGULAR.get(method) or SINGULAR["no shift"]
        matrix = _host_matrix("A", A, dtype) if is_explicit(A) and hasattr(A, "nnz") else None
        return _without_shift(operator, mass, mass_factor(), "M", map, sigma or 0.0, dtype, singular, matrix)
    if sigma == 0 and mode != "normal":
        raise OptionError(f"sigma: got 0, which mode {mode!r} maps everything to one; give another shift.")
    factor = None
    if mode in ("buckling", "reciprocal"):
        factor = gram_factor("A", _host_matrix("A", A, dtype), "in buckling mode")
        if mode == "reciprocal":
            singular = "it must be positive definite in buckling mode."
            return _without_shift(operator, mass, factor, "A", map, 1 / sigma, dtype, singular)
    elif mass is not None:
        factor = mass_factor()
    if OPinv is None:
        if mass is not None:
            _explicit("M", M)
        inverse = shifted_inverse(_explicit("A", A), mass_matrix, float(sigma), factors=factors)
    else:
        inverse = checked_inverse(given_inverse(OPinv, operator), operator, mass, float(sigma))
    return _with_shift(operator, mass, factor, inverse, mode, np.dtype(dtype))


def _is_iterated(M: Any, k: int) -> bool:
    """Check whether a problem of the host is solved in the inner product of M, without a factor of M.

    That takes less time than products with a factor, unless M is diagonal, and has no dense form. The space
    must have more dimensions than a basis has columns.
    """
    n, massive = M.shape[0], int(np.count_nonzero(M.diagonal()))
    is_diagonal = M.nnz <= n and bool((M.indices == np.repeat(np.arange(n), np.diff(M.indptr))).all())
    return not is_diagonal and massive > FACTOR_ROWS and _least_rank(M) >= DENSE_SHARE * (k + BASIS)


def _least_rank(M: Any) -> float:
    """Bound the rank of a Hermitian positive semidefinite matrix from below.

    With a diagonal of ones, its eigenvalues have the sum n, and their squares that of all squared elements:
    by Cauchy and Schwarz, n^2 over the latter is at most the rank.
    """
    diagonal = M.diagonal().real
    weights = np.divide(1.0, diagonal, out=np.zeros(len(diagonal)), where=diagonal > 0)
    squares = sp.csr_array((abs(M.data) ** 2, M.indices, M.indptr), shape=M.shape)
    total = float(weights @ (squares @ weights))
    return np.count_nonzero(weights) ** 2 / total if total else 0.0


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
    diagonal: Any = None  # of the matrix of the inner product
    massive: Any = None  # its rows that are not zero
    if mass is not None and mode == "buckling":
        mass.check_hermitian(0, name="M")
    elif mass is not None:
        diagonal, massive = _checked_diagonal("M", M, mass)
    if mode == "buckling":
        diagonal, _ = _checked_diagonal("A", matrix, A, " in buckling mode")
    inner = metric = A if mode == "buckling" else mass
    restrict: Solve = _same
    extend: Solve = _same
    dtype = A.dtype if mass is None else np.promote_types(A.dtype, mass.dtype)
    if sigma is None:
        factored = factorize(M, device=A.device)
        if factored.is_singular:
            raise SingularError("M is singular; give sigma, with which infinite eigenvalues do no harm.")
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
            inverse = checked_inverse(given_inverse(OPinv, A), A, mass, float(sigma))
        sigma, why = inverse.sigma, inverse.why
        if mass is not None and mode != "buckling":
            metric, restrict, extend = _restricted(M, mass, massive)
            diagonal = diagonal[massive]
        shifted, vectors = inverse, inverse.solve if metric is None else _after(inverse.solve, metric, extend)
        twice = 2 * sigma

        def apply(Y: Array) -> Array:
            product = restrict(vectors(Y))
            return Y + twice * product if mode == "cayley" else product

    shape = A.shape if metric is None else metric.shape
    order = "C" if sigma is None else "A"
    function: Any = as_operator(apply, shape=shape, dtype=dtype, device=A.device, order=order)
    function.can_fail = True
    blocks = BlockVector if metric is None else inner_product_blocks(metric, diagonal)
    return StandardForm(
        operator=function if inner is None else cast(Operator, InnerProductOperator(function, blocks)),
        A=A,
        M=mass,
        inner=inner,
        into=restrict,
        vectors=vectors,
        map=SpectralMap(sigma, mode),
        why=why,
        out_of=_same if sigma is None else None,
        blocks=blocks,
        is_direct=restrict is _same,
        inverse=shifted,
    )


def _restricted(M: Any, mass: Operator, rows: NDArray[np.intp]) -> tuple[Operator, Solve, Solve]:
    """Restrict a positive semidefinite M to the rows that are not zero.

    Returns its operator, and functions that take these rows out of a block, and put them into one that is
    zero otherwise.
    """
    n = mass.shape[0]
    if len(rows) == n:
        return mass, _same, _same
    matrix = _rows_on_host(M, mass)
    among = rows if sp.issparse(matrix) else array_namespace(matrix).asarray(rows)
    restricted = as_operator(matrix[among][:, among], device=mass.device)
    order = "F" if mass.device == "cpu" else "C"
    xp = mass.backend.xp
    indices = xp.asarray(rows)

    def extend(Y: Array) -> Array:
        X: Array = xp.zeros((n, Y.shape[1]), Y.dtype, order=order)
        X[indices] = Y
        return X

    return restricted, lambda X: X[indices], extend


def _rows_on_host(matrix: Any, operator: Operator) -> Any:
    """Copy a sparse matrix to the host, in compressed row form; return a dense one of any device as it is."""
    return operator.to_host() if hasattr(operator, "to_host") else matrix


def _after(solve: Solve, metric: Operator, extend: Solve) -> Solve:
    """Compose a product, zeros in the other rows, and a solve."""
    blocks = ColumnBlock if metric.device == "cpu" else BlockVector
    return lambda Y: solve(extend(applied(metric, blocks(Y)).array))


def _same(X: Array) -> Array:
    """Return an array."""
    return X


def _checked_diagonal(
    name: str, matrix: Any, operator: Operator, purpose: str = ""
) -> tuple[Array, NDArray[np.intp]]:
    """Refuse a matrix that is not Hermitian, or plainly indefinite; an iteration sees the other ones.

    Returns its diagonal, on the host, and its rows that are not zero.
    """
    operator.check_hermitian(0, name=name)
    diagonal: Array = to_host(matrix.diagonal()).real.astype(np.float64)
    if (diagonal > 0).all():  # without a copy of a matrix of a GPU
        return diagonal, np.arange(len(diagonal))
    return diagonal, rows_of_semidefinite(name, _rows_on_host(matrix, operator), diagonal, purpose)


def _without_shift(
    A: Operator,
    M: Operator | None,
    factor: Factor,
    name: str,
    map: SpectralMap,
    offset: float,
    dtype: Any,
    singular: str,
    matrix: Any = None,
) -> StandardForm:
    """Form C^-1 B C^-H - offset I, with B = A for the factor C C^H of M, or B = M for that of A.

    `singular` tells what to do if that has no inverse. The sparse `matrix` of A, if given, is transformed.
    """
    if factor.solve is None or factor.solve_adjoint is None:
        raise SingularError(f"{name} is singular; {singular}")
    back, forth = factor.solve_adjoint, factor.solve
    inner, middle = (M, A) if name == "M" else (A, M)

    def apply(Y: Array) -> Array:
        X = np.ascontiguousarray(back(Y))
        product = forth(BlockVector(X).array if middle is None else middle.apply(BlockVector(X)).array)
        return product - offset * Y if offset else product

    explicit = None if matrix is None or offset or factor.transformed is None else factor.transformed(matrix)
    return StandardForm(
        operator=as_operator(apply, shape=A.shape, dtype=dtype) if explicit is None else explicit,
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
