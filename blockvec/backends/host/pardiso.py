"""Factors L D L^T of sparse symmetric matrices on the host, by PARDISO of Intel's MKL if that is installed.

PARDISO takes the upper triangle with its whole diagonal, and right-hand sides by columns. Pivots are blocks
of order one and two within supernodes. Where it replaces one that is too small, the matrix is permuted to
bring large elements there; if that does not help, SuperLU exchanges rows.
Complex Hermitian matrices are left to SuperLU, too: with pivots of order two PARDISO (of MKL 2026.2) ends the
process by an illegal access, and it does not count their eigenvalues. No package for Python covers symmetric
indefinite matrices: the one function of MKL is called directly.

References
----------
Schenk, Gaertner, Electron. Trans. Numer. Anal. 23 (2006) 158 (pivoting); oneMKL reference, "pardiso_64".
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from importlib import metadata
from typing import Any

import numpy as np
import scipy.sparse as sp

from ...errors import CapacityError, OptionError
from ...system.config import options
from ...system.memory import available_memory
from ..base import Array, Factors

ANALYSE, FACTORISE, SOLVE, RELEASE = 11, 22, 33, -1  # phases
INDEFINITE = -2  # type of real symmetric matrices
NO_MEMORY = (-2, -9)  # errors
# Places in the array of parameters, from zero: input, and counts that are returned.
GIVEN, ORDERING, PERTURBATION, SCALING, MATCHING, PIVOTING = 0, 1, 9, 10, 12, 20
COUNTS, SINGLE, THREADS, FROM_ZERO = 17, 27, 33, 34
REPLACED, ANALYSIS_KB, KEPT_KB, FACTORS_KB, ENTRIES, NEGATIVE = 13, 14, 15, 16, 17, 22
DISSECTION, BLOCKS_OF_TWO = 2, 1
SMALLEST = {"float64": 13, "float32": 6}  # digits: smaller pivots, relative to the norm, are replaced
AUTOMATIC_BRANCH = 2  # of MKL's mode in which results repeat for a number of threads


@functools.cache
def library() -> Any:
    """Load MKL from its package; None if that is not installed."""
    try:
        files = metadata.files("mkl") or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name.startswith(("libmkl_rt.so", "mkl_rt.")) and not file.name.endswith(".lib"):
            try:
                mkl = ctypes.CDLL(str(file.locate()))
                mkl.pardiso_64.restype = None
                mkl.MKL_CBWR_Set(AUTOMATIC_BRANCH)  # fails, harmlessly, where MKL has been used before
                return mkl
            except (OSError, AttributeError):
                continue
    return None


def accepts(dtype: str) -> bool:
    """Check whether PARDISO is installed, and factorises matrices of a type."""
    return dtype in SMALLEST and library() is not None


class PardisoFactors(Factors):
    """Factors of matrices; the analysis is kept while the pattern stays the same."""

    _release: Any = None  # frees the analysis and the factors

    def compute(self, matrix: Any, exchanges_rows: bool) -> bool:
        """Factorise, at first also analyse; False if a pivot was replaced.

        With `exchanges_rows` the matrix is scaled, and permuted symmetrically so that large elements are next
        to the diagonal.
        """
        upper = _upper(matrix)
        self.entries = self.nbytes = 0
        if exchanges_rows or not self._fits(upper):
            try:
                self._analyse(upper, exchanges_rows)
            except (CapacityError, OptionError):
                self._release()
                if exchanges_rows:  # of a singular matrix
                    return False
                raise
        self._matrix[0][:] = upper.data
        self._call(FACTORISE)
        kept, factors, replaced = (int(self._parameters[n]) for n in (KEPT_KB, FACTORS_KB, REPLACED))
        self.entries, self.nbytes = int(self._parameters[ENTRIES]), 1024 * (kept + factors)
        return not replaced

    @property
    def negative(self) -> int | None:
        return int(self._parameters[NEGATIVE])

    def solve(self, B: Array) -> Array:
        right = np.ascontiguousarray(B.T)
        solution = np.empty_like(right)
        self._call(SOLVE, right, solution)
        return solution.T

    def _fits(self, upper: Any) -> bool:
        """Check whether a matrix has the pattern and type that were analysed, without permutation."""
        is_kept = self._release is not None and self._release.alive and not self._parameters[MATCHING]
        if not is_kept or upper.dtype != self._matrix[0].dtype:
            return False
        given = upper.indptr, upper.indices
        return all(np.array_equal(old, new) for old, new in zip(self._matrix[1:], given, strict=True))

    def _analyse(self, upper: Any, is_matched: bool) -> None:
        if self._release is not None:
            self._release()
        pattern = (part.astype(np.int64) for part in (upper.indptr, upper.indices))
        self._matrix: tuple[Any, ...] = upper.data.copy(), *pattern
        self._state, self._parameters = np.zeros(64, np.int64), np.zeros(64, np.int64)
        set_to, name = self._parameters, upper.dtype.name
        set_to[[GIVEN, FROM_ZERO]] = 1
        set_to[ORDERING], set_to[PIVOTING], set_to[COUNTS] = DISSECTION, BLOCKS_OF_TWO, -1
        set_to[[SCALING, MATCHING]] = is_matched
        set_to[PERTURBATION], set_to[SINGLE] = SMALLEST[name], name == "float32"
        set_to[THREADS] = options().threads
        self._release = weakref.finalize(self, _pardiso, self._state, RELEASE, self._matrix, set_to)
        self._release.atexit = False
        self._call(ANALYSE)
        needed = 1024 * max(int(set_to[ANALYSIS_KB]), int(set_to[KEPT_KB] + set_to[FACTORS_KB]))
        available = available_memory()
        if available is not None and needed > available:
            raise CapacityError(
                self._message(f"need {needed / 1e9:.3g} GB, {available / 1e9:.3g} GB are free")
            )

    def _call(self, phase: int, right: Any = None, solution: Any = None) -> None:
        library().MKL_Set_Num_Threads_Local(options().threads)
        error = _pardiso(self._state, phase, self._matrix, self._parameters, right, solution)
        if error in NO_MEMORY:
            raise CapacityError(self._message("need more memory than is free"))
        if error:
            raise OptionError(self._message(f"cannot be computed: PARDISO fails with error {error}"))

    def _message(self, what: str) -> str:
        _, indptr, indices = self._matrix
        return (
            f"the factors of a matrix with {len(indptr) - 1} rows and {len(indices)} elements of its upper "
            f"triangle {what}; use an iteration (method='filter' or 'jd')."
        )


def _upper(matrix: Any) -> Any:
    """Return the upper triangle by rows, with all elements of the diagonal."""
    n, stored = matrix.shape[0], sp.triu(matrix, format="coo")
    diagonal = np.arange(n, dtype=stored.row.dtype)
    rows, columns = (np.concatenate([part, diagonal]) for part in (stored.row, stored.col))
    values = np.concatenate([stored.data, np.zeros(n, stored.dtype)])
    return sp.coo_array((values, (rows, columns)), shape=matrix.shape).tocsr()  # adds what is given twice


def _pardiso(
    state: Any, phase: int, matrix: tuple[Any, ...], parameters: Any, right: Any = None, solution: Any = None
) -> int:
    """Call PARDISO; return its error. A block has a right-hand side per row."""
    n, columns = len(matrix[1]) - 1, 1 if right is None else len(right)
    numbers = np.array([1, 1, INDEFINITE, phase, n, columns, 0, 0], np.int64)
    *first, width, silent, error = (numbers[at:] for at in range(len(numbers)))
    arguments = state, *first, *matrix, None, width, parameters, silent, right, solution, error
    addresses = (None if part is None else ctypes.c_void_p(part.ctypes.data) for part in arguments)
    library().pardiso_64(*addresses)
    return int(numbers[-1])
