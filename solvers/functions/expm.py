"""`expm_multiply`: the exponential of a matrix times a block, with SciPy's signature."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from blockvec import BlockVector, array_namespace
from blockvec.errors import OptionError

from ..arguments import integer, real
from ..blocks import in_precision
from ..runtime.processes import together
from .exponential import Exponential, bounds_for, recognised
from .operands import Operands, operands
from .taylor import Taylor


@together
def expm_multiply(
    A: Any,
    B: Any,
    start: float | None = None,
    stop: float | None = None,
    num: int | None = None,
    endpoint: bool | None = None,
    traceA: complex | None = None,
    *,
    return_info: bool = False,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    device: str | None = None,
    like: Any = None,
    comm: Any = None,
) -> Any:
    """Compute exp(A) B, or exp(t A) B for evenly spaced times t.

    A replacement for `scipy.sparse.linalg.expm_multiply`. A matrix c H with a Hermitian H, such as
    ``-1j * t * H``, is recognised: its exponential is a sum of Chebyshev polynomials, whose degree follows
    from the tail of their coefficients. For other matrices it is SciPy's algorithm, Taylor polynomials.

    Parameters
    ----------
    A : sparse matrix or array, dense array, LinearOperator, callable, or Operator, shape (n, n)
        The matrix A, of SciPy, CuPy, torch or JAX; see `blockvec.as_operator`.
    B : array or BlockVector, shape (n,) or (n, b)
        One vector or a block.
    start, stop : float, optional
        First and last time, as in `numpy.linspace`. Without them, and `num` and `endpoint`, t = 1.
    num : int, optional
        Number of times, at least 2; default 50.
    endpoint : bool, optional
        Whether `stop` is the last time; default True.
    traceA : scalar, optional
        Trace of A, which need not be accurate; for operators without structure.
    return_info : bool
        Return a dictionary as well. ``method`` is "chebyshev" or "taylor", `degree` the largest one;
        `products` and `columns` count the products with A and their columns; `bounds` are the
        `SpectralBounds` of H. ``error_bound`` bounds the error relative to the norm of the result, in so far
        as the bounds of the spectrum hold, and None after Taylor polynomials, whose error is one of A by
        rounding. `plan` says this in words.
    shape, dtype, device, like, comm
        As for `eigsh`. With `comm`, A and B are as there, and results are `BlockVector` objects with this
        process's rows, for several times a list of them.

    Returns
    -------
    array, shape (n,), (n, b), (num, n) or (num, n, b)
        On the device of A, of the kind of B unless `like` selects another one.

    Raises
    ------
    OptionError, ShapeError, DTypeError, DeviceError
        For invalid arguments, for NaN and Inf in B, and for results that overflow.
    BreakdownError
        If A returns NaN or Inf.

    Warns
    -----
    UserWarning
        If A is a linear operator without structure, and `traceA` is missing, as in SciPy.

    References
    ----------
    Tal-Ezer, Kosloff, J. Chem. Phys. 81 (1984) 3967; Al-Mohy, Higham, SIAM J. Sci. Comput. 33 (2011) 488.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import expm_multiply
    >>> H = np.array([[0.0, 1.0], [1.0, 0.0]])
    >>> psi, info = expm_multiply(-1j * np.pi / 2 * H, np.array([1.0, 0.0]), return_info=True)
    >>> np.abs(psi).round(12).tolist(), info["method"]
    ([0.0, 1.0], 'chebyshev')
    """
    times = _times(start, stop, num, endpoint)
    given = operands(A, B, shape=shape, dtype=dtype, device=device, like=like, comm=comm)
    op, X = given.A.operator, given.B
    steps = [1.0] if times is None else times
    span = sum(map(abs, steps))
    is_trivial = X.n_cols == 0 or op.shape[0] == 0 or span == 0
    hermitian = None if is_trivial else recognised(given.A)
    info: dict[str, Any]
    if is_trivial:
        blocks = [X.copy() for _ in steps]
        info = {"method": "none", "degree": 0, "products": 0, "columns": 0, "error_bound": 0.0}
        info["plan"] = "nothing to compute: no columns, no rows, or no time"
    elif hermitian is not None:
        c, H, entries = hermitian
        doubles = 2 if H.dtype.kind == "f" and X.dtype.kind == "c" else 1
        bounds = bounds_for(H, entries, abs(c) * span, X.n_cols * doubles)
        exponential = Exponential(H, bounds, c)
        blocks = _by_chebyshev(exponential, steps, X)
        info = described(exponential)
    else:
        trace = None if traceA is None else complex(traceA) / given.A.factor
        taylor, blocks = Taylor(given.A, trace, X), []
        for step in steps:
            X = taylor.apply(step, X)
            blocks.append(X)
        info = {"method": "taylor", "degree": taylor.degree, "products": taylor.steps}
        info |= {"columns": taylor.columns, "error_bound": None}
        info["plan"] = (
            f"Taylor polynomials of degree {taylor.degree} at most, since A is no multiple of a Hermitian "
            f"matrix: {taylor.steps} products"
        )
    results = _delivered(given, blocks, is_one=times is None)
    return (results, info) if return_info else results


def _times(start: Any, stop: Any, num: Any, endpoint: Any) -> list[float] | None:
    """Form the first time of a call and all steps; None for the time 1 alone."""
    if start is None and stop is None and num is None and endpoint is None:
        return None
    first, last = (real(*end, "a finite number", math.isfinite) for end in (("start", start), ("stop", stop)))
    count = 50 if num is None else integer("num", num, 0)
    if count < 2:
        raise OptionError(f"num: got {num!r}; at least two time points are required.")
    return [first] + [(last - first) / (count - (endpoint is None or bool(endpoint)))] * (count - 1)


def _by_chebyshev(exponential: Exponential, steps: list[float], X: BlockVector) -> list[BlockVector]:
    """Compute results one after the other, those of short equal steps together."""
    blocks = exponential.apply((steps[0],), X)
    rest = steps[1:]
    while rest:
        count = min(exponential.together(rest[0], X), len(rest))
        blocks += exponential.apply(tuple(np.cumsum(rest[:count]).tolist()), blocks[-1])
        rest = rest[count:]
    return blocks


def described(exponential: Exponential) -> dict[str, Any]:
    """Describe how an exponential was computed."""
    polynomials, degree = exponential.polynomials, exponential.degree
    return {
        "method": "chebyshev",
        "degree": degree,
        "bounds": polynomials.bounds,
        "error_bound": exponential.error,
        "products": polynomials.steps,
        "columns": polynomials.columns,
        "plan": f"Chebyshev polynomials of degree {degree} at most, since A = c H with a Hermitian H, on "
        f"{polynomials.bounds!r}: {polynomials.steps} products with {polynomials.operator.dtype.name}",
    }


def _delivered(given: Operands, blocks: list[BlockVector], *, is_one: bool) -> Any:
    """Return results in the kind, shape and type of a call."""
    kinds = given.A.operator.dtype.kind, given.B.dtype.kind
    is_real = kinds == ("f", "f") and not np.iscomplexobj(given.A.factor)  # of the type of A, as in SciPy
    for k, block in enumerate(blocks):
        if is_real and block.dtype.kind == "c":  # of a skew-symmetric matrix
            blocks[k] = BlockVector(block.array.real, copy=True, layout=block.layout)
        elif not is_real and block.dtype.kind != "c":  # at t = 0
            blocks[k] = in_precision(block, np.result_type(block.dtype, np.complex64))
    rows = given.rows(blocks)
    if is_one:
        return given.share(rows[0]) if given.A.operator.layout is None else rows[0]
    if given.A.operator.layout is not None:
        return rows
    whole = array_namespace(rows[0]).empty((len(rows), *rows[0].shape), rows[0].dtype)
    for k, row in enumerate(rows):
        whole[k] = row
    return given.share(whole)
