"""Correction methods of Jacobi-Davidson: new directions for the search space.

For pairs (theta, x) with residuals r = A x - theta x, in order of increasing cost:

- davidson: t = K^-1 r;
- olsen: t = K^-1 r, projected obliquely with respect to the vectors x;
- minres, gmres: (I - Q Q^H) (A - theta I) (I - Q Q^H) t = -r, solved approximately, where Q consists of the
  converged vectors and the vectors x;

or a user's function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockvec.errors import BreakdownError, ShapeError

from ..blocks import Block, RealArray, SystemOperator, assign, pick, to_host
from ..linear.gmres import block_gmres
from ..linear.minres import block_minres
from ..linear.recordings import Recordings
from ..linear.systems import Preconditioner, Progress, Projection
from .counts import Counts
from .jd_options import CorrectionProblem, JacobiDavidsonOptions

END_STEPS = 100  # steps of MINRES per correction at an end of the spectrum, at most
INSIDE_STEPS = 60  # the same inside a spectrum, where systems are indefinite and a new shift gains more
GMRES_STEPS = 30  # steps of GMRES per correction, at most: one cycle
END_GAIN = 0.1  # ratio of residuals of a pair that ends a correction at an end; PRIMME's ETolerance
INSIDE_GAIN = 0.3  # the same inside a spectrum
BELOW_LIMIT = 1 / 1.8  # ratio of the expected residual to its limit that ends a correction
PATIENCE = 40  # corrections per pair by K^-1 r, at most; good ones took 6 to 24, Jacobi's 48 to 114 (theory)
SAME_VECTOR = 1e-10  # squared sine of the angle up to which K^-1 q is reused


class _Counted:
    """An operator that counts the blocks and columns it is applied to; `count` adds others."""

    def __init__(self, operator: SystemOperator, counts: Counts) -> None:
        self.counted = operator
        self.shape, self.device = operator.shape, operator.device
        self.count = counts.apply

    def apply(self, X: Block, *arguments: Any, **options: Any) -> Any:
        self.count(X.shape[1])
        return self.counted.apply(X, *arguments, **options)


class AdaptiveStop:
    """Stop a correction when further steps reduce the linear residual but not that of the eigenpair.

    The residual of the pair after the correction, x + t, is computed from scalars of MINRES. It decreases
    with the residual of the linear system at first, and stagnates later.

    Parameters
    ----------
    norms, limits : array, shape (b,)
        Residual norms of the pairs, and their limits of convergence.
    offset : array, shape (b,)
        theta less the shift of its system.
    direction : array, shape (b,)
        1 where large values are wanted, -1 where small ones are, 0 inside a spectrum.

    References
    ----------
    Stathopoulos, SIAM J. Sci. Comput. 29 (2007) 481, section 3; with the test on a tenth of the residual,
    a third inside a spectrum, it is JDQMR with "ETolerance" of McCombs and Stathopoulos' PRIMME.
    """

    def __init__(
        self, norms: RealArray, limits: RealArray, offset: RealArray, direction: NDArray[np.intp]
    ) -> None:
        self.norms, self.limits, self.offset, self.direction = norms, limits, offset, direction
        self.step = 0
        self.value = offset
        self.linear = norms
        self.pair = np.full(len(norms), np.inf)

    def __call__(self, progress: Progress) -> NDArray[np.bool_]:
        """Return a mask of the systems to stop after this step."""
        self.step += 1
        linear = progress.residuals * self.norms
        scale = 1 + progress.xx
        cross = self.offset - progress.xb  # x^H (A - shift) (x + t), as the right-hand sides are -r
        value = (self.offset - 2 * progress.xb + progress.quadratic) / scale
        square = (linear**2 + cross**2) / scale - value**2
        pair = np.where(square > 0, np.sqrt(np.maximum(square, 0)), linear / np.sqrt(scale))
        extremal = self.direction != 0
        worse = np.where(
            extremal,
            self.direction * (value - self.value) < 0,
            np.abs(value - self.offset) > self.norms + pair,
        )
        if self.step > 1:
            behind = (self.linear <= pair) | (self.pair <= linear)
            enough = pair <= np.where(extremal, END_GAIN, INSIDE_GAIN) * self.norms
            done = np.minimum(linear, pair) <= BELOW_LIMIT * self.limits
            worse |= behind | enough | done
        self.value, self.linear, self.pair = value, linear, pair
        return worse


class Corrector:
    """Compute corrections by one method and add their cost to `counts`.

    `interior` tells whether the wanted values are inside the spectrum; `padded` rounds a width of Q up to one
    for which kernels are compiled.
    """

    def __init__(
        self,
        operator: SystemOperator,
        preconditioner: Preconditioner | None,
        how: JacobiDavidsonOptions,
        interior: bool,
        padded: Callable[[int], int],
        counts: Counts,
    ) -> None:
        self.operator, self.counts = _Counted(operator, counts), counts
        self.preconditioner, self.how, self.padded = preconditioner, how, padded
        self.minres_steps = how.inner_steps or (INSIDE_STEPS if interior else END_STEPS)
        self.undecided = how.correction == "auto" and preconditioner is not None
        self.corrections = 0
        self.method = how.correction
        if self.method == "auto":
            self.method = "davidson" if self.undecided else "minres"
        self._known: tuple[Block, Block] | None = None
        self._recordings = None if operator.device == "cpu" else Recordings(operator.device)

    def solve(self, problem: CorrectionProblem, stop: AdaptiveStop, converged: int) -> Block:
        """Compute a block of corrections, shape (n, b); `converged` is the number of converged pairs."""
        if self.undecided:
            self._decide(problem.R.shape[1], converged)
        if callable(self.method):
            return _checked("correction", self.method(problem), problem.R)
        if self.method == "davidson" and self.preconditioner is None:
            return problem.R
        if self.method in ("davidson", "olsen"):
            projection = Projection(problem.X if self.method == "olsen" else None, self.preconditioner)
            T = projection.precondition(problem.R)
            self.counts.preconditioner_columns += projection.preconditioned
            self.counts.reductions += projection.reductions
            return _checked("preconditioner", T, problem.R)
        return self._solved(problem, stop)

    def problem(
        self, X: Block, R: Block, converged: Callable[[], Block], shift: RealArray, tol: RealArray
    ) -> CorrectionProblem:
        """Return the correction problem of some pairs in the complement of converged ones."""

        def deflation() -> Block:
            known = converged()
            c, b = known.shape[1], X.shape[1]
            width = self.padded(c + b) if self.preconditioner is None else c + b
            Q = X.like(width)
            Q[:, :c], Q[:, c : c + b] = known, X
            Q[:, c + b :] = 0
            return Q

        return CorrectionProblem(self.operator, X, R, shift, tol, self.preconditioner, deflation)

    def _solved(self, problem: CorrectionProblem, stop: AdaptiveStop) -> Block:
        """Solve the correction equations by MINRES, or by GMRES if the preconditioner is indefinite."""
        projection = Projection(problem.Q, self.preconditioner, self._preconditioned(problem))
        B = problem.R.copy().scale(-1)
        adaptive = self.how.inner_stop == "adaptive" and self.method == "minres"
        while True:
            if self.method == "gmres":
                solved = block_gmres(
                    self.operator,
                    B,
                    shift=problem.shift,
                    tol=problem.tol,
                    maxiter=self.how.inner_steps or GMRES_STEPS,
                    Q=projection,
                )
            else:
                solved = block_minres(
                    self.operator,
                    B,
                    shift=problem.shift,
                    tol=0.0 if adaptive else problem.tol,
                    maxiter=self.minres_steps,
                    Q=projection,
                    stop=stop if adaptive else None,
                    recordings=self._recordings,
                )
            self.counts.reductions += solved.reductions
            self.counts.preconditioner_columns += solved.preconditioner_columns
            if "indefinite preconditioner" not in solved.reasons:
                X: Block = solved.X
                return X
            self.method, adaptive = "gmres", False

    def _decide(self, corrections: int, converged: int) -> None:
        """Change to MINRES if single applications of the preconditioner make too little progress."""
        self.corrections += corrections
        if self.corrections > PATIENCE * (converged + corrections):
            self.undecided, self.method = False, "minres"

    def _preconditioned(self, problem: CorrectionProblem) -> Block | None:
        """Return K^-1 Q; only columns that have changed since the last call are computed."""
        if self.preconditioner is None:
            return None
        Q, q = problem.Q, problem.Q.shape[1]
        same = np.zeros(q, bool)
        KQ = Q.like()
        if self._known is not None:
            old, K_old = self._known
            overlap = np.abs(to_host(old.dot(Q))) ** 2
            self.counts.reductions += 1
            for j in range(q):
                i = int(np.argmax(overlap[:, j]))
                if overlap[i, j] >= 1 - SAME_VECTOR:
                    same[j] = True
                    KQ[:, j : j + 1] = K_old[:, i : i + 1]
        fresh = np.flatnonzero(~same)
        if len(fresh):
            projection = Projection(None, self.preconditioner)
            K_fresh = projection.precondition(pick(Q, fresh))
            self.counts.preconditioner_columns += projection.preconditioned
            for place, column in enumerate(fresh.tolist()):
                KQ[:, column : column + 1] = K_fresh[:, place : place + 1]
        self._known = (Q, KQ)
        return KQ

    def snapshot(self) -> dict[str, Any]:
        """Return the state that later corrections depend on."""
        known = {}
        if self._known is not None:
            Q, KQ = (to_host(block.array) for block in self._known)
            known = {"preconditioned_from": Q, "preconditioned_to": KQ}
        return known | {
            "correction": self.method if isinstance(self.method, str) else "",
            "undecided": self.undecided,
            "corrections": self.corrections,
        }

    def resume(self, saved: dict[str, Any], like: Block) -> None:
        """Restore a state returned by `snapshot`, with blocks like `like`."""
        self.method = saved["correction"] or self.method
        self.undecided, self.corrections = saved["undecided"], saved["corrections"]
        if "preconditioned_from" in saved:
            Q, KQ = (like.like(saved["preconditioned_from"].shape[1]) for _ in range(2))
            for name, block in (("preconditioned_from", Q), ("preconditioned_to", KQ)):
                assign(block, saved[name])
            self._known = Q, KQ

    def forget(self) -> None:
        """Discard stored columns of K^-1 Q after a change of K."""
        self._known = None


def _checked(who: str, T: Block, R: Block) -> Block:
    """Check the return value of a user's function."""
    if getattr(T, "shape", None) != R.shape:
        raise ShapeError(
            f"{who}: returned shape {getattr(T, 'shape', None)} for residuals of shape {R.shape}; "
            "return a block of the same shape."
        )
    if not np.isfinite(to_host(T.norms())).all():
        raise BreakdownError(f"{who}: returned NaN or Inf for finite residuals.")
    return T
