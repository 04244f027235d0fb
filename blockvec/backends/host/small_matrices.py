"""The inverse of a Cholesky factor by LAPACK."""

from __future__ import annotations

import contextlib

import numpy as np

from ..base import Array


def inverse_factor(G: Array, limit: float) -> tuple[Array, Array]:
    """Compute T = R^-1 and the report of `Backend.inverse_factor` for a NumPy array G."""
    width = len(G)
    wide = G.astype(np.complex128 if G.dtype.kind == "c" else np.float64)
    report = np.zeros((3 * width + 1, width), wide.dtype)
    hermitian, R, T = (report[i * width : (i + 1) * width] for i in range(3))
    hermitian[:] = (wide + wide.conj().T) / 2
    R[:] = T[:] = np.eye(width)
    report[-1, :1] = np.inf
    with contextlib.suppress(np.linalg.LinAlgError):  # not positive definite
        factor = np.linalg.cholesky(hermitian).conj().T
        inverse = np.linalg.inv(factor)
        growth = np.diagonal(wide).real @ (np.abs(inverse) ** 2).sum(axis=1)
        if growth < limit:
            R[:], T[:], report[-1, :1] = factor, inverse, growth
    return T.astype(G.dtype), report
