"""The list of kernel families and the order in which they are preferred."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockvec.kernels.device import H200
from blockvec.kernels.families import FAMILIES, families_of
from blockvec.kernels.problem import Problem, StreamProblem, SweepProblem, TsmmProblem, TsmttsmProblem


def dot(width: int, dtype: str) -> TsmttsmProblem:
    return TsmttsmProblem(10**6, width, width, dtype, dtype, width, width)


def combination(width: int, dtype: str) -> TsmmProblem:
    return TsmmProblem(10**6, width, width, dtype, dtype, width, width)


def preferred(problem: Problem) -> str:
    """The first family that takes a problem."""
    return next(f.name for f in families_of(problem) if f.supports(problem, H200) is None)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_double_precision_prefers_tensor_cores(dtype: str) -> None:
    for width in (1, 64):
        limited_by_products = dtype == "complex128" and width == 64
        assert preferred(dot(width, dtype)) == ("tsmttsm_3m" if limited_by_products else "tsmttsm_mma")
        combine = TsmmProblem(10**6, width, width, dtype, dtype, width, width)
        assert preferred(combine) == ("tsmm_3m" if limited_by_products else "tsmm_mma")


def test_wide_complex_products_that_three_real_ones_cannot_compute_take_four() -> None:
    for changes in ({"beta": "one"}, {"lda": 80}, {"M": 40, "lda": 40}):
        wide = TsmmProblem(10**6, 64, 64, "complex128", "complex128", 64, 64)
        assert preferred(replace(wide, **changes)) == "tsmm_mma"  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_single_precision_prefers_them_where_products_are_wide(dtype: str) -> None:
    assert preferred(dot(8, dtype)) == "tsmttsm_fma"
    assert preferred(dot(24, dtype)) == "tsmttsm_mma"
    assert preferred(combination(22, dtype)) == "tsmm_fma"
    assert preferred(combination(31, dtype)) == "tsmm_mma"


def test_single_precision_prefers_multiply_adds_where_tensor_cores_pad_widths() -> None:
    for width, family in ((16, "tsmttsm_mma"), (17, "tsmttsm_fma"), (24, "tsmttsm_mma"), (25, "tsmttsm_fma")):
        assert preferred(dot(width, "complex64")) == family
        assert preferred(dot(width, "float32")) == "tsmttsm_mma"  # which takes no longer than memory
    assert preferred(combination(24, "complex64")) == "tsmm_mma"
    assert preferred(combination(25, "float32")) == "tsmm_fma"


def test_single_precision_prefers_tensor_cores_for_combinations_of_views() -> None:
    wide = combination(16, "float32")
    assert preferred(replace(wide, lda=24)) == preferred(replace(wide, ldb=24)) == "tsmm_mma"


def test_the_order_of_the_families_takes_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    for family in FAMILIES.values():
        monkeypatch.setattr(type(family), "choose", None)
    assert preferred(dot(23, "complex64")) == "tsmttsm_mma"
    assert preferred(combination(23, "complex64")) == "tsmm_mma"


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_basis_times_coefficients_is_swept(dtype: str) -> None:
    for M, N in ((96, 4), (16, 512)):
        families = families_of(TsmttsmProblem(10**6, M, N, dtype, dtype, M, N))
        assert [f.name for f in families] == ["tsmttsm_mma", "tsmttsm_3m", "tsmttsm_sweep", "tsmttsm_fma"]
    assert preferred(TsmmProblem(10**6, 96, 4, dtype, dtype, 96, 4)) == "tsmm_sweep"
    sweep = SweepProblem("update_gram", 10**6, 8, 4, dtype, dtype, dtype, 8, 4)
    assert [f.name for f in families_of(sweep)] == ["sweep_mma"]


def test_passes_over_a_block_have_no_families() -> None:
    assert families_of(StreamProblem("axpby", 1000, 4, "float32", 2, 1)) == []


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(("M", "N"), [(0, 3), (3, 0), (0, 0)])
def test_products_without_columns_have_an_order_of_families(M: int, N: int, dtype: str) -> None:
    assert families_of(TsmttsmProblem(50, M, N, dtype, dtype, M, N))
    assert families_of(TsmmProblem(50, M, N, dtype, dtype, M, N))
