"""Launches of generated product kernels: what does not change from one to the next is worked out once."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from ..errors import LayoutError
from .limits import ceil_div
from .problem import TsmmProblem, TsmttsmProblem, itemsize

__all__ = [
    "FLAGGED_DOUBLES",
    "GRID_HEADER_BYTES",
    "QUEUE_BYTES",
    "Kernel",
    "bind_product",
    "partials_bytes",
    "run_rows",
]

NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
GRID_HEADER_BYTES = 128  # counters at the head of the workspace, as in cuda/common/reduce.cuh
FLAGGED_DOUBLES = 2048  # of a result whose partial sums have flags, as there
_MAX_SUMS = 16  # threads that share the sum of one element over the blocks, as there
QUEUE_BYTES = (
    8  # counters at the head of the workspace of a kernel that deals out tiles: cuda/common/queue.cuh
)


def partials_bytes(blocks: int, doubles: int) -> int:
    """Return the workspace of a kernel that sums a result of so many doubles over its blocks.

    One workspace serves all launches of one stream. It is zero before the first one, and every launch leaves
    the counters in its first `GRID_HEADER_BYTES` as the next one needs them. The rest is scratch.
    """
    return GRID_HEADER_BYTES + blocks * doubles * (16 if doubles <= FLAGGED_DOUBLES else 8)


def partials_chain(blocks: int) -> int:
    """Count the additions per element that sum partial results over blocks in ``cuda/common/reduce.cuh``."""
    threads = min(_MAX_SUMS, blocks)
    return 0 if blocks == 1 else ceil_div(blocks, threads) + threads


def run_rows(problem: TsmmProblem) -> int:
    """Return about how many rows a team of warps takes at a time where tiles are dealt out.

    16 KB of the wider matrix: more costs order, less asks the queue too often. A narrow B is written by 8 KB
    where 64 KB of A make them.
    """
    row_a, row_b = problem.M * itemsize(problem.dtype_a), problem.N * itemsize(problem.dtype)
    return max((16 << 10) // max(row_a, row_b), min((8 << 10) // row_b, (64 << 10) // row_a))


class Kernel:
    """A loaded kernel: ``kernel(grid, block, arguments, shared_mem)`` queues it on CuPy's current stream.

    CuPy takes a quarter of a microsecond to look at each argument. Where all are Python's integers and
    floats, of 8 bytes each, and the grid has one dimension, they are packed into memory that the driver
    reads; else CuPy launches.

    Parameters
    ----------
    function : cupy.cuda.function.Function
        The kernel on CuPy's current device.
    """

    __slots__ = ("_current_stream", "_error", "_free", "_function", "_launch", "_packers")

    def __init__(self, function: Any) -> None:
        from cupy.cuda import driver, get_current_stream

        self._function, self._launch, self._current_stream = function, driver.launchKernel, get_current_stream
        self._error = driver.CUDADriverError
        self._packers: dict[tuple[type, ...], Callable[..., None] | None] = {}
        self._free: list[tuple[Any, Any, int]] = []  # memory for arguments that no thread is using

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        """Queue the kernel."""
        kinds = tuple(map(type, arguments))
        try:
            pack = self._packers[kinds]
        except KeyError:
            pack = self._packers[kinds] = _packer(kinds)
        if pack is None or len(grid) > 1 or len(block) > 1:
            self._function(grid, block, arguments, shared_mem)
            return
        try:
            memory = self._free.pop()
        except IndexError:
            memory = _argument_memory(len(arguments))
        values, _, pointers = memory
        pack(values, 0, *arguments)
        stream = self._current_stream().ptr
        try:
            self._launch(self._function.ptr, grid[0], 1, 1, block[0], 1, 1, shared_mem, stream, pointers, 0)
        except self._error as error:
            if error.status != NO_CONTEXT:
                raise
            # This is the first that its thread does with CUDA: CuPy's own launch gives it a context.
            self._function(grid, block, arguments, shared_mem)
        self._free.append(memory)


def _packer(kinds: tuple[type, ...]) -> Callable[..., None] | None:
    if not all(kind in (int, float) for kind in kinds):
        return None
    return struct.Struct("".join("q" if kind is int else "d" for kind in kinds)).pack_into


def _argument_memory(count: int) -> tuple[Any, Any, int]:
    """Return memory for arguments of 8 bytes, pointers to each, and the address of these."""
    values = (ctypes.c_int64 * count)()
    pointers = (ctypes.c_void_p * count)(*(ctypes.addressof(values) + 8 * i for i in range(count)))
    return values, pointers, ctypes.addressof(pointers)


def bind_product(
    function: Any,
    problem: TsmttsmProblem | TsmmProblem,
    blocks: int,
    threads: int,
    shared_bytes: int,
    pitches: tuple[int, int] | None = None,
) -> Callable[..., None]:
    """Return what starts the kernel of a product on CuPy's current stream.

    Parameters
    ----------
    function : Kernel
        What `compile.function` made of the family's source.
    problem : TsmttsmProblem or TsmmProblem
        What is launched; K and pitches may differ from what `function` was made for.
    blocks, threads, shared_bytes : int
        The grid, a block, and its dynamic shared memory.
    pitches : (int, int), optional
        Of A and B as the kernel takes them; by default in elements.

    Returns
    -------
    callable
        ``launch(A, B, C, alpha, beta, workspace)`` for TSMTTSM and ``launch(A, C, B, alpha, beta,
        workspace)`` for TSMM, with device addresses and the factors in the problem's classes. C is
        contiguous; the workspace has the family's `workspace_bytes`, belongs to the stream, and is left out
        where they are 0. Raises `LayoutError` for an address that is less aligned than the problem says.
    """
    grid, block = (blocks,), (threads,)
    extents = problem.K, *(pitches or (problem.lda, problem.ldb))
    combines = isinstance(problem, TsmmProblem)
    align_a, align_b = (problem.align_a, problem.align_b) if problem.K > 0 else (1, 1)
    plain = problem.alpha == "one" and problem.beta == "zero"
    scalars = (*extents, 1.0, 0.0, 0.0, 0.0)

    def launch(A: int, second: int, third: int, alpha: complex, beta: complex, *workspace: int) -> None:
        if problem.K == 0 and combines:
            return
        B = third if combines else second
        if A % align_a or B % align_b:
            _refuse(problem, A, B)
        if plain:
            function(grid, block, (A, second, third, *scalars, *workspace), shared_bytes)
            return
        a, b = complex(alpha), complex(beta)
        factors = a.real, a.imag, b.real, b.imag
        function(grid, block, (A, second, third, *extents, *factors, *workspace), shared_bytes)

    return launch


def _refuse(problem: TsmttsmProblem | TsmmProblem, A: int, B: int) -> None:
    for name, address, align in (("A", A, problem.align_a), ("B", B, problem.align_b)):
        if address % align:
            raise LayoutError(
                f"{problem.operation}: {name} lies at address {address:#x} but was described as aligned to "
                f"{align} bytes; describe the array that is passed."
            )
