"""The contract of families for products of dense blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, TypeVar, cast

from ..device import DeviceInfo
from ..family import Family
from ..launch import QUEUE_BYTES, pack_product, partials_bytes
from ..limits import WARP, ceil_div, excess, round_up
from ..problem import SweepProblem, TsmmProblem, TsmttsmProblem, is_complex, itemsize, parts_of
from ..source import Body, Constant, Kernel, kernel, short_names

_PITCH = 16  # elements: a multiple has rows of every alignment


class BlockConfig:
    """A configuration, by default with one thread block per multiprocessor."""

    warps: int  # warps of a thread block
    blocks = 1  # resident on a multiprocessor

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps


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
        rows = (problem.lda, problem.M), (problem.ldb, problem.N)
        lda, ldb = (width if ld == width else pitch for ld, width in rows)
        if getattr(problem, "inplace", False):
            ldb = lda
        one_pitch: P = replace(cast("Any", problem), lda=lda, ldb=ldb)
        return super().alike(one_pitch)

    def refuse(self, problem: P, config: C, device: DeviceInfo) -> str | None:
        if reason := self.refuse_problem(problem, device):
            return reason
        registers, shared = self.resources(problem, config, device)
        return excess(config.threads, config.blocks, registers, shared + self.static_bytes, device)

    @abstractmethod
    def resources(self, problem: P, config: C, device: DeviceInfo) -> tuple[int, int]:
        """Estimate registers with which the compiler spills none, and bytes of dynamic shared memory."""

    def rows(self, problem: P, config: C) -> int:
        """Compute the rows that a block takes at a time."""
        return int(cast("Any", config).rows)

    def grid(self, problem: P, config: C, device: DeviceInfo) -> int:
        """Compute the number of blocks of a launch."""
        return min(device.multiprocessors * config.blocks, ceil_div(problem.K, self.rows(problem, config)))

    def workspace_bytes(self, problem: P, config: C, device: DeviceInfo) -> int:
        """Compute the workspace of a launch in bytes: of a tile queue, or of sums of blocks."""
        if isinstance(problem, TsmmProblem):
            return QUEUE_BYTES
        elements = problem.N * (problem.N if isinstance(problem, SweepProblem) else problem.M)
        return partials_bytes(self.grid(problem, config, device), elements * parts_of(problem.dtype))

    @abstractmethod
    def body(self, problem: P, config: C, device: DeviceInfo) -> Body:
        """Find the body of the kernel, its constants beside those of the problem, and its types."""

    def kernel(self, problem: P, config: C, device: DeviceInfo) -> Kernel:
        """Describe the kernel, named as ``tsmttsm_fma_f64_m8_n8``.

        Its source depends neither on the number of rows nor on the length of a pitch.
        """
        name = f"{problem.operation}_{self.unit}_{short_names(*problem.dtypes)}_m{problem.M}_n{problem.N}"
        _, shared = self.resources(problem, config, device)
        body, own, types = self.body(problem, config, device)
        constants: dict[str, Constant] = {"M": problem.M, "N": problem.N}
        if isinstance(problem, TsmttsmProblem):
            constants["CONJ"] = problem.conj and is_complex(problem.dtype_a)
            constants |= {"SAME": problem.same, "ALPHA_ONE": problem.alpha == "one"}
            constants["BETA_ZERO"] = problem.beta == "zero"
        constants |= own
        return kernel(body, constants, types, name, threads=config.threads, shared_bytes=shared)

    def pack(self, problem: P, config: C, device: DeviceInfo) -> Callable[..., tuple[Any, ...]]:
        """Create the function that packs the arguments of the kernel, whose K and pitches may be others.

        It takes device addresses and factors, in the order of a `Candidate`'s operands and in the problem's
        classes, and the address of the workspace where there is one.
        """
        return pack_product(cast("Any", problem), itemsize(problem.dtype) if self.pitch_bytes else 1)
