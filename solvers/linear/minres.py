"""Block MINRES: one shifted Hermitian system per column, solved simultaneously.

Every column has its own Krylov space and takes the same steps as if it were solved alone. The columns share
one product of the operator with the whole block, with one shift per column, and one reduction. Finished
columns become zero.

The device computes the scalars of a step, and the host reads a copy of some to decide when to stop. That
decision takes as long as a step, and a step that is recorded as a CUDA graph is launched meanwhile. Recorded
steps therefore begin with the updates of directions and solutions that belong to the step before, so that one
can be discarded: the Lanczos vector and the scalars that it computes are not read then. Three blocks rotate
as Lanczos vectors and two as directions, which gives six different steps to record.

All scalars, whose names are those of Paige and Saunders' code, are rows with one element per column: their
functions take the array module, and are one kernel each on a GPU (`blockvec.RowFunction`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blockvec import Recorder, RowFunction, array_namespace, start_copy
from blockvec.errors import OptionError

from ..blocks import Array, Block, Operator, project_out
from ..runtime.processes import everywhere
from .calls import takes_arrays
from .systems import (
    EXHAUSTED,
    SINGULAR,
    Linear,
    LinearSystems,
    Preconditioner,
    Progress,
    Projection,
    finite,
    inverse_where,
    lengths_of,
)

Stop = Callable[[Progress], NDArray[np.bool_]]
PHASES = 6  # different steps, by the blocks that they work on
FACTORS = 0.0, 1.0, 0.0, 0.0  # of Z, the oldest direction, the last one, and the change of X: no update


@takes_arrays
def block_minres(
    A: Any,
    B: Any,
    *,
    shift: Any = 0.0,
    tol: Any = 1e-8,
    maxiter: int | None = None,
    preconditioner: Preconditioner | None = None,
    Q: Block | Projection | None = None,
    stop: Stop | None = None,
    with_first: bool = False,
    recordings: Recordings | None = None,
    final: float | None = None,
) -> Linear:
    """Solve (A - sigma_j I) x_j = b_j for Hermitian A, one real shift per column, by MINRES.

    Parameters
    ----------
    A : matrix, array, LinearOperator or Operator, shape (n, n)
        Hermitian; A - sigma I may be indefinite or singular.
    B : BlockVector or array, shape (n, b), or an array of shape (n,)
        Of an array, solutions are an array of the same kind; `Q` and the preconditioner are those of arrays.
    shift : float or array, shape (b,)
    tol : float or array, shape (b,)
        Residual norms to reach, relative to those of B.
    maxiter : int, optional
        Maximum number of steps; default n.
    preconditioner : callable, optional
        Maps a block to a new block: K^-1, Hermitian and positive definite. With an array B a function of
        arrays, or a matrix.
    Q : BlockVector, shape (n, q), or Projection, optional
        Orthonormal columns: solve in their complement. A `Projection` has its own preconditioner.
    stop : callable, optional
        Called after every step with a `Progress`; returns a mask of the systems to stop.
    with_first : bool, default False
        Whether all columns stop as soon as one has.
    recordings : Recordings, optional
        Steps recorded in earlier solves with the same operator, to be reused. By default steps are recorded
        on a GPU if that is possible: for sparse matrices without a preconditioner.
    final : float, optional
        End a system as "singular" once ||(A - sigma I) r|| is at most that times ||A - sigma I|| ||r||.
        Default: what rounding errors leave. Steps are not recorded with it.

    Returns
    -------
    Linear

    Raises
    ------
    ShapeError, OptionError
        For blocks, shifts or tolerances that do not fit, and complex shifts.
    BreakdownError
        If the operator or the preconditioner returns NaN or Inf.

    References
    ----------
    Paige, Saunders, SIAM J. Numer. Anal. 12 (1975) 617; Choi, Paige, Saunders, SIAM J. Sci. Comput. 33
    (2011) 1810 (termination for singular systems); Sleijpen, van der Vorst, SIAM J. Matrix Anal. Appl.
    17 (1996) 401, section 4 (the projections).

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import BlockVector, models
    >>> from solvers import block_minres
    >>> A = models.model("laplace1d:n=50")
    >>> B = BlockVector.random(50, 2, rng=0)
    >>> solved = block_minres(A, B, shift=[0.0, 1.3], tol=1e-10)
    >>> solved.reasons
    ('converged', 'converged')
    >>> R = B.array - A @ solved.X.array + solved.X.array * [0.0, 1.3]
    >>> bool(np.all(np.linalg.norm(R, axis=0) < 1e-9))
    True
    """
    systems = _Minres(A, B, shift, tol, maxiter, with_first, Q, preconditioner)
    return systems.run(stop, recordings, final)


class _Minres(LinearSystems):
    """Lanczos in the K^-1 norm with vectors U and Z = K^-1 U, and Givens rotations per column.

    U and Z are not normalised, u^H K^-1 u is beta^2: the factors 1 / beta are applied in later passes, which
    are needed in any case. `Steps` computes blocks and scalars, and the host decides when to stop.
    """

    def run(self, stop: Stop | None, recordings: Recordings | None, final: float | None) -> Linear:
        """Iterate until all columns have stopped."""
        if not self.is_real:
            raise OptionError("shift: got complex numbers; MINRES takes real ones, block_gmres these, too.")
        projection, U = self.projection, self.B
        has_preconditioner = projection.preconditioner is not None
        Z = projection.precondition(U)
        squares = finite(projection.squares(U, Z))
        self.finish(squares < 0, "indefinite preconditioner")
        self.begin(np.sqrt(np.maximum(squares, 0)))
        inside = Coordinates(self.b)
        is_plain = not has_preconditioner and final is None
        if not everywhere(U.layout, is_plain and getattr(self.operator, "is_recordable", False)):
            recordings = None
        elif recordings is None and U.device != "cpu":
            recordings = Recordings(self.operator)
        with contextlib.nullcontext() if recordings is None else recordings.recorder:
            if recordings is None:
                steps = Steps(self.operator, U, projection, final=final)
            else:
                steps = recordings.steps(self.operator, U, projection.Q)
            steps.begin(self, Z if has_preconditioner else None)
            while self.left > 0 and not self.ended:
                self.left -= 1
                log = self._step(steps)
                if stop is not None:
                    inside.update(log)
                    before = self.active.copy()
                    X = steps.X if has_preconditioner else None
                    self.finish(stop(inside.progress(self, X)), "stopped")
                    if (before != self.active).any():
                        steps.keep(self.active)
        self.X = steps.X if recordings is None else steps.X.copy()
        return self.result()

    def _step(self, steps: Steps) -> Log:
        started = steps.started
        log = Log(*finite(steps.take()))
        self.counts.apply(self.b, steps.started - started)
        self.counts.reductions += 2 + (self.projection.Q is not None)
        self.finish(log.squares < 0, "indefinite preconditioner")
        self.finish(log.singular > 0, "singular")
        self.iterations += self.active
        self.residuals = np.where(self.active, log.residuals, self.residuals)
        self.finish(log.ended > 0, "converged")
        return log


class Coordinates:
    """Coordinates of the solutions in the basis Z of their Krylov spaces: x = Z y, U^H Z = I, Z^H A Z = T.

    The values of `Progress` follow from y and T without further inner products.
    """

    def __init__(self, b: int) -> None:
        self.x = self.w = self.w_old = self.diagonal = self.off = np.zeros((0, b))

    def update(self, log: Log) -> None:
        """Apply the recurrences of W and X to the coordinates."""
        zero = np.zeros((1, len(log.alpha)))
        w = np.vstack([-log.old_eps * self.w_old - log.delta * self.w, np.ones_like(zero)]) * log.inverse
        self.w_old, self.w = np.vstack([self.w, zero]), w
        self.x = np.vstack([self.x, zero]) + log.phi * w
        self.diagonal, self.off = np.vstack([self.diagonal, log.alpha]), np.vstack([self.off, log.beta])

    def progress(self, systems: LinearSystems, X: Block | None) -> Progress:
        """Return the argument of the caller's test; x^H x is that of X if the basis is not orthonormal."""
        y, share = self.x, systems.residuals / np.where(systems.initial > 0, systems.initial, 1)
        xx = np.sum(y**2, axis=0)
        if X is not None:
            systems.counts.reductions += 1
            xx = lengths_of(X) ** 2
        quadratic = np.sum(self.diagonal * y**2, axis=0)
        quadratic += 2 * np.sum(self.off[:-1] * y[:-1] * y[1:], axis=0)
        return Progress(share, systems.initial * y[0], quadratic, xx)


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

    Those with a recorder need an operator that is recordable, no preconditioner, and a projection of their
    own. `final` is that of `closing`.
    """

    def __init__(
        self,
        operator: Operator,
        like: Block,
        projection: Projection,
        recorder: Recorder | None = None,
        final: float | None = None,
    ) -> None:
        width, real, unit = like.shape[1], like.array.real.dtype, float(np.finfo(like.dtype).eps) / 2
        xp = self._xp = array_namespace(like.array)
        self._operator, self._projection, self._recorder = operator, projection, recorder
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
        project_out(self._projection.Q, P)  # after the recurrence, in which components along Q would grow
        if Z is U:
            squares = P.column_dot(P).real
        else:
            Y = self._Z[(t + 1) % 2] = self._projection.precondition(P)
            found = self._projection.squares(P, Y)
            if (found < 0).any():
                now.active[...] &= self._xp.asarray(found >= 0)
            squares = self._xp.asarray(found.astype(dots.dtype))
        self._closing(squares, self._limits, dots, *now, out=(*log, *self._factors, *later))


class Recordings:
    """Recorded steps for solves with one operator, reused by the next solve of the same shapes."""

    def __init__(self, operator: Operator) -> None:
        layout = operator.layout
        self.recorder = Recorder(operator.device, None if layout is None else layout.comm)
        self._key: tuple[Any, ...] = ()

    def steps(self, operator: Operator, U: Block, Q: Block | None) -> Steps:
        """Return the steps for blocks like U in the complement of Q, inside the context of the recorder."""
        key = U.shape[1], U.dtype, None if Q is None else (Q.shape, Q.dtype)
        if key != self._key:
            self._key, self._Q = key, None if Q is None else Q.like()
            self._steps = Steps(operator, U, Projection(self._Q), self.recorder)
        if self._Q is not None and Q is not None:
            self._Q[:, :] = Q
        return self._steps
