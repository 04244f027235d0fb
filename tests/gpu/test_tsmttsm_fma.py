"""TSMTTSM by multiply-adds, on a GPU."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.problem import is_complex, promote
from tests.blocks import UNIT_ROUNDOFF, counters_are_ready, describe_tsmttsm, draw, framed, wide
from tests.gpu.dense_products import TYPES, configuration, launch, layout

family = FAMILIES["tsmttsm_fma"]

pytestmark = pytest.mark.gpu

run = functools.partial(launch, family)


def reference(
    host: tuple[np.ndarray, np.ndarray, np.ndarray], conj: bool, factors: tuple[complex, complex]
) -> tuple[np.ndarray, np.ndarray]:
    """The result in higher precision, and the sum of the magnitudes of its terms."""
    A, B, C = (x.astype(wide(x.dtype)) for x in host)
    left = (A.conj() if conj else A).T
    alpha, beta = factors
    terms = abs(alpha) * (np.abs(left) @ np.abs(B)) + abs(beta) * np.abs(C)
    return alpha * (left @ B) + beta * C, terms


@st.composite
def cases(draw_: st.DrawFn) -> dict[str, Any]:
    dtype = draw_(st.sampled_from(TYPES))
    same = draw_(st.booleans()) and draw_(st.booleans())
    M = draw_(st.integers(1, 64))
    N = M if same else draw_(st.integers(1, 64))
    other = dtype if same or draw_(st.integers(0, 3)) else draw_(st.sampled_from(TYPES))
    factors = [1, -2, 0.5, 1 - 2j] if is_complex(promote(dtype, other)) else [1, -2, 0.5]
    return layout(draw_, (M, N), (0, 80_000), ([0, 0, 1, 3], [0, 0, 1, 2])) | {
        "dtypes": (dtype, other),
        "conj": draw_(st.booleans()),
        "factors": (draw_(st.sampled_from(factors)), draw_(st.sampled_from([0, 0, 1, -3]))),
        "same": same,
        "reduction": draw_(st.sampled_from(["partials", "partials", "partials", "blocks", "threads"])),
    }


@settings(max_examples=150)
@given(case=cases())
def test_products_are_within_the_error_bound_and_exact_on_small_integers(
    case: dict[str, Any], cp: Any, device: DeviceInfo, workspace: Any
) -> None:
    rng = np.random.default_rng(case["seed"])
    K, (dtype_a, dtype_b), exact = case["K"], case["dtypes"], case["exact"]
    dtype = promote(dtype_a, dtype_b)
    host_a = draw(rng, (K, case["widths"][0]), dtype_a, exact)
    host_b = host_a if case["same"] else draw(rng, (K, case["widths"][1]), dtype_b, exact)
    host_c = draw(rng, case["widths"], dtype, exact)
    A, memory_a = framed(cp, host_a, case["lds"][0], case["offsets"][0])
    B, memory_b = (A, memory_a) if case["same"] else framed(cp, host_b, case["lds"][1], case["offsets"][1])
    alpha, beta = case["factors"]
    problem = describe_tsmttsm(A, B, case["conj"], alpha, beta)
    config = configuration(family, problem, device, case["config"])
    reduction = "blocks" if config.sums == "shared" and case["reduction"] == "threads" else case["reduction"]
    config = replace(config, reduction=reduction)

    before = [memory_a.copy(), memory_b.copy()]
    results = []
    for _ in range(2):
        C, memory_c = framed(cp, host_c if beta else np.full_like(host_c, np.nan), host_c.shape[1])
        run(problem, config, device, (A, B, C), (alpha, beta), workspace)
        results.append(C.get())
        C[...] = cp.nan
        assert bool(cp.isnan(memory_c).all()), "a write outside C"
    if config.reduction == "partials":
        assert results[0].tobytes() == results[1].tobytes()
    assert counters_are_ready(workspace.get())
    for memory, copy in zip((memory_a, memory_b), before, strict=True):
        assert memory.tobytes() == copy.tobytes()

    expected, terms = reference((host_a, host_b, host_c), problem.conj, (alpha, beta))
    if exact:
        np.testing.assert_array_equal(results[0], expected.astype(dtype))
        return
    length = family.chain_length(problem, config, device)
    bound = 4 * UNIT_ROUNDOFF[dtype] * (2 + np.sqrt(length)) * terms
    assert np.all(np.abs(results[0] - expected) <= bound)
    if (
        case["same"]
        and (problem.conj or not is_complex(dtype_a))
        and beta == 0
        and not isinstance(alpha, complex)
    ):
        np.testing.assert_array_equal(results[0], results[0].conj().T)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", range(1, 65))
def test_every_width_is_exact_at_a_ragged_number_of_rows(
    width: int, dtype: str, cp: Any, device: DeviceInfo, workspace: Any
) -> None:
    rng = np.random.default_rng(width)
    host_a, host_b = (draw(rng, (20_011 + width, width), dtype) for _ in range(2))
    A, B, C = cp.asarray(host_a), cp.asarray(host_b), cp.full((width, width), cp.nan, dtype)
    problem = describe_tsmttsm(A, B, True, 1, 0)
    run(problem, family.choose(problem, device), device, (A, B, C), (1, 0), workspace)
    np.testing.assert_array_equal(C.get(), host_a.conj().T.astype(np.complex128) @ host_b)


def test_a_million_rows_of_single_precision_keep_its_accuracy(
    cp: Any, device: DeviceInfo, workspace: Any
) -> None:
    host = np.random.default_rng(2).uniform(0, 1, (1_000_003, 6)).astype("float32")
    A, C = cp.asarray(host), cp.empty((6, 6), "float32")
    problem = replace(describe_tsmttsm(A, A, False, 1, 0), same=False)
    expected = host.T.astype(float) @ host
    for config in (family.choose(problem, device), *family.configurations(problem, device)):
        run(problem, config, device, (A, A, C), (1, 0), workspace)
        np.testing.assert_allclose(C.get(), expected, rtol=2e-6)


def test_denormal_numbers_are_kept(cp: Any, device: DeviceInfo, workspace: Any) -> None:
    tiny = np.float32(2.0**-140)
    A, B = cp.full((1001, 3), tiny), cp.full((1001, 2), 0.5, "float32")
    C = cp.empty((3, 2), "float32")
    problem = describe_tsmttsm(A, B, False, 1, 0)
    run(problem, family.choose(problem, device), device, (A, B, C), (1, 0), workspace)
    np.testing.assert_array_equal(C.get(), np.full((3, 2), np.float32(1001 * 2.0**-141)))


@pytest.mark.parametrize("width", [3, 8, 40])
def test_not_a_number_and_infinity_stay_in_their_columns(
    width: int, cp: Any, device: DeviceInfo, workspace: Any
) -> None:
    rng = np.random.default_rng(0)
    host_a, host_b = (draw(rng, (5003, width), "float64") for _ in range(2))
    host_a[4321, 1], host_b[17, 2] = np.nan, np.inf
    A, B, C = cp.asarray(host_a), cp.asarray(host_b), cp.empty((width, width))
    problem = describe_tsmttsm(A, B, False, 1, 0)
    run(problem, family.choose(problem, device), device, (A, B, C), (1, 0), workspace)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(C.get(), host_a.T @ host_b)


def test_rows_and_widths_past_two_to_the_31_elements(cp: Any, device: DeviceInfo, workspace: Any) -> None:
    K, width = (1 << 28) + 12_345, 9  # 2.4e9 elements, 10 GB
    if cp.cuda.runtime.memGetInfo()[0] < 12 << 30:
        pytest.skip("needs 12 GB of device memory")
    A = cp.zeros((K, width), "float32")
    rows = cp.asarray([0, 1, (1 << 31) // width, (1 << 31) // width + 1, K - 2, K - 1])
    A[rows] = cp.arange(1, width + 1, dtype="float32")
    C = cp.full((width, width), cp.nan, "float32")
    apart = replace(describe_tsmttsm(A, A, False, 1, 0), same=False)
    line = np.arange(1.0, width + 1)
    direct = replace(family.choose(apart, device), stages=0, steps=1, unroll=1)
    for config in (family.choose(apart, device), direct):
        C.fill(cp.nan)
        run(apart, config, device, (A, A, C), (1, 0), workspace)
        np.testing.assert_array_equal(C.get(), 6 * np.outer(line, line))


def test_launches_follow_each_other_in_one_workspace(cp: Any, device: DeviceInfo, workspace: Any) -> None:
    rng = np.random.default_rng(5)
    host = [draw(rng, (100_003, width), "float64") for width in (1, 24, 5)]
    blocks = [cp.asarray(h) for h in host]
    results = []
    for _ in range(10):
        for A, reduction in zip(blocks, ("partials", "blocks", "threads"), strict=True):
            C = cp.full((A.shape[1],) * 2, cp.nan)
            problem = describe_tsmttsm(A, A, False, 1, 0)
            config = replace(family.choose(problem, device), reduction=reduction)
            run(problem, config, device, (A, A, C), (1, 0), workspace)
            results.append(C)
    for i, C in enumerate(results):
        np.testing.assert_array_equal(C.get(), host[i % 3].T @ host[i % 3])
