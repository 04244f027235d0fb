"""Benchmarks of dense operations on pairs of widths and on views, beside NumPy or CuPy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from blockvec.backends import Array, Backend, backend_for
from blockvec.bench.cases import (
    ALIGNMENT,
    GPU_OPERAND_BYTES,
    HOST_ELEMENTS,
    HOST_FOOTPRINT_BYTES,
    L2_FOOTPRINT,
    QUICK_OPERAND_BYTES,
    Case,
    Function,
    case,
    turns,
)
from blockvec.blocks.blockvector import BlockVector
from blockvec.errors import OptionError
from blockvec.kernels.limits import round_up
from blockvec.kernels.problem import Problem, StreamProblem, SweepProblem, itemsize
from blockvec.operations import products
from blockvec.operations.arrays import memory_of
from blockvec.system.frozen import frozen
from blockvec.system.memory import available_memory


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
        n_bytes = self.operand_bytes or (QUICK_OPERAND_BYTES if self.quick else GPU_OPERAND_BYTES)
        return max(1, n_bytes // (row_elements * itemsize(dtype)))

    def footprint(self, backend: Backend) -> int:
        """Compute the total bytes of the rotated operands."""
        on_host = backend.name == "cpu"
        whole = HOST_FOOTPRINT_BYTES if on_host else L2_FOOTPRINT * backend.device.l2_bytes
        return 0 if self.quick else whole


def make_cases(
    operations: Sequence[str],
    dtypes: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    *,
    device: str = "cpu",
    sizes: Sizes | None = None,
) -> Iterator[Case]:
    """Return the cases of a run, each with its operands in memory; release one before taking the next.

    Widths M and N that differ are run only for dot, combine, update and sweeps, on a basis of M columns and a
    block of N. Unknown operations raise an `OptionError`.
    """
    for operation in operations:
        if operation not in OPERATIONS:
            raise OptionError(f"operation {operation!r} is not known; give some of {', '.join(OPERATIONS)}.")
    backend, sizes = backend_for(device), sizes or Sizes()

    def cases() -> Iterator[Case]:
        for dtype in dtypes:
            memory = _memory(dtype, shapes, sizes, backend)
            for operation, (M, N) in itertools.product(operations, shapes):
                if M == N or operation in RECTANGULAR:
                    rows = sizes.rows_for(max(M, N), dtype, backend)
                    yield _dense_case(operation, _Blocks(memory, backend, dtype, rows, M, N, sizes.ld))

    return cases()


def _memory(
    dtype: str, shapes: Sequence[tuple[int, int]], sizes: Sizes, backend: Backend
) -> tuple[Array, Array]:
    """Fill the memory of the operands of all cases of one type, inputs and outputs, once."""
    widest = max(map(max, shapes))
    if sizes.ld and widest >= sizes.ld:
        raise OptionError(f"a view of {widest} columns needs a leading dimension beyond that.")
    largest = max((sizes.ld or max(shape)) * sizes.rows_for(max(shape), dtype, backend) for shape in shapes)
    elements, largest = sizes.footprint(backend) // itemsize(dtype), largest + ALIGNMENT // itemsize(dtype)
    needed, available = 3 * largest * itemsize(dtype), available_memory()
    if backend.name == "cpu" and available is not None and needed > available:
        raise OptionError(
            f"blocks of this size take {needed / 1e9:.3g} GB, but {available / 1e9:.3g} GB of memory are "
            "available; give fewer --rows or --bytes, or smaller --widths."
        )
    inputs = BlockVector.random(max(2 * largest, elements), 1, dtype, device=backend.name, rng=1)
    outputs = BlockVector.full(max(largest, elements // 2), 1, 1, dtype, device=backend.name)
    return inputs.array[:, 0], outputs.array[:, 0]


@frozen
class _Blocks:
    """Operands of a case: blocks of `M` and `N` columns, contiguous or views of wider blocks."""

    memory: tuple[Array, Array]
    backend: Backend
    dtype: str
    rows: int
    M: int
    N: int
    ld: int | None

    def _cut(self, flat: Array, width: int) -> list[BlockVector]:
        first, ld = (1, self.ld) if self.ld else (0, width)
        size, step = self.rows * (self.ld or max(self.M, self.N)), ALIGNMENT // flat.itemsize
        starts = range(0, max(len(flat) - size, 0) + 1, round_up(size, step))
        wholes = (flat[start : start + self.rows * ld].reshape(self.rows, ld) for start in starts)
        return [BlockVector(whole[:, first : first + width]) for whole in wholes]

    def inputs(self) -> tuple[list[BlockVector], list[BlockVector]]:
        """Create disjoint input blocks of M and of N columns."""
        first, second = self._cut(self.memory[0], self.M), self._cut(self.memory[0], self.N)
        half = max(1, len(first) // 2)
        return first[:half], second[half:]

    def outputs(self) -> list[BlockVector]:
        """Create disjoint output blocks of N columns."""
        return self._cut(self.memory[1], self.N)

    def coefficients(self) -> Array:
        """Create an M x N matrix whose repeated application lets no block grow."""
        C = np.random.default_rng(2).uniform(-1, 1, (self.M, self.N)).astype(self.dtype)
        return self.backend.from_host(C / np.abs(C).sum(axis=0).max())

    def rotation(self) -> Array:
        """Create an orthogonal N x N matrix, whose repeated application keeps norms."""
        Q = np.linalg.qr(np.random.default_rng(2).standard_normal((self.N, self.N)))[0]
        return self.backend.from_host(Q.astype(self.dtype))


def _sweep_problem(A: Array, C: Array, B: Array) -> SweepProblem:
    return products.sweep_problem(memory_of(A).kind, C.dtype.name, memory_of(B).kind)


def _product(A: Array, B: Array) -> Array:
    return (A.conj() if A.dtype.kind == "c" else A).T @ B


def _scaled(factor: float, Y: Array, X: Array) -> Array:
    Y *= factor
    Y += X
    return Y


def _set(Y: Array, X: Array) -> Array:
    Y[...] = X
    return Y


class CombineDot(SweepProblem):
    operation = "combine_dot"  # B <- B C, then A^H B: the bytes and flops of a sweep, without a kernel


OPERATIONS = ("dot", "gram", "combine", "update", "inplace", "combine_dot", "update_gram", "axpby")
RECTANGULAR = ("dot", "combine", "update", "combine_dot", "update_gram")


def _made(
    operation: str, s: _Blocks
) -> tuple[Problem, tuple[Sequence[BlockVector], ...], dict[str, Function], Function]:
    """Make a problem, the sets of its operands, blockvec's calls by name, and the usual one on arrays."""
    (V, W), out, C, matmul = s.inputs(), s.outputs(), s.coefficients(), s.backend.xp.matmul
    A, B, Y = V[0].array, W[0].array, out[0].array
    ours: dict[str, Function]
    match operation:
        case "dot":
            return products.tsmttsm_problem(A, B, True), (V, W), {"blockvec": BlockVector.dot}, _product
        case "gram":
            problem = products.tsmttsm_problem(A, A, True)
            return problem, (V,), {"blockvec": BlockVector.gram}, lambda X: _product(X, X)
        case "combine":
            ours = {"blockvec": lambda X, Z: X.combine(C, out=Z)}
            return products.tsmm_problem(A, C, Y), (V, out), ours, lambda X, Z: matmul(X, C, out=Z)
        case "update":
            ours = {"blockvec": lambda X, Z: X.combine(C, beta=0.5, out=Z)}
            updated = products.tsmm_problem(A, C, Y, 1, 0.5)
            return updated, (V, out), ours, lambda X, Z: _scaled(0.5, Z, X @ C)
        case "inplace":
            ours = {"blockvec": lambda X: X.combine(C, out=X)}
            return products.tsmm_problem(A, C, A), (V,), ours, lambda X: _set(X, X @ C)
        case "combine_dot":
            Q = s.rotation()
            ours = {
                "blockvec": lambda X, Z: Z.combine_dot(Q, X),
                "two calls": lambda X, Z: X.dot(Z.combine(Q, out=Z)),
            }
            swept = _sweep_problem(A, Q, Y)
            return CombineDot(**vars(swept)), (V, out), ours, lambda X, Z: _product(X, _set(Z, Z @ Q))
        case "update_gram":
            ours = {
                "blockvec": lambda X, Z: Z.update_gram(X, C),
                "two calls": lambda X, Z: X.combine(C, alpha=-1, beta=1, out=Z).gram(),
            }

            def plain(X: Array, Z: Array) -> Array:
                Z -= X @ C
                return _product(Z, Z)

            return _sweep_problem(A, C, Y), (V, out), ours, plain
        case _:
            ours = {"blockvec": lambda X, Z: Z.axpby(0.5, X, 0.25)}
            stream = StreamProblem("axpby", s.rows, s.M, s.dtype, 2, 1)
            return stream, (V, out), ours, lambda X, Z: _scaled(0.25, Z, 0.5 * X)


def _dense_case(operation: str, blocks: _Blocks) -> Case:
    """Make the case of a call on blocks, beside the usual expression on their arrays."""
    problem, sets, ours, plain = _made(operation, blocks)
    calls = {name: turns(call, *sets) for name, call in ours.items()}
    arrays = [[block.array for block in each] for each in sets]
    calls["numpy" if blocks.backend.name == "cpu" else "cupy"] = turns(plain, *arrays)
    return case(operation, problem, blocks.backend, calls)
