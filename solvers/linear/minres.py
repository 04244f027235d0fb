"""Block MINRES: one shifted Hermitian system per column, solved simultaneously.

Every column has its own Krylov space and takes the same steps as if it were solved alone. The columns share
one product of the operator with the whole block, with one shift per column, and one reduction. Finished
columns become zero; when half of the columns have finished, the others continue in a block of at most half
the width, so that shapes change rarely.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, RealArray, pick
from .arrays import takes_arrays
from .recordings import Recordings, Steps, recordings_for
from .systems import Columns, Linear, LinearSystems, Preconditioner, Progress, Projection
from .tridiagonal import Coordinates, Scalars, closing, opening

Stop = Callable[[Progress], NDArray[np.bool_]]

INDEFINITE = 100.0  # u ||r|| ||K^-1 r||: a product r^H K^-1 r below minus that exceeds rounding errors


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

    Returns
    -------
    Linear

    Raises
    ------
    ShapeError
        For blocks, shifts or tolerances that do not fit.
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
    projection = Q if isinstance(Q, Projection) else Projection(Q, preconditioner)
    system = LinearSystems(A, B, shift, tol, projection)
    recordings = recordings_for(system.operator, B, projection, recordings)
    minres = _Minres(system, B, stop) if recordings is None else _Recorded(system, B, stop, recordings)
    return minres.run(system.n if maxiter is None else maxiter, with_first)


class _Minres(Columns):
    """Lanczos in the K^-1 norm with vectors U and Z = K^-1 U, and Givens rotations per column.

    U and Z are not normalised, u^H K^-1 u is beta^2: the factors 1 / beta are applied in later passes, which
    are needed in any case.
    """

    def __init__(self, system: LinearSystems, B: Block, stop: Stop | None) -> None:
        super().__init__(system, B)
        self.projection = system.projection
        self.U = self.projection.project(B.copy())
        self.Z = self.projection.precondition(self.U)
        self.begin(self._lengths(self.U, self.Z), self.U)
        self.U_old, self.P = B.copy().scale(0), B.like()
        self.W, self.W_old = self.X.copy(), self.X.copy()
        self.part = self.X  # the columns of X that are still iterated on
        self.scalars = Scalars.of(self.initial, self.active)
        self.stop = stop
        self.inside = None if stop is None else Coordinates(self.initial)

    def run(self, maxiter: int, with_first: bool) -> Linear:
        """Take at most `maxiter` steps."""
        for _ in range(maxiter):
            if self.ended(with_first):
                break
            self._narrow()
            self._step()
        self._scatter()
        return self.result()

    def _narrow(self) -> None:
        """Drop finished columns if at least half of the columns have finished."""
        width = len(self.system.places)
        if width == 1 or 2 * np.count_nonzero(self.active) > width:
            return
        self._scatter()
        places = self.system.places
        keep = np.flatnonzero(self.active[places])[: width // 2]
        self.system.place(places[keep])
        self.U, self.U_old, self.W, self.W_old, self.part, self.P = (
            pick(block, keep) for block in (self.U, self.U_old, self.W, self.W_old, self.part, self.P)
        )
        self.Z = self.U if self.projection.preconditioner is None else pick(self.Z, keep)

    def _scatter(self) -> None:
        """Copy the current columns to their places in X."""
        if self.part is self.X:
            return
        for j, place in enumerate(self.system.places):
            self.X[:, int(place) : int(place) + 1] = self.part[:, j : j + 1]

    def _lengths(self, U: Block, Z: Block) -> RealArray:
        """Return (u^H K^-1 u)^(1/2); finish the columns for which it is imaginary."""
        system = self.system
        squares = system.dots(U, Z).real
        if self.projection.preconditioner is not None and (squares < 0).any():
            bound = system.norms(U) * system.norms(Z)
            self.finish(squares < -INDEFINITE * system.unit * bound, "indefinite preconditioner")
        lengths: RealArray = np.sqrt(np.maximum(squares, 0))
        return lengths

    def _step(self) -> None:
        system, P = self.system, self.P
        alpha, scale, rows = self._opened(system.quadratic(self.Z, P))
        factors = system.factors(P, *rows)
        P.axpby(factors[1], self.U, factors[0]).axpy(factors[2], self.U_old)
        self.projection.project(P)  # after the recurrence, in which components along Q would grow
        Y = self.projection.precondition(P)
        factors = system.factors(P, *self._closed(alpha, scale, self._lengths(P, Y)))
        oldest = self.W_old
        oldest.axpby(factors[0], self.Z, factors[1]).axpy(factors[2], self.W)
        self.W_old, self.W = self.W, oldest
        self.part.axpy(factors[3], self.W)
        self._apply_test()
        self.U_old, self.U, self.P = self.U, P, self.U_old
        self.Z = Y

    def _opened(self, dots: RealArray) -> tuple[RealArray, RealArray, tuple[RealArray, ...]]:
        """Evaluate `opening` with the current scalars."""
        self.scalars = self.scalars._replace(active=self.active)
        return opening(np, dots, self.scalars)

    def _closed(self, alpha: RealArray, scale: RealArray, beta: RealArray) -> tuple[RealArray, ...]:
        """Evaluate `closing` and update the state of the systems; return the factors of W and X."""
        system = self.system
        self.scalars = self.scalars._replace(active=self.active)
        limits = system.tol * self.initial
        rotated = closing(np, alpha, scale, beta, limits, system.unit, self.scalars)
        self.finish(rotated.singular, "singular")
        self.iterations += self.active
        self.scalars = rotated.scalars
        self.residuals = rotated.scalars.residuals
        self.finish(rotated.ended, "converged")
        if self.inside is not None:
            self.inside.update(alpha, beta, rotated)
        return rotated.factors

    def _apply_test(self) -> None:
        """Finish the systems that the caller's test stops."""
        if self.inside is None or self.stop is None:
            return
        xx = np.sum(self.inside.x**2, axis=0)
        if self.projection.preconditioner is not None:  # the basis of the coordinates is not orthonormal
            xx = self.system.dots(self.part, self.part).real
        share = self.residuals / np.where(self.initial > 0, self.initial, 1)
        progress = Progress(share, self.initial * self.inside.x[0], self.inside.quadratic(), xx)
        self.finish(self.stop(progress), "stopped")


class _Recorded(_Minres):
    """The same steps on a GPU, each launched as one graph; the host only decides when to stop."""

    def __init__(self, system: LinearSystems, B: Block, stop: Stop | None, recordings: Recordings) -> None:
        super().__init__(system, B, stop)
        self.recordings = recordings
        self.steps: Steps | None = None
        self.known = self.active  # the mask of active systems on the device

    def run(self, maxiter: int, with_first: bool) -> Linear:
        """Take at most `maxiter` steps."""
        with self.recordings.opened(self.projection.Q):
            return super().run(maxiter, with_first)

    def _narrow(self) -> None:
        width = len(self.system.places)
        super()._narrow()
        if width != len(self.system.places):
            self.steps = None

    def _scatter(self) -> None:
        if self.steps is not None:
            self.U, self.U_old, self.P, self.W, self.W_old, self.part = self.steps.blocks
            self.Z = self.U
        super()._scatter()

    def _step(self) -> None:
        system, places = self.system, self.system.places
        if self.steps is None:
            self.steps = self.recordings.steps(system.operator, self.U)
            blocks = (self.U, self.U_old, self.P, self.W, self.W_old, self.part)
            scalars = Scalars(*(values[places] for values in self.scalars._replace(active=self.active)))
            self.steps.begin(blocks, system.shift, (system.tol * self.initial)[places], scalars)
            self.known = self.active.copy()
        elif (self.known != self.active).any():
            self.steps.keep(self.active[places])
            self.known = self.active.copy()
        started = self.steps.started
        dots, squares = (system.spread(values) for values in self.steps.take())
        for _ in range(self.steps.started - started):
            system.count(len(places))
        self.projection.reductions += self.projection.Q is not None
        alpha, scale, _ = self._opened(dots)
        self._closed(alpha, scale, np.sqrt(np.maximum(squares, 0)))
        self._apply_test()
