"""The matrix of a call of `svds`, or the rows of this process, and start vectors, converted and checked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from blockvec import BlockVector, Operator, RowLayout, as_operator
from blockvec.errors import OptionError, ShapeError
from blockvec.interchange import ArrayKind, is_function
from blockvec.models import RowGenerator
from blockvec.parallel import Communicator, choose_gpu, require_same
from blockvec.precompile import precompile

from ..arguments import natively, tall_block
from ..runtime.processes import largest, processes_of, split
from .methods import BASIS, WIDE
from .operators import Pair

DOUBLE = {"f": np.dtype(np.float64), "F": np.dtype(np.complex128)}
FEW_ENTRIES = 100_000_000  # of a matrix of the host in single precision that is copied in double precision


class Operands(NamedTuple):
    """The matrix of a call as an operator, start vectors, and the way back to the caller."""

    op: Operator  # in double precision, if a matrix of the host in single precision is not too large
    A: Any  # the matrix, None if its rows are in several processes
    start: Any
    dtype: Any  # of results
    caller: ArrayKind | None
    processes: Communicator | None
    rows: RowLayout | None  # of a matrix whose operator has those of this process alone
    shape: tuple[int, int]


def operands_of(
    A: Any, v0: Any, like: Any, comm: Any, solver: str, *, shape: Any, dtype: Any, device: Any
) -> Operands:
    """Convert the matrix of a call, or the rows of this process, and start vectors."""
    caller = ArrayKind.of_caller(A) if like is None else ArrayKind.of(like)
    if caller is not None and is_function(A):
        device, dtype = device or caller.device, dtype or caller.dtype
    processes, rows = processes_of(A, comm), None
    if processes is not None:
        for name, is_given in (("v0", v0), ("like", like), ("solver", solver == "dense" or None)):
            if is_given is not None:
                raise OptionError(
                    f"{name}: needs whole vectors or matrices, and A has rows in {processes.size} processes; "
                    f"leave out {name}, or comm."
                )
        caller, device = None, choose_gpu(processes) if device == "gpu" else device
    A, start = natively(caller, A, v0)
    if processes is not None:
        A, rows = _own_rows(A, processes, shape, device)
    op = as_operator(A, shape=shape, dtype=dtype, device=device)
    m, n = op.shape if rows is None else (rows.n_global, op.shape[1])
    if not min(m, n):
        raise ShapeError(f"A is {m} x {n}; there are no singular values to compute.")
    kind, wide = op.dtype, DOUBLE.get(op.dtype.char) if op.device == "cpu" and hasattr(A, "astype") else None
    if wide is not None and largest(rows, getattr(A, "nnz", A.size)) <= FEW_ENTRIES:
        A = A.astype(wide)
        op = as_operator(A)
    return Operands(op, A if processes is None else None, start, kind, caller, processes, rows, (m, n))


def precompile_for(given: Operands, k: int) -> None:
    """Compile the kernels of a solve while its matrix is examined."""
    op, (m, n) = given.op, given.shape
    both = (op, op.H) if hasattr(op, "nnz") else (op,)
    precompile("svds", both, k=k)
    if min(m, n) > BASIS and len(both) > 1:  # the first steps, whose kernel takes longest
        precompile("begin", both if m < n else both[::-1], b=WIDE, capacity=BASIS + WIDE)


def _own_rows(A: Any, comm: Communicator, shape: Any, device: str | None) -> tuple[Any, RowLayout | None]:
    """Return the rows of this process with their layout, or an operator that has one.

    All processes call it.
    """
    if isinstance(A, Operator | RowGenerator):
        return split(A, comm, shape=shape, dtype=None, device=device, mode="normal"), None
    own: tuple[int, ...] = getattr(A, "shape", ())
    if shape is None or len(own) != 2 or own[1] != shape[1]:
        raise ShapeError(
            f"A: is a {type(A).__name__} of shape {own} in one of {comm.size} processes, with shape={shape}; "
            "give a matrix of this process's rows, and as shape=(m, n) the extents of the whole one."
        )
    require_same(comm, A=f"elements of {A.dtype}")
    rows = RowLayout.from_local(own[0], comm)
    if rows.n_global != shape[0]:
        raise ShapeError(
            f"shape: got {tuple(shape)}, but the {comm.size} processes have {rows.n_global} rows; give each "
            "its own rows of A."
        )
    return A, rows


def start_of(start: Any, pair: Pair) -> BlockVector | None:
    """Form start vectors of the shorter side, if any are given."""
    if start is None:
        return None
    rows = np.shape(start)[0] if np.ndim(start) else 0
    m, n = pair.shape
    is_long = rows == m != n
    where = {"dtype": pair.forward.dtype, "device": pair.forward.device, "layout": None}
    side: Any = SimpleNamespace(shape=(m if is_long else n,) * 2, **where)
    block = tall_block("v0", start, side)
    return pair.adjoint.apply(block) if is_long else block
