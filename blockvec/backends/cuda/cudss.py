"""Factors of Hermitian matrices on a GPU, by cuDSS through nvmath-python's bindings.

cuDSS takes the upper triangle of a Hermitian matrix, and right-hand sides by columns: a row-major block is
transposed before and after each solve. The analysis (an order of the columns, the pattern of the factors,
their memory) depends on the pattern only, and takes many times as long as the numbers. Its deterministic mode
solves for one column at a time, and needs the factors on the device.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import sys
import threading
import weakref
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CapacityError, DeviceError, OptionError
from ...kernels.problem import TYPES
from ...system.config import options
from ...system.installation import install_command
from ...system.memory import available_memory
from ..base import DeviceArray as Array
from ..base import Factors
from ..host.superlu import HostFactors
from .device import Gpu

LIBRARY = "libcudss.so.0" if sys.platform == "linux" else "cudss64_0.dll"
INDEX_32, INDEX_64 = 10, 24  # cudaDataType_t
SLACK = 1.02  # of the estimate of memory, for allocations in whole pages
ESTIMATES = 16  # numbers in cuDSS's record of estimated bytes
PERMANENT_DEVICE, PEAK_DEVICE, PERMANENT_HOST, LEAST_HYBRID = 0, 1, 2, 4  # their places


@functools.cache
def bindings() -> Any:
    """Import nvmath-python's bindings of cuDSS, and load the library.

    If one is not installed, a `DeviceError` says how to install it.
    """
    try:
        cudss = importlib.import_module("nvmath.bindings.cudss")
        versions = [int(cudss.get_property(part)) for part in range(2)]
    except Exception as error:  # a missing library is another exception in each version of the bindings
        raise DeviceError(
            f"sparse factorizations on a GPU need cuDSS and nvmath-python ({error}); they come with "
            f"{install_command('cuda13')} (cuda12 for CUDA 12). Or give the matrix as one of SciPy with "
            "device='cpu'."
        ) from error
    if versions != [0, 8]:  # numbers of options and records differ between versions
        raise DeviceError(
            f"cuDSS {versions[0]}.{versions[1]} is installed, the bindings need 0.8: "
            f"{install_command('cuda13')} (cuda12 for CUDA 12)."
        )
    return cudss


@functools.cache
def is_available() -> bool:
    """Check whether cuDSS can be used; nvmath-python, slow to import, only where its package is unknown."""
    if importlib.util.find_spec("nvmath") is None:
        return False
    import cupy

    major = cupy.cuda.runtime.runtimeGetVersion() // 1000
    with contextlib.suppress(metadata.PackageNotFoundError):
        if metadata.version(f"nvidia-cudss-cu{major}").startswith("0.8."):
            return True
    try:
        ctypes.CDLL(LIBRARY)
        bindings()
    except (OSError, DeviceError):
        return False
    return True


_handles = threading.local()  # cuDSS's contexts are of one thread and one device


def _handle(gpu: Gpu) -> int:
    known = _handles.__dict__.setdefault("by_device", {})
    if gpu.id not in known:
        cudss = bindings()
        known[gpu.id] = cudss.create()
        layer = _threading_layer()
        if layer:
            cudss.set_threading_layer(known[gpu.id], layer)
    return int(known[gpu.id])


@functools.cache
def _threading_layer() -> str:
    """Find cuDSS's library of OpenMP threads, which the analysis runs on; empty without one."""
    for line in Path("/proc/self/maps").read_text().splitlines() if Path("/proc/self/maps").exists() else ():
        if "libcudss.so" in line:
            found = sorted(Path(line.split(maxsplit=5)[5]).parent.glob("libcudss_mtlayer_gomp.so*"))
            return str(found[0]) if found else ""
    return ""


class CudssFactors(Factors):
    """Factors L D L^H of matrices of one pattern."""

    def __init__(self, gpu: Gpu, dtype: str) -> None:
        bindings()
        self._gpu, self._dtype = gpu, np.dtype(dtype)
        self._system: _System | None = None

    def compute(self, matrix: Any, exchanges_rows: bool) -> bool:
        return bool(self._gpu.on_device(self._compute)(matrix, exchanges_rows))

    def _compute(self, matrix: Any, exchanges_rows: bool) -> bool:
        system = self._system
        self.entries = self.nbytes = 0
        if system is None or system.is_general != exchanges_rows or system.stored != matrix.nnz:
            self._system = None  # frees its factors
            self._system = system = _System(self._gpu, self._dtype, matrix, exchanges_rows)
        self.entries, self.nbytes = system.entries, int(system.estimates[PERMANENT_DEVICE])
        return system.factorize(matrix.data)

    @property
    def negative(self) -> int | None:
        if self._system is None or self._system.is_general:
            return None
        return int(self._system.get("INERTIA", np.zeros(2, self._system.index_type))[1])

    def solve(self, B: Array) -> Array:
        assert self._system is not None
        return self._gpu.on_device(self._system.solve)(B)


class CopiedFactors(HostFactors):
    """Factors of a small matrix of a GPU, on the host."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self._gpu = gpu

    def compute(self, matrix: Any, exchanges_rows: bool) -> bool:
        return super().compute(self._gpu.on_device(matrix.get)(), exchanges_rows)

    def solve(self, B: Array) -> Array:
        import cupy

        solved = np.ascontiguousarray(super().solve(self._gpu.on_device(B.get)()))  # SuperLU returns columns
        return self._gpu.on_device(cupy.asarray)(solved)


class _System:
    """A pattern, its analysis, and the latest numbers."""

    def __init__(self, gpu: Gpu, dtype: np.dtype[Any], matrix: Any, is_general: bool) -> None:
        import cupy

        self.gpu, self.dtype, self.is_general = gpu, dtype, is_general
        self.n, self.stored = int(matrix.shape[0]), int(matrix.nnz)
        self.index_type = np.dtype(matrix.indices.dtype)
        if is_general:
            self._taken, self._indptr, self._indices = slice(None), matrix.indptr, matrix.indices
        else:
            rows = matrix.tocoo(copy=False).row
            self._taken = cupy.flatnonzero(matrix.indices >= rows)  # sorted by rows, as before
            self._indices = matrix.indices[self._taken]
            counts = cupy.bincount(rows[self._taken], minlength=self.n)
            self._indptr = cupy.concatenate([cupy.zeros(1, counts.dtype), cupy.cumsum(counts)])
            self._indptr = self._indptr.astype(self.index_type)
        self._values = matrix.data[self._taken]
        self._begin(is_hybrid=False)
        needed, free = int(self.estimates[PEAK_DEVICE] * SLACK), _free_bytes()
        if needed > free:
            self._release()
            self._begin(is_hybrid=True)
            least, host = int(self.estimates[LEAST_HYBRID] * SLACK), int(self.estimates[PERMANENT_HOST])
            available = available_memory()
            if least > _free_bytes() or (available is not None and host > available):
                raise CapacityError(
                    f"the factors of a matrix with {self.n} rows and {self.stored} elements need "
                    f"{needed / 1e9:.3g} GB on cuda:{gpu.id}, {free / 1e9:.3g} GB are free, or "
                    f"{least / 1e9:.3g} GB there and {host / 1e9:.3g} GB of the host; use an iteration "
                    "(method='filter' or 'jd'), or a GPU with more memory."
                )
        self._has_numbers = False
        self.entries = int(self.get("LU_NNZ", np.zeros(1, np.int64))[0])

    def _begin(self, *, is_hybrid: bool) -> None:
        import cupy

        cudss = bindings()
        self._handle = _handle(self.gpu)
        self._config, self._data = cudss.config_create(), cudss.data_create(self._handle)
        index = INDEX_64 if self.index_type.itemsize == 8 else INDEX_32
        kind = cudss.MatrixType.HERMITIAN if self.dtype.kind == "c" else cudss.MatrixType.SYMMETRIC
        self._matrix = cudss.matrix_create_csr(
            *(self.n, self.n, int(self._values.size)),
            *(self._indptr.data.ptr, 0, self._indices.data.ptr, self._values.data.ptr),
            *(index, index, TYPES[self.dtype.name].cuda),
            cudss.MatrixType.GENERAL if self.is_general else kind,
            cudss.MatrixViewType.FULL if self.is_general else cudss.MatrixViewType.UPPER,
            cudss.IndexBase.ZERO,
        )
        # cuDSS wants a solution and a right-hand side in every phase, and uses them in solves only.
        self._unused = [cupy.empty((1, self.n), self.dtype) for _ in "xb"]
        self._blocks = [self._dense(array) for array in self._unused]
        self._release = weakref.finalize(
            self, _destroy, self._handle, self._config, self._data, self._matrix, *self._blocks
        )
        self._release.atexit = False
        self._repeats = options().deterministic and not is_hybrid
        self._set("DETERMINISTIC_MODE", int(self._repeats))
        if self.is_general:
            self._set("MATCHING_ALG", int(cudss.MatchingAlg.MAX_DIAG_PRODUCT))
        if is_hybrid:
            self._set("HYBRID_MEMORY_MODE", 1)
        self._execute("ANALYSIS", *self._blocks)
        self.estimates = self.get("MEMORY_ESTIMATES", np.zeros(ESTIMATES, np.int64))

    def factorize(self, data: Array) -> bool:
        """Compute the numbers for the elements of a matrix; return whether no pivot was replaced."""
        self._values[...] = data[self._taken]
        self._execute("REFACTORIZATION" if self._has_numbers else "FACTORIZATION", *self._blocks)
        self._has_numbers = True
        return not int(self.get("NPIVOTS", np.zeros(1, self.index_type))[0])

    def solve(self, B: Array) -> Array:
        """Solve for a row-major block."""
        import cupy

        n, m = B.shape
        right, solution = cupy.empty((m, n), self.dtype), cupy.empty((m, n), self.dtype)
        right[...] = B.T
        step = 1 if self._repeats else m
        for begin in range(0, m, step):
            columns = slice(begin, begin + step)
            blocks = [self._dense(array[columns]) for array in (solution, right)]
            try:
                self._execute("SOLVE", *blocks)
            finally:
                for block in blocks:
                    bindings().matrix_destroy(block)
        return cupy.ascontiguousarray(solution.T)

    def _dense(self, array: Array) -> int:
        """Describe the columns of a block, which are the rows of an array."""
        m, n = array.shape
        return int(bindings().matrix_create_dn(n, m, n, array.data.ptr, TYPES[self.dtype.name].cuda, 0))

    def get(self, name: str, into: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Query a result of cuDSS; waits for the device."""
        cudss, written = bindings(), np.zeros(1, np.uint64)
        place = into.ctypes.data, into.nbytes, written.ctypes.data
        cudss.data_get(self._handle, self._data, getattr(cudss.DataParam, name), *place)
        return into

    def _set(self, name: str, value: int) -> None:
        cudss = bindings()
        parameter = getattr(cudss.ConfigParam, name)
        number = np.array([value], cudss.get_config_param_dtype(parameter))
        cudss.config_set(self._config, parameter, number.ctypes.data, number.itemsize)

    def _execute(self, phase: str, solution: int, right: int) -> None:
        import cupy

        cudss = bindings()
        cudss.set_stream(self._handle, cupy.cuda.get_current_stream().ptr)
        phases = getattr(cudss.Phase, phase)
        try:
            cudss.execute(self._handle, phases, self._config, self._data, self._matrix, solution, right)
        except cudss.cuDSSError as error:
            raise OptionError(
                f"cuDSS failed in its phase {phase.lower()} for a matrix with {self.n} rows and "
                f"{self.stored} elements: {error}. Use an iteration (method='filter' or 'jd')."
            ) from error


def _destroy(handle: int, config: int, data: int, *matrices: int) -> None:
    cudss = bindings()
    for matrix in matrices:
        cudss.matrix_destroy(matrix)
    cudss.data_destroy(handle, data)
    cudss.config_destroy(config)


def _free_bytes() -> int:
    """Query the free memory of the current device, after CuPy's pool has returned what it does not use."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    return int(cupy.cuda.runtime.memGetInfo()[0])
