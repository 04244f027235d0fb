"""The decomposition W = V S + X R, whose X becomes orthonormal and orthogonal to V.

A projection is executed with the Gram matrix that follows (`BlockVector.update_gram`). Copies of small
matrices to the host are started before they are needed, and a division by R is queued before R is known on
the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockvec import inverse_factor, start_copy
from blockvec.errors import BreakdownError

from ..blocks import Array, Block, applied, column_factors, small_matrix, to_host
from .factors import AMPLIFIED, ENOUGH, NOISE, PLAIN_GROWTH, PLAIN_NOISE, Step, gram_root, ranked

NORM_DROP = 0.5  # ratio of lengths after and before a pass, below which another follows; "twice is enough"
MAX_PASSES = 3  # passes over V after the first
CLEAN = 8.0  # u per column: ||X^H X - I||_F that rounding alone causes


class Decomposition:
    """W = V S + X R with X stored in W, in the inner product of M or the standard one.

    The parameters are those of `orthogonalize`.
    """

    def __init__(self, W: Block, V: Block | None, M: Any, scale: float | None) -> None:
        self.X, self.M, self.scale = W, M, scale
        self.V = None if V is None or V.shape[1] == 0 else V
        self.width, self.unit = W.shape[1], float(np.finfo(W.dtype).eps) / 2
        dtype = np.complex128 if W.dtype.kind == "c" else np.float64
        self.S: Array = np.zeros((0 if self.V is None else self.V.shape[1], self.width), dtype)
        self.C = self.S  # of the last projection
        self.R = np.eye(self.width, dtype=dtype)
        self.lost = np.zeros(self.width, bool)  # columns of X that are zero, last: they were rounding noise
        self.growth = np.inf  # of rounding errors in the last step (see `factors.Step`)
        self.reductions = 0
        # In each column of X: the level of rounding noise, and the error of the last projection, along V.
        self.noise = self.error = np.zeros(self.width)
        self._is_judged = False  # whether the lengths of W's columns, and thus the noise, are known
        self._pending: list[tuple[Block, Array]] = []  # (U, C): U C is to be subtracted from X
        # Of each projection that is not yet part of S: ranges of columns of V, and copies of their C.
        self._projections: list[list[tuple[int, int, Callable[[], Array]]]] = []

    def project(self, ranges: Sequence[tuple[int, int]] | None = None) -> None:
        """Set X = X - V C and S = S + C R for C = V^H M X, by default with all of V."""
        if self.V is None:
            return
        self._subtract(self._pending)
        image = applied(self.M, self.X)
        ranges = [(0, self.V.shape[1])] if ranges is None else [(i, j) for i, j in ranges if i < j]
        views = [self.V[:, i:j] for i, j in ranges]
        self._pending = [(U, U.dot(image)) for U in views]
        copies = [(i, j, start_copy(C)) for (i, j), (_, C) in zip(ranges, self._pending, strict=True)]
        self._projections.append(copies)
        self.reductions += 1

    def factorize(self, *, final: bool) -> None:
        """Divide X by the Cholesky factor of X^H M X.

        The device computes the factor and divides before the host has seen it, and so does not wait. It skips
        the division for an ill-conditioned block, which takes a step with pivoting (`factors.ranked`). So
        does one with inaccurate columns: the division, which mixed noise into the others, is undone.
        """
        factor = inverse_factor(self._gram(), PLAIN_GROWTH)
        self.X.combine(factor.T, out=self.X)
        found = factor.wait()
        self._judge(found.G)
        is_accurate = (self.noise**2 < PLAIN_NOISE**2 * np.diagonal(found.G).real).all()
        if found.growth < PLAIN_GROWTH and is_accurate:
            self._note(Step(found.T, found.R, np.zeros(len(found.R), bool), found.growth))
        else:
            step = ranked(found.G, self.noise, self.unit, final=final)
            self._note(step)
            self._multiply(found.R @ step.T)

    def clean(self) -> None:
        """Project and orthonormalise until a pass changes little; no column of X may be zero."""
        identity = np.eye(len(self.lost))
        for _ in range(MAX_PASSES):
            self.project()
            G = to_host(self._gram()).astype(self.R.dtype)
            self._judge(G)
            if np.linalg.norm((G + G.conj().T) / 2 - identity) <= CLEAN * self.unit * len(G):
                return
            R, T = gram_root(G)
            self._note(Step(T, R, self.lost, self.growth))
            self._multiply(T)
            if np.diagonal(R).real.min(initial=1) >= NORM_DROP:
                return

    def limit_rank(self, most: int) -> None:
        """Keep the columns with the largest rows of R; X must be orthonormal."""
        if most >= len(self.lost):
            return
        weight = np.where(self.lost, -1.0, np.linalg.norm(self.R, axis=1))
        kept = np.argsort(-weight, kind="stable")[:most]
        T = np.eye(len(self.lost))[:, kept]
        self._note(Step(T, T.T, self.lost[kept], self.growth))
        self._multiply(T)

    def refill(self, key: int) -> None:
        """Replace lost columns of X by random ones of about unit length; their rows of R stay zero."""
        columns = self.X.shape[1]
        # The variance of an element: uniform on [-1, 1) in each part.
        variance = (2 if self.X.dtype.kind == "c" else 1) / 3
        factors = self.lost / (variance * max(self.X.n_global, 1)) ** 0.5
        self.X.axpy(column_factors(factors, self.X), self.X.random_like(columns, key))
        self.lost = np.zeros(columns, bool)

    def _subtract(self, parts: Sequence[tuple[Block, Array]]) -> None:
        for U, C in parts:
            U.combine(C, out=self.X, alpha=-1, beta=1)

    def _gram(self) -> Array:
        """Return X^H M X on the device, once what is pending is subtracted from X."""
        pending, self._pending = self._pending, []
        self.reductions += 1
        if pending and self.M is None:
            self._subtract(pending[:-1])
            U, C = pending[-1]
            return self.X.update_gram(U, C)
        self._subtract(pending)
        return self.X.gram() if self.M is None else self.X.dot(self.M.apply(self.X))

    def _judge(self, G: Array) -> None:
        """Add the projections before a Gram matrix of X to S, and set noise levels by it.

        Lengths before a projection follow from the orthonormality of V: ||w||^2 = ||s||^2 + ||x||^2. Later
        steps transform the levels.
        """
        lengths = np.diagonal(G).real
        if not np.isfinite(G).all():
            raise BreakdownError(
                "orthogonalize: the block holds NaN or Inf, or numbers whose squares overflow; check the "
                "operator and the start block."
            )
        if self.M is not None and lengths.min(initial=0) < -(self.unit**0.5) * np.abs(G).max(initial=0):
            raise BreakdownError(
                f"orthogonalize: x^H M x = {lengths.min():.3g} for a column of the block; M must be positive "
                "definite."
            )
        rest = before = np.maximum(lengths, 0)
        for parts in self._projections:
            self.C = np.zeros((len(self.S), len(self.R)), self.S.dtype)
            for begin, end, copy in parts:
                self.C[begin:end] = copy()
            self.S += self.C @ self.R
            taken = (np.abs(self.C) ** 2).sum(axis=0)
            before, self.error = before + taken, self.unit * np.sqrt(rest + taken)
        self._projections.clear()
        if not self._is_judged:
            levels = np.sqrt(before)
            if self.scale is not None:
                levels = np.full(self.width, levels.max(initial=self.scale))
            self.noise, self._is_judged = NOISE * self.unit * levels, True

    def _note(self, step: Step) -> None:
        """Note that X is multiplied by the matrix of a step."""
        self.R, self.growth, self.lost = step.R @ self.R, step.growth, step.lost
        weights = (np.abs(step.T) ** 2).T  # contributions are independent
        self.noise = np.sqrt(weights @ self.noise**2)
        self.error = np.sqrt(weights @ self.error**2)

    def _multiply(self, T: Array) -> None:
        out = self.X[:, : T.shape[1]]
        self.X = self.X.combine(small_matrix(T, self.X), out=out)


def orthonormalise(d: Decomposition, first: Sequence[tuple[int, int]] | None, most: int) -> None:
    """Project and factorise, twice, or once if small matrices prove that this was sufficient.

    The first half multiplies rounding errors by ||R^-1||, and propagates the loss of orthogonality of V by a
    factor ||S R^-1||; if this factor is at most one, errors do not accumulate over many blocks. Both are
    computed from small matrices that are on the host. The second half is repeated while a pass removes half
    of a column or more. If the first projection covers a part of V, one on all of V follows before the host
    waits. At most so many columns are kept; lost ones become zero.

    References
    ----------
    Barlow, Smoktunowicz, Numer. Math. 123 (2013) 395; Carson, Lund, Ma, Oktay, arXiv:2408.10109 (BCGSI+A);
    Daniel, Gragg, Kaufman, Stewart, Math. Comp. 30 (1976) 772 (when to reorthogonalise); Fukaya, Kannan,
    Nakatsukasa, Yamamoto, Yanagisawa, SIAM J. Sci. Comput. 42 (2020) A477 (shifted CholQR).
    """
    if first is not None:
        d.project(first)
    d.project()
    # The first division resolves a condition number of u^(-1/2), the second 1/u, and determines the rank; a
    # third one follows if the second was ill conditioned.
    for final in (False, True, True):
        d.factorize(final=final)
        if d.growth <= ENOUGH * len(d.lost):
            break
    d.limit_rank(most)
    if not len(d.lost) or d.lost.any():
        return  # random replacements must be projected, together with the other columns
    amplified = d.error.max() > AMPLIFIED * d.unit or d.growth > ENOUGH * d.width
    is_narrowed = len(d.lost) < d.width
    if amplified or is_narrowed or np.linalg.norm(np.linalg.solve(d.R.T, d.C.T)) > 1:
        d.clean()
