"""Modelled costs of iterations beside that of dense LAPACK, so that decisions do not depend on the clock."""

from __future__ import annotations

import math

import numpy as np

from .blocks import CostedOperator
from .column_block import ColumnOperator
from .problem import IterationOptions, Problem

# Up to here dense LAPACK takes a few seconds, which many iterations exceed in vain.
FEW_ROWS = 3000
# Seconds on one core: per call of a sparse product with a block, per step of an iteration, of MINRES, per
# product of elements in an orthogonalisation and in a dense product, and of dense LAPACK per cubed row.
CALL_S, STEP_S, MINRES_S, ELEMENT_S, DENSE_ELEMENT_S, DENSE_S = 1e-4, 5e-4, 3e-4, 2e-9, 1e-10, 4e-10
SHORT_CALL_S, SHORT_STEP_S = 4e-6, 1.5e-4  # the same of single columns that are contiguous
GPU_CALL_S, GPU_STEP_S, GPU_DENSE_S = 2e-5, 2e-3, 4e-11  # the same on a GPU, for few rows
GPU_STEPS = 50  # of an iteration, which take as long as the first call of dense LAPACK
# Seconds for all eigenpairs of a projected matrix on the host: per call, and per cubed row, of which complex
# ones count twice. For a GPU, which has nothing to do meanwhile, also of the copies, and of queueing a
# step, per product with a block, and per byte of memory.
RITZ_S, RITZ_ROW_S = 2e-4, 4e-10
GPU_WAIT_S, GPU_QUEUE_S, GPU_PRODUCT_S, GPU_BYTE_S = 3e-4, 4e-4, 4e-6, 5e-13
GPU_LAUNCH_S = 6e-5  # of queueing one of several steps at once; these read the filled half of a basis twice
NEARLY_FULL = 4  # with one element in so many that is not zero, factors in any order have few zeros
INNER_CALLS = 8  # per step of Jacobi-Davidson, at least
PATIENCE = 2  # times the cost of dense LAPACK and a second: the limit of a method that was asked for


def steps_of_a_look(
    operator: CostedOperator, n: int, b: int, degree: int, columns: int, *, in_launches: bool = False
) -> float:
    """Predict the steps that take as long as Ritz pairs of some columns, in a basis of columns of n rows.

    A step is one of b columns with a polynomial of some degree, on the device of the operator; on a GPU it
    may be one of several that few calls queue.

    Examples
    --------
    >>> from blockvec import as_operator, models
    >>> A = as_operator(models.laplace2d(n=20))
    >>> steps_of_a_look(A, 400, 8, 10, 100) < steps_of_a_look(A, 400, 8, 1, 100)
    True
    """
    entries = getattr(operator, "nnz", None) or n * n
    parts = 2 if operator.dtype.kind == "c" else 1
    look_s = RITZ_S + RITZ_ROW_S * parts * columns**3
    if operator.device == "cpu":
        is_short = b == 1 and isinstance(operator, ColumnOperator)
        call_s, least_s = (SHORT_CALL_S, SHORT_STEP_S) if is_short else (CALL_S, STEP_S)
        step_s = least_s + ELEMENT_S * b * n * columns + degree * (call_s + ELEMENT_S * b * entries)
        return look_s / step_s
    product_s = GPU_BYTE_S * (12 * entries + 24 * parts * b * n)
    queue_s, passes = (GPU_LAUNCH_S, 1) if in_launches else (GPU_QUEUE_S, 4)
    step_s = queue_s + degree * max(product_s, GPU_PRODUCT_S)
    step_s += passes * GPU_BYTE_S * 8 * parts * columns * n
    return (look_s + GPU_WAIT_S) / step_s


def is_dense(operator: CostedOperator) -> bool:
    """Check whether an operator multiplies by a dense matrix."""
    return getattr(operator, "matrix", None) is not None


def is_full(operator: CostedOperator) -> bool:
    """Check whether an operator of the host multiplies by a dense matrix whose factors have few zeros."""
    matrix = getattr(operator, "matrix", None)
    if matrix is None or operator.device != "cpu":
        return False
    return bool(np.count_nonzero(matrix) * NEARLY_FULL >= matrix.size)


def most_calls(problem: Problem, options: IterationOptions) -> float:
    """Count the calls of the operator that take as long as dense LAPACK, where that could take over.

    Dense LAPACK applies A to n columns itself. A method that was asked for may go on for longer.
    """
    n, b = problem.n, options.block_size
    if problem.maxiter is not None or n > FEW_ROWS:
        return math.inf
    if problem.may_be_dense and problem.operator.device != "cpu":
        call_s = GPU_CALL_S + GPU_STEP_S / max(options.degree, INNER_CALLS)
        return max((GPU_DENSE_S * n**3 + GPU_STEPS * GPU_STEP_S) / call_s, n / b)
    step_s = STEP_S + ELEMENT_S * b * n * options.ncv
    product_s = CALL_S + (DENSE_ELEMENT_S * b * n**2 if is_dense(problem.operator) else 0.0)
    if options.method == "jd":
        call_s = product_s + MINRES_S + step_s / INNER_CALLS
    else:
        call_s = product_s + step_s / options.degree
    dense_s = DENSE_S * n**3
    most_s = dense_s if problem.may_be_dense else PATIENCE * (dense_s + 1)
    return max(most_s / call_s, n / b)
