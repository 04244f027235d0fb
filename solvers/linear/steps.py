"""Steps of block MINRES on the device of the blocks, called one by one or recorded as CUDA graphs.

The device computes the scalars of a step, and the host reads a copy of some to decide when to stop. That
decision takes as long as a step, and a recorded step is launched meanwhile. Recorded steps therefore begin
with the updates of directions and solutions that belong to the step before, so that one can be discarded: the
Lanczos vector and the scalars that it computes are not read then. Three blocks rotate as Lanczos vectors and
two as directions, which gives six different steps to record.

All scalars, whose names are those of Paige and Saunders' code, are rows with one element per column: their
functions take the array module, and are one kernel each on a GPU (`blockvec.RowFunction`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockvec import Recorder, RowFunction, array_namespace, start_copy

from ..blocks import Array, Block, Operator, project_out
from .systems import EXHAUSTED, SINGULAR, LinearSystems, Projection, inverse_where

PHASES = 6  # different steps, by the blocks that they work on
FACTORS = 0.0, 1.0, 0.0, 0.0  # of Z, the oldest direction, the last one, and the change of X: no update


class Scalars(NamedTuple):
    """The scalars passed from one step to the next; `active` is the mask of active systems."""

    beta: Array
    beta_old: Array
    norm: Array
    cs: Array
    sn: Array
    dbar: Array
    epsln: Array
    residuals: Array
    active: Array


class Log(NamedTuple):
    """Numbers of a step that the host reads.

    `alpha` and `beta` are the new elements of the tridiagonal matrix, before those of finished columns are
    set to zero. `inverse`, `old_eps` and `delta` are a column of its triangular factor: the inverse of the
    pivot, and the elements above it.
    """

    squares: Array  # of the length of the new direction
    residuals: Array
    singular: Array  # 1 where no further reduction is possible, otherwise 0
    ended: Array  # 1 where the direction or the residual is small enough
    alpha: Array
    beta: Array
    inverse: Array
    old_eps: Array
    delta: Array
    phi: Array  # X = X + phi W


def _opening(xp: Any, dots: Any, *scalars: Any) -> tuple[Any, ...]:
    """Compute the factors of A u, u and u_old in the new direction, from u^H (A - sigma I) u."""
    s = Scalars(*scalars)
    scale = inverse_where(xp, s.beta, s.active)  # of u and Z u, zero for finished columns
    return scale, -dots * scale**2 * scale, xp.where(s.active, -s.beta / s.beta_old, 0.0)


def _kept(xp: Any, mask: Any, active: Any, phi: Any) -> tuple[Any, ...]:
    """Set the mask of active systems and the factor of the next change of X."""
    return active & mask, xp.where(mask, phi, 0.0)


OPENING, KEPT = RowFunction(_opening), RowFunction(_kept)


@functools.cache
def closing(unit: float, final: float) -> RowFunction:
    """Make the function of the second half of a step, for a unit roundoff.

    Residuals r end a system if ||(A - sigma I) r|| is below `final` times the norms of both. It takes the
    squared length of the new direction, the residual norms to reach, u^H (A - sigma I) u, and the scalars; it
    returns the rows of the log, the factors in W = f0 Z + f1 W_old_old + f2 W_old and X = X + f3 W, and the
    scalars for the next step.
    """

    def closing_minres(xp: Any, squares: Any, limits: Any, dots: Any, *scalars: Any) -> tuple[Any, ...]:
        s, length = Scalars(*scalars), xp.sqrt(xp.maximum(squares, 0.0))
        scale = inverse_where(xp, s.beta, s.active)
        alpha = dots * scale**2
        # A lower bound of the norm of the tridiagonal matrix, zero before the first step, is the scale of its
        # rounding errors. The first beta is no element of the matrix.
        known = xp.where(s.norm > 0, s.beta, 0.0)
        norm = xp.maximum(s.norm, xp.sqrt(alpha**2 + length**2 + known**2))
        delta = s.cs * s.dbar + s.sn * alpha
        gbar = s.sn * s.dbar - s.cs * alpha
        epsln, dbar = s.sn * length, -s.cs * length
        zero = SINGULAR * unit * norm
        gamma = xp.sqrt(gbar**2 + length**2)
        # ||(A - sigma I) r|| = ||r|| (gbar^2 + dbar^2)^(1/2): if it vanishes, r cannot be reduced further.
        singular = (xp.sqrt(gbar**2 + dbar**2) <= final * norm) | (gamma <= zero)
        active = s.active & ~singular
        inverse = inverse_where(xp, gamma, active)
        cs, sn = gbar * inverse, length * inverse
        phi = xp.where(active, cs * s.residuals, 0.0)
        residuals = xp.where(active, xp.abs(sn) * s.residuals, s.residuals)
        beta_old = xp.where(s.beta > 0, s.beta, 1.0)
        beta = xp.where(active, length, 0.0)
        ended = (beta <= EXHAUSTED * unit * norm) | (residuals <= limits)
        masks = xp.where(singular, 1.0, 0.0), xp.where(ended, 1.0, 0.0)
        later = Scalars(beta, beta_old, norm, cs, sn, dbar, epsln, residuals, active & ~ended)
        factors = scale * inverse, -s.epsln * inverse, -delta * inverse, phi
        log = Log(squares, residuals, *masks, alpha, length, inverse, s.epsln, delta, phi)
        return *log, *factors, *later

    return RowFunction(closing_minres)


class Steps:
    """Steps of block MINRES for blocks of one width; `begin` sets what they start from.

    Those with a recorder need an operator that is recordable, no preconditioner, and a block Q of their own
    in whose complement they stay. `final` is that of `closing`.
    """

    def __init__(
        self,
        operator: Operator,
        like: Block,
        projection: Projection,
        recorder: Recorder | None = None,
        Q: Block | None = None,
        final: float | None = None,
    ) -> None:
        width, real, unit = like.shape[1], like.array.real.dtype, float(np.finfo(like.dtype).eps) / 2
        xp = self._xp = array_namespace(like.array)
        self._operator, self._projection, self._recorder = operator, projection, recorder
        self.Q = projection.Q if recorder is None else Q
        self._three = [like.like() for _ in range(3)]  # U_old, U and the next one, in turn
        self._two = [like.like() for _ in range(2)]  # directions
        self.X = like.like()
        self._Z: list[Any] = [None, None]  # K^-1 U of this step and the next one, in turn
        self._shift: Any = xp.zeros(width, real)
        self._limits = xp.zeros(width)
        # Those before and after a step, as the one before may be needed again.
        kinds = [bool if name == "active" else float for name in Scalars._fields]
        self._scalars = [Scalars(*(xp.zeros(width, kind) for kind in kinds)) for _ in range(2)]
        self._lanczos = [xp.zeros(width, real) for _ in range(3)]  # factors of A u, u and u_old
        self._factors = [xp.zeros(width, real) for _ in FACTORS]
        self._logs = [xp.zeros((len(Log._fields), width)) for _ in range(2)]
        self._closing = closing(unit, SINGULAR * unit if final is None else final)
        self._recorded: list[Callable[[], object]] = []

    def begin(self, systems: LinearSystems, Z: Block | None) -> None:
        """Start from residuals U = B, with Z = K^-1 U for a preconditioner, at X = 0."""
        initial, shift = systems.initial, systems.shift
        scalars = initial, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0, initial, systems.active  # in order of `Scalars`
        self.started = self.completed = 0
        self._coming: list[Callable[[], Array]] = []  # copies of the logs of started steps
        for block in (self._three[0], *self._two, self.X):
            block[:, :] = 0
        self._three[1][:, :] = systems.B
        self._Z[0] = Z
        rows = (self._limits, *self._scalars[0], *self._factors)
        for row, values in zip(rows, (systems.limits, *scalars, *FACTORS), strict=True):
            row[...] = self._xp.asarray(np.full(row.shape, values, row.dtype))
        if self._recorder is not None or shift.any():
            self._shift[...] = self._xp.asarray(shift)
        else:
            self._shift = 0

    def keep(self, active: NDArray[np.bool_]) -> None:
        """Finish the systems outside of a mask: their solutions remain as they are after this step."""
        now = self._scalars[self.started % 2].active, self._factors[3]
        KEPT(self._xp.asarray(active), *now, out=now)

    def take(self) -> Array:
        """Complete a step; return the rows of its `Log` on the host."""
        while self.started <= self.completed + (self._recorder is not None):
            t = self.started
            if self._recorder is None:
                self._extend(t)
            else:
                self._repeat(t % PHASES, self._recorder)
            self._coming.append(start_copy(self._logs[t % 2]))
            if self._recorder is None:
                self._update(t)
            self.started += 1
        self.completed += 1
        return self._coming.pop(0)()

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

    def _preconditioned(self, t: int) -> Block:
        """Return K^-1 U of step t."""
        Z: Block | None = self._Z[t % 2]
        return self._three[(t + 1) % 3] if Z is None else Z

    def _update(self, t: int) -> None:
        """Set the direction W = f0 Z + f1 W_old_old + f2 W_old of step t, and X = X + f3 W."""
        z, oldest, old, x = self._factors
        W = self._two[t % 2].axpby(z, self._preconditioned(t), oldest)
        self.X.axpy(x, W.axpy(old, self._two[(t + 1) % 2]))

    def _extend(self, t: int) -> None:
        """Compute the next Lanczos vector P with K^-1 P, and the factors and the log of step t."""
        old, U, P = (self._three[(t + i) % 3] for i in range(3))
        now, later, log = self._scalars[t % 2], self._scalars[(t + 1) % 2], self._logs[t % 2]
        Z = self._preconditioned(t)
        product: Any = self._operator.apply(Z, out=P, shift=self._shift, dots="xy")
        dots = product.dots["xy"].real
        OPENING(dots, *now, out=self._lanczos)
        a, u, u_old = self._lanczos
        P.axpby(u, U, a).axpy(u_old, old)
        project_out(self.Q, P)  # after the recurrence, in which components along Q would grow
        if Z is U:
            squares = P.column_dot(P).real
        else:
            Y = self._Z[(t + 1) % 2] = self._projection.precondition(P)
            squares = self._xp.asarray(self._projection.squares(P, Y))
            now.active[...] &= ~(squares < 0)
        self._closing(squares, self._limits, dots, *now, out=(*log, *self._factors, *later))


class Recordings:
    """Recorded steps for solves with one operator, reused from solve to solve."""

    def __init__(self, device: str) -> None:
        self.recorder = Recorder(device)
        self._steps: dict[tuple[int, str], Steps] = {}
        self._kind: tuple[Any, ...] = ()  # shape and type of Q

    def steps(self, operator: Operator, U: Block, Q: Block | None) -> Steps:
        """Return the steps for blocks like U in the complement of Q, inside the context of the recorder."""
        kind = () if Q is None else (Q.shape, Q.dtype)
        if kind != self._kind:
            self._steps.clear()  # they project against an old block
            self._kind = kind
        key = U.shape[1], U.dtype.name
        if key not in self._steps:
            own = None if Q is None else Q.like()
            # Without the projection of this solve, which they outlive.
            self._steps[key] = Steps(operator, U, Projection(None), self.recorder, own)
        steps = self._steps[key]
        if steps.Q is not None and Q is not None:
            steps.Q[:, :] = Q
        return steps
