"""SpMMV through blockvec's own kernels, on CuPy arrays.

Some families take the matrix in another form. It is converted when its products have lost, by not being
converted, about the time that the conversion takes: the total is never more than twice that of the best
decision in hindsight. Until then, and where a form is impossible, the family and configuration of
`before_conversion` run, whose results have the same bits.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

from ...kernels.build import machine_code
from ...kernels.family import choose
from ...kernels.problem import SpmmvProblem
from ...kernels.sparse.family import SparseFamily
from ...kernels.sparse.sell import SpmmvSell
from ..base import Candidate, Fused
from ..base import DeviceArray as Array
from .device import Gpu, workspace
from .device_csr import DeviceCsr
from .elementwise import copy

AnyFamily = SparseFamily[Any]
Bound = tuple[Callable[..., None], int]
"""A launch as of `SparseFamily.bind`, and its bytes of workspace."""

_NOTHING = Fused(None, 0, 0, {}, {})
_conversion_lock = threading.Lock()


def candidate(gpu: Gpu, family: AnyFamily, problem: SpmmvProblem) -> Candidate:
    """Make a candidate of a family; nothing is compiled or converted before the first run."""

    def text() -> str:
        return f"{choose(family, problem, gpu.info)}; {family.conversion(problem)}"

    refusal = family.supports(problem, gpu.info)
    if refusal is None and (problem.dots or problem.gram):
        refusal = family.refuse_sums(problem, choose(family, problem, gpu.info))
    run, prepare = (gpu.on_device(functools.partial(call, gpu, family)) for call in (_spmmv, _prepare))
    return Candidate(family.name, run, refusal or "", configuration=text, prepare=prepare)


def _spmmv(
    gpu: Gpu,
    family: AnyFamily,
    problem: SpmmvProblem,
    S: DeviceCsr,
    X: Array,
    Y: Array,
    alpha: complex,
    beta: complex,
    shift: Any,
    fused: Fused = _NOTHING,
) -> None:
    """Y = alpha (S - shift I) X + beta Y, and what is fused.

    The first product of a kind with a matrix of uneven rows waits until these are divided, and the product
    that converts waits, too; others do not.
    """
    bound = S.bound.get((family.name, problem)) or bind(gpu, family, problem, S)
    launch, bytes_needed = bound
    shifts_ptr = 0
    if problem.shift == "column":
        shift = _in_type(gpu, shift, problem.dtype)  # referenced until the launch
        shifts_ptr = shift.data.ptr
    optional: dict[str, Any] = {}
    if bytes_needed:
        optional["workspace_ptr"] = workspace(gpu, bytes_needed, is_passed_on=True).data.ptr
    if fused.dots or fused.gram:
        optional["dots"] = {kind: out.data.ptr for kind, out in fused.dots.items()}
        optional["gram"] = {kind: out.data.ptr for kind, out in fused.gram.items()}
    launch(
        *(X.data.ptr, Y.data.ptr, alpha, beta),
        shift=shift if problem.shift == "scalar" else 0,
        shifts_ptr=shifts_ptr,
        Z_ptr=0 if fused.Z is None else fused.Z.data.ptr,
        delta=fused.delta,
        eta=fused.eta,
        rows=fused.rows,
        **optional,
    )


def _in_type(gpu: Gpu, row: Array, dtype: str) -> Array:
    import cupy

    if row.dtype == dtype and row.flags.c_contiguous:
        return row
    converted = cupy.empty(row.shape, dtype)
    copy(gpu, row, converted)
    return converted


def bind(gpu: Gpu, family: AnyFamily, problem: SpmmvProblem, S: DeviceCsr) -> Bound:
    """Bind the kernels of the next product with a matrix, which is converted if that pays off by now."""
    is_settled = not isinstance(family, SpmmvSell) or _converts(family, problem, S)
    if isinstance(family, SpmmvSell) and not (is_settled and _form(gpu, family, problem, S)):
        bound = _bind_before_conversion(gpu, family, problem, S)
    else:
        bound = launcher(gpu, family, problem, choose(family, problem, gpu.info), S)
    if is_settled:
        S.bound[family.name, problem] = bound
    return bound


def _converts(family: SpmmvSell, problem: SpmmvProblem, S: DeviceCsr) -> bool:
    """Count a product that a form of the matrix would make faster; check whether to use the form now."""
    import cupy

    S.waited[family.name] += 1
    enough = family.converts_after(problem)
    pays = S.forms.get(family.name) is not None or S.waited[family.name] > enough
    return pays and not cupy.cuda.get_current_stream().is_capturing()


def _bind_before_conversion(gpu: Gpu, family: SpmmvSell, problem: SpmmvProblem, S: DeviceCsr) -> Bound:
    """Bind the kernels that give the same bits on compressed rows."""
    key = f"before {family.name}", problem
    if key not in S.bound:
        in_rows, config = family.before_conversion(problem, gpu.info)
        S.bound[key] = launcher(gpu, in_rows, problem, config, S)
    return S.bound[key]


def _prepare(gpu: Gpu, family: AnyFamily, problem: SpmmvProblem, S: DeviceCsr, *_operands: Any) -> None:
    """Load the kernels that products run, before and after the matrix is converted; compile the converter."""
    if not isinstance(family, SpmmvSell):
        if (family.name, problem) not in S.bound:
            bind(gpu, family, problem, S)
        return
    config = choose(family, problem, gpu.info)
    for kernel in family.kernels(problem, config, gpu.info).values():
        machine_code(kernel.source(), gpu.info.architecture)
    _bind_before_conversion(gpu, family, problem, S)
    _kernels(gpu, family, problem, config, S)


def launcher(gpu: Gpu, family: AnyFamily, problem: SpmmvProblem, config: Any, S: DeviceCsr) -> Bound:
    """Compile, load and bind a configuration for a matrix, or its form; waits where this is not made yet."""
    matrix = _form(gpu, family, problem, S) if isinstance(family, SpmmvSell) else S
    needed = family.workspace_bytes(problem, config, gpu.info, S)
    launch = family.bind(_kernels(gpu, family, problem, config, S), problem, config, gpu.info, matrix)
    return launch, needed


def _form(gpu: Gpu, family: SpmmvSell, problem: SpmmvProblem, S: DeviceCsr) -> Any:
    """Make the form of a matrix that a family takes, once; None if it has none, or memory is short."""
    import cupy

    with _conversion_lock:
        if family.name not in S.forms:
            S.forms[family.name] = None
            with contextlib.suppress(cupy.cuda.memory.OutOfMemoryError):
                S.forms[family.name] = family.convert(problem, S, gpu.load)
                cupy.cuda.get_current_stream().synchronize()  # other streams will read it too
        return S.forms[family.name]


def _kernels(gpu: Gpu, family: AnyFamily, problem: SpmmvProblem, config: Any, S: DeviceCsr) -> dict[str, Any]:
    kernels = family.kernels(problem, config, gpu.info, S)
    return {part: gpu.load(kernel) for part, kernel in kernels.items()}
