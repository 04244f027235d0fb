"""Chebyshev polynomials of an operator, which damp an interval and amplify everything outside.

On [centre - half_width, centre + half_width] the polynomial T_d((A - centre)/half_width) is bounded by 1; at
a relative distance x > 1 from the centre it is cosh(d arccosh(x)). A step of the recurrence

    Y_{j+1} = S Y_j - Y_{j-1},    Y_1 = S Y_0 / 2

is one application of S = 2/half_width (A - centre), which is prepared once, and needs no inner product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from blockvec import BlockVector, Recorder

from ..blocks import AffineOperator, Block, Operator, RealArray, in_precision, project_out
from ..column_block import ColumnBlock, ColumnOperator, by_rows
from .filter import Filter
from .mixed_precision import SingleCopy

MOST_REPEATS = 8  # pairs of blocks that a filter is bound to: steps have two scratch blocks, as a rule
CALLS_BEFORE_RECORDING = 2  # of a filter, in which kernels are compiled and matrices are converted


def degree_for(growth: float, distance: float) -> float:
    """Return the degree with amplification `growth` at `distance` > 1 half-widths from the centre.

    Examples
    --------
    >>> round(degree_for(1e6, 1.01), 1)
    102.7
    """
    return math.acosh(max(growth, 1.0)) / math.acosh(distance)


def steps_within(growth: float, distance: float) -> int:
    """Return the number of steps with an amplification at `distance` below `growth`; at least one."""
    if distance <= 1 or growth <= 1:
        return 1
    return max(1, int(degree_for(growth, distance)))


def steps_within_leak(
    leak: float, above: RealArray, residuals: RealArray, half_width: float, unit: float
) -> float:
    """Return the steps in which components along computed vectors, initially their errors, stay below `leak`.

    `above` are the distances of their values from the interval, and `unit` is the unit roundoff.
    """
    outside = above > 0
    errors = np.clip(residuals[outside] / above[outside], 10 * unit, 1.0)
    steps = (
        steps_within(max(leak / error, 1.5), 1 + distance)
        for error, distance in zip(errors, above[outside] / half_width, strict=True)
    )
    return min(steps, default=math.inf)


class _Steps:
    """Steps of the recurrence above on two blocks, which take turns."""

    def __init__(self, doubled: Any, X: Block, out: Block) -> None:
        self._doubled = doubled
        self._bind: Any = getattr(doubled, "prepare", None)
        self.current, self.previous = X, out  # Y_j and Y_{j-1} for j steps taken
        self._repeats: dict[tuple[Any, ...], Callable[[], object]] = {}  # by kind, number and first block

    def take(self, first: int, count: int) -> None:
        """Take steps, of which the first one has a number that is one more than that of the last one."""
        if first == 1:
            self._take(1, alpha=0.5)
            count -= 1
        if count:
            self._take(count, beta=-1)

    def _take(self, turns: int, **factor: float) -> None:
        if self._bind is None:
            for _ in range(turns):
                self._doubled.apply(self.current, out=self.previous, **factor)
                self._turn()
            return
        self._prepared(turns, **factor)()
        if turns % 2:
            self._turn()

    def _prepared(self, turns: int, **factor: float) -> Any:
        key = *factor, turns, id(self.current)
        if key not in self._repeats:
            self._repeats[key] = self._bind(self.current, self.previous, repeat=turns, **factor)
        return self._repeats[key]

    @property
    def are_one_launch(self) -> bool:
        """Whether several steps are one launch, which nothing is gained by recording; loads its kernel."""
        return self._bind is not None and bool(self._prepared(2, beta=-1).is_one_launch)

    def _turn(self) -> None:
        self.current, self.previous = self.previous, self.current


def recurrence(doubled: Any, X: Block, out: Block, degree: int) -> Iterator[tuple[int, Block, Block]]:
    """Yield ``(j, Y_j, Y_{j-1})`` for j from 1 to `degree`; both blocks may be projected in between.

    `doubled` is S of the recurrence above. The blocks are stored in X = Y_0 and `out`, both overwritten.
    """
    steps = _Steps(doubled, X, out)
    for step in range(1, degree + 1):
        steps.take(step, 1)
        yield step, steps.current, steps.previous


class Recurrence:
    """Steps of `recurrence` on two blocks, on a GPU several at a time, as one graph or launch.

    Parameters
    ----------
    doubled : AffineOperator
        S of the recurrence.
    X, out : Block
        Y_0, and a block like it; both are overwritten.
    project : callable, optional
        ``project(j, Y_j, Y_{j-1})`` may project both blocks. It is called after every `project_every` steps
        of a group, and at its end.
    recorder : Recorder, optional
        Repeats groups of steps.
    """

    def __init__(
        self,
        doubled: AffineOperator,
        X: Block,
        out: Block,
        project: Callable[[int, Block, Block], object] | None,
        recorder: Recorder | None = None,
        project_every: int = 1,
    ) -> None:
        self._steps, self._project, self._project_every = _Steps(doubled, X, out), project, project_every
        # This loads its kernel, which cannot be done while a group is recorded.
        at_once = recorder is not None and self._steps.are_one_launch
        self._recorder = None if at_once and project is None else recorder
        self.taken = 0
        self._groups: dict[int, Callable[[], object]] = {}  # by their numbers of steps

    def take(self, count: int) -> None:
        """Take steps; their kernels are compiled by the first two.

        A group of an even number is recorded when it is taken first, with its calls of `project`, which have
        to be the same for every group of this size.
        """
        first = self.taken + 1
        self.taken += count
        if self._recorder is None or first <= 2 or count % 2:
            self._take(first, count)
            return
        if count not in self._groups:
            steps, roles = self._steps, (self.current, self.previous)
            with self._recorder:
                self._groups[count] = self._recorder.record(lambda: self._take(first, count))
            steps.current, steps.previous = roles  # also where recording ended early
        self._groups[count]()

    @property
    def current(self) -> Block:
        """Y_j for j steps taken."""
        return self._steps.current

    @property
    def previous(self) -> Block:
        """Y_(j-1) for j steps taken."""
        return self._steps.previous

    def _take(self, first: int, count: int) -> None:
        steps, end = self._steps, first + count
        size = count if self._project is None else self._project_every
        for step in range(first, end, size):
            following = min(step + size, end)
            steps.take(step, following - step)
            if self._project is not None:
                self._project(following - 1, steps.current, steps.previous)


class ChebyshevOperator:
    """The Chebyshev polynomial T_d of an operator, positive and large at the wanted end.

    The operator is restricted to the complement of the locked columns, which are projected out after so many
    steps as `project_every` says: more than one where they are eigenvectors. The recurrence runs on row-major
    blocks, whose products read the matrix once, in the precision of the operator. With a recorder, all of its
    steps are repeated by one call. `matrix` is the operator in the precision of the blocks that it is applied
    to; steps may be queued where products with noise do not fail, as those with a matrix.
    """

    def __init__(
        self,
        operator: Operator | SingleCopy,
        filter: Filter,
        locked: Block | None,
        recorder: Recorder | None = None,
        matrix: Any = None,
        project_every: int = 1,
    ) -> None:
        is_whole = isinstance(operator, ColumnOperator) and operator.layout is None
        operator, self._matrix = by_rows(operator), matrix
        self._recorder = recorder
        self._repeats: dict[Any, Callable[[], object]] = {}  # by operands
        self._calls = 0
        self.degree, self._dtype = filter.degree, operator.dtype
        self.locked = None if locked is None else self._rows(locked)
        self._project_every = project_every
        sign = -1 if filter.which == "SA" else 1
        doubled: Any = operator.affine(2 * sign / filter.half_width, sign * (filter.low + filter.edge) / 2)
        self._doubled = doubled
        self._add = doubled.vector_adder() if is_whole and locked is None else None

    @property
    def may_be_queued(self) -> bool:
        """Whether steps may be queued without waiting."""
        matrix = self._matrix
        return bool(getattr(matrix, "may_be_queued", getattr(matrix, "is_recordable", False)))

    def krylov_steps(self, V: Any, b: int) -> Any:
        """Prepare the orthogonalisation of blocks T_d X by one launch, as a matrix of a GPU does."""
        make = getattr(self._matrix, "krylov_steps", None)
        steps = None if make is None else make(V, b)
        return None if steps is None else steps.without_products()

    def apply(self, X: Block, out: Block | None = None) -> Block:
        """Return T_d X in one of the two blocks; both may be overwritten."""
        if out is None or self._recorder is None:
            return self._apply(X, X.like() if out is None else out)
        x, y = (cast(BlockVector, block).memory for block in (X, out))
        key = x.address, x.kind, y.address, y.kind
        if key not in self._repeats:
            repeat = self._repeated(X, out)
            if repeat is None:
                return self._apply(X, out)
            if len(self._repeats) == MOST_REPEATS:  # each keeps two blocks
                self._repeats.clear()
            self._repeats[key] = repeat
        self._repeats[key]()
        return X if X.dtype == self._dtype and self.degree % 2 == 0 else out

    def _repeated(self, X: Block, out: Block) -> Callable[[], object] | None:
        """Bind the filter to its operands; None for the first calls, which are recorded later."""
        steps = _Steps(self._doubled, X, out)
        if self.locked is None and steps.are_one_launch:

            def repeat() -> None:
                steps.current, steps.previous = X, out
                steps.take(1, self.degree)

            return repeat
        self._calls += 1
        if self._calls <= CALLS_BEFORE_RECORDING:
            return None
        assert self._recorder is not None
        with self._recorder:
            return self._recorder.record(lambda: self._apply(X, out))

    def _apply(self, X: Block, out: Block) -> Block:
        if self._add is not None and X.shape[1] == 1:
            self._apply_to_vector(self._add, X.array[:, 0], out.array[:, 0])
            return out
        Y, degree, locked = self._rows(X), self.degree, self.locked
        steps = _Steps(self._doubled, Y, out if Y is X else Y.like())
        every = degree if locked is None else self._project_every
        for begin in range(0, degree, every):
            steps.take(begin + 1, min(every, degree - begin))
            project_out(locked, steps.current)
            if every > 1 and begin + every < degree:
                project_out(locked, steps.previous)
        current = steps.current
        if Y is X:
            return current
        out[:, :] = current
        return out

    @np.errstate(over="ignore", invalid="ignore")  # callers look at the results
    def _apply_to_vector(self, add: Callable[[Any, Any], object], x: Any, out: Any) -> None:
        """Set a vector to T_d x by calls that take little longer than their products; x is not changed."""
        current, previous = np.zeros_like(x), out
        previous[:] = x
        add(x, current)
        current *= 0.5
        for _ in range(2, self.degree + 1):
            np.negative(previous, out=previous)
            add(current, previous)
            current, previous = previous, current
        if current is not out:
            out[:] = current

    def _rows(self, block: Block) -> Block:
        """Return a block as it is, or a row-major copy in the operator's precision."""
        if isinstance(block, ColumnBlock):
            return BlockVector(block.array, copy=True, dtype=self._dtype, layout=block.layout)
        return block if block.dtype == self._dtype else in_precision(block, self._dtype)
