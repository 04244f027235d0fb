"""Factorisations on every device: residuals, inertia, shifts on one analysis, and broken solves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import BlockVector, Factorization, factorize, models
from blockvec.errors import BreakdownError


def matrix(dtype: str, n: int = 12) -> Any:
    """Return a two-dimensional Laplacian, for complex types with complex edges."""
    A = models.model(f"laplace2d:nx={n},ny={n + 1}")
    if np.dtype(dtype).kind == "c":
        edges = sp.triu(A, 1) * np.exp(0.3j)
        A = sp.csr_array(edges + edges.conj().T + sp.diags_array(A.diagonal()))
    return sp.csr_array(A.astype(dtype))


def mass(n: int) -> Any:
    """Return a positive definite matrix of another pattern."""
    return sp.diags_array([1.0, np.linspace(3, 4, n), 1.0], offsets=[-3, 0, 3], shape=(n, n), format="csr")


def block(rows: int, columns: int, dtype: str, device: str) -> BlockVector:
    return BlockVector.random(rows, columns, dtype, device=device, rng=0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("columns", [1, 3, 8])
def test_solutions_have_residuals_of_rounding_size(dtype: str, columns: int, device: str) -> None:
    A = matrix(dtype)
    F = factorize(A, sigma=2.3, device=device)
    B = block(A.shape[0], columns, dtype, device)
    X, right = F.solve(B).to_host().array, B.to_host().array
    S = A.toarray() - 2.3 * np.eye(len(X))
    rounding = np.finfo(dtype).eps / 2 * (np.linalg.norm(S, 2) * np.linalg.norm(X) + np.linalg.norm(right))
    assert X.dtype == dtype
    assert np.linalg.norm(S @ X - right) <= 32 * rounding
    assert F.nbytes > 0
    assert F.growth >= 0.5


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("with_mass", [False, True])
def test_inertia_counts_the_eigenvalues_below_each_shift(dtype: str, with_mass: bool, device: str) -> None:
    A = matrix(dtype)
    n = A.shape[0]
    M = mass(n) if with_mass else None
    dense = np.eye(n) if M is None else M.toarray()
    L = np.linalg.inv(np.linalg.cholesky(dense))
    values = np.linalg.eigvalsh(L @ A.toarray() @ L.conj().T)
    F = Factorization(A, M, device=device)
    for i in (0, 10, n // 2, n - 2):
        shift = float(values[i] + values[i + 1]) / 2
        F.refactorize(shift)
        count = int(np.count_nonzero(values < shift))
        assert F.inertia in (count, None)
        assert F.inertia == count or abs(values[i + 1] - values[i]) < 1e-6 or i == n // 2


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_nearly_full_matrices_are_factorised_and_counted(dtype: str, device: str) -> None:
    rng = np.random.default_rng(1)
    G = rng.standard_normal((60, 60)) + (1j * rng.standard_normal((60, 60)) if "complex" in dtype else 0)
    A = ((G + G.conj().T) * (rng.random((60, 60)) < 0.9)).astype(dtype)
    A = np.tril(A) + np.tril(A, -1).conj().T
    F = factorize(A, device=device)
    for shift in (0.0, 2.5, -30.0, 30.0):
        F.refactorize(shift)
        values = np.linalg.eigvalsh(A.astype(np.promote_types(dtype, float)))
        assert F.inertia == np.count_nonzero(values < shift)
        assert not F.is_singular
        B = block(60, 5, dtype, device)
        X = F.solve(B).to_host().array
        residual = np.linalg.norm(A @ X - X.real.dtype.type(shift) * X - B.to_host().array)
        assert residual <= 32 * np.finfo(dtype).eps * (np.linalg.norm(A) + abs(shift)) * np.linalg.norm(X)
    F = factorize(np.ones((40, 40), dtype), device=device)
    assert F.is_singular


@pytest.mark.parametrize("columns", [1, 4, 9])
def test_dense_matrices_may_leave_few_entries(columns: int, device: str) -> None:
    n = 60
    A = np.random.default_rng(0).standard_normal((n, n))
    A, D = A + A.T, np.diag(np.arange(1.0, n + 1))
    F = factorize(A, A - D, 1.0, device=device)
    B = block(n, columns, "float64", device)
    expected = B.to_host().array / np.arange(1.0, n + 1)[:, None]
    np.testing.assert_allclose(F.solve(B).to_host().array, expected, rtol=1e-13)
    assert F.inertia == 0


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_dense_array_may_be_modified_afterwards(order: Any, device: str) -> None:
    rng = np.random.default_rng(0)
    A, M = rng.standard_normal((50, 50)), rng.standard_normal((50, 50))
    A, M = np.asarray(A + A.T, order=order), np.asarray(M @ M.T + np.eye(50), order=order)
    S = [A - sigma * M for sigma in (0.0, 0.5)]
    F = factorize(A, M, 0.0, device=device)
    A[:] = M[:] = np.eye(50)
    B = block(50, 2, "float64", device)
    X = F.solve(B).to_host().array
    np.testing.assert_allclose(X, np.linalg.solve(S[0], B.to_host().array), rtol=1e-9)
    F.refactorize(0.5)
    X = F.solve(B).to_host().array
    np.testing.assert_allclose(X, np.linalg.solve(S[1], B.to_host().array), rtol=1e-9)


def test_a_solution_may_replace_its_right_hand_side(device: str) -> None:
    A = matrix("float64")
    F = factorize(A, sigma=-1.0, device=device)
    wide = block(A.shape[0], 5, "float64", device)
    B = wide[:, 1:4]
    expected = F.solve(B).to_host().array
    kept = wide.to_host().array
    F.solve(B, out=B)
    assert np.array_equal(B.to_host().array, expected)
    assert np.array_equal(wide.to_host().array[:, [0, 4]], kept[:, [0, 4]])


def test_solves_repeat_bit_for_bit(device: str) -> None:
    A = matrix("float64", 40)
    solutions = []
    for _ in range(2):
        F = factorize(A, sigma=2.3, device=device)
        B = block(A.shape[0], 8, "float64", device)
        solutions += [F.solve(B).to_host().array for _ in range(2)]
    assert all(np.array_equal(solutions[0], X) for X in solutions)


def test_a_shift_at_an_eigenvalue_is_singular_and_the_next_is_not(device: str) -> None:
    A = sp.diags_array(np.arange(1.0, 41.0), format="csr")
    F = factorize(A, sigma=7.0, device=device)
    assert F.is_singular
    F.refactorize(7.5)
    assert not F.is_singular
    assert F.inertia == 7


class Broken:
    """Factors whose solves are wrong a number of times."""

    def __init__(self, factors: Any, wrong: Any, times: int) -> None:
        self.factors, self.wrong, self.times = factors, wrong, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self.factors, name)

    def solve(self, B: Any) -> Any:
        X = self.factors.solve(B)
        if self.times:
            self.times -= 1
            X = X * self.wrong
        return X


def test_factors_that_only_count_are_replaced_before_solves(device: str) -> None:
    pairs = np.kron(np.eye(30), [[0.0, 1.0], [1.0, 0.0]])
    A = sp.csr_array(pairs + 0.1 * np.eye(60, k=2) + 0.1 * np.eye(60, k=-2))
    F = Factorization(A, device=device)
    F.refactorize(0.0, only_counts=True)
    assert F.inertia in (30, None)
    F.refactorize(0.0)
    assert F.sigma == 0
    B = block(60, 2, "float64", device)
    assert np.allclose(A @ F.solve(B).to_host().array, B.to_host().array)


@pytest.mark.parametrize("wrong", [1 + 1e-6, 0.0, 1.9, np.nan, np.inf])
def test_a_wrong_solve_is_mended_or_refused(wrong: float, device: str) -> None:
    A = matrix("float64")
    F = factorize(A, sigma=2.3, device=device)
    B = block(A.shape[0], 3, "float64", device)
    expected = F.solve(B).to_host().array
    factors: Any = F._factors
    F._factors = Broken(factors, wrong, 1)
    with np.errstate(all="ignore"):
        mended = F.solve(B).to_host().array
    assert np.allclose(mended, expected, atol=1e-12 * abs(expected).max())
    if wrong != 1 + 1e-6:  # which converges
        F._factors = Broken(factors, wrong, 100)
        with np.errstate(all="ignore"), pytest.raises(BreakdownError, match="relative residual is"):
            F.solve(B)


def test_solves_are_refined_as_far_as_their_tolerance_asks(device: str) -> None:
    A = models.model("laplace3d:n=12")  # inside the spectrum, pivots on the diagonal cost four digits
    F = factorize(A, sigma=6.0003, device=device)
    B = block(A.shape[0], 3, "float64", device)
    norm = float(abs(A).sum(axis=0).max())
    residuals, solves = [], []
    factors: Any = F._factors
    for tolerance in (0.0, 1e-7 * norm):
        counted = Broken(factors, 1.0, 100)
        F._factors = counted
        X = F.solve(B, tolerance=tolerance).to_host().array
        R = A @ X - 6.0003 * X - B.to_host().array
        residuals.append(float((np.linalg.norm(R, axis=0) / np.linalg.norm(X, axis=0)).max()) / norm)
        solves.append(100 - counted.times)
    assert residuals[0] <= 32 * np.finfo(float).eps
    assert residuals[1] <= 1e-7
    assert solves[1] == 1 or device != "cpu"
    assert solves[1] <= solves[0]


def test_columns_are_solved_for_as_blocks_are() -> None:
    A = matrix("complex128")
    F = factorize(A, sigma=2.3)
    B = block(A.shape[0], 3, "complex128", "cpu")
    X = F.solve_columns(np.asfortranarray(B.array))
    assert X.flags.f_contiguous
    assert np.array_equal(X, F.solve(B).array)
    assert F.solve_columns(np.empty((A.shape[0], 0), complex, order="F")).shape == (A.shape[0], 0)
