"""The host backend: NumPy arrays, nothing to compile, all cores."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from ...kernels.device import DeviceInfo, host_device
from ...kernels.measure import CeilingProbe, HostStopwatch
from ...kernels.problem import Problem, SpmmvProblem, StreamProblem, TsmmProblem, TsmttsmProblem, is_complex
from ...kernels.roofline import traffic
from ...system.config import options
from ..base import Array, Backend, Candidate
from . import elementwise, llvm, panels, sparse_kernel
from .sparse import RowBlocks, spmmv
from .threads import map_rows

if TYPE_CHECKING:
    from .chain import ChainBlocks
    from .superlu import HostFactors

_device = functools.cache(host_device)
SMALL_BYTES = 256 << 10  # below this, one NumPy call is faster than panels
PROBE_BYTES = 512 << 20  # exceeds the last-level caches of large servers


class HostBackend(Backend):
    """Block operations on NumPy arrays in main memory."""

    name = "cpu"
    xp = np
    __hash__ = object.__hash__

    @property
    def device(self) -> DeviceInfo:
        return _device(options().threads)

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        match problem:
            case TsmttsmProblem():
                return (
                    Candidate("panels", panels.tsmttsm, _panel_refusal(problem)),
                    Candidate("blas", _blas_tsmttsm),
                )
            case TsmmProblem():
                scales = problem.M == problem.N == 1 and problem.dtype_a == problem.dtype
                return (
                    Candidate("scale", _scale_column, None if scales else "more than one column"),
                    Candidate("panels", panels.tsmm, _panel_refusal(problem)),
                    Candidate("blas", _blas_tsmm),
                )
            case SpmmvProblem():
                refusal = "sums and other updates are passes of their own" if problem.fused else None
                if not problem.stored:
                    return (Candidate("chain_blocks", spmmv, refusal),)
                compiled = Candidate(
                    "csr_compiled",
                    sparse_kernel.spmmv,
                    sparse_kernel.refusal(problem),
                    configuration=llvm.describe,
                )
                return (compiled, Candidate("csr_row_blocks", spmmv, refusal))
            case StreamProblem(operation="axpby"):
                return (Candidate("chunks", elementwise.axpby),)
            case StreamProblem(operation="column_dot"):
                return (Candidate("chunks", elementwise.column_dots),)
            case _:
                return ()

    def prepare_sparse(self, matrix: Any) -> RowBlocks | ChainBlocks:
        if hasattr(matrix, "indptr"):
            return RowBlocks(matrix)
        from .chain import ChainBlocks

        return ChainBlocks(matrix)

    def scaled_csr(self, matrix: Any, factor: float, dtype: np.dtype[Any]) -> Any:
        return matrix.scaled(factor, dtype)

    def csr(self, matrix: Any, dtype: np.dtype[Any]) -> Any:
        is_here = isinstance(matrix, np.ndarray) or sp.issparse(matrix)
        rows = sp.csr_array(matrix if is_here else matrix.get()).astype(dtype, copy=False)
        if not rows.has_canonical_format:
            rows = rows.copy()
            rows.sum_duplicates()
        return rows

    def factors(self, matrix: Any) -> HostFactors:
        from .superlu import HostFactors

        return HostFactors()

    def factor_library(self, dtype: str = "float64") -> str:
        from . import pardiso

        return "PARDISO" if pardiso.accepts(dtype) else "SuperLU"

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        return np.empty(shape, dtype)

    def from_host(self, array: Array) -> Array:
        return np.array(array, order="C")

    to_host = from_host

    def start_copies(self, *arrays: Array) -> Callable[[], list[Array]]:
        copies = [np.array(array, order="C") for array in arrays]
        return lambda: copies

    def inverse_factor(self, G: Array, limit: float) -> tuple[Array, Array]:
        width = len(G)
        wide = G.astype(np.complex128 if G.dtype.kind == "c" else np.float64)
        report = np.zeros((3 * width + 1, width), wide.dtype)
        hermitian, R, T = (report[i * width : (i + 1) * width] for i in range(3))
        hermitian[:] = (wide + wide.conj().T) / 2
        R[:] = T[:] = np.eye(width)
        report[-1, :1] = np.inf
        with contextlib.suppress(np.linalg.LinAlgError):  # not positive definite
            factor = np.linalg.cholesky(hermitian).conj().T
            inverse = np.linalg.inv(factor)
            growth = np.diagonal(wide).real @ (np.abs(inverse) ** 2).sum(axis=1)
            if growth < limit:
                R[:], T[:], report[-1, :1] = factor, inverse, growth
        return T.astype(G.dtype), report

    def fill_random(self, out: Array, key: int, offset: int) -> None:
        numbers = panels.real_view(out)
        width = numbers.shape[1]

        def work(begin: int, end: int) -> None:
            rows = max(1, SMALL_BYTES // (8 * max(width, 1)))
            for row in range(begin, end, rows):
                stop = min(row + rows, end)
                numbers[row:stop] = _uniform(key, offset + row * width, (stop - row, width), out.dtype)

        panels.spread_rows(work, len(numbers), numbers.nbytes)

    def stopwatch(self) -> HostStopwatch:
        return HostStopwatch()

    def ceiling_probes(self) -> Sequence[CeilingProbe]:
        size = PROBE_BYTES // 8
        x, y = np.ones(size), np.ones(size)
        y_bytes = y.view(np.uint8)
        probes = [
            CeilingProbe("read", lambda: map_rows(lambda a, b: np.dot(x[a:b], x[a:b]), size), x.nbytes),
            CeilingProbe("read", lambda: map_rows(lambda a, b: np.dot(x[a:b], y[a:b]), size), 2 * x.nbytes),
            # NumPy clears bytes with memset, whose stores need not read the lines they overwrite.
            CeilingProbe("write", lambda: map_rows(lambda a, b: y_bytes[a:b].fill(0), y.nbytes), y.nbytes),
            CeilingProbe(
                "copy", lambda: map_rows(lambda a, b: np.copyto(y[a:b], x[a:b]), size), 2 * x.nbytes
            ),
        ]
        for dtype in ("float64", "float32"):
            C = np.ones((1536, 1536), dtype)
            probes.append(CeilingProbe(dtype, functools.partial(np.matmul, C, C), 2.0 * 1536**3))
        return probes


def _panel_refusal(problem: TsmttsmProblem | TsmmProblem) -> str | None:
    if traffic(problem).total_bytes < SMALL_BYTES:
        return f"operands under {SMALL_BYTES >> 10} KiB: one NumPy call is faster"
    vector = isinstance(problem, TsmttsmProblem) and min(problem.M, problem.N) == 1
    if vector and not is_complex(problem.dtype):
        return "a single real column: BLAS dot and gemv are threaded and near the limit"
    return None


def _scale_column(problem: TsmmProblem, A: Array, C: Array, B: Array, alpha: complex, beta: complex) -> None:
    stream = StreamProblem("axpby", problem.K, 1, problem.dtype, 1, 1)
    added = None if problem.beta == "zero" else B
    elementwise.axpby(stream, A, added, B, alpha * C.astype(B.dtype)[0, 0], beta)


def _blas_tsmttsm(
    problem: TsmttsmProblem, A: Array, B: Array, C: Array, alpha: complex, beta: complex
) -> None:
    product = (A.conj() if problem.conj else A).T @ B
    if problem.same:  # BLAS may round an element and its mirror image differently
        product = (product + product.conj().T) / 2
    panels.store(product, C, alpha, beta)


def _blas_tsmm(problem: TsmmProblem, A: Array, C: Array, B: Array, alpha: complex, beta: complex) -> None:
    if problem.alpha == "one" and problem.beta == "zero" and panels.is_disjoint(problem, A, B):
        np.matmul(A, C, out=B)
    else:
        panels.store(A @ C, B, alpha, beta)


def _uniform(key: int, offset: int, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """Generate uniform numbers on [-1, 1): the Philox stream `key` from number `offset` on.

    A Philox counter yields four 64-bit numbers. Single precision keeps the leading 24 bits, so that no number
    is rounded to 1.
    """
    count = shape[0] * shape[1]
    lead = offset % 4
    stream = np.random.Philox(key=key)
    stream.advance(offset // 4)
    numbers = np.random.Generator(stream).random(lead + count)[lead:]
    if dtype.itemsize // (2 if dtype.kind == "c" else 1) == 4:
        numbers = np.floor(numbers * 2.0**24) * 2.0**-24
    return (2.0 * numbers - 1.0).reshape(shape)


HOST: Backend = HostBackend()
