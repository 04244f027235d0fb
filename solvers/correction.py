"""Block MINRES and GMRES: one shifted system a column, solved side by side.

Both solve (A - sigma_j I) x_j = b_j for all columns j of a block at once. Every column has a Krylov space
of its own, so that it takes the same steps as if it were alone; what is shared is the work: one product of
the operator with the whole block, the shift of each column inside it, and one inner product for all.
Columns that have finished turn to zeros and change nothing any more, and shapes never change.

With an orthonormal block Q the systems are those of Jacobi-Davidson's correction equation,

    (I - Q Q^H) (A - sigma_j I) (I - Q Q^H) x_j = (I - Q Q^H) b_j,   Q^H x_j = 0,

which are regular where sigma_j is an eigenvalue whose vectors Q holds. A preconditioner, an approximation
of (A - sigma_j I)^-1 for all columns, is then projected skew, K^-1 - K^-1 Q (Q^H K^-1 Q)^-1 Q^H K^-1: the
inverse of K on the complement of Q.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from blockvec import array_namespace, as_operator
from blockvec.errors import BreakdownError, OptionError, ShapeError

from .rayleigh_ritz import to_host

__all__ = ["Linear", "Preconditioner", "Reason", "block_gmres", "block_minres"]

Array = Any
Block = Any
RealArray = NDArray[np.float64]
Preconditioner = Callable[[Block], Block]
Reason = Literal["converged", "maxiter", "singular", "stagnated", "indefinite preconditioner"]

SINGULAR = 1000.0  # pivots below SINGULAR * u * ||A - sigma I|| are zero; rounding was seen to leave 100
EXHAUSTED = 10.0  # directions shorter than EXHAUSTED * u * ||A - sigma I|| are none: invariance
STAGNATED = 0.99  # a cycle of GMRES that leaves more of a residual gains nothing, and so will the next
INDEFINITE = 100.0  # r^H K^-1 r below -INDEFINITE * u * ||r|| ||K^-1 r|| is no rounding error


@dataclass(frozen=True, slots=True)
class Linear:
    """Solutions of a block of linear systems, and how far they got.

    Attributes
    ----------
    X : BlockVector, shape (n, b)
    residuals : array, shape (b,)
        Residual norms by the method's recurrence: ||b - (A - sigma I) x||_2, or (r^H K^-1 r)^(1/2) in MINRES
        with a preconditioner.
    initial : array, shape (b,)
        The same norms of the right-hand sides, which tolerances are relative to.
    iterations : array of int, shape (b,)
        Steps that changed the column.
    reasons : tuple of str
        Why each column stopped: "converged"; "maxiter"; "singular" where the residual that is left is
        orthogonal to everything that A - sigma I can produce, as far as rounding lets one tell;
        "stagnated" (a cycle of GMRES without a gain); "indefinite preconditioner" (MINRES).
    operator_columns, block_applications : int
        Columns and blocks that A was applied to.
    preconditioner_columns : int
    reductions : int
        Inner products over the tall dimension.
    """

    X: Block
    residuals: RealArray
    initial: RealArray
    iterations: NDArray[np.intp]
    reasons: tuple[Reason, ...]
    operator_columns: int
    block_applications: int
    preconditioner_columns: int
    reductions: int

    @property
    def converged(self) -> bool:
        """Whether every column reached its tolerance."""
        return all(reason == "converged" for reason in self.reasons)


def block_minres(
    A: Any,
    B: Block,
    *,
    shift: Any = 0.0,
    tol: Any = 1e-8,
    maxiter: int | None = None,
    preconditioner: Preconditioner | None = None,
    Q: Block | None = None,
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
    Q : BlockVector, shape (n, q), optional
        Orthonormal columns: solve in their complement.

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
    system = _System(A, B, shift, tol, preconditioner, Q)
    return _Minres(system, B).run(system.n if maxiter is None else maxiter)


def block_gmres(
    A: Any,
    B: Block,
    *,
    shift: Any = 0.0,
    tol: Any = 1e-8,
    maxiter: int | None = None,
    restart: int = 30,
    preconditioner: Preconditioner | None = None,
    Q: Block | None = None,
) -> Linear:
    """Solve (A - sigma_j I) x_j = b_j, one shift a column, by restarted GMRES, preconditioned on the right.

    Parameters
    ----------
    A : matrix, LinearOperator or Operator, shape (n, n)
        Need not be Hermitian.
    B : BlockVector, shape (n, b)
    shift : scalar or array, shape (b,)
    tol : float or array, shape (b,)
        Residual norms to reach, relative to those of B.
    maxiter : int, optional
        Steps at most, over all restarts; default n.
    restart : int
        Steps between restarts; needs memory for ``(restart + 1) b`` vectors.
    preconditioner : callable, optional
        Maps a block to a new block; linear, of any kind.
    Q : BlockVector, shape (n, q), optional
        Orthonormal columns: solve in their complement.

    Returns
    -------
    Linear

    Raises
    ------
    ShapeError, OptionError
        For blocks, shifts, tolerances or a restart that do not fit.
    BreakdownError
        Where the operator or the preconditioner returns NaN or Inf.

    References
    ----------
    Saad, Schultz, SIAM J. Sci. Stat. Comput. 7 (1986) 856. Deviation: classical Gram-Schmidt, twice, from
    the block products of all columns with each other, of which each column takes its own share: b times the
    arithmetic, but the basis is read once, which is what the time goes into.

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
    system = _System(A, B, shift, tol, preconditioner, Q)
    steps = system.n if maxiter is None else maxiter
    return _Gmres(system, B, min(restart, max(steps, 1))).run(steps)


class _System:
    """The projected, preconditioned systems, and what applying them has cost."""

    def __init__(
        self, A: Any, B: Block, shift: Any, tol: Any, preconditioner: Preconditioner | None, Q: Block | None
    ) -> None:
        self.operator = A if hasattr(A, "apply") else as_operator(A)
        self.n, self.b = B.shape
        self.unit = float(np.finfo(B.dtype).eps) / 2
        self.preconditioner = preconditioner
        self.columns = self.applications = self.preconditioned = self.reductions = 0
        if self.operator.shape != (self.n, self.n):
            raise ShapeError(f"A has shape {self.operator.shape} but B has {self.n} rows; A must be square.")
        if Q is not None and Q.shape[0] != self.n:
            raise ShapeError(f"Q has {Q.shape[0]} rows but B has {self.n}.")
        self.Q = Q if Q is not None and Q.shape[1] else None
        self.tol = self._per_column("tol", tol).real.astype(np.float64)
        shift = self._per_column("shift", shift)
        kind = B.dtype if np.iscomplexobj(shift) else B.array.real.dtype
        self.shift = array_namespace(B.array).asarray(shift.astype(kind)) if shift.any() else 0
        if preconditioner is not None and self.Q is not None:
            self.KQ = preconditioner(self.Q.copy())
            self._check_preconditioned(self.Q, self.KQ)
            self.inverse = np.linalg.pinv(_finite(to_host(self.Q.dot(self.KQ))))
            self.reductions += 1

    def _per_column(self, name: str, value: Any) -> Array:
        values = np.asarray(to_host(value) if np.ndim(value) else value)
        if values.ndim > 1 or (values.ndim and values.shape != (self.b,)):
            raise ShapeError(
                f"{name} has shape {values.shape}; B has {self.b} columns; give {self.b}, or one."
            )
        return np.broadcast_to(values, (self.b,))

    def apply(self, X: Block, out: Block) -> Block:
        """Set out = (A - sigma I) X; what it holds along Q is left to `project`."""
        self.columns += self.b
        self.applications += 1
        return self.operator.apply(X, out=out, shift=self.shift)

    def project(self, X: Block) -> Block:
        """Remove the components along Q."""
        if self.Q is not None:
            self.Q.combine(self.Q.dot(X), out=X, alpha=-1, beta=1)
            self.reductions += 1
        return X

    def precondition(self, R: Block) -> Block:
        """Return K^-1 R in the complement of Q; R itself without a preconditioner."""
        if self.preconditioner is None:
            return R
        Z = self.preconditioner(R)
        self._check_preconditioned(R, Z)
        if self.Q is not None:
            C = self.inverse @ to_host(self.Q.dot(Z))
            self.KQ.combine(_small(C, R), out=Z, alpha=-1, beta=1)
            self.reductions += 1
            self.project(Z)  # what rounding has left along Q would be amplified from step to step
        return Z

    def _check_preconditioned(self, R: Block, Z: Block) -> None:
        self.preconditioned += R.shape[1]
        if getattr(Z, "shape", None) != R.shape:
            raise ShapeError(
                f"preconditioner: returned shape {getattr(Z, 'shape', None)} for a block of shape {R.shape}."
            )
        if Z is R:
            raise OptionError("preconditioner: returned its argument; return a new block, such as R.copy().")

    def dots(self, X: Block, Y: Block) -> Array:
        """Return x_j^H y_j on the host, in double precision."""
        self.reductions += 1
        values = _finite(to_host(X.column_dot(Y)))
        return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)

    def norms(self, X: Block) -> RealArray:
        """Return the Euclidean norms of the columns."""
        norms: RealArray = np.sqrt(np.maximum(self.dots(X, X).real, 0))
        return norms

    def result(
        self, X: Block, residuals: RealArray, initial: RealArray, iterations: Any, reasons: list[Reason]
    ) -> Linear:
        costs = (self.columns, self.applications, self.preconditioned, self.reductions)
        return Linear(X, residuals, initial, iterations, tuple(reasons), *costs)


class _Columns:
    """What both methods know of every column: whether it is active, and why not."""

    def __init__(self, system: _System, B: Block) -> None:
        self.system = system
        self.X = B.copy().scale(0)
        self.active = np.ones(system.b, bool)
        self.iterations = np.zeros(system.b, np.intp)
        self.reasons: list[Reason] = ["maxiter"] * system.b  # unless something ends it before
        self.residuals = self.initial = np.zeros(system.b)

    def finish(self, which: NDArray[np.bool_], reason: Reason) -> None:
        """Take columns out of the iteration."""
        for j in np.flatnonzero(which & self.active):
            self.reasons[j] = reason
        self.active &= ~which

    def begin(self, initial: RealArray) -> None:
        """Note the norms of the right-hand sides; zeros are solved by zero."""
        self.residuals, self.initial = initial.copy(), initial
        self.finish(initial == 0, "converged")

    def finish_converged(self) -> None:
        self.finish(self.residuals <= self.system.tol * self.initial, "converged")

    def inverse(self, values: RealArray) -> RealArray:
        """Return 1 / values of active columns, zero for the others."""
        return np.where(self.active, 1 / np.where(self.active, values, 1), 0.0)

    def result(self) -> Linear:
        return self.system.result(self.X, self.residuals, self.initial, self.iterations, self.reasons)


class _Minres(_Columns):
    """Lanczos in the norm of K^-1: U, and Z = K^-1 U, with Givens rotations of a tridiagonal matrix a column.

    The names of the scalars are those of Paige and Saunders' code.
    """

    def __init__(self, system: _System, B: Block) -> None:
        super().__init__(system, B)
        self.U = system.project(B.copy())
        self.Z = system.precondition(self.U)
        self.begin(self._lengths(self.U, self.Z))
        self.U_old, self.P = B.copy().scale(0), B.like()
        self.W, self.W_old = self.X.copy(), self.X.copy()
        zeros = np.zeros(system.b)
        self.beta, self.norm = self.initial.copy(), zeros
        self.cs, self.sn, self.dbar, self.epsln = zeros - 1, zeros, zeros, zeros
        self._normalize()

    def run(self, maxiter: int) -> Linear:
        for _ in range(maxiter):
            if not self.active.any():
                break
            self._step()
        return self.result()

    def _lengths(self, U: Block, Z: Block) -> RealArray:
        """Return (u^H K^-1 u)^(1/2); columns where it is imaginary are finished."""
        system = self.system
        squares = system.dots(U, Z).real
        if system.preconditioner is not None and (squares < 0).any():
            bound = system.norms(U) * system.norms(Z)
            self.finish(squares < -INDEFINITE * system.unit * bound, "indefinite preconditioner")
        lengths: RealArray = np.sqrt(np.maximum(squares, 0))
        return lengths

    def _normalize(self) -> None:
        factors = _columns(self.inverse(self.beta), self.X)
        self.U.scale(factors)
        if self.Z is not self.U:
            self.Z.scale(factors)

    def _step(self) -> None:
        system = self.system
        P = system.apply(self.Z, self.P)
        P.axpy(_columns(-self.beta * self.active, P), self.U_old)
        alpha = system.dots(self.Z, P).real
        P.axpy(_columns(-alpha, P), self.U)
        system.project(P)  # after the recurrence, which would let components along Q grow
        Y = system.precondition(P)
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
        phi = self.cs * self.residuals
        self._update(inverse, old_eps, delta, phi, Y)
        self.residuals = np.where(self.active, np.abs(self.sn) * self.residuals, self.residuals)
        self.iterations += self.active
        self.beta = np.where(self.active, beta, 0.0)
        self.finish(beta <= EXHAUSTED * system.unit * self.norm, "converged")
        self.finish_converged()
        self.U_old, self.U, self.P = self.U, P, self.U_old
        self.Z = Y
        self._normalize()

    def _update(
        self, inverse: RealArray, old_eps: RealArray, delta: RealArray, phi: RealArray, Y: Block
    ) -> None:
        """Set W = (Z - old_eps W_old_old - delta W_old) / gamma and X = X + phi W."""
        oldest = self.W_old
        oldest.axpby(_columns(inverse, Y), self.Z, _columns(-old_eps * inverse, Y))
        oldest.axpy(_columns(-delta * inverse, Y), self.W)
        self.W_old, self.W = self.W, oldest
        self.X.axpy(_columns(np.where(self.active, phi, 0.0), Y), self.W)


class _Gmres(_Columns):
    """Cycles of Arnoldi's method, a Hessenberg matrix a column, all bases side by side in one buffer."""

    def __init__(self, system: _System, B: Block, steps: int) -> None:
        super().__init__(system, B)
        self.B = system.project(B.copy())
        self.begin(system.norms(self.B))
        self.steps = steps
        self.buffer = B.like(system.b * (steps + 1))
        self.dtype = np.complex128 if B.dtype.kind == "c" else np.float64

    def run(self, maxiter: int) -> Linear:
        left = maxiter
        R = self.B.copy()
        while left > 0 and self.active.any():
            before = self.residuals.copy()
            left -= self._cycle(R, min(self.steps, left))
            if left > 0 and self.active.any():
                R = self.system.project(self.system.apply(self.X, R)).axpby(1, self.B, -1)
                self.residuals = np.where(self.active, self.system.norms(R), self.residuals)
                self.finish_converged()
                self.finish(self.residuals > STAGNATED * before, "stagnated")
        return self.result()

    def _cycle(self, R: Block, steps: int) -> int:
        """Take up to `steps` steps from the residual block R and update X; return how many were taken."""
        b, system = self.system.b, self.system
        H = np.zeros((b, steps + 1, steps), self.dtype)
        G = np.zeros((b, steps + 1), self.dtype)
        rotations: list[tuple[Array, Array]] = []
        G[:, 0] = np.where(self.active, self.residuals, 0.0)
        taken = np.zeros(b, np.intp)
        scale = np.zeros(b)
        R.scale(_columns(self.inverse(self.residuals), R))
        V, P = R, self.B.like()
        for i in range(steps):
            self.buffer[:, i * b : (i + 1) * b] = V
            P = system.apply(system.precondition(V), P)
            h, length = self._orthogonalize(P, i + 1)
            H[:, : i + 1, i], H[:, i + 1, i] = h.T, length
            scale = np.maximum(scale, np.sqrt(np.sum(np.abs(H[:, : i + 2, i]) ** 2, axis=1)))
            zero = SINGULAR * system.unit * scale
            _rotate(H, G, rotations, i)
            self.finish(np.abs(H[:, i, i]) <= zero, "singular")
            taken += self.active
            self.residuals = np.where(self.active, np.abs(G[:, i + 1]), self.residuals)
            self.iterations += self.active
            self.finish_converged()
            self.finish(length <= EXHAUSTED * system.unit * scale, "converged")
            if not self.active.any():
                break
            V, P = P.scale(_columns(self.inverse(length), P)), V
        self._update(H, G, taken)
        return i + 1

    def _orthogonalize(self, P: Block, count: int) -> tuple[Array, RealArray]:
        """Remove from each column of P its own basis vectors; return coefficients, and what is left."""
        b = self.system.b
        known = self.buffer[:, : count * b]
        total = np.zeros((count, b), self.dtype)
        for _ in range(2):  # twice is enough
            self.system.project(P)
            h = np.einsum("ijj->ij", to_host(known.dot(P)).reshape(count, b, b)).astype(self.dtype)
            self.system.reductions += 1
            known.combine(_small(_apart(h), P), out=P, alpha=-1, beta=1)
            total += h
        return total, self.system.norms(P)

    def _update(self, H: Array, G: Array, taken: NDArray[np.intp]) -> None:
        """Add K^-1 V y to X, y minimising each column's residual over the steps that it took."""
        y = np.zeros((int(taken.max()), self.system.b), self.dtype)
        for j, count in enumerate(taken):
            y[:count, j] = np.linalg.solve(H[j, :count, :count], G[j, :count])
        if len(y):
            V = self.buffer[:, : y.size]
            step = V.combine(_small(_apart(y), V))
            self.X.axpy(1, self.system.precondition(step))


def _finite(values: Array) -> Array:
    if not np.isfinite(values).all():
        raise BreakdownError(
            "linear solver: the operator or the preconditioner returned NaN or Inf for a finite block."
        )
    return values


def _rotate(H: Array, G: Array, rotations: list[tuple[Array, Array]], i: int) -> None:
    """Apply the old Givens rotations to column i of every Hessenberg matrix, and a new one that ends it."""
    for k, (c, s) in enumerate(rotations):
        upper, lower = H[:, k, i].copy(), H[:, k + 1, i].copy()
        H[:, k, i], H[:, k + 1, i] = c * upper + s * lower, -s.conj() * upper + c * lower
    upper, lower = H[:, i, i], H[:, i + 1, i]  # the lower one is real
    length = np.sqrt(np.abs(upper) ** 2 + np.abs(lower) ** 2)
    size = np.abs(upper)
    phase = np.where(size > 0, upper / np.where(size > 0, size, 1), 1)
    safe = np.where(length > 0, length, 1)
    c, s = np.where(length > 0, size / safe, 1), phase * lower.conj() / safe
    rotations.append((c, s))
    H[:, i, i], H[:, i + 1, i] = phase * length, 0
    G[:, i], G[:, i + 1] = c * G[:, i], -s.conj() * G[:, i]


def _apart(h: Array) -> Array:
    """Place the coefficients of column j, h[:, j], so that only its own basis vectors meet them."""
    count, b = h.shape
    return (h[:, :, None] * np.eye(b)[None, :, :]).reshape(count * b, b)


def _columns(factors: RealArray, block: Block) -> Array:
    """Return one real factor a column, in the precision of a block and on its device."""
    return array_namespace(block.array).asarray(factors.astype(block.array.real.dtype))


def _small(C: Array, block: Block) -> Array:
    """Return a small matrix in the type of a block and on its device."""
    return array_namespace(block.array).asarray(np.ascontiguousarray(C.astype(block.dtype)))
