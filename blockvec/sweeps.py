"""Two products of tall blocks in one pass, on plain arrays: checks, description, dispatch, plain sequence.

Orthogonalising a block V against a basis W alternates V <- V - W C with V^H V, and V <- V C with W^H V. Done
together, V is read once; where no kernel does that, the two products follow each other.
"""

from __future__ import annotations

import functools
from typing import Any

from . import dispatch, products
from .arrays import Kind, Memory, memory_of, type_name
from .backends import Array
from .errors import DTypeError, LayoutError, ShapeError
from .kernels.problem import SweepOperation, SweepProblem, promote

__all__ = ["combine_dot", "sweep_problem", "update_gram"]


def combine_dot(V: Array, C: Array, W: Array, *, comm: Any) -> Array:
    """V <- V C, then return W^H V; see `BlockVector.combine_dot`."""
    v, w = memory_of(V), memory_of(W)
    C = _checked("combine_dot", v, C, w, v.n_cols)
    problem = _known_problem("combine_dot", v.kind, type_name(C), w.kind)
    if dispatch.accepts(problem, v.backend):
        return _run(problem, v, C, w, comm)
    products.combine(v, C, alpha=1, beta=0, out=V)
    return products.dot(w, v, conj=True, alpha=1, beta=0, out=None, comm=comm)


def update_gram(V: Array, W: Array, C: Array, *, comm: Any) -> Array:
    """V <- V - W C, then return V^H V; see `BlockVector.update_gram`."""
    v, w = memory_of(V), memory_of(W)
    C = _checked("update_gram", v, C, w, w.n_cols)
    problem = _known_problem("update_gram", v.kind, type_name(C), w.kind)
    if dispatch.accepts(problem, v.backend):
        return _run(problem, v, C, w, comm)
    products.combine(w, C, alpha=-1, beta=1, out=V)
    return products.dot(v, v, conj=True, alpha=1, beta=0, out=None, comm=comm)


def sweep_problem(operation: SweepOperation, V: Array, C: Array, W: Array) -> SweepProblem:
    """Describe a sweep over a basis W and a block V with coefficients C."""
    return _known_problem(operation, memory_of(V).kind, type_name(C), memory_of(W).kind)


@functools.lru_cache(maxsize=4096)
def _known_problem(operation: SweepOperation, v: Kind, dtype_c: str, w: Kind) -> SweepProblem:
    _, K, N, dtype_v, ldv, align_v = v
    _, _, M, dtype_w, ldw, align_w = w
    return SweepProblem(operation, K, M, N, dtype_w, dtype_v, dtype_c, ldw, ldv, align_w, align_v)


def _run(problem: SweepProblem, v: Memory, C: Array, w: Memory, comm: Any) -> Array:
    rows = problem.M if problem.operation == "combine_dot" else problem.N
    S = v.backend.empty((rows, problem.N), problem.dtype)
    dispatch.run(problem, v.backend, w.array, v.array, C, S)
    return products.sum_over(comm, S)


def _checked(operation: str, v: Memory, C: Array, w: Memory, rows: int) -> Array:
    """Return C, contiguous and in one of the four types, or say what does not fit together."""
    V, W = v.array, w.array
    if v.n_rows != w.n_rows:
        raise ShapeError(
            f"{operation}: the block has {v.n_rows} rows but the basis W has {w.n_rows}; both need the "
            "same row count."
        )
    if C.shape != (rows, v.n_cols):
        raise ShapeError(f"{operation}: C has shape {C.shape} but must have {(rows, v.n_cols)}.")
    products.check_same_device(operation, V, W)
    products.check_same_device(operation, V, C)
    C = products.coefficients(V, C)
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
