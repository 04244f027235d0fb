"""Benchmark cases of dense blocks, for blockvec and its peers.

A case rotates among several sets of operands that together exceed the caches, so that every run reads its
operands from memory, as a solver does that sweeps over a large basis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from .. import products
from ..backends import Array, Backend, backend_for
from ..blockvector import BlockVector
from ..dispatch import choose
from ..errors import OptionError
from ..kernels.limits import round_up
from ..kernels.problem import Problem, StreamProblem, itemsize
from ..system.frozen import frozen
from ..system.memory import available_memory
from .case import Case, arrays, case, turns

OPERATIONS = ("dot", "gram", "combine", "update", "inplace", "combine_dot", "update_gram", "axpby")
RECTANGULAR = ("dot", "combine", "update", "combine_dot", "update_gram")

HOST_ELEMENTS = 4_000_000  # per operand on a CPU: 32 MB in double precision
GPU_OPERAND_BYTES = 2 << 30
QUICK_OPERAND_BYTES = 1 << 20
HOST_FOOTPRINT_BYTES = 512 << 20  # more than one process was measured to keep in a server cache
L2_FOOTPRINT = 8  # times a GPU's L2
ALIGNMENT = 512  # bytes between the starts of blocks, as between GPU allocations


@frozen
class Sizes:
    """Sizes of operands; by default the wider has four million elements on a CPU and 2 GiB on a GPU."""

    rows: int | None = None  # of every block
    operand_bytes: int | None = None  # of the wider operand, which determine the rows
    quick: bool = False  # operands of 1 MiB without rotation, for a trial run
    ld: int | None = None  # of blocks that are views from the second column on; None for contiguous blocks

    def rows_for(self, width: int, dtype: str, backend: Backend) -> int:
        """Compute the rows of blocks of which the widest has `width` columns."""
        if self.rows is not None:
            return self.rows
        row_elements = self.ld or width
        if self.operand_bytes is None and not self.quick and backend.name == "cpu":
            return HOST_ELEMENTS // row_elements
        n_bytes = self.operand_bytes
        if n_bytes is None:
            n_bytes = QUICK_OPERAND_BYTES if self.quick else GPU_OPERAND_BYTES
        return max(1, n_bytes // (row_elements * itemsize(dtype)))

    def footprint(self, backend: Backend) -> int:
        """Compute the total bytes of the rotated operands."""
        if self.quick:
            return 0
        return HOST_FOOTPRINT_BYTES if backend.name == "cpu" else L2_FOOTPRINT * backend.device.l2_bytes


class _Pool:
    """Memory for the operands of all cases of one type, filled once and divided per case."""

    def __init__(self, largest: int, footprint: int, dtype: str, backend: Backend) -> None:
        elements = footprint // itemsize(dtype)
        largest += ALIGNMENT // itemsize(dtype)
        needed, available = 3 * largest * itemsize(dtype), available_memory()
        if backend.name == "cpu" and available is not None and needed > available:
            raise OptionError(
                f"blocks of this size take {needed / 1e9:.3g} GB, but {available / 1e9:.3g} GB of memory are "
                "available; give fewer --rows or --bytes, or smaller --widths."
            )
        inputs = BlockVector.random(max(2 * largest, elements), 1, dtype, device=backend.name, rng=1)
        outputs = BlockVector.full(max(largest, elements // 2), 1, 1, dtype, device=backend.name)
        self._inputs, self._outputs = inputs.array[:, 0], outputs.array[:, 0]

    def inputs(self, rows: int, width: int) -> list[BlockVector]:
        """Create disjoint blocks of random numbers."""
        return self._cut(self._inputs, rows, width)

    def outputs(self, rows: int, width: int) -> list[BlockVector]:
        """Create disjoint blocks for output."""
        return self._cut(self._outputs, rows, width)

    @staticmethod
    def _cut(flat: Array, rows: int, width: int) -> list[BlockVector]:
        size, step = rows * width, ALIGNMENT // flat.itemsize
        pitch = round_up(size, step)
        starts = range(0, max(len(flat) - size, 0) + 1, pitch)
        return [BlockVector(flat[start : start + size].reshape(rows, width)) for start in starts]


def make_cases(
    operations: Sequence[str],
    dtypes: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    *,
    device: str = "cpu",
    sizes: Sizes | None = None,
) -> Iterator[Case]:
    """Yield the cases of a run, each with its operands in memory; release one before taking the next.

    Widths M and N that differ are run only for dot, combine, update and sweeps, on a basis of M columns and a
    block of N. Unknown operations raise an `OptionError`.
    """
    sizes = sizes or Sizes()
    for operation in operations:
        if operation not in OPERATIONS:
            raise OptionError(f"operation {operation!r} is not known; give some of {', '.join(OPERATIONS)}.")
    backend = backend_for(device)
    for dtype in dtypes:
        pool = _pool(dtype, shapes, sizes, backend)
        for operation in operations:
            for M, N in shapes:
                if M == N or operation in RECTANGULAR:
                    rows = sizes.rows_for(max(M, N), dtype, backend)
                    yield _BUILDERS[operation](_Blocks(pool, backend, dtype, rows, M, N, sizes.ld))


def _pool(dtype: str, shapes: Sequence[tuple[int, int]], sizes: Sizes, backend: Backend) -> _Pool:
    widest = max(map(max, shapes))
    if sizes.ld and widest >= sizes.ld:
        raise OptionError(f"a view of {widest} columns needs a leading dimension beyond that.")
    largest = max((sizes.ld or max(shape)) * sizes.rows_for(max(shape), dtype, backend) for shape in shapes)
    return _Pool(largest, sizes.footprint(backend), dtype, backend)


@frozen
class _Blocks:
    """Operands of a case: blocks of `M` and `N` columns, contiguous or views of wider blocks."""

    pool: _Pool
    backend: Backend
    dtype: str
    rows: int
    M: int
    N: int
    ld: int | None

    def inputs(self) -> tuple[list[BlockVector], list[BlockVector]]:
        """Create disjoint input blocks of M and of N columns."""
        whole = self.pool.inputs(self.rows, self.ld or max(self.M, self.N))
        half = max(1, len(whole) // 2)
        return self._narrowed(whole[:half], self.M), self._narrowed(whole[half:], self.N)

    def operands(self) -> tuple[list[BlockVector], list[BlockVector]]:
        """Create input blocks of M columns and output blocks of N."""
        outputs = self.pool.outputs(self.rows, self.ld or max(self.M, self.N))
        return self.inputs()[0], self._narrowed(outputs, self.N)

    def coefficients(self) -> Array:
        """Create an M x N matrix whose repeated application lets no block grow."""
        C = np.random.default_rng(2).uniform(-1, 1, (self.M, self.N)).astype(self.dtype)
        return self.backend.from_host(C / np.abs(C).sum(axis=0).max())

    def transposed_product(self) -> Callable[[Array, Array], Array]:
        """Select the usual NumPy expression for A^H B."""
        if self.dtype.startswith("complex"):
            return lambda A, B: A.conj().T @ B
        return lambda A, B: A.T @ B

    def case(
        self,
        operation: str,
        problem: Problem,
        sets: Sequence[list[BlockVector]],
        ours: Callable[..., object],
        plain: Callable[..., object],
        *,
        two_calls: Callable[..., object] | None = None,
        vendors: Sequence[Sequence[Any]] = (),
    ) -> Case:
        """Create the case of one call on blocks, beside the usual expression on their arrays.

        On a GPU the vendor kernels that dispatch does not select are peers, if their operands are given.
        """
        calls = {"blockvec": turns(ours, *sets)}
        if two_calls is not None:
            calls["two calls"] = turns(two_calls, *sets)
        on_host = self.backend.name == "cpu"
        calls["numpy" if on_host else "cupy"] = turns(plain, *map(arrays, sets))
        if vendors and not on_host:
            chosen = choose(problem, self.backend).name
            for each in self.backend.candidates(problem):
                if each.vendor and not each.refusal and each.name != chosen:
                    calls[each.name] = turns(partial(_launch, each.run, problem), *vendors)
        return case(operation, problem, self.backend, calls, apart="two calls")

    def _narrowed(self, blocks: Sequence[BlockVector], width: int) -> list[BlockVector]:
        if self.ld:
            return [block[:, 1 : 1 + width] for block in blocks]
        size = self.rows * width
        return [BlockVector(b.array.reshape(-1)[:size].reshape(self.rows, width)) for b in blocks]


def _launch(run: Callable[..., None], problem: Problem, *operands: Array) -> None:
    run(problem, *operands, 1, 0)


def _dot(blocks: _Blocks) -> Case:
    A, B = blocks.inputs()
    problem = products.tsmttsm_problem(A[0].array, B[0].array, True)
    vendors = arrays(A), arrays(B), [blocks.backend.empty((blocks.M, blocks.N), blocks.dtype)]
    return blocks.case("dot", problem, (A, B), BlockVector.dot, blocks.transposed_product(), vendors=vendors)


def _gram(blocks: _Blocks) -> Case:
    A, _ = blocks.inputs()
    problem = products.tsmttsm_problem(A[0].array, A[0].array, True)
    product = blocks.transposed_product()
    return blocks.case("gram", problem, (A,), BlockVector.gram, lambda V: product(V, V))


def _combine(blocks: _Blocks) -> Case:
    (A, B), C, matmul = blocks.operands(), blocks.coefficients(), blocks.backend.xp.matmul
    return blocks.case(
        "combine",
        products.tsmm_problem(A[0].array, C, B[0].array),
        (A, B),
        lambda V, W: V.combine(C, out=W),
        lambda V, W: matmul(V, C, out=W),
        vendors=(arrays(A), [C], arrays(B)),
    )


def _update(blocks: _Blocks) -> Case:
    (A, B), C = blocks.operands(), blocks.coefficients()
    problem = products.tsmm_problem(A[0].array, C, B[0].array, 1, 0.5)

    def plain(V: Array, W: Array) -> Array:
        W *= 0.5
        W += V @ C
        return W

    return blocks.case("update", problem, (A, B), lambda V, W: V.combine(C, beta=0.5, out=W), plain)


def _inplace(blocks: _Blocks) -> Case:
    A, C = blocks.inputs()[0], blocks.coefficients()
    problem = products.tsmm_problem(A[0].array, C, A[0].array)

    def plain(V: Array) -> Array:
        V[...] = V @ C
        return V

    return blocks.case("inplace", problem, (A,), lambda V: V.combine(C, out=V), plain)


def _combine_dot(blocks: _Blocks) -> Case:
    W, V = blocks.operands()
    Q = np.linalg.qr(np.random.default_rng(2).standard_normal((blocks.N, blocks.N)))[0]
    C = blocks.backend.from_host(Q.astype(blocks.dtype))  # orthogonal: repeated application keeps the norm
    product = blocks.transposed_product()

    def plain(X: Array, Y: Array) -> Array:
        Y[...] = Y @ C
        return product(X, Y)

    return blocks.case(
        "combine_dot",
        products.sweep_problem("combine_dot", V[0].array, C, W[0].array),
        (W, V),
        lambda X, Y: Y.combine_dot(C, X),
        plain,
        two_calls=lambda X, Y: X.dot(Y.combine(C, out=Y)),
    )


def _update_gram(blocks: _Blocks) -> Case:
    (W, V), C = blocks.operands(), blocks.coefficients()
    product = blocks.transposed_product()

    def plain(X: Array, Y: Array) -> Array:
        Y -= X @ C
        return product(Y, Y)

    return blocks.case(
        "update_gram",
        products.sweep_problem("update_gram", V[0].array, C, W[0].array),
        (W, V),
        lambda X, Y: Y.update_gram(X, C),
        plain,
        two_calls=lambda X, Y: X.combine(C, alpha=-1, beta=1, out=Y).gram(),
    )


def _axpby(blocks: _Blocks) -> Case:
    problem = StreamProblem("axpby", blocks.rows, blocks.M, blocks.dtype, 2, 1)

    def plain(X: Array, Y: Array) -> None:
        Y *= 0.25
        Y += 0.5 * X

    return blocks.case("axpby", problem, blocks.operands(), lambda V, W: W.axpby(0.5, V, 0.25), plain)


_BUILDERS: dict[str, Callable[[_Blocks], Case]] = {
    "dot": _dot,
    "gram": _gram,
    "combine": _combine,
    "update": _update,
    "inplace": _inplace,
    "combine_dot": _combine_dot,
    "update_gram": _update_gram,
    "axpby": _axpby,
}
