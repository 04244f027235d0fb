"""Products of tall blocks through blockvec's generated kernels, on CuPy arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

from ...kernels.build import compiler_of
from ...kernels.dense.family import DenseFamily
from ...kernels.family import choose
from ...kernels.problem import SweepProblem, TsmmProblem, TsmttsmProblem, real_view
from ..base import Candidate
from .device import Gpu, workspace_address

Product = TsmttsmProblem | TsmmProblem | SweepProblem


Loaded: TypeAlias = tuple[Any, tuple[int], tuple[int], int, Callable[..., tuple[Any, ...]], Callable[[], int]]
"""A loaded kernel, grid, block, shared memory, what packs its arguments, and the address of its workspace."""


def candidate(gpu: Gpu, family: DenseFamily[Any, Any], problem: Product) -> Candidate:
    """Create the candidate of a family for a problem.

    Nothing is compiled before the first run. A family without mixed types may run a real block times complex
    numbers as a real product.
    """
    refusal = family.supports(problem, gpu.info)
    if refusal is not None and not isinstance(problem, SweepProblem):
        viewed = real_view(problem)
        if viewed is not problem:
            problem, refusal = viewed, family.supports(viewed, gpu.info)
    refusal = "there are no rows" if problem.K == 0 else refusal or ""

    @functools.cache
    def chosen() -> Any:
        return choose(family, problem, gpu.info)

    @functools.cache
    def loaded() -> Loaded:
        return load(gpu, family, problem, chosen())

    def source() -> str:
        return family.kernel(problem, chosen(), gpu.info).source()

    return Candidate(
        family.name,
        runner(gpu, problem, loaded),
        refusal,
        three_m=family.three_m,
        configuration=lambda: f"{chosen()}; {compiler_of(source(), gpu.info.architecture)}",
        source=source,
        prepare=gpu.on_device(lambda *_: loaded()),
    )


def runner(gpu: Gpu, problem: Product, loaded: Callable[[], Loaded]) -> Callable[..., None]:
    """Create the `Candidate.run` of a product: one function down to the kernel, for short calls.

    `loaded` is cached; its first call, on the device, compiles the kernel.
    """
    import cupy

    current_device, device_id = cupy.cuda.runtime.getDevice, gpu.id
    is_sweep = isinstance(problem, SweepProblem)

    def run(problem: Any, first: Any, second: Any, third: Any, *rest: Any) -> None:
        if current_device() != device_id:
            with cupy.cuda.Device(device_id):
                run(problem, first, second, third, *rest)
            return
        kernel, grid, block, shared, pack, address = loaded()
        if is_sweep:  # four arrays; products have three and their factors
            rest = (rest[0].data.ptr,)
        arguments = pack(first.data.ptr, second.data.ptr, third.data.ptr, *rest, address())
        kernel(grid, block, arguments, shared)

    return run


def load(gpu: Gpu, family: DenseFamily[Any, Any], problem: Product, config: Any) -> Loaded:
    """Compile and load a configuration on the current device."""
    how = problem, config, gpu.info
    kernel, grid = family.kernel(*how), (family.grid(*how),)
    launch = gpu.load(kernel), grid, (kernel.threads,), kernel.shared_bytes
    return *launch, family.pack(*how), workspace_address(gpu, family.workspace_bytes(*how))
