"""Preconditioners for Jacobi-Davidson: functions of a block that may adapt to the current Ritz value.

A preconditioner is any function that maps a row-major array of shape (n, b) to a new one. If it has a method
``update(theta)``, this is called whenever another pair becomes the first to be corrected, or its Ritz value
has changed by more than its residual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blockvec import array_namespace
from blockvec.errors import OptionError
from blockvec.interchange import native

from ..blocks import Array

SMALLEST = 1e-3  # lower bound of diagonal entries, relative to the largest


class JacobiPreconditioner:
    """Division by abs(diag(A) - theta diag(M)), which is positive definite for every theta.

    Parameters
    ----------
    A : sparse matrix or dense array, shape (n, n)
    M : sparse matrix or dense array, shape (n, n), optional
    theta : float, default 0
        Initial value.

    Raises
    ------
    OptionError
        If A has no method ``diagonal``.

    Examples
    --------
    >>> import numpy as np
    >>> K = JacobiPreconditioner(np.diag([1.0, 4.0]))
    >>> K.update(2.0)
    >>> K(np.ones((2, 1))).tolist()
    [[1.0], [0.5]]
    """

    def __init__(self, A: Any, M: Any = None, theta: float = 0.0) -> None:
        A, M = native(A), native(M)
        if not hasattr(A, "diagonal"):
            raise OptionError(f"JacobiPreconditioner: got {type(A).__name__}; give a matrix with a diagonal.")
        self._diagonal = A.diagonal().real
        self._mass = 1.0 if M is None else M.diagonal().real
        self.update(theta)

    def update(self, theta: float) -> None:
        """Set theta."""
        d = abs(self._diagonal - theta * self._mass)
        self._inverse = (1 / array_namespace(d).maximum(d, SMALLEST * d.max()))[:, None]

    def __call__(self, X: Array) -> Array:
        """Return K^-1 X."""
        product: Array = native(X) * self._inverse
        return product


@dataclass(frozen=True)
class FollowingPreconditioner:
    """A function of blocks with the `update` method of another object."""

    function: Callable[[Any], Any]
    update: Callable[[float], object]

    def __call__(self, R: Any) -> Any:
        """Return K^-1 R."""
        return self.function(R)


def following(function: Callable[[Any], Any], source: Any) -> Callable[[Any], Any]:
    """Return `function`, with the `update` method of `source` if it has one."""
    update = getattr(source, "update", None)
    return FollowingPreconditioner(function, update) if callable(update) else function
