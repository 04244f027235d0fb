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
from scipy.linalg import blas

from blockvec import Operator, Profile
from blockvec.system.frozen import frozen

from ..blocks import (
    Array,
    Block,
    ColumnBlock,
    LinearMap,
    RealArray,
    assign,
    ceil_div,
    small_matrix,
    to_host,
    vector_calls,
)
from ..orthogonalization import orthogonalize
from ..problem import FLOOR, Counts
from ..runtime.processes import everywhere
from ..small_matrices import (
    MOST_OBLIQUE,
    NOISE,
    PLAIN_NOISE,
    SAME_RITZ_VALUE,
    UNIT,
    gram_root,
    oblique,
    ritz_pairs,
    separate_copies,
    square,
)

# Steps between looks for convergence, at least. Where their number followed from predicted times of looks, 58
# easy and 28 harder problems took .99 to 1.01 times as long.
PAUSE = 2
# Permitted loss of orthogonality. Below the square root of UNIT projected matrices are right to rounding, and
# a last Rayleigh-Ritz step makes vectors orthonormal. With full orthogonalisation of each vector 19 problems
# take 1.09 times as long in the mean, one with 12 000 rows 1.55 times.
LOSS = MOST_OBLIQUE
# Asymmetry of a projected matrix, in eps ||A||, that may come from rounding errors of earlier restarts. It is
# averaged, which damps them: a correction preserves them, and 7 of 12 solves with two columns per restart did
# not converge to tol=0. With 16 true residuals are twice as large after a hundred restarts.
DRIFT = 4.0
LEAST = NOISE * UNIT / PLAIN_NOISE  # length of a remainder relative to ||A||: shorter ones need more care
_product, _update, _largest = blas.dgemv, blas.daxpy, blas.idamax  # for estimates of lost orthogonality


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
    chooses those of other classes where they are possible.

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
    # Of those that take launches:
    begin_ahead: Callable[[int], None]  # queues steps while the host looks at the decomposition
    withdraw: Callable[[int], None]  # drops columns that queued steps append behind the first m of V
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
        self._views: dict[tuple[int, int], Block] = {}  # by their columns

    @property
    def room(self) -> int:
        """Dimension of the complement of [locked V Q]."""
        return self.buffer.n_global - self.n_locked - self.m - self.w

    def columns(self, begin: int, end: int) -> Block:
        """Return a view of columns of [V Q], which is kept: to make one takes longer than a launch."""
        if (begin, end) not in self._views:
            self._views[begin, end] = self.buffer[:, self.n_locked + begin : self.n_locked + end]
        return self._views[begin, end]

    def _basis(self) -> Block:
        """Return a view of [locked V Q], and of zero columns that products read."""
        return self.columns(-self.n_locked, self.m + self.w)

    def padded(self, count: int) -> int:
        """Return the columns to be read or replaced instead of `count`: those behind [V Q] are finite."""
        return count

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
        end = self.n_locked + self.m + self.w
        if self.m < self.full_until:
            return [(0, end)]
        begin = self.m - ceil_div(self.w, self.block_size) * self.block_size
        return [(0, self.n_locked), (self.n_locked + begin, end)]

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
        result = orthogonalize(block, self._basis(), filled=filled, max_rank=into.shape[1], **how)
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
        self.full_until = full_until

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
        used = self.columns(0, len(C))
        used.combine(small_matrix(C, used), out=used[:, : C.shape[1]])

    def combined(self, C: Array) -> Block:
        """Return [V Q] C for the first columns of [V Q]."""
        used = self.columns(0, self.padded(len(C)))
        return used.combine(small_matrix(C, used, (used.shape[1], C.shape[1])))

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


class SingleKrylov(BlockKrylov):
    """Steps A v_j = beta_j v_(j-1) + alpha_j v_j + beta_(j+1) v_(j+1) in the columns of the buffer.

    What remains of A v_j is projected on all vectors, or only where it may have lost more orthogonality than
    is permitted: that is estimated once two successive vectors have been projected.
    """

    takes_single_columns = True
    may_lose = True  # orthogonality

    def __init__(self, operator: Operator, buffer: ColumnBlock, *of: Any) -> None:
        super().__init__(operator, buffer, *of)
        c, self._array = self.capacity, buffer.array
        self._add = operator.vector_adder(is_hermitian=True)  # (x, y): y += A x
        self._vectors = [self._array[:, j] for j in range(c)]
        self._dot, self._axpy, self._scale, self._components, self._remove = vector_calls(buffer)
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
        m, H, dot, components = self.m, self.H, self._dot, self._components
        v, w, V = self._vectors[m], self._vectors[m + 1], self._array[:, : m + 1]
        is_estimated = self.may_lose and self._successive >= 2
        expected = math.inf  # largest inner product with v_0 to v_m
        if m < self.full_until:
            w.fill(0)
            self._add(v, w)
            H[: m + 1, m] = near = components(V, w)
            self._remove(V, near, y=w)
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
            part = components(V, w)
            # Otherwise estimates are wrong: the projected matrix, its norm and all limits would be, too.
            if is_estimated and not np.abs(part).max() <= FLOOR * max(expected, LOSS) * rest:
                self.reorthonormalize()  # the vectors have lost more than is permitted
                return False
            self._remove(V, part, y=w)
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


def is_queued(operator: LinearMap, buffer: Block) -> bool:
    """Check whether steps are queued without waiting: those on a device whose products are no solves.

    After a step that was not enough the next ones work on noise, at which solves may fail.
    """
    may_be = getattr(operator, "may_be_queued", getattr(operator, "is_recordable", False))
    return buffer.device != "cpu" and everywhere(getattr(buffer, "layout", None), may_be)


def krylov_of(operator: LinearMap, buffer: Block, n_locked: int, block_size: int, *of: Any) -> BlockKrylov:
    """Make the decomposition whose steps suit an operator and a buffer; arguments are those of the class."""
    kind: Any = BlockKrylov
    is_single = block_size == 1 and n_locked == 0 and getattr(buffer, "inner", None) is None
    is_double = isinstance(buffer, ColumnBlock) and buffer.dtype.char in "dD"
    if is_single and is_double and isinstance(operator, Operator):
        kind = SingleKrylov
    elif is_queued(operator, buffer):
        from .device_krylov import QueuedKrylov

        kind = QueuedKrylov
    elif buffer.device != "cpu":
        from .device_krylov import DeviceKrylov

        kind = DeviceKrylov
    made: BlockKrylov = kind(operator, buffer, n_locked, block_size, *of)
    return made
