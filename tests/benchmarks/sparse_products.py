"""Benchmarks of sparse products, plain and fused, compared with peers, on matrices with different limits.

A matrix and two blocks of it are usually larger than a cache; where they are not, copies of all three are
used in turn.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import itertools
import multiprocessing
import operator
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from blockvec.backends import Backend
from blockvec.bench.cases import Call, Case, case, turns
from blockvec.blocks.blockvector import BlockVector
from blockvec.errors import OptionError
from blockvec.kernels.build import machine_code
from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.families import SPARSE_FAMILIES
from blockvec.kernels.family import choose as choose_config
from blockvec.kernels.limits import ceil_div
from blockvec.kernels.problem import GRAMS, SpmmvProblem, itemsize
from blockvec.kernels.source import Kernel
from blockvec.kernels.sparse.codes import sampled_values
from blockvec.models.catalogue import open_matrix
from blockvec.operations.dispatch import choose
from blockvec.operators.sparse import SparseOperator
from blockvec.system.config import option_context, options
from blockvec.system.frozen import frozen
from tests.benchmarks.dense_products import Sizes
from tests.host_rows import HostPlan

OPERATIONS = ("apply", "apply_fused", "apply_gram")
FUSED_WIDTHS = (4, 8, 16)
MAX_COPIES = 64  # of a small matrix
WARM_UP_S = 0.15
ALPHA, BETA, SHIFT = 0.5, -0.5, 0.25  # of fused calls
FUSED: dict[str, Any] = {"alpha": "general", "beta": "general", "shift": "scalar", "dots": ("xy", "yy")}


@frozen
class Table:
    """The products that one run measures: models or files, columns of blocks, types.

    Only the first two matrices are measured in the further types.
    """

    matrices: tuple[str, ...]
    widths: tuple[int, ...] = (1, 2, 3, 4, 7, 8, 16, 32, 64)
    dtypes: tuple[str, ...] = ("float64", "complex128")
    further_dtypes: tuple[str, ...] = ("float32", "complex64")


GPU_TABLE = Table(
    (
        "laplace3d:n=160",
        "stencil27:n=128",
        "graphene:nx=2000,ny=2000,disorder=0.1",
        "banded:n=2000000,bandwidth=20000,elements=20",
        "xxz:sites=24,up=12",
        "hubbard:sites=13,up=6,down=6,u=8",
        "rmat:scale=20,edges=16",
    )
)
HOST_TABLE = Table(
    (
        "laplace3d:n=100",
        "stencil27:n=56",
        "graphene:nx=1000,ny=1000,disorder=0.1",
        "banded:n=300000,bandwidth=5000,elements=20",
        "xxz:sites=20,up=8",
        "hubbard:sites=10,up=5,down=5,u=8",
        "rmat:scale=16,edges=16",
    )
)
QUICK_TABLE = Table(("laplace3d:n=12", "rmat:scale=8"), (1, 3, 8), ("float64",), ("complex64",))


def sparse_cases(
    operations: Sequence[str], table: Table, backend: Backend, sizes: Sizes | None = None
) -> Iterator[Case]:
    """Yield cases, type by type and matrix by matrix, each with its operands in memory.

    ``"apply"`` is Y = A X beside the libraries that have it; ``"apply_fused"`` adds scale, shift, update and
    the column dots x^H y and y^H y, ``"apply_gram"`` X^H Y and Y^H Y, each beside the separate calls, in
    double precision and for those widths of the table that are among `FUSED_WIDTHS`. A matrix that is not
    sparse raises an `OptionError`.
    """
    matrices = open_matrices(table, backend)
    runs = [(dtype, name) for dtype in table.dtypes for name in table.matrices]
    runs += [(dtype, name) for dtype in table.further_dtypes for name in table.matrices[:2]]
    return itertools.chain.from_iterable(
        _cases_of(operations, name, matrices(name), dtype, table.widths, sizes or Sizes(), backend)
        for dtype, name in runs
    )


def open_matrices(table: Table, backend: Backend) -> Callable[[str], Any]:
    """Make all matrices; return a function that gets one by name.

    For a GPU separate processes make them and compile their kernels, in parallel.
    """
    if backend.device.kind != "cuda":
        return {name: _compressed(name, open_matrix(name)) for name in table.matrices}.__getitem__
    context = multiprocessing.get_context("spawn")
    n_processes = min(len(table.matrices), os.cpu_count() or 1)
    pool = concurrent.futures.ProcessPoolExecutor(n_processes, mp_context=context)
    where = (backend.device, options().cache_dir)
    coming = {name: pool.submit(_make, name, table, *where) for name in table.matrices}
    pool.shutdown(wait=False)

    @functools.cache
    def on_device(name: str) -> Any:
        from cupyx.scipy.sparse import csr_matrix

        return csr_matrix(_compressed(name, coming.pop(name).result()))

    return on_device


def _make(name: str, table: Table, device: DeviceInfo, cache_dir: Path) -> Any:
    """Make a matrix, and compile the kernels of its products into the cache."""
    A = open_matrix(name)
    if isinstance(A, np.ndarray):
        return A
    dtypes = table.dtypes + (table.further_dtypes if name in table.matrices[:2] else ())
    plan = HostPlan(A.indptr, A.indices, A.data)
    is_coded = sampled_values(plan, A.shape[1]) is not None
    for dtype, width in itertools.product(dtypes, table.widths):
        extents = (*A.shape, A.nnz, width, dtype, dtype, width, width, A.indices.itemsize)
        plain = SpmmvProblem(*extents, longest=plan.longest, pattern=plan.pattern, coded=is_coded)
        problems = [plain]
        if dtype == "float64" and width in FUSED_WIDTHS:
            fused = ({"beta": "general"}, FUSED, {"gram": GRAMS})
            problems += [dataclasses.replace(plain, **parts) for parts in fused]
        for problem in problems:
            for kernel in _kernels(problem, device):
                machine_code(kernel.source(), device.architecture, cache_dir=cache_dir)
    return A


def _kernels(problem: SpmmvProblem, device: DeviceInfo) -> list[Kernel]:
    """Describe the kernels of products of a matrix as it is, and converted where that is faster."""
    found = []
    for family in SPARSE_FAMILIES.values():
        is_likely = not family.converts or family.is_faster(problem)
        if is_likely and family.supports(problem, device) is None:
            found += family.kernels(problem, choose_config(family, problem, device), device).values()
    return found


def _cases_of(
    operations: Sequence[str],
    name: str,
    matrix: Any,
    dtype: str,
    widths: Sequence[int],
    sizes: Sizes,
    backend: Backend,
) -> Iterator[Case]:
    """Yield the cases of one matrix and type."""
    A = matrix.astype(dtype)
    copies: list[Any] = []
    operators: list[SparseOperator] = []
    for width in widths:
        # Operands larger than all caches together cannot stay in them from one run to the next.
        n_bytes = A.data.nbytes + A.indices.nbytes + sum(A.shape) * width * itemsize(dtype)
        count = min(max(ceil_div(sizes.footprint(backend), n_bytes), 1), MAX_COPIES)
        while len(operators) < count:
            copies.append(A.copy())
            operators.append(SparseOperator(copies[-1], backend))
        sets = _Sets(name, copies[:count], operators[:count], width, dtype)
        if backend.device.kind == "cuda":
            sets.warm_up(WARM_UP_S if width == widths[0] else 0.0)
        if "apply" in operations:
            yield sets.plain()
        if dtype == "float64" and width in FUSED_WIDTHS:
            if "apply_fused" in operations:
                yield sets.fused()
            if "apply_gram" in operations:
                yield sets.gram()


def _compressed(name: str, A: Any) -> Any:
    if isinstance(A, np.ndarray):
        raise OptionError(f"{name}: apply is measured on sparse matrices.")
    return scipy.sparse.csr_array(A)


class _Sets:
    """Copies of a matrix and of blocks, and the cases that call products of them."""

    def __init__(
        self, name: str, copies: Sequence[Any], operators: Sequence[SparseOperator], width: int, dtype: str
    ) -> None:
        self.name, self.copies, self.operators = name, copies, operators
        self.backend = operators[0].backend
        n_rows, n_cols = operators[0].shape
        self.X, self.Y = (
            [
                BlockVector.random(rows, width, dtype, device=self.backend.name, rng=seed)
                for seed in range(len(operators))
            ]
            for rows in (n_cols, n_rows)
        )
        self.problem = operators[0].explain(self.X[0])[0]

    def _turns(self, function: Callable[..., object]) -> Call:
        return turns(function, self.operators, self.X, self.Y)

    def warm_up(self, seconds: float) -> None:
        """Keep a GPU busy until its clocks are those of long work, and its matrices are converted."""
        call, begin = self._turns(_product), time.perf_counter()
        family = SPARSE_FAMILIES.get(choose(self.problem, self.backend).name)
        if family is not None and family.converts:
            for _ in range((family.converts_after(self.problem) + 1) * len(self.operators)):
                call()
        while time.perf_counter() - begin < seconds:
            call()
            self.backend.synchronize()

    def _uncompiled(self, function: Callable[..., object]) -> dict[str, Call]:
        """Call a function without the kernels that LLVM compiles, where it has one."""
        if choose(self.problem, self.backend).name != "csr_compiled":
            return {}

        def call(*operands: Any) -> object:
            with option_context(jit="never"):
                return function(*operands)

        return {"uncompiled": self._turns(call)}

    def _case(self, operation: str, calls: dict[str, Call], **more: Any) -> Case:
        if self.backend.name == "cpu":  # the first product of each operator is not timed
            for call in calls.values():
                for _ in self.operators:
                    call()
        problem = dataclasses.replace(self.problem, **more)
        return case(operation, problem, self.backend, calls, self.name)

    def plain(self) -> Case:
        """Make the case of Y = A X, with the libraries as peers."""
        calls = {"blockvec": self._turns(_product)}
        if self.backend.name == "cpu":
            calls |= self._uncompiled(_product)
            calls["scipy"] = turns(operator.matmul, self.copies, [block.array for block in self.X])
        else:
            from tests.benchmarks.sparse_peers import peers

            calls |= peers(self.operators, self.X, self.Y)
        return self._case("apply", calls)

    def fused(self) -> Case:
        """Make the case of all but Gram matrices in one call, with the plain update and separate passes."""

        def together(S: SparseOperator, V: BlockVector, W: BlockVector) -> Any:
            return S.apply(V, W, ALPHA, BETA, SHIFT, dots=FUSED["dots"])

        def separate(S: SparseOperator, V: BlockVector, W: BlockVector, T: BlockVector) -> Any:
            S.apply(V, out=T)
            W.axpby(ALPHA, T, BETA).axpy(-ALPHA * SHIFT, V)
            return W, {"xy": V.column_dot(W), "yy": W.column_dot(W)}

        calls = {
            "blockvec": self._turns(together),
            "plain": self._turns(lambda S, V, W: S.apply(V, out=W, beta=BETA)),
            "separate": turns(separate, self.operators, self.X, self.Y, [block.like() for block in self.Y]),
        }
        return self._case("apply_fused", calls | self._uncompiled(together), **FUSED)

    def gram(self) -> Case:
        """Make the case of both Gram matrices in the call of the product, with three separate calls."""

        def separate(S: SparseOperator, V: BlockVector, W: BlockVector) -> Any:
            S.apply(V, out=W)
            return W, {"xy": V.dot(W), "yy": W.gram()}

        calls = {
            "blockvec": self._turns(lambda S, V, W: S.apply(V, W, gram=GRAMS)),
            "plain": self._turns(_product),
            "separate": self._turns(separate),
        }
        return self._case("apply_gram", calls, gram=GRAMS)


def _product(S: SparseOperator, V: BlockVector, W: BlockVector) -> BlockVector:
    return S.apply(V, out=W)
