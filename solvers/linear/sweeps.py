"""The passes over blocks in a step of block conjugate gradients: fused on the host, by range of rows.

Elsewhere they are `combine` and `update_gram` of blocks, which are kernels of their own on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from blockvec import BlockVector, run_in_threads, single_threaded_blas, start_copy

from ..blocks import Array, Block, summed

PANEL_ROWS = 256  # of one product by BLAS: its operands fit an L1 cache
RANGE_BYTES = 1 << 20  # per block and range: long against a call of NumPy


def update(P: Block, AP: Block, X: Block, Q: Block, C: Array, alpha: Array) -> Array:
    """Set X = X + P C and Q = Q - AP alpha; return Q^H Q."""
    if not _is_fused(P, AP, X, Q):
        products, rest = update_halves(P, AP, X, Q, C, alpha)
        rest()
        return products()
    p, ap, x, q = P.array, AP.array, X.array, Q.array
    parts: list[Array] = [np.empty(0)] * _ranges(q)

    def work(part: int) -> None:
        rows = _rows(part, q)
        term = np.empty_like(x[rows])
        _product(p[rows], C, term)
        x[rows] += term
        term = term if term.shape[1] == q.shape[1] else np.empty_like(q[rows])
        _product(ap[rows], alpha, term)
        q[rows] -= term
        parts[part] = _gram(q[rows])

    with single_threaded_blas, np.errstate(over="ignore", invalid="ignore"):
        run_in_threads(work, len(parts))
    return summed(Q.layout, sum(parts[1:], start=parts[0]))


def update_halves(
    P: Block, AP: Block, X: Block, Q: Block, C: Array, alpha: Array
) -> tuple[Callable[[], Array], Callable[[], object]]:
    """Queue the same, but with half of X; return functions that wait for Q^H Q, and that queue the rest.

    The device adds while the host works on small matrices.
    """
    products, half = start_copy(Q.update_gram(AP, alpha)), len(X.array) // 2

    def add(rows: slice) -> None:
        BlockVector(P.array[rows]).combine(C, out=BlockVector(X.array[rows]), beta=1)

    add(slice(half))
    return products, lambda: add(slice(half, None))


def turn(P: Block, Z: Block, beta: Array) -> Block:
    """Set P = Z + P beta and return it."""
    if not _is_fused(P, Z):
        return P.combine(beta, out=P).axpy(1, Z)
    p, z = P.array, Z.array

    def work(part: int) -> None:
        rows = _rows(part, p)
        term = np.empty_like(p[rows])
        _product(p[rows], beta, term)
        np.add(term, z[rows], out=p[rows])

    with single_threaded_blas, np.errstate(over="ignore", invalid="ignore"):
        run_in_threads(work, _ranges(p))
    return P


def _is_fused(*blocks: Block) -> bool:
    """Check whether blocks are contiguous ones of the host."""
    return all(isinstance(block.array, np.ndarray) and block.array.flags.c_contiguous for block in blocks)


def _ranges(block: Array) -> int:
    """Count the ranges of rows; a short rest belongs to the last one."""
    return max(len(block) // _height(block), 1)


def _height(block: Array) -> int:
    return max(RANGE_BYTES // max(block.strides[0], 1) // PANEL_ROWS, 1) * PANEL_ROWS


def _rows(part: int, block: Array) -> slice:
    height = _height(block)
    return slice(part * height, (part + 1) * height if part + 1 < _ranges(block) else None)


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


def _product(A: Array, C: Array, out: Array) -> None:
    """Set out = A C by panels of rows."""
    whole = len(A) // PANEL_ROWS
    end = whole * PANEL_ROWS
    shape = whole, PANEL_ROWS
    np.matmul(A[:end].reshape(*shape, A.shape[1]), C, out=out[:end].reshape(*shape, out.shape[1]))
    np.matmul(A[end:], C, out=out[end:])
