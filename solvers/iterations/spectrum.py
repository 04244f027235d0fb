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
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from blockvec import BlockVector, RowFunction, array_namespace, start_copies
from blockvec.errors import BreakdownError
from blockvec.system.frozen import frozen

from ..blocks import Block, Operator, RealArray, project_out
from ..column_block import ColumnBlock, ColumnOperator
from .rayleigh_ritz import Which, ranking_key
from .recorded_step import recorder_for

AT_ONCE = 3  # steps that are repeated as one graph, a multiple of the number of blocks that take turns
_BLAS = {"d": (blas.ddot, blas.daxpy, blas.dnrm2), "D": (blas.zdotc, blas.zaxpy, blas.dznrm2)}
_TINY = float(np.finfo(np.float64).tiny)
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
    V = like.random_like(width, rng)
    take = getattr(operator, "lanczos_recurrence", None) if locked is None else None
    launch = None if take is None else take(V)
    is_lean = isinstance(operator, ColumnOperator) and like.dtype.char in _BLAS and like.layout is None
    recurrence: _Recurrence
    if launch is not None:
        recurrence = _LaunchedRecurrence(V, launch)
    elif is_lean and width == 1 and locked is None:
        recurrence = _VectorRecurrence(operator, V, locked)
    else:
        recurrence = _Recurrence(operator, V, locked)
    n = like.n_global - (0 if locked is None else int(locked.shape[1]))
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
        like, operator = ColumnBlock.of(like), ColumnOperator(operator)
    return sketch_spectrum(operator, like, 1, steps, np.random.default_rng(0), None)


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
        self.operator, self.locked, width = operator, locked, V.shape[1]
        self._xp, real = array_namespace(V.array), V.array.real.dtype
        self._divided = _divided(float(np.finfo(V.dtype).tiny))
        # -beta and 1 / beta of the last step, -alpha of this one
        self._minus_beta, self._inverse, self._minus_alpha = (self._xp.zeros(width, real) for _ in range(3))
        self._log = self._xp.empty((2 * AT_ONCE, width), real)
        project_out(self.locked, V)
        self._normalise(V, self._log[1])
        self._minus_beta[...] = 0  # nothing is before the first vector
        self.V, self.previous, self.W = V, V.copy().scale(0.0), V.like()
        self.steps = 0
        self._coefficients: list[Any] = []  # alphas and betas of one step or several, shape (2 s, width)
        self._recorder = recorder_for(operator, V)
        self._repeat: Callable[[], object] | None = None

    def extend(self, steps: int) -> None:
        """Continue up to a total number of steps, on a GPU several at a time."""
        while self.steps < steps:
            in_turn = self.steps % len(self._blocks) == 1  # the first step compiles the kernels
            if self._recorder is None or not in_turn or steps - self.steps < AT_ONCE:
                self._coefficients.append(self._step(self._xp.empty_like(self._log[:2])))
                self.steps += 1
                continue
            if self._repeat is None:
                blocks = self._blocks
                with self._recorder:
                    self._repeat = self._recorder.record(self._steps)
                self.previous, self.V, self.W = blocks  # also where recording ended early
            self._repeat()
            kept = self._xp.empty_like(self._log)
            kept[...] = self._log
            self._coefficients.append(kept)
            self.steps += AT_ONCE

    @property
    def _blocks(self) -> tuple[Block, Block, Block]:
        return self.previous, self.V, self.W

    def _steps(self) -> None:
        """Take the steps that are repeated, after which all blocks have their roles again."""
        for begin in range(0, 2 * AT_ONCE, 2):
            self._step(self._log[begin : begin + 2])

    def _step(self, out: Any) -> Any:
        """Take a step; write its alpha and beta to the rows of an array, and return it."""
        previous, V, W = self._blocks
        self.operator.apply(V, out=W)
        project_out(self.locked, W)
        W.axpy(self._minus_beta, previous)
        SIGNS(V.column_dot(W).real, out=(out[0], self._minus_alpha))
        W.axpy(self._minus_alpha, V)
        self._normalise(W, out[1])
        self.previous, self.V, self.W = V, W, previous
        return out

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


class _VectorRecurrence(_Recurrence):
    """The recurrence of one vector on the host, in a few calls of BLAS per step."""

    def _step(self, out: Any) -> Any:
        dot, axpy, norm = _BLAS[self.V.dtype.char]
        previous, V, W = self._blocks
        p, v, w = (block.array[:, 0] for block in self._blocks)
        w.fill(0)
        cast(ColumnOperator, self.operator).add_vector(v, w)
        axpy(p, w, a=self._minus_beta[0])
        alpha = dot(v, w).real
        axpy(v, w, a=-alpha)
        beta = norm(w)
        w *= 1 / max(beta, _TINY)
        self._minus_beta[0], out[0], out[1] = -beta, alpha, beta
        self.previous, self.V, self.W = V, W, previous
        return out
