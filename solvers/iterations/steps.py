"""Kinds of Krylov decompositions by their steps, of which one is chosen for each decomposition.

Steps on a GPU are queued without waiting for their results. All others but those of single column-major
vectors of the host, and those that need more, are taken with care.

The three-term recurrence of single vectors alone loses their orthogonality. How much it has lost follows from
a recurrence of small vectors, and only where that exceeds a permitted loss are two successive vectors
orthogonalised against all others. A step therefore reads three vectors, not the whole
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
from typing import Any

import numpy as np
from scipy.linalg import blas

from blockvec import Operator, Profile
from blockvec.errors import BreakdownError

from ..blocks import Array, Block, ColumnBlock, LinearMap, RealArray, ceil_div, summed
from ..orthogonalization.factors import NOISE, PLAIN_GROWTH, PLAIN_NOISE, UNIT, square
from ..orthogonalization.host_step import (
    QUEUED_ENOUGH,
    REDUCTIONS,
    Wait,
    is_easy,
    queue_step,
    step_of_several,
)
from ..runtime.processes import everywhere
from .krylov import PAUSE, BlockKrylov
from .rayleigh_ritz import FLOOR, MOST_OBLIQUE, oblique, ritz_pairs

# Steps whose small matrices the host has not seen: so many are lost if one was not enough. With A itself, and
# with filters, which take the device longer than the host.
MAX_QUEUED, MAX_QUEUED_FILTERS = 4, 1
LAUNCHED_PAUSE = 8  # steps between looks with A on a GPU of which one call queues several, at least


def krylov_of(operator: LinearMap, buffer: Block, n_locked: int, block_size: int, *of: Any) -> BlockKrylov:
    """Make the decomposition whose steps suit an operator and a buffer; arguments are those of the class."""
    kind: Any = BlockKrylov
    is_single = block_size == 1 and n_locked == 0 and getattr(buffer, "inner", None) is None
    is_double = isinstance(buffer, ColumnBlock) and buffer.dtype.char in "dD"
    if is_single and is_double and isinstance(operator, Operator):
        kind = SingleKrylov
    elif is_queued(operator, buffer):
        kind = QueuedKrylov
    made: BlockKrylov = kind(operator, buffer, n_locked, block_size, *of)
    return made


def is_queued(operator: LinearMap, buffer: Block) -> bool:
    """Check whether steps are queued without waiting: those on a device whose products are no solves.

    After a step that was not enough the next ones work on noise, at which solves may fail.
    """
    may_be = getattr(operator, "may_be_queued", getattr(operator, "is_recordable", False))
    return buffer.device != "cpu" and everywhere(getattr(buffer, "layout", None), may_be)


class QueuedKrylov(BlockKrylov):
    """Steps on a GPU that do not wait: one per call, or several per launch."""

    def __init__(self, operator: LinearMap, buffer: Block, n_locked: int, block_size: int, *of: Any) -> None:
        super().__init__(operator, buffer, n_locked, block_size, *of)
        launches = getattr(operator, "krylov_steps", None)
        self._launches = None if launches is None else launches(buffer, block_size)
        self.takes_launches = self._launches is not None
        self.pause = LAUNCHED_PAUSE if getattr(self._launches, "multiplies", False) else PAUSE
        self._waits = False  # for each step, after one that was not enough and others like it
        # Of queued steps: m and m + w before each.
        self._reports: list[tuple[int, int, Wait]] = []

    def can_expand(self) -> bool:
        if not super().can_expand():
            self.settle()  # a step that failed leaves room
        return super().can_expand()

    def expand(self, until: int = 0, stop: Callable[[], object] = bool) -> None:
        if not self._may_queue():
            self.settle()
            self._take_carefully()
            return
        try:
            if self._launches is None:
                self._queue()
            else:
                self._launch(until)
        except (ArithmeticError, ValueError, BreakdownError):  # NumPy's LinAlgError is a ValueError
            if self.settle():
                raise  # else a function failed for the rounding errors that an earlier step had left

    def _may_queue(self) -> bool:
        return not self._waits and min(self.w, self.room) >= self.block_size

    def _queue(self) -> None:
        X, W, into = self._operands()
        W, basis = self.operator.apply(X, out=W), self._filled_basis()
        self._reports.append((self.m, self.m + self.w, queue_step(W, basis, self._window(), into)))
        self._advance(self.block_size)
        self._bound()

    def _launch(self, until: int) -> None:
        """Queue steps up to `until` columns of V, as far as there is room, by one call."""
        launches, b, m, end = self._launches, self.block_size, self.m, self.m + self.w
        assert launches is not None
        room = min(self.capacity - end, self.room)
        # In a launch, a step takes the columns that the one before has made.
        takes_several = launches.takes_several and self.w == b
        count = max(1, min(ceil_div(until - m, b), room // b)) if takes_several else 1
        X, W, _ = self._operands()
        if not launches.multiplies and self.operator.apply(X, out=W) is X:
            X, W = W, X
        columns = (self.n_locked + size for size in (m, end, self.full_until))
        wait = launches.queue(X, W, *columns, self.n_locked, count, QUEUED_ENOUGH * b, PLAIN_GROWTH)
        for step in range(count):
            report = step_of_several(wait, step, self.buffer.dtype)
            self._reports.append((self.m, self.m + self.w, report))
            self._advance(b)
        if not takes_several:
            self._bound()

    def _bound(self) -> None:
        """Wait for the first queued step if too many would be lost with it."""
        if len(self._reports) > (MAX_QUEUED if self.degree == 1 else MAX_QUEUED_FILTERS):
            self._settle_first()

    def settle(self, until: int | None = None) -> bool:
        while self._reports and (until is None or self._reports[0][0] < until):
            if not self._settle_first():
                return False
        return True

    def _settle_first(self) -> bool:
        """Wait for the first queued step; if it was not enough, discard all, take it again, return False."""
        m, known, wait = self._reports.pop(0)
        S, R = wait(self.norm)
        if R is not None:
            self.counts.reductions += REDUCTIONS
            self._note(m, known, S, R)
            return True
        self._reports.clear()
        self.m, self.w = m, known - m
        self._clear()  # what a function made of rounding errors need not be finite
        self._take_carefully()
        return False

    def _take_carefully(self) -> Array:
        """Take a careful step, and wait for the next one if it would not be enough, either."""
        R = super()._take_carefully()
        self._waits = not is_easy(R, self.norm, self.buffer.dtype, factors_again=self.takes_launches)
        return R

    def begin_ahead(self, steps: int) -> None:
        if steps and self.takes_launches and self._may_queue() and super().can_expand():
            self.expand(self.m + steps * self.block_size)

    def withdraw(self, m: int) -> None:
        if m < self.m:
            self._reports.clear()
            self.m, self._is_clear = m, True
            self._clear()  # steps that nobody has judged need not be finite, and a rotation reads them

    def _changed(self, full_until: int) -> None:
        super()._changed(full_until)
        self._waits = False


# Permitted loss of orthogonality. Below the square root of UNIT projected matrices are right to rounding, and
# a last Rayleigh-Ritz step makes vectors orthonormal. With full orthogonalisation of each vector 19 problems
# take 1.09 times as long in the mean, one with 12 000 rows 1.55 times.
LOSS = MOST_OBLIQUE
# Asymmetry of a projected matrix, in eps ||A||, that may come from rounding errors of earlier restarts. It is
# averaged, which damps them: a correction preserves them, and 7 of 12 solves with two columns per restart did
# not converge to tol=0. With 16 true residuals are twice as large after a hundred restarts.
DRIFT = 4.0
LEAST = NOISE * UNIT / PLAIN_NOISE  # length of a remainder relative to ||A||: shorter ones need more care
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


class SingleKrylov(BlockKrylov):
    """Steps A v_j = beta_j v_(j-1) + alpha_j v_j + beta_(j+1) v_(j+1) in the columns of the buffer.

    What remains of A v_j is projected on all vectors, or only where it may have lost more orthogonality than
    is permitted: that is estimated once two successive vectors have been projected.
    """

    takes_single_columns = True
    may_lose = True  # orthogonality

    def __init__(self, operator: Operator, buffer: ColumnBlock, *of: Any) -> None:
        super().__init__(operator, buffer, *of)
        c, self._layout, self._array = self.capacity, buffer.layout, buffer.array
        self._add = operator.vector_adder(is_hermitian=True)  # (x, y): y += A x
        self._vectors = [self._array[:, j] for j in range(c)]
        self._dot, self._axpy, self._scale, self._gemv = vector_calls(buffer)
        self._adjoint = 2 if buffer.dtype.kind == "c" else 1
        self._rounding = UNIT * math.sqrt(buffer.n_global)
        self._successive = 0  # steps since the decomposition was changed, or since one needed more care
        self._again = False  # whether the next vector is projected on all others, too
        # Estimated inner products of two successive vectors with all, the number of the second one, and of
        # the vectors that may have the defect.
        self._now, self._before, self._estimated, self._kept = np.zeros(c), np.zeros(c), -1, 0
        self._T = np.zeros((c, c), order="F")  # where they are estimated

    def _changed(self, full_until: int) -> None:
        super()._changed(full_until)
        self._successive, self._again, self._estimated = 0, False, -1

    @Profile.timed("orthogonalisation")
    def expand(self, until: int = 0, stop: Callable[[], object] = bool) -> None:
        begin, end = self.m, min(max(until, self.m + 1), self.capacity - 1, self.m + self.room)
        while self.w == 1 and self.m < end and self._step():
            self.m += 1
            self._successive += 1
            if stop():
                break
        self.counts.apply(1, self.m - begin)
        if self.m == begin:
            self._successive, self._again, self._estimated = 0, False, -1
            self._take_carefully()
            self._successive = 1

    def _step(self) -> bool:
        """Compute v_(m+1) and column m of H by a few calls of BLAS; return False if that needs more care."""
        m, H, dot, gemv = self.m, self.H, self._dot, self._gemv
        v, w, V = self._vectors[m], self._vectors[m + 1], self._array[:, : m + 1]
        is_estimated = self.may_lose and self._successive >= 2
        expected = math.inf  # largest inner product with v_0 to v_m
        if m < self.full_until:
            w.fill(0)
            self._add(v, w)
            H[: m + 1, m] = near = summed(self._layout, gemv(1.0, V, w, trans=self._adjoint))
            gemv(-1.0, V, near, 1.0, w, overwrite_y=1)
            taken = square(near)
        else:
            beta = H[m, m - 1].real
            np.multiply(self._vectors[m - 1], -beta, out=w)
            self._add(v, w)
            H[m, m] = alpha = dot(v, w).real
            H[m - 1, m] = beta
            self._axpy(v, w, a=-alpha)
            taken = alpha * alpha + beta * beta
            if is_estimated:
                rest = math.sqrt(dot(w, w).real)
                if not rest > LEAST * self.norm:
                    return False
                expected = self._estimate(alpha, beta, rest)
        if self._again or not expected <= LOSS:
            part = summed(self._layout, gemv(1.0, V, w, trans=self._adjoint))
            # Otherwise estimates are wrong: the projected matrix, its norm and all limits would be, too.
            if is_estimated and not np.abs(part).max() <= FLOOR * max(expected, LOSS) * rest:
                self.reorthonormalize()  # the vectors have lost more than is permitted
                return False
            gemv(-1.0, V, part, 1.0, w, overwrite_y=1)
            whole, again = dot(w, w).real, square(part)
            self.norm = max(self.norm, math.sqrt(whole + again + taken))
            if not again <= whole > (LEAST * self.norm) ** 2:
                return False
            rest = math.sqrt(whole)
            H[: m + 1, m] += part
            self._now[: m + 1] = self._rounding
            self._again = not self._again
            self.counts.reductions += 1
        self._scale(1 / rest, w)
        H[m + 1, m] = rest
        self.counts.reductions += 2
        return True

    def _estimate(self, alpha: float, beta: float, rest: float) -> float:
        """Estimate the inner products of v_(m+1), whose length was `rest`; return the largest magnitude."""
        m, T = self.m, self._T
        if self._estimated != m:
            T[...] = 0
            T[: m + 1, :m] = self.H[: m + 1, :m].real
            self._kept = max(m - 2, 0)
            for products, j in ((self._before, m - 1), (self._now, m)):
                products[:] = 0
                products[:j] = self._rounding
                products[j] = 1.0
        # With v_i^H A = (A v_i)^H: beta_(j+1) w_(j+1) = T^T w_j - alpha_j w_j - beta_j w_(j-1).
        T[m, m], T[m - 1, m] = alpha, beta
        T[m, m - 1] = beta
        now, later, noise = self._now, self._before, self._rounding * max(self.norm / rest, 1.0)
        _product(1 / rest, T, now, -beta / rest, later, trans=1, overwrite_y=1)
        _update(now, later, a=-alpha / rest)
        np.add(later, noise, out=later)
        if self.defect:
            later[: self._kept] += self.defect / rest
        later[m] = noise
        later[m + 1 :] = 0.0
        largest = abs(float(later[_largest(later)]))
        later[m + 1] = 1.0
        self._now, self._before, self._estimated = later, now, m + 1
        return largest

    def _eigenpairs(self, m: int) -> tuple[RealArray, Array]:
        """Compute eigenvalues and eigenvectors of a T that is Hermitian up to the loss of orthogonality."""
        T = self.H[:m, :m]
        theta, Y = ritz_pairs(T)
        if not self.may_lose:
            return theta, Y
        rounding = float(np.finfo(self.buffer.dtype).eps) * float(np.abs(theta).max(initial=0.0))
        Y, coupling = oblique(T, theta, Y, DRIFT * rounding)
        if coupling > FLOOR * max(rounding, self.defect):
            self.reorthonormalize()  # which makes T Hermitian
            theta, Y = ritz_pairs(T)
        return theta, Y
