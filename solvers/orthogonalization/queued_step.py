"""The usual step of a Lanczos recurrence on a GPU, queued without waiting for its results.

The products are those of `host_step`. The device divides the block by its Cholesky factor before the host
has seen it, so that the next step can be queued at once. The host reads the small matrices later, and they
show whether the step was enough, by the limits of `host_step`; if not, this step and all that were queued
after it are invalid, and the caller repeats it by `orthogonalize`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockvec import FactorReport, InverseFactor, inverse_factor, start_copies
from blockvec.system.frozen import frozen

from ..blocks import Array, Block
from .factors import AMPLIFIED, ENOUGH, PLAIN_GROWTH, square
from .host_step import is_enough

REDUCTIONS = 3  # per step
# Limits above those of steps that wait: a step that is repeated invalidates those queued after it.
QUEUED_ENOUGH = 4 * ENOUGH  # u per column: accepted loss of orthogonality within a block
QUEUED_AMPLIFIED = 2 * AMPLIFIED  # u: accepted loss of orthogonality between V and Q
LIKENESS = 2.0  # assumed upper bound of growth(step j + 1) / growth(step j)


@frozen
class QueuedStep:
    """Device results of `queue_step`.

    Attributes
    ----------
    passes : list of lists of (int, int, array)
        Per projection, what it took out of W: ranges of columns of V, and V^H W.
    factor : InverseFactor
        Of what is left of W, which was multiplied by it.
    """

    passes: list[list[tuple[int, int, Array]]]
    factor: InverseFactor


def queue_step(W: Block, V: Block, first: Sequence[tuple[int, int]], into: Block) -> QueuedStep:
    """Project W twice, divide it by its Cholesky factor if that is accurate, and copy it to `into`.

    The arguments are those of `orthogonalize`. The operations can be recorded: make a `StepReport` after each
    replay.
    """
    ranges = [(i, j) for i, j in first if i < j]
    views = [V if j - i == V.shape[1] else V[:, i:j] for i, j in ranges]
    parts = [U.dot(W) for U in views]
    for U, part in zip(views, parts, strict=True):
        U.combine(part, out=W, alpha=-1, beta=1)
    C = V.dot(W)
    factor = inverse_factor(W.update_gram(V, C), PLAIN_GROWTH, start=False)
    W.combine(factor.T, out=W)
    into[:, :] = W
    removed = [(*ends, part) for ends, part in zip(ranges, parts, strict=True)]
    return QueuedStep([removed, [(0, V.shape[1], C)]], factor)


class StepReport:
    """The small matrices of a queued step of `columns` columns of V, on their way to the host."""

    def __init__(self, step: QueuedStep, columns: int) -> None:
        self._shape = columns, step.factor.T.shape[1]
        self._ranges = [[part[:2] for part in parts] for parts in step.passes]
        products = (part[2] for parts in step.passes for part in parts)
        self._copies = start_copies(*products, step.factor.report)
        self._unit = float(np.finfo(step.factor.T.dtype).eps) / 2

    def wait(self, scale: float) -> tuple[Array, Array | None]:
        """Return S and R with W_old = V S + W_new R; R is None if the step was not enough.

        `scale` is the norm of the operator, or a lower bound of it.
        """
        *products, report = self._copies()
        taken, found = iter(products), FactorReport.of(report)
        before, rest = (np.zeros(self._shape, report.dtype) for _ in self._ranges)
        for coefficients, ranges in zip((before, rest), self._ranges, strict=True):
            for begin, end in ranges:
                coefficients[begin:end] = next(taken)
        return _judged(before, rest, found, self._unit, scale)


class ReportOfSeveral:
    """The small matrices of one of several steps that were queued together."""

    def __init__(self, wait: Callable[[], list[Any]], step: int, dtype: np.dtype[Any]) -> None:
        self._wait, self._step = wait, step
        self._unit = float(np.finfo(dtype).eps) / 2

    def wait(self, scale: float) -> tuple[Array, Array | None]:
        """Return what `StepReport.wait` does."""
        found = self._wait()[self._step]
        return _judged(found.first, found.second, found.factor, self._unit, scale, factors_again=True)


def is_easy(R: Array, scale: float, dtype: np.dtype[Any], *, factors_again: bool = False) -> bool:
    """Predict whether a queued step after one with the factor R will be enough, as such factors are alike.

    `factors_again` says whether the step has a second factorisation for blocks that need one.

    Examples
    --------
    >>> R = np.array([[1.0, 0.9], [0.0, 0.4]])
    >>> scaled, dependent = R * [1, 1e-6], R * [[1], [1e-2]]
    >>> [is_easy(factor, 1.0, R.dtype) for factor in (R, scaled, dependent, R[:1])]
    [True, True, False, False]
    """
    if R.shape[0] != R.shape[1] or not np.diagonal(R).all():
        return False
    T, unit = np.linalg.inv(R), float(np.finfo(dtype).eps) / 2
    whole, spread = square(R), square(T)
    growth = float((np.linalg.norm(R, axis=0) ** 2 @ np.abs(T) ** 2).sum())
    enough = is_enough(
        growth=LIKENESS * growth,
        again=0.0,
        spread=spread,
        length=max(scale, whole**0.5),
        unit=unit,
        amplified=QUEUED_AMPLIFIED,
    )
    return enough and (factors_again or LIKENESS * growth <= QUEUED_ENOUGH * len(R))


def _judged(
    before: Array, rest: Array, found: FactorReport, unit: float, scale: float, *, factors_again: bool = False
) -> tuple[Array, Array | None]:
    """Return S and R of `StepReport.wait` from what projections took out and the factor of the rest."""
    whole, again, spread = float(found.G.trace().real), square(rest), square(found.T)
    length = max(scale, (whole + again + square(before)) ** 0.5)
    is_factored = factors_again or found.growth <= QUEUED_ENOUGH * len(found.R)
    enough = is_factored and is_enough(
        growth=found.growth, again=again, spread=spread, length=length, unit=unit, amplified=QUEUED_AMPLIFIED
    )
    return before + rest, found.R if enough else None
