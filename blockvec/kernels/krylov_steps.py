"""Several steps of block Lanczos in one launch on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from .problem import is_complex
from .source import SHORT_NAMES, render

COUNTER_BYTES = 128  # at the head of the workspace; zero before a launch
MOST_NUMBERS = 32  # real registers per lane for the coefficients of its columns


@dataclass(frozen=True, slots=True)
class KrylovStepsKernel:
    """Steps of one block size on a basis of up to ``32 tiles`` columns; see cuda/sparse/krylov_steps.cu."""

    dtype: str
    b: int
    tiles: int
    wide: bool  # whether its indices have 64 bits

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 512 if self.numbers <= 2 else 256

    @property
    def columns(self) -> int:
        """Columns of the basis that there is room for."""
        return 32 * self.tiles

    @property
    def numbers(self) -> int:
        """Real numbers per lane that are the coefficients of its columns."""
        return self.b * self.tiles * (2 if is_complex(self.dtype) else 1)

    @property
    def report_rows(self) -> int:
        """Rows of the report of a step."""
        return 2 * self.columns + 3 * self.b + 1

    def work_bytes(self, blocks: int) -> int:
        """Compute the bytes of the workspace."""
        size = 16 if is_complex(self.dtype) else 8
        return COUNTER_BYTES + 3 * self.columns * self.b * blocks * size

    def refusal(self) -> str:
        """Explain why there is no such kernel; empty if there is."""
        return "" if self.numbers <= MOST_NUMBERS else "the coefficients of a step do not fit in registers"

    @property
    def name(self) -> str:
        """Name of the function in the source."""
        size = f"w{self.b}_t{self.tiles}" + ("_i64" if self.wide else "")
        return f"krylov_steps_{SHORT_NAMES[self.dtype]}_{size}"

    def source(self) -> str:
        """Generate the CUDA source."""
        constants = {
            "COMPLEX": is_complex(self.dtype),
            "B": self.b,
            "TILES": self.tiles,
            "ROWS": 4 if 2 < self.numbers <= 8 else 2 if self.numbers <= 24 else 1,
            "THREADS": self.threads,
        }
        return render(
            self.name, "sparse/krylov_steps.cu", constants, {"Index": "long long" if self.wide else "int"}
        )
