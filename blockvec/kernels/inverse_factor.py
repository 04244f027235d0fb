"""The inverse of a small Cholesky factor on a GPU, in the shared memory of one block of threads."""

from __future__ import annotations

from ..system.frozen import frozen
from .device import DeviceInfo
from .problem import is_complex, promote
from .source import c_type, render, short_names


@frozen
class InverseFactorKernel:
    """T = R^-1 with G = R^H R, of one element type; see cuda/elementwise/inverse_factor.cu."""

    dtype: str

    threads = 512

    @property
    def dtype_report(self) -> str:
        """Element type of the report to the host, in double precision."""
        return promote(self.dtype, "float64")

    def shared_bytes(self, width: int) -> int:
        """Compute the shared memory for a matrix of `width` columns."""
        return (16 if is_complex(self.dtype) else 8) * width**2 + 16 * width

    def refusal(self, width: int, device: DeviceInfo) -> str:
        """Explain why a matrix of `width` columns is too large; empty if it fits."""
        fits = self.shared_bytes(width) <= device.shared_bytes_per_block
        return "" if fits else f"{width} columns do not fit in shared memory"

    @property
    def name(self) -> str:
        return f"inverse_factor_{short_names(self.dtype)}"

    def source(self) -> str:
        constants = {"COMPLEX": is_complex(self.dtype), "THREADS": self.threads}
        types = {"Real": c_type(self.dtype)}
        return render(self.name, "elementwise/inverse_factor.cu", constants, types)
