"""Operands of products of blocks: beyond the caches to time kernels, and exact ones to check them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from blockvec.backends.base import Candidate
from blockvec.backends.base import DeviceArray as Array
from blockvec.backends.cuda import dense, elementwise
from blockvec.backends.cuda.device import Gpu, type_name
from blockvec.backends.cuda.probes import block_stream
from blockvec.errors import BlockvecError
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.measure import Stopwatch, Timing, measure_beside
from blockvec.kernels.problem import (
    MAX_ALIGNMENT,
    TsmmProblem,
    TsmttsmProblem,
    is_complex,
    itemsize,
    real_bytes,
)
from blockvec.kernels.roofline import flops, traffic
from tests.benchmarks.contest import Variant

Product: TypeAlias = TsmttsmProblem | TsmmProblem

OPERAND_BYTES = 2 << 30  # of the wider operand, while it is timed
BEYOND_CACHES = 512 << 20  # operands below are rotated
EXACT_BYTES = 48 << 20  # of the wider operand, while it is checked
RAGGED_ROWS = 37  # so that no tile height divides the rows
SHIFT, SPARE_NUMBERS = 1009, 8192  # exact operands begin at different places of one sequence, which is longer
SMALL_BYTES = 1 << 20  # results up to here are compared on the host
# Tensor products reach the power limit of a GPU within milliseconds. Its clock then depends on the kernels
# before, and bursts cannot be compared unless the GPU rests in between.
HOT = 9.0  # flops per byte
COOL_S = 0.02  # of rest
WORK_SHARE = 0.2  # of the time, which is left to work


class DenseOperands:
    """Operands for every variant of one problem on the current device, and the expected product.

    `others` are kernels that are of no family, by name.
    """

    def __init__(
        self,
        gpu: Gpu,
        problem: Product,
        others: dict[str, Candidate],
        stopwatch: Callable[[], Stopwatch],
    ) -> None:
        self._gpu, self._others, self._stopwatch = gpu, others, stopwatch
        self.problem = problem
        self._small = with_rows(problem, EXACT_BYTES, RAGGED_ROWS)
        self._exact = _operands(gpu, self._small, 1, _fill_exact)[0]
        sets = 1 if problem.K * max(problem.lda, problem.ldb) * itemsize(problem.dtype) > BEYOND_CACHES else 2
        self._sets = itertools.cycle(_operands(gpu, self.problem, sets, _fill_random))
        expected = self._reference()
        # CuPy compiles a reduction anew for every few sizes, and seconds long beside busy compilers.
        self._expected = expected.get() if expected.nbytes <= SMALL_BYTES else expected

    def _reference(self) -> Array:
        """Return the product of the exact operands: small integers, the same in any order of summation."""
        import cupy

        first, second, third = self._exact
        wide = "complex128" if is_complex(self.problem.dtype) else "float64"
        if isinstance(self.problem, TsmttsmProblem):
            left = first.conj() if self._small.conj else first
            return cupy.matmul(left.T.astype(wide, copy=False), second.astype(wide, copy=False))
        product = cupy.matmul(first.astype(wide, copy=False), second.astype(wide, copy=False))
        return product if self.problem.beta == "zero" else product + third

    def check(self, variant: Variant) -> str:
        """Run a variant on the exact operands; describe the error, "" if there is none."""
        import cupy

        first, second, out = self._exact
        kept = first.copy() if _in_place(self.problem) else out.copy()
        beta = 0 if self.problem.beta == "zero" else 1
        if not beta and not _in_place(self.problem):
            out.fill(float("nan"))
        try:
            self._runner(variant, self._small)(first, second, out, 1, beta)
            if isinstance(self._expected, np.ndarray):
                right = np.array_equal(out.get(), self._expected)
            else:
                right = bool(cupy.array_equal(out, self._expected))
        except (BlockvecError, cupy.cuda.driver.CUDADriverError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            (first if _in_place(self.problem) else out)[...] = kept
        return "" if right else "differs from the reference"

    def time_in_turns(self, field: Sequence[Variant], seconds: float) -> list[Timing]:
        """Time variants in turns on rotating operands."""
        calls = [self._call(variant) for variant in field]
        how: dict[str, Any] = {"before_burst": functools.partial(block_stream, self._gpu)}
        if is_hot(self.problem):
            seconds, how = WORK_SHARE * seconds, how | {"pause_s": COOL_S}
        return time_in_turns(calls, self._stopwatch, seconds, **how)

    def _call(self, variant: Variant) -> Callable[[], None]:
        run = self._runner(variant, self.problem)
        beta = 0 if self.problem.beta == "zero" else 1

        return lambda: run(*next(self._sets), 1, beta)

    def _runner(self, variant: Variant, problem: Product) -> Callable[..., None]:
        if variant.config is None:
            return lambda *operands: self._others[variant.kernel].run(problem, *operands)
        loaded = dense.load(self._gpu, FAMILIES[variant.kernel], problem, variant.config)
        return functools.partial(dense.runner(self._gpu, problem, lambda: loaded), problem)


def operands(backend: Any, problem: Product) -> DenseOperands:
    """Create operands on which to check and time any configuration, and all candidates by name."""
    others = {c.name: c for c in backend.candidates(problem) if not c.refusal}
    gpu = backend._gpu
    return gpu.on_device(DenseOperands)(gpu, problem, others, backend.stopwatch)  # type: ignore[no-any-return]


def time_in_turns(
    calls: Sequence[Callable[[], None]], stopwatch: Callable[[], Stopwatch], seconds: float, **how: Any
) -> list[Timing]:
    """Time calls alternately, in bursts, for about `seconds` seconds; see `measure_beside`."""
    by_place = {str(place): call for place, call in enumerate(calls)}
    budget_s = seconds / len(calls)
    timings = measure_beside(by_place, stopwatch, budget_s=budget_s, min_rounds=1, max_rounds=8, **how)
    return list(timings.values())


def is_hot(problem: Product) -> bool:
    """Check whether a product takes much power."""
    return flops(problem) > HOT * traffic(problem).total_bytes


def _in_place(problem: Product) -> bool:
    return isinstance(problem, TsmmProblem) and problem.inplace


def with_rows(problem: Product, operand_bytes: int = OPERAND_BYTES, odd: int = 0) -> Any:
    """Return a problem of the same kind whose wider operand has about so many bytes."""
    row_bytes = max(problem.lda, problem.ldb, problem.M, problem.N) * itemsize(problem.dtype)
    return dataclasses.replace(problem, K=max(1, operand_bytes // row_bytes - odd))


Fill: TypeAlias = Callable[[Gpu, Array, int], None]


def _fill_random(gpu: Gpu, flat: Array, seed: int) -> None:
    elementwise.fill_random(gpu, flat.reshape(-1, 1), seed, 0)


def _fill_exact(gpu: Gpu, flat: Array, seed: int) -> None:
    """Fill with -1, 0 and 1, whose sums of products are exact in any order."""
    begin = SHIFT * seed
    flat[...] = _exact_numbers(gpu, type_name(flat))[begin : begin + flat.size]


@functools.lru_cache(maxsize=1)
def _exact_numbers(gpu: Gpu, dtype: str) -> Array:
    """Return more numbers than the wider operand has; made on the host, for CuPy to compile nothing."""
    import cupy

    size = EXACT_BYTES // itemsize(dtype) + SPARE_NUMBERS
    parts = np.random.default_rng(1).integers(-1, 2, (2 if is_complex(dtype) else 1) * size, dtype=np.int8)
    return cupy.asarray(parts.astype(f"f{real_bytes(dtype)}").view(dtype))


def _operands(gpu: Gpu, problem: Product, count: int, fill: Fill) -> list[tuple[Array, ...]]:
    """Return sets of operands with the problem's pitches and alignments, in the order kernels take them."""
    import cupy

    K, M, N = problem.K, problem.M, problem.N
    seeds = itertools.count()

    def tall(width: int, ld: int, align: int, dtype: str) -> Array:
        size, pitch = itemsize(dtype), max(ld, width)
        offset = max(1, align // size) if align < MAX_ALIGNMENT or pitch > width else 0
        memory = cupy.empty(K * pitch + offset, dtype)
        fill(gpu, memory, next(seeds))
        return memory[offset:].reshape(K, pitch)[:, :width]

    sets = []
    for _ in range(count):
        A = tall(M, problem.lda, problem.align_a, problem.dtype_a)
        if isinstance(problem, TsmttsmProblem):
            B = A if problem.same else tall(N, problem.ldb, problem.align_b, problem.dtype_b)
            sets.append((A, B, cupy.empty((M, N), problem.dtype)))
            continue
        C = cupy.empty((M, N), problem.dtype_c)
        fill(gpu, C.reshape(-1), next(seeds))
        if problem.inplace and fill is _fill_random:
            numbers = C.get()
            numbers /= np.abs(numbers).sum(axis=0).max()  # or repeated products would overflow
            C.set(numbers)
        B = A[:, :N] if problem.inplace else tall(N, problem.ldb, problem.align_b, problem.dtype)
        sets.append((A, C, B))
    return sets
