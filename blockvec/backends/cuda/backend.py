"""The CUDA backend: CuPy arrays on one GPU; work goes to CuPy's current stream and nothing waits for it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ...errors import DeviceError
from ...kernels.device import DeviceInfo, cuda_device
from ...kernels.families import families_of, sparse_families_of
from ...kernels.problem import (
    Problem,
    SpmmvProblem,
    StreamProblem,
    SweepProblem,
    TsmmProblem,
    TsmttsmProblem,
    itemsize,
)
from ...kernels.source import Kernel
from ...kernels.sparse.chain import ChainPlan
from ...kernels.sparse.chain_plan import Chain
from ...system.installation import install_command
from ..base import Candidate, Factors, is_small
from ..base import DeviceArray as Array
from . import cublas, dense, device_csr, elementwise, probes, sparse, steps
from .cudss import CopiedFactors, CudssFactors, is_available
from .device import Gpu
from .device_csr import DeviceCsr
from .graphs import Graphs


class CudaStopwatch:
    """A stopwatch of two events on CuPy's current stream; only `seconds` waits."""

    __slots__ = ("_begin", "_end", "_gpu")

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._begin = gpu.on_device(_recorded_event)()
        self._end: Any = None

    def stop(self) -> None:
        self._end = self._gpu.on_device(_recorded_event)()

    def seconds(self) -> float:
        import cupy

        self._end.synchronize()
        return float(cupy.cuda.get_elapsed_time(self._begin, self._end)) * 1e-3


def _recorded_event() -> Any:
    import cupy

    event = cupy.cuda.Event()
    event.record()
    return event


def _on_device(module: ModuleType, name: str) -> Callable[..., Any]:
    """Make a method of a module's function that takes the GPU first and runs on it."""

    def method(self: CudaBackend, *arguments: Any) -> Any:
        return self._gpu.on_device(getattr(module, name))(self._gpu, *arguments)

    return method


class CudaBackend:
    """Runs everything on CuPy arrays of one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        import cupy

        self.xp = cupy
        self.name = f"cuda:{gpu.id}"
        self._gpu = gpu
        self._empty = gpu.on_device(cupy.empty)

    @property
    def device_id(self) -> int:
        return self._gpu.id

    @property
    def device(self) -> DeviceInfo:
        return self._gpu.info

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        match problem:
            case TsmttsmProblem():
                one_column = "" if problem.M == problem.N == 1 else "for one column each"
                own = self._generated(problem)
                dots = self._candidate("column_dot", elementwise.column_product, one_column)
                return (dots, *own, self._cublas("cublas_splitk", cublas.tsmttsm, own))
            case TsmmProblem():
                own = self._generated(problem)
                vendor = self._cublas("cublas", cublas.tsmm, own)
                return (vendor, *own) if cublas.is_faster(problem) else (*own, vendor)
            case SweepProblem():
                return self._generated(problem)
            case SpmmvProblem() if 0 in (problem.n_rows, problem.width):
                refusal = "it computes no sums" if problem.fused else None
                return (Candidate("empty", lambda *_: None, refusal),)
            case SpmmvProblem():
                return [sparse.candidate(self._gpu, each, problem) for each in sparse_families_of(problem)]
            case StreamProblem(operation="axpby"):
                return (self._candidate("stream", lambda gpu, _, *x: elementwise.weighted_sum(gpu, *x)),)
            case StreamProblem(operation="column_dot"):
                return (self._candidate("stream", elementwise.column_dots),)
            case _:
                return ()

    def _generated(self, problem: dense.Product) -> list[Candidate]:
        return [dense.candidate(self._gpu, family, problem) for family in families_of(problem)]

    def _candidate(self, name: str, run: Any, refusal: str = "") -> Candidate:
        return Candidate(name, self._gpu.on_device(functools.partial(run, self._gpu)), refusal)

    def _cublas(self, name: str, run: Any, own: Sequence[Candidate]) -> Candidate:
        """Return a candidate that calls cuBLAS; it is invalid during graph captures."""
        vendor = self._candidate(name, run)
        instead = next((candidate.run for candidate in own if not candidate.refusal), vendor.run)

        def call(problem: Problem, *operands: Any) -> None:
            capturing = self.xp.cuda.get_current_stream().is_capturing()
            (instead if capturing else vendor.run)(problem, *operands)

        return dataclasses.replace(vendor, run=call)

    def prepare_sparse(self, matrix: Any) -> DeviceCsr | ChainPlan:
        if isinstance(matrix, Chain):
            return ChainPlan(matrix, device_csr.to_device)
        return self._gpu.on_device(DeviceCsr)(matrix, self._gpu)  # type: ignore[no-any-return]

    def scaled_csr(self, matrix: Any, factor: float, dtype: np.dtype[Any]) -> Any:
        return self._gpu.on_device(matrix.scaled)(factor, dtype)

    def transposed_csr(self, matrix: Any) -> Any:
        is_stored = isinstance(matrix, DeviceCsr) and matrix.index_bytes == 4  # CuPy transposes no others
        return self._gpu.on_device(matrix.transposed)() if is_stored else None

    def factors(self, matrix: Any) -> Factors:
        if is_small(matrix.shape[0], matrix.nnz):
            return CopiedFactors(self._gpu)
        return CudssFactors(self._gpu, matrix.dtype.name)

    def factor_library(self, dtype: str = "float64") -> str:
        return "cuDSS" if is_available() else ""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        return self._empty(shape, dtype)

    def from_host(self, array: Any) -> Array:
        return self._gpu.on_device(self.xp.asarray)(np.asarray(array, order="C"))

    def to_host(self, array: Array) -> Any:
        return self._gpu.on_device(lambda: elementwise.contiguous(self._gpu, array).get())()

    def krylov_kernel(self, dtype: str, rows: int, columns: int, b: int) -> Kernel | None:
        found = steps.kernel_for(self._gpu, dtype, rows, columns, b, columns * itemsize(dtype))
        return None if found is None else found.kernel(self.device)

    def recurrence_kernel(self, matrix: Any, dtype: str, b: int, lanczos: bool) -> Kernel | None:
        found = steps.recurrence_kernel(self._gpu, matrix, dtype, b, lanczos)
        return None if found is None else found.kernel()

    csr = _on_device(device_csr, "csr")
    start_copies = _on_device(elementwise, "DeviceCopies")
    krylov_steps = _on_device(steps, "krylov_steps")
    lanczos_recurrence = _on_device(steps, "lanczos_recurrence")
    recurrence = _on_device(steps, "recurrence")
    inverse_factor = _on_device(elementwise, "inverse_factor")
    fill_random = _on_device(elementwise, "fill_random")
    copy = _on_device(elementwise, "copy")
    contiguous = _on_device(elementwise, "contiguous")
    fill = _on_device(elementwise, "fill")
    are_within = _on_device(elementwise, "are_within")
    diagonal = _on_device(device_csr, "diagonal")
    evaluate = _on_device(elementwise, "evaluate")
    block_stream = _on_device(probes, "block_stream")
    ceiling_probes = _on_device(probes, "ceiling_probes")

    def load_kernel(self, kernel: Kernel) -> None:
        self._gpu.on_device(self._gpu.load)(kernel)

    def stopwatch(self) -> CudaStopwatch:
        return CudaStopwatch(self._gpu)

    def graphs(self) -> Graphs:
        return Graphs(self._gpu.id)

    def synchronize(self) -> None:
        self._gpu.on_device(lambda: self.xp.cuda.get_current_stream().synchronize())()


@functools.cache
def cuda_backend(device_id: int) -> CudaBackend:
    """Return the backend of a GPU by CUDA's number; always the same object."""
    import cupy

    runtime = cupy.cuda.runtime
    version = runtime.driverGetVersion()
    driver = f"CUDA {version // 1000}.{version % 1000 // 10}"
    info = cuda_device(runtime.getDeviceProperties(device_id), driver)
    return CudaBackend(Gpu(device_id, info))


def find_device(name: str) -> int:
    """Return CUDA's number of a device named ``"gpu"`` (CuPy's current one) or ``"cuda:1"``.

    If CuPy or a GPU is missing, or there is no such device, a `DeviceError` names the remedy.
    """
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(
            f"device {name!r}: CuPy cannot be imported ({error}); install it with "
            f"{install_command('cuda13')} (cuda12 for a CUDA 12 driver), or use device='cpu'."
        ) from error
    if not cupy.cuda.is_available():
        raise DeviceError(
            f"device {name!r}: CuPy finds no GPU; check that nvidia-smi lists one and that its driver is at "
            "least as new as CuPy's CUDA, or use device='cpu'."
        )
    if name == "gpu":
        return int(cupy.cuda.runtime.getDevice())
    number = name.removeprefix("cuda:")
    count = int(cupy.cuda.runtime.getDeviceCount())
    if not number.isdecimal() or int(number) >= count:
        known = ", ".join(f"'cuda:{i}'" for i in range(count))
        raise DeviceError(f"device {name!r} is not there; give 'cpu', 'gpu' or one of {known}.")
    return int(number)
