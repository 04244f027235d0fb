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

import functools
from collections.abc import Callable
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockvec import BlockVector, RowFunction, array_namespace, start_copies
from blockvec.errors import BreakdownError
from blockvec.system.frozen import frozen

from ..blocks import Block, ColumnBlock, Operator, RealArray, project_out
from .rayleigh_ritz import Which, ranking_key

BROKEN_DOWN = 1e3  # remainders below BROKEN_DOWN * u * ||A|| are rounding errors: the recurrence ends


@frozen
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
    V: Block,
    steps: int,
    locked: Block | None = None,
    *,
    most: int = 0,
    resolved: Callable[[Sketch], bool] = lambda sketch: True,
) -> Sketch:
    """Run `steps` Lanczos steps from each column of V, random vectors, and compute a sketch.

    The number of steps is doubled, up to `most`, until `resolved` returns True for the sketch. With
    orthonormal locked columns the operator is restricted to their complement.

    Raises
    ------
    BreakdownError
        If the operator returns NaN or Inf.
    """
    take = getattr(operator, "lanczos_recurrence", None) if locked is None else None
    launch = None if take is None else take(V)
    recurrence = _Recurrence(operator, V, locked) if launch is None else _LaunchedRecurrence(V, launch)
    n = V.n_global - (0 if locked is None else int(locked.shape[1]))
    while True:
        recurrence.extend(min(steps, n))
        sketch = recurrence.sketch(n)
        if 2 * steps > min(most, n) or resolved(sketch):
            return sketch
        steps *= 2


def sketch_of(operator: Any, steps: int) -> Sketch:
    """Run a few Lanczos steps from a random vector with a fixed seed, by single columns on the host."""
    n, layout = operator.shape[0], operator.layout
    like: Block = BlockVector.empty(n, 0, operator.dtype, device=operator.device, layout=layout)
    if operator.device == "cpu" and layout is None:
        like = ColumnBlock.of(like)
    return sketch_spectrum(operator, like.random_like(1, np.random.default_rng(0)), steps)


def _signs(xp: Any, alpha: Any) -> tuple[Any, Any]:
    return alpha, -alpha


SIGNS = RowFunction(_signs)


@functools.cache
def _divided(tiny: float) -> RowFunction:
    """Make the function of norms beta, -beta and 1 / beta, with numbers of a type whose least is `tiny`."""

    def divided(xp: Any, beta: Any) -> tuple[Any, Any, Any]:
        return beta, -beta, 1.0 / xp.maximum(beta, tiny)

    return RowFunction(divided)


class _Recurrence:
    """Simultaneous Lanczos recurrences of some vectors, with their coefficients on the device."""

    def __init__(self, operator: Operator, V: Block, locked: Block | None) -> None:
        self.operator, self.locked, self.V = operator, locked, V
        self._xp, self._divided = array_namespace(V.array), _divided(float(np.finfo(V.dtype).tiny))
        # -beta and 1 / beta of the last step, -alpha of this one
        self._minus_beta, self._inverse, self._minus_alpha, unused = self._rows(4)
        self._normalise(project_out(locked, V), unused)
        self._minus_beta[...] = 0  # nothing is before the first vector
        self.previous, self.W = V.copy().scale(0.0), V.like()
        self.steps = 0
        self._coefficients: list[Any] = []  # alphas and betas of one step or several, shape (2 s, width)

    def _rows(self, count: int) -> Any:
        """Return rows of real numbers, one per vector."""
        return self._xp.empty((count, self.V.shape[1]), self.V.array.real.dtype)

    def extend(self, steps: int) -> None:
        """Continue up to a total number of steps."""
        while self.steps < steps:
            self.steps += 1
            previous, V, W = self.previous, self.V, self.W
            self._coefficients.append(self._rows(2))
            alpha, beta = self._coefficients[-1]
            self.operator.apply(V, out=W)
            project_out(self.locked, W)
            W.axpy(self._minus_beta, previous)
            SIGNS(V.column_dot(W).real, out=(alpha, self._minus_alpha))
            W.axpy(self._minus_alpha, V)
            self._normalise(W, beta)
            self.previous, self.V, self.W = V, W, previous

    def _normalise(self, W: Block, beta: Any) -> None:
        """Divide a block by its norms, and write them to a row."""
        self._divided(W.norms(), out=(beta, self._minus_beta, self._inverse))
        W.scale(self._inverse)

    def sketch(self, n: int) -> Sketch:
        """Compute the sketch of n eigenvalues; waits for the device once."""
        steps, width = self.steps, self.V.shape[1]
        values = np.concatenate(start_copies(*self._coefficients)()).astype(np.float64)
        alphas, betas = values[::2], values[1::2]
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


class _LaunchedRecurrence(_Recurrence):
    """Recurrences of which a launch takes many steps, on a GPU."""

    def __init__(self, V: Block, take: Callable[[int], Any]) -> None:
        self.V, self.locked, self._take = V, None, take
        self.steps, self._coefficients = 0, []

    def extend(self, steps: int) -> None:
        """Continue up to a total number of steps."""
        if steps > self.steps:
            self._coefficients.append(self._take(steps - self.steps))
            self.steps = steps
