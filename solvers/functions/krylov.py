"""`funm_multiply_krylov`: a function of any matrix times a vector, with SciPy's signature.

A Krylov basis is built in cycles of a few vectors, of which only the last cycle is kept. The function is
taken of the Hessenberg matrix of all cycles: the part of its first column that belongs to a cycle is what
that one adds to the result.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from blockvec import BlockVector
from blockvec.errors import BreakdownError, OptionError

from ..arguments import integer, real
from ..blocks import in_precision, small_matrix, to_host
from ..result import ConvergenceWarning
from .operands import operands

CYCLE = 20  # vectors; SciPy's default
INVARIANT = 100.0  # remainders in units of eps of their product that are rounding errors
STRUCTURES = {"general": False, "gen": False, "hermitian": True, "her": True}


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
