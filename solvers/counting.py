"""Number of eigenvalues in an interval: exact by inertia, or a stochastic estimate with its error.

For an estimate, the Lanczos recurrence from a random vector gives a quadrature of its spectral measure, which
is on average that of the eigenvalues. The weights between the ends count them, and their spread over several
vectors is the standard error. A node next to an end may stand for eigenvalues on both sides: its weight is
spread over the distance within which there is one, and the number of steps grows until that matters less than
the spread.

References
----------
Di Napoli, Polizzi, Saad, Numer. Linear Algebra Appl. 23 (2016) 674; Lin, Saad, Yang, SIAM Review 58 (2016)
34. Deviation: a Lanczos quadrature in place of a polynomial, which has no degree and no smoothing to choose.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from blockvec import BlockVector, as_operator
from blockvec.errors import OptionError
from blockvec.interchange import ArrayKind
from blockvec.system.frozen import frozen

from . import arguments
from .blocks import Operator, RealArray
from .costs import can_factorise, place_of, require_factors
from .factorization.gram import STEPS
from .factorization.inertia import Pencil
from .iterations.spectrum import Sketch, sketch_spectrum
from .runtime.processes import split
from .transform.inner_product import isotropic
from .transform.penalties import LOST, Penalties, lost_digits
from .transform.scaling import may_have_penalties, measured
from .transform.standard_form import standard_form

VECTORS = 16  # random vectors of an estimate
MAX_STEPS = 800  # steps at most, while nodes next to an end matter


@frozen
class EigenvalueCount:
    """Number of eigenvalues in an interval.

    Attributes
    ----------
    value : int
        The number, also as ``int(count)``.
    error : float
        Standard error of an estimate, or the eigenvalues so near to an end that no factorisation between them
        and the end is certain; 0 for an exact number.
    why : str
        How it was counted.
    """

    value: int
    error: float
    why: str

    @property
    def is_exact(self) -> bool:
        """Whether the number is proved."""
        return self.error == 0

    def __int__(self) -> int:
        return self.value

    def __str__(self) -> str:
        return f"{self.value}" if self.is_exact else f"{self.value} ± {self.error:.2g}"


def count_eigenvalues(
    A: Any,
    a: float,
    b: float,
    M: Any = None,
    *,
    method: Literal["auto", "inertia", "estimate"] = "auto",
    vectors: int = VECTORS,
    rng: Any = None,
    device: str | None = None,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
) -> EigenvalueCount:
    """Count the eigenvalues of A, or of A x = lambda M x, in the closed interval [a, b].

    Parameters
    ----------
    A : sparse matrix or array, dense array, LinearOperator, callable, or Operator, shape (n, n)
        Hermitian; as for `eigsh`.
    a, b : float
        Ends of the interval, with a <= b; one or both may be infinite. Eigenvalues that rounding errors
        cannot tell from an end are inside.
    M : sparse matrix or dense array, shape (n, n), optional
        Hermitian positive definite or, if A is factorised, semidefinite.
    method : {"auto", "inertia", "estimate"}
        The signs of the pivots of two factorisations, of A - a M and A - b M, give an exact number.
        Products with random vectors give an estimate with a standard error. "auto" takes the factorisations
        where A and M are explicit matrices and the factors are affordable.
    vectors : int
        Random vectors of an estimate: four times as many halve its error.
    rng : Generator, int or None
        Source of the random vectors.
    device : {"cpu", "gpu"}, optional
        Device of a callable, or the device that a matrix on the host is copied to.
    shape, dtype
        Shape and element type of a callable A.

    Returns
    -------
    EigenvalueCount

    Raises
    ------
    OptionError, ShapeError, DTypeError, DeviceError
        For invalid arguments.
    BreakdownError
        If no factorisation near an end gives a certain number.

    References
    ----------
    Grimes, Lewis, Simon, SIAM J. Matrix Anal. Appl. 15 (1994) 228; Di Napoli, Polizzi, Saad, Numer. Linear
    Algebra Appl. 23 (2016) 674.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import count_eigenvalues
    >>> A = np.diag([1.0, 2.0, 2.0, 5.0])
    >>> int(count_eigenvalues(A, 2.0, 4.0))
    2
    """
    arguments.check_choice("method", method, ("auto", "inertia", "estimate"))
    low, high = arguments.ends((a, b))
    width, generated = arguments.integer("vectors", vectors, 2), arguments.generator(rng)
    spacings = arguments.spacing(A), arguments.spacing(M)
    A, M = arguments.natively(ArrayKind.of_caller(A), A, M)
    if method != "estimate" and place_of(A, arguments.device_of(A, device)) == "cpu":
        A, M, device = arguments.on_host(A), arguments.on_host(M), "cpu"
        is_suspect = may_have_penalties(A)
        penalties = Penalties.of(A, M) if is_suspect else None
        if penalties is not None and penalties.are_below(low, high):
            A, M = penalties.A, penalties.M
        elif is_suspect and (text := lost_digits(A, (low, high), LOST)) is not None:
            raise OptionError(f"count_eigenvalues: {text}, or give method='estimate'.")
    A = split(A, None, shape=shape, dtype=dtype, device=device, mode="normal", interval=(a, b))
    op = arguments.square(as_operator(A, shape=shape, dtype=dtype, device=device))
    scaling = measured(op, A, M, arguments.farthest(low, high), "normal", None, True, spacings)
    op, A, M, _ = scaling.operands(op, A, M, None, device, True)
    low, high = scaling.value(low), scaling.value(high)
    with scaling.noted():
        if method == "inertia" or (method == "auto" and can_factorise(op, A, M)):
            if method == "auto":
                require_factors(A, M, op, "use method='estimate'")
            pencil = Pencil.of(op, A, M, only_counts=True)
            left, right = pencil.cut(low, -1), pencil.cut(high, 1)
            value, why = right.below - left.below, f"by inertia at {left.sigma:.12g} and {right.sigma:.12g}"
            doubtful = pencil.doubtful(left, low, -1) + pencil.doubtful(right, high, 1)
            if doubtful:
                why += f"; factors nearer to the ends are not certain, and {doubtful} may be outside"
            return EigenvalueCount(value, float(doubtful), why)
        if M is None:
            return estimate(op, low, high, generated, width)[0]
        form = standard_form(op, A, M, None, method="estimate")
        return estimate(form.operator, low, high, generated, width, form.blocks)[0]


def estimate(
    operator: Operator,
    low: float,
    high: float,
    rng: Any,
    vectors: int = VECTORS,
    blocks: type[BlockVector] = BlockVector,
) -> tuple[EigenvalueCount, Sketch]:
    """Estimate the number of eigenvalues of a standard problem in [low, high], with the sketch it is from.

    The operator is Hermitian in the inner product of `blocks`, and so are the random vectors isotropic.
    """
    V = isotropic(blocks, operator.shape[0], vectors, operator.dtype, operator.device, rng)

    def is_resolved(sketch: Sketch) -> bool:
        _, spread, doubt = _counted(sketch, low, high, vectors)
        return doubt <= spread

    sketch = sketch_spectrum(operator, V, STEPS, most=MAX_STEPS, resolved=is_resolved)
    value, spread, doubt = _counted(sketch, low, high, vectors)
    why = f"estimated with {vectors} random vectors and {sketch.applications} steps"
    # No spread is no proof: vectors of one-dimensional spaces agree.
    error = max(math.hypot(spread, doubt), float(np.finfo(operator.dtype).eps) * operator.shape[0])
    return EigenvalueCount(round(value), error, why), sketch


def _counted(sketch: Sketch, low: float, high: float, vectors: int) -> tuple[float, float, float]:
    """Return the mean over the vectors, its standard error, and the error by nodes next to the ends."""
    below = [_share_below(sketch, end) for end in (low, high)]
    values, *doubts = (
        np.bincount(sketch.vectors, vectors * sketch.counts * shares, vectors)
        for shares in (below[1] - below[0], *(share * (1 - share) for share in below))
    )
    spread = float(values.std(ddof=1)) / math.sqrt(vectors)
    return float(values.mean()), spread, float(np.hypot(*doubts).mean())


def _share_below(sketch: Sketch, end: float) -> RealArray:
    """Compute the share of each node's weight below an end."""
    if math.isinf(end):
        return np.full(len(sketch.theta), float(end > 0))
    reach = np.maximum(sketch.distances, np.finfo(np.float64).eps * max(sketch.norm, abs(end)))
    shares: RealArray = np.clip((end - sketch.theta + reach) / (2 * reach), 0.0, 1.0)
    return shares
