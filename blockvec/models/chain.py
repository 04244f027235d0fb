"""Many-body models as operators without a matrix."""

from __future__ import annotations

import math

from ..backends import backend_for
from ..errors import OptionError
from ..operators.row_generator import RowGenerator
from ..operators.sparse import SparseOperator
from .catalogue import generator


class ChainOperator(SparseOperator):
    """A chain of spins or electrons whose matrix elements are computed in each product; see `operator`.

    `nnz` counts the entries that its matrix would have.
    """

    n_stored = 0
    _is_hermitian = True


def operator(spec: str | RowGenerator, *, device: str = "cpu") -> ChainOperator:
    """Create a chain of spins or electrons as an operator that stores no matrix.

    Products compute the elements of the matrix, so that memory is needed for blocks of vectors alone. They
    are those of ``as_operator(model(spec))`` up to rounding.

    Parameters
    ----------
    spec : str or RowGenerator
        ``"xxz:..."`` or ``"hubbard:..."``, as for :func:`model`, or the generator of its rows; spins of up to
        62, electrons of up to 31 sites.
    device : str, default "cpu"
        ``"cpu"`` or ``"gpu"``: the device of the blocks.

    Returns
    -------
    ChainOperator
        In double precision; its method ``converted`` makes one in single precision.

    Raises
    ------
    OptionError
        As for :func:`model`, and for a model that is no chain of many particles, or a chain too long.

    Examples
    --------
    >>> from blockvec import eigsh, models
    >>> A = models.operator("xxz:sites=14,up=7")
    >>> A
    ChainOperator(3432x3432, float64, cpu)
    >>> w, X = eigsh(A, k=2, which="SA")
    >>> [round(float(value), 6) for value in w]
    [-6.26355, -5.956444]
    """
    make = (spec if isinstance(spec, RowGenerator) else generator(spec)).chain
    if make is None:
        raise OptionError(f"operator: {spec} is stored as a matrix; use model(), or one of xxz and hubbard.")
    chain = make()
    if not (math.isfinite(chain.hop) and math.isfinite(chain.diagonal * chain.sites)):
        raise OptionError(f"{spec}: elements exceed the largest float64; give smaller parameters.")
    return ChainOperator(chain, backend_for(device))
