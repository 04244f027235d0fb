"""Launches of generated product kernels: what does not change from one to the next is worked out once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import LayoutError
from .problem import TsmmProblem, TsmttsmProblem

__all__ = ["GRID_HEADER_BYTES", "bind_product", "partials_bytes"]

GRID_HEADER_BYTES = 128  # counters at the head of the workspace, as in cuda/reduce.cuh
_FLAGGED_DOUBLES = 2048  # of a result whose partial sums have flags, as there


def partials_bytes(blocks: int, doubles: int) -> int:
    """Return the workspace of a kernel that sums a result of so many doubles over its blocks.

    One workspace serves all launches of one stream. It is zero before the first one, and every launch leaves
    the counters in its first `GRID_HEADER_BYTES` as the next one needs them. The rest is scratch.
    """
    return GRID_HEADER_BYTES + blocks * doubles * (16 if doubles <= _FLAGGED_DOUBLES else 8)


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
    function : cupy.cuda.function.Function
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
