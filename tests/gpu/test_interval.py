"""All eigenpairs of an interval on a GPU: by slices with cuDSS or dense factors, and without factors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import as_operator, count_eigenvalues
from blockvec.models import model, spectra
from solvers import EigenResult, eigsh

pytestmark = pytest.mark.gpu


def grid(n: int, dtype: Any = float) -> tuple[Any, np.ndarray]:
    """Return the Laplacian of a square, and its eigenvalues, many of them double."""
    return model(f"laplace2d:nx={n},ny={n}").astype(dtype), spectra.laplace_eigenvalues([n, n])


def check(result: EigenResult, A: Any, exact: np.ndarray, M: Any = None, digits: float = 1e-13) -> None:
    """Check values, residuals and orthonormality on the host."""
    assert type(result.eigenvectors).__module__.startswith("cupy")
    w, X = result.eigenvalues.get(), result.eigenvectors.get()
    assert len(w) == len(exact)
    assert result.converged.all()
    assert result.info["missing"] == 0
    np.testing.assert_allclose(w, exact, rtol=0, atol=8 * digits)
    MX = X if M is None else M @ X
    assert np.abs(X.conj().T @ MX - np.eye(len(w))).max() < 10 * digits
    assert (np.linalg.norm(A @ X - MX * w, axis=0) <= np.maximum(2 * result.limits, 8 * digits)).all()


@pytest.mark.parametrize("n", [40, 160])
@pytest.mark.parametrize("ends", [(1.0, 1.05), (-math.inf, 0.05), (4.0, 4.0)])
def test_every_copy_is_found_on_the_device(n: int, ends: tuple[float, float]) -> None:
    A, values = grid(n)
    inside = values[(values >= ends[0] - 1e-12) & (values <= ends[1] + 1e-12)]
    result = eigsh(A, interval=ends, device="gpu", rng=0, return_info=True)
    check(result, A, inside)
    assert result.info["verification"].startswith(("proved by inertia", "not needed: dense"))
    assert int(count_eigenvalues(A, *ends, device="gpu")) == len(inside)


@pytest.mark.parametrize(("dtype", "digits"), [("float32", 1e-5), ("complex128", 1e-13)])
def test_types_and_matrices_of_the_device(dtype: str, digits: float) -> None:
    A, values = grid(160, dtype)
    from cupyx.scipy.sparse import csr_matrix

    result = eigsh(csr_matrix(sp.csr_matrix(A)), interval=(1.0, 1.04), rng=0, return_info=True)
    check(result, A, values[(values >= 1.0) & (values <= 1.04)], digits=digits)
    assert result.eigenvectors.dtype == dtype


def test_pairs_with_a_mass_matrix_agree_with_the_host() -> None:
    A, _ = grid(160)
    M = sp.diags_array(np.linspace(1.0, 3.0, 25600)).tocsr()
    host = eigsh(A, M=M, interval=(0.1, 0.12), rng=0, return_info=True)
    check(eigsh(A, M=M, interval=(0.1, 0.12), device="gpu", rng=0, return_info=True), A, host.eigenvalues, M)


@pytest.mark.parametrize("ends", [(1.0, 1.02), (-math.inf, 0.1)])
def test_without_a_factorisation_the_count_is_an_estimate(ends: tuple[float, float]) -> None:
    A, values = grid(80)
    inside = values[(values >= ends[0]) & (values <= ends[1])]
    result = eigsh(as_operator(A, device="gpu"), interval=ends, method="filter", rng=0, return_info=True)
    check(result, A, inside, digits=1e-12)
    count = count_eigenvalues(as_operator(A, device="gpu"), *ends, rng=0)
    for value, error in ((count.value, count.error), (result.info["counted"], result.info["count_error"])):
        assert error is not None
        assert value is not None
        assert error > 0
        assert abs(value - len(inside)) <= 4 * error + 0.5


def test_a_long_chain_is_factorised_with_or_without_cudss() -> None:
    A = model("laplace1d:n=60000") + sp.diags_array(np.random.default_rng(0).random(60000))
    result = eigsh(sp.csr_array(A), 6, sigma=2.1, device="gpu", rng=0, return_info=True)
    assert type(result.eigenvectors).__module__.startswith("cupy")
    assert result.info["operator_columns"] < 150
    exact = eigsh(sp.csr_array(A), 6, sigma=2.1, rng=1)[0]
    np.testing.assert_allclose(result.eigenvalues.get(), exact, rtol=0, atol=1e-13)
