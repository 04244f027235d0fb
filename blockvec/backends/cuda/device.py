"""One GPU: its number and properties, the kernels loaded on it, and their scratch memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...kernels.build import build
from ...kernels.device import DeviceInfo
from ...kernels.problem import TYPES, is_complex, itemsize
from ...kernels.source import Kernel
from ..base import DeviceArray as Array

MAX_INT = 2**31 - 1  # sizes and leading dimensions of cuBLAS calls are 32-bit integers
TYPE_NAMES = {kind.char: name for name, kind in TYPES.items()}  # by NumPy's character


@dataclass(frozen=True, eq=False)
class Gpu:
    """A GPU that kernels are launched on; one object per device, which also keys caches of launch plans."""

    id: int  # CUDA's number of the device
    info: DeviceInfo  # its fixed properties

    def launch(self, kernel: Kernel, grid: tuple[int, ...], *arguments: Any) -> None:
        """Queue a kernel on CuPy's current stream; the device must be the current one."""
        self.load(kernel)(grid, (kernel.threads,), arguments, kernel.shared_bytes)

    def launcher(
        self, kernel: Kernel, grid: tuple[int, ...], threads: int = 0, **how: bool
    ) -> Callable[..., None]:
        """Load a kernel on this device, the current one, and return a function that queues it."""
        loaded, block, shared = self.load(kernel), (threads or kernel.threads,), kernel.shared_bytes

        def launch(*arguments: Any) -> None:
            loaded(grid, block, arguments, shared, **how)

        return launch

    def load(self, kernel: Kernel) -> Any:
        """Compile a kernel and load it on this device, the current one, or find it loaded."""
        return build(kernel, self.info.architecture)

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


def type_name(array: Array) -> str:
    """Name the element type of an array."""
    return TYPE_NAMES[array.dtype.char]


def scalar_pointers(dtype: str, *values: complex) -> tuple[Any, list[int]]:
    """Create host memory that holds values as `dtype`, and their addresses; it must outlive the call."""
    memory = np.array(values if is_complex(dtype) else [value.real for value in values], dtype)
    base = memory.ctypes.data
    return memory, [base + i * itemsize(dtype) for i in range(len(values))]


# Scratch memory of kernels: two pieces per stream, so that launches on several streams do not share it.

MIN_WORKSPACE_BYTES = 16 << 20  # partial sums of 132 blocks of a 64 x 64 complex product are half of it

PER_THREAD = 2  # the number under which every thread of a process may have a default stream of its own

_workspaces: dict[tuple[int, tuple[int, int], bool], list[Any]] = {}


def workspace(gpu: Gpu, bytes_needed: int, *, is_passed_on: bool = False) -> Array:
    """Return the workspace of the current stream; the counters at its start are zero between launches.

    What one kernel leaves there for the next one `is_passed_on`, in memory of its own: a kernel that another
    thread queues between the two must not write there. Outgrown ones are kept, since a captured graph may
    still refer to them.
    """
    import cupy

    stream = cupy.cuda.get_current_stream()
    generations = _workspaces.setdefault((gpu.id, _key(stream.ptr), is_passed_on), [])
    if not generations or generations[-1].nbytes < bytes_needed:
        doubles = max(bytes_needed, MIN_WORKSPACE_BYTES) // 8 + 1
        # Not from a pool of the user's, which may go while this stays.
        with cupy.cuda.using_allocator(cupy.get_default_memory_pool().malloc):
            generations.append(_zeros_now(doubles) if stream.is_capturing() else cupy.zeros(doubles))
    return generations[-1]


def workspace_address(gpu: Gpu, bytes_needed: int) -> Callable[[], int]:
    """Make the function that looks up the address of the current stream's workspace.

    It remembers addresses: every launch asks, and a look at `workspace` takes 6 per cent of a short call.
    """
    import cupy

    current_stream = cupy.cuda.get_current_stream
    known: dict[tuple[int, int], int] = {}

    def address() -> int:
        key = _key(current_stream().ptr)
        found = known.get(key)
        if found is None:
            found = known[key] = workspace(gpu, bytes_needed).data.ptr
        return found

    return address


def _key(stream: int) -> tuple[int, int]:
    """Compute the key of a stream: its number, and the thread for a per-thread default stream."""
    return stream, threading.get_ident() if stream == PER_THREAD else 0


def _zeros_now(doubles: int) -> Array:
    """Return zeros that are written before a capture ends: products outside its graph may read them."""
    import cupy

    with cupy.cuda.Stream(non_blocking=True) as aside:
        zeros = cupy.zeros(doubles)
        aside.synchronize()
    return zeros
