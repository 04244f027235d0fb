"""SpMMV through blockvec's own kernels on CSR matrices, on CuPy arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...config import options
from ...kernels.compile import function
from ...kernels.problem import SpmmvProblem
from ...kernels.sparse import csr
from ...kernels.tuning.winners import configure_sparse
from ..base import Candidate, Fused
from ..base import DeviceArray as Array
from .cusparse import DeviceCsr
from .device import Gpu
from .workspace import GRID_HEADER_BYTES, workspace

__all__ = ["NOTHING", "Launch", "candidate", "launcher", "start"]

Launch = Callable[..., None]

NOTHING = Fused(None, 0, 0, {}, {})


def candidate(gpu: Gpu, problem: SpmmvProblem) -> Candidate:
    """Return blockvec's own kernels as a candidate; nothing is compiled before the first run."""

    def text() -> str:
        config, origin = _configuration(gpu, problem)
        predicted_s = csr.predict(problem, config, gpu.info)
        conversion = csr.conversion(problem, config)
        return f"{config}, {origin}, predicted {predicted_s * 1e6:.1f} us; {conversion}"

    refusal = csr.supports(problem, gpu.info)
    if refusal is None:
        refusal = csr.refuse_sums(problem, _configuration(gpu, problem)[0])
    run, prepare = (gpu.here(functools.partial(call, gpu)) for call in (_spmmv, _bound))
    return Candidate("spmmv_csr", run, refusal or "", configuration=text, prepare=prepare)


def _configuration(gpu: Gpu, problem: SpmmvProblem) -> tuple[csr.Config, str]:
    """Return how the kernels are run, and where that choice comes from."""
    return configure_sparse("spmmv_csr", problem, gpu.info, options().winners_dir)


def _spmmv(
    gpu: Gpu,
    problem: SpmmvProblem,
    S: DeviceCsr,
    X: Array,
    Y: Array,
    alpha: complex,
    beta: complex,
    shift: Any,
    fused: Fused = NOTHING,
) -> None:
    """Y = alpha (S - shift I) X + beta Y, and what is fused.

    The first product of a kind with a matrix of uneven rows waits for its row pointers; later ones do not.
    """
    start(gpu, _bound(gpu, problem, S), problem, X, Y, alpha, beta, shift, fused)


def start(
    gpu: Gpu,
    bound: tuple[Launch, int],
    problem: SpmmvProblem,
    X: Array,
    Y: Array,
    alpha: complex,
    beta: complex,
    shift: Any,
    fused: Fused,
) -> None:
    """Start kernels that were made ready for a matrix (see `launcher`) on the operands of a product."""
    import cupy

    launch, bytes_needed = bound
    shifts = cupy.ascontiguousarray(shift, problem.dtype) if problem.shift == "column" else None
    beside: dict[str, Any] = {}
    if bytes_needed:
        beside["workspace_ptr"] = workspace(gpu, bytes_needed).data.ptr + GRID_HEADER_BYTES
    if fused.dots or fused.gram:
        beside["dots"] = {kind: out.data.ptr for kind, out in fused.dots.items()}
        beside["gram"] = {kind: out.data.ptr for kind, out in fused.gram.items()}
    launch(
        *(X.data.ptr, Y.data.ptr, alpha, beta),
        shift=shift if problem.shift == "scalar" else 0,
        shifts_ptr=0 if shifts is None else shifts.data.ptr,
        Z_ptr=0 if fused.Z is None else fused.Z.data.ptr,
        delta=fused.delta,
        eta=fused.eta,
        **beside,
    )


def _bound(gpu: Gpu, problem: SpmmvProblem, S: DeviceCsr, *_operands: Any) -> tuple[Launch, int]:
    """Return what a product with a matrix needs, made ready once."""
    key = "spmmv_csr", problem, options().tune
    known = S.bound.get(key)
    if known is None:
        known = S.bound[key] = launcher(gpu, problem, _configuration(gpu, problem)[0], S)
    return known


def launcher(gpu: Gpu, problem: SpmmvProblem, config: csr.Config, S: DeviceCsr) -> tuple[Launch, int]:
    """Compile and load a configuration for a matrix; return what starts it, and its bytes of workspace."""
    kernels = _kernels(gpu, problem, config, csr.parts(problem, config, S.plan))
    needed = csr.workspace_bytes(problem, config, gpu.info, S.plan)
    launch = csr.bind(kernels, problem, config, gpu.info, S.plan)
    return launch, GRID_HEADER_BYTES + needed if needed else 0


@functools.lru_cache(maxsize=4096)
def _kernels(gpu: Gpu, problem: SpmmvProblem, config: csr.Config, parts: tuple[csr.Part, ...]) -> csr.Kernels:
    """Load the kernels that a product needs."""
    return csr.Kernels(
        **{
            part: function(
                csr.source(problem, config, part),
                csr.kernel_name(problem, part),
                gpu.info.architecture,
                carveout=csr.carveout(problem, config, gpu.info) if part == "rows" else None,
            )
            for part in parts
        }
    )
