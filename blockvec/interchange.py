"""Matrices, blocks and functions of torch and JAX, which share memory with NumPy and CuPy through DLPack.

Both libraries are recognised by the classes of their objects, and imported only where a user names them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse as sp

from .backends import Array, backend_for, backend_of, is_cupy
from .errors import DTypeError, OptionError, ShapeError
from .operations.arrays import DTYPE_NAMES, as_array, check_dtype, device_of, element_type
from .parallel import is_petsc, petsc_rows
from .system.frozen import frozen

LIBRARIES = {"numpy": "numpy", "cupy": "cupy", "torch": "torch", "jax": "jax", "jaxlib": "jax"}  # by package
FOREIGN = ("torch", "jax")


def library_of(obj: object) -> str | None:
    """Look up to which of the four libraries the class of an object, or a base of it, belongs."""
    for base in type(obj).__mro__:
        package = base.__module__.partition(".")[0]
        if package in LIBRARIES:
            return LIBRARIES[package]
    return None


def diagonal_of(A: Any) -> Any:
    """Compute the diagonal of a square Hermitian matrix, sparse or dense, on its device, as real numbers."""
    if getattr(A, "format", "") in ("csr", "csc") and A.dtype in DTYPE_NAMES:
        return backend_of(A.data).diagonal(A)
    return A.diagonal().real


def is_function(A: Any) -> bool:
    """Check whether A is a plain function, no linear operator that can be called as well."""
    return callable(A) and not hasattr(A, "matvec")


def is_sparse(A: Any) -> bool:
    """Check whether A is a sparse matrix of SciPy or CuPy."""
    return sp.issparse(A) or (type(A).__module__.startswith("cupyx.scipy.sparse") and hasattr(A, "tocsr"))


def native(obj: Any) -> Any:
    """View an array or sparse matrix of torch or JAX as one of NumPy, CuPy or SciPy; return others unchanged.

    Values are not copied; indices are where they fit a shorter type. A matrix of petsc4py, all of whose rows
    are in this process, is copied. What blockvec has no operations for raises a `DTypeError`, `DeviceError`
    or `ShapeError`.
    """
    if obj is None:
        return None
    if is_petsc(obj):
        rows, split = petsc_rows(obj)
        if split is not None:
            raise OptionError("got a matrix of petsc4py with rows in several processes; give it as A only.")
        return rows
    if library_of(obj) not in FOREIGN or not hasattr(obj, "dtype"):  # functions have none
        return obj
    layout = str(getattr(obj, "layout", "")).removeprefix("torch.")  # of a tensor
    if layout == "sparse_csr":
        return sparse_matrix("csr", obj.shape, obj.values(), obj.col_indices(), obj.crow_indices())
    if layout == "sparse_csc":
        return sparse_matrix("csc", obj.shape, obj.values(), obj.row_indices(), obj.ccol_indices())
    if layout == "sparse_coo":
        obj = obj.coalesce()
        return sparse_matrix("coo", obj.shape, obj.values(), *obj.indices())
    if hasattr(obj, "indptr"):  # BCSR, whose padding follows the last row
        return sparse_matrix("csr", obj.shape, obj.data, obj.indices, obj.indptr, int(obj.indptr[-1]))
    if hasattr(obj, "indices") and not hasattr(obj, "__dlpack__"):  # BCOO
        return sparse_matrix("coo", obj.shape, obj.data, *obj.indices.T)
    if layout.startswith("sparse") or not hasattr(obj, "__dlpack__"):
        raise DTypeError(
            f"got a {type(obj).__name__} {layout}; give a dense array, or a sparse matrix in CSR, CSC or COO "
            "form (torch), BCSR or BCOO (JAX)."
        )
    return as_array(obj)


def sparse_matrix(
    form: str, shape: Any, values: Any, first: Any, second: Any, stored: int | None = None
) -> Any:
    """Form a SciPy or CuPy matrix of values with column indices and row pointers, or rows and columns."""
    if len(shape) != 2 or values.ndim != 1:
        raise ShapeError(
            f"A has shape {tuple(shape)} and values of shape {tuple(values.shape)}; give one sparse matrix "
            "with numbers as entries, neither batches nor blocks."
        )
    data, i, j = map(as_array, (values, first, second))
    data = data.astype(np.float64) if data.dtype.kind in "iub" else data
    check_dtype(data.dtype)
    if is_cupy(data):
        make = getattr(importlib.import_module("cupyx.scipy.sparse"), f"{form}_matrix")
    else:
        make = getattr(sp, f"{form}_array")
    if form != "coo":
        matrix = make((data[:stored], i[:stored], j), shape=tuple(shape))
        if i.dtype.itemsize > matrix.indices.itemsize and max(*shape, len(data)) > np.iinfo(np.int32).max:
            raise DTypeError("A needs 64-bit indices, which CuPy has from version 14.1 on; install that.")
        return matrix
    inside = (i < shape[0]) & (j < shape[1])  # JAX pads with indices beyond the shape
    if not inside.all():
        data, i, j = data[inside], i[inside], j[inside]
    return make((data, (i, j)), shape=tuple(shape))


def in_element_type(obj: Any) -> Any:
    """Convert an array or a sparse matrix of NumPy, CuPy or SciPy to an element type of blocks.

    Integers, half precision and extended precision become double precision, and another byte order the native
    one. Other objects are returned unchanged; arrays that hold no numbers raise a `DTypeError`.
    """
    if not (is_sparse(obj) or isinstance(obj, np.ndarray) or is_cupy(obj)):
        return obj
    wanted = element_type(obj.dtype)
    return obj if obj.dtype == wanted else obj.astype(wanted)


@frozen
class ArrayKind:
    """The kind of arrays that a caller works with: their library and, where an example was given, more."""

    library: str
    # ``"cpu"`` for NumPy, ``"gpu"`` for CuPy, that of an example, or None: wherever an array is.
    device: str | None = None
    dtype: str | None = None  # name of the element type of an example

    @classmethod
    def of(cls, like: Any) -> ArrayKind:
        """Form the kind that a name, a module or an example stands for; import its library."""
        is_name = isinstance(like, str | ModuleType)
        name = like.__name__ if isinstance(like, ModuleType) else like
        if is_name:  # also jax.numpy, and array_api_compat.torch
            library = next((LIBRARIES[part] for part in name.split(".") if part in LIBRARIES), None)
        else:
            library = library_of(like)
        if library is None or not (is_name or hasattr(like, "__dlpack_device__")):
            raise OptionError(
                f"like: got {like!r:.60}; give 'numpy', 'cupy', 'torch', 'jax', one of these modules, or an "
                "array."
            )
        _import(library)
        if not is_name:
            return cls(library, device_of(like), str(like.dtype).rpartition(".")[2])
        return cls(library, {"numpy": "cpu", "cupy": "gpu"}.get(library))

    @classmethod
    def of_caller(cls, A: Any) -> ArrayKind | None:
        """Form the kind of a matrix or function of torch or JAX; None for others, which have no wish."""
        library = None if A is None else library_of(A)
        return cls(library) if library in FOREIGN else None

    def share(self, array: Array) -> Any:
        """View an array of NumPy or CuPy as one of this kind; copy it only to another device."""
        here = backend_of(array)
        if self.device not in (None, here.name) and not (self.device == "gpu" and is_cupy(array)):
            array = backend_for(self.device).from_host(here.to_host(array))
        if self.library not in FOREIGN:
            return array
        library = _import(self.library)
        if self.library == "jax":
            library = _import("jax.numpy")
            if not (array.flags.c_contiguous and getattr(array.flags, "writeable", True)):
                array = array.copy()  # JAX has no other layouts
        try:
            shared = library.from_dlpack(array)
        except (AssertionError, BufferError, RuntimeError, TypeError, ValueError) as error:
            raise DTypeError(
                f"like: {self.library} cannot take arrays of {array.dtype} on {backend_of(array).name} "
                f"({error}); give another like=."
            ) from None
        if str(shared.dtype).rpartition(".")[2] != array.dtype.name:
            raise DTypeError(
                f"like: JAX makes {shared.dtype} of {array.dtype}; set jax.config.update('jax_enable_x64', "
                "True) first, or compute in single precision (dtype= of a function)."
            )
        return shared

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function on arrays of this kind one on arrays of NumPy or CuPy."""
        if self.library not in FOREIGN:
            return function
        share = ArrayKind(self.library).share

        @functools.wraps(function, ("update",), ())  # a preconditioner's `update` and the signature stay
        def native(X: Array, **out: Array) -> Array | None:
            with _stream_of(X) if self.library == "torch" else nullcontext():
                product = function(share(X), **{name: share(array) for name, array in out.items()})
                return None if product is None else as_array(product)

        return native


def _stream_of(X: Array) -> AbstractContextManager[object]:
    """Make torch queue its work on CuPy's current stream, in whose order both then reuse their memory."""
    if not is_cupy(X):
        return nullcontext()
    import cupy

    torch: Any = _import("torch")
    device = backend_of(X).name
    wanted = cupy.cuda.get_current_stream().ptr
    if torch.cuda.current_stream(device).cuda_stream == wanted:
        return nullcontext()
    # The default stream has no address.
    stream = torch.cuda.ExternalStream(wanted, device) if wanted else torch.cuda.default_stream(device)
    context: AbstractContextManager[object] = torch.cuda.stream(stream)
    return context


def _import(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise OptionError(f"like: {library} cannot be imported ({error}); install it.") from None
