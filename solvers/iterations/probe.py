"""Proof by one more Lanczos run that no copy of an eigenvalue is missing, for short columns on the host.

The run starts from a random vector z in the complement of the computed vectors and needs no
orthogonalisation. Its coefficients define polynomials p_j, orthonormal for the weights |u_i^H z|^2 of the
eigenvectors there. No measure with the same 2d - 1 moments has more weight at x than 1 / sum_(j<d) p_j(x)^2
(Christoffel). Once that is less than a random vector has along any direction but with a small probability,
there is no eigenvalue at x; and none beyond x, where the polynomials are larger still. If there is one, a
Ritz value moves beyond x instead: p_j(x) changes its sign. In contrast to a filter, this needs no bounds of
the spectrum.

References
----------
Szegő, Orthogonal Polynomials (1939), theorem 3.41.1; Kuczynski, Wozniakowski, SIAM J. Matrix Anal. Appl. 13
(1992) 1094 (random starts).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from blockvec import Operator, Profile
from blockvec.errors import BreakdownError

from ..blocks import Array, ColumnBlock, RealArray, applied, summed
from ..problem import Verification
from .counts import Counts
from .partial import vector_calls
from .rayleigh_ritz import Which, ranking_key
from .search_interval import UNLUCKY, Found, deflation
from .verification import Verdict

MOST_BYTES = 64 << 20  # of the vectors of a run
FURTHER = 0.25  # share of the steps so far that follow when a missed value appears, for its vector
NEGLIGIBLE = 0.1  # change of a value in units of the limits of residuals
EXHAUSTED = 1e-12  # remainder relative to the operator that ends a run: its space is invariant


@Profile.timed("verification")
def probe(
    operator: Any,
    found: Found,
    value: float,
    budget: int,
    rng: Any,
    stop: Callable[[], object],
) -> Verdict:
    """Look for eigenvalues in the complement of the computed vectors with ranking keys from `value` on.

    Parameters
    ----------
    value : float
        Larger than that of the last wanted value by its limit at least.
    budget : int
        Maximum number of steps.
    stop : callable
        Called after every step; a true value ends the run.

    Returns
    -------
    Verdict
        Without a verification where the budget was not enough.
    """
    value, deflated = _deflated(found, value)
    X = cast(ColumnBlock, found.X)[:, :deflated]
    run = _Run(operator, X, float(found.norm), rng)
    signs = (1.0, -1.0) if found.which == "LM" else (-1.0 if found.which == "SA" else 1.0,)
    ends = [_End(sign * value, sign) for sign in signs]
    least = (operator.shape[0] - X.shape[1]) / UNLUCKY**2
    most = min(budget, MOST_BYTES // (operator.shape[0] * operator.dtype.itemsize))
    while run.steps < most:
        alpha, before, after = run.step()
        if stop():
            return Verdict(None, run.counts, Verification.UNDECIDED, "cut short")
        is_over = not after > EXHAUSTED * run.norm
        is_resolved, is_exceeded = True, False
        for end in ends:
            total = end.add(alpha, before, run.norm if is_over else after)
            is_resolved, is_exceeded = is_resolved and total > least, is_exceeded or end.is_exceeded
        is_resolved = is_resolved or is_over
        # At a converged Ritz value the polynomials fall to rounding errors, which then grow with any sign.
        if is_exceeded or (is_resolved and run.highest(found.which) >= value):
            for _ in range(0 if is_over else int(FURTHER * run.steps)):
                if not run.step()[2] > EXHAUSTED * run.norm:
                    break
            missed = run.ritz_vectors(found.which, found.wanted + float(found.limits[-1]))
            if missed is None:  # not beyond the limit of the last wanted value after all
                break
            text = f"found {missed.shape[1]} more"
            return Verdict(missed, run.counts, Verification.UNDECIDED, text)
        if is_over and run.highest(found.which) + after >= value:
            break  # the space is invariant to its remainder, which hides values as near as that
        if is_resolved:
            is_whole = value <= found.wanted + found.limits[-1]
            beyond = "" if is_whole else f" (looked for values from {value:.6g} on)"
            text = "passed: a random vector in the complement has no component beyond what was found"
            return Verdict(None, run.counts, Verification.SEARCHED, text + beyond)
    return Verdict(None, run.counts, None, "")


def _deflated(found: Found, value: float) -> tuple[float, int]:
    """Choose how many vectors to project out, and the value that is then looked for.

    An unconverged vector has components of missed ones. Without these, their values are lower, by
    residual^2 / distance at most; that must not exceed half of the distance to the last wanted value.
    """
    keys, room = ranking_key(found.theta, found.which), (value - found.wanted - float(found.limits[-1])) / 2
    lowered, most, deflated = 0.0, max(room, NEGLIGIBLE * float(found.limits[-1])), found.k
    for d in range(found.k, deflation(found)[1]):
        more = float(found.residuals[d] ** 2 / max(value - keys[d], np.finfo(float).tiny))
        if lowered + more > most:
            break
        lowered, deflated = lowered + more, d + 1
    return value - min(lowered, max(room, 0.0)), deflated


class _End:
    """The polynomials p_j at a point of one end of the spectrum, and the sum of their squares."""

    def __init__(self, point: float, sign: float) -> None:
        self.point, self.sign = point, sign
        self._now, self._before, self._sum = 1.0, 0.0, 1.0
        self.is_exceeded = False  # whether a Ritz value lies beyond the point

    def add(self, alpha: float, before: float, after: float) -> float:
        """Take a step of their recurrence; return the sum of the squares."""
        following = ((self.point - alpha) * self._now - before * self._before) / after
        self.is_exceeded = self.is_exceeded or following * self._now * self.sign <= 0
        self._now, self._before = following, self._now
        self._sum += following * following
        return self._sum


class _Run:
    """The Lanczos recurrence in the complement of orthonormal columns X, from a random vector."""

    def __init__(self, operator: Operator, X: ColumnBlock, norm: float, rng: Any) -> None:
        self._metric: Operator | None = getattr(X, "inner", None)
        self._product = operator.vector_adder(is_hermitian=self._metric is None)
        self._X, self._layout = X.array, X.layout
        self._blocks = type(X)
        self._duals = applied(self._metric, X).array
        self._dot, self._axpy, self._scale, self._gemv = vector_calls(X)
        self._adjoint = 2 if X.dtype.kind == "c" else 1
        self._dual: Array | None = None  # M v of the last vector v, in the inner product of M
        self.norm = norm
        self.alphas: list[float] = []
        self.betas: list[float] = []
        z = np.ascontiguousarray(X.random_like(1, rng).array[:, 0])
        self._vectors = [z]
        for _ in range(2):
            self._project(z)
            self._multiply(1 / self._norm(z), z)

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return len(self.alphas)

    @property
    def counts(self) -> Counts:
        """Costs of the steps so far."""
        steps = self.steps
        return Counts(operator_columns=steps, block_applications=steps, reductions=3 * steps)

    def step(self) -> tuple[float, float, float]:
        """Take a step; return its coefficients alpha, the beta before and that after it."""
        v, before = self._vectors[-1], self.betas[-1] if self.betas else 0.0
        w = -before * self._vectors[-2] if self.betas else np.zeros_like(v)
        self._vectors.append(w)
        self._product(v, w)
        alpha = self._dot(v if self._dual is None else self._dual, w).real
        self._axpy(v, w, a=-alpha)
        self._project(w)  # last: what v has along X would return with a factor of alpha / beta
        after = self._norm(w)
        if not math.isfinite(after):
            raise BreakdownError("verification: the operator returned NaN or Inf for a finite block.")
        if after:
            self._multiply(1 / after, w)
        self.alphas.append(alpha)
        self.betas.append(after)
        return alpha, before, after

    def highest(self, which: Which) -> float:
        """Compute the largest ranking key of a Ritz value."""
        if self.steps == 1:
            return float(ranking_key(self.alphas[0], which))
        theta, failed = lapack.dsterf(*self._tridiagonal)
        return math.inf if failed else float(ranking_key(theta[[0, -1]], which).max())

    @property
    def _tridiagonal(self) -> tuple[RealArray, RealArray]:
        return np.array(self.alphas), np.array(self.betas[:-1])

    def ritz_vectors(self, which: Which, least: float) -> ColumnBlock | None:
        """Compute the Ritz vectors whose values have ranking keys above `least`."""
        theta, S = scipy.linalg.eigh_tridiagonal(*self._tridiagonal)
        S = S[:, ranking_key(theta, which) > least]
        if not S.shape[1]:
            return None
        V = np.array(self._vectors[: self.steps])
        return self._blocks((S.T @ V).T, self._layout)

    def _project(self, w: Array) -> None:
        if self._X.shape[1]:
            part = summed(self._layout, self._gemv(1.0, self._duals, w, trans=self._adjoint))
            self._gemv(-1.0, self._X, part, 1.0, w, overwrite_y=1)

    def _norm(self, w: Array) -> float:
        """Compute the norm of a vector, and M w in the inner product of M."""
        if self._metric is not None:
            self._dual = applied(self._metric, ColumnBlock(w[:, None], self._layout)).array[:, 0]
        square = self._dot(w if self._dual is None else self._dual, w).real
        return math.sqrt(max(square, 0.0)) if math.isfinite(square) else math.inf

    def _multiply(self, factor: float, w: Array) -> None:
        """Scale a vector, and M w with it."""
        self._scale(factor, w)
        if self._dual is not None:
            self._scale(factor, self._dual)
