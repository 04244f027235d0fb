"""The decomposition W = V S + X R, whose X becomes orthonormal and orthogonal to V.

The last projection of a pass is executed with the Gram matrix that follows (`BlockVector.update_gram`); the
host waits once per pass, for all small matrices of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from blockvec import start_copies
from blockvec.errors import BreakdownError

from ..blocks import Array, Block, applied, column_factors, small_matrix
from ..small_matrices import AMPLIFIED, CLEAN, ENOUGH, NOISE, Step, gram_root, plain, ranked

NORM_DROP = 0.5  # ratio of lengths after and before a pass, below which another follows; "twice is enough"
MAX_PASSES = 3  # passes over V after the first


class Decomposition:
    """W = V S + X R with X stored in W, in the inner product of M or the standard one.

    The parameters are those of `orthogonalize`.
    """

    def __init__(self, W: Block, V: Block | None, M: Any, scale: float | None) -> None:
        self.X, self.V, self.M, self.scale = W, W[:, :0] if V is None else V, M, scale
        self.width, self.unit = W.shape[1], float(np.finfo(W.dtype).eps) / 2
        dtype = np.complex128 if W.dtype.kind == "c" else np.float64
        self.S: Array = np.zeros((self.V.shape[1], self.width), dtype)
        self.C = self.S  # of the last projection
        self.R = np.eye(self.width, dtype=dtype)
        self.lost = np.zeros(self.width, bool)  # columns of X that are zero, last: they were rounding noise
        self.growth = np.inf  # of rounding errors in the last step (see `factors.Step`)
        self.reductions = 0
        # In each column of X: the level of rounding noise, and the error of the last projection, along V.
        self.noise = self.error = np.zeros(self.width)

    def orthonormalise(self, first: Sequence[tuple[int, int]] | None, most: int) -> None:
        """Project and factorise, twice, or once if small matrices prove that this was sufficient.

        The first half multiplies rounding errors by ||R^-1||, and propagates the loss of orthogonality of V
        by a factor ||S R^-1||; if this factor is at most one, errors do not accumulate over many blocks. Both
        are computed from small matrices that are on the host. The second half is repeated while a pass
        removes half of a column or more. If the first projection covers a part of V, one on all of V follows
        before the host waits. At most so many columns are kept; lost ones become zero.

        References
        ----------
        Barlow, Smoktunowicz, Numer. Math. 123 (2013) 395; Carson, Lund, Ma, Oktay, arXiv:2408.10109
        (BCGSI+A); Daniel, Gragg, Kaufman, Stewart, Math. Comp. 30 (1976) 772 (when to reorthogonalise);
        Fukaya, Kannan, Nakatsukasa, Yamamoto, Yanagisawa, SIAM J. Sci. Comput. 42 (2020) A477 (shifted
        CholQR).
        """
        # The first division resolves a condition number of u^(-1/2), the second 1/u, and determines the rank;
        # a third one follows if the second was ill conditioned.
        for final in (False, True, True):
            G = self._gram([] if final else [first or [], [(0, len(self.S))]])
            self._take(plain(G, self.noise) or ranked(G, self.noise, self.unit, final=final))
            if self.growth <= ENOUGH * len(self.lost):
                break
        if most < len(self.lost):  # keep the columns with the largest rows of R
            weight = np.where(self.lost, -1.0, np.linalg.norm(self.R, axis=1))
            kept = np.argsort(-weight, kind="stable")[:most]
            T = np.eye(len(self.lost))[:, kept]
            self._take(Step(T, T.T, self.lost[kept], self.growth))
        if not len(self.lost) or self.lost.any():
            return  # random replacements must be projected, together with the other columns
        amplified = self.error.max() > AMPLIFIED * self.unit or self.growth > ENOUGH * self.width
        is_narrowed = len(self.lost) < self.width
        if amplified or is_narrowed or np.linalg.norm(np.linalg.solve(self.R.T, self.C.T)) > 1:
            self.clean()

    def clean(self) -> None:
        """Project and orthonormalise until a pass changes little; no column of X may be zero."""
        for _ in range(MAX_PASSES):
            G = self._gram([[(0, len(self.S))]])
            if np.linalg.norm((G + G.conj().T) / 2 - np.eye(len(G))) <= CLEAN * self.unit * len(G):
                return
            R, T = gram_root(G)
            self._take(Step(T, R, self.lost, self.growth))
            if np.diagonal(R).real.min(initial=1) >= NORM_DROP:
                return

    def refill(self, key: int) -> None:
        """Replace lost columns of X by random ones of about unit length; their rows of R stay zero."""
        columns = self.X.shape[1]
        # The variance of an element: uniform on [-1, 1) in each part.
        variance = (2 if self.X.dtype.kind == "c" else 1) / 3
        factors = self.lost / (variance * max(self.X.n_global, 1)) ** 0.5
        self.X.axpy(column_factors(factors, self.X), self.X.random_like(columns, key))
        self.lost = np.zeros(columns, bool)

    def _gram(self, passes: Sequence[Sequence[tuple[int, int]]]) -> Array:
        """Project X on ranges of columns of V, in turn, and return X^H M X on the host.

        Adds the projections to S, and sets noise levels. Lengths before a projection follow from the
        orthonormality of V: ||w||^2 = ||s||^2 + ||x||^2.
        """
        X, V, M, G = self.X, self.V, self.M, None
        removed: list[list[tuple[int, int, Array]]] = []  # per pass, ranges and their coefficients
        for number, ranges in enumerate(passes):
            if not (views := [(i, j, V[:, i:j]) for i, j in ranges if i < j]):
                continue
            image = applied(M, X)
            removed.append([(i, j, U.dot(image)) for i, j, U in views])
            for (*_, U), (_, j, C) in zip(views, removed[-1], strict=True):
                if M is None and (number, j) == (len(passes) - 1, len(self.S)):
                    G = X.update_gram(U, C)
                else:
                    U.combine(C, out=X, alpha=-1, beta=1)
        if G is None:
            G = X.gram() if M is None else X.dot(M.apply(X))
        *copies, G = start_copies(*(C for part in removed for *_, C in part), G)()
        G = G.astype(self.R.dtype)
        self._require_finite(G)
        rest = before = np.maximum(np.diagonal(G).real, 0)
        products = iter(copies)
        for part in removed:
            self.C = np.zeros((len(self.S), len(self.R)), self.S.dtype)
            for i, j, _ in part:
                self.C[i:j] = next(products)
            self.S += self.C @ self.R
            taken = (np.abs(self.C) ** 2).sum(axis=0)
            before, self.error = before + taken, self.unit * np.sqrt(rest + taken)
        if not self.reductions:
            levels = np.sqrt(before)
            if self.scale is not None:
                levels = np.full(self.width, levels.max(initial=self.scale))
            self.noise = NOISE * self.unit * levels
        self.reductions += len(removed) + 1
        return G

    def _require_finite(self, G: Array) -> None:
        if not np.isfinite(G).all():
            raise BreakdownError(
                "orthogonalize: the block holds NaN or Inf, or numbers whose squares overflow; check the "
                "operator and the start block."
            )
        least = np.diagonal(G).real.min(initial=0)
        if self.M is not None and least < -math.sqrt(self.unit) * np.abs(G).max(initial=0):
            raise BreakdownError(
                f"orthogonalize: x^H M x = {least:.3g} for a column of the block; M must be positive "
                "definite."
            )

    def _take(self, step: Step) -> None:
        """Multiply X by the matrix of a step."""
        self.R, self.growth, self.lost = step.R @ self.R, step.growth, step.lost
        weights = (np.abs(step.T) ** 2).T  # contributions are independent
        self.noise = np.sqrt(weights @ self.noise**2)
        self.error = np.sqrt(weights @ self.error**2)
        self.X = self.X.combine(small_matrix(step.T, self.X), out=self.X[:, : step.T.shape[1]])
