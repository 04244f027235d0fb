"""The matrix and the block of a call, converted and checked; results in the caller's kind; random vectors."""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from blockvec import BlockVector, Operator, array_namespace, as_operator
from blockvec.errors import BreakdownError, DTypeError, OptionError, ShapeError
from blockvec.interchange import ArrayKind, in_element_type, is_function
from blockvec.precompile import precompile

from ..arguments import (
    brought_in_range,
    generator,
    is_explicit,
    matrix_on_host,
    natively,
    on_device_of,
    scale_by_powers,
)
from ..blocks import empty_block, is_ordinary, to_host
from ..runtime.processes import delivered, same_generator, split

NOT_HERMITIAN = 1e4  # difference of products in units of eps, as of `Operator.check_hermitian`
SAME_PHASE = 1e-10  # distance from a power of i within which a measured phase is that


class Matrix(NamedTuple):
    """``factor A``: an operator, its entries where they are explicit, and a factor that was found apart."""

    factor: complex
    operator: Operator
    entries: Any  # a matrix of SciPy, NumPy or CuPy; None for anything else
    is_linear_operator: bool = False  # of SciPy or CuPy, whose trace is not known

    def moved(self, phase: complex) -> Matrix:
        """Divide the factor by a number of magnitude one, and multiply the operator by it."""
        entries = None if self.entries is None else self.entries * phase
        op = (
            self.operator.affine(phase, 0)
            if entries is None
            else as_operator(entries, device=self.operator.device)
        )
        return self._replace(factor=complex(self.factor) / phase, operator=op, entries=entries)


class Operands(NamedTuple):
    """A matrix and a block that it is applied to, with the way back to the caller."""

    A: Matrix
    B: BlockVector  # a copy, of the type of a product; columns are divided by powers of two
    exponents: Any  # of these powers
    is_vector: bool
    caller: ArrayKind | None

    def rows(self, block: BlockVector) -> Any:
        """Return a result, which is overwritten, as an array in the shape of what was given."""
        if self.exponents.any():
            scale_by_powers(block, self.exponents)
            check_finite(block)
        if block.layout is not None:
            return delivered(block.array, block.layout)
        return block.array[:, 0] if self.is_vector else block.array

    def share(self, rows: Any) -> Any:
        """Convert an array of results to the caller's kind."""
        is_own = self.caller is None or self.A.operator.layout is not None
        return rows if is_own else self.caller.share(rows)  # type: ignore[union-attr]


def matrix_of(
    A: Any, *, shape: Any, caller: ArrayKind | None, dtype: Any = None, device: Any = None, comm: Any = None
) -> Matrix:
    """Convert a matrix, an operator or a function, without the factors of lazy products."""
    factor: complex = 1
    while True:
        if isinstance(A, Operator) and hasattr(A, "scalar") and hasattr(A, "operator"):
            inner, scalar = A.operator, A.scalar
        elif type(A).__name__ == "_ScaledLinearOperator":
            inner, scalar = A.args
        else:
            break
        if scalar == 0:  # zeros are a matrix like others, and no factor to divide by
            break
        factor, A = factor * scalar, inner
    if caller is not None and is_function(A):
        device, dtype = device or caller.device, dtype or caller.dtype
    (A,) = natively(caller, A)
    entries: Any = matrix_on_host(A) if isinstance(A, Operator) else A if is_explicit(A) else None
    if entries is not None and entries.dtype.kind == "c" and (part := _only_part(entries)) is not None:
        factor, A = factor * part[0], part[1]
        entries = A
    if comm is None and (exponent := _exponent_of(entries)):
        factor, A = factor * math.ldexp(1.0, exponent), entries * math.ldexp(1.0, -exponent)
        entries = A
    if not np.isfinite(factor):
        raise OptionError(f"A: is {factor} times an operator; give a finite factor.")
    is_linear = hasattr(A, "matvec")
    A = split(A, comm, shape=shape, dtype=dtype, device=device, mode="normal")
    if is_linear and A.dtype.char in "gG":  # products in extended precision become double precision
        matmat, shape, dtype = A.matmat, A.shape, "complex128" if A.dtype.kind == "c" else "float64"
        A = lambda X: in_element_type(matmat(X))  # noqa: E731
    operator = as_operator(A, shape=shape, dtype=dtype, device=device)
    precompile("function", operator)
    if operator.shape[0] != operator.shape[1]:
        raise ShapeError(
            f"A is {operator.shape[0]} x {operator.shape[1]}; a function of a matrix needs a square one."
        )
    return Matrix(factor, operator, entries if operator.layout is None else None, is_linear)


def _exponent_of(entries: Any) -> int:
    """Return the exponent of the largest entry on the host if its powers are out of range, otherwise 0."""
    values = getattr(entries, "data", None) if sp.issparse(entries) else entries
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fc" or not values.size:
        return 0
    largest = float(np.abs(values).max())
    is_far = math.isfinite(largest) and not is_ordinary(largest, values.dtype)
    return max(min(math.frexp(largest)[1], 1000), -1000) if is_far else 0


def _only_part(A: Any) -> tuple[complex, Any] | None:
    """Return the factor and the real matrix of a complex one whose entries are all real or all imaginary."""
    is_sparse = hasattr(A, "tocsr")
    A = A.tocsr() if is_sparse and not hasattr(A, "indptr") else A
    values = A.data if is_sparse else A
    for factor, absent, present in ((1 + 0j, values.imag, values.real), (1j, values.real, values.imag)):
        if not absent.any():
            real = present.copy()
            return factor, type(A)((real, A.indices, A.indptr), shape=A.shape) if is_sparse else real
    return None


def hermitian_matrix(A: Any, *, name: str = "A", like: Any, **options: Any) -> Matrix:
    """Convert a matrix to a Hermitian operator, as `matrix_of` and `hermitian`."""
    caller = ArrayKind.of_caller(A) if like is None else ArrayKind.of(like)
    return hermitian(matrix_of(A, caller=caller, **options), name)


def hermitian(matrix: Matrix, name: str = "A") -> Matrix:
    """Check that a matrix is Hermitian; a phase of its factor, as of sigma_y, is multiplied into it."""
    factor, op = complex(matrix.factor), matrix.operator
    if factor.imag:
        if op.is_hermitian or (op.shape[0] and phase_of(op) == 1):
            raise OptionError(
                f"{name} is not Hermitian: its eigenvalues are imaginary; give {name} without the factor i."
            )
        matrix = matrix.moved(factor / abs(factor))
    if op.shape[0] and not matrix.operator.is_hermitian:
        matrix.operator.check_hermitian(name=name)
    return matrix._replace(factor=matrix.factor.real)


def operands(A: Any, B: Any, *, shape: Any = None, like: Any = None, **options: Any) -> Operands:
    """Convert the arguments of a function of a matrix times a block; options are those of `matrix_of`."""
    caller = ArrayKind.of(like) if like is not None else ArrayKind.of_caller(B) or ArrayKind.of_caller(A)
    given = B
    B = B.toarray() if hasattr(B, "toarray") else np.asarray(B) if isinstance(B, list | tuple) else B
    (B,) = natively(caller, B.array if isinstance(B, BlockVector) else B)
    if not hasattr(B, "shape"):
        raise DTypeError(f"B is a {type(given).__name__}; give an array, or a BlockVector.")
    if B.ndim not in (1, 2):
        raise ShapeError(f"B has shape {tuple(B.shape)}; give a vector, or a block of shape (n, b).")
    is_vector = B.ndim == 1
    if shape is None and options.get("comm") is None:
        shape = (len(B), len(B))
    matrix = matrix_of(A, shape=shape, caller=caller, **options)
    if len(B) != matrix.operator.local_shape[1]:
        raise ShapeError(f"A is {' x '.join(map(str, matrix.operator.shape))}, but B has {len(B)} rows.")
    wanted = np.result_type(matrix.operator.dtype, B.dtype)
    matrix = _in_precision(matrix, wanted)
    op, wanted = matrix.operator, wanted if B.dtype.kind == "c" else wanted.type(0).real.dtype
    block = BlockVector(B[:, None] if is_vector else B, copy=True, dtype=wanted, layout=op.layout)
    block = on_device_of(op, block)
    doubles = 2 if op.dtype.kind == "f" and wanted.kind == "c" else 1  # real and imaginary parts side by side
    precompile("polynomial", op, op.dtype, b=doubles * block.n_cols)
    return Operands(matrix, block, brought_in_range("B", block), is_vector, caller)


def _in_precision(matrix: Matrix, wanted: Any) -> Matrix:
    """Convert a matrix to the precision of its products, since it will be multiplied by factors."""
    op, entries = matrix.operator, matrix.entries
    dtype = wanted if op.dtype.kind == "c" else wanted.type(0).real.dtype
    if op.dtype == dtype:
        return matrix
    if entries is not None:
        entries = entries.astype(dtype)
        return matrix._replace(operator=as_operator(entries, device=op.device), entries=entries)
    return matrix._replace(operator=op.converted(dtype)) if hasattr(op, "converted") else matrix


def check_finite(result: BlockVector) -> None:
    """Raise if numbers of a result are beyond the range of their type."""
    if not bool(array_namespace(result.array).isfinite(result.array).all()):
        raise OptionError("the result overflows; give a smaller B, or a smaller multiple of A.")


def phase_of(A: Operator) -> complex | None:
    """Find the phase c with A = c H for a Hermitian H.

    For two random vectors X, the matrix K = X^H A X is c times a Hermitian one exactly if K = c^2 K^H.
    Returns None for an A that is not. One that is not passes with a probability of about 1e-10, as in
    `Operator.check_hermitian`.
    """
    like = empty_block(A)
    Z = like.like(4)
    Z[:, :2] = X = like.random_like(2, 0)
    A.apply(X, out=Z[:, 2:])
    G = to_host(Z.gram()).astype(np.complex128)
    if not np.isfinite(G).all():
        raise BreakdownError("A returned NaN or Inf for a finite block; check its entries.")
    norms = np.sqrt(np.diag(G).real)
    K, images = G[:2, 2:], norms[2:]
    square = complex((K * K.T).sum())
    if not images.any():
        return 1
    c = cmath.sqrt(square / abs(square)) if square else 1
    c = next((unit for unit in (1, 1j) if min(abs(c - unit), abs(c + unit)) < SAME_PHASE), c)
    scales = np.maximum.outer(norms[:2], norms[:2]) * images.max()
    difference = (np.abs(K - c**2 * K.conj().T) / scales).max()
    return c if difference <= NOT_HERMITIAN * np.finfo(A.dtype).eps else None


def generator_for(op: Operator, rng: Any) -> np.random.Generator:
    """Form the random generator of a call, the same one in all processes."""
    return same_generator(generator(rng), None if op.layout is None else op.layout.comm)


def random_signs(op: Operator, count: int, rng: Any) -> BlockVector:
    """Make vectors of random signs, with E[x x^H] = I: the same numbers for any number of processes.

    Those of complex matrices are (±1 ± i) / sqrt(2), with which a trace has half the variance.
    """
    block = empty_block(op).random_like(count, rng)
    numbers = block.array.view(block.array.real.dtype)
    size = 1.0 if block.dtype.kind == "f" else math.sqrt(0.5)
    array_namespace(numbers).copysign(numbers.dtype.type(size), numbers, out=numbers)
    return block


def unit_vectors(op: Operator, sites: Sequence[int]) -> BlockVector:
    """Make the columns of the identity with some numbers."""
    block = empty_block(op).like(len(sites))
    block[:, :] = 0
    first = 0 if op.layout is None else op.layout.first_row
    for column, site in enumerate(sites):
        if first <= site < first + block.shape[0]:
            block.array[site - first, column] = 1
    return block
