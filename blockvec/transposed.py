"""The marker behind ``V.T @ W`` and ``V.H @ W``."""

from __future__ import annotations

from typing import Any, Protocol

from .backends import Array
from .errors import DTypeError

__all__ = ["Transposed"]


class _Tall(Protocol):
    """What the marker needs of a block."""

    @property
    def n_rows(self) -> int: ...

    @property
    def n_cols(self) -> int: ...

    def dot(self, W: Any, *, conj: bool) -> Array: ...


class Transposed:
    """``V.T`` or ``V.H``: a marker that turns ``@`` into the product of two tall blocks."""

    __slots__ = ("_block", "_conj")
    __array_ufunc__ = None
    __iter__ = None

    def __init__(self, block: _Tall, *, conj: bool) -> None:
        self._block, self._conj = block, conj

    def __matmul__(self, W: Any) -> Array:
        if isinstance(W, Transposed) or hasattr(W, "apply"):
            raise DTypeError("V.T @ S with an operator S has no tall result; write V.T @ (S @ V).")
        return self._block.dot(W, conj=self._conj)

    @property
    def shape(self) -> tuple[int, int]:
        """Extents of the transposed block."""
        return self._block.n_cols, self._block.n_rows

    def __repr__(self) -> str:
        return f"{self._block!r}.{'H' if self._conj else 'T'}"
