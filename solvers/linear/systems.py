"""Blocks of linear systems with one shift per column: the parts shared by `block_minres` and `block_gmres`.

With an orthonormal block Q the systems are those of Jacobi-Davidson's correction equation,

    (I - Q Q^H) (A - sigma_j I) (I - Q Q^H) x_j = (I - Q Q^H) b_j,   Q^H x_j = 0,

which are regular even if sigma_j is an eigenvalue whose eigenvectors Q contains. A preconditioner, one
approximation K of A - sigma_j I for all columns, is then projected obliquely,
K^-1 - K^-1 Q (Q^H K^-1 Q)^-1 Q^H K^-1, the inverse of K on the complement of Q.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockvec import as_operator
from blockvec.errors import BreakdownError, OptionError, ShapeError
from blockvec.system.frozen import frozen

from ..blocks import Array, Block, Operator, RealArray, column_factors, project_out, small_matrix, to_host
from ..problem import Counts

SINGULAR = 1000.0  # u ||A - sigma I||: pivots below it are zero; rounding left up to 100 in tests
EXHAUSTED = 10.0  # u ||A - sigma I||: shorter directions are zero, and the space is invariant
INDEFINITE = 100.0  # u ||r|| ||K^-1 r||: a product r^H K^-1 r below minus that exceeds rounding errors

Preconditioner = Callable[[Block], Block]
# Reasons for stopping with SciPy's codes: 0, the number of iterations for 1, and for breakdowns -1.
CODES = {"converged": 0, "maxiter": 1, "stopped": 1, "stagnated": 1, "underflow": -1}
BREAKDOWNS = {
    "indefinite": "A is not positive definite, which conjugate gradients need: use minres",
    "indefinite preconditioner": "M is not positive definite; give another, or none",
    "singular": "A or M is singular, and the residual cannot be reduced further",
}


@frozen
class Linear:
    """Solutions of a block of linear systems.

    Attributes
    ----------
    X : BlockVector, shape (n, b), or array of the shape of B
    residuals : array, shape (b,)
        Residual norms by the method's recurrence: ||b - (A - sigma I) x||_2, or (r^H K^-1 r)^(1/2) in MINRES
        with a preconditioner.
    initial : array, shape (b,)
        The same norms of the right-hand sides; tolerances are relative to them.
    iterations : array of int, shape (b,)
        Steps per column.
    reasons : tuple of str
        Reason for stopping, per column: "converged"; "maxiter"; "stopped" (by the caller's test); "singular"
        (the residual is orthogonal to the range of A - sigma I up to rounding); "stagnated" (a cycle of GMRES
        did not reduce the residual, or true residuals are at their limit by rounding); "indefinite" (A is
        not positive definite, in `cg`); "indefinite preconditioner"; "underflow" (squares of the right-hand
        side are zero in its type: multiply it by a power of two).
    operator_columns, block_applications : int
        Number of columns and blocks that A was applied to.
    preconditioner_columns : int
    reductions : int
        Inner products over the tall dimension.
    method : str
        What `solve` chose: "factors", "cg", "minres" or "gmres".
    """

    X: Any
    residuals: RealArray
    initial: RealArray
    iterations: NDArray[np.intp]
    reasons: tuple[str, ...]
    operator_columns: int
    block_applications: int
    preconditioner_columns: int
    reductions: int
    method: str = ""

    @property
    def converged(self) -> bool:
        """Whether every column reached its tolerance."""
        return all(reason == "converged" for reason in self.reasons)

    @property
    def codes(self) -> NDArray[np.intp]:
        """SciPy's codes, per column: 0 if converged, its iterations if not, -1 after a breakdown."""
        codes = np.array([CODES.get(reason, -1) for reason in self.reasons], np.intp)
        return np.where(codes > 0, np.maximum(self.iterations, 1), codes)

    @property
    def info(self) -> int:
        """The worst of the codes: a negative one, otherwise the largest."""
        return int(self.codes.min(initial=0) or self.codes.max(initial=0))


# The costs of a result so far.
COSTS = attrgetter("operator_columns", "block_applications", "preconditioner_columns", "reductions")


@frozen
class Progress:
    """State of every column for a caller's stopping test; A - sigma I is projected.

    Attributes
    ----------
    residuals : array, shape (b,)
        Relative to those of the right-hand sides.
    xb, quadratic, xx : array, shape (b,)
        x^H b, x^H (A - sigma I) x and x^H x.
    """

    residuals: RealArray
    xb: RealArray
    quadratic: RealArray
    xx: RealArray


class Projection:
    """The projector I - Q Q^H for an orthonormal Q, and a preconditioner K^-1 on its range."""

    def __init__(
        self, Q: Block | None, preconditioner: Preconditioner | None = None, counts: Counts | None = None
    ) -> None:
        self.Q = Q if Q is not None and Q.shape[1] else None
        self.preconditioner = preconditioner
        self.counts = Counts() if counts is None else counts  # also of solves with this projection
        if preconditioner is not None and self.Q is not None:
            self.KQ = self._apply(self.Q.copy())
            self.inverse = np.linalg.pinv(finite(to_host(self.Q.dot(self.KQ))))
            self.counts.reductions += 1

    def project(self, X: Block) -> Block:
        """Set X = X - Q Q^H X and return it."""
        if self.Q is not None:
            project_out(self.Q, X)
            self.counts.reductions += 1
        return X

    def precondition(self, R: Block) -> Block:
        """Return K^-1 R in the complement of Q, or R itself without a preconditioner."""
        if self.preconditioner is None:
            return R
        Z = self._apply(R)
        if self.Q is not None:
            C = self.inverse @ to_host(self.Q.dot(Z))
            self.KQ.combine(small_matrix(C, R), out=Z, alpha=-1, beta=1)
            self.counts.reductions += 1
            self.project(Z)  # rounding errors along Q would grow from step to step
        return Z

    def squares(self, R: Block, Z: Block) -> RealArray:
        """Return r^H K^-1 r from Z = K^-1 R on the host, and -1 if it is negative beyond rounding errors."""
        squares = np.asarray(to_host(R.column_dot(Z).real), np.float64)
        if (squares < 0).any():
            bound = INDEFINITE * float(np.finfo(R.dtype).eps) / 2 * to_host(R.norms()) * to_host(Z.norms())
            squares = np.where(squares < -bound, -1.0, np.maximum(squares, 0.0))
        return squares

    def _apply(self, R: Block) -> Block:
        assert self.preconditioner is not None
        Z = of_its_shape("preconditioner", self.preconditioner(R), R)
        self.counts.precondition(R.shape[1])
        if Z is R:
            raise OptionError("preconditioner: returned its argument; return a new block, such as R.copy().")
        return Z


class LinearSystems:
    """The systems of a block, one per column, and their state; derived classes iterate on it."""

    def __init__(
        self,
        A: Any,
        B: Block,
        shift: Any,
        tol: Any,
        maxiter: int | None,
        with_first: bool,
        Q: Block | Projection | None,
        preconditioner: Preconditioner | None,
    ) -> None:
        self.operator: Operator = A if hasattr(A, "apply") else as_operator(A)
        self.projection = Q if isinstance(Q, Projection) else Projection(Q, preconditioner)
        self.counts, Q = self.projection.counts, self.projection.Q
        self.n, self.b = B.n_global, B.shape[1]
        if self.operator.shape != (self.n, self.n):
            raise ShapeError(f"A has shape {self.operator.shape} but B has {self.n} rows; A must be square.")
        if Q is not None and Q.shape[0] != B.shape[0]:
            raise ShapeError(f"Q has {Q.shape[0]} rows but B has {B.shape[0]}.")
        self.unit = float(np.finfo(B.dtype).eps) / 2
        self.tol = self._per_column("tol", tol).real.astype(np.float64)
        shift = self._per_column("shift", shift)
        self.is_real = not np.imag(shift).any()
        if not self.is_real and B.dtype.kind != "c":
            raise OptionError(f"shift: got complex numbers and B of type {B.dtype}; give a complex B.")
        self.shift: Array = shift.real.astype(B.array.real.dtype) if self.is_real else shift.astype(B.dtype)
        self.B: Block = self.projection.project(B.copy())
        self.X: Any = None
        self.left, self.with_first = self.n if maxiter is None else maxiter, with_first
        self.active, self.iterations = np.ones(self.b, bool), np.zeros(self.b, np.intp)
        self.reasons = np.full(self.b, "maxiter", object)

    def _per_column(self, name: str, value: Any) -> Array:
        values = np.asarray(to_host(value) if np.ndim(value) else value)
        if values.shape not in ((), (self.b,)):
            raise ShapeError(
                f"{name} has shape {values.shape}; B has {self.b} columns; give {self.b}, or one."
            )
        return np.broadcast_to(values, (self.b,))

    def begin(self, initial: RealArray) -> None:
        """Set the norms of the right-hand sides; zero columns are solved by zero."""
        self.counts.reductions += 1
        self.residuals, self.initial, self.limits = initial.copy(), initial, self.tol * initial
        if (zero := initial == 0).any():
            self.finish(underflown(self.B, zero), "underflow")
            self.finish(zero, "converged")

    def finish(self, which: NDArray[np.bool_], reason: str) -> None:
        """Mark columns as finished."""
        self.reasons[which & self.active] = reason
        self.active &= ~which

    @property
    def ended(self) -> bool:
        """Whether all columns have stopped, or with `with_first` any."""
        return not (self.active.all() if self.with_first else self.active.any())

    def result(self) -> Linear:
        """Return the solutions."""
        fields = self.X, self.residuals, self.initial, self.iterations, tuple(self.reasons.tolist())
        return Linear(*fields, *COSTS(self.counts))


def of_its_shape(who: str, Z: Any, R: Block) -> Block:
    """Check that a function of a block R has returned a block of its shape, and pass that on."""
    if getattr(Z, "shape", None) != R.shape:
        raise ShapeError(
            f"{who}: returned shape {getattr(Z, 'shape', None)} for a block of shape {R.shape}; "
            "return a block of the same shape."
        )
    return Z  # type: ignore[no-any-return]


def lengths_of(X: Block) -> RealArray:
    """Compute the Euclidean norms of the columns, on the host in double precision."""
    return np.asarray(finite(to_host(X.norms())), np.float64)


def underflown(B: Block, doubtful: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Check which of the doubtful columns are not zero, although their squares may be."""
    factors = np.where(doubtful, float(np.finfo(B.dtype).tiny) ** -0.5, 1.0)
    scaled = B.copy().scale(column_factors(factors, B))
    return np.asarray(doubtful & (to_host(scaled.norms()) > 0))


def inverse_where(xp: Any, values: Array, active: Array) -> Array:
    """Return 1 / values for active columns and zero for the others, by NumPy or CuPy."""
    inverse: Array = xp.where(active, 1.0 / xp.where(active, values, 1.0), 0.0)
    return inverse


def finite(values: Array) -> Array:
    """Return the values, or raise `BreakdownError` if there are others than finite ones."""
    if not np.isfinite(values).all():
        raise BreakdownError(
            "linear solver: the operator or the preconditioner returned NaN or Inf for a finite block, or "
            "numbers whose squares overflow."
        )
    return values
