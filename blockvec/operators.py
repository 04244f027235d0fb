"""Operators: anything that maps a block of vectors to a block of vectors, behind one ``apply``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import scipy.sparse as sp

from . import arrays, dispatch, elementwise, products
from .arrays import memory_of, overlaps
from .backends import Array, Backend
from .blockvector import BlockVector
from .errors import BreakdownError, DeviceError, DTypeError, LayoutError, OptionError, ShapeError
from .fused import NOTHING_FUSED, Applied, Extras, FusedClasses, Sums
from .kernels.problem import MAX_ALIGNMENT, Problem, ShiftClass, SpmmvProblem, beta_class, scalar_class
from .profile import running

__all__ = ["AffineOperator", "Operator", "SparseOperator"]

MAX_PROBLEMS = 256  # that an operator remembers the descriptions of
SHORT_ROWS = 16  # entries a row, on average, up to which a copy of the matrix is no more than 24 columns


class Operator(ABC):
    """A linear map between blocks: Y = alpha (A - shift I) X + beta Y.

    Attributes
    ----------
    shape : tuple of int
        Rows and columns.
    dtype : numpy.dtype
        Element type of the matrix; a result has the type promoted with X's.
    """

    __array_ufunc__ = None  # `array @ operator` is not ours to guess at

    def __init__(self, shape: tuple[int, int], dtype: Any, backend: Backend) -> None:
        self.shape = (int(shape[0]), int(shape[1]))
        self.dtype = arrays.check_dtype(dtype)
        self.backend = backend

    @property
    def device(self) -> str:
        """``"cpu"`` or ``"cuda:0"``: where blocks must be."""
        return self.backend.name

    @overload
    def apply(
        self,
        X: Any,
        out: BlockVector | Array | None = None,
        alpha: complex = 1,
        beta: complex = 0,
        shift: Any = 0,
        *,
        z: BlockVector | Array | None = None,
        delta: complex = 1,
        eta: complex = 1,
        dots: tuple[()] = (),
        gram: tuple[()] = (),
    ) -> BlockVector: ...

    @overload
    def apply(
        self,
        X: Any,
        out: BlockVector | Array | None = None,
        alpha: complex = 1,
        beta: complex = 0,
        shift: Any = 0,
        *,
        z: BlockVector | Array | None = None,
        delta: complex = 1,
        eta: complex = 1,
        dots: str | Sequence[str] = (),
        gram: str | Sequence[str] = (),
    ) -> Applied: ...

    def apply(
        self,
        X: Any,
        out: BlockVector | Array | None = None,
        alpha: complex = 1,
        beta: complex = 0,
        shift: Any = 0,
        *,
        z: BlockVector | Array | None = None,
        delta: complex = 1,
        eta: complex = 1,
        dots: str | Sequence[str] = (),
        gram: str | Sequence[str] = (),
    ) -> BlockVector | Applied:
        """Return Y = ``alpha (A - shift I) X + beta out`` (SpMMV for a sparse matrix).

        What an iteration wraps around the product can be asked for in the same call; kernels that fuse it
        do so while Y is at hand, and otherwise it is done piece by piece.

        Parameters
        ----------
        X : BlockVector or row-major array, shape (n_cols, M)
            On the operator's device.
        out : BlockVector or row-major array, shape (n_rows, M), optional
            Where to put the result; of the promoted type, not sharing memory with X.
        alpha, beta : scalar
            Factors; with ``beta=0`` `out` is never read.
        shift : scalar or array, shape (M,)
            One shift, or one a column; needs a square operator.
        z : BlockVector or row-major array, shape (n_rows, M), optional
            Updated as ``z = delta z + eta Y``. Of Y's type, not sharing memory with X or `out`.
        delta, eta : scalar
            Factors of that update; with ``delta=0`` `z` is never read.
        dots : sequence of {"xx", "xy", "yy"}
            Column dots to return: x_j^H x_j, x_j^H y_j, y_j^H y_j; those with x for square operators.
        gram : sequence of {"xy", "yy"}
            Small matrices to return: X^H Y (square operators), Y^H Y.

        Returns
        -------
        BlockVector or Applied
            Y; where `dots` or `gram` ask for sums, the named tuple ``(Y, dots, gram)`` whose dictionaries
            hold them under their names, on the operator's device.

        Raises
        ------
        ShapeError, DTypeError, DeviceError, LayoutError, OptionError
            For operands that do not fit together; the message gives both values.

        Examples
        --------
        Products with unit vectors, their Rayleigh quotients and squared norms, all in one pass:

        >>> import numpy as np
        >>> from blockvec import BlockVector, as_operator, models
        >>> A = as_operator(models.laplace1d(n=5))
        >>> Y, dots, _ = A.apply(BlockVector(np.eye(5)), dots=("xy", "yy"))
        >>> dots["xy"].tolist(), dots["yy"].tolist()
        ([2.0, 2.0, 2.0, 2.0, 2.0], [5.0, 6.0, 6.0, 6.0, 5.0])
        """
        block = X if isinstance(X, BlockVector) else BlockVector(X)
        shift = self._check_operand(block, shift)
        # Scalars adapt to the operands' precision, a shift a column counts with its own.
        factors = (alpha, shift) if out is None else (alpha, shift, beta)
        dtype = products.result_type(self.dtype, block.dtype, *factors)
        if products.result_type(self.dtype, block.dtype) != dtype:
            block = BlockVector(block, dtype=dtype)
        if np.ndim(shift):  # its product with alpha is not to be rounded to less than the result
            shift = shift.astype(products.result_type(shift, dtype.type(0).real), copy=False)
        if out is None:
            if beta != 0:
                raise OptionError(f"apply: beta={beta!r} needs out=, the block that it multiplies.")
            result = BlockVector.empty(
                self.shape[0], block.n_cols, dtype, device=self.device, comm=block.comm
            )
        else:
            result = out if isinstance(out, BlockVector) else BlockVector(out, comm=block.comm)
            self._check_out(result, block, dtype)
        if z is None and not (dots or gram):
            self._run(block.array, result.array, alpha, beta, shift)
            return result
        extras = Extras.of(block, result, z, delta, eta, dots, gram)
        column_dots, grams = self._run_fused(block.array, result.array, alpha, beta, shift, extras)
        if not (dots or gram):
            return result
        sums = iter(products.sum_each_over(block.comm, [*column_dots.values(), *grams.values()]))
        summed = [{name: next(sums) for name in which} for which in (column_dots, grams)]
        return extras.applied(result, *summed)

    def __matmul__(self, X: Any) -> BlockVector:
        if not isinstance(X, BlockVector) and not hasattr(X, "ndim"):
            return NotImplemented
        return self.apply(X)

    @property
    def is_recordable(self) -> bool:
        """Whether `apply` may be recorded, see `Recorder`: not a user's function, nor inside a `profile`."""
        return False

    @abstractmethod
    def _run(self, X: Array, Y: Array, alpha: complex, beta: complex, shift: Any) -> None:
        """Set Y = alpha (A - shift I) X + beta Y on arrays that fit together."""

    def _run_fused(
        self, X: Array, Y: Array, alpha: complex, beta: complex, shift: Any, extras: Extras
    ) -> tuple[Sums, Sums]:
        """Do what `_run` does and what is asked for beside it; return column dots and Gram matrices."""
        self._run(X, Y, alpha, beta, shift)
        return extras.separately(X, Y)

    def affine(self, alpha: complex, shift: complex) -> Operator:
        """Return ``alpha (A - shift I)`` as an operator of its own, for those who apply it often.

        On the host a sparse matrix of up to 16 entries a row is copied for it, in which factor and shift are
        nearly free; else they are parts of each product, and take up to 40 per cent of its time on the host.

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
            For ``alpha=0``, or what is no scalar.

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

    def explain(self, X: BlockVector) -> tuple[Problem, Backend] | None:
        """Return the problem that ``apply(X)`` dispatches, or None for a user's function."""
        return None

    def sparse_product(self) -> tuple[SpmmvProblem | None, Any]:
        """Return a product with the operator's sparse matrix, and the matrix as kernels take it; or Nones."""
        return None, None

    def check_hermitian(self, rng: Any = 0) -> None:
        """Raise unless the operator is Hermitian to rounding.

        Compares U^H (A W) with (W^H A U)^H for two random blocks of two columns: two applications and
        no memory beyond four such blocks. A difference beyond 1e4 u ||U|| ||A W|| is none of rounding.

        Raises
        ------
        ShapeError
            For a rectangular operator.
        OptionError
            For one that is not Hermitian; the message gives the relative difference.
        BreakdownError
            Where the operator returns NaN or Inf.
        """
        n_rows, n_cols = self.shape
        if n_rows != n_cols:
            raise ShapeError(f"A is {n_rows} x {n_cols}; a Hermitian operator is square.")
        if n_rows == 0:
            return
        rng = np.random.default_rng(rng)
        U, W = (BlockVector.random(n_cols, 2, self.dtype, device=self.device, rng=rng) for _ in range(2))
        AU, AW = self.apply(U), self.apply(W)
        to_host = self.backend.to_host
        norms = [to_host(block.norms()) for block in (U, AW, W, AU)]
        scale = np.maximum(np.outer(norms[0], norms[1]), np.outer(norms[3], norms[2]))
        if not np.isfinite(scale).all():
            raise BreakdownError("A returned NaN or Inf for a finite block; check its entries.")
        left, right = to_host(U.dot(AW)), to_host(W.dot(AU)).conj().T
        difference = np.max(np.abs(left - right) / np.where(scale > 0, scale, 1))
        if difference > 1e4 * np.finfo(self.dtype).eps:
            raise OptionError(
                f"A is not Hermitian: u^H A w and conj(w^H A u) differ by {difference:.1e} of |u||A w|; "
                "pass (A + A.conj().T) / 2 if the difference is noise."
            )

    def _check_operand(self, X: BlockVector, shift: Any) -> Any:
        if X.device != self.device:
            raise DeviceError(
                f"apply: A is on {self.device} but X is on {X.device}; move one of them "
                "(X.to_host(), X.to_device())."
            )
        if X.n_rows != self.shape[1]:
            raise ShapeError(f"apply: A is {self.shape[0]} x {self.shape[1]} but X has {X.n_rows} rows.")
        if elementwise.is_scalar(shift):
            shifted = shift != 0
        else:
            shift, shifted = self.backend.xp.asarray(shift), True
            if shift.shape != (X.n_cols,):
                raise ShapeError(
                    f"apply: got shifts of shape {shift.shape} for {X.n_cols} columns; give one, or one a "
                    "column."
                )
        if shifted and self.shape[0] != self.shape[1]:
            raise ShapeError(
                f"apply: a shift needs a square operator, A is {self.shape[0]} x {self.shape[1]}."
            )
        return shift

    def _check_out(self, out: BlockVector, X: BlockVector, dtype: np.dtype[Any]) -> None:
        if out.device != self.device:
            raise DeviceError(f"apply: A is on {self.device} but out is on {out.device}.")
        if out.shape != (self.shape[0], X.n_cols):
            raise ShapeError(f"apply: out has shape {out.shape}, the result {(self.shape[0], X.n_cols)}.")
        if out.dtype != dtype:
            raise DTypeError(f"apply: out holds {out.dtype} but the result is {dtype}; give a {dtype} out.")
        if overlaps(out.array, X.array):
            raise LayoutError("apply: out shares memory with X; give another block.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape[0]}x{self.shape[1]}, {self.dtype.name}, {self.device})"


class AffineOperator(Operator):
    """``alpha (A - shift I)``, factor and shift being part of the same pass as the product."""

    def __init__(self, operator: Operator, alpha: complex, shift: complex) -> None:
        dtype = products.result_type(operator.dtype, alpha, shift)
        super().__init__(operator.shape, dtype, operator.backend)
        self._operator, self._alpha, self._shift = operator, alpha, shift
        if hasattr(operator, "nnz"):  # says what a product costs
            self.nnz: int = operator.nnz

    def apply(  # type: ignore[override]
        self,
        X: Any,
        out: BlockVector | Array | None = None,
        alpha: complex = 1,
        beta: complex = 0,
        shift: Any = 0,
        **fused: Any,
    ) -> BlockVector | Applied:
        """Return Y = ``alpha (self - shift I) X + beta out``; see `Operator.apply`."""
        inner_shift = shift / self._alpha + self._shift
        Y: BlockVector | Applied = self._operator.apply(
            X, out, alpha * self._alpha, beta, inner_shift, **fused
        )
        return Y

    def sparse_product(self) -> tuple[SpmmvProblem | None, Any]:
        """Return that of the operator inside."""
        return self._operator.sparse_product()

    def _run(self, X: Array, Y: Array, alpha: complex, beta: complex, shift: Any) -> None:
        self.apply(X, Y, alpha, beta, shift)


class SparseOperator(Operator):
    """A sparse matrix in compressed row form, applied by row-major SpMMV kernels.

    Attributes
    ----------
    nnz : int
        Stored entries.
    prepared : object
        The matrix as its backend's kernels take it.
    """

    def __init__(self, matrix: Any, backend: Backend) -> None:
        super().__init__(matrix.shape, matrix.dtype, backend)
        self.nnz = int(matrix.nnz)
        self._index_bytes = int(matrix.indices.dtype.itemsize)
        self.prepared = backend.prepare_sparse(matrix)
        self._matrix = matrix if backend.name == "cpu" else None  # a GPU may keep a converted copy instead
        self._problems: dict[tuple[Any, ...], SpmmvProblem] = {}

    @property
    def is_recordable(self) -> bool:
        """Whether `apply` may be recorded: unless a `profile` times each call."""
        return running() is None

    def _problem(
        self,
        X: Array,
        ldy: int,
        align_y: int,
        alpha: complex,
        beta: complex,
        shift: Any,
        fused: FusedClasses = NOTHING_FUSED,
    ) -> SpmmvProblem:
        """Return the description of a product, the same object for the same one: it is not hashed again."""
        x = memory_of(X)
        shift_class: ShiftClass = "column" if np.ndim(shift) else "scalar" if shift != 0 else "none"
        factors = scalar_class(alpha), beta_class(beta), shift_class
        key = x.n_cols, x.dtype, x.ld, x.align, ldy, align_y, *factors, *fused
        if key not in self._problems:
            if len(self._problems) >= MAX_PROBLEMS:
                self._problems.clear()
            self._problems[key] = SpmmvProblem(
                *(*self.shape, self.nnz, x.n_cols, self.dtype.name, x.dtype, x.ld, ldy),
                *(self._index_bytes, x.align, align_y),
                *factors,
                **fused._asdict(),
                pattern=self.prepared.pattern,
                longest=self.prepared.longest,
            )
        return self._problems[key]

    def _run(self, X: Array, Y: Array, alpha: complex, beta: complex, shift: Any) -> None:
        y = memory_of(Y)
        problem = self._problem(X, y.ld, y.align, alpha, beta, shift)
        dispatch.run(problem, self.backend, self.prepared, X, Y, alpha, beta, shift)

    def sparse_product(self) -> tuple[SpmmvProblem, Any]:
        """Return the product with one column, and the matrix as kernels take it."""
        dtype = self.dtype.name
        fields = (*self.shape, self.nnz, 1, dtype, dtype, 1, 1, self._index_bytes)
        known = {"pattern": self.prepared.pattern, "longest": self.prepared.longest}
        return SpmmvProblem(*fields, **known), self.prepared

    def _run_fused(
        self, X: Array, Y: Array, alpha: complex, beta: complex, shift: Any, extras: Extras
    ) -> tuple[Sums, Sums]:
        y = memory_of(Y)
        for part in extras.fusible():
            problem = self._problem(X, y.ld, y.align, alpha, beta, shift, part.classes())
            if dispatch.accepts(problem, self.backend):
                fused = part.outputs(X, Y, self.backend)
                operands = (self.prepared, X, Y, alpha, beta, shift, fused)
                dispatch.run(problem, self.backend, *operands)
                if part is extras:
                    return dict(fused.dots), dict(fused.gram)
                dots, gram = extras.without(part).separately(X, Y)
                return {**fused.dots, **dots}, {**fused.gram, **gram}
        return super()._run_fused(X, Y, alpha, beta, shift, extras)

    def _affine(self, alpha: complex, shift: complex) -> Operator:
        n = self.shape[0]
        if type(self) is not SparseOperator or self._matrix is None or self.nnz > SHORT_ROWS * n:
            return super()._affine(alpha, shift)
        A: Any = sp.csr_array(self._matrix, copy=False)
        identity: Any = sp.eye_array(n, dtype=self.dtype, format="csr")
        matrix = A - shift * identity
        matrix.data = alpha * matrix.data
        return SparseOperator(matrix, self.backend)

    def explain(self, X: BlockVector) -> tuple[SpmmvProblem, Backend]:
        """Return the problem that ``apply(X)`` dispatches."""
        return self._problem(X.array, X.n_cols, MAX_ALIGNMENT, 1, 0, 0), self.backend
