"""Where cuBLAS is preferred, by rules that need no GPU."""

from __future__ import annotations

from blockvec.backends.cuda import cublas
from blockvec.kernels.problem import TsmmProblem, TsmttsmProblem


def test_cublas_comes_first_where_it_measured_faster() -> None:
    def dot(width: int, dtype: str, same: bool = False) -> TsmttsmProblem:
        return TsmttsmProblem(10**6, width, width, dtype, dtype, width, width, same=same)

    def combine(width: int, dtype_a: str, dtype_c: str) -> TsmmProblem:
        return TsmmProblem(10**6, width, width, dtype_a, dtype_c, width, width)

    assert not cublas.is_faster(dot(16, "float64"))
    assert cublas.is_faster(dot(65, "float64"))
    assert not cublas.is_faster(dot(65, "float64", same=True))
    assert not cublas.is_faster(dot(64, "float32"))
    assert cublas.is_faster(combine(33, "float64", "complex128"))
    assert not cublas.is_faster(combine(32, "float64", "complex128"))
    assert not cublas.is_faster(combine(64, "float32", "complex64"))
    assert not cublas.is_faster(combine(64, "complex128", "complex128"))
