"""Recorded steps of block MINRES: on a GPU one step is launched as one graph.

The scalars of a step are computed on the device, by the same functions (`tridiagonal`) as on the host, which
decides when to stop. That decision takes as long as a step, and the next step is launched meanwhile. A step
therefore begins with the updates of directions and solutions that belong to the step before, so that it can
be discarded: the Lanczos vector it computes is not read then. Three blocks rotate as Lanczos vectors and two
as directions, which gives six different steps to record.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockvec import Recorder, RowFunction, array_namespace, start_copy

from ..blocks import Array, Block, SystemOperator, project_out
from .systems import Projection
from .tridiagonal import Scalars, closing, opening

PHASES = 6


def recordings_for(
    operator: SystemOperator, B: Block, projection: Projection, known: Recordings | None = None
) -> Recordings | None:
    """Return the recordings for a solve, new ones on a GPU, or None if the steps cannot be recorded."""
    possible = getattr(bare_operator(operator), "is_recordable", False) and projection.preconditioner is None
    if not possible or getattr(B, "comm", None) is not None:
        return None
    return Recordings(B.device) if known is None and B.device != "cpu" else known


def bare_operator(operator: SystemOperator) -> SystemOperator:
    """Return the operator behind one that counts."""
    bare: SystemOperator = getattr(operator, "counted", operator)
    return bare


class Recordings:
    """Blocks and recorded steps for solves with one operator, reused from solve to solve."""

    def __init__(self, device: str) -> None:
        self.recorder = Recorder(device)
        self._steps: dict[tuple[int, str], Steps] = {}
        self._Q: Block | None = None
        self._kind: tuple[Any, ...] = ()  # shape and type of Q

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

    def steps(self, operator: SystemOperator, like: Block) -> Steps:
        """Return the steps for blocks of one width and type."""
        key = like.shape[1], like.dtype.name
        if key not in self._steps:
            self._steps[key] = Steps(bare_operator(operator), like, self._Q, self.recorder)
        return self._steps[key]


class Steps:
    """Steps of block MINRES on own blocks like `like`, with a recordable operator.

    `started` is the number of steps started, each with one product of the operator with a block.
    """

    def __init__(self, operator: SystemOperator, like: Block, Q: Block | None, recorder: Recorder) -> None:
        width, self._xp = like.shape[1], array_namespace(like.array)
        self._operator, self._Q, self._recorder = operator, Q, recorder
        self._three, self._two = [like.like() for _ in range(3)], [like.like() for _ in range(2)]
        self._X = like.like()
        real = like.array.real.dtype
        self._shift = self._xp.zeros(width, real)
        self._limits = self._xp.zeros(width)
        self._scalars = Scalars(
            *(self._xp.zeros(width, bool if name == "active" else float) for name in Scalars._fields)
        )
        self._rows = [self._xp.zeros(width, real) for _ in range(4)]  # factors of Z, W_old, W, and X
        self._kept, self._last = self._xp.zeros(width, bool), self._xp.zeros(width, real)
        self._factors = [self._xp.zeros(width, real) for _ in range(3)]  # of A u, u and u_old
        self._alpha, self._scale = self._xp.zeros(width), self._xp.zeros(width)
        self._logs = [self._xp.zeros((2, width)) for _ in range(2)]
        self._closing = _closing(float(np.finfo(like.dtype).eps) / 2)
        self.started = 0
        self._recorded: list[Callable[[], object]] = []
        self._turn = 0  # steps completed
        self._coming: list[Callable[[], Array]] = []  # copies of the results of started steps

    @property
    def blocks(self) -> tuple[Block, ...]:
        """U, U_old, P, W, W_old and X after the last completed step."""
        return self._roles(self._turn)

    def _roles(self, turn: int) -> tuple[Block, ...]:
        old, new, free = (self._three[(turn + i) % 3] for i in range(3))
        return new, old, free, self._two[(turn + 1) % 2], self._two[turn % 2], self._X

    def begin(self, blocks: tuple[Block, ...], shift: Array | int, limits: Array, scalars: Scalars) -> None:
        """Copy blocks and scalars of systems between two steps."""
        self._turn, self._coming = 0, []
        for target, source in zip(self.blocks, blocks, strict=True):
            target[:, :] = source
        self._shift[...] = shift  # zero, or on the device
        self._assign(self._limits, limits)
        for scalar, values in zip(self._scalars, scalars, strict=True):
            self._assign(scalar, values)
        for row, neutral in zip(self._rows, (0, 1, 0, 0), strict=True):
            self._assign(row, neutral)
        self._assign(self._kept, True)

    def keep(self, active: NDArray[np.bool_]) -> None:
        """Set the mask of active systems; solutions of the others remain unchanged after this step."""
        self._assign(self._kept, active)
        BOTH(self._scalars.active, self._kept, out=(self._scalars.active,))

    def _assign(self, row: Array, values: Any) -> None:
        """Copy one number or one per column from the host to a row on the device."""
        row[...] = self._xp.asarray(np.ascontiguousarray(np.broadcast_to(values, row.shape), row.dtype))

    def take(self) -> tuple[Array, Array]:
        """Complete a step; return u^H (A - sigma I) u and the new direction's squared length, on the host."""
        while len(self._coming) < 2:
            self._start(self._turn + len(self._coming))
        dots, squares = self._coming.pop(0)()
        self._turn += 1
        return dots, squares

    def _start(self, turn: int) -> None:
        self.started += 1
        phase, known = turn % PHASES, len(self._recorded)
        if phase < known:
            self._recorded[phase]()
        else:
            perform = functools.partial(self._perform, phase)
            if not known:
                perform()  # compiles the kernels of all phases
            self._recorded.append(self._recorder.record(perform))
            if known:
                self._recorded[phase]()
        self._coming.append(start_copy(self._logs[turn % 2]))

    def _perform(self, phase: int) -> None:
        U, U_old, P, W, W_old, X = self._roles(phase)
        z, oldest, w, x = self._rows
        W.axpby(z, U_old, oldest).axpy(w, W_old)
        SELECTED(self._kept, x, out=(self._last,))
        X.axpy(self._last, W)
        dots = self._operator.apply(U, out=P, shift=self._shift, dots="xy").dots["xy"].real
        log, alpha, scale = self._logs[phase % 2], self._alpha, self._scale
        OPENING(dots, *self._scalars, out=(log[0], alpha, scale, *self._factors))
        a, u, old = self._factors
        P.axpby(u, U, a).axpy(old, U_old)
        project_out(self._Q, P)  # after the recurrence, in which components along Q would grow
        squares = P.column_dot(P).real
        rows = alpha, scale, squares, self._limits, *self._scalars
        self._closing(*rows, out=(log[1], *self._rows, *self._scalars))


def _both(xp: Any, one: Any, other: Any) -> tuple[Any]:
    return (one & other,)


def _selected(xp: Any, mask: Any, values: Any) -> tuple[Any]:
    return (xp.where(mask, values, 0.0),)


def _opening(xp: Any, dots: Any, *scalars: Any) -> tuple[Any, ...]:
    alpha, scale, factors = opening(xp, dots, Scalars(*scalars))
    return dots, alpha, scale, *factors


BOTH, SELECTED, OPENING = map(RowFunction, (_both, _selected, _opening))


@functools.cache
def _closing(unit: float) -> RowFunction:
    """Make `closing` a function of rows, for a unit roundoff."""

    def closing_minres(
        xp: Any, alpha: Any, scale: Any, squares: Any, limits: Any, *scalars: Any
    ) -> tuple[Any, ...]:
        beta = xp.sqrt(xp.maximum(squares, 0.0))
        rotated = closing(xp, alpha, scale, beta, limits, unit, Scalars(*scalars))
        return squares, *rotated.factors, *rotated.scalars

    return RowFunction(closing_minres)
