"""Descriptions of operations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from blockvec.kernels.problem import TsmmProblem, TsmttsmProblem, real_view


@pytest.mark.parametrize(("real", "complex_"), [("float32", "complex64"), ("float64", "complex128")])
def test_a_real_block_times_complex_numbers_is_a_real_product(real: str, complex_: str) -> None:
    rng = np.random.default_rng(1)
    A = rng.integers(-1, 2, (50, 3)).astype(real)
    B = np.zeros((50, 6), complex_)[:, :4]
    B.real, B.imag = rng.integers(-1, 2, (2, 50, 4))
    mixed = TsmttsmProblem(50, 3, 4, real, complex_, 3, 6, beta="one")
    view = real_view(mixed)
    assert view == replace(mixed, N=8, ldb=12, dtype_b=real)
    strides = (view.ldb * A.itemsize, A.itemsize)
    same_memory = np.lib.stride_tricks.as_strided(B.view(real), (view.K, view.N), strides)
    np.testing.assert_array_equal((A.T @ same_memory).view(complex_), A.T @ B)

    C = B[:3].copy()
    product = TsmmProblem(50, 3, 4, real, complex_, 3, 5)
    assert real_view(product) == replace(product, N=8, ldb=10, dtype_c=real)
    np.testing.assert_array_equal((A @ C.view(real)).view(complex_), A @ C)


@pytest.mark.parametrize(
    "problem",
    [
        TsmttsmProblem(50, 3, 4, "complex64", "float32", 3, 4, conj=True),
        TsmttsmProblem(50, 3, 4, "float32", "complex128", 3, 4),
        TsmttsmProblem(50, 3, 4, "float64", "float64", 3, 4),
        TsmttsmProblem(50, 3, 4, "float64", "complex128", 3, 4, alpha="general"),
        TsmmProblem(50, 3, 4, "float64", "complex128", 3, 4, beta="general"),
        TsmmProblem(50, 3, 4, "complex128", "float64", 3, 4),
    ],
    ids=str,
)
def test_other_products_stay_as_they_are(problem: TsmttsmProblem | TsmmProblem) -> None:
    assert real_view(problem) is problem
