"""Arrays of NumPy or CuPy, for code that takes both, and the type of what loads kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ..source import Kernel

_ALIGNMENT = 16  # bytes: of the copies of entries to shared memory

Array: TypeAlias = Any
"""A NumPy array or a CuPy array, in code that also uses attributes of only one of them."""

Load = Callable[[Kernel], Any]
"""Compiles and loads a kernel."""


def address(array: Array) -> int:
    """Get the address of an array's memory; 0 for None."""
    if array is None:
        return 0
    return int(array.data.ptr) if namespace(array) is not np else int(array.ctypes.data)


def namespace(array: Array) -> Any:
    """Get the module of an array's functions, NumPy or CuPy."""
    if type(array).__module__.partition(".")[0] == "cupy":
        import cupy

        return cupy
    return np


def to_host(array: Array) -> Any:
    """Copy an array of a device to the host."""
    return array if isinstance(array, np.ndarray) else array.get()


def aligned(array: Array) -> Array:
    """Copy an array unless it starts at a multiple of 16 bytes."""
    if len(array) == 0 or address(array) % _ALIGNMENT == 0:
        return array
    if namespace(array) is not np:
        return array.copy()  # CuPy aligns allocations to 512 bytes
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    copy = memory[first : first + array.nbytes].view(array.dtype)
    copy[...] = array
    return copy
