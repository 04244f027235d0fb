"""Dense matrices of CuPy in `eigsh` have the values of LAPACK; those of few rows are solved on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

from solvers import eigsh
from tests.drawn.judge import wanted

pytestmark = pytest.mark.gpu

HOW: dict[str, dict[str, Any]] = {
    "default": {},
    "low end": {"which": "SA"},
    "both ends": {"which": "BE"},
    "smallest": {"which": "SM"},
    "sigma": {"sigma": 0.4},
    "dense": {"which": "LA", "method": "dense"},
    "lanczos": {"which": "LA", "method": "lanczos"},
}


def hermitian(n: int, dtype: str, seed: int) -> np.ndarray:
    """Draw a Hermitian matrix with eigenvalues in about [-1, 1]."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if dtype == "complex128" else 0)
    return ((A + A.conj().T) / np.sqrt(8 * n)).astype(dtype)


@pytest.mark.parametrize("name", HOW)
@pytest.mark.parametrize(
    ("n", "dtype"), [(2, "float64"), (90, "complex128"), (250, "float32"), (700, "float64")]
)
def test_dense_matrices_have_the_eigenvalues_of_lapack(cp: Any, n: int, dtype: str, name: str) -> None:
    A, how = hermitian(n, dtype, n), HOW[name]
    k = min(4, n - 1)
    w, V = eigsh(cp.asarray(A), k, rng=0, **how)
    assert isinstance(w, cp.ndarray)
    assert isinstance(V, cp.ndarray)
    unit = np.finfo(dtype).eps
    values, X = w.get(), V.get()
    exact = np.linalg.eigvalsh(A.astype(complex))
    chosen = wanted(exact, how.get("which", "LM"), how.get("sigma"), k)
    assert np.allclose(values, exact[chosen], atol=200 * unit)
    assert np.linalg.norm(A @ X - X * values) <= 500 * unit
    assert np.linalg.norm(X.conj().T @ X - np.eye(k)) <= 100 * unit


@pytest.mark.parametrize("n", [60, 400])
def test_a_dense_pair_has_the_eigenvalues_of_lapack(cp: Any, n: int) -> None:
    A, B = hermitian(n, "float64", 1), hermitian(n, "float64", 2)
    M = B @ B + np.eye(n)
    for which in ("LA", "SA"):
        values = eigsh(cp.asarray(A), 3, M=cp.asarray(M), which=which, rng=0)[0].get()
        right = scipy.linalg.eigvalsh(A, M)
        assert np.allclose(values, right[-3:] if which == "LA" else right[:3], atol=1e-12)


def test_few_rows_are_solved_on_the_host(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a dense solve on the GPU")

    monkeypatch.setattr(cp.linalg, "eigh", refuse)
    A = hermitian(200, "float64", 3)
    w, _ = eigsh(cp.asarray(A), 150, which="LA", rng=0)
    assert np.allclose(w.get(), np.linalg.eigvalsh(A)[-150:], atol=1e-13)
