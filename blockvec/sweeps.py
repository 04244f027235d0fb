"""Two products of tall blocks in one pass, on plain arrays: checks, description, dispatch, plain sequence.

Orthogonalising a block V against a basis W alternates V <- V - W C with V^H V, and V <- V C with W^H V. Done
together, V is read once; where no kernel does that, the two products follow each other.
"""

from __future__ import annotations

from typing import Any

from . import dispatch, products
from .arrays import memory_of, overlaps, type_name
from .backends import Array, backend_of
from .errors import DTypeError, LayoutError, ShapeError
from .kernels.problem import SweepOperation, SweepProblem

__all__ = ["combine_dot", "sweep_problem", "update_gram"]


def combine_dot(V: Array, C: Array, W: Array, *, comm: Any) -> Array:
    """V <- V C, then return W^H V; see `BlockVector.combine_dot`."""
    C = _checked("combine_dot", V, C, W, V.shape[1])
    problem = sweep_problem("combine_dot", V, C, W)
    if dispatch.accepts(problem, backend_of(V)):
        return _run(problem, V, C, W, comm)
    v = memory_of(V)
    products.combine(v, C, alpha=1, beta=0, out=V)
    return products.dot(memory_of(W), v, conj=True, alpha=1, beta=0, out=None, comm=comm)


def update_gram(V: Array, W: Array, C: Array, *, comm: Any) -> Array:
    """V <- V - W C, then return V^H V; see `BlockVector.update_gram`."""
    C = _checked("update_gram", V, C, W, W.shape[1])
    problem = sweep_problem("update_gram", V, C, W)
    if dispatch.accepts(problem, backend_of(V)):
        return _run(problem, V, C, W, comm)
    v = memory_of(V)
    products.combine(memory_of(W), C, alpha=-1, beta=1, out=V)
    return products.dot(v, v, conj=True, alpha=1, beta=0, out=None, comm=comm)


def sweep_problem(operation: SweepOperation, V: Array, C: Array, W: Array) -> SweepProblem:
    """Describe a sweep over a basis W and a block V with coefficients C."""
    v, w = memory_of(V), memory_of(W)
    return SweepProblem(
        *(operation, v.n_rows, w.n_cols, v.n_cols, w.dtype, v.dtype, type_name(C)),
        *(w.ld, v.ld, w.align, v.align),
    )


def _run(problem: SweepProblem, V: Array, C: Array, W: Array, comm: Any) -> Array:
    backend = backend_of(V)
    rows = problem.M if problem.operation == "combine_dot" else problem.N
    S = backend.empty((rows, problem.N), problem.dtype)
    dispatch.run(problem, backend, W, V, C, S)
    return products.sum_over(comm, S)


def _checked(operation: str, V: Array, C: Array, W: Array, rows: int) -> Array:
    """Return C, contiguous and in one of the four types, or say what does not fit together."""
    if V.shape[0] != W.shape[0]:
        raise ShapeError(
            f"{operation}: the block has {V.shape[0]} rows but the basis W has {W.shape[0]}; both need the "
            "same row count."
        )
    if C.shape != (rows, V.shape[1]):
        raise ShapeError(f"{operation}: C has shape {C.shape} but must have {(rows, V.shape[1])}.")
    products.check_same_device(operation, V, W)
    products.check_same_device(operation, V, C)
    C = products.coefficients(V, C)
    dtype = products.result_type(V, C) if operation == "combine_dot" else products.result_type(V, W, C)
    if dtype != V.dtype:
        raise DTypeError(
            f"{operation}: the block holds {V.dtype}, but its new columns are {dtype}; convert it first, as "
            f"BlockVector(V, dtype='{dtype}') does."
        )
    if not getattr(V.flags, "writeable", True):
        raise LayoutError(f"{operation}: the block is read-only; give a writable one.")
    for name, other in (("the basis W", W), ("C", C)):
        if overlaps(V, other):
            raise LayoutError(
                f"{operation}: the block shares memory with {name}; give a copy of one of them."
            )
    return C
