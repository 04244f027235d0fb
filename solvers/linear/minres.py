"""Block MINRES: shifted Hermitian systems, one a column, solved side by side.

Every column has a Krylov space of its own, so that it takes the same steps as if it were alone; what is
shared is the work: one product of the operator with the whole block, the shift of each column inside it, and
one inner product for all. Columns that have finished turn to zeros; where half of a block has, the others go
on in a block of at most half the width, so that shapes change seldom.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import pick, project_out
from .systems import (
    EXHAUSTED,
    SINGULAR,
    Columns,
    Linear,
    LinearSystems,
    Preconditioner,
    Progress,
    Projection,
)

__all__ = ["block_minres", "rehearse_minres"]

Block = Any
RealArray = NDArray[np.float64]
Stop = Callable[[Progress], NDArray[np.bool_]]

INDEFINITE = 100.0  # r^H K^-1 r below -INDEFINITE * u * ||r|| ||K^-1 r|| is no rounding error


def block_minres(
    A: Any,
    B: Block,
    *,
    shift: Any = 0.0,
    tol: Any = 1e-8,
    maxiter: int | None = None,
    preconditioner: Preconditioner | None = None,
    Q: Block | Projection | None = None,
    stop: Stop | None = None,
    with_first: bool = False,
) -> Linear:
    """Solve (A - sigma_j I) x_j = b_j for Hermitian A, one real shift a column, by MINRES.

    Parameters
    ----------
    A : matrix, LinearOperator or Operator, shape (n, n)
        Hermitian; A - sigma I may be indefinite or singular.
    B : BlockVector, shape (n, b)
    shift : float or array, shape (b,)
    tol : float or array, shape (b,)
        Residual norms to reach, relative to those of B.
    maxiter : int, optional
        Steps at most; default n.
    preconditioner : callable, optional
        Maps a block to a new block: K^-1, Hermitian and positive definite.
    Q : BlockVector, shape (n, q), or Projection, optional
        Orthonormal columns: solve in their complement. A `Projection` brings its own preconditioner.
    stop : callable, optional
        Called after every step with a `Progress`; returns which systems are to stop.
    with_first : bool, default False
        Whether all stop as soon as one has.

    Returns
    -------
    Linear

    Raises
    ------
    ShapeError
        For blocks, shifts or tolerances that do not fit.
    BreakdownError
        Where the operator or the preconditioner returns NaN or Inf.

    References
    ----------
    Paige, Saunders, SIAM J. Numer. Anal. 12 (1975) 617; Choi, Paige, Saunders, SIAM J. Sci. Comput. 33
    (2011) 1810 (when a singular system has been solved); Sleijpen, van der Vorst, SIAM J. Matrix Anal. Appl.
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
    return _Minres(system, B, stop).run(system.n if maxiter is None else maxiter, with_first)


def rehearse_minres(A: Any, like: Block, width: int, q: int) -> None:
    """Go through the products of steps beside q columns, for a `blockvec.rehearsal`; from `width` halved on.

    Parameters
    ----------
    A : Operator
    like : BlockVector, shape (n, any)
        Says size, type and device.
    width, q : int
    """
    Q = like.like(q)
    while width:
        X, Y = like.like(width), like.like(width)
        factors = A.apply(X, out=Y, shift=X.norms(), dots="xy").dots["xy"].real
        Y.scale(factors).axpby(factors, X, factors).column_dot(Y)
        project_out(Q, Y)
        width //= 2


class _Minres(Columns):
    """Lanczos in the norm of K^-1: U, and Z = K^-1 U, with Givens rotations of a tridiagonal matrix a column.

    The names of the scalars are those of Paige and Saunders' code. U and Z are not normalised: u^H Z u is
    beta^2, and what would divide them by beta divides where they are used, in passes that there are anyway.
    """

    def __init__(self, system: LinearSystems, B: Block, stop: Stop | None) -> None:
        super().__init__(system, B)
        self.projection = system.projection
        self.U = self.projection.project(B.copy())
        self.Z = self.projection.precondition(self.U)
        self.begin(self._lengths(self.U, self.Z))
        self.U_old, self.P = B.copy().scale(0), B.like()
        self.W, self.W_old = self.X.copy(), self.X.copy()
        self.part = self.X  # of those columns that still have a place
        zeros = np.zeros(system.b)
        self.beta, self.beta_old, self.norm = self.initial.copy(), zeros + 1, zeros
        self.cs, self.sn, self.dbar, self.epsln = zeros - 1, zeros, zeros, zeros
        self.stop = stop
        self.inside = None if stop is None else _Coordinates(self.initial)

    def run(self, maxiter: int, with_first: bool) -> Linear:
        """Take at most so many steps."""
        for _ in range(maxiter):
            if self.ended(with_first):
                break
            self._narrow()
            self._step()
        self._scatter()
        return self.result()

    def _narrow(self) -> None:
        """Leave out columns that have finished, once that is half of them."""
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
        """Put what has been computed of the solutions in its place."""
        if self.part is self.X:
            return
        for j, place in enumerate(self.system.places):
            self.X[:, int(place) : int(place) + 1] = self.part[:, j : j + 1]

    def _lengths(self, U: Block, Z: Block) -> RealArray:
        """Return (u^H K^-1 u)^(1/2); columns where it is imaginary are finished."""
        system = self.system
        squares = system.dots(U, Z).real
        if self.projection.preconditioner is not None and (squares < 0).any():
            bound = system.norms(U) * system.norms(Z)
            self.finish(squares < -INDEFINITE * system.unit * bound, "indefinite preconditioner")
        lengths: RealArray = np.sqrt(np.maximum(squares, 0))
        return lengths

    def _step(self) -> None:
        system, P = self.system, self.P
        scale = self.inverse(self.beta)  # of u and Z u, zero for columns that have finished
        alpha = system.quadratic(self.Z, P) * scale**2
        factors = system.factors(P, scale, -alpha * scale, -self.beta / self.beta_old * self.active)
        P.axpby(factors[1], self.U, factors[0]).axpy(factors[2], self.U_old)
        self.projection.project(P)  # after the recurrence, which would let components along Q grow
        Y = self.projection.precondition(P)
        old_beta, beta = self.beta, self._lengths(P, Y)
        first = self.iterations == 0
        # The norm of the tridiagonal matrix, from below, is the scale of its rounding errors.
        off = np.where(first, 0.0, old_beta)
        self.norm = np.maximum(self.norm, np.sqrt(alpha**2 + beta**2 + off**2))
        old_eps, delta = self.epsln, self.cs * self.dbar + self.sn * alpha
        gbar = self.sn * self.dbar - self.cs * alpha
        self.epsln, self.dbar = self.sn * beta, -self.cs * beta
        zero = SINGULAR * system.unit * self.norm
        # ||(A - sigma I) r|| = ||r|| (gbar^2 + dbar^2)^(1/2): nothing can be gained where it vanishes.
        self.finish(np.hypot(gbar, self.dbar) <= zero, "singular")
        gamma = np.hypot(gbar, beta)
        self.finish(gamma <= zero, "singular")
        inverse = self.inverse(gamma)
        self.cs, self.sn = gbar * inverse, beta * inverse
        phi = np.where(self.active, self.cs * self.residuals, 0.0)
        self._update(inverse, scale, old_eps, delta, phi)
        self.residuals = np.where(self.active, np.abs(self.sn) * self.residuals, self.residuals)
        self.iterations += self.active
        self.beta_old, self.beta = np.where(old_beta > 0, old_beta, 1.0), np.where(self.active, beta, 0.0)
        self.finish(beta <= EXHAUSTED * system.unit * self.norm, "converged")
        self.finish_converged()
        if self.inside is not None:
            self.inside.update(inverse, old_eps, delta, phi, alpha, beta)
            self._ask()
        self.U_old, self.U, self.P = self.U, P, self.U_old
        self.Z = Y

    def _update(
        self, inverse: RealArray, scale: RealArray, old_eps: RealArray, delta: RealArray, phi: RealArray
    ) -> None:
        """Set W = (Z / beta - old_eps W_old_old - delta W_old) / gamma and X = X + phi W."""
        oldest = self.W_old
        factors = self.system.factors(oldest, scale * inverse, -old_eps * inverse, -delta * inverse, phi)
        oldest.axpby(factors[0], self.Z, factors[1]).axpy(factors[2], self.W)
        self.W_old, self.W = self.W, oldest
        self.part.axpy(factors[3], self.W)

    def _ask(self) -> None:
        """Let the caller's test say which systems are to stop."""
        assert self.inside is not None
        assert self.stop is not None
        xx = np.sum(self.inside.x**2, axis=0)
        if self.projection.preconditioner is not None:  # then the coordinates' basis is not orthonormal
            xx = self.system.dots(self.part, self.part).real
        share = self.residuals / np.where(self.initial > 0, self.initial, 1)
        progress = Progress(share, self.initial * self.inside.x[0], self.inside.quadratic(), xx)
        self.finish(self.stop(progress), "stopped")


class _Coordinates:
    """The solutions in the basis Z of their Krylov spaces: x = Z y, where U^H Z = I and Z^H A Z = T.

    What a stopping test wants to know of x follows from y and T without another inner product.
    """

    def __init__(self, initial: RealArray) -> None:
        b = len(initial)
        self.x = self.w = self.w_old = np.zeros((0, b))
        self.diagonal, self.off = np.zeros((0, b)), np.zeros((0, b))

    def update(
        self,
        inverse: RealArray,
        old_eps: RealArray,
        delta: RealArray,
        phi: RealArray,
        alpha: RealArray,
        beta: RealArray,
    ) -> None:
        """Follow the recurrence of W and X."""
        zero = np.zeros((1, len(phi)))
        w = np.vstack([-old_eps * self.w_old - delta * self.w, np.ones_like(zero)]) * inverse
        self.w_old, self.w = np.vstack([self.w, zero]), w
        self.x = np.vstack([self.x, zero]) + phi * w
        self.diagonal, self.off = np.vstack([self.diagonal, alpha]), np.vstack([self.off, beta])

    def quadratic(self) -> RealArray:
        """Return y^T T y."""
        y = self.x
        total = np.sum(self.diagonal * y**2, axis=0) + 2 * np.sum(self.off[:-1] * y[:-1] * y[1:], axis=0)
        return np.asarray(total)
