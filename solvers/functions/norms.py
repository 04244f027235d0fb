"""1-norms of powers of a matrix, estimated by products with blocks of it and of its adjoint.

References
----------
Higham, Tisseur, SIAM J. Matrix Anal. Appl. 21 (2000) 1185, algorithm 2.4. Deviation: no search for parallel
columns; unit vectors are not taken twice, which ends the iteration as well.
"""

from __future__ import annotations

import numpy as np

from blockvec import BlockVector, Operator, array_namespace

from ..blocks import to_host

WIDTH = 2  # columns of an estimate
MOST_ITERATIONS = 5


def power_norm(A: Operator, adjoint: Operator | None, like: BlockVector, power: int) -> float:
    """Estimate ``||A^p||_1`` from below, mostly within a factor of 3.

    Without an adjoint the columns are random signs, whose images are a poorer estimate.

    Parameters
    ----------
    A, adjoint : Operator
    like : BlockVector
        A block without columns that A is applied to.
    power : int
    """
    n, xp = like.n_global, array_namespace(like.array)
    signs = np.random.default_rng(0).choice((-1.0, 1.0), (like.n_rows, WIDTH))
    signs[:, 0] = 1
    X = like.like(min(WIDTH, n))
    X[:, :] = xp.asarray((signs[:, : X.n_cols] / n).astype(like.dtype))
    best, used = 0.0, set[int]()
    for _ in range(MOST_ITERATIONS):
        Y = powered(A, X, power)
        sums = abs(Y.array).sum(axis=0)
        found = float(to_host(sums if Y.layout is None else Y.layout.sum(sums)).max())
        if not found > best or adjoint is None:
            return max(best, found)
        best = found
        size = abs(Y.array)
        S = BlockVector(xp.where(size == 0, 1, Y.array / xp.where(size == 0, 1, size)), copy=True)
        rows = to_host(abs(powered(adjoint, S, power).array).max(axis=1))
        count = min(WIDTH + len(used), n)
        largest = np.argpartition(-rows, count - 1)[:count]
        order = [int(i) for i in largest[np.argsort(-rows[largest])] if int(i) not in used][:WIDTH]
        if not order:
            return best
        used.update(order)
        unit = np.zeros((n, len(order)), like.dtype)
        unit[order, range(len(order))] = 1
        X = BlockVector(xp.asarray(unit))
    return best


def powered(A: Operator, X: BlockVector, power: int) -> BlockVector:
    """Compute A^p X."""
    for _ in range(power):
        X = A.apply(X)
    return X
