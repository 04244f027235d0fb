"""Dense LAPACK: selected eigenpairs, and where they are taken instead of an iteration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

from blockvec.models import model
from tests.pairwise import pairwise
from tests.solvers.answers import answered, eigenvalues

N = 160


def matrices() -> dict[str, Any]:
    """Make Hermitian matrices of N rows: with and without copies, gaps, and zeros."""
    rng = np.random.default_rng(5)
    Z = rng.standard_normal((N, N))
    Q = np.linalg.qr(Z)[0]
    wilkinson = np.diag(np.abs(np.arange(21) - 10.0)) + np.eye(21, k=1) + np.eye(21, k=-1)
    glued = np.kron(np.eye(N // 21 + 1), wilkinson)[:N, :N] + 1e-8 * (np.eye(N, k=1) + np.eye(N, k=-1))
    return {
        "random": Z + Z.T,
        "complex": Z + Z.T + 1j * (Z - Z.T),
        "single": (Z + Z.T).astype(np.float32),
        "low rank": Z[:, :9] @ Z[:, :9].T + 1e-3 * np.eye(N),
        "three values": (Q * np.repeat([1.0, 2.0, 3.0], N // 3 + 1)[:N]) @ Q.T,
        "blocks": np.kron(np.eye(N // 10), np.ones((10, 10))),
        "glued": glued,
        "graded": (Q * 10.0 ** -np.linspace(0, 20, N)) @ Q.T,
        "identity": np.eye(N),
        "zero": np.zeros((N, N)),
    }


@pytest.mark.parametrize(
    ("name", "request_", "k"),
    pairwise(matrices(), ["LA", "SA", "LM", "BE", "inside"], [1, 8, N // 10, N // 2]),
)
def test_selected_pairs_are_those_of_all(name: str, request_: str, k: int) -> None:
    A = matrices()[name]
    asked = (
        {"sigma": float(np.median(eigenvalues(A))) + 1e-3} if request_ == "inside" else {"which": request_}
    )
    result = answered(A, k, method="dense", atol=1e-13, loss=1e-12, **asked)
    assert result.eigenvectors.flags.c_contiguous
    assert result.eigenvectors.dtype == A.dtype
    assert np.isclose(result.info["norm"], abs(eigenvalues(A)).max(), rtol=0.1)


@pytest.mark.parametrize("rows", [14, 50])
def test_functions_of_up_to_3000_rows_are_solved_densely_inside_their_spectra(rows: int) -> None:
    A = model(f"laplace2d:n={rows}") if rows < 50 else model("laplace2d:nx=50,ny=40")
    assert answered(A, 4, apply_to=aslinearoperator(A), sigma=3.1).info["method"] == "dense"


@pytest.mark.parametrize("seed", [1007, 5076])
def test_a_look_for_values_at_a_shift_that_costs_too_much_leaves_all_pairs_to_lapack(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, contrast = int(rng.choice([400, 600, 800])), 10 ** rng.uniform(4, 8)
    D = sp.diags_array([1.0, -2.0, 1.0], offsets=[-1, 0, 1], shape=(n, n)).tocsr()
    A = sp.csr_array(D.T @ sp.diags_array(10 ** rng.uniform(0, np.log10(contrast), n)) @ D)
    shift = rng.uniform(0, 1) * abs(A).sum(axis=1).max() * 10 ** rng.uniform(-5, -1)
    A, k = sp.csr_array(A + shift * sp.eye_array(n)), int(rng.choice([8, 12, 20, 30]))
    answered(A, k, which="SA", rng=seed)  # a beam, whose lowest values are a millionth apart
