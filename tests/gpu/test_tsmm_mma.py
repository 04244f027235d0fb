"""TSMM on tensor cores, on a GPU."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blockvec
from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.problem import is_complex
from tests.blocks import GUARD, UNIT_ROUNDOFF, describe_tsmm, draw, framed
from tests.gpu.dense_products import TYPES, configuration, launch_with_queue, layout

family, three_m = FAMILIES["tsmm_mma"], FAMILIES["tsmm_3m"]

pytestmark = pytest.mark.gpu

run = functools.partial(launch_with_queue, family)


def product(A: np.ndarray, C: np.ndarray, B: np.ndarray, alpha: complex, beta: complex) -> np.ndarray:
    """The result in higher precision; numpy's long double adds up to nothing less."""
    wide = np.clongdouble if A.dtype.kind == "c" else np.longdouble
    result = alpha * (A.astype(wide) @ C.astype(wide))
    return result if beta == 0 else result + beta * B.astype(wide)


@st.composite
def cases(draw_: st.DrawFn) -> dict[str, Any]:
    dtype = draw_(st.sampled_from(TYPES))
    inplace = draw_(st.integers(0, 3)) == 0
    M = draw_(st.integers(1, 64))
    N = draw_(st.sampled_from([M, draw_(st.integers(1, M))])) if inplace else draw_(st.integers(1, 64))
    units = [1, 1j, 1 - 1j] if is_complex(dtype) else [1]
    return layout(draw_, (M, N), (0, 40_000), ([0, 0, 1], [0, 0, 1])) | {
        "dtype": dtype,
        "inplace": inplace,
        "three_m": draw_(st.booleans()),
        "alpha": draw_(st.sampled_from([1, 1, -2, 0.5])) * draw_(st.sampled_from(units)),
        "beta": draw_(st.sampled_from([0, 0, 1, -3])) * draw_(st.sampled_from(units)),
    }


@settings(max_examples=150)
@given(case=cases())
def test_products_are_within_the_error_bound_and_exact_on_small_integers(
    case: dict[str, Any], cp: Any, device: DeviceInfo
) -> None:
    rng = np.random.default_rng(case["seed"])
    dtype, K, (M, N), exact = case["dtype"], case["K"], case["widths"], case["exact"]
    alpha, beta = case["alpha"], case["beta"]
    host_a, host_c = draw(rng, (K, M), dtype, exact), draw(rng, (M, N), dtype, exact)
    host_b = host_a[:, :N] if case["inplace"] else draw(rng, (K, N), dtype, exact)
    C = cp.asarray(host_c)
    results = []
    for _ in range(2):
        A, memory_a = framed(cp, host_a, case["lds"][0], case["offsets"][0])
        if case["inplace"]:
            B, memory_b = A[:, :N], memory_a
        else:
            given_b = host_b if beta else np.full_like(host_b, np.nan)
            B, memory_b = framed(cp, given_b, case["lds"][1], case["offsets"][1])
        before_a, before_b = memory_a.copy(), memory_b.copy()
        if K == 0:
            return
        problem = describe_tsmm(A, C, B, alpha, beta)
        can_take_three = case["three_m"] and three_m.supports(problem, device) is None
        kernel = three_m if can_take_three else family
        config = configuration(kernel, problem, device, case["config"])
        launch_with_queue(kernel, problem, config, device, (A, C, B), (alpha, beta))
        results.append(B.get())
        B[...] = cp.asarray(0)
        if case["inplace"]:
            before_a[GUARD + case["offsets"][0] :][: K * case["lds"][0]].reshape(K, -1)[:, :N] = 0
        else:
            before_b[GUARD + case["offsets"][1] :][: K * case["lds"][1]].reshape(K, -1)[:, :N] = 0
            assert memory_b.tobytes() == before_b.tobytes(), "a write outside B"
        assert memory_a.tobytes() == before_a.tobytes(), "a write to A"
    assert results[0].tobytes() == results[1].tobytes()

    expected = product(host_a, host_c, host_b, alpha, beta)
    if exact:
        np.testing.assert_array_equal(results[0], expected.astype(dtype))
        return
    length = kernel.chain_length(problem, config, device)
    scale = abs(alpha) * (np.abs(host_a) @ np.abs(host_c).astype(float)) + abs(beta) * np.abs(host_b)
    bound = 4 * UNIT_ROUNDOFF[dtype] * (2 + np.sqrt(length)) * scale
    assert np.all(np.abs(results[0] - expected) <= bound)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", range(1, 65))
def test_every_width_is_exact_at_a_ragged_number_of_rows(
    width: int, dtype: str, cp: Any, device: DeviceInfo
) -> None:
    rng = np.random.default_rng(width)
    host_a, host_c = (
        draw(rng, (20_011 + width, width), dtype, True),
        draw(rng, (width, width), dtype, True),
    )
    A, C = cp.asarray(host_a), cp.asarray(host_c)
    B = cp.full_like(A, cp.nan)
    problem = describe_tsmm(A, C, B, 1, 0)
    run(problem, family.choose(problem, device), device, (A, C, B))
    np.testing.assert_array_equal(B.get(), host_a @ host_c)
    in_place = describe_tsmm(A, C, A, 1, 0)
    run(in_place, family.choose(in_place, device), device, (A, C, A))
    np.testing.assert_array_equal(A.get(), host_a @ host_c)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("width", [3, 24, 41, 46, 49, 53, 56, 57, 61, 64])
def test_three_real_products_are_exact_also_in_place(
    width: int, dtype: str, cp: Any, device: DeviceInfo
) -> None:
    rng = np.random.default_rng(width)
    host_a, host_c = draw(rng, (20_011 + width, width), dtype), draw(rng, (width, width), dtype)
    A, C = cp.asarray(host_a), cp.asarray(host_c)
    B = cp.full_like(A, cp.nan)
    for to in (B, A):
        problem = describe_tsmm(A, C, to, 1, 0)
        launch_with_queue(three_m, problem, three_m.choose(problem, device), device, (A, C, to))
        np.testing.assert_array_equal(to.get(), host_a @ host_c)


@pytest.mark.parametrize("small", ["real", "imaginary", "columns"])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_three_real_products_keep_the_error_bound_where_parts_differ_in_size(
    dtype: str, small: str, cp: Any, device: DeviceInfo
) -> None:
    rng = np.random.default_rng(3)
    host_a, host_c = draw(rng, (30_011, 56), dtype, False), draw(rng, (56, 57), dtype, False)
    for host in (host_a, host_c):
        if small == "columns":
            host *= 10.0 ** -np.linspace(0, 14, host.shape[1]).astype(host.real.dtype)
        else:
            getattr(host, "real" if small == "real" else "imag")[...] *= 1e-12
    A, C = cp.asarray(host_a), cp.asarray(host_c)
    B = cp.empty((len(host_a), 57), dtype)
    problem = describe_tsmm(A, C, B, 1, 0)
    config = three_m.choose(problem, device)
    launch_with_queue(three_m, problem, config, device, (A, C, B))
    error = np.abs(B.get() - product(host_a, host_c, host_a, 1, 0))
    bound = 4 * UNIT_ROUNDOFF[dtype] * (2 + np.sqrt(three_m.chain_length(problem, config, device)))
    assert np.all(error <= bound * (np.abs(host_a).astype(float) @ np.abs(host_c).astype(float)))


def test_wide_complex_products_take_three_real_ones_unless_the_option_forbids_it(cp: Any) -> None:
    A, C = blockvec.BlockVector(cp.ones((40_000, 64), "complex128")), cp.ones((64, 64), "complex128")
    kernels = []
    for is_allowed in (True, False):
        with blockvec.option_context(three_m=is_allowed, tune="model"):
            kernels.append(blockvec.explain("combine", A, C).kernel)
    assert kernels == ["tsmm_3m", "tsmm_mma"]


@pytest.mark.parametrize("width", [3, 8, 40])
def test_not_a_number_and_infinity_stay_in_their_rows(width: int, cp: Any, device: DeviceInfo) -> None:
    rng = np.random.default_rng(0)
    host_a, host_c = (
        draw(rng, (5003, width), "float64", True),
        draw(rng, (width, width), "float64", True),
    )
    host_a[4321, 1], host_a[17, 2] = np.nan, np.inf
    A, C = cp.asarray(host_a), cp.asarray(host_c)
    B = cp.empty_like(A)
    problem = describe_tsmm(A, C, B, 1, 0)
    run(problem, family.choose(problem, device), device, (A, C, B))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(B.get(), host_a @ host_c)


def test_two_streams_at_once_give_the_results_of_one(cp: Any, device: DeviceInfo) -> None:
    rng = np.random.default_rng(5)
    host = [draw(rng, (300_007, 24), "float64", True) for _ in range(2)]
    factors = [draw(rng, (24, 24), "float64", True) for _ in range(2)]
    streams = [cp.cuda.Stream(non_blocking=True) for _ in host]
    blocks = [(cp.asarray(h), cp.asarray(c)) for h, c in zip(host, factors, strict=True)]
    cp.cuda.Device().synchronize()
    results: list[list[Any]] = [[], []]
    for _ in range(20):
        for stream, (A, C), mine in zip(streams, blocks, results, strict=True):
            with stream:
                B = cp.full_like(A, cp.nan)
                problem = describe_tsmm(A, C, B, 1, 0)
                run(problem, family.choose(problem, device), device, (A, C, B))
                mine.append(B)
    cp.cuda.Device().synchronize()
    for mine, h, c in zip(results, host, factors, strict=True):
        for B in mine:
            np.testing.assert_array_equal(B.get(), h @ c)


def test_a_captured_launch_replays(cp: Any, device: DeviceInfo) -> None:
    rng = np.random.default_rng(1)
    rows = 1_000_007  # more tiles than groups of warps begin with
    host_a, host_c = draw(rng, (rows, 16), "float64", True), draw(rng, (16, 16), "float64", True)
    A, C = cp.asarray(host_a), cp.asarray(host_c)
    B = cp.full_like(A, cp.nan)
    problem = describe_tsmm(A, C, B, 1, 0)
    config = family.choose(problem, device)
    assert rows // config.rows > config.stages * config.groups * device.multiprocessors
    counters = cp.zeros(family.workspace_bytes(problem, config, device), cp.uint8)
    run(problem, config, device, (A, C, B))  # compiles outside the capture
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        run(problem, config, device, (A, C, B), queue=counters)
        graph = stream.end_capture()
    for _ in range(3):
        B.fill(cp.nan)
        cp.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(B.get(), host_a @ host_c)
        assert not counters.any()


@pytest.mark.parametrize(("M", "N"), [(17, 1), (1, 17)])
def test_rows_and_widths_past_two_to_the_31_elements(M: int, N: int, cp: Any, device: DeviceInfo) -> None:
    K = (1 << 27) + 12_345  # times 17 columns: 2.3e9 elements, 18 GB
    if cp.cuda.runtime.memGetInfo()[0] < 24 << 30:
        pytest.skip("needs 24 GB of device memory")
    A, B = cp.zeros((K, M)), cp.full((K, N), cp.nan)
    rows = cp.asarray([0, 1, (1 << 31) // 17, (1 << 31) // 17 + 1, K - 2, K - 1])
    A[rows] = cp.arange(1, M + 1)
    C = cp.arange(1.0, M * N + 1).reshape(M, N)
    problem = describe_tsmm(A, C, B, 1, 0)
    run(problem, family.choose(problem, device), device, (A, C, B))
    cp.testing.assert_array_equal(B[rows], A[rows] @ C)
    B[rows] = 0
    assert not bool(B.any())
