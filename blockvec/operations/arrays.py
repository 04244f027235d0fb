"""Conversion of arrays to row-major views, their layout, and overlap in memory."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..backends import Array, Backend, backend_of, is_cupy
from ..errors import DeviceError, DTypeError, LayoutError, ShapeError
from ..kernels.problem import MAX_ALIGNMENT

DTYPES = ("float32", "float64", "complex64", "complex128")
REAL_TYPES = dict(zip(DTYPES, ("float32", "float64") * 2, strict=True))  # of an element's parts
DTYPE_NAMES = {np.dtype(name): name for name in DTYPES}  # ``dtype.name`` composes the string at each call
_HOST_DEVICE_TYPES = (1, 3)  # kDLCPU, kDLCUDAHost of the DLPack specification
_CUDA_DEVICE_TYPES = (2, 13)  # kDLCUDA, kDLCUDAManaged


def as_array(obj: Any) -> Array:
    """View an array of NumPy or CuPy, or one with DLPack or ``__cuda_array_interface__``, without a copy."""
    array: Array
    if type(obj) is np.ndarray or is_cupy(obj):
        array = obj
    elif isinstance(obj, np.ndarray):
        if np.ma.is_masked(obj):
            raise DTypeError(
                "got an array with masked elements; blocks have no masks: fill them, as a.filled(0) does."
            )
        array = np.asarray(obj)
    elif hasattr(obj, "__dlpack__"):  # which orders the work of two streams, unlike the other protocol
        array = _from_dlpack(obj)
    elif hasattr(obj, "__cuda_array_interface__"):
        import cupy

        array = cupy.asarray(obj)
    else:
        remedy = "convert with numpy.asarray first"
        if hasattr(obj, "tocsr") or hasattr(obj, "apply"):
            remedy = "as_operator(A) @ V multiplies a block"
        raise DTypeError(
            f"got a {type(obj).__name__}; a block wraps a NumPy or CuPy array, or one with DLPack: {remedy}."
        )
    return array


def _from_dlpack(obj: Any) -> Array:
    if hasattr(obj, "resolve_conj"):  # of torch, which exports neither gradients nor pending conjugation
        obj = obj.detach().resolve_conj().resolve_neg()
    on_host = device_of(obj) == "cpu"
    if on_host and hasattr(obj, "block_until_ready"):
        obj.block_until_ready()  # of JAX, which computes in threads of its own
    array: Array
    try:
        if on_host:
            array = np.from_dlpack(obj)
        else:
            import cupy

            array = cupy.from_dlpack(obj)
    except (BufferError, RuntimeError) as error:
        raise DTypeError(
            f"got a {type(obj).__name__} of type {getattr(obj, 'dtype', 'unknown')}, whose memory cannot be "
            f"shared ({error}); convert it to a dense array of {', '.join(DTYPES)}."
        ) from None
    return array


def device_of(obj: Any) -> str:
    """Look up the device of an array that supports DLPack: ``"cpu"`` or ``"cuda:0"``."""
    try:
        kind, number = obj.__dlpack_device__()
    except (BufferError, RuntimeError, ValueError) as error:  # as for arrays spread over devices
        raise DeviceError(f"got a {type(obj).__name__} without one device of its own: {error}") from None
    if kind in _CUDA_DEVICE_TYPES:
        return f"cuda:{number}"
    if kind not in _HOST_DEVICE_TYPES:
        raise DeviceError(
            f"got a {type(obj).__name__} on a device of DLPack type {int(kind)}; move it to the host or to a "
            "CUDA device."
        )
    return "cpu"


def check_dtype(dtype: Any) -> np.dtype[Any]:
    """Convert to one of the four element types; refuse any other."""
    try:
        checked: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):  # NumPy evaluates some texts
        raise DTypeError(f"dtype: got {dtype!r}; give one of {', '.join(DTYPES)}.") from None
    if checked not in DTYPE_NAMES:
        raise DTypeError(
            f"element type {checked.name if checked.isnative else checked.str} is not supported; blocks hold "
            f"{', '.join(DTYPES)} in native byte order: pass dtype='float64' to convert."
        )
    return checked


def element_type(dtype: Any) -> np.dtype[Any]:
    """Choose the element type that matrices are converted to, as SciPy does: in native byte order.

    Integers, half precision and extended precision become double precision; what holds no numbers raises a
    `DTypeError`.
    """
    given: np.dtype[Any] = np.dtype(dtype).newbyteorder("=")
    if given in DTYPE_NAMES:
        return given
    if given.kind not in "biufc":
        raise DTypeError(
            f"element type {given} is not supported; give numbers, as A.astype('float64') does if there are "
            "any."
        )
    return np.dtype(np.complex128 if given.kind == "c" else np.float64)


def as_rows(obj: Any, *, copy: bool = False, dtype: Any = None) -> Array:
    """View an array-like as a 2-D row-major array, or convert it; arguments as for `BlockVector`."""
    array = as_array(obj)
    if array.ndim not in (1, 2):
        raise ShapeError(f"got {array.ndim} dimensions, shape {array.shape}; a block has rows and columns.")
    if dtype is not None and array.dtype != (wanted := check_dtype(dtype)):
        if array.dtype.kind not in "biufc":
            raise DTypeError(f"got an array of {array.dtype}; a block holds numbers.")
        array, copy = _copied(array, wanted), False
    check_dtype(array.dtype)
    if array.ndim == 1:
        array = array[:, None]
    if copy:
        return _copied(array, array.dtype)
    _check_layout(array)
    return array


def is_convertible(array: Array, dtype: np.dtype[Any]) -> bool:
    """Check whether a backend copies an array to a block of some type."""
    is_known = (
        array.ndim == 2 and array.dtype in DTYPE_NAMES and (dtype.kind == "c" or array.dtype.kind == "f")
    )
    return is_known and (array.shape[1] < 2 or array.strides[1] == array.itemsize)


def _copied(array: Array, dtype: np.dtype[Any]) -> Array:
    """Copy an array of numbers to row-major memory and another type."""
    if not is_cupy(array) or not is_convertible(array, dtype):
        return array.astype(dtype, order="C")
    backend = backend_of(array)
    result = backend.empty(array.shape, dtype.name)
    backend.copy(array, result)
    return result


def _check_layout(array: Array) -> None:
    (K, M), size = array.shape, array.itemsize
    if 0 in (K, M):
        return
    row, column = array.strides
    unit = M == 1 or column == size
    ascending = K == 1 or (row >= M * size and row % size == 0)
    if not (unit and ascending):
        raise LayoutError(
            f"array of shape {array.shape} has strides {array.strides} bytes; a block is row-major with unit "
            f"column stride (here {size}) and rows that do not overlap: pass copy=True, or "
            "numpy.ascontiguousarray(a)."
        )
    if isinstance(array, np.ndarray) and not array.flags.aligned:
        raise LayoutError("the array's data is not aligned to its element size: pass copy=True.")


def check_writable(operation: str, name: str, array: Array) -> None:
    """Raise `LayoutError` for a read-only array; CuPy has none."""
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise LayoutError(f"{operation}: {name} is read-only; give a writable array.")


def dtype_name(dtype: Any) -> str:
    """Look up the name of one of the four element types; raises as `check_dtype`."""
    return DTYPE_NAMES[check_dtype(dtype)]


Kind: TypeAlias = tuple[Backend, int, int, str, int, int]
"""The part of a `Memory` that a choice of kernel may depend on: backend, extents, type, ld, alignment."""


class Memory(NamedTuple):
    """Layout and address of a block: everything that the choice of a kernel and checks for overlap need.

    Reading these from an array takes longer than launching a kernel, so a block caches them. `align` is the
    largest power of two, at most 16 bytes, dividing the base address and, if rows are not contiguous, the
    distance between them in bytes.
    """

    backend: Backend
    n_rows: int
    n_cols: int
    dtype: str
    ld: int  # distance between rows in elements
    align: int
    address: int  # of the first element
    size: int  # bytes per element
    end: int  # address behind the last element; 0 if there are no elements
    array: Array
    kind: Kind  # the first six fields, which kernel choices are cached by

    def overlaps(self, other: Memory) -> bool:
        """Check whether two row-major views share memory.

        Exact for column ranges of one parent (equal leading dimension), whose address ranges interleave
        although they share no element. Other pairs are compared by address range, which also reports an
        overlap if one of them lies in the gaps of the other.
        """
        if self.end <= other.address or other.end <= self.address:
            return False
        if self.backend is not other.backend:
            return False
        pitch, other_pitch = self.ld * self.size, other.ld * other.size
        row, other_row = self.n_cols * self.size, other.n_cols * other.size
        if pitch == other_pitch and min(self.n_rows, other.n_rows) > 1:
            offset = (other.address - self.address) % pitch
            return offset < row or offset + other_row > pitch
        return True


def memory_of(array: Array) -> Memory:
    """Describe the layout and address of a 2-D row-major view of one of the four types."""
    K, M = array.shape
    size = array.itemsize
    # `leading_dimension`, inlined: reading an attribute of a CuPy array takes 0.1 us.
    ld = array.strides[0] // size if K > 1 and M else max(M, 1)
    backend = backend_of(array)
    if backend.xp is np:
        address: int = array.__array_interface__["data"][0]
    else:
        memory: Any = array.data  # CuPy's, not NumPy's memoryview
        address = memory.ptr
    bits = address | MAX_ALIGNMENT | (0 if ld == M else ld * size)
    end = address + ((K - 1) * ld + M) * size if K and M else 0
    dtype, align = DTYPE_NAMES[array.dtype], bits & -bits
    kind = (backend, K, M, dtype, ld, align)
    return Memory(backend, K, M, dtype, ld, align, address, size, end, array, kind)


def overlaps(a: Array, b: Array) -> bool:
    """Check whether two row-major views share memory; see `Memory.overlaps`."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and not np.may_share_memory(a, b):
        return False  # most pairs end here, in a tenth of the time that two descriptions take
    return memory_of(a).overlaps(memory_of(b))


def as_range(index: Any, extent: int) -> slice:
    """Convert an index to a slice of step one; an integer becomes the range of one row or column."""
    if isinstance(index, slice):
        if index.step not in (None, 1):
            raise LayoutError(
                f"range with step {index.step}: a view of a block has unit steps; take a copy with "
                "BlockVector(V.array[...], copy=True)."
            )
        return index
    if not -extent <= index < extent:
        raise IndexError(f"index {index} is out of range for an extent of {extent}.")
    return slice(index % extent, index % extent + 1)
