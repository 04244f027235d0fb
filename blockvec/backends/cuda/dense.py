"""Products of tall blocks through blockvec's own generated kernels, on CuPy arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...kernels.compile import function
from ...kernels.dense.family import DenseFamily
from ...kernels.problem import SweepProblem, TsmmProblem, TsmttsmProblem, real_view
from ...kernels.tuning.winners import Winner
from ..base import Candidate
from .device import Gpu
from .workspace import Scratch

__all__ = ["candidate", "launcher"]

Product = TsmttsmProblem | TsmmProblem | SweepProblem
Launch = Callable[..., None]
"""Takes the operands of a `Candidate` after the problem."""


def candidate(
    gpu: Gpu,
    family: DenseFamily[Any, Any],
    problem: Product,
    winner: Winner | None = None,
    *,
    is_summed: bool = True,
) -> Candidate:
    """Return a family as a candidate for a problem, with the tuned configuration if it is the winner's.

    Nothing is compiled before the first run. A family that takes no mixed types may take a real block times
    complex numbers as a real product. Where it is not summed, a kernel of A^H B ends with its last product
    and has no result: its time tells what sums over threads and blocks take.
    """
    if not isinstance(problem, SweepProblem) and family.supports(problem, gpu.info) is not None:
        problem = real_view(problem)
    refusal = "there are no rows" if problem.K == 0 else family.supports(problem, gpu.info) or ""
    tuned = winner if winner is not None and winner.kernel == family.name else None

    @functools.cache
    def config() -> Any:
        return tuned.config if tuned else family.choose(problem, gpu.info)

    @functools.cache
    def launch() -> Launch:
        return launcher(gpu, family, problem, config(), is_summed)

    def run(_problem: Any, *operands: Any) -> None:
        launch()(*operands)

    def text() -> str:
        origin = tuned.origin if tuned else "the model's choice"
        predicted_s = family.predict(problem, config(), gpu.info)
        return f"{config()}, {origin}, predicted {predicted_s * 1e6:.1f} us"

    def source() -> str:
        return family.source(problem, config(), gpu.info, is_summed=is_summed)

    def prepare(_problem: Any, *_operands: Any) -> None:
        launch()

    return Candidate(
        family.name, gpu.here(run), refusal, configuration=text, source=source, prepare=gpu.here(prepare)
    )


@functools.lru_cache(maxsize=4096)
def launcher(
    gpu: Gpu, family: DenseFamily[Any, Any], problem: Product, config: Any, is_summed: bool = True
) -> Launch:
    """Compile and load a configuration; return what queues it on CuPy's current stream."""
    source = family.source(problem, config, gpu.info, is_summed=is_summed)
    shared = family.shared_bytes(problem, config, gpu.info)
    carveout = family.carveout(problem, config, gpu.info)
    kernel = function(source, family.kernel_name(problem), gpu.info.architecture, shared, carveout)
    start = family.bind(kernel, problem, config, gpu.info)
    bytes_needed = family.workspace_bytes(problem, config, gpu.info)
    if not bytes_needed:
        return lambda A, B, C, alpha, beta: start(A.data.ptr, B.data.ptr, C.data.ptr, alpha, beta)
    scratch = Scratch(gpu, bytes_needed)
    if isinstance(problem, SweepProblem):
        return lambda W, V, C, S: start(W.data.ptr, V.data.ptr, C.data.ptr, S.data.ptr, scratch.address())
    return lambda A, B, C, alpha, beta: start(
        A.data.ptr, B.data.ptr, C.data.ptr, alpha, beta, scratch.address()
    )
