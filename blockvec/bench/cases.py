"""Benchmark cases: calls of blockvec and of its peers that rotate among sets of operands; their measurement.

The sets together exceed the caches, so that every run reads its operands from memory, as a solver does that
sweeps over a large basis.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..backends import Array, Backend
from ..blocks.blockvector import BlockVector
from ..errors import OptionError
from ..kernels.limits import round_up
from ..kernels.measure import Timing, measure_beside
from ..kernels.problem import Problem, SpmmvProblem, itemsize
from ..kernels.roofline import Ceilings, fraction, gather_time, traffic
from ..models.catalogue import open_matrix
from ..operations import products
from ..operations.dispatch import accepts, choose
from ..operators.adapters import as_operator
from ..system.frozen import frozen

OPERATIONS = ("dot", "combine", "apply")
HOST_ELEMENTS = 4_000_000  # elements per operand on a CPU: 32 MB in double precision
GPU_OPERAND_BYTES = 2 << 30  # bytes per operand on a GPU
QUICK_OPERAND_BYTES = 1 << 20  # bytes per operand of a trial run
HOST_FOOTPRINT_BYTES = 512 << 20  # bytes of all operands: more than caches keep of one process
L2_FOOTPRINT = 8  # the same on a GPU, in multiples of its L2
ALIGNMENT = 512  # bytes between the starts of blocks, as between GPU allocations
# OpenBLAS threads spin for 2^28 ticks (0.1 s) after a call and occupy cores of the next measurement.
BLAS_SPIN_S = 0.12

Call = Callable[[], object]
Function = Callable[..., object]


@frozen
class Case:
    """One operation on operands of one shape; `kernel` is the one that dispatch selects.

    Of `calls`, ``"blockvec"`` is first, then come the peers; each call advances to the next set of operands.
    """

    operation: str
    problem: Problem
    kernel: str
    calls: dict[str, Call]
    config: str = ""  # the kernel's configuration, if it has one
    matrix: str = ""  # its name, of sparse products


def turns(function: Function, *operands: Sequence[Any]) -> Call:
    """Bind a function to operands; each call uses the next set, and each list cycles at its own length."""
    sets = zip(*map(itertools.cycle, operands), strict=True)
    return lambda: function(*next(sets))


def make_cases(
    operations: Sequence[str],
    dtypes: Sequence[str],
    widths: Sequence[int],
    backend: Backend,
    *,
    rows: int | None = None,
    quick: bool = False,
    matrices: Sequence[str] = (),
) -> Iterator[Case]:
    """Return the cases of a run, each with its operands in memory; release one before taking the next.

    By default operands have four million elements on a CPU and 2 GiB on a GPU; `quick` ones have 1 MiB and do
    not rotate.
    """
    opened = [open_matrix(name) for name in matrices] if "apply" in operations else []
    if any(isinstance(matrix, np.ndarray) for matrix in opened):
        raise OptionError("apply is measured on sparse matrices; another one is dense.")

    def cases() -> Iterator[Case]:
        footprint = HOST_FOOTPRINT_BYTES if backend.name == "cpu" else L2_FOOTPRINT * backend.device.l2_bytes
        for dtype in dtypes if {*operations} - {"apply"} else ():
            elements = QUICK_OPERAND_BYTES // itemsize(dtype) if quick else HOST_ELEMENTS
            if backend.name != "cpu" and not quick:
                elements = GPU_OPERAND_BYTES // itemsize(dtype)
            most = max((rows or elements // width) * width for width in widths) + ALIGNMENT // itemsize(dtype)
            wanted = max(2 * most, 0 if quick else footprint // itemsize(dtype))
            memory = BlockVector.random(wanted, 1, dtype, device=backend.name, rng=1).array[:, 0]
            for operation, width in itertools.product(operations, widths):
                if operation != "apply":
                    yield _dense_case(operation, memory, rows or max(1, elements // width), width, backend)
        for matrix, dtype, width in itertools.product(opened, dtypes, widths):
            yield _sparse_case(matrix.astype(dtype), width, dtype, backend)

    return cases()


def _dense_case(operation: str, memory: Array, rows: int, width: int, backend: Backend) -> Case:
    """Make the case of a call on blocks, beside the usual expression on their arrays."""
    size = rows * width
    starts = range(0, len(memory) - size + 1, round_up(size, ALIGNMENT // memory.itemsize))
    blocks = [BlockVector(memory[start : start + size].reshape(rows, width)) for start in starts]
    V, W = blocks[: len(blocks) // 2], blocks[len(blocks) // 2 :]
    A, B = V[0].array, W[0].array
    problem: Problem
    ours: Function
    usual: Function
    if operation == "dot":
        problem = products.tsmttsm_problem(A, B, True)
        ours, usual = BlockVector.dot, lambda X, Z: X.conj().T @ Z  # no copy of a real block
    else:  # coefficients whose repeated application lets no block grow
        C = np.random.default_rng(2).uniform(-1, 1, (width, width)).astype(memory.dtype)
        small = backend.from_host(C / np.abs(C).sum(axis=0).max())
        problem = products.tsmm_problem(A, small, B)
        ours, usual = (lambda X, Z: X.combine(small, out=Z), lambda X, Z: backend.xp.matmul(X, small, out=Z))
    arrays = [[block.array for block in each] for each in (V, W)]
    peer = "numpy" if backend.name == "cpu" else "cupy"
    return case(operation, problem, backend, {"blockvec": turns(ours, V, W), peer: turns(usual, *arrays)})


def case(
    operation: str, problem: Problem, backend: Backend, calls: dict[str, Call], matrix: str = ""
) -> Case:
    """Make a case with the kernel that dispatch selects; without a fused kernel it is named ``two calls``."""
    if not accepts(problem, backend):
        return Case(operation, problem, "two calls", calls, matrix=matrix)
    chosen = choose(problem, backend)
    return Case(operation, problem, chosen.name, calls, chosen.configuration(), matrix)


def _sparse_case(matrix: Any, width: int, dtype: str, backend: Backend) -> Case:
    """Make the case of Y = A X, beside SciPy or CuPy."""
    S = as_operator(matrix, device=backend.name)
    X = BlockVector.random(S.shape[1], width, dtype, device=backend.name, rng=1)
    Y = BlockVector.empty(S.shape[0], width, dtype, device=backend.name)
    peer = "scipy"
    if backend.name != "cpu":
        from cupyx.scipy.sparse import csr_matrix

        peer, matrix = "cupy", csr_matrix(matrix)
    calls: dict[str, Call] = {"blockvec": partial(S.apply, X, out=Y), peer: lambda: matrix @ X.array}
    for call in calls.values():
        call()  # the first product divides or compiles
    known = S.explain(X)
    assert known is not None  # of a matrix
    return case("apply", known[0], backend, calls)


@frozen
class Measured:
    """A case with the timings of blockvec and of its peers."""

    case: Case
    ours: Timing
    peers: dict[str, Timing]
    ceilings: Ceilings

    def line(self) -> str:
        """Format the table row."""
        problem, ours_s = self.case.problem, self.ours.median_s
        if isinstance(problem, SpmmvProblem):
            rows, M, N = problem.n_rows, problem.width, problem.width
        else:
            rows, M, N = problem.K, problem.M, getattr(problem, "N", problem.M)
        rate = traffic(problem).total_bytes / ours_s * 1e-9
        name, best = min(self.peers.items(), key=lambda peer: peer[1].median_s)
        limit, theirs = (fraction(problem, time_s, self.ceilings) for time_s in (ours_s, best.median_s))
        gather_s = gather_time(problem, self.ceilings)
        gathered = "-" if gather_s is None else f"{gather_s / ours_s:.0%}"
        return (
            f"{self.case.operation:11} {problem.dtype:10} {M:3d} {N:3d} {rows:10d}  {self.case.kernel:15} "
            f"{ours_s * 1e3:9.3f} {rate:8.1f} {limit:6.0%} {gathered:>6}  "
            f"{name:15} {best.median_s * 1e3:9.3f} {theirs:6.0%} {best.median_s / ours_s:8.2f}"
        )


def heading(backend: Backend, ceilings: Ceilings) -> str:
    """Format the line of measured ceilings and the table header."""
    rates = ", ".join(f"{dtype} {rate:.0f}" for dtype, rate in sorted(ceilings.gflop_s.items()))
    l2 = f", L2 {ceilings.l2_gb_s:.1f}" if ceilings.l2_gb_s else ""
    return (
        f"{backend.device.name}: read {ceilings.read_gb_s:.1f}, write {ceilings.write_gb_s:.1f}, "
        f"copy {ceilings.copy_gb_s:.1f}{l2} GB/s; {rates} Gflop/s\n"
        f"{'call':11} {'type':10} {'M':>3} {'N':>3} {'rows':>10}  {'kernel':15} {'ms':>9} {'GB/s':>8} "
        f"{'limit':>6} {'gather':>6}  {'beside':15} {'ms':>9} {'limit':>6} {'speed-up':>8}"
    )


def measure_case(case: Case, backend: Backend, ceilings: Ceilings, *, quick: bool = False) -> Measured:
    """Time a case and its peers in alternating bursts; `quick` for few runs, as a first impression."""
    on_gpu = backend.device.kind == "cuda"
    timings = measure_beside(
        case.calls,
        backend.stopwatch,
        budget_s=0.01 if quick else 0.03 if on_gpu else 0.05,
        burst=4,
        min_rounds=1 if quick else 2 if on_gpu else 3,
        max_rounds=2 if quick else 6,
        pause_s=0.0 if on_gpu or quick else BLAS_SPIN_S,
        before_burst=backend.block_stream,
    )
    return Measured(case, timings.pop("blockvec"), timings, ceilings)
