"""Benchmark cases of dense blocks, for blockvec and its peers.

A case rotates among several sets of operands that together exceed the caches, so that every run reads its
operands from memory, as a solver does that sweeps over a large basis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import products
from ..backends import Array, Backend, backend_for
from ..blockvector import BlockVector
from ..dispatch import choose
from ..errors import OptionError
from ..kernels.problem import Problem, StreamProblem, TsmmProblem, itemsize
from .case import Call, Case, arrays, case, rotate, turns

__all__ = ["OPERATIONS", "Case", "Sizes", "make_cases"]

SWEEPS = ("combine_dot", "update_gram")
OPERATIONS = ("dot", "gram", "combine", "update", "inplace", *SWEEPS, "axpby")
RECTANGULAR = ("dot", "combine", "update", *SWEEPS)

HOST_ELEMENTS = 4_000_000  # per operand on a CPU: 32 MB in double precision
GPU_OPERAND_BYTES = 2 << 30
QUICK_OPERAND_BYTES = 1 << 20
HOST_FOOTPRINT_BYTES = 512 << 20  # more than one process was measured to keep in a server cache
L2_FOOTPRINT = 8  # times a GPU's L2
ALIGNMENT = 512  # bytes between the starts of blocks, as between GPU allocations


@dataclass(frozen=True)
class Sizes:
    """Sizes of operands.

    Attributes
    ----------
    rows : int or None
        Rows of every block.
    operand_bytes : int or None
        Bytes of the wider operand, which determine the rows. If both are None, the wider operand has four
        million elements on a CPU and 2 GiB on a GPU.
    quick : bool
        Use operands of 1 MiB without rotation, for a trial run.
    ld : int or None
        Leading dimension of blocks that are views from the second column on; None for contiguous blocks.
    """

    rows: int | None = None
    operand_bytes: int | None = None
    quick: bool = False
    ld: int | None = None

    def rows_for(self, width: int, dtype: str, backend: Backend) -> int:
        """Compute the rows of blocks of which the widest has `width` columns."""
        if self.rows is not None:
            return self.rows
        row_bytes = (self.ld or width) * itemsize(dtype)
        if self.operand_bytes is not None:
            return max(1, self.operand_bytes // row_bytes)
        if self.quick:
            return max(1, QUICK_OPERAND_BYTES // row_bytes)
        return (
            HOST_ELEMENTS // (self.ld or width) if backend.name == "cpu" else GPU_OPERAND_BYTES // row_bytes
        )

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
        self._inputs = BlockVector.random(
            max(2 * largest, elements), 1, dtype, device=backend.name, rng=1
        ).array[:, 0]
        self._outputs = BlockVector.full(max(largest, elements // 2), 1, 1, dtype, device=backend.name).array[
            :, 0
        ]

    def inputs(self, rows: int, width: int) -> list[BlockVector]:
        """Create disjoint blocks of random numbers."""
        return self._cut(self._inputs, rows, width)

    def outputs(self, rows: int, width: int) -> list[BlockVector]:
        """Create disjoint blocks for output."""
        return self._cut(self._outputs, rows, width)

    @staticmethod
    def _cut(flat: Array, rows: int, width: int) -> list[BlockVector]:
        size, step = rows * width, ALIGNMENT // flat.itemsize
        pitch = -(-size // step) * step
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

    Parameters
    ----------
    operations : sequence of str
        Some of `OPERATIONS`.
    dtypes : sequence of str
        Element types.
    shapes : sequence of (int, int)
        Widths M and N. If they differ, only dot, combine, update and sweeps are run, on a basis of M
        columns and a block of N.
    device : str
        Device to run on.
    sizes : Sizes, optional
        Sizes of the operands.

    Raises
    ------
    OptionError
        For an unknown operation.
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
                    blocks = _Blocks(pool, rows, M, N, sizes.ld)
                    yield _BUILDERS[operation](blocks, dtype, backend)


def _pool(dtype: str, shapes: Sequence[tuple[int, int]], sizes: Sizes, backend: Backend) -> _Pool:
    if sizes.ld and max(map(max, shapes)) >= sizes.ld:
        raise OptionError(f"a view of {max(map(max, shapes))} columns needs a leading dimension beyond that.")
    largest = max((sizes.ld or max(shape)) * sizes.rows_for(max(shape), dtype, backend) for shape in shapes)
    return _Pool(largest, sizes.footprint(backend), dtype, backend)


def _vendors(problem: Problem, backend: Backend, *operands: Sequence[Any]) -> dict[str, Call]:
    """Collect the vendor kernels that dispatch does not select; none on a CPU, where NumPy is the peer."""
    chosen = choose(problem, backend).name
    if backend.name == "cpu":
        return {}
    found = [c for c in backend.candidates(problem) if c.vendor and not c.refusal and c.name != chosen]
    calls = {}
    for candidate in found:
        sets = rotate(*operands)
        calls[candidate.name] = _launch(candidate.run, problem, sets)
    return calls


def _launch(run: Callable[..., None], problem: Problem, sets: Iterator[tuple[Any, ...]]) -> Call:
    return lambda: run(problem, *next(sets), 1, 0)


@dataclass(frozen=True)
class _Blocks:
    """Operands of a case: blocks of `M` and `N` columns, contiguous or views of wider blocks."""

    pool: _Pool
    rows: int
    M: int
    N: int
    ld: int | None

    def inputs(self) -> tuple[list[BlockVector], list[BlockVector]]:
        """Create disjoint input blocks of M and of N columns."""
        whole = self.pool.inputs(self.rows, self.ld or max(self.M, self.N))
        half = max(1, len(whole) // 2)
        return self._narrowed(whole[:half], self.M), self._narrowed(whole[half:], self.N)

    def outputs(self) -> list[BlockVector]:
        """Create output blocks of N columns."""
        return self._narrowed(self.pool.outputs(self.rows, self.ld or max(self.M, self.N)), self.N)

    def _narrowed(self, blocks: Sequence[BlockVector], width: int) -> list[BlockVector]:
        if self.ld:
            return [block[:, 1 : 1 + width] for block in blocks]
        size = self.rows * width
        return [BlockVector(b.array.reshape(-1)[:size].reshape(self.rows, width)) for b in blocks]


def _dot(blocks: _Blocks, dtype: str, backend: Backend) -> Case:
    left, right = blocks.inputs()
    problem = products.tsmttsm_problem(left[0].array, right[0].array, True)
    small = [backend.empty((blocks.M, blocks.N), dtype)]
    calls = {
        "blockvec": turns(BlockVector.dot, left, right),
        _library(backend): turns(_transposed_product(dtype), arrays(left), arrays(right)),
    }
    calls |= _vendors(problem, backend, arrays(left), arrays(right), small)
    return case("dot", problem, backend, calls)


def _gram(blocks: _Blocks, dtype: str, backend: Backend) -> Case:
    A, _ = blocks.inputs()
    problem = products.tsmttsm_problem(A[0].array, A[0].array, True)
    product = _transposed_product(dtype)
    calls = {
        "blockvec": turns(BlockVector.gram, A),
        _library(backend): turns(lambda V: product(V, V), arrays(A)),
    }
    return case("gram", problem, backend, calls)


def _transposed_product(dtype: str) -> Callable[[Array, Array], Array]:
    """Select the usual NumPy expression for A^H B."""
    if dtype.startswith("complex"):
        return lambda A, B: A.conj().T @ B
    return lambda A, B: A.T @ B


def _coefficients(blocks: _Blocks, dtype: str, backend: Backend) -> Array:
    """Create an M x N matrix whose repeated application lets no block grow."""
    C = np.random.default_rng(2).uniform(-1, 1, (blocks.M, blocks.N)).astype(dtype)
    return backend.from_host(C / np.abs(C).sum(axis=0).max())


def _combine(blocks: _Blocks, dtype: str, backend: Backend) -> Case:
    A, B, C = blocks.inputs()[0], blocks.outputs(), _coefficients(blocks, dtype, backend)
    problem: TsmmProblem = products.tsmm_problem(A[0].array, C, B[0].array)
    matmul = backend.xp.matmul
    calls = {
        "blockvec": turns(lambda V, W: V.combine(C, out=W), A, B),
        _library(backend): turns(lambda V, W: matmul(V, C, out=W), arrays(A), arrays(B)),
    }
    calls |= _vendors(problem, backend, arrays(A), [C], arrays(B))
    return case("combine", problem, backend, calls)


def _update(blocks: _Blocks, dtype: str, backend: Backend) -> Case:
    A, B, C = blocks.inputs()[0], blocks.outputs(), _coefficients(blocks, dtype, backend)
    problem: TsmmProblem = products.tsmm_problem(A[0].array, C, B[0].array, 1, 0.5)

    def plain(V: Array, W: Array) -> Array:
        W *= 0.5
        W += V @ C
        return W

    calls = {
        "blockvec": turns(lambda V, W: V.combine(C, beta=0.5, out=W), A, B),
        _library(backend): turns(plain, arrays(A), arrays(B)),
    }
    return case("update", problem, backend, calls)


def _inplace(blocks: _Blocks, dtype: str, backend: Backend) -> Case:
    A, C = blocks.inputs()[0], _coefficients(blocks, dtype, backend)
    problem: TsmmProblem = products.tsmm_problem(A[0].array, C, A[0].array)

    def plain(V: Array) -> Array:
        V[...] = V @ C
        return V

    calls = {
        "blockvec": turns(lambda V: V.combine(C, out=V), A),
        _library(backend): turns(plain, arrays(A)),
    }
    return case("inplace", problem, backend, calls)


def _combine_dot(blocks: _Blocks, dtype: str, backend: Backend) -> Case:
    W, V = blocks.inputs()[0], blocks.outputs()
    Q = np.linalg.qr(np.random.default_rng(2).standard_normal((blocks.N, blocks.N)))[0]
    C = backend.from_host(Q.astype(dtype))  # orthogonal: repeated application keeps the norm
    problem = products.sweep_problem("combine_dot", V[0].array, C, W[0].array)
    product = _transposed_product(dtype)

    def plain(X: Array, Y: Array) -> Array:
        Y[...] = Y @ C
        return product(X, Y)

    def sequence(X: BlockVector, Y: BlockVector) -> Array:
        return X.dot(Y.combine(C, out=Y))

    calls = {
        "blockvec": turns(lambda X, Y: Y.combine_dot(C, X), W, V),
        "two calls": turns(sequence, W, V),
        _library(backend): turns(plain, arrays(W), arrays(V)),
    }
    return case("combine_dot", problem, backend, calls)


def _update_gram(blocks: _Blocks, dtype: str, backend: Backend) -> Case:
    W, V, C = blocks.inputs()[0], blocks.outputs(), _coefficients(blocks, dtype, backend)
    problem = products.sweep_problem("update_gram", V[0].array, C, W[0].array)
    product = _transposed_product(dtype)

    def plain(X: Array, Y: Array) -> Array:
        Y -= X @ C
        return product(Y, Y)

    def sequence(X: BlockVector, Y: BlockVector) -> Array:
        X.combine(C, alpha=-1, beta=1, out=Y)
        return Y.gram()

    calls = {
        "blockvec": turns(lambda X, Y: Y.update_gram(X, C), W, V),
        "two calls": turns(sequence, W, V),
        _library(backend): turns(plain, arrays(W), arrays(V)),
    }
    return case("update_gram", problem, backend, calls)


def _axpby(blocks: _Blocks, dtype: str, backend: Backend) -> Case:
    X, Y = blocks.inputs()[0], blocks.outputs()
    problem = StreamProblem("axpby", blocks.rows, blocks.M, dtype, 2, 1)
    calls = {
        "blockvec": turns(lambda V, W: W.axpby(0.5, V, 0.25), X, Y),
        _library(backend): turns(_plain_axpby, arrays(X), arrays(Y)),
    }
    return case("axpby", problem, backend, calls)


def _plain_axpby(X: Array, Y: Array) -> None:
    Y *= 0.25
    Y += 0.5 * X


def _library(backend: Backend) -> str:
    return "numpy" if backend.name == "cpu" else "cupy"


_BUILDERS: dict[str, Callable[[_Blocks, str, Backend], Case]] = {
    "dot": _dot,
    "gram": _gram,
    "combine": _combine,
    "update": _update,
    "inplace": _inplace,
    "combine_dot": _combine_dot,
    "update_gram": _update_gram,
    "axpby": _axpby,
}
