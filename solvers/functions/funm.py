"""Functions of the eigenvalues of a Hermitian matrix times a block, and of any matrix times a vector.

Where f is smooth between the bounds of the spectrum, it is a sum of Chebyshev polynomials. Near a singularity
Lanczos needs fewer products, because its polynomials adapt to the eigenvalues: y = ||b|| V f(T) e_1 for each
column. Its vectors are not kept: the recurrence runs once for T, until f(T) e_1 has settled, and again for y.

`funm_multiply_krylov` builds a Krylov basis in cycles of a few vectors, of which only the last cycle is kept.
Its function is taken of the Hessenberg matrix of all cycles: the part of its first column that belongs to a
cycle is what that one adds to the result.

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
from blockvec.errors import BreakdownError, OptionError

from ..arguments import ends_of, integer, real
from ..blocks import RealArray, column_factors, in_precision, small_matrix, to_host
from ..iterations.spectrum import Recurrences
from ..result import ConvergenceWarning
from ..runtime.processes import together
from .bounds import bounds_of
from .coefficients import MOST_DEGREE, checked, hidden, interpolation
from .operands import hermitian, operands
from .polynomial import Polynomials, described

FIRST_STEPS = 24  # Lanczos steps before the first look
BETWEEN_LOOKS = 1.3  # ratio of the steps at successive looks: the error of one is seen at the next
MOST_STEPS = 3000  # Lanczos steps at most: the eigenvalues of T take a second then
LEAST_TOL = 10.0  # units of roundoff: results of Lanczos change by this much
CYCLE = 20  # vectors; SciPy's default
INVARIANT = 100.0  # remainders in units of eps of their product that are rounding errors
STRUCTURES = {"general": False, "gen": False, "hermitian": True, "her": True}


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
        factor, values_of = matrix.factor.real, checked(f, within, matrix.factor.real)
        low, high = sorted(end / factor for end in within)
        polynomials = Polynomials(matrix.operator, bounds_of(matrix._replace(factor=1)), (low, high))
        found = polynomials.sums(lambda bounds: interpolation(values_of, *bounds, max(tol, unit) / 2), X)
        if found is None:
            result, info = _by_lanczos(values_of, matrix.operator, X, max(tol, LEAST_TOL * unit))
        else:
            (result,), (series,) = found
            degree = len(series.coefficients) - 1
            info = polynomials.described(degree, series.tail + unit * (1 + degree))
    results = given.share(given.rows(result))
    return (results, info) if return_info else results


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
        found = np.array([np.pad(vector, (0, run.steps - len(vector))) for vector, _ in values])
        error = math.inf
        if before is not None:
            change = found - np.pad(before, ((0, 0), (0, run.steps - before.shape[1])))
            error = float(np.linalg.norm(change, axis=1).max()) / largest
        if length < steps:  # A maps the spaces into themselves
            error = min(error, tol)
        elif error <= tol and steps < 2 * X.n_global:
            nodes = np.concatenate([scipy.linalg.eigvalsh_tridiagonal(*part) for part in run.projected()])
            unseen = hidden(f, nodes)
            error = unseen / max(unseen, largest) if unseen else error
        if error <= tol or steps >= MOST_STEPS:
            break
        steps = min(max(math.ceil(BETWEEN_LOOKS * steps), steps + 1), MOST_STEPS)
    # The same vectors need the same arithmetic: a complex f has two sums of real ones.
    weights: Any = [
        part.T * norms for part in ((found.real, found.imag) if np.iscomplexobj(found) else (found,))
    ]
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


def funm_multiply_krylov(
    f: Callable[[Any], Any],
    A: Any,
    b: Any,
    *,
    assume_a: str = "general",
    t: float = 1.0,
    atol: float = 0.0,
    rtol: float = 1e-6,
    restart_every_m: int | None = None,
    max_restarts: int = 20,
    like: Any = None,
) -> Any:
    """Compute f(t A) b for a function of matrices, by restarted Krylov spaces.

    A replacement for `scipy.sparse.linalg.funm_multiply_krylov`. For Hermitian matrices `funm_multiply` takes
    blocks of vectors, and bounds its error.

    Parameters
    ----------
    f : callable
        Maps a small matrix of shape (m, m) to another, as `scipy.linalg.expm` does.
    A : sparse matrix or array, dense array, LinearOperator, callable, or Operator, shape (n, n)
        See `blockvec.as_operator`.
    b : array, shape (n,)
    assume_a : {"general", "gen", "hermitian", "her"}
        Whether f may be given a Hermitian matrix.
    t : float
        Factor of A.
    atol, rtol : float
        The iteration ends where a cycle adds less than ``max(atol, rtol * norm(b))``.
    restart_every_m : int, optional
        Vectors per cycle; default 20, or n if that is less.
    max_restarts : int
        The most cycles.
    like
        As for `eigsh`.

    Returns
    -------
    array, shape (n,)

    Raises
    ------
    OptionError, ShapeError, DTypeError, DeviceError
        For invalid arguments, an f that is not finite, and results that overflow.
    BreakdownError
        If A returns NaN or Inf.

    Warns
    -----
    ConvergenceWarning
        If the last cycle has added more than the limit.

    References
    ----------
    Eiermann, Ernst, SIAM J. Numer. Anal. 44 (2006) 2481; Afanasjew, Eiermann, Ernst, Güttel, Linear Algebra
    Appl. 429 (2008) 2293. Deviation: vectors are orthogonalised twice, also those of Hermitian matrices.

    Examples
    --------
    >>> import numpy as np
    >>> import scipy.linalg
    >>> from blockvec import funm_multiply_krylov
    >>> A = np.array([[0.0, 1.0], [0.0, 0.0]])
    >>> funm_multiply_krylov(scipy.linalg.expm, A, np.ones(2)).round(12).tolist()
    [2.0, 1.0]
    """
    if assume_a not in STRUCTURES:
        raise OptionError(
            f"assume_a: {assume_a!r} is not a recognized matrix structure; give 'gen' or 'her'."
        )
    if np.ndim(b) != 1:
        raise OptionError(f"argument 'b' must be a 1D array; it has {np.ndim(b)} dimensions.")
    for name, value in (("restart_every_m", restart_every_m), ("max_restarts", max_restarts)):
        if value is not None and integer(name, value, -(1 << 31)) <= 0:
            raise OptionError(f"argument '{name}' must be positive; got {value}.")
    given = operands(A, b, like=like)
    op, x = given.A.operator, given.B
    n, norm = op.shape[0], float(to_host(x.norms()).max(initial=0.0))
    cycle = min(CYCLE, n) if restart_every_m is None else integer("restart_every_m", restart_every_m, 1)
    limit = max(real("atol", atol, "a number of at least 0", lambda value: value >= 0), rtol * norm)
    if norm == 0:
        return given.share(given.rows(x))
    factor = t * given.A.factor
    kind = np.result_type(op.dtype, x.dtype)
    v = in_precision(x, kind).scale(1 / norm)
    V, total, added = v.like(cycle + 1), None, np.inf
    cycles = min(integer("max_restarts", max_restarts, 1), n // cycle + 1)
    H = np.zeros((cycle * cycles + 1, cycle * cycles), kind)
    begin = 0
    for _ in range(cycles):
        V[:, :1] = v
        steps, is_invariant = _arnoldi(op, V, H[begin:, begin:], cycle)
        end = begin + steps
        T = H[:end, :end]
        T = (T + T.conj().T) / 2 if STRUCTURES[assume_a] and begin == 0 else T
        part = norm * np.asarray(f(factor * T))[begin:end, :1]
        if not np.isfinite(part).all():
            raise OptionError(f"f: has NaN or Inf for a matrix of shape {T.shape}; check f, t and A.")
        change = in_precision(V[:, :steps], np.result_type(kind, part.dtype.type(0) * kind.type(0)))
        update = change.combine(small_matrix(part, change))
        total = update if total is None else total.axpy(1, update)
        added = float(np.linalg.norm(part))
        if is_invariant or added <= limit:
            break
        begin, v = end, V[:, cycle : cycle + 1].copy()
    else:
        warnings.warn(
            f"funm_multiply_krylov: the last of {cycles} cycles added {added:.1e}, more than {limit:.1e}; "
            "give a larger max_restarts or restart_every_m.",
            ConvergenceWarning,
            stacklevel=2,
        )
    assert total is not None
    return given.share(given.rows(total))


def _arnoldi(op: Any, V: BlockVector, H: Any, most: int) -> tuple[int, bool]:
    """Extend a basis whose first vector is given; return its size, and whether A maps it into itself.

    H receives the coefficients.
    """
    tiny = INVARIANT * float(np.finfo(V.dtype).eps)
    for k in range(most):
        w = op.apply(V[:, k : k + 1].copy())
        before = float(to_host(w.norms())[0])
        for _ in range(2):
            basis = V[:, : k + 1]
            coefficients = basis.dot(w)
            basis.combine(coefficients, out=w, alpha=-1, beta=1)
            H[: k + 1, k] += to_host(coefficients)[:, 0]
        H[k + 1, k] = size = float(to_host(w.norms())[0])
        if not np.isfinite(size):
            raise BreakdownError("A returned NaN or Inf for a finite vector; check its entries.")
        if not size > tiny * before:
            return k + 1, True
        V[:, k + 1 : k + 2] = w.scale(1 / size)
    return most, False
