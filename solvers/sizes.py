"""The sizes of an iteration: its method, block and basis, and the memory that they need."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from blockvec import Operator as ArrayOperator
from blockvec.errors import OptionError, ShapeError
from blockvec.system.frozen import frozen

from .arguments import integer
from .blocks import ceil_div, round_up
from .costs import (
    INDEX_BYTES,
    PAYING_DEGREE,
    Rival,
    call_s,
    can_convert,
    choose_degree,
    copy_bytes,
    dense_is_faster,
    dense_s,
    fits_dense,
    is_dense,
    product_s,
    rates,
    require_memory,
)
from .problem import Chosen, IterationOptions, Method, Problem
from .runtime.progress import logger
from .stages.dense import dense_bytes

PATIENCE = 2  # times the cost of dense LAPACK and a second: limit of a method that was asked for
MAX_RESTARTS = 5000  # restarts of Lanczos: documented; outer steps of Jacobi-Davidson per pair
FEW_RESTARTS = 30  # restarts of an iteration that needs few, as a rule, after which it gives up
SINGLE_STEPS = 32  # steps of single columns: with 20 hard problems take up to twice as many, more save few
# Most bytes of a basis that is larger than usual: of a window, and of a function of a GPU that takes twice as
# many steps between restarts (nine matrices of 3000 to 1.3 million rows took .4 to 1.0 of the time with it).
LARGE_BASIS = 1 << 30  # bytes
LEAST_STEPS = 8  # steps: of large blocks, for which a basis needs room
WIDTH = 4  # columns of a block, for as many pairs at least; twice as many and half of them are other choices
SHORT_ROWS = 1 << 17  # rows of columns up to which blocks on the host are column-major
# Largest basis of a window. In the middle of a spin chain's spectrum (12 870 rows) 256 vectors took half of
# the time and a third of the columns of 82, on a sheet of graphene the same.
WINDOW_BASIS = 256  # vectors
PAIR, FEW_PAIRS = 2, 10  # columns of a filter's block after single columns, for so many pairs; else `WIDTH`


def filter_width(k: int) -> int:
    """Return the least number of columns of a filter's block, for which it reads the matrix once."""
    return min(k, PAIR) if k <= FEW_PAIRS else WIDTH


def choose_options(problem: Problem) -> IterationOptions:
    """Choose method and sizes."""
    if problem.block_size is not None:
        b = integer("block_size", problem.block_size, 1, problem.n)
    elif problem.begins_with_corrections:
        b = _width_of_corrections(problem)
    else:
        b = _width_of_steps(problem)
        if problem.ncv is not None:  # two steps between restarts
            b = min(b, max(1, (integer("ncv", problem.ncv, 1) - problem.k) // 2))
    b = min(b, problem.n - problem.n_locked)
    ncv = _basis_size(problem, b)
    method, degree, why = choose_method(problem, b, ncv)
    logger.debug("method %s: %s; block size %d, ncv %d, degree %d", method, why, b, ncv, degree)
    maxiter = MAX_RESTARTS * (problem.k if problem.begins_with_corrections else 1)
    if problem.maxiter is not None:
        maxiter = integer("maxiter", problem.maxiter, 1)
    return IterationOptions(b, ncv, maxiter, degree, method, why)


def choose_method(problem: Problem, block_size: int, ncv: int) -> tuple[Chosen, int, str]:
    """Choose the method, the degree of its filter, and give the reason.

    The `start`, `locked`, `block_size` and `checkpoint` of a problem are honoured by iterations only.
    """
    method, why = problem.method, problem.method_why
    if method == "dense" and problem.checkpoint is not None:
        raise OptionError("checkpoint: not available with method='dense'; use method='lanczos'.")
    if method == "auto" and problem.precision == "mixed":
        method, why = "filter", "precision='mixed' asks for it"
    if method != "auto" and method != "filter":
        return method, 1, why
    degree = choose_degree(problem.operator, block_size, (problem.k + ncv) // 2)
    if method == "filter":
        return method, max(degree, PAYING_DEGREE), why
    for name in ("preconditioner", "jd_options"):
        if getattr(problem, name) is not None:
            return "jd", 1, f"{name} is given"
    if (dense := why_dense(problem)) is not None:
        return "dense", 1, dense
    if problem.target is not None:
        return "jd", 1, "sigma is given, and A is no matrix of the host that could be factorised"
    if degree < PAYING_DEGREE and problem.has_costly_steps:
        return "lanczos", 1, "each step is a solve"
    if degree < PAYING_DEGREE:
        return "lanczos", 1, "applying A costs as much as orthogonalising, or is of unknown cost"
    return "filter", degree, f"a step of Lanczos costs as much as {degree} applications of A"


def why_dense(problem: Problem) -> str | None:
    """Say why dense LAPACK takes less time than iterations; None where it does not, or is not asked."""
    iterative = (problem.start, problem.block_size, problem.locked, problem.checkpoint)
    if problem.method != "auto" or any(value is not None for value in iterative):
        return None
    if problem.operator.layout is not None and not fits_dense(problem.operator):
        return None  # every process would have the whole matrix
    place: Rival = "inside" if problem.target is not None else "full" if is_dense(problem.operator) else "end"
    rival: Rival = "solves" if problem.has_costly_steps else place
    return dense_is_faster(problem.n, problem.k, problem.operator.device, rival)


def outpaced(
    problem: Problem, options: IterationOptions, share: float = 1.0
) -> Callable[[float, float], bool]:
    """Return the check whether an iteration takes longer than what could take over, both predicted.

    That is the successor of the problem, or dense LAPACK, of which it may take a `share` of the time, as many
    columns as there are rows, and more if its method was asked for.
    """
    op, n, b, successor = problem.operator, problem.n, options.block_size, problem.successor
    each_s, most_s = call_s(problem, options, b), math.inf
    if problem.maxiter is None and fits_dense(op):
        lapack_s = dense_s(op.device, n)
        lapack_s = lapack_s if problem.may_be_dense else PATIENCE * (lapack_s + 1)
        most_s = share * max(lapack_s, each_s * n / b)
    width = filter_width(problem.k) if b == 1 and options.method == "filter" else b
    block_s = call_s(problem, options, max(width, PAIR))

    def is_outpaced(calls: float, expected: float) -> bool:
        spent_s, whole_s = calls * each_s, expected * block_s
        return spent_s > most_s or (successor is not None and successor(spent_s, whole_s))

    return is_outpaced


def _width_of_steps(problem: Problem) -> int:
    """Choose the block size of Lanczos steps.

    Four columns at a time halve the cost per column against one, and cost a tenth more columns as long as a
    restart leaves room for a dozen steps. Eight are cheaper still, on a GPU by half, and leave no copies of
    lattices' values of multiplicity six to search for. Single short columns on the host need two thirds of
    those of blocks, and hardly any orthogonalisation: mostly half to nine tenths of the time, also for 150 to
    250 pairs. Solves with SuperLU's factors take as long for each column of two as of four, and blocks of two
    need two thirds of the columns of blocks of four up to 20 pairs, nine tenths for 50; 70 to 90 pairs take
    as long with both.
    """
    op, k = problem.operator, problem.k
    filters = problem.method == "filter" or problem.precision == "mixed"  # in larger blocks
    is_plain = problem.start_width <= PAIR and not filters
    is_cheap = op.device != "cpu" or getattr(op, "nnz", None) is not None
    b = 2 * WIDTH if k >= 2 * WIDTH and is_cheap else WIDTH if k >= WIDTH else WIDTH // 2
    if problem.has_costly_steps and op.device == "cpu" and is_plain:
        return min(k, problem.solve_width or b)  # only copies of wanted values change the result
    if problem.has_costly_steps or not has_short_columns(problem):
        return b
    if is_plain and problem.locked is None:
        return 1
    return min(k, PAIR) if is_plain and k <= FEW_PAIRS else min(b, WIDTH)


def _width_of_corrections(problem: Problem) -> int:
    """Choose the block size of Jacobi-Davidson.

    Blocks take more columns and fewer calls, which decide about the time, the more the more pairs are wanted:
    ten pairs of 900 to 14 000 rows took 0.43 to 0.74 of the time of blocks of two in blocks of eight. For
    long columns of few pairs, blocks of four took as long as those of eight.
    """
    k, ncv = problem.k, problem.ncv
    if k < WIDTH:
        return WIDTH // 2
    has_room = ncv is None or integer("ncv", ncv, 1) >= k + 2 * WIDTH * LEAST_STEPS
    return 2 * WIDTH if has_room else WIDTH


def _basis_size(problem: Problem, b: int) -> int:
    """Choose the basis size for blocks of b columns, or check the one given.

    A preconditioner makes do with a smaller basis: 8 steps instead of 14 took a twentieth more of its
    applications and a fifth less of all other work.
    """
    k, room, op, wide = problem.k, problem.n - problem.n_locked, problem.operator, problem.start_width
    if wide > room:
        raise ShapeError(f"v0 has {wide} columns, the space they live in only {room} dimensions.")
    if problem.ncv is None:
        steps = 14 if b > 1 else SINGLE_STEPS
        if b > WIDTH or problem.preconditioner is not None:
            steps = LEAST_STEPS
        if problem.has_costly_steps:  # ends when pairs have converged: rather a large basis than restarts
            steps = 20
        elif op.device != "cpu" and getattr(op, "nnz", None) is None and op.layout is None:
            is_large = problem.n * (k + 2 * steps * b) * op.dtype.itemsize > LARGE_BASIS
            steps *= 1 if is_large or problem.target is not None or problem.asks_for_corrections else 2
        # In whole blocks: rows are aligned then, and kernels are compiled for few widths.
        ncv = min(room, round_up(k + max(k, steps * b) + wide, b))
        if problem.target is None or problem.method != "filter":
            return ncv
        return max(ncv, min(WINDOW_BASIS, LARGE_BASIS // (problem.n * op.dtype.itemsize), problem.n // 8))
    least = min(room, max(k, wide) + b)
    if integer("ncv", problem.ncv, 1) < least:
        columns = f", {wide} columns of v0" if wide else ""
        raise OptionError(
            f"ncv: got {problem.ncv}; k = {k}{columns} and block_size = {b} need at least {least}."
        )
    return min(room, int(problem.ncv))


def has_short_columns(problem: Problem) -> bool:
    """Check whether Lanczos runs on column-major blocks: steps take as long as their calls."""
    op = problem.operator
    is_here = op.device == "cpu" and isinstance(op, ArrayOperator | DescribedOperator)
    is_usual = problem.target is None and op.dtype.char in "dD"
    if op.layout is not None and not np.diff(op.layout.cuts).all():
        return False  # BLAS refuses vectors without elements
    return is_here and is_usual and op.shape[0] <= SHORT_ROWS


@frozen
class DescribedOperator:
    """The properties of an operator that the choice of method and sizes depends on."""

    shape: tuple[int, int]
    nnz: int | None
    dtype: np.dtype[Any]
    device: str = "cpu"
    layout: Any = None


def basis_bytes(problem: Problem, options: IterationOptions, rows: int | None = None) -> int:
    """Count the bytes of the vectors that an iteration stores, of `rows` or those of this process."""
    op, columns = problem.operator, options.ncv + 6 * options.block_size + problem.k + problem.n_locked
    if rows is None:
        rows = problem.n if op.layout is None else op.layout.n_local
    if options.method == "jd":
        columns += options.ncv + 4 * problem.k
    return rows * columns * op.dtype.itemsize


def completed(problem: Problem, options: IterationOptions) -> IterationOptions:
    """Decide about single precision and when to stop; refuse an iteration without enough free memory.

    Filters may be in single precision where that saves time.
    """
    op, b, precision = problem.operator, options.block_size, problem.precision
    needed, remedy = basis_bytes(problem, options), "lower ncv or k"
    purpose = f"a basis of ncv = {options.ncv} vectors"
    mixes = options.method == "filter" and precision != "double" and can_convert(op)
    mixes = mixes and (precision == "mixed" or product_s(op, b) >= rates(op.device).mixed_s)
    if mixes:
        needed += copy_bytes(op, b)
        purpose += " and a copy of A in single precision"
        remedy += ", or use precision='double'"
    require_memory(op, needed, purpose, remedy)
    return replace(options, mixes=mixes, is_outpaced=outpaced(problem, options))


def memory_needed(
    n: int,
    nnz: int,
    k: int,
    processes: int = 1,
    *,
    dtype: Any = np.float64,
    method: Method = "auto",
    block_size: int | None = None,
    ncv: int | None = None,
) -> int:
    """Estimate the bytes that each process of a solve on hosts needs, before there is a matrix.

    For one end of the spectrum of a sparse matrix. They are those of the matrix, twice because its parts or a
    scaled copy are made from it, and of the vectors that the iteration stores. The halo of the process's rows
    is not counted.

    Parameters
    ----------
    n, nnz, k : int
        Rows and entries of the whole matrix, and wanted eigenpairs.
    processes : int
    dtype : dtype
        Element type of the matrix.
    method, block_size, ncv
        As for `eigsh`.

    Returns
    -------
    int

    Examples
    --------
    >>> from blockvec.solvers import memory_needed
    >>> [round(memory_needed(400**3, 7 * 400**3, 20, processes) / 1e9) for processes in (1, 4)]
    [91, 23]
    """
    n, nnz = integer("n", n, 1), integer("nnz", nnz, 0)
    op: Any = DescribedOperator((n, n), nnz, np.dtype(dtype))
    how: dict[str, Any] = {"method": method, "block_size": block_size, "ncv": ncv}
    how |= dict.fromkeys(("tolerance", "rng"))  # on which sizes do not depend
    problem = Problem(operator=op, k=integer("k", k, 1, n), which="SA", **how)
    options = choose_options(problem)
    rows = ceil_div(n, integer("processes", processes, 1))
    if options.method == "dense":
        return dense_bytes(op)
    matrix = ceil_div(nnz, processes) * (int(op.dtype.itemsize) + INDEX_BYTES)
    return 2 * matrix + basis_bytes(problem, options, rows)
