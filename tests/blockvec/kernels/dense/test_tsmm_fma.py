"""TSMM by multiply-adds, without a GPU: choices, compilation, and the kernel itself run on the host."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockvec.kernels import compile as compiler
from blockvec.kernels.dense import tsmm_fma as settings
from blockvec.kernels.dense.tsmm_fma import TsmmFmaConfig as Config
from blockvec.kernels.dense.tsmm_fma_model import TsmmFmaModel
from blockvec.kernels.device import H200, DeviceInfo
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.launch import run_rows
from blockvec.kernels.problem import TsmmProblem, in_class, itemsize, promote
from tests.blocks import address, asks_for_chunks, bind, describe_tsmm, draw, framed, parts
from tests.compiled import A100, needs_compiler
from tests.emulator.host import HostKernel, needs_host_compiler

TYPES = ("float32", "float64", "complex64", "complex128")
OPERAND_BYTES = 2 << 30


family = FAMILIES["tsmm_fma"]


def problem(M: int, N: int | None = None, dtype: str = "float64", **changes: object) -> TsmmProblem:
    N = M if N is None else N
    plain = TsmmProblem(
        K=OPERAND_BYTES // (max(M, N) * itemsize(dtype)),
        M=M,
        N=N,
        dtype_a=dtype,
        dtype_c=dtype,
        lda=M,
        ldb=N,
    )
    return replace(plain, **changes)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_width_has_a_valid_choice_in_a_moment(dtype: str) -> None:
    seconds = []
    for width in range(1, 65):
        p = problem(width, dtype=dtype)
        start = time.process_time()
        config = family.choose(p, H200)
        seconds.append(time.process_time() - start)
        assert family.refuse(p, config, H200) is None
        assert family.predict(p, config, H200) > 0
    assert np.median(seconds) < 0.05


class CountingModel(TsmmFmaModel):
    """The model, which counts the configurations that it predicts the time of."""

    def __init__(self) -> None:
        self.predictions = 0

    def predict(self, *of: Any) -> float:
        self.predictions += 1
        return super().predict(*of)


def test_a_choice_is_remembered_for_row_counts_that_are_close() -> None:
    near, other = (in_class(problem(8, K=K)) for K in (1_000_000, 700_000))
    model = CountingModel()
    chosen, predictions = model.choose(near, H200), model.predictions
    assert predictions > 0
    assert model.choose(other, H200) == chosen
    assert model.predictions == predictions


@pytest.mark.parametrize(
    "p",
    [
        problem(1, 64),
        problem(64, 1, "complex64"),
        problem(7, 19, "float32", K=0),
        problem(33, 2, "complex128", K=1, beta="general"),
        problem(13, 8, lda=61, ldb=64, align_a=8),
        problem(13, 8, "complex64", lda=61, ldb=65, align_a=4, align_b=4),
        problem(31, inplace=True),
        problem(16, 5, ldb=16, inplace=True, align_b=16),
        problem(5, 6, "complex128", dtype_c="float32"),
        problem(5, 6, "float32", dtype_c="complex128", align_a=4),
    ],
    ids=str,
)
def test_problems_of_all_shapes_have_a_choice_and_a_space(p: TsmmProblem) -> None:
    assert family.refuse(p, family.choose(p, H200), H200) is None
    configs = family.space(p, H200)
    assert len(configs) > 20
    assert all(family.refuse(p, config, H200) is None for config in configs)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", [3, 16, 40])
def test_the_space_has_a_few_hundred_ways_with_the_options_of_the_paper(width: int, dtype: str) -> None:
    configs = family.space(problem(width, dtype=dtype), H200)
    assert 50 <= len(configs) <= 600
    assert {config.stages > 0 for config in configs} == {True, False}
    assert len({(config.spread, config.unroll) for config in configs}) >= 3


def test_what_the_family_cannot_run_is_refused_with_a_reason() -> None:
    assert "widths" in str(family.supports(problem(65), H200))
    assert "CUDA" in str(family.supports(problem(8), replace(H200, kind="cpu")))
    with pytest.raises(ValueError, match="tsmm_fma cannot run"):
        family.choose(problem(65), H200)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Config(3, 11, 2), "3 threads a row"),
        (Config(4, 7, 2), "4 threads a row of 7 columns for 31"),
        (Config(1, 32, 2, interleaved=False), "1 threads a row of 32"),
        (Config(8, 8, 1), "8 threads a row of 8 columns for 31"),
        (Config(4, 8, 3, count=2), "in sets of 2"),
        (Config(4, 8, 2, kt=32), "32 columns at a time"),
        (Config(4, 8, 2, coefficients="registers"), "unrolled"),
        (Config(1, 31, 1, interleaved=True), "interleave"),
        (Config(4, 8, 2, staged_out=True), "0 stages"),
        (Config(4, 8, 2, padded=True), "padded"),
        (Config(1, 31, 8, interleaved=False), "registers"),
        (Config(4, 8, 4, stages=8, staged_out=True), "shared memory"),
        (Config(4, 8, 2, teams=64), "threads on a multiprocessor"),
        (Config(4, 8, 1, warps=2, teams=16), "barriers"),
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


# ---- compilation


def assert_compiles_clean(p: TsmmProblem, config: Config, device: DeviceInfo = H200) -> None:
    assert family.refuse(p, config, device) is None
    cubin = compiler.build(family.source(p, config, device), device.architecture)
    assert cubin.resources.spill_bytes == cubin.resources.stack_bytes == 0, (p, config, cubin.resources)
    assert cubin.resources.shared_bytes <= settings.STATIC_SHARED_BYTES


@needs_compiler
@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.architecture)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", [3, 20, 64])
def test_configurations_of_the_space_compile_without_spills(
    width: int, dtype: str, device: DeviceInfo
) -> None:
    p = problem(width, dtype=dtype)
    drawn = random.Random(f"{width}{dtype}{device.architecture}").choice(family.space(p, device))
    assert_compiles_clean(p, drawn, device)


@needs_compiler
@pytest.mark.parametrize(
    "p",
    [
        problem(31, inplace=True, alpha="general", beta="general"),
        problem(9, dtype="complex64", beta="one"),
        problem(13, 8, lda=61, ldb=64, align_a=8, beta="one"),
        problem(7, dtype="complex128", beta="general"),  # few registers to spare
        problem(12, 15, dtype="complex128", beta="general"),
        problem(63, dtype="float32"),
        problem(5, 6, "complex128", dtype_c="float32"),
    ],
    ids=str,
)
def test_choices_for_other_problems_compile_without_spills(p: TsmmProblem) -> None:
    assert_compiles_clean(p, family.choose(p, H200))


def test_chunks_are_dealt_out_to_single_warps_where_memory_decides() -> None:
    staged = family.choose(problem(16), H200)
    assert (staged.warps, staged.stages > 0) == (1, True)
    assert settings.uses_queue(problem(16), staged)
    assert not settings.uses_queue(problem(16), replace(staged, warps=2))
    assert not settings.uses_queue(problem(16), replace(staged, stages=0, staged_out=False))
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


PAIRED = {"count": 2, "interleaved": False}
STAGED = {"stages": 2, "staged_out": True, "teams": 2}
ASKS = {"asks": True}
# (M, N), dtypes, K, configuration, other properties
HOST_CASES = [
    # a thread a row; pairs of odd rows as vectors; C in registers
    ((4, 4), "float64", 333, Config(1, 4, 2, kt=4, coefficients="registers", **PAIRED, **STAGED), {}),
    ((7, 5), "float64", 333, Config(1, 5, 2, kt=7, **PAIRED, **STAGED), {"alpha": 2, "beta": -3}),
    # chunks beyond those that each warp begins with
    ((7, 5), "float64", 3333, Config(1, 5, 2, kt=7, **PAIRED, **STAGED), ASKS | {"alpha": 2, "beta": -3}),
    ((3, 9), "complex64", 2003, Config(2, 5, 2, kt=3, stages=3, staged_out=True, teams=3), ASKS),
    ((40, 3), "float32", 803, Config(4, 1, 1, kt=4, stages=2, teams=2), ASKS),
    ((40, 5), "float32", 1403, Config(4, 2, 1, kt=4, stages=6, staged_out=True, teams=2), ASKS),
    # several threads a row, blocked and interleaved, C through the cache, more than a warp
    ((20, 13), "float64", 333, Config(4, 4, 2, kt=2, coefficients="cache", interleaved=False, teams=2), {}),
    ((20, 20), "float64", 333, Config(4, 5, 4, kt=2, **STAGED), {"alpha": 2}),
    ((33, 63), "float32", 233, Config(16, 4, 4, kt=4, padded=True, warps=2, **STAGED), {}),
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
