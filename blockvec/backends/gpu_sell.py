"""SpMMV on matrices converted to SELL-C-sigma form, on CuPy arrays.

A matrix is converted when its narrow products have lost, by not being converted, about what the conversion
takes: so it never costs more than twice what the best decision in hindsight would have. Until then spmmv_csr
runs in the configuration that sums up rows in the order of their entries, as spmmv_sell does, so that results
are the same to the last bit before and after, and wherever there is no room for a second copy of the matrix.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from ..config import options
from ..errors import LayoutError
from ..kernels import spmmv_csr, spmmv_sell
from ..kernels.compile import function
from ..kernels.problem import SpmmvProblem
from ..kernels.sell_plan import Sell
from ..kernels.winners import configure_sell
from .base import Array, Candidate, Fused
from .cusparse import DeviceCsr
from .gpu import Gpu
from .gpu_sparse import NOTHING, Launch, start
from .gpu_sparse import launcher as launcher_in_rows

__all__ = ["candidate", "launcher"]

_MOST_FILLING = 1.25  # places for entries, relative to entries

_lock = threading.Lock()


def candidate(gpu: Gpu, problem: SpmmvProblem) -> Candidate:
    """Return the kernel as a candidate; nothing is compiled or converted before the first run."""

    def text() -> str:
        config, origin = _configuration(gpu, problem)
        predicted_s = spmmv_sell.predict(problem, config, gpu.info)
        conversion = spmmv_sell.conversion(problem)
        return f"{config}, {origin}, predicted {predicted_s * 1e6:.1f} us; {conversion}"

    run, prepare = (gpu.here(functools.partial(call, gpu)) for call in (_spmmv, _prepare))
    refusal = spmmv_sell.supports(problem, gpu.info)
    return Candidate("spmmv_sell", run, refusal or "", configuration=text, prepare=prepare)


def _configuration(gpu: Gpu, problem: SpmmvProblem) -> tuple[spmmv_sell.Config, str]:
    """Return how the kernel is run, and where that choice comes from."""
    return configure_sell(problem, gpu.info, options().winners_dir)


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
    """Y = alpha (S - shift I) X + beta Y and the chained update; the product that converts waits for it."""
    bound = S.bound.get(("spmmv_sell", problem, options().tune)) or _bind(gpu, problem, S)
    start(gpu, bound, problem, X, Y, alpha, beta, shift, fused)


def _bind(gpu: Gpu, problem: SpmmvProblem, S: DeviceCsr) -> tuple[Launch, int]:
    """Return what runs the next product, converting the matrix when it is time."""
    import cupy

    S.narrow_products += 1
    config, mode = _configuration(gpu, problem)[0], options().tune
    pays = S.narrow_products > spmmv_sell.CONVERTS_AFTER or S.converted.get(config.sigma) is not None
    if pays and not cupy.cuda.get_current_stream().is_capturing():
        try:
            bound = launcher(gpu, problem, config, S), 0
        except LayoutError:
            bound = _in_order(gpu, problem, S)
        S.bound["spmmv_sell", problem, mode] = bound
        return bound
    return _in_order(gpu, problem, S)


def _in_order(gpu: Gpu, problem: SpmmvProblem, S: DeviceCsr) -> tuple[Launch, int]:
    """Return what gives the same results on compressed rows."""
    key = "in order", problem, options().tune
    if key not in S.bound:
        config = spmmv_csr.choose(problem, gpu.info, in_order=True)
        S.bound[key] = launcher_in_rows(gpu, problem, config, S)
    return S.bound[key]


def _prepare(gpu: Gpu, problem: SpmmvProblem, S: DeviceCsr, *_operands: Any) -> None:
    """Load the kernels that products will run, before and after the matrix is converted."""
    _in_order(gpu, problem, S)
    _kernel(gpu, problem, _configuration(gpu, problem)[0])


def launcher(gpu: Gpu, problem: SpmmvProblem, config: spmmv_sell.Config, S: DeviceCsr) -> Launch:
    """Convert a matrix if nobody did, compile and load a configuration for it; return what starts it.

    Waits for the device where it converts.

    Raises
    ------
    LayoutError
        If the converted matrix would take too much memory.
    """
    with _lock:
        if config.sigma not in S.converted:
            S.converted[config.sigma] = _convert(gpu, problem, config.sigma, S)
    matrix = S.converted[config.sigma]
    if matrix is None:
        raise LayoutError("spmmv_sell: the matrix takes too much memory with rows filled up; use spmmv_csr.")
    return spmmv_sell.bind(_kernel(gpu, problem, config), problem, config, gpu.info, S.plan, matrix)


def _convert(gpu: Gpu, problem: SpmmvProblem, sigma: int, S: DeviceCsr) -> Sell | None:
    """Return the matrix in SELL-C-sigma form, None where it would be too large."""
    import cupy

    try:
        layout = spmmv_sell.layout(S.plan, sigma)
        if layout.entries > _MOST_FILLING * S.nnz:
            return None
        columns = cupy.empty(layout.entries, S.plan.indices.dtype)
        values = cupy.empty(layout.entries, S.plan.data.dtype)
    except (OverflowError, cupy.cuda.memory.OutOfMemoryError):
        return None
    source, name = spmmv_sell.fill_source(problem, sigma), spmmv_sell.fill_name(problem)
    fill = function(source, name, gpu.info.architecture)
    matrix = spmmv_sell.convert(fill, S.plan, layout, columns, values)
    cupy.cuda.get_current_stream().synchronize()  # other streams will read it too
    return matrix


@functools.lru_cache(maxsize=4096)
def _kernel(gpu: Gpu, problem: SpmmvProblem, config: spmmv_sell.Config) -> Any:
    source, name = spmmv_sell.source(problem, config), spmmv_sell.kernel_name(problem)
    return function(source, name, gpu.info.architecture)
