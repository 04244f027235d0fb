"""The block Krylov factorisation, expanded a block at a time and restarted thickly.

It is a Krylov decomposition of the operator on the complement of some locked columns,

    A V = V T + Q B,    V^H V = I,  Q^H Q = I,  V^H Q = 0,

with T Hermitian, V of m columns that the operator has been applied to, and Q of w *pending* columns that
wait for it. A step applies A to the next b pending columns, moves them to V, and appends b new ones.
Nothing says that w equals b, and this is what makes the method robust at no cost: whatever else turns out
to belong into the space, a warm start of many columns, a missed copy of a multiple eigenvalue, a correction
of drift, is appended to Q with its rows of B, and the decomposition stays exact.

V and Q share one row-major buffer ``[locked | V | Q]``; the factorisation keeps H = [V Q]^H A V, whose
upper part is T and whose lower part is B.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import Array, Block, LinearMap, assign, random_block, small_matrix, to_host
from ..orthogonalize import orthogonalize
from .rayleigh_ritz import SAME_RITZ_VALUE, clusters, ritz_pairs, separate_copies

__all__ = ["BlockKrylov", "Counts", "Ritz"]


@dataclass(slots=True)
class Counts:
    """What a solve has cost so far.

    Attributes
    ----------
    operator_columns : int
        Columns that the operator was applied to, verification included.
    block_applications : int
        Calls of the operator, verification included.
    verification_columns : int
        Of the columns, those that only served to look for missed eigenvalues.
    reductions : int
        Inner products over the tall dimension.
    restarts : int
    preconditioner_columns : int
        Columns that the preconditioner was applied to.
    """

    operator_columns: int = 0
    block_applications: int = 0
    verification_columns: int = 0
    reductions: int = 0
    restarts: int = 0
    preconditioner_columns: int = 0

    def apply(self, columns: int, times: int = 1) -> None:
        """Note applications to a block."""
        self.operator_columns += columns * times
        self.block_applications += times


@dataclass(frozen=True, slots=True)
class Ritz:
    """Ritz pairs of a factorisation: A (V y) = theta (V y) + Q (B y).

    Attributes
    ----------
    theta : array, shape (m,)
        Ascending, on the host.
    Y : array, shape (m, m)
    B : array, shape (w, m)
        Coupling of each Ritz vector to the pending columns, B Y.
    residuals : array, shape (m,)
        ||B y||: the residual norms, but for rounding.
    """

    theta: NDArray[np.float64]
    Y: NDArray[Any]
    B: NDArray[Any]
    residuals: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "residuals", np.linalg.norm(self.B, axis=0))


class BlockKrylov:
    """The factorisation A V = V T + Q B on the complement of locked columns.

    Parameters
    ----------
    operator : Operator
        With ``apply(X, out)``, which returns the block that holds the result: `out`, or X overwritten.
    buffer : BlockVector, shape (n, c + capacity)
        Its first c columns hold the locked ones, orthonormal; the rest is work space for V and Q.
    n_locked : int
        c.
    block_size : int
        Columns of a step.
    rng : numpy.random.Generator
        For random directions where the block loses rank.
    counts : Counts
    degree : int
        What one application of `operator` counts for, where it is a polynomial of the user's.

    Attributes
    ----------
    m, w : int
        Columns of V and of Q.
    norm : float
        Estimate of ||A|| from below, used as the scale of rounding; callers raise it as they learn more.

    References
    ----------
    Stewart, SIAM J. Matrix Anal. Appl. 23 (2002) 601 (Krylov decompositions); Wu, Simon, ibid. 22 (2000)
    602 (thick restart). Deviations: (1) blocks, and pending columns apart from the block size; (2) T comes
    from projecting against the whole basis, so that it is V^H A V whatever rounding did to the three-term
    recurrence.
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
    ) -> None:
        self.operator = operator
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
        self._scratch = [buffer.like(block_size), buffer.like(block_size)]
        self._most = 0.0  # largest norm of A x seen so far
        self._next: Block | None = None  # a contiguous copy of the pending columns, where there is one
        self._full_until = 0  # below this m the next columns couple to all of V, not only to the last block

    # --- views ----------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Directions of the space that neither the locked columns nor V and Q have taken."""
        n = int(self.buffer.shape[0])
        return n - self.n_locked - self.m - self.w

    @property
    def complete(self) -> bool:
        """Whether V is invariant because nothing is pending."""
        return self.w == 0

    def columns(self, begin: int, end: int) -> Block:
        """Return a view of columns of [V Q]."""
        return self.buffer[:, self.n_locked + begin : self.n_locked + end]

    @property
    def basis(self) -> Block:
        """A view of everything that is orthonormal: [locked V Q]."""
        return self.buffer[:, : self.n_locked + self.m + self.w]

    # --- growth ---------------------------------------------------------------------------------

    def append(
        self, block: Block, *, keep_random: bool = False, scale: Any = None
    ) -> tuple[Array, Array, int]:
        """Orthogonalise a block against everything and append it to Q; it is overwritten.

        Parameters
        ----------
        block : BlockVector, shape (n, s)
        keep_random : bool
            Whether directions that had to be replaced by random ones are appended too; where not, this
            waits for the device to see how many there are.
        scale : float
            Norm of the operator, where the block came from it.

        Returns
        -------
        S, R : array
            Coefficients: block = [V Q] S + Q_new R.
        count : int
            Columns appended.
        """
        width = min(block.shape[1], self.room, self.capacity - self.m - self.w)
        end = self.m + self.w
        into = self.columns(end, end + width)
        result = orthogonalize(block, self.basis, scale=scale, max_rank=width, into=into, rng=self.rng)
        self.counts.reductions += result.reductions
        count = width
        if not keep_random and width:
            count -= int(result.lost.sum())
        self.w += count
        self._next = None
        self._full_until = max(self._full_until, self.m + self.w)
        return result.S[self.n_locked :], result.R[:count], count

    def promote(self, count: int) -> None:
        """Bring the last `count` pending columns to the front: the operator is applied to them next."""
        begin, end = self.m, self.m + self.w
        order = np.r_[end - count : end, begin : end - count]
        pending = self.columns(begin, end)
        permutation = np.eye(self.w)[:, order - begin]
        pending[:, :] = pending.combine(small_matrix(permutation, pending))
        self._H[begin:end, :begin] = self._H[order, :begin]
        self._next = None
        self._full_until = end

    def append_random(self, width: int) -> int:
        """Append random directions to Q, uncoupled from V; return how many there was room for."""
        return self.append(random_block(self.buffer, width, self.rng), keep_random=True)[2]

    def can_expand(self) -> bool:
        """Whether something is pending and the buffer has room for what it will bring."""
        step = min(self.block_size, self.w)
        return self.w > 0 and self.m + self.w + min(step, self.room) <= self.capacity

    def expand(self) -> None:
        """Apply the operator to the next pending columns and append what is new."""
        step = min(self.block_size, self.w)
        X = self._take(step)
        W = self._other_scratch(X, step)
        W = self.operator.apply(X, out=W)
        self.counts.apply(step, self.degree)
        known, new = self.m + self.w, min(step, self.room)
        result = orthogonalize(
            W,
            self.basis,
            scale=self.norm or self._most,
            first=self._window(),
            max_rank=new,
            into=self.columns(known, known + new),
            rng=self.rng,
        )
        self.counts.reductions += result.reductions
        if self.norm == 0:
            columns = np.vstack([result.S, result.R])
            self._most = max(self._most, float(np.linalg.norm(columns, axis=0).max(initial=0)))
        self._H[:known, self.m : self.m + step] = result.S[self.n_locked :]
        self._H[known : known + new, self.m : self.m + step] = result.R
        self.m += step
        self.w += new - step
        if new < step:
            self._full_until = self.capacity
        self._next = W if new == step == self.w else None

    def expand_wide(self) -> None:
        """Apply the operator to all pending columns at once, keeping no random directions: for starts."""
        width, begin = self.w, self.m
        W = self.columns(begin, begin + width).copy()
        W = self.operator.apply(W)
        self.counts.apply(width)
        self.m, self.w = begin + width, 0
        known = self.m
        S, R, count = self.append(W, scale=0.0)  # that of its longest column
        self._H[:known, begin:known] = S
        self._H[known : known + count, begin:known] = R
        self._full_until = self.m + self.w

    def couple(self, column: int, S: Array, R: Array, count: int) -> None:
        """Note that A v_i has further components S in [V Q] and R in the last `count` pending columns.

        Parameters
        ----------
        column : int
            First of the columns i of V, as many as S has.
        S : array, shape (m + w - count, s)
        R : array, shape (count, s)
        """
        end = self.m + self.w
        columns = slice(column, column + S.shape[1])
        self._H[: end - count, columns] += S
        self._H[end - count : end, columns] = R
        self._H[columns, : self.m] = self._H[: self.m, columns].conj().T

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
        """Columns that A applied to the next pending block can have components in, by symmetry.

        These are the locked ones, the block that created the pending one, and everything since. The other
        components are rounding, which the second pass takes away. After a restart everything couples.
        """
        end = self.n_locked + self.m + self.w
        if self.m < self._full_until:
            return [(0, end)]
        steps_ago = -(-self.w // self.block_size)
        return [(0, self.n_locked), (self.n_locked + self.m - steps_ago * self.block_size, end)]

    # --- Rayleigh-Ritz and restart -----------------------------------------------------------------

    def ritz(self) -> Ritz:
        """Return the Ritz pairs of V."""
        H = self._H[: self.m + self.w, : self.m]
        theta, Y = ritz_pairs(H[: self.m])
        B = H[self.m :] @ Y
        if len(theta):
            self.norm = max(self.norm, float(np.abs(theta).max()))
            width = SAME_RITZ_VALUE * float(np.finfo(self.buffer.dtype).eps) * self.norm
            if len(clusters(theta, width)) < len(theta):
                theta, U = separate_copies(theta, B.conj().T @ B, width)
                Y, B = Y @ U, B @ U
        return Ritz(theta, Y, B)

    def restart(self, ritz: Ritz, kept: NDArray[np.intp]) -> None:
        """Replace V by the Ritz vectors with indices `kept`, in this order; Q stays."""
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
        self._next = self._next if self._next is not None and self._next.shape[1] == w else None
        self._full_until = keep + w

    def truncate(self, count: int) -> None:
        """Take the first `count` columns of V for invariant, and drop the others and Q."""
        H = np.zeros(self._H.shape, self._H.dtype)
        H[:count, :count] = self._H[:count, :count]
        self._H, self._next = H, None
        self.m, self.w, self._full_until = count, 0, count

    def snapshot(self) -> dict[str, Any]:
        """Return V, Q and H on the host, and what else the next step depends on."""
        end = self.m + self.w
        following = {} if self._next is None else {"next": to_host(self._next.array)}
        return following | {
            "basis": to_host(self.columns(0, end).array),
            "H": self._H[:end, : self.m],
            "m": self.m,
            "w": self.w,
            "krylov_norm": self.norm,
            "most": self._most,
            "full_until": self._full_until,
        }

    def resume(self, saved: dict[str, Any]) -> None:
        """Take up a state that `snapshot` has returned."""
        self.m, self.w = saved["m"], saved["w"]
        end = self.m + self.w
        assign(self.columns(0, end), saved["basis"])
        self._H[:end, : self.m] = saved["H"]
        self.norm, self._most, self._full_until = saved["krylov_norm"], saved["most"], saved["full_until"]
        self._next = None
        if "next" in saved:
            self._next = self._scratch[0] if self.w == self.block_size else self.buffer.like(self.w)
            assign(self._next, saved["next"])

    def rotate(self, U: NDArray[Any]) -> None:
        """Replace the columns of V by V U, for a unitary U; the decomposition is carried along."""
        m, end = self.m, self.m + self.w
        V = self.columns(0, m)
        V.combine(small_matrix(U, V), out=V)
        self._H[:end, :m] = self._H[:end, :m] @ U
        self._H[:m, :m] = U.conj().T @ self._H[:m, :m]

    def reorthonormalize(self) -> None:
        """Make [V Q] orthonormal to rounding again; the decomposition is carried along.

        Each restart rotates V, and rotations accumulate rounding errors: after some hundred of them the
        loss of orthogonality would exceed what a result may have.
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
        self._next = None
