"""Elementwise passes over tall blocks on plain arrays: axpby, column inner products, normal deviates."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from . import dispatch
from .arrays import memory_of, overlaps, type_name
from .backends import Array, array_namespace, backend_of
from .errors import DTypeError, LayoutError, ShapeError
from .kernels.problem import StreamProblem
from .products import check_same_device, result_type

__all__ = ["axpby", "box_muller", "check_same_shape", "column_dot", "is_scalar"]


def is_scalar(factor: Any) -> bool:
    """Whether a factor is one number rather than one a column."""
    return np.isscalar(factor) or getattr(factor, "ndim", None) == 0


def check_same_shape(operation: str, X: Array, Y: Array) -> None:
    """Refuse blocks of different extents."""
    if X.shape != Y.shape:
        raise ShapeError(f"{operation}: blocks have shapes {X.shape} and {Y.shape}; they must agree.")


def axpby(operation: str, X: Array, Y: Array | None, out: Array, alpha: Any, beta: Any) -> None:
    """Set out = alpha X + beta Y, or alpha X where Y is None.

    Factors are scalars or hold one value a column. `out` may be X or Y; other overlaps are refused, as is a
    result that does not fit the type of `out`.
    """
    if np.isscalar(beta) and beta == 0:  # as in BLAS, what is multiplied by zero is not read
        Y = None
    inputs = [X] if Y is None else [X, Y]
    factors = [_factor(operation, alpha, out), _factor(operation, beta, out)]
    there = memory_of(out)
    for block in inputs:
        check_same_device(operation, block, out)
        check_same_shape(operation, block, out)
        here = memory_of(block)
        same = here.kind == there.kind and here.address == there.address
        if not same and here.overlaps(there):
            raise LayoutError(
                f"{operation}: the output shares memory with an operand; copy one of them first."
            )
    dtype = result_type(*inputs, *factors[: len(inputs)])
    if not np.can_cast(dtype, out.dtype, "same_kind"):
        raise DTypeError(f"{operation}: a {dtype} result does not fit into a {out.dtype} block.")
    if not getattr(out.flags, "writeable", True):
        raise LayoutError(f"{operation}: the block is read-only; give a writable array.")
    problem = _stream("axpby", there.n_rows, there.n_cols, there.dtype, len(inputs), 1)
    dispatch.run(problem, backend_of(out), X, Y, out, *factors)


@functools.lru_cache(maxsize=4096)
def _stream(operation: str, K: int, M: int, dtype: str, reads: int, writes: int) -> StreamProblem:
    """Return the description of a pass, the same object each time: dispatch knows it by that."""
    return StreamProblem(operation, K, M, dtype, reads, writes)


def _factor(operation: str, factor: Any, out: Array) -> Any:
    """Return a scalar as it is, one value a column as an array on the block's device."""
    if is_scalar(factor):
        return factor
    xp = array_namespace(out)
    factor = xp.ascontiguousarray(xp.asarray(factor))
    if factor.dtype.kind in "iub":
        factor = factor.astype(out.real.dtype)
    if factor.shape != (out.shape[1],):
        raise ShapeError(
            f"{operation}: got factors of shape {factor.shape} for {out.shape[1]} columns; give a scalar or "
            "one value a column."
        )
    # A row of the block as its own factors must be read before it changes.
    return factor.copy() if overlaps(factor[None], out) else factor


def column_dot(X: Array, Y: Array, dtype: np.dtype[Any]) -> Array:
    """Return the inner products x_j^H y_j as an array of `dtype`."""
    check_same_device("column_dot", X, Y)
    check_same_shape("column_dot", X, Y)
    out = backend_of(X).empty((X.shape[1],), dtype.name)
    problem = _stream("column_dot", X.shape[0], X.shape[1], type_name(X), 1 if X is Y else 2, 0)
    dispatch.run(problem, backend_of(X), X, Y, out)
    return out


def box_muller(radius: Array, angle: Array) -> None:
    """Turn two blocks of uniform numbers on [-1, 1) into standard normal ones, in place of the first.

    Box and Muller 1958: sqrt(-2 ln u) cos(2 pi v). Real and imaginary parts are independent.
    """
    xp = array_namespace(radius)
    parts = [(radius, angle)]
    if radius.dtype.kind == "c":
        parts = [(radius.real, angle.real), (radius.imag, angle.imag)]
    for r, v in parts:
        u = 0.5 - 0.5 * r  # (0, 1]: the logarithm stays finite
        r[...] = xp.sqrt(-2 * xp.log(u)) * xp.cos(math.pi * v)
