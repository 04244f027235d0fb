"""The inverse of a small Cholesky factor on a GPU: one block of threads, its matrix in shared memory.

As `elementwise`: a pure description, which the backend compiles and launches.
"""

from __future__ import annotations

from dataclasses import dataclass

from .device import DeviceInfo
from .problem import is_complex, promote
from .source import SHORT_NAMES, render

__all__ = ["InverseFactorKernel"]


@dataclass(frozen=True, slots=True)
class InverseFactorKernel:
    """T = R^-1 with G = R^H R; see cuda/elementwise/inverse_factor.cu.

    Attributes
    ----------
    dtype : str
        Element type of G and T.
    """

    dtype: str

    threads = 512

    @property
    def dtype_report(self) -> str:
        """Element type of what is reported to the host: double precision."""
        return promote(self.dtype, "float64")

    def shared_bytes(self, width: int) -> int:
        """Return the shared memory for a matrix of so many columns."""
        return (16 if is_complex(self.dtype) else 8) * width**2 + 16 * width

    def refusal(self, width: int, device: DeviceInfo) -> str:
        """Why a matrix cannot be worked on; empty where it can."""
        fits = self.shared_bytes(width) <= device.shared_bytes_per_block
        return "" if fits else f"{width} columns do not fit in shared memory"

    @property
    def name(self) -> str:
        """Name of the function."""
        return f"inverse_factor_{SHORT_NAMES[self.dtype]}"

    def source(self) -> str:
        """Return CUDA C++."""
        real = "float" if self.dtype in ("float32", "complex64") else "double"
        constants = {"COMPLEX": is_complex(self.dtype), "THREADS": self.threads}
        return render(self.name, "elementwise/inverse_factor.cu", constants, {"Real": real})
