"""Adapters: sparse and dense matrices, linear operators and functions as operators."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from . import arrays, elementwise, products
from .arrays import overlaps
from .backends import Array, Backend, backend_for, backend_of, is_cupy
from .errors import DTypeError, OptionError, ShapeError
from .operators import Operator, SparseOperator

__all__ = ["FunctionOperator", "as_operator"]


class FunctionOperator(Operator):
    """A user's function of a block, called once a block with a row-major array of the operator's device.

    Where it has a parameter ``out`` it also gets the array to write to, contiguous and apart from the block.
    """

    def __init__(
        self, function: Callable[..., Array], shape: tuple[int, int], dtype: Any, backend: Backend
    ) -> None:
        super().__init__(shape, dtype, backend)
        self._function = function
        self._writes = _has_parameter(function, "out")

    def _product(self, X: Array, Y: Array, beta: complex) -> Array:
        """Return A X, which is Y itself where the function writes to it and Y is not read."""
        out = None
        if self._writes:
            out = Y if beta == 0 and Y.flags.c_contiguous else self.backend.empty(Y.shape, Y.dtype.name)
            product = self._function(X, out=out)
            if product is None or product is out:
                return out
        else:
            product = self._function(X)
        if getattr(product, "shape", None) != Y.shape:
            raise ShapeError(
                f"apply: the operator returned shape {getattr(product, 'shape', None)} for a block of shape "
                f"{X.shape}; expected {Y.shape}."
            )
        # CuPy's and SciPy's products may come back column-major.
        product = arrays.as_rows(product, copy=not product.flags.c_contiguous)
        return out if out is not None and overlaps(product, out) else product

    def _run(self, X: Array, Y: Array, alpha: complex, beta: complex, shift: Any) -> None:
        AX = self._product(X, Y, beta)
        if AX is not Y or alpha != 1:
            elementwise.axpby("apply", AX, Y if beta != 0 else None, Y, alpha, beta)
        if np.ndim(shift) or shift != 0:
            # In the precision of Y, which may be wider than that of the shifts.
            shift = shift.astype(Y.dtype) if np.ndim(shift) else shift
            elementwise.axpby("apply", X, Y, Y, -alpha * shift, 1)


def as_operator(
    A: Any,
    *,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    device: str | None = None,
) -> Operator:
    """Return an `Operator` for a matrix, a linear operator or a function.

    Parameters
    ----------
    A : sparse matrix or array of SciPy or CuPy, LinearOperator, dense array, callable, or Operator
        Integer and boolean matrices are promoted to float64. A sparse matrix must not change from then on: a
        GPU may work on a converted copy of it. A linear operator should have ``matmat``: one
        with ``matvec`` alone is called column by column, with a warning. A callable gets a row-major array of
        shape (n, M) and returns one; where it has a parameter ``out`` it gets one of the result's type to
        write to, and no copy is made.
    shape, dtype
        For a callable; `dtype` defaults to float64.
    device : str, optional
        ``"cpu"`` or ``"gpu"``: where a callable works (default ``"cpu"``), or where to put a SciPy
        or dense matrix.

    Raises
    ------
    DTypeError, ShapeError, DeviceError, OptionError
        For what is no operator, or lacks `shape`.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from blockvec import BlockVector, as_operator
    >>> A = as_operator(sp.diags_array([1.0, 2.0, 3.0]))
    >>> (A @ BlockVector(np.ones((3, 2)))).array[:, 0].tolist()
    [1.0, 2.0, 3.0]
    """
    if isinstance(A, Operator):
        return A
    if sp.issparse(A) or (type(A).__module__.startswith("cupyx.scipy.sparse") and hasattr(A, "tocsr")):
        return _sparse_operator(A, device)
    if hasattr(A, "matvec") and hasattr(A, "shape"):
        backend = backend_for(device or ("gpu" if type(A).__module__.startswith("cupyx") else "cpu"))
        return FunctionOperator(_block_product(A), A.shape, _matrix_dtype(A.dtype), backend)
    if isinstance(A, np.ndarray) or is_cupy(A):
        return _dense_operator(A, device)
    if callable(A):
        if shape is None:
            raise OptionError("A is a function; give shape=(n, n), and dtype= unless it is float64.")
        return FunctionOperator(
            A, shape, np.float64 if dtype is None else dtype, backend_for(device or "cpu")
        )
    raise DTypeError(
        f"A is a {type(A).__name__}; give a sparse matrix, a dense array, a LinearOperator or a function "
        "with shape=."
    )


def _matrix_dtype(dtype: Any) -> np.dtype[Any]:
    """Type to work in: integers and booleans become float64, an unknown type is float64 too."""
    dtype = np.dtype(np.float64 if dtype is None else dtype)
    return np.dtype(np.float64) if dtype.kind in "iub" else arrays.check_dtype(dtype)


def _sparse_operator(A: Any, device: str | None) -> SparseOperator:
    matrix = A.tocsr()
    dtype = _matrix_dtype(matrix.dtype)
    if matrix.dtype != dtype:
        matrix = matrix.astype(dtype)
    home = backend_of(matrix.data)
    backend = home if device is None else backend_for(device)
    if backend.name == "cpu" and home is not backend:
        matrix = matrix.get()  # a CuPy matrix copied to the host
    return SparseOperator(matrix, backend)


def _dense_operator(A: Array, device: str | None) -> FunctionOperator:
    if A.ndim != 2:
        raise ShapeError(f"A has {A.ndim} dimensions; a matrix has two.")
    backend = backend_of(A) if device is None else backend_for(device)
    if backend is not backend_of(A):
        A = backend.from_host(A) if isinstance(A, np.ndarray) else backend_of(A).to_host(A)
    A = A.astype(_matrix_dtype(A.dtype), copy=False)

    def product(X: Array, out: Array) -> None:
        backend.xp.matmul(A, X, out=out)

    return FunctionOperator(product, A.shape, A.dtype, backend)


def _has_parameter(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in functions do not tell
        return False


def _block_product(A: Any) -> Callable[[Array], Array]:
    """Return ``matmat`` of a linear operator, or a column loop where it has none of its own."""
    custom = getattr(A, "_CustomLinearOperator__matmat_impl", A)
    inherits = isinstance(A, LinearOperator) and type(A)._matmat is LinearOperator._matmat  # type: ignore[attr-defined]
    if custom is not None and not inherits and hasattr(A, "matmat"):
        return A.matmat  # type: ignore[no-any-return]
    warnings.warn(
        f"{type(A).__name__} has matvec only: it is called once a column, which forfeits what blocks gain. "
        "Define matmat.",
        stacklevel=3,
    )

    def columns(X: Array) -> Array:
        Y = np.empty if isinstance(X, np.ndarray) else _cupy_empty()
        out = Y((A.shape[0], X.shape[1]), products.result_type(X.dtype, _matrix_dtype(A.dtype)))
        for j in range(X.shape[1]):
            out[:, j] = A.matvec(X[:, j]).ravel()
        return out

    return columns


def _cupy_empty() -> Callable[..., Array]:
    import cupy

    return cupy.empty  # type: ignore[no-any-return]
