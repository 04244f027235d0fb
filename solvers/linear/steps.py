"""Steps of block MINRES on the device of the blocks, called one by one or recorded as CUDA graphs.

The device computes the scalars of a step, and the host reads a copy of some to decide when to stop. That
decision takes as long as a step, and a recorded step is launched meanwhile. Recorded steps therefore begin
with the updates of directions and solutions that belong to the step before, so that one can be discarded: the
Lanczos vector and the scalars that it computes are not read then. Three blocks rotate as Lanczos vectors and
two as directions, which gives six different steps to record.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from blockvec import Recorder, array_namespace, start_copy

from ..blocks import Array, Block, RealArray, SystemOperator, pick, project_out, to_host
from .systems import SINGULAR, Projection
from .tridiagonal import KEPT, OPENING, Log, Scalars, closing

PHASES = 6  # different steps, by the blocks that they work on
FACTORS = 0.0, 1.0, 0.0, 0.0  # of Z, the oldest direction, the last one, and the change of X: no update


class State(NamedTuple):
    """The columns of a block of systems between two steps."""

    blocks: Sequence[Block]  # U, U_old, W, W_old and X
    Z: Block | None  # K^-1 U
    scalars: Scalars

    def picked(self, columns: NDArray[np.intp]) -> State:
        """Copy some columns, those of active systems."""
        rows = Scalars(*(to_host(row)[columns] for row in self.scalars))
        rows = rows._replace(active=np.ones(len(columns), bool))
        Z = None if self.Z is None else pick(self.Z, columns)
        return State([pick(block, columns) for block in self.blocks], Z, rows)


class Steps:
    """Steps of block MINRES from a state, whose blocks they overwrite.

    `shift` is zero or an array on the device, `limits` are residual norms to reach, and `final` is that of
    `closing`. A recorder needs an operator that is recordable, no preconditioner, and the block Q in whose
    complement the steps stay.
    """

    def __init__(
        self,
        operator: SystemOperator,
        state: State,
        shift: Array | int,
        limits: RealArray,
        projection: Projection,
        recorder: Recorder | None = None,
        Q: Block | None = None,
        final: float | None = None,
    ) -> None:
        U, U_old, W, W_old, self.X = state.blocks
        width = U.shape[1]
        xp = self._xp = array_namespace(U.array)
        self._operator, self._shift, self._projection = operator, shift, projection
        self._recorder, self._Q = recorder, projection.Q if recorder is None else Q
        self._three, self._two, self._Z = [U_old, U, U.like()], [W_old, W], state.Z
        self._limits = xp.asarray(limits)
        # Those before and after a step, as the one before may be needed again.
        self._scalars = [Scalars(*(_row(xp, row) for row in state.scalars)) for _ in range(2)]
        real = U.array.real.dtype
        self._opened = [xp.zeros(width), xp.zeros(width)]  # alpha and the scale of u
        self._lanczos = [xp.zeros(width, real) for _ in range(3)]  # factors of A u, u and u_old
        self._factors = [_row(xp, np.full(width, factor, real)) for factor in FACTORS]
        self._logs = [xp.zeros((len(Log._fields), width)) for _ in range(2)]
        unit = float(np.finfo(U.dtype).eps) / 2
        self._closing = closing(unit, SINGULAR * unit if final is None else final)
        self.started = self.completed = 0
        self._recorded: list[Callable[[], object]] = []
        self._coming: list[Callable[[], Array]] = []  # copies of the logs of started steps

    @property
    def state(self) -> State:
        """The state after the last completed step."""
        t = self.completed
        lanczos = self._three[(t + 1) % 3], self._three[t % 3]
        blocks = *lanczos, self._two[(t + 1) % 2], self._two[t % 2], self.X
        return State(blocks, self._Z, self._scalars[t % 2])

    def restart(self, state: State, shift: Array | int, limits: RealArray) -> None:
        """Copy the state of other systems."""
        self.started = self.completed = 0
        self._coming.clear()
        for target, source in zip(self.state.blocks, state.blocks, strict=True):
            target[:, :] = source
        self._shift[...] = shift  # type: ignore[index]  # an array of recorded steps
        rows = (self._limits, *self._scalars[0], *self._factors)
        given: tuple[Any, ...] = (limits, *state.scalars, *FACTORS)
        for row, values in zip(rows, given, strict=True):
            row[...] = _row(self._xp, np.broadcast_to(to_host(values), row.shape), row.dtype)

    def keep(self, active: NDArray[np.bool_]) -> None:
        """Finish the systems outside of a mask: their solutions remain as they are after this step."""
        now = self._scalars[self.started % 2].active, self._factors[3]
        KEPT(self._xp.asarray(active), *now, out=now)

    def take(self) -> Array:
        """Complete a step; return the rows of its `Log` on the host."""
        while self.started <= self.completed + (self._recorder is not None):
            self._start(self.started)
            self.started += 1
        self.completed += 1
        return self._coming.pop(0)()

    def _start(self, t: int) -> None:
        if self._recorder is not None:
            self._repeat(t % PHASES, self._recorder)
            self._coming.append(start_copy(self._logs[t % 2]))
            return
        Z = self._extend(t)
        self._coming.append(start_copy(self._logs[t % 2]))
        self._update(t)
        self._Z = Z

    def _repeat(self, phase: int, recorder: Recorder) -> None:
        """Replay a step, or record it."""
        if phase == len(self._recorded):
            perform = functools.partial(self._perform, phase)
            if phase == 0:
                perform()  # compiles the kernels of all phases
            self._recorded.append(recorder.record(perform))
            if phase == 0:
                return
        self._recorded[phase]()

    def _perform(self, phase: int) -> None:
        self._update(phase - 1)
        self._extend(phase)

    def _update(self, t: int) -> None:
        """Set the direction W = f0 Z + f1 W_old_old + f2 W_old of step t, and X = X + f3 W."""
        z, oldest, old, x = self._factors
        W = self._two[t % 2].axpby(z, self._three[(t + 1) % 3] if self._Z is None else self._Z, oldest)
        self.X.axpy(x, W.axpy(old, self._two[(t + 1) % 2]))

    def _extend(self, t: int) -> Block | None:
        """Compute the next Lanczos vector P, and the factors and the log of step t; return K^-1 P."""
        old, U, P = (self._three[(t + i) % 3] for i in range(3))
        now, later, log = self._scalars[t % 2], self._scalars[(t + 1) % 2], self._logs[t % 2]
        Z = U if self._Z is None else self._Z
        dots = self._operator.apply(Z, out=P, shift=self._shift, dots="xy").dots["xy"].real
        OPENING(dots, *now, out=(*self._opened, *self._lanczos))
        a, u, u_old = self._lanczos
        P.axpby(u, U, a).axpy(u_old, old)
        project_out(self._Q, P)  # after the recurrence, in which components along Q would grow
        Y = self._projection.precondition(P)
        squares = P.column_dot(Y).real
        if self._Z is not None:
            squares = self._checked(P, Y, squares, now)
        rows = *self._opened, squares, self._limits, dots, *now
        self._closing(*rows, out=(*log, *self._factors, *later))
        return None if self._Z is None else Y

    def _checked(self, P: Block, Y: Block, squares: Array, now: Scalars) -> Array:
        """Return squared lengths, -1 for systems that end as the preconditioner is indefinite."""
        is_definite = self._xp.asarray(self._projection.is_definite(P, Y, squares))
        now.active[...] &= is_definite
        checked: Array = self._xp.where(is_definite, self._xp.maximum(squares, 0.0), -1.0)
        return checked


def _row(xp: Any, values: Any, dtype: Any = None) -> Array:
    """Copy numbers to a new row on a device, without a kernel of the array library."""
    return cast(Array, xp.asarray(np.array(to_host(values), dtype, order="C")))


class Recordings:
    """Recorded steps for solves with one operator, reused from solve to solve."""

    def __init__(self, device: str) -> None:
        self.recorder = Recorder(device)
        self._steps: dict[tuple[int, str], Steps] = {}
        self._Q: Block | None = None
        self._kind: tuple[Any, ...] = ()  # shape and type of Q

    @classmethod
    def for_solve(
        cls, operator: SystemOperator, B: Block, projection: Projection, known: Recordings | None = None
    ) -> Recordings | None:
        """Return the recordings for a solve, new ones on a GPU, or None if the steps cannot be recorded."""
        is_possible = getattr(operator, "is_recordable", False) and projection.preconditioner is None
        if not is_possible or getattr(B, "comm", None) is not None:
            return None
        return cls(B.device) if known is None and B.device != "cpu" else known

    @contextlib.contextmanager
    def opened(self, Q: Block | None) -> Iterator[None]:
        """Record and replay steps in the complement of Q inside the ``with`` block."""
        with self.recorder:
            kind = () if Q is None else (Q.shape, Q.dtype)
            if kind != self._kind:
                self._steps.clear()  # they project against the old block
                self._kind, self._Q = kind, None if Q is None else Q.like()
            if self._Q is not None and Q is not None:
                self._Q[:, :] = Q
            yield

    def steps(
        self, operator: SystemOperator, state: State, shift: Array | int, limits: RealArray, P: Projection
    ) -> Steps:
        """Return the steps for blocks of one width and type, from a state; see `Steps`.

        The projection P is that of a solve, and has no preconditioner: steps that outlive it do without.
        """
        U = state.blocks[0]
        key = U.shape[1], U.dtype.name
        if key not in self._steps:
            own = array_namespace(U.array).zeros(U.shape[1], U.array.real.dtype)
            copies = state._replace(blocks=[block.copy() for block in state.blocks])
            self._steps[key] = Steps(operator, copies, own, limits, Projection(None), self.recorder, self._Q)
        self._steps[key].restart(state, shift, limits)
        return self._steps[key]
