"""Copies of values far outside a bulk, with the limits of single precision: bases stay orthonormal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from solvers import eigsh
from solvers.iterations.rayleigh_ritz import oblique, ritz_pairs
from tests.matrices import with_values

COPIES = 3


def with_copies(n: int, dtype: Any, seed: int) -> tuple[Any, Any]:
    """Return a dense matrix with values in (0, 1), -1 and 2 three times each, and these values."""
    rng = np.random.default_rng(seed)
    values = np.r_[[-1.0] * COPIES, [2.0] * COPIES, rng.uniform(0, 1, n - 2 * COPIES)]
    return with_values(values, rng, dtype), np.sort(values)


@pytest.mark.parametrize(
    ("n", "dtype", "tol", "seed"),
    [
        (400, np.float32, 0, 4),
        (400, np.float32, 1e-5, 10),
        (400, np.complex64, 0, 8),
        (600, np.float32, 0, 2),
        (600, np.complex64, 1e-5, 5),
        (600, np.complex64, 0, 7),
    ],
)
def test_copies_outside_a_bulk_neither_hide_values_nor_enlarge_the_norm(
    n: int, dtype: Any, tol: float, seed: int
) -> None:
    A, values = with_copies(n, dtype, seed)
    options: Any = {"convergence": "norm", "method": "lanczos", "return_info": True}
    result = eigsh(A, 6, which="SA", tol=tol, rng=seed, **options)
    assert np.abs(result.eigenvalues - values[:6]).max() <= 1e-4
    assert abs(result.info["norm"] - 2) <= 1e-4
    assert (result.residuals <= result.limits).all()


def test_copies_in_an_oblique_basis_have_a_coupling_that_is_reported() -> None:
    rng, n, loss = np.random.default_rng(0), 30, 1e-10
    Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    values = np.arange(1.0, n + 1)
    values[1] = values[0] + 1e-13  # no correction of first order tells it from the first one
    K = rng.standard_normal((n, n))
    T = (Q * values) @ Q.T + loss * (K - K.T)
    theta, Y = ritz_pairs(T)
    corrected, coupling = oblique(T, theta, Y)
    left = np.abs(T @ corrected - corrected * theta).max()
    assert 1e-11 <= left <= coupling <= 100 * loss
