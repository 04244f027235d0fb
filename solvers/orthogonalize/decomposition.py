"""A block on its way to an orthonormal one: W = V S + X R, and the sweeps over tall data that get it there.

Policies (`gram_schmidt`, `intrablock`) are written as their textbooks write them: a product, a projection,
a factor to divide by. This is what they act on. A change of X is carried out together with the next product
wherever `BlockVector.update_gram` and `combine_dot` make both in one pass: no policy speaks of passes. And
none speaks of waiting: copies of small matrices are on their way to the host before anybody asks for them,
and where only a division by R is left it is queued before the host knows R.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from blockvec import inverse_factor, start_copy
from blockvec.errors import BreakdownError

from ..blocks import Array, Block, column_factors, random_block, small_matrix
from .factors import NOISE, PLAIN_GROWTH, Step, is_accurate

__all__ = ["Coefficients", "Decomposition"]


class Coefficients:
    """V^H M X on ranges (begin, end, product) of columns of V: on the device, and on its way to the host."""

    def __init__(self, parts: Sequence[tuple[int, int, Array]], shape: tuple[int, int], dtype: Any) -> None:
        self.parts = parts
        self._zeros = np.zeros(shape, dtype)
        self._copies = [start_copy(part) for *_, part in parts]

    @cached_property
    def host(self) -> Array:
        """All of it on the host, zero outside the ranges; waits unless a later Gram matrix is there."""
        for (begin, end, _), copy in zip(self.parts, self._copies, strict=True):
            self._zeros[begin:end] = copy()
        return self._zeros


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
    scale : float or None
        Norm of what W came from, as far as it is known; its rounding errors are noise.
    first : sequence of (begin, end) or None
        Column ranges of V for the first product with it.
    max_rank : int or None
        Columns to keep.

    Attributes
    ----------
    X : BlockVector, shape (K, b')
    S : array, shape (m, b)
        Like X up to date after `finish`.
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
        self.lost = np.zeros(self.width, bool)
        self.growth = np.inf
        self.reductions = 0
        self.first = first
        self.noise = self.error = np.zeros(self.width)
        self._scale = scale
        self._seen = False  # whether the lengths of W's columns are known, and with them the noise
        self._unjudged = False  # whether X was projected since its lengths were last seen
        self._terms: list[tuple[Coefficients, Array]] = []  # of S that are not added up
        # Squared lengths of what all projections took from W's columns, and the last one from X's.
        self._taken = self._last_taken = np.zeros(self.width)
        self._projection: Coefficients | None = None  # to be taken from X
        self._transform: Array | None = None  # to be multiplied to X; one of the two is pending at most
        self._image: Block | None = None  # M X
        self._reduced = False  # whether a product of this state of X was counted
        self._sent: tuple[Array, Array] | tuple[()] = ()  # a small matrix here and on X's device
        # Whether X is as good as done when it is divided by R: no product that could share the pass follows.
        self._divides_at_once = self.V is None or first is not None

    # --- products ---------------------------------------------------------------------------------

    def dot(self) -> Coefficients:
        """Return V^H M X, on the device."""
        ranges, self.first = self.first, None
        if self.V is None:
            return Coefficients([], (0, self.width), self.dtype)
        T = self._transform
        if ranges is None and self.M is None and T is not None and T.shape == (self.X.shape[1],) * 2:
            whole = self.X.combine_dot(self._small(T), self.V)
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

        Raises
        ------
        BreakdownError
            Where X holds NaN or Inf, or M is not positive semidefinite.
        """
        copy = start_copy(self._gram())
        self._add_up()
        G: Array = copy().astype(self.dtype, copy=False)
        self._judge(G)
        return np.asarray((G + G.conj().T) / 2)

    def factorize(self, otherwise: Callable[[Array], Step], *, last: bool = False) -> None:
        """Divide X by the Cholesky factor of X^H M X; raises as `gram` does.

        The device makes the factor, and where nothing can share the pass it divides by it before the host has
        seen it: what the host does then takes no time of the device's. A factor of an ill-conditioned block
        is refused there; one that mixes noise into accurate columns is taken back with the next step.

        Parameters
        ----------
        otherwise : callable
            Returns the step from the Gram matrix where it is not that well conditioned.
        last : bool
            Whether no product follows that could share a pass with the division.
        """
        factor, at_once = inverse_factor(self._gram(), PLAIN_GROWTH), self._divides_at_once or last
        if at_once:
            self.X.combine(factor.T, out=self.X)
            self._changed()
        self._add_up()
        found = factor.wait()
        self._judge(found.G)
        plain = found.growth < PLAIN_GROWTH and is_accurate(found.G, self.noise)
        if plain:
            self.apply(Step(found.T, found.R, np.zeros(len(found.R), bool), found.growth))
            self._sent = found.T, factor.T
        else:
            self.apply(otherwise(found.G))
        if at_once:
            self._transform = None if plain else found.R @ self._transform

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
        """Learn the level of rounding from a Gram matrix of X, or say what is wrong with it."""
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

    def sketch(self, rows: int, seed: int) -> Array:
        """Return Z^H X on the host, for a random Z that keeps lengths on average; waits."""
        self._flush()
        rank = 0 if (comm := getattr(self.X, "comm", None)) is None else comm.rank
        Z = self._random(rows, np.random.default_rng([seed, rank]))
        self._count()
        F: Array = start_copy(self.X.dot(Z))().astype(self.dtype, copy=False).conj().T
        return np.asarray(F / (self._variance() * rows) ** 0.5)

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
        self._add_up()
        if self._unjudged:
            self.error = self.unit * np.sqrt(squares + self._last_taken)
            self._unjudged = False
        if not self._seen:
            lengths = np.sqrt(squares + self._taken)
            if self._scale is not None:
                lengths = np.full(self.width, lengths.max(initial=self._scale))
            self.noise = NOISE * self.unit * lengths
            self._seen = True

    # --- changes ------------------------------------------------------------------------------------

    def project(self, C: Coefficients) -> None:
        """X <- X - V C, and S <- S + C R."""
        if not C.parts:
            return
        self._flush()
        self._projection = C
        self._terms.append((C, self.R))
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
        self.X.axpy(column_factors(factors, self.X), self._random(columns, key))
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
        self._add_up()
        return self.S

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

    def _add_up(self) -> None:
        """Add to S what was projected; best while the device works on what is queued after the products."""
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
        """Return M X, anew for every state of X: a transformed image would hold other rounding errors."""
        if self.M is None:
            return self.X
        if self._image is None:
            self._image = self.M.apply(self.X)
        return self._image

    def _random(self, columns: int, rng: Any) -> Block:
        return random_block(self.X, columns, rng)

    def _variance(self) -> float:
        """Return the mean square of a random element: uniform on [-1, 1) in each part."""
        return (2 if self.X.dtype.kind == "c" else 1) / 3

    def _small(self, C: Array) -> Array:
        """Bring a small matrix to X's type and device."""
        if self._sent and C is self._sent[0]:
            return self._sent[1]
        return small_matrix(C, self.X)
