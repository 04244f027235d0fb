"""Common parts of all kernels of sparse products: constants and types of their sources, operands, entries.

Constants and operands are those of ``cuda/sparse/spmmv.cuh``. Of column dots and Gram matrices in the same
pass, a kernel leaves the sums of each block in the workspace; ``cuda/sparse/spmmv_totals.cu`` adds them up in
a fixed order.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import field
from types import MappingProxyType
from typing import Any

import numpy as np

from ...system.frozen import frozen
from ..limits import ceil_div
from ..problem import ALL_ROWS, DOTS, GRAMS, SpmmvProblem, is_complex, itemsize, promote
from ..source import Constant, Kernel, c_type, constants_of, kernel

_SHIFT = {"none": 0, "scalar": 1, "column": 2}
_CHAIN = {"none": 0, "zero": 2, "one": 1, "general": 1}
_THREADS, _LANES = 256, 4  # threads and lanes of the kernel of totals: 32 bytes of neighbouring partial sums
_DOTS = {"xx": 1, "xy": 2, "yy": 4}
_GRAM = {"xy": 1, "yy": 2}

# Held while kernels are queued that pass partial sums through a stream's workspace: those of another thread
# would overwrite them.
_workspace_lock = threading.Lock()


@frozen
class LaneConfig:
    """A configuration with lanes along the columns."""

    # Lanes that share the columns of a row, packs of columns per lane, and columns per pack.
    lanes: int
    vectors: int
    vector: int
    # Whether packs of X and Y start at multiples of their size.
    aligned_x: bool = field(default=True, kw_only=True)
    aligned_y: bool = field(default=True, kw_only=True)

    @property
    def tile(self) -> int:
        """Columns of a block of threads."""
        return self.lanes * self.vectors * self.vector


def types_of(problem: SpmmvProblem) -> dict[str, str]:
    """Map the type names of ``spmmv.cuh`` to C types."""
    return {
        "SReal": c_type(problem.dtype_matrix),
        "XReal": c_type(problem.dtype_x),
        "YReal": c_type(problem.dtype),
        "Index": "int" if problem.index_bytes == 4 else "long long",
    }


def constants(problem: SpmmvProblem, config: Any, dots: int = 0, gram: int = 0) -> dict[str, Constant]:
    """Compute the constants of ``spmmv.cuh``."""
    return {
        "WIDTH": problem.width,
        "S_COMPLEX": is_complex(problem.dtype_matrix),
        "X_COMPLEX": is_complex(problem.dtype_x),
        "ALPHA_ONE": problem.alpha == "one",
        "BETA_ZERO": problem.beta == "zero",
        "BETA_ONE": problem.beta == "one",
        "SHIFT": _SHIFT[problem.shift],
        "CHAIN": _CHAIN[problem.chain],
        "DOTS": dots,
        "GRAM": gram,
        "CODED": problem.coded,
        "X_ALIGNED": config.aligned_x,
        "Y_ALIGNED": config.aligned_y,
        **constants_of(config, "lanes", "vectors", "vector"),
    }


def widest_pack(problem: SpmmvProblem) -> int:
    """Choose the columns per pack: as many as the width and the alignment of X allow."""
    size = itemsize(problem.dtype_x)
    return max(v for v in (1, 2, 4) if v == 1 or (problem.width % v == 0 and v * size <= problem.align_x))


def alignment(problem: SpmmvProblem, vector: int) -> dict[str, bool]:
    """Check whether packs of `vector` columns of X, and of Y and Z, start at multiples of their size."""
    size_x, size_y = pack_bytes(problem, vector)
    aligned_y = min(problem.align_y, problem.align_z) % size_y == 0
    return {"aligned_x": problem.align_x % size_x == 0, "aligned_y": aligned_y}


def pack_bytes(problem: SpmmvProblem, vector: int) -> tuple[int, int]:
    """Compute the bytes of a pack of X, and of the pieces in which packs of Y are loaded and stored."""
    return vector * itemsize(problem.dtype_x), min(16, vector * itemsize(problem.dtype))


def entry_bytes(problem: SpmmvProblem) -> int:
    """Compute the bytes of an entry of the matrix."""
    return problem.index_bytes + (0 if problem.coded else itemsize(problem.dtype_matrix))


def row_entries(problem: SpmmvProblem) -> float:
    """Compute the average number of entries per row."""
    return problem.nnz / max(1, problem.n_rows)


def unroll_of(entries: float, most: int) -> int:
    """Choose a number of entries in flight, at most `most`, that divides an average row well."""
    entries = max(1.0, entries)
    trips = math.ceil(entries / most)
    return max(1, min(most, math.ceil(entries / trips)))


def operands(
    problem: SpmmvProblem,
    X_ptr: int,
    Y_ptr: int,
    alpha: complex = 1,
    beta: complex = 0,
    shift: complex = 0,
    shifts_ptr: int = 0,
    Z_ptr: int = 0,
    delta: complex = 0,
    eta: complex = 0,
    rows: tuple[int, int] = ALL_ROWS,
) -> tuple[Any, ...]:
    """Assemble the last arguments of every kernel: blocks with their pitches, factors, shifts per column.

    Device addresses must be aligned as the problem says, and the factors be in its classes. Shifts per
    column are contiguous and of Y's type. Z and sums take the `rows` from one up to another.
    """
    factors = complex(alpha), complex(beta), complex(shift), complex(delta), complex(eta)
    return X_ptr, problem.ldx, Y_ptr, problem.ldy, Z_ptr, problem.ldz, *factors, shifts_ptr, *rows


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
