"""The roofline of a problem: bytes that must move, flops that must be done, and the time both allow.

Bytes are the compulsory ones: each operand is read once from memory, each result written once, and an
output is read only when beta is not zero. What fits a cache is not special-cased, so a small problem can
show a fraction above one.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import field

from ..system.frozen import frozen
from .problem import (
    Problem,
    SpmmvProblem,
    StreamProblem,
    SweepProblem,
    TsmmProblem,
    TsmttsmProblem,
    is_complex,
    itemsize,
)

LEAST_BYTES = 64 << 20
"""Bytes moved from which a choice no longer depends on the number of rows."""


@frozen
class Ceilings:
    """Measured limits of one device."""

    read_gb_s: float  #: best read-only stream, in 1e9 bytes per second
    write_gb_s: float  #: best write-only stream
    copy_gb_s: float  #: best copy, counting bytes read plus bytes written
    #: Best arithmetic rate by real element type, in 1e9 floating-point operations per second; for complex
    #: problems the type of the parts counts.
    gflop_s: Mapping[str, float] = field(default_factory=dict)
    #: Best read from the cache that all multiprocessors of a GPU share; 0 where there is no such probe.
    l2_gb_s: float = 0.0
    #: Best streams of other mixes of reads and writes: the share of writes, and the rate, counting both.
    mixed_gb_s: tuple[tuple[float, float], ...] = ()


H200_CEILINGS = Ceilings(4650.0, 4400.0, 4240.0)
"""Measured limits of an H200, of which models of kernels predict times."""


@frozen
class Traffic:
    """Compulsory bytes of a problem."""

    read_bytes: int
    write_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes read plus bytes written."""
        return self.read_bytes + self.write_bytes


def traffic(problem: Problem) -> Traffic:
    """Compute the bytes that must move between memory and the processor."""
    match problem:
        case TsmttsmProblem(K=K, M=M, N=N):
            size_c = M * N * itemsize(problem.dtype)
            tall = K * M * itemsize(problem.dtype_a)
            if not problem.same:
                tall += K * N * itemsize(problem.dtype_b)
            return Traffic(tall + (size_c if problem.beta != "zero" else 0), size_c)
        case TsmmProblem(K=K, M=M, N=N) | SweepProblem(K=K, M=M, N=N):
            rows = K + N * isinstance(problem, SweepProblem)  # rows of B, and those of its Gram matrix
            read = K * M * itemsize(problem.dtype_a) + M * N * itemsize(problem.dtype_c)
            read += K * N * itemsize(problem.dtype) if problem.beta != "zero" else 0
            return Traffic(read, rows * N * itemsize(problem.dtype))
        case SpmmvProblem():
            matrix = problem.nnz * (itemsize(problem.dtype_matrix) + problem.index_bytes)
            matrix = (matrix + (problem.n_rows + 1) * problem.index_bytes) * problem.stored
            size_x = problem.n_cols * problem.width * itemsize(problem.dtype_x)
            size_y = problem.n_rows * problem.width * itemsize(problem.dtype)
            # Sums take no further bytes; Z has the size of Y.
            blocks_read = (problem.beta != "zero") + (problem.chain in ("one", "general"))
            blocks_written = 1 + (problem.chain != "none")
            return Traffic(matrix + size_x + blocks_read * size_y, blocks_written * size_y)
        case StreamProblem():
            block = problem.K * problem.M * itemsize(problem.dtype)
            return Traffic(problem.reads * block, problem.writes * block)


def flops(problem: Problem) -> int:
    """Count the real floating-point operations of a problem (a complex multiply-add counts eight)."""
    match problem:
        case TsmttsmProblem(K=K, M=M, N=N):
            elements = M * (M + 1) // 2 if problem.same else M * N  # a Gram matrix is Hermitian
            return K * elements * _multiply_add(*problem.dtypes)
        case TsmmProblem(K=K, M=M, N=N):
            return K * M * N * _multiply_add(*problem.dtypes)
        case SweepProblem(K=K, M=M, N=N):
            wide, small = _multiply_add(problem.dtype_a, problem.dtype), problem.dtype
            return K * N * (M * wide + N * _multiply_add(small, small))
        case SpmmvProblem():
            products = problem.nnz * problem.width * _multiply_add(problem.dtype_matrix, problem.dtype_x)
            dtypes = {"x": problem.dtype_x, "y": problem.dtype}
            dots, gram = (
                sum(_multiply_add(dtypes[name[0]], dtypes[name[1]]) for name in names)
                for names in (problem.dots, problem.gram)
            )
            return products + problem.n_rows * problem.width * (dots + problem.width * gram)
        case StreamProblem():
            weight = 4 if is_complex(problem.dtype) else 1
            return problem.K * problem.M * problem.flops_per_element * weight


def gather_time(problem: Problem, ceilings: Ceilings) -> float | None:
    """Compute the seconds in which L2 delivers a row of X per entry of a sparse matrix.

    This is no hardware limit: kernels that find rows of X in L1 are faster. None for other problems, and
    where the bandwidth of L2 is unknown.
    """
    if not isinstance(problem, SpmmvProblem) or not ceilings.l2_gb_s:
        return None
    return problem.nnz * problem.width * itemsize(problem.dtype_x) / ceilings.l2_gb_s * 1e-9


def _multiply_add(dtype_left: str, dtype_right: str) -> int:
    return 2 * (2 if is_complex(dtype_left) else 1) * (2 if is_complex(dtype_right) else 1)


def memory_time(moved: Traffic, ceilings: Ceilings) -> float:
    """Compute the seconds of memory traffic, interpolated between the nearest measured mixes.

    Where only reads, copies and writes were measured, equal reads and writes take the copy rate, the rest its
    own rate.
    """
    if not moved.total_bytes:
        return 0.0
    pure = (0.0, ceilings.read_gb_s), (0.5, ceilings.copy_gb_s), (1.0, ceilings.write_gb_s)
    mixes = sorted((*pure, *ceilings.mixed_gb_s))
    share = moved.write_bytes / moved.total_bytes
    above = bisect.bisect_left(mixes, (share,), lo=1, hi=len(mixes) - 1)
    (lower, lower_rate), (upper, upper_rate) = mixes[above - 1 : above + 1]
    weight = (share - lower) / (upper - lower)
    return moved.total_bytes * ((1 - weight) / lower_rate + weight / upper_rate) * 1e-9


def time_limit(problem: Problem, ceilings: Ceilings, work: int | None = None) -> float:
    """Compute the shortest time in seconds that the measured ceilings allow for a problem.

    `work` replaces the count of floating-point operations.
    """
    single = problem.dtype in ("float32", "complex64")
    peak = ceilings.gflop_s.get("float32" if single else "float64")
    compute = (flops(problem) if work is None else work) / peak * 1e-9 if peak else 0.0
    return max(memory_time(traffic(problem), ceilings), compute)


def fraction(problem: Problem, time_s: float, ceilings: Ceilings) -> float:
    """Compute the fraction of the roofline that `time_s` seconds reach; 1 is the hardware limit."""
    return time_limit(problem, ceilings) / time_s if time_s > 0 else 0.0
