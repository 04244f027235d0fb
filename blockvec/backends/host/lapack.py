"""Factors of nearly full Hermitian matrices on the host, by LAPACK."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg as sl

from ..base import Array, Factors


class LapackFactors(Factors):
    """Factors L U of a dense matrix, whose rows are always exchanged; the inertia is that of L D L^H."""

    def compute(self, matrix: Any, exchanges_rows: bool) -> bool:
        self._matrix = matrix.toarray()
        functions: Any = sl.get_lapack_funcs(("getrf", "getrs"), (self._matrix,))
        factorise, self._solve = functions
        self._lu, self._pivots, failed = factorise(self._matrix)
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
        X, _ = self._solve(self._lu, self._pivots, np.asarray(B))
        return np.asarray(X)


def of_pivots(pivots: Array) -> tuple[complex, float]:
    """Compute the sign and the logarithm of the magnitude of a product."""
    sizes = np.abs(pivots)
    return complex(np.prod(pivots / sizes)), float(np.log(sizes.astype(np.float64)).sum())
