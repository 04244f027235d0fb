"""Predict the seconds and the memory of the parts of a solve: decisions do not depend on the clock.

Each class of device has one record of rates. Predictions are right to a factor of two or three: they choose
between methods whose times differ by more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import blockvec
from blockvec.errors import OptionError
from blockvec.system.frozen import frozen
from blockvec.system.memory import available_memory

from .blocks import Operator, is_explicit

if TYPE_CHECKING:
    from .factorization.work import FactorWork
    from .problem import IterationOptions, Problem

INDEX_BYTES = np.dtype(np.int32).itemsize  # bytes: a column index of a sparse matrix
STEP_VECTORS = 8  # vectors that a step of a single column moves beside the matrix
NEARLY_FULL = 2  # n^2 / nonzeros: matrices with fewer zeros fill in
FEW_ROWS = 3000  # rows: dense LAPACK takes up to 7 s on one core (27e9 * dense_row_s) and answers failures
BLOCK_PASSES = 4  # passes of a step over its new block, per pass over the basis
STEP_S = 5e-4  # s: a step of an iteration beside what it moves; H100, and 4e-4 on two cores of a server
EXCHANGE_S = 1e-4  # s: least time of an exchange of rows; two H200 of a host, from Python 95 to 330 us
RECEIVED = 10  # bytes moved per byte received: 5 for two processes of a host, 16 for two H200, at 250 GB/s


@frozen
class FactorRates:
    """Seconds of a library of sparse factors."""

    row_s: float  # per row, of the analysis
    symbolic_s: float  # per entry of the factors, of the analysis
    flop_s: float  # per operation
    solve_s: float  # per entry of the factors and block of eight columns


@frozen
class Rates:
    """Seconds of the operations of an iteration on a class of device."""

    call_s: float  # least time of a product
    byte_s: float  # per byte that a product moves
    mixed_s: float  # least time of a product whose time is that of memory: single precision saves some
    vector_passes: float  # reads and writes of a block per product
    basis_passes: float  # the same of the basis per step: twice for projections, twice again
    queued_s: float  # least time of a step that a call queues with others, in the place of STEP_S
    dense_s: float  # least time of dense LAPACK
    dense_row_s: float  # per cubed row of dense LAPACK
    inverted_s: float  # least time of a whole solve by shift-invert
    factors: Mapping[str, FactorRates]  # by library


HOST = Rates(
    call_s=3e-5,  # one core, 900 rows: 3.4e-5 for a column; 2e-5 within a recurrence (two cores of a server)
    byte_s=1e-10,  # one core, plane meshes of 1e4 to 5e5 rows: 0.8e-10 to 2.6e-10
    mixed_s=3e-3,  # two cores, 64 000 rows: it saved none, with operands in caches
    vector_passes=2.5,  # two cores of a server; with those of a GPU filters took 1.2 to 1.3 times as long
    basis_passes=6,  # the same: four, at two thirds of the throughput of products
    queued_s=0,  # there is no queue
    dense_s=0,  # less than a step
    dense_row_s=4e-10,  # one core, 200 to 1000 rows: 2.6e-10 to 6.4e-10
    inverted_s=0.05,  # one core: with 0.15 a stiff mesh of 1300 rows took 3.7 times as long
    factors={
        # One core: 8.7 s for 1.2e7 entries of a spin chain, 2.1 s for 5.8e6 of a cube of 30^3 points.
        "SuperLU": FactorRates(row_s=0, symbolic_s=1e-7, flop_s=4e-10, solve_s=2e-8),
        # MKL 2026.2 on one core: 0.9 s for a cube of 40^3 points, 1.3 s for a square of 500^2, 0.5 s for an
        # elastic block of 23,000 unknowns and for a spin chain of 12,870 states.
        "PARDISO": FactorRates(row_s=3e-6, symbolic_s=1e-8, flop_s=1.2e-11, solve_s=4e-9),
    },
)
GPU = Rates(
    call_s=2e-5,  # H100, few rows
    byte_s=2.5e-13,  # H100 and H200: 4 TB/s
    mixed_s=2e-5,  # H100, six matrices from here to ten times that: it saved 8 to 43 per cent
    vector_passes=3.5,  # H100: with STEP_S and call_s the best for 11 matrices of 6e3 to 2e6 rows
    basis_passes=4,  # the same
    queued_s=6e-5,  # H100, few rows
    dense_s=0.1,  # H100: the first call of cuSOLVER
    dense_row_s=4e-11,  # H100, up to 3000 rows
    inverted_s=0.4,  # H200
    factors={
        # cuDSS 0.8 on an H200: 1.4 s of analysis for a plane mesh of 8.1e5 rows, 3.5 s for a spatial one of
        # 1e6, and 0.55 s for its numbers; 5e-3 s for a solve with few rows.
        "cuDSS": FactorRates(row_s=1.5e-6, symbolic_s=2e-9, flop_s=5e-14, solve_s=4.6e-11)
    },
)


def rates(device: str) -> Rates:
    """Return the rates of a device by its name."""
    return HOST if device == "cpu" else GPU


Rival = Literal["end", "full", "inside", "solves", "factors", "interval"]
SHORT = 150  # rows: LAPACK takes less time than blocks of solves
SMALL = 500  # rows: it takes a fraction of a second, and needs no threads of BLAS
PER_PAIR = 5  # rows per wanted pair, beside twice SHORT: steps and solves take longer for more pairs
# Rows, and further rows per wanted pair, up to which dense LAPACK takes less time than its rival, on the host
# and on a GPU.
DENSE_ROWS: dict[Rival, tuple[tuple[int, int], tuple[int, int]]] = {
    # Steps at an end: lattices, graphs and bands of 300 rows took 0.7 to 1.5 times as long as densely for 1
    # to 25 pairs, those of 400 rows 0.5 to 1.2. Dense LAPACK misses no copy, for which a GPU takes it longer.
    "end": ((2 * SHORT, PER_PAIR), (SMALL, 0)),
    # The same with dense matrices: 400 rows took 1.2, 500 rows 1.0, 800 rows 0.9 for 6 pairs and 1.3 for 25.
    "full": ((SMALL, PER_PAIR), (SMALL, 0)),
    # Steps inside a spectrum: those of the host took 2 to 13 times as long.
    "inside": ((FEW_ROWS, 0), (FEW_ROWS // 2, 0)),
    # Steps with solves, once there are factors: with a mass 170 rows took 1.2 to 1.6, 225 rows 1.0.
    "solves": ((200, 0), (SHORT, 0)),
    # Factors with their solves, on a GPU at an end: 300 rows took 1.1 to 2.0 times as long, 400 rows 0.8 to
    # 1.4 on the host.
    "factors": ((2 * SHORT, PER_PAIR), (FEW_ROWS, 0)),
    # Counts and shifts for all values in an interval.
    "interval": ((SMALL, 0), (SMALL, 0)),
}
# n / k: for more pairs the basis of an iteration would be the whole space. With 5 svds took 1.2 to 4 times as
# long for a quarter of all values.
DENSE_SHARE = 3


def dense_rows(rival: Rival, device: str, k: int) -> int:
    """Return the number of rows up to which dense LAPACK takes less time than its rival."""
    rows, per_pair = DENSE_ROWS[rival][device != "cpu"]
    return min(FEW_ROWS, rows + per_pair * k)


def dense_is_faster(n: int, k: int, device: str, rival: Rival) -> str | None:
    """Return the reason why dense LAPACK is faster for k pairs of n rows than a rival; None if it is not."""
    if n <= (most := dense_rows(rival, device, k)):
        return f"n = {n} is at most {most}"
    if rival != "factors" and k * DENSE_SHARE > n:
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


def product_s(operator: Operator, columns: int) -> float:
    """Predict the seconds of a product with a block, without its call; a function moves the block only."""
    n, size, nnz = operator.shape[0], operator.dtype.itemsize, getattr(operator, "nnz", None)
    rate, dense = rates(operator.device), n * n * size if is_dense(operator) else 0
    vectors = rate.vector_passes * n * columns * size
    return rate.byte_s * ((dense if nnz is None else int(nnz) * (size + INDEX_BYTES)) + vectors)


def recurrence_s(operator: Operator, columns: int) -> float:
    """Predict the seconds of a product with a block within a polynomial."""
    return max(rates(operator.device).call_s, product_s(operator, columns))


def step_s(device: str, n: int, itemsize: int, columns: int, basis: float) -> float:
    """Predict the seconds of a step beside its products: a block is orthogonalised against a basis."""
    rate = rates(device)
    vectors = rate.basis_passes * (basis + BLOCK_PASSES * columns)
    return STEP_S + rate.byte_s * n * itemsize * vectors


def call_s(problem: Problem, options: IterationOptions, columns: int) -> float:
    """Predict the seconds of a product of an iteration with a block, with its share of a step.

    Steps that a GPU has in its queue read the basis once.
    """
    op, rate = problem.operator, rates(problem.operator.device)
    if columns == 1:
        return rate.call_s + product_s(op, 1)
    size, basis = op.dtype.itemsize, options.ncv
    if rate.queued_s and options.method != "jd":
        vectors = basis + rate.basis_passes * BLOCK_PASSES * columns
        own_s = rate.queued_s + rate.byte_s * problem.n * size * vectors
    else:
        own_s = step_s(op.device, problem.n, size, columns, basis)
    return rate.call_s + product_s(op, columns) + own_s / options.degree


# Below this, filters that nobody asked for take longer than Lanczos steps with A: 1.1 to 1.8 times as long
# with degrees of 4 and 6 on an H100 (five graphs and meshes of 3e5 to 1e6 rows).
PAYING_DEGREE = 8
MAX_DEGREE = 64
SINGLE = {"d": np.dtype(np.float32), "D": np.dtype(np.complex64)}  # by the type code of double precision


def choose_degree(operator: Any, block_size: int, basis: int, itemsize: int | None = None) -> int:
    """Return the degree at which applying A costs as much as orthogonalising, or 1 if the cost is unknown.

    `basis` is the mean number of vectors that a step orthogonalises against, and `itemsize` the size of their
    elements in bytes, by default that of the operator's.
    """
    if getattr(operator, "nnz", None) is None:
        return 1
    n, size = max(int(operator.shape[0]), 1), itemsize or int(operator.dtype.itemsize)
    orthogonalising_s = step_s(operator.device, n, size, block_size, basis)
    return max(1, min(round(orthogonalising_s / recurrence_s(operator, block_size)), MAX_DEGREE))


def can_convert(operator: Operator) -> bool:
    """Check whether an operator is a matrix in double precision whose entries can be converted."""
    return operator.dtype.char in SINGLE and hasattr(operator, "converted")


def copy_bytes(operator: Operator, block_size: int) -> int:
    """Count the bytes of a copy in single precision, and of the blocks that it is applied to, per process.

    On a GPU the kernels may take the matrix in a form of its own, with other indices.
    """
    size = SINGLE[operator.dtype.char].itemsize
    entry = size + (0 if operator.device == "cpu" else size + INDEX_BYTES)
    stored: int = getattr(operator, "n_stored", getattr(operator, "nnz", 0))
    processes = 1 if operator.layout is None else operator.layout.size
    return (stored * entry + 2 * operator.shape[0] * block_size * size) // processes


def dense_s(device: str, n: int) -> float:
    """Predict the seconds of dense LAPACK."""
    return rates(device).dense_s + rates(device).dense_row_s * n**3


UNASKED_ENTRIES = 100_000_000  # stored entries: of a matrix that is factorised unasked, at most
AFFORDABLE_S = 20.0  # s, predicted: a factorisation on the host that nobody asked for
MOST_BYTES = 1 << 33  # bytes, predicted: of the same, half of the memory of a small computer
# Factorisation on the host for a matrix of a GPU without a library of factors, where iterations can take its
# place. Inside a spectrum iterations on a GPU took 3 to 60 times as long, at an end a fifth for a cube of
# 30^3.
QUICK_S = 8.0  # s, predicted
MOST_ENTRIES = 5_000_000  # entries of a matrix that is copied for this prediction, up to three times too high
SMALL_BYTES = 1 << 28  # bytes that are taken to be free on a host: asking takes a millisecond


def place_of(A: Any, device: str, limit_s: float = QUICK_S, M: Any = None) -> str | None:
    """Choose where to factorise a matrix of a device: there, or on the ``"cpu"``; None if neither can.

    Large matrices of a GPU without a library of factors are factorised on the host if that is predicted to
    take `limit_s` seconds at most. Functions have no factors.
    """
    if not is_explicit(A) or len(A.shape) != 2:
        return None
    entries = _size(A)[1]
    if device == "cpu" or is_small(A):
        return "cpu"
    if blockvec.Factorization.is_available(device):
        return device
    is_quick = entries <= MOST_ENTRIES and factor_s(A, "cpu", limit_s, M) <= limit_s
    return "cpu" if is_quick else None


def is_factorable(A: Operator, which: str) -> bool:
    """Check by its size whether factors of A - sigma M may be affordable, and help at the wanted end.

    On a GPU, dense LAPACK takes less time where it is small enough for that, and without a library of factors
    there that takes too long for others than chains and trees.
    """
    n, entries = _size(A)
    if which == "LM" or entries > UNASKED_ENTRIES:
        return False
    if A.device == "cpu":
        return True
    if dense_is_faster(n, 0, A.device, "factors") is not None:
        return False
    has_library = is_small(A) or blockvec.Factorization.is_available(A.device)
    return has_library or (entries <= MOST_ENTRIES and entries - n <= 2 * n)  # two per edge of a forest


def can_factorise(op: Operator, A: Any, M: Any, *, elsewhere: bool = False) -> bool:
    """Check whether A and M are matrices whose factors take seconds where A is, or also on the host."""
    if not is_explicit(A, M):
        return False
    if op.device == "cpu":
        return is_affordable(A, M)
    place = place_of(A, op.device)
    return place == op.device or (elsewhere and place == "cpu")


def factor_s(A: Any, device: str, enough_s: float, M: Any = None) -> float:
    """Bound the seconds of a factorisation, without a search of the graph where so few are enough."""
    from .factorization.work import FactorWork

    M = M if is_explicit(M) else None
    most_s = FactorWork.banded(A, M).factor_s(device)
    return most_s if most_s <= enough_s else min(most_s, _work(A, M).factor_s(device))


def shift_invert_s(A: Any, op: Operator) -> float:
    """Predict the seconds of shift-invert for an operator of a device; inf if nothing can factorise."""
    if (place := place_of(A, op.device)) is None:
        return math.inf
    work = _work(A)
    return math.inf if op.device == "cpu" and work.nbytes > MOST_BYTES else work.solve_s(place)


def is_affordable(A: Any, M: Any) -> bool:
    """Check whether factors on the host take seconds, and a few gigabytes, of which some may not be free."""
    if is_small(A):
        return True
    work = _work(A, M)
    return work.nbytes <= MOST_BYTES and work.factor_s("cpu") < AFFORDABLE_S


def require_factors(A: Any, M: Any, op: Operator, remedy: str) -> None:
    """Refuse factors on the host that are predicted to need more memory than is free.

    What is free must not choose the method: the same call would give other bits at another time.
    """
    if op.device == "cpu" and not is_small(A):
        purpose = f"the factors of a matrix with {A.shape[0]} rows"
        require_memory(op, _work(A, M).nbytes, purpose, remedy)


def _work(A: Any, M: Any = None) -> FactorWork:
    from .factorization.work import FactorWork  # which a plain solve need not import

    return FactorWork.of(A, M)


def is_small(A: Any) -> bool:
    """Check whether factors of a matrix take no time to speak of, on any device."""
    return blockvec.Factorization.is_small(*_size(A))


def _size(A: Any) -> tuple[int, int]:
    return int(A.shape[0]), int(getattr(A, "nnz", A.shape[0] ** 2))


def require_memory(op: Operator, needed_bytes: float, purpose: str, remedy: str) -> None:
    """Refuse to go on if a device has less free memory than a solver needs."""
    if op.device == "cpu" and needed_bytes <= SMALL_BYTES:
        return
    free: int | None
    if op.device == "cpu":
        free = available_memory()
    else:
        import cupy

        with cupy.cuda.Device(int(op.device.partition(":")[2] or 0)):
            free = cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes()
    if free is not None and needed_bytes > free:
        raise OptionError(
            f"the call needs {needed_bytes / 1e9:.3g} GB on {op.device} for {purpose}, "
            f"{free / 1e9:.3g} GB are free: {remedy}."
        )
