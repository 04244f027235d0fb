"""The order in which the warps of a grid visit units of rows, as in ``cuda/sparse/spmmv_walk.cuh``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..limits import ceil_div
from .csr_plan import Plan

__all__ = ["Walk", "WalkConfig"]

_LEAST_PATCHES = 8  # per block, so that the last ones do not leave the other blocks idle for long


class WalkConfig(Protocol):
    """The part of a configuration that determines a walk."""

    @property
    def warps(self) -> int:
        """Warps per block."""

    @property
    def planes(self) -> int:
        """Planes of a grid that the warps of a block process at a time."""

    @property
    def passes(self) -> int:
        """Neighbouring units that a warp processes before it moves on."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The distribution of units of rows over blocks and warps: see ``cuda/sparse/spmmv_walk.cuh``.

    Attributes
    ----------
    blocks : int
        Blocks per tile of columns.
    passes, line, lots, plane : int
        As in the loop nest there.
    """

    blocks: int
    passes: int
    line: int
    lots: int
    plane: int

    @classmethod
    def of(cls, n_units: int, rows: int, most: int, config: WalkConfig, plan: Plan) -> Walk:
        """Choose the walk over units of `rows` rows that suits a matrix, with at most `most` blocks."""
        lines = config.warps // config.planes
        line, plane = max(1, round(plan.line / rows)), round(plan.plane / rows)
        if n_units < 4 * line * config.warps:
            line = 1  # too few lines for all warps
        if config.planes == 1 or line == 1 or plane <= line or n_units < 4 * plane * config.planes:
            plane = line * lines
        lots = ceil_div(plane, line * lines)
        visits = ceil_div(n_units, plane * config.planes) * lots * line
        passes = max(1, min(config.passes, visits // (most * _LEAST_PATCHES)))
        return cls(min(most, ceil_div(visits, passes)), passes, line, lots, plane)

    def arguments(self) -> tuple[Any, ...]:
        """Compute the kernel's arguments."""
        line = np.int32(self.line), np.int64(_divisor(self.line))
        lots = np.int32(self.lots), np.int64(_divisor(self.lots))
        return np.int32(self.passes), *line, *lots, np.int32(self.plane)


def _divisor(d: int) -> int:
    """Encode a divisor for the kernel's `divide`."""
    shift = (d - 1).bit_length()
    return ceil_div(1 << 31 + shift, d) + (shift << 32)
