"""The base of families of sparse products that convert the matrix."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ..device import DeviceInfo
from ..family import C, Model
from ..problem import SpmmvProblem
from ..roofline import traffic
from .csr import LEAST_LONG_ROW, SpmmvCsr
from .csr_plan import Plan
from .family import SparseFamily
from .interface import bind_kernel


class ConvertedFamily(SparseFamily[C]):
    """A family that takes another form of the matrix, made after some products.

    A row is summed in the order of its entries: results are those of `spmmv_csr` with the configuration of
    `before_conversion`, to the last bit.

    Parameters
    ----------
    model : Model
        Its search space and times.
    csr : SpmmvCsr
        The family that runs until the matrix is converted.
    """

    converts = True
    least_products: ClassVar[int] = 20  # before the matrix is converted
    paying_bytes: ClassVar[float] = 1e10  # that they move: 3 ms, of which a form saves what it costs to make

    def __init__(self, model: Model[SpmmvProblem, C, Any], csr: SpmmvCsr) -> None:
        super().__init__(model)
        self._csr = csr

    def converts_after(self, problem: SpmmvProblem) -> int:
        """Choose the number of products after which the matrix is converted."""
        return max(self.least_products, round(self.paying_bytes / traffic(problem).total_bytes))

    def before_conversion(self, problem: SpmmvProblem, device: DeviceInfo) -> tuple[SparseFamily[Any], Any]:
        """Choose the family and configuration that run until the matrix is converted, with the same bits."""
        return self._csr, self._csr.choose_in_order(problem, device)

    def chain_length(self, problem: SpmmvProblem, config: C, device: DeviceInfo) -> int:
        """Compute the longest chain of additions that makes an element of Y, for error bounds."""
        family, in_order = self.before_conversion(problem, device)
        return family.chain_length(problem, in_order, device)

    def refuse_problem(self, problem: SpmmvProblem, device: DeviceInfo) -> str | None:
        """Explain why no configuration can run a problem, whatever its resources; None if one may."""
        if (reason := self._csr.supports(problem, device)) is not None:
            return reason
        if problem.dots or problem.gram:
            return "makes no sums"
        if (reason := self._refuse_matrix(problem, device)) is not None:
            return reason
        if not self._csr.sums_in_order(problem, device):
            return "before the matrix is converted, rows cannot be summed in the order of their entries"
        if problem.longest <= LEAST_LONG_ROW:  # without a choice, which takes milliseconds
            return None
        if problem.longest > (most := self._csr.choose_in_order(problem, device).long_row):
            return f"rows of {problem.longest} entries; those of more than {most} are summed in parts"
        return None

    @abstractmethod
    def _refuse_matrix(self, problem: SpmmvProblem, device: DeviceInfo) -> str | None:
        """Explain why a product of Y alone that `spmmv_csr` supports cannot be run; None if it can."""

    def sources(self, problem: SpmmvProblem, config: C, device: DeviceInfo) -> list[str]:
        """Generate all sources that products may need, before and after the matrix is converted."""
        family, in_order = self.before_conversion(problem, device)
        own = [self.source(problem, config, device), self._conversion_source(problem, config)]
        return own + family.sources(problem, in_order, device)

    @abstractmethod
    def _conversion_source(self, problem: SpmmvProblem, config: C) -> str:
        """Generate the source of the kernel that converts."""

    def bind(
        self,
        kernels: Mapping[str, Any],
        problem: SpmmvProblem,
        config: C,
        device: DeviceInfo,
        plan: Plan,
        form: Any,
    ) -> Callable[..., None]:
        """Bind a loaded kernel to a converted matrix; see `SparseFamily.bind`."""
        blocks, threads, matrix = self._launch(problem, config, device, plan, form)
        shared = self.shared_bytes(problem, config, device)
        return bind_kernel(kernels["rows"], problem, blocks, threads, matrix, shared)

    @abstractmethod
    def _launch(
        self, problem: SpmmvProblem, config: C, device: DeviceInfo, plan: Plan, form: Any
    ) -> tuple[int, int, tuple[Any, ...]]:
        """Compute the blocks, the threads per block, and the arguments that describe the matrix."""
