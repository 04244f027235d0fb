"""Chebyshev-filtered block Lanczos: the same iteration on a polynomial of A that amplifies the wanted end.

A Chebyshev polynomial F = T_d of A has A's eigenvectors; it squeezes the unwanted part of the spectrum into
[-1, 1] and spreads the wanted end out. A step of Lanczos on F does what d steps on A do, and
orthogonalises once: where applying A costs less than orthogonalising the result, as on every machine that
waits for memory, this is the better operator. After every cycle a Rayleigh-Ritz step with A itself on the
kept vectors gives values and true residuals.

The interval to damp need not be known well. Its edge is the last Ritz value that the unfiltered first
cycles have kept, far inside the unwanted part: what F does not damp, Lanczos on F still separates, at three
quarters of the best rate a degree. A wrong far end shows as a Ritz value beyond it, and the filter is made
anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockvec import array_namespace

from .block_lanczos import IterationState, ThickRestart
from .krylov import BlockKrylov
from .rayleigh_ritz import Which, desire, ritz_pairs, select, to_host

__all__ = ["ChebyshevOperator", "Filter", "FilteredRestart", "choose_degree", "design_filter"]

Block = Any

WARM_UP = 2  # unfiltered cycles: enough for the far end and for a rough edge
MAX_DEGREE = 24
MAX_SPREAD = (
    100.0  # amplification of the first over that of the last wanted value: it costs digits of the last
)
MARGIN = 0.05  # of the interval's length, added at its far end
KEPT_SHARE = 0.45  # of the basis: more kept vectors would leave no room for steps
STALLED = 4  # cycles without a gain after which rounding is what limits a filter, and A itself takes over
SMALL_PASSES = 16  # reads and writes of one column that a step makes besides the passes over the basis
VECTOR_PASSES = 5  # reads and writes of one column in a step of the recurrence
DEVICE_FACTOR = 2  # on a GPU a step also waits for small matrices, an application of A does not


@dataclass(frozen=True, slots=True)
class Filter:
    """A Chebyshev polynomial in terms of `desire`, where wanted values are large.

    Attributes
    ----------
    low, edge : float
        The interval that is damped.
    degree : int
    which : {"LA", "SA", "LM"}
    """

    low: float
    edge: float
    degree: int
    which: Which

    @property
    def half_width(self) -> float:
        """Half of the interval's length."""
        return (self.edge - self.low) / 2


def choose_degree(operator: Any, block_size: int, basis: int) -> int:
    """Return the degree that makes applying A as costly as orthogonalising, or 1 where the cost is not known.

    Counts reads and writes of one column. At this balance neither half of the work can be made much
    cheaper by moving it to the other.

    Parameters
    ----------
    operator : Operator
        Its ``nnz``, where it has one, says what applying it costs.
    block_size : int
    basis : int
        Vectors that a step orthogonalises against, on average.
    """
    nnz = getattr(operator, "nnz", None)
    if nnz is None:
        return 1
    size = operator.dtype.itemsize
    index_bytes = 4
    matrix = nnz * (size + index_bytes) / (max(operator.shape[0], 1) * block_size * size)
    ratio = (2 * basis / block_size + SMALL_PASSES) / (matrix + VECTOR_PASSES)
    if operator.device != "cpu":
        ratio *= DEVICE_FACTOR
    return max(1, min(int(round(ratio)), MAX_DEGREE))


def design_filter(theta: np.ndarray, k: int, which: Which, least: float, degree: int) -> Filter | None:
    """Choose the interval to damp, or None where there is nothing to gain.

    Parameters
    ----------
    theta : array, shape (s,)
        Ritz values, wanted first, more than k: the last one is the edge.
    k : int
    which : {"LA", "SA", "LM"}
    least : float
        `desire` of the far end of the spectrum.
    degree : int
        Wanted degree; less is taken where the filter would set the wanted values too far apart.

    Examples
    --------
    >>> import numpy as np
    >>> design_filter(np.array([0.0, 0.1, 0.5]), 2, "SA", -10.0, 6).degree
    6
    """
    values = desire(theta, which)
    edge = float(values[-1])
    low = -edge if which == "LM" else least - MARGIN * (edge - least)
    if not values[k - 1] > edge > low:
        return None
    rates = np.arccosh(1 + (values[[0, k - 1]] - edge) / ((edge - low) / 2))
    if rates[0] > rates[1]:
        degree = min(degree, int(math.log(MAX_SPREAD) / (rates[0] - rates[1])))
    if which == "LM":
        degree -= degree % 2  # an even polynomial amplifies both ends alike
    return Filter(low, edge, degree, which) if degree > 1 else None


class ChebyshevOperator:
    """T_d of an operator, positive and large at the wanted end.

    Parameters
    ----------
    operator : Operator
    filter : Filter
    locked : BlockVector or None
        Columns to whose complement the operator is restricted.
    """

    def __init__(self, operator: Any, filter: Filter, locked: Block | None) -> None:
        self.operator, self.degree, self.locked = operator, filter.degree, locked
        sign = -1 if filter.which == "SA" else 1
        self.centre = sign * (filter.low + filter.edge) / 2
        self.half_width = sign * filter.half_width
        self._scratch: Block | None = None

    def apply(self, X: Block, out: Block) -> Block:
        """Set out = T_d X."""
        if self._scratch is None or self._scratch.shape != X.shape:
            self._scratch = X.like()
        factor = 1 / self.half_width
        # The last of the alternating targets is `out`; the second starts as Y_0 = X, which step two subtracts.
        current, previous = (out, self._scratch) if self.degree % 2 else (self._scratch, out)
        previous[:, :] = X
        self._step(X, current, factor, 0)
        for _ in range(1, self.degree):
            self._step(current, previous, 2 * factor, -1)
            current, previous = previous, current
        return out

    def _step(self, X: Block, out: Block, alpha: float, beta: float) -> None:
        self.operator.apply(X, out=out, alpha=alpha, beta=beta, shift=self.centre)
        if self.locked is not None:
            self.locked.combine(self.locked.dot(out), out=out, alpha=-1, beta=1)


class FilteredRestart(ThickRestart):
    """Thick-restart block Lanczos that goes over to a filtered operator after the first cycles.

    Nothing else changes: what converges before is done, and where a filter cannot help it is not made.
    """

    filter: Filter | None = None
    retired = False  # whether the filter has done what it can
    best = (
        np.inf
    )  # least of the largest residuals, relative to their limits, that a filtered cycle has reached
    stalled = 0

    def _rayleigh_ritz(self) -> IterationState:
        if self.filter is None:
            return super()._rayleigh_ritz()
        krylov, which = self.krylov, self.options.which
        ritz = krylov.ritz()
        krylov.restart(ritz, select(ritz.theta, "LA")[: self._keep(len(ritz.theta))])
        X = krylov.columns(0, krylov.m)
        AX = self._image_space(krylov.m)
        self.operator.apply(X, out=AX)
        self.counts.apply(krylov.m)
        if self.locked is not None:
            self.locked.combine(self.locked.dot(AX), out=AX, alpha=-1, beta=1)
        theta, U = ritz_pairs(to_host(X.dot(AX)))
        order = select(theta, which)
        self.theta, U = theta[order], np.ascontiguousarray(U[:, order])
        krylov.rotate(U)
        xp = array_namespace(X.array)
        AX.combine(xp.asarray(U.astype(X.dtype)), out=AX)
        AX.axpy(xp.asarray(-self.theta.astype(X.array.real.dtype)), X)
        self.counts.reductions += 2
        self.estimates = to_host(AX.norms()).astype(np.float64)
        self.norm = max(self.norm, float(np.abs(theta).max()))
        self.least = min(self.least, float(desire(theta, which).min()))
        return self._state()

    def _image_space(self, columns: int) -> Block:
        """Return a block for A X: the unused end of the buffer where it is wide enough."""
        krylov = self.krylov
        begin = krylov.m + krylov.w
        if begin + columns <= krylov.capacity:
            return krylov.columns(begin, begin + columns)
        return krylov.buffer.like(columns)

    def _keep(self, m: int) -> int:
        if self.filter is None:
            return super()._keep(m)
        k, b = self.options.k, self.options.block_size
        full = self.krylov.capacity - self.krylov.w
        keep = max(k + b, min(2 * k, int(KEPT_SHARE * full)))
        keep = full - max(1, (full - keep) // b) * b
        return int(min(max(keep, k), m))

    def _repair(self, failing: Any) -> None:
        if self.filter is None:
            super()._repair(failing)
        else:
            self._retire()

    def _advance(self) -> None:
        state = self.history[-1]
        if self.retired or len(state.eigenvalues) < self.options.k or len(self.theta) <= self.options.k:
            return
        if self.filter is None:
            if self.counts.restarts >= WARM_UP and self.krylov.room > self.krylov.capacity:
                self._adopt()
            return
        worst = float(np.max(state.residuals / np.maximum(state.limits, np.finfo(float).tiny)))
        self.stalled = 0 if worst < self.best / 2 else self.stalled + 1
        self.best = min(self.best, worst)
        if self.stalled >= STALLED:
            self._retire()
        elif self.least < self.filter.low:
            self._adopt()

    def _adopt(self) -> None:
        """Make a filter from what is known, and start its Krylov space from mixtures of all kept vectors."""
        options, krylov = self.options, self.krylov
        made = design_filter(self.theta, options.k, options.which, self.least, options.degree)
        if made is None:
            return
        self.filter, self.best, self.stalled = made, np.inf, 0
        self.degree = max(self.degree, made.degree)
        # The worst vectors weigh most; the others must be there too, a new space knows nothing of the old one.
        largest = max(float(self.estimates[: options.k].max()), np.finfo(float).tiny)
        weights = np.minimum(1.0, self.estimates / largest) + 1e-3
        mixture = weights[:, None] * self.rng.standard_normal((len(weights), options.block_size))
        xp = array_namespace(krylov.buffer.array)
        start = krylov.columns(0, krylov.m).combine(xp.asarray(mixture.astype(krylov.buffer.dtype)))
        operator = ChebyshevOperator(self.operator, made, self.locked)
        self.krylov = BlockKrylov(
            operator,
            krylov.buffer,
            krylov.n_locked,
            options.block_size,
            self.rng,
            self.counts,
            degree=made.degree,
        )
        self.krylov.append(start, keep_random=True)

    def _retire(self) -> None:
        """Go on with A itself from the kept vectors, which A is applied to at once: nothing is lost."""
        krylov = self.krylov
        self.filter, self.retired = None, True
        start = krylov.columns(0, krylov.m).copy()
        self.krylov = BlockKrylov(
            self.operator, krylov.buffer, krylov.n_locked, self.options.block_size, self.rng, self.counts
        )
        self.krylov.append(start)
        self.krylov.norm = self.norm
        self.krylov.expand_wide()
