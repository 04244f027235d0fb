"""Factors C C^H of Hermitian positive semidefinite matrices, such as a mass matrix, and roots of operators.

The inverse root of an operator M that cannot be factorised is interpolated by a Chebyshev polynomial p of
degree d on an interval [a, b] that contains the spectrum. Its relative error falls like rho^-d with rho =
(sqrt(b/a) + 1) / (sqrt(b/a) - 1), for a condition number of 100 to rounding errors with d = 190. p(M) is
Hermitian and linear, unlike an iterative solve.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg as sl
import scipy.sparse as sp
from numpy.polynomial import chebyshev as polynomials
from numpy.typing import NDArray
from scipy.sparse.linalg import SuperLU, splu

from blockvec import BlockVector, Operator, array_namespace, as_operator
from blockvec.errors import OptionError
from blockvec.system.frozen import frozen

from ..blocks import Array
from ..functions.recurrence import Recurrence
from ..iterations.spectrum import Sketch, sketch_spectrum
from .shifted import INVERSE, Solve

ROUNDING = 450.0  # eps, of the largest diagonal element or pivot, or the norm: what is smaller is zero
UNSURE = 1e-10  # pivots below this fraction, taken without exchanges, may be rounding
DENSE_ROWS = 4000  # a semidefinite matrix may be factorised densely up to here


@frozen
class Factor:
    """A factor C with C C^H equal to a Hermitian positive semidefinite matrix, shape (n, r)."""

    rank: int  # r, the columns of C
    apply: Solve  # C Y of blocks
    adjoint: Solve  # C^H X of blocks
    solve: Solve | None = None  # C^-1 of blocks, where C is square
    solve_adjoint: Solve | None = None  # C^-H of blocks
    why: str = ""  # how it is applied, if not as a matrix
    transformed: Callable[[Any], Operator] | None = None  # C^-1 A C^-H for a sparse A, where C is square
    blocks: type[BlockVector] = BlockVector  # of vectors that C^H leaves as they are, in its inner product
    norm: float | None = None  # norm of C C^H, if it is known

    @classmethod
    def of(cls, C: Any, **inverse: Any) -> Factor:
        """Form the factor of a sparse C; blocks may be of either order, products are column-major."""
        return cls(C.shape[1], _product(C), _product(C.conj().T), **inverse)


def congruent(matrix: Any, factors: Array) -> Any:
    """Compute D A D, of the type of A, for a matrix of the host and the diagonal of D."""
    dtype = np.promote_types(matrix.dtype, np.float32)
    if isinstance(matrix, np.ndarray):
        return (factors[:, None] * matrix * factors).astype(dtype)
    D = sp.diags_array(factors)
    return sp.csr_array(D @ sp.csr_array(matrix) @ D).astype(dtype)


def _product(C: Any) -> Solve:
    operator = as_operator(C, check_indices=False)

    def product(Y: Array) -> Array:
        result = np.empty((C.shape[0], Y.shape[1]), C.dtype, order="F")
        operator.apply_columns(np.asfortranarray(Y, C.dtype), result)
        return result

    return product


def must_be(name: str) -> str:
    """Return the requirement on the matrix of an inner product, for error messages."""
    return f"it must be positive definite{' in buckling mode' if name == 'A' else ''}"


def indefinite(name: str, details: str = "") -> OptionError:
    """Return the error for an indefinite matrix of an inner product."""
    return OptionError(f"{name} is indefinite; {must_be(name)}.{details}")


def rows_of_semidefinite(name: str, matrix: Any, diagonal: Array) -> NDArray[np.intp]:
    """Find the rows of a Hermitian positive semidefinite matrix that are not zero.

    These have a positive diagonal element, since abs(m_ij)^2 <= m_ii m_jj. The matrix is a sparse one of the
    host or a dense one of any device, `diagonal` an array of the host. A matrix that is zero or plainly
    indefinite is refused.
    """
    kind = np.promote_types(matrix.dtype, np.float32)  # of integers, too
    negligible = ROUNDING * float(np.finfo(kind).eps) * float(diagonal.max(initial=0.0))
    rest = np.flatnonzero(diagonal <= 0)
    if len(rest):
        if float(diagonal.min()) < -negligible:
            raise indefinite(name)
        rows = matrix[rest if sp.issparse(matrix) else array_namespace(matrix).asarray(rest)]
        largest = float(abs(rows).max()) if rows.shape[1] else 0.0
        if largest > negligible:
            row = f" A row with a zero on the diagonal has elements up to {largest:.1e}, but must be zero."
            raise indefinite(name, row)
    if len(rest) == len(diagonal):
        raise OptionError(f"{name} is zero; {must_be(name)}. Check its entries.")
    return np.flatnonzero(diagonal > 0)


def gram_factor(name: str, matrix: Any) -> Factor:
    """Factorise a Hermitian positive semidefinite matrix, in compressed row form, as C C^H.

    Rows of zeros are zero in C. A matrix that is singular in another way is made dense. One that is zero,
    indefinite, or too large to be made dense, is refused.
    """
    n, dtype = matrix.shape[0], matrix.dtype
    live = rows_of_semidefinite(name, matrix, matrix.diagonal().real)
    # Rounding errors of the entries in single precision need not be joined by those of a factorisation.
    inner = matrix.astype(np.promote_types(dtype, np.float64), copy=False)
    inner = inner if len(live) == n else inner[live][:, live]
    if is_diagonal(inner):
        return _diagonal_factor(inner.diagonal().real, live, n, dtype)
    # Tiny masses are not zero: powers of two make all diagonal elements about one.
    scale = np.exp2(np.rint(np.log2(inner.diagonal().real) / 2))
    inner = congruent(inner, 1 / scale)
    lu = _pivots_on_diagonal(inner)
    if lu is None:
        if len(live) > DENSE_ROWS:
            raise OptionError(f"{name} is singular or indefinite; {must_be(name)}, but for rows of zeros.")
        C = _dense_factor(name, inner.toarray(), ROUNDING * float(np.finfo(dtype).eps))
        return Factor.of(_scatter(sp.csr_array((scale[:, None] * C).astype(dtype)), live, n))
    lower, pivots, place = lu.L, lu.U.diagonal().real, lu.perm_r
    negligible = ROUNDING * float(np.finfo(float).eps) * float(np.abs(pivots).max())
    if pivots.min() < -negligible:
        raise indefinite(name)
    kept, order = np.flatnonzero(pivots > negligible), np.argsort(place)
    roots = np.sqrt(np.maximum(pivots, 0))
    data = lower.data * np.repeat(roots, np.diff(lower.indptr)) * scale[order][lower.indices]
    triangle = sp.csc_array((data, lower.indices, lower.indptr), shape=lower.shape).astype(dtype, copy=False)
    if len(kept) < n:
        return Factor.of(_scatter(triangle[:, kept], live[order], n))

    @functools.cache
    def solver() -> Any:  # which forms with a shift do not need
        return splu(triangle, permc_spec="NATURAL", diag_pivot_thresh=0.0, options={"Equil": False})

    def transformed(A: Any) -> Operator:
        # As the pivots: steps of an iteration move no rows. Without it 31 pairs took 1.3 times as long.
        ordered = A[order][:, order]
        product, solve = _product(ordered), solver().solve
        return as_operator(
            lambda Y: solve(product(solve(Y, "H"))), shape=A.shape, dtype=triangle.dtype, order="A"
        )

    return Factor.of(
        _scatter(triangle, live[order], n),
        solve=lambda X: solver().solve(np.ascontiguousarray(X[order])),
        solve_adjoint=lambda Y: solver().solve(np.ascontiguousarray(Y), "H")[place],
        transformed=transformed,
    )


def is_diagonal(matrix: Any) -> bool:
    """Check whether a matrix in compressed row form has no element beside its diagonal."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return bool(matrix.nnz <= matrix.shape[0] and (matrix.indices == rows).all())


def _diagonal_factor(diagonal: Array, live: NDArray[np.intp], n: int, dtype: Any) -> Factor:
    """Form the factor of a diagonal matrix of n rows, from its elements in the rows that are not zero."""
    roots, norm = np.sqrt(diagonal).astype(dtype), float(diagonal.max())
    if len(live) < n:
        return Factor.of(_scatter(sp.diags_array(roots), live, n), norm=norm)
    factors = roots[:, None]

    def transformed(A: Any) -> Operator:
        return as_operator(congruent(A, 1 / roots), check_indices=False)

    multiply: Solve = lambda Y: factors * Y  # noqa: E731
    divide: Solve = lambda Y: Y / factors  # noqa: E731
    return Factor(n, multiply, multiply, divide, divide, transformed=transformed, norm=norm)


def _pivots_on_diagonal(matrix: Any) -> SuperLU | None:
    """Compute a sparse LU factorisation with the pivots on the diagonal; None if one may be zero.

    SuperLU exchanges rows for a pivot that is zero; a small one may be zero except for rounding.
    """
    columns = matrix.conj().T  # those of a Hermitian matrix are its rows, conjugated
    try:
        lu = splu(columns, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    except RuntimeError:
        return None
    pivots = lu.U.diagonal().real
    is_sure = float(pivots.min() / np.abs(pivots).max()) >= UNSURE
    return lu if is_sure and np.array_equal(lu.perm_r, lu.perm_c) else None


def _dense_factor(name: str, A: NDArray[Any], rounding: float) -> NDArray[Any]:
    """Factorise a dense semidefinite matrix as C C^H, by Cholesky with diagonal pivoting.

    Pivots below a fraction of the largest are zero. C has as many columns as the rank.
    """
    pstrf: Any = sl.get_lapack_funcs("pstrf", (A,))
    largest = float(np.abs(A.diagonal()).max())
    factor, order, rank, _ = pstrf(A, lower=1, tol=rounding * largest)
    C = np.zeros((len(A), rank), A.dtype)
    C[order - 1] = np.tril(factor)[:, :rank]
    if np.abs(A - C @ C.conj().T).max() > rounding * len(A) * largest:
        raise indefinite(name)
    return C


def _scatter(columns: Any, rows: NDArray[Any], n: int) -> Any:
    coo = columns.tocoo()
    return sp.csr_array((coo.data, (rows[coo.row], coo.col)), shape=(n, columns.shape[1]))


STEPS, MOST_STEPS = 40, 320  # of Lanczos, for the bounds of the spectrum
MARGIN = 0.05  # relative distance of the interval from the bounds
MOST_DEGREE = 2000


def root_factor(M: Operator, Minv: Operator | None = None) -> Factor:
    """Form M^(1/2) as the factor of a Hermitian positive definite operator.

    The spectrum's lower bound is that of M by Lanczos, or 1 / ||Minv||. Refuses an M that is indefinite or
    ill-conditioned, and a Minv that is not its inverse.
    """
    low, high = _bounds(M, Minv)
    unit = float(np.finfo(M.dtype).eps) / 2
    root = math.sqrt(high / low)
    degree = math.ceil(math.log(root / unit) / math.log((root + 1) / max(root - 1, unit)))
    if degree > MOST_DEGREE:
        raise OptionError(
            f"M: its eigenvalues extend from about {low:.2g} to {high:.2g}, and M^(-1/2) needs a polynomial "
            f"of degree {degree}, more than {MOST_DEGREE}; give M as a matrix, without Minv."
        )
    centre, half_width = (high + low) / 2, (high - low) / 2
    interpolate: Any = polynomials.chebinterpolate
    coefficients = interpolate(lambda x: (centre + half_width * x) ** -0.5, degree)
    doubled = M.affine(2 / half_width, centre)

    def inverse_root(X: Array) -> Array:
        block = BlockVector(
            array_namespace(X).ascontiguousarray(X), copy=True, dtype=np.promote_types(M.dtype, X.dtype)
        )
        total = block.copy().scale(coefficients[0])
        Recurrence(doubled, block, block.like()).add([coefficients[1:].tolist()], [total])
        return total.array

    def root_of(X: Array) -> Array:
        return (M @ BlockVector(inverse_root(X))).array

    why = f"M^(-1/2) is a polynomial of degree {degree}, for eigenvalues of M from {low:.3g} to {high:.3g}"
    return Factor(M.shape[0], root_of, root_of, inverse_root, inverse_root, why)


def _bounds(M: Operator, Minv: Operator | None) -> tuple[float, float]:
    """Estimate bounds of the spectrum of M."""
    where: Any = {"dtype": M.dtype, "device": M.device}
    rng = np.random.default_rng(0)

    def sketch(operator: Operator, resolved: Any = lambda sketch: True) -> Sketch:
        V = BlockVector.random(M.shape[0], 2, rng=rng, **where)
        return sketch_spectrum(operator, V, STEPS, most=MOST_STEPS, resolved=resolved)

    if Minv is None:
        # The lower bound is the least Ritz value less its residual, which is small once that has converged.
        found = sketch(M, lambda sketch: sketch.low > sketch.theta.min() * (1 - MARGIN))
        low = found.low
    else:
        x = BlockVector.random(M.shape[0], 1, rng=rng, **where)
        error = Minv.apply(M.apply(x)).axpy(-1, x).norms()[0]
        if not error <= INVERSE * x.norms()[0]:
            raise OptionError(
                f"Minv: is not the inverse of M; Minv M x differs from x by {float(error):.1e} for a random "
                f"x of norm {float(x.norms()[0]):.1e}."
            )
        found, low = sketch(M), 1 / sketch(Minv).high
    if not low > 0:
        raise OptionError(
            f"M is an operator with eigenvalues from about {found.theta.min():.2g} to {found.high:.2g}; "
            "without a factorisation it must be positive definite and well-conditioned. Give it as a matrix."
        )
    return low * (1 - MARGIN), found.high * (1 + MARGIN)
