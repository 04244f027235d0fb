"""A block on its way to an orthonormal one: W = V S + X R, and the sweeps over tall data that get it there.

Policies (`gram_schmidt`, `intrablock`) are written as their textbooks write them: a product, a projection,
a factor to divide by. This is what they act on. A change of X is carried out together with the next product
wherever `BlockVector.update_gram` and `combine_dot` make both in one pass: no policy speaks of passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from blockvec import array_namespace
from blockvec.errors import BreakdownError

from ..rayleigh_ritz import to_host
from .factors import NOISE, Step

__all__ = ["Coefficients", "Decomposition"]

Array = Any
Block = Any


@dataclass(frozen=True)
class Coefficients:
    """V^H M X on ranges of columns of V, where it was computed: on the device, and not waited for."""

    parts: Sequence[tuple[int, int, Array]]
    shape: tuple[int, int]
    dtype: Any

    @cached_property
    def host(self) -> Array:
        """All of it on the host, zero outside the ranges; waits."""
        S = np.zeros(self.shape, self.dtype)
        for begin, end, part in self.parts:
            S[begin:end] = to_host(part)
        return S


class Decomposition:
    """W = V S + X R, with X in W's place, in the inner product of M or the standard one.

    Parameters
    ----------
    W : BlockVector, shape (K, b)
        Overwritten.
    V : BlockVector, shape (K, m), or None
        Orthonormal columns.
    M : Operator or None
        Hermitian, positive definite.
    scale : float, array of shape (b,), or None
        Norm of what W came from; its rounding errors are noise.
    first : sequence of (begin, end) or None
        Column ranges of V for the first product with it.
    max_rank : int or None
        Columns to keep.

    Attributes
    ----------
    X : BlockVector, shape (K, b')
        Up to date after `finish`.
    R : array, shape (b', b)
    noise : array, shape (b',)
        Rounding noise in each column of X, as far as it tells signal from noise.
    error : array, shape (b',)
        What the last projection left in each column of X by rounding, in the direction of V for instance.
    lost : array of bool, shape (b',)
        Columns of X that are zero, because their direction was rounding noise. They come last.
    growth : float
        Of the last step: what it multiplied rounding errors by (see `factors.Step`).
    reductions : int
        States of X that products over the tall dimension were taken of: products of one state do not wait
        for one another.
    """

    def __init__(
        self,
        W: Block,
        V: Block | None = None,
        *,
        M: Any = None,
        scale: float | Array | None = None,
        first: Sequence[tuple[int, int]] | None = None,
        max_rank: int | None = None,
    ) -> None:
        self.X, self.M = W, M
        self.V = None if V is None or V.shape[1] == 0 else V
        self.width = W.shape[1]
        self.max_rank = self.width if max_rank is None else min(max_rank, self.width)
        self.unit = float(np.finfo(W.dtype).eps) / 2
        self.dtype = np.complex128 if W.dtype.kind == "c" else np.float64
        self.R = np.eye(self.width, dtype=self.dtype)
        self.lost = np.zeros(self.width, bool)
        self.growth = np.inf
        self.reductions = 0
        self.first = first
        self.noise = NOISE * self.unit * (np.ones(self.width) * (0 if scale is None else scale))
        self.error = np.zeros(self.width)
        self._noisy = scale is not None
        self._unjudged = False  # whether X was projected since its lengths were last seen
        self._taken: list[tuple[Coefficients, Array]] = []
        self._projection: Coefficients | None = None  # to be taken from X
        self._transform: Array | None = None  # to be multiplied to X; one of the two is pending at most
        self._image: Block | None = None  # M X
        self._reduced = False  # whether a product of this state of X was counted

    # --- products ---------------------------------------------------------------------------------

    def dot(self) -> Coefficients:
        """Return V^H M X, on the device."""
        ranges, self.first = self.first, None
        if self.V is None:
            return Coefficients([], (0, self.width), self.dtype)
        if ranges is None and self.M is None and self._is_square():
            whole = self.X.combine_dot(self._small(self._transform), self.V)
            self._changed()
            parts = [(0, self.V.shape[1], whole)]
        else:
            self._flush()
            ranges = [(0, self.V.shape[1])] if ranges is None else ranges
            image = self._apply_m()
            parts = [(i, j, self.V[:, i:j].dot(image)) for i, j in ranges if i < j]
        self._count()
        return Coefficients(parts, (self.V.shape[1], self.X.shape[1]), self.dtype)

    def gram(self) -> Array:
        """Return X^H M X on the host, in double precision; waits.

        On a GPU a wait costs some 20 us; the dozens of launches that the same work takes as kernels on
        b x b arrays cost a hundred times that.

        Raises
        ------
        BreakdownError
            Where X holds NaN or Inf, or M is not positive semidefinite.
        """
        if self._projection is not None and self.V is not None and self.M is None:
            *others, (begin, end, C) = self._projection.parts
            self._subtract(others)
            G = self.X.update_gram(self.V[:, begin:end], C)
            self._changed()
        else:
            self._flush()
            G = self.X.gram() if self.M is None else self.X.dot(self._apply_m())
        self._count()
        G = to_host(G).astype(self.dtype, copy=False)
        lengths = np.diagonal(G).real
        if not np.isfinite(G).all():
            raise BreakdownError(
                "orthogonalize: the block holds NaN or Inf; an operator or a start block brought them in."
            )
        if self.M is not None and lengths.min(initial=0) < -(self.unit**0.5) * np.abs(G).max(initial=0):
            raise BreakdownError(
                f"orthogonalize: x^H M x = {lengths.min():.3g} for a column of the block; M must be positive "
                "definite."
            )
        self.learn_rounding(np.maximum(lengths, 0))
        return (G + G.conj().T) / 2

    def sketch(self, rows: int, seed: int) -> Array:
        """Return Z^H X on the host, for a random Z that keeps lengths on average; waits."""
        self._flush()
        rank = 0 if (comm := getattr(self.X, "comm", None)) is None else comm.rank
        Z = self._random(rows, np.random.default_rng([seed, rank]))
        self._count()
        F = to_host(self.X.dot(Z)).astype(self.dtype, copy=False).conj().T
        return F / (self._variance() * rows) ** 0.5

    def rows(self) -> tuple[Array, Any]:
        """Return the array that X wraps, to be read once, and its communicator."""
        self._flush()
        self._count()
        return self.X.array, getattr(self.X, "comm", None)

    def learn_rounding(self, squares: Array) -> None:
        """Take levels of rounding from the squared lengths of X's columns, after a projection or at first.

        Lengths before a projection follow from V being orthonormal: ||w||^2 = ||s||^2 + ||x||^2. From then
        on the levels go through every step.
        """
        if self._unjudged:
            last = self._taken[-1][0]
            self.error = self.unit * np.sqrt(squares + (np.abs(last.host) ** 2).sum(axis=0))
            self._unjudged = False
        if not self._noisy:
            squares = squares + sum((np.abs(C.host) ** 2).sum(axis=0) for C, _ in self._taken)
            self.noise = NOISE * self.unit * np.sqrt(squares)
            self._noisy = True

    # --- changes ------------------------------------------------------------------------------------

    def project(self, C: Coefficients) -> None:
        """X <- X - V C, and S <- S + C R."""
        if not C.parts:
            return
        self._flush()
        self._projection = C
        self._taken.append((C, self.R))
        self._unjudged = True

    def apply(self, step: Step) -> None:
        """X <- X T, R <- R_step R, for a step X = (X T) R_step."""
        if self._transform is None:
            self._flush()
            self._transform = step.T
        else:
            self._transform = self._transform @ step.T
        self.R = step.R @ self.R
        self.growth = step.growth
        self.lost = step.lost
        weights = (np.abs(step.T) ** 2).T  # of independent contributions
        self.noise = np.sqrt(weights @ self.noise**2)
        self.error = np.sqrt(weights @ self.error**2)

    def limit_rank(self) -> None:
        """Keep the `max_rank` columns that W has most of, which rows of R tell; X shall be orthonormal."""
        if self.max_rank >= len(self.lost):
            return
        weight = np.where(self.lost, -1.0, np.linalg.norm(self.R, axis=1))
        kept = np.argsort(-weight, kind="stable")[: self.max_rank]
        T = np.eye(len(self.lost))[:, kept]
        self.apply(Step(T, T.T, self.lost[kept], self.growth))

    def refill(self, key: int) -> None:
        """Put random columns of about unit length where X's are lost; their rows of R stay zero."""
        self._flush()
        rows, columns = self.X.shape
        factors = self.lost / (self._variance() * max(rows, 1)) ** 0.5
        factors = factors.astype(np.zeros(0, self.X.dtype).real.dtype)
        self.X.axpy(array_namespace(self.X.array).asarray(factors), self._random(columns, key))
        self._changed()
        self.lost = np.zeros(columns, bool)

    def finish(self, into: Block | None) -> Array:
        """Carry out what is pending, put a copy of X into `into`, and return S."""
        if into is not None and self._transform is not None:
            self.X.combine(self._small(self._transform), out=into)
            self._flush()
        else:
            self._flush()
            if into is not None:
                into[:, :] = self.X
        S = np.zeros((0 if self.V is None else self.V.shape[1], self.width), self.dtype)
        for C, R in self._taken:
            S += C.host @ R
        return S

    # --- how ----------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Carry out the pending change of X by itself."""
        if self._projection is not None:
            self._subtract(self._projection.parts)
            self._changed()
        if self._transform is not None:
            out = self.X[:, : self._transform.shape[1]]
            self.X.combine(self._small(self._transform), out=out)
            self.X = out
            self._changed()

    def _subtract(self, parts: Sequence[tuple[int, int, Array]]) -> None:
        for begin, end, C in parts:
            self.V[:, begin:end].combine(C, out=self.X, alpha=-1, beta=1)  # type: ignore[index]

    def _changed(self) -> None:
        self._projection = self._transform = self._image = None
        self._reduced = False

    def _count(self) -> None:
        self.reductions += not self._reduced
        self._reduced = True

    def _apply_m(self) -> Block:
        """Return M X, anew for every state of X: a transformed image would hold other rounding errors."""
        if self.M is None:
            return self.X
        if self._image is None:
            self._image = self.M.apply(self.X)
        return self._image

    def _random(self, columns: int, rng: Any) -> Block:
        X = self.X
        return type(X).random(X.shape[0], columns, X.dtype, device=X.device, rng=rng)

    def _variance(self) -> float:
        """Return the mean square of a random element: uniform on [-1, 1) in each part."""
        return (2 if self.X.dtype.kind == "c" else 1) / 3

    def _is_square(self) -> bool:
        return self._transform is not None and self._transform.shape == (self.X.shape[1],) * 2

    def _small(self, C: Array) -> Array:
        """Bring a small matrix to X's type and device."""
        return array_namespace(self.X.array).asarray(np.ascontiguousarray(C.astype(self.X.dtype)))
