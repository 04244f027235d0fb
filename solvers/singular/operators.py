"""The operators of singular values: A with its adjoint, centred and scaled, and Hermitian ones made of them.

A^H A has the squares of the singular values, and loses those below sqrt(u) ||A|| in its rounding errors. The
inverse of K = [[delta I, A], [A^H, -delta I]] does not: K^2 is the block diagonal matrix of A A^H + delta^2 I
and A^H A + delta^2 I, so that two solves with factors of K apply (A^H A + delta^2 I)^-1.

References
----------
Golub, Van Loan, Matrix Computations (2013), section 8.6 (A^H A and the augmented matrix); Saunders, BIT 35
(1995) 588 (quasi-definite K).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import scipy.sparse as sp

from blockvec import BlockVector, Operator, array_namespace, as_operator, factorize
from blockvec.errors import BreakdownError
from blockvec.system.frozen import frozen

from ..arguments import on_host
from ..blocks import Array, empty_block, needs_threads, ordinary_exponent, to_host

IDENTITY_COLUMNS = 64  # columns of the identity per product that forms a matrix
MOST_GRAM = 3.0  # n^2 per stored element, of A^H A that is formed: a product with it reads no more than A
MOST_LENGTH = 40.0  # mean length of rows, by elements, of the same: forming it takes some 20 products
DAMPING = 64.0  # u: delta / ||A||, which keeps K regular if A is singular; below the limit of residuals


@frozen
class Pair:
    """A, with at least as many rows as columns, and its adjoint; scaled by a power of two, and centred.

    Attributes
    ----------
    forward, adjoint : Operator
        A, shape (m, n), and A^H.
    exponent : int
        The matrix of the caller, or its adjoint, is 2^exponent A.
    is_swapped : bool
        Whether A is the adjoint of the caller's matrix, which has more columns than rows.
    """

    forward: Operator
    adjoint: Operator
    exponent: int = 0
    is_swapped: bool = False

    @classmethod
    def of(cls, op: Operator, center: bool) -> Self:
        """Make the pair of an operator; `center` subtracts the mean of every column.

        Raises
        ------
        OptionError
            For an operator without an adjoint.
        BreakdownError
            If A returns NaN or Inf.
        """
        exponent = _exponent(op)
        scaled = 2.0**-exponent * op if exponent else op
        forward, adjoint = scaled, scaled.H
        if center:
            forward, adjoint = _centred(forward, adjoint)
        is_swapped = op.shape[0] < op.shape[1]
        return cls(*((adjoint, forward) if is_swapped else (forward, adjoint)), exponent, is_swapped)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, of which there are not more."""
        return self.forward.shape

    @property
    def entries(self) -> int:
        """Elements that a product reads: the stored ones of a sparse matrix."""
        return int(getattr(self.forward, "nnz", math.prod(self.shape)))

    def gram(self) -> Operator:
        """Make A^H A, whose intermediate product is kept for the next one."""
        m, n = self.shape
        products: dict[int, BlockVector] = {}  # of the last width
        is_here, dtype = self.forward.device == "cpu", self.forward.dtype
        add, add_adjoint = (op.vector_adder() if is_here else None for op in (self.forward, self.adjoint))

        def product(X: Array, out: Array) -> Array:
            width = X.shape[1]
            if width == 1 and add is not None and add_adjoint is not None:  # in fewer calls
                between = np.zeros(m, dtype)
                add(np.ascontiguousarray(X).ravel(), between)
                out[:, 0] = 0
                add_adjoint(between, out.ravel())
                return out
            if width not in products:
                products.clear()
                products[width] = BlockVector.empty(m, width, self.forward.dtype, device=self.forward.device)
            self.forward.apply(BlockVector(X), out=products[width])
            self.adjoint.apply(products[width], out=BlockVector(out))
            return out

        return self._hermitian(product, n, 2 * self.entries, needs_threads(self.forward))

    def augmented_operator(self) -> Operator:
        """Make [[0, A], [A^H, 0]], whose eigenvectors [u; v] of s have the accuracy of A."""
        m, n = self.shape

        def product(X: Array, out: Array) -> Array:
            self.forward.apply(BlockVector(X[m:]), out=BlockVector(out[:m]))
            self.adjoint.apply(BlockVector(X[:m]), out=BlockVector(out[m:]))
            return out

        return self._hermitian(product, m + n, 2 * self.entries, needs_threads(self.forward))

    def explicit_gram(self, matrix: Any) -> Operator | None:
        """Form A^H A of a sparse matrix on the host, as a dense matrix; None where this takes longer.

        That is the sum of the squares of the lengths of rows in operations, and products with the result read
        n^2 numbers.
        """
        n, nnz = self.shape[1], self.entries
        if not sp.issparse(matrix) or self.forward.device != "cpu" or n * n > MOST_GRAM * nnz:
            return None
        A: Any = matrix
        A = A.tocsr()
        A = A.conj().T.tocsr() if self.is_swapped else A
        if float((np.diff(A.indptr).astype(np.float64) ** 2).sum()) > MOST_LENGTH * nnz:
            return None
        A = A * 2.0**-self.exponent if self.exponent else A
        gram: Any = A.conj().T @ A
        op = as_operator(gram.toarray())
        op.is_hermitian = True
        return op

    def augmented(self, matrix: Any, norm: float) -> Any:
        """Form K for the square, sparse matrix of A, as one of the host."""
        n, unit = self.shape[1], float(np.finfo(self.forward.dtype).eps) / 2
        matrix = sp.csr_array(on_host(matrix)) * 2.0**-self.exponent
        identity: Any = DAMPING * unit * norm * sp.eye_array(n, dtype=matrix.dtype)
        return sp.block_array([[identity, matrix], [matrix.conj().T, -identity]], format="csr")

    def inverse_gram(self, K: Any) -> tuple[Operator, Callable[[BlockVector], BlockVector]]:
        """Make (A^H A + delta^2 I)^-1 from factors of K, and a function that computes about A^-H V."""
        n = self.shape[1]
        factors = factorize(K, device=self.forward.device)

        def solved(X: Array) -> BlockVector:
            block = BlockVector.empty(2 * n, X.shape[1], X.dtype, device=self.forward.device)
            block.array[:n] = 0
            block.array[n:] = X
            return factors.solve(block)

        def product(X: Array) -> Array:
            return factors.solve(solved(X)).array[n:]

        def left(V: BlockVector) -> BlockVector:
            return solved(V.array)[:n].copy()

        return self._hermitian(product, n, factors.entries, False), left

    def count_below(self, K: Any, value: float) -> int | None:
        """Count the singular values below a number, which is none of them, by inertia."""
        n = self.shape[1]
        # K with -value in place of both delta: singular values are its eigenvalues less the number.
        diagonal: Any = sp.diags_array(K.diagonal() + value)
        count = factorize(K - diagonal, device=self.forward.device).inertia
        return None if count is None else count - n

    def _hermitian(self, product: Any, n: int, entries: int, threads: bool) -> Operator:
        op: Any = as_operator(product, shape=(n, n), dtype=self.forward.dtype, device=self.forward.device)
        op.nnz, op.needs_threads, op.is_hermitian = entries, threads, True
        made: Operator = op
        return made

    def matrix(self) -> Array:
        """Form A as a dense matrix, by products with columns of the identity."""
        A = getattr(self.forward, "matrix", None)
        if A is not None:
            return A  # type: ignore[no-any-return]
        m, n = self.shape
        xp, dtype = array_namespace(empty_block(self.adjoint).array), self.forward.dtype
        formed: Array = xp.empty((m, n), dtype)
        for begin in range(0, n, IDENTITY_COLUMNS):
            width = min(IDENTITY_COLUMNS, n - begin)
            columns = xp.eye(n, width, k=-begin, dtype=dtype)
            formed[:, begin : begin + width] = self.forward.apply(BlockVector(columns)).array
        return formed


def _centred(forward: Operator, adjoint: Operator) -> tuple[Operator, Operator]:
    """Make A - 1 mean^T and its adjoint, which read A as it is stored."""
    m, n = forward.shape
    where: Any = {"dtype": forward.dtype, "device": forward.device}
    ones = BlockVector.full(m, 1, 1.0, forward.dtype, device=forward.device)
    mean = adjoint.apply(ones).array.conj() / m

    def product(X: Array, out: Array) -> Array:
        forward.apply(BlockVector(X), out=BlockVector(out))
        out -= mean.T @ X
        return out

    def adjoint_product(Y: Array, out: Array) -> Array:
        adjoint.apply(BlockVector(Y), out=BlockVector(out))
        out -= mean.conj() * Y.sum(axis=0)
        return out

    centred: Any = as_operator(product, shape=(m, n), **where)
    its_adjoint: Any = as_operator(adjoint_product, shape=(n, m), **where)
    for op in (centred, its_adjoint):
        op.needs_threads = needs_threads(forward)
        if hasattr(forward, "nnz"):
            op.nnz = forward.nnz
    return centred, its_adjoint


def _exponent(op: Operator) -> int:
    """Choose the exponent that scales A: 0 where fourth powers of its norm are in the range of its type."""
    dtype = op.dtype
    for half in (0, np.finfo(dtype).maxexp // 2):  # the product with the first one may overflow
        x = BlockVector.random(op.shape[1], 1, dtype, rng=0, device=op.device).scale(2.0**-half)
        with np.errstate(over="ignore", invalid="ignore"):
            y = to_host(op.apply(x).array)
            largest = float(max(np.abs(y.real).max(), np.abs(y.imag).max()))
        if math.isfinite(largest):
            exponent = math.frexp(largest)[1] + half if largest else 0
            most = np.finfo(dtype).maxexp - 2
            return (
                0 if abs(exponent) <= ordinary_exponent(dtype) // 2 else int(np.clip(exponent, -most, most))
            )
    raise BreakdownError("svds: A returned NaN or Inf for a finite block; check its entries.")
