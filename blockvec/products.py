"""The two products of tall blocks on plain arrays: checks, description, dispatch, sum over processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import dispatch
from .arrays import address, alignment, check_dtype, leading_dimension, overlaps, type_name
from .backends import Array, array_namespace, backend_of
from .errors import DeviceError, DTypeError, LayoutError, ShapeError
from .kernels.problem import TsmmProblem, TsmttsmProblem, beta_class, is_complex, scalar_class

__all__ = [
    "check_same_device",
    "combine",
    "dot",
    "result_type",
    "sum_each_over",
    "sum_over",
    "tsmm_problem",
    "tsmttsm_problem",
]


def result_type(*operands: Any) -> np.dtype[Any]:
    """Promote dtypes, arrays and scalars as NumPy does; a Python scalar adapts to the arrays."""
    known = [getattr(operand, "dtype", operand) for operand in operands]
    return np.result_type(*known)


def check_same_device(operation: str, left: Array, right: Array) -> None:
    """Refuse operands of different devices."""
    one, other = backend_of(left), backend_of(right)
    if one is not other:
        raise DeviceError(
            f"{operation}: one operand is on {one.name}, the other on {other.name}; move one of them "
            "(blocks: to_host() or to_device(); small arrays: cupy.asarray or cupy.asnumpy)."
        )


def sum_over(comm: Any, part: Array) -> Array:
    """Sum a small array over the processes that share the rows, in rank order: the same bits on each."""
    if comm is None:
        return part
    parts = comm.allgather(backend_of(part).to_host(part))
    return backend_of(part).from_host(sum(parts[1:], start=parts[0]))


def sum_each_over(comm: Any, parts: Sequence[Array]) -> list[Array]:
    """Sum several small arrays over the processes as `sum_over` does, in one message."""
    if comm is None or not parts:
        return list(parts)
    xp = array_namespace(parts[0])
    whole = sum_over(comm, xp.concatenate([part.ravel() for part in parts]))
    ends = np.cumsum([part.size for part in parts])
    pieces = [whole[end - part.size : end] for part, end in zip(parts, ends, strict=True)]
    return [
        (piece if part.dtype.kind == "c" else piece.real).astype(part.dtype).reshape(part.shape)
        for piece, part in zip(pieces, parts, strict=True)
    ]


def dot(
    A: Array, B: Array, *, conj: bool, alpha: complex, beta: complex, out: Array | None, comm: Any
) -> Array:
    """Return alpha A^H B + beta out, or A^T B without `conj`; see `BlockVector.dot`."""
    if A.shape[0] != B.shape[0]:
        raise ShapeError(
            f"dot: A has {A.shape[0]} rows but B has {B.shape[0]}; both blocks need the same row count."
        )
    check_same_device("dot", A, B)
    backend = backend_of(A)
    shape = (A.shape[1], B.shape[1])
    dtype = result_type(A, B, alpha) if out is None else result_type(A, B, alpha, beta)
    if out is not None:
        _check_out("dot", out, shape, dtype, (A, B))
    problem = tsmttsm_problem(A, B, conj, alpha, 0 if out is None else beta)
    if comm is None and problem.dtype == dtype.name and (out is None or out.flags.c_contiguous):
        result = backend.empty(shape, dtype.name) if out is None else out
        dispatch.run(problem, backend, A, B, result, alpha, 0 if out is None else beta)
        return result
    # Partial sums, a complex factor on real blocks, or a strided output: the factors act on the small result.
    product = backend.empty(shape, problem.dtype)
    dispatch.run(tsmttsm_problem(A, B, conj), backend, A, B, product, 1, 0)
    product = (alpha * sum_over(comm, product)).astype(dtype, copy=False)
    if out is None:
        return product
    out[...] = product if beta == 0 else product + beta * out
    return out


def tsmttsm_problem(A: Array, B: Array, conj: bool, alpha: complex = 1, beta: complex = 0) -> TsmttsmProblem:
    """Describe alpha A^H B + beta C, or A^T B without `conj`."""
    conj = conj and is_complex(type_name(A))
    return TsmttsmProblem(
        *(A.shape[0], A.shape[1], B.shape[1], type_name(A), type_name(B)),
        lda=leading_dimension(A),
        ldb=leading_dimension(B),
        align_a=alignment(A),
        align_b=alignment(B),
        conj=conj,
        alpha=scalar_class(alpha),
        beta=beta_class(beta),
        same=A is B and (conj or not is_complex(type_name(A))),
    )


def combine(A: Array, C: Array, *, alpha: complex, beta: complex, out: Array | None) -> Array:
    """Return alpha A C + beta out; see `BlockVector.combine`."""
    C = _coefficients(A, C)
    dtype = result_type(A, C, alpha) if out is None else result_type(A, C, alpha, beta)
    if result_type(A, C) != dtype:  # a complex factor on real operands: let the small one carry it
        C = C.astype(dtype)
    backend = backend_of(A)
    shape = (A.shape[0], C.shape[1])
    if out is None:
        out = backend.empty(shape, dtype.name)
        beta = 0
    else:
        _check_out("combine", out, shape, dtype, (C,))
    problem = tsmm_problem(A, C, out, alpha, beta)
    dispatch.run(problem, backend, A, C, out, alpha, beta)
    return out


def tsmm_problem(A: Array, C: Array, out: Array, alpha: complex = 1, beta: complex = 0) -> TsmmProblem:
    """Describe alpha A C + beta out."""
    return TsmmProblem(
        *(A.shape[0], C.shape[0], C.shape[1], type_name(A), type_name(C)),
        lda=leading_dimension(A),
        ldb=leading_dimension(out),
        align_a=alignment(A),
        align_b=alignment(out),
        alpha=scalar_class(alpha),
        beta=beta_class(beta),
        inplace=_is_inplace(A, out),
    )


def _coefficients(A: Array, C: Array) -> Array:
    """Return the small matrix contiguous and in one of the four types."""
    check_same_device("combine", A, C)
    if C.ndim != 2 or C.shape[0] != A.shape[1]:
        raise ShapeError(
            f"combine: the block has {A.shape[1]} columns but C has shape {C.shape}; C needs "
            f"{A.shape[1]} rows."
        )
    if C.dtype.kind in "iub":
        C = C.astype(result_type(C, A))
    check_dtype(C.dtype)
    return array_namespace(C).ascontiguousarray(C)


def _is_inplace(A: Array, out: Array) -> bool:
    """Whether `out` is the leading columns of A; any other overlap is refused."""
    if not overlaps(A, out):
        return False
    same_pitch = leading_dimension(A) == leading_dimension(out) or len(A) == 1
    same_rows = address(A) == address(out) and same_pitch
    if same_rows and out.shape[1] <= A.shape[1] and A.dtype == out.dtype:
        return True
    raise LayoutError(
        "combine: out shares memory with the block but is not its leading columns; give another out, or "
        "V.copy().combine(C, out=out)."
    )


def _check_out(
    operation: str, out: Array, shape: tuple[int, int], dtype: np.dtype[Any], inputs: tuple[Array, ...]
) -> None:
    if tuple(out.shape) != shape:
        raise ShapeError(f"{operation}: out has shape {tuple(out.shape)} but the result has {shape}.")
    if out.dtype != dtype:
        raise DTypeError(f"{operation}: out holds {out.dtype} but the result is {dtype}; give a {dtype} out.")
    if not getattr(out.flags, "writeable", True):
        raise LayoutError(f"{operation}: out is read-only; give a writable array.")
    for operand in inputs:
        check_same_device(operation, operand, out)
        if overlaps(operand, out):
            raise LayoutError(f"{operation}: out shares memory with an operand; give another array.")
