"""Sparse LU factorisations of Hermitian matrices, and solves with A - sigma M."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse.linalg import SuperLU, splu

from blockvec.errors import OptionError

from ..blocks import Array

Solve = Callable[[Array], Array]

SINGULAR = 30.0  # a matrix with an eigenvalue below so many u |x|^H |A| |x| is singular


class SingularError(OptionError):
    """Error for a singular A - sigma M."""


def factorise(matrix: Any, threshold: float) -> SuperLU | None:
    """Compute a sparse LU factorisation with pivots near the diagonal; None if the matrix is singular."""
    try:
        return splu(
            matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=threshold, options={"SymmetricMode": True}
        )
    except RuntimeError:
        return None


def shifted_solve(shifted: Any, sigma: float) -> tuple[Solve, str]:
    """Factorise A - sigma M; return a function B -> (A - sigma M)^-1 B and a description with the fill."""
    lu = factorise(shifted, 0.01)
    if lu is None or not np.isfinite(lu.U.diagonal()).all() or _is_singular(shifted, lu):
        raise SingularError(
            f"sigma: A - sigma M is singular for sigma = {sigma:g}, an eigenvalue to working precision; "
            "move sigma a little."
        )
    fill = (lu.L.nnz + lu.U.nnz) / max(shifted.nnz, 1)
    dtype = shifted.dtype

    def solve(X: Any) -> Array:
        # Real factors solve for real and imaginary part in turn.
        if np.iscomplexobj(X) and dtype.kind != "c":
            return lu.solve(np.ascontiguousarray(X.real)) + 1j * lu.solve(np.ascontiguousarray(X.imag))
        return lu.solve(np.ascontiguousarray(X, dtype=dtype))

    return solve, f"A - sigma M is factorised for sigma = {sigma:g}, with {fill:.1f} times its entries"


def _is_singular(matrix: Any, lu: SuperLU) -> bool:
    """Check whether two steps of inverse iteration find an eigenvalue that rounding explains."""
    x = np.random.default_rng(0).standard_normal(matrix.shape[0]).astype(matrix.dtype)
    for _ in range(2):
        x = lu.solve(x / np.linalg.norm(x))
        length = float(np.linalg.norm(x))
        if not np.isfinite(length):
            return True
    size = np.abs(x) / length
    unit = float(np.finfo(matrix.dtype).eps) / 2
    return 1 / length <= SINGULAR * unit * float(size @ (abs(matrix) @ size))
