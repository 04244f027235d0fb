"""The search space of Jacobi-Davidson: an orthonormal basis V, its image under A, and projected matrices.

For an orthonormal V of m columns, in the complement of locked columns, it stores

    (A - tau I) V = W R,    H = V^H (A - tau I) V.

For the ends of a spectrum tau is 0, R the identity, and eigenpairs are extracted by Rayleigh-Ritz. Inside a
spectrum Rayleigh-Ritz gives spurious values: mixtures of vectors from both sides have Ritz values anywhere in
between. Around a target tau the extraction is therefore *refined*: W is orthonormal, and the right
singular vectors y of R make ||(A - tau I) V y|| stationary, the smallest first. Their singular values are the
square roots of Ritz values of (A - tau I)^2: by Cauchy's interlacing no more vectors are near the target than
there are eigenvalues. Using R instead of R^H R keeps small distances accurate.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blockvec import Profile
from blockvec.errors import BreakdownError

from ..blocks import (
    Array,
    Block,
    RealArray,
    assign,
    column_factors,
    project_out,
    round_up,
    small_matrix,
    to_host,
    width_padding,
)
from ..orthogonalization import orthogonalize
from ..problem import FLOOR, Counts, Problem, select
from ..small_matrices import clusters, ritz_pairs

NEW = 1e-8  # length, over the longest one, below which a direction is dropped
SAME_DISTANCE = 0.02  # relative difference of distances from the target that may be equal ones, on both sides


class SearchSpace:
    """An orthonormal basis with its image under the operator and its projected matrices.

    `like` is a template for size, type and device, `capacity` the most columns of V, `target` tau. Widths of
    products are rounded up to multiples of `padding` by zero columns, by default of 16 on a GPU.
    """

    def __init__(
        self, problem: Problem, like: Block, capacity: int, counts: Counts, padding: int | None = None
    ) -> None:
        self.operator, self.capacity, self.n_locked = problem.operator, capacity, problem.n_locked
        locked, target = problem.locked, problem.target
        self.padding = padding or width_padding(like)
        self.buffer = like.like(self.padded(self.n_locked + capacity))
        self.buffer[:, :] = 0  # columns beyond V stay zero: products may be wider than V
        if locked is not None:
            self.buffer[:, : self.n_locked] = locked
        self.which, self.target, self.rng, self.counts = problem.which, target, problem.rng, counts
        self.tau = 0.0 if target is None else target
        self.m = 0  # columns of V
        self.norm = 0.0  # lower bound of ||A||
        self._W = like.like(self.padded(capacity))
        self._W[:, :] = 0
        dtype = np.complex128 if like.dtype.kind == "c" else np.float64
        self._H = np.zeros((self.capacity, self.capacity), dtype)
        self._R = np.eye(self.capacity, dtype=dtype)

    @property
    def locked(self) -> Block | None:
        """The locked columns, or None."""
        return self.buffer[:, : self.n_locked] if self.n_locked else None

    @property
    def room(self) -> int:
        """Dimension of the complement of the locked columns and V."""
        return self.buffer.n_global - self.n_locked - self.m

    def columns(self, begin: int, end: int) -> Block:
        """Return a view of columns of V."""
        return self.buffer[:, self.n_locked + begin : self.n_locked + end]

    def padded(self, width: int) -> int:
        """Round a width up to a multiple of the padding."""
        return round_up(width, self.padding)

    def _dot(self, end: int, D: Block) -> Array:
        c = self.n_locked
        return to_host(self.buffer[:, : self.padded(c + end)].dot(D))[c : c + end]

    def extend(self, T: Block) -> None:
        """Append the directions of a block, up to the capacity; the block is overwritten."""
        width = min(T.shape[1], self.capacity - self.m, self.room)
        begin, end, filled = self.m, self.m + width, self.n_locked + self.m
        basis = self.buffer[:, : self.padded(filled)]
        result = orthogonalize(T, basis, filled=filled, max_rank=width, rng=self.rng)
        self.columns(begin, end)[:, :] = T[:, :width]
        self.counts.reductions += result.reductions
        D = self.operator.apply(self.columns(begin, end).copy(), shift=self.tau)
        self.counts.apply(width)
        project_out(self.locked, D)
        H = self._dot(end, D)
        self._H[:end, begin:end] = H
        self._H[begin:end, :begin] = H[:begin].conj().T
        self._H[begin:end, begin:end] = (H[begin:] + H[begin:].conj().T) / 2
        self.norm = max(self.norm, float(to_host(D.norms()).max(initial=0)) - abs(self.tau))
        self.counts.reductions += 2
        self.m = end
        if self.target is None:
            self._W[:, begin:end] = D
            return
        scale = self.norm + abs(self.tau)
        images = self._W[:, : self.padded(begin)]
        result = orthogonalize(D, images, scale=scale, filled=begin, rng=self.rng)
        self._W[:, begin:end] = D
        self.counts.reductions += result.reductions
        self._R[:begin, begin:end], self._R[begin:end, begin:end] = result.S[:begin], result.R
        self._R[begin:end, :begin] = 0

    @Profile.timed("Rayleigh-Ritz")
    def extract(self) -> tuple[RealArray, Array]:
        """Return Rayleigh quotients, shape (m,), and the unitary Y, shape (m, m), the most wanted first.

        V Y are Ritz vectors, or refined ones around the target.
        """
        H = self._H[: self.m, : self.m]
        if self.target is None:
            theta, Y = ritz_pairs(H)
            self.norm = max(self.norm, float(np.abs(theta).max(initial=0)))
            order = select(theta, self.which)
            return theta[order], Y[:, order]
        Y = self._refined(H)
        return np.einsum("ij,ij->j", Y.conj(), H @ Y).real + self.tau, Y

    def _refined(self, H: Array) -> Array:
        """Compute coefficients of refined vectors, those nearest to the target first.

        References
        ----------
        Jia, Linear Algebra Appl. 259 (1997) 1 (refined vectors). Deviation: values at the same distance on
        both sides of the target have the same singular value, as have copies of a multiple value. A
        Rayleigh-Ritz step with A within each group of equal singular values separates them.
        """
        R = self._R[: self.m, : self.m]
        if not np.isfinite(R).all():
            raise BreakdownError("the projected matrix holds NaN or Inf; check the operator.")
        _, sigma, YH = np.linalg.svd(R)
        sigma, Y = sigma[::-1], np.ascontiguousarray(YH.conj().T[:, ::-1])  # ascending
        unit = float(np.finfo(self.buffer.dtype).eps) / 2
        rounding = FLOOR * unit * (self.norm + abs(self.tau))
        for begin, end in clusters(sigma, np.maximum(SAME_DISTANCE * sigma, rounding)):
            if end - begin > 1:
                part = Y[:, begin:end]
                part = part @ ritz_pairs(part.conj().T @ H @ part)[1]
                distances = np.linalg.norm(R @ part, axis=0)
                Y[:, begin:end] = part[:, np.argsort(distances, kind="stable")]
        return Y

    def _combined(self, block: Block, begin: int, Y: Array) -> Block:
        """Multiply columns of a block, from number `begin` on, by coefficients; products may be wider."""
        end = begin + len(Y)
        C = np.zeros((self.padded(end), Y.shape[1]), Y.dtype)
        C[begin:end] = Y
        return block[:, : len(C)].combine(small_matrix(C, self.buffer))

    @Profile.timed("Rayleigh-Ritz")
    def vectors(self, Y: Array) -> Block:
        """Compute V Y for coefficients of shape (m, s)."""
        return self._combined(self.buffer, self.n_locked, Y)

    @Profile.timed("Rayleigh-Ritz")
    def residuals(self, X: Block, Y: Array, theta: RealArray) -> Block:
        """Compute A X - X theta for X = V Y from W R, without applying the operator."""
        R = self._combined(self._W, 0, self._R[: self.m, : self.m] @ Y)
        return R.axpy(column_factors(self.tau - theta, X), X)

    @Profile.timed("Rayleigh-Ritz")
    def shrink(self, Y: Array) -> None:
        """Replace V by V Y, for orthonormal coefficients of shape (m, s)."""
        m, s = Y.shape
        self._transform(self.columns(0, m), Y)
        H = Y.conj().T @ self._H[:m, :m] @ Y
        R = self._R[:m, :m] @ Y
        U = Y if self.target is None else np.linalg.qr(R)[0]
        self._transform(self._W[:, :m], U)
        self._clear(s, m)
        self._H[:s, :s] = (H + H.conj().T) / 2
        self._R[:s, :s] = np.eye(s) if self.target is None else U.conj().T @ R
        self.m = s

    def snapshot(self) -> dict[str, Any]:
        """Return V, W, H and R on the host."""
        m = self.m
        return {
            "basis": to_host(self.columns(0, m).array),
            "images": to_host(self._W[:, :m].array),
            "H": self._H[:m, :m],
            "R": self._R[:m, :m],
            "m": m,
            "norm": self.norm,
        }

    def resume(self, saved: dict[str, Any]) -> None:
        """Restore a state returned by `snapshot`."""
        m = self.m = saved["m"]
        assign(self.columns(0, m), saved["basis"])
        assign(self._W[:, :m], saved["images"])
        for name, matrix in (("H", self._H), ("R", self._R)):
            matrix[:m, :m] = saved[name]
        self.norm = saved["norm"]

    def images(self, count: int) -> Block:
        """Return a copy of the last `count` columns of W."""
        return self._W[:, self.m - count : self.m].copy()

    def refresh(self) -> None:
        """Reorthonormalise V and recompute its image by applying the operator."""
        V = self.columns(0, self.m).copy()
        self._clear(0, self.m)
        self.m = 0
        self.extend(V)

    def _clear(self, begin: int, end: int) -> None:
        """Set columns to zero that no longer belong to V and W."""
        for block in (self.columns(begin, end), self._W[:, begin:end]):
            block[:, :] = 0

    def _transform(self, block: Block, C: Array) -> None:
        block.combine(small_matrix(C, self.buffer), out=block[:, : C.shape[1]])


def extended(Y: Array, older: Array) -> Array:
    """Append to orthonormal columns Y an orthonormal basis of the new directions of `older`."""
    for _ in range(2):
        older = older - Y @ (Y.conj().T @ older)
        U, sigma, _ = np.linalg.svd(older, full_matrices=False)
        older = U[:, sigma > NEW * max(float(sigma.max(initial=0)), NEW)]
    return np.hstack([Y, older])
