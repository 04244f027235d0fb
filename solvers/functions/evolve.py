"""`evolve`: solutions of Schroedinger's equation at given times, one after the other."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

import blockvec
from blockvec import BlockVector
from blockvec.errors import OptionError

from ..arguments import checkpoint_for
from ..blocks import RealArray, in_precision, to_host
from ..runtime.processes import processes_of, together
from ..runtime.progress import counted_bar
from .bounds import SpectralBounds
from .expm import Exponential, bounds_for, scaled
from .operands import Operands, hermitian, operands

ROUNDING = 8.0  # eps of the last time: lengths of steps that differ by less have the same coefficients,
SAME = 1e-6  # unless that is a larger share of them


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
    exponential = Exponential(op, bounds_for(given.A, span, psi.n_cols * doubles), -1j * given.A.factor)
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
    return _states(given, exponential, wanted, file, saved, is_shown=is_shown)


def _states(
    given: Operands, exponential: Exponential, times: RealArray, file: Any, saved: Any, *, is_shown: bool
) -> Iterator[tuple[float, Any]]:
    """Compute the states of all times that have not been returned."""
    polynomials, layout = exponential.polynomials, given.A.operator.layout
    state, phase = given.B, 0.0  # which it is not yet multiplied by
    begin = returned = 0  # number of the first time after the state, and of all times returned
    if saved is not None:
        state = BlockVector(state.backend.xp.asarray(saved["basis"]), layout=layout)
        phase, begin, returned = saved["where"]
        polynomials.bounds = SpectralBounds(*saved["bounds"])

    def snapshot() -> dict[str, Any]:
        bounds = polynomials.bounds
        return {
            "basis": np.array(to_host(state.array)),
            "where": [phase, begin, returned],
            "bounds": [*bounds, bounds.is_proven, bounds.why],
        }

    with counted_bar("first time") if is_shown else nullcontext(lambda *progress: None) as show:
        try:
            for first, chunk in exponential.states(_steps(times), state, begin, 1j * phase):
                for k in range(max(returned - first, 0), len(chunk)):
                    returned, t, (block, weight) = first + k + 1, float(times[first + k]), chunk[k]
                    psi = in_precision(block, np.result_type(block.dtype, np.complex64))
                    yield t, given.share(given.rows(scaled(psi, weight)))
                    show(returned, f"t = {t:.6g}", len(times))
                    if file is not None and k + 1 < len(chunk):
                        file.save(snapshot)
                (state, weight), begin = chunk[-1], first + len(chunk)
                phase = weight.imag
                if file is not None:
                    file.save(snapshot)
        except BaseException:
            if file is not None and layout is None and returned:
                file.save(snapshot, now=True)
            raise
    if file is not None:
        file.remove()


def _steps(times: RealArray) -> list[float]:
    """Return the steps to times; those that differ by rounding errors only become their mean."""
    steps = np.diff(times, prepend=0.0)
    order = np.argsort(steps, kind="stable")
    slack = np.minimum(ROUNDING * np.finfo(float).eps * np.abs(times).max(initial=0), SAME * np.abs(steps))
    groups = np.cumsum(np.diff(steps[order], prepend=-np.inf) > slack[order])
    steps[order] = (np.bincount(groups, steps[order]) / np.maximum(np.bincount(groups), 1))[groups]
    return [float(step) for step in steps]
