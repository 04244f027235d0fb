"""What an operator makes beside its product: a chained update, column dots, Gram matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from . import elementwise, products
from .arrays import memory_of, overlaps, type_name
from .backends import Array, Backend
from .backends.base import Fused
from .blockvector import BlockVector
from .errors import DeviceError, DTypeError, LayoutError, OptionError, ShapeError
from .kernels.problem import DOTS, GRAMS, MAX_ALIGNMENT, ChainClass, beta_class

__all__ = ["NOTHING_FUSED", "Applied", "Extras", "FusedClasses", "Sums"]

Sums = dict[str, Array]


REAL_TYPES = {"complex64": "float32", "complex128": "float64"}


class FusedClasses(NamedTuple):
    """The fields of an `SpmmvProblem` that describe what is fused, in their order."""

    chain: ChainClass
    ldz: int
    align_z: int
    dots: tuple[str, ...]
    gram: tuple[str, ...]


NOTHING_FUSED = FusedClasses("none", 0, MAX_ALIGNMENT, (), ())


class Applied(NamedTuple):
    """What `Operator.apply` returns where sums are asked for.

    Attributes
    ----------
    Y : BlockVector, shape (n_rows, M)
        The product.
    dots : dict of str to array, shape (M,)
        The column dots asked for: ``dots["xy"][j]`` is x_j^H y_j. ``"xx"`` and ``"yy"`` are real.
    gram : dict of str to array, shape (M, M)
        The matrices asked for: ``gram["xy"]`` is X^H Y. ``gram["yy"]`` is Hermitian to the last bit.
    """

    Y: BlockVector
    dots: Sums
    gram: Sums


@dataclass(frozen=True)
class Extras:
    """A request for Z = delta Z + eta Y, column dots and Gram matrices, of arrays that fit together."""

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
        """Check what a user asks for."""
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
        """The column dots to sum up: not those on the diagonal of a Gram matrix."""
        return tuple(name for name in self.dots if name not in self.gram)

    def classes(self) -> FusedClasses:
        """Return what describes it."""
        if self.Z is None:
            return NOTHING_FUSED._replace(dots=self.summed, gram=self.gram)
        where = memory_of(self.Z)
        return FusedClasses(beta_class(self.delta), where.ld, where.align, self.summed, self.gram)

    def fusible(self) -> Iterator[Extras]:
        """Yield what to look for a fused kernel for: all of it first, then less and less."""
        yield self
        if self.gram and (self.Z is not None or self.dots):
            yield replace(self, gram=())
        if self.Z is not None and (self.gram or self.dots):
            yield replace(self, dots=(), gram=())

    def without(self, part: Extras) -> Extras:
        """Return what is left to do when one of `fusible` is done."""
        return replace(
            self,
            Z=None,
            dots=() if part.dots else self.dots,
            gram=() if part.gram else self.gram,
        )

    def applied(self, Y: BlockVector, dots: Sums, gram: Sums) -> Applied:
        """Return what a user gets, given what was summed up."""
        for name in self.dots:
            if name not in dots:
                diagonal = gram[name].diagonal()
                dots[name] = diagonal.copy() if name == "xy" else diagonal.real.copy()
        return Applied(Y, {name: dots[name] for name in self.dots}, gram)

    def outputs(self, X: Array, Y: Array, backend: Backend) -> Fused:
        """Return what a fused kernel writes to."""
        width = X.shape[1]
        dots = {name: backend.empty((width,), _dot_type(name, X, Y)) for name in self.summed}
        gram = {name: backend.empty((width, width), type_name(Y)) for name in self.gram}
        return Fused(self.Z, self.delta, self.eta, dots, gram)

    def separately(self, X: Array, Y: Array) -> tuple[Sums, Sums]:
        """Do each on its own, which is what fused kernels are held against."""
        if self.Z is not None:
            elementwise.axpby("apply", Y, self.Z, self.Z, self.eta, self.delta)
        blocks = {"x": X, "y": Y}
        dots = {
            name: elementwise.column_dot(blocks[name[0]], blocks[name[1]], np.dtype(_dot_type(name, X, Y)))
            for name in self.summed
        }
        places = {name: memory_of(block) for name, block in blocks.items()} if self.gram else {}
        gram = {
            name: products.dot(
                places[name[0]], places[name[1]], conj=True, alpha=1, beta=0, out=None, comm=None
            )
            for name in self.gram
        }
        return dots, gram


def _dot_type(name: str, X: Array, Y: Array) -> str:
    """Return the type of a column dot; squares of norms are real."""
    kept = type_name(X if name == "xx" else Y)
    return kept if name == "xy" else REAL_TYPES.get(kept, kept)


def _names(option: str, given: str | Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if name not in known:
            raise OptionError(f"apply: {option}={name!r} is not known; give some of {', '.join(known)}.")
    return tuple(name for name in known if name in names)


def _chained(z: Any, X: BlockVector, Y: BlockVector, delta: complex, eta: complex) -> Array:
    """Return the array of z; it must be a block as Y is, with memory of its own."""
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
    for name, block in (("X", X), ("out", Y)):
        if overlaps(Z.array, block.array):
            raise LayoutError(f"apply: z shares memory with {name}; give another block.")
    return Z.array
