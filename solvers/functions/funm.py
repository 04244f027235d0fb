"""Functions of the eigenvalues of a Hermitian matrix times a block, and of any matrix times a vector.

Where f is smooth between the bounds of the spectrum, it is a sum of Chebyshev polynomials. Near a singularity
Lanczos needs fewer products, because its polynomials adapt to the eigenvalues: y = ||b|| V f(T) e_1 for each
column. Its vectors are not kept: the recurrence runs once for T, until its polynomial is near f wherever b
may have a part, and again for y.

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

from blockvec import BlockVector, Operator, orthogonalize
from blockvec.errors import OptionError

from ..arguments import ends_of, integer, real
from ..blocks import RealArray, column_factors, in_precision, small_matrix, to_host
from ..iterations.spectrum import Recurrences
from ..result import ConvergenceWarning
from ..runtime.processes import together
from .bounds import SpectralBounds, bounds_of
from .operands import check_finite, operands
from .series import MOST_DEGREE, MOVED, Sums, Work, changes, checked, interpolation, missed, points

FIRST_STEPS = 24  # Lanczos steps before the first look
BETWEEN_LOOKS = 1.3  # ratio of the steps at successive looks
UNSURE = 2.0  # errors of Lanczos in units of the most that one eigenvalue adds to them
LAST = 3  # coefficients that are small where a polynomial may be near f
MOST_STEPS = 3000  # Lanczos steps at most: the eigenvalues of T take a second then
LEAST_TOL = 30.0  # units of roundoff: the least error of a result of Lanczos
CYCLE = 20  # vectors; SciPy's default
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
        ``error_bound`` is relative as `tol`, for Lanczos an estimate: twice what an eigenvalue anywhere
        within `bounds`, found or not, may add to the error, or what f changes by where rounding errors move
        eigenvalues. The others are as in `expm_multiply`.
    shape, dtype, device, like, comm
        As for `eigsh`; results as in `expm_multiply`.

    Returns
    -------
    array, shape (n,) or (n, b)

    Raises
    ------
    OptionError, ShapeError, DTypeError, DeviceError
        For invalid arguments, a matrix that is not Hermitian, an f that is not finite on the spectrum, and
        results that overflow.
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
    tol = real("tol", tol, "a number of at least 0", 0.0)
    within = ends_of(domain)
    given = operands(A, B, shape=shape, dtype=dtype, device=device, like=like, comm=comm).hermitian()
    op, X, factor = given.operator, given.B, given.factor.real
    if op.shape[0] == 0 or X.n_cols == 0:
        result, work = X.copy(), Work("none", "nothing to compute: no columns, or no rows")
    else:
        unit, values_of = float(np.finfo(X.dtype).eps) / 2, checked(f, within, factor)
        low, high = sorted(end / factor for end in within)
        work = sums = Sums(op, bounds_of(given._replace(factor=1.0)), (low, high))
        found = sums.of(lambda bounds: interpolation(values_of, *bounds, max(tol, unit) / 2), X)
        if found is None:
            result, work = _by_lanczos(values_of, op, X, tol, sums.bounds)
        else:
            (result,), work.error = found
        check_finite(result)
    results = given.share(given.rows(result))
    return (results, work.described()) if return_info else results


def _by_lanczos(
    f: Callable[..., Any], op: Operator, X: BlockVector, tol: float, bounds: SpectralBounds
) -> tuple[BlockVector, Work]:
    """Run the recurrences of all columns until their polynomials are near f, and again for the result."""
    start, norms = in_precision(X, np.result_type(op.dtype, X.dtype)), to_host(X.norms()).astype(float)
    run, x = Recurrences(cast(Any, op), start.copy()), points(*bounds)
    expected, unit, size = f(x, is_strict=False), float(np.finfo(X.dtype).eps) / 2, max(map(abs, bounds))
    least, error, steps = LEAST_TOL * unit, math.inf, 0
    tol = max(tol, least)
    while error > tol and steps < MOST_STEPS:
        steps = min(max(math.ceil(BETWEEN_LOOKS * steps), FIRST_STEPS), MOST_STEPS)
        run.extend(steps)
        found, columns = np.zeros((steps, len(norms)), expected.dtype), list[Any]()
        for k, T in enumerate(run.projected()):
            if norms[k]:  # results of zero columns are zero
                theta, S = scipy.linalg.eigh_tridiagonal(*T)
                columns.append((k, T, theta, values := f(theta), S[[0, -1]]))
                found[: len(theta), k] = S @ (values * S[0])
        largest = max((float(np.abs(values).max()) for *_, values, _ in columns), default=0.0) or 1.0
        error = float(np.abs(found[-LAST:]).max()) / largest
        if error > tol and steps < MOST_STEPS:
            continue
        error = least
        for k, T, theta, *_ in columns:
            if len(T[0]) == steps:  # where A maps a space into itself, fewer steps are exact
                between = (theta[1:] + theta[:-1])[np.diff(theta) > least * size] / 2
                each = np.append(expected, f(between, is_strict=False)), np.append(x, between)
                error = max(error, UNSURE * missed(*each, T, found[:, k], 0.5) / largest)
    betas = run.coefficients()[1]
    for k, T, theta, values, (first, last) in columns:  # f may jump at an eigenvalue
        end = len(T[0])  # where a space has ended, but for a remainder
        rest = MOVED * unit * size + (betas[end - 1, k] * np.abs(last) if end < steps else 0.0)
        for change in changes(f, theta, values, rest, bounds):
            error = max(error, float(np.linalg.norm(change * first)) / largest)
    if error > tol:
        warnings.warn(
            f"funm_multiply: {steps} steps of Lanczos reach an error of about {error:.1e}, more than "
            f"tol={tol:.1e}; give a larger tol, or an f that is smooth on the spectrum.",
            ConvergenceWarning,
            stacklevel=4,
        )
    plan = f"Lanczos, twice, since no polynomial of degree {MOST_DEGREE} is near f"
    work, length = Work("lanczos", plan, bounds, error), max((len(T[0]) for _, T, *_ in columns), default=1)
    # The same vectors need the same arithmetic: a complex f has two sums of real ones.
    parts = [found.real, found.imag] if expected.dtype.kind == "c" else [found]
    totals, again = [start.like() for _ in parts], Recurrences(cast(Any, op), start)
    for k in range(length):
        again.extend(k)
        v = cast(BlockVector, again.vectors)
        for total, part in zip(totals, parts, strict=True):
            total.axpby(column_factors(part[k] * norms, v), v, min(k, 1))
    work.count(run.steps + again.steps, X.n_cols, length)
    if len(totals) == 1:
        return totals[0], work
    real, imaginary = (in_precision(one, np.result_type(one.dtype, np.complex64)) for one in totals)
    return real.axpy(1j, imaginary), work


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
    counts = []
    for name, value in (("restart_every_m", restart_every_m), ("max_restarts", max_restarts)):
        counts.append(CYCLE if value is None else integer(name, value, -(1 << 31)))
        if counts[-1] <= 0:
            raise OptionError(f"argument '{name}' must be positive; got {value}.")
    given = operands(A, b, like=like)
    op, x, factor = given.operator, given.B, t * given.factor
    n, norm, kind = op.shape[0], float(to_host(x.norms()).max(initial=0.0)), np.result_type(op.dtype, x.dtype)
    limit = max(real("atol", atol, "a number of at least 0", 0.0, math.inf), rtol * norm)
    if norm == 0:
        return given.share(given.rows(x))
    cycle = min(counts[0], n)
    cycles = min(counts[1], n // cycle + 1)
    V, v, total = x.like(cycle, dtype=kind), in_precision(x, kind).scale(1 / norm), cast(Any, None)
    H = np.zeros((cycle * cycles + 1, cycle * cycles), kind)
    for end in range(1, cycle * cycles + 1):  # Arnoldi steps
        begin = (end - 1) // cycle * cycle
        filled = V[:, : end - begin]
        filled[:, end - begin - 1 :] = v
        v = op.apply(v)
        found = orthogonalize(v, filled, max_rank=min(1, n - filled.n_cols))
        H[begin:end, end - 1], H[end, end - 1] = found.S[:, 0], float(np.abs(found.R).sum())
        is_complete = H[end, end - 1] == 0  # A maps the space into itself
        if end % cycle and not is_complete:
            continue
        T = H[:end, :end]
        T = (T + T.conj().T) / 2 if STRUCTURES[assume_a] and begin == 0 else T
        part = norm * np.asarray(f(factor * T))[begin:end, :1]
        if not np.isfinite(part).all():
            raise OptionError(f"f: has NaN or Inf for a matrix of shape {T.shape}; check f, t and A.")
        change = in_precision(filled, np.result_type(kind, part.dtype.type(0) * kind.type(0)))
        update = change.combine(small_matrix(part, change))
        total = update if total is None else total.axpy(1, update)
        added = float(np.linalg.norm(part))
        if is_complete or added <= limit:
            break
    else:
        warnings.warn(
            f"funm_multiply_krylov: the last of {cycles} cycles added {added:.1e}, more than {limit:.1e}; "
            "give a larger max_restarts or restart_every_m.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return given.share(given.rows(total))
