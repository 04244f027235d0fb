"""The memory of a solve: what an iteration stores, beside what is free."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arguments import integer
from .blocks import Operator, ceil_div
from .choice import DescribedOperator, choose_options
from .costs import INDEX_BYTES
from .iterations.mixed_precision import can_convert, copy_bytes, saves_time
from .iterations.rayleigh_ritz import Tolerance
from .problem import IterationOptions, Method, Problem
from .runtime.memory import require_memory


def may_mix(problem: Problem, options: IterationOptions) -> bool:
    """Check whether filters may be in single precision: where that saves time."""
    op, b = problem.operator, options.block_size
    if options.method != "filter" or problem.precision == "double" or not can_convert(op):
        return False
    if problem.precision == "mixed":
        return True
    return saves_time(op, b)


def _basis_bytes(problem: Problem, options: IterationOptions) -> int:
    op = problem.operator
    return _local_rows(op) * _columns(problem, options) * op.dtype.itemsize


def require_basis(problem: Problem, options: IterationOptions) -> None:
    """Refuse an iteration that needs more memory than is free."""
    op, needed, remedy = problem.operator, _basis_bytes(problem, options), "lower ncv or k"
    purpose = f"a basis of ncv = {options.ncv} vectors of {_local_rows(op)} rows"
    if options.mixes:
        needed += copy_bytes(op, options.block_size)
        purpose += " and a copy of A in single precision"
        remedy += ", or use precision='double'"
    require_memory(op, needed, purpose, remedy)


def _columns(problem: Problem, options: IterationOptions) -> int:
    """Count the vectors that an iteration stores."""
    basis = 2 * options.ncv + 4 * problem.k if options.method == "jd" else options.ncv
    return basis + 6 * options.block_size + problem.k + problem.n_locked


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
    op: Any = DescribedOperator(n, nnz, np.dtype(dtype))
    tolerance = Tolerance(0.0, "value", float(np.finfo(op.dtype).eps) / 2)
    problem = Problem(
        operator=op,
        k=integer("k", k, 1, n),
        which="SA",
        tolerance=tolerance,
        rng=np.random.default_rng(0),
        method=method,
        block_size=block_size,
        ncv=ncv,
    )
    options = choose_options(problem, problem)
    rows = ceil_div(n, integer("processes", processes, 1))
    if options.method == "dense":
        return dense_bytes(op)
    itemsize: int = op.dtype.itemsize
    basis = rows * _columns(problem, options) * itemsize
    return 2 * ceil_div(nnz, processes) * (itemsize + INDEX_BYTES) + basis


def dense_bytes(op: Operator) -> int:
    """Compute the memory that dense LAPACK needs."""
    n: int = op.shape[0]
    return 5 * n * n * op.dtype.itemsize


def _local_rows(op: Operator) -> int:
    return op.shape[0] if op.layout is None else op.layout.n_local
