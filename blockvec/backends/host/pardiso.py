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

    _system: _System | None = None

    def compute(self, matrix: Any, exchanges_rows: bool) -> bool:
        """Factorise, at first also analyse; False if a pivot was replaced.

        With `exchanges_rows` the matrix is scaled, and permuted symmetrically so that large elements are next
        to the diagonal.
        """
        upper = _upper(matrix)
        self.entries = self.nbytes = 0
        if self._system is None or exchanges_rows or not self._system.fits(upper):
            self._system = None  # frees its factors
            try:
                self._system = _System(upper, is_matched=exchanges_rows)
            except (CapacityError, OptionError):
                if exchanges_rows:  # of a singular matrix
                    return False
                raise
        has_pivots, count = self._system.factorise(upper.data), self._system.count
        self.entries, self.nbytes = count(ENTRIES), 1024 * (count(KEPT_KB) + count(FACTORS_KB))
        return has_pivots

    @property
    def negative(self) -> int | None:
        return None if self._system is None else self._system.count(NEGATIVE)

    def solve(self, B: Array) -> Array:
        assert self._system is not None
        return self._system.solve(B)


class _System:
    """A pattern, its analysis, and the latest numbers."""

    def __init__(self, upper: Any, is_matched: bool) -> None:
        self._n, self._dtype, self._is_matched = upper.shape[0], upper.dtype, is_matched
        self._values = np.ascontiguousarray(upper.data)
        self._indptr, self._indices = (part.astype(np.int64) for part in (upper.indptr, upper.indices))
        self._state, self._parameters = np.zeros(64, np.int64), np.zeros(64, np.int64)
        set_to = self._parameters
        set_to[[GIVEN, FROM_ZERO]] = 1
        set_to[ORDERING], set_to[PIVOTING], set_to[COUNTS] = DISSECTION, BLOCKS_OF_TWO, -1
        set_to[[SCALING, MATCHING]] = is_matched
        name = self._dtype.name
        set_to[PERTURBATION], set_to[SINGLE] = SMALLEST[name], name == "float32"
        set_to[THREADS] = options().threads
        self._call(ANALYSE)
        needed = 1024 * max(int(set_to[ANALYSIS_KB]), int(set_to[KEPT_KB] + set_to[FACTORS_KB]))
        available = available_memory()
        if available is not None and needed > available:
            raise CapacityError(
                self._message(f"need {needed / 1e9:.3g} GB, {available / 1e9:.3g} GB are free")
            )

    def fits(self, upper: Any) -> bool:
        """Check whether a matrix has the pattern and type that were analysed."""
        kept = (self._indptr, upper.indptr), (self._indices, upper.indices)
        same = upper.dtype == self._dtype and not self._is_matched
        return same and all(np.array_equal(old, new) for old, new in kept)

    def count(self, place: int) -> int:
        """Return a number that MKL has reported."""
        return int(self._parameters[place])

    def factorise(self, values: Any) -> bool:
        """Compute the numbers; return whether no pivot was replaced."""
        self._values[:] = values
        self._call(FACTORISE)
        return not self.count(REPLACED)

    def solve(self, B: Array) -> Array:
        """Solve for a block; the solution is column-major."""
        right = np.ascontiguousarray(B.T)
        solution = np.empty_like(right)
        self._call(SOLVE, right, solution)
        return solution.T

    def _call(self, phase: int, right: Any = None, solution: Any = None) -> None:
        mkl = library()
        mkl.MKL_Set_Num_Threads_Local(options().threads)
        columns = 1 if right is None else right.shape[0]
        matrix = self._values, self._indptr, self._indices
        error = _pardiso(self._state, phase, self._n, matrix, columns, self._parameters, right, solution)
        if phase == ANALYSE:
            self._release = weakref.finalize(self, _release, self._state, self._n, self._parameters)
            self._release.atexit = False
        if error in NO_MEMORY:
            raise CapacityError(self._message("need more memory than is free"))
        if error:
            raise OptionError(self._message(f"cannot be computed: PARDISO fails with error {error}"))

    def _message(self, what: str) -> str:
        return (
            f"the factors of a matrix with {self._n} rows and {len(self._indices)} elements of its upper "
            f"triangle {what}; use an iteration (method='filter' or 'jd')."
        )


def _upper(matrix: Any) -> Any:
    """Return the upper triangle by rows, with all elements of the diagonal."""
    n = matrix.shape[0]
    rows = np.repeat(np.arange(n, dtype=matrix.indices.dtype), np.diff(matrix.indptr))
    taken = matrix.indices >= rows
    rows, columns, values = rows[taken], matrix.indices[taken], matrix.data[taken]
    missing = np.setdiff1d(np.arange(n), rows[rows == columns], assume_unique=True)
    if len(missing):
        values = np.concatenate([values, np.zeros(len(missing), values.dtype)])
        rows, columns = (np.concatenate([part, missing]) for part in (rows, columns))
    upper = sp.csr_array(sp.coo_array((values, (rows, columns)), shape=matrix.shape))
    upper.sort_indices()
    return upper


def _release(state: Any, n: int, parameters: Any) -> None:
    nothing = np.zeros(1), np.zeros(1, np.int64), np.zeros(1, np.int64)
    _pardiso(state, RELEASE, n, nothing, 1, parameters)


def _pardiso(
    state: Any,
    phase: int,
    n: int,
    matrix: tuple[Any, Any, Any],
    columns: int,
    parameters: Any,
    right: Any = None,
    solution: Any = None,
) -> int:
    def number(value: int) -> Any:
        return ctypes.byref(ctypes.c_int64(value))

    def array(values: Any) -> Any:
        return None if values is None else values.ctypes.data_as(ctypes.c_void_p)

    error = ctypes.c_int64(0)
    library().pardiso_64(
        *(array(state), number(1), number(1), number(INDEFINITE), number(phase), number(n)),
        *(array(part) for part in matrix),
        *(None, number(columns), array(parameters), number(0)),
        *(array(right), array(solution), ctypes.byref(error)),
    )
    return int(error.value)
