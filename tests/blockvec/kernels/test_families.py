"""The list of kernel families and the order in which they are preferred."""

from __future__ import annotations

import pytest

from blockvec.kernels.families import families_of
from blockvec.kernels.problem import StreamProblem, TsmmProblem, TsmttsmProblem


def dot(width: int, dtype: str) -> TsmttsmProblem:
    return TsmttsmProblem(10**6, width, width, dtype, dtype, width, width)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_double_precision_prefers_tensor_cores(dtype: str) -> None:
    for width in (1, 64):
        assert families_of(dot(width, dtype))[0] == "tsmttsm_mma"
        assert families_of(TsmmProblem(10**6, width, width, dtype, dtype, width, width))[0] == "tsmm_mma"


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_single_precision_prefers_them_where_products_are_wide(dtype: str) -> None:
    assert families_of(dot(8, dtype))[0] == "tsmttsm_fma"
    assert families_of(dot(24, dtype))[0] == "tsmttsm_mma"
    assert families_of(TsmmProblem(10**6, 32, 32, dtype, dtype, 32, 32))[0] == "tsmm_fma"


def test_passes_over_a_block_have_no_families() -> None:
    assert families_of(StreamProblem("axpby", 1000, 4, "float32", 2, 1)) == ()
