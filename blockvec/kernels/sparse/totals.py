"""Column dots and Gram matrices in the pass of a sparse product: partial sums of blocks, and their totals.

A kernel leaves the sums of each block in the workspace; ``cuda/sparse/spmmv_totals.cu`` adds them up in a
fixed order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import numpy as np

from ..limits import ceil_div
from ..problem import DOTS, GRAMS, SpmmvProblem, is_complex, itemsize, promote
from ..source import Kernel, c_type, kernel
from .interface import operands

_THREADS, _LANES = 256, 4  # of the kernel: 32 bytes of neighbouring partial sums
_DOTS = {"xx": 1, "xy": 2, "yy": 4}
_GRAM = {"xy": 1, "yy": 2}

# Held while kernels are queued that pass partial sums through a stream's workspace: those of another thread
# would overwrite them.
_workspace_lock = threading.Lock()


def codes(problem: SpmmvProblem) -> tuple[int, int]:
    """Compute the constants DOTS and GRAM of a source."""
    return sum(_DOTS[kind] for kind in problem.dots), sum(_GRAM[kind] for kind in problem.gram)


def n_sums(problem: SpmmvProblem) -> int:
    """Count the numbers in column dots and Gram matrices."""
    return problem.width * (len(problem.dots) + len(problem.gram) * problem.width)


def partial_bytes(problem: SpmmvProblem) -> int:
    """Compute the workspace of a block: its sums, in double precision."""
    return n_sums(problem) * itemsize(promote(problem.dtype, "float64"))


def totals_kernel(problem: SpmmvProblem, name: str) -> dict[str, Kernel]:
    """Describe the kernel that adds up the blocks, where there are sums."""
    dots, gram = codes(problem)
    if not (dots or gram):
        return {}
    values = {
        "WIDTH": problem.width,
        "DOTS": dots,
        "GRAM": gram,
        "COMPLEX": is_complex(problem.dtype),
        "THREADS": _THREADS,
        "LANES": _LANES,
    }
    types = {"XReal": c_type(problem.dtype_x), "YReal": c_type(problem.dtype)}
    return {"totals": kernel("sparse/spmmv_totals", values, types, f"{name}_totals")}


def bind_with_sums(
    name: str,
    problem: SpmmvProblem,
    needed: int,
    blocks: int,
    totals: Any,
    queue: Callable[[int, tuple[Any, ...]], None],
) -> Callable[..., None]:
    """Make the launch of a product, as of `SparseFamily.bind`, that leaves sums of blocks in a workspace.

    ``queue(workspace_ptr, operands)`` queues the kernels of the product, `blocks` of whose thread blocks
    leave sums in the `needed` bytes of the workspace, which belong to the stream; the kernel `totals`, if
    any, adds them up. The launch takes the address of the workspace, without which it raises a `ValueError`,
    and `dots` and `gram`, which map the names of the problem's sums to addresses.
    """

    def launch(
        *addresses_and_factors: Any,
        workspace_ptr: int = 0,
        dots: Mapping[str, int] = MappingProxyType({}),
        gram: Mapping[str, int] = MappingProxyType({}),
        **more: Any,
    ) -> None:
        if needed and not workspace_ptr:
            raise ValueError(f"{name}: {needed} bytes of workspace are needed, got none")
        given = operands(problem, *addresses_and_factors, **more)
        with _workspace_lock if needed else nullcontext():
            queue(workspace_ptr, given)
            if totals is not None:
                results = *(dots.get(kind, 0) for kind in DOTS), *(gram.get(kind, 0) for kind in GRAMS)
                grid = ceil_div(n_sums(problem), _LANES), 1
                totals(grid, (_THREADS,), (workspace_ptr, np.int32(blocks), *results))

    return launch
