"""The matrix and the block of a call: converted, checked, and the result back in the caller's kind."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from blockvec import BlockVector, Operator, array_namespace, as_operator
from blockvec.errors import BreakdownError, DTypeError, OptionError, ShapeError
from blockvec.interchange import ArrayKind, in_element_type, is_function

from ..arguments import is_explicit, matrix_on_host, natively
from ..blocks import is_ordinary, to_host
from ..runtime.processes import delivered, split
from ..runtime.processes import largest as largest_of

NOT_HERMITIAN = 1e4  # difference of products in units of eps, as of `Operator.check_hermitian`
SHORT_MATRIX = 1 << 20  # entries up to which a matrix is copied
SAME_PHASE = 1e-10  # distance from a power of i within which a measured phase is that


class Matrix(NamedTuple):
    """``factor A``: an operator, its entries where they are explicit, and a factor that was found apart."""

    factor: complex
    operator: Operator
    entries: Any  # a matrix of SciPy, NumPy or CuPy; None for anything else
    source: Any  # what the operator was made of

    @property
    def is_linear_operator(self) -> bool:
        """Whether it is a linear operator of SciPy or CuPy, whose trace is not known."""
        return hasattr(self.source, "matvec")


class Operands(NamedTuple):
    """A matrix and a block that it is applied to, with the way back to the caller."""

    A: Matrix
    B: BlockVector  # a copy, of the type of a product; a power of two times what was given
    rows: Callable[[list[BlockVector]], list[Any]]  # maps results to arrays in the shape of what was given
    share: Callable[[Any], Any]  # maps an array to the caller's kind


def matrix_of(
    A: Any, *, shape: Any, dtype: Any, device: str | None, caller: ArrayKind | None, comm: Any = None
) -> Matrix:
    """Convert a matrix, an operator or a function, without the factors of lazy products.

    Raises
    ------
    ShapeError
        For a matrix that is not square.
    """
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
    if not np.isfinite(factor):
        raise OptionError(f"A: is {factor} times an operator; give a finite factor.")
    if caller is not None and is_function(A):
        device, dtype = device or caller.device, dtype or caller.dtype
    (A,) = natively(caller, A)
    entries: Any = matrix_on_host(A) if isinstance(A, Operator) else A if is_explicit(A) else None
    if entries is not None and entries.dtype.kind == "c":
        part = _only_part(entries)
        if part is not None:
            factor, A = factor * part[0], part[1]
            entries = A
    if comm is None and (exponent := _exponent_of(entries)):
        factor, A = factor * math.ldexp(1.0, exponent), entries * math.ldexp(1.0, -exponent)
        entries = A
    extents = getattr(A, "shape", shape)
    if extents is not None and (len(extents) != 2 or (comm is None and extents[0] != extents[1])):
        raise ShapeError(f"A has shape {tuple(extents)}; a function of a matrix needs a square one.")
    whole = split(A, comm, shape=shape, dtype=dtype, device=device, mode="normal")
    operator = operator_of(whole, shape=shape, dtype=dtype, device=device)
    if operator.shape[0] != operator.shape[1]:
        raise ShapeError(
            f"A is {operator.shape[0]} x {operator.shape[1]}; a function of a matrix needs a square one."
        )
    if operator.layout is not None:
        entries = None
    return Matrix(factor, operator, entries, A)


def with_real_factor(matrix: Matrix, name: str = "A") -> Matrix:
    """Multiply an imaginary factor into a matrix, which may then be Hermitian, as sigma_y is.

    Raises
    ------
    OptionError
        If the matrix is an imaginary multiple of a Hermitian one.
    """
    if not np.imag(matrix.factor):
        return matrix._replace(factor=complex(matrix.factor).real)
    op, entries = matrix.operator, matrix.entries
    if op.is_hermitian or (op.shape[0] and phase_of(op) == 1):
        raise OptionError(
            f"{name} is not Hermitian: its eigenvalues are imaginary; give {name} without the factor i."
        )
    if entries is None:
        return matrix._replace(factor=1.0, operator=op * matrix.factor)
    entries = entries * matrix.factor
    return matrix._replace(factor=1.0, operator=as_operator(entries, device=op.device), entries=entries)


def operator_of(A: Any, **options: Any) -> Operator:
    """Convert to an operator; products of a linear operator in extended precision become double precision."""
    if hasattr(A, "matvec") and getattr(A.dtype, "char", "") in "gG":

        def rounded(X: Any) -> Any:
            return in_element_type(A.matmat(X))

        return as_operator(rounded, shape=A.shape, dtype="complex128" if A.dtype.kind == "c" else "float64")
    return as_operator(A, **options)


def fixed(A: Operator, alpha: complex, shift: complex) -> Operator:
    """Prepare ``alpha (A - shift I)``; a short matrix on the host is copied with both."""
    matrix = matrix_on_host(A)
    if matrix is None or matrix.nnz > SHORT_MATRIX:
        return A.affine(alpha, shift)
    if shift:
        matrix = matrix - shift * sp.eye_array(A.shape[0], dtype=matrix.dtype, format="csr")
    return as_operator(alpha * matrix)


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


def operands(
    A: Any,
    B: Any,
    *,
    shape: Any = None,
    dtype: Any = None,
    device: str | None = None,
    like: Any = None,
    comm: Any = None,
) -> Operands:
    """Convert the arguments of a function of a matrix times a block.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        For blocks that do not fit, that hold no numbers, or NaN or Inf.
    """
    caller = ArrayKind.of(like) if like is not None else ArrayKind.of_caller(B) or ArrayKind.of_caller(A)
    given = B
    B = B.toarray() if hasattr(B, "toarray") else np.asarray(B) if isinstance(B, list | tuple) else B
    (B,) = natively(caller, B.array if isinstance(B, BlockVector) else B)
    if not hasattr(B, "shape"):
        raise DTypeError(f"B is a {type(given).__name__}; give an array, or a BlockVector.")
    if B.ndim not in (1, 2):
        raise ShapeError(f"B has shape {tuple(B.shape)}; give a vector, or a block of shape (n, b).")
    is_vector = B.ndim == 1
    if shape is None and comm is None:
        shape = (len(B), len(B))
    matrix = matrix_of(A, shape=shape, dtype=dtype, device=device, caller=caller, comm=comm)
    op = matrix.operator
    if len(B) != op.local_shape[1]:
        raise ShapeError(f"A is {op.shape[0]} x {op.shape[1]}, but B has {len(B)} rows.")
    wanted = np.result_type(op.dtype, B.dtype)
    if op.dtype != (precise := wanted if op.dtype.kind == "c" else wanted.type(0).real.dtype):
        matrix = _in_precision(matrix, precise)
        op = matrix.operator
    wanted = wanted if B.dtype.kind == "c" else wanted.type(0).real.dtype
    block = BlockVector(B[:, None] if is_vector else B, copy=True, dtype=wanted, layout=op.layout)
    if block.device != op.device:
        block = block.to_host() if op.device == "cpu" else block.to_device(op.device)
    exponent = _in_range(block)

    def rows_of(results: list[BlockVector]) -> list[Any]:
        for result in results:
            if exponent:
                for part in (exponent // 2, exponent - exponent // 2):
                    result.scale(math.ldexp(1.0, part))
                check_finite(result)
        if op.layout is not None:
            return [delivered(result.array, op.layout) for result in results]
        return [result.array[:, 0] if is_vector else result.array for result in results]

    return Operands(matrix, block, rows_of, lambda rows: rows if caller is None else caller.share(rows))


def _in_precision(matrix: Matrix, dtype: Any) -> Matrix:
    """Convert a matrix to the precision of its products, since it will be multiplied by factors."""
    op, entries = matrix.operator, matrix.entries
    if entries is not None:
        entries = entries.astype(dtype)
        return matrix._replace(operator=as_operator(entries, device=op.device), entries=entries)
    return matrix._replace(operator=op.converted(dtype)) if hasattr(op, "converted") else matrix


def _in_range(block: BlockVector) -> int:
    """Scale a block whose squares may overflow or underflow by a power of two; return its exponent.

    Raises
    ------
    OptionError
        For NaN or Inf.
    """
    with np.errstate(all="ignore"):
        norms = to_host(block.norms())
    if (is_ordinary(norms, block.dtype) & (norms > 0)).all():
        return 0
    xp = array_namespace(block.array)
    parts = (block.array.real, block.array.imag)
    largest = max(float(abs(part).max()) if part.size else 0.0 for part in parts)
    largest = largest_of(block.layout, largest)
    if not math.isfinite(largest) or not bool(xp.isfinite(block.array).all()):
        raise OptionError("B holds NaN or Inf; give finite vectors.")
    exponent = math.frexp(largest)[1]
    for part in (exponent // 2, exponent - exponent // 2):
        block.scale(math.ldexp(1.0, -part))
    return exponent


def check_finite(result: BlockVector) -> None:
    """Raise if numbers of a result are beyond the range of their type.

    Raises
    ------
    OptionError
    """
    if not bool(array_namespace(result.array).isfinite(result.array).all()):
        raise OptionError("the result overflows; give a smaller B, or a smaller multiple of A.")


def phase_of(A: Operator) -> complex | None:
    """Find the phase c with A = c H for a Hermitian H.

    For two random vectors X, the matrix K = X^H A X is c times a Hermitian one exactly if K = c^2 K^H.
    Returns None for an A that is not. One that is not passes with a probability of about 1e-10, as in
    `Operator.check_hermitian`.

    Raises
    ------
    BreakdownError
        If A returns NaN or Inf.
    """
    like = BlockVector.empty(A.shape[0], 0, A.dtype, device=A.device, layout=A.layout)
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
