"""Launches of generated kernels, with everything but the operands prepared once."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from .problem import TsmmProblem, TsmttsmProblem, itemsize
from .tensor_map import MAP_BYTES, TensorMaps

NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
GRID_HEADER_BYTES = 128  # counters at the head of the workspace, as in cuda/common/reduce.cuh
FLAGGED_DOUBLES = 2048  # most numbers of a result whose partial sums have flags, as there
QUEUE_BYTES = 8  # counters at the head of a workspace with a tile queue: cuda/common/tile_queue.cuh


def partials_bytes(blocks: int, doubles: int) -> int:
    """Compute the workspace in bytes of a kernel that sums a result of `doubles` numbers over its blocks.

    All launches of a stream share one workspace. It is zero before the first launch, and every launch leaves
    the counters in its first `GRID_HEADER_BYTES` ready for the next one. The rest is scratch.
    """
    return GRID_HEADER_BYTES + blocks * doubles * (16 if doubles <= FLAGGED_DOUBLES else 8)


def run_rows(problem: TsmmProblem) -> int:
    """Choose the rows that a team of warps takes from the tile queue at a time.

    16 KB of the wider matrix: with more, tiles are less in order; with less, the queue limits. A narrow B is
    written in units of 8 KB if these take no more than 64 KB of A.
    """
    row_a, row_b = problem.M * itemsize(problem.dtype_a), problem.N * itemsize(problem.dtype)
    return max((16 << 10) // max(row_a, row_b), min((8 << 10) // row_b, (64 << 10) // row_a))


_FIELDS: dict[type, str] = {  # of a kernel's arguments by Python's and NumPy's types
    **{int: "q", np.int64: "q", np.uint64: "Q", float: "d", np.float64: "d"},
    **{np.int32: "i4x", np.uint32: "I4x", np.float32: "f4x"},
    TensorMaps: f"{8 * MAP_BYTES}s",
}


class LoadedKernel:
    """A loaded kernel: ``kernel(grid, block, arguments, shared_mem)`` queues it on CuPy's current stream.

    CuPy takes a quarter of a microsecond per argument. Numbers, arrays and None are therefore packed here
    into memory that the driver reads; launches with other arguments are CuPy's.
    """

    def __init__(self, function: Any) -> None:
        from cupy.cuda import driver, get_current_stream, runtime

        self._create_context = runtime.free
        self._function, self._current_stream = function, get_current_stream
        self._launch, self._cooperate = driver.launchKernel, driver.launchCooperativeKernel
        self._error = driver.CUDADriverError
        self._packers: dict[tuple[type, ...], _Packer | None] = {}

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        arguments: tuple[Any, ...],
        shared_mem: int = 0,
        *,
        is_cooperative: bool = False,
    ) -> None:
        """Queue the kernel; blocks of a cooperative one run at the same time, and may wait for each other."""
        kinds = tuple(map(type, arguments))
        try:
            packer = self._packers[kinds]
        except KeyError:
            packer = self._packers[kinds] = _packer(kinds)
        if packer is None:
            self._function(grid, block, arguments, shared_mem, enable_cooperative_groups=is_cooperative)
            return
        pack, sizes, free = packer
        try:
            memory = free.pop()
        except IndexError:
            memory = _argument_memory(sizes)
        values, _, pointers = memory
        pack(values, *arguments)
        stream = self._current_stream().ptr
        # CuPy launches a block where a grid has none, as that of a process without rows.
        x, y, z = (grid[0] or 1, 1, 1) if len(grid) == 1 else (*(extent or 1 for extent in grid), 1)[:3]
        threads = (*block, 1, 1)[:3]
        launch, more = (self._cooperate, ()) if is_cooperative else (self._launch, (0,))
        try:
            launch(self._function.ptr, x, y, z, *threads, shared_mem, stream, pointers, *more)
        except self._error as error:
            if error.status != NO_CONTEXT:
                raise
            self._create_context(0)  # by the first call of the runtime in this thread
            launch(self._function.ptr, x, y, z, *threads, shared_mem, stream, pointers, *more)
        free.append(memory)


_Packer: TypeAlias = tuple[Callable[..., None], tuple[int, ...], list[tuple[Any, Any, int]]]
"""Writes arguments into memory; bytes of each argument there; memory that no thread is using."""


@functools.cache  # its text takes a tenth of a millisecond to evaluate, and few kernels have one of their own
def _packer(kinds: tuple[type, ...]) -> _Packer | None:
    fields, values, sizes = "=", [], []
    for i, kind in enumerate(kinds):
        field, value = _FIELDS.get(kind, ""), f"a{i}"
        if kind is complex:
            field, value = "dd", f"a{i}.real, a{i}.imag"
        elif kind is type(None):
            field, value = "q", "0"
        elif hasattr(kind, "__cuda_array_interface__"):
            field, value = "q", f"a{i}.data.ptr"
        elif not field:
            return None
        fields += field
        values.append(value)
        sizes.append(struct.calcsize("=" + field))
    # One expression, since a loop over the arguments takes as long as CuPy.
    names = "".join(f", a{i}" for i in range(len(kinds)))
    text = f"lambda into{names}: write(into, 0, {', '.join(values)})"
    return eval(text, {"write": struct.Struct(fields).pack_into}), tuple(sizes), []


def _argument_memory(sizes: tuple[int, ...]) -> tuple[Any, Any, int]:
    """Allocate memory for arguments of some bytes each, pointers to them, and the address of the pointers."""
    values = (ctypes.c_int64 * (sum(sizes) // 8))()
    places = (ctypes.addressof(values) + offset for offset in accumulate((0, *sizes)))
    pointers = (ctypes.c_void_p * (len(sizes) + 1))(*places)
    return values, pointers, ctypes.addressof(pointers)


def pack_product(problem: TsmttsmProblem | TsmmProblem, unit: int) -> Callable[..., tuple[Any, ...]]:
    """Create the `DenseFamily.pack` of a product, with C contiguous and pitches in elements, times a unit."""
    extents = problem.K, problem.lda * unit, problem.ldb * unit
    is_plain = problem.alpha == "one" and problem.beta == "zero"
    scalars = (*extents, 1.0, 0.0, 0.0, 0.0)

    def pack(
        A: int, second: int, third: int, alpha: complex, beta: complex, *workspace: int
    ) -> tuple[Any, ...]:
        if is_plain:
            return A, second, third, *scalars, *workspace
        a, b = complex(alpha), complex(beta)
        return A, second, third, *extents, a.real, a.imag, b.real, b.imag, *workspace

    return pack
