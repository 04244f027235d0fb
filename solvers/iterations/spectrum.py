"""A sketch of a spectrum: bounds on both ends, and how many eigenvalues lie beyond a value.

A few dozen steps of the plain Lanczos recurrence, one for each of a few random vectors at a time, cost
little more than applying the operator: nothing is orthogonalised against more than the last two vectors,
and nothing is asked of the device before the end. Their Ritz values are nodes, and the squares of the first
components of the eigenvectors weights, of a quadrature for the density of eigenvalues.

References
----------
Zhou, Li, Numer. Linear Algebra Appl. 18 (2011) 107 (bounds); Lin, Saad, Yang, SIAM Review 58 (2016) 34,
section 3.2 (density of states by Lanczos). Deviation: the vectors run side by side, as columns of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockvec import array_namespace
from blockvec.errors import BreakdownError

from ..blocks import Block, Operator, RealArray, project_out, random_block, to_host
from .rayleigh_ritz import Which, ranking_key

__all__ = ["Sketch", "sketch_spectrum"]


BROKEN_DOWN = 1e3  # a remainder below so many u ||A|| is rounding, and ends a recurrence


@dataclass(frozen=True, slots=True)
class Sketch:
    """Nodes and weights of a quadrature over a spectrum.

    Attributes
    ----------
    theta : array, shape (q,)
        Ritz values of all vectors.
    counts : array, shape (q,)
        Eigenvalues that each of them stands for; they sum up to the dimension.
    low, high : float
        Bounds of the spectrum, but for luck.
    columns, applications, reductions : int
        What it has cost.
    """

    theta: RealArray
    counts: RealArray
    low: float
    high: float
    columns: int
    applications: int
    reductions: int

    @property
    def norm(self) -> float:
        """The largest magnitude of a Ritz value: ||A|| from below."""
        return float(np.abs(self.theta).max(initial=0.0))

    def least(self, which: Which) -> float:
        """Return `ranking_key` of the far end."""
        return self.low if which == "LA" else -self.high if which == "SA" else 0.0

    def crowd(self, value: float, which: Which) -> float:
        """Return how many eigenvalues seem to be more wanted than a value of `ranking_key`."""
        return float(self.counts[ranking_key(self.theta, which) > value].sum())

    def beyond(self, count: float, which: Which, below: float = np.inf) -> float:
        """Return `ranking_key` of the most wanted node beyond which at least `count` eigenvalues seem to lie.

        Parameters
        ----------
        count : float
        which : {"LA", "SA", "LM"}
        below : float
            A bound that the node must be less wanted than, if there is such a node.

        Examples
        --------
        >>> import numpy as np
        >>> sketch = Sketch(np.array([0.0, 1.0, 2.0]), np.array([5.0, 3.0, 2.0]), 0.0, 2.0, 0, 0, 0)
        >>> sketch.beyond(2, "LA"), sketch.beyond(3, "LA"), sketch.beyond(1, "LA", below=1.0)
        (1.0, 0.0, 0.0)
        """
        values = ranking_key(self.theta, which)
        order = np.argsort(-values, kind="stable")
        before = np.cumsum(self.counts[order]) - self.counts[order]
        fitting = np.flatnonzero((before >= count) & (values[order] < below))
        return float(values[order[fitting[0] if len(fitting) else -1]])


def sketch_spectrum(
    operator: Operator,
    like: Block,
    width: int,
    steps: int,
    rng: Any,
    locked: Block | None,
    *,
    most: int = 0,
    resolved: Callable[[Sketch], bool] = lambda sketch: True,
) -> Sketch:
    """Run `steps` steps of Lanczos from each of `width` random vectors at once.

    Parameters
    ----------
    operator : Operator
    like : BlockVector, shape (n, any)
        Says size, type and device.
    width, steps : int
    rng : numpy.random.Generator
    locked : BlockVector, shape (n, c), optional
        Columns whose complement the operator is restricted to.
    most : int
        Steps up to which their number is doubled until `resolved` holds for what they tell.
    resolved : callable

    Raises
    ------
    BreakdownError
        Where the operator returns NaN or Inf.
    """
    recurrence = _Recurrence(operator, like, width, rng, locked)
    n = int(like.shape[0]) - (0 if locked is None else int(locked.shape[1]))
    while True:
        recurrence.extend(min(steps, n))
        sketch = recurrence.sketch(n)
        if 2 * steps > min(most, n) or resolved(sketch):
            return sketch
        steps *= 2


class _Recurrence:
    """The recurrences of some vectors side by side, and the coefficients they have left on the device."""

    def __init__(self, operator: Operator, like: Block, width: int, rng: Any, locked: Block | None) -> None:
        self.operator, self.locked = operator, locked
        V = random_block(like, width, rng)
        self._xp = array_namespace(V.array)
        self._tiny = np.finfo(V.dtype).tiny
        project_out(self.locked, V)
        V.scale(1 / self._xp.maximum(V.norms(), self._tiny))
        self.V, self.previous, self.W = V, V.like(), V.like()
        self.alphas: list[Any] = []
        self.betas: list[Any] = []

    def extend(self, steps: int) -> None:
        """Go on to a number of steps."""
        while len(self.alphas) < steps:
            V, W = self.V, self.W
            self.operator.apply(V, out=W)
            project_out(self.locked, W)
            if self.alphas:
                W.axpy(-self.betas[-1], self.previous)
            self.alphas.append(V.column_dot(W).real)
            W.axpy(-self.alphas[-1], V)
            self.betas.append(W.norms())
            W.scale(1 / self._xp.maximum(self.betas[-1], self._tiny))
            self.previous, self.V, self.W = V, W, self.previous

    def sketch(self, n: int) -> Sketch:
        """Return what n eigenvalues look like; waits for the device once."""
        steps, width = len(self.alphas), self.V.shape[1]
        values = to_host(self._xp.stack([*self.alphas, *self.betas])).astype(np.float64)
        alphas, betas = values[:steps], values[steps:]
        if not np.isfinite(values).all():
            raise BreakdownError("the operator returned NaN or Inf for a finite block; check its entries.")
        unit = float(np.finfo(self.V.dtype).eps)
        noise = BROKEN_DOWN * unit * float(np.abs(alphas).max() + betas.max())
        nodes, counts, low, high = [], [], np.inf, -np.inf
        for alpha, beta in zip(alphas.T, betas.T, strict=True):
            small = np.flatnonzero(beta <= noise)
            length = int(small[0]) + 1 if len(small) else steps
            T = np.diag(alpha[:length]) + np.diag(beta[: length - 1], 1) + np.diag(beta[: length - 1], -1)
            theta, S = np.linalg.eigh(T)
            rest = beta[length - 1] * np.abs(S[-1])
            nodes.append(theta)
            counts.append(n / width * S[0] ** 2)
            low, high = min(low, theta[0] - rest[0]), max(high, theta[-1] + rest[-1])
        projections = 0 if self.locked is None else steps + 1
        return Sketch(
            theta=np.concatenate(nodes),
            counts=np.concatenate(counts),
            low=float(low),
            high=float(high),
            columns=width * steps,
            applications=steps,
            reductions=1 + 2 * steps + projections,
        )
