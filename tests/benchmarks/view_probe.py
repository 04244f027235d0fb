"""A kernel that moves the elements of a product of views one by one, beside which products are measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from blockvec.kernels.source import constants_of, render

__all__ = ["ViewProbe"]


@dataclass(frozen=True)
class ViewProbe:
    """Moves elements of `size` bytes, `unroll` rows in flight; A of width M is read."""

    size: int
    M: int
    N: int
    reads_b: bool
    writes_b: bool
    unroll: int
    prefetch_ends: bool = False  # whether sectors that rows of B fill in part are requested before
    threads: int = 512

    @property
    def name(self) -> str:
        """Name of the function."""
        return f"view_probe_{self.size}_m{self.M}_n{self.N}"

    def source(self) -> str:
        """Generate the CUDA source."""
        head = render(self.name, "common/row_ends.cuh", constants_of(self))
        return head + Path(__file__).with_name("view_probe.cu").read_text(encoding="utf-8")
