"""Requests of a run (problems, and kernels without configurations): their log, and lists for other runs.

A list is made of entries ``[type, fields]``. Fields that are left out have their default. Row counts are
``"n"``. Of a sparse matrix, extents, type and structure are left out and taken from the matrix at hand.
Element types may be ``"T"``, that of the run, ``"R"``, the real one of its precision, and ``"TT"`` and
``"RR"``, the same in double precision. Column counts, leading dimensions and column offsets may be sums of
named sizes, as in ``"keep+2b"``, and one of them a range of such sums: ``"1b..capacity"`` stands for b, 2b,
... up to the capacity. An offset stands for the alignment that follows from it, ``offset_a`` for ``align_a``.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from .cache import from_fields
from .problem import (
    MAX_ALIGNMENT,
    SpmmvProblem,
    SweepProblem,
    TsmmProblem,
    TsmttsmProblem,
    is_complex,
    itemsize,
)

if TYPE_CHECKING:
    from .elementwise import AxpbyKernel, ColumnDotKernel, FillKernel, FoldKernel, PhiloxKernel
    from .inverse_factor import InverseFactorKernel
    from .rows import RowKernel

    Stream: TypeAlias = AxpbyKernel | ColumnDotKernel | FillKernel | FoldKernel | PhiloxKernel
    Product: TypeAlias = TsmttsmProblem | TsmmProblem | SweepProblem | SpmmvProblem
    Request: TypeAlias = Product | Stream | InverseFactorKernel | RowKernel
Entry: TypeAlias = list[Any]

MATRIX = ("n_rows", "n_cols", "nnz", "dtype_matrix", "index_bytes", "pattern", "longest", "coded")
OPERANDS = {  # its letter: the fields that hold its width and its element type, by type of problem
    TsmttsmProblem: {"a": ("M", "dtype_a"), "b": ("N", "dtype_b")},
    TsmmProblem: {"a": ("M", "dtype_a"), "b": ("N", "dtype")},
    SweepProblem: {"w": ("M", "dtype_w"), "v": ("N", "dtype_v")},
    SpmmvProblem: {"x": ("width", "dtype_x"), "y": ("width", "dtype"), "z": ("width", "dtype")},
}
EXTENTS = re.compile(r"K|M|N|width|ld\w|offset_\w")
MAX_STEPS = 1000  # of a range; a basis has some hundreds of columns
SIZES = re.compile(r"([+-]?)(\d*)([A-Za-z_]*)")


_log: contextvars.ContextVar[dict[int, Any] | None] = contextvars.ContextVar(
    "blockvec_requests", default=None
)


def note(request: Any) -> None:
    """Add a frozen description to the current log, if there is one.

    Entries are found by identity, because hashing a description takes longer than a call should. The log
    keeps each object alive, so that its identity stays its own.
    """
    log = _log.get()
    if log is not None:
        log[id(request)] = request


@contextlib.contextmanager
def logged() -> Iterator[dict[int, Any]]:
    """Collect the requests of operations inside the ``with`` block, in order."""
    log: dict[int, Any] = {}
    token = _log.set(log)
    try:
        yield log
    finally:
        _log.reset(token)


def encode(request: object, rows: int, product: SpmmvProblem | None) -> Entry | None:
    """Describe a request of a run with `rows` rows; None for one that cannot be prepared later.

    Parameters
    ----------
    request : object
    rows : int
    product : SpmmvProblem or None
        Some product with the sparse matrix of the run; those with other matrices are not described.
    """
    kind = type(request)
    if kind.__name__ not in _types():
        return None
    values = dataclasses.asdict(request)  # type: ignore[call-overload]
    if isinstance(request, SpmmvProblem):
        if product is None or any(getattr(request, name) != getattr(product, name) for name in MATRIX):
            return None
        values = {name: value for name, value in values.items() if name not in MATRIX}
    defaults = {field.name: field.default for field in dataclasses.fields(request)}  # type: ignore[arg-type]
    fields = {
        name: list(value) if isinstance(value, tuple) else "n" if name == "K" and value == rows else value
        for name, value in values.items()
        if getattr(request, name) != defaults[name]
    }
    return [kind.__name__, fields]


def decode(
    entry: Entry, sizes: Mapping[str, int], dtype: str, product: SpmmvProblem | None
) -> Iterator[Request]:
    """Yield the requests of a list entry for the sizes of a run.

    Parameters
    ----------
    entry : list
        One that does not fit the run yields nothing.
    sizes : mapping of str to int
        Named sizes: ``n`` rows, and what entries of this method refer to.
    dtype : str
        Element type of the run.
    product : SpmmvProblem or None
        Some product with the sparse matrix of the run.

    Raises
    ------
    LookupError, TypeError, ValueError, AttributeError, RecursionError
        For what is no entry.
    """
    name, fields = entry
    kind = _types()[name]
    if kind is SpmmvProblem:
        if product is None:
            return
        fields = {field: getattr(product, field) for field in MATRIX} | fields
    names = type_names(dtype)
    values = {field: _value(field, value, sizes, names) for field, value in fields.items()}
    ranged = next((field for field, value in values.items() if isinstance(value, range)), None)
    for step in (None,) if ranged is None else values[ranged]:
        request = _request(kind, values if ranged is None else values | {ranged: step})
        if _is_possible(request):
            yield request


@functools.cache
def _types() -> dict[str, Any]:
    """Collect the types of requests by name; the host needs none of the kernels."""
    from .elementwise import AxpbyKernel, ColumnDotKernel, FillKernel, FoldKernel, PhiloxKernel
    from .inverse_factor import InverseFactorKernel
    from .rows import RowKernel

    streams = AxpbyKernel, ColumnDotKernel, FillKernel, FoldKernel, PhiloxKernel
    return {kind.__name__: kind for kind in (*OPERANDS, *streams, InverseFactorKernel, RowKernel)}


def type_names(dtype: str) -> dict[str, str]:
    """List the element types that entries name, for a run of one of the four types."""
    single = dtype in ("float32", "complex64")
    double = "complex128" if is_complex(dtype) else "float64"
    return {"T": dtype, "R": "float32" if single else "float64", "TT": double, "RR": "float64"}


def evaluate(text: str, sizes: Mapping[str, int]) -> int:
    """Evaluate a sum of named sizes with whole factors, such as ``"keep+2b"`` or ``"16"``."""
    total = 0
    for sign, count, name in SIZES.findall(text):
        if count or name:
            total += (-1 if sign == "-" else 1) * int(count or 1) * (sizes[name] if name else 1)
    return total


def _value(field: str, value: Any, sizes: Mapping[str, int], names: Mapping[str, str]) -> Any:
    """Evaluate a field: a number, a type, names of types, a sum of sizes, or a range of sums."""
    if isinstance(value, dict):
        return {name: names.get(part, part) for name, part in value.items()}
    if not isinstance(value, str):
        return value
    if not EXTENTS.fullmatch(field):
        return names.get(value, value)
    if ".." in value:
        first, _, last = value.partition("..")
        step = sizes[SIZES.findall(first)[0][2]]
        return range(evaluate(first, sizes), evaluate(last, sizes) + 1, step)[:MAX_STEPS]
    return evaluate(value, sizes)


def _request(kind: Any, values: dict[str, Any]) -> Request:
    """Build a description, with alignments in the place of offsets."""
    offsets = {field: values[field] for field in values if field.startswith("offset_")}
    request: Any = from_fields(kind, {name: values[name] for name in values if name not in offsets})
    if request is None:
        raise ValueError(f"these are no fields of {kind.__name__}: {values}")
    aligned = {}
    for field, offset in offsets.items():
        operand = field.removeprefix("offset_")
        width, dtype = (getattr(request, name) for name in OPERANDS[kind][operand])
        ld, size = getattr(request, f"ld{operand}"), itemsize(dtype)
        distances = offset * size | (ld * size if ld > width else 0)
        aligned[f"align_{operand}"] = min(MAX_ALIGNMENT, distances & -distances or MAX_ALIGNMENT)
    conj = getattr(request, "conj", False)
    if isinstance(request, TsmttsmProblem) and conj and not is_complex(request.dtype_a):
        aligned["conj"] = False
    return dataclasses.replace(request, **aligned) if aligned else request  # type: ignore[no-any-return]


def _is_possible(request: Request) -> bool:
    """Check that the widths of a product are positive and within its leading dimensions."""
    return all(
        0 < getattr(request, width) <= (getattr(request, f"ld{operand}") or getattr(request, width))
        for operand, (width, _) in OPERANDS.get(type(request), {}).items()
    )
