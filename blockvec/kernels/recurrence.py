"""Steps of a recurrence of two blocks that take turns, in one launch on a GPU."""

from __future__ import annotations

from ..system.frozen import frozen
from .launch import GRID_HEADER_BYTES
from .problem import is_complex
from .source import c_type, render, short_names

WIDEST = 8  # columns of a block, whose numbers of a row a thread holds
THREADS = 512  # of a block, of which one runs on a multiprocessor


@frozen
class RecurrenceKernel:
    """Steps with a matrix in CSR form on blocks of b columns; see cuda/sparse/recurrence.cu.

    Of a recurrence with given coefficients, or with those of Lanczos for each column.
    """

    dtype: str
    b: int
    lanczos: bool

    @property
    def refusal(self) -> str:
        """Explain why there is no such kernel; empty if there is."""
        if not 0 < self.b <= WIDEST or self.b & (self.b - 1):
            return f"blocks have 1, 2, 4 or {WIDEST} columns, not {self.b}"
        reals = self.b * (1 + is_complex(self.dtype))
        return f"sums of {reals} numbers do not fit in registers" if self.lanczos and reals > WIDEST else ""

    def work_bytes(self, blocks: int) -> int:
        """Compute the bytes of the workspace of a grid."""
        return GRID_HEADER_BYTES + (2 * 8 * self.b * blocks if self.lanczos else 0)

    @property
    def name(self) -> str:
        kind = "lanczos_recurrence" if self.lanczos else "recurrence"
        return f"{kind}_{short_names(self.dtype)}_w{self.b}"

    def source(self) -> str:
        constants = {
            "COMPLEX": is_complex(self.dtype),
            "B": self.b,
            "LANCZOS": self.lanczos,
            "THREADS": THREADS,
        }
        return render(self.name, "sparse/recurrence.cu", constants, {"Real": c_type(self.dtype)})
