"""Small matrices on the device of a tall block, without waiting for it.

What a block method decides by small matrices it decides on the host, and a wait for one leaves the device
idle for as long as the host works on it. So a copy to the host is started here and waited for later, and the
inverse of a Cholesky factor, which the next product of the tall block needs, is made on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import arrays
from .backends import Array, backend_of
from .errors import ShapeError

__all__ = ["FactorReport", "InverseFactor", "inverse_factor", "start_copy"]


@dataclass(frozen=True, slots=True)
class FactorReport:
    """What `inverse_factor` has found: NumPy arrays in double precision.

    Attributes
    ----------
    G : array, shape (b, b)
        Made Hermitian.
    R, T : array, shape (b, b)
        Upper triangular, G = R^H R and T = R^-1; the identity where that is refused.
    growth : float
        The sum of g_ii abs(t_ij)^2: the squared Frobenius norm of T for columns scaled to unit length. A
        block with the Gram matrix G, times T, is orthonormal to about this many units of rounding. Infinite
        where T is refused.
    """

    G: Array
    R: Array
    T: Array
    growth: float


@dataclass(frozen=True, slots=True)
class InverseFactor:
    """The inverse of a Cholesky factor, made on the device.

    Attributes
    ----------
    T : array, shape (b, b)
        On the device and of the type of G, not waited for.
    """

    T: Array
    _report: Callable[[], Array]

    def wait(self) -> FactorReport:
        """Wait for the factorisation and return it on the host; later work may be on its way."""
        report = self._report()
        b = report.shape[1]
        return FactorReport(
            report[:b], report[b : 2 * b], report[2 * b : -1], float(report[-1, 0].real) if b else 0.0
        )


def inverse_factor(G: Array, limit: float = float("inf")) -> InverseFactor:
    """Return T = R^-1 for the Cholesky factor of a Gram matrix G = R^H R, on the device and without a wait.

    It is made in double precision whatever the type of G. Where G is not positive definite, holds NaN, or T
    amplifies rounding by more than a limit, T is the identity: a block that was multiplied by it before the
    host knew is as it was.

    Parameters
    ----------
    G : array, shape (b, b)
        Of one of the four types; its Hermitian part counts. On a GPU from about 110 columns on (168 real
        ones) the host makes T, and this waits.
    limit : float
        For the growth, see `FactorReport`.

    Returns
    -------
    InverseFactor

    Raises
    ------
    ShapeError, DTypeError
        Where G is not square or of another type.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import BlockVector, inverse_factor
    >>> V = BlockVector(np.array([[3.0, 1.0], [4.0, 7.0], [0.0, 2.0]]))
    >>> factor = inverse_factor(V.gram())
    >>> V @= factor.T
    >>> np.allclose(V.gram(), np.eye(2))
    True
    >>> factor.wait().R.round(12).tolist()
    [[5.0, 6.2], [0.0, 3.944616584663]]
    """
    if G.ndim != 2 or G.shape[0] != G.shape[1]:
        raise ShapeError(f"inverse_factor: G has shape {tuple(G.shape)} but must be square.")
    arrays.check_dtype(G.dtype)
    T, report = backend_of(G).inverse_factor(G, limit)
    return InverseFactor(T, start_copy(report))


def start_copy(array: Array) -> Callable[[], Array]:
    """Start a copy of a small array to the host; return what waits for it and returns it.

    The copy is queued behind what computes the array. Work that is queued after it may be under way when the
    copy is there.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import start_copy
    >>> copy = start_copy(np.eye(2))
    >>> copy()
    array([[1., 0.],
           [0., 1.]])
    """
    return backend_of(array).start_copy(array)
