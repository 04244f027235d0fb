"""The matrix and the block of a call, converted and checked; results in the caller's kind; random vectors."""

from __future__ import annotations

import cmath
import math
from typing import Any, NamedTuple

import numpy as np

from blockvec import BlockVector, Operator, array_namespace, as_operator
from blockvec.errors import BreakdownError, DTypeError, OptionError, ShapeError
from blockvec.interchange import ArrayKind, is_function
from blockvec.precompile import precompile

from ..arguments import (
    brought_in_range,
    generator,
    matrix_on_host,
    natively,
    on_device_of,
    scale_by_powers,
)
from ..blocks import empty_block, is_explicit, is_ordinary, to_host
from ..runtime.processes import delivered, split
from ..transform.scaling import NOT_HERMITIAN

FEW_ROWS = 8  # rows of a linear operator below which two random vectors say little about its structure
SAME_PHASE = 2 / 3  # power of eps: distance from a power of i within which a measured phase is that


class Operands(NamedTuple):
    """``factor A``, a block B that functions of it are applied to, and the way back to the caller."""

    factor: Any  # a real number of a Hermitian matrix
    operator: Operator
    entries: Any  # a matrix of SciPy, NumPy or CuPy; None for anything else
    is_linear_operator: bool  # whether it is one of SciPy or CuPy, whose trace is not known
    caller: ArrayKind | None
    B: Any = None  # a BlockVector of the type of a product
    exponents: Any = None  # of the powers of two that columns of B were divided by
    is_vector: bool = False

    @property
    def columns(self) -> int:
        """Columns of products: real and imaginary parts of B lie side by side where the matrix is real."""
        is_split = self.operator.dtype.kind == "f" and self.B.dtype.kind == "c"
        return int(self.B.n_cols) << is_split

    def recognised(self) -> Operands | None:
        """Return c and H, if a matrix is c H for a Hermitian H; None for others."""
        op, A = self.operator, self.entries
        is_short = self.is_linear_operator and op.shape[0] < FEW_ROWS
        phase = 1 if op.is_hermitian else None if is_short else phase_of(op)
        if phase is None:
            return None
        if phase == 1:
            op.is_hermitian = True
            return self
        A = None if A is None else A * (1 / phase)
        op = op.affine(1 / phase, 0) if A is None else as_operator(A, device=op.device)
        return self._replace(factor=self.factor * phase, operator=op, entries=A)

    def hermitian(self, name: str = "A") -> Operands:
        """Check that the matrix is Hermitian; its factor becomes real."""
        found = self.recognised() or self
        if not found.operator.is_hermitian:
            found.operator.check_hermitian(name=name)
        factor = complex(found.factor)
        if abs(factor.imag) > abs(factor) * np.finfo(found.operator.dtype).eps ** SAME_PHASE:
            raise OptionError(
                f"{name} is not Hermitian: its eigenvalues are imaginary; give {name} without the factor i."
            )
        return found._replace(factor=factor.real)

    def rows(self, block: BlockVector) -> Any:
        """Return a result, which is overwritten, as an array in the shape of B."""
        if self.exponents.any():
            scale_by_powers(block, self.exponents)
            check_finite(block)
        if block.layout is not None:
            return delivered(block.array, block.layout)
        return block.array[:, 0] if self.is_vector else block.array

    def share(self, rows: Any) -> Any:
        """Convert an array of results to the caller's kind."""
        is_own = self.caller is None or self.operator.layout is not None
        return rows if is_own else self.caller.share(rows)  # type: ignore[union-attr]


def operands(A: Any, B: Any = None, *, like: Any = None, comm: Any = None, **options: Any) -> Operands:
    """Convert a matrix, an operator or a function, and a block; factors of lazy products are left apart.

    Options are `shape`, `dtype` and `device`, as of `as_operator`.
    """
    caller = ArrayKind.of(like) if like is not None else ArrayKind.of_caller(B) or ArrayKind.of_caller(A)
    options = {"shape": None, "dtype": None, "device": None, **options}
    if B is not None:
        B = _array(caller, B)
        if options["shape"] is None and comm is None:
            options["shape"] = len(B), len(B)
    factor, A = _factored(A)
    if caller is not None and is_function(A):
        options |= {name: options[name] or getattr(caller, name) for name in ("device", "dtype")}
    (A,) = natively(caller, A)
    entries: Any = matrix_on_host(A) if isinstance(A, Operator) else A if is_explicit(A) else None
    if entries is not None:
        scale, plain = _plain(entries)
        factor *= scale
        if plain.dtype != (kind := _type_for(plain, plain if B is None else B)):
            plain = plain.astype(kind)
        if plain is not entries:
            A = entries = plain
    if not np.isfinite(factor):
        raise OptionError(f"A: is {factor} times an operator; give a finite factor.")
    is_linear = hasattr(A, "matvec")
    op = as_operator(split(A, comm, mode="normal", **options), **options)
    precompile("function", op)
    if op.shape[0] != op.shape[1]:
        raise ShapeError(f"A is {op.shape[0]} x {op.shape[1]}; a function of a matrix needs a square one.")
    found = Operands(factor, op, None if op.layout is not None else entries, is_linear, caller)
    if B is None:
        return found
    if len(B) != op.local_shape[1]:
        raise ShapeError(f"A is {op.shape[0]} x {op.shape[1]}, but B has {len(B)} rows.")
    if op.dtype != (kind := _type_for(op, B)) and hasattr(op, "converted"):
        op = op.converted(kind)
    rows = B[:, None] if B.ndim == 1 else B
    block = on_device_of(op, BlockVector(rows, copy=True, dtype=_type_for(B, op), layout=op.layout))
    exponents = brought_in_range("B", block)
    found = found._replace(operator=op, B=block, exponents=exponents, is_vector=B.ndim == 1)
    precompile("polynomial", op, op.dtype, b=found.columns)
    return found


def _array(caller: ArrayKind | None, given: Any) -> Any:
    B = given.toarray() if hasattr(given, "toarray") else given
    B = B.array if isinstance(B, BlockVector) else np.asarray(B) if isinstance(B, list | tuple) else B
    (B,) = natively(caller, B)
    if not hasattr(B, "shape"):
        raise DTypeError(f"B is a {type(given).__name__}; give an array, or a BlockVector.")
    if B.ndim not in (1, 2):
        raise ShapeError(f"B has shape {tuple(B.shape)}; give a vector, or a block of shape (n, b).")
    return B


def _type_for(A: Any, B: Any) -> Any:
    """Return the type of A, real or complex as it is, in the precision of its product with B."""
    wanted = np.result_type(A.dtype, B.dtype)
    return wanted if A.dtype.kind == "c" else wanted.type(0).real.dtype


def _factored(A: Any) -> tuple[complex, Any]:
    """Split a lazy product into its factor and its operator; zeros are a matrix like others."""
    is_scaled = isinstance(A, Operator) and getattr(A, "shift", None) == 0
    if not is_scaled and type(A).__name__ != "_ScaledLinearOperator":
        return 1, A
    inner, scalar = (A.operator, A.scalar) if is_scaled else A.args
    if scalar == 0:
        return 1, A
    factor, inner = _factored(inner)
    return scalar * factor, inner


def _plain(A: Any) -> tuple[Any, Any]:
    """Take out of a matrix a factor 1 or i of a real one, and of host entries out of range a power of two.

    Rows of one process are left as they are: they do not tell what those of the others have in common.
    """
    if A.shape[0] != A.shape[1]:
        return 1, A
    factor: complex = 1
    is_sparse = hasattr(A, "tocsr")
    if A.dtype.kind == "c":
        A = A.tocsr() if is_sparse and not hasattr(A, "indptr") else A
        values = A.data if is_sparse else A
        for c, absent, present in ((1 + 0j, values.imag, values.real), (1j, values.real, values.imag)):
            if not absent.any():
                real, factor = present.copy(), c
                A = type(A)((real, A.indices, A.indptr), shape=A.shape) if is_sparse else real
                break
    values = getattr(A, "data", None) if is_sparse else A
    if isinstance(values, np.ndarray) and values.size and values.dtype.kind in "fc":
        largest = float(np.abs(values).max())
        if math.isfinite(largest) and not is_ordinary(largest, values.dtype):
            power = max(min(math.frexp(largest)[1], 1000), -1000)
            return factor * math.ldexp(1.0, power), A * math.ldexp(1.0, -power)
    return factor, A


def check_finite(result: BlockVector) -> None:
    """Raise if numbers of a result are beyond the range of their type."""
    own = result.array
    if np.isfinite(to_host(BlockVector(own).norms())).all():
        return  # which takes no kernel of CuPy; norms of finite numbers may overflow
    if not bool(array_namespace(own).isfinite(own).all()):
        raise OptionError("the result overflows; give a smaller B, or a smaller multiple of A.")


def phase_of(A: Operator) -> complex | None:
    """Find the phase c with A = c H for a Hermitian H; None if there is none.

    Then K = X^H A X of two random vectors X is c^2 K^H; otherwise with a probability of 1e-10.
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
    eps, c = float(np.finfo(A.dtype).eps), cmath.sqrt(square / abs(square)) if square else 1
    c = next((unit for unit in (1, 1j) if min(abs(c - unit), abs(c + unit)) < eps**SAME_PHASE), c)
    scales = np.maximum.outer(norms[:2], norms[:2]) * images.max()
    difference = (np.abs(K - c**2 * K.conj().T) / scales).max()
    return c if difference <= NOT_HERMITIAN * eps else None


def generator_for(op: Operator, rng: Any) -> np.random.Generator:
    """Form the random generator of a call, the same one in all processes."""
    return generator(rng, None if op.layout is None else op.layout.comm)


def random_signs(op: Operator, count: int, rng: Any) -> BlockVector:
    """Make vectors of random signs, with E[x x^H] = I: the same numbers for any number of processes."""
    block = empty_block(op).random_like(count, rng)
    numbers = block.array.view(block.array.real.dtype)
    # Those of complex matrices are (±1 ± i) / sqrt(2), with which a trace has half the variance.
    size = 1.0 if block.dtype.kind == "f" else math.sqrt(0.5)
    array_namespace(numbers).copysign(numbers.dtype.type(size), numbers, out=numbers)
    return block
