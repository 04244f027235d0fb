"""Solves over several processes: their rows of the problem, common decisions, and common exceptions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

import blockvec
from blockvec import BlockVector, RowLayout, as_operator, models
from blockvec.errors import BreakdownError, OptionError
from blockvec.models import RowGenerator
from blockvec.parallel import (
    Communicator,
    agreed,
    communicator,
    current_traffic,
    is_petsc,
    petsc_rows,
    recorded_traffic,
    require_same,
    share,
)
from blockvec.precompile import kernels_of_call
from blockvec.system.scalars import plain

from ..blocks import Array, RealArray

Function = TypeVar("Function", bound=Callable[..., Any])

# Options that need a whole matrix or vector in one place, with what they would be used for.
WHOLE = {
    "M": "is factorised",
    "OPinv": "is the inverse of a factorised matrix",
    "like": "selects arrays that hold whole vectors",
    "interval": "is counted",
}
CHAIN_ROWS = 100_000  # rows of a chain whose matrix a GPU would make, and LAPACK or factors might take
# Options that processes may have different values of: the first one's count, or any, or only the own ones.
OWN = ("comm", "rng", "callback", "progress", "time_limit", "return_info", "device", "checkpoint_interval")


def processes_of(A: Any, comm: Any) -> Communicator | None:
    """Return the processes that share the rows of a problem; None for one process."""
    given = communicator(comm)
    if not isinstance(A, blockvec.Operator) or A.layout is None:
        return given
    if comm is not None and given is not A.layout.comm:
        raise OptionError("comm: the operator A has a layout of other processes; leave comm out.")
    return A.layout.comm


def together(function: Function) -> Function:
    """Raise an exception of one process in a function of ``(A, ..., comm=)`` on all; count communication.

    A function of ``(f, A, ...)`` has the matrix as its second argument. Different arguments are refused, with
    which processes would wait for each other forever.
    """
    signature = inspect.signature(function)
    position, matrix = next((i, name) for i, name in enumerate(signature.parameters) if name != "f")

    @functools.wraps(function)
    def on_all(*arguments: Any, **options: Any) -> Any:
        A = arguments[position] if len(arguments) > position else options.get(matrix)
        comm, is_split = options.get("comm"), is_petsc(A)
        if comm is None and not is_split and not isinstance(A, blockvec.Operator):
            with kernels_of_call():
                return function(*arguments, **options)
        given = signature.bind(*arguments, **options)
        if is_split:
            rows, layout = petsc_rows(A, comm)
            A = rows if layout is None else as_operator(rows, device=options.get("device"), layout=layout)
            given.arguments[matrix] = A
        processes = processes_of(A, comm)
        with agreed(processes), recorded_traffic(), kernels_of_call():
            if processes is not None:
                given.apply_defaults()
                values = {name: value for name, value in given.arguments.items() if name not in OWN}
                require_same(
                    processes, **{name: _described(name, plain(value)) for name, value in values.items()}
                )
            return function(*given.args, **given.kwargs)

    return on_all  # type: ignore[return-value]


def _described(name: str, value: Any) -> str:
    """Describe an argument by what all processes must have in common."""
    if value is None or isinstance(value, bool | int | float | complex | str | tuple | list):
        return "a file" if name == "checkpoint" and value is not None else repr(value)
    if getattr(value, "shape", None):  # rows may be those of the process
        return f"{' x '.join(map(str, value.shape[1:])) or 'one'} columns"
    return f"a {type(value).__name__}"


def split(
    A: Any,
    comm: Any,
    *,
    shape: Any,
    dtype: Any,
    device: str | None,
    mode: str,
    by_products: bool = False,
    **whole: Any,
) -> Any:
    """Convert A to an operator whose rows are split over processes, in equal ranges unless it is one already.

    For one process A is returned, a row generator as its matrix, or on a GPU, if all is done `by_products`,
    as a chain without one. `whole` holds the options `WHOLE`.

    Raises
    ------
    OptionError
        For options that are not available for more than one process.
    """
    processes = processes_of(A, comm)
    if processes is None:
        if not isinstance(A, RowGenerator):
            return A
        device = "cpu" if device is None or whole.get("M") is not None else device
        is_chain = by_products and device != "cpu" and A.chain is not None and A.n_rows > CHAIN_ROWS
        return models.operator(A, device=device) if is_chain else A.matrix(device=device)
    for name, value in whole.items():
        if value is not None:
            raise OptionError(
                f"{name}: {WHOLE[name]} in one process, and A has rows in {processes.size}; leave out "
                f"{name}, or comm."
            )
    if mode != "normal":
        raise OptionError(f"mode: got {mode!r}, which needs a factorisation in one process; leave out comm.")
    if isinstance(A, blockvec.Operator) and A.layout is not None:
        return A
    n = getattr(A, "shape", shape)
    if n is None:
        raise OptionError("A is a function of this process's rows; give shape=(n, n) of the whole matrix.")
    layout = RowLayout.equal(int(n[1]), processes)
    return as_operator(A, shape=shape, dtype=dtype, device=device, layout=layout)


def from_first(comm: Communicator | None, value: Any) -> Any:
    """Return the value of the first process on all of them."""
    return value if comm is None else share(comm, value)[0]


def largest(layout: RowLayout | None, value: float) -> float:
    """Return the largest of the numbers of all processes."""
    return value if layout is None else float(layout.largest(np.array([float(value)]))[0])


def everywhere(layout: RowLayout | None, condition: bool) -> bool:
    """Check whether a condition holds in all processes."""
    return condition if layout is None else not layout.largest(np.array([not condition]))[0]


def same_values(layout: RowLayout, value: float, numbers: RealArray) -> float:
    """Return `largest` of a value; refuse to go on if the processes have computed different numbers.

    Raises
    ------
    BreakdownError
        Small matrices are processed by all processes, from the same numbers; unlike processors or libraries
        may round differently, and decisions would differ.
    """
    found = layout.largest(np.concatenate([[value], numbers, -numbers]))
    upper, lower = np.split(found[1:], 2)
    if not np.array_equal(upper, -lower):
        raise BreakdownError(
            "the processes have computed different Ritz values from the same matrix: their processors or "
            "libraries differ; use processes on equal computers, with the same installation."
        )
    return float(found[0])


def shares(op: Any) -> list[dict[str, Any]]:
    """Collect the share of each process in a solve, as `EigenResult` describes."""
    traffic = current_traffic()
    own = {
        "device": op.device,
        "transport": getattr(op.layout.comm, "gpu_route", "") or "MPI",
        "rows": op.layout.n_local,
        "entries": getattr(op, "entries", None),
        "halo_rows": getattr(op, "halo_rows", None),
        "products": traffic.products,
        "product_s": traffic.product_s,
        "exchange_s": traffic.exchange_s,
        "reductions": traffic.reductions,
        "reduction_s": traffic.reduction_s,
        "gpu_s": {kind: traffic.gpu_s(kind) for kind in ("product", "exchange", "reduction")},
        "bytes_sent": traffic.exchange_bytes + traffic.reduction_bytes,
    }
    return share(op.layout.comm, own)


def delivered(rows: Array, layout: RowLayout | None) -> Any:
    """Return vectors as users get them: an array, or a block if its rows are split over processes."""
    return rows if layout is None else BlockVector(rows, layout=layout)
