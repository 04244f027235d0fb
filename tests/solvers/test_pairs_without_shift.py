"""Pairs K x = lambda M x without a shift: their low end by shift-invert at once, both ends on their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp

from blockvec.models import model
from solvers import eigsh
from tests.matrices import element_mass

FEW_COLUMNS = 150  # of an iteration with K at the low end ten times as many are needed


def mass(nx: int, ny: int, low: float = 1.0, high: float = 1.5) -> Any:
    """Form the mass matrix of bilinear elements with a density that grows geometrically from side to side."""
    root = sp.diags_array(np.sqrt(np.geomspace(low, high, nx * ny)))
    return sp.csr_array(root @ element_mass(ny, nx) @ root)


def membrane(nx: int = 20, ny: int = 22, **density: float) -> tuple[Any, Any]:
    """Form the pair of a membrane."""
    return model(f"laplace2d:nx={nx},ny={ny}"), mass(nx, ny, **density)


def doubled(K: Any, M: Any) -> tuple[Any, Any]:
    """Form the pair of two equal structures, whose unknowns are mixed."""
    order = np.random.default_rng(0).permutation(2 * K.shape[0])
    return tuple(sp.csr_array(sp.block_diag([A, A], format="csr")[order][:, order]) for A in (K, M))


def check(K: Any, M: Any, k: int, which: str, rtol: float = 1e-9, **options: Any) -> Any:
    """Compare with dense LAPACK, check the vectors, and return the result."""
    result = eigsh(K, k, M=M, which=which, rng=0, return_info=True, **options)
    values = scipy.linalg.eigh(K.toarray(), M.toarray(), eigvals_only=True)
    low, high = values[: k // 2], values[len(values) - (k - k // 2) :]
    right = {"SA": values[:k], "LA": values[-k:], "BE": np.concatenate([low, high])}[which]
    w, X = result.eigenvalues, result.eigenvectors
    np.testing.assert_allclose(w, right, rtol=rtol, atol=1e-12 * np.abs(values).max())
    assert np.abs(X.conj().T @ (M @ X) - np.eye(k)).max() < 1e-10
    R = K @ X - (M @ X) * w
    scale = np.linalg.norm(X, axis=0) * (abs(K).sum(axis=0).max() + np.abs(w) * abs(M).sum(axis=0).max())
    assert (np.linalg.norm(R, axis=0) < 1e-13 * scale).all()
    assert result.converged.all()
    return result


@pytest.mark.parametrize("density", [{}, {"low": 1e-6, "high": 1.0}], ids=["even", "graded"])
@pytest.mark.parametrize("which", ["SA", "BE"])
def test_the_low_end_of_a_stiffness_matrix_takes_few_solves(which: str, density: dict[str, float]) -> None:
    result = check(*membrane(**density), 7, which)
    assert "shift-invert" in result.info["method"]
    assert "dense" not in result.info["method"]
    assert result.info["operator_columns"] < FEW_COLUMNS
    assert "proved" in result.info["verification"]


@pytest.mark.parametrize("which", ["SA", "LA", "BE"])
def test_every_copy_of_a_doubled_pair_is_found_without_dense_lapack(which: str) -> None:
    result = check(*doubled(*membrane(14, 16)), 8, which)
    assert "dense" not in result.info["method"]


def test_values_below_zero_are_found_behind_a_positive_diagonal() -> None:
    K, M = membrane()
    negative = sp.csr_array(K - 2.0 * M)  # its diagonal is positive, some of its values are not
    assert (negative.diagonal() > 0).all()
    result = check(negative, M, 5, "SA")
    assert result.eigenvalues.min() < 0
    check(negative, M, 5, "BE")


def test_a_low_end_far_above_zero_is_found() -> None:
    K, M = membrane()
    check(sp.csr_array(K + 1e5 * M), M, 5, "SA")


def test_both_ends_share_the_copies_of_a_value_between_them() -> None:
    M = sp.diags_array(np.linspace(1, 2, 400), format="csr")
    values = np.ones(400)
    values[:3] = 2.0
    K = sp.diags_array(values * M.diagonal(), format="csr")
    check(K, M, 10, "BE")
