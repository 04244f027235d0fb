"""Steps of a block Krylov decomposition, of which an object of one kind is chosen once per decomposition.

Steps on a GPU are queued without waiting for their results. All others but those of single column-major
vectors of the host, and those that need more, are taken with care.

The three-term recurrence of single vectors alone loses their orthogonality. How much it has lost follows from
a recurrence of small vectors, and only where that exceeds what the tolerance of a solve permits are two
successive vectors orthogonalised against all others. A step therefore reads three vectors, not the whole
basis.

References
----------
Simon, Math. Comp. 42 (1984) 115 (partial reorthogonalisation); Wu, Simon, SIAM J. Matrix Anal. Appl. 22
(2000) 602 (thick restart). Deviations: inner products are estimated with the whole projected matrix, whose
first rows are an arrow after a restart. Vectors are orthogonalised against all others, not against those
whose estimates are large: an estimate has another sign than the inner product and may pass through zero, and
what it hides grows along eigenvectors far outside of the rest of the spectrum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import blas

from blockvec import Profile
from blockvec.errors import BreakdownError

from ..blocks import Array, Block, ColumnBlock, LinearMap, ceil_div, round_up, summed
from ..orthogonalization.factors import PLAIN_GROWTH, UNIT, square
from ..orthogonalization.host_step import (
    QUEUED_ENOUGH,
    REDUCTIONS,
    Wait,
    is_easy,
    is_enough,
    queue_step,
    step_of_several,
)
from ..runtime.processes import everywhere

if TYPE_CHECKING:
    from .krylov import BlockKrylov

# Steps whose small matrices the host has not seen: so many are lost if one was not enough. With A itself, and
# with filters, which take the device longer than the host.
MAX_QUEUED, MAX_QUEUED_FILTERS = 4, 1
# Steps between looks for convergence, at least. Where their number followed from predicted times of looks, 58
# easy and 28 harder problems took .99 to 1.01 times as long.
PAUSE = 2
LAUNCHED_PAUSE = 8  # the same of steps with A on a GPU of which one call queues several


def is_queued(operator: LinearMap, buffer: Block) -> bool:
    """Check whether steps are queued without waiting: those on a device whose products are no solves.

    After a step that was not enough the next ones work on noise, at which solves may fail.
    """
    may_be = getattr(operator, "may_be_queued", getattr(operator, "is_recordable", False))
    return buffer.device != "cpu" and everywhere(getattr(buffer, "layout", None), may_be)


class Steps:
    """Careful steps, for which nothing is assumed."""

    takes_single_columns = False  # whether they are those of a recurrence of single vectors
    takes_launches = False  # whether few calls queue several steps, in less time than a look at them
    pause = PAUSE
    _scratch: tuple[Block, Block] | None = None

    def take(self, space: BlockKrylov, until: int, stop: Callable[[], object]) -> None:
        """Take a step; where they are cheap more, until V has `until` columns or `stop` says so."""
        self._take_carefully(space)

    def _take_carefully(self, space: BlockKrylov) -> Array:
        """Take a careful step; return the factor of its new block."""
        X, W, into = self._operands(space)
        W = space.operator.apply(X, out=W)
        result = space.orthogonalize_into(into, W, space.scale, self._window(space))
        self._note(space, space.m, space.m + space.w, result.S, result.R, 0)
        self._advance(space, X.shape[1])
        return result.R

    def _operands(self, space: BlockKrylov) -> tuple[Block, Block, Block]:
        """Return the next pending columns, a block for their product, and columns for new ones.

        The first two are copies that are contiguous; column-major ones are contiguous where they are.
        """
        step, known = min(space.block_size, space.w), space.m + space.w
        if isinstance(space.buffer, ColumnBlock) and step <= space.room:
            into = space.columns(known, known + step)
            return space.columns(space.m, space.m + step), into, into
        if self._scratch is None or self._scratch[0].shape[1] != step:
            self._scratch = space.buffer.like(step), space.buffer.like(step)
        X, W = self._scratch
        X[:, :] = space.columns(space.m, space.m + step)
        return X, W, space.columns(known, known + min(step, space.room))

    def _window(self, space: BlockKrylov) -> list[tuple[int, int]]:
        """Column ranges in which the product with the next pending block can have components, by symmetry.

        These are the locked columns, the block that the pending one was computed from, and all later columns.
        Other components are rounding errors, removed by the second pass. After a restart all columns couple.
        """
        if space.m < space.full_until:
            return [(0, space.n_locked + space.filled(space.m + space.w))]
        end = space.n_locked + min(round_up(space.m + space.w, space.unit), space.capacity)
        begin = space.m - ceil_div(space.w, space.block_size) * space.block_size
        return [(0, space.n_locked), (space.n_locked + begin // space.unit * space.unit, end)]

    def _note(self, space: BlockKrylov, m: int, known: int, S: Array, R: Array, reductions: int) -> None:
        """Store the coefficients of a step whose first column was number m of V, with `known` of [V Q]."""
        space.counts.reductions += reductions
        new, step = R.shape
        if space.norm == 0:
            # The norm of all columns together is at most that of the longest one times sqrt(b).
            space.most = max(space.most, ((square(S) + square(R)) / max(step, 1)) ** 0.5)
        space.H[:known, m : m + step] = S[space.n_locked : space.n_locked + known]
        space.H[known : known + new, m : m + step] = R

    def _advance(self, space: BlockKrylov, step: int) -> None:
        """Move columns that A has been applied to from Q to V; new ones follow Q."""
        new = min(step, space.room)
        space.counts.apply(step, space.degree)
        space.counts.single_columns += step * space.degree * space.is_mixed
        space.m += step
        space.w += new - step
        if new < step:
            space.full_until = space.capacity

    def settle(self, space: BlockKrylov, until: int | None = None) -> bool:
        """Wait for queued steps, or those of the first columns of V up to a number.

        Repeats with all care the first one that was not enough, and returns False then.
        """
        return True

    def begin_ahead(self, space: BlockKrylov, steps: int) -> None:
        """Queue steps while the host looks at the decomposition, where launches take them."""

    def forget(self) -> None:
        """Drop queued steps without waiting for them, and what was learned from them."""

    def note_change(self) -> None:
        """Note that columns of the basis were changed."""


class QueuedSteps(Steps):
    """Steps on a GPU that do not wait: one per call, or several per launch."""

    def __init__(self, operator: LinearMap, buffer: Block, block_size: int) -> None:
        launches = getattr(operator, "krylov_steps", None)
        self._launches = None if launches is None else launches(buffer, block_size)
        self.takes_launches = self._launches is not None
        self.pause = LAUNCHED_PAUSE if getattr(self._launches, "multiplies", False) else PAUSE
        self._waits = False  # for each step, after one that was not enough and others like it
        # Of queued steps: m and m + w before each.
        self._reports: list[tuple[int, int, Wait]] = []

    def take(self, space: BlockKrylov, until: int, stop: Callable[[], object]) -> None:
        if not self._may_queue(space):
            self.settle(space)
            self._take_carefully(space)
            return
        try:
            if self._launches is None:
                self._queue(space)
            else:
                self._launch(space, until)
        except (ArithmeticError, ValueError, BreakdownError):  # NumPy's LinAlgError is a ValueError
            if self.settle(space):
                raise  # else a function failed for the rounding errors that an earlier step had left

    def _may_queue(self, space: BlockKrylov) -> bool:
        return not self._waits and min(space.w, space.room) >= space.block_size

    def _queue(self, space: BlockKrylov) -> None:
        X, W, into = self._operands(space)
        W, basis = space.operator.apply(X, out=W), space.filled_basis()
        wait = queue_step(W, basis, self._window(space), into)
        self._reports.append((space.m, space.m + space.w, wait))
        self._advance(space, space.block_size)
        self._bound(space)

    def _launch(self, space: BlockKrylov, until: int) -> None:
        """Queue steps up to `until` columns of V, as far as there is room, by one call."""
        launches, b, m, end = self._launches, space.block_size, space.m, space.m + space.w
        assert launches is not None
        room = min(space.capacity - end, space.room)
        # In a launch, a step takes the columns that the one before has made.
        takes_several = launches.takes_several and space.w == b
        count = max(1, min(ceil_div(until - m, b), room // b)) if takes_several else 1
        X, W, _ = self._operands(space)
        if not launches.multiplies and space.operator.apply(X, out=W) is X:
            X, W = W, X
        columns = (space.n_locked + size for size in (m, end, space.full_until))
        wait = launches.queue(X, W, *columns, space.n_locked, count, QUEUED_ENOUGH * b, PLAIN_GROWTH)
        for step in range(count):
            report = step_of_several(wait, step, space.buffer.dtype)
            self._reports.append((space.m, space.m + space.w, report))
            self._advance(space, b)
        if not takes_several:
            self._bound(space)

    def _bound(self, space: BlockKrylov) -> None:
        """Wait for the first queued step if too many would be lost with it."""
        if len(self._reports) > (MAX_QUEUED if space.degree == 1 else MAX_QUEUED_FILTERS):
            self._settle_first(space)

    def settle(self, space: BlockKrylov, until: int | None = None) -> bool:
        while self._reports and (until is None or self._reports[0][0] < until):
            if not self._settle_first(space):
                return False
        return True

    def _settle_first(self, space: BlockKrylov) -> bool:
        """Wait for the first queued step; if it was not enough, discard all, take it again, return False."""
        m, known, wait = self._reports.pop(0)
        S, R = wait(space.scale)
        if R is not None:
            self._note(space, m, known, S, R, REDUCTIONS)
            return True
        self._reports.clear()
        space.m, space.w = m, known - m
        space.clear()  # what a function made of rounding errors need not be finite
        self._take_carefully(space)
        return False

    def _take_carefully(self, space: BlockKrylov) -> Array:
        """Take a careful step, and wait for the next one if it would not be enough, either."""
        R = super()._take_carefully(space)
        self._waits = not is_easy(R, space.scale, space.buffer.dtype, factors_again=self.takes_launches)
        return R

    def begin_ahead(self, space: BlockKrylov, steps: int) -> None:
        if steps and self.takes_launches and self._may_queue(space) and space.can_expand():
            self.take(space, space.m + steps * space.block_size, bool)

    def forget(self) -> None:
        self._reports.clear()
        self._waits = False


# Bounds of the permitted loss of orthogonality. Below the square root of UNIT projected matrices are right to
# rounding; with hardly more than UNIT, every step would be one of full orthogonalisation.
MOST_LOSS, LEAST_LOSS = 1e-9, 1e-12
# Inner products that are measured to be larger than this, and than estimated, show that the estimates were
# wrong: the projected matrix, its norm and all limits that follow from it would be, too.
WORST_LOSS = 1e-7  # of orthogonality; above the square root of UNIT
UNEXPECTED = 100.0  # measured loss per estimated one
COLUMN_PAUSE = 4  # columns between looks for convergence, at least
NORM_DROP = 0.5  # of a vector by an orthogonalisation, after which another one would be needed
LEAST_NORM = 1e-6  # of a remainder relative to the operator: shorter ones need more care
# Inner product, update, scaling and product with a matrix.
VECTOR_CALLS: dict[str, tuple[Callable[..., Any], ...]] = {
    "d": (blas.ddot, blas.daxpy, blas.dscal, blas.dgemv),
    "D": (blas.zdotc, blas.zaxpy, blas.zscal, blas.zgemv),
}
_product, _update, _largest = blas.dgemv, blas.daxpy, blas.idamax  # of the estimates


def vector_calls(like: Block) -> tuple[Callable[..., Any], ...]:
    """Return the functions of `VECTOR_CALLS`, with inner products over the rows of all processes."""
    dot, *others = VECTOR_CALLS[like.dtype.char]
    layout = like.layout
    return (dot if layout is None else lambda v, w: layout.sum(np.array([dot(v, w)]))[0], *others)


class SingleSteps(Steps):
    """Steps A v_j = beta_j v_(j-1) + alpha_j v_j + beta_(j+1) v_(j+1) in the columns of a buffer.

    A step is possible once two successive vectors have been orthogonalised against all others (`_began`).
    ``product(x, y)`` adds A x to y.
    """

    takes_single_columns = True
    pause = COLUMN_PAUSE

    def __init__(self, product: Callable[[Array, Array], object], columns: Block) -> None:
        c, layout, array = columns.shape[1], columns.layout, columns.array
        self.product, self.array, self._layout = product, array, layout
        self._vectors = [array[:, j] for j in range(c)]
        self._dot, self._axpy, self._scale, self._gemv = vector_calls(columns)
        self._adjoint = 2 if columns.dtype.kind == "c" else 1
        self._T = np.zeros((c, c), order="F")
        self._now, self._before = np.zeros(c), np.zeros(c)  # inner products of the two last vectors
        self._rounding = UNIT * math.sqrt(columns.n_global)
        self._kept = 0  # number of vectors that may have the defect
        self._is_lost = False  # whether the vectors have lost more than is permitted
        self.note_change()

    def note_change(self) -> None:
        self._full_steps, self._m, self._again = 0, -1, False

    def take(self, space: BlockKrylov, until: int, stop: Callable[[], object]) -> None:
        if space.w != 1 or space.room < 1 or not self._take_singly(space, until, stop):
            self._take_carefully(space)
            if space.w == 1:
                self._began(space.H, space.m)

    @Profile.timed("orthogonalisation")
    def _take_singly(self, space: BlockKrylov, until: int, stop: Callable[[], object]) -> bool:
        begin, end = space.m, min(max(until, space.m + 1), space.capacity - 1, space.m + space.room)
        H, loss, counts = space.H, space.loss, space.counts
        while space.m < end:
            m, scale = space.m, space.scale
            reductions = self._step(H, m, scale, loss, space.defect) if loss >= LEAST_LOSS else 0
            if self._is_lost:
                self._is_lost = False
                space.reorthonormalize()
            if not reductions:
                if self._layout is not None:
                    break
                window = 0 if m < space.full_until else max(m - 1, 0)
                reductions, length = self._full_step(H, m, window, scale)
                if not reductions:
                    counts.apply(1)  # which is computed again
                    break
                space.most = max(space.most, length)
            counts.reductions += reductions
            space.m += 1
            if stop():
                break
        counts.apply(1, space.m - begin)
        return space.m > begin

    def _began(self, H: Array, m: int) -> None:
        """Note that v_m has been orthogonalised against all others, with the projected matrix H."""
        self._full_steps = self._full_steps + 1 if m == self._m + 1 else 1
        self._m = m
        if self._full_steps == 2:
            self._T[...] = 0
            self._T[: m + 1, :m] = H[: m + 1, :m].real
            self._beta, self._kept = float(self._T[m, m - 1]), max(m - 2, 0)
            self._T[m - 1, m] = self._beta
            for products, j in ((self._before, m - 1), (self._now, m)):
                products[:] = 0
                products[:j] = self._rounding
                products[j] = 1.0

    def _full_step(self, H: Array, m: int, begin: int, norm: float) -> tuple[int, float]:
        """Compute v_(m+1), orthogonal to all others, and column m of H.

        Two projections: on the vectors from number `begin` on, which A v_m may have components along, and on
        all. Returns the number of reductions and ||A v_m||; zeros, and
        A v_m without these components in the place of v_(m+1), if that needs more care. For vectors that are
        not split over processes.
        """
        v, w = self._vectors[m], self._vectors[m + 1]
        dot, gemv, adjoint = self._dot, self._gemv, self._adjoint
        w.fill(0)
        self.product(v, w)
        near, V = self.array[:, begin : m + 1], self.array[:, : m + 1]
        taken = gemv(1.0, near, w, trans=adjoint)
        gemv(-1.0, near, taken, 1.0, w, overwrite_y=1)
        part = gemv(1.0, V, w, trans=adjoint)
        gemv(-1.0, V, part, 1.0, w, overwrite_y=1)
        whole, again = dot(w, w).real, square(part)
        length = math.sqrt(whole + again + square(taken))
        spread, scale = 1 / whole if whole else math.nan, max(norm, length)
        if not is_enough(growth=whole * spread, again=again, spread=spread, length=scale, unit=UNIT):
            return 0, 0.0
        rest = math.sqrt(whole)
        self._scale(1 / rest, w)
        part[begin:] += taken
        H[: m + 1, m] = part
        H[m + 1, m] = rest
        self._began(H, m + 1)
        return 2, length

    def _step(self, H: Array, m: int, norm: float, loss: float, defect: float) -> int:
        """Compute v_(m+1) and column m of H; return the number of reductions, or 0 if that needs more care.

        `norm` is that of A, or a lower bound; `loss` bounds the inner products of different vectors,
        `defect` the residuals of those that remained after a truncation.
        """
        if self._full_steps < 2 or m != self._m:
            return 0
        v, w, T, beta, dot = self._vectors[m], self._vectors[m + 1], self._T, self._beta, self._dot
        np.multiply(self._vectors[m - 1], -beta, out=w)
        self.product(v, w)
        alpha = dot(v, w).real
        self._axpy(v, w, a=-alpha)
        rest, reductions = math.sqrt(dot(w, w).real), 2
        if not rest > LEAST_NORM * norm:
            self.note_change()
            return 0
        # With v_i^H A = (A v_i)^H: beta_(j+1) w_(j+1) = T^T w_j - alpha_j w_j - beta_j w_(j-1).
        T[m, m] = alpha
        now, later, noise = self._now, self._before, self._rounding * max(norm / rest, 1.0)
        _product(1 / rest, T, now, -beta / rest, later, trans=1, overwrite_y=1)
        _update(now, later, a=-alpha / rest)
        np.add(later, noise, out=later)
        if defect:
            later[: self._kept] += defect / rest
        later[m] = noise
        later[m + 1 :] = 0.0
        part = None
        expected = abs(float(later[_largest(later)]))
        if self._again or expected > loss:
            V = self.array[:, : m + 1]
            part = summed(self._layout, self._gemv(1.0, V, w, trans=self._adjoint))
            if not float(np.abs(part).max()) <= max(WORST_LOSS, UNEXPECTED * expected) * rest:
                self._is_lost = True
                self.note_change()
                return 0
            self._gemv(-1.0, V, part, 1.0, w, overwrite_y=1)
            later[: m + 1] = self._rounding
            before, rest = rest, math.sqrt(dot(w, w).real)
            if not rest > NORM_DROP * before:
                self.note_change()
                return 0
            self._again = not self._again
            reductions += 2
        self._scale(1 / rest, w)
        later[m + 1] = 1.0
        T[m + 1, m] = T[m, m + 1] = rest
        H[m, m], H[m + 1, m], H[m - 1, m] = alpha, rest, beta
        if part is not None:
            H[: m + 1, m] += part
        self._now, self._before, self._beta, self._m = later, now, rest, m + 1
        return reductions
