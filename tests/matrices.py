"""Matrices and blocks that many tests take."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp


def normal(rng: Any, *shape: int, dtype: Any = "float64") -> np.ndarray:
    """Draw normal numbers, with imaginary parts for complex types; `rng` is a generator or a seed."""
    rng = np.random.default_rng(rng)
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def unit(dtype: Any) -> float:
    """Return the unit roundoff of a type."""
    return float(np.finfo(dtype).eps) / 2


def orthonormal(rng: Any, rows: int, columns: int | None = None, dtype: Any = "float64") -> np.ndarray:
    """Draw orthonormal columns, as many as rows if no number is given."""
    wide = "complex128" if np.dtype(dtype).kind == "c" else "float64"
    Q = np.linalg.qr(normal(rng, rows, rows if columns is None else columns, dtype=wide))[0]
    return np.ascontiguousarray(Q).astype(dtype)


def with_values(values: Any, rng: Any, dtype: Any = "float64") -> np.ndarray:
    """Make a dense Hermitian matrix with these eigenvalues and random eigenvectors."""
    wide = "complex128" if np.dtype(dtype).kind == "c" else "float64"
    Q = orthonormal(rng, len(values), dtype=wide)
    A = (Q * np.asarray(values)) @ Q.conj().T
    return ((A + A.conj().T) / 2).astype(dtype)


def random_sparse(
    rng: Any, m: int, n: int | None = None, per_row: float = 4, dtype: Any = "float64"
) -> sp.csr_array:
    """Draw a sparse matrix of normal numbers; a Hermitian one where no number of columns is given."""
    rng, columns = np.random.default_rng(rng), m if n is None else n
    A = sp.random_array((m, columns), density=per_row / columns, rng=rng, data_sampler=rng.standard_normal)
    A = A.tocsr()
    if np.dtype(dtype).kind == "c":
        A.data = A.data * np.exp(2j * np.pi * rng.uniform(size=A.nnz))
    return sp.csr_array(A + A.conj().T if n is None else A).astype(dtype)


def random_graph(rng: Any, n: int, per_row: float = 4) -> sp.csr_array:
    """Draw the adjacency matrix of a graph."""
    A = random_sparse(rng, n, per_row=per_row)
    A.data[:] = 1.0
    return A


def springs(stiffness: Any, masses: Any) -> tuple[sp.csr_array, sp.csr_array]:
    """Return the matrices of masses between springs, the first and the last of which hold the ends."""
    c = np.asarray(stiffness)
    diagonals = [c[:-1] + c[1:], -c[1:-1], -c[1:-1]]
    return sp.csr_array(sp.diags_array(diagonals, offsets=[0, 1, -1])), sp.csr_array(sp.diags_array(masses))


def element_mass(*sides: int) -> sp.csr_array:
    """Form the mass matrix of linear or bilinear elements with these numbers of nodes along the sides."""
    M: Any = sp.eye_array(1)
    for n in sides:
        M = sp.kron(M, sp.diags_array([1 / 6, 2 / 3, 1 / 6], offsets=[-1, 0, 1], shape=(n, n)))
    return sp.csr_array(M)


def gauged(A: Any, turn: float = 1.0) -> sp.csr_array:
    """Turn the basis of a matrix by complex phases, which leaves the eigenvalues."""
    phases = sp.diags_array(np.exp(1j * turn * np.arange(A.shape[0])))
    return sp.csr_array(phases @ A @ phases.conj())


def nearest(values: np.ndarray, sigma: float, k: int) -> np.ndarray:
    """Return the k values nearest to a shift, ascending."""
    return np.sort(values[np.argsort(np.abs(values - sigma), kind="stable")[:k]])


def kinked(seed: int) -> tuple[np.ndarray, Any]:
    """Draw eigenvalues, and a function with a kink, a step or a peak somewhere between them."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(20, 60))
    w = np.sort([rng.uniform(-1, 1, n), np.geomspace(1e-4, 1, n), rng.standard_normal(n)][seed % 3])
    c = rng.choice([rng.uniform(w[0], w[-1]), w[:2].mean(), w[-2:].mean()])
    functions: list[Any] = [
        lambda x: np.abs(x - c),
        lambda x: np.exp(x) + np.maximum(x - c, 0),
        lambda x: 1 + (x > c),
        lambda x: seed % 2 + np.exp(-(((x - w[n // 2]) / 1e-2) ** 2)),
    ]
    return w, functions[seed // 3 % 4]
