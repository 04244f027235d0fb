"""Sparse matrices as operators: products that dispatch to kernels, on rows or on columns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike

from ..backends import Array, Backend, array_namespace
from ..backends.base import Fused
from ..blocks.blockvector import BlockVector
from ..errors import DeviceError, DTypeError
from ..kernels.problem import MAX_ALIGNMENT, BetaClass, ShiftClass, SpmmvProblem, beta_class, scalar_class
from ..operations import arrays, dispatch
from ..operations.arrays import Memory, check_writable
from ..operations.elementwise import RowFunction
from ..operations.profile import active_profile
from .base import in_turns
from .fused import classes
from .operator import Operator

if TYPE_CHECKING:
    from .krylov_steps import KrylovSteps

NOTHING: Mapping[str, Any] = {}  # requested beside Y
MAX_PROBLEMS = 256  # problem descriptions cached per operator
SHORT_ROWS = 16  # mean entries per row up to which a copy of the matrix takes no more memory than 24 columns


class SparseOperator(Operator):
    """A sparse matrix in compressed row form, applied by row-major SpMMV kernels.

    `nnz` counts its stored entries; `prepared` is the matrix in the form that its backend's kernels take.
    """

    def __init__(self, matrix: Any, backend: Backend) -> None:
        super().__init__(matrix.shape, matrix.dtype, backend)
        self.nnz = int(matrix.nnz)
        self.prepared = backend.prepare_sparse(matrix)
        # Products of column-major arrays; on the host only.
        self._kernel_of_columns = getattr(self.prepared, "add_columns", None)
        self._update_columns = getattr(self.prepared, "update_columns", None)
        # A chain has none; on a GPU, a converted copy may replace it.
        self._matrix: Any = matrix if backend.name == "cpu" and sp.issparse(matrix) else None
        self._problems: dict[tuple[Any, ...], SpmmvProblem] = {}

    @property
    def n_stored(self) -> int:
        """Entries in memory."""
        return self.nnz

    @property
    def is_recordable(self) -> bool:
        return active_profile.get() is None

    def _problem(
        self, x: Memory, ldy: int, align_y: int, factors: tuple[Any, ...], fused: Mapping[str, Any] = NOTHING
    ) -> SpmmvProblem:
        """Describe a product; always by the same object, since dispatch caches by identity."""
        alpha, beta, shift = factors
        shift_class: ShiftClass = "none"
        if getattr(shift, "ndim", 0):
            shift_class = "column"
        elif shift != 0:
            shift_class = "scalar"
        kinds = scalar_class(alpha), beta_class(beta), shift_class
        key = x.n_cols, x.dtype, x.ld, x.align, ldy, align_y, *kinds, *fused.values()
        if key not in self._problems:
            if len(self._problems) >= MAX_PROBLEMS:
                self._problems.clear()
            self._problems[key] = SpmmvProblem(
                *(*self.shape, self.nnz, x.n_cols, self.dtype.name, x.dtype, x.ld, ldy),
                *(self.prepared.index_bytes, x.align, align_y),
                *kinds,
                **fused,
                pattern=self.prepared.pattern,
                longest=self.prepared.longest,
                coded=self.prepared.coded,
            )
        return self._problems[key]

    def _run(self, X: Memory, Y: Memory, alpha: complex, beta: complex, shift: Any) -> None:
        problem = self._problem(X, Y.ld, Y.align, (alpha, beta, shift))
        dispatch.run(problem, self.backend, self.prepared, X.array, Y.array, alpha, beta, shift)

    def prepare(
        self, X: Any, out: Any, alpha: complex = 1, beta: complex = 0, shift: Any = 0, repeat: int = 1
    ) -> Callable[[], None]:
        is_plain = self._is_plain and isinstance(X, BlockVector) and repeat > 0
        is_plain = is_plain and (repeat == 1 or self.shape[0] == self.shape[1])
        if not is_plain or not self._can_bind(X, out, alpha, beta, shift, repeat):
            return super().prepare(X, out, alpha, beta, shift, repeat)
        ends = [(X, out), (out, X)] if repeat > 1 else [(X, out)]
        factors = alpha, beta, shift
        if repeat > 1:
            at_once = self.backend.recurrence(self.prepared, X.array, out.array, *factors, repeat)
            if at_once is not None:
                return at_once
        bound = []
        for x, y in ((source.memory, target.memory) for source, target in ends):
            problem = self._problem(x, y.ld, y.align, factors)
            run = dispatch.choose(problem, self.backend).run
            bound.append(functools.partial(run, problem, self.prepared, x.array, y.array, *factors))
        return in_turns(bound[0], bound[-1], repeat)

    @property
    def _is_plain(self) -> bool:
        """Whether products are those of this class, and in no profile."""
        return type(self) is SparseOperator and active_profile.get() is None

    def lanczos_recurrence(self, V: BlockVector) -> Callable[[int], Array] | None:
        """Prepare the Lanczos recurrences from the columns of a block, which is overwritten.

        ``take(steps)`` continues the recurrences and returns their coefficients on the device, shape (2
        steps, b): alpha and the next beta of each step. Vectors are not orthogonalised: these are for
        estimates of the spectrum. None where no kernel takes such steps: on the host, for large matrices and
        those with long rows.
        """
        is_own = self._is_plain and self.shape[0] == self.shape[1] == V.n_rows and V.dtype == self.dtype
        if not is_own or V.backend is not self.backend:
            return None
        check_writable("lanczos_recurrence", "V", V.array)
        return self.backend.lanczos_recurrence(self.prepared, V.array, V.norms)

    def _add_columns(self, X: Array, Y: Array) -> None:
        if self._kernel_of_columns is None:
            super()._add_columns(X, Y)
            return
        watch = self.backend.stopwatch()
        kernel = self._kernel_of_columns(X, Y)
        self._record_columns(kernel, watch, X.shape[1], "one", 0)

    def vector_adder(self, *, is_hermitian: bool = False) -> Callable[[Array, Array], object]:
        direct = getattr(self.prepared, "vector_adder", None)  # on the host, without a compiled kernel
        is_watched = active_profile.get() is not None
        return super().vector_adder() if is_watched or direct is None else direct() or super().vector_adder()

    def apply_columns(
        self, X: Array, Y: Array, alpha: complex = 1, beta: complex = 0, shift: Any = 0
    ) -> None:
        watch = self.backend.stopwatch()
        if self._update_columns is not None and self._update_columns(X, Y, alpha, beta, shift):
            self._record_columns("csr_compiled", watch, X.shape[1], beta_class(beta), shift)
        else:
            super().apply_columns(X, Y, alpha, beta, shift)

    def _record_columns(self, kernel: str, watch: Any, width: int, beta: BetaClass, shift: Any) -> None:
        if (profile := active_profile.get()) is not None:
            shift_class: ShiftClass = "scalar" if np.any(shift) else "none"
            changes: dict[str, Any] = {"width": width, "ldx": width, "ldy": width}
            problem = replace(self.sparse_product()[0], **changes, beta=beta, shift=shift_class)
            profile.record(self.backend, problem, kernel, watch)

    def sparse_product(self) -> tuple[SpmmvProblem, Any]:
        dtype, S = self.dtype.name, self.prepared
        fields = (*self.shape, self.nnz, 1, dtype, dtype, 1, 1, S.index_bytes)
        return SpmmvProblem(*fields, pattern=S.pattern, longest=S.longest, coded=S.coded), S

    def _run_fused(
        self, X: Memory, Y: Memory, alpha: complex, beta: complex, shift: Any, request: Fused
    ) -> None:
        problem = self._problem(X, Y.ld, Y.align, (alpha, beta, shift), classes(request))
        if not dispatch.accepts(problem, self.backend):
            super()._run_fused(X, Y, alpha, beta, shift, request)
        else:
            dispatch.run(problem, self.backend, self.prepared, X.array, Y.array, alpha, beta, shift, request)

    def _affine(self, alpha: complex, shift: complex) -> Operator:
        n = self.shape[0]
        if type(self) is not SparseOperator or self._matrix is None or self.nnz > SHORT_ROWS * n:
            return super()._affine(alpha, shift)
        matrix: Any = sp.csr_array(self._matrix, copy=False)
        if shift != 0:
            identity: Any = sp.eye_array(n, dtype=self.dtype, format="csr")
            matrix = matrix - shift * identity
        matrix.data = alpha * matrix.data
        return SparseOperator(matrix, self.backend)

    def _transposed(self, conjugates: bool) -> Operator:
        matrix, columns = self.prepared, self.backend.transposed_csr(self.prepared)
        if columns is None:
            matrix = self.to_host()
            columns = matrix.T.tocsr()
        if conjugates and columns.dtype.kind == "c":
            columns.data = columns.data.conj()
        if conjugates and self.shape[0] == self.shape[1]:
            names = "indptr", "indices", "data"
            if all(_are_equal(getattr(columns, name), getattr(matrix, name)) for name in names):
                self.is_hermitian = True
                return self
        return SparseOperator(columns, self.backend)

    def to_host(self) -> Any:
        """Copy the matrix from its device, as SciPy's ``csr_array``; on the host nothing is copied.

        A chain, whose entries are not stored, raises a `DeviceError`.
        """
        if self._matrix is not None:
            return self._matrix
        if not hasattr(self.prepared, "to_host"):
            raise DeviceError("to_host: the entries of a chain are not stored; make its matrix on the host.")
        return self.prepared.to_host()

    def krylov_steps(self, V: BlockVector, b: int) -> KrylovSteps | None:
        """Prepare steps of block Lanczos of `b` columns on a basis V, several of which one call queues.

        None where no kernel takes such steps: on the host, for large or wide bases, in single precision.
        """
        from .krylov_steps import steps_of

        return steps_of(self, V, b) if type(self) is SparseOperator else None

    def converted(self, dtype: DTypeLike, factor: float = 1) -> SparseOperator:
        """Make ``factor A`` with entries of another of the four types an operator of its own.

        The entries are multiplied first, then converted. Both operators share the row pointers and columns. A
        real type for a complex matrix raises a `DTypeError`.

        >>> from blockvec import as_operator, models
        >>> as_operator(models.laplace1d(n=5)).converted("float32")
        SparseOperator(5x5, float32, cpu)
        """
        wanted = arrays.check_dtype(dtype)
        if self.dtype.kind == "c" and wanted.kind != "c":
            raise DTypeError(
                f"converted: A is {self.dtype.name}, got dtype={wanted.name}; give a complex one."
            )
        return type(self)(self.backend.scaled_csr(self.prepared, factor, wanted), self.backend)

    def explain(self, X: BlockVector) -> tuple[SpmmvProblem, Backend]:
        return self._problem(X.memory, X.n_cols, MAX_ALIGNMENT, (1, 0, 0)), self.backend


def _are_equal(one: Array, other: Array) -> bool:
    """Check whether all numbers of two arrays are equal; on a GPU CuPy would compile kernels for a second."""
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind == "i":  # no index has the bits of an infinite number
        one, other = (array.view(f"f{array.itemsize}") for array in (one, other))
    flags = array_namespace(one).empty(one.shape, np.float32)
    parts = ("real", "imag") if one.dtype.kind == "c" else ("real",)
    for part in parts:
        DIFFER(getattr(one, part), getattr(other, part), out=(flags,))
        if float(BlockVector(flags).norms()[0]) > 0:
            return False
    return True


def _differ(xp: Any, a: Any, b: Any) -> tuple[Any]:
    return (xp.where((a <= b) & (b <= a), 0.0, 1.0),)


DIFFER = RowFunction(_differ)
