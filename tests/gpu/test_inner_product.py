"""Iterations on a GPU in the inner product of a mass matrix, with a given inverse: no library is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg as sl
import scipy.sparse as sp

from solvers import eigsh

pytestmark = pytest.mark.gpu


def chain(n: int) -> tuple[Any, Any]:
    """Return stiffness and mass of linear elements on a ring, with a spring at each point."""
    turn = sp.csr_array((np.ones(n), (np.arange(n), (np.arange(n) + 1) % n)))
    return 2.01 * sp.eye_array(n) - turn - turn.T, (4 * sp.eye_array(n) + turn + turn.T) / 6


@pytest.mark.parametrize("masses", [5, 40, 900])
def test_rows_without_masses_leave_no_infinite_values(masses: int) -> None:
    n, k = 1200, 4
    A, M = chain(n)
    keep = sp.diags_array((np.arange(n) < masses).astype(float))
    A, M = sp.csr_array(A), sp.csr_array(keep @ M @ keep)
    expected = np.sort(1 / sl.eigh(M.toarray(), A.toarray(), eigvals_only=True)[-k:])
    w, X = values_around_zero(A, M, k)
    assert np.allclose(w, expected, rtol=1e-9)
    assert np.abs(X.T @ (M @ X) - np.eye(k)).max() < 1e-10


@pytest.mark.parametrize("block_size", [1, 2])
def test_copies_on_rows_of_tiny_masses_are_found(block_size: int) -> None:
    """Two rings that are not connected, with the same values: the second one is light."""
    A, M = (sp.csr_array(sp.block_diag([B, 2.0**-40 * B])) for B in chain(600))
    one = sl.eigh(A.toarray()[:600, :600], M.toarray()[:600, :600], eigvals_only=True)
    w, _ = values_around_zero(A, M, 6, block_size=block_size, tol=1e-6)
    assert np.abs(w - np.sort(np.r_[one, one])[:6]).max() < 1e-6


def values_around_zero(A: Any, M: Any, k: int, **options: Any) -> tuple[Any, Any]:
    """Solve on the GPU, with A^-1 as a function."""
    import cupy

    inverse = cupy.asarray(np.linalg.inv(A.toarray()))
    w, X = eigsh(A, k, M=M, sigma=0.0, OPinv=lambda Y: inverse @ Y, device="gpu", rng=0, **options)
    return cupy.asnumpy(w), cupy.asnumpy(X)
