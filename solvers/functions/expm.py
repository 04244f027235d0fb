"""The exponential of a matrix times a block: `expm_multiply`, and `evolve` for Schroedinger's equation."""

from __future__ import annotations

import cmath
import math
import zlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any, cast

import numpy as np

import blockvec
from blockvec import BlockVector, Operator, array_namespace
from blockvec.errors import OptionError

from ..arguments import checkpoint_for, integer, real
from ..blocks import RealArray, in_precision, to_host
from ..runtime.processes import processes_of, together
from ..runtime.progress import counted_bar
from .bounds import FEW_STEPS, SpectralBounds, estimated, gershgorin
from .coefficients import Series, exponential
from .operands import Matrix, Operands, check_finite, hermitian, operands, phase_of
from .polynomial import Polynomials, described
from .taylor import Taylor

# Ratio of a result's norm to the largest that it can have, from which a time is halved: the errors of a sum
# are relative to the largest.
LEAST_RATIO = 0.02
FEW_COLUMNS = 36  # columns of products up to which proven bounds cost no more than estimates save
TOGETHER = 16.0  # time times half width up to which results for several times have the same products
MOST_TOGETHER = 8  # times of these
MOST_BYTES = 1 << 27  # bytes of the states of several times that are computed together
FEW_ROWS = 8  # rows of a linear operator below which two random vectors say little about its structure
ONCE = np.ones(1)  # the time of a call without times
ROUNDING = 8.0  # eps of the last time: lengths of steps that differ by less have the same coefficients,
SAME = 1e-6  # unless that is a larger share of them


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
    steps = steps_to(times)
    span = sum(map(abs, steps))
    if X.n_cols == 0 or op.shape[0] == 0 or span == 0:
        blocks = [X.copy() for _ in steps]
        info = described("none", 0, 0, 0, 0.0, "nothing to compute: no columns, no rows, or no time")
    elif (found := recognised(given.A)) is not None:
        doubles = 2 if found.operator.dtype.kind == "f" and X.dtype.kind == "c" else 1
        bounds = bounds_for(found, span, X.n_cols * doubles)
        run = Exponential(found.operator, bounds, complex(found.factor))
        pairs = [pair for _, chunk in run.states(times, X) for pair in chunk]
        blocks = [scaled(*pair) for pair in pairs]
        info = run.polynomials.described(run.degree, run.error)
    else:
        trace = None if traceA is None else complex(traceA) / given.A.factor
        taylor, blocks = Taylor(given.A, trace, X), []
        for step in steps:
            X = taylor.apply(step, X)
            blocks.append(X)
        plan = f"Taylor polynomials of degree {taylor.degree} at most, A is no multiple of a Hermitian matrix"
        info = described("taylor", taylor.degree, taylor.steps, taylor.columns, None, plan)
    rows = [given.rows(_in_type(given, block)) for block in blocks]
    results: Any = rows
    if times is ONCE:
        results = given.share(rows[0])
    elif op.layout is None:
        results = array_namespace(rows[0]).empty((len(rows), *rows[0].shape), rows[0].dtype)
        for k, row in enumerate(rows):
            results[k] = row
        results = given.share(results)
    return (results, info) if return_info else results


def _times(start: Any, stop: Any, num: Any, endpoint: Any) -> RealArray:
    """Form the times of a call, or the time 1 alone."""
    if start is None and stop is None and num is None and endpoint is None:
        return ONCE
    first, last = (real(*end, "a finite number", math.isfinite) for end in (("start", start), ("stop", stop)))
    count = 50 if num is None else integer("num", num, 0)
    if count < 2:
        raise OptionError(f"num: got {num!r}; at least two time points are required.")
    return np.linspace(first, last, count, endpoint=endpoint is None or bool(endpoint))


def _in_type(given: Operands, block: BlockVector) -> BlockVector:
    """Convert a result to the type of a call."""
    kinds = given.A.operator.dtype.kind, given.B.dtype.kind
    is_real = kinds == ("f", "f") and not np.iscomplexobj(given.A.factor)  # of the type of A, as in SciPy
    if is_real and block.dtype.kind == "c":  # of a skew-symmetric matrix
        return BlockVector(block.array.real, copy=True, layout=block.layout)
    if not is_real and block.dtype.kind != "c":  # at t = 0
        return in_precision(block, np.result_type(block.dtype, np.complex64))
    return block


def recognised(matrix: Matrix) -> Matrix | None:
    """Return c and H, if a matrix is c H for a Hermitian H; None for others."""
    op = matrix.operator
    if op.is_hermitian:
        return matrix
    is_short = matrix.is_linear_operator and op.shape[0] < FEW_ROWS
    if is_short or (phase := phase_of(op)) is None:
        return None
    if phase == 1:
        op.is_hermitian = True
        return matrix
    return matrix.moved(1 / phase)


def bounds_for(matrix: Matrix, time: float, columns: int) -> SpectralBounds:
    """Bound the spectrum of H, by discs where few products follow; `time` is a total."""
    proven = gershgorin(matrix.entries)
    time *= abs(matrix.factor)
    if proven is not None and (time * proven.half_width + 10) * columns <= FEW_COLUMNS:
        return proven
    return estimated(matrix.operator, proven, FEW_STEPS)


class Exponential:
    """exp(c t H) X for several times t, by series of the largest `degree`.

    `error` bounds the error of all results so far, relative to their norms: the tails of the series are
    bounds, rounding errors are taken to be one unit per degree.
    """

    def __init__(self, H: Operator, bounds: SpectralBounds, c: complex) -> None:
        self.polynomials, self.c = Polynomials(H, bounds), c
        self.error, self.degree = 0.0, 0

    def unscaled(self, times: tuple[float, ...], X: BlockVector) -> tuple[list[BlockVector], list[complex]]:
        """Compute exp(c t H) X / exp(w) for every time; return the blocks and the numbers w."""
        if not any(times) or not X.n_cols or not X.n_global:
            return [X.copy() for _ in times], [0j] * len(times)
        unit = float(np.finfo(X.dtype).eps) / 2

        def series_of(bounds: SpectralBounds) -> list[Series]:
            return [exponential(self.c * t * bounds.half_width, unit / 2) for t in times]

        blocks, series = cast(Any, self.polynomials.sums(series_of, X))
        bounds, ratio = self.polynomials.bounds, 1.0
        largest = [abs((self.c * t).real) * bounds.half_width for t in times]
        if self.c.real and (norms := to_host(X.norms())).any():
            ratio = float((to_host(blocks[0].norms())[norms > 0] / norms[norms > 0]).min())
            if not ratio >= LEAST_RATIO and largest[0] > -math.log(LEAST_RATIO) / 2:
                halves = (times[0] / 2,)
                (middle,), (first,) = self.unscaled(halves, X)
                results, (second,) = self.unscaled(halves, middle)
                return results, [first + second]
        degree = max(len(one.coefficients) for one in series) - 1
        self.error += (max(one.tail for one in series) + unit * (1 + degree)) / max(ratio, unit)
        self.degree = max(self.degree, degree)
        return blocks, [self.c * t * bounds.centre + size for t, size in zip(times, largest, strict=True)]

    def states(
        self, ends: RealArray, X: BlockVector, begin: int = 0
    ) -> Iterator[tuple[int, list[tuple[BlockVector, complex]]]]:
        """Yield the states at times from number `begin` on: chunks of blocks times exp(weight).

        Each chunk begins with the number of its first state, and X is the block of the state before. The
        states of a chunk have the same products. Weights are imaginary, so that no rounding error of a factor
        is repeated; the last block is read again afterwards.
        """
        steps = steps_to(ends)
        fitting = max(1, MOST_BYTES // max(1, X.n_global * X.n_cols * X.dtype.itemsize))
        most = 1 if self.c.real else min(MOST_TOGETHER, fitting)
        while begin < len(steps):
            ahead = np.array(steps[begin : begin + most])
            sizes = np.cumsum(np.abs(self.c * ahead)) * self.polynomials.bounds.half_width
            times = tuple(np.cumsum(ahead)[: max(1, int(np.count_nonzero(sizes <= TOGETHER)))].tolist())
            blocks, weights = self.unscaled(times, X)
            if self.c.real:
                blocks, weights = [scaled(blocks[0], weights[0])], [0j]
            else:
                centre = self.polynomials.bounds.centre
                weights = [self.c * t * centre for t in ends[begin : begin + len(times)].tolist()]
            yield begin, list(zip(blocks, weights, strict=True))
            X, begin = blocks[-1], begin + len(times)


def scaled(block: BlockVector, weight: complex) -> BlockVector:
    """Multiply a block by exp(weight), in place unless it is real and the factor complex.

    Results that overflow are refused.
    """
    if weight.real > math.log(np.finfo(block.dtype).max):
        raise OptionError(
            f"exp(t A) B is up to exp({weight.real:.6g}) times B, which overflows; take a shorter time, or "
            "subtract a multiple of the identity from A."
        )
    if weight.imag and block.dtype.kind != "c":
        block = in_precision(block, np.result_type(block.dtype, np.complex64))
    factor = cmath.exp(weight)
    result = block.scale(factor if weight.imag else factor.real) if weight else block
    if weight.real > math.log(np.finfo(block.dtype).max) / 2:  # B may be large, too
        check_finite(result)
    return result


@together
def evolve(
    H: Any,
    psi0: Any,
    times: Iterable[float],
    *,
    progress: bool = False,
    checkpoint: Any = None,
    checkpoint_interval: float = 60.0,
    shape: tuple[int, int] | None = None,
    dtype: Any = None,
    device: str | None = None,
    like: Any = None,
    comm: Any = None,
) -> Iterator[tuple[float, Any]]:
    """Iterate over times t and states exp(-i t H) psi0, with one setup for all of them.

    Parameters
    ----------
    H : sparse matrix or array, dense array, LinearOperator, callable, or Operator, shape (n, n)
        Hermitian; as for `eigsh`.
    psi0 : array or BlockVector, shape (n,) or (n, b)
        One state or a block of states at t = 0.
    times : iterable of float
        In any order; each state follows from the one before. Equal steps share their coefficients, on a GPU
        also recorded launches.
    progress : bool
        Whether to show a progress bar, on stderr if that is a terminal, or in a notebook.
    checkpoint : path-like, optional
        File for the last state. If it exists, the iteration continues after the last state that it had
        returned, with the same bits as without an interruption. It is written every `checkpoint_interval`
        seconds, and when the iteration is left early in one process; deleted at the end.
    checkpoint_interval : float
        Seconds, as for `eigsh`.
    shape, dtype, device, like, comm
        As for `eigsh`; states as in `expm_multiply`.

    Yields
    ------
    t : float
    psi : array, complex, of the shape and the kind of psi0
        A new array for each time.

    Raises
    ------
    OptionError, ShapeError, DTypeError, DeviceError
        For invalid arguments, and an H that is not Hermitian, by the call itself.
    BreakdownError
        If H returns NaN or Inf.

    References
    ----------
    Tal-Ezer, Kosloff, J. Chem. Phys. 81 (1984) 3967.

    Examples
    --------
    A spin in a magnetic field turns over:

    >>> import numpy as np
    >>> from blockvec import evolve
    >>> H = np.array([[0.0, 0.5], [0.5, 0.0]])
    >>> for t, psi in evolve(H, np.array([1.0, 0.0]), [0, np.pi / 2, np.pi]):
    ...     print(f"{t:.2f}", (abs(psi) ** 2).round(6).tolist())
    0.00 [1.0, 0.0]
    1.57 [0.5, 0.5]
    3.14 [0.0, 1.0]
    """
    try:
        wanted = np.asarray(list(times), np.float64)
    except (TypeError, ValueError):
        raise OptionError(f"times: got {times!r:.60}; give real numbers.") from None
    if wanted.ndim != 1 or not np.isfinite(wanted).all():
        raise OptionError("times: holds NaN or Inf, or is no sequence of numbers; give finite ones.")
    given = operands(H, psi0, shape=shape, dtype=dtype, device=device, like=like, comm=comm)
    given = given._replace(A=hermitian(given.A, "H"))
    op, psi = given.A.operator, given.B
    span, doubles = float(np.abs(np.diff(wanted, prepend=0.0)).sum()), 1 + (psi.dtype.kind == "c")
    run = Exponential(op, bounds_for(given.A, span, psi.n_cols * doubles), -1j * given.A.factor)
    file = checkpoint_for(checkpoint, checkpoint_interval, processes_of(op, comm))
    saved = None
    if file is not None:
        file.problem = {
            "evolve": blockvec.__version__,
            "n": op.shape[0],
            "columns": psi.n_cols,
            "dtype": psi.dtype.name,
            "times": [len(wanted), zlib.crc32(wanted.tobytes())],
        }
        file.image, file.layout = np.array(to_host(op.apply(psi).array)), op.layout
        saved = file.load()
    is_shown = progress and (op.layout is None or op.layout.rank == 0)
    return _states(given, run, wanted, file, saved, is_shown=is_shown)


def _states(
    given: Operands, run: Exponential, times: RealArray, file: Any, saved: Any, *, is_shown: bool
) -> Iterator[tuple[float, Any]]:
    """Compute the states of all times that have not been returned."""
    polynomials, layout = run.polynomials, given.A.operator.layout
    state = given.B
    begin = returned = 0  # number of the first time after the state, and of all times returned
    if saved is not None:
        state = BlockVector(state.backend.xp.asarray(saved["basis"]), layout=layout)
        begin, returned = saved["where"]
        polynomials.bounds = SpectralBounds(*saved["bounds"])

    def snapshot() -> dict[str, Any]:
        bounds = polynomials.bounds
        return {
            "basis": np.array(to_host(state.array)),
            "where": [begin, returned],
            "bounds": [*bounds, bounds.is_proven, bounds.why],
        }

    with counted_bar("first time") if is_shown else nullcontext(lambda *progress: None) as show:
        try:
            for first, chunk in run.states(times, state, begin):
                for k in range(max(returned - first, 0), len(chunk)):
                    returned, t, (block, weight) = first + k + 1, float(times[first + k]), chunk[k]
                    psi = in_precision(block, np.result_type(block.dtype, np.complex64))
                    yield t, given.share(given.rows(scaled(psi, weight)))
                    show(returned, f"t = {t:.6g}", len(times))
                    if k + 1 == len(chunk):
                        state, begin = block, returned
                    if file is not None:
                        file.save(snapshot)
        except BaseException:
            if file is not None and layout is None and returned:
                file.save(snapshot, now=True)
            raise
    if file is not None:
        file.remove()


def steps_to(times: RealArray) -> list[float]:
    """Return the steps to times; those that differ by rounding errors only become their mean."""
    steps = np.diff(times, prepend=0.0)
    order = np.argsort(steps, kind="stable")
    slack = np.minimum(ROUNDING * np.finfo(float).eps * np.abs(times).max(initial=0), SAME * np.abs(steps))
    groups = np.cumsum(np.diff(steps[order], prepend=-np.inf) > slack[order])
    steps[order] = (np.bincount(groups, steps[order]) / np.maximum(np.bincount(groups), 1))[groups]
    return [float(step) for step in steps]
