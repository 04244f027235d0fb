"""Block Krylov decomposition with thick restart.

The decomposition of the operator A on the complement of locked columns is

    A V = V T + Q B,    V^H V = I,  Q^H Q = I,  V^H Q = 0,

with T Hermitian, V of m columns that A has been applied to, and Q of w *pending* columns that A has not yet
been applied to. A step applies A to the next b pending columns, moves them to V, and appends b new ones.
w need not equal b: a start of many columns, a missed copy of a multiple eigenvalue, or a correction of
rounding drift is appended to Q with its rows of B, and the decomposition remains exact.

V and Q share one buffer ``[locked | V | Q]``. The matrix H = [V Q]^H A V is stored; its upper part
is T and its lower part is B.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockvec import Profile
from blockvec.system.frozen import frozen

from ..blocks import (
    Array,
    Block,
    ColumnBlock,
    LinearMap,
    RealArray,
    assign,
    bordered,
    ceil_div,
    padded_width,
    round_up,
    small_matrix,
    to_host,
    width_padding,
)
from ..orthogonalization import orthogonalize
from ..orthogonalization.factors import gram_root, square
from ..problem import Counts
from .rayleigh_ritz import SAME_RITZ_VALUE, ritz_pairs, separate_copies

# On a GPU: columns of a basis above which products read multiples of so many, with zeros behind the basis. So
# do all where launches take the steps, since few others need a kernel.
NARROW, WIDE_UNIT = 256, 64
# Steps between looks for convergence, at least. Where their number followed from predicted times of looks, 58
# easy and 28 harder problems took .99 to 1.01 times as long.
PAUSE = 2


@frozen
class Ritz:
    """Ritz pairs of a decomposition: A (V y) = theta (V y) + Q (B y)."""

    theta: RealArray  # shape (m,), ascending, on the host
    Y: Array  # shape (m, m)
    B: Array  # shape (w, m): coupling B Y of each Ritz vector to the pending columns
    residuals: RealArray  # shape (m,): their norms, which are those of residuals up to rounding


class BlockKrylov:
    """The decomposition A V = V T + Q B on the complement of locked columns, which grows by steps.

    The operator is A or a polynomial of A of a degree, in single precision if `is_mixed`. The first
    `n_locked` columns of the buffer are orthonormal or zero. Steps of this class assume nothing; `krylov_of`
    in `steps` chooses those of other classes where they are possible.

    References
    ----------
    Stewart, SIAM J. Matrix Anal. Appl. 23 (2002) 601 (Krylov decompositions); Wu, Simon, ibid. 22 (2000)
    602 (thick restart). Deviations: blocks, and a number of pending columns independent of the block size;
    T is computed by projection against the whole basis, so that T = V^H A V regardless of rounding errors in
    the three-term recurrence; steps of single columns do so where they have lost orthogonality.
    """

    takes_single_columns = False  # whether steps are those of a recurrence of single vectors
    may_lose = False  # whether steps may leave vectors less than orthogonal
    takes_launches = False  # whether few calls queue several steps, in less time than a look at them
    pause = PAUSE
    _scratch: tuple[Block, Block] | None = None

    def __init__(
        self,
        operator: LinearMap,
        buffer: Block,
        n_locked: int,
        block_size: int,
        rng: Any,
        counts: Counts,
        degree: int = 1,
        is_mixed: bool = False,
    ) -> None:
        self.operator, self.buffer, self.n_locked = operator, buffer, n_locked
        self.block_size, self.degree, self.rng, self.counts = block_size, degree, rng, counts
        self.is_mixed = is_mixed
        self.m = self.w = 0  # columns of V and of Q
        self.full_until = 0  # while m is below this, A maps the next columns to all of V
        self.norm = 0.0  # lower bound of ||A||, the scale of rounding errors; callers may raise it
        self.defect = 0.0  # largest residual of the vectors that remained after a truncation
        self.capacity = buffer.shape[1] - n_locked
        dtype = np.complex128 if buffer.dtype.kind == "c" else np.float64
        self.H = np.zeros((self.capacity, self.capacity), dtype)  # [V Q]^H A V
        self.unit = 1 if width_padding(buffer) == 1 else block_size  # of columns that products read
        self._views: dict[tuple[int, int], Block] = {}  # by their columns
        self._is_clear = False  # whether zeros follow [V Q] where products read them

    @property
    def room(self) -> int:
        """Dimension of the complement of [locked V Q]."""
        return self.buffer.n_global - self.n_locked - self.m - self.w

    def columns(self, begin: int, end: int) -> Block:
        """Return a view of columns of [V Q], which is kept: to make one takes longer than a launch."""
        if (begin, end) not in self._views:
            self._views[begin, end] = self.buffer[:, self.n_locked + begin : self.n_locked + end]
        return self._views[begin, end]

    def _filled(self, count: int) -> int:
        """Round a number of columns of [V Q] up to one that products read; each takes a kernel."""
        is_wide = self.unit > 1 and (self.takes_launches or count > NARROW)
        return min(round_up(count, round_up(WIDE_UNIT, self.unit) if is_wide else self.unit), self.capacity)

    def _filled_basis(self) -> Block:
        """Return a view of [locked V Q] and of zero columns that fill up the last block."""
        end = self.m + self.w
        filled = self._filled(end)
        if filled > end and not self._is_clear:
            self._clear()
            self._is_clear = True
        return self.columns(-self.n_locked, filled)

    def _clear(self) -> None:
        """Set the columns behind [V Q] to zero."""
        self.columns(self.m + self.w, self.capacity)[:, :] = 0

    def padded(self, count: int) -> int:
        """Return the columns to be read or replaced instead of `count`: those behind [V Q] are finite."""
        return min(padded_width(count, self.buffer), self.capacity)

    def can_expand(self) -> bool:
        """Check whether columns are pending and the buffer has room for the result of a step."""
        return self.w > 0 and self.m + self.w + min(self.block_size, self.w, self.room) <= self.capacity

    def expand(self, until: int = 0, stop: Callable[[], object] = bool) -> None:
        """Apply the operator to the next pending columns and append new directions.

        On a GPU this queues the step and does not wait for it; `settle` does. Where steps are cheap, it takes
        more until V has `until` columns, or until `stop`, called after each, returns a true value.
        """
        self._take_carefully()

    def settle(self, until: int | None = None) -> bool:
        """Wait for queued steps, or those of the first columns of V up to a number.

        Repeats with all care the first one that was not enough, and returns False then.
        """
        return True

    def begin_ahead(self, steps: int) -> None:
        """Queue steps while the host looks at the decomposition, where launches take them."""

    def withdraw(self, m: int) -> None:
        """Drop columns that queued steps append behind the first m of V."""

    def _take_carefully(self) -> Array:
        """Take a careful step; return the factor of its new block."""
        X, W, into = self._operands()
        S, R, _ = self._orthogonalize(into, self.operator.apply(X, out=W), self.norm, self._window())
        self._note(self.m, self.m + self.w, S, R)
        self._advance(X.shape[1])
        return R

    def _operands(self) -> tuple[Block, Block, Block]:
        """Return the next pending columns, a block for their product, and columns for new ones.

        The first two are copies that are contiguous; column-major ones are contiguous where they are.
        """
        step, known = min(self.block_size, self.w), self.m + self.w
        if isinstance(self.buffer, ColumnBlock) and step <= self.room:
            into = self.columns(known, known + step)
            return self.columns(self.m, self.m + step), into, into
        if self._scratch is None or self._scratch[0].shape[1] != step:
            self._scratch = self.buffer.like(step), self.buffer.like(step)
        X, W = self._scratch
        X[:, :] = self.columns(self.m, self.m + step)
        return X, W, self.columns(known, known + min(step, self.room))

    def _window(self) -> list[tuple[int, int]]:
        """Column ranges in which the product with the next pending block can have components, by symmetry.

        These are the locked columns, the block that the pending one was computed from, and all later columns.
        Other components are rounding errors, removed by the second pass. After a restart all columns couple.
        """
        if self.m < self.full_until:
            return [(0, self.n_locked + self._filled(self.m + self.w))]
        end = self.n_locked + min(round_up(self.m + self.w, self.unit), self.capacity)
        begin = self.m - ceil_div(self.w, self.block_size) * self.block_size
        return [(0, self.n_locked), (self.n_locked + begin // self.unit * self.unit, end)]

    def _note(self, m: int, known: int, S: Array, R: Array) -> None:
        """Store the coefficients of a step whose first column was number m of V, with `known` of [V Q]."""
        new, step = R.shape
        # The norm of all columns together is at most that of the longest one times sqrt(b).
        self.norm = max(self.norm, math.sqrt((square(S) + square(R)) / max(step, 1)))
        self.H[:known, m : m + step] = S[self.n_locked : self.n_locked + known]
        self.H[known : known + new, m : m + step] = R

    def _advance(self, step: int) -> None:
        """Move columns that A has been applied to from Q to V; new ones follow Q."""
        new = min(step, self.room)
        self.counts.apply(step, self.degree)
        self.counts.single_columns += step * self.degree * self.is_mixed
        self.m += step
        self.w += new - step
        if new < step:
            self.full_until = self.capacity

    def _orthogonalize(
        self, into: Block, block: Block, scale: float | None, first: Any = None
    ) -> tuple[Array, Array, int]:
        """Orthogonalise a block against the basis and write it to columns behind [V Q].

        Returns S and R, and the number of columns that are no random replacements.
        """
        filled = self.n_locked + self.m + self.w
        how: dict[str, Any] = {"scale": scale, "first": first, "rng": self.rng}
        result = orthogonalize(block, self._filled_basis(), filled=filled, max_rank=into.shape[1], **how)
        if into is not block:
            into[:, :] = block[:, : into.shape[1]]
        self.counts.reductions += result.reductions
        return result.S, result.R, int(np.count_nonzero(~result.lost))

    def expand_wide(self) -> None:
        """Apply the operator to all pending columns at once; append no random directions. For starts.

        By steps of b columns 84 solves from eigenvectors, exact or with noise, took 1.14 times as long.
        """
        self.settle()
        begin, end = self.m, self.m + self.w
        W = self.operator.apply(self.columns(begin, end).copy())
        self.counts.apply(self.w)
        self.m, self.w = end, 0
        self.couple(begin, *self.append(W, scale=0.0))  # the norm of the longest column

    def _changed(self, full_until: int) -> None:
        """Note that columns were changed: up to `full_until` of them, the next ones couple to all of V."""
        self.full_until, self._is_clear = full_until, False

    def append(
        self, block: Block, *, keep_random: bool = False, scale: float | None = None
    ) -> tuple[Array, Array, int]:
        """Orthogonalise a block against [locked V Q] and append it to Q; the block is overwritten.

        Random replacements of lost directions are appended only with `keep_random`. `scale` is the norm of
        the operator, if the block was computed by it. Returns S, R and the number of columns appended:
        block = [V Q] S + Q_new R.
        """
        self.settle()
        end = self.m + self.w
        width = min(block.shape[1], self.room, self.capacity - end)
        first: Any = None if self.n_locked + end else ()  # a start is a step of its own
        S, R, count = self._orthogonalize(self.columns(end, end + width), block, scale, first)
        count = width if keep_random else count
        self.w += count
        self._changed(max(self.full_until, self.m + self.w))
        return S[self.n_locked : self.n_locked + end], R[:count], count

    def append_random(self, width: int) -> int:
        """Append random directions to Q, not coupled to V; return the number appended."""
        return self.append(self.buffer.random_like(width, self.rng), keep_random=True)[2]

    def couple(self, column: int, S: Array, R: Array, count: int) -> None:
        """Add components of A V from a column on: S in [V Q] and R in the last `count` pending columns."""
        end = self.m + self.w
        columns = slice(column, column + S.shape[1])
        self.H[: end - count, columns] += S
        self.H[end - count : end, columns] = R
        self.H[columns, : self.m] = self.H[: self.m, columns].conj().T
        self._changed(end)

    @Profile.timed("Rayleigh-Ritz")
    def ritz(self, until: int | None = None) -> Ritz:
        """Compute the Ritz pairs of V, or those of fewer first columns while steps append others."""
        self.settle(until)
        m = self.m if until is None else min(until, self.m)
        theta, Y = self._eigenpairs(m)
        B = self.H[m : m + self.w, :m] @ Y
        if len(theta):
            self.norm = max(self.norm, float(np.abs(theta).max()))
            width = SAME_RITZ_VALUE * float(np.finfo(self.buffer.dtype).eps) * self.norm
            if (theta[1:] - theta[:-1] <= width).any():
                theta, U = separate_copies(theta, B.conj().T @ B, width)
                Y, B = Y @ U, B @ U
        return Ritz(theta, Y, B, np.abs(B[0]) if len(B) == 1 else np.linalg.norm(B, axis=0))

    def _eigenpairs(self, m: int) -> tuple[RealArray, Array]:
        """Compute eigenvalues and eigenvectors of the first m rows and columns of T."""
        return ritz_pairs(self.H[:m, :m])

    @Profile.timed("Rayleigh-Ritz")
    def restart(self, ritz: Ritz, kept: NDArray[np.intp]) -> None:
        """Replace V by the Ritz vectors with indices `kept`, in this order; keep Q."""
        w, keep, m = self.w, len(kept), len(ritz.Y)
        C = np.zeros((m + w, keep + w), ritz.Y.dtype)
        C[:m, :keep], C[m:, keep:] = ritz.Y[:, kept], np.eye(w)
        self._rotate(C)
        self.H[...] = 0
        self.H[:keep, :keep] = np.diag(ritz.theta[kept])
        self.H[keep : keep + w, :keep] = ritz.B[:, kept]
        self.m = keep
        self._changed(keep + w)

    def _rotate(self, C: Array) -> None:
        """Replace the first columns of [V Q] by their product with C."""
        # On a GPU all columns, as each width takes a kernel: those behind [V Q] are finite.
        used = self.columns(0, len(C) if self.buffer.device == "cpu" else self.capacity)
        C = bordered(C, used.shape[1], self.padded(C.shape[1]))
        used.combine(small_matrix(C, used), out=used[:, : C.shape[1]])

    def combined(self, C: Array) -> Block:
        """Return [V Q] C for the first columns of [V Q]."""
        used = self.columns(0, self.padded(len(C)))
        return used.combine(small_matrix(bordered(C, used.shape[1], C.shape[1]), used))

    def truncate(self, count: int, defect: float) -> None:
        """Drop Q and all but the first `count` columns of V, invariant but for residuals up to `defect`."""
        self.H[count:], self.H[:, count:] = 0, 0
        self.m, self.w, self.defect = count, 0, defect
        self._changed(count)

    def transform(self, U: Array, inverse: Array) -> None:
        """Replace the first columns of [V Q] by their product with U, and transform the decomposition."""
        count, m, end = len(U), self.m, self.m + self.w
        self._rotate(U)
        # [V Q] = [V' Q'] R for an R with `inverse` first, and A V = [V Q] H: A V' = [V' Q'] (R H U).
        self.H[:count, :m] = inverse @ self.H[:count, :m]
        here = min(count, m)
        self.H[:end, :here] = self.H[:end, :here] @ U[:here, :here]
        self._changed(max(self.full_until, end if count > m else 0))

    @Profile.timed("orthogonalisation")
    def reorthonormalize(self) -> None:
        """Reorthonormalise [V Q] by Cholesky QR and transform the decomposition.

        Each restart multiplies V by a rotation, whose rounding errors accumulate: after some hundred restarts
        the loss of orthogonality would exceed the accuracy required of a result.
        """
        end = self.m + self.w
        G = to_host(self.columns(0, self.padded(end)).gram())[:end, :end].astype(self.H.dtype)
        self.counts.reductions += 1
        R, inverse = gram_root(G)
        self.transform(inverse, R)

    def snapshot(self) -> dict[str, Any]:
        """Return V, Q, H and what the next step depends on, on the host."""
        self.settle()
        end = self.m + self.w
        return {
            **{"basis": to_host(self.columns(0, end).array), "H": self.H[:end, : self.m]},
            **{"m": self.m, "w": self.w, "defect": self.defect},
            "krylov_norm": self.norm,
        }

    def resume(self, saved: dict[str, Any]) -> None:
        """Restore a state returned by `snapshot`."""
        self.m, self.w, self.defect = saved["m"], saved["w"], saved["defect"]
        self.norm = saved["krylov_norm"]
        end = self.full_until = self.m + self.w
        assign(self.columns(0, end), saved["basis"])
        self.H[:end, : self.m] = saved["H"]
