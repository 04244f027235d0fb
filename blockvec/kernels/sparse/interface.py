"""Common parts of all kernels of sparse products: constants and types of their sources, operands, entries.

Constants and operands are those of ``cuda/sparse/spmmv.cuh``.
"""

from __future__ import annotations

import math
from typing import Any

from ..problem import ALL_ROWS, SpmmvProblem, is_complex, itemsize
from ..source import Constant, c_type, constants_of

_SHIFT = {"none": 0, "scalar": 1, "column": 2}
_CHAIN = {"none": 0, "zero": 2, "one": 1, "general": 1}


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
