"""Rounding errors of dense LAPACK removed from all eigenvectors of a pair, by Rayleigh-Ritz steps.

Values of C^-1 A C^-H, with M = C C^H, have errors of u ||C^-1 A C^-H||. Where masses differ by orders of
magnitude, or M is nearly singular, that is far above u ||A|| / ||M||. The matrices X^H A X and X^H M X of all
computed vectors, nearly diagonal, have elements with errors of u |x_i|^H |A| |x_j|, however small these are
beside others. Corrections of first order element by element keep that, as steps of Jacobi's method do and a
reduction to tridiagonal form does not.

References
----------
Ogita, Aishima, Japan J. Indust. Appl. Math. 35 (2018) 1007 (correction of all vectors); Demmel, Veselic, SIAM
J. Matrix Anal. Appl. 13 (1992) 1204 (graded matrices).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg as sl
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from blockvec import BlockVector, Operator

from ..blocks import Array, RealArray, applied

PASSES = 5  # Rayleigh-Ritz steps at most
FIRST_ORDER = 1e-3  # largest coefficient of one vector in another that is corrected to first order
SMALL = 1e-9  # coefficients whose squares are below rounding errors


def refined_pairs(A: Operator | None, M: Operator | None, X: Array) -> tuple[RealArray, Array]:
    """Improve all finite eigenpairs of A x = lambda M x on the host; None stands for the identity."""
    for _ in range(PASSES):
        T, G = (_form(operator, X) for operator in (A, M))
        scale = 1 / np.sqrt(G.diagonal().real)
        X, T, G = X * scale, T * scale[:, None] * scale, G * scale[:, None] * scale
        theta = T.diagonal().real
        for members in _mixed(T, G, theta):
            U = sl.eigh(T[np.ix_(members, members)], G[np.ix_(members, members)])[1]
            for rows in (X, T, G):
                rows[:, members] = rows[:, members] @ U
            for columns in (T, G):
                columns[members] = U.conj().T @ columns[members]
        theta = T.diagonal().real.copy()
        E = _coefficients(T, G, theta)
        is_small = np.abs(E) <= FIRST_ORDER * np.sqrt(len(E))  # others are left to the next pass
        E = np.where(is_small, E, 0)
        X = X + X @ E
        if is_small.all() and np.abs(E).max() <= SMALL:
            break
    return theta, X


def _form(operator: Operator | None, X: Array) -> NDArray[Any]:
    T = X.conj().T @ applied(operator, BlockVector(np.ascontiguousarray(X))).array
    hermitian: NDArray[Any] = (T + T.conj().T) / 2
    return hermitian


def _coefficients(T: NDArray[Any], G: NDArray[Any], theta: RealArray) -> NDArray[Any]:
    """Compute E to first order, for which X + X E diagonalises both matrices."""
    gaps = theta[None, :] - theta[:, None]
    R = T - np.diag(T.diagonal()) - theta * (G - np.diag(G.diagonal()))
    is_apart = np.abs(R) < np.abs(gaps)
    E: NDArray[Any] = np.where(is_apart, R / np.where(is_apart, gaps, 1.0), (np.eye(len(G)) - G) / 2)
    return E


def _mixed(T: NDArray[Any], G: NDArray[Any], theta: RealArray) -> list[NDArray[np.intp]]:
    """Find groups of vectors that are mixed too much for corrections of first order."""
    gaps = np.abs(theta[None, :] - theta[:, None])
    coupling = np.maximum(np.abs(T - theta * G), np.abs(T - theta[:, None] * G))
    count, labels = connected_components(coupling > FIRST_ORDER * gaps, directed=False)
    groups = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels, minlength=count))[:-1])
    return [members for members in groups if len(members) > 1]
