"""Logarithms of determinants: from the pivots of factors, or as the trace of a logarithm."""

from __future__ import annotations

import math
from typing import Any, Literal, cast

import numpy as np

from blockvec import Factorization, Operator
from blockvec.errors import OptionError
from blockvec.system.frozen import frozen

from ..arguments import check_choice, is_explicit, on_host
from ..blocks import empty_block, to_host
from ..costs import fits_dense, recurrence_s
from ..placement import UNASKED_ENTRIES, factor_s, is_affordable
from ..runtime.processes import together
from ..stages.dense import dense_matrix
from .coefficients import checked
from .operands import generator_for, hermitian_matrix
from .traces import DENSE_ROWS, STEPS, WIDTH, TraceEstimate, estimated, goal

METHODS = ("auto", "factors", "quadrature")
WORTH_S = 1.0  # s, predicted: factors that take no longer are computed, since they are exact
SAMPLES = 4  # blocks of random vectors that an estimate takes, as a rule
PASSES = 3  # times the bytes of a product that a Lanczos step moves


@frozen
class LogDeterminant(TraceEstimate):
    """The logarithm of ``|det A|`` and its error, ``value, error = logdet(A)``; see `TraceEstimate`.

    Attributes
    ----------
    sign : float
        Sign of the determinant: 1, -1, or 0 for a matrix that is singular to working precision.
    """

    sign: float = 1.0


@together
def logdet(
    A: Any,
    tol: float = 1e-3,
    *,
    atol: float = 0.0,
    vectors: int | None = None,
    method: Literal["auto", "factors", "quadrature"] = "auto",
    rng: Any = None,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    device: str | None = None,
    like: Any = None,
    comm: Any = None,
) -> LogDeterminant:
    """Compute the logarithm of the determinant of a Hermitian matrix.

    Parameters
    ----------
    A : sparse matrix or array, dense array, LinearOperator, callable, or Operator, shape (n, n)
        Hermitian, and positive definite unless it is factorised; as for `eigsh`.
    tol, atol, vectors, rng
        Of an estimate; see `trace`.
    method : {"auto", "factors", "quadrature"}
        Factors on the host, whose pivots tell the number to rounding errors and its sign, or an estimate of
        the trace of log(A). "auto" takes factors where A is an explicit matrix and they are predicted to take
        less than a second, or less time than an estimate.
    shape, dtype, device, like, comm
        As for `eigsh`.

    Returns
    -------
    LogDeterminant
        A pair ``(value, error)`` with the sign, the products that were used, and the method.

    Raises
    ------
    OptionError, ShapeError, DTypeError, DeviceError
        For invalid arguments, and an A that is not Hermitian, or for an estimate not positive definite.

    Warns
    -----
    ConvergenceWarning
        If the error of an estimate is larger than what was asked for.

    Examples
    --------
    >>> import numpy as np
    >>> import blockvec
    >>> A = blockvec.models.model("laplace1d:n=99")  # of the determinant 100
    >>> value, error = blockvec.logdet(A)
    >>> bool(abs(value - np.log(100)) < 1e-12)
    True
    """
    check_choice("method", method, METHODS)
    limit_of, count = goal(tol, atol, vectors)
    matrix = hermitian_matrix(A, shape=shape, dtype=dtype, device=device, like=like, comm=comm)
    op, factor, entries = matrix.operator, matrix.factor.real, matrix.entries
    why = None if method == "quadrature" or op.shape[0] == 0 else "factors were asked for"
    if method == "auto":
        why = None if count is not None or op.shape[0] == 0 else _reason(op, entries)
    elif why is not None and (op.layout is not None or not (is_explicit(entries) or fits_dense(op))):
        raise OptionError(
            "method: 'factors' needs an explicit matrix in one process; give one, or use 'quadrature'."
        )
    if why is None:
        log = checked(_positive_log, factor=factor)
        found = estimated(op, log, limit_of, count, "auto", generator_for(op, rng))
        return LogDeterminant(*(getattr(found, name) for name in TraceEstimate.__annotations__))
    n, products = op.shape[0], 0
    if not is_explicit(entries):
        entries, products = to_host(dense_matrix(op, empty_block(op))), n
    factors = Factorization(on_host(entries))
    factors.refactorize(0.0)
    sign, value = cast(tuple[float, float], factors.log_determinant())
    if factor != 1 and sign:
        sign, value = sign * float(np.sign(factor)) ** n, value + n * math.log(abs(factor))
    error = float(np.finfo(op.dtype).eps) * (n + 1 / factors.nearest) if sign else 0.0
    return LogDeterminant(value, error, products, 0, "factors", why, sign)


def _reason(op: Operator, entries: Any) -> str | None:
    """Say why A is factorised; None where an estimate takes less time, or nothing can be factorised."""
    n = op.shape[0]
    if op.layout is not None or not is_explicit(entries):
        return f"n = {n} is at most {DENSE_ROWS}" if op.layout is None and n <= DENSE_ROWS else None
    if getattr(entries, "nnz", n * n) > UNASKED_ENTRIES:
        return None
    estimate_s = SAMPLES * STEPS * PASSES * recurrence_s(op, WIDTH)
    predicted_s = factor_s(entries, "cpu", WORTH_S)
    if predicted_s > max(WORTH_S, estimate_s) or not is_affordable(entries, None):
        return None
    return f"factors are predicted to take {predicted_s:.2g} s, an estimate {estimate_s:.2g} s"


def _positive_log(theta: Any) -> Any:
    if (theta <= 0).any():
        raise OptionError(
            f"A is not positive definite: it has a Ritz value {theta.min():.6g}; use method='factors'."
        )
    return np.log(theta)
