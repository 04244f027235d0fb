"""The contract of families for sparse products."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, ClassVar

from ..device import DeviceInfo
from ..family import C, Family
from ..problem import SpmmvProblem
from .csr_plan import Plan


class SparseFamily(Family[SpmmvProblem, C]):
    """A family of sparse products: kernels for compressed rows, or for another form of the matrix.

    Attributes
    ----------
    converts_after : int or None
        Products before the matrix is converted; None for a family that takes compressed rows.
    """

    converts_after: ClassVar[int | None] = None

    def refuse_sums(self, problem: SpmmvProblem, config: C) -> str | None:
        """Explain why a configuration cannot make a problem's sums in the same pass; None if it can."""
        return None

    @abstractmethod
    def conversion(self, problem: SpmmvProblem, config: C) -> str:
        """Describe what the matrix is converted to, when, and what that costs."""

    def form_key(self, problem: SpmmvProblem, config: C, device: DeviceInfo, plan: Plan) -> Hashable:
        """Compute the key of the matrix's form that a configuration takes."""
        return None

    def convert(self, problem: SpmmvProblem, config: C, device: DeviceInfo, plan: Plan) -> Any | None:
        """Convert a matrix on CuPy's current stream; None if it has no such form, or memory is short.

        Compiles the kernels that convert; waits for the device.
        """
        return plan

    def parts(self, problem: SpmmvProblem, config: C, plan: Plan) -> tuple[str, ...]:
        """Name the kernels that a product with a matrix launches."""
        return ("rows",)

    @abstractmethod
    def source(self, problem: SpmmvProblem, config: C, device: DeviceInfo, part: str = "rows") -> str:
        """Generate the CUDA source of one of the `parts`."""

    @abstractmethod
    def kernel_name(self, problem: SpmmvProblem, part: str = "rows") -> str:
        """Name the kernel of one of the `parts`, as ``spmmv_csr_f64_w16``."""

    @abstractmethod
    def sources(self, problem: SpmmvProblem, config: C, device: DeviceInfo) -> list[str]:
        """Generate all sources that a product may need, to compile them before its first use."""

    def workspace_bytes(self, problem: SpmmvProblem, config: C, device: DeviceInfo, plan: Plan) -> int:
        """Compute the workspace of a product in bytes, 0 if it takes none."""
        return 0

    @abstractmethod
    def bind(
        self, kernels: Any, problem: SpmmvProblem, config: C, device: DeviceInfo, plan: Plan, form: Any
    ) -> Callable[..., None]:
        """Bind loaded kernels to a matrix; the result takes `spmmv.operands` without the problem."""
