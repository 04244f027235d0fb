"""What dense families refuse, with the reason, and the numbers that they promise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blockvec.errors import LayoutError
from blockvec.kernels.dense import sweep_mma, tsmm_mma, tsmttsm_fma
from blockvec.kernels.device import H200
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.launch import GRID_HEADER_BYTES
from blockvec.kernels.problem import SweepProblem
from tests.blocks import bind
from tests.blocks import tsmm_problem as combine
from tests.blocks import tsmttsm_problem as dot
from tests.devices import A100

OLD = replace(H200, architecture="sm_75")


def sweep(kind: Any, M: int, N: int, dtype: str = "float64", **changes: Any) -> SweepProblem:
    return replace(SweepProblem(kind, 1 << 20, M, N, dtype, dtype, dtype, M, N), **changes)


PROBLEMS: list[tuple[str, Any, str]] = [
    ("tsmttsm_mma", dot(8, dtype_b="complex128"), "operands of one type"),
    ("tsmttsm_mma", dot(8, K=0), "no rows"),
    ("tsmttsm_mma", dot(8, lda=9, align_a=4), "aligned to 8"),
    ("tsmttsm_mma", dot(512, 512), "need more registers or shared memory"),
    ("tsmm_mma", combine(8, dtype_c="complex128"), "A and C of one type"),
    ("tsmm_mma", combine(65), "widths from 1 to 64"),
    ("tsmm_mma", combine(8, align_b=4), "8-byte alignment"),
    ("tsmm_mma", combine(8, 9, inplace=True), "in place"),
    ("tsmm_3m", combine(48), "complex"),
    ("tsmm_3m", combine(48, dtype="complex128", beta="one"), "beta must be zero"),
    ("tsmm_3m", combine(48, dtype="complex128", lda=50), "contiguous A"),
    ("tsmm_3m", combine(48, dtype="complex128", align_b=8), "elements of 16 bytes"),
    ("tsmm_3m", combine(48, 65, dtype="complex128"), "tsmm_3m takes widths from 1 to 64"),
    ("sweep_mma", sweep("update_gram", 128, 8, dtype_c="complex128"), "float64 or complex128"),
    ("sweep_mma", sweep("combine_dot", 128, 8), "two products"),
    ("sweep_mma", sweep("update_gram", 128, 8, K=0), "no rows"),
    ("sweep_mma", combine(128, 8, align_b=4), "aligned"),
    ("sweep_mma", combine(600, 8), "at most 512"),
    ("sweep_mma", combine(128, 8, "float32"), "float64 or complex128"),
    ("sweep_mma", combine(8, 16), "more than 64 columns"),
]


@pytest.mark.parametrize(("name", "problem", "reason"), PROBLEMS)
def test_problems_that_cannot_be_run_are_refused_with_a_reason(name: str, problem: Any, reason: str) -> None:
    assert reason in str(FAMILIES[name].supports(problem, H200))


def test_devices_without_the_instructions_are_refused_with_a_reason() -> None:
    for name, problem, device, reason in (
        ("tsmttsm_mma", dot(8), OLD, "tensor cores"),
        ("tsmm_mma", combine(8), OLD, "no FP64 tensor cores"),
        ("tsmm_3m", combine(48, dtype="complex128"), A100, "sm_90"),
        ("sweep_mma", combine(128, 8), A100, "sm_90"),
    ):
        assert reason in str(FAMILIES[name].supports(problem, device))
    odd = dot(8, dtype="complex64", lda=9, align_a=4)
    assert FAMILIES["tsmttsm_mma"].supports(odd, H200) is None


CONFIGURATIONS: dict[str, tuple[Any, list[tuple[dict[str, Any], str]]]] = {
    "tsmttsm_fma": (
        dot(31),
        [
            ({"tm": 32, "tn": 4}, "tiles of 32 x 4"),
            ({"tm": 1, "tn": 1}, "961 tiles a row"),
            ({"tm": 16, "tn": 16}, "registers"),
            ({"tm": 31, "tn": 31, "interleaved": True}, "interleave"),
            ({"tm": 8, "tn": 8, "sums": "shared"}, "sums 'shared'"),
            ({"tm": 8, "tn": 8, "stages": 1}, "1 stages"),
            ({"tm": 8, "tn": 8, "stages": 2, "steps": 3, "unroll": 2}, "unrolled"),
            ({"tm": 8, "tn": 8, "teams": 64}, "threads on a multiprocessor"),
            ({"tm": 8, "tn": 8, "stages": 8, "steps": 40}, "shared memory"),
            ({"tm": 4, "tn": 4, "stages": 2, "warps": 2, "teams": 16}, "barriers"),
        ],
    ),
    "tsmttsm_mma": (
        dot(31),
        [
            ({"rows": 30, "stages": 4, "wm": 1, "wn": 1, "wk": 1}, "no multiple of 4"),
            ({"rows": 64, "stages": 4, "wm": 8, "wn": 1, "wk": 1}, "groups of columns"),
            ({"rows": 16, "stages": 4, "wm": 1, "wn": 1, "wk": 16}, "16 warps for 4 steps"),
            ({"rows": 64, "stages": 64, "wm": 1, "wn": 1, "wk": 4}, "shared memory"),
            ({"rows": 64, "stages": 5, "wm": 1, "wn": 1, "wk": 4, "blocks": 2}, "2 blocks of"),
            ({"rows": 256, "stages": 2, "wm": 1, "wn": 1, "wk": 16, "blocks": 2}, "registers"),
            ({"rows": 4, "stages": 4, "wm": 1, "wn": 1, "wk": 1}, "bulk copies take multiples"),
        ],
    ),
    "tsmm_fma": (
        combine(31),
        [
            ({"spread": 3, "ct": 11, "unroll": 2}, "3 threads a row"),
            ({"spread": 4, "ct": 7, "unroll": 2}, "4 threads a row of 7 columns for 31"),
            ({"spread": 1, "ct": 32, "unroll": 2}, "1 threads a row of 32"),
            ({"spread": 8, "ct": 8, "unroll": 1}, "8 threads a row of 8 columns for 31"),
            ({"spread": 4, "ct": 8, "unroll": 3, "count": 2}, "in sets of 2"),
            ({"spread": 4, "ct": 8, "unroll": 2, "kt": 32}, "32 columns at a time"),
            ({"spread": 4, "ct": 8, "unroll": 2, "coefficients": "registers"}, "unrolled"),
            ({"spread": 4, "ct": 8, "unroll": 2, "stages": 1}, "1 stage"),
            ({"spread": 1, "ct": 31, "unroll": 8}, "registers"),
            ({"spread": 4, "ct": 8, "unroll": 4, "stages": 8}, "shared memory"),
            ({"spread": 4, "ct": 8, "unroll": 2, "teams": 64}, "threads on a multiprocessor"),
        ],
    ),
    "tsmm_3m": (
        combine(48, dtype="complex128"),
        [({"warps": 6}, "multiple of 4"), ({"warps": 12}, "registers")],
    ),
    "sweep_mma": (
        sweep("update_gram", 128, 16),
        [
            ({"rows": 16, "stages": 3, "warps": 8, "wc": 3}, "cannot share"),
            ({"rows": 24, "stages": 3, "warps": 8, "wc": 4}, "no multiple of 32"),
            ({"rows": 16, "stages": 1, "warps": 8, "wc": 8}, "at least two"),
            ({"rows": 32, "stages": 9, "warps": 8, "wc": 4}, "shared memory"),
        ],
    ),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations_that_do_not_fit_are_refused_with_a_reason(name: str) -> None:
    problem, refused = CONFIGURATIONS[name]
    family = FAMILIES[name]
    for fields, reason in refused:
        assert reason in str(family.refuse(problem, family.Config(**fields), H200)), fields
    wide = sweep_mma.SweepMmaConfig(32, 2, 16, 8)
    assert "registers" in str(FAMILIES["sweep_mma"].refuse(sweep("update_gram", 512, 16), wide, H200))


MMA = tsmm_mma.TsmmMmaConfig(warps=8, split=1, rows=64, stages=2, slabs=2, shared_coefficients=False)
DIRECT = replace(MMA, rows=16, slabs=0, shared_coefficients=True)


@pytest.mark.parametrize(
    ("valid", "problem", "of_problem", "changes", "reason"),
    [
        (MMA, combine(8), {}, {"warps": 6}, "multiple of 4"),
        (MMA, combine(8), {}, {"split": 3}, "cannot share"),
        (MMA, combine(8), {}, {"split": 4}, "cannot share the 1 column tiles"),
        (MMA, combine(8), {}, {"rows": 40}, "no multiple"),
        (MMA, combine(8), {}, {"stages": 0}, "at least one"),
        (MMA, combine(8), {}, {"slabs": 0}, "no slabs: for complex A"),
        (MMA, combine(8), {}, {"rows": 1024}, "shared memory"),
        (replace(MMA, rows=16), combine(24), {}, {"warps": 32}, "registers"),
        (DIRECT, combine(33, dtype="complex128"), {"beta": "one"}, {}, "beta zero"),
        (DIRECT, combine(33, dtype="complex128"), {"lda": 35}, {}, "contiguous"),
        (DIRECT, combine(33, dtype="complex128"), {"align_b": 8}, {}, "elements of 16 bytes"),
        (DIRECT, combine(33, dtype="complex128"), {"N": 12, "ldb": 12}, {"split": 2}, "less than 8 of 12"),
        (DIRECT, combine(33, dtype="complex128"), {}, {"stages": 1}, "the next tile"),
        (DIRECT, combine(33, dtype="complex128"), {}, {"shared_coefficients": False}, "in shared memory"),
    ],
)
def test_a_change_of_a_valid_configuration_is_refused_with_a_reason(
    valid: Any, problem: Any, of_problem: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    family = FAMILIES["tsmm_mma"]
    assert family.refuse(problem, valid, H200) is None
    assert reason in str(family.refuse(replace(problem, **of_problem), replace(valid, **changes), H200))


# ---- choices


# ---- layouts and launches


def test_a_launch_fills_the_device_and_passes_pitches_in_bytes() -> None:
    family, calls = FAMILIES["tsmm_mma"], []

    def kernel(*launch: Any) -> None:
        calls.append(launch)

    p = combine(8, 4, "complex128", ldb=6, alpha="general", beta="general")
    config = family.choose(p, H200)
    bind(family, kernel, p, config, H200)(1 << 20, 2 << 20, 3 << 20, 2j, 3, 4 << 20)
    arguments = (1 << 20, 2 << 20, 3 << 20, p.K, 8 * 16, 6 * 16, 0.0, 2.0, 3.0, 0.0, 4 << 20)
    assert calls == [((132,), (32 * config.warps,), arguments, family.shared_bytes(p, config, H200))]
    bind(family, kernel, replace(p, K=1), config, H200)(1 << 20, 2 << 20, 3 << 20, 2j, 3, 4 << 20)
    assert calls[1][0] == (1,)
    bind(family, kernel, replace(p, K=0), config, H200)(0, 0, 0, 2j, 3)
    assert len(calls) == 2


@pytest.mark.parametrize("name", ["tsmttsm_fma", "tsmttsm_mma", "tsmm_fma", "tsmm_mma"])
def test_a_launch_refuses_an_address_that_is_less_aligned_than_described(name: str) -> None:
    family, p = FAMILIES[name], dot(8) if "tsmttsm" in name else combine(8)
    launch = bind(family, None, p, family.choose(p, H200), H200)
    with pytest.raises(LayoutError, match=r"A lies at address 0x8 .*described as aligned to 16 bytes"):
        launch(8, 1 << 20, 1 << 21, 1, 0, 1 << 22)


# ---- bounds of errors, and workspaces


def test_a_chain_is_a_row_of_coefficients() -> None:
    for name, dtype, length in (
        *(("tsmm_fma", "float32", 24), ("tsmm_fma", "complex64", 48)),
        *(("tsmm_mma", "float64", 24), ("tsmm_mma", "complex128", 48)),
        *(("tsmm_mma", "float32", 2), ("tsmm_mma", "complex64", 2)),  # summed in double precision
    ):
        family, p = FAMILIES[name], combine(24, dtype=dtype)
        assert family.chain_length(p, family.choose(p, H200), H200) == length
    family, p = FAMILIES["tsmm_mma"], combine(24)
    assert family.chain_length(replace(p, beta="one"), family.choose(p, H200), H200) == 25


def test_chains_of_single_precision_are_short_whatever_the_number_of_rows() -> None:
    family = FAMILIES["tsmttsm_fma"]
    for width in (1, 8, 64):
        p = dot(width, dtype="float32")
        config = family.choose(p, H200)
        assert family.chain_length(p, config, H200) <= 1100
        assert family.chain_length(replace(p, K=100 * p.K), config, H200) <= 1100


def test_a_chain_covers_the_rows_of_a_thread_or_warp() -> None:
    family, p = FAMILIES["tsmttsm_fma"], dot(8)
    config = family.choose(p, H200)
    groups = config.blocks * config.teams * tsmttsm_fma.plan_of(p, config).groups
    rows = p.K / (H200.multiprocessors * groups)
    assert rows <= family.chain_length(p, config, H200) < 1.5 * rows + 2000
    for dtype in ("float64", "complex128"):
        family, p = FAMILIES["tsmttsm_mma"], dot(8, dtype=dtype)
        config = family.choose(p, H200)
        rows = p.K / (H200.multiprocessors * config.blocks * config.wk)
        assert rows / config.fold <= family.chain_length(p, config, H200) < 3 * rows + 1000


@pytest.mark.parametrize("name", ["tsmttsm_fma", "tsmttsm_mma"])
def test_the_workspace_holds_a_partial_result_of_every_block(name: str) -> None:
    family, p = FAMILIES[name], dot(16, K=5000)
    config = family.choose(p, H200)
    blocks = family.grid(p, config, H200)
    assert family.workspace_bytes(p, config, H200) == GRID_HEADER_BYTES + blocks * 16 * 16 * 16  # with flags
