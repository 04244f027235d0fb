"""Block Krylov decomposition with thick restart.

The decomposition of the operator A on the complement of locked columns is

    A V = V T + Q B,    V^H V = I,  Q^H Q = I,  V^H Q = 0,

with T Hermitian, V of m columns that A has been applied to, and Q of w *pending* columns that A has not yet
been applied to. A step applies A to the next b pending columns, moves them to V, and appends b new ones.
w need not equal b: a start of many columns, a missed copy of a multiple eigenvalue, or a correction of
rounding drift is appended to Q with its rows of B, and the decomposition remains exact.

V and Q share one row-major buffer ``[locked | V | Q]``. The matrix H = [V Q]^H A V is stored; its upper part
is T and its lower part is B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from blockvec import Profile

from ..blocks import (
    Array,
    Block,
    LinearMap,
    RealArray,
    assign,
    project_out,
    small_matrix,
    to_host,
)
from ..column_block import ColumnBlock, ColumnOperator
from ..orthogonalize import orthogonalize
from ..orthogonalize.host_step import column_step, square
from ..orthogonalize.queued_step import REDUCTIONS, QueuedStep, StepReport, queue_step
from ..runtime.checkpoint import restored
from .partial import LEAST_LOSS, PartialRecurrence
from .rayleigh_ritz import SAME_RITZ_VALUE, oblique, ritz_pairs, separate_copies
from .recorded_step import MAX_STEPS, RecordedStep, recorder_for

LARGEST_SCALE = float(np.finfo(np.float64).max) ** 0.5  # its square does not overflow
MAX_QUEUED = 4  # steps whose small matrices the host has not seen; so many are lost if one was not enough


def is_queued(operator: LinearMap, buffer: Block) -> bool:
    """Check whether steps are queued without waiting: products with a matrix on a device that has all rows.

    After a step that was not enough the next ones work on noise, at which solves and functions may fail.
    """
    is_matrix = getattr(operator, "is_recordable", False)
    return is_matrix and buffer.device != "cpu" and getattr(buffer, "layout", None) is None


@dataclass(slots=True)
class Counts:
    """Operation counts of a solve; those of the operator include verification."""

    operator_columns: int = 0  # columns that the operator was applied to
    block_applications: int = 0  # calls of the operator
    verification_columns: int = 0  # columns of `operator_columns` for missed eigenvalues
    reductions: int = 0  # inner products over the tall dimension
    restarts: int = 0
    preconditioner_columns: int = 0  # columns that the preconditioner was applied to
    single_columns: int = 0  # columns of `operator_columns` in single precision within a solve in double

    def apply(self, columns: int, times: int = 1) -> None:
        """Count `times` applications of the operator to a block."""
        self.operator_columns += columns * times
        self.block_applications += times

    def add(self, part: Counts, times: int = 1) -> None:
        """Add the costs of a part of the solve, whose operator applies A `times` times."""
        self.operator_columns += times * part.operator_columns
        self.block_applications += times * part.block_applications
        self.reductions += part.reductions
        self.single_columns += times * part.single_columns


@dataclass(frozen=True, slots=True)
class Ritz:
    """Ritz pairs of a decomposition: A (V y) = theta (V y) + Q (B y)."""

    theta: RealArray  # shape (m,), ascending, on the host
    Y: Array  # shape (m, m)
    B: Array  # shape (w, m): coupling B Y of each Ritz vector to the pending columns

    @property
    def residuals(self) -> RealArray:
        """||B y||: the residual norms, up to rounding; shape (m,)."""
        return np.asarray(np.linalg.norm(self.B, axis=0))


class BlockKrylov:
    """The decomposition A V = V T + Q B on the complement of locked columns.

    Parameters
    ----------
    operator : LinearMap
        A, or a polynomial of A.
    buffer : BlockVector, shape (n, c + capacity)
        The first c = `n_locked` columns are the locked ones, orthonormal; the others are workspace for V and
        Q.
    block_size : int
        Columns per step.
    rng : numpy.random.Generator
        Source of random directions that replace lost ones.
    degree : int
        Applications of A per application of `operator`.
    M : Operator, optional
        Matrix of the inner product x^H M y, in which the operator is Hermitian; default: the identity.

    Attributes
    ----------
    m, w : int
        Number of columns of V and of Q.
    norm : float
        Lower bound of ||A||, the scale of rounding errors; callers may raise it.

    References
    ----------
    Stewart, SIAM J. Matrix Anal. Appl. 23 (2002) 601 (Krylov decompositions); Wu, Simon, ibid. 22 (2000)
    602 (thick restart). Deviations: (1) blocks, and a number of pending columns independent of the block
    size; (2) T is computed by projection against the whole basis, so that T = V^H A V regardless of rounding
    errors in the three-term recurrence.
    """

    def __init__(
        self,
        operator: LinearMap,
        buffer: Block,
        n_locked: int,
        block_size: int,
        rng: Any,
        counts: Counts,
        degree: int = 1,
        M: LinearMap | None = None,
    ) -> None:
        self.operator, self.M = operator, M
        self.degree = degree
        self.buffer = buffer
        self.n_locked = n_locked
        self.block_size = block_size
        self.rng = rng
        self.counts = counts
        self.norm = 0.0
        self.m = self.w = 0
        self.capacity = buffer.shape[1] - n_locked
        dtype = np.complex128 if buffer.dtype.kind == "c" else np.float64
        self._H = np.zeros((self.capacity, self.capacity), dtype)
        self._is_by_columns = isinstance(buffer, ColumnBlock) and buffer.dtype.char in "dD"
        self.loss = 0.0  # of orthogonality that single columns may have
        self._partial: PartialRecurrence | None = None
        is_single = block_size == 1 and n_locked == 0 and self._is_by_columns
        if is_single and isinstance(operator, ColumnOperator):
            self._partial = PartialRecurrence(operator.add, cast(ColumnBlock, buffer))
        self._scratch = [buffer.like(block_size), buffer.like(block_size)]
        self._queues = M is None and is_queued(operator, buffer)
        self._reports: list[tuple[int, int, StepReport]] = []  # of queued steps: m and m + w before each
        self._recorder = recorder_for(operator, buffer)
        self._recorded: dict[tuple[Any, ...], RecordedStep | None] = {}
        self.most = 0.0  # largest norm of A x so far, until `norm` is known
        self._next: Block | None = None  # a contiguous copy of the pending columns, if available
        self._full_until = 0  # while m is below this, the next columns couple to all of V

    # --- views ----------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Dimension of the complement of [locked V Q]."""
        return self.buffer.n_global - self.n_locked - self.m - self.w

    @property
    def complete(self) -> bool:
        """Whether V is invariant: no columns are pending."""
        return self.w == 0

    @property
    def takes_single_columns(self) -> bool:
        """Whether steps are those of a recurrence of single vectors."""
        return self._partial is not None

    def columns(self, begin: int, end: int) -> Block:
        """Return a view of columns of [V Q]."""
        return self.buffer[:, self.n_locked + begin : self.n_locked + end]

    @property
    def basis(self) -> Block:
        """View of all orthonormal columns: [locked V Q]."""
        return self.buffer[:, : self.n_locked + self.m + self.w]

    # --- growth ---------------------------------------------------------------------------------

    def append(
        self, block: Block, *, keep_random: bool = False, scale: float | None = None
    ) -> tuple[Array, Array, int]:
        """Orthogonalise a block against [locked V Q] and append it to Q; the block is overwritten.

        Random replacements of lost directions are appended only with `keep_random`; without it this waits for
        the device to determine their number. `scale` is the norm of the operator, if the block was computed
        by it. Returns S, R and the number of columns appended: block = [V Q] S + Q_new R.
        """
        self.settle()
        width = min(block.shape[1], self.room, self.capacity - self.m - self.w)
        end = self.m + self.w
        into = self.columns(end, end + width)
        basis = self.basis
        first: Any = None if basis.shape[1] else ()  # a start is a step of its own
        result = orthogonalize(
            block, basis, M=self.M, scale=scale, first=first, max_rank=width, into=into, rng=self.rng
        )
        self.counts.reductions += result.reductions
        count = width
        if not keep_random and width:
            count -= int(result.lost.sum())
        self.w += count
        self._changed(max(self._full_until, self.m + self.w))
        return result.S[self.n_locked :], result.R[:count], count

    def promote(self, count: int) -> None:
        """Move the last `count` pending columns to the front: the operator is applied to them next."""
        begin, end = self.m, self.m + self.w
        order = np.r_[end - count : end, begin : end - count]
        pending = self.columns(begin, end)
        permutation = np.eye(self.w)[:, order - begin]
        pending[:, :] = pending.combine(small_matrix(permutation, pending))
        self._H[begin:end, :begin] = self._H[order, :begin]
        self._changed(end)

    def append_random(self, width: int) -> int:
        """Append random directions to Q, not coupled to V; return the number appended."""
        return self.append(self.buffer.random_like(width, self.rng), keep_random=True)[2]

    def can_expand(self) -> bool:
        """Check whether columns are pending and the buffer has room for the result of a step."""
        step = min(self.block_size, self.w)
        return self.w > 0 and self.m + self.w + min(step, self.room) <= self.capacity

    def expand(self, until: int = 0, stop: Callable[[], object] = bool) -> None:
        """Apply the operator to the next pending columns and append new directions.

        On a GPU this queues the step and does not wait for it; `settle` does. Steps of single vectors go on
        until V has `until` columns, or `stop`, called after each, returns a true value.
        """
        if self._queues and min(self.w, self.room) >= self.block_size:
            X, W, into = self._operands()
            W, step = self._queue(X, W, into)
            self._reports.append((self.m, self.m + self.w, StepReport(step, self.basis.shape[1])))
            self._advance(self.block_size, W)
            if len(self._reports) > MAX_QUEUED:
                self._settle_first()
        elif self._is_by_columns and self.room >= min(self.block_size, self.w):
            if not self._expand_partially(until, stop):
                self._expand_in_place()
        else:
            self.settle()
            self._expand_carefully()

    @Profile.timed("orthogonalisation")
    def _expand_partially(self, until: int, stop: Callable[[], object]) -> bool:
        """Take steps of the recurrence of single vectors, where that is permitted and enough."""
        begin, partial = self.m, self._partial
        if partial is None or self.w != 1 or self.loss < LEAST_LOSS:
            return False
        end = min(max(until, begin + 1), self.capacity - 1, begin + self.room)
        H, scale, loss = self._H, self.norm or self.most, self.loss
        while self.m < end:
            reductions = partial.step(H, self.m, scale, loss)
            if not reductions:
                break
            self.counts.reductions += reductions
            self.m += 1
            if stop():
                break
        self.counts.apply(1, self.m - begin)
        return self.m > begin

    def _expand_in_place(self) -> None:
        """Apply the operator to column-major columns of the buffer, and orthonormalise the result there.

        Columns are contiguous blocks, which need no copies; the usual case takes no call of `orthogonalize`.
        """
        step = min(self.block_size, self.w)
        begin, end = self.n_locked + self.m, self.n_locked + self.m + self.w
        columns, scale, layout = self.buffer.array, self.norm or self.most, self.buffer.layout
        X, W = (ColumnBlock(columns[:, i : i + step], layout) for i in (begin, end))
        self.operator.apply(X, out=W)
        S, R, length, reductions = column_step(W.array, columns[:, :end], self._window(), scale, layout)
        if R is None:
            result = orthogonalize(W, self.basis, scale=length, rng=self.rng)
            S, R, reductions = S + result.S, result.R, reductions + result.reductions
        self._note(self.m, self.m + self.w, S, R, reductions)
        self._advance(step, W)
        if self._partial is not None and self.w == 1:
            self._partial.began(self._H, self.m)

    def _expand_carefully(self) -> None:
        """Take a step for which nothing is assumed."""
        X, W, into = self._operands()
        W = self.operator.apply(X, out=W)
        step, new = X.shape[1], into.shape[1]
        result = orthogonalize(
            W,
            self.basis,
            M=self.M,
            scale=self.norm or self.most,
            first=self._window(),
            max_rank=new,
            into=into,
            rng=self.rng,
        )
        self._note(self.m, self.m + self.w, result.S, result.R, result.reductions)
        self._advance(step, W)

    def _operands(self) -> tuple[Block, Block, Block]:
        """Return the next pending columns X, a block for A X, and columns for the new directions."""
        step, known = min(self.block_size, self.w), self.m + self.w
        new = min(step, self.room)
        into = self.columns(known, known + new)
        X = self._take(step)
        return X, self._other_scratch(X, step), into

    def settle(self) -> None:
        """Wait for queued steps, and repeat with all care the first one that was not enough."""
        while self._reports:
            self._settle_first()

    def _settle_first(self) -> None:
        """Wait for the first queued step; if it was not enough, discard all and take it again."""
        m, known, report = self._reports.pop(0)
        S, R = report.wait(self.norm or self.most)
        if R is not None:
            self._note(m, known, S, R, REDUCTIONS)
            return
        self._reports.clear()
        self.m, self.w, self._next = m, known - m, None
        self._expand_carefully()

    def _advance(self, step: int, W: Block) -> None:
        """Move columns that A has been applied to from Q to V, behind the new ones, which W holds, too."""
        new = min(step, self.room)
        self.counts.apply(step, self.degree)
        self.m += step
        self.w += new - step
        if new < step:
            self._full_until = self.capacity
        self._next = W if new == step == self.w and not self._is_by_columns else None

    def _note(self, m: int, known: int, S: Array, R: Array, reductions: int) -> None:
        """Store the coefficients of a step whose first column was number m of V, with `known` of [V Q]."""
        self.counts.reductions += reductions
        new, step = R.shape
        if self.norm == 0:
            # The norm of all columns together is at most that of the longest one times sqrt(b).
            self.most = max(self.most, ((square(S) + square(R)) / max(step, 1)) ** 0.5)
        self._H[:known, m : m + step] = S[self.n_locked :]
        self._H[known : known + new, m : m + step] = R

    def _queue(self, X: Block, W: Block, into: Block) -> tuple[Block, QueuedStep]:
        """Queue a step, by one call where cycles repeat it; return the block that holds its result, too.

        The operations are called in the first cycle, which compiles kernels, and if they cannot be recorded.
        """
        window = self._window()
        recorder = self._recorder
        kind = id(self.operator), X is self._scratch[0], self.m, self.w, *window
        if recorder is not None and getattr(self.operator, "is_recordable", False):
            if kind in self._recorded:
                step = self._recorded[kind]
                if step is None:
                    step = RecordedStep(recorder, self.operator, X, W, self.basis, window, into)
                    self._recorded[kind] = step
                return W, step.queue()
            if len(self._recorded) < MAX_STEPS:
                self._recorded[kind] = None
        W = self.operator.apply(X, out=W)
        return W, queue_step(W, self.basis, window, into)

    def expand_wide(self) -> None:
        """Apply the operator to all pending columns at once; append no random directions. For starts."""
        self.settle()
        width, begin = self.w, self.m
        W = self.columns(begin, begin + width).copy()
        W = self.operator.apply(W)
        self.counts.apply(width)
        self.m, self.w = begin + width, 0
        known = self.m
        S, R, count = self.append(W, scale=0.0)  # the norm of the longest column
        self._H[:known, begin:known] = S
        self._H[known : known + count, begin:known] = R
        self._full_until = self.m + self.w

    def couple(self, column: int, S: Array, R: Array, count: int) -> None:
        """Add components of A V from a column on: S in [V Q] and R in the last `count` pending columns."""
        end = self.m + self.w
        columns = slice(column, column + S.shape[1])
        self._H[: end - count, columns] += S
        self._H[end - count : end, columns] = R
        self._H[columns, : self.m] = self._H[: self.m, columns].conj().T
        self._changed(end)

    def _changed(self, full_until: int, following: Block | None = None) -> None:
        """Note that columns were changed: up to `full_until` of them, the next ones couple to all of V.

        `following` is a contiguous copy of the pending columns, if available.
        """
        self._full_until, self._next = full_until, following
        if self._partial is not None:
            self._partial.stop()

    def _take(self, step: int) -> Block:
        """Return the next pending columns as a contiguous block."""
        if self._next is not None and self._next.shape[1] == step:
            return self._next
        X = self._scratch[0] if step == self.block_size else self.buffer.like(step)
        X[:, :] = self.columns(self.m, self.m + step)
        return X

    def _other_scratch(self, X: Block, step: int) -> Block:
        if step != self.block_size:
            return self.buffer.like(step)
        return self._scratch[1] if X is self._scratch[0] else self._scratch[0]

    def _window(self) -> list[tuple[int, int]]:
        """Column ranges in which the product with the next pending block can have components, by symmetry.

        These are the locked columns, the block that the pending one was computed from, and all later columns.
        Other components are rounding errors, removed by the second pass. After a restart all columns couple.
        """
        end = self.n_locked + self.m + self.w
        if self.m < self._full_until:
            return [(0, end)]
        steps_ago = -(-self.w // self.block_size)
        return [(0, self.n_locked), (self.n_locked + self.m - steps_ago * self.block_size, end)]

    # --- Rayleigh-Ritz and restart -----------------------------------------------------------------

    @Profile.timed("Rayleigh-Ritz")
    def ritz(self) -> Ritz:
        """Compute the Ritz pairs of V."""
        self.settle()
        H = self._H[: self.m + self.w, : self.m]
        theta, Y = ritz_pairs(H[: self.m])
        if self._partial is not None and self.loss >= LEAST_LOSS:
            Y = oblique(H[: self.m], theta, Y)
        B = H[self.m :] @ Y
        if len(theta):
            self.norm = max(self.norm, float(np.abs(theta).max()))
            width = SAME_RITZ_VALUE * float(np.finfo(self.buffer.dtype).eps) * self.norm
            if (theta[1:] - theta[:-1] <= width).any():
                theta, U = separate_copies(theta, B.conj().T @ B, width)
                Y, B = Y @ U, B @ U
        return Ritz(theta, Y, B)

    @Profile.timed("Rayleigh-Ritz")
    def restart(self, ritz: Ritz, kept: NDArray[np.intp]) -> None:
        """Replace V by the Ritz vectors with indices `kept`, in this order; keep Q."""
        m, w, keep = self.m, self.w, len(kept)
        C = np.zeros((m + w, keep + w), ritz.Y.dtype)
        C[:m, :keep] = ritz.Y[:, kept]
        C[m:, keep:] = np.eye(w)
        used = self.columns(0, m + w)
        used.combine(small_matrix(C, used), out=used[:, : keep + w])
        H = np.zeros(self._H.shape, self._H.dtype)
        H[:keep, :keep] = np.diag(ritz.theta[kept])
        H[keep : keep + w, :keep] = ritz.B[:, kept]
        self._H = H
        self.m = keep
        following = self._next if self._next is not None and self._next.shape[1] == w else None
        self._changed(keep + w, following)

    def images(self, count: int) -> Block:
        """Compute A V of the first columns of V, by the decomposition."""
        self.settle()
        used = self.columns(0, self.m + self.w)
        return used.combine(small_matrix(self._H[: self.m + self.w, :count], used))

    def truncate(self, count: int, defect: float = 0.0) -> None:
        """Drop Q and all but the first `count` columns of V, invariant but for residuals up to `defect`."""
        if self._partial is not None:
            self._partial.defect = defect
        H = np.zeros(self._H.shape, self._H.dtype)
        H[:count, :count] = self._H[:count, :count]
        self._H = H
        self.m, self.w = count, 0
        self._changed(count)

    def snapshot(self) -> dict[str, Any]:
        """Return V, Q, H and the state that the next step depends on, on the host."""
        self.settle()
        end = self.m + self.w
        following = {} if self._next is None else {"next": to_host(self._next.array)}
        return following | {
            "basis": to_host(self.columns(0, end).array),
            "H": self._H[:end, : self.m],
            "m": self.m,
            "w": self.w,
            "krylov_norm": self.norm,
            "most": self.most,
            "defect": 0.0 if self._partial is None else self._partial.defect,
        }

    def resume(self, saved: dict[str, Any]) -> None:
        """Restore a state returned by `snapshot`."""
        self.m, self.w = (restored(0, saved[name], name) for name in ("m", "w"))
        self.norm, self.most = (restored(0.0, saved[name], name) for name in ("krylov_norm", "most"))
        defect = restored(0.0, saved["defect"], "defect")
        if self._partial is not None:
            self._partial.defect = defect
        end = self._full_until = self.m + self.w
        if not all(0 <= scale < LARGEST_SCALE for scale in (self.norm, self.most, defect)):
            raise ValueError(f"its norms are {self.norm:.1e} and {self.most:.1e}")
        if end > self.capacity:
            raise ValueError(f"it has {self.m} + {self.w} columns")
        assign(self.columns(0, end), saved["basis"])
        self._H[:end, : self.m] = restored(self._H[:end, : self.m], saved["H"], "H")
        self._next = None
        if "next" in saved:
            self._next = self._scratch[0] if self.w == self.block_size else self.buffer.like(self.w)
            assign(self._next, saved["next"])

    def defect(self) -> tuple[float, float]:
        """Compute ||A x - [V Q] H y|| for a random x = V y of norm 1, and a norm of A."""
        m, end = self.m, self.m + self.w
        y = np.random.default_rng(0).standard_normal((m, 1))
        y /= np.linalg.norm(y) or 1.0
        X = self.buffer.random_like(2, 0)
        X[:, :1] = self.columns(0, m).combine(small_matrix(y, X))
        image = self.operator.apply(X)
        scale = float(to_host(image.norms()).max())
        locked = self.buffer[:, : self.n_locked] if self.n_locked else None
        rest = project_out(locked, image[:, :1].copy())
        product = small_matrix(self._H[:end, :m] @ y, rest)
        rest = self.columns(0, end).combine(product, out=rest, alpha=-1, beta=1)
        errors = [rest.norms()]
        if self._next is not None:
            errors.append(scale * self._next.copy().axpy(-1, self.columns(m, end)).norms())
        return max(float(to_host(error).max()) for error in errors), scale

    def rotate(self, U: Array) -> None:
        """Replace V by V U for a unitary U and transform the decomposition; Q by Q U where V is empty."""
        m, end = self.m, self.m + self.w
        V = self.columns(0, m or end)
        V.combine(small_matrix(U, V), out=V)
        self._changed(self._full_until, self._next if m else None)
        if m == 0:
            return
        self._H[:end, :m] = self._H[:end, :m] @ U
        self._H[:m, :m] = U.conj().T @ self._H[:m, :m]

    def rotate_first(self, U: Array, theta: RealArray) -> Block:
        """Replace the first columns of V by V U, where A has the Ritz values theta; return these columns."""
        k, end = len(U), self.m + self.w
        V = self.columns(0, k)
        V.combine(small_matrix(U, V), out=V)
        self._H[k:end, :k] = self._H[k:end, :k] @ U
        self._H[:k, k : self.m] = U.conj().T @ self._H[:k, k : self.m]
        self._H[:k, :k] = np.diag(theta)
        self._changed(self._full_until)
        return V

    @Profile.timed("orthogonalisation")
    def reorthonormalize(self) -> None:
        """Reorthonormalise [V Q] by Cholesky QR and transform the decomposition.

        Each restart multiplies V by a rotation, whose rounding errors accumulate: after some hundred restarts
        the loss of orthogonality would exceed the accuracy required of a result.
        """
        used = self.columns(0, self.m + self.w)
        G = to_host(used.gram()).astype(self._H.dtype)
        self.counts.reductions += 1
        R = np.linalg.cholesky((G + G.conj().T) / 2).conj().T
        inverse = np.linalg.inv(R)
        used.combine(small_matrix(inverse, used), out=used)
        m, end = self.m, self.m + self.w
        # [V Q] = [V' Q'] R, and A V = [V Q] H: so A V' = [V' Q'] (R H R_VV^-1).
        self._H[:end, :m] = R @ self._H[:end, :m] @ inverse[:m, :m]
        self._changed(end)
