"""Both families of multiply-adds, without a GPU: choices, spaces and compilation."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from blockvec.kernels import build as compiler
from blockvec.kernels.dense import tsmm_fma, tsmttsm_fma
from blockvec.kernels.device import H200, DeviceInfo
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.problem import TsmmProblem, TsmttsmProblem, in_class
from tests.blocks import TYPES, tsmm_problem, tsmttsm_problem
from tests.compiled import A100, needs_compiler

BOTH = pytest.mark.parametrize("operation", ["tsmm", "tsmttsm"])
DESCRIBED: dict[str, Any] = {"tsmm": tsmm_problem, "tsmttsm": tsmttsm_problem}


def family_of(problem: TsmmProblem | TsmttsmProblem) -> Any:
    return FAMILIES["tsmm_fma" if isinstance(problem, TsmmProblem) else "tsmttsm_fma"]


@BOTH
@pytest.mark.parametrize("dtype", TYPES)
def test_every_width_has_a_valid_choice_in_a_moment(dtype: str, operation: str) -> None:
    seconds = []
    for width in range(1, 65):
        p = DESCRIBED[operation](width, dtype=dtype)
        family = family_of(p)
        start = time.process_time()
        config = family.choose(p, H200)
        seconds.append(time.process_time() - start)
        assert family.refuse(p, config, H200) is None
        assert family.predict(p, config, H200) > 0
        assert operation == "tsmm" or config.reduction == "partials"
    assert np.median(seconds) < 0.05


@pytest.mark.parametrize(
    ("p", "other"),
    [
        (in_class(tsmm_problem(8, K=1_000_000)), in_class(tsmm_problem(8, K=700_000))),
        (tsmttsm_problem(8), tsmttsm_problem(8, alpha="general", beta="general")),
    ],
    ids=["close row counts", "other factors"],
)
def test_a_choice_is_remembered_for_problems_alike(
    p: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = type(family_of(p).model)()
    predict, predicted = model.predict, []

    def counted(*of: Any) -> float:
        predicted.append(of)
        return float(predict(*of))

    monkeypatch.setattr(model, "predict", counted)
    chosen, count = model.choose(p, H200), len(predicted)
    assert count > 0
    assert model.choose(other, H200) == chosen
    assert len(predicted) == count


@pytest.mark.parametrize(
    "p",
    [
        *(
            described(*widths, **changes)
            for described in (tsmm_problem, tsmttsm_problem)
            for widths, changes in (
                ((1, 64), {}),
                ((64, 1, "complex64"), {}),
                ((7, 19, "float32"), {"K": 0}),
                ((13, 8), {"lda": 61, "ldb": 64, "align_a": 8}),
                ((13, 8, "complex64"), {"lda": 61, "ldb": 65, "align_a": 4, "align_b": 4}),
            )
        ),
        tsmm_problem(33, 2, "complex128", K=1, beta="general"),
        tsmm_problem(31, inplace=True),
        tsmm_problem(16, 5, ldb=16, inplace=True, align_b=16),
        tsmm_problem(5, 6, "complex128", dtype_c="float32"),
        tsmm_problem(5, 6, "float32", dtype_c="complex128", align_a=4),
        tsmttsm_problem(33, 2, "complex128", K=1),
        tsmttsm_problem(31, same=True),
        tsmttsm_problem(5, 6, "complex128", dtype_b="float32", align_b=4),
        tsmttsm_problem(5, 6, "float32", dtype_b="complex128", align_a=4),
    ],
    ids=str,
)
def test_problems_of_all_shapes_have_a_choice_and_a_space(p: Any) -> None:
    family = family_of(p)
    assert family.refuse(p, family.choose(p, H200), H200) is None
    configs = family.space(p, H200)
    assert len(configs) > 20
    assert all(family.refuse(p, config, H200) is None for config in configs)


@BOTH
def test_what_the_families_cannot_run_is_refused_with_a_reason(operation: str) -> None:
    described, wide = DESCRIBED[operation], DESCRIBED[operation](65)
    family = family_of(wide)
    assert "widths" in str(family.supports(wide, H200))
    assert "CUDA" in str(family.supports(described(8), replace(H200, kind="cpu")))
    with pytest.raises(ValueError, match=f"{operation}_fma cannot run"):
        family.choose(wide, H200)


def assert_compiles_clean(p: Any, config: Any, device: DeviceInfo = H200) -> None:
    family = family_of(p)
    assert family.refuse(p, config, device) is None
    cubin = compiler.build(family.source(p, config, device), device.architecture)
    assert cubin.resources.spill_bytes == cubin.resources.stack_bytes == 0, (p, config, cubin.resources)
    settings = tsmm_fma if isinstance(p, TsmmProblem) else tsmttsm_fma
    assert cubin.resources.shared_bytes <= settings.STATIC_SHARED_BYTES


@needs_compiler
@BOTH
@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.architecture)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", [3, 20, 64])
def test_configurations_of_the_space_compile_without_spills(
    width: int, dtype: str, device: DeviceInfo, operation: str
) -> None:
    p = DESCRIBED[operation](width, dtype=dtype)
    draw = random.Random(f"{width}{dtype}{device.architecture}")
    assert_compiles_clean(p, draw.choice(family_of(p).space(p, device)), device)


@needs_compiler
@pytest.mark.parametrize(
    "p",
    [
        tsmm_problem(31, inplace=True, alpha="general", beta="general"),
        tsmm_problem(9, dtype="complex64", beta="one"),
        tsmm_problem(13, 8, lda=61, ldb=64, align_a=8, beta="one"),
        tsmm_problem(7, dtype="complex128", beta="general"),  # few registers to spare
        tsmm_problem(12, 15, dtype="complex128", beta="general"),
        tsmm_problem(63, dtype="float32"),
        tsmm_problem(5, 6, "complex128", dtype_c="float32"),
        tsmttsm_problem(31, same=True),
        tsmttsm_problem(9, dtype="complex64", same=True, alpha="general", beta="general"),
        tsmttsm_problem(13, 8, lda=61, ldb=64, align_a=8, beta="one"),
        tsmttsm_problem(63, dtype="float32"),
        tsmttsm_problem(5, 6, "complex128", dtype_b="float32", align_b=4),
    ],
    ids=str,
)
def test_choices_for_other_problems_compile_without_spills(p: Any) -> None:
    assert_compiles_clean(p, family_of(p).choose(p, H200))
