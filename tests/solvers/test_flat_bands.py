"""Values with more copies than are asked for, and values at a shift: flat bands, hubs, equal blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import BlockVector, as_operator, models
from solvers import eigsh
from solvers.problem import Problem, Tolerance
from solvers.stages import run
from solvers.transform import solution
from solvers.transform.scaling import product_rounding
from tests.matrices import with_values
from tests.solvers.answers import answered, eigenvalues, laplacian

# Hops within and between cells of three orbitals: (orbital, orbital, cells along x, cells along y).
KAGOME = ((0, 1, 0, 0), (0, 2, 0, 0), (1, 2, 0, 0), (1, 0, 1, 0), (2, 0, 0, 1), (2, 1, -1, 1))
LIEB = ((0, 1, 0, 0), (0, 2, 0, 0), (1, 0, 1, 0), (2, 0, 0, 1))
DICE = ((0, 1, 0, 0), (0, 1, -1, 0), (0, 1, 0, -1), (0, 2, 0, 0), (0, 2, 1, 0), (0, 2, 0, 1))
FLUX = (0.13, 0.29)  # turns of the phase around the lattice, which make it complex
FEW = 50  # restarts, many times those that are needed
COPIES: dict[str, Any] = {"atol": 1e-10, "loss": 1e-10}


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


def hubs(n: int, places: Any, *, ring: bool = True) -> Any:
    """The Laplacian of a ring, or of no edges, some nodes of which are joined to all."""
    edges = np.eye(n, k=1) + np.eye(n, k=1 - n) if ring else np.zeros((n, n))
    edges[places] = 1
    edges = np.maximum(edges, edges.T)
    np.fill_diagonal(edges, 0)
    return laplacian(sp.csr_array(edges))


def grid(n: int) -> Any:
    """The Laplacian of a square of n x n nodes."""
    A = models.model(f"laplace2d:n={n}")
    return laplacian(4 * sp.eye_array(n * n) - A)


BLOCK = grid(5)[:21, :21]
BANDS = {
    "kagome": (lambda: lattice(KAGOME, (14, 14), (0.0, 0.0)), -2.0),
    "kagome with flux": (lambda: lattice(KAGOME, (13, 14), FLUX), -2.0),
    "Lieb": (lambda: lattice(LIEB, (14, 14), (0.0, 0.0)), 0.0),
    "dice with flux": (lambda: lattice(DICE, (13, 14), FLUX), 0.0),
    "star": (lambda: hubs(601, [0], ring=False), 1.0),
    "projector": (lambda: sp.csr_array(with_values(np.repeat([0.0, 1.0], [320, 280]), 5)), 1.0),
    "equal blocks": (lambda: sp.csr_array(sp.kron(sp.eye_array(30), BLOCK)), float(eigenvalues(BLOCK)[7])),
}


@pytest.mark.parametrize("name", BANDS)
def test_any_copies_answer_where_a_value_has_more_than_are_asked_for(name: str) -> None:
    made, value = BANDS[name]
    A = made()
    exact = eigenvalues(A)
    for k, sigma in ((4, value), (40, value), (4, value + 1e-3)):
        info = answered(A, k, exact=exact, sigma=sigma, maxiter=FEW, **COPIES).info
        assert (info["method"], info["missing"]) == ("lanczos", 0)


def test_hubs_that_are_joined_to_all_nodes_converge_to_what_their_long_rows_allow() -> None:
    answered(hubs(1000, np.random.default_rng(0).choice(1000, 10, replace=False)), 6, **COPIES)


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
    values = eigenvalues(A)
    sigma = values[-6]
    assert np.count_nonzero(np.abs(values - sigma) < 1e-9) == 6
    monkeypatch.setattr(solution, "_polished", None)  # others are as accurate without it
    answered(A, 40, exact=values, sigma=sigma, method="lanczos", atol=1e-13)


def test_a_look_for_many_values_at_a_shift_may_outgrow_the_basis_of_the_caller() -> None:
    A = sp.diags_array(np.r_[np.zeros(80), np.arange(1, 500)]).tocsr()
    values = eigsh(A, 20, sigma=0, which="LA", ncv=40, block_size=2, method="lanczos", rng=0)[0]
    assert np.abs(values).max() < 1e-10


def test_vectors_whose_values_are_known_are_multiplied_by_nothing() -> None:
    A, columns = grid(20).toarray(), []
    values, X = np.linalg.eigh(A)
    asked: Any = {"k": 3, "which": "SA", "tolerance": Tolerance(0.0, "value", 1e-16)}
    for known in (values[:0], values[:40]):
        locked, rng = BlockVector(X[:, :40].copy()), np.random.default_rng(0)
        problem = Problem(operator=as_operator(A), locked=locked, rng=rng, method="lanczos", **asked)
        result = run.solve(replace(problem, deflated=known))
        np.testing.assert_allclose(result.eigenvalues, values[40:43], rtol=1e-12)
        columns.append(result.info["operator_columns"])
    assert columns[0] - columns[1] == 40
