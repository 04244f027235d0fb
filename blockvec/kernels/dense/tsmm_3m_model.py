"""The configurations of TSMM with three real products and the model of its time."""

from __future__ import annotations

from ..device import DeviceInfo
from ..family import Model
from ..limits import QUADRANTS, TENSOR_CLOCK_HZ, ceil_div, smooth_max
from ..problem import TsmmProblem, real_bytes
from ..roofline import Ceilings, memory_time
from .model import view_traffic
from .tsmm_3m import ROWS, Tsmm3mConfig, passes
from .tsmm_mma import MMA_CYCLES, shape_of

_PIPE_RATE = 0.9  # of the rate of tensor products by themselves
_MEMORY_RATE = 0.93  # of the copy rate
_PASS_CYCLES = 120  # of a warp that stores and goes on to the next columns ...
_TILE_CYCLES = 600  # ... and to the next tile
_ADD_CYCLES = 2  # of a warp's addition on the pipe of the products
_CONVERSIONS = 14  # between float32 and float64, per cycle and SM
_LAUNCH_S = 5e-6  # with the latency of the first tile
_CEILINGS = Ceilings(4690, 4700, 4280, {"float64": 66e3})


class Tsmm3mModel(Model[TsmmProblem, Tsmm3mConfig, int]):
    """The model of the family with three real products; its recipes are numbers of warps."""

    recipes = (4, 8)

    def configure(self, problem: TsmmProblem, recipe: int, device: DeviceInfo) -> Tsmm3mConfig:
        return Tsmm3mConfig(recipe)

    def predict(
        self,
        problem: TsmmProblem,
        config: Tsmm3mConfig,
        device: DeviceInfo,
        ceilings: Ceilings | None = None,
    ) -> float:
        shape = shape_of(problem, device)
        count = passes(problem)
        products, additions = 3 * ceil_div(problem.N, 8), 2 * count
        pipe = shape.kt * (products * MMA_CYCLES + additions * _ADD_CYCLES) / _PIPE_RATE
        alone = (count * _PASS_CYCLES + _TILE_CYCLES) * QUADRANTS / config.warps
        if real_bytes(problem.dtype) == 4:
            alone += ROWS * 2 * (problem.M + problem.N) * QUADRANTS / _CONVERSIONS / 2
        tiles = ceil_div(problem.K, ROWS)
        turns = ceil_div(tiles, device.multiprocessors * config.warps) * config.warps / QUADRANTS
        memory = memory_time(view_traffic(problem), ceilings or _CEILINGS) / _MEMORY_RATE
        return smooth_max(turns * (pipe + alone) / TENSOR_CLOCK_HZ, memory) + _LAUNCH_S
