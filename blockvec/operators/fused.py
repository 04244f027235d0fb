"""Results of an operator beside its product: a chained update, column dots, Gram matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from ..backends import Array, Backend
from ..backends.base import Fused
from ..blocks.blockvector import BlockVector
from ..errors import DeviceError, DTypeError, LayoutError, OptionError, ShapeError
from ..kernels.problem import DOTS, GRAMS, beta_class
from ..operations import elementwise, products
from ..operations.arrays import REAL_TYPES, Memory, check_writable, memory_of, overlaps
from ..system.frozen import frozen

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


@frozen
class Extras:
    """Requested results beside Y: Z = delta Z + eta Y, column dots and Gram matrices."""

    Z: Array | None
    delta: complex
    eta: complex
    dots: tuple[str, ...]
    gram: tuple[str, ...]

    @classmethod
    def of(
        cls,
        X: BlockVector,
        Y: BlockVector,
        z: Any,
        delta: complex,
        eta: complex,
        dots: str | Sequence[str],
        gram: str | Sequence[str],
    ) -> Extras:
        """Check the arguments of `Operator.apply`."""
        extras = cls(
            None if z is None else _chained(z, X, Y, delta, eta),
            *(delta, eta, _names("dots", dots, DOTS), _names("gram", gram, GRAMS)),
        )
        for name in extras.dots + extras.gram:
            if "x" in name and X.n_rows != Y.n_rows:
                raise ShapeError(
                    f"apply: X has {X.n_rows} rows and Y {Y.n_rows}; {name!r} is for square operators."
                )
        return extras

    @property
    def summed(self) -> tuple[str, ...]:
        """The column dots to compute: those that are not the diagonal of a requested Gram matrix."""
        return tuple(name for name in self.dots if name not in self.gram)

    def classes(self) -> dict[str, Any]:
        """Describe the request as fields of an `SpmmvProblem`."""
        sums = {"dots": self.summed, "gram": self.gram}
        if self.Z is None:
            return sums
        where = memory_of(self.Z)
        return {**sums, "chain": beta_class(self.delta), "ldz": where.ld, "align_z": where.align}

    def applied(self, Y: BlockVector, dots: Sums, gram: Sums) -> Applied:
        """Assemble the result of `Operator.apply` from the computed sums."""
        for name in self.dots:
            if name not in dots:
                diagonal = gram[name].diagonal()
                dots[name] = diagonal.copy() if name == "xy" else diagonal.real.copy()
        return Applied(Y, {name: dots[name] for name in self.dots}, gram)

    def outputs(self, X: Memory, Y: Memory, backend: Backend) -> Fused:
        """Allocate the outputs of a fused kernel."""
        width = X.n_cols
        dots = {name: backend.empty((width,), _dot_type(name, X, Y)) for name in self.summed}
        gram = {name: backend.empty((width, width), Y.dtype) for name in self.gram}
        return Fused(self.Z, self.delta, self.eta, dots, gram)

    def separately(self, X: Memory, Y: Memory) -> tuple[Sums, Sums]:
        """Compute each result on its own; the reference for fused kernels."""
        if self.Z is not None:
            z = memory_of(self.Z)
            elementwise.axpby("apply", Y, z, z, self.eta, self.delta)
        blocks = {"x": X, "y": Y}
        dots = {
            name: elementwise.column_dot(blocks[name[0]], blocks[name[1]], _dot_type(name, X, Y))
            for name in self.summed
        }
        gram = {name: products.dot(blocks[name[0]], blocks[name[1]]) for name in self.gram}
        return dots, gram


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
