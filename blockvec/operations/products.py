"""Products of tall blocks on plain arrays: checks, problem descriptions, dispatch, sums over processes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ..backends import Array, Backend, array_namespace, backend_of
from ..errors import DeviceError, DTypeError, LayoutError, ShapeError
from ..kernels.problem import (
    BetaClass,
    ScalarClass,
    SweepProblem,
    TsmmProblem,
    TsmttsmProblem,
    beta_class,
    is_complex,
    promote,
    scalar_class,
)
from ..parallel import RowLayout
from ..parallel.layout import are_partial
from . import dispatch
from .arrays import DTYPE_NAMES, Kind, Memory, check_writable, dtype_name, memory_of


def result_type(*operands: Any) -> np.dtype[Any]:
    """Promote dtypes, arrays and scalars as NumPy does; a Python scalar adapts to the arrays."""
    return np.result_type(*[getattr(operand, "dtype", operand) for operand in operands])


def check_same_backend(operation: str, one: Backend, other: Backend) -> None:
    """Raise `DeviceError` for operands on different devices."""
    if one is not other:
        raise DeviceError(
            f"{operation}: one operand is on {one.name}, the other on {other.name}; move one of them "
            "(blocks: to_host() or to_device(); small arrays: cupy.asarray or cupy.asnumpy)."
        )


def sum_over(layout: RowLayout | None, part: Array) -> Array:
    """Sum a small array over the processes that share the rows, in rank order: the same bits on each."""
    return part if layout is None or are_partial() else layout.sum(part)


def sum_each_over(layout: RowLayout | None, parts: Sequence[Array]) -> list[Array]:
    """Sum several small arrays over the processes as `sum_over` does, in one message."""
    if layout is None or len(parts) < 2 or are_partial():
        return [sum_over(layout, part) for part in parts]
    xp = array_namespace(parts[0])
    whole = layout.sum(xp.concatenate([part.ravel() for part in parts]))
    ends = np.cumsum([part.size for part in parts])
    pieces = [whole[end - part.size : end] for part, end in zip(parts, ends, strict=True)]
    return [
        (piece if part.dtype.kind == "c" else piece.real).astype(part.dtype, copy=False).reshape(part.shape)
        for piece, part in zip(pieces, parts, strict=True)
    ]


FactorKind: TypeAlias = tuple[int, Any]
"""The properties of a factor that results and kernels depend on: whether it is 0, 1 or another (2), and the
Python type or NumPy dtype that it promotes as."""

_PLAIN: tuple[FactorKind, ...] = ((1, int),)
PYTHON_NUMBERS = {bool: False, int: 0, float: 0.0, complex: 0j}  # these adapt to the arrays


def factor_kind(name: str, factor: complex) -> FactorKind:
    """Classify a factor; raise `DTypeError` for what is no number."""
    promotes_as: Any = type(factor)
    if promotes_as not in PYTHON_NUMBERS:
        promotes_as = getattr(factor, "dtype", None)
        if not isinstance(promotes_as, np.dtype) or getattr(factor, "ndim", 0) != 0:
            raise DTypeError(f"{name}: got a {type(factor).__name__}; give a Python or NumPy number.")
    return (0 if factor == 0 else 1 if factor == 1 else 2), promotes_as


def _factor_kinds(alpha: complex, beta: complex, has_out: bool) -> tuple[FactorKind, ...]:
    if has_out:
        return factor_kind("alpha", alpha), factor_kind("beta", beta)
    return _PLAIN if type(alpha) is int and alpha == 1 else (factor_kind("alpha", alpha),)


@functools.lru_cache(maxsize=4096)
def promote_factors(dtypes: tuple[str, ...], factors: tuple[FactorKind, ...]) -> tuple[np.dtype[Any], str]:
    """Promote element types and factors to the type of a result; return it and its name."""
    dtype = np.result_type(*dtypes, *(PYTHON_NUMBERS.get(kind, kind) for _, kind in factors))
    return dtype, dtype.name


def _classes(factors: tuple[FactorKind, ...]) -> tuple[ScalarClass, BetaClass]:
    return scalar_class(factors[0][0]), beta_class(factors[1][0]) if len(factors) > 1 else "zero"


def dot(
    a: Memory,
    b: Memory,
    *,
    conj: bool = True,
    alpha: complex = 1,
    beta: complex = 0,
    out: Array | None = None,
    layout: RowLayout | None = None,
) -> Array:
    """Compute alpha A^H B + beta out, or A^T B without `conj`; see `BlockVector.dot`."""
    A, B, backend = a.array, b.array, a.backend
    factors = _factor_kinds(alpha, beta, out is not None)
    problem, kernel_dtype, dtype = _dot_plan(a.kind, b.kind, B is A, conj, factors)
    shape, contiguous = (problem.M, problem.N), True
    if out is not None:
        check_out("dot", out, shape, dtype)
        there = memory_of(out)
        _check_apart("dot", there, a, b)
        contiguous = there.ld == there.n_cols or there.n_rows < 2
    if layout is None and contiguous and kernel_dtype == DTYPE_NAMES[dtype]:
        result = backend.empty(shape, kernel_dtype) if out is None else out
        dispatch.run(problem, backend, A, B, result, alpha, 0 if out is None else beta)
        return result
    # Partial sums, a complex factor on real blocks, or a strided output: the factors act on the small result.
    product = backend.empty(shape, kernel_dtype)
    dispatch.run(_dot_plan(a.kind, b.kind, B is A, conj, _PLAIN)[0], backend, A, B, product, 1, 0)
    product = sum_over(layout, product)
    product = (product if alpha == 1 else alpha * product).astype(dtype, copy=False)
    if out is None:
        return product
    out[...] = product if beta == 0 else product + beta * out
    return out


@functools.lru_cache(maxsize=4096)
def _dot_plan(
    a: Kind, b: Kind, same: bool, conj: bool, factors: tuple[FactorKind, ...]
) -> tuple[TsmttsmProblem, str, np.dtype[Any]]:
    """Describe a product; find the types of what its kernels produce and of the result."""
    (backend_a, K, M, dtype_a, lda, align_a), (backend_b, rows, N, dtype_b, ldb, align_b) = a, b
    if rows != K:
        raise ShapeError(f"dot: A has {K} rows but B has {rows}; both blocks need the same row count.")
    check_same_backend("dot", backend_a, backend_b)
    conj = conj and is_complex(dtype_a)
    problem = TsmttsmProblem(
        *(K, M, N, dtype_a, dtype_b, lda, ldb, align_a, align_b, conj, *_classes(factors)),
        same=same and (conj or not is_complex(dtype_a)),
    )
    return problem, problem.dtype, promote_factors((dtype_a, dtype_b), factors)[0]


def tsmttsm_problem(A: Array, B: Array, conj: bool, alpha: complex = 1, beta: complex = 0) -> TsmttsmProblem:
    """Describe alpha A^H B + beta C, or A^T B without `conj`."""
    kinds = memory_of(A).kind, memory_of(B).kind
    return _dot_plan(*kinds, A is B, conj, _factor_kinds(alpha, beta, True))[0]


def combine(
    a: Memory, C: Array, *, alpha: complex = 1, beta: complex = 0, out: Memory | None = None
) -> Memory:
    """Compute alpha A C + beta out; see `BlockVector.combine`."""
    check_same_backend("combine", a.backend, backend_of(C))
    if C.ndim != 2 or C.shape[0] != a.n_cols:
        raise ShapeError(
            f"combine: the block has {a.n_cols} columns but C has shape {C.shape}; C needs {a.n_cols} rows."
        )
    C, dtype_c = _coefficients(a, C)
    factors = _factor_kinds(alpha, beta, out is not None)
    dtype, name = promote_factors((a.dtype, dtype_c), factors)
    if promote(a.dtype, dtype_c) != name:  # a complex factor on real operands: C carries it
        C, dtype_c = C.astype(dtype), name
    N = C.shape[1]
    if out is None:
        b, beta, inplace = memory_of(a.backend.empty((a.n_rows, N), name)), 0, False
    else:
        b = out
        check_out("combine", b.array, (a.n_rows, N), dtype)
        _check_apart("combine", b, memory_of(C))
        inplace = _is_inplace(a, b)
    problem = _tsmm_problem(a.kind, N, dtype_c, b.ld, b.align, factors, inplace)
    dispatch.run(problem, a.backend, a.array, C, b.array, alpha, beta)
    return b


@functools.lru_cache(maxsize=4096)
def _tsmm_problem(
    a: Kind, N: int, dtype_c: str, ldb: int, align_b: int, factors: tuple[FactorKind, ...], inplace: bool
) -> TsmmProblem:
    _, K, M, dtype_a, lda, align_a = a
    layout = lda, ldb, align_a, align_b
    return TsmmProblem(K, M, N, dtype_a, dtype_c, *layout, *_classes(factors), inplace)


def tsmm_problem(A: Array, C: Array, out: Array, alpha: complex = 1, beta: complex = 0) -> TsmmProblem:
    """Describe alpha A C + beta out."""
    a, b, factors = memory_of(A), memory_of(out), _factor_kinds(alpha, beta, True)
    return _tsmm_problem(a.kind, C.shape[1], DTYPE_NAMES[C.dtype], b.ld, b.align, factors, _is_inplace(a, b))


def _coefficients(a: Memory, C: Array) -> tuple[Array, str]:
    """Make the small matrix of a product contiguous and of one of the four types; return that type too."""
    if C.dtype.kind in "iub":
        C = C.astype(result_type(C, a.array))
    if not C.flags.c_contiguous:
        C = a.backend.contiguous(C)
    return C, DTYPE_NAMES.get(C.dtype) or dtype_name(C.dtype)


def _is_inplace(a: Memory, b: Memory) -> bool:
    """Check whether B is the leading columns of A; any other overlap is refused."""
    if not a.overlaps(b):
        return False
    same_rows = a.address == b.address and (a.ld == b.ld or a.n_rows == 1)
    if same_rows and b.n_cols <= a.n_cols and a.dtype == b.dtype:
        return True
    raise LayoutError(
        "combine: out shares memory with the block but is not its leading columns; give another out, or "
        "V.copy().combine(C, out=out)."
    )


def check_out(operation: str, out: Array, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
    """Check that an array can hold a result."""
    if getattr(out, "shape", None) != shape:
        given = f"has shape {tuple(out.shape)}" if hasattr(out, "shape") else f"is a {type(out).__name__}"
        raise ShapeError(f"{operation}: out {given} but the result has {shape}.")
    if out.dtype != dtype:
        raise DTypeError(f"{operation}: out holds {out.dtype} but the result is {dtype}; give a {dtype} out.")
    check_writable(operation, "out", out)


def _check_apart(operation: str, out: Memory, *inputs: Memory) -> None:
    """Check that an output is on the device of the inputs and shares no memory with them."""
    for operand in inputs:
        check_same_backend(operation, operand.backend, out.backend)
        if operand.overlaps(out):
            raise LayoutError(f"{operation}: out shares memory with an operand; give another array.")


# Orthogonalising a block V against a basis W alternates V <- V - W C with V^H V, and V <- V C with W^H V. A
# sweep computes the first two and reads V once; without a kernel for it, one product follows the other.


def sweep(operation: str, v: Memory, C: Array, w: Memory, *, layout: RowLayout | None) -> Array:
    """Do the work of `BlockVector.combine_dot` or `update_gram`."""
    C, dtype_c = _check_sweep(operation, v, C, w)
    if operation == "combine_dot":
        combine(v, C, out=v)
        return dot(w, v, layout=layout)
    problem = sweep_problem(w.kind, dtype_c, v.kind)
    if dispatch.accepts(problem, v.backend):
        S = v.backend.empty((problem.N, problem.N), problem.dtype)
        dispatch.run(problem, v.backend, w.array, v.array, C, S)
        return sum_over(layout, S)
    combine(w, C, alpha=-1, beta=1, out=v)
    return dot(v, v, layout=layout)


@functools.lru_cache(maxsize=4096)
def sweep_problem(a: Kind, dtype_c: str, b: Kind) -> SweepProblem:
    """Describe B - A C, and its Gram matrix, with coefficients of a type."""
    _, K, M, dtype_a, lda, align_a = a
    _, _, N, dtype_b, ldb, align_b = b
    return SweepProblem(K, M, N, dtype_a, dtype_b, dtype_c, lda, ldb, align_a, align_b)


def _check_sweep(operation: str, v: Memory, C: Array, w: Memory) -> tuple[Array, str]:
    """Check that the operands of a sweep fit together; return C as `_coefficients` does."""
    if v.n_rows != w.n_rows:
        raise ShapeError(
            f"{operation}: the block has {v.n_rows} rows but the basis W has {w.n_rows}; both need the "
            "same row count."
        )
    shape = (v if operation == "combine_dot" else w).n_cols, v.n_cols
    if C.shape != shape:
        raise ShapeError(f"{operation}: C has shape {C.shape} but must have {shape}.")
    check_same_backend(operation, v.backend, w.backend)
    check_same_backend(operation, v.backend, backend_of(C))
    C, dtype_c = _coefficients(v, C)
    dtype = promote(v.dtype, dtype_c, *([w.dtype] if operation == "update_gram" else []))
    if dtype != v.dtype:
        raise DTypeError(
            f"{operation}: the block holds {v.dtype}, but its new columns are {dtype}; convert it first, as "
            f"BlockVector(V, dtype='{dtype}') does."
        )
    check_writable(operation, "the block", v.array)
    for name, other in (("the basis W", w), ("C", memory_of(C))):
        if v.overlaps(other):
            raise LayoutError(
                f"{operation}: the block shares memory with {name}; give a copy of one of them."
            )
    return C, dtype_c
