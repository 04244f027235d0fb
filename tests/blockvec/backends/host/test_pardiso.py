"""PARDISO as the library of factors on the host, where MKL is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import factorize, models
from blockvec.backends.host import pardiso
from blockvec.backends.host.pardiso import PardisoFactors
from blockvec.backends.host.superlu import HostFactors, SuperLuFactors, is_narrow
from solvers import eigsh

needs_mkl = pytest.mark.skipif(pardiso.library() is None, reason="MKL is not installed: blockvec[mkl]")


def indefinite(n: int, seed: int) -> Any:
    """Draw a sparse symmetric matrix, most of whose diagonal is zero."""
    rng = np.random.default_rng(seed)
    A = sp.random_array((n, n), density=4 / n, rng=rng, data_sampler=rng.standard_normal)
    ring = sp.diags_array([np.ones(n - 1), np.ones(n - 1)], offsets=[-1, 1])
    return sp.csr_array(A + A.T + ring)


def library_of(matrix: Any, exchanges_rows: bool = False) -> type:
    factors = HostFactors()
    assert factors.compute(sp.csr_array(matrix), exchanges_rows)
    return type(factors._factors)


def test_without_mkl_superlu_factorises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pardiso, "library", lambda: None)
    assert library_of(models.laplace1d(n=50)) is SuperLuFactors


def test_bands_and_forests_are_narrow() -> None:
    n = 500
    parents = np.random.default_rng(0).integers(0, np.arange(1, n))
    edges = sp.csr_array((np.ones(n - 1), (np.arange(1, n), parents)), shape=(n, n))
    assert is_narrow(sp.csr_array(edges + edges.T + 5 * sp.eye_array(n)))
    band = sp.diags_array([np.ones(n - d) for d in range(32)], offsets=range(32))
    assert is_narrow(sp.csr_array(band + band.T))
    assert is_narrow(sp.csr_array((3, 3)))
    assert not is_narrow(models.model("laplace2d:nx=40,ny=41"))


@needs_mkl
def test_real_matrices_are_those_of_pardiso_and_others_are_not() -> None:
    A = models.model("laplace2d:nx=40,ny=41")
    assert library_of(A) is library_of(A.astype(np.float32)) is PardisoFactors
    assert library_of(A.astype(complex)) is SuperLuFactors
    assert library_of(models.laplace1d(n=50)) is SuperLuFactors


@needs_mkl
def test_pivots_that_are_zero_are_avoided_by_permutations_or_by_superlu() -> None:
    A = models.model("laplace2d:nx=40,ny=41")
    F = factorize(A, sigma=4.0)  # the diagonal is zero, and not stored
    X = F.solve(np.ones((1640, 2))).array
    assert np.allclose(A @ X - 4 * X, 1, atol=1e-10)
    assert F.inertia in (None, np.count_nonzero(np.linalg.eigvalsh(A.toarray()) < 4))
    swaps = sp.block_diag([np.array([[0.0, 1.0], [1.0, 0.0]])] * 50, format="csr")
    assert np.allclose(factorize(swaps).solve(np.ones((100, 1))).array, 1)
    nothing = sp.block_diag([swaps, sp.csr_array((1, 1))], format="csr")
    assert factorize(nothing).is_singular


@needs_mkl
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_inertia_and_solves_of_indefinite_matrices_are_right(seed: int, dtype: str) -> None:
    A = indefinite(200, seed).astype(dtype)
    values = np.linalg.eigvalsh(A.toarray().astype(float))
    gap = int(np.argmax(np.diff(values[50:150]))) + 50
    sigma = float(values[gap : gap + 2].mean())
    F = factorize(A, sigma=sigma)
    B = np.random.default_rng(seed).standard_normal((200, 3)).astype(dtype)
    X = F.solve(B).array
    assert F.inertia == gap + 1
    S = A - sigma * sp.eye_array(200)
    scale = abs(S).sum(axis=0).max() * np.linalg.norm(X) + np.linalg.norm(B)
    assert np.linalg.norm(S @ X - B) <= 50 * np.finfo(dtype).eps * scale


@needs_mkl
def test_the_analysis_is_kept_for_other_shifts_and_solves_repeat() -> None:
    factors, A = PardisoFactors(), models.model("laplace2d:nx=40,ny=41")
    identity = sp.eye_array(A.shape[0], format="csr")
    B = np.random.default_rng(0).standard_normal((A.shape[0], 8))
    systems, solutions = set(), []
    for sigma in (-1.0, 0.3, 3.7, -1.0):
        shifted = sp.csr_array(A - sigma * identity)
        assert factors.compute(shifted, False)
        systems.add(id(factors._state))
        solutions.append(factors.solve(B))
        assert np.allclose(shifted @ solutions[-1], B, atol=1e-9)
    assert len(systems) == 1
    assert np.array_equal(solutions[0], solutions[-1])
    assert factors.nbytes > 8 * factors.entries > 0


@needs_mkl
def test_eigenvalues_around_shifts_are_those_of_superlu(monkeypatch: pytest.MonkeyPatch) -> None:
    A, M = models.model("laplace3d:n=12"), sp.diags_array(np.linspace(1, 2, 12**3))
    calls: tuple[dict[str, Any], ...] = ({"sigma": 6.01}, {"sigma": 0.1, "M": M}, {"interval": (1.0, 1.3)})
    found = [eigsh(A, rng=0, return_info=True, **options) for options in calls]
    monkeypatch.setattr(pardiso, "library", lambda: None)
    for result, options in zip(found, calls, strict=True):
        expected = eigsh(A, rng=0, return_info=True, **options)
        assert np.allclose(result.eigenvalues, expected.eigenvalues, atol=1e-11)
        assert result.converged.all()
