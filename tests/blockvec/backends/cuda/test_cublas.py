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


def test_a_basis_times_a_narrow_block_has_rules_of_its_own() -> None:
    def dot(M: int, N: int, dtype: str) -> TsmttsmProblem:
        return TsmttsmProblem(10**6, M, N, dtype, dtype, M, N)

    faster = {(M, N, dtype) for M, N, dtype in BASES if cublas.is_faster(dot(M, N, dtype))}
    assert faster == {(16, 512, "complex128"), (512, 17, "float64"), (512, 17, "complex128")}
    split = {(M, N, dtype) for M, N, dtype in BASES if cublas.prefers_split(dot(M, N, dtype))}
    assert split == {(128, 4, "float64"), (128, 1, "complex128")}
    assert not cublas.is_faster(dot(64, 17, "complex128"))
    assert cublas.is_faster(TsmmProblem(10**6, 128, 1, "float64", "float64", 128, 1))
    assert not cublas.is_faster(TsmmProblem(10**6, 128, 1, "complex128", "complex128", 128, 1))
    assert not cublas.is_faster(TsmmProblem(10**6, 128, 2, "float64", "float64", 128, 2))


BASES = [
    (M, N, dtype)
    for M, N in ((128, 1), (128, 4), (16, 512), (512, 17))
    for dtype in ("float64", "complex128")
]


def test_one_complex_column_of_many_rows_is_never_one_call() -> None:
    def refusal(K: int, M: int, N: int, dtype: str) -> str:
        return cublas.one_call_refusal(TsmttsmProblem(K, M, N, dtype, dtype, M, N))

    assert refusal(1 << 24, 1, 1, "complex128")
    assert refusal(1 << 24, 128, 1, "complex64")
    assert not refusal(1 << 12, 1, 1, "complex128")
    assert not refusal(1 << 24, 2, 2, "complex128")
    assert not refusal(1 << 24, 128, 1, "float64")
