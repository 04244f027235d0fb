"""What families of sparse products share: constants of sources, launches, how rows are dealt out to warps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..problem import SpmmvProblem, is_complex, real_bytes
from ..source import C_TYPES, SHORT_NAMES
from . import (
    csr_config,
    planes_config,
    sell_config,
)
from .csr_config import ceil_div
from .csr_plan import Plan

__all__ = ["AnyConfig", "Walk", "constants", "operands", "real_type", "starter", "types_name", "types_of"]

WalkingConfig: TypeAlias = csr_config.Config | sell_config.Config
AnyConfig: TypeAlias = WalkingConfig | planes_config.Config

_LEAST_PATCHES = 8  # of a block, so that the last ones do not leave the others idle for long
_SHIFT = {"none": 0, "scalar": 1, "column": 2}
_CHAIN = {"none": 0, "zero": 2, "one": 1, "general": 1}


def real_type(dtype: str) -> str:
    """Return the type of an element's parts in C."""
    return C_TYPES[real_bytes(dtype)]


def types_name(problem: SpmmvProblem) -> str:
    """Return the element types as they stand in kernels' names, as ``f64`` or ``f64_c128``."""
    return "_".join(dict.fromkeys((SHORT_NAMES[problem.dtype_matrix], SHORT_NAMES[problem.dtype_x])))


def types_of(problem: SpmmvProblem) -> dict[str, str]:
    """Return the types that ``cuda/sparse/spmmv.cuh`` names."""
    return {
        "SReal": real_type(problem.dtype_matrix),
        "XReal": real_type(problem.dtype_x),
        "YReal": real_type(problem.dtype),
        "Index": "int" if problem.index_bytes == 4 else "long long",
    }


def constants(
    problem: SpmmvProblem, config: AnyConfig, dots: int = 0, gram: int = 0
) -> dict[str, bool | int | float]:
    """Return the constants that ``cuda/sparse/spmmv.cuh`` names."""
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
        "X_ALIGNED": config.aligned_x,
        "Y_ALIGNED": config.aligned_y,
        "LANES": config.lanes,
        "VECTORS": config.vectors,
        "VECTOR": config.vector,
    }


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
) -> tuple[Any, ...]:
    """Return what ends every kernel's arguments: blocks with their pitches, factors, shifts a column.

    Device addresses, aligned as the problem says, and the factors in its classes. Shifts a column are
    contiguous and of Y's type.
    """
    factors = complex(alpha), complex(beta), complex(shift), complex(delta), complex(eta)
    return X_ptr, problem.ldx, Y_ptr, problem.ldy, Z_ptr, problem.ldz, *factors, shifts_ptr


def starter(
    kernel: Any,
    problem: SpmmvProblem,
    blocks: int,
    threads: int,
    matrix: tuple[Any, ...],
    shared_bytes: int = 0,
) -> Callable[..., None]:
    """Return what starts a kernel on CuPy's current stream.

    It takes what `operands` takes, without the problem; `matrix` are the arguments before these.
    """
    grid, block = (blocks, 1), (threads,)

    def launch(*addresses_and_factors: Any, **more: Any) -> None:
        arguments = *matrix, *operands(problem, *addresses_and_factors, **more)
        kernel(grid, block, arguments, shared_bytes)

    return launch


@dataclass(frozen=True, slots=True)
class Walk:
    """How units of rows are dealt out to blocks and warps: see ``cuda/sparse/spmmv_walk.cuh``.

    Attributes
    ----------
    blocks : int
        Blocks of a tile of columns.
    passes, line, lots, plane : int
        As in the loop nest there.
    """

    blocks: int
    passes: int
    line: int
    lots: int
    plane: int

    @classmethod
    def of(cls, n_units: int, rows: int, most: int, config: WalkingConfig, plan: Plan) -> Walk:
        """Return the walk over units of `rows` rows that suits a matrix, on at most so many blocks."""
        lines = config.warps // config.planes
        line, plane = max(1, round(plan.line / rows)), round(plan.plane / rows)
        if n_units < 4 * line * config.warps:
            line = 1  # too few lines to go round
        if config.planes == 1 or line == 1 or plane <= line or n_units < 4 * plane * config.planes:
            plane = line * lines
        lots = ceil_div(plane, line * lines)
        visits = ceil_div(n_units, plane * config.planes) * lots * line
        passes = max(1, min(config.passes, visits // (most * _LEAST_PATCHES)))
        return cls(min(most, ceil_div(visits, passes)), passes, line, lots, plane)

    def arguments(self) -> tuple[Any, ...]:
        """Return what the kernel takes."""
        line = np.int32(self.line), np.int64(_divisor(self.line))
        return (
            np.int32(self.passes),
            *line,
            np.int32(self.lots),
            np.int64(_divisor(self.lots)),
            np.int32(self.plane),
        )


def _divisor(d: int) -> int:
    """Return what the kernel's `divide` takes for a division by `d`."""
    shift = (d - 1).bit_length()
    return ceil_div(1 << 31 + shift, d) + (shift << 32)
