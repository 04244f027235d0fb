"""Block conjugate gradients: one Krylov space for all right-hand sides, which rank loss does not end.

The residuals of all systems are R = Q F, with an orthonormal Q at first, and a step is

    AP = A P,  G = P^H AP                                the first sweep
    alpha = G^-1 D,  X = X + P alpha F,   Q = Q - AP alpha,  H = Q^H Q        the second
    P = K^-1 Q + P beta                                  the third

with D = Q^H K^-1 Q for a preconditioner K. A Q that is badly conditioned is divided by the Cholesky factor of
H, and F multiplied by it. Directions of Q that are rounding noise are dropped: the residuals have no part
there. In bytes per row, column and step these are 16, 48 and 24 beside the matrix, while conjugate gradients
for one system move 180. Arithmetic, 10 b^2 operations per row, takes as long for b = 16 on a host, where
the passes are fused, by range of rows. Elsewhere they are kernels of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockvec import run_in_threads, single_threaded_blas, start_copy

from ..blocks import Array, Block, RealArray, padded_width, pick, small_matrix, summed, to_host
from ..orthogonalization import Orthogonalized, orthogonalize
from ..small_matrices import NOISE, PLAIN_GROWTH, PLAIN_NOISE, RESOLUTION, cholesky_factor
from .calls import Systems
from .systems import INDEFINITE, finite

MOST_COLUMNS = 32  # of a block: small matrices would take longer than what wider blocks save
DEFLATED = 0.5  # share of systems left, relative to directions, from which on the others' are dropped
PANEL_ROWS = 256  # of one product by BLAS: its operands fit an L1 cache
RANGE_BYTES = 1 << 20  # per block and range: long against a call of NumPy
KEPT = 10.0  # growth per column of a Cholesky factor up to which its block needs no division by it


class BlockCG:
    """Conjugate gradients for blocks: a `Run` of `corrected`.

    `others` are systems of further shifts, which the first run solves for, too; X is zero then, and there is
    no preconditioner. `callback` is called with the solutions after every step.
    """

    def __init__(
        self,
        systems: Systems,
        others: Sequence[Shifted] = (),
        callback: Callable[[Any], object] | None = None,
    ) -> None:
        self.systems, self.others, self.callback = systems, others, callback
        self.X, self.preconditioner = systems.X, systems.M
        self.unit = float(np.finfo(self.X.dtype).eps) / 2

    def run(
        self, R: Block, goals: RealArray, maxiter: int, final: float
    ) -> tuple[NDArray[np.intp], list[str]]:
        """Add corrections for the residuals to X, by groups of columns."""
        iterations, reasons = np.zeros(len(goals), np.intp), list[str]()
        width = len(goals) if self.others else MOST_COLUMNS
        for begin in range(0, len(goals), width):
            group = slice(begin, begin + width)
            self.part = self.X if width >= len(goals) else self.X[:, group]
            why = self._cycle(R[:, group], goals[group], iterations[group], maxiter)
            reasons += [why] * self.part.shape[1]
        self.others = ()
        return iterations, reasons

    def _cycle(self, R: Block, limits: RealArray, iterations: NDArray[np.intp], maxiter: int) -> str:
        """Iterate from the residuals R of a group of systems; return why it cannot go on, or "maxiter"."""
        active = limits < np.inf
        if not active.any():
            return "maxiter"
        Q = pick(R, np.flatnonzero(active))
        Q, part = self._without(orthogonalize(Q, max_rank=min(Q.shape[1], Q.n_global)), Q)
        F = np.zeros((len(part), len(active)), part.dtype)
        F[:, active] = part
        P = Q.copy() if self.preconditioner is None else self.systems.precondition(Q)
        AP, size = P.like(), 1.0
        D = np.eye(len(F)) if self.preconditioner is None else self._weights(Q, P, len(F))
        for _ in range(maxiter):
            rank = len(F)
            if not rank or not (active.any() or any(other.active.any() for other in self.others)):
                break
            iterations += active
            product = self.systems.apply(P, AP, gram="xy")
            G = hermitian(product.gram["xy"])[:rank, :rank]
            inverse = self._inverse(G, P, AP)
            if D is None or inverse is None:
                return "indefinite preconditioner" if D is None else "indefinite"
            for other in self.others:
                other.step(Q, G, F)
            alpha = inverse @ D
            C, X = alpha @ (F * active), self.part
            H = update(P, AP, X, Q, padded(C, P, X.shape[1]), padded(alpha, P, Q.shape[1]))
            Q, rho, H, root = self._conditioned(Q, hermitian(H)[:rank, :rank], size)
            F, size = rho @ F, float(np.sqrt(np.diagonal(H).real.max(initial=0)))
            norms = np.linalg.norm(root @ F, axis=0)
            active &= norms > limits
            for other in self.others:
                other.advance(G, rho)
            if self.callback is not None:
                self.callback(self.systems.returned(self.X))
            U = np.eye(len(F))
            if not self.others and 0 < np.count_nonzero(active) <= DEFLATED * len(F):
                U = np.linalg.qr(F[:, active] / norms[active])[0]
                Q, F = times(Q, U), U.conj().T @ F
            if not len(F):
                break
            if self.preconditioner is None:
                beta = np.linalg.solve(D, rho.conj().T @ H @ U)
                D = U.conj().T @ H @ U
                P = turned(P, beta, Q)
            else:
                Z = self.systems.precondition(Q)
                P = turned(P, -inverse @ to_host(AP.dot(Z))[:rank, : len(F)], Z)
                D = self._weights(Q, Z, len(F))
            AP = AP if AP.shape == P.shape else P.like()
        return "maxiter"

    def _weights(self, Q: Block, Z: Block, rank: int) -> Array | None:
        """Compute D = Q^H K^-1 Q; None if that is not positive semidefinite to rounding."""
        D = hermitian(Q.dot(Z))[:rank, :rank]
        return D if spectrum(D)[0].min(initial=0) >= -INDEFINITE * self.unit * rank else None

    def _conditioned(self, W: Block, H: Array, size: float) -> tuple[Block, Array, Array, Array]:
        """Return Q and rho with W = Q rho, and H = Q^H Q = root^H root, from the H of W = Q_old - AP alpha.

        Q is W itself where that is well conditioned, which saves a pass. A rank loss makes it narrower;
        `size` is the largest length of a column of Q_old, to which rounding errors are relative.
        """
        identity, squares = np.eye(len(H)), np.diagonal(H).real
        if (squares > (NOISE / PLAIN_NOISE * self.unit * size) ** 2).all():
            R, T, growth = factored(H)
            if growth < KEPT * len(H) and not self.others:
                return W, identity, H, R
            if growth < PLAIN_GROWTH:
                return times(W, T), R, identity, identity
        Q, R = self._without(orthogonalize(W, scale=size), W, len(H))
        identity = np.eye(len(R))
        return Q, R, identity, identity

    @staticmethod
    def _without(found: Orthogonalized, Q: Block, columns: int | None = None) -> tuple[Block, Array]:
        """Return Q without its lost columns, which come last, and R, whose columns after some are padding."""
        rank = int(np.count_nonzero(~found.lost))
        return times(Q, np.eye(len(found.R), rank)), found.R[:rank, :columns]

    def _inverse(self, G: Array, P: Block, AP: Block) -> Array | None:
        """Invert G = P^H A P without directions whose part is rounding noise; None if A is not definite."""
        _, T, growth = factored(G)
        if growth * RESOLUTION * len(G) * self.unit < 1:
            return np.asarray(T @ T.conj().T)
        values, V = spectrum(G)
        kept = values > RESOLUTION * len(G) * self.unit
        if not kept.all():
            x, y = (times(Z, V[:, :1], 1) for Z in (P.copy(), AP.copy()))
            curvature, square = (float(hermitian(x.dot(z))[0, 0].real) for z in (y, x))
            lengths, images = (np.asarray(to_host(block.norms()), np.float64) for block in (P, AP))
            norm = (images / np.where(lengths > 0, lengths, 1)).max()  # a lower bound of that of A
            if not kept.any() or curvature < -INDEFINITE * self.unit * norm * square:
                return None
        return np.asarray((V[:, kept] / values[kept]) @ V[:, kept].conj().T)


class Shifted:
    """The systems of another shift, in the Krylov space of `BlockCG`.

    The residual blocks Q_k of conjugate gradients are Lanczos vectors, whose block tridiagonal matrix T
    consists of G_k = P_k^H A P_k and rho_k. That of A - sigma I is T - sigma I = L E L^H, with

        E_k = G_k + rho_k (G_k-1 - G_k-1 E_k-1^-1 G_k-1) rho_k^H - sigma I,    C_k = E_k-1^-1 G_k-1 rho_k^H,
        S_k = Q_k + S_k-1 C_k,   Phi_k = C_k^H Phi_k-1,   X = X + S_k E_k^-1 Phi_k,

    where Q F are the residuals. E is positive definite as A - sigma I is.

    References
    ----------
    Birk, Frommer, Numer. Algorithms 67 (2014) 507.
    """

    def __init__(self, sigma: float, systems: Systems) -> None:
        self.sigma, self.X, self.limits = sigma, systems.X.copy(), systems.limits
        self.active = np.ones(systems.b, bool)
        self.iterations = np.zeros(systems.b, np.intp)
        self.S: Block | None = None
        self.C: Array = np.zeros(())
        self.added = self.C

    def step(self, Q: Block, G: Array, F: Array) -> None:
        """Extend the space by Q; the residuals are Q F, at X = 0 before the first step."""
        if self.S is None:
            self.S, self.F = Q.copy(), F
        else:
            self.S = turned(self.S, self.C, Q)
        E = G - self.sigma * np.eye(len(G)) + self.added
        self.inverse = np.linalg.inv((E + E.conj().T) / 2)
        C = self.inverse @ (self.F * self.active)
        self.S.combine(padded(C, Q, len(self.limits)), out=self.X, beta=1)
        self.iterations += self.active

    def advance(self, G: Array, rho: Array) -> None:
        """Prepare the next step, from the G and the rho of this one."""
        self.C = self.inverse @ G @ rho.conj().T
        self.added = rho @ (G @ rho.conj().T - G @ self.C)
        self.F = self.C.conj().T @ self.F
        self.active = self.active & (np.linalg.norm(self.F, axis=0) > self.limits)


def hermitian(G: Array) -> Array:
    """Return the Hermitian part of a small matrix on the host, in double precision."""
    G = finite(to_host(G))
    G = G.astype(np.complex128 if G.dtype.kind == "c" else np.float64, copy=False)
    return np.asarray((G + G.conj().T) / 2)


def factored(G: Array) -> tuple[Array, Array, float]:
    """Return R and its inverse with G = R^H R, and the sum of the inverse eigenvalues of the scaled G.

    That has columns of unit length; the sum is NaN if G is indefinite.
    """
    R, T, *_, square = cholesky_factor(G)
    return R, T, square * 0 + np.diagonal(G).real @ (abs(T) ** 2).sum(axis=1)


def spectrum(G: Array) -> tuple[RealArray, Array]:
    """Return eigenvalues of G with columns scaled to unit length, and V with V^H G V = diag(values)."""
    lengths = np.sqrt(np.abs(np.diagonal(G).real))
    factors = 1 / np.where(lengths > 0, lengths, 1.0)
    values, V = np.linalg.eigh(G * factors[:, None] * factors)
    return values, factors[:, None] * V


def padded(C: Array, block: Block, columns: int) -> Array:
    """Copy a small matrix to the type and device of a block, which it multiplies, with zeros around it."""
    whole = np.zeros((block.shape[1], columns), C.dtype)
    whole[: C.shape[0], : C.shape[1]] = C
    return small_matrix(whole, block)


def times(block: Block, C: Array, width: int | None = None) -> Any:
    """Return the block times C: in its memory, or if that has fewer columns in new memory."""
    if width is None:
        width = min(padded_width(C.shape[1], block), block.shape[1])
    small = padded(C, block, width)
    return block.combine(small, out=block) if width == block.shape[1] else block.combine(small)


def update(P: Block, AP: Block, X: Block, Q: Block, C: Array, alpha: Array) -> Array:
    """Set X = X + P C and Q = Q - AP alpha; return Q^H Q."""
    if not _is_fused(P, AP, Q):
        products = start_copy(Q.update_gram(AP, alpha))
        P.combine(C, out=X, beta=1)  # while the host works on the products
        return products()
    p, ap, x, q = P.array, AP.array, X.array, Q.array

    def work(rows: slice) -> Array:
        x[rows] += _product(p[rows], C)
        q[rows] -= _product(ap[rows], alpha)
        return _gram(q[rows])

    return summed(Q.layout, functools.reduce(np.add, _by_ranges(q, work)))


def turned(P: Block, beta: Array, Z: Block) -> Block:
    """Return Z + P beta, in the memory of P if Z has as many columns."""
    C, fits = padded(beta, P, Z.shape[1]), P.shape == Z.shape
    if not (fits and _is_fused(P, Z)):
        return P.combine(C, out=P if fits else None).axpy(1, Z)
    p, z = P.array, Z.array

    def work(rows: slice) -> Array:
        return np.add(_product(p[rows], C), z[rows], out=p[rows])

    _by_ranges(p, work)
    return P


def _is_fused(*blocks: Block) -> bool:
    """Check whether blocks are contiguous ones of the host."""
    return all(isinstance(block.array, np.ndarray) and block.array.flags.c_contiguous for block in blocks)


def _by_ranges(block: Array, work: Callable[[slice], Array]) -> list[Array]:
    """Call a function of ranges of rows in threads, the last one with the rest; return its results."""
    height = max(RANGE_BYTES // max(block.strides[0], 1) // PANEL_ROWS, 1) * PANEL_ROWS
    begins = range(0, max(len(block) // height, 1) * height, height)
    found = [np.empty(0)] * len(begins)

    def part(i: int) -> None:
        found[i] = work(slice(begins[i], begins[i] + height if i + 1 < len(begins) else None))

    with single_threaded_blas, np.errstate(over="ignore", invalid="ignore"):
        run_in_threads(part, len(begins))
    return found


def _gram(Q: Array) -> Array:
    """Compute Q^H Q, with sums over panels in double precision.

    Halves are multiplied, since BLAS takes twice as long where both operands are the same memory.
    """
    width, end = Q.shape[1], len(Q) // PANEL_ROWS * PANEL_ROWS
    total = np.zeros((width, width), np.result_type(Q.dtype, np.float64))
    for rows in (Q[:end].reshape(-1, PANEL_ROWS, width), Q[end:].reshape(1, -1, width)):
        adjoint = (rows.conj() if Q.dtype.kind == "c" else rows).swapaxes(1, 2)
        for half in (slice(width // 2), slice(width // 2, None)):
            total[half] += np.matmul(adjoint[:, half], rows).sum(axis=0, dtype=total.dtype)
    return total


def _product(A: Array, C: Array) -> Array:
    """Compute A C by panels of rows."""
    end, product = len(A) // PANEL_ROWS * PANEL_ROWS, np.empty((len(A), C.shape[1]), A.dtype)
    whole, panels = (each[:end].reshape(-1, PANEL_ROWS, each.shape[1]) for each in (A, product))
    np.matmul(whole, C, out=panels)
    np.matmul(A[end:], C, out=product[end:])
    return product
