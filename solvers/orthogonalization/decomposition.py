"""The decomposition W = V S + X R, and the policy that makes X orthonormal.

Policies are written in terms of products, projections and triangular factors. A projection is
executed with the Gram matrix that follows (`BlockVector.update_gram`). Copies of small matrices to the host
are started before they are needed, and a division by R is queued before R is known on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from blockvec import inverse_factor, start_copy
from blockvec.errors import BreakdownError

from ..blocks import Array, Block, column_factors, small_matrix
from .factors import AMPLIFIED, ENOUGH, NOISE, PLAIN_GROWTH, PLAIN_NOISE, Step, cholesky, ranked

NORM_DROP = 0.5  # ratio of lengths after and before a pass, below which another follows; "twice is enough"
MAX_PASSES = 3  # passes over V after the first
CLEAN = 8.0  # u per column: ||X^H X - I||_F that rounding alone causes


class Coefficients:
    """V^H M X for ranges (begin, end, product) of columns of V, on the device and as a copy to the host."""

    def __init__(self, parts: Sequence[tuple[int, int, Array]], shape: tuple[int, int], dtype: Any) -> None:
        self.parts = parts
        self._zeros = np.zeros(shape, dtype)
        self._copies = [start_copy(part) for *_, part in parts]

    @cached_property
    def host(self) -> Array:
        """The coefficients on the host, zero outside the ranges; waits for the copy to complete."""
        for (begin, end, _), copy in zip(self.parts, self._copies, strict=True):
            self._zeros[begin:end] = copy()
        return self._zeros


class Decomposition:
    """W = V S + X R with X stored in W, in the inner product of M or the standard one.

    The parameters are those of `orthogonalize`. X and S are valid after `finish`.
    """

    def __init__(
        self,
        W: Block,
        V: Block | None = None,
        *,
        M: Any = None,
        scale: float | None = None,
        first: Sequence[tuple[int, int]] | None = None,
        max_rank: int | None = None,
    ) -> None:
        self.X, self.M = W, M
        self.V = None if V is None or V.shape[1] == 0 else V
        self.width = W.shape[1]
        self.max_rank = self.width if max_rank is None else min(max_rank, self.width)
        self.unit = float(np.finfo(W.dtype).eps) / 2
        self.dtype = np.complex128 if W.dtype.kind == "c" else np.float64
        self.S = np.zeros((0 if self.V is None else self.V.shape[1], self.width), self.dtype)
        self.R = np.eye(self.width, dtype=self.dtype)
        self.lost = np.zeros(self.width, bool)  # columns of X that are zero, last: they were rounding noise
        self.growth = np.inf  # of rounding errors in the last step (see `factors.Step`)
        self.reductions = 0  # products of the same state of X are independent, and count as one
        self.first = first
        # In each column of X: the level of rounding noise, and the error of the last projection, along V.
        self.noise = self.error = np.zeros(self.width)
        self._scale = scale
        self._seen = False  # whether the lengths of W's columns, and thus the noise, are known
        self._unjudged = False  # whether X was projected after its lengths were last computed
        self._terms: list[tuple[Coefficients, Array]] = []  # terms of S that are not yet added
        # Squared lengths of the parts that all projections removed from W, and the last one from X.
        self._taken = self._last_taken = np.zeros(self.width)
        self._projection: Coefficients | None = None  # to be subtracted from X
        self._image: Block | None = None  # M X
        self._reduced = False  # whether a product of this state of X has been counted

    def dot(self) -> Coefficients:
        """Return V^H M X, on the device."""
        ranges, self.first = self.first, None
        if self.V is None:
            return Coefficients([], (0, self.width), self.dtype)
        self._flush()
        ranges = [(0, self.V.shape[1])] if ranges is None else ranges
        image = self._apply_m()
        parts = [(i, j, self.V[:, i:j].dot(image)) for i, j in ranges if i < j]
        self._count()
        return Coefficients(parts, (self.V.shape[1], self.X.shape[1]), self.dtype)

    def gram(self) -> Array:
        """Return X^H M X on the host, in double precision; waits.

        Raises
        ------
        BreakdownError
            If X holds NaN or Inf, or M is not positive semidefinite.
        """
        copy = start_copy(self._gram())
        self._add_up()
        G: Array = copy().astype(self.dtype, copy=False)
        self._judge(G)
        return np.asarray((G + G.conj().T) / 2)

    def factorize(self, *, final: bool) -> None:
        """Divide X by the Cholesky factor of X^H M X; raises as `gram` does.

        The device computes the factor and divides before the host has seen it, and so does not wait. It skips
        the division for an ill-conditioned block, which takes a step with pivoting (`factors.ranked`). So
        does one with inaccurate columns: the division, which mixed noise into the others, is undone.
        """
        factor = inverse_factor(self._gram(), PLAIN_GROWTH)
        self.X.combine(factor.T, out=self.X)
        self._changed()
        self._add_up()
        found = factor.wait()
        self._judge(found.G)
        is_accurate = (self.noise**2 < PLAIN_NOISE**2 * np.diagonal(found.G).real).all()
        if found.growth < PLAIN_GROWTH and is_accurate:
            self._note(Step(found.T, found.R, np.zeros(len(found.R), bool), found.growth))
        else:
            step = ranked(found.G, self.noise, self.unit, final=final)
            self._note(step)
            self._multiply(found.R @ step.T)

    def _gram(self) -> Array:
        """Return X^H M X on the device."""
        if self._projection is not None and self.V is not None and self.M is None:
            *others, (begin, end, C) = self._projection.parts
            self._subtract(others)
            G = self.X.update_gram(self.V[:, begin:end], C)
            self._changed()
        else:
            self._flush()
            G = self.X.gram() if self.M is None else self.X.dot(self._apply_m())
        self._count()
        return G

    def _judge(self, G: Array) -> None:
        """Set noise levels from a Gram matrix of X, or raise `BreakdownError` if it is invalid.

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
        squares = np.maximum(lengths, 0)
        if self._unjudged:
            self.error = self.unit * np.sqrt(squares + self._last_taken)
            self._unjudged = False
        if not self._seen:
            before = np.sqrt(squares + self._taken)
            if self._scale is not None:
                before = np.full(self.width, before.max(initial=self._scale))
            self.noise = NOISE * self.unit * before
            self._seen = True

    def project(self, C: Coefficients) -> None:
        """Set X = X - V C and S = S + C R."""
        if not C.parts:
            return
        self._flush()
        self._projection = C
        self._terms.append((C, self.R))
        self._unjudged = True

    def apply(self, step: Step) -> None:
        """Set X = X T and R = R_step R for a step X = (X T) R_step."""
        self._flush()
        self._note(step)
        self._multiply(step.T)

    def _note(self, step: Step) -> None:
        """Note that X is multiplied by the matrix of a step."""
        self.R, self.growth, self.lost = step.R @ self.R, step.growth, step.lost
        weights = (np.abs(step.T) ** 2).T  # contributions are independent
        self.noise = np.sqrt(weights @ self.noise**2)
        self.error = np.sqrt(weights @ self.error**2)

    def limit_rank(self) -> None:
        """Keep the `max_rank` columns with the largest rows of R; X must be orthonormal."""
        if self.max_rank >= len(self.lost):
            return
        weight = np.where(self.lost, -1.0, np.linalg.norm(self.R, axis=1))
        kept = np.argsort(-weight, kind="stable")[: self.max_rank]
        T = np.eye(len(self.lost))[:, kept]
        self.apply(Step(T, T.T, self.lost[kept], self.growth))

    def refill(self, key: int) -> None:
        """Replace lost columns of X by random ones of about unit length; their rows of R stay zero."""
        self._flush()
        columns = self.X.shape[1]
        # The variance of an element: uniform on [-1, 1) in each part.
        variance = (2 if self.X.dtype.kind == "c" else 1) / 3
        factors = self.lost / (variance * max(self.X.n_global, 1)) ** 0.5
        self.X.axpy(column_factors(factors, self.X), self.X.random_like(columns, key))
        self._changed()
        self.lost = np.zeros(columns, bool)

    def finish(self, into: Block | None) -> Array:
        """Execute a pending projection, copy X to `into`, and return S."""
        self._flush()
        if into is not None:
            into[:, :] = self.X
        self._add_up()
        return self.S

    def _flush(self) -> None:
        if self._projection is not None:
            self._subtract(self._projection.parts)
            self._changed()

    def _multiply(self, T: Array) -> None:
        out = self.X[:, : T.shape[1]]
        self.X.combine(small_matrix(T, self.X), out=out)
        self.X = out
        self._changed()

    def _subtract(self, parts: Sequence[tuple[int, int, Array]]) -> None:
        for begin, end, C in parts:
            self.V[:, begin:end].combine(C, out=self.X, alpha=-1, beta=1)  # type: ignore[index]

    def _changed(self) -> None:
        self._projection = self._image = None
        self._reduced = False

    def _add_up(self) -> None:
        """Add pending terms to S; call it while the device executes queued work."""
        for C, R in self._terms:
            self.S += C.host @ R
            self._last_taken = (np.abs(C.host) ** 2).sum(axis=0)
            if not self._seen:
                self._taken = self._taken + self._last_taken
        self._terms.clear()

    def _count(self) -> None:
        self.reductions += not self._reduced
        self._reduced = True

    def _apply_m(self) -> Block:
        """Return M X, recomputed for every state of X: a transformed image has other rounding errors."""
        if self._image is None:
            self._image = self.X if self.M is None else self.M.apply(self.X)
        return self._image


def adaptive(d: Decomposition) -> None:
    """Project and factorise, twice, or once if small matrices prove that this was sufficient.

    The first half multiplies rounding errors by ||R^-1||, and propagates the loss of orthogonality of V by a
    factor ||S R^-1||; if this factor is at most one, errors do not accumulate over many blocks. Both are
    computed from small matrices that are on the host. The second half is repeated while a pass removes half
    of a column or more. If the first projection covers a part of V, one on all of V follows before the host
    waits. Lost columns of X become zero.

    References
    ----------
    Barlow, Smoktunowicz, Numer. Math. 123 (2013) 395; Carson, Lund, Ma, Oktay, arXiv:2408.10109 (BCGSI+A);
    Daniel, Gragg, Kaufman, Stewart, Math. Comp. 30 (1976) 772 (when to reorthogonalise); Fukaya, Kannan,
    Nakatsukasa, Yamamoto, Yanagisawa, SIAM J. Sci. Comput. 42 (2020) A477 (shifted CholQR).
    """
    for _ in range(1 if d.first is None else 2):
        C = d.dot()
        d.project(C)
    # The first division resolves a condition number of u^(-1/2), the second 1/u, and determines the rank; a
    # third one follows if the second was ill conditioned.
    for final in (False, True, True):
        d.factorize(final=final)
        if d.growth <= ENOUGH * len(d.lost):
            break
    d.limit_rank()
    if not len(d.lost) or d.lost.any():
        return  # random replacements must be projected, together with the other columns
    amplified = d.error.max() > AMPLIFIED * d.unit or d.growth > ENOUGH * d.width
    is_narrowed = len(d.lost) < d.width
    if amplified or is_narrowed or np.linalg.norm(np.linalg.solve(d.R.T, C.host.T)) > 1:
        clean(d)


def clean(d: Decomposition) -> None:
    """Project and orthonormalise until a pass changes little; no column of X may be zero."""
    identity = np.eye(len(d.lost))
    for _ in range(MAX_PASSES):
        d.project(d.dot())
        G = d.gram()
        if np.linalg.norm(G - identity) <= CLEAN * d.unit * len(G):
            return
        step = cholesky(G)
        d.apply(step)
        if np.diagonal(step.R).real.min(initial=1) >= NORM_DROP:
            return
