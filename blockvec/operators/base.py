"""Products of an operator with blocks of vectors: one method ``apply``, and its checks."""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from ..backends import Array, Backend
from ..backends.base import Fused
from ..blocks.blockvector import BlockVector
from ..blocks.columns import ColumnBlock
from ..errors import DeviceError, DTypeError, LayoutError, OptionError, ShapeError
from ..kernels.problem import Problem, SpmmvProblem, promote
from ..operations import arrays, elementwise, products
from ..operations.arrays import Memory, overlaps
from ..operations.profile import Profile
from ..parallel import RowLayout
from . import fused

PER_COLUMN = 3  # kind of shifts that are one per column

BlockLike: TypeAlias = Any
"""A BlockVector, or a row-major array of any library that `BlockVector` wraps."""


class BaseOperator(ABC):
    """The products of an `Operator`, whose attributes are documented there."""

    __array_ufunc__ = None  # `array @ operator` is undefined
    layout: RowLayout | None = None

    def __init__(self, shape: tuple[int, int], dtype: DTypeLike, backend: Backend) -> None:
        self.shape = self.local_shape = _extents(shape)
        self.dtype = arrays.check_dtype(dtype)
        self._dtype_name = self.dtype.name
        self.backend = backend
        self._transposes: dict[bool, Any] = {}  # the adjoint (True) and the transpose, once they are made

    @property
    def device(self) -> str:
        """``"cpu"`` or ``"cuda:0"``, the device that blocks must be on."""
        return self.backend.name

    def apply(
        self,
        X: BlockLike,
        out: BlockLike | None = None,
        alpha: complex = 1,
        beta: complex = 0,
        shift: Any = 0,
        *,
        z: BlockLike | None = None,
        delta: complex = 1,
        eta: complex = 1,
        dots: str | Sequence[str] = (),
        gram: str | Sequence[str] = (),
    ) -> Any:
        """Compute Y = ``alpha (A - shift I) X + beta out`` (SpMMV for a sparse matrix).

        Updates and inner products that an iteration needs beside Y can be requested in the same call: fused
        kernels compute them in the same pass, and otherwise they are computed one after the other.

        Parameters
        ----------
        X : BlockVector or row-major array, shape (n_cols, M)
            On the operator's device.
        out : BlockVector or row-major array, shape (n_rows, M), optional
            Output; of the promoted type, not sharing memory with X.
        alpha, beta : scalar
            Factors; with ``beta=0`` `out` is never read.
        shift : scalar or array, shape (M,)
            One shift, or one per column; needs a square operator.
        z : BlockVector or row-major array, shape (n_rows, M), optional
            Updated as ``z = delta z + eta Y``. Of Y's type, not sharing memory with X or `out`.
        delta, eta : scalar
            Factors of that update; with ``delta=0`` `z` is never read.
        dots : sequence of {"xx", "xy", "yy"}
            Column dots to compute: x_j^H x_j, x_j^H y_j, y_j^H y_j; those with x for square operators.
        gram : sequence of {"xy", "yy"}
            Small matrices to compute: X^H Y (square operators), Y^H Y.

        Returns
        -------
        BlockVector or Applied
            Y; if `dots` or `gram` request sums, the named tuple ``(Y, dots, gram)`` whose dictionaries hold
            them by name, on the operator's device.

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
        if isinstance(X, ColumnBlock):
            return self._apply_to_columns(X, out, alpha, beta, shift)
        block = X if isinstance(X, BlockVector) else BlockVector(X, layout=self.layout)
        shift, shift_kind = self._check_operand(block, shift)
        # Scalars adapt to the operands' precision; shifts per column promote with their own.
        factors: tuple[products.FactorKind, ...] = (products.factor_kind("alpha", alpha), shift_kind)
        if out is not None:
            factors = (*factors, products.factor_kind("beta", beta))
        memory = block._memory or block.memory
        dtype, name = products.promote_factors((self._dtype_name, memory.dtype), factors)
        if promote(self._dtype_name, memory.dtype) != name:
            block = type(block)(block, dtype=dtype)
            memory = block.memory
        if shift_kind[0] == PER_COLUMN:  # alpha shift must have at least the precision of the result
            shift = shift.astype(products.result_type(shift, dtype.type(0).real), copy=False)
        if out is None:
            if beta != 0:
                raise OptionError(f"apply: beta={beta!r} needs out=, the block that it multiplies.")
            Y = self.backend.empty((self.local_shape[0], memory.n_cols), name)
            if block.layout is not None:
                block.layout.check(len(Y))
            result = block._of(Y, block.layout, self.backend)
        else:
            result = out if isinstance(out, BlockVector) else BlockVector(out, layout=block.layout)
            self._check_out(result, block, dtype)
        if z is None and not (dots or gram):
            self._run(memory, result.memory, alpha, beta, shift)
            return result
        request = fused.requested(block, result, z, (delta, eta), dots, gram)
        self._run_fused(memory, result.memory, alpha, beta, shift, request)
        return fused.applied(result, request, dots) if dots or gram else result

    def prepare(
        self,
        X: BlockVector,
        out: BlockVector,
        alpha: complex = 1,
        beta: complex = 0,
        shift: Any = 0,
        repeat: int = 1,
    ) -> Callable[[], None]:
        """Return a function that repeats ``apply(X, out, alpha, beta, shift)``.

        A recurrence between two blocks has the same products again and again. On a GPU the function takes a
        third of the time of a call of `apply`, which checks its operands and chooses a kernel each time: with
        a sparse matrix that is done now. The function keeps operator, blocks and this kernel; a `profile`
        that begins later does not see its products.

        Parameters
        ----------
        X, out : BlockVector
        alpha, beta, shift : scalar
            As for `apply`.
        repeat : int
            Products per call, in which X and `out` take turns: the second one is
            ``apply(out, X, alpha, beta, shift)``. Those of a small matrix on a GPU are one launch.

        Raises
        ------
        OptionError
            For ``repeat < 1``, and as `apply`, here or when the function is called.
        ShapeError, DTypeError, DeviceError, LayoutError
            As `apply`, here or when the function is called.

        Examples
        --------
        Chebyshev polynomials of a matrix, of degrees 3 and 2, of a vector and its image:

        >>> import numpy as np
        >>> from blockvec import BlockVector, as_operator
        >>> X, Y = BlockVector(np.ones((2, 1))), BlockVector(np.array([[2.0], [3.0]]))
        >>> as_operator(np.diag([2.0, 3.0])).prepare(Y, X, alpha=2, beta=-1, repeat=2)()
        >>> X.array.ravel().tolist(), Y.array.ravel().tolist()
        ([7.0, 17.0], [26.0, 99.0])
        """
        if repeat < 1:
            raise OptionError(f"prepare: got repeat={repeat!r}; give a number of products, at least 1.")
        forth = functools.partial(self.apply, X, out, alpha, beta, shift)
        back = functools.partial(self.apply, out, X, alpha, beta, shift)
        return in_turns(forth, back, repeat)

    @Profile.timed("products")
    def _apply_to_columns(self, X: Any, out: Any, alpha: complex, beta: complex, shift: Any) -> Any:
        """Do the work of `apply` for column-major blocks, which are not checked."""
        Y = X.like() if out is None else out
        if X.dtype == self.dtype:
            self.apply_columns(X.array, Y.array, alpha, beta, shift)
        else:
            rows = BlockVector(X.array, copy=True, layout=X.layout)
            product = self.apply(rows, None, alpha, 0, shift).array
            Y.array[...] = product if beta == 0 else product + beta * Y.array
        return Y

    def apply_columns(
        self, X: Array, Y: Array, alpha: complex = 1, beta: complex = 0, shift: Any = 0
    ) -> None:
        """Set Y = ``alpha (A - shift I) X + beta Y`` for column-major NumPy arrays.

        This is the shortest way to a few columns on the host.

        Parameters
        ----------
        X : array, shape (n_cols, M)
            Column-major, of the operator's type. Not checked.
        Y : array, shape (n_rows, M)
            Column-major, of the same type, not sharing memory with X; not read with ``beta=0``. Not checked.
        alpha, beta : scalar
        shift : scalar or array, shape (M,)

        Examples
        --------
        >>> from blockvec import as_operator, models
        >>> import numpy as np
        >>> X, Y = np.eye(3, 1, order="F"), np.ones((3, 1), order="F")
        >>> as_operator(models.laplace1d(n=3)).apply_columns(X, Y, 2, -1, shift=0.5)
        >>> Y[:, 0].tolist()
        [2.0, -3.0, -1.0]
        """
        if alpha != 1:
            product = np.empty_like(Y)
            BaseOperator.apply_columns(self, X, product, shift=shift)
            product *= alpha
            Y[...] = product if beta == 0 else product + beta * Y
            return
        is_shifted = np.ndim(shift) or shift != 0
        if beta != 0:
            if beta != 1:
                Y *= beta
            if is_shifted:
                Y -= shift * X
        elif is_shifted:
            np.multiply(X, -shift, out=Y)
        else:
            Y.fill(0)
        self._add_columns(X, Y)

    def _add_columns(self, X: Array, Y: Array) -> None:
        """Set Y = Y + A X for column-major arrays."""
        Y += self.apply(np.ascontiguousarray(X)).array

    def vector_adder(self, *, is_hermitian: bool = False) -> Callable[[Array, Array], object]:
        """Return a function ``add(x, y)`` that adds A x to y, for contiguous vectors of the operator's type.

        For solvers that multiply many short vectors: what can be decided before the first one is. Of a dense
        matrix that `is_hermitian`, one triangle is read.

        Examples
        --------
        >>> from blockvec import as_operator, models
        >>> import numpy as np
        >>> add, y = as_operator(models.laplace1d(n=3)).vector_adder(), np.ones(3)
        >>> add(np.eye(3)[0], y)
        >>> y.tolist()
        [3.0, 0.0, 1.0]
        """
        return lambda x, y: self.apply_columns(x[:, None], y[:, None], beta=1)

    def __matmul__(self, X: Any) -> BlockVector:
        if not isinstance(X, BlockVector) and not hasattr(X, "ndim"):
            if isinstance(X, BaseOperator):
                raise DTypeError("S @ T with two operators has no block; write S @ (T @ V).")
            return NotImplemented
        product: BlockVector = self.apply(X)
        return product

    @property
    def is_recordable(self) -> bool:
        """Whether `Recorder` can record `apply`: not for a user's function, nor inside a `profile`."""
        return False

    @abstractmethod
    def _run(self, X: Memory, Y: Memory, alpha: complex, beta: complex, shift: Any) -> None:
        """Set Y = alpha (A - shift I) X + beta Y; the operands have been checked."""

    def _run_fused(
        self, X: Memory, Y: Memory, alpha: complex, beta: complex, shift: Any, request: Fused
    ) -> None:
        """Do the work of `_run` and compute what is requested beside Y."""
        self._run(X, Y, alpha, beta, shift)
        fused.compute(request, X, Y)

    def explain(self, X: BlockVector) -> tuple[Problem, Backend] | None:
        """Describe the problem that ``apply(X)`` dispatches; None for a user's function.

        >>> from blockvec import BlockVector, as_operator, models
        >>> A = as_operator(models.laplace1d(n=5))
        >>> problem, backend = A.explain(BlockVector.zeros(5, 2))
        >>> problem.nnz, backend.name
        (13, 'cpu')
        """
        return None

    def sparse_product(self) -> tuple[SpmmvProblem | None, Any]:
        """Describe a product with the sparse matrix; return it and the prepared matrix, or two Nones.

        >>> from blockvec import as_operator, models
        >>> A = as_operator(models.laplace1d(n=5))
        >>> A.sparse_product()[0].nnz
        13
        """
        return None, None

    def _check_operand(self, X: BlockVector, shift: Any) -> tuple[Any, products.FactorKind]:
        """Check a block and a shift; return the shift, on the operator's device, and its kind."""
        memory = X._memory or X.memory
        if X.backend is not self.backend and X.device != self.device:
            raise DeviceError(
                f"apply: A is on {self.device} but X is on {X.device}; move one of them "
                "(X.to_host(), X.to_device())."
            )
        if memory.n_rows != self.local_shape[1]:
            raise ShapeError(f"apply: A is {self.shape[0]} x {self.shape[1]} but X has {X.n_rows} rows.")
        if type(shift) in products.PYTHON_NUMBERS or elementwise.is_scalar(shift):
            kind = products.factor_kind("shift", shift)
        else:
            shift = self.backend.xp.asarray(shift)
            kind = (PER_COLUMN, shift.dtype)
            if shift.shape != (X.n_cols,):
                raise ShapeError(
                    f"apply: got shifts of shape {shift.shape} for {X.n_cols} columns; give one, or one per "
                    "column."
                )
        if kind[0] != 0 and self.shape[0] != self.shape[1]:
            raise ShapeError(
                f"apply: a shift needs a square operator, A is {self.shape[0]} x {self.shape[1]}."
            )
        return shift, kind

    def _can_bind(
        self, X: BlockVector, out: BlockVector, alpha: complex, beta: complex, shift: Any, repeat: int
    ) -> bool:
        """Check the operands of products in which two blocks take turns; whether nothing is converted."""
        shift, kind = self._check_operand(X, shift)
        kinds = products.factor_kind("alpha", alpha), kind, products.factor_kind("beta", beta)
        dtype, _ = products.promote_factors((self._dtype_name, X.memory.dtype), kinds)
        if not X.dtype == out.dtype == self.dtype == dtype or kind[0] == PER_COLUMN:
            return False
        self._check_out(out, X, dtype)
        if repeat > 1:
            self._check_out(X, out, dtype)
        return True

    def _check_out(self, out: BlockVector, X: BlockVector, dtype: np.dtype[Any]) -> None:
        if out.device != self.device:
            raise DeviceError(f"apply: A is on {self.device} but out is on {out.device}.")
        products.check_out("apply", out.array, (self.local_shape[0], X.n_cols), dtype)
        if overlaps(out.array, X.array):
            raise LayoutError("apply: out shares memory with X; give another block.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape[0]}x{self.shape[1]}, {self.dtype.name}, {self.device})"


def in_turns(forth: Callable[[], object], back: Callable[[], object], repeat: int) -> Callable[[], None]:
    """Make a function of products in which two blocks take turns."""
    turns = [back if turn % 2 else forth for turn in range(repeat)]

    def run() -> None:
        for turn in turns:
            turn()

    return run


def _extents(shape: Any) -> tuple[int, int]:
    try:
        n_rows, n_cols = map(operator.index, shape)
    except (TypeError, ValueError):
        n_rows = n_cols = -1
    if min(n_rows, n_cols) < 0:
        raise ShapeError(f"shape: got {shape!r}; give two non-negative integers, rows and columns.")
    return n_rows, n_cols
