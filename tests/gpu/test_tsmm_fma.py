"""TSMM by multiply-adds, on a GPU."""

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
from tests.blocks import UNIT_ROUNDOFF, asks_for_chunks, describe_tsmm, draw, framed, wide
from tests.gpu.dense_products import TYPES, configuration, launch_with_queue, layout

family = FAMILIES["tsmm_fma"]

pytestmark = pytest.mark.gpu

run = functools.partial(launch_with_queue, family)


@st.composite
def cases(draw_: st.DrawFn) -> dict[str, Any]:
    dtype_a = draw_(st.sampled_from(TYPES))
    dtype_c = dtype_a if draw_(st.integers(0, 3)) else draw_(st.sampled_from(TYPES))
    inplace = promote(dtype_a, dtype_c) == dtype_a and draw_(st.booleans()) and draw_(st.booleans())
    M = draw_(st.integers(1, 64))
    N = draw_(st.integers(1, M if inplace else 64))
    factors = [1, -2, 0.5, 1 - 2j] if is_complex(promote(dtype_a, dtype_c)) else [1, -2, 0.5]
    return layout(draw_, (M, N), (0, 50_000), ([0, 0, 1, 3], [0, 0, 1, 2])) | {
        "dtypes": (dtype_a, dtype_c),
        "factors": (draw_(st.sampled_from(factors)), draw_(st.sampled_from([0, 0, 1, -3]))),
        "inplace": inplace,
        "few_blocks": draw_(st.booleans()),
    }


@settings(max_examples=150)
@given(case=cases())
def test_products_are_within_the_error_bound_and_nothing_else_is_written(
    case: dict[str, Any], cp: Any, device: DeviceInfo
) -> None:
    rng = np.random.default_rng(case["seed"])
    (K, (M, N)), (dtype_a, dtype_c), exact = (case["K"], case["widths"]), case["dtypes"], case["exact"]
    dtype, (alpha, beta) = promote(dtype_a, dtype_c), case["factors"]
    host_a, host_c = draw(rng, (K, M), dtype_a, exact), draw(rng, (M, N), dtype_c, exact)
    host_b = host_a[:, :N] if case["inplace"] else draw(rng, (K, N), dtype, exact)
    C = cp.asarray(host_c)
    if case["few_blocks"]:  # so that each has many chunks to ask for
        device = replace(device, multiprocessors=2)

    results = []
    for _ in range(2):
        A, memory_a = framed(cp, host_a, case["lds"][0], case["offsets"][0])
        B, memory_b = A[:, :N], memory_a
        if not case["inplace"]:
            poison = np.full((K, N), np.nan, dtype)
            B, memory_b = framed(cp, host_b if beta else poison, case["lds"][1], case["offsets"][1])
        problem = describe_tsmm(A, C, B, alpha, beta)
        config = configuration(family, problem, device, case["config"])
        untouched = memory_a.copy()
        run(problem, config, device, (A, C, B), (alpha, beta))
        results.append(B.get())
        if case["inplace"]:
            B[...] = cp.asarray(host_b)
        else:
            B[...] = cp.nan
            assert bool(cp.isnan(memory_b).all()), "a write outside B"
        assert memory_a.tobytes() == untouched.tobytes(), "a write to A or outside B"
    assert results[0].tobytes() == results[1].tobytes()

    left, right, old = (x.astype(wide(x.dtype)) for x in (host_a, host_c, host_b))
    expected = alpha * (left @ right) + (beta * old if beta else 0)
    if exact:
        np.testing.assert_array_equal(results[0], expected.astype(dtype))
        return
    terms = abs(alpha) * (np.abs(left) @ np.abs(right)) + abs(beta) * np.abs(old)
    length = family.chain_length(problem, config, device)
    assert np.all(np.abs(results[0] - expected) <= 4 * UNIT_ROUNDOFF[dtype] * (2 + np.sqrt(length)) * terms)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", range(1, 65))
def test_every_width_is_exact_at_a_ragged_number_of_rows(
    width: int, dtype: str, cp: Any, device: DeviceInfo
) -> None:
    rng = np.random.default_rng(width)
    host_a, host_c = draw(rng, (20_011 + width, width), dtype), draw(rng, (width, width), dtype)
    A, C, B = cp.asarray(host_a), cp.asarray(host_c), cp.full_like(host_a, cp.nan)
    problem = describe_tsmm(A, C, B, 1, 0)
    run(problem, family.choose(problem, device), device, (A, C, B))
    np.testing.assert_array_equal(B.get(), host_a @ host_c)


def test_denormal_numbers_are_kept(cp: Any, device: DeviceInfo) -> None:
    A, C = cp.full((1001, 3), np.float32(2.0**-140)), cp.full((3, 2), 0.5, "float32")
    B = cp.empty((1001, 2), "float32")
    problem = describe_tsmm(A, C, B, 1, 0)
    run(problem, family.choose(problem, device), device, (A, C, B))
    np.testing.assert_array_equal(B.get(), np.full((1001, 2), np.float32(3 * 2.0**-141)))


@pytest.mark.parametrize("width", [3, 8, 40])
def test_not_a_number_stays_in_its_row(width: int, cp: Any, device: DeviceInfo) -> None:
    rng = np.random.default_rng(0)
    host_a, host_c = draw(rng, (5003, width), "float64"), draw(rng, (width, width), "float64")
    host_a[4321, 1], host_a[17, 2] = np.nan, np.inf
    A, C, B = cp.asarray(host_a), cp.asarray(host_c), cp.empty((5003, width))
    problem = describe_tsmm(A, C, B, 1, 0)
    run(problem, family.choose(problem, device), device, (A, C, B))
    clean = np.ones(5003, bool)
    clean[[17, 4321]] = False
    np.testing.assert_array_equal(B.get()[clean], host_a[clean] @ host_c)
    assert np.isnan(B.get()[4321]).all()


def test_rows_and_widths_past_two_to_the_31_elements(cp: Any, device: DeviceInfo) -> None:
    K, width = (1 << 28) + 12_345, 9  # 2.4e9 elements, 10 GB, twice
    if cp.cuda.runtime.memGetInfo()[0] < 30 << 30:
        pytest.skip("needs 30 GB of free device memory")
    A = cp.zeros((K, width), "float32")
    rows = cp.asarray([0, 1, (1 << 31) // width, (1 << 31) // width + 1, K - 2, K - 1])
    A[rows] = cp.arange(1, width + 1, dtype="float32")
    C, B = cp.eye(width, dtype="float32")[:, ::-1].copy(), cp.empty((K, width), "float32")
    problem = describe_tsmm(A, C, B, 1, 0)
    direct = replace(family.choose(problem, device), stages=0, staged_out=False, padded=False)
    for config in (family.choose(problem, device), direct):
        B.fill(cp.nan)
        run(problem, config, device, (A, C, B))
        assert bool((B[rows] == cp.arange(width, 0, -1)).all())
        assert float(cp.abs(B).sum(dtype="float64")) == 6 * width * (width + 1) / 2


def test_a_captured_launch_replays(cp: Any, device: DeviceInfo) -> None:
    rows = 1_000_007  # more chunks than warps begin with
    host_a, host_c = (draw(np.random.default_rng(1), shape, "float64") for shape in ((rows, 6), (6, 6)))
    A, C, B = cp.asarray(host_a), cp.asarray(host_c), cp.full((rows, 6), cp.nan)
    problem = describe_tsmm(A, C, B, 1, 0)
    config = family.choose(problem, device)
    assert asks_for_chunks(problem, config, device.multiprocessors * config.blocks)
    queue = cp.zeros(family.workspace_bytes(problem, config, device), cp.uint8)
    run(problem, config, device, (A, C, B))  # compiles outside the capture
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        run(problem, config, device, (A, C, B), queue=queue)
        graph = stream.end_capture()
    for _ in range(3):
        B.fill(cp.nan)
        cp.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(B.get(), host_a @ host_c)
        assert not queue.any()
