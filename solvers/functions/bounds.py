"""Bounds of the spectrum of a Hermitian matrix, for polynomials on it.

Gershgorin's discs prove bounds, which may be twice as wide as the spectrum. Lanczos estimates them: outside
of its extreme Ritz values plus their residuals there is nothing, with high probability. What uses an estimate
watches for growth outside: a component there grows like cosh(d arccosh(x)) with the degree d.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import numpy as np
import scipy.sparse as sp

from blockvec.errors import BreakdownError, OptionError

from ..arguments import blas_threads, check_choice
from ..iterations.spectrum import sketch_of
from ..runtime.processes import together
from .operands import Operands, operands

STEPS = 30  # Lanczos steps from one random vector, for estimated bounds
FEW_STEPS = 12  # before a sum: eleven spectra were bounded within 2.5 per cent, by 30 steps within 0.6
MARGIN = 0.005  # share of the width of the spectrum that estimated bounds are moved outwards by
WIDER = (0.02, 0.1, 0.5, 2.0, 10.0)  # shares of the half width by which bounds move outwards, one by one
EVERYWHERE = (-math.inf, math.inf)  # the domain of functions of all numbers
METHODS = ("auto", "gershgorin", "lanczos")

T = TypeVar("T")


class OutsideError(Exception):
    """A polynomial has grown: part of the spectrum is outside of its bounds."""


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

    def holding(
        self, name: str, compute: Callable[[SpectralBounds], T], domain: tuple[float, float] = EVERYWHERE
    ) -> tuple[T, SpectralBounds]:
        """Compute with the part of these bounds in a domain, or with wider ones while part is outside."""
        bounds = self
        for share in (0, *WIDER):
            bounds = bounds.widened(share) if share else bounds
            low, high = np.clip(bounds, *domain)
            tried = SpectralBounds(low, high, bounds.is_proven, bounds.why)
            try:
                return compute(tried), tried
            except OutsideError:
                continue
        raise BreakdownError(
            f"T_k({name}) x: moments grow for all bounds up to {bounds!r}, or are NaN; check that {name} is "
            "Hermitian, and that its products are accurate and finite."
        )

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
    >>> L = blockvec.models.model("laplace1d:n=100")
    >>> a, b = bounds = blockvec.spectral_bounds(L, method="gershgorin")
    >>> a, b, bounds.is_proven
    (0.0, 4.0, True)
    """
    check_choice("method", method, METHODS)
    given = operands(A, shape=shape, dtype=dtype, device=device, like=like, comm=comm).hermitian()
    return bounds_of(given, method)


def bounds_of(given: Operands, method: str = "auto", steps: int = STEPS) -> SpectralBounds:
    """Bound the spectrum of a Hermitian matrix."""
    op, A = given.operator, given.entries
    found: Any = None
    if not op.shape[0]:
        return SpectralBounds(0.0, 0.0, True, "no rows")
    has_rows = isinstance(A, np.ndarray) or sp.issparse(A)
    if method != "lanczos" and has_rows:
        diagonal = A.diagonal()
        radii = np.maximum(abs(A) @ np.ones(len(diagonal)) - abs(diagonal), 0)
        ends = (diagonal.real - radii).min(), (diagonal.real + radii).max()
        found = SpectralBounds(*ends, True, "Gershgorin's discs")
    elif method == "gershgorin":
        raise OptionError(f"method: 'gershgorin' needs a matrix on the host, got {op!r}; use 'auto'.")
    if found is None or (method != "gershgorin" and found.half_width):
        with blas_threads(op):
            sketch = sketch_of(op, steps)
        margin = MARGIN * (sketch.high - sketch.low) + 4 * np.finfo(op.dtype).eps * sketch.norm
        low, high = np.clip((sketch.low - margin, sketch.high + margin), *(found or EVERYWHERE))
        if found is None or (low, high) != found:
            found = SpectralBounds(low, high, False, f"{sketch.applications} steps of Lanczos")
    low, high = sorted(given.factor.real * end for end in found)
    return SpectralBounds(low, high, found.is_proven, found.why)
