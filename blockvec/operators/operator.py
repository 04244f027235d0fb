"""Operators and their arithmetic: factors, sums, adjoints and shifts, all of them applied lazily."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..backends import Array
from ..blocks.blockvector import BlockVector
from ..errors import BreakdownError, DeviceError, OptionError, ShapeError
from ..kernels.problem import SpmmvProblem, promote
from ..operations import elementwise, products
from ..operations.arrays import Memory, memory_of
from .base import BaseOperator

# Difference of the two products of a Hermitian operator in units of eps; rounding errors were below 1.3.
MOST_DEFECT = 1e4


class Operator(BaseOperator):
    """A linear map between blocks: Y = alpha (A - shift I) X + beta Y.

    Operators are multiplied by numbers, added and subtracted, and ``A.H`` and ``A.T`` are the adjoint and the
    transpose. The results are operators that compute nothing before they are applied.

    Attributes
    ----------
    shape : tuple of int
        Rows and columns.
    local_shape : tuple of int
        Rows of results and of operands in this process; `shape` unless the rows are split over processes.
    dtype : numpy.dtype
        Element type of the matrix; a result has the type promoted with that of X.
    layout : RowLayout or None
        The split of rows and columns over processes.

    Examples
    --------
    >>> from blockvec import as_operator
    >>> import numpy as np
    >>> A, B = as_operator(np.array([[0.0, 2.0], [0.0, 0.0]])), as_operator(np.eye(2))
    >>> ((A + A.H) / 2 - 3 * B).apply(np.eye(2)).array.tolist()
    [[-3.0, 1.0], [1.0, -3.0]]
    """

    _is_hermitian: bool | None = None
    _transposes: dict[bool, Operator]

    @property
    def is_hermitian(self) -> bool | None:
        """Whether A is its own adjoint; None if that is not known. It may be set, as for a function.

        A product with a real number and a sum of Hermitian operators are Hermitian, and `check_hermitian`
        sets it.
        """
        return self._derived_hermitian() if self._is_hermitian is None else self._is_hermitian

    @is_hermitian.setter
    def is_hermitian(self, value: bool | None) -> None:
        self._is_hermitian = value

    def _derived_hermitian(self) -> bool | None:
        return None

    @property
    def H(self) -> Operator:
        """The adjoint A^H; of a Hermitian operator itself.

        That of a sparse matrix is a sparse matrix, which is kept. A LinearOperator needs ``rmatmat`` or
        ``rmatvec``. If rows are split over processes, all of them ask for it.

        Raises
        ------
        OptionError
            For a function.
        """
        return self if self.is_hermitian else self._transpose_of(True)

    @property
    def T(self) -> Operator:
        """The transpose, without conjugation; see `H`."""
        return self.H if self.dtype.kind != "c" else self._transpose_of(False)

    def _transpose_of(self, conjugates: bool) -> Operator:
        known = self._transposes
        if conjugates not in known:
            known[conjugates] = self._transposed(conjugates)
            known[conjugates]._transposes[conjugates] = self
        return known[conjugates]

    def _transposed(self, conjugates: bool) -> Operator:
        raise OptionError(
            f"A.{'H' if conjugates else 'T'}: {self!r} has no adjoint; give a matrix, a LinearOperator with "
            "rmatmat, or set A.is_hermitian = True if A is Hermitian."
        )

    def __mul__(self, factor: Any) -> Operator:
        if not elementwise.is_scalar(factor) or np.dtype(getattr(factor, "dtype", type(factor))).kind == "O":
            return NotImplemented
        return AffineOperator(self, _number(factor))

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> Operator:
        if not elementwise.is_scalar(divisor):
            return NotImplemented
        if divisor == 0:
            raise OptionError(f"A / {divisor!r}: give another divisor than zero.")
        return AffineOperator(self, 1 / _number(divisor))

    def __neg__(self) -> Operator:
        return self * -1

    def __add__(self, other: Any) -> Operator:
        return SumOperator(self, other) if isinstance(other, Operator) else NotImplemented

    def __sub__(self, other: Any) -> Operator:
        return SumOperator(self, -other) if isinstance(other, Operator) else NotImplemented

    def __radd__(self, other: Any) -> Operator:
        return self if type(other) is int and other == 0 else NotImplemented  # the start of sum()

    def affine(self, alpha: complex, shift: complex) -> Operator:
        """Make ``alpha (A - shift I)`` an operator of its own, for repeated application.

        On the host a sparse matrix with up to 16 entries per row is copied, so that factor and shift take no
        time in products. Otherwise they are part of each product, up to 40 per cent of its time on the host.

        Parameters
        ----------
        alpha : scalar
            Not zero.
        shift : scalar

        Raises
        ------
        ShapeError
            For a rectangular operator.
        OptionError
            For ``alpha=0``, or factors that are no scalars.

        Examples
        --------
        >>> from blockvec import as_operator, models
        >>> import numpy as np
        >>> A = as_operator(models.laplace1d(n=3))
        >>> (A.affine(2, 1.5) @ np.eye(3)).array.tolist()
        [[1.0, -2.0, 0.0], [-2.0, 1.0, -2.0], [0.0, -2.0, 1.0]]
        """
        if self.shape[0] != self.shape[1]:
            raise ShapeError(f"affine: A is {self.shape[0]} x {self.shape[1]}; a shift needs a square one.")
        for name, value in (("alpha", alpha), ("shift", shift)):
            if not elementwise.is_scalar(value):
                raise OptionError(f"affine: {name} has shape {np.shape(value)}; give a number.")
        if alpha == 0:
            raise OptionError("affine: got alpha=0; give another factor.")
        return self._affine(alpha, shift)

    def _affine(self, alpha: complex, shift: complex) -> Operator:
        return AffineOperator(self, alpha, shift)

    def check_hermitian(self, rng: Any = 0, *, name: str = "A") -> float:
        """Raise unless the operator is Hermitian to rounding; return a lower bound of ||A||.

        Compares u^H (A w) with (w^H A u)^* for two random vectors: one application to both, and memory for
        two more. A difference above 1e4 u ||u|| ||A w|| is not due to rounding; an A that is not Hermitian
        has a smaller one with a probability of about 1e-10. The bound is the largest ||A x|| / ||x|| of them.

        Parameters
        ----------
        rng : Generator, int or None
            As in ``numpy.random.default_rng``.
        name : str
            Name of the operator in error messages.

        Raises
        ------
        ShapeError
            For a rectangular operator.
        OptionError
            For an operator that is not Hermitian; the message gives the relative difference.
        BreakdownError
            If the operator returns NaN or Inf, or numbers whose squares overflow.

        Examples
        --------
        >>> from blockvec import as_operator
        >>> bool(as_operator(np.diag([1.0, 2.0])).check_hermitian() <= 2)
        True
        """
        norm, difference = self.hermitian_defect(rng, name=name)
        if difference > MOST_DEFECT * np.finfo(self.dtype).eps:
            raise OptionError(
                f"{name} is not Hermitian: u^H {name} w and conj(w^H {name} u) differ by {difference:.1e} of "
                f"|u||{name} w|; pass ({name} + {name}.conj().T) / 2 if the difference is noise."
            )
        self.is_hermitian = True
        return norm

    def hermitian_defect(self, rng: Any = 0, *, name: str = "A") -> tuple[float, float]:
        """Measure how far the operator is from Hermitian, by the products of `check_hermitian`.

        Arguments and errors are those of `check_hermitian`. Returns a lower bound of ||A||, and the
        difference of u^H (A w) and (w^H A u)^* relative to ||u|| ||A w||: of random u and w about ||A -
        A^H||_F / (sqrt(n) ||A||_F). Rounding errors of symmetric matrices are below 1.3 eps.

        >>> from blockvec import as_operator
        >>> bool(as_operator(np.triu(np.ones((5, 5)))).hermitian_defect()[1] > 0.01)
        True
        """
        n_rows, n_cols = self.shape
        if n_rows != n_cols:
            raise ShapeError(f"{name} is {n_rows} x {n_cols}; a Hermitian operator is square.")
        if n_rows == 0:
            return 0.0, 0.0
        like = BlockVector.empty(n_cols, 0, self.dtype, device=self.device, layout=self.layout)
        Z = like.like(4)  # two vectors and their products
        Z[:, :2] = X = like.random_like(2, rng)
        self.apply(X, out=Z[:, 2:])
        products = self.backend.to_host(Z.gram())
        G = products.tolist()  # a few numbers: NumPy takes longer
        *norms, image, other = (math.sqrt(max(G[j][j].real, 0.0)) for j in range(4))
        images = (image, other)
        scales = {
            (i, j): max(norms[i] * images[j], norms[j] * images[i]) for i, j in ((0, 0), (0, 1), (1, 1))
        }
        if not all(map(math.isfinite, scales.values())):
            raise BreakdownError(
                f"{name} returned NaN or Inf for a finite block, or numbers whose squares overflow; check "
                "its entries."
            )
        difference = max(
            abs(G[i][2 + j] - G[j][2 + i].conjugate()) / (scale or 1.0) for (i, j), scale in scales.items()
        )
        return max(image / norms[0], other / norms[1]), difference


class AffineOperator(Operator):
    """``scalar (operator - shift I)``, of any shape without a shift, applied in one pass with the product.

    Attributes
    ----------
    scalar, shift : number
    operator : Operator
        Not an affine one, but for zero: factors are multiplied.
    """

    scalar: Any
    operator: Operator

    def __init__(self, operator: Operator, scalar: Any, shift: Any = 0) -> None:
        if isinstance(operator, AffineOperator) and operator.scalar != 0:
            scalar, shift = scalar * operator.scalar, operator._inner(shift)
            operator = operator.operator
        if not np.isfinite(scalar):
            raise OptionError(f"scalar * A: got {scalar}; give a finite number.")
        dtype = products.result_type(operator.dtype, scalar, shift)
        super().__init__(operator.shape, dtype, operator.backend)
        self.local_shape, self.layout = operator.local_shape, operator.layout
        self.operator, self.scalar, self.shift = operator, scalar, shift
        if hasattr(operator, "nnz"):  # the cost of a product
            self.nnz: int = operator.nnz

    def _derived_hermitian(self) -> bool | None:
        is_real = np.isreal(self.scalar) and np.isreal(self.shift)
        return self.operator.is_hermitian if is_real else None

    def _transposed(self, conjugates: bool) -> Operator:
        if conjugates:
            return AffineOperator(self.operator.H, self.scalar.conjugate(), self.shift.conjugate())
        return AffineOperator(self.operator.T, self.scalar, self.shift)

    def _inner(self, shift: Any) -> Any:
        """Compute the shift of A for one of this operator."""
        is_zero = elementwise.is_scalar(shift) and shift == 0
        return self.shift if is_zero else shift / self.scalar + self.shift

    def _affine(self, alpha: complex, shift: complex) -> Operator:
        if self.scalar == 0:
            return super()._affine(alpha, shift)
        return self.operator._affine(alpha * self.scalar, self._inner(shift))

    def apply(
        self, X: Any, out: Any = None, alpha: complex = 1, beta: complex = 0, shift: Any = 0, **fused: Any
    ) -> Any:
        if self.scalar == 0:
            return super().apply(X, out, alpha, beta, shift, **fused)
        return self.operator.apply(X, out, alpha * self.scalar, beta, self._inner(shift), **fused)

    def prepare(
        self, X: Any, out: Any, alpha: complex = 1, beta: complex = 0, shift: Any = 0, repeat: int = 1
    ) -> Callable[[], None]:
        if self.scalar == 0:
            return super().prepare(X, out, alpha, beta, shift, repeat)
        return self.operator.prepare(X, out, alpha * self.scalar, beta, self._inner(shift), repeat)

    def apply_columns(
        self, X: Array, Y: Array, alpha: complex = 1, beta: complex = 0, shift: Any = 0
    ) -> None:
        if self.dtype != self.operator.dtype or self.scalar == 0:
            super().apply_columns(X, Y, alpha, beta, shift)
        else:
            self.operator.apply_columns(X, Y, alpha * self.scalar, beta, self._inner(shift))

    @property
    def is_recordable(self) -> bool:
        return self.operator.is_recordable

    def sparse_product(self) -> tuple[SpmmvProblem | None, Any]:
        return self.operator.sparse_product()

    def _run(self, X: Memory, Y: Memory, alpha: complex, beta: complex, shift: Any) -> None:
        if X.n_rows != Y.n_rows and self.scalar == 0:
            Y.array[...] = beta * Y.array if beta != 0 else 0
        elif self.scalar == 0:  # -alpha shift I
            shift = shift.astype(Y.array.dtype) if np.ndim(shift) else shift
            elementwise.axpby("apply", X, Y if beta != 0 else None, Y, -alpha * shift, beta)
        elif promote(self.operator._dtype_name, X.dtype) == Y.dtype:
            self.operator._run(X, Y, alpha * self.scalar, beta, self._inner(shift))
        else:
            self.apply(X.array, Y.array, alpha, beta, shift)


class SumOperator(Operator):
    """A sum of operators, whose products are added one after the other.

    Attributes
    ----------
    terms : tuple of Operator
        None of them is a sum.
    """

    terms: tuple[Operator, ...]

    def __init__(self, *terms: Operator) -> None:
        flat = [part for term in terms for part in (term.terms if isinstance(term, SumOperator) else (term,))]
        first = flat[0]
        for term in flat:
            if term.shape != first.shape:
                raise ShapeError(f"A + B: got shapes {first.shape} and {term.shape}; give equal ones.")
            if term.device != first.device or term.layout != first.layout:
                raise DeviceError(
                    f"A + B: A is on {first.device} with layout {first.layout!r}, B on {term.device} with "
                    f"{term.layout!r}; give operators of one device and layout."
                )
        super().__init__(first.shape, np.result_type(*(term.dtype for term in flat)), first.backend)
        self.local_shape, self.layout = first.local_shape, first.layout
        self.terms = tuple(flat)
        if all(hasattr(term, "nnz") for term in flat):  # the cost of a product
            self.nnz: int = sum(getattr(term, "nnz", 0) for term in flat)

    def _derived_hermitian(self) -> bool | None:
        return True if all(term.is_hermitian for term in self.terms) else None

    def _transposed(self, conjugates: bool) -> Operator:
        return SumOperator(*(term.H if conjugates else term.T for term in self.terms))

    @property
    def is_recordable(self) -> bool:
        return all(term.is_recordable and term.dtype == self.dtype for term in self.terms)

    def apply_columns(
        self, X: Array, Y: Array, alpha: complex = 1, beta: complex = 0, shift: Any = 0
    ) -> None:
        if any(term.dtype != self.dtype for term in self.terms):
            super().apply_columns(X, Y, alpha, beta, shift)
            return
        first, *others = self.terms
        first.apply_columns(X, Y, alpha, beta, shift)
        for term in others:
            term.apply_columns(X, Y, alpha, 1)

    def _check_operand(self, X: BlockVector, shift: Any) -> tuple[Any, products.FactorKind]:
        self.terms[0]._check_operand(X, 0)
        return super()._check_operand(X, shift)

    def _run(self, X: Memory, Y: Memory, alpha: complex, beta: complex, shift: Any) -> None:
        widened: Memory | None = None  # X in the type of Y, for terms of a narrower type
        for term in self.terms:
            x = X
            if promote(term._dtype_name, X.dtype) != Y.dtype:
                x = widened = widened or memory_of(X.array.astype(Y.array.dtype))
            term._run(x, Y, alpha, beta, shift)
            beta, shift = 1, 0  # the first product overwrites Y


def _number(scalar: Any) -> Any:
    """Copy a factor to the host; whole numbers adapt to the type of an operator, as those of Python do."""
    kind = getattr(scalar, "dtype", None)
    if kind is not None:
        return scalar.item() if kind.kind in "bui" else kind.type(scalar.item())
    if not isinstance(scalar, int) or abs(scalar) < 1 << 62:
        return scalar
    with contextlib.suppress(OverflowError):  # longer than the types of NumPy
        return float(scalar)
    return np.inf
