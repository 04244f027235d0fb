"""From the arrays people have to the row-major views blockvec works on: intake, layout, memory overlap."""

from __future__ import annotations

from typing import Any

import numpy as np

from .backends import Array, array_namespace, is_cupy
from .errors import DTypeError, LayoutError, ShapeError
from .kernels.problem import MAX_ALIGNMENT

__all__ = [
    "DTYPES",
    "address",
    "alignment",
    "as_array",
    "as_range",
    "as_rows",
    "check_dtype",
    "is_range",
    "leading_dimension",
    "overlaps",
    "type_name",
]

DTYPES = ("float32", "float64", "complex64", "complex128")

_NAMES = {np.dtype(name): name for name in DTYPES}

_CUDA_DEVICE_TYPES = (2, 13)  # kDLCUDA, kDLCUDAManaged of the DLPack specification


def as_array(obj: Any) -> Array:
    """Return the NumPy or CuPy array behind an object, sharing its memory.

    Takes NumPy and CuPy arrays and anything that speaks DLPack or ``__cuda_array_interface__``.

    Raises
    ------
    DTypeError
        For an object that is no array.
    """
    if isinstance(obj, np.ndarray) or is_cupy(obj):
        return obj
    if hasattr(obj, "__cuda_array_interface__"):
        import cupy

        return cupy.asarray(obj)
    if hasattr(obj, "__dlpack__"):
        if obj.__dlpack_device__()[0] in _CUDA_DEVICE_TYPES:
            import cupy

            return cupy.from_dlpack(obj)
        return np.from_dlpack(obj)
    raise DTypeError(
        f"got a {type(obj).__name__}; a block wraps a NumPy or CuPy array, or one with DLPack: "
        "convert with numpy.asarray first."
    )


def check_dtype(dtype: Any) -> np.dtype[Any]:
    """Return one of the four element types.

    Raises
    ------
    DTypeError
        For any other type; the message names the remedy.
    """
    checked: np.dtype[Any] = np.dtype(dtype)
    if checked not in _NAMES:
        raise DTypeError(
            f"element type {checked.name if checked.isnative else checked.str} is not supported; blocks hold "
            f"{', '.join(DTYPES)} in native byte order: pass dtype='float64' to convert."
        )
    return checked


def as_rows(obj: Any, *, copy: bool = False, dtype: Any = None) -> Array:
    """Return a 2-D row-major view of an array-like, or a converted copy where that is asked for.

    Parameters
    ----------
    obj : array-like, shape (K, M) or (K,)
        One dimension becomes one column.
    copy : bool
        Copy to contiguous row-major memory, whatever the layout was.
    dtype : dtype, optional
        Convert (with a copy) where the type differs.

    Raises
    ------
    ShapeError, DTypeError, LayoutError
        For other dimensions, types, or layouts; each names the remedy.
    """
    array = as_array(obj)
    if array.ndim not in (1, 2):
        raise ShapeError(f"got {array.ndim} dimensions, shape {array.shape}; a block has rows and columns.")
    if dtype is not None and array.dtype != np.dtype(dtype):
        array = array.astype(check_dtype(dtype), order="C")
        copy = False
    check_dtype(array.dtype)
    if array.ndim == 1:
        array = array[:, None]
    if copy:
        return array_namespace(array).array(array, order="C")
    _check_layout(array)
    return array


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


def type_name(array: Array) -> str:
    """Return the name of a block's element type; a table, since NumPy spells names out anew each time."""
    return _NAMES[array.dtype]


def leading_dimension(array: Array) -> int:
    """Return the distance between rows in elements."""
    K, M = array.shape
    return int(array.strides[0] // array.itemsize) if K > 1 and M > 0 else max(int(M), 1)


def address(array: Array) -> int:
    """Return the address of the first element."""
    return int(array.data.ptr) if is_cupy(array) else int(array.ctypes.data)


def alignment(array: Array) -> int:
    """Return the largest power of two, at most 16 bytes, dividing the base address and a view's row pitch.

    Contiguous rows are one stretch of memory, whose start alone decides.
    """
    pitch = 0 if leading_dimension(array) == array.shape[1] else leading_dimension(array) * array.itemsize
    bits: int = address(array) | pitch | MAX_ALIGNMENT
    return bits & -bits


def is_range(index: Any) -> bool:
    """Whether an index selects a range without copying: a slice or an integer."""
    return isinstance(index, slice | int | np.integer)


def as_range(index: Any, extent: int) -> slice:
    """Return a slice of step one; an integer becomes the range of one row or column.

    Raises
    ------
    LayoutError
        For another step, since the rows of a block are contiguous.
    IndexError
        For an integer out of range.
    """
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


def overlaps(a: Array, b: Array) -> bool:
    """Whether two row-major views share memory.

    Exact for column ranges of one parent (equal row pitch), where ranges of addresses interleave without
    meeting; for other pairs by address range, which may say yes where the gaps of a view hold the other.
    """
    if is_cupy(a) != is_cupy(b) or 0 in a.shape or 0 in b.shape:
        return False
    begin_a, begin_b = address(a), address(b)
    pitch_a, pitch_b = (leading_dimension(x) * x.itemsize for x in (a, b))
    row_a, row_b = a.shape[-1] * a.itemsize, b.shape[-1] * b.itemsize
    end_a = begin_a + (a.shape[0] - 1) * pitch_a + row_a
    end_b = begin_b + (b.shape[0] - 1) * pitch_b + row_b
    if end_a <= begin_b or end_b <= begin_a:
        return False
    if pitch_a == pitch_b and min(len(a), len(b)) > 1:
        offset = (begin_b - begin_a) % pitch_a
        return bool(offset < row_a or offset + row_b > pitch_a)
    return True
