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

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import scipy.sparse as sp

from blockvec import BlockVector, Operator, array_namespace, as_operator, factorize, options, run_in_threads
from blockvec.errors import BreakdownError, DeviceError
from blockvec.system.frozen import frozen

from ..arguments import on_host
from ..blocks import Array, ceil_div, empty_block, needs_threads, ordinary_exponent

IDENTITY_COLUMNS = 64  # columns of the identity per product that forms a matrix
MOST_GRAM = 3.0  # n^2 per stored element, of A^H A that is formed: a product with it reads no more than A
MOST_LENGTH = 40.0  # mean length of rows, by elements, of the same: forming it takes some 20 products
DAMPING = 64.0  # u: delta / ||A||, which keeps K regular if A is singular; below the limit of residuals
# Terms of a sum on the host. Errors of equal terms, as of graphs and weights of words, add up: 32,000 of them
# left residuals of 630 u ||A||, sums of 4096 of up to 130.
MOST_TERMS = 1024
THREADED_ENTRIES = 100_000  # entries of A from which on threads share the product with one vector


@frozen
class Pair:
    """A, with at least as many rows as columns, and its adjoint; scaled by a power of two, and centred."""

    forward: Operator  # A, shape (m, n)
    adjoint: Operator
    exponent: int = 0  # the matrix of the caller, or its adjoint, is 2^exponent A
    is_swapped: bool = False  # whether A is the adjoint of the caller's matrix
    stored: tuple[Any, Any] | None = None  # A and A^H where the host stores both, in rows

    @classmethod
    def of(cls, op: Operator, center: bool) -> Self:
        """Make the pair of an operator, which has an adjoint; `center` subtracts the mean of every column."""
        exponent = _exponent(op)
        scaled = 2.0**-exponent * op if exponent else op
        both = scaled, scaled.H
        matrices = _stored(both[0]), _stored(both[1])
        if matrices[0] is not None and matrices[1] is not None:
            both = _in_short_sums(both[0], matrices[0]), _in_short_sums(both[1], matrices[1])
        if center:
            both, matrices = _centred(*both), (None, None)
        is_swapped = op.shape[0] < op.shape[1]
        if is_swapped:
            both, matrices = both[::-1], matrices[::-1]
        return cls(*both, exponent, is_swapped, None if matrices[0] is None else matrices)

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
        (m, n), forward = self.shape, self.forward
        products: dict[int, BlockVector] = {}  # of the last width
        of_vector = None if self.stored is None else _squared(*self.stored)

        def product(X: Array, out: Array) -> Array:
            width = X.shape[1]
            if width == 1 and of_vector is not None:
                out[:, 0] = of_vector(X[:, 0])
                return out
            if width not in products:
                products.clear()
                products[width] = BlockVector.empty(m, width, forward.dtype, device=forward.device)
            forward.apply(BlockVector(X), out=products[width])
            self.adjoint.apply(products[width], out=BlockVector(out))
            return out

        return self._hermitian(product, n, 2 * self.entries)

    def augmented_operator(self) -> Operator:
        """Make [[0, A], [A^H, 0]], whose eigenvectors [u; v] of s have the accuracy of A."""
        m, n = self.shape

        def product(X: Array, out: Array) -> Array:
            self.forward.apply(BlockVector(X[m:]), out=BlockVector(out[:m]))
            self.adjoint.apply(BlockVector(X[:m]), out=BlockVector(out[m:]))
            return out

        return self._hermitian(product, m + n, 2 * self.entries)

    def explicit_gram(self) -> Operator | None:
        """Form A^H A of a sparse matrix on the host, as a dense matrix; None where this takes longer."""
        n, nnz = self.shape[1], self.entries
        if self.stored is None or n * n > MOST_GRAM * nnz:
            return None
        A, adjoint = self.stored
        if float((np.diff(A.indptr).astype(np.float64) ** 2).sum()) > MOST_LENGTH * nnz:
            return None
        op = as_operator((adjoint @ A).toarray())
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

        return self._hermitian(product, n, factors.entries, threads=False), left

    def count_below(self, K: Any, value: float) -> int | None:
        """Count the singular values below a number, which is none of them, by inertia."""
        n = self.shape[1]
        # K with -value in place of both delta: singular values are its eigenvalues less the number.
        diagonal: Any = sp.diags_array(K.diagonal() + value)
        count = factorize(K - diagonal, device=self.forward.device).inertia
        return None if count is None else count - n

    def _hermitian(self, product: Any, n: int, entries: int, *, threads: bool | None = None) -> Operator:
        op: Any = as_operator(product, shape=(n, n), dtype=self.forward.dtype, device=self.forward.device)
        op.nnz, op.is_hermitian = entries, True
        op.needs_threads = needs_threads(self.forward) if threads is None else threads
        # Steps that GPUs take in single precision without waiting were not enough in one of four.
        op.can_fail = op.dtype.char in "fF"
        return op  # type: ignore[no-any-return]

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


def _stored(op: Operator) -> Any:
    """Return the matrix of an operator that the host stores in rows; None for others."""
    try:
        return op.to_host() if op.device == "cpu" and hasattr(op, "to_host") else None
    except DeviceError:  # a matrix whose entries are computed
        return None


def _in_short_sums(op: Operator, A: Any) -> Operator:
    """Divide rows of very many entries, whose products are added up afterwards."""
    extra = np.maximum(ceil_div(np.diff(A.indptr), MOST_TERMS) - 1, 0)
    if not extra.any():
        return op
    begins, ends, long = A.indptr[:-1], A.indptr[1:], np.flatnonzero(extra)
    cuts = [np.arange(begins[i] + MOST_TERMS, ends[i], MOST_TERMS) for i in long]
    pointers = np.sort(np.concatenate([A.indptr, *cuts])).astype(A.indptr.dtype)
    pieces = as_operator(sp.csr_array((A.data, A.indices, pointers), shape=(len(pointers) - 1, A.shape[1])))
    first = np.arange(len(extra)) + np.cumsum(extra) - extra
    of_long = np.flatnonzero(np.repeat(extra > 0, extra + 1))
    starts = np.searchsorted(of_long, first[long])

    def product(X: Array, out: Array) -> Array:
        parts = pieces.apply(BlockVector(X)).array
        parts.take(first, axis=0, out=out, mode="clip")  # else by a copy
        out[long] = np.add.reduceat(parts[of_long], starts, axis=0)
        return out

    divided: Any = as_operator(product, shape=op.shape, dtype=op.dtype)
    divided.nnz, divided.needs_threads = A.nnz, False
    return divided  # type: ignore[no-any-return]


def _squared(A: Any, adjoint: Any) -> Callable[[Array], Array] | None:
    """Make the product of A^H A with a vector, by ranges of rows of A that threads share.

    Each is multiplied by both ways as it is stored, and the sums are added up in order. None if these would
    have more elements than A.
    """
    threads = options().threads if A.nnz >= THREADED_ENTRIES else 1
    least = ceil_div(int(np.diff(adjoint.indptr).max(initial=0)), MOST_TERMS)
    if least > 1 and least * A.shape[1] > A.nnz:
        return None
    count = max(threads, least)
    inner = np.searchsorted(A.indptr, np.linspace(0, A.nnz, count + 1)[1:-1])
    rows = np.unique([0, *inner, A.shape[0]])
    ranges = []
    for begin, end in itertools.pairwise(rows):
        places = slice(A.indptr[begin], A.indptr[end])
        arrays = A.data[places], A.indices[places], A.indptr[begin : end + 1] - A.indptr[begin]
        part = sp.csr_array(arrays, shape=(end - begin, A.shape[1]))
        ranges.append((part, part.T))
    sums: list[Any] = [None] * len(ranges)
    is_complex = A.dtype.kind == "c"

    def of_vector(x: Array) -> Array:
        def work(i: int) -> None:
            part, transpose = ranges[i]
            y = part @ x
            sums[i] = (transpose @ y.conj()).conj() if is_complex else transpose @ y

        run_in_threads(work, len(ranges))
        return functools.reduce(np.add, sums)

    return of_vector


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
        out -= mean.conj() * ones.dot(BlockVector(Y))  # NumPy would add the rows one by one
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
    dtype, most = op.dtype, int(np.finfo(op.dtype).maxexp)
    for half in (0, most // 2):  # the product with the first one may overflow
        x = BlockVector.random(op.shape[1], 1, dtype, rng=0, device=op.device).scale(2.0**-half)
        with np.errstate(over="ignore", invalid="ignore"):
            y = op.apply(x).array
            largest = float(abs(y.real).max()) + float(abs(y.imag).max())
        if math.isfinite(largest):
            exponent = math.frexp(largest)[1] + half if largest else 0
            is_ordinary = abs(exponent) <= ordinary_exponent(dtype) // 2
            return 0 if is_ordinary else min(max(exponent, 2 - most), most - 2)
    raise BreakdownError("svds: A returned NaN or Inf for a finite block; check its entries.")
