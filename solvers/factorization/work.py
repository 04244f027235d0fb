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
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..blocks import to_host

# Elements and operations per those of the sums. Of the elements, cuDSS stored 2.1 (a plane mesh), 3.0 (a
# spatial one) and 5.2 times (with three unknowns per node), SuperLU 1.6 to 7.1 times, and fewer only where
# the graph is almost a tree or random.
ENTRIES, FLOPS = 3.0, 10.0
BYTES_PER_ENTRY = 24
# Of a solve: factors for some shifts and the last count, and solves with blocks of eight columns.
SHIFTS, SOLVES = 4, 60
SETUP_S = 0.1  # of all that does not depend on the matrix


@dataclass(frozen=True, slots=True)
class _Rates:
    """Seconds of a library per row, stored element, element of the factors, and operation."""

    row: float  # of the analysis, like `element` and `symbolic`
    element: float
    symbolic: float
    flop: float
    solve: float  # per element of the factors and block of eight columns
    call: float  # least time of a solve


# SuperLU on one core: 8.7 s for 1.2e7 elements of a spin chain, 2.1 s for 5.8e6 of a cube of 30^3 points.
HOST_RATES = _Rates(row=0, element=1e-7, symbolic=1e-7, flop=4e-10, solve=2e-8, call=1e-3)
# cuDSS 0.8 on an H200: 1.4 s of analysis for a plane mesh of 8.1e5 rows, 3.5 s for a spatial one of 1e6, and
# 0.55 s for its numbers.
GPU_RATES = _Rates(row=1.5e-6, element=5e-8, symbolic=2e-9, flop=5e-14, solve=4.6e-11, call=5e-3)


@dataclass(frozen=True, slots=True)
class FactorWork:
    """Predicted work of the factors of a matrix.

    Attributes
    ----------
    n, nnz : int
        Rows and stored elements of the matrix.
    entries, flops : float
        Elements of the factor L, and operations.
    """

    n: int
    nnz: int
    entries: float
    flops: float

    @property
    def nbytes(self) -> float:
        """Memory of both factors of SuperLU, with indices."""
        return BYTES_PER_ENTRY * self.entries

    @classmethod
    def of(cls, A: Any, M: Any = None) -> FactorWork:
        """Predict the work for A - sigma M from the patterns of explicit matrices.

        Examples
        --------
        >>> from blockvec.models import model
        >>> plane, cube = (FactorWork.of(model(f"laplace{d}d:n={n}")) for d, n in ((2, 64), (3, 16)))
        >>> plane.n == cube.n, cube.flops > 5 * plane.flops
        (True, True)
        """
        pattern = _pattern(A)
        if pattern is not None and M is not None:
            mass = _pattern(M)
            pattern = None if mass is None else sp.csr_array(pattern + mass)
        if pattern is None:
            return cls.dense(int(A.shape[0]))
        n, nnz = pattern.shape[0], int(pattern.nnz)
        entries, flops = _dissection(n, _middle_level(pattern))
        return cls(n, nnz, max(entries, nnz / 2), flops)

    @classmethod
    def dense(cls, n: int) -> FactorWork:
        """Compute the work for a matrix without zeros: a bound for all of n rows."""
        return cls(n, n * n, n**2 / 2, n**3 / 3)

    @classmethod
    def of_band(cls, A: Any) -> FactorWork:
        """Bound the work for A - sigma I by that of a band matrix with rows in their order: without a search.

        Examples
        --------
        >>> from blockvec.models import model
        >>> FactorWork.of_band(model("laplace1d:n=100")).entries
        200
        """
        pattern = _pattern(A)
        if pattern is None:
            return cls.of(A)
        n, rows = pattern.shape[0], np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))
        width = 1 + int(np.abs(rows - pattern.indices).max(initial=0))
        return cls(n, int(pattern.nnz), n * width, n * width**2)

    def factor_s(self, device: str) -> float:
        """Predict the seconds of a first factorisation."""
        rates = _rates(device)
        analysis_s = rates.row * self.n + rates.element * self.nnz + rates.symbolic * self.entries
        return analysis_s + rates.flop * self.flops

    def solve_s(self, device: str) -> float:
        """Predict the seconds of a whole solve by shift-invert."""
        rates = _rates(device)
        again_s = rates.flop * self.flops if device != "cpu" else self.factor_s(device)
        solves_s = SOLVES * (rates.call + rates.solve * self.entries)
        return SETUP_S + self.factor_s(device) + (SHIFTS - 1) * again_s + solves_s


def _rates(device: str) -> _Rates:
    return HOST_RATES if device == "cpu" else GPU_RATES


def _pattern(matrix: Any) -> Any:
    """Copy the pattern of a sparse matrix of any device to the host; None for a dense one."""
    if not hasattr(matrix, "nnz"):
        return None
    # A Hermitian matrix has the same pattern by rows and by columns.
    rows = matrix if matrix.format in ("csr", "csc") else matrix.tocsr()
    indices, indptr = (to_host(part) for part in (rows.indices, rows.indptr))
    return sp.csr_array((np.ones(len(indices)), indices, indptr), shape=matrix.shape)


def _middle_level(pattern: Any) -> int:
    """Count the rows of the middle level of a search from a row at the rim of the graph."""
    start = int(np.argmax(np.diff(pattern.indptr)))
    order, _ = _search(pattern, start)
    _, widths = _search(pattern, int(order[-1]))
    reached = np.cumsum(widths)
    return int(widths[np.searchsorted(reached, reached[-1] / 2)])


def _search(pattern: Any, start: int) -> tuple[Any, Any]:
    """Return the rows that a breadth-first search reaches, in its order, and the sizes of its levels."""
    from scipy.sparse.csgraph import breadth_first_order  # which takes a while to import

    order, before = breadth_first_order(pattern, start)
    place = np.empty(pattern.shape[0], np.int64)
    place[order] = np.arange(len(order))
    parents = place[before[order[1:]]]  # ascending
    ends = [0, 1]
    while ends[-1] < len(order):  # a level ends where the parents begin to belong to it
        ends.append(1 + int(np.searchsorted(parents, ends[-1])))
    return order, np.diff(ends)


def _dissection(n: int, width: int) -> tuple[float, float]:
    """Sum up the elements and operations of nested dissection with a first separator of `width` rows."""
    exponent = math.log(max(width, 1)) / math.log(max(n, 2))
    sizes = [(2**level, (n / 2**level) ** exponent) for level in range(max(n, 1).bit_length())]
    entries, flops = (sum(parts * size**power for parts, size in sizes) for power in (2, 3))
    return ENTRIES * entries, FLOPS * flops
