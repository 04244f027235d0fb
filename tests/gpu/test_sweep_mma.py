"""Products of a wide basis and a narrow block on tensor cores, on a GPU; for sweeps see the contract."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec.backends import backend_for
from blockvec.operations import products
from tests.contract.blocks import PLAIN, Guarded, Layout, exact_values, host, on

pytestmark = pytest.mark.gpu

VIEW = Layout(3, 2)  # at an odd offset, with an odd number of columns beside it
ONE, FACTORS = (1, 0), (2, -3)


@pytest.fixture(scope="module")
def backend() -> Any:
    return backend_for("gpu")


def kernel(backend: Any, problem: Any, name: str) -> Any:
    (candidate,) = [c for c in backend.candidates(problem) if c.name == name]
    if "sm_90" in candidate.refusal:
        pytest.skip(candidate.refusal)
    assert not candidate.refusal
    return candidate


@pytest.mark.parametrize(
    ("M", "N", "dtype", "layout", "factors"),
    [
        (130, 8, "float64", PLAIN, ONE),
        (130, 8, "float64", VIEW, FACTORS),
        (96, 5, "complex128", VIEW, FACTORS),
        (512, 16, "complex128", PLAIN, ONE),
        (65, 1, "float64", PLAIN, ONE),
    ],
)
def test_combinations_of_a_basis_are_exact_and_write_nothing_beside_them(
    backend: Any, M: int, N: int, dtype: str, layout: Layout, factors: tuple[int, int]
) -> None:
    rng = np.random.default_rng(N)
    alpha, beta = factors
    for K in (20011, 5):
        X, Y, Z = (exact_values(rng, shape, dtype) for shape in ((K, M), (M, N), (K, N)))
        A, C = Guarded(X, "gpu", layout).block.array, on("gpu", Y)
        out = Guarded(Z if beta else np.full_like(Z, np.nan), "gpu", layout)
        problem = products.tsmm_problem(A, C, out.block.array, alpha, beta)
        kernel(backend, problem, "tsmm_sweep").run(problem, A, C, out.block.array, alpha, beta)
        assert np.array_equal(host(out.block), alpha * (X @ Y) + (beta * Z if beta else 0))
        assert out.is_untouched_outside()


def test_a_basis_is_narrowed_in_place(backend: Any) -> None:
    rng = np.random.default_rng(1)
    X, Y = exact_values(rng, (20011, 128), "float64"), exact_values(rng, (128, 16), "float64")
    whole = Guarded(X, "gpu", PLAIN)
    A, C = whole.block.array, on("gpu", Y)
    problem = products.tsmm_problem(A, C, A[:, :16])
    kernel(backend, problem, "tsmm_sweep").run(problem, A, C, A[:, :16], 1, 0)
    assert np.array_equal(host(A)[:, :16], X @ Y)
    assert np.array_equal(host(A)[:, 16:], X[:, 16:])
    assert whole.is_untouched_outside()
