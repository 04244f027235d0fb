"""Double Chebyshev moments, mu_kl = <x|T_k(h) J T_l(h) J|x>, as products of two blocks of Chebyshev vectors.

The columns of a block are T_k(h) x for 64 orders k, those of another T_l(h) J x; after one product with J,
the moments are those of A^H B. With more than 64 moments the vectors of the second kind are computed again
for each block of the first, so that memory is needed for two blocks.

References
----------
Weisse, Wellein, Alvermann, Fehske, Rev. Mod. Phys. 78 (2006) 275, section III.D.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.polynomial import chebyshev

from blockvec import BlockVector, Operator, as_operator
from blockvec.errors import OptionError
from blockvec.system.frozen import frozen

from ..arguments import blas_threads, check_choice, check_shape, integer
from ..blocks import to_host
from ..runtime.memory import require_memory
from .bounds import SpectralBounds
from .density import EXCESS, KERNELS, damped, scaled, scaled_operands, standard_error
from .recurrence import Recurrence
from .vectors import generator_for, random_signs, widening

TILE = 64  # columns of a block


@frozen
class DoubleMoments:
    """Moments of ``j(E, F) = tr[J delta(E - H) J delta(F - H)] / n``, a function of two energies.

    By Kubo and Greenwood the conductivity at a Fermi energy E and temperature zero is a multiple of j(E, E).

    Attributes
    ----------
    samples : array, shape (R, N, N)
        Moments for each random vector x, divided by ``<x|x>``.
    bounds : SpectralBounds
        Between them the matrix is scaled from.
    kernel : str
    """

    samples: Any
    bounds: SpectralBounds
    kernel: str

    @property
    def moments(self) -> Any:
        """The means over random vectors, shape (N, N)."""
        return self.samples.mean(axis=0)

    def __call__(self, energies: Any, others: Any = None) -> Any:
        """Return the real part of j(E, F) at pairs of energies; at equal ones, if `others` is None."""
        return self._sampled(energies, others).mean(axis=0)

    def error(self, energies: Any, others: Any = None) -> Any:
        """Return standard errors of j, from the spread over random vectors."""
        return standard_error(self._sampled(energies, others))

    def _sampled(self, energies: Any, others: Any) -> Any:
        (x, weight), (y, other) = (
            scaled(E, self.bounds) for E in (energies, energies if others is None else others)
        )
        factors = damped(self.samples.shape[1], self.kernel)
        table = np.moveaxis(self.samples.real * np.outer(factors, factors), 0, -1)
        return chebyshev.chebval2d(x, y, table) * (weight * other)


def double_moments(
    H: Any,
    J: Any,
    moments: int = TILE,
    vectors: int = 4,
    kernel: Literal["jackson", "lorentz"] = "jackson",
    rng: Any = None,
    *,
    bounds: Any = None,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    device: str | None = None,
    like: Any = None,
) -> DoubleMoments:
    """Compute the double moments of a Hermitian matrix H with an observable J, such as a current.

    Parameters
    ----------
    H, J : sparse matrix or array, dense array, LinearOperator, callable, or Operator, shape (n, n)
        Hermitian; as for `eigsh`. J is a matrix or an operator.
    moments : int
        Chebyshev moments in each direction.
    vectors, kernel, rng, bounds, shape, dtype, device, like
        As for `density_of_states`.

    Returns
    -------
    DoubleMoments

    Raises
    ------
    OptionError, ShapeError, DTypeError, DeviceError
        For invalid arguments, and for matrices that are not Hermitian.
    BreakdownError
        If H or J returns NaN or Inf.

    Examples
    --------
    >>> import numpy as np
    >>> import blockvec
    >>> H = blockvec.models.model("laplace1d:n=200")
    >>> found = blockvec.double_moments(H, np.eye(200), 32, rng=0)  # tr(T_k T_l) / n
    >>> found.moments.shape, bool(abs(found.moments[0, 0] - 1) < 1e-12)
    ((32, 32), True)
    """
    check_choice("kernel", kernel, KERNELS)
    count = integer("moments", moments, 1)
    columns = integer("vectors", vectors, 1)
    op, found = scaled_operands(H, bounds, shape=shape, dtype=dtype, device=device, like=like, comm=None)
    if op.layout is not None:
        raise OptionError("H: has rows in several processes; double moments need one.")
    check_shape("J", J, op)
    current = as_operator(J, device=op.device if device is None else device)
    current.check_hermitian(name="J")
    kind = np.result_type(op.dtype, current.dtype)
    require_memory(
        op, 3.0 * op.shape[0] * min(TILE, count) * kind.itemsize, "Chebyshev vectors", "give fewer moments"
    )
    random = generator_for(op, rng)
    keys = [int(random.integers(1 << 63)) for _ in range(columns)]
    with blas_threads(op):
        for tried in widening(found):
            samples = [_moments(op, current, random_signs(op, 1, key), count, tried) for key in keys]
            if all(sample is not None for sample in samples):
                break
    return DoubleMoments(np.array(samples), tried, kernel)


def _moments(op: Operator, J: Operator, x: BlockVector, count: int, bounds: SpectralBounds) -> Any:
    """Compute the moments of one vector; None if a norm grows."""
    doubled, start = op.affine(2 / bounds.half_width, bounds.centre), J @ x
    square = float(to_host(x.norms())[0]) ** 2
    found = np.zeros((count, count), np.result_type(start.dtype, op.dtype))
    for k, left in _tiles(doubled, x, count):
        if left is None:
            return None
        image = J @ left
        for l, right in _tiles(doubled, start, count):
            if right is None:
                return None
            found[k : k + image.n_cols, l : l + right.n_cols] = to_host(image.dot(right)) / square
    return found


def _tiles(doubled: Any, x: BlockVector, count: int) -> Iterator[tuple[int, BlockVector | None]]:
    """Compute T_k(h) x by blocks of columns, with the first order of each; None if a norm grows."""
    steps = Recurrence(doubled, x.copy(), x.like())
    limit = (1 + max(EXCESS, float(np.finfo(x.dtype).eps) ** 0.5)) * float(to_host(x.norms())[0])
    tile = x.like(min(TILE, count))
    for begin in range(0, count, TILE):
        block = tile[:, : min(TILE, count - begin)]
        for column in range(block.n_cols):
            if begin + column:
                steps.take(1)
            block[:, column : column + 1] = steps.current
        norms = to_host(block.norms())
        yield begin, block if (norms <= limit).all() else None
