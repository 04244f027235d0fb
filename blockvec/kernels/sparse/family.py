"""The contract of families for sparse products."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ..device import DeviceInfo
from ..family import C, Family
from ..limits import architecture_of
from ..problem import SpmmvProblem, itemsize
from ..source import Kernel, short_names
from .csr_plan import Plan

_MAX_PITCH = 2**31  # bytes


class SparseFamily(Family[SpmmvProblem, C]):
    """A family of sparse products: kernels for compressed rows, or for another form of the matrix."""

    problem_type = SpmmvProblem
    # Whether it takes stored matrices; otherwise chains, as `chain.ChainPlan` in place of a `Plan`.
    stored: ClassVar[bool] = True
    # Whether it takes another form of the matrix than compressed rows, as `sell.SpmmvSell` does.
    converts: ClassVar[bool] = False

    def refuse_problem(self, problem: SpmmvProblem, device: DeviceInfo) -> str | None:
        if device.kind != "cuda" or architecture_of(device) < 80:
            return f"{device.name} has no asynchronous copies to shared memory"
        if min(problem.n_rows, problem.width) < 1:
            return "has no rows or columns to multiply"
        pitch = max(problem.ldx * itemsize(problem.dtype_x), problem.ldy * itemsize(problem.dtype))
        if pitch >= _MAX_PITCH:
            return f"rows are {pitch} bytes apart, at most {_MAX_PITCH - 1} are possible"
        return None

    def kernel_name(self, problem: SpmmvProblem) -> str:
        """Name the kernel of most rows, as ``spmmv_csr_f64_w16``."""
        return f"{self.name}_{short_names(problem.dtype_matrix, problem.dtype_x)}_w{problem.width}"

    @abstractmethod
    def kernels(
        self, problem: SpmmvProblem, config: C, device: DeviceInfo, plan: Any = None
    ) -> dict[str, Kernel]:
        """Describe the kernels that a product with a matrix launches, ``"rows"`` first.

        Without a matrix, all that products may need, to compile them before the first one. They depend only
        on the width, the types, the classes of the factors, and what is fused.
        """

    def refuse_sums(self, problem: SpmmvProblem, config: C) -> str | None:
        """Explain why a configuration cannot make a problem's sums in the same pass; None if it can."""
        return None

    def conversion(self, problem: SpmmvProblem) -> str:
        """Describe the form of the matrix that the kernels take, when it is made, and its cost."""
        return "the matrix is used as it is"

    def workspace_bytes(self, problem: SpmmvProblem, config: C, device: DeviceInfo, plan: Plan) -> int:
        """Compute the workspace of a product in bytes, aligned to 16 bytes; 0 if it takes none."""
        return 0

    @abstractmethod
    def bind(
        self, kernels: Mapping[str, Any], problem: SpmmvProblem, config: C, device: DeviceInfo, matrix: Any
    ) -> Callable[..., None]:
        """Bind loaded kernels, those for a matrix, to it, or to another form of it.

        n_rows, nnz and leading dimensions of the problem may differ from those that the kernels were made
        for. Returns ``launch(X_ptr, Y_ptr, alpha, beta, shift=0, shifts_ptr=0, Z_ptr=0, delta=0, eta=0)``,
        which queues the product on CuPy's current stream: see `interface.operands`.
        """
