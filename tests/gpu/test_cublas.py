"""Products through cuBLAS in pieces: bounded workspaces, converted chunks and 32-bit sizes change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec.backends.cuda import cublas
from blockvec.operations import products
from tests.contract.blocks import DTYPES, Guarded, Layout, exact_values, host, on

pytestmark = pytest.mark.gpu

PAIRS = [(left, right) for left in DTYPES for right in DTYPES]
LIMITS: list[dict[str, int]] = [
    {"WORKSPACE_BYTES": 1 << 12},
    {"MAX_BATCH": 2},
    {"CHUNK_BYTES": 40000},
    {"MAX_INT": 30000},
    {"WORKSPACE_BYTES": 1, "CHUNK_BYTES": 1000, "MAX_INT": 5000},
]


@pytest.fixture(params=LIMITS, ids=lambda limits: " ".join(limits))
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits so low that a few thousand rows exceed them."""
    for name, value in request.param.items():
        monkeypatch.setattr(cublas, name, value)


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_pieces_of_a_tsmttsm_add_up(left: str, right: str, gpu: Any) -> None:
    rng = np.random.default_rng(1)
    K, M, N = 7001, 5, 3
    X, Y = exact_values(rng, (K, M), left), exact_values(rng, (K, N), right)
    A, B = (Guarded(x, "gpu", Layout(1, 0)).block.array for x in (X, Y))
    C = on("gpu", np.full((M, N), np.nan, np.result_type(left, right)))
    problem = products.tsmttsm_problem(A, B, True)
    cublas.tsmttsm(gpu, problem, A, B, C, 1, 0)
    assert np.array_equal(host(C), X.conj().T.astype(complex) @ Y)


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize(("left", "right"), PAIRS)
@pytest.mark.parametrize("beta", [0, -2])
def test_pieces_of_a_tsmm_cover_every_row(left: str, right: str, beta: Any, gpu: Any) -> None:
    rng = np.random.default_rng(2)
    K, M, N = 7001, 5, 3
    X, Y = exact_values(rng, (K, M), left), exact_values(rng, (M, N), right)
    Z = exact_values(rng, (K, N), np.result_type(left, right))
    A, C = Guarded(X, "gpu", Layout(1, 0)).block.array, on("gpu", Y)
    out = Guarded(Z, "gpu", Layout(0, 2))
    problem = products.tsmm_problem(A, C, out.block.array, 1, beta)
    cublas.tsmm(gpu, problem, A, C, out.block.array, 1, beta)
    assert np.array_equal(host(out.block), X.astype(complex) @ Y + beta * Z)
    assert out.is_untouched_outside()


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("dtype", DTYPES)
def test_pieces_in_place_cover_every_row(dtype: str, gpu: Any) -> None:
    rng = np.random.default_rng(3)
    X, Y = exact_values(rng, (7001, 5), dtype), exact_values(rng, (5, 3), dtype)
    whole = Guarded(X, "gpu", Layout(1, 1))
    A, C = whole.block.array, on("gpu", Y)
    problem = products.tsmm_problem(A, C, A[:, :3], 1, 0)
    assert problem.inplace
    cublas.tsmm(gpu, problem, A, C, A[:, :3], 1, 0)
    assert np.array_equal(host(A), np.hstack([X @ Y, X[:, 3:]]))
    assert whole.is_untouched_outside()
