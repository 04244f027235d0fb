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
import time
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from blockvec import BlockVector, Operator, RowLayout, as_operator, factorize
from blockvec.parallel import current_traffic
from blockvec.system.frozen import frozen

from ..arguments import matrix_on_host, on_host
from ..blocks import ORDINARY, Array, empty_block, is_ordinary, needs_threads, project_out, summed, to_host
from ..costs import FEW_ROWS, SMALL
from ..runtime.processes import largest
from ..stages.dense import PANEL, formed
from ..transform.scaling import even_exponent, magnitude

MOST_GRAM = 3.0  # n^2 per stored element, of A^H A that is formed: a product with it reads no more than A
MOST_LENGTH = 40.0  # mean length of rows, by elements, of the same: forming it takes some 10 products
PAIRS = 1 << 20  # of entries that are multiplied at once, at least; a panel's product has n^2 elements
NOISE = 2.0  # 2 u ||A||: norm of random numbers that are added to A before a triangular factorisation, about
ZERO = 5.0  # 2 u ||A||: singular values up to here are zero to rounding
FAR_FROM_ZERO = 1e4  # 2 u ||A||: the smallest value that leaves no doubt
DAMPING = 64.0  # u: delta / ||A||, which keeps K regular if A is singular; below the limit of residuals
# Terms of a sum on the host. Errors of equal terms, as of graphs and weights of words, add up: 32,000 of them
# left residuals of 630 u ||A||, sums of 4096 of up to 130.
MOST_TERMS = 1024
FEW_TERMS = 256  # the same of dense matrices that are centred: 1000 equal terms left 100 u ||A||


class Product:
    """A product of A or its adjoint that a function writes into a block.

    `layout` is the split of the rows of results over processes, which operands need not have.
    """

    matrix: Array  # whose products these are, where it is that of a dense operator

    def __init__(
        self,
        function: Callable[[BlockVector, BlockVector], object],
        shape: tuple[int, int],
        like: Any,
        layout: RowLayout | None = None,
    ) -> None:
        self.function, self.shape, self.layout = function, shape, layout
        self.dtype, self.device, self.needs_threads = like.dtype, like.device, needs_threads(like)
        self.operator = like
        self.entries: int | None = getattr(
            like, "entries", getattr(like, "nnz", None)
        )  # elements in this process

    def apply(self, X: BlockVector, out: BlockVector | None = None) -> BlockVector:
        """Compute the product with a block."""
        if out is None:
            where: Any = {"device": self.device, "layout": self.layout}
            out = BlockVector.empty(self.shape[0], X.n_cols, self.dtype, **where)
        self.function(X, out)
        return out


@frozen
class Pair:
    """A, with at least as many rows as columns, and its adjoint; scaled by a power of two, and centred.

    If rows are split over processes, those of both kinds of vectors are.
    """

    forward: Any  # A, shape (m, n), as an operator or a `Product`
    adjoint: Any
    entries: int  # elements that a product reads: the stored ones of a sparse matrix
    exponent: int = 0  # the matrix of the caller, or its adjoint, is 2^exponent A
    is_swapped: bool = False  # whether A is the adjoint of the caller's matrix
    is_centred: bool = False
    offset: float = 0.0  # norm of what centring subtracts: products have rounding errors of u times it

    @classmethod
    def of(cls, op: Operator, center: bool, rows: RowLayout | None = None) -> Self:
        """Make the pair of an operator, which has an adjoint; `center` subtracts the mean of every column.

        With `rows` the operator has the rows of this process.
        """
        # Fourth powers of the norm are in the range of the type.
        size = largest(rows, magnitude(op.apply, op.H, "A"))
        is_far = not is_ordinary(size, op.dtype, share=ORDINARY / 2)
        exponent = even_exponent(size, op.dtype) if is_far else 0
        scaled, A = op, _matrix_of(op)
        if exponent:
            scaled = 2.0**-exponent * op if A is None else as_operator(A * 2.0**-exponent)
        both: tuple[Any, Any] = _in_short_sums(scaled, center), _in_short_sums(scaled.H, center)
        entries = int(getattr(op, "nnz", math.prod(op.shape)))
        if rows is not None:
            both, entries = _split(*both, rows), int(rows.sum(np.array([entries]))[0])
        forward, adjoint, offset = _centred(*both) if center else (*both, 0.0)
        if forward.shape[0] < forward.shape[1]:
            return cls(adjoint, forward, entries, exponent, True, center, offset)
        return cls(forward, adjoint, entries, exponent, False, center, offset)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, of which there are not more."""
        return self.forward.shape  # type: ignore[no-any-return]

    def gram(self, locked: BlockVector | None = None) -> Operator:
        """Make A^H A, whose intermediate product is kept for the next one.

        Locked right vectors are projected out of products, once more than users of the operator do that:
        where values are below sqrt(u) ||A||, what one projection leaves grows from product to product.
        """
        (m, n), forward, layout = self.shape, self.forward, self.adjoint.layout
        where: Any = {"device": forward.device, "layout": forward.layout}

        @functools.lru_cache(maxsize=1)
        def between(width: int) -> BlockVector:
            return BlockVector.empty(m, width, forward.dtype, **where)

        def product(X: Array, out: Array) -> Array:
            Y = forward.apply(BlockVector(X, layout=layout), out=between(X.shape[1]))
            project_out(locked, self.adjoint.apply(Y, out=BlockVector(out, layout=layout)))
            return out

        op = self.hermitian(product, n, 2 * self.entries, layout=layout)
        is_plain = not isinstance(forward, Product) and not isinstance(self.adjoint, Product)
        if forward.device == "cpu" and is_plain:
            op.vector_adder = functools.partial(self._vector_adder, locked)  # type: ignore[method-assign]
        return op

    def _vector_adder(
        self, locked: BlockVector | None, *, is_hermitian: bool = False
    ) -> Callable[[Array, Array], object]:
        """Return a function that adds A^H A x to y, without the checks of two products."""
        first, second = self.forward.vector_adder(), self.adjoint.vector_adder()
        between = np.empty(self.shape[0], self.forward.dtype)

        def add(x: Array, y: Array) -> None:
            between.fill(0)
            first(x, between)
            second(between, y)
            if locked is not None:
                y -= locked.array @ (locked.array.conj().T @ y)

        return add

    def augmented_operator(self) -> Operator:
        """Make [[0, A], [A^H, 0]], whose eigenvectors [u; v] of s have the accuracy of A."""
        both = self.forward.layout, self.adjoint.layout
        cuts = None if both[0] is None else np.add(both[0].cuts, both[1].cuts)
        layout = None if cuts is None else RowLayout(cuts, both[0].comm)

        def product(X: Array, out: Array) -> Array:
            (u, v), results = self.halves(X), self.halves(out)
            self.forward.apply(v, out=results[0])
            self.adjoint.apply(u, out=results[1])
            return out

        return self.hermitian(product, sum(self.shape), 2 * self.entries, layout=layout)

    def halves(self, X: Array) -> tuple[BlockVector, BlockVector]:
        """View the left and the right part of [u; v], or their rows in this process."""
        left, right = self.forward.layout, self.adjoint.layout
        m = self.shape[0] if left is None else left.n_local
        return BlockVector(X[:m], layout=left), BlockVector(X[m:], layout=right)

    def explicit_gram(self) -> Operator | None:
        """Form A^H A of a matrix on the host, as a dense matrix; None where this takes longer.

        BLAS forms that of a dense matrix in the time of a few products with it.
        """
        A, n, nnz = _matrix_of(self.forward), self.shape[1], self.entries
        if isinstance(A, np.ndarray):
            if n > FEW_ROWS:
                return None
            G = sum(part.conj().T @ part for part in np.split(A, range(MOST_TERMS, len(A), MOST_TERMS)))
        else:
            if A is None or n * n > MOST_GRAM * nnz:
                return None
            pairs = np.diff(A.indptr).astype(np.int64) ** 2
            if pairs.sum() > MOST_LENGTH * nnz:
                return None
            G = _gram_by_panels(A, pairs)
        op = as_operator(G)
        op.is_hermitian = True
        return op

    def augmented(self, matrix: Any, norm: float) -> Any:
        """Form K for the square, sparse matrix of A, as one of the host."""
        n, unit = self.shape[1], float(np.finfo(self.forward.dtype).eps) / 2
        matrix = sp.csr_array(on_host(matrix)) * 2.0**-self.exponent
        identity: Any = DAMPING * unit * norm * sp.eye_array(n, dtype=matrix.dtype)
        return sp.block_array([[identity, matrix], [matrix.conj().T, -identity]], format="csr")

    def hermitian(
        self, product: Any, n: int, entries: int, *, threads: bool | None = None, layout: Any = None
    ) -> Operator:
        """Make the operator of a Hermitian function of n rows."""
        where: Any = {"dtype": self.forward.dtype, "device": self.forward.device, "layout": layout}
        op: Any = as_operator(product, shape=(n, n), **where)
        op.nnz, op.is_hermitian = entries, True
        op.parts = self.forward, self.adjoint  # whose products it consists of
        op.needs_threads = needs_threads(self.forward) if threads is None else threads
        # Steps that GPUs take in single precision without waiting were not enough in one of four.
        op.can_fail = op.dtype.char in "fF"
        return op  # type: ignore[no-any-return]


class AugmentedInverse:
    """(A^H A + delta^2 I)^-1 of a square, sparse matrix, by the factors of K."""

    def __init__(self, pair: Pair, matrix: Any, norm: float) -> None:
        self._n, self._device = pair.shape[1], pair.forward.device
        self.rest: float | None = None  # norm of the inverse in the complement of values that are known
        self._factors = factorize(pair.augmented(matrix, norm), device=self._device)
        self.operator = pair.hermitian(self._product, self._n, self._factors.entries, threads=False)

    def _solved(self, X: Array) -> BlockVector:
        block = BlockVector.empty(2 * self._n, X.shape[1], X.dtype, device=self._device)
        block.array[: self._n] = 0
        block.array[self._n :] = X
        return self._factors.solve(block)

    def _product(self, X: Array) -> Array:
        return self._factors.solve(self._solved(X)).array[self._n :]

    def left(self, V: BlockVector) -> BlockVector:
        """Compute about A^-H V."""
        return self._solved(V.array)[: self._n].copy()

    def lock(self, U: BlockVector) -> None:
        """Take note of left vectors in whose complement products follow: K is regular without that."""


class TriangularInverse:
    """(A^H A)^-1 of a matrix on the host as R^-1 R^-H with A = Q R, so that nothing is squared.

    A solve has rounding errors along the vectors of the smallest values, which the next one would enlarge
    again. Left vectors of values that are known are therefore projected out between the two. Random numbers
    of the size of rounding errors, of a Hankel matrix, make R regular where A is not.
    """

    def __init__(self, pair: Pair, norm: float, rng: np.random.Generator) -> None:
        A = np.array(formed(pair.forward, empty_block(pair.adjoint)), order="F")
        m, n = A.shape
        noise = rng.standard_normal(m + n) * (NOISE * float(np.finfo(A.dtype).eps) * norm / math.sqrt(m + n))
        A += np.lib.stride_tricks.sliding_window_view(noise, n)[:m]
        is_complex = A.dtype.kind == "c"
        functions: Any = get_lapack_funcs(("geqrf", "unmqr" if is_complex else "ormqr"), (A,))
        factorise, self._rotate = functions
        self._QR, self._tau, *_ = factorise(A, lwork=PANEL * n, overwrite_a=1)
        self._adjoint, self._m, self._n = 2 if is_complex else 1, m, n
        self._R = np.asfortranarray(np.triu(self._QR[:n]))
        self.rest: float | None = None
        self._zeros = self._of_zeros = self._locked = np.zeros((n, 0), A.dtype)
        self._solve_one, self._solve = get_blas_funcs(("trsv", "trsm"), (self._R,))
        self.operator = pair.hermitian(self._product, n, n * n, threads=n > SMALL)
        self.operator.vector_adder = self._vector_adder  # type: ignore[method-assign]

    def find_zeros(self, pair: Pair, k: int, norm: float, rng: np.random.Generator) -> BlockVector:
        """Compute right vectors of values that are zero to rounding, k at most, and keep their left ones.

        Two steps of subspace iteration converge to these at once, and a step of Newton's method takes away
        what their solves have left of other vectors.
        """
        V = np.linalg.qr(rng.standard_normal((self._n, k)).astype(self._R.dtype))[0]
        U = self._solve(1.0, self._R, V, trans_a=self._adjoint)
        count, least = 0, float(np.finfo(V.dtype).eps) * norm
        if np.linalg.norm(U, axis=0).max() * FAR_FROM_ZERO * least > 1:
            for _ in range(2):
                U = np.linalg.qr(U)[0]
                V = np.linalg.qr(self._solve(1.0, self._R, U))[0]
                U = self._solve(1.0, self._R, V, trans_a=self._adjoint)
            U = np.linalg.qr(U)[0]
            right, left = self._right_products(pair), self._left_products(pair)
            step = self._solve(1.0, self._R, right(V))
            V, values = _smallest_columns(V - step + V @ (V.conj().T @ step), right)
            step = self._solve(1.0, self._R, left(U), trans_a=self._adjoint)
            U, others = _smallest_columns(U - step + U @ (U.conj().T @ step), left)
            count = int((np.maximum(values, others) <= ZERO * least).sum())
            self.rest = float(values[count]) ** -2 if 0 < count < k else None
        self._zeros, self._locked = V[:, :count], U[:, :count]
        self._of_zeros = self._locked
        return BlockVector(np.ascontiguousarray(self._zeros))

    def _right_products(self, pair: Pair) -> Callable[[Array], Array]:
        return lambda V: self._rotated(pair.forward.apply(BlockVector(V, copy=True)).array, True)[: self._n]

    def _left_products(self, pair: Pair) -> Callable[[Array], Array]:
        return lambda U: pair.adjoint.apply(self._of_left(U)).array

    def _product(self, X: Array) -> Array:
        return self._solve(1.0, self._R, self._between(X))  # type: ignore[no-any-return]

    def _between(self, X: Array) -> Array:
        W: Array = self._solve(1.0, self._R, X, trans_a=self._adjoint)
        W -= self._locked @ (self._locked.conj().T @ W)
        return W

    def _vector_adder(self, *, is_hermitian: bool = False) -> Callable[[Array, Array], object]:
        R, locked, adjoint, solve = self._R, self._locked, self._adjoint, self._solve_one

        def add(x: Array, y: Array) -> None:
            w = solve(R, x, trans=adjoint)
            if locked.shape[1]:
                w -= locked @ (locked.conj().T @ w)
            y += solve(R, w)

        return add

    def left(self, V: BlockVector) -> BlockVector:
        """Compute Q R^-H V; where values are zero these vectors are known."""
        zeros = self._zeros.conj().T @ V.array
        self._locked, locked = self._of_zeros, self._locked
        W = self._between(V.array - self._zeros @ zeros)
        self._locked = locked
        are_zero = np.linalg.norm(zeros, axis=0) > math.sqrt(0.5)
        W = np.where(are_zero, self._of_zeros @ zeros, W)
        return self._of_left(W / np.linalg.norm(W, axis=0))

    def _of_left(self, W: Array) -> BlockVector:
        """Multiply by Q."""
        C = np.zeros((self._m, W.shape[1]), W.dtype, order="F")
        C[: self._n] = W
        return BlockVector(np.ascontiguousarray(self._rotated(C)))

    def lock(self, U: BlockVector) -> None:
        """Project left vectors out of all products that follow."""
        self._locked = np.linalg.qr(self._rotated(U.array, True)[: self._n])[0]

    def _rotated(self, C: Array, adjoint: bool = False) -> Array:
        """Multiply by Q or its adjoint."""
        by, work = ("TC"[self._adjoint - 1] if adjoint else "N"), PANEL * max(C.shape[1], 1)
        return self._rotate("L", by, self._QR, self._tau, np.asfortranarray(C), work)[0]  # type: ignore[no-any-return]


def _smallest_columns(X: Array, product: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Rotate the orthonormal columns of a space so that those with the smallest products are first."""
    X = np.linalg.qr(X)[0]
    _, values, Yh = np.linalg.svd(product(X), full_matrices=False)
    return X @ Yh[::-1].conj().T, values[::-1]


Inverse = AugmentedInverse | TriangularInverse


def _gram_by_panels(A: Any, pairs: Array) -> Array:
    """Compute A^H A by panels of rows, from the number of pairs of entries of each row.

    SciPy transposes a panel in the cache: of 1e6 rows of 2 to 5 entries this takes .2 to .9 of the time of
    one product, of rows of 10 to 40 entries .5 to .8; where rows have one entry, 1.2 times as long.
    """
    n, ends = A.shape[1], np.cumsum(pairs)
    cuts = np.searchsorted(ends, np.arange(0, ends[-1], max(PAIRS, 4 * n * n)))
    G = np.zeros((n, n), A.dtype)
    for begin, end in itertools.pairwise([*cuts.tolist(), len(pairs)]):
        rows = A[begin:end]
        G += (rows.conj().T @ rows).toarray()
    return G


def _matrix_of(op: Any) -> Any:
    """Return the matrix of an operator, if it is on the host."""
    dense = getattr(op, "matrix", None)
    return dense if isinstance(dense, np.ndarray) else matrix_on_host(op)


def _in_short_sums(op: Operator, center: bool) -> Any:
    """Divide rows of very many entries on the host, whose products are added up afterwards.

    Those of a dense matrix that is to be centred are shorter, since centring leaves their rounding errors.
    """
    A = _matrix_of(op)
    if isinstance(A, np.ndarray):
        if op.shape[1] <= (most := FEW_TERMS if center else MOST_TERMS):
            return op

        def pairwise(X: BlockVector, out: BlockVector) -> None:
            out.array[...] = _pairwise(A, X.array, most)

        dense = Product(pairwise, op.shape, op)
        dense.matrix = A
        return dense
    lengths = np.diff(getattr(A, "indptr", [0])).astype(np.int64)
    is_long = lengths > MOST_TERMS
    if not is_long.any():
        return op
    rows, ends = np.flatnonzero(is_long), np.cumsum(lengths[is_long])

    def part(chosen: Any, cuts: Any) -> Operator:
        entries, starts = A[chosen], np.append(0, cuts).astype(A.indptr.dtype)
        return as_operator(sp.csr_array((entries.data, entries.indices, starts), (len(cuts), A.shape[1])))

    others = part(np.flatnonzero(~is_long), np.cumsum(np.where(is_long, 0, lengths)))
    cuts = np.union1d(ends, np.arange(MOST_TERMS, ends[-1], MOST_TERMS))
    pieces, firsts = part(rows, cuts), np.searchsorted(cuts, ends - lengths[rows], side="right")

    def product(X: BlockVector, out: BlockVector) -> None:
        others.apply(X, out=out)
        out.array[rows] = np.add.reduceat(pieces.apply(X).array, firsts, axis=0)

    return Product(product, op.shape, op)


def _pairwise(A: Array, X: Array, most: int = FEW_TERMS) -> Array:
    """Compute A X in sums of so many terms at most, which are added in pairs."""
    if A.shape[1] <= most:
        return A @ X
    half = A.shape[1] // 2
    return _pairwise(A[:, :half], X[:half], most) + _pairwise(A[:, half:], X[half:], most)


def _split(own: Any, its_adjoint: Any, rows: RowLayout) -> tuple[Product, Product]:
    """Make A and its adjoint from the rows of A in this process.

    Vectors of length n are split, too: a product with A brings all their rows to each process, one with the
    adjoint adds up those of the processes in rank order.
    """
    m, n, columns = rows.n_global, own.shape[1], RowLayout.equal(own.shape[1], rows.comm)

    def product(X: BlockVector, out: BlockVector) -> None:
        traffic, begin_s = current_traffic(), time.perf_counter()
        whole = columns.gather(X.array)
        traffic.exchanges += 1
        traffic.exchange_bytes += X.array.nbytes * (columns.size - 1)
        traffic.exchange_s += time.perf_counter() - begin_s
        own.apply(BlockVector(whole), out=BlockVector(out.array))

    def adjoint_product(Y: BlockVector, out: BlockVector) -> None:
        out.array[...] = columns.sum(its_adjoint.apply(BlockVector(Y.array)).array)[columns.rows]

    return Product(product, (m, n), own, rows), Product(adjoint_product, (n, m), its_adjoint, columns)


def _centred(forward: Any, adjoint: Any) -> tuple[Product, Product, float]:
    """Make A - 1 mean^T and its adjoint, which read A as it is stored, and the norm of 1 mean^T."""
    where: Any = {"dtype": forward.dtype, "device": forward.device, "layout": forward.layout}
    ones = BlockVector.full(forward.shape[0], 1, 1.0, **where)
    means = adjoint.apply(ones).scale(1 / forward.shape[0])  # of columns, conjugated

    def less(operator: Any, left: BlockVector, right: BlockVector) -> Product:
        """Subtract the product of a column with the adjoint of another."""

        def product(X: BlockVector, out: BlockVector) -> None:
            operator.apply(X, out=out)
            if out.device != "cpu":  # CuPy would compile kernels
                left.combine(right.dot(X), out=out, alpha=-1, beta=1)
                return
            row = summed(X.layout, _pairwise(right.array.conj().T, X.array))
            np.subtract(out.array, row if left is ones else left.array * row, out=out.array)

        return Product(product, operator.shape, operator, operator.layout)

    offset = math.sqrt(forward.shape[0]) * float(to_host(means.norms())[0])
    return less(forward, ones, means), less(adjoint, means, ones), offset
