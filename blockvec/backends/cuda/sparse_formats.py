"""SpMMV on CuPy arrays by kernels that want the matrix in another form, or a plan made of it.

A matrix is converted when its products have lost, by not being converted, about what the conversion takes:
so it never costs more than twice what the best decision in hindsight would have. Until then spmmv_csr runs
in the configuration that sums up rows in the order of their entries, as these kernels do, so that results are
the same to the last bit before and after, and wherever a form is not to be had.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Hashable
from typing import Any

import numpy as np

from ...config import options
from ...errors import LayoutError
from ...kernels.compile import build, function
from ...kernels.families import CONFIGURED
from ...kernels.problem import SpmmvProblem
from ...kernels.sparse import csr, planes, sell
from ...kernels.tuning.winners import configure_sparse
from ..base import Candidate, Fused
from ..base import DeviceArray as Array
from .cusparse import DeviceCsr
from .device import Gpu
from .sparse import NOTHING, Launch, start
from .sparse import launcher as launcher_in_rows

__all__ = ["candidate", "form_key", "launcher"]

_MOST_FILLING = 1.25  # places for entries in SELL-C-sigma form, relative to entries

_lock = threading.Lock()


def candidate(gpu: Gpu, name: str, problem: SpmmvProblem) -> Candidate:
    """Return a family's kernel as a candidate; nothing is compiled or converted before the first run."""
    family = CONFIGURED[name]

    def text() -> str:
        config, origin = _configuration(gpu, name, problem)
        predicted_s = family.predict(problem, config, gpu.info)
        return f"{config}, {origin}, predicted {predicted_s * 1e6:.1f} us; {family.conversion(problem)}"

    run, prepare = (gpu.here(functools.partial(call, gpu, name)) for call in (_spmmv, _prepare))
    refusal = family.supports(problem, gpu.info)
    return Candidate(name, run, refusal or "", configuration=text, prepare=prepare)


def _configuration(gpu: Gpu, name: str, problem: SpmmvProblem) -> tuple[Any, str]:
    """Return how the kernel is run, and where that choice comes from."""
    return configure_sparse(name, problem, gpu.info, options().winners_dir)


def _spmmv(
    gpu: Gpu,
    name: str,
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
    bound = S.bound.get((name, problem, options().tune)) or _bind(gpu, name, problem, S)
    start(gpu, bound, problem, X, Y, alpha, beta, shift, fused)


def _bind(gpu: Gpu, name: str, problem: SpmmvProblem, S: DeviceCsr) -> tuple[Launch, int]:
    """Return what runs the next product, converting the matrix when it is time."""
    import cupy

    config, mode = _configuration(gpu, name, problem)[0], options().tune
    key = form_key(gpu, name, problem, config, S)
    S.waited[key] += 1
    pays = S.converted.get(key) is not None or S.waited[key] > CONFIGURED[name].CONVERTS_AFTER
    if pays and not cupy.cuda.get_current_stream().is_capturing():
        try:
            bound = launcher(gpu, name, problem, config, S), 0
        except LayoutError:
            bound = _in_order(gpu, problem, S)
        S.bound[name, problem, mode] = bound
        return bound
    return _in_order(gpu, problem, S)


def _in_order(gpu: Gpu, problem: SpmmvProblem, S: DeviceCsr) -> tuple[Launch, int]:
    """Return what gives the same results on compressed rows."""
    key = "in order", problem, options().tune
    if key not in S.bound:
        config = csr.choose(problem, gpu.info, in_order=True)
        S.bound[key] = launcher_in_rows(gpu, problem, config, S)
    return S.bound[key]


def _prepare(gpu: Gpu, name: str, problem: SpmmvProblem, S: DeviceCsr, *_operands: Any) -> None:
    """Load the kernels that products run before and after the matrix is converted; compile the converter."""
    config = _configuration(gpu, name, problem)[0]
    for source in CONFIGURED[name].sources(problem, config):
        build(source, gpu.info.architecture)
    _in_order(gpu, problem, S)
    _kernel(gpu, name, problem, config)


def launcher(gpu: Gpu, name: str, problem: SpmmvProblem, config: Any, S: DeviceCsr) -> Launch:
    """Convert a matrix if nobody did, compile and load a configuration for it; return what starts it.

    Waits for the device where it converts.

    Raises
    ------
    LayoutError
        If the matrix cannot be had in this form, or would take too much memory.
    """
    key = form_key(gpu, name, problem, config, S)
    with _lock:
        if key not in S.converted:
            convert = _planned if name == "spmmv_march" else _filled
            S.converted[key] = convert(gpu, problem, config, S)
    form = S.converted[key]
    if form is None:
        raise LayoutError(f"{name}: the matrix does not fit its form, or memory; use csr.")
    kernel = _kernel(gpu, name, problem, config)
    return CONFIGURED[name].bind(kernel, problem, config, gpu.info, S.plan, form)  # type: ignore[no-any-return]


def form_key(gpu: Gpu, name: str, problem: SpmmvProblem, config: Any, S: DeviceCsr) -> tuple[str, Hashable]:
    """Return what the form of a matrix that a configuration takes is kept by."""
    return name, CONFIGURED[name].form_of(problem, config, gpu.info, S.plan)


def _filled(gpu: Gpu, problem: SpmmvProblem, config: sell.Config, S: DeviceCsr) -> sell.Sell | None:
    """Return the matrix in SELL-C-sigma form, None where it would be too large."""
    import cupy

    try:
        layout = sell.layout(S.plan, config.sigma)
        if layout.entries > _MOST_FILLING * S.nnz:
            return None
        columns = cupy.empty(layout.entries, S.plan.indices.dtype)
        values = cupy.empty(layout.entries, S.plan.data.dtype)
    except (OverflowError, cupy.cuda.memory.OutOfMemoryError):
        return None
    source, name = sell.fill_source(problem, config.sigma), sell.fill_name(problem)
    fill = function(source, name, gpu.info.architecture)
    matrix = sell.convert(fill, S.plan, layout, columns, values)
    cupy.cuda.get_current_stream().synchronize()  # other streams will read it too
    return matrix


def _planned(gpu: Gpu, problem: SpmmvProblem, config: planes.Config, S: DeviceCsr) -> planes.March | None:
    """Return the plan of a march, None where the matrix has no grid that is worth it."""
    import cupy

    marching = planes.form_of(problem, config, gpu.info, S.plan)
    if marching.balance > planes.MOST_IMBALANCE:
        return None
    most = planes.brought(config.across, config.lines)
    try:
        counts = cupy.empty(marching.steps, np.int32)
        loads = cupy.empty((marching.steps, most), np.int32)
        slots = cupy.empty(S.nnz, np.uint16)
        failed = cupy.zeros(1, np.int32)
    except cupy.cuda.memory.OutOfMemoryError:
        return None
    march = planes.March(marching, counts, loads, slots)
    source = planes.plan_source(config.across, config.lines, config.entries)
    plan = function(source, planes.PLAN_NAME, gpu.info.architecture)
    planes.make_plan(plan, S.plan, march, failed)
    return None if int(failed[0]) else march  # waits: other streams will read it too


@functools.lru_cache(maxsize=4096)
def _kernel(gpu: Gpu, name: str, problem: SpmmvProblem, config: Any) -> Any:
    family = CONFIGURED[name]
    source, entry = family.source(problem, config), family.kernel_name(problem)
    return function(source, entry, gpu.info.architecture, family.shared_bytes(problem, config))
