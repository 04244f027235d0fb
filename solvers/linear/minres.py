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

from ..blocks import Block
from .calls import takes_arrays
from .steps import Log, Recordings, Steps
from .systems import Linear, LinearSystems, Preconditioner, Progress, Projection, finite, lengths_of

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
        is_plain = not has_preconditioner and final is None and U.layout is None
        if not (is_plain and getattr(self.operator, "is_recordable", False)):
            recordings = None
        elif recordings is None and U.device != "cpu":
            recordings = Recordings(U.device)
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
