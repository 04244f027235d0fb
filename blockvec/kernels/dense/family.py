"""The contract of families for products of dense blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar, cast

from ..device import DeviceInfo
from ..family import Family
from ..launch import Launch, pack_product
from ..limits import excess, round_up
from ..problem import SweepProblem, TsmmProblem, TsmttsmProblem, itemsize
from ..source import short_names

_PITCH = 16  # elements: a multiple has rows of every alignment


class BlockConfig(Protocol):
    """A configuration that determines the size of a block and the blocks of a multiprocessor."""

    @property
    def threads(self) -> int:
        """Threads of a block."""

    @property
    def blocks(self) -> int:
        """Blocks resident on a multiprocessor."""


P = TypeVar("P", bound=TsmttsmProblem | TsmmProblem | SweepProblem)
C = TypeVar("C", bound=BlockConfig)


class DenseFamily(Family[P, C]):
    """A family whose product is one launch of one kernel."""

    three_m: ClassVar[bool] = False  # whether a complex product takes three real products, not four
    unit: ClassVar[str]  # part of the kernels' names: ``"fma"``, ``"mma"`` or ``"sweep"``
    static_bytes: ClassVar[int] = 0  # bound on the static shared memory of the kernel
    pitch_bytes: ClassVar[bool] = False  # whether the kernel takes pitches in bytes, not in elements

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

    def refuse(self, problem: P, config: C, device: DeviceInfo) -> str | None:
        if reason := self.refuse_problem(problem, device):
            return reason
        shared = self.shared_bytes(problem, config, device) + self.static_bytes
        registers = self.registers(problem, config, device)
        return excess(config.threads, config.blocks, registers, shared, device)

    @abstractmethod
    def registers(self, problem: P, config: C, device: DeviceInfo) -> int:
        """Estimate the registers per thread with which the compiler spills none."""

    @abstractmethod
    def workspace_bytes(self, problem: P, config: C, device: DeviceInfo) -> int:
        """Compute the workspace of a launch in bytes, 0 if it takes none."""

    @abstractmethod
    def grid(self, problem: P, config: C, device: DeviceInfo) -> int:
        """Compute the number of blocks of a launch."""

    def pack(self, problem: P) -> Callable[..., tuple[Any, ...] | None]:
        """Create the function that packs the kernel's arguments; see `Launch.pack`."""
        return pack_product(cast("Any", problem), itemsize(problem.dtype) if self.pitch_bytes else 1)

    def launch(self, problem: P, config: C, device: DeviceInfo) -> Launch:
        """Prepare the launch of the kernel of `source` on a problem, whose K and pitches may differ."""
        grid, shared = (self.grid(problem, config, device),), self.shared_bytes(problem, config, device)
        return Launch(grid, (config.threads,), shared, self.pack(problem))
