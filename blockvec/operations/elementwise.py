"""Elementwise operations on tall blocks: axpby, column dots, functions of numbers per column."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..backends import Array, backend_of
from ..errors import DTypeError, LayoutError, ShapeError
from ..kernels.problem import NO_ROWS, StreamProblem
from . import dispatch
from .arrays import Kind, Memory, check_writable, overlaps
from .products import PYTHON_NUMBERS, FactorKind, check_same_backend, factor_kind, promote_factors


def is_scalar(factor: Any) -> bool:
    """Check whether a factor is one number rather than one per column."""
    if isinstance(factor, str | bytes):  # scalars of NumPy, but no numbers
        return False
    return np.isscalar(factor) or getattr(factor, "ndim", None) == 0


def axpby(operation: str, X: Memory, Y: Memory | None, out: Memory, alpha: Any, beta: Any) -> None:
    """Set out = alpha X + beta Y, or alpha X if Y is None.

    Factors are scalars or hold one value per column. `out` may be X or Y; other overlaps are refused, as is a
    result that does not fit the type of `out`. As in BLAS, Y is not read if beta is the number zero.
    """
    alpha, alpha_kind = _factor(operation, alpha, out)
    beta, beta_kind = _factor(operation, beta, out)
    if beta_kind[0] == 0:
        Y = None
    plan = (X.kind, alpha_kind, None, None) if Y is None else (X.kind, alpha_kind, Y.kind, beta_kind)
    problem = _axpby_problem(operation, out.kind, *plan)
    for block in (X, Y):
        if block is None or block is out or (block.address == out.address and block.kind == out.kind):
            continue
        if block.overlaps(out):
            raise LayoutError(
                f"{operation}: the output shares memory with an operand; copy one of them first."
            )
    check_writable(operation, "the block", out.array)
    dispatch.run(problem, out.backend, X.array, None if Y is None else Y.array, out.array, alpha, beta)


@functools.lru_cache(maxsize=4096)
def _axpby_problem(
    operation: str, out: Kind, x: Kind, alpha: FactorKind, y: Kind | None, beta: FactorKind | None
) -> StreamProblem:
    """Check the operands of `axpby` against each other and describe it."""
    inputs, factors = ((x,), (alpha,)) if y is None or beta is None else ((x, y), (alpha, beta))
    for block in inputs:
        check_same_backend(operation, block[0], out[0])
    first, second = (block[1:3] for block in (*inputs, out)[:2])
    if not first == second == out[1:3]:
        raise ShapeError(f"{operation}: blocks have shapes {first} and {second}; they must agree.")
    dtype, _ = promote_factors(tuple(kind[3] for kind in inputs), factors)
    if not np.can_cast(dtype, out[3], "same_kind"):
        raise DTypeError(f"{operation}: a {dtype} result does not fit into a {out[3]} block.")
    return StreamProblem("axpby", *out[1:4], len(inputs), 1)


def _factor(operation: str, factor: Any, out: Memory) -> tuple[Any, FactorKind]:
    """Classify a factor; convert one value per column to an array on the block's device."""
    if type(factor) in PYTHON_NUMBERS or np.isscalar(factor):
        return factor, factor_kind(operation, factor)
    if getattr(factor, "ndim", None) == 0:  # perhaps on a device, whose value is not waited for
        return factor, (2, factor.dtype)
    factor = out.backend.contiguous(out.backend.xp.asarray(factor))
    if factor.dtype.kind in "iub":
        factor = factor.astype(out.array.real.dtype)
    if factor.shape != (out.n_cols,):
        raise ShapeError(
            f"{operation}: got factors of shape {factor.shape} for {out.n_cols} columns; give a scalar or "
            "one value per column."
        )
    # Factors that are a row of the block itself must be read before it changes.
    return factor.copy() if overlaps(factor[None], out.array) else factor, (2, factor.dtype)


def column_dot(
    X: Memory, Y: Memory, out: str | Array, beta: int = 0, skipped: tuple[int, int] = NO_ROWS
) -> Array:
    """Compute the inner products x_j^H y_j in a new array of a type, or as ``out = x_j^H y_j + beta out``.

    The rows `skipped`, from one up to another, are in no sum.
    """
    problem = _column_dot_problem(X.kind, Y.kind, X.array is Y.array, skipped[1] - skipped[0])
    if isinstance(out, str):
        out = X.backend.empty((X.n_cols,), out)
    dispatch.run(problem, X.backend, X.array, Y.array, out, beta, skipped)
    return out


@functools.lru_cache(maxsize=4096)
def _column_dot_problem(x: Kind, y: Kind, same: bool, skipped: int) -> StreamProblem:
    """Check the operands of `column_dot` against each other and describe it."""
    check_same_backend("column_dot", x[0], y[0])
    if x[1:3] != y[1:3]:
        raise ShapeError(f"column_dot: blocks have shapes {x[1:3]} and {y[1:3]}; they must agree.")
    return StreamProblem("column_dot", x[1] - skipped, *x[2:4], 1 if same else 2, 0)


class RowFunction:
    """A function of rows of numbers, such as norms of columns, that is one kernel on a GPU.

    Iterations compute factors per column from norms and inner products. An array library takes one kernel per
    operation for that, which it compiles at the first use; here all operations are one kernel.

    Parameters
    ----------
    function : callable
        ``function(xp, *rows)`` returns a tuple of rows, element by element. It may use ``+ - * /``, squares,
        ``<=`` and ``>``, ``& | ~`` of masks, and `sqrt`, `log`, `cos`, `abs`, `maximum` and `where` of `xp`,
        with numbers that are the same in all calls. On a GPU `xp` and `rows` stand for the generated code:
        the function is called once per combination of types, and the kernel computes in double precision.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import RowFunction
    >>> inverse = RowFunction(lambda xp, x: (xp.where(x > 0, 1 / xp.maximum(x, 1e-300), 0.0),))
    >>> norms, factors = np.array([4.0, 0.0]), np.empty(2)
    >>> inverse(norms, out=(factors,))
    >>> factors.tolist()
    [0.25, 0.0]
    """

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., tuple[Any, ...]]) -> None:
        self.function = function

    def __call__(self, *rows: Array, out: Sequence[Array]) -> None:
        """Write the results for rows of one device to the rows in `out`, which may be among the given ones.

        Rows have float32, float64 or bool elements; they may have gaps, as the real parts of complex ones.

        Raises
        ------
        ShapeError
            If rows have different lengths.
        """
        shape = out[0].shape
        if any(row.shape != shape for row in (*rows, *out)):
            shapes = ", ".join(str(tuple(row.shape)) for row in (*rows, *out))
            raise ShapeError(f"RowFunction: rows have shapes {shapes}; they must agree.")
        backend_of(out[0]).evaluate(self.function, rows, out)


def box_muller(radius: Array, angle: Array) -> None:
    """Transform two blocks of uniform numbers on [-1, 1) to standard normal ones, in place of the first.

    Box and Muller 1958: sqrt(-2 ln u) cos(2 pi v). Real and imaginary parts are independent.
    """
    rows = radius.reshape(-1), angle.reshape(-1)
    parts = [rows] if radius.dtype.kind == "f" else [[row.real for row in rows], [row.imag for row in rows]]
    for r, v in parts:
        NORMAL(r, v, out=(r,))


def _normal(xp: Any, r: Any, v: Any) -> tuple[Any]:
    u = 0.5 - 0.5 * r  # (0, 1]: the logarithm stays finite
    return (xp.sqrt(-2 * xp.log(u)) * xp.cos(math.pi * v),)


def _roots(xp: Any, squares: Any) -> tuple[Any]:
    return (xp.sqrt(squares),)


NORMAL, ROOTS = RowFunction(_normal), RowFunction(_roots)
