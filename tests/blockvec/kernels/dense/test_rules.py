"""What dense families refuse, with the reason, and the numbers that they promise."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from blockvec.kernels.families import FAMILIES
from blockvec.kernels.problem import SweepProblem
from tests.blocks import tsmm_problem as combine
from tests.blocks import tsmttsm_problem as dot
from tests.devices import A100, H200, RTX_5090

OLD = replace(H200, architecture="sm_75")


def sweep(M: int, N: int, dtype: str = "float64", **changes: Any) -> SweepProblem:
    return replace(SweepProblem(1 << 20, M, N, dtype, dtype, dtype, M, N), **changes)


PROBLEMS: list[tuple[str, Any, str]] = [
    ("tsmttsm_mma", dot(8, dtype_b="complex128"), "operands of one type"),
    ("tsmttsm_mma", dot(8, K=0), "no rows"),
    ("tsmttsm_mma", dot(8, lda=9, align_a=4), "aligned to 8"),
    ("tsmttsm_mma", dot(512, 512), "need more registers or shared memory"),
    ("tsmm_mma", combine(8, dtype_c="complex128"), "operands of one type"),
    ("tsmm_mma", combine(65), "widths are 1 to 64"),
    ("tsmm_mma", combine(8, align_b=4), "aligned to 8"),
    ("tsmm_mma", combine(8, 9, inplace=True), "in place"),
    ("tsmm_3m", combine(48), "complex"),
    ("tsmm_3m", combine(48, dtype="complex128", beta="one"), "beta must be zero"),
    ("tsmm_3m", combine(48, dtype="complex128", lda=50), "contiguous A"),
    ("tsmm_3m", combine(48, dtype="complex128", align_b=8), "elements of 16 bytes"),
    ("tsmm_3m", combine(48, 65, dtype="complex128"), "widths are 1 to 64"),
    ("sweep_mma", sweep(128, 8, dtype_c="complex128"), "float64 or complex128"),
    ("sweep_mma", sweep(128, 8, K=0), "no rows"),
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
        ("tsmttsm_mma", dot(8, dtype="float32"), RTX_5090, "double precision, in which .* is slow"),
        ("tsmm_mma", combine(8, dtype="float32"), RTX_5090, "double precision, in which .* is slow"),
    ):
        assert re.search(reason, str(FAMILIES[name].supports(problem, device)))
    odd = dot(8, dtype="complex64", lda=9, align_a=4)
    assert FAMILIES["tsmttsm_mma"].supports(odd, H200) is None


# ---- bounds of errors, and workspaces
