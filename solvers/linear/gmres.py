"""Block GMRES: one shifted system per column, each with its own Krylov space, solved simultaneously."""

from __future__ import annotations

from typing import Any

import numpy as np

from blockvec import array_namespace
from blockvec.errors import OptionError

from ..blocks import Array, Block, RealArray, column_factors, small_matrix, to_host
from .calls import takes_arrays
from .systems import (
    EXHAUSTED,
    SINGULAR,
    Linear,
    LinearSystems,
    Preconditioner,
    Projection,
    inverse_where,
    lengths_of,
)

STAGNATED = 0.99  # ratio of residuals after and before a cycle, above which a column has stagnated


@takes_arrays
def block_gmres(
    A: Any,
    B: Any,
    *,
    shift: Any = 0.0,
    tol: Any = 1e-8,
    maxiter: int | None = None,
    restart: int = 30,
    preconditioner: Preconditioner | None = None,
    Q: Block | Projection | None = None,
    with_first: bool = False,
) -> Linear:
    """Solve (A - sigma_j I) x_j = b_j, one shift per column, by restarted GMRES, preconditioned on the right.

    Parameters
    ----------
    A : matrix, array, LinearOperator or Operator, shape (n, n)
        Need not be Hermitian.
    B, tol, Q, with_first
        As for `block_minres`.
    shift : scalar or array, shape (b,)
    maxiter : int, optional
        Maximum number of steps over all restarts; default n.
    restart : int
        Steps between restarts; the basis has ``(restart + 1) b`` vectors.
    preconditioner : callable, optional
        Linear map of a block to a new block. With an array B a function of arrays, or a matrix.

    Returns
    -------
    Linear

    Raises
    ------
    ShapeError, OptionError
        For blocks, shifts, tolerances or a restart that do not fit.
    BreakdownError
        If the operator or the preconditioner returns NaN or Inf.

    References
    ----------
    Saad, Schultz, SIAM J. Sci. Stat. Comput. 7 (1986) 856. Deviation: classical Gram-Schmidt, twice, with
    block products of all columns, of which each column uses its own coefficients: b times the arithmetic,
    but the basis is read once, which dominates the time.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import BlockVector, models
    >>> from solvers import block_gmres
    >>> A = models.model("laplace1d:n=50")
    >>> solved = block_gmres(A, BlockVector.random(50, 2, rng=0), shift=[-1.0, -2.0], tol=1e-10)
    >>> solved.converged, bool(solved.iterations[1] < solved.iterations[0])
    (True, True)
    """
    if restart < 1:
        raise OptionError(f"restart: got {restart}; give at least 1 step.")
    return _Gmres(A, B, shift, tol, maxiter, with_first, Q, preconditioner).run(restart)


class _Gmres(LinearSystems):
    """Cycles of Arnoldi's method: one Hessenberg matrix per column, all bases in one buffer."""

    def run(self, restart: int) -> Linear:
        """Iterate until all columns have stopped."""
        self.begin(lengths_of(self.B))
        self.X = self.B.copy().scale(0)
        steps = min(restart, max(self.left, 1))
        self.buffer, R = self.B.like(self.b * (steps + 1)), self.B.copy()
        xp = array_namespace(R.array)
        self.factors: Any = xp.asarray(self.shift) if self.shift.any() else 0
        while self.left > 0 and not self.ended:
            before = self.residuals.copy()
            self.left -= self._cycle(R, min(steps, self.left))
            if self.left > 0 and not self.ended:
                R = self.projection.project(self._apply(self.X, R)).axpby(1, self.B, -1)
                self.counts.reductions += 1
                self.residuals = np.where(self.active, lengths_of(R), self.residuals)
                self.finish(self.residuals <= self.limits, "converged")
                self.finish(self.residuals > STAGNATED * before, "stagnated")
        return self.result()

    def _apply(self, X: Block, out: Block) -> Block:
        """Set out = (A - sigma I) X without a projection, and return it."""
        self.counts.apply(self.b)
        self.operator.apply(X, out=out, shift=self.factors)
        return out

    def _scaled(self, X: Block, lengths: RealArray) -> Block:
        """Divide columns by their lengths, and set those of finished systems to zero."""
        return X.scale(column_factors(inverse_where(np, lengths, self.active), X))

    def _cycle(self, R: Block, steps: int) -> int:
        """Take up to `steps` steps from the residual block R and update X; return the number of steps."""
        b, begin = self.b, np.where(self.active, self.residuals, 0.0)
        H = np.zeros((b, steps + 1, steps), np.result_type(R.dtype, np.float64))
        y = np.zeros((steps, b), H.dtype)  # minimises each column's residual over its own steps
        scale = np.zeros(b)
        V, P = self._scaled(R, self.residuals), self.B.like()
        for i in range(steps):
            self.buffer[:, i * b : (i + 1) * b] = V
            P = self._apply(self.projection.precondition(V), P)
            h, length = self._orthogonalize(P, i + 1)
            H[:, : i + 1, i], H[:, i + 1, i] = h.T, length
            scale = np.maximum(scale, np.sqrt(np.sum(np.abs(H[:, : i + 2, i]) ** 2, axis=1)))
            Q, T = np.linalg.qr(H[:, : i + 2, : i + 1], mode="complete")
            self.finish(np.abs(T[:, i, i]) <= SINGULAR * self.unit * scale, "singular")
            reduced = Q[:, 0, :, None].conj() * begin[:, None, None]
            j = np.flatnonzero(self.active)
            y[: i + 1, j] = np.linalg.solve(T[j, : i + 1], reduced[j, : i + 1])[..., 0].T
            self.residuals = np.where(self.active, np.abs(reduced[:, -1, 0]), self.residuals)
            self.iterations += self.active
            self.finish(self.residuals <= self.limits, "converged")
            self.finish(length <= EXHAUSTED * self.unit * scale, "converged")
            if self.ended:
                break
            V, P = self._scaled(P, length), V
        step = self.buffer[:, : (i + 1) * b].combine(small_matrix(_apart(y[: i + 1]), V))
        self.X.axpy(1, self.projection.precondition(step))
        return i + 1

    def _orthogonalize(self, P: Block, count: int) -> tuple[Array, RealArray]:
        """Orthogonalise each column of P against its own basis; return coefficients and remaining norms."""
        known, total = self.buffer[:, : count * self.b], 0
        for _ in range(2):  # twice is enough
            self.projection.project(P)
            h = np.einsum("ijj->ij", to_host(known.dot(P)).reshape(count, self.b, self.b))
            h = h.astype(np.result_type(h.dtype, np.float64))
            known.combine(small_matrix(_apart(h), P), out=P, alpha=-1, beta=1)
            total = total + h
        self.counts.reductions += 3
        return np.asarray(total), lengths_of(P)


def _apart(h: Array) -> Array:
    """Return the matrix that multiplies the basis vectors of column j alone by h[:, j]."""
    return (h[:, :, None] * np.eye(h.shape[1])).reshape(h.size, h.shape[1])
