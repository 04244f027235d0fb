"""Block MINRES: one shifted Hermitian system per column, solved simultaneously.

Every column has its own Krylov space and takes the same steps as if it were solved alone. The columns share
one product of the operator with the whole block, with one shift per column, and one reduction. Finished
columns become zero.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockvec.errors import OptionError

from ..blocks import Block, RealArray
from .calls import takes_arrays
from .steps import Log, Recordings, Steps
from .systems import Linear, LinearSystems, Preconditioner, Progress, Projection, finite

Stop = Callable[[Progress], NDArray[np.bool_]]


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
    projection = Q if isinstance(Q, Projection) else Projection(Q, preconditioner)
    return _Minres(A, B, shift, tol, projection, stop).run(maxiter, with_first, recordings, final)


class _Minres(LinearSystems):
    """Lanczos in the K^-1 norm with vectors U and Z = K^-1 U, and Givens rotations per column.

    U and Z are not normalised, u^H K^-1 u is beta^2: the factors 1 / beta are applied in later passes, which
    are needed in any case. `Steps` computes blocks and scalars, and the host decides when to stop.
    """

    def __init__(
        self, A: Any, B: Block, shift: Any, tol: Any, projection: Projection, stop: Stop | None
    ) -> None:
        super().__init__(A, B, shift, tol, projection)
        if not self.is_real:
            raise OptionError("shift: got complex numbers; MINRES takes real ones, block_gmres these, too.")
        self.U = projection.project(B.copy())
        Z = projection.precondition(self.U)
        self.Z = None if projection.preconditioner is None else Z
        squares = self.dots(self.U, Z).real
        if self.Z is not None:
            self.finish(~projection.is_definite(self.U, Z, squares), "indefinite preconditioner")
        self.begin(np.sqrt(np.maximum(squares, 0)), self.U)
        self.stop = stop
        self.inside = None if stop is None else Coordinates(self.b)

    def run(
        self, maxiter: int | None, with_first: bool, recordings: Recordings | None, final: float | None
    ) -> Linear:
        """Take at most `maxiter` steps."""
        plain = self.projection.preconditioner is None and final is None and self.U.layout is None
        if not (plain and getattr(self.operator, "is_recordable", False)):
            recordings = None
        elif recordings is None and self.U.device != "cpu":
            recordings = Recordings(self.U.device)
        with contextlib.nullcontext() if recordings is None else recordings.recorder:
            if recordings is None:
                steps = Steps(self.operator, self.U, self.projection, final=final)
            else:
                steps = recordings.steps(self.operator, self.U, self.projection.Q)
            steps.begin(self, self.U, self.Z)
            for _ in range(self.n if maxiter is None else maxiter):
                if self.ended(with_first):
                    break
                self._step(steps)
        self.X = steps.X if recordings is None else steps.X.copy()
        return self.result()

    def _step(self, steps: Steps) -> None:
        started = steps.started
        rows = steps.take()
        self.counts.apply(self.b, steps.started - started)
        self.counts.reductions += 2 + (self.projection.Q is not None)
        log = Log(*finite(rows))
        self.finish(log.squares < 0, "indefinite preconditioner")
        self.finish(log.singular > 0, "singular")
        self.iterations += self.active
        self.residuals = np.where(self.active, log.residuals, self.residuals)
        self.finish(log.ended > 0, "converged")
        if self.inside is not None and self.stop is not None:
            self.inside.update(log)
            before = self.active.copy()
            self.finish(self.stop(self._progress(self.inside, steps.X)), "stopped")
            if (before != self.active).any():
                steps.keep(self.active)

    def _progress(self, inside: Coordinates, X: Block) -> Progress:
        """Return the argument of the caller's test."""
        xx = np.sum(inside.x**2, axis=0)
        if self.projection.preconditioner is not None:  # the basis of the coordinates is not orthonormal
            xx = self.dots(X, X).real
        share = self.residuals / np.where(self.initial > 0, self.initial, 1)
        return Progress(share, self.initial * inside.x[0], inside.quadratic(), xx)


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

    def quadratic(self) -> RealArray:
        """Return y^T T y."""
        y = self.x
        total = np.sum(self.diagonal * y**2, axis=0) + 2 * np.sum(self.off[:-1] * y[:-1] * y[1:], axis=0)
        return np.asarray(total)
