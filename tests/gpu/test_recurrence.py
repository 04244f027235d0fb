"""Recurrences of small matrices on a GPU: recorded groups of steps, and the coefficients of Lanczos."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import BlockVector, Recorder, as_operator, models
from solvers.iterations.spectrum import Recurrences
from tests.contract.blocks import DTYPES, exact_values, host

pytestmark = pytest.mark.gpu


def hermitian(n: int, dtype: str, rng: np.random.Generator) -> Any:
    """Form a matrix of small integers with rows of very different lengths."""
    A = sp.random_array((n, n), density=4 / n, rng=rng).tocsr()
    A.data = exact_values(rng, A.data.shape, dtype)
    A = A.tolil()
    A[n // 2, : min(n, 60)] = 1
    return sp.csr_array(A + A.conj().T)


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("width", [1, 4])
def test_recorded_groups_of_lanczos_steps_are_those_of_single_steps(width: int, locked: bool) -> None:
    A = as_operator(models.model("laplace2d:n=40"), device="gpu")
    V = BlockVector.random(1600, width, device="gpu", rng=0)
    Q = BlockVector(np.linalg.qr(np.random.default_rng(0).standard_normal((1600, 16)))[0]).to_device("gpu")
    found = []
    for recorder in (None, Recorder("gpu")):
        run = Recurrences(A, V.copy(), (Q if locked else None,), recorder)
        run.extend(48)
        found.append(np.concatenate(run.coefficients()))
    assert np.array_equal(*found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 2, 4])
def test_coefficients_are_those_of_lanczos(dtype: str, width: int) -> None:
    matrix = hermitian(20_000, dtype, np.random.default_rng(0))
    A = as_operator(matrix, device="gpu")
    V = BlockVector.random(20_000, width, dtype, device="gpu", rng=1)
    v = host(V).astype(np.result_type(dtype, float))
    take = A.lanczos_recurrence(V)
    assert take is not None
    log = np.concatenate([host(take(steps)) for steps in (3, 4, 1)])
    v /= np.linalg.norm(v, axis=0)
    before, beta = np.zeros_like(v), np.zeros(width)
    limit = 500 * np.finfo(dtype).eps * abs(matrix).sum(axis=0).max()
    for alpha_found, beta_found in zip(log[::2], log[1::2], strict=True):
        w = matrix @ v - beta * before
        alpha = (v.conj() * w).sum(axis=0).real
        w -= alpha * v
        beta = np.linalg.norm(w, axis=0)
        assert np.abs(alpha - alpha_found).max() < limit
        assert np.abs(beta - beta_found).max() < limit
        v, before = w / beta, v
