"""TSMM with three real products for a complex one: choices, compilation, and the kernel on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blockvec.kernels.dense.tsmm_3m import Tsmm3mConfig as Config
from blockvec.kernels.device import H200
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.problem import TsmmProblem, itemsize
from blockvec.kernels.roofline import Ceilings
from tests.blocks import UNIT_ROUNDOFF, address, aligned, draw, parts
from tests.emulator.host import HostKernel, every_second, needs_host_compiler

family = FAMILIES["tsmm_3m"]

CEILINGS = Ceilings(4650, 4400, 4240, {"float64": 66e3})
BOTH = pytest.mark.parametrize("dtype", ["complex64", "complex128"])


def problem(M: int, N: int | None = None, dtype: str = "complex128", **changes: object) -> TsmmProblem:
    N = M if N is None else N
    K = (2 << 30) // (max(M, N) * itemsize(dtype))
    plain = TsmmProblem(K=K, M=M, N=N, dtype_a=dtype, dtype_c=dtype, lda=M, ldb=N)
    return replace(plain, **changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype_a": "float64", "dtype_c": "float64"}, "complex"),
        ({"beta": "one"}, "beta must be zero"),
        ({"lda": 50}, "contiguous A"),
        ({"align_b": 8}, "elements of 16 bytes"),
        ({"N": 65, "ldb": 65}, "tsmm_3m takes widths from 1 to 64"),
    ],
)
def test_what_the_family_cannot_run_is_refused_with_a_reason(changes: dict[str, object], reason: str) -> None:
    assert reason in str(family.supports(replace(problem(48), **changes), H200))  # type: ignore[arg-type]


def test_it_needs_the_copies_and_products_of_sm_90() -> None:
    assert "sm_90" in str(family.supports(problem(48), replace(H200, architecture="sm_80")))


@pytest.mark.parametrize(
    ("warps", "reason"), [(6, "multiple of 4"), (12, "registers"), (32, "shared memory")]
)
def test_the_validity_rule_says_what_is_wrong(warps: int, reason: str) -> None:
    assert reason in str(family.refuse(problem(48), Config(warps), H200))


HOST_CASES = [
    (problem(45, 47, K=333), Config(4)),
    (problem(9, 33, K=151, alpha="general"), Config(8)),
    (problem(16, K=1023, ldb=19), Config(4)),
    (problem(11, 10, K=77, inplace=True, ldb=11), Config(4)),
    (problem(20, 30, "complex64", K=330), Config(4)),
    (problem(7, 9, "complex64", K=203, align_b=8, alpha="general"), Config(4)),
    (problem(36, 20, "complex64", K=203, ldb=22), Config(4)),
    (problem(5, K=3), Config(4)),
]


def run(
    p: TsmmProblem, config: Config, operands: tuple[np.ndarray, ...], alpha: complex, folder: Path
) -> None:
    """Run the kernel on the host, on two multiprocessors."""
    A, C, B = operands
    queue = np.zeros(2, "u4")
    kernel = HostKernel(family.source(p, config, H200), folder, readable=[A, B, C], writable=[B], seed=p.K)
    pitches = p.lda * A.itemsize, p.ldb * B.itemsize
    arguments = address(A), address(C), address(B), p.K, *pitches, *parts((alpha, 0)), address(queue)
    kernel((2,), (config.threads,), arguments, family.shared_bytes(p, config, H200))
    assert not queue.any()  # as the next launch needs it


@needs_host_compiler
@pytest.mark.parametrize(("p", "config"), every_second(HOST_CASES), ids=lambda v: str(v)[:60])
def test_the_kernel_run_on_the_host_is_exact_and_writes_nothing_else(
    p: TsmmProblem, config: Config, tmp_path: Path
) -> None:
    assert family.refuse(p, config, H200) is None
    rng = np.random.default_rng(p.K)
    alpha = 1 - 2j if p.alpha == "general" else 1
    values, C = draw(rng, (p.K, p.M), p.dtype), draw(rng, (p.M, p.N), p.dtype)
    A, memory_a = aligned(values, p.lda, p.align_a)
    if p.inplace:
        B, memory_b = A[:, : p.N], memory_a
    else:
        B, memory_b = aligned(np.full((p.K, p.N), np.nan, p.dtype), p.ldb, p.align_b)
    before = memory_a.copy(), memory_b.copy()
    run(p, config, (A, C, B), alpha, tmp_path)
    np.testing.assert_array_equal(B, alpha * (values @ C))
    B[...] = values[:, : p.N] if p.inplace else np.nan
    for memory, copy in zip((memory_a, memory_b), before, strict=True):
        np.testing.assert_array_equal(memory, copy)


@needs_host_compiler
@pytest.mark.parametrize("small", ["real", "imaginary", "columns", "opposite"])
def test_errors_are_bounded_where_parts_differ_in_size(small: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    p, config = problem(45, 17, K=97), Config(4)
    values, C = draw(rng, (p.K, p.M), p.dtype, False), draw(rng, (p.M, p.N), p.dtype, False)
    for host in (values, C):
        if small == "columns":
            host *= 10.0 ** -np.linspace(0, 14, host.shape[1])
        elif small == "opposite":
            host.imag = -host.real * (1 + 1e-12)
        else:
            getattr(host, "real" if small == "real" else "imag")[...] *= 1e-12
    A, B = aligned(values, p.lda, 16)[0], aligned(np.zeros((p.K, p.N), p.dtype), p.ldb, 16)[0]
    run(p, config, (A, C, B), 1, tmp_path)
    error = np.abs(B - values.astype(np.clongdouble) @ C.astype(np.clongdouble))
    bound = 4 * UNIT_ROUNDOFF[p.dtype] * (2 + np.sqrt(family.chain_length(p, config, H200)))
    assert np.all(error <= bound * (np.abs(values) @ np.abs(C)))


@needs_host_compiler
def test_not_a_number_and_infinity_stay_in_their_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    p = problem(6, 9, K=71)
    values, C = draw(rng, (p.K, p.M), p.dtype), draw(rng, (p.M, p.N), p.dtype)
    values[13, 5], values[40, 0] = np.nan, np.inf
    A, B = aligned(values, p.lda, 16)[0], aligned(np.zeros((p.K, p.N), p.dtype), p.ldb, 16)[0]
    run(p, Config(4), (A, C, B), 1, tmp_path)
    clean = np.isfinite(values).all(axis=1)
    np.testing.assert_array_equal(B[clean], values[clean] @ C)
    assert np.isnan(B[13]).all()
    assert not np.isfinite(B[40][np.abs(C[0]) > 0]).any()
