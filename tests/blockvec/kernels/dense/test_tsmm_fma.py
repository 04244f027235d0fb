"""TSMM by multiply-adds, without a GPU: choices, compilation, and the kernel itself run on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blockvec.kernels.dense import tsmm_fma as settings
from blockvec.kernels.dense.tsmm_fma import TsmmFmaConfig as Config
from blockvec.kernels.device import H200
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.launch import run_rows
from blockvec.kernels.problem import TsmmProblem, promote
from tests.blocks import address, asks_for_chunks, bind, describe_tsmm, draw, framed, parts
from tests.blocks import tsmm_problem as problem
from tests.emulator.host import HostKernel, needs_host_compiler

family = FAMILIES["tsmm_fma"]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Config(3, 11, 2), "3 threads a row"),
        (Config(4, 7, 2), "4 threads a row of 7 columns for 31"),
        (Config(1, 32, 2), "1 threads a row of 32"),
        (Config(8, 8, 1), "8 threads a row of 8 columns for 31"),
        (Config(4, 8, 3, count=2), "in sets of 2"),
        (Config(4, 8, 2, kt=32), "32 columns at a time"),
        (Config(4, 8, 2, coefficients="registers"), "unrolled"),
        (Config(4, 8, 2, stages=1), "1 stage"),
        (Config(1, 31, 8), "registers"),
        (Config(4, 8, 4, stages=8), "shared memory"),
        (Config(4, 8, 2, teams=64), "threads on a multiprocessor"),
    ],
)
def test_the_validity_rule_says_what_is_wrong(config: Config, reason: str) -> None:
    assert reason in str(family.refuse(problem(31), config, H200))


def test_a_chain_is_a_row_of_coefficients() -> None:
    for dtype, length in (("float32", 20), ("complex64", 40)):
        p = problem(20, dtype=dtype)
        assert family.chain_length(p, family.choose(p, H200), H200) == length


def test_a_launch_refuses_an_address_that_is_less_aligned_than_described() -> None:
    p = problem(8)
    with pytest.raises(ValueError, match="described as aligned to 16 bytes"):
        bind(family, None, p, family.choose(p, H200), H200)(1 << 20, 1 << 21, (1 << 20) + 8, 1, 0)


def test_chunks_are_dealt_out_to_single_warps_where_memory_decides() -> None:
    staged = family.choose(problem(16), H200)
    assert staged.stages > 0
    assert settings.uses_queue(problem(16), staged)
    assert not settings.uses_queue(problem(16), replace(staged, stages=0))
    for dtype, dealt, by_products in (("float32", 34, 35), ("complex64", 17, 18), ("complex128", 17, 18)):
        assert settings.uses_queue(problem(dealt, dtype=dtype), staged)
        assert not settings.uses_queue(problem(by_products, dtype=dtype), staged)


def test_runs_have_16_kilobytes_of_the_wider_matrix_or_more_of_it_for_8_of_a_narrow_one() -> None:
    rows = {widths: run_rows(problem(*widths)) for widths in ((16, 16), (2, 64), (64, 16), (64, 1), (1, 1))}
    assert rows == {(16, 16): 128, (2, 64): 32, (64, 16): 64, (64, 1): 128, (1, 1): 2048}


# ---- the kernel, thread by thread

BLOCKS = 3


def emulate(
    kernel: HostKernel,
    p: TsmmProblem,
    config: Config,
    operands: tuple[np.ndarray, np.ndarray, np.ndarray],
    factors: tuple[complex, complex],
) -> None:
    A, C, B = operands
    queue = np.zeros(2, "u4")
    arguments = address(A), address(C), address(B), p.K, p.lda, p.ldb, *parts(factors), address(queue)
    kernel((BLOCKS,), (config.threads,), arguments, family.shared_bytes(p, config, H200))
    assert not queue.any()  # as the next launch needs it


PAIRED = {"count": 2}
STAGED = {"stages": 2, "teams": 2}
ASKS = {"asks": True}
# (M, N), dtypes, K, configuration, other properties
HOST_CASES = [
    # a thread a row; pairs of odd rows as vectors; C in registers
    ((4, 4), "float64", 333, Config(1, 4, 2, kt=4, coefficients="registers", **PAIRED, **STAGED), {}),
    ((7, 5), "float64", 333, Config(1, 5, 2, kt=7, **PAIRED, **STAGED), {"alpha": 2, "beta": -3}),
    # chunks beyond those that each warp begins with
    ((7, 5), "float64", 3333, Config(1, 5, 2, kt=7, **PAIRED, **STAGED), ASKS | {"alpha": 2, "beta": -3}),
    ((3, 9), "complex64", 2003, Config(2, 5, 2, kt=3, stages=3, teams=3), ASKS),
    ((40, 3), "float32", 803, Config(4, 1, 1, kt=4, stages=2, teams=2), ASKS),
    ((40, 5), "float32", 1403, Config(4, 2, 1, kt=4, stages=6, teams=2), ASKS),
    # several threads a row
    ((20, 13), "float64", 333, Config(4, 4, 2, kt=2, teams=2), {}),
    ((20, 20), "float64", 333, Config(4, 5, 4, kt=2, **STAGED), {"alpha": 2}),
    ((33, 63), "float32", 233, Config(16, 4, 4, kt=4, **STAGED), {}),
    ((9, 10), "complex64", 333, Config(2, 5, 2, kt=2, unroll_k=2, **STAGED), {"alpha": 1 - 2j, "beta": 3}),
    # a real and a complex operand, two precisions
    ((5, 3), "complex128 float64", 333, Config(2, 2, 2, kt=3, **STAGED), {}),
    ((5, 6), "float32 complex128", 333, Config(2, 3, 2, kt=2, teams=2, stages=2), {"beta": 2}),
    # in place
    ((16, 16), "float64", 333, Config(8, 2, 2, kt=2, **STAGED), {"inplace": True, "beta": 2}),
    ((16, 9), "float64", 333, Config(4, 3, 2, kt=2, teams=2), {"inplace": True}),
    # views at odd places
    ((13, 7), "float64", 233, Config(4, 2, 2, kt=2, **STAGED), {"lda": 61, "ldb": 9, "offset": 1, "beta": 2}),
    ((5, 3), "complex64", 233, Config(1, 3, 2, kt=5, **PAIRED, teams=2), {"lda": 9, "ldb": 7, "offset": 1}),
]


@needs_host_compiler
@pytest.mark.parametrize(("widths", "dtypes", "K", "config", "more"), HOST_CASES)
def test_the_kernel_run_on_the_host_is_exact_and_writes_nothing_else(
    widths: tuple[int, int], dtypes: str, K: int, config: Config, more: dict[str, complex], tmp_path: Path
) -> None:
    rng = np.random.default_rng(K)
    M, N = widths
    dtype_a, dtype_c = (dtypes.split() * 2)[:2]
    dtype = promote(dtype_a, dtype_c)
    alpha, beta, inplace = more.get("alpha", 1), more.get("beta", 0), bool(more.get("inplace"))
    offset = int(more.get("offset", 0).real)
    A, memory = framed(np, draw(rng, (K, M), dtype_a), int(more.get("lda", M).real), offset)
    C = draw(rng, (M, N), dtype_c)
    B = A[:, :N]
    if not inplace:
        old = draw(rng, (K, N), dtype) if beta else np.full((K, N), np.nan, dtype)
        B, memory = framed(np, old, int(more.get("ldb", N).real), offset)
    p = describe_tsmm(A, C, B, alpha, beta)
    assert p.inplace == inplace
    assert family.refuse(p, config, H200) is None
    assert asks_for_chunks(p, config, BLOCKS) or not more.get("asks")
    expected = alpha * (A.astype(np.complex128) @ C) + (beta * B if beta else 0)
    untouched = memory.copy()
    kernel = HostKernel(family.source(p, config, H200), tmp_path, readable=[A, B, C], seed=1)
    emulate(kernel, p, config, (A, C, B), (alpha, beta))
    np.testing.assert_array_equal(B, expected)
    result = B.copy()
    B[...] = 0
    first = (address(B) - address(memory)) // B.itemsize
    kept = untouched[first : first + K * p.ldb].reshape(K, p.ldb)[:, :N]
    kept[...] = 0
    assert memory.tobytes() == untouched.tobytes(), "a write outside B"
    assert not np.isnan(result).any()
