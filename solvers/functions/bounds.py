"""Bounds of the spectrum of a Hermitian matrix, for polynomials on it.

Gershgorin's discs prove bounds, which may be twice as wide as the spectrum. Lanczos estimates them: outside
of its extreme Ritz values plus their residuals there is nothing, with high probability. What uses an estimate
watches for growth outside.

References
----------
Zhou, Li, Numer. Linear Algebra Appl. 18 (2011) 107.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from blockvec import Operator
from blockvec.errors import OptionError
from blockvec.interchange import ArrayKind

from ..arguments import check_choice
from ..iterations.spectrum import sketch_of
from ..runtime.processes import together
from .operands import matrix_of, with_real_factor

STEPS = 30  # of Lanczos, from one random vector
FEW_STEPS = 12  # before a sum: eleven spectra were bounded within 2.5 per cent, by 30 steps within 0.6
MARGIN = 0.005  # of the width of the spectrum, beyond the estimates of Lanczos
METHODS = ("auto", "gershgorin", "lanczos")


class SpectralBounds(tuple[float, float]):
    """Two numbers between which all eigenvalues are: ``low, high = bounds``.

    Attributes
    ----------
    is_proven : bool
        Whether that is certain but for rounding errors, or an estimate.
    why : str
        How the bounds were found.
    """

    is_proven: bool
    why: str

    def __new__(cls, low: float, high: float, is_proven: bool, why: str) -> SpectralBounds:
        """Form bounds from numbers."""
        bounds = super().__new__(cls, (float(low), float(high)))
        bounds.is_proven, bounds.why = is_proven, why
        return bounds

    @property
    def centre(self) -> float:
        """The middle of both."""
        return self[0] / 2 + self[1] / 2

    @property
    def half_width(self) -> float:
        """Half of their distance."""
        return self[1] / 2 - self[0] / 2

    def widened(self, share: float) -> SpectralBounds:
        """Move both outwards by a share of half of their distance, or of their magnitude."""
        by = share * (self.half_width or max(map(abs, self)))
        return SpectralBounds(self[0] - by, self[1] + by, self.is_proven, f"{self.why}, widened")

    def clipped(self, low: float, high: float) -> SpectralBounds:
        """Return the part within a domain."""
        first, last = (min(max(end, low), high) for end in self)
        return SpectralBounds(first, last, self.is_proven, self.why)

    def __repr__(self) -> str:
        kind = "proven" if self.is_proven else "estimated"
        return f"SpectralBounds({self[0]:.6g}, {self[1]:.6g}, {kind} by {self.why})"


@together
def spectral_bounds(
    A: Any,
    *,
    method: Literal["auto", "gershgorin", "lanczos"] = "auto",
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    device: str | None = None,
    like: Any = None,
    comm: Any = None,
) -> SpectralBounds:
    """Bound the eigenvalues of a Hermitian matrix from below and above.

    Parameters
    ----------
    A : sparse matrix or array, dense array, LinearOperator, callable, or Operator, shape (n, n)
        Hermitian; as for `eigsh`.
    method : {"auto", "gershgorin", "lanczos"}
        "gershgorin" proves bounds from the entries of a matrix on the host. "lanczos" estimates tighter ones
        by 30 products with a random vector. "auto" takes the tighter ones.
    shape, dtype, device, like, comm
        As for `eigsh`.

    Returns
    -------
    SpectralBounds
        A pair of numbers; `is_proven` says whether they are certain, `why` how they were found.

    Raises
    ------
    OptionError, ShapeError, DTypeError, DeviceError
        For invalid arguments, and for a matrix that is not Hermitian.
    BreakdownError
        If A returns NaN or Inf.

    References
    ----------
    Zhou, Li, Numer. Linear Algebra Appl. 18 (2011) 107.

    Examples
    --------
    >>> import blockvec
    >>> a, b = bounds = blockvec.spectral_bounds(
    ...     blockvec.models.model("laplace1d:n=100"), method="gershgorin"
    ... )
    >>> a, b, bounds.is_proven
    (0.0, 4.0, True)
    """
    check_choice("method", method, METHODS)
    caller = ArrayKind.of_caller(A) if like is None else ArrayKind.of(like)
    matrix = with_real_factor(matrix_of(A, shape=shape, dtype=dtype, device=device, caller=caller, comm=comm))
    op = matrix.operator
    if not op.is_hermitian:
        op.check_hermitian()
    factor = complex(matrix.factor).real
    found = bounds_of(op, matrix.entries, method)
    low, high = sorted(factor * end for end in found)
    return SpectralBounds(low, high, found.is_proven, found.why)


def bounds_of(op: Operator, entries: Any, method: str = "auto") -> SpectralBounds:
    """Bound the spectrum of a Hermitian operator, with its entries where they are known.

    Raises
    ------
    OptionError
        If bounds must be proven and there are no entries on the host.
    """
    proven = None if method == "lanczos" else gershgorin(entries)
    if proven is not None and (method == "gershgorin" or proven.half_width == 0):
        return proven
    if method == "gershgorin":
        raise OptionError(f"method: 'gershgorin' needs a matrix on the host, got {op!r}; use 'auto'.")
    return estimated(op, proven)


def estimated(op: Operator, proven: SpectralBounds | None = None, steps: int = STEPS) -> SpectralBounds:
    """Estimate bounds by Lanczos; proven ones that are tighter replace them."""
    if not op.shape[0]:
        return SpectralBounds(0.0, 0.0, True, "no rows")
    sketch = sketch_of(op, steps)
    margin = MARGIN * (sketch.high - sketch.low) + 4 * np.finfo(op.dtype).eps * sketch.norm
    low, high = sketch.low - margin, sketch.high + margin
    if proven is not None and proven[0] >= low and proven[1] <= high:
        return proven
    if proven is not None:
        low, high = max(low, proven[0]), min(high, proven[1])
    return SpectralBounds(low, high, False, f"{sketch.applications} steps of Lanczos")


def gershgorin(entries: Any) -> SpectralBounds | None:
    """Bound the spectrum by the discs of a matrix on the host; None for anything else."""
    is_on_host = isinstance(entries, np.ndarray) or sp.issparse(entries)
    if not is_on_host or not entries.shape[0]:
        return None
    diagonal = entries.diagonal().real
    sums = (
        abs(entries).sum(axis=1) if isinstance(entries, np.ndarray) else abs(entries) @ np.ones(len(diagonal))
    )
    radii = np.maximum(np.asarray(sums).ravel() - abs(entries.diagonal()), 0)
    return SpectralBounds((diagonal - radii).min(), (diagonal + radii).max(), True, "Gershgorin's discs")
