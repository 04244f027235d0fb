"""Small matrices on the device of a tall block: asynchronous copies to the host and Cholesky factors.

Block methods make decisions on the host from small matrices, and the device is idle while the host waits for
one and works on it. So copies to the host are started early and waited for later, and the inverse of a
Cholesky factor, which the next product of the tall block needs, is computed on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from ..backends import Array, backend_of
from ..errors import ShapeError
from ..system.frozen import frozen
from .arrays import as_array, check_dtype


@frozen
class FactorReport:
    """The factorisation of `inverse_factor`, as NumPy arrays in double precision.

    Attributes
    ----------
    G : array, shape (b, b)
        The Hermitian part of G.
    R, T : array, shape (b, b)
        Upper triangular, G = R^H R and T = R^-1; the identity if the factorisation is refused.
    growth : float
        The sum of g_ii abs(t_ij)^2: the squared Frobenius norm of T for columns scaled to unit length. A
        block with the Gram matrix G, times T, is orthonormal to about this many units of rounding. Infinite
        if the factorisation is refused.
    """

    G: Array
    R: Array
    T: Array
    growth: float

    @classmethod
    def of(cls, report: Array) -> Self:
        """Take apart what `InverseFactor.report` holds."""
        b = report.shape[1]
        growth = float(report[-1, 0].real) if b else 0.0
        return cls(report[:b], report[b : 2 * b], report[2 * b : -1], growth)


@dataclass(slots=True)
class InverseFactor:
    """The inverse of a Cholesky factor, computed on the device.

    Attributes
    ----------
    T : array, shape (b, b)
        On the device and of the type of G.
    report : array
        All of the factorisation on the device, for `FactorReport.of`.
    """

    T: Array
    report: Array
    _copy: Callable[[], Array] | None = None

    def start(self) -> Self:
        """Start to copy the factorisation to the host, as it is after the work queued so far."""
        self._copy = start_copy(self.report)
        return self

    def wait(self) -> FactorReport:
        """Wait for the factorisation and return it on the host; work queued later is not waited for."""
        return FactorReport.of((self._copy or start_copy(self.report))())


def inverse_factor(G: Array, limit: float = float("inf"), *, start: bool = True) -> InverseFactor:
    """Compute T = R^-1 for the Cholesky factor of a Gram matrix G = R^H R, on the device and asynchronously.

    The computation is in double precision for all types of G. If G is not positive definite, holds NaN, or T
    amplifies rounding by more than a limit, T is the identity: a block that was multiplied by it in the
    meantime is unchanged.

    Parameters
    ----------
    G : array, shape (b, b)
        Of one of the four types; its Hermitian part is factorised. On a GPU from about 110 columns on (168
        real ones) the host computes T, and this call waits.
    limit : float
        Largest growth that is accepted, see `FactorReport`.
    start : bool
        Whether to start the copy to the host that `InverseFactor.wait` waits for. Not while a `Recorder`
        records: call `InverseFactor.start` after each replay.

    Raises
    ------
    ShapeError, DTypeError
        If G is not square or of another type.

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
    G = as_array(G)
    if G.ndim != 2 or G.shape[0] != G.shape[1]:
        raise ShapeError(f"inverse_factor: G has shape {tuple(G.shape)} but must be square.")
    check_dtype(G.dtype)
    T, report = backend_of(G).inverse_factor(G, limit)
    factor = InverseFactor(T, report)
    return factor.start() if start else factor


def start_copy(array: Array) -> Callable[[], Array]:
    """Start a copy of a small array to the host; return a function that waits for the copy and returns it.

    The copy is queued after the work that computes the array. It does not wait for work that is queued later.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import start_copy
    >>> copy = start_copy(np.eye(2))
    >>> copy()
    array([[1., 0.],
           [0., 1.]])
    """
    copies = start_copies(array)
    return lambda: copies()[0]


def start_copies(*arrays: Array) -> Callable[[], list[Array]]:
    """Start copies of small arrays of one device; return a function that waits for all and returns them.

    Several copies take half of the calls that each of its own would take.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import start_copies
    >>> copies = start_copies(np.ones(2), np.eye(2))
    >>> [copy.shape for copy in copies()]
    [(2,), (2, 2)]
    """
    given = [as_array(array) for array in arrays]
    return backend_of(given[0]).start_copies(*given)
