"""Operators from sparse and dense matrices, linear operators and functions."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike
from scipy.linalg import blas
from scipy.sparse.linalg import LinearOperator

from ..backends import Array, Backend, array_namespace, backend_for, backend_of, is_cupy, single_threaded_blas
from ..errors import DTypeError, OptionError, ShapeError
from ..interchange import ArrayKind, is_function, is_sparse, native, sparse_matrix
from ..operations import arrays, elementwise
from ..operations.arrays import Memory, memory_of, overlaps
from ..operations.profile import Profile
from ..parallel import RowLayout, agreed, choose_gpu, is_petsc, petsc_rows, require_same
from .operator import Operator
from .row_generator import RowGenerator
from .sparse import SparseOperator

if TYPE_CHECKING:
    from ..blocks.blockvector import BlockVector
    from .krylov_steps import KrylovSteps

FEW_COLUMNS = 3  # of which a product with a dense matrix takes less time one by one: 1.3 to 2.5 times
# Of numbers, for a column, up to which waking threads of BLAS may take longer than the product: 8 ms instead
# of 0.1 to 0.6 where the system wakes them on the core of their caller.
UNTHREADED_PRODUCTS = 1_000_000


class FunctionOperator(Operator):
    """A user's function, called once per block with a row-major array on the operator's device.

    If it has a parameter ``out``, it also receives the output array, which is contiguous and shares no memory
    with the block.
    """

    def __init__(
        self,
        function: Callable[..., Array],
        shape: tuple[int, int],
        dtype: DTypeLike,
        backend: Backend,
        takes_columns: bool = False,
    ) -> None:
        super().__init__(shape, dtype, backend)
        self._function, self._takes_columns = function, takes_columns
        self.matrix: Array | None = None  # the dense matrix that the function multiplies by
        self.can_fail = False  # for a block of rounding errors, as a solve can
        self.needs_threads = True  # of BLAS
        self._writes = False
        with contextlib.suppress(TypeError, ValueError):  # some built-in functions have no signature
            self._writes = "out" in inspect.signature(function).parameters
        self.adjoint: Callable[[bool], Operator] | None = None  # makes the adjoint (True) or the transpose

    def _transposed(self, conjugates: bool) -> Operator:
        return super()._transposed(conjugates) if self.adjoint is None else self.adjoint(conjugates)

    @Profile.timed("products")
    def _product(self, X: Array, Y: Array, beta: complex) -> Array:
        """Compute A X, in Y itself if the function takes ``out`` and Y is not read."""
        out, given = None, dict[str, Array]()
        if self._writes:
            out = Y if beta == 0 and Y.flags.c_contiguous else self.backend.empty(Y.shape, Y.dtype.name)
            given = {"out": out}
        product = self._function(X, **given)
        if out is not None and (product is None or product is out):
            return out
        if getattr(product, "shape", None) != Y.shape:
            raise ShapeError(
                f"apply: the operator returned shape {getattr(product, 'shape', None)} for a block of shape "
                f"{X.shape}; expected {Y.shape}."
            )
        # CuPy's and SciPy's products may be column-major, those of SciPy in extended precision.
        dtype = Y.dtype if product.dtype.char in "gG" else None
        product = arrays.as_rows(product, copy=not product.flags.c_contiguous, dtype=dtype)
        return out if out is not None and overlaps(product, out) else product

    @property
    def may_be_queued(self) -> bool:
        """Whether the function may be called before a GPU has shown that its block is worth it."""
        return self.layout is None and not self.can_fail

    def krylov_steps(self, V: BlockVector, b: int) -> KrylovSteps | None:
        """Prepare steps of block Lanczos, each with one launch; see `SparseOperator.krylov_steps`."""
        from .krylov_steps import steps_of

        return steps_of(self, V, b)

    def apply_columns(
        self, X: Array, Y: Array, alpha: complex = 1, beta: complex = 0, shift: Any = 0
    ) -> None:
        with single_threaded_blas.lifted() if self.needs_threads else contextlib.nullcontext():
            super().apply_columns(X, Y, alpha, beta, shift)

    def vector_adder(self, *, is_hermitian: bool = False) -> Callable[[Array, Array], object]:
        matrix = self.matrix if is_hermitian else None
        if matrix is None or matrix.dtype.char != "d" or not matrix.flags.forc:
            return super().vector_adder()
        triangle = matrix if matrix.flags.f_contiguous else matrix.T

        def add(x: Array, y: Array) -> None:
            blas.dsymv(1.0, triangle, x, 1.0, y, overwrite_y=1)

        return single_threaded_blas.lifted()(add) if self.needs_threads else add

    @Profile.timed("products")
    def _add_columns(self, X: Array, Y: Array) -> None:
        if not self._writes:
            product = self._function(X if self._takes_columns else np.ascontiguousarray(X))
            if getattr(product, "shape", None) == Y.shape:
                Y += product
                return
        super()._add_columns(X, Y)

    def _run(self, X: Memory, Y: Memory, alpha: complex, beta: complex, shift: Any) -> None:
        AX = self._product(X.array, Y.array, beta)
        if AX is not Y.array or alpha != 1:
            elementwise.axpby("apply", memory_of(AX), Y if beta != 0 else None, Y, alpha, beta)
        if np.ndim(shift) or shift != 0:
            # In the precision of Y, which may be wider than that of the shifts.
            shift = shift.astype(Y.array.dtype) if np.ndim(shift) else shift
            elementwise.axpby("apply", X, Y, Y, -alpha * shift, 1)


def as_operator(
    A: Any,
    *,
    shape: tuple[int, int] | None = None,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    like: Any = None,
    check_indices: bool = True,
    layout: RowLayout | None = None,
    order: str = "C",
) -> Operator:
    """Make an `Operator` from a matrix, a linear operator or a function.

    Parameters
    ----------
    A : sparse matrix, dense array, LinearOperator, RowGenerator, callable, or Operator
        Matrices are those of NumPy, SciPy, CuPy, torch (dense, CSR, CSC, COO) and JAX (dense, BCSR, BCOO);
        they stay where they are. Those of petsc4py (``"aij"``) are copied, with their split of rows. Integer,
        boolean, half and extended precision matrices are converted to double precision, and those of another
        byte order to the native one. A sparse matrix must not be modified afterwards, since a
        GPU may work on a converted copy of it. A linear operator should
        have ``matmat``: one with ``matvec`` only is called column by column, with a warning. A callable maps
        a row-major array of shape (n, M) to an array of the same shape; if it has a parameter ``out``, it
        receives an output array of the result's type and no copy is made.
    shape, dtype
        Shape and element type of a callable; `dtype` defaults to that of the example `like`, or float64.
    device : str, optional
        ``"cpu"`` or ``"gpu"``: the device of a callable's blocks (default: that of the example `like`, or
        ``"cpu"``), or the device that a SciPy or dense matrix is copied to.
    like : {"numpy", "cupy", "torch", "jax"}, module or array, optional
        The arrays that a callable takes and returns: a library's name, its module, or an example, such as
        ``torch.zeros(0, device="cuda", dtype=torch.float64)``, which also gives device and element type.
        A function does not say what it takes; an example says all of it in one argument. Default: arrays
        of torch or JAX for functions of theirs (``torch.nn.Module``, ``jax.jit(f)``), otherwise of NumPy
        or CuPy. A callable must not keep or modify the block that it receives, which is a view.
    check_indices : bool
        Check that the indices of a sparse matrix are within its shape, because products read and write
        wherever indices point. The check reads each index once and, on a GPU, waits for the result.
    layout : RowLayout, optional
        The split of the rows over processes, all of which call this function. Each keeps its own rows: of a
        matrix on the host that all of them hold, of a generator, or those that it gives as a matrix of shape
        (n_local, n). A callable maps the rows of this process, shape (n_local, M), and exchanges what it
        needs of others itself. `shape` is that of the whole matrix. With ``device="gpu"`` each process takes
        a GPU of its own.
    order : {"C", "A"}
        Arrays that a callable of the host takes and returns: row-major ones, or with ``"A"`` also
        column-major ones, which `eigsh` then passes without a copy.

    Raises
    ------
    DTypeError, ShapeError, DeviceError, OptionError
        If A cannot be converted to an operator, if its indices are out of range, if it is a callable and
        `shape` is missing, or if it is none and `like` is given.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from blockvec import BlockVector, as_operator
    >>> A = as_operator(sp.diags_array([1.0, 2.0, 3.0]))
    >>> (A @ BlockVector(np.ones((3, 2)))).array[:, 0].tolist()
    [1.0, 2.0, 3.0]
    """
    if order not in ("C", "A"):
        raise OptionError(f"order: got {order!r}; give 'C' or 'A'.")
    given = ["like"] * (like is not None) + ["order"] * (order != "C")
    if given and not is_function(A):
        raise OptionError(
            f"{given[0]}: tells what a function takes, but A is a {type(A).__name__}; leave it out."
        )
    if is_petsc(A):
        A, held = petsc_rows(A, None if layout is None else layout.comm)
        if held is not None and layout is not None:
            A = held.redistribute(A, layout)
        layout = layout or held
    if layout is not None and layout.comm is not None:
        with agreed(layout.comm):
            return _distributed(A, layout, shape, device, check_indices, dtype=dtype, like=like)
    if isinstance(A, Operator):
        return A
    if isinstance(A, RowGenerator):
        A = A.matrix(device=device or "cpu")
    if is_function(A):
        return _of_function(A, shape, dtype, device, like, order)
    A = native(A)
    if is_sparse(A):
        matrix = _csr_matrix(A, check_indices)
        home = backend_of(matrix.data)
        backend = home if device is None else backend_for(device)
        is_copied = backend.name == "cpu" and home is not backend
        return SparseOperator(matrix.get() if is_copied else matrix, backend)
    if hasattr(A, "matvec") and hasattr(A, "shape"):
        backend = backend_for(device or ("gpu" if type(A).__module__.startswith("cupyx") else "cpu"))
        dtype = arrays.element_type(np.float64 if A.dtype is None else A.dtype)
        operator = FunctionOperator(_block_product(A, dtype), A.shape, dtype, backend)
        if _has_adjoint(A):
            operator.adjoint = lambda conjugates: as_operator(A.H if conjugates else A.T, device=device)
        return operator
    if isinstance(A, np.ndarray) or is_cupy(A):
        return _dense_operator(arrays.as_array(A), device)
    raise DTypeError(
        f"A is a {type(A).__name__}; give a sparse matrix, a dense array, a LinearOperator or a function "
        "with shape=."
    )


def _of_function(
    A: Any, shape: Any, dtype: DTypeLike | None, device: str | None, like: Any, order: str = "C"
) -> Operator:
    if shape is None:
        raise OptionError(
            "A is a function; give shape=(n, n), dtype= unless it is float64, and like= if its arrays are "
            "those of torch or JAX."
        )
    kind = ArrayKind.of_caller(A) if like is None else ArrayKind.of(like)
    if kind is not None:
        A = kind.function(A)
        dtype = kind.dtype if dtype is None else dtype
        device = kind.device if device is None else device
    backend = backend_for(device or "cpu")
    return FunctionOperator(A, shape, np.float64 if dtype is None else dtype, backend, order == "A")


def _distributed(
    A: Any, layout: RowLayout, shape: Any, device: str | None, check_indices: bool, **kind: Any
) -> Operator:
    n, n_local = layout.n_global, layout.n_local
    given = getattr(A, "shape", None) if shape is None else shape
    if isinstance(A, Operator):
        if A.layout is None:
            raise OptionError(
                f"layout: got {layout!r}, but the operator A has all rows in each process; give a matrix, or "
                "rows by number, as models.generator(...) does."
            )
        if A.layout != layout:
            raise OptionError(f"layout: got {layout!r}, but the operator A has {A.layout!r}; give A's.")
        return A
    if given is None:
        raise OptionError("A is a function of this process's rows; give shape=(n, n) of the whole matrix.")
    if tuple(given) not in ((n, n), (n_local, n)):
        raise ShapeError(
            f"A has shape {tuple(given)}; give a matrix of {(n, n)}, or the rows of this process, "
            f"{(n_local, n)}."
        )
    assert layout.comm is not None
    from .distributed import DistributedOperator

    is_whole = sp.issparse(A) and given[0] == n != n_local
    require_same(layout.comm, layout=str(layout.cuts), A=_checksum(A) if is_whole else None)
    device = choose_gpu(layout.comm) if device == "gpu" else device
    if is_function(A):
        local = _of_function(A, (n_local, n_local), device=device, **kind)
        return DistributedOperator(local, layout)
    rows = layout.rows
    is_made = isinstance(A, RowGenerator)
    matrix: Any = A.rows(rows.start, rows.stop, device=device or "cpu") if is_made else native(A)
    if not (is_made or sp.issparse(matrix) or isinstance(matrix, np.ndarray)):
        raise DTypeError(
            f"A is a {type(A).__name__}; with rows over several processes give a matrix of the host, a row "
            "generator, or a function of this process's rows."
        )
    matrix = _csr_matrix(sp.csr_array(matrix) if isinstance(matrix, np.ndarray) else matrix, check_indices)
    backend = backend_for(device or "cpu")
    starts = matrix.indptr if len(matrix.indptr) == n_local + 1 else matrix.indptr[rows.start : rows.stop + 1]
    entries = slice(int(starts[0]), int(starts[-1]))
    parts: Any = matrix.data[entries], matrix.indices[entries], starts - starts[0]
    if backend.name != "cpu" and not is_cupy(parts[0]):  # dividing them takes a GPU a tenth of the time
        parts = tuple(backend.from_host(part) for part in parts)
    matrix = sparse_matrix("csr", (n_local, n), *parts)
    return DistributedOperator.of_rows(matrix, layout, backend)


def _checksum(A: Any) -> str | None:
    """Describe a sparse matrix by a sum over its entries; None for formats without an array of them."""
    if A.format not in ("csr", "csc", "coo", "bsr"):
        return None
    data = np.ascontiguousarray(A.data).reshape(-1)
    words = data.view(np.uint8 if data.itemsize % 4 else np.uint32)  # in any order: the sum is exact
    return f"{A.nnz} entries of {data.dtype} with the checksum {int(words.sum(dtype=np.uint64)):x}"


def _csr_matrix(A: Any, check_indices: bool) -> Any:
    """Check a sparse matrix and convert it to CSR and to an element type of blocks."""
    if len(A.shape) != 2:
        raise ShapeError(f"A has shape {A.shape}; a matrix has two dimensions.")
    dtype = arrays.element_type(A.dtype)
    if check_indices:
        _check_indices(A)
    matrix = A.tocsr()
    return matrix if matrix.dtype == dtype else matrix.astype(dtype)


def _check_indices(A: Any) -> None:
    """Refuse a sparse matrix whose indices point outside of it, before native code follows them."""
    rows, columns = ("row", A.shape[0]), ("column", A.shape[1])
    if A.format == "coo":
        given, checked = [(A.row, *rows), (A.col, *columns)], []
    elif A.format in ("csr", "csc", "bsr"):
        lines, across = (columns, rows) if A.format == "csc" else (rows, columns)
        height, width = A.blocksize if A.format == "bsr" else (1, 1)
        starts, given = A.indptr, [(A.indices, across[0], across[1] // width)]
        if len(starts) != lines[1] // height + 1:
            raise OptionError(
                f"A has {len(starts)} row pointers (indptr) for {lines[1] // height} {lines[0]}s."
            )
        checked = [(starts, min(len(A.indices), len(A.data)) + 1, True)]
    else:  # formats that SciPy converts in Python
        return
    given = [part for part in given if part[0].size]
    checked += [(indices, extent, False) for indices, _, extent in given]
    if checked and not backend_of(checked[0][0]).are_within(checked):
        found = [
            f"{what} indices from {i.min()} to {i.max()} for {extent} {what}s" for i, what, extent in given
        ]
        raise OptionError(
            f"A has {' and '.join(found)}, or pointers (indptr) that are out of range or descend; build the "
            "matrix again, or correct its indices."
        )


def _dense_operator(A: Array, device: str | None) -> FunctionOperator:
    if A.ndim != 2:
        raise ShapeError(f"A has {A.ndim} dimensions; a matrix has two.")
    backend = backend_of(A) if device is None else backend_for(device)
    if backend is not backend_of(A):
        A = backend.from_host(A) if isinstance(A, np.ndarray) else backend_of(A).to_host(A)
    A = A.astype(arrays.element_type(A.dtype), copy=False)

    is_plain = backend.name == "cpu" and A.flags.forc  # others are copied for each product
    is_short = backend.name == "cpu" and A.size * (4 if A.dtype.kind == "c" else 1) <= UNTHREADED_PRODUCTS

    def product(X: Array, out: Array) -> Array:
        with single_threaded_blas if is_short else contextlib.nullcontext():
            if is_plain and X.dtype == A.dtype and 1 < X.shape[1] <= FEW_COLUMNS:
                for j in range(X.shape[1]):
                    out[:, j] = A @ X[:, j]
            else:
                backend.xp.matmul(A, X, out=out)
        return out

    operator = FunctionOperator(product, A.shape, A.dtype, backend)
    operator.matrix, operator.needs_threads = A, not is_short
    operator.adjoint = lambda conjugates: _dense_operator(A.conj().T if conjugates else A.T, None)
    return operator


def _has_adjoint(A: Any) -> bool:
    """Check whether a linear operator defines products with its adjoint."""
    if not isinstance(A, LinearOperator):
        return hasattr(A, "H")
    names = "_CustomLinearOperator__rmatmat_impl", "_CustomLinearOperator__rmatvec_impl"
    if hasattr(A, names[0]):
        return any(getattr(A, name) is not None for name in names)
    own = type(A)
    return any(
        getattr(own, name) is not getattr(LinearOperator, name)
        for name in ("_rmatvec", "_rmatmat", "_adjoint")
    )


def _block_product(A: Any, dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    """Look up ``matmat`` of a linear operator, or make a loop over columns if it has none of its own."""
    custom = getattr(A, "_CustomLinearOperator__matmat_impl", A)
    inherits = isinstance(A, LinearOperator) and type(A)._matmat is LinearOperator._matmat  # type: ignore[attr-defined]
    if custom is not None and not inherits and hasattr(A, "matmat"):
        matmat: Callable[[Array], Array] = A.matmat
        return matmat
    warnings.warn(
        f"{type(A).__name__} has matvec only: it is called once per column, which forfeits what blocks gain. "
        "Define matmat.",
        stacklevel=3,
    )

    def columns(X: Array) -> Array:
        shape = A.shape[0], X.shape[1]
        out: Array = array_namespace(X).empty(shape, np.promote_types(X.dtype, dtype))
        for j in range(X.shape[1]):
            out[:, j] = A.matvec(X[:, j]).ravel()
        return out

    return columns
