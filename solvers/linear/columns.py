"""Columns of tall blocks, and the small arrays that multiply them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from blockvec import array_namespace

from ..blocks import Array, Block

__all__ = ["column_factors", "pick", "project_out", "small_matrix"]


def pick(block: Block, indices: NDArray[np.intp]) -> Block:
    """Return a copy of some columns of a block.

    Examples
    --------
    >>> import numpy as np
    >>> from blockvec import BlockVector
    >>> pick(BlockVector(np.array([[1.0, 2.0, 3.0]])), np.array([2, 0])).array.tolist()
    [[3.0, 1.0]]
    """
    picked = block.like(len(indices))
    ends = np.flatnonzero(np.diff(indices) != 1) + 1
    for begin, end in pairwise([0, *ends.tolist(), len(indices)]):
        first = int(indices[begin]) if end > begin else 0
        picked[:, begin:end] = block[:, first : first + end - begin]
    return picked


def project_out(Q: Block | None, X: Block) -> Block:
    """Return X - Q Q^H X in place of X, for orthonormal columns Q; X as it is where there are none."""
    return X if Q is None else Q.combine(Q.dot(X), out=X, alpha=-1, beta=1)


def column_factors(values: NDArray[np.float64], block: Block) -> Array:
    """Return real factors, the last axis along columns, in the precision of a block and on its device."""
    return array_namespace(block.array).asarray(values.astype(block.array.real.dtype))


def small_matrix(C: Array, block: Block) -> Array:
    """Return a small matrix in the type of a block and on its device."""
    return array_namespace(block.array).asarray(np.ascontiguousarray(C.astype(block.dtype)))
