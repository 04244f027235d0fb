"""Factors C C^H of Hermitian positive semidefinite matrices, such as a mass matrix."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import scipy.linalg as sl
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import SuperLU, splu

from blockvec import as_operator
from blockvec.errors import OptionError
from blockvec.system.frozen import frozen

from ..blocks import Array
from .shifted import Solve

NEGLIGIBLE = 1e-13  # pivots of a semidefinite matrix below this fraction of the largest are zero
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

    @classmethod
    def of(cls, C: Any, solve: Solve | None = None, solve_adjoint: Solve | None = None) -> Factor:
        """Form the factor of a sparse C; blocks may be of either order, products are column-major."""
        return cls(C.shape[1], _product(C), _product(C.conj().T), solve, solve_adjoint)


def _product(C: Any) -> Solve:
    """Form the function that multiplies a block by a sparse matrix."""
    operator = as_operator(C, check_indices=False)

    def product(Y: Array) -> Array:
        result = np.zeros((C.shape[0], Y.shape[1]), C.dtype, order="F")
        operator.add_product(np.asfortranarray(Y, C.dtype), result)
        return result

    return product


def gram_factor(name: str, matrix: Any, purpose: str = "") -> Factor:
    """Factorise a Hermitian positive semidefinite matrix, in compressed row form, as C C^H.

    Rows without entries are zero in C. A matrix that is singular in another way is made dense. One that is
    not Hermitian, indefinite, or too large to be made dense, is refused.
    """
    as_operator(matrix, check_indices=False).check_hermitian(0, name=name)
    where = f" {purpose}" if purpose else ""
    indefinite = f"{name} is indefinite; it must be positive definite{where}."
    diagonal = matrix.diagonal().real
    if len(diagonal) and diagonal.min() < 0:
        raise OptionError(indefinite)
    n = matrix.shape[0]
    live = np.flatnonzero(np.diff(matrix.indptr))
    # The columns of a Hermitian matrix are its rows, conjugated.
    inner = (matrix if len(live) == n else matrix[live][:, live]).conj().T
    if (inner.indices == np.repeat(np.arange(len(live)), np.diff(inner.indptr))).all():
        place, pivots = np.arange(len(live)), inner.diagonal()
        lower: Any = sp.eye_array(len(live), dtype=matrix.dtype, format="csc")
    else:
        lu = _pivots_on_diagonal(inner)
        # Rows are exchanged for a pivot that is zero; a small one may be zero except for rounding.
        if lu is None or not np.array_equal(lu.perm_r, lu.perm_c) or _is_unsure(lu.U.diagonal().real):
            if len(live) > DENSE_ROWS:
                raise OptionError(
                    f"{name} is singular or indefinite; it must be positive definite{where}, but for rows of "
                    "zeros."
                )
            return Factor.of(_scatter(_dense_factor(inner.toarray(), indefinite), live, n))
        place, pivots, lower = lu.perm_r, lu.U.diagonal(), lu.L
    largest = np.abs(pivots).max(initial=0.0)
    if len(live) and pivots.real.min() < -NEGLIGIBLE * largest:
        raise OptionError(indefinite)
    kept = np.flatnonzero(pivots.real > NEGLIGIBLE * largest)
    roots = np.sqrt(np.maximum(pivots.real, 0))
    triangle = sp.csc_array(
        (lower.data * np.repeat(roots, np.diff(lower.indptr)), lower.indices, lower.indptr), shape=lower.shape
    )
    if len(kept) < len(live):
        triangle = triangle[:, kept]
    order = np.argsort(place)
    C = _scatter(triangle, live[order], n)
    if len(kept) < n:
        return Factor.of(C)

    @functools.cache
    def solver() -> Any:  # which forms with a shift do not need
        return splu(triangle, permc_spec="NATURAL", diag_pivot_thresh=0.0, options={"Equil": False})

    return Factor.of(
        C,
        lambda X: solver().solve(np.ascontiguousarray(X[order])),
        lambda Y: solver().solve(np.ascontiguousarray(Y), "H")[place],
    )


def _pivots_on_diagonal(matrix: Any) -> SuperLU | None:
    """Compute a sparse LU factorisation with the pivots on the diagonal; None if one of them is zero."""
    try:
        return splu(
            matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
        )
    except RuntimeError:
        return None


def _is_unsure(pivots: NDArray[Any]) -> bool:
    """Check whether the smallest pivot may be rounding."""
    return float(pivots.min() / np.abs(pivots).max()) < UNSURE


def _dense_factor(A: NDArray[Any], indefinite: str) -> Any:
    """Factorise a dense semidefinite matrix as C C^H, by Cholesky with diagonal pivoting."""
    pstrf: Any = sl.get_lapack_funcs("pstrf", (A,))
    largest = float(np.abs(A.diagonal()).max())
    factor, order, rank, _ = pstrf(A, lower=1, tol=NEGLIGIBLE * largest)
    C = np.zeros((len(A), rank), A.dtype)
    C[order - 1] = np.tril(factor)[:, :rank]
    if np.abs(A - C @ C.conj().T).max() > NEGLIGIBLE * len(A) * largest:
        raise OptionError(indefinite)
    return sp.csr_array(C)


def _scatter(columns: Any, rows: NDArray[Any], n: int) -> Any:
    """Move the rows of a sparse matrix to other ones of n."""
    coo = columns.tocoo()
    return sp.csr_array((coo.data, (rows[coo.row], coo.col)), shape=(n, columns.shape[1]))
