"""Factors of Hermitian matrices on the host: by SciPy's SuperLU or PARDISO, nearly full ones by LAPACK."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg as sl
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components, structural_rank
from scipy.sparse.linalg import splu

from ..base import Array, Factors, is_nearly_full
from . import pardiso

INDEX_BYTES = 4  # of SuperLU
FOREST, BAND = 3, 32  # elements per row, and distance from the diagonal, of matrices that stay sparse


class HostFactors(Factors):
    """Factors by the library that is faster for a matrix."""

    def __init__(self) -> None:
        self._factors: Factors = SuperLuFactors()

    def compute(self, matrix: Any, exchanges_rows: bool) -> bool:
        if not isinstance(matrix, np.ndarray) and is_nearly_full(matrix):
            matrix = matrix.toarray()
        is_dense = isinstance(matrix, np.ndarray)
        libraries: list[type[Factors]] = [LapackFactors if is_dense else SuperLuFactors]
        if libraries == [SuperLuFactors] and pardiso.accepts(matrix.dtype.name) and not is_narrow(matrix):
            libraries.insert(0, pardiso.PardisoFactors)
        for library in libraries:
            if not isinstance(self._factors, library):
                self._factors = library()
            has_pivots = self._factors.compute(matrix, exchanges_rows)
            if has_pivots or not exchanges_rows:
                break
        factors, self._matrix = self._factors, matrix
        self.width, self.entries, self.nbytes = factors.width, factors.entries, factors.nbytes
        return has_pivots

    @property
    def negative(self) -> int | None:
        return self._factors.negative

    def log_determinant(self) -> tuple[complex, float] | None:
        found = self._factors.log_determinant()
        if found is not None:
            return found
        factors = SuperLuFactors()  # PARDISO does not tell its pivots
        factors.compute(self._matrix, exchanges_rows=True)
        return factors.log_determinant()

    def solve(self, B: Array) -> Array:
        return self._factors.solve(B)


def is_narrow(matrix: Any) -> bool:
    """Check whether factors of a matrix have few elements, in short rows: those of a band or a forest.

    PARDISO takes 1.5 to 6 times as long as SuperLU for these: its supernodes are tiny.
    """
    n = matrix.shape[0]
    if matrix.nnz <= FOREST * n:
        return True
    rows = np.repeat(np.arange(n, dtype=matrix.indices.dtype), np.diff(matrix.indptr))
    return bool(np.abs(matrix.indices - rows).max(initial=0) <= BAND)


def parity(permutation: Array) -> int:
    """Return 1 for a permutation of an even number of exchanges, else -1."""
    n = len(permutation)
    links = sp.csr_array((np.ones(n, np.int8), permutation, np.arange(n + 1)), shape=(n, n))
    cycles: Any = connected_components(links, return_labels=False)
    return 1 - 2 * int((n - cycles) % 2)


class SuperLuFactors(Factors):
    """Factors L U of a sparse matrix, without a part that another matrix of the same pattern could reuse."""

    width = 2
    _lu: Any = None

    def compute(self, matrix: Any, exchanges_rows: bool) -> bool:
        # The columns of a Hermitian matrix are its rows, conjugated.
        data = matrix.data.conj() if matrix.dtype.kind == "c" else matrix.data
        columns = sp.csc_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)
        self._lu, self.entries, self.nbytes = None, 0, 0
        if not columns.diagonal().all():
            if not exchanges_rows:
                return False  # a zero would be a pivot
            if structural_rank(columns) < columns.shape[0]:
                return False  # SuperLU may crash without a full transversal
        # With `panel_size=4` factors of plane meshes take .85 of the time, but some singular matrices end the
        # process, also with pivots on the diagonal.
        symmetric: dict[str, Any] = {
            "permc_spec": "MMD_AT_PLUS_A",
            "diag_pivot_thresh": 0.0,
            "options": {"SymmetricMode": True},
        }
        try:
            self._lu = splu(columns, **({} if exchanges_rows else symmetric))
        except RuntimeError:  # a pivot is zero
            return False
        self.entries = int(self._lu.nnz)
        self.nbytes = self.entries * (columns.dtype.itemsize + INDEX_BYTES)
        return True

    @property
    def negative(self) -> int | None:
        if self._lu is None or not np.array_equal(self._lu.perm_r, self._lu.perm_c):
            return None
        return int(np.count_nonzero(self._lu.U.diagonal().real < 0))

    def log_determinant(self) -> tuple[complex, float] | None:
        sign, log = of_pivots(self._lu.U.diagonal())
        rows, columns = self._lu.perm_r, self._lu.perm_c
        if not np.array_equal(rows, columns):
            sign *= parity(rows) * parity(columns)
        return sign, log

    def solve(self, B: Array) -> Array:
        return np.asarray(self._lu.solve(np.asarray(B)))


class LapackFactors(Factors):
    """Factors L U of a dense matrix, whose rows are always exchanged; the inertia is that of L D L^H."""

    def compute(self, matrix: Any, exchanges_rows: bool) -> bool:
        self._matrix = matrix
        functions: Any = sl.get_lapack_funcs(("getrf", "getrs"), (matrix,))
        factorise, self._solve = functions
        # Those of the transpose left residuals 40 times as large next to an eigenvalue.
        self._lu, self._pivots, failed = factorise(matrix)
        self.entries, self.nbytes = (0, 0) if failed else (self._lu.size, self._lu.nbytes)
        return not failed

    @property
    def negative(self) -> int | None:
        _, D, _ = sl.ldl(self._matrix, hermitian=True, check_finite=False)
        bands = np.zeros((2, len(D)), D.dtype)
        bands[0], bands[1, :-1] = D.diagonal(), D.diagonal(-1)
        return int(np.count_nonzero(sl.eigvals_banded(bands, lower=True) < 0))

    def log_determinant(self) -> tuple[complex, float] | None:
        sign, log = of_pivots(self._lu.diagonal())
        exchanges = np.count_nonzero(self._pivots != np.arange(len(self._pivots)))
        return sign * (1 - 2 * (exchanges % 2)), log

    def solve(self, B: Array) -> Array:
        X, _ = self._solve(self._lu, self._pivots, B)
        return np.asarray(X)


def of_pivots(pivots: Array) -> tuple[complex, float]:
    """Compute the sign and the logarithm of the magnitude of a product."""
    sizes = np.abs(pivots)
    return complex(np.prod(pivots / sizes)), float(np.log(sizes.astype(np.float64)).sum())
