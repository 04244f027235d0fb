"""Tuning of sparse products on a matrix, checked on one of the same pattern with small integers."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import itertools
import types
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from ....config import options
from ....errors import BlockvecError, OptionError
from ....kernels.device import DeviceInfo
from ....kernels.families import SPARSE_FAMILIES, sparse_families_of
from ....kernels.launch import GRID_HEADER_BYTES
from ....kernels.measure import Stopwatch, Timing
from ....kernels.problem import MAX_ALIGNMENT, SpmmvProblem, itemsize, promote
from ....kernels.roofline import Ceilings
from ....kernels.sparse.family import SparseFamily
from ....kernels.tuning.selection import Outcome, Variant, compile_fault, select_fastest
from ....kernels.tuning.winners import store
from ...base import Candidate
from ...base import DeviceArray as Array
from .. import cusparse, elementwise, sparse
from ..device import Gpu
from ..device_csr import DeviceCsr
from ..probes import block_stream
from ..workspace import workspace
from .dense import time_in_turns

WORTH = 0.98  # of the time without: a second copy of the matrix must gain more than timings scatter


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
        cusparse.spmmv(gpu, problem.plain, self._exact, self._X, self._Y, 1, 0, 0)
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
            optional["workspace_ptr"] = workspace(self._gpu, needed).data.ptr + GRID_HEADER_BYTES
        for key, sums in zip(("dots", "gram"), self._sums, strict=True):
            if sums:
                optional[key] = {name: array.data.ptr for name, array in sums.items()}
        return lambda: launch(self._X.data.ptr, self._Y.data.ptr, *self._factors, **optional)


class SparseTuning:
    """The tuning of products with one matrix; its kernels are compiled while others are measured.

    The problem's `kind` is tuned, on `gpu`, CuPy's current device, with the `first` configurations of each
    family in the order of its model.
    """

    def __init__(
        self,
        gpu: Gpu,
        problem: SpmmvProblem,
        matrix: DeviceCsr,
        candidates: Sequence[Candidate],
        ceilings: Ceilings,
        stopwatch: Callable[[], Stopwatch],
        executor: Executor,
        *,
        first: int = 10,
    ) -> None:
        self.problem = problem.kind
        self._gpu, self._matrix, self._ceilings, self._stopwatch = gpu, matrix, ceilings, stopwatch
        self._others = {c.name: c for c in candidates if not c.refusal and c.name not in SPARSE_FAMILIES}
        self._cache_dir = options().cache_dir
        self._variants = variants_of(self.problem, gpu.info, ceilings, first)
        sources = {text for variant in self._variants for text in self._sources(variant)}
        self._jobs = [
            executor.submit(compile_fault, text, gpu.info.architecture, self._cache_dir) for text in sources
        ]

    def _sources(self, variant: Variant) -> list[str]:
        family, problem, config = SPARSE_FAMILIES[variant.kernel], self.problem, variant.config
        parts = family.parts(problem, config, self._matrix.plan)
        return [family.source(problem, config, self._gpu.info, part) for part in parts]

    def measure(self, budget_s: float) -> Outcome:
        """Select the fastest correct kernel and store it in the user's cache folder; waits for the device.

        Raises
        ------
        OptionError
            If no kernel gives the right product.
        """
        concurrent.futures.wait(self._jobs)
        forms = self._matrix.forms
        kept = set(forms)  # captured graphs may refer to them
        outcome: Outcome | None = self._gpu.on_device(self._select_fastest)(budget_s)
        if outcome is None:
            raise OptionError(f"{self.problem.operation}: no kernel is right for {self.problem}.")
        winner = outcome.winner(self.problem, self._ceilings)
        store(self.problem, winner, self._gpu.info, self._cache_dir)
        self._matrix.bound.clear()
        self._matrix.awaited.clear()
        if (family := SPARSE_FAMILIES.get(winner.kernel)) is not None:
            kept.add(sparse.form_key(self._gpu, family, self.problem, winner.config, self._matrix))
        for key in forms.keys() - kept:
            del forms[key]
        return outcome

    def _select_fastest(self, budget_s: float) -> Outcome | None:
        operands = SparseOperands(self._gpu, self.problem, self._matrix, self._others, self._stopwatch)
        variants = [*map(Variant, self._others), *self._variants]
        outcome = select_fastest(variants, operands.check, operands.time, budget_s=budget_s)
        return outcome if outcome is None else without_conversion(outcome)


def without_conversion(outcome: Outcome) -> Outcome:
    """Prefer the best kernel that takes the matrix as it is, unless a converted one gains enough."""
    as_it_is = [t for t in outcome.trials if t.timing is not None and not _converts(t.variant.kernel)]
    best = min(as_it_is, key=lambda trial: trial.timing.median_s, default=outcome.best)  # type: ignore[union-attr]
    worth = outcome.seconds < WORTH * Outcome(best, ()).seconds
    return outcome if worth else dataclasses.replace(outcome, best=best)


def _converts(kernel: str) -> bool:
    family = SPARSE_FAMILIES.get(kernel)
    return family is not None and family.converts


def variants_of(problem: SpmmvProblem, device: DeviceInfo, ceilings: Ceilings, first: int) -> list[Variant]:
    """List the first configurations of each family by predicted time, after the model's choice."""
    found = [
        (family.name, *timed)
        for family in sparse_families_of(problem)
        if family.supports(problem, device) is None
        for timed in _ranked(family, problem, device, ceilings)[:first]
    ]
    return [Variant(name, config, time_s, place) for place, (name, time_s, config) in enumerate(found)]


def _ranked(
    family: SparseFamily[Any], problem: SpmmvProblem, device: DeviceInfo, ceilings: Ceilings
) -> list[tuple[float, Any]]:
    """List a family's choice, then its other configurations by predicted time, the shortest first."""
    choice = family.choose(problem, device, ceilings)
    valid = (c for c in family.space(problem, device) if family.refuse(problem, c, device) is None)
    every = dict.fromkeys(itertools.chain([choice], valid))
    configs = [config for config in every if family.refuse_sums(problem, config) is None]
    timed = [(family.predict(problem, config, device, ceilings), config) for config in configs]
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
