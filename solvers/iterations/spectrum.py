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
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, cast

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

import blockvec
from blockvec import BlockVector, Recorder, RowFunction, array_namespace, start_copies
from blockvec.errors import BreakdownError
from blockvec.system.frozen import frozen

from ..blocks import (
    VECTOR_CALLS,
    Array,
    Block,
    ColumnBlock,
    Operator,
    RealArray,
    applied,
    empty_block,
    project_out,
    small_matrix,
    vector_calls,
)
from ..problem import Which, ranking_key
from .chebyshev import recorder_for

GROUP = 6  # steps of a recorded group, a multiple of the three blocks that take turns
BROKEN_DOWN = 1e3  # remainders below BROKEN_DOWN * u * ||A|| are rounding errors: the recurrence ends


@frozen
class Sketch:
    """Nodes and weights of a quadrature over a spectrum."""

    theta: RealArray  # Ritz values of all vectors, shape (q,)
    counts: RealArray  # number of eigenvalues per Ritz value; their sum is the dimension
    low: float  # bound of the spectrum, with high probability, like `high`
    high: float
    columns: int  # that the operator was applied to
    applications: int
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

    def beyond(self, count: float, which: Which, below: float = np.inf) -> float:
        """Return the largest ranking key below `below` above which `count` eigenvalues or more lie.

        `below` does not bind if no node satisfies it.
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
    run = recurrences(operator, V, (locked,))
    n = V.n_global - (0 if locked is None else int(locked.shape[1]))
    while True:
        run.extend(min(steps, n))
        sketch = _sketched(run, n)
        if 2 * steps > min(most, n) or resolved(sketch):
            return sketch
        steps *= 2


def sketch_of(operator: Any, steps: int) -> Sketch:
    """Run a few Lanczos steps from a random vector with a fixed seed, by single columns on the host."""
    like: Block = empty_block(operator)
    if operator.device == "cpu" and operator.layout is None:
        like = ColumnBlock.of(like)
    return sketch_spectrum(operator, like.random_like(1, np.random.default_rng(0)), steps)


def recurrences(operator: Operator, V: Block, complement: Sequence[Block | None] = ()) -> Recurrences:
    """Make the recurrences from the columns of V, which is overwritten; the arguments are those of the class.

    A launch takes many steps where a GPU can, and a call of BLAS each operation on a vector of the host.
    """
    is_whole = all(Q is None for Q in complement)
    take = getattr(operator, "lanczos_recurrence", None) if is_whole else None
    launch = None if take is None else take(V)
    if launch is not None:
        return _LaunchedRecurrences(V, launch)
    is_double = V.dtype.char in VECTOR_CALLS
    if isinstance(V, ColumnBlock) and is_double and isinstance(operator, blockvec.Operator):
        return _VectorRecurrences(operator, V, complement)
    return Recurrences(operator, V, complement, recorder_for(operator, V))


def _signs(xp: Any, alpha: Any) -> tuple[Any, Any]:
    return alpha, -alpha


SIGNS = RowFunction(_signs)


@functools.cache
def _divided(tiny: float) -> RowFunction:
    """Make the function of squared norms to beta, -beta and 1 / beta; `tiny` is a type's least number."""

    def divided(xp: Any, square: Any) -> tuple[Any, Any, Any]:
        beta = xp.sqrt(xp.maximum(square, 0.0))
        return beta, -beta, 1.0 / xp.maximum(beta, tiny)

    return RowFunction(divided)


class Recurrences:
    """Simultaneous Lanczos recurrences of some vectors, with their coefficients on the device.

    The start vectors V are overwritten, the orthonormal columns of the complement projected out in every
    step. A recorder repeats groups of steps.
    """

    def __init__(
        self,
        operator: Operator,
        V: Block,
        complement: Sequence[Block | None] = (),
        recorder: Recorder | None = None,
    ) -> None:
        self.operator, self.complement, self._recorder = operator, complement, recorder
        self._xp, self._divided = array_namespace(V.array), _divided(float(np.finfo(V.dtype).tiny))
        # -beta and 1 / beta of the last step, -alpha of this one
        self._minus_beta, self._inverse, self._minus_alpha, unused = self._rows(4, V)
        self._three = [V.like(), V, V.like()]  # by turns the vector before, this one, and the next
        self._three[0][:, :] = 0
        for _ in range(1 + any(Q is not None for Q in complement)):
            self._normalise(V, unused)
        self._minus_beta[...] = 0  # nothing is before the first vector
        self.steps, self.dtype = 0, V.dtype
        self._coming: list[Any] = []  # alphas and betas of steps, shape (2 s, b)
        self._known = np.zeros((0, V.shape[1]))
        self._group: tuple[Any, Callable[[], object]] | None = None  # the recorded one, and its coefficients
        self._use: Callable[[int, Block], object] | None = None  # for the vectors of each step of a group

    def _rows(self, count: int, V: Block) -> Any:
        return self._xp.empty((count, V.shape[1]), V.array.real.dtype)

    @property
    def vectors(self) -> Block:
        """The last vectors, of norm one."""
        return self._three[(self.steps + 1) % 3]

    def extend(self, steps: int) -> None:
        """Continue up to a total number of steps, or a few more."""
        while self.steps < steps:
            if self._recorder is None or self.steps < GROUP:  # which compiles the kernels
                rows = self._rows(2, self.vectors)
                self._use_and_step(self.steps, *rows)
                self.steps += 1
            else:
                rows = self._repeat(self._recorder)
                self.steps += GROUP
            self._coming.append(rows)

    def _repeat(self, recorder: Recorder) -> Any:
        """Take a group of steps, after which all blocks have their roles again."""
        with recorder:
            if self._group is None:
                rows, first = self._rows(2 * GROUP, self.vectors), self.steps

                def steps() -> None:
                    for i in range(GROUP):
                        self._use_and_step(first + i, *rows[2 * i : 2 * i + 2])

                self._group = rows, recorder.record(steps)
            self._group[1]()
            return BlockVector(self._group[0], copy=True).array  # CuPy's copy would compile a kernel

    def combined(self, C: RealArray) -> Block:
        """Take steps from the first on; return the sum of their vectors times C[step], shape (s, b, m)."""
        steps, width, count = C.shape
        C = np.pad(C, ((0, -steps % GROUP), (0, 0), (0, 0))).reshape(-1, GROUP * width, count)
        total = self.vectors.like(count)
        total[:, :] = 0
        each = small_matrix(C[0], total)

        def add(step: int, V: Block) -> None:
            V.combine(each[step * width : (step + 1) * width], out=total, beta=1)

        self._use = add
        for part in C:
            each[...] = small_matrix(part, total)
            self.extend(min(self.steps + GROUP, steps))
        return total

    def _use_and_step(self, step: int, alpha: Any, beta: Any) -> None:
        if self._use is not None:
            self._use(step % GROUP, self._three[(step + 1) % 3])
        self._step(step, alpha, beta)

    def _step(self, step: int, alpha: Any, beta: Any) -> None:
        previous, V, W = (self._three[(step + i) % 3] for i in range(3))
        self.operator.apply(V, out=W)
        W.axpy(self._minus_beta, previous)
        SIGNS(V.column_dot(W).real, out=(alpha, self._minus_alpha))
        W.axpy(self._minus_alpha, V)
        self._normalise(W, beta)

    def _normalise(self, W: Block, beta: Any) -> None:
        """Project a block, last: what it has outside would grow; divide it by its norms, and write these."""
        for Q in self.complement:
            project_out(Q, W)
        self._divided(W.column_dot(W).real, out=(beta, self._minus_beta, self._inverse))
        W.scale(self._inverse)

    def coefficients(self) -> tuple[RealArray, RealArray]:
        """Return the alphas and betas of all steps, shape (s, b); waits for the device."""
        if self._coming:
            new = np.concatenate(start_copies(*self._coming)()).astype(np.float64)
            if not np.isfinite(new).all():
                raise BreakdownError("the operator returned NaN or Inf for a finite block.")
            self._known, self._coming = np.concatenate([self._known, new]), []
        return self._known[::2], self._known[1::2]

    def projected(self) -> list[tuple[RealArray, RealArray]]:
        """Return the diagonals of the projected matrix of each vector, as far as its space grows."""
        alphas, betas = self.coefficients()
        least, parts = noise(alphas, betas, self.dtype), []
        for alpha, beta in zip(alphas.T, betas.T, strict=True):
            small = np.flatnonzero(beta <= least)
            length = int(small[0]) + 1 if len(small) else len(beta)
            parts.append((alpha[:length], beta[: length - 1]))
        return parts


class _VectorRecurrences(Recurrences):
    """The recurrences of column-major vectors of the host, each in a few calls of BLAS.

    In an inner product x^H M y each step multiplies one vector by M. As blocks, 12 steps of a search took a
    sixth of the time of a solve.
    """

    def __init__(
        self, operator: blockvec.Operator, V: ColumnBlock, complement: Sequence[Block | None]
    ) -> None:
        self.steps, self.dtype, self._V = 0, V.dtype, V
        self._dot, self._axpy, self._scale, self._components, self._remove = vector_calls(V)
        self._add = operator.vector_adder(is_hermitian=True)
        M = getattr(V, "inner", None)
        self._add_image = None if M is None else M.vector_adder(is_hermitian=True)  # (x, y): y += M x
        # Blocks Q, and M Q.
        blocks = [Q for Q in complement if Q is not None and Q.shape[1]]
        self._complement = [(Q.array, applied(M, Q).array) for Q in blocks]
        self._alphas, self._betas = array("d"), array("d")  # coefficients: by step, then by vector
        # Of each vector, by turns the one before, this one, and the next; and M times this one.
        self._columns = [[np.zeros_like(v), v, np.empty_like(v), v] for v in V.array.T]
        for column in self._columns:
            for _ in range(1 + bool(self._complement)):
                column[3] = self._divided_by_norm(column[1])[1]
        self._last = [0.0] * V.shape[1]  # betas

    def _divided_by_norm(self, w: Array) -> tuple[float, Array]:
        """Project a vector w, and divide it by its norm; return that, and M w."""
        for Q, image in self._complement:
            self._remove(Q, self._components(image, w), y=w)
        image = w
        if self._add_image is not None:
            image = np.zeros_like(w)
            self._add_image(w, image)
        norm = math.sqrt(max(self._dot(w, image).real, 0.0))
        if not math.isfinite(norm):
            raise BreakdownError("the operator returned NaN or Inf for a finite block.")
        if norm:
            self._scale(1 / norm, w)
            if image is not w:
                self._scale(1 / norm, image)
        return norm, image

    def extend(self, steps: int) -> None:
        while self.steps < steps:
            for i, column in enumerate(self._columns):
                previous, v, w, image = column
                np.multiply(previous, -self._last[i], out=w)
                self._add(v, w)
                alpha = self._dot(image, w).real
                self._axpy(v, w, a=-alpha)
                self._last[i], image = self._divided_by_norm(w)
                column[:] = v, w, previous, image
                self._alphas.append(alpha)
                self._betas.append(self._last[i])
            self.steps += 1

    def combined(self, C: RealArray) -> Block:
        total = self._V.like(C.shape[2])
        total.array.fill(0)
        for rows in C.tolist():
            for (_, v, *_), row in zip(self._columns, rows, strict=True):
                for weight, out in zip(row, total.array.T, strict=True):
                    self._axpy(v, out, a=weight)
            self.extend(self.steps + 1)
        return cast(Block, total)

    def coefficients(self) -> tuple[RealArray, RealArray]:
        shape = self.steps, len(self._last)
        return np.array(self._alphas).reshape(shape), np.array(self._betas).reshape(shape)


class _LaunchedRecurrences(Recurrences):
    """Recurrences of which a launch takes many steps, on a GPU."""

    def __init__(self, V: Block, take: Callable[[int], Any]) -> None:
        self._take, self.steps, self.dtype = take, 0, V.dtype
        self._coming, self._known = [], np.zeros((0, V.shape[1]))

    def extend(self, steps: int) -> None:
        if steps > self.steps:
            self._coming.append(self._take(steps - self.steps))
            self.steps = steps


def noise(alphas: RealArray, betas: RealArray, dtype: Any) -> float:
    """Return the least remainder of a recurrence of vectors of a type that is no rounding error."""
    return BROKEN_DOWN * float(np.finfo(dtype).eps) * float(np.abs(alphas).max() + betas.max())


def _sketched(run: Recurrences, n: int) -> Sketch:
    betas = run.coefficients()[1]
    steps, width = betas.shape
    pairs = [scipy.linalg.eigh_tridiagonal(*T) for T in run.projected()]
    # Of the last vectors, the remainders of the recurrences.
    rests = [last[len(S) - 1] * np.abs(S[-1]) for (_, S), last in zip(pairs, betas.T, strict=True)]
    return Sketch(
        theta=np.concatenate([theta for theta, _ in pairs]),
        counts=np.concatenate([n / width * S[0] ** 2 for _, S in pairs]),
        low=float(min(theta[0] - rest[0] for (theta, _), rest in zip(pairs, rests, strict=True))),
        high=float(max(theta[-1] + rest[-1] for (theta, _), rest in zip(pairs, rests, strict=True))),
        columns=width * steps,
        applications=steps,
        vectors=np.repeat(np.arange(width), [len(theta) for theta, _ in pairs]),
        distances=np.concatenate(rests),
    )
