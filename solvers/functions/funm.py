"""`funm_multiply`: a function of the eigenvalues of a Hermitian matrix, times a block.

Where f is smooth between the bounds of the spectrum, it is a sum of Chebyshev polynomials. Near a singularity
Lanczos needs fewer products, because its polynomials adapt to the eigenvalues: y = ||b|| V f(T) e_1 for each
column. Its vectors are not kept: the recurrence runs once for T, until f(T) e_1 has settled, and again for y.

References
----------
Druskin, Knizhnerman, USSR Comput. Math. Math. Phys. 29 (1989) 112 (without reorthogonalisation);
Borici, Phys. Lett. B 453 (1999) 46 (two passes).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import scipy.linalg

from blockvec import BlockVector, Operator

from ..arguments import ends_of, real
from ..blocks import RealArray, column_factors, in_precision, to_host
from ..iterations.spectrum import Recurrences
from ..result import ConvergenceWarning
from ..runtime.processes import together
from .bounds import SpectralBounds, bounds_of
from .coefficients import MOST_DEGREE, Series, checked, hidden, interpolation
from .operands import Matrix, hermitian, operands
from .polynomial import Polynomials, described

FIRST_STEPS = 24  # Lanczos steps before the first look
BETWEEN_LOOKS = 1.3  # ratio of the steps at successive looks: the error of one is seen at the next
MOST_STEPS = 3000  # Lanczos steps at most: the eigenvalues of T take a second then
LEAST_TOL = 10.0  # units of roundoff: results of Lanczos change by this much


@together
def funm_multiply(
    f: Callable[[RealArray], Any],
    A: Any,
    B: Any,
    tol: float = 1e-10,
    domain: tuple[float | None, float | None] = (None, None),
    *,
    return_info: bool = False,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    device: str | None = None,
    like: Any = None,
    comm: Any = None,
) -> Any:
    """Compute f(A) B for a Hermitian matrix A: f of its eigenvalues, times a block.

    Parameters
    ----------
    f : callable
        Maps an array of real numbers to their values, as `numpy.sqrt` does.
    A : sparse matrix or array, dense array, LinearOperator, callable, or Operator, shape (n, n)
        Hermitian; as for `eigsh`.
    B : array or BlockVector, shape (n,) or (n, b)
        One vector or a block.
    tol : float
        Error of the result, relative to the largest ``|f|`` on the spectrum times the norm of each column.
    domain : (float or None, float or None)
        Numbers between which f is defined, such as ``(0, None)`` for the square root. The eigenvalues of A
        are within; their bounds and estimates are moved there.
    return_info : bool
        Return a dictionary as well. ``method`` is "chebyshev" or "lanczos", `degree` the degree or the steps;
        ``error_bound`` is relative as `tol`, an estimate for Lanczos; the others are as in `expm_multiply`.
    shape, dtype, device, like, comm
        As for `eigsh`; results as in `expm_multiply`.

    Returns
    -------
    array, shape (n,) or (n, b)

    Raises
    ------
    OptionError, ShapeError, DTypeError, DeviceError
        For invalid arguments, a matrix that is not Hermitian, and an f that is not finite on the spectrum.
    BreakdownError
        If A returns NaN or Inf.

    Warns
    -----
    ConvergenceWarning
        If neither polynomials of degree 5000 nor 3000 steps of Lanczos reach `tol`, with what is reached.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import funm_multiply, models
    >>> L = models.model("laplace1d:n=50")
    >>> b = np.ones(50)
    >>> half = funm_multiply(np.sqrt, L, b, domain=(0, None))
    >>> bool(np.allclose(funm_multiply(np.sqrt, L, half, domain=(0, None)), L @ b))
    True
    """
    tol = real("tol", tol, "a number of at least 0", lambda x: 0 <= x < math.inf)
    within = ends_of(domain)
    given = operands(A, B, shape=shape, dtype=dtype, device=device, like=like, comm=comm)
    matrix, X = hermitian(given.A), given.B
    if matrix.operator.shape[0] == 0 or X.n_cols == 0:
        result, info = X.copy(), described("none", 0, 0, 0, 0.0, "nothing to compute: no columns, or no rows")
    else:
        unit = float(np.finfo(X.dtype).eps) / 2
        found = _by_chebyshev(f, matrix, X, max(tol, unit) / 2, within)
        values_of = checked(f, within, matrix.factor.real)
        result, info = found or _by_lanczos(values_of, matrix.operator, X, max(tol, LEAST_TOL * unit))
    results = given.share(given.rows(result))
    return (results, info) if return_info else results


def _by_chebyshev(
    f: Callable[[RealArray], Any], matrix: Matrix, X: BlockVector, limit: float, domain: tuple[float, float]
) -> tuple[BlockVector, dict[str, Any]] | None:
    """Sum Chebyshev polynomials; None if f is not smooth on the bounds, or on wider ones that are needed."""
    factor = matrix.factor.real
    polynomials = Polynomials(matrix.operator, bounds_of(matrix._replace(factor=1)))
    low, high = sorted(end / factor for end in domain)
    used: Series | None = None

    def series_of(given: SpectralBounds) -> list[Series] | None:
        nonlocal used
        polynomials.bounds = given.clipped(low, high)
        first, last = (min(max(factor * end, domain[0]), domain[1]) for end in polynomials.bounds)
        used = interpolation(f, first, last, limit)
        return used and [used]

    found = polynomials.sums(series_of, X)
    if found is None or used is None:
        return None
    degree, unit = len(used.coefficients) - 1, float(np.finfo(X.dtype).eps) / 2
    return found[0].scale(used.scale), polynomials.described(degree, used.tail + unit * (1 + degree))


def _by_lanczos(
    f: Callable[[RealArray], Any], op: Operator, X: BlockVector, tol: float
) -> tuple[BlockVector, dict[str, Any]]:
    """Run the recurrences of all columns until f(T) e_1 has settled, and again for the result."""
    start, norms = in_precision(X, np.result_type(op.dtype, X.dtype)), to_host(X.norms()).astype(float)
    run, steps = Recurrences(cast(Any, op), start.copy()), min(FIRST_STEPS, X.n_global)
    found: Any = None
    while True:
        run.extend(steps)
        parts = zip(run.projected(), norms > 0, strict=True)
        values = [_first_column(f, *part) if is_any else (np.zeros(1), 0.0) for part, is_any in parts]
        length = max(len(vector) for vector, _ in values)
        before, largest = found, max(size for _, size in values) or 1.0
        found = np.array([np.pad(vector, (0, length - len(vector))) for vector, _ in values])
        error = math.inf
        if before is not None:
            wider = max(length, before.shape[1])
            pair = (np.pad(rows, ((0, 0), (0, wider - rows.shape[1]))) for rows in (found, before))
            error = float(np.linalg.norm(np.subtract(*pair), axis=1).max()) / largest
        if length < steps:  # A maps the spaces into themselves
            error = min(error, tol)
        elif error <= tol and steps < 2 * X.n_global:
            nodes = np.concatenate([scipy.linalg.eigvalsh_tridiagonal(*part) for part in run.projected()])
            unseen = hidden(f, nodes)
            error = unseen / max(unseen, largest) if unseen else error
        if error <= tol or steps >= MOST_STEPS:
            break
        steps = min(max(math.ceil(BETWEEN_LOOKS * steps), steps + 1), MOST_STEPS)
    parts_of_f = (found.real, found.imag) if np.iscomplexobj(found) else (found,)
    weights: Any = [part.T * norms for part in parts_of_f]
    totals, again = [start.like() for _ in weights], Recurrences(cast(Any, op), start)
    for k in range(length):
        v = cast(BlockVector, again.vectors)
        for total, rows in zip(totals, weights, strict=True):
            total.axpby(column_factors(rows[k], v), v, min(k, 1))
        again.extend(again.steps + 1)
    products = run.steps + again.steps
    if error > tol:
        warnings.warn(
            f"funm_multiply: {steps} steps of Lanczos reach an error of about {error:.1e}, more than "
            f"tol={tol:.1e}; give a larger tol, or an f that is smooth on the spectrum.",
            ConvergenceWarning,
            stacklevel=4,
        )
    plan = f"{length} steps of Lanczos, twice, since no polynomial of degree {MOST_DEGREE} is near f"
    info = described("lanczos", length, products, products * X.n_cols, error, plan) | {"bounds": None}
    if len(totals) == 1:
        return totals[0], info
    first, second = (in_precision(total, np.result_type(total.dtype, np.complex64)) for total in totals)
    return first.axpy(1j, second), info


def _first_column(f: Callable[[Any], Any], alpha: RealArray, beta: RealArray) -> tuple[Any, float]:
    """Compute f(T) e_1 of a tridiagonal matrix, and the largest ``|f|`` at its eigenvalues."""
    theta, S = scipy.linalg.eigh_tridiagonal(alpha, beta)
    values = f(theta)
    return S @ (values * S[0]), float(np.abs(values).max())
