"""Values with more copies than are asked for, and values at a shift: flat bands, hubs, equal blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import Factorization, eigsh
from solvers.factorization.inertia import proof_around
from solvers.iterations.rayleigh_ritz import select
from solvers.transform import solution
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
    """A sparse matrix with these eigenvalues, or a pair A and M, of blocks of twelve rows in random order."""
    values, parts, masses = rng.permutation(values), [], []
    for begin in range(0, len(values), 12):
        part = values[begin : begin + 12]
        Z = rng.standard_normal((len(part), len(part)))
        if dtype == "complex128":
            Z = Z + 1j * rng.standard_normal(Z.shape)
        Q = np.linalg.qr(Z)[0] @ np.diag(
            rng.uniform(0.5, 2.0, len(part)) if with_mass else np.ones(len(part))
        )
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


EQUAL = float(np.linalg.eigvalsh(grid(5)[:21, :21].toarray())[7])
BANDS = {
    "kagome": (lambda: lattice(KAGOME, (14, 14), (0.0, 0.0)), -2.0),
    "kagome with flux": (lambda: lattice(KAGOME, (13, 14), FLUX), -2.0),
    "Lieb": (lambda: lattice(LIEB, (14, 14), (0.0, 0.0)), 0.0),
    "dice with flux": (lambda: lattice(DICE, (13, 14), FLUX), 0.0),
    "star": (lambda: star(600), 1.0),
    "projector": (lambda: with_values(np.repeat([0.0, 1.0], [320, 280]), np.random.default_rng(5))[0], 1.0),
    "equal blocks": (lambda: sp.csr_array(sp.kron(sp.eye_array(30), grid(5)[:21, :21])), EQUAL),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "equal blocks" else ()) for name in BANDS]
)
def test_any_copies_answer_where_a_value_has_more_than_are_asked_for(name: str) -> None:
    made, value = BANDS[name]
    A = made()
    values = np.linalg.eigvalsh(A.toarray())
    for k, sigma in ((4, value), (40, value), (4, value + 1e-3)):
        info = check(values, A, k, sigma=sigma, maxiter=FEW)
        assert info["method"] == "lanczos"
        assert info["missing"] == 0


def drawn(seed: int, rows: tuple[int, int], most: int) -> None:
    """Solve around or at a value of a random matrix or pair with random multiplicities."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 30))
    kinds = rng.standard_normal(count), rng.integers(-6, 7, count).astype(float), 10 * rng.random(count)
    distinct, share = rng.choice(kinds), rng.dirichlet(np.full(count, rng.choice([0.1, 1.0, 10.0])))
    n = int(rng.integers(*rows))
    values = np.repeat(distinct, rng.multinomial(n, share))
    if rng.random() < 0.3:
        values[: n // 2] = rng.standard_normal(n // 2)
    dtype = str(rng.choice(["float64", "complex128"]))
    A, M = with_values(values, rng, dtype, with_mass=bool(rng.random() < 0.35))
    k, value = int(rng.integers(1, most)), float(rng.choice(distinct))
    distance = rng.choice([0.0, 10.0 ** rng.integers(-12, -4), 0.01])
    if rng.random() < 0.2:
        check(values, A, k, M, which=str(rng.choice(["SA", "LA", "LM", "BE"])))
    else:
        check(values, A, k, M, value + distance)


@pytest.mark.parametrize("seed", range(300, 308))
def test_values_of_random_multiplicities_are_found_with_as_many_copies(seed: int) -> None:
    drawn(seed, (430, 520), 20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_values_of_random_multiplicities_are_found_where_none_is_solved_densely(seed: int) -> None:
    drawn(seed, (3050, 3600), 30)


def test_hubs_that_are_joined_to_all_nodes_converge_to_what_their_long_rows_allow() -> None:
    A = hubs(1000, np.random.default_rng(0).choice(1000, 10, replace=False))
    check(np.linalg.eigvalsh(A.toarray()), A, 6)


def test_the_rounding_floor_of_long_rows_bounds_the_errors_of_a_product() -> None:
    rng = np.random.default_rng(2)
    A = hubs(1000, [0, 1])
    x = rng.uniform(0.9, 1.1, 1000)
    x /= np.linalg.norm(x)
    exact = A.toarray().astype(np.longdouble) @ x.astype(np.longdouble)
    error = float(np.linalg.norm((A @ x - exact).astype(float)))
    assert error < product_rounding(A, np.float64) < 1e-11 * np.abs(A).sum(axis=1).max()
    assert product_rounding(grid(30), np.float64) == 0


def test_values_at_a_shift_spoil_no_others_however_many_copies_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    A = lattice(KAGOME, (9, 9), (0.0, 0.0))
    values = np.linalg.eigvalsh(A.toarray())
    sigma = values[-6]
    assert np.count_nonzero(np.abs(values - sigma) < 1e-9) == 6
    monkeypatch.setattr(solution, "_polished", None)  # others are as accurate without it
    w = eigsh(A, 40, sigma=sigma, method="lanczos", rng=0, return_eigenvectors=False)
    distances = np.sort(np.abs(values - sigma))[:40]
    assert np.allclose(np.sort(np.abs(w - sigma)), distances, rtol=0, atol=1e-13)


def test_values_that_differ_by_less_than_limits_of_the_matrix_do_not_displace_each_other() -> None:
    unit, distance = 2.0**-53, 1e-11
    tolerance = TransformedTolerance(0.0, "value", unit, 0.0, SpectralMap(0.0), Norms(1.0, 1.0, 1.0))
    theta = np.array([1 / distance])
    limit, margin = (part(theta, 1 / distance)[0] for part in (tolerance.limits, tolerance.margins))
    floor = 100 * unit * (1 + distance)
    assert margin == pytest.approx(floor / distance**2)
    assert limit < 1e-2 * margin  # residuals must be far smaller, for accurate vectors


def test_nothing_is_nearer_to_a_shift_than_values_that_are_equal_to_it() -> None:
    A = sp.csr_array(sp.diags_array(np.r_[np.ones(6), 2.0, 3.0]))
    text, missing = proof_around(Factorization(A), 1.0, np.ones(3) + 1e-13, np.full(3, 1e-12))
    assert missing == 0
    assert text.startswith("not needed")
