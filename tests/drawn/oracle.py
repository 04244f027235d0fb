"""All eigenvalues of a pair of matrices by dense LAPACK, with bounds of errors that know the scaling."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import scipy.linalg

SAFETY = 8.0  # of the rounding errors of entries


@dataclass(frozen=True)
class Spectrum:
    """All finite eigenvalues of A x = lambda M x, ascending, with what is known of each.

    Attributes
    ----------
    values, errors : numpy.ndarray
        Eigenvalues, and bounds of their errors.
    lengths : numpy.ndarray
        ||y|| of the eigenvectors y, of length one in M.
    stiffness, masses : numpy.ndarray
        |y|^T |A| |y| and |y|^T |M| |y|: what relative errors of the entries change.
    """

    values: np.ndarray
    errors: np.ndarray
    lengths: np.ndarray
    stiffness: np.ndarray
    masses: np.ndarray

    def repeated(self, copies: int) -> Spectrum:
        """Return the spectrum with each value several times."""
        return Spectrum(*(np.repeat(getattr(self, field.name), copies) for field in fields(self)))

    def plus(self, other: Spectrum, unit: float) -> Spectrum:
        """Return the spectrum of kron(A, M') + kron(M, A') beside kron(M, M'): all sums of two values."""

        def outer(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return np.multiply.outer(x, y).ravel()

        values = np.add.outer(self.values, other.values).ravel()
        order = np.argsort(values, kind="stable")
        stiffness = outer(self.stiffness, other.masses) + outer(self.masses, other.stiffness)
        masses = outer(self.masses, other.masses)
        errors = np.add.outer(self.errors, other.errors).ravel()
        errors += SAFETY * unit * (stiffness + np.abs(values) * masses)
        parts = values, errors, outer(self.lengths, other.lengths), stiffness, masses
        return Spectrum(*(part[order] for part in parts))


def of_pair(A: np.ndarray, M: np.ndarray | None, unit: float) -> Spectrum:
    """Solve a pair densely; rows of zeros in M are eliminated, and their values are infinite."""
    if M is None:
        return _described(A, M, *scipy.linalg.eigh(A), unit)
    heavy = M.diagonal().real > 0
    if heavy.all():
        return _described(A, M, *_scaled(A, M), unit)
    light = ~heavy
    follow = -scipy.linalg.solve(A[np.ix_(light, light)], A[np.ix_(light, heavy)], assume_a="sym")
    S = A[np.ix_(heavy, heavy)] + A[np.ix_(heavy, light)] @ follow
    values, Y = _scaled((S + S.conj().T) / 2, M[np.ix_(heavy, heavy)])
    whole = np.zeros((len(A), len(values)), dtype=Y.dtype)
    whole[heavy], whole[light] = Y, follow @ Y
    return _described(A, M, values, whole, unit)


def of_penalised(A: np.ndarray, M: np.ndarray | None, count: int, unit: float) -> Spectrum:
    """Solve a definite pair of which `count` rows are held by penalties.

    The inverse of A gives the low values to their relative accuracy: a Cholesky factor of A is as accurate
    as one of the same matrix scaled to a diagonal of ones.
    """
    high = of_pair(A, M, unit)
    mass = np.eye(len(A)) if M is None else M
    L = scipy.linalg.cholesky(A, lower=True)
    half = scipy.linalg.solve_triangular(L, mass, lower=True)
    inverse = scipy.linalg.solve_triangular(L, half.conj().T, lower=True)
    nu, Z = scipy.linalg.eigh((inverse + inverse.conj().T) / 2)
    free = len(A) - count
    nu, Z = nu[::-1][:free], Z[:, ::-1][:, :free]
    Y = scipy.linalg.solve_triangular(L, Z / np.sqrt(nu), lower=True, trans="C")
    low = _described(A, M, 1 / nu, Y, unit)
    parts = (np.r_[getattr(low, f.name), getattr(high, f.name)[free:]] for f in fields(Spectrum))
    return Spectrum(*parts)


def _scaled(A: np.ndarray, M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Solve a pair with the masses scaled to about one, by powers of two."""
    d = np.exp2(-np.round(np.log2(M.diagonal().real) / 2))
    values, Y = scipy.linalg.eigh(d[:, None] * A * d, d[:, None] * M * d)
    return values, d[:, None] * Y


def _described(
    A: np.ndarray, M: np.ndarray | None, values: np.ndarray, Y: np.ndarray, unit: float
) -> Spectrum:
    """Measure the errors of eigenpairs: Y^H r is a residual r in the norm of the inverse of M."""
    MY = Y if M is None else M @ Y
    errors = 2 * np.linalg.norm(Y.conj().T @ (A @ Y - MY * values), axis=0)
    size = np.abs(Y)
    stiffness = (size * (np.abs(A) @ size)).sum(axis=0)
    masses = (size * (size if M is None else np.abs(M) @ size)).sum(axis=0)
    errors += SAFETY * unit * (stiffness + np.abs(values) * masses)
    return Spectrum(values, errors, np.linalg.norm(Y, axis=0), stiffness, masses)
