"""TSMM with three real products for a complex one: B = alpha A C for wide complex A, on FP64 tensor cores.

For these the four real products of `tsmm_mma` take longer than memory. Here a warp holds a tile of A in
registers and multiplies it by 16 columns of C at a time; ``tsmm_3m.cu`` explains it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from ...system.frozen import frozen
from ..device import DeviceInfo
from ..launch import run_rows
from ..limits import ceil_div
from ..problem import FEW_ROWS, TsmmProblem, is_complex, itemsize
from ..source import Body, Constant, c_type, constants_of
from . import tsmm_mma
from .family import DenseFamily
from .tsmm_mma import shape_of, tile_bytes

ROWS = 16  # of a tile
FEW_COLUMNS = 45  # up to which four real products for a complex one are as fast as three


@frozen
class Tsmm3mConfig:
    """One way to run the kernel, with one thread block per multiprocessor."""

    warps: int  # warps of a thread block, a multiple of four: the same number in each quadrant

    rows: ClassVar[int] = ROWS
    blocks: ClassVar[int] = 1  # per multiprocessor

    @property
    def threads(self) -> int:
        return 32 * self.warps


class Tsmm3m(DenseFamily[TsmmProblem, Tsmm3mConfig]):
    """The family of TSMM with three real products for a complex one; for its errors see `Tsmttsm3m`."""

    name = "tsmm_3m"
    problem_type = TsmmProblem
    three_m = True
    unit = "3m"
    pitch_bytes = True

    recipes = (8, 4)  # warps

    def refuse_problem(self, problem: TsmmProblem, device: DeviceInfo) -> str | None:
        if reason := tsmm_mma.refuse_problem(problem, device):
            return reason.replace("tsmm_mma", "tsmm_3m")
        if not is_complex(problem.dtype_a):
            return "takes complex operands"
        if problem.beta != "zero":
            return "adds nothing to B: beta must be zero"
        if shape_of(problem, device).piece_a:
            return "takes contiguous A, aligned to 16 bytes, on sm_90"
        if problem.align_b < (size := itemsize(problem.dtype)):
            return f"elements of {size} bytes, but B is aligned to {problem.align_b}"
        return None

    def resources(self, problem: TsmmProblem, config: Tsmm3mConfig, device: DeviceInfo) -> tuple[int, int]:
        shape = shape_of(problem, device)
        stage = tile_bytes(problem.M, ROWS, shape)
        # Fragments of C, and a stage and a barrier per warp.
        shared = 3 * 512 * shape.kt * ceil_div(problem.N, 16) + config.warps * (stage + 8)
        return 8 * shape.kt + 124, shared

    def is_faster(self, problem: TsmmProblem) -> bool:
        return is_complex(problem.dtype) and min(problem.M, problem.N) > FEW_COLUMNS

    def body(self, problem: TsmmProblem, config: Tsmm3mConfig, device: DeviceInfo) -> Body:
        shape = shape_of(problem, device)
        constants: dict[str, Constant] = {"COMPLEX": True, "ROWS": ROWS, "ALPHA": problem.alpha == "general"}
        constants |= constants_of(config)
        constants |= {
            "RUN": ceil_div(run_rows(problem), ROWS),
            "PAIRED": shape.size == 8 and problem.N % 2 == 0 and shape.piece_b in (0, 16),
        }
        return "dense/tsmm_3m", constants, {"Real": c_type(problem.dtype)}

    def preferred(self, problem: TsmmProblem, device: DeviceInfo) -> Iterable[int]:
        return (4,) if problem.K <= FEW_ROWS else ()

    def configure(self, problem: TsmmProblem, recipe: int, device: DeviceInfo) -> Tsmm3mConfig:
        return Tsmm3mConfig(recipe)
