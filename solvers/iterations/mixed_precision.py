"""Mixed precision: the matrix of a filter in single precision within a solve in double precision.

An application of a filter is one or two hundred products of the matrix with a block, which take the time that
memory needs for their operands: in single precision about half. Everything else stays in double precision, so
that a basis is orthonormal, and values and residuals are those of A. docs/theory/lanczos.md derives what the
rounding errors of such a filter do to a Krylov decomposition, and how they are removed at the end.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from ..blocks import AffineOperator, Operator
from ..costs import INDEX_BYTES, product_bytes

Precision = Literal["auto", "double", "mixed"]

SINGLE = {"d": np.dtype(np.float32), "D": np.dtype(np.complex64)}  # by the type code of double precision
UNIT = float(np.finfo(np.float32).eps) / 2
# Limits of residuals in units of ||A|| from which "auto" mixes.
LEAST_LIMIT = 3e-9
# Residuals of the decomposition, without the errors of its products, down to which it is continued; in units
# of ||A||, in which those errors are 3e-8 to 1e-7.
REACH = 3e-9
# Bytes per product from which single precision saves time. On two cores it saved none up to 64 000 rows, with
# operands in caches. On an H100 it saved 8 to 43 per cent of six solves with 9e7 to 9e8 bytes.
HOST_BYTES, DEVICE_BYTES = 3e7, 8e7
MOST_DAMPING = 1e3  # of these errors by the last filter, in double precision: others are no smaller


class SingleCopy:
    """A power of two times A in single precision, applied as A to blocks in single precision.

    Parameters
    ----------
    operator : Operator
        A sparse matrix in double precision.
    norm : float
        About ||A||: the copy has a norm of about one, in the range of single precision for every A.
    """

    def __init__(self, operator: Operator, norm: float) -> None:
        assert can_convert(operator)
        exponent = math.frexp(norm)[1]
        self._factor = math.ldexp(1.0, -exponent)
        self.dtype = SINGLE[operator.dtype.char]
        self._operator = operator.converted(self.dtype, self._factor)  # type: ignore[attr-defined]
        self.shape, self.device, self.nnz = operator.shape, operator.device, self._operator.nnz

    def affine(self, alpha: float, shift: float) -> AffineOperator:
        """Prepare ``alpha (A - shift I)`` for repeated application."""
        product: AffineOperator = self._operator.affine(alpha / self._factor, shift * self._factor)
        return product


def can_convert(operator: Operator) -> bool:
    """Check whether an operator is a matrix in double precision whose entries can be converted."""
    return operator.dtype.char in SINGLE and hasattr(operator, "converted")


def copy_bytes(operator: Operator, block_size: int) -> int:
    """Count the bytes of a copy in single precision, and of the blocks that it is applied to, per process.

    On a GPU the kernels may take the matrix in a form of its own, with other indices.
    """
    size = SINGLE[operator.dtype.char].itemsize
    entry = size + (0 if operator.device == "cpu" else size + INDEX_BYTES)
    stored: int = getattr(operator, "n_stored", getattr(operator, "nnz", 0))
    processes = 1 if operator.layout is None else operator.layout.size
    return (stored * entry + 2 * operator.shape[0] * block_size * size) // processes


def saves_time(operator: Operator, block_size: int) -> bool:
    """Check whether the time of products with a block is that of memory, and not of caches or calls.

    This does not depend on the number of processes: another number can resume from a checkpoint.
    """
    least = HOST_BYTES if operator.device == "cpu" else DEVICE_BYTES
    return product_bytes(operator, block_size) >= least
