"""TSMTTSM on tensor cores, without a GPU: choices, compilation, and the kernel itself run on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blockvec.kernels.dense import tsmttsm_mma as settings
from blockvec.kernels.dense.tsmttsm_mma_ring import Tsmttsm3mConfig as Config3m
from blockvec.kernels.dense.tsmttsm_mma_ring import TsmttsmMmaConfig as Config
from blockvec.kernels.dense.tsmttsm_mma_ring import has_boxes, tensor_maps
from blockvec.kernels.device import H200
from blockvec.kernels.families import FAMILIES, families_of
from blockvec.kernels.launch import GRID_HEADER_BYTES, partials_bytes
from blockvec.kernels.problem import TsmttsmProblem, is_complex
from tests.blocks import address, aligned, counters_are_ready, draw, parts
from tests.blocks import tsmttsm_problem as problem
from tests.emulator.host import HostKernel, emulated_map, every_second, needs_host_compiler

family = FAMILIES["tsmttsm_mma"]
three_m = FAMILIES["tsmttsm_3m"]


BOTH = pytest.mark.parametrize("dtype", ["float64", "complex128"])
ALL = pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])


def test_choices_follow_the_number_of_rows_but_not_the_values_of_the_factors() -> None:
    p = problem(8)
    assert family.choose(replace(p, alpha="general", beta="general"), H200) == family.choose(p, H200)
    few = replace(p, K=1000)
    assert settings.grid(few, family.choose(few, H200), H200) > 1


def test_what_the_family_cannot_run_is_refused_with_a_reason() -> None:
    assert "operands of one type" in str(family.supports(problem(8, dtype_b="complex128"), H200))
    assert "no rows" in str(family.supports(problem(8, K=0), H200))
    assert "aligned to 8" in str(family.supports(problem(8, lda=9, align_a=4), H200))
    assert family.supports(problem(8, dtype="complex64", lda=9, align_a=4), H200) is None
    assert "need more registers or shared memory" in str(family.supports(problem(512, 512), H200))
    assert "tensor cores" in str(family.supports(problem(8), replace(H200, architecture="sm_75")))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Config(rows=30, stages=4, wm=1, wn=1, wk=1), "whole steps"),
        (Config(rows=64, stages=4, wm=8, wn=1, wk=1), "groups of columns"),
        (Config(rows=16, stages=4, wm=1, wn=1, wk=16), "16 warps for 4 steps"),
        (Config(rows=64, stages=64, wm=1, wn=1, wk=4), "shared memory"),
        (Config(rows=64, stages=5, wm=1, wn=1, wk=4, blocks=2), "2 blocks of"),
        (Config(rows=256, stages=2, wm=1, wn=1, wk=16, blocks=2), "registers"),
        (Config(rows=4, stages=4, wm=1, wn=1, wk=1), "bulk copies take multiples"),
    ],
)
def test_the_validity_rule_says_what_is_wrong(config: Config, reason: str) -> None:
    assert reason in str(family.refuse(problem(31), config, H200))


def test_views_and_unaligned_bases_are_copied_in_pieces_by_producer_warps() -> None:
    for changes in ({"lda": 61, "align_a": 8}, {"align_b": 8}, {"ldb": 64}):
        p = problem(13, **changes)
        config = family.choose(p, H200)
        assert config.producers > 0
        assert config.fold == 1


@pytest.mark.parametrize(("dtype", "align"), [("float64", 8), ("float32", 4)])
@pytest.mark.parametrize("width", [1, 8])
def test_copies_of_single_numbers_leave_l1_most_of_a_multiprocessors_memory(
    width: int, dtype: str, align: int
) -> None:
    p = problem(width, dtype=dtype, lda=61, ldb=61, align_a=align, align_b=align)
    config = family.choose(p, H200)
    percent = family.carveout(p, config, H200)
    assert percent is not None
    needed = config.blocks * family.shared_bytes(p, config, H200)
    assert needed < percent / 100 * H200.shared_bytes_per_multiprocessor < 80 << 10
    large = replace(config, stages=config.stages * (200 << 10) // needed)
    assert family.predict(p, config, H200) < family.predict(p, large, H200)
    aligned = problem(8, dtype="complex128", lda=64, ldb=64)
    assert family.carveout(aligned, family.choose(aligned, H200), H200) is None


def test_the_workspace_holds_a_partial_result_of_every_block() -> None:
    p = problem(16, K=10_000)
    config = family.choose(p, H200)
    stages = -(-p.K // (config.rows * config.fold))
    blocks = min(stages, H200.multiprocessors * config.blocks)
    assert family.workspace_bytes(p, config, H200) == GRID_HEADER_BYTES + blocks * 16 * 16 * 16  # with flags


@BOTH
def test_a_chain_covers_the_rows_of_a_warp(dtype: str) -> None:
    p = problem(8, dtype=dtype)
    config = family.choose(p, H200)
    rows_of_a_warp = p.K / (H200.multiprocessors * config.blocks * config.wk)
    length = family.chain_length(p, config, H200)
    assert rows_of_a_warp / config.fold <= length < 3 * rows_of_a_warp + 1000


# ---- compilation


# ---- the kernel, thread by thread


@pytest.mark.parametrize(
    ("M", "N", "comes_first"),
    [
        (40, 40, False),
        (41, 41, True),
        (48, 41, True),
        (48, 49, False),
        (56, 56, False),
        (57, 57, True),
        (40, 64, False),
    ],
)
def test_three_products_come_first_where_warps_share_the_groups_equally(
    M: int, N: int, comes_first: bool
) -> None:
    first = families_of(problem(M, N, "complex128"))[0].name
    assert first == ("tsmttsm_3m" if comes_first else "tsmttsm_mma")


HOST_CASES = [
    # real: odd and even numbers of groups and shares, more rows a product, folding, tiles, gaps, conflicts
    (problem(8, K=333), Config(32, 3, 1, 1, 4), 3),
    (problem(7, 5, K=211), Config(48, 2, 1, 1, 2, kstep=2), 3),
    (problem(16, 8, K=333), Config(36, 3, 1, 1, 4), 3),
    (problem(4, K=333), Config(36, 3, 1, 1, 4, producers=1), 3),
    (problem(1, K=1001), Config(64, 2, 1, 1, 4, fold=8), 3),
    (problem(3, 2, K=301, alpha="general", beta="general"), Config(56, 2, 1, 1, 3, fold=2), 2),
    (problem(33, 17, K=61), Config(16, 2, 1, 1, 2, producers=1), 2),
    (problem(24, 40, K=61), Config(16, 2, 1, 2, 2), 3),
    (problem(55, 23, "float32", K=61), Config(16, 2, 2, 2, 2), 2),
    (problem(24, K=61, same=True), Config(16, 2, 1, 1, 2), 2),
    (problem(29, K=61, same=True), Config(16, 2, 2, 2, 2), 2),
    (problem(8, K=5), Config(32, 3, 1, 1, 4), 1),
    (problem(40, 16, K=300), Config(16, 3, 1, 1, 4), 11),
    # complex: both roles of the operands, uneven shares, the triangle
    (problem(9, 20, "complex128", K=61), Config(16, 2, 1, 2, 2), 2),
    (problem(20, 9, "complex128", K=61, conj=False), Config(16, 2, 2, 1, 2), 2),
    (problem(33, 5, "complex128", K=61), Config(16, 2, 4, 1, 2), 2),
    (problem(12, 9, "complex128", K=61), Config(16, 2, 1, 1, 2, kstep=2), 2),
    (problem(2, dtype="complex128", K=333, beta="general"), Config(32, 2, 1, 1, 4, fold=4), 3),
    (problem(20, dtype="complex128", K=61, same=True), Config(16, 2, 1, 1, 2), 2),
    (problem(20, dtype="complex128", K=61, same=True, conj=False), Config(16, 2, 1, 1, 2), 2),
    # the pinwheel of an odd number of groups squared
    (problem(20, dtype="complex128", K=61), Config(16, 2, 2, 2, 2), 2),
    (problem(33, 40, "complex128", K=61, conj=False), Config(16, 2, 2, 2, 1), 2),
    (problem(39, dtype="complex128", K=61, same=True), Config(16, 2, 2, 2, 2), 2),
    (problem(24, dtype="complex64", K=61, conj=False), Config(16, 2, 2, 2, 2, ahead=False), 2),
    # a triangle of groups of columns in four parts
    (problem(60, dtype="complex128", K=33, same=True), Config(16, 2, 2, 2, 1), 2),
    (problem(32, dtype="complex128", K=61, same=True, conj=False), Config(16, 2, 2, 2, 2), 2),
    (problem(50, dtype="complex128", K=97, same=True), Config(16, 3, 2, 2, 2, unroll=1, ahead=True), 2),
    (problem(15, dtype="complex64", K=61, same=True), Config(16, 2, 2, 2, 2), 2),
    (problem(55, dtype="complex128", K=61, same=True), Config3m(16, 3, 2, 2, 2, unroll=1, ahead=True), 2),
    # warps that take stages in turn, some more of them than others
    (problem(39, dtype="complex128", K=203), Config(16, 3, 2, 2, 2, unroll=1, ahead=True), 3),
    (problem(16, dtype="complex128", K=203), Config(20, 5, 1, 1, 4, unroll=1, producers=1, ahead=True), 2),
    (problem(16, dtype="complex128", K=33), Config(20, 5, 1, 1, 4, unroll=1, ahead=True), 2),
    # three real products: uneven shares, triangles, rows that begin in one bank, and views
    (problem(9, 20, "complex128", K=61), Config3m(16, 2, 1, 2, 2), 2),
    (problem(20, 9, "complex128", K=61, conj=False), Config3m(16, 2, 2, 1, 2), 2),
    (
        problem(12, 9, "complex128", K=61, alpha="general", beta="general"),
        Config3m(16, 2, 1, 1, 2, kstep=2),
        2,
    ),
    (problem(2, dtype="complex128", K=333), Config3m(32, 2, 1, 1, 4, fold=4), 3),
    (problem(20, dtype="complex128", K=61, same=True), Config3m(16, 2, 1, 1, 2), 2),
    (problem(39, dtype="complex128", K=61, same=True, conj=False), Config3m(16, 2, 2, 2, 2), 2),
    (problem(24, 40, "complex128", K=203), Config3m(20, 3, 1, 2, 2, unroll=1, ahead=True), 2),
    (problem(32, dtype="complex128", K=203, conj=False), Config3m(20, 3, 2, 2, 2, producers=1), 3),
    (problem(32, 24, "complex64", K=203), Config3m(20, 3, 2, 2, 2), 3),
    (problem(16, 8, "complex128", K=151, lda=61, ldb=64), Config3m(32, 3, 1, 1, 4, producers=4), 2),
    # views, odd offsets, one operand in pieces
    (problem(13, 8, K=151, lda=61, ldb=64, align_a=8), Config(32, 3, 1, 1, 4, producers=4), 2),
    (problem(13, 8, K=151, lda=61, align_a=8), Config(32, 3, 1, 1, 4, producers=4), 2),
    (problem(5, 6, "complex128", K=151, lda=9), Config(32, 3, 1, 1, 4, producers=4), 2),
    (problem(37, 8, K=151, lda=61, ldb=64, align_a=8), Config(32, 3, 1, 1, 4, producers=8), 2),
    (problem(5, K=151, lda=9, align_a=8, same=True), Config(32, 3, 1, 1, 4, producers=4), 2),
    # boxes: every offset modulo 16 bytes, more rows a product, stages in turn, few rows, triangles
    (problem(37, 25, "float32", K=151, lda=61, ldb=25, align_a=4), Config(32, 3, 1, 1, 4), 2),
    (
        problem(11, 21, "complex64", K=151, lda=13, ldb=22, align_a=8, align_b=8),
        Config(48, 2, 1, 1, 2, kstep=2),
        2,
    ),
    (problem(41, 42, "complex128", K=51, lda=43, ldb=42), Config3m(16, 3, 2, 2, 2, unroll=1, ahead=True), 2),
    (problem(49, K=3, lda=50, align_a=8, same=True), Config(16, 2, 1, 2, 2), 1),
    (problem(50, dtype="complex64", K=150, lda=51, align_a=8, same=True), Config3m(32, 3, 2, 2, 2), 2),
    # single precision: bulk copies that leave up to three numbers, folding, pieces of 4 and 8 bytes
    (problem(7, 5, "float32", K=211), Config(48, 2, 1, 1, 2), 3),
    (problem(1, dtype="float32", K=1003), Config(64, 2, 1, 1, 4, fold=8), 3),
    (problem(20, 9, "complex64", K=61, alpha="general", beta="general"), Config(16, 2, 2, 1, 2), 2),
    (
        problem(13, 3, "float32", K=151, lda=61, ldb=5, align_a=4, align_b=4),
        Config(32, 3, 1, 1, 4, producers=4),
        2,
    ),
    (problem(5, 6, "complex64", K=151, lda=9, align_a=4), Config(32, 3, 1, 1, 4, producers=4), 2),
]


@needs_host_compiler
@pytest.mark.parametrize(("p", "config", "blocks"), every_second(HOST_CASES), ids=lambda v: str(v)[:60])
def test_the_kernel_run_on_the_host_is_exact_and_repeats_bit_for_bit(
    p: TsmttsmProblem, config: Config, blocks: int, tmp_path: Path
) -> None:
    family = FAMILIES["tsmttsm_3m" if config.three_m else "tsmttsm_mma"]
    assert family.refuse(p, config, H200) is None
    rng = np.random.default_rng(p.K)
    A, _ = aligned(draw(rng, (p.K, p.M), p.dtype), p.lda, p.align_a)
    B = A if p.same else aligned(draw(rng, (p.K, p.N), p.dtype), p.ldb, p.align_b)[0]
    C = rng.integers(-3, 4, (p.M, p.N)).astype(p.dtype)
    alpha = 1 if p.alpha == "one" else 2
    beta = 0 if p.beta == "zero" else (1 - 2j if is_complex(p.dtype) else 3)
    expected = alpha * ((A.conj() if p.conj else A).T @ B) + beta * C
    if p.beta == "zero":
        C[...] = np.nan  # never read
    doubles = p.M * p.N * (2 if is_complex(p.dtype) else 1)
    workspace = np.full(partials_bytes(blocks, doubles) // 8, np.nan)
    workspace[:16] = 0

    source, shared = family.source(p, config, H200), family.shared_bytes(p, config, H200)
    results = []
    for seed in (1, 2):
        result = C.copy()
        extents = p.K, p.lda, p.ldb
        arguments = *map(address, (A, B, result)), *extents, *parts((alpha, beta)), address(workspace)
        if has_boxes(p, H200):
            maps = tensor_maps(p, config, address(A), address(B), encode=emulated_map)
            arguments = *arguments, np.void(bytes(maps))
        kernel = HostKernel(source, tmp_path, readable=[A, B], seed=seed)
        kernel((blocks,), (config.threads,), arguments, shared)
        assert counters_are_ready(workspace)
        results.append(result)
    np.testing.assert_array_equal(results[0], expected)
    assert results[0].tobytes() == results[1].tobytes()
