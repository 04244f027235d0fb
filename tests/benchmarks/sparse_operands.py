"""Operands of sparse products: a matrix to time kernels with, and one of its pattern to check them on."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

from blockvec.backends.base import Candidate
from blockvec.backends.base import DeviceArray as Array
from blockvec.backends.cuda import elementwise, sparse
from blockvec.backends.cuda.device import Gpu, workspace
from blockvec.backends.cuda.device_csr import DeviceCsr
from blockvec.backends.cuda.probes import block_stream
from blockvec.errors import BlockvecError
from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.families import SPARSE_FAMILIES, sparse_families_of
from blockvec.kernels.measure import Stopwatch, Timing
from blockvec.kernels.problem import MAX_ALIGNMENT, SpmmvProblem, itemsize, promote
from blockvec.kernels.sparse.family import SparseFamily
from tests.benchmarks.contest import Variant
from tests.benchmarks.dense_operands import time_in_turns


class SparseOperands:
    """A matrix and blocks on which to check and time all kernels of one problem, and their exact product.

    `problem` is a `kind`; `others` are kernels that are not blockvec's, by name.
    """

    def __init__(
        self,
        gpu: Gpu,
        problem: SpmmvProblem,
        matrix: DeviceCsr,
        others: dict[str, Candidate],
        stopwatch: Callable[[], Stopwatch],
    ) -> None:
        import cupy
        from cupyx.scipy.sparse import csr_matrix

        self.problem = problem
        self._gpu, self._others, self._stopwatch = gpu, others, stopwatch
        values = cupy.empty(matrix.nnz, problem.dtype_matrix)
        _fill_exact(gpu, values, 0)
        arrays = {"shape": matrix.shape, "indptr": matrix.indptr, "indices": matrix.indices, "data": values}
        self._exact = DeviceCsr(types.SimpleNamespace(**arrays), gpu.info)
        self._matrix = matrix
        self._X = _block(problem.n_cols, problem.width, problem.ldx, problem.align_x, problem.dtype_x)
        self._Y = _block(problem.n_rows, problem.width, problem.ldy, problem.align_y, problem.dtype)
        _fill_exact(gpu, self._X, 1)
        # Sums of products of small integers are exact in any order.
        whole = csr_matrix((values, self._exact.indices, self._exact.indptr), shape=matrix.shape)
        self._Y[...] = whole @ cupy.ascontiguousarray(self._X)
        self._factors, self._expected = (1, 0, 0), self._Y.copy()
        if problem.beta != "zero":
            self._factors = 2, -1, 1
            self._expected = 2 * (self._expected - self._X) - self._X
        self._expected_sums = _sums(problem, self._X, self._expected)
        self._sums = [
            {name: cupy.empty_like(array) for name, array in sums.items()} for sums in self._expected_sums
        ]

    def check(self, variant: Variant) -> str:
        """Run a kernel on small integers; describe the error, "" if there is none."""
        import cupy

        self._Y[...] = float("nan") if self.problem.beta == "zero" else self._X
        try:
            self._call(variant, self._exact)()
            right = bool(cupy.array_equal(self._Y, self._expected))
            for sums, expected in zip(self._sums, self._expected_sums, strict=True):
                right &= all(bool(cupy.array_equal(sums[name], expected[name])) for name in sums)
        except (BlockvecError, cupy.cuda.driver.CUDADriverError) as error:
            return f"{type(error).__name__}: {error}"
        return "" if right else "differs from the reference"

    def time(self, field: Sequence[Variant], seconds: float) -> list[Timing]:
        """Time kernels in turns."""
        calls = [self._call(variant, self._matrix) for variant in field]
        wait = functools.partial(block_stream, self._gpu)
        return time_in_turns(calls, self._stopwatch, seconds, before_burst=wait)

    def _call(self, variant: Variant, matrix: DeviceCsr) -> Callable[[], None]:
        if variant.config is None:
            run = self._others[variant.kernel].run
            return lambda: run(self.problem, matrix, self._X, self._Y, 1, 0, 0)
        family = SPARSE_FAMILIES[variant.kernel]
        launch, needed = sparse.launcher(self._gpu, family, self.problem, variant.config, matrix)
        optional: dict[str, Any] = {}
        if needed:
            optional["workspace_ptr"] = workspace(self._gpu, needed, is_passed_on=True).data.ptr
        for key, sums in zip(("dots", "gram"), self._sums, strict=True):
            if sums:
                optional[key] = {name: array.data.ptr for name, array in sums.items()}
        return lambda: launch(self._X.data.ptr, self._Y.data.ptr, *self._factors, **optional)


def variants_of(problem: SpmmvProblem, device: DeviceInfo, first: int) -> list[Variant]:
    """List the first configurations of each family by predicted time, after the model's choice."""
    found = [
        (family.name, *timed)
        for family in sparse_families_of(problem)
        if family.supports(problem, device) is None
        for timed in _ranked(family, problem, device)[:first]
    ]
    return [Variant(name, config, time_s, place) for place, (name, time_s, config) in enumerate(found)]


def _ranked(family: SparseFamily[Any], problem: SpmmvProblem, device: DeviceInfo) -> list[tuple[float, Any]]:
    """List a family's choice, then its other configurations by predicted time, the shortest first."""
    choice = family.choose(problem, device)
    configs = [c for c in family.configurations(problem, device) if family.refuse_sums(problem, c) is None]
    timed = [(family.predict(problem, config, device), config) for config in configs]
    return sorted(timed, key=lambda pair: (pair[1] != choice, pair[0]))


def _block(rows: int, width: int, ld: int, align: int, dtype: str) -> Array:
    """Allocate a block with a pitch and exactly an alignment."""
    import cupy

    offset = max(1, align // itemsize(dtype)) if align < MAX_ALIGNMENT else 0
    memory = cupy.empty(rows * ld + offset, dtype)
    return memory[offset:].reshape(rows, ld)[:, :width]


def _sums(problem: SpmmvProblem, X: Array, Y: Array) -> tuple[dict[str, Array], dict[str, Array]]:
    """Compute the column dots and Gram matrices of a problem."""
    wide = promote(problem.dtype, "float64")
    blocks = {"x": X.astype(wide), "y": Y.astype(wide)}
    dots, gram = {}, {}
    for name in problem.dots:
        left, right = (blocks[letter] for letter in name)
        sums = (left.conj() * right).sum(axis=0)
        dots[name] = sums.astype(Y.dtype) if name == "xy" else sums.real.astype(Y.real.dtype)
    for name in problem.gram:
        left, right = (blocks[letter] for letter in name)
        gram[name] = (left.conj().T @ right).astype(Y.dtype)
    return dots, gram


def _fill_exact(gpu: Gpu, array: Array, seed: int) -> None:
    """Fill with -1, 0 and 1, also the real and imaginary parts of complex numbers."""
    import cupy

    values = cupy.empty(array.size, array.dtype)
    elementwise.fill_random(gpu, values.reshape(-1, 1), seed, 0)
    parts = values.view(values.real.dtype)
    parts[...] = cupy.sign(parts) * (abs(parts) > 1 / 3)
    array[...] = values.reshape(array.shape)
