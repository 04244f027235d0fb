"""TSMTTSM by multiply-adds, without a GPU: choices, compilation, and the kernel itself run on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blockvec.kernels.dense import tsmttsm_fma as settings
from blockvec.kernels.dense.tsmttsm_fma import TsmttsmFmaConfig as Config
from blockvec.kernels.device import H200
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.launch import GRID_HEADER_BYTES, partials_bytes
from blockvec.kernels.problem import TsmttsmProblem, promote
from tests.blocks import address, bind, counters_are_ready, describe_tsmttsm, draw, framed, parts
from tests.blocks import tsmttsm_problem as problem
from tests.emulator.host import HostKernel, needs_host_compiler

family = FAMILIES["tsmttsm_fma"]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Config(32, 4), "tiles of 32 x 4"),
        (Config(1, 1), "961 tiles a row"),
        (Config(16, 16), "registers"),
        (Config(8, 8, sums="shared"), "sums 'shared'"),
        (Config(8, 8, stages=1), "1 stages"),
        (Config(8, 8, stages=2, steps=3, unroll=2), "unrolled"),
        (Config(8, 8, teams=64), "threads on a multiprocessor"),
        (Config(8, 8, stages=8, steps=40), "shared memory"),
        (Config(4, 4, stages=2, warps=2, teams=16), "barriers"),
    ],
)
def test_the_validity_rule_says_what_is_wrong(config: Config, reason: str) -> None:
    assert reason in str(family.refuse(problem(31), config, H200))


def test_one_tile_has_nothing_to_interleave() -> None:
    assert "interleave" in str(family.refuse(problem(4), Config(4, 4, interleaved=True), H200))


def test_chains_of_single_precision_are_short_whatever_the_number_of_rows() -> None:
    for width in (1, 8, 64):
        p = problem(width, dtype="float32")
        config = family.choose(p, H200)
        assert family.chain_length(p, config, H200) <= 1100
        assert family.chain_length(replace(p, K=100 * p.K), config, H200) <= 1100


def test_a_chain_covers_the_rows_of_a_thread() -> None:
    p = problem(8)
    config = family.choose(p, H200)
    rows = p.K / (H200.multiprocessors * config.blocks * config.teams * settings.plan_of(p, config).groups)
    assert rows <= family.chain_length(p, config, H200) < 1.5 * rows + 2000


def test_the_workspace_holds_a_partial_result_of_every_block() -> None:
    p = problem(16, K=5000)
    config = family.choose(p, H200)
    partials = settings.grid_of(p, config, H200) * 16 * 16 * 8
    assert family.workspace_bytes(p, config, H200) == GRID_HEADER_BYTES + 2 * partials  # with flags


def test_a_launch_refuses_an_address_that_is_less_aligned_than_described() -> None:
    p = problem(8)
    with pytest.raises(ValueError, match="described as aligned to 16 bytes"):
        bind(family, None, p, family.choose(p, H200), H200)(1 << 20, (1 << 20) + 8, 1 << 21, 1, 0, 1 << 22)


# ---- the kernel, thread by thread


def emulate(
    kernel: HostKernel,
    p: TsmttsmProblem,
    config: Config,
    operands: tuple[np.ndarray, np.ndarray, np.ndarray],
    factors: tuple[complex, complex],
    blocks: int,
) -> None:
    A, B, C = operands
    doubles = C.size * (2 if C.dtype.kind == "c" else 1)
    workspace = np.full(partials_bytes(blocks, doubles) // 8, np.nan)
    workspace[:16] = 0
    arguments = address(A), address(B), address(C), p.K, p.lda, p.ldb, *parts(factors), address(workspace)
    kernel((blocks,), (config.threads,), arguments, family.shared_bytes(p, config, H200))
    assert counters_are_ready(workspace)


# (M, N), dtypes, K, configuration, other properties
HOST_CASES = [
    # every thread all of C; pairs of odd rows as vectors
    ((1, 1), "float64", 0, Config(1, 1, count=2, stages=2, steps=2, teams=2), {"beta": "general"}),
    ((7, 5), "float64", 533, Config(7, 5, count=2, teams=2), {"alpha": "general", "beta": "general"}),
    ((5, 5), "complex128", 333, Config(5, 5, stages=2, steps=2, teams=2), {"same": True}),
    # tiles with guards: blocked, interleaved, unrolled, more than a warp
    ((20, 13), "float64", 333, Config(10, 4, stages=2, steps=4, unroll=2, interleaved=True), {}),
    ((9, 8), "complex128", 333, Config(4, 3, interleaved=True, teams=2), {"alpha": "general"}),
    ((33, 17), "float64", 233, Config(4, 3, steps=2, warps=2, teams=2, stages=2), {}),
    ((20, 20), "float64", 333, Config(7, 7, stages=2, steps=2, teams=2), {"same": True}),
    # single precision: chains into double precision registers and shared memory
    ((13, 8), "float32", 733, Config(4, 4, steps=2, teams=2, sums="registers"), {}),
    ((31, 31), "float32", 333, Config(8, 8, steps=4, stages=2, teams=2, sums="shared"), {}),
    ((6, 5), "complex64", 2733, Config(6, 5, steps=8, stages=2, teams=2, sums="shared"), {}),
    # a real and a complex operand, two precisions
    ((9, 8), "complex128 float64", 333, Config(4, 3, teams=2), {}),
    ((3, 4), "float32 complex128", 333, Config(3, 4, steps=2, stages=2, teams=2), {}),
    # views at odd places
    ((13, 8), "float64", 233, Config(4, 4, steps=2, stages=2, teams=2), {"lda": 61, "ldb": 64, "offset": 1}),
    ((5, 4), "complex64", 233, Config(5, 2, teams=2, sums="registers"), {"lda": 9, "ldb": 7, "offset": 1}),
]


@needs_host_compiler
@pytest.mark.parametrize(("widths", "dtypes", "K", "config", "more"), HOST_CASES)
def test_the_kernel_run_on_the_host_is_exact_and_repeats_bit_for_bit(
    widths: tuple[int, int], dtypes: str, K: int, config: Config, more: dict[str, object], tmp_path: Path
) -> None:
    rng = np.random.default_rng(K)
    changes = dict(more)
    offset = int(str(changes.pop("offset", 0)))
    dtype_a, dtype_b = (dtypes.split() * 2)[:2]
    A, _ = framed(np, draw(rng, (K, widths[0]), dtype_a), int(str(changes.pop("lda", widths[0]))), offset)
    B = A
    if not changes.get("same"):
        B, _ = framed(np, draw(rng, (K, widths[1]), dtype_b), int(str(changes.pop("ldb", widths[1]))), 0)
    p = replace(describe_tsmttsm(A, B, True, 1, 0), **changes)
    assert family.refuse(p, config, H200) is None
    C = draw(rng, widths, promote(dtype_a, dtype_b))
    alpha = 1 if p.alpha == "one" else 2
    beta = {"zero": 0, "one": 1, "general": -3}[p.beta]
    expected = alpha * ((A.conj() if p.conj else A).T.astype(np.complex128) @ B) + beta * C
    if p.beta == "zero":
        C[...] = np.nan  # never read
    source = family.source(p, config, H200)
    for seed in (1, 2):
        result = C.copy()
        kernel = HostKernel(source, tmp_path, readable=[A, B], seed=seed)
        emulate(kernel, p, config, (A, B, result), (alpha, beta), 1 if K == 0 else 3)
        np.testing.assert_array_equal(result, expected)
