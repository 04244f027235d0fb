"""The exponential of a matrix times a block: `expm_multiply`, and `evolve` for Schroedinger's equation."""

from __future__ import annotations

import cmath
import math
import zlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

import blockvec
from blockvec import BlockVector, array_namespace
from blockvec.errors import OptionError

from ..arguments import checkpoint_for, integer, real
from ..blocks import RealArray, in_precision, to_host
from ..runtime.processes import processes_of, together
from ..runtime.progress import counted_bar
from .bounds import FEW_STEPS, SpectralBounds, bounds_of
from .operands import Operands, check_finite, operands
from .series import Sums, exponential
from .taylor import Taylor

# Ratio of a result's norm to the largest that it can have, from which a time is halved: the errors of a sum
# are relative to the largest.
LEAST_RATIO = 0.02
TOGETHER = 16.0  # time times half width up to which results for several times have the same products
MOST_TOGETHER = 8  # times of these
MOST_BYTES = 1 << 27  # bytes of the states of several times that are computed together
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
    run = States(given, times, traceA=traceA)
    results: Any = [given.rows(block) for block in run]
    if times is ONCE:
        (results,) = results
    elif given.operator.layout is None:
        rows = results
        results = array_namespace(rows[0]).empty((len(rows), *rows[0].shape), rows[0].dtype)
        for k, row in enumerate(rows):
            results[k] = row
    results = given.share(results)
    return (results, run.work.described()) if return_info else results


def _times(start: Any, stop: Any, num: Any, endpoint: Any) -> RealArray:
    if start is None and stop is None and num is None and endpoint is None:
        return ONCE
    first, last = (real(*end) for end in (("start", start), ("stop", stop)))
    count = 50 if num is None else integer("num", num, 0)
    if count < 2:
        raise OptionError(f"num: got {num!r}; at least two time points are required.")
    return np.linspace(first, last, count, endpoint=endpoint is None or bool(endpoint))


class States:
    """exp(c t A) B at times t, one after the other, from a `state` that `begin` steps have led to."""

    def __init__(self, given: Operands, times: RealArray, c: complex = 1, traceA: Any = None) -> None:
        self._B, self._times, self.state, self.begin = given.B, times, given.B, 0
        kinds = given.operator.dtype.kind, given.B.dtype.kind
        # Results have the type of A, as in SciPy.
        self._is_real = kinds == ("f", "f") and not np.iscomplexobj(c * given.factor)
        found = given.recognised() if c == 1 else given  # which is Hermitian
        self.work: Any = Taylor(given, traceA) if found is None else Exponential(found, c)

    def __iter__(self) -> Iterator[BlockVector]:
        times, steps = self._times, steps_to(self._times)
        last = np.append(0.0, times)[:-1]
        # On the way back errors would grow: from B again.
        again = ((np.abs(times) < np.abs(last)) | (times * last < 0)) & (not self.work.is_unitary)
        steps[again] = times[again]
        while self.begin < len(times):
            begin = self.begin
            ahead = np.cumsum(steps[begin : begin + MOST_TOGETHER])
            blocks = self.work.after(ahead, self._B if again[begin] else self.state)
            for block, t in zip(blocks, times[begin:].tolist(), strict=False):
                block = block.copy() if block is blocks[-1] else block
                yield self._turned(block, self.work.rate * t)
            self.state, self.begin = blocks[-1], begin + len(blocks)

    def _turned(self, block: BlockVector, phase: complex) -> BlockVector:
        """Multiply a block by exp(phase), in place unless it is real; it may become real again."""
        if block.dtype.kind != "c" and (phase or not self._is_real):
            block = in_precision(block, np.result_type(block.dtype, np.complex64))
        if phase:
            block.scale(cmath.exp(phase))
        if self._is_real and block.dtype.kind == "c":
            return BlockVector(block.array.real, copy=True, layout=block.layout)
        return block


class Exponential(Sums):
    """exp(c t H) of a Hermitian matrix H, without a phase exp(`rate` t), which is that of the centre of H.

    Phases of all times are those from the time 0 on, so that no rounding error of a factor is repeated.
    """

    def __init__(self, given: Operands, c: complex) -> None:
        self._c = complex(c * given.factor)
        self.is_unitary = not self._c.real
        bounds = bounds_of(given._replace(factor=1.0), steps=FEW_STEPS)
        super().__init__(given.operator, bounds)

    @property
    def rate(self) -> complex:
        """The rate of a phase."""
        return complex(0, self._c.imag * self.bounds.centre)

    def after(self, times: RealArray, X: BlockVector) -> list[BlockVector]:
        """Compute states for as many of the times as the same products are best for; at least for one."""
        if not times.any() or not X.n_cols or not X.n_global:
            return [X.copy() for _ in times]
        c, unit, most = self._c, float(np.finfo(X.dtype).eps) / 2, 1
        if self.is_unitary:
            sizes = np.maximum.accumulate(np.abs(c * times)) * self.bounds.half_width
            fitting = MOST_BYTES // (X.n_global * X.n_cols * X.dtype.itemsize)
            most = max(1, min(fitting, int(np.count_nonzero(sizes <= TOGETHER))))
        zs = [c * t for t in times[:most].tolist()]
        blocks: list[BlockVector]
        blocks, error = self.of(lambda bounds: [exponential(z * bounds.half_width, unit / 2) for z in zs], X)
        if not self.is_unitary:
            norms, growth = to_host(X.norms()), zs[0].real
            largest = abs(growth) * self.bounds.half_width
            ratio = float((to_host(blocks[0].norms())[norms > 0] / norms[norms > 0]).min(initial=1.0))
            if not ratio >= LEAST_RATIO and largest > -math.log(LEAST_RATIO) / 2:
                return self.after(times[:1] / 2, *self.after(times[:1] / 2, X))
            exponent = growth * self.bounds.centre + largest
            if exponent > math.log(np.finfo(X.dtype).max):
                raise OptionError(
                    f"exp(t A) B is up to exp({exponent:.6g}) times B, which overflows; take a shorter time, "
                    "or subtract a multiple of the identity from A."
                )
            blocks[0].scale(math.exp(exponent))
            if exponent > 0:  # B may be large, too
                check_finite(blocks[0])
            error /= max(ratio, unit)
        self.error += error
        return blocks


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
    """Iterate over times t and states exp(-i t H) psi0, with one setup for all; see `expm_multiply`.

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
    given = operands(H, psi0, shape=shape, dtype=dtype, device=device, like=like, comm=comm).hermitian("H")
    op, psi = given.operator, given.B
    run = States(given, wanted, -1j)
    file, returned = checkpoint_for(checkpoint, checkpoint_interval, processes_of(op, comm)), 0
    if file is not None:
        problem = {"evolve": blockvec.__version__, "n": op.shape[0], "columns": psi.n_cols}
        checksum = [len(wanted), zlib.crc32(wanted.tobytes())]
        file.problem = problem | {"dtype": psi.dtype.name, "times": checksum}
        file.image, file.layout = np.array(to_host(op.apply(psi).array)), op.layout
        if (saved := file.load()) is not None:
            run.state = BlockVector(psi.backend.xp.asarray(saved["basis"]), layout=op.layout)
            (run.begin, returned), run.work.bounds = saved["where"], SpectralBounds(*saved["bounds"])
    return _yielded(given, run, wanted.tolist(), file, returned, is_shown=progress)


def _yielded(
    given: Operands, run: States, times: list[float], file: Any, returned: int, *, is_shown: bool
) -> Iterator[tuple[float, Any]]:
    """Compute the states of all times that have not been returned."""

    def snapshot() -> dict[str, Any]:
        bounds, basis = run.work.bounds, np.array(to_host(run.state.array))
        ends = [*bounds, bounds.is_proven, bounds.why]
        return {"basis": basis, "where": [run.begin, returned], "bounds": ends}

    layout = given.operator.layout
    is_shown = is_shown and (layout is None or layout.rank == 0)
    with counted_bar("first time") if is_shown else nullcontext(lambda *progress: None) as show:
        try:
            for number, block in enumerate(run, run.begin):
                if number < returned:
                    continue
                returned, t = number + 1, times[number]
                yield t, given.share(given.rows(block))
                show(returned, f"t = {t:.6g}", len(times))
                if file is not None:
                    file.save(snapshot)
        except BaseException:
            if file is not None and layout is None and returned:
                file.save(snapshot, now=True)
            raise
    if file is not None:
        file.remove()


def steps_to(times: RealArray) -> RealArray:
    """Return the steps to times; those that differ by rounding errors only become their mean."""
    steps = np.diff(times, prepend=0.0)
    order = np.argsort(steps, kind="stable")
    slack = np.minimum(ROUNDING * np.finfo(float).eps * np.abs(times).max(initial=0), SAME * np.abs(steps))
    groups = np.cumsum(np.diff(steps[order], prepend=-np.inf) > slack[order])
    steps[order] = (np.bincount(groups, steps[order]) / np.maximum(np.bincount(groups), 1))[groups]
    return steps
