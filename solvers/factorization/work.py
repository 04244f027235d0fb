"""The work of a sparse factorisation, predicted from the graph of a matrix before an analysis.

The levels of a breadth-first search are separators: without the middle one, the graph falls into two halves.
Its size s among n rows gives an exponent a = log s / log n, near 1/2 for plane meshes, 2/3 for spatial ones,
and 1 for random graphs. If parts of m rows have separators of m^a rows, nested dissection fills
sum_l 2^l s_l^2 elements with sum_l 2^l s_l^3 operations, s_l = (n / 2^l)^a, up to constants.

References
----------
George, SIAM J. Numer. Anal. 10 (1973) 345 (nested dissection); Lipton, Rose, Tarjan, ibid. 16 (1979) 346
(separator theorems).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp

from blockvec import Factorization
from blockvec.system.frozen import frozen

from ..blocks import to_host
from ..costs import INDEX_BYTES, FactorRates, rates

# Elements and operations per those of the sums. Of the elements, cuDSS stored 2.1 (a plane mesh), 3.0 (a
# spatial one) and 5.2 times (with three unknowns per node), SuperLU 1.6 to 7.1 times, and fewer only where
# the graph is almost a tree or random.
ENTRIES, FLOPS = 3.0, 10.0
BYTES_PER_ENTRY = 2 * (np.dtype(np.float64).itemsize + INDEX_BYTES)  # bytes: of both of SuperLU's factors
# Of a solve: factors for some shifts and the last count, and solves with blocks of eight columns.
SHIFTS, SOLVES = 4, 60
# Of random graphs, a dense block of this share of the rows is left, which falls with the mean degree d as
# 1 - CORE_DEGREE / d: 0.57 to 0.61 were measured for d = 12, 0.3 to 0.4 for d = 3 and for power laws.
LEAST_CORE, CORE_DEGREE = 0.4, 4.0


@frozen
class FactorWork:
    """Predicted work of the factors of a matrix."""

    n: int  # rows
    entries: float  # of the factor L
    flops: float
    dtype: str = "float64"  # of the matrix, on which the library on the host depends
    # Levels of the graph, as many products with the matrix as carry a number from one end to the other; 0
    # where there was no search.
    levels: int = 0

    @property
    def nbytes(self) -> float:
        """Memory of both factors, with indices."""
        return BYTES_PER_ENTRY * self.entries

    @classmethod
    def of(cls, A: Any, M: Any = None) -> FactorWork:
        """Predict the work for A - sigma M from the patterns of explicit matrices."""
        patterns = [_pattern(matrix) for matrix in (A, M) if matrix is not None]
        if any(pattern is None for pattern in patterns):
            return cls.banded(A, M)
        pattern = patterns[0] if M is None else sp.csr_array(patterns[0] + patterns[1])
        n, nnz = pattern.shape[0], int(pattern.nnz)
        degrees = np.diff(pattern.indptr) - (pattern.diagonal() != 0)
        # Rows with one neighbour or two fill nothing. Others have 3/2 edges each or more, together as many
        # more edges than rows as the whole graph.
        rows = min(np.count_nonzero(degrees > 2), max(int(degrees.sum()) - 2 * np.count_nonzero(degrees), 0))
        core = rows * max(LEAST_CORE, 1 - CORE_DEGREE * n / max(nnz, 1))
        widths = _levels(pattern)
        reached = np.cumsum(widths)
        middle = int(widths[np.searchsorted(reached, reached[-1] / 2)])
        predicted = _dissection(n, middle), (core**2 / 2, core**3 / 3)
        entries, flops = (min(values) for values in zip(*predicted, strict=True))
        return cls(n, entries + nnz / 2, flops + nnz, _type(A, M), len(widths))

    @classmethod
    def banded(cls, A: Any, M: Any = None) -> FactorWork:
        """Bound the work for A - sigma M by that of a band in the order of the rows, which takes no search.

        The width is known of compressed matrices of the host. Others may have no zeros.
        """
        n = int(A.shape[0])
        width = max(_half_width(matrix) for matrix in (A, M) if matrix is not None)
        return cls(n, n * width - width**2 / 2, n * width**2 - 2 * width**3 / 3, _type(A, M))

    def factor_s(self, device: str) -> float:
        """Predict the seconds of a first factorisation."""
        rate = self._rates(device)
        return rate.row_s * self.n + rate.symbolic_s * self.entries + rate.flop_s * self.flops

    def solve_s(self, device: str) -> float:
        """Predict the seconds of a whole solve by shift-invert."""
        rate = self._rates(device)
        again_s = rate.flop_s * self.flops if device != "cpu" else self.factor_s(device)
        solves_s = SOLVES * rate.solve_s * self.entries
        return rates(device).inverted_s + self.factor_s(device) + (SHIFTS - 1) * again_s + solves_s

    def _rates(self, device: str) -> FactorRates:
        library = "cuDSS" if device != "cpu" else Factorization.library(device, self.dtype)
        return rates(device).factors[library]


def _type(*matrices: Any) -> str:
    types = [matrix.dtype for matrix in matrices if matrix is not None]
    return np.result_type(np.float32, *types).name


def _half_width(matrix: Any) -> int:
    """Compute the elements of a row of a band up to its diagonal."""
    if getattr(matrix, "format", "") not in ("csr", "csc") or not isinstance(matrix.indices, np.ndarray):
        return int(matrix.shape[0])
    lengths = np.diff(matrix.indptr)
    rows = np.repeat(np.arange(len(lengths), dtype=matrix.indices.dtype), lengths)
    return 1 + int(np.abs(matrix.indices - rows).max(initial=0))


def _pattern(matrix: Any) -> Any:
    """Copy the pattern of a sparse matrix of any device to the host; None for a dense one."""
    if not hasattr(matrix, "nnz"):
        return None
    # A Hermitian matrix has the same pattern by rows and by columns.
    rows = matrix if matrix.format in ("csr", "csc") else matrix.tocsr()
    indices, indptr = (to_host(part) for part in (rows.indices, rows.indptr))
    return sp.csr_array((np.ones(len(indices)), indices, indptr), shape=matrix.shape)


def _levels(pattern: Any) -> Any:
    """Count the rows of each level of a breadth-first search from a row at the rim of the graph."""
    from scipy.sparse.csgraph import breadth_first_order  # which takes a while to import

    start = int(np.argmax(np.diff(pattern.indptr)))
    start = int(breadth_first_order(pattern, start)[0][-1])
    order, before = breadth_first_order(pattern, start)
    place = np.zeros(pattern.shape[0], np.intp)
    place[order] = np.arange(len(order))
    ancestors = np.append(0, place[before[order[1:]]])
    levels = np.minimum(np.arange(len(order)), 1)  # between each row and its ancestor, at first its parent
    while ancestors.any():
        levels += levels[ancestors]
        ancestors = ancestors[ancestors]
    return np.bincount(levels)


def _dissection(n: int, width: int) -> tuple[float, float]:
    """Sum up the elements and operations of nested dissection with a first separator of `width` rows."""
    exponent = math.log(max(width, 1)) / math.log(max(n, 2))
    sizes = [(2**level, (n / 2**level) ** exponent) for level in range(max(n, 1).bit_length())]
    entries, flops = (sum(parts * size**power for parts, size in sizes) for power in (2, 3))
    return ENTRIES * entries, FLOPS * flops
