"""Spectrum sketches: bounds of a spectrum and its approximate density of eigenvalues.

A few dozen steps of the plain Lanczos recurrence, for a few random vectors simultaneously, cost little more
than the applications of the operator: there is no orthogonalisation beyond the last two vectors and no
synchronisation with the device before the end. The Ritz values and the squared first components of their
eigenvectors are nodes and weights of a quadrature for the density of eigenvalues.

References
----------
Zhou, Li, Numer. Linear Algebra Appl. 18 (2011) 107 (bounds); Lin, Saad, Yang, SIAM Review 58 (2016) 34,
section 3.2 (density of states by Lanczos). Deviation: the recurrences of all vectors run
simultaneously, as columns of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockvec import array_namespace
from blockvec.errors import BreakdownError

from ..blocks import Block, Operator, RealArray, project_out, to_host
from .rayleigh_ritz import Which, ranking_key

BROKEN_DOWN = 1e3  # remainders below BROKEN_DOWN * u * ||A|| are rounding errors: the recurrence ends


@dataclass(frozen=True, slots=True)
class Sketch:
    """Nodes and weights of a quadrature over a spectrum."""

    theta: RealArray  # Ritz values of all vectors, shape (q,)
    counts: RealArray  # number of eigenvalues per Ritz value; their sum is the dimension
    low: float  # bound of the spectrum, with high probability, like `high`
    high: float
    columns: int  # operation counts, as of `Counts`
    applications: int
    reductions: int
    # Per node: the vector it belongs to, and a distance within which there is an eigenvalue.
    vectors: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))
    distances: RealArray = field(default_factory=lambda: np.zeros(0))

    @property
    def norm(self) -> float:
        """The largest magnitude of a Ritz value, a lower bound of ||A||."""
        return float(np.abs(self.theta).max(initial=0.0))

    def least(self, which: Which) -> float:
        """Return the ranking key of the unwanted end."""
        return self.low if which == "LA" else -self.high if which == "SA" else 0.0

    def crowd(self, value: float, which: Which) -> float:
        """Estimate the number of eigenvalues with a ranking key above `value`."""
        return float(self.counts[ranking_key(self.theta, which) > value].sum())

    def beyond(self, count: float, which: Which, below: float = np.inf) -> float:
        """Return the largest ranking key below `below` above which `count` eigenvalues or more lie.

        `below` does not bind if no node satisfies it.

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
    """Run `steps` Lanczos steps from each of `width` random vectors and compute a sketch.

    The number of steps is doubled, up to `most`, until `resolved` returns True for the sketch. With
    orthonormal locked columns the operator is restricted to their complement.

    Raises
    ------
    BreakdownError
        If the operator returns NaN or Inf.
    """
    recurrence = _Recurrence(operator, like, width, rng, locked)
    n = like.n_global - (0 if locked is None else int(locked.shape[1]))
    while True:
        recurrence.extend(min(steps, n))
        sketch = recurrence.sketch(n)
        if 2 * steps > min(most, n) or resolved(sketch):
            return sketch
        steps *= 2


class _Recurrence:
    """Simultaneous Lanczos recurrences of some vectors, with their coefficients on the device."""

    def __init__(self, operator: Operator, like: Block, width: int, rng: Any, locked: Block | None) -> None:
        self.operator, self.locked = operator, locked
        V = like.random_like(width, rng)
        self._xp = array_namespace(V.array)
        self._tiny = np.finfo(V.dtype).tiny
        project_out(self.locked, V)
        V.scale(1 / self._xp.maximum(V.norms(), self._tiny))
        self.V, self.previous, self.W = V, V.like(), V.like()
        self.alphas: list[Any] = []
        self.betas: list[Any] = []

    def extend(self, steps: int) -> None:
        """Continue up to a total number of steps."""
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
        """Compute the sketch of n eigenvalues; waits for the device once."""
        steps, width = len(self.alphas), self.V.shape[1]
        values = to_host(self._xp.stack([*self.alphas, *self.betas])).astype(np.float64)
        alphas, betas = values[:steps], values[steps:]
        if not np.isfinite(values).all():
            raise BreakdownError("the operator returned NaN or Inf for a finite block; check its entries.")
        unit = float(np.finfo(self.V.dtype).eps)
        noise = BROKEN_DOWN * unit * float(np.abs(alphas).max() + betas.max())
        nodes, counts, rests, low, high = [], [], [], np.inf, -np.inf
        for alpha, beta in zip(alphas.T, betas.T, strict=True):
            small = np.flatnonzero(beta <= noise)
            length = int(small[0]) + 1 if len(small) else steps
            T = np.diag(alpha[:length]) + np.diag(beta[: length - 1], 1) + np.diag(beta[: length - 1], -1)
            theta, S = np.linalg.eigh(T)
            rest = beta[length - 1] * np.abs(S[-1])
            nodes.append(theta)
            counts.append(n / width * S[0] ** 2)
            rests.append(rest)
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
            vectors=np.repeat(np.arange(width), [len(part) for part in nodes]),
            distances=np.concatenate(rests),
        )
