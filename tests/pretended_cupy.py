"""CuPy on a computer without a GPU: arrays in NumPy's memory, and a list of the kernels CuPy would compile.

CuPy copies contiguous memory, sets it to zero and makes views without a kernel. All else compiles one at its
first use: it is computed by NumPy, and noted. Functions of NumPy take these arrays, but not beside its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp

__all__ = ["LIBRARIES", "Array", "CuPy", "bare", "compiled"]

FREE_BYTES = 100 << 30
PACKAGES = ("/blockvec/", "/solvers/")


class Compiled(dict[str, str]):
    """Kernels that CuPy would have compiled, each with the line that asked for it first."""

    def note(self, name: str) -> None:
        """Note a kernel by its name and the code that needs it."""
        stack = traceback.extract_stack()
        frames = [frame for frame in stack if any(package in frame.filename for package in PACKAGES)]
        places = [f"{Path(f.filename).parent.name}/{Path(f.filename).name}:{f.lineno}" for f in frames[-3:]]
        self.setdefault(f"{name} at {places[-1]}" if places else name, " < ".join(reversed(places)))


compiled = Compiled()


class Pointer:
    """Memory on the device."""

    device_id = 0

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.ptr + offset)

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        ctypes.memset(self.ptr, value, size)

    def copy_to_host_async(self, address: int, size: int, stream: Any = None) -> None:
        ctypes.memmove(address, self.ptr, size)

    def copy_from_device_async(self, source: Pointer, size: int, stream: Any = None) -> None:
        ctypes.memmove(self.ptr, source.ptr, size)


def bare(value: Any) -> Any:
    """Return the NumPy array of one on the device; other values are returned unchanged."""
    if isinstance(value, Array):
        return value.memory
    if isinstance(value, tuple | list):
        return type(value)(map(bare, value))
    return value


class Array(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of CuPy."""

    __cuda_array_interface__: Any = None

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    @property
    def data(self) -> Pointer:
        return Pointer(self.memory.__array_interface__["data"][0])

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype", "strides", "itemsize", "nbytes", "size", "ndim", "flags"):
            return getattr(self.memory, name)
        if name in ("T", "real", "imag", "base"):  # views
            return Array(getattr(self.memory, name))
        if name == "conj" and self.memory.dtype.kind != "c":
            return lambda: self
        if name in ("item", "tolist"):
            return getattr(self.memory, name)
        if name in ("reshape", "view", "ravel", "transpose", "diagonal"):
            return functools.partial(self._view, name)
        if name.startswith("__"):
            raise AttributeError(name)
        method = getattr(np.ndarray, name)
        return lambda *args, **kw: kernel(name, lambda: method(self.memory, *bare(args), **kw))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        function = ufunc if method == "__call__" else getattr(ufunc, method)
        return self.__array_function__(function, (), inputs, keywords)

    def __array_function__(self, function: Any, _types: Any, inputs: Any, keywords: Any) -> Any:
        operands = (*inputs, *keywords.values())
        if any(isinstance(operand, np.ndarray) and operand.ndim for operand in operands):
            raise TypeError(f"{function.__name__}: an array of NumPy beside one of CuPy")
        plain = {key: bare(value) for key, value in keywords.items()}
        return kernel(function.__name__, lambda: function(*bare(inputs), **plain))

    def _view(self, name: str, *arguments: Any, **keywords: Any) -> Array:
        result = getattr(self.memory, name)(*arguments, **keywords)
        if not np.may_share_memory(result, self.memory) and result.size:
            compiled.note("copy")
        return Array(result)

    def get(self, *_: Any, **__: Any) -> Any:
        if not self.memory.flags.c_contiguous and self.size:
            compiled.note("copy before get")
        return self.memory.copy(order="C")

    def __len__(self) -> int:
        return len(self.memory)

    def __bool__(self) -> bool:
        return bool(self.memory)

    def __int__(self) -> int:
        return int(self.memory)

    def __float__(self) -> float:
        return float(self.memory)

    def copy(self, order: str = "C") -> Array:
        return self.astype(self.dtype, order)

    def astype(self, dtype: Any, order: str = "K", copy: bool = True) -> Array:
        if not copy and self.dtype == dtype and (order == "K" or self.memory.flags.c_contiguous):
            return self
        if self.size:
            compiled.note(f"copy {self.dtype}->{np.dtype(dtype)} {layout(self.memory)}")
        return Array(self.memory.astype(dtype, order="C" if order == "K" else order))

    def fill(self, value: Any) -> None:
        if not (np.ndim(value) == 0 and not isinstance(value, Array) and value == 0 and contiguous(self)):
            compiled.note(f"fill {self.dtype}")
        self.memory.fill(bare(value))

    def __getitem__(self, index: Any) -> Array:
        found = self.memory[bare(index)]
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, np.ndarray | list | Array) for part in parts):
            compiled.note(f"take {self.dtype}")
        elif not isinstance(found, np.ndarray):  # a view without dimensions
            strict = tuple(slice(part, part + 1 or None) for part in parts)
            found = self.memory[strict].reshape(())
        return Array(found)

    def __setitem__(self, index: Any, value: Any) -> None:
        target = self[index]
        if not isinstance(value, Array):
            target.fill(value)
            self.memory[bare(index)] = value  # where the index has made a copy
            return
        same = target.shape == value.shape and target.strides == value.strides
        free = same and target.dtype == value.dtype and contiguous(target)
        if not (free or target.size == 0 or (same and target.data.ptr == value.data.ptr)):
            places = f"{layout(value.memory)}->{layout(target.memory)}"
            compiled.note(f"copy {value.dtype}->{target.dtype} {places}")
        self.memory[bare(index)] = value.memory


Array.__module__ = "cupy"


def layout(memory: Any) -> str:
    """Describe the memory of an array."""
    return f"{memory.ndim}{'' if memory.flags.c_contiguous else ' strided'}"


def contiguous(array: Array) -> bool:
    return bool(array.memory.flags.c_contiguous)


def kernel(name: str, compute: Callable[[], Any]) -> Any:
    """Note a kernel and return its result on the device."""
    compiled.note(name)
    result = compute()
    if isinstance(result, tuple):
        return tuple(map(Array, result))
    return Array(np.asarray(result)) if isinstance(result, np.ndarray | np.generic) else result


class Event:
    """A moment that has passed."""

    def __init__(self, **_: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Do nothing."""

    synchronize = record


class Stream(contextlib.nullcontext[None]):
    """A stream whose work is done at once."""

    ptr = 0

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def is_capturing(self) -> bool:
        """Return False."""
        return False

    def synchronize(self, event: Event | None = None) -> None:
        """Do nothing."""

    wait_event = synchronize

    def record(self) -> Event:
        """Return the current moment."""
        return Event()


class Pinned(np.ndarray):  # type: ignore[type-arg]
    """Memory of the host."""

    @property
    def ptr(self) -> int:
        """Its address."""
        return int(self.__array_interface__["data"][0])


class CuPy(ModuleType):
    """The module, as far as the CUDA backend uses it; other functions are NumPy's, noted as kernels."""

    def __init__(self) -> None:
        super().__init__("cupy")
        stream, pool = Stream(), SimpleNamespace(free_bytes=lambda: 0, malloc=None)
        self.linalg = Library("linalg.", np.linalg)
        self.get_default_memory_pool = lambda: pool
        self.cuda = SimpleNamespace(
            Device=lambda *_: contextlib.nullcontext(),
            Event=Event,
            Stream=Stream,
            MemoryPool=lambda: pool,
            using_allocator=lambda *_: contextlib.nullcontext(),
            get_current_stream=lambda: stream,
            alloc_pinned_memory=lambda size: np.empty(size, np.uint8).view(Pinned),
            is_available=lambda: True,
            memory=SimpleNamespace(OutOfMemoryError=MemoryError),
            runtime=SimpleNamespace(getDevice=lambda: 0, memGetInfo=lambda: (FREE_BYTES, FREE_BYTES)),
        )

    def empty(self, shape: Any, dtype: Any = float) -> Array:
        """Allocate memory of NaN, so that who reads what nobody wrote sees it."""
        memory = np.empty(shape, dtype)
        if memory.dtype.kind in "fc":
            memory[...] = np.nan
        return Array(memory)

    def empty_like(self, a: Array, dtype: Any = None, order: str = "K") -> Array:
        """Allocate memory."""
        return Array(np.empty_like(a.memory, dtype, order))  # type: ignore[call-overload]

    def zeros(self, shape: Any, dtype: Any = float) -> Array:
        """Allocate memory and set it to zero."""
        return Array(np.zeros(shape, dtype))

    def asarray(self, a: Any, dtype: Any = None, order: Any = "K") -> Array:
        """Copy from the host, or convert."""
        if isinstance(a, Array):
            return a.astype(dtype or a.dtype, order, copy=False)
        memory = np.array(a, dtype, order=order)
        if memory.ndim == 0 and memory != 0:
            compiled.note(f"fill {memory.dtype}")
        return Array(memory)

    def array(self, a: Any, dtype: Any = None, copy: bool = True, order: Any = "K") -> Array:
        """Copy."""
        if isinstance(a, Array):
            return a.astype(dtype or a.dtype, order, copy)
        return self.asarray(a, dtype, order)

    def ascontiguousarray(self, a: Any, dtype: Any = None) -> Array:
        """Copy what is not contiguous."""
        return self.asarray(a, dtype, "C")

    def asnumpy(self, a: Array) -> Any:
        """Copy to the host."""
        return a.get()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(Library("", np), name)


class SparseMatrix:
    """CuPy's csr_matrix: its arrays."""

    format = "csr"

    def __init__(self, arrays: tuple[Array, Array, Array], shape: tuple[int, int]) -> None:
        assert all(isinstance(array, Array) for array in arrays)
        self.data, self.indices, self.indptr = arrays
        self.shape, self.dtype, self.nnz = shape, self.data.dtype, self.data.size

    def tocsr(self) -> SparseMatrix:
        """Return the matrix."""
        return self

    def get(self) -> Any:
        """Copy to the host."""
        return sp.csr_array((self.data.get(), self.indices.get(), self.indptr.get()), shape=self.shape)


SparseMatrix.__module__ = "cupyx.scipy.sparse._csr"
LIBRARIES = {
    "cupyx": ModuleType("cupyx"),
    "cupyx.scipy": ModuleType("cupyx.scipy"),
    "cupyx.scipy.sparse": SimpleNamespace(csr_matrix=SparseMatrix),
}


class Library:
    """Functions of NumPy, noted as kernels."""

    def __init__(self, prefix: str, module: ModuleType) -> None:
        self._prefix, self._module = prefix, module

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        if isinstance(function, type) or not callable(function):
            return function

        def compute(*arguments: Any, **keywords: Any) -> Any:
            plain = {key: bare(value) for key, value in keywords.items()}
            return kernel(self._prefix + name, lambda: function(*bare(arguments), **plain))

        return compute
