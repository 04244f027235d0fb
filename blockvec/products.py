"""The two products of tall blocks on plain arrays: checks, description, dispatch, sum over processes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from . import dispatch
from .arrays import Kind, Memory, check_dtype, memory_of, type_name
from .backends import Array, Backend, array_namespace, backend_of
from .errors import DeviceError, DTypeError, LayoutError, ShapeError
from .kernels.problem import (
    BetaClass,
    ScalarClass,
    SweepOperation,
    SweepProblem,
    TsmmProblem,
    TsmttsmProblem,
    is_complex,
    promote,
)

__all__ = [
    "check_same_device",
    "coefficients",
    "combine",
    "combine_dot",
    "dot",
    "result_type",
    "sum_each_over",
    "sum_over",
    "sweep_problem",
    "tsmm_problem",
    "tsmttsm_problem",
    "update_gram",
]


def result_type(*operands: Any) -> np.dtype[Any]:
    """Promote dtypes, arrays and scalars as NumPy does; a Python scalar adapts to the arrays."""
    known = [getattr(operand, "dtype", operand) for operand in operands]
    return np.result_type(*known)


def check_same_device(operation: str, left: Array, right: Array) -> None:
    """Refuse operands of different devices."""
    _check_same_backend(operation, backend_of(left), backend_of(right))


def _check_same_backend(operation: str, one: Backend, other: Backend) -> None:
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


class _Plan(NamedTuple):
    """What follows from the kinds of operands and factors alone: found once for each combination of them.

    `direct` says whether the result has the type that the problem's kernels produce.
    """

    problem: Any
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    direct: bool = True


FactorKind: TypeAlias = tuple[int, Any]
"""What results and kernels depend on: whether a factor is 0, 1 or another (2), and how it promotes."""

_CLASSES: tuple[BetaClass, ...] = ("zero", "one", "general")
_PYTHON_NUMBERS = {bool: False, int: 0, float: 0.0, complex: 0j}  # these adapt to the arrays
_ONE: FactorKind = (1, int)


def _kind(name: str, factor: complex) -> FactorKind:
    promotes_as: Any = type(factor)
    if promotes_as not in _PYTHON_NUMBERS:
        promotes_as = getattr(factor, "dtype", None)
        if not isinstance(promotes_as, np.dtype):
            raise DTypeError(f"{name}: got a {type(factor).__name__}; give a Python or NumPy number.")
    return (0 if factor == 0 else 1 if factor == 1 else 2), promotes_as


@functools.lru_cache(maxsize=4096)
def _promoted(dtypes: tuple[str, str], factors: tuple[FactorKind, ...]) -> tuple[np.dtype[Any], str]:
    """Return the type of a result and its name, which NumPy spells out anew each time."""
    dtype = np.result_type(*dtypes, *(_PYTHON_NUMBERS.get(kind, kind) for _, kind in factors))
    return dtype, dtype.name


def _alpha_class(kind: FactorKind) -> ScalarClass:
    return "one" if kind[0] == 1 else "general"


def dot(
    a: Memory, b: Memory, *, conj: bool, alpha: complex, beta: complex, out: Array | None, comm: Any
) -> Array:
    """Return alpha A^H B + beta out, or A^T B without `conj`; see `BlockVector.dot`."""
    A, B = a.array, b.array
    factors = (_kind("alpha", alpha),) if out is None else (_kind("alpha", alpha), _kind("beta", beta))
    plan = _dot_plan(a.kind, b.kind, B is A, conj, factors)
    there = None if out is None else _check_out("dot", out, plan.shape, plan.dtype, (a, b))
    if comm is None and plan.direct and (there is None or there.is_contiguous):
        result = a.backend.empty(plan.shape, plan.problem.dtype) if out is None else out
        dispatch.run(plan.problem, a.backend, A, B, result, alpha, 0 if out is None else beta)
        return result
    # Partial sums, a complex factor on real blocks, or a strided output: the factors act on the small result.
    product = a.backend.empty(plan.shape, plan.problem.dtype)
    dispatch.run(_dot_plan(a.kind, b.kind, B is A, conj, (_ONE,)).problem, a.backend, A, B, product, 1, 0)
    product = (alpha * sum_over(comm, product)).astype(plan.dtype, copy=False)
    if out is None:
        return product
    out[...] = product if beta == 0 else product + beta * out
    return out


@functools.lru_cache(maxsize=4096)
def _dot_plan(a: Kind, b: Kind, same: bool, conj: bool, factors: tuple[FactorKind, ...]) -> _Plan:
    (backend_a, K, M, dtype_a, lda, align_a), (backend_b, rows, N, dtype_b, ldb, align_b) = a, b
    if rows != K:
        raise ShapeError(f"dot: A has {K} rows but B has {rows}; both blocks need the same row count.")
    _check_same_backend("dot", backend_a, backend_b)
    conj = conj and is_complex(dtype_a)
    problem = TsmttsmProblem(
        *(K, M, N, dtype_a, dtype_b, lda, ldb, align_a, align_b, conj),
        alpha=_alpha_class(factors[0]),
        beta=_CLASSES[factors[1][0]] if len(factors) > 1 else "zero",
        same=same and (conj or not is_complex(dtype_a)),
    )
    dtype, name = _promoted((dtype_a, dtype_b), factors)
    return _Plan(problem, (M, N), dtype, problem.dtype == name)


def tsmttsm_problem(A: Array, B: Array, conj: bool, alpha: complex = 1, beta: complex = 0) -> TsmttsmProblem:
    """Describe alpha A^H B + beta C, or A^T B without `conj`."""
    factors = (_kind("alpha", alpha), _kind("beta", beta))
    problem: TsmttsmProblem = _dot_plan(memory_of(A).kind, memory_of(B).kind, A is B, conj, factors).problem
    return problem


def combine(a: Memory, C: Array, *, alpha: complex, beta: complex, out: Array | None) -> Array:
    """Return alpha A C + beta out; see `BlockVector.combine`."""
    _check_same_backend("combine", a.backend, backend_of(C))
    if C.ndim != 2 or C.shape[0] != a.n_cols:
        raise ShapeError(
            f"combine: the block has {a.n_cols} columns but C has shape {C.shape}; C needs {a.n_cols} rows."
        )
    C = coefficients(a.array, C)
    factors = (_kind("alpha", alpha),) if out is None else (_kind("alpha", alpha), _kind("beta", beta))
    dtype, name = _promoted((a.dtype, type_name(C)), factors)
    if promote(a.dtype, type_name(C)) != name:  # a complex factor on real operands: C carries it
        C = C.astype(dtype)
    if out is None:
        out, beta = a.backend.empty((a.n_rows, C.shape[1]), name), 0
        b = memory_of(out)
    else:
        b = _check_out("combine", out, (a.n_rows, C.shape[1]), dtype, (memory_of(C),))
    problem = _tsmm_problem(a, C, b, factors)
    dispatch.run(problem, a.backend, a.array, C, out, alpha, beta)
    return out


def _tsmm_problem(a: Memory, C: Array, b: Memory, factors: tuple[FactorKind, ...]) -> TsmmProblem:
    beta = _CLASSES[factors[1][0]] if len(factors) > 1 else "zero"
    return _known_tsmm_problem(
        a.kind, C.shape[1], type_name(C), b.ld, b.align, _alpha_class(factors[0]), beta, _is_inplace(a, b)
    )


@functools.lru_cache(maxsize=4096)
def _known_tsmm_problem(
    a: Kind, N: int, dtype_c: str, ldb: int, align_b: int, alpha: ScalarClass, beta: BetaClass, inplace: bool
) -> TsmmProblem:
    _, K, M, dtype_a, lda, align_a = a
    return TsmmProblem(K, M, N, dtype_a, dtype_c, lda, ldb, align_a, align_b, alpha, beta, inplace)


def tsmm_problem(A: Array, C: Array, out: Array, alpha: complex = 1, beta: complex = 0) -> TsmmProblem:
    """Describe alpha A C + beta out."""
    return _tsmm_problem(memory_of(A), C, memory_of(out), (_kind("alpha", alpha), _kind("beta", beta)))


def coefficients(A: Array, C: Array) -> Array:
    """Return a small matrix that is multiplied with A contiguous and in one of the four types."""
    if C.dtype.kind in "iub":
        C = C.astype(result_type(C, A))
    check_dtype(C.dtype)
    return C if C.flags.c_contiguous else array_namespace(C).ascontiguousarray(C)


def _is_inplace(a: Memory, b: Memory) -> bool:
    """Whether B is the leading columns of A; any other overlap is refused."""
    if not a.overlaps(b):
        return False
    same_rows = a.address == b.address and (a.ld == b.ld or a.n_rows == 1)
    if same_rows and b.n_cols <= a.n_cols and a.dtype == b.dtype:
        return True
    raise LayoutError(
        "combine: out shares memory with the block but is not its leading columns; give another out, or "
        "V.copy().combine(C, out=out)."
    )


def _check_out(
    operation: str, out: Array, shape: tuple[int, int], dtype: np.dtype[Any], inputs: tuple[Memory, ...]
) -> Memory:
    """Return where the output lies, or say why it cannot be the output."""
    if out.shape != shape:
        raise ShapeError(f"{operation}: out has shape {tuple(out.shape)} but the result has {shape}.")
    if out.dtype != dtype:
        raise DTypeError(f"{operation}: out holds {out.dtype} but the result is {dtype}; give a {dtype} out.")
    there = memory_of(out)
    if there.backend.xp is np and not out.flags.writeable:
        raise LayoutError(f"{operation}: out is read-only; give a writable array.")
    for operand in inputs:
        _check_same_backend(operation, operand.backend, there.backend)
        if operand.overlaps(there):
            raise LayoutError(f"{operation}: out shares memory with an operand; give another array.")
    return there


def combine_dot(V: Array, C: Array, W: Array, *, comm: Any) -> Array:
    """V <- V C, then return W^H V; see `BlockVector.combine_dot`."""
    v, w = memory_of(V), memory_of(W)
    C = _checked_coefficients("combine_dot", v, C, w, v.n_cols)
    problem = _known_sweep("combine_dot", v.kind, type_name(C), w.kind)
    if dispatch.accepts(problem, v.backend):
        return _run_sweep(problem, v, C, w, comm)
    combine(v, C, alpha=1, beta=0, out=V)
    return dot(w, v, conj=True, alpha=1, beta=0, out=None, comm=comm)


def update_gram(V: Array, W: Array, C: Array, *, comm: Any) -> Array:
    """V <- V - W C, then return V^H V; see `BlockVector.update_gram`."""
    v, w = memory_of(V), memory_of(W)
    C = _checked_coefficients("update_gram", v, C, w, w.n_cols)
    problem = _known_sweep("update_gram", v.kind, type_name(C), w.kind)
    if dispatch.accepts(problem, v.backend):
        return _run_sweep(problem, v, C, w, comm)
    combine(w, C, alpha=-1, beta=1, out=V)
    return dot(v, v, conj=True, alpha=1, beta=0, out=None, comm=comm)


def sweep_problem(operation: SweepOperation, V: Array, C: Array, W: Array) -> SweepProblem:
    """Describe a sweep over a basis W and a block V with coefficients C."""
    return _known_sweep(operation, memory_of(V).kind, type_name(C), memory_of(W).kind)


@functools.lru_cache(maxsize=4096)
def _known_sweep(operation: SweepOperation, v: Kind, dtype_c: str, w: Kind) -> SweepProblem:
    _, K, N, dtype_v, ldv, align_v = v
    _, _, M, dtype_w, ldw, align_w = w
    return SweepProblem(operation, K, M, N, dtype_w, dtype_v, dtype_c, ldw, ldv, align_w, align_v)


def _run_sweep(problem: SweepProblem, v: Memory, C: Array, w: Memory, comm: Any) -> Array:
    rows = problem.M if problem.operation == "combine_dot" else problem.N
    S = v.backend.empty((rows, problem.N), problem.dtype)
    dispatch.run(problem, v.backend, w.array, v.array, C, S)
    return sum_over(comm, S)


def _checked_coefficients(operation: str, v: Memory, C: Array, w: Memory, rows: int) -> Array:
    """Return C, contiguous and in one of the four types, or say what does not fit together."""
    V, W = v.array, w.array
    if v.n_rows != w.n_rows:
        raise ShapeError(
            f"{operation}: the block has {v.n_rows} rows but the basis W has {w.n_rows}; both need the "
            "same row count."
        )
    if C.shape != (rows, v.n_cols):
        raise ShapeError(f"{operation}: C has shape {C.shape} but must have {(rows, v.n_cols)}.")
    check_same_device(operation, V, W)
    check_same_device(operation, V, C)
    C = coefficients(V, C)
    dtype = promote(v.dtype, type_name(C), *([w.dtype] if operation == "update_gram" else []))
    if dtype != v.dtype:
        raise DTypeError(
            f"{operation}: the block holds {v.dtype}, but its new columns are {dtype}; convert it first, as "
            f"BlockVector(V, dtype='{dtype}') does."
        )
    if not getattr(V.flags, "writeable", True):
        raise LayoutError(f"{operation}: the block is read-only; give a writable one.")
    for name, other in (("the basis W", w), ("C", memory_of(C))):
        if v.overlaps(other):
            raise LayoutError(
                f"{operation}: the block shares memory with {name}; give a copy of one of them."
            )
    return C
