"""Preconditioners for Jacobi-Davidson: functions of a block, which may follow the value that is computed.

Any function that maps a row-major array of shape (n, b) to a new one will do. Where it has a method
``update(theta)``, that is called whenever another pair has become the first to be corrected, or its value has
moved by more than its residual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blockvec import array_namespace
from blockvec.errors import OptionError

from ..blocks import Array

__all__ = ["FollowingPreconditioner", "JacobiPreconditioner", "following"]


SMALLEST = 1e-3  # of the largest entry of the diagonal: what smaller ones count as


class JacobiPreconditioner:
    """Division by abs(diag(A) - theta diag(M)), positive definite whatever theta is.

    Parameters
    ----------
    A : sparse matrix or dense array, shape (n, n)
    M : sparse matrix or dense array, shape (n, n), optional
    theta : float, default 0
        Where to begin.

    Raises
    ------
    OptionError
        Where A has no diagonal to ask for.

    Examples
    --------
    >>> import numpy as np
    >>> K = JacobiPreconditioner(np.diag([1.0, 4.0]))
    >>> K.update(2.0)
    >>> K(np.ones((2, 1))).tolist()
    [[1.0], [0.5]]
    """

    def __init__(self, A: Any, M: Any = None, theta: float = 0.0) -> None:
        if not hasattr(A, "diagonal"):
            raise OptionError(f"JacobiPreconditioner: got {type(A).__name__}; give a matrix with a diagonal.")
        self._diagonal = A.diagonal().real
        self._mass = 1.0 if M is None else M.diagonal().real
        self.update(theta)

    def update(self, theta: float) -> None:
        """Follow a value."""
        d = abs(self._diagonal - theta * self._mass)
        self._inverse = (1 / array_namespace(d).maximum(d, SMALLEST * d.max()))[:, None]

    def __call__(self, X: Array) -> Array:
        """Return K^-1 X."""
        product: Array = X * self._inverse
        return product


@dataclass(frozen=True)
class FollowingPreconditioner:
    """A function of blocks whose `update` is another's."""

    function: Callable[[Any], Any]
    update: Callable[[float], object]

    def __call__(self, R: Any) -> Any:
        """Return K^-1 R."""
        return self.function(R)


def following(function: Callable[[Any], Any], source: Any) -> Callable[[Any], Any]:
    """Return a function that follows values where what it was made from does."""
    update = getattr(source, "update", None)
    return FollowingPreconditioner(function, update) if callable(update) else function
