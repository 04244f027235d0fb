"""The contract of families for products of dense blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar, cast

from ..device import DeviceInfo
from ..family import Family
from ..launch import Launch
from ..limits import round_up
from ..problem import SweepProblem, TsmmProblem, TsmttsmProblem
from ..source import short_names

_PITCH = 16  # elements: a multiple has rows of every alignment


class BlockConfig(Protocol):
    """A configuration that determines the size of a block."""

    @property
    def threads(self) -> int:
        """Threads of a block."""


P = TypeVar("P", bound=TsmttsmProblem | TsmmProblem | SweepProblem)
C = TypeVar("C", bound=BlockConfig)


class DenseFamily(Family[P, C]):
    """A family whose product is one launch of one kernel.

    Attributes
    ----------
    three_m : bool
        Whether a complex product takes three real products, not four.
    unit : str
        Part of the kernels' names: ``"fma"``, ``"mma"`` or ``"sweep"``.
    """

    three_m: ClassVar[bool] = False
    unit: ClassVar[str]

    def alike(self, problem: P) -> P:
        """Return the problem that stands for all with the same choice, whatever the length of a pitch."""
        pitch = round_up(max(problem.M, problem.N) + 1, _PITCH)
        first, second = ("ldw", "ldv") if isinstance(problem, SweepProblem) else ("lda", "ldb")
        lds = {
            name: width if getattr(problem, name) == width else pitch
            for name, width in ((first, problem.M), (second, problem.N))
        }
        if getattr(problem, "inplace", False):
            lds[second] = lds[first]
        one_pitch: P = replace(cast("Any", problem), **lds)
        return super().alike(one_pitch)

    def kernel_name(self, problem: P) -> str:
        """Name the kernel, as ``tsmttsm_fma_f64_m8_n8``."""
        types = short_names(*problem.dtypes)
        return f"{problem.operation}_{self.unit}_{types}_m{problem.M}_n{problem.N}"

    @abstractmethod
    def source(self, problem: P, config: C, device: DeviceInfo) -> str:
        """Generate the CUDA source; it depends neither on K nor on the length of a pitch."""

    @abstractmethod
    def workspace_bytes(self, problem: P, config: C, device: DeviceInfo) -> int:
        """Compute the workspace of a launch in bytes, 0 if it takes none."""

    @abstractmethod
    def grid(self, problem: P, config: C, device: DeviceInfo) -> int:
        """Compute the number of blocks of a launch."""

    @abstractmethod
    def pack(self, problem: P) -> Callable[..., tuple[Any, ...] | None]:
        """Create the function that packs the kernel's arguments; see `Launch.pack`."""

    def launch(self, problem: P, config: C, device: DeviceInfo) -> Launch:
        """Prepare the launch of the kernel of `source` on a problem, whose K and pitches may differ."""
        grid, shared = (self.grid(problem, config, device),), self.shared_bytes(problem, config, device)
        return Launch(grid, (config.threads,), shared, self.pack(problem))
