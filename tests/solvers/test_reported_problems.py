"""Matrices for which other libraries' `eigsh` was reported to be wrong; docs/guide/reported.md lists them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from tests.solvers.answers import answered

NORMAL = np.random.default_rng(0).standard_normal


def low_rank() -> Any:
    """Make a matrix of rank 2 with 5 rows (CuPy 5001)."""
    w, V = np.linalg.eigh((B := NORMAL((5, 5))) @ B.T)
    return V[:, -2:] * w[-2:] @ V[:, -2:].T


def lattice() -> Any:
    """Make the 2-D Laplacian, each of whose values off the diagonal of the grid is double (CuPy 5024)."""
    T, one = sp.diags_array([1.0, -2.0, 1.0], offsets=[-1, 0, 1], shape=(30, 30)), sp.eye_array(30)
    return sp.csr_array(sp.kron(T, one) + sp.kron(one, T))


def spins_on_a_chain() -> Any:
    """Make a complex Hamiltonian of two spins per site, in single precision (CuPy 5602, 7355)."""
    hops = sp.diags_array([0.5, 0.5], offsets=[-1, 1], shape=(160, 160))
    fields = sp.diags_array(np.cos(np.arange(160)))
    x, y, z = (sp.coo_array(s) for s in ([[0, 1], [1, 0]], [[0, -1j], [1j, 0]], [[1, 0], [0, -1]]))
    H = sum(
        sp.kron(a, sp.kron(b, c)) for a, b, c in ((hops, z, x), (fields, y, z), (sp.eye_array(160), x, y))
    )
    return sp.csr_array(H).astype(np.complex64)


def gram_matrix() -> Any:
    """Make W W^T of a wide random matrix (CuPy 6769)."""
    W = np.eye(100)[:50] + NORMAL((50, 100))
    return W @ W.T


def graph_of_low_rank() -> Any:
    """Make the adjacency matrix of a graph with 12 hubs, most of whose eigenvalues are zero (CuPy 8486)."""
    hubs = sp.random_array((588, 12), density=0.4, rng=np.random.default_rng(1), dtype=np.float32)
    return sp.csr_array(sp.block_array([[None, hubs], [hubs.T, None]]))


def two_components() -> Any:
    """Make the normalised matrix of two equal graphs: the leading value is double (SciPy 13571)."""
    graph = sp.random_array((300, 300), density=0.03, rng=np.random.default_rng(2))
    graph = sp.csr_array(graph + graph.T + 0.01 * sp.eye_array(300))
    scale = sp.diags_array(graph.sum(axis=1) ** -0.5)
    return sp.csr_array(sp.kron(sp.eye_array(2), scale @ graph @ scale))


def double_hermitian() -> Any:
    """Make a complex Hermitian matrix, all of whose eigenvalues are double (SciPy 18428)."""
    B = NORMAL((100, 100)) + 1j * NORMAL((100, 100))
    return sp.csr_array(sp.kron(B + B.conj().T, sp.eye_array(2)))


THREADS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "CuPy 5001": (low_rank, {"k": 2}),
    "CuPy 5024": (lattice, {"k": 20, "which": "LA"}),
    "CuPy 5602, 7355": (spins_on_a_chain, {"k": 100, "which": "SA"}),
    "CuPy 6446": (lambda: sp.eye_array(100, format="csr"), {"k": 1}),
    "CuPy 6769": (gram_matrix, {"k": 39}),
    "CuPy 7495": (lambda: sp.eye_array(10, format="csr"), {"k": 6}),
    "CuPy 8486": (graph_of_low_rank, {"k": 40}),
    "SciPy 13571": (two_components, {"k": 2}),
    "SciPy 18428": (double_hermitian, {"k": 8, "which": "SA"}),
}


@pytest.mark.parametrize("method", ["auto", "lanczos"])
@pytest.mark.parametrize("thread", THREADS)
def test_the_values_are_right_and_the_vectors_orthonormal(thread: str, method: Any, device: str) -> None:
    make, options = THREADS[thread]
    answered(make(), **options, method=method, device=device, atol=2e-14, loss=2e-14)


def test_the_page_names_every_thread(root: Path) -> None:
    page = (root / "docs/guide/reported.md").read_text()
    numbers = {number for name in THREADS for number in name.replace(",", "").split() if number.isdigit()}
    assert {number for number in numbers if f"/issues/{number}" not in page} == set()
