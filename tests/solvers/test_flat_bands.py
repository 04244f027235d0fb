"""Values with more copies than are asked for, and others that meet a shift: flat bands, hubs, equal blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import Factorization, eigsh
from solvers.factorization.inertia import proof_around
from solvers.iterations.rayleigh_ritz import select
from solvers.transform.scaling import product_rounding
from solvers.transform.spectral_map import Norms, SpectralMap, TransformedTolerance

# Hops within and between cells of three orbitals: (orbital, orbital, cells along x, cells along y).
KAGOME = ((0, 1, 0, 0), (0, 2, 0, 0), (1, 2, 0, 0), (1, 0, 1, 0), (2, 0, 0, 1), (2, 1, -1, 1))
LIEB = ((0, 1, 0, 0), (0, 2, 0, 0), (1, 0, 1, 0), (2, 0, 0, 1))
DICE = ((0, 1, 0, 0), (0, 1, -1, 0), (0, 1, 0, -1), (0, 2, 0, 0), (0, 2, 1, 0), (0, 2, 0, 1))
FLUX = (0.13, 0.29)  # turns of the phase around the lattice, which make it complex
FEW = 50  # restarts, many times those that are needed


def lattice(hops: tuple[tuple[int, ...], ...], shape: tuple[int, int], flux: tuple[float, float]) -> Any:
    """A lattice of cells with periodic boundaries, whose third band is flat."""
    (nx, ny), H = shape, None
    x, y = (part.ravel() for part in np.meshgrid(np.arange(nx), np.arange(ny), indexing="ij"))
    for a, b, dx, dy in hops:
        phase = np.exp(2j * np.pi * (flux[0] * ((x + dx) // nx) + flux[1] * ((y + dy) // ny)))
        rows, columns = 3 * (x * ny + y) + a, 3 * ((x + dx) % nx * ny + (y + dy) % ny) + b
        part = sp.coo_array((phase if any(flux) else phase.real, (rows, columns)), shape=(3 * nx * ny,) * 2)
        H = part if H is None else H + part
    return sp.csr_array(H + H.conj().T)


def laplacian(adjacency: Any) -> Any:
    """The Laplacian of a graph."""
    return sp.csr_array(sp.diags_array(adjacency.sum(axis=1)) - adjacency)


def star(leaves: int) -> Any:
    """The Laplacian of a hub with leaves, whose eigenvalue 1 has all copies but two."""
    return hubs(leaves + 1, [0], ring=False)


def hubs(n: int, places: Any, *, ring: bool = True) -> Any:
    """The Laplacian of a ring, or of no edges, some nodes of which are joined to all."""
    edges = np.zeros((n, n))
    if ring:
        edges[np.arange(n), np.arange(1, n + 1) % n] = 1
    edges[places] = 1
    edges = np.maximum(edges, edges.T)
    np.fill_diagonal(edges, 0)
    return laplacian(sp.csr_array(edges))


def grid(n: int) -> Any:
    """The Laplacian of a square of n x n nodes."""
    path, one = sp.diags_array([np.ones(n - 1), np.ones(n - 1)], offsets=[-1, 1]), sp.eye_array(n)
    return laplacian(sp.kron(path, one) + sp.kron(one, path))


def with_values(values: Any, rng: Any, dtype: str = "float64", *, with_mass: bool = False) -> tuple[Any, Any]:
    """A sparse matrix with these eigenvalues, or a pair of A and M, of blocks of twelve rows in random order."""
    values, parts, masses = rng.permutation(values), [], []
    for begin in range(0, len(values), 12):
        part = values[begin : begin + 12]
        Z = rng.standard_normal((len(part), len(part)))
        if dtype == "complex128":
            Z = Z + 1j * rng.standard_normal(Z.shape)
        Q = np.linalg.qr(Z)[0] @ np.diag(rng.uniform(0.5, 2.0, len(part)) if with_mass else np.ones(len(part)))
        parts.append(Q.conj().T @ (part[:, None] * Q))
        masses.append(Q.conj().T @ Q)
    order = rng.permutation(len(values))
    A, M = (sp.csr_array(sp.block_diag(blocks))[order][:, order] for blocks in (parts, masses))
    return (A + A.conj().T) / 2, (M + M.conj().T) / 2 if with_mass else None


def check(values: Any, A: Any, k: int, M: Any = None, sigma: float | None = None, **options: Any) -> Any:
    """Solve, and compare with all eigenvalues: as many copies of each, vectors orthonormal; return `info`."""
    result = eigsh(A, k, M=M, sigma=sigma, rng=0, return_info=True, **options)
    ranked = values if sigma is None else 1 / (values - sigma + 1e-300)
    order = select(ranked, options.get("which", "LM"))[:k]
    distance: Callable[[Any], Any] = np.asarray if sigma is None else lambda part: np.abs(part - sigma)
    if options.get("which") == "LM" and sigma is None:
        distance = np.abs
    found, X = np.sort(distance(result.eigenvalues)), result.eigenvectors
    scale = np.abs(values).max()
    np.testing.assert_allclose(found, np.sort(distance(values[order])), rtol=0, atol=1e-10 * scale)
    MX = X if M is None else M @ X
    assert np.abs(X.conj().T @ MX - np.eye(k)).max() < 1e-10
    assert result.converged.all()
    return result.info


BANDS = {
    "kagome": (lambda: lattice(KAGOME, (14, 14), (0.0, 0.0)), -2.0),
    "kagome with flux": (lambda: lattice(KAGOME, (13, 14), FLUX), -2.0),
    "Lieb": (lambda: lattice(LIEB, (14, 14), (0.0, 0.0)), 0.0),
    "dice with flux": (lambda: lattice(DICE, (13, 14), FLUX), 0.0),
    "star": (lambda: star(600), 1.0),
    "projector": (lambda: with_values(np.repeat([0.0, 1.0], [320, 280]), np.random.default_rng(5))[0], 1.0),
    "equal blocks": (lambda: sp.csr_array(sp.kron(sp.eye_array(30), grid(5)[:20, :20])), 4.0),
}


@pytest.mark.parametrize("name", BANDS)
def test_any_copies_answer_where_a_value_has_more_than_are_asked_for(name: str) -> None:
    made, value = BANDS[name]
    A = made()
    values = np.linalg.eigvalsh(A.toarray())
    for k in (4, 40):
        for sigma in (value, value + 1e-3):
            info = check(values, A, k, sigma=sigma, maxiter=FEW)
            assert info["method"] == "lanczos"
            assert info["missing"] == 0
