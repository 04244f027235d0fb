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

from ..arguments import ends, real
from ..blocks import RealArray, column_factors, in_precision, to_host
from ..iterations.spectrum import Recurrences
from ..result import ConvergenceWarning
from ..runtime.processes import together
from .bounds import SpectralBounds, bounds_of
from .coefficients import MOST_DEGREE, Series, evaluated, hidden, interpolation, within
from .operands import operands, with_real_factor
from .polynomial import Polynomials
from .traces import checked

FIRST_STEPS = 24  # of Lanczos before the first look
BETWEEN_LOOKS = 1.3  # ratio of the steps at successive looks: the error of one is seen at the next
MOST_STEPS = 3000  # of Lanczos; the eigenvalues of T take a second
LEAST_TOL = 10.0  # of Lanczos in units of roundoff: its results change by this much


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
    first, last = domain
    low, high = ends((-math.inf if first is None else first, math.inf if last is None else last))
    given = operands(A, B, shape=shape, dtype=dtype, device=device, like=like, comm=comm)
    given = given._replace(A=with_real_factor(given.A))
    op, X, factor = given.A.operator, given.B, complex(given.A.factor).real
    if factor != 1:
        f, (low, high) = checked(f, factor, (low, high)), sorted((low / factor, high / factor))
    if not op.is_hermitian:
        op.check_hermitian()
    info: dict[str, Any] = {"method": "none", "degree": 0, "products": 0, "columns": 0, "error_bound": 0.0}
    if op.shape[0] == 0 or X.n_cols == 0:
        result = X.copy()
    else:
        unit = float(np.finfo(X.dtype).eps) / 2
        bounds = bounds_of(op, given.A.entries).clipped(low, high)
        found = _by_chebyshev(f, op, bounds, X, max(tol, unit) / 2, (low, high))
        result, info = found or _by_lanczos(f, op, X, max(tol, LEAST_TOL * unit), (low, high))
    results = given.rows([result])[0]
    results = results if op.layout is not None else given.share(results)
    return (results, info) if return_info else results


class _NotSmoothError(Exception):
    """A function has no polynomial of a limited degree."""


def _by_chebyshev(
    f: Callable[[RealArray], Any],
    op: Operator,
    bounds: SpectralBounds,
    X: BlockVector,
    limit: float,
    domain: tuple[float, float],
) -> tuple[BlockVector, dict[str, Any]] | None:
    """Sum Chebyshev polynomials; None if f is not smooth on the bounds, or on wider ones that are needed."""
    polynomials, used = Polynomials(op, bounds), Series(None, 0.0)

    def series_of(given: SpectralBounds) -> list[Series]:
        nonlocal used
        polynomials.bounds = given.clipped(*domain)
        series = interpolation(f, *polynomials.bounds, limit)
        if series is None:
            raise _NotSmoothError
        used = series
        return [series]

    try:
        (result,) = polynomials.sums(series_of, X)
    except _NotSmoothError:
        return None
    degree, unit = len(used.coefficients) - 1, float(np.finfo(X.dtype).eps) / 2
    return result.scale(used.scale), {
        "method": "chebyshev",
        "degree": degree,
        "bounds": polynomials.bounds,
        "error_bound": used.tail + unit * (1 + degree),
        "products": polynomials.steps,
        "columns": polynomials.columns,
        "plan": f"Chebyshev polynomials of degree {degree} on {polynomials.bounds!r}",
    }


def _by_lanczos(
    f: Callable[[RealArray], Any], op: Operator, X: BlockVector, tol: float, domain: tuple[float, float]
) -> tuple[BlockVector, dict[str, Any]]:
    """Run the recurrences of all columns until f(T) e_1 has settled, and again for the result."""
    dtype = np.result_type(op.dtype, X.dtype)
    start = X.copy() if X.dtype == dtype else in_precision(X, dtype)
    norms = to_host(X.norms()).astype(float)
    run = Recurrences(cast(Any, op), start.copy())
    steps, before = min(FIRST_STEPS, X.n_global), list[Any]()
    while True:
        run.extend(steps)
        parts = zip(run.projected(), norms > 0, strict=True)
        values = [_first_column(f, *part, domain) if any_ else (np.zeros(1), 0.0) for part, any_ in parts]
        largest = max(size for _, size in values)
        vectors = [vector for vector, _ in values]
        error = max(
            (_difference(vector, old) for vector, old in zip(vectors, before, strict=False)), default=math.inf
        ) / (largest or 1.0)
        if all(len(vector) < steps for vector in vectors):  # A maps the spaces into themselves
            error = min(error, tol)
        elif error <= tol and steps < 2 * X.n_global:
            nodes = np.concatenate([scipy.linalg.eigvalsh_tridiagonal(*part) for part in run.projected()])
            unseen = hidden(f, np.clip(nodes, *domain))
            error = unseen / max(unseen, largest) if unseen else error
        if error <= tol or steps >= MOST_STEPS:
            break
        before, steps = vectors, min(max(math.ceil(BETWEEN_LOOKS * steps), steps + 1), MOST_STEPS)
    is_complex = any(np.iscomplexobj(vector) for vector in vectors)
    kind = np.result_type(dtype, np.complex64) if is_complex else dtype
    total, again = start.like(dtype=kind), Recurrences(cast(Any, op), start)
    total[:, :] = 0
    length = max(map(len, vectors))
    weights = np.array([np.pad(vector, (0, length - len(vector))) for vector in vectors]).T * norms
    for row in weights:
        v = cast(BlockVector, again.vectors)
        for factor, part in ((1, row.real), (1j, row.imag)):
            if part.any():
                numbers = column_factors(part, v)
                numbers = numbers if factor == 1 else factor * numbers
                total.axpy(numbers, v if v.dtype == kind else in_precision(v, kind))
        again.extend(again.steps + 1)
    products = run.steps + again.steps
    if error > tol:
        warnings.warn(
            f"funm_multiply: {steps} steps of Lanczos reach an error of about {error:.1e}, more than "
            f"tol={tol:.1e}; give a larger tol, or an f that is smooth on the spectrum.",
            ConvergenceWarning,
            stacklevel=4,
        )
    return total, {
        "method": "lanczos",
        "degree": length,
        "bounds": None,
        "error_bound": error,
        "products": products,
        "columns": products * X.n_cols,
        "plan": f"{length} steps of Lanczos, twice: no polynomial of degree {MOST_DEGREE} is near f",
    }


def _first_column(
    f: Callable[[RealArray], Any], alpha: RealArray, beta: RealArray, domain: tuple[float, float]
) -> tuple[Any, float]:
    """Compute f(T) e_1 of a tridiagonal matrix, and the largest ``|f|`` at its eigenvalues."""
    theta, S = scipy.linalg.eigh_tridiagonal(alpha, beta)
    values = evaluated(f, within(theta, domain))
    return S @ (values * S[0]), float(np.abs(values).max())


def _difference(vector: Any, before: Any) -> float:
    size = max(len(vector), len(before))
    new, old = (np.pad(x, (0, size - len(x))) for x in (vector, before))
    return float(np.linalg.norm(new - old))
