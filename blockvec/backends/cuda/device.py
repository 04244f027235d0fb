"""One GPU: its number and properties, and the kernels loaded on it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...kernels.build import build
from ...kernels.device import DeviceInfo
from ...kernels.elementwise import Kernel
from ...kernels.problem import TYPES, is_complex, itemsize
from ..base import DeviceArray as Array

MAX_INT = 2**31 - 1  # sizes and leading dimensions of cuBLAS calls are 32-bit integers
TYPE_NAMES = {kind.char: name for name, kind in TYPES.items()}  # by NumPy's character


@dataclass(frozen=True, eq=False)
class Gpu:
    """A GPU that kernels are launched on; one object per device, which also keys caches of launch plans."""

    id: int  # CUDA's number of the device
    info: DeviceInfo  # its fixed properties

    def launch(self, kernel: Kernel, grid: tuple[int, ...], block: int, *arguments: Any) -> None:
        """Queue a kernel on CuPy's current stream; the device must be the current one."""
        self.launcher(kernel, grid, block)(*arguments)

    def launcher(self, kernel: Kernel, grid: tuple[int, ...], block: int) -> Callable[..., None]:
        """Load a kernel on this device, the current one, and return a function that queues it."""
        loaded = self.load(kernel)

        def launch(*arguments: Any) -> None:
            loaded(grid, (block,), arguments)

        return launch

    def load(self, kernel: Kernel) -> Any:
        """Compile a kernel and load it on this device, the current one, or find it loaded."""
        return _load(kernel, self.id, self.info.architecture)

    def on_device(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function to run with this device as CuPy's current one."""
        import cupy

        current_device = cupy.cuda.runtime.getDevice

        def switched(*arguments: Any) -> Any:
            if current_device() == self.id:
                return run(*arguments)
            with cupy.cuda.Device(self.id):
                return run(*arguments)

        return switched


@functools.cache
def _load(kernel: Kernel, _device_id: int, architecture: str) -> Any:
    # Cached by its description: hashing a source at every launch would take longer than the launch.
    return build(kernel.source(), kernel.name, architecture)


def type_name(array: Array) -> str:
    """Name the element type of an array."""
    return TYPE_NAMES[array.dtype.char]


def scalar_pointers(dtype: str, *values: complex) -> tuple[Any, list[int]]:
    """Create host memory that holds values as `dtype`, and their addresses; it must outlive the call."""
    memory = np.array(values if is_complex(dtype) else [value.real for value in values], dtype)
    base = memory.ctypes.data
    return memory, [base + i * itemsize(dtype) for i in range(len(values))]
