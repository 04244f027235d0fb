"""The passes over blocks in a step of block conjugate gradients: fused on the host, by range of rows.

Elsewhere they are `combine` and `update_gram` of blocks, which are kernels of their own on a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from blockvec import run_in_threads, single_threaded_blas, start_copy

from ..blocks import Array, Block, summed

PANEL_ROWS = 256  # of one product by BLAS: its operands fit an L1 cache
RANGE_BYTES = 1 << 20  # per block and range: long against a call of NumPy


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


def turn(P: Block, Z: Block, beta: Array) -> Block:
    """Set P = Z + P beta and return it."""
    if not _is_fused(P, Z):
        return P.combine(beta, out=P).axpy(1, Z)
    p, z = P.array, Z.array

    def work(rows: slice) -> Array:
        return np.add(_product(p[rows], beta), z[rows], out=p[rows])

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
