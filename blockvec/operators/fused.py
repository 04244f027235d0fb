"""Results of an operator beside its product: a chained update, column dots, Gram matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from ..backends import Array
from ..backends.base import Fused
from ..blocks.blockvector import BlockVector
from ..errors import DeviceError, DTypeError, LayoutError, OptionError, ShapeError
from ..kernels.problem import ALL_ROWS, DOTS, GRAMS, beta_class
from ..operations import elementwise, products
from ..operations.arrays import REAL_TYPES, Memory, check_writable, memory_of, overlaps

Sums: TypeAlias = dict[str, Array]
"""Small arrays by name, on the operator's device."""


class Applied(NamedTuple):
    """The result of `Operator.apply` if sums are requested.

    Attributes
    ----------
    Y : BlockVector, shape (n_rows, M)
        The product.
    dots : dict of str to array, shape (M,)
        The requested column dots: ``dots["xy"][j]`` is x_j^H y_j. ``"xx"`` and ``"yy"`` are real.
    gram : dict of str to array, shape (M, M)
        The requested matrices: ``gram["xy"]`` is X^H Y. ``gram["yy"]`` is exactly Hermitian.
    """

    Y: BlockVector
    dots: Sums
    gram: Sums


def requested(
    X: BlockVector,
    Y: BlockVector,
    z: Any,
    factors: tuple[complex, complex],
    dots: str | Sequence[str],
    gram: str | Sequence[str],
) -> Fused:
    """Check the arguments of `Operator.apply`, of which `factors` are delta and eta; allocate the sums."""
    Z = None if z is None else _chained(z, X, Y, *factors)
    dots, gram = _names("dots", dots, DOTS), _names("gram", gram, GRAMS)
    for name in dots + gram:
        if "x" in name and X.n_rows != Y.n_rows:
            raise ShapeError(
                f"apply: X has {X.n_rows} rows and Y {Y.n_rows}; {name!r} is for square operators."
            )
    x, y, width, empty = X.memory, Y.memory, X.n_cols, Y.backend.empty
    # Dots that are the diagonal of a requested matrix are taken from it.
    column_dots = {name: empty((width,), _dot_type(name, x, y)) for name in dots if name not in gram}
    return Fused(Z, *factors, column_dots, {name: empty((width, width), y.dtype) for name in gram})


def classes(fused: Fused) -> dict[str, Any]:
    """Describe a request as fields of an `SpmmvProblem`."""
    sums = {"dots": tuple(fused.dots), "gram": tuple(fused.gram)}
    if fused.Z is None:
        return sums
    where = memory_of(fused.Z)
    return {**sums, "chain": beta_class(fused.delta), "ldz": where.ld, "align_z": where.align}


def compute(fused: Fused, X: Memory, Y: Memory, *, beta: int = 0) -> None:
    """Compute each result on its own; the reference for fused kernels.

    The sums are added to `beta` times those that are there.
    """
    rows = slice(*fused.rows)
    if fused.rows != ALL_ROWS:
        X, Y = memory_of(X.array[rows]), memory_of(Y.array[rows])
    if fused.Z is not None:
        z = memory_of(fused.Z[rows])
        elementwise.axpby("apply", Y, z, z, fused.eta, fused.delta)
    blocks = {"x": X, "y": Y}
    for name, dots in fused.dots.items():
        elementwise.column_dot(blocks[name[0]], blocks[name[1]], dots, beta)
    for name, gram in fused.gram.items():
        products.dot(blocks[name[0]], blocks[name[1]], out=gram, beta=beta)


def add_ends(fused: Fused, inner: tuple[int, int], X: Memory, Y: Memory) -> None:
    """Compute the results for the rows before and after a range, and add the sums to those that are there."""
    begin, end = inner
    if end - begin == Y.n_rows:
        return
    blocks = {"x": X, "y": Y}
    for name, dots in fused.dots.items():
        elementwise.column_dot(blocks[name[0]], blocks[name[1]], dots, 1, inner)
    if fused.Z is not None or fused.gram:
        for rows in ((0, begin), (end, Y.n_rows)):
            compute(replace(fused, dots={}, rows=rows), X, Y, beta=1)


def applied(Y: BlockVector, fused: Fused, dots: str | Sequence[str]) -> Applied:
    """Assemble the result of `Operator.apply` from sums, which are those of all processes from here on."""
    sums = iter(products.sum_each_over(Y.layout, [*fused.dots.values(), *fused.gram.values()]))
    column_dots, gram = ({name: next(sums) for name in which} for which in (fused.dots, fused.gram))
    for name in _names("dots", dots, DOTS):
        if name not in column_dots:
            diagonal = gram[name].diagonal()
            column_dots[name] = diagonal.copy() if name == "xy" else diagonal.real.copy()
    return Applied(Y, {name: column_dots[name] for name in DOTS if name in column_dots}, gram)


def _dot_type(name: str, X: Memory, Y: Memory) -> str:
    """Determine the type of a column dot; squares of norms are real."""
    kept = X.dtype if name == "xx" else Y.dtype
    return kept if name == "xy" else REAL_TYPES[kept]


def _names(option: str, given: str | Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if name not in known:
            raise OptionError(f"apply: {option}={name!r} is not known; give some of {', '.join(known)}.")
    return tuple(name for name in known if name in names)


def _chained(z: Any, X: BlockVector, Y: BlockVector, delta: complex, eta: complex) -> Array:
    """Check that z is a block of the shape and type of Y that shares no memory; return its array."""
    Z = z if isinstance(z, BlockVector) else BlockVector(z)
    if Z.device != Y.device:
        raise DeviceError(f"apply: A is on {Y.device} but z is on {Z.device}.")
    if Z.shape != Y.shape:
        raise ShapeError(f"apply: z has shape {Z.shape}, the result {Y.shape}.")
    dtype = products.result_type(Y.dtype, delta, eta)
    if Z.dtype != Y.dtype or dtype != Y.dtype:
        raise DTypeError(
            f"apply: the result holds {Y.dtype}, z {Z.dtype}, delta z + eta y {dtype}; all must be one type."
        )
    check_writable("apply", "z", Z.array)
    for name, block in (("X", X), ("out", Y)):
        if overlaps(Z.array, block.array):
            raise LayoutError(f"apply: z shares memory with {name}; give another block.")
    return Z.array
