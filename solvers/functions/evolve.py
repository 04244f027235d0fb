"""`evolve`: solutions of Schroedinger's equation at given times, one after the other.

The state is kept without the phase of the middle of the spectrum, which each state that is returned is
multiplied by: then no rounding error of a factor is repeated in every step, and norms stay.
"""

from __future__ import annotations

import cmath
import zlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

import blockvec
from blockvec import BlockVector
from blockvec.errors import OptionError

from ..arguments import checkpoint_for
from ..blocks import in_precision, to_host
from ..runtime.checkpoint import Checkpoint
from ..runtime.processes import processes_of, together
from ..runtime.progress import counted_bar
from .bounds import SpectralBounds
from .exponential import Exponential, bounds_for
from .operands import Operands, operands, with_real_factor

ROUNDING = 8.0  # in units of eps of the time: steps that differ by less have the same coefficients
MOST_STEPS = 16  # of different lengths, whose coefficients are looked for


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
    given = given._replace(A=with_real_factor(given.A, "H"))
    op = given.A.operator
    if op.shape[0] and not op.is_hermitian:
        op.check_hermitian(name="H")
    steps = np.diff(wanted, prepend=0.0)
    file = checkpoint_for(checkpoint, checkpoint_interval, processes_of(op, comm))
    scale = abs(given.A.factor) * float(np.abs(steps).sum())
    bounds = bounds_for(op, given.A.entries, scale, given.B.n_cols * (1 + (given.B.dtype.kind == "c")))
    run = _Evolution(given, bounds, wanted.tolist(), file)
    return run.states(is_shown=progress and (op.layout is None or op.layout.rank == 0))


class _Evolution:
    """The state of an evolution between two times."""

    def __init__(
        self, given: Operands, bounds: SpectralBounds, times: list[float], file: Checkpoint | None
    ) -> None:
        self._given, self._times, self._file = given, times, file
        op = given.A.operator
        self._exponential = Exponential(op, bounds, -1j * complex(given.A.factor).real)
        self._state = given.B  # without the phase
        self._now = self._phase = 0.0  # time and angle of the state
        self._begin = self._returned = (
            0  # number of the first time after the state, and of all times returned
        )
        self._deltas: list[tuple[float, ...]] = []
        if file is None:
            return
        file.problem = {
            "evolve": blockvec.__version__,
            "n": op.shape[0],
            "columns": given.B.n_cols,
            "dtype": given.B.dtype.name,
            "times": [len(times), zlib.crc32(np.array(times).tobytes())],
        }
        file.image, file.layout = np.array(to_host(op.apply(given.B).array)), op.layout
        saved = file.load()
        if saved is not None:
            rows = given.B.backend.xp.asarray(saved["basis"])
            self._state = BlockVector(rows, layout=op.layout)
            self._now, self._phase, self._begin, self._returned = saved["where"]
            self._deltas = [tuple(steps) for steps in saved["steps"]]
            low, high, is_proven, why = saved["bounds"]
            self._exponential.polynomials.bounds = SpectralBounds(low, high, is_proven, why)

    def states(self, *, is_shown: bool) -> Iterator[tuple[float, Any]]:
        """Compute the states of all times that have not been returned."""
        total = len(self._times)
        is_alone = self._given.A.operator.layout is None
        with counted_bar("first time") if is_shown else nullcontext(lambda *state: None) as show:
            try:
                while self._begin < total:
                    yield from self._group(show, total)
            except BaseException:
                if self._file is not None and is_alone and self._returned:
                    self._file.save(self._snapshot, now=True)
                raise
        if self._file is not None:
            self._file.remove()

    def _group(self, show: Any, total: int) -> Iterator[tuple[float, Any]]:
        """Compute the states of one time, or of several short steps together, and return them."""
        exponential, begin = self._exponential, self._begin
        count = exponential.together(self._times[begin] - self._now, self._state)
        ahead = self._times[begin : begin + count]
        deltas = self._steps(ahead)
        blocks, weights = exponential.unscaled(deltas, self._state)
        phases = [self._phase + weight.imag for weight in weights]
        for k, t in enumerate(ahead):
            if begin + k < self._returned:  # before an interruption
                continue
            (rows,) = self._given.rows([_turned(blocks[k], phases[k])])
            self._returned = begin + k + 1
            yield t, rows if self._given.A.operator.layout is not None else self._given.share(rows)
            show(self._returned, f"t = {t:.6g}", total)
            if self._file is not None and k + 1 < len(ahead):
                self._file.save(self._snapshot)
        self._state, self._phase = blocks[-1], phases[-1] % (2 * np.pi)
        self._now, self._begin = self._now + deltas[-1], begin + len(ahead)
        if self._file is not None:
            self._file.save(self._snapshot)

    def _steps(self, ahead: list[float]) -> tuple[float, ...]:
        """Return the steps to times; those of an earlier group if they differ by rounding errors only."""
        deltas = tuple(t - self._now for t in ahead)
        slack = ROUNDING * np.finfo(np.float64).eps * max(abs(self._now), *map(abs, ahead))
        for known in self._deltas:
            if len(known) == len(deltas) and np.abs(np.subtract(known, deltas)).max() <= slack:
                return known
        self._deltas = [deltas, *self._deltas[: MOST_STEPS - 1]]
        return deltas

    def _snapshot(self) -> dict[str, Any]:
        bounds = self._exponential.polynomials.bounds
        return {
            "basis": np.array(to_host(self._state.array)),
            "steps": self._deltas,
            "where": [self._now, self._phase, self._begin, self._returned],
            "bounds": [*bounds, bounds.is_proven, bounds.why],
        }


def _turned(block: BlockVector, phase: float) -> BlockVector:
    """Copy a block, times a phase, in a complex type."""
    copied = in_precision(block, np.result_type(block.dtype, np.complex64))
    return copied.scale(cmath.exp(1j * phase)) if phase else copied
