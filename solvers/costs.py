"""Predict the seconds of the parts of a solve, by one model: decisions do not depend on the clock.

Each class of device has one record of rates. Predictions are right to a factor of two or three: they choose
between methods whose times differ by more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from blockvec.system.frozen import frozen

from .blocks import Operator

if TYPE_CHECKING:
    from .problem import IterationOptions, Problem

INDEX_BYTES = 4  # bytes: a column index of a sparse matrix
STEP_VECTORS = 8  # vectors that a step of a single column moves beside the matrix
NEARLY_FULL = 4  # n^2 / nonzeros: matrices with fewer zeros fill in; random matrices, see docs/theory
FEW_ROWS = 3000  # rows: dense LAPACK takes up to 7 s on one core (27e9 * dense_row_s) and answers failures


@frozen
class FactorRates:
    """Seconds of a library of sparse factors."""

    row_s: float  # per row, of the analysis
    entry_s: float  # per entry of the matrix, of the analysis
    symbolic_s: float  # per entry of the factors, of the analysis
    flop_s: float  # per operation
    solve_s: float  # per entry of the factors and block of eight columns
    call_s: float  # least time of a solve


@frozen
class Rates:
    """Seconds of the operations of an iteration on a class of device."""

    call_s: float  # least time of a product with a block
    recurrence_s: float  # the same within a Chebyshev recurrence, which checks nothing
    column_s: float  # least time of a product or a step of a single column
    byte_s: float  # per byte that a product moves
    step_s: float  # of a step of an iteration, beside what it moves
    launched_s: float  # the same for one of several steps that one call queues
    vector_passes: float  # reads and writes of a block per product
    basis_passes: float  # reads and writes of the basis per step
    block_passes: float  # reads and writes of the new block per step
    dense_s: float  # least time of dense LAPACK
    dense_row_s: float  # per cubed row of dense LAPACK
    exchange_s: float  # least time of an exchange of rows between processes
    exchange_byte_s: float  # per byte that a process receives
    sum_s: float  # of a sum over processes
    factors: Mapping[str, FactorRates]  # by library


HOST = Rates(
    call_s=1e-4,  # one core, plane meshes of 900 rows: 0.8e-4 to 1.1e-4 for 1 to 4 columns
    recurrence_s=2e-5,  # two cores of a server, row-major blocks
    column_s=3e-5,  # one core, 900 rows: 3.4e-5
    byte_s=1e-10,  # one core, plane meshes of 1e4 to 5e5 rows: 0.8e-10 to 2.6e-10
    step_s=4e-4,  # two cores of a server
    launched_s=4e-4,  # there is no queue
    vector_passes=2.5,  # two cores of a server
    basis_passes=6,  # four, at two thirds of the throughput of products (two cores of a server)
    block_passes=24,  # the same
    dense_s=0.0,  # less than a step
    dense_row_s=4e-10,  # one core, 200 to 1000 rows: 2.6e-10 to 6.4e-10
    exchange_s=2e-5,  # two processes of a host, shared memory
    exchange_byte_s=5e-10,  # the same, rows in any order
    sum_s=1e-5,  # two processes of a host, shared memory
    factors={
        # One core: 8.7 s for 1.2e7 entries of a spin chain, 2.1 s for 5.8e6 of a cube of 30^3 points.
        "SuperLU": FactorRates(
            row_s=0, entry_s=1e-7, symbolic_s=1e-7, flop_s=4e-10, solve_s=2e-8, call_s=1e-3
        ),
        # MKL 2026.2 on one core: 0.9 s for a cube of 40^3 points, 1.3 s for a square of 500^2, 0.5 s for an
        # elastic block of 23,000 unknowns and for a spin chain of 12,870 states.
        "PARDISO": FactorRates(
            row_s=3e-6, entry_s=1e-7, symbolic_s=1e-8, flop_s=1.2e-11, solve_s=4e-9, call_s=5e-4
        ),
    },
)
GPU = Rates(
    call_s=2e-5,  # H100, few rows
    recurrence_s=2e-5,  # H100: with step_s the best of five pairs for 11 matrices of 6e3 to 2e6 rows
    column_s=2e-5,  # as for a block
    byte_s=2.5e-13,  # H100 and H200: 4 TB/s
    step_s=5e-4,  # H100: see recurrence_s; single steps took 1.3e-4 to 4e-4
    launched_s=6e-5,  # H100, few rows
    vector_passes=3.5,  # H100, the same eleven matrices
    basis_passes=4,  # twice for projections, twice again
    block_passes=16,  # H100, the same eleven matrices
    dense_s=0.1,  # H100: the first call of cuSOLVER
    dense_row_s=4e-11,  # H100, up to 3000 rows
    exchange_s=1e-4,  # two H200 of a host: calls from Python take 95 to 330 us, those of one GPU 25 to 70
    exchange_byte_s=4e-12,  # the same: 250 GB/s (tests/benchmarks/scaling_model.py)
    sum_s=1.2e-5,  # H200: 7 us over two, 12 us over more (the same)
    factors={
        # cuDSS 0.8 on an H200: 1.4 s of analysis for a plane mesh of 8.1e5 rows, 3.5 s for a spatial one of
        # 1e6, and 0.55 s for its numbers.
        "cuDSS": FactorRates(
            row_s=1.5e-6, entry_s=5e-8, symbolic_s=2e-9, flop_s=5e-14, solve_s=4.6e-11, call_s=5e-3
        )
    },
)


def rates(device: str) -> Rates:
    """Return the rates of a device by its name."""
    return HOST if device == "cpu" else GPU


Rival = Literal["end", "inside", "solves", "factors", "interval"]
# Rows, and further rows per wanted pair, up to which dense LAPACK takes less time than its rival.
DENSE_ROWS: dict[tuple[str, Rival], tuple[int, int]] = {
    # Steps at an end: dense matrices of 180 to 400 rows took .5 to 2.4 times as long densely at this limit.
    ("host", "end"): (150, 5),
    ("gpu", "end"): (500, 0),  # a fraction of a second, and nothing can be missed
    # Steps inside a spectrum: those of the host took 2 to 13 times as long.
    ("host", "inside"): (FEW_ROWS, 0),
    ("gpu", "inside"): (1500, 0),
    # Steps with solves, once there are factors.
    ("host", "solves"): (150, 0),
    ("gpu", "solves"): (150, 0),
    # Factors with their solves: graphs and lattices, one pair at the first number, 6 to 40 by the second.
    ("host", "factors"): (300, 6),
    ("gpu", "factors"): (FEW_ROWS, 0),  # at an end of the spectrum
    # Counts and shifts for all values in an interval.
    ("host", "interval"): (500, 0),
    ("gpu", "interval"): (500, 0),
}
DENSE_SHARE = 3  # n / k: for more pairs the basis of an iteration would be the whole space
DENSE_MAX_ROWS = 10_000  # rows: dense LAPACK takes minutes, and gigabytes


def dense_rows(rival: Rival, device: str, k: int) -> int:
    """Return the number of rows up to which dense LAPACK takes less time than its rival."""
    rows, per_pair = DENSE_ROWS["host" if device == "cpu" else "gpu", rival]
    return min(FEW_ROWS, rows + per_pair * k)


def dense_is_faster(n: int, k: int, device: str, rival: Rival) -> str | None:
    """Return the reason why dense LAPACK is faster for k pairs of n rows than a rival; None if it is not."""
    if n <= (most := dense_rows(rival, device, k)):
        return f"n = {n} is at most {most}"
    if rival != "factors" and k * DENSE_SHARE > n and n <= DENSE_MAX_ROWS:
        return f"k = {k} is more than 1/{DENSE_SHARE} of n = {n}"
    return None


def fits_dense(operator: Operator) -> bool:
    """Check whether dense LAPACK takes seconds."""
    return operator.shape[0] <= FEW_ROWS


def is_dense(operator: Operator) -> bool:
    """Check whether an operator multiplies by a dense matrix."""
    return getattr(operator, "matrix", None) is not None


def is_full(operator: Operator) -> bool:
    """Check whether an operator of the host multiplies by a dense matrix whose factors have few zeros."""
    matrix = getattr(operator, "matrix", None)
    if matrix is None or operator.device != "cpu":
        return False
    return bool(np.count_nonzero(matrix) * NEARLY_FULL >= matrix.size)


def product_bytes(operator: Operator, columns: int) -> float:
    """Count the bytes that a product with a block moves; a function moves the block only."""
    n, size = int(operator.shape[0]), int(operator.dtype.itemsize)
    nnz, dense = getattr(operator, "nnz", None), n * n * size if is_dense(operator) else 0
    entries = dense if nnz is None else int(nnz) * (size + INDEX_BYTES)
    return entries + rates(operator.device).vector_passes * n * columns * size


def product_s(operator: Operator, columns: int) -> float:
    """Predict the seconds of a product with a block, without its call."""
    return rates(operator.device).byte_s * product_bytes(operator, columns)


def recurrence_s(operator: Operator, columns: int) -> float:
    """Predict the seconds of a product with a block within a polynomial."""
    return max(rates(operator.device).recurrence_s, product_s(operator, columns))


def step_s(
    device: str, n: int, itemsize: int, columns: int, basis: float, *, in_launches: bool = False
) -> float:
    """Predict the seconds of a step beside its products: a block is orthogonalised against a basis."""
    rate = rates(device)
    least_s, passes = (rate.launched_s, 1.0) if in_launches else (rate.step_s, rate.basis_passes)
    return least_s + rate.byte_s * n * itemsize * (passes * basis + rate.block_passes * columns)


def call_s(problem: Problem, options: IterationOptions, columns: int) -> float:
    """Predict the seconds of a product of an iteration with a block, with its share of a step."""
    op, device = problem.operator, problem.operator.device
    if columns == 1:
        return rates(device).column_s + product_s(op, 1)
    is_queued = device != "cpu" and options.method != "jd"
    size = op.dtype.itemsize
    own_s = step_s(device, problem.n, size, columns, options.ncv, in_launches=is_queued)
    return rates(device).call_s + product_s(op, columns) + own_s / options.degree


def dense_s(device: str, n: int) -> float:
    """Predict the seconds of dense LAPACK."""
    return rates(device).dense_s + rates(device).dense_row_s * n**3
