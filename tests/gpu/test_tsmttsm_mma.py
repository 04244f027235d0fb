"""TSMTTSM on tensor cores, on a GPU."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blockvec
from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.problem import is_complex
from tests.blocks import GUARD, UNIT_ROUNDOFF, counters_are_ready, describe_tsmttsm, draw, framed
from tests.gpu.dense_products import TYPES, configuration, launch, layout

family, three_m = FAMILIES["tsmttsm_mma"], FAMILIES["tsmttsm_3m"]

pytestmark = pytest.mark.gpu

run = functools.partial(launch, family)


@st.composite
def cases(draw_: st.DrawFn) -> dict[str, Any]:
    same = draw_(st.booleans()) and draw_(st.booleans())
    M = draw_(st.integers(1, 64))
    N = M if same else draw_(st.integers(1, 64))
    return layout(draw_, (M, N), (1, 80_000), ([0, 0, 1], [0, 0, 1])) | {
        "dtype": draw_(st.sampled_from(TYPES)),
        "conj": draw_(st.booleans()),
        "alpha": draw_(st.sampled_from([1, -2, 0.5])),
        "beta": draw_(st.sampled_from([0, 0, 1, -3])),
        "same": same,
        "three_m": draw_(st.booleans()),
    }


@settings(max_examples=120)
@given(case=cases())
def test_products_are_within_the_error_bound_and_exact_on_small_integers(
    case: dict[str, Any], cp: Any, device: DeviceInfo, workspace: Any
) -> None:
    rng = np.random.default_rng(case["seed"])
    K, dtype = case["K"], case["dtype"]
    host_a = draw(rng, (K, case["widths"][0]), dtype, case["exact"])
    host_b = host_a if case["same"] else draw(rng, (K, case["widths"][1]), dtype, case["exact"])
    host_c = draw(rng, case["widths"], dtype, case["exact"])
    A, memory_a = framed(cp, host_a, case["lds"][0], case["offsets"][0])
    B, memory_b = (A, memory_a) if case["same"] else framed(cp, host_b, case["lds"][1], case["offsets"][1])
    alpha, beta = case["alpha"], case["beta"]
    problem = describe_tsmttsm(A, B, case["conj"] and is_complex(dtype), alpha, beta)
    family = three_m if case["three_m"] and is_complex(dtype) else FAMILIES["tsmttsm_mma"]
    config = configuration(family, problem, device, case["config"])

    before = [memory_a.copy(), memory_b.copy()]
    results = []
    for _ in range(2):
        C, memory_c = framed(cp, host_c if beta else np.full_like(host_c, np.nan), host_c.shape[1], 0)
        launch(family, problem, config, device, (A, B, C), (alpha, beta), workspace)
        results.append(C.get())
        outside = memory_c.copy()
        outside[GUARD : GUARD + C.size] = cp.nan
        assert bool(cp.isnan(outside).all()), "a write outside C"
    assert results[0].tobytes() == results[1].tobytes()
    assert counters_are_ready(workspace.get())
    for memory, copy in zip((memory_a, memory_b), before, strict=True):
        assert memory.tobytes() == copy.tobytes()

    wide = np.clongdouble if is_complex(dtype) else np.longdouble
    left = (host_a.conj() if problem.conj else host_a).astype(wide)
    expected = alpha * (left.T @ host_b.astype(wide)) + beta * host_c
    if case["exact"]:
        np.testing.assert_array_equal(results[0], expected.astype(dtype))
        return
    length = family.chain_length(problem, config, device)
    scale = abs(alpha) * (np.abs(left).T @ np.abs(host_b)) + abs(beta) * np.abs(host_c)
    bound = 4 * UNIT_ROUNDOFF[dtype] * (2 + np.sqrt(length)) * scale
    assert np.all(np.abs(results[0] - expected) <= bound)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", range(1, 65))
def test_every_width_is_exact_at_a_ragged_number_of_rows(
    width: int, dtype: str, cp: Any, device: DeviceInfo, workspace: Any
) -> None:
    rng = np.random.default_rng(width)
    host_a, host_b = (draw(rng, (20_011 + width, width), dtype, True) for _ in range(2))
    A, B = cp.asarray(host_a), cp.asarray(host_b)
    problem = describe_tsmttsm(A, B, is_complex(dtype), 1, 0)
    expected = host_a.conj().T.astype(np.complex128) @ host_b
    for kernel in (family, three_m) if is_complex(dtype) else (family,):
        C = cp.full((width, width), cp.nan, dtype)
        config = kernel.choose(problem, device)
        launch(kernel, problem, config, device, (A, B, C), (1, 0), workspace)
        np.testing.assert_array_equal(C.get(), expected)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("width", [31, 39, 49, 53, 56, 57, 64])
def test_gram_matrices_are_exact_and_hermitian(
    width: int, dtype: str, cp: Any, device: DeviceInfo, workspace: Any
) -> None:
    host = draw(np.random.default_rng(width), (20_011 + width, width), dtype, True)
    A, expected = cp.asarray(host), host.conj().T.astype(np.complex128) @ host
    problem = describe_tsmttsm(A, A, True, 1, 0)
    for kernel in (family, three_m):
        C = cp.full((width, width), cp.nan, dtype)
        launch(kernel, problem, kernel.choose(problem, device), device, (A, A, C), (1, 0), workspace)
        np.testing.assert_array_equal(C.get(), expected)
    A = cp.random.default_rng(width).random((len(host), 2 * width)).view(np.complex128).astype(dtype)
    C = cp.empty((width, width), dtype)
    config = three_m.choose(problem, device)
    launch(three_m, problem, config, device, (A, A, C), (1, 0), workspace)
    assert bool((C == C.conj().T).all())


@pytest.mark.parametrize("conj", [True, False])
@pytest.mark.parametrize("small", ["real", "imaginary", "columns"])
def test_three_real_products_keep_the_error_bound_where_parts_differ_in_size(
    small: str, conj: bool, cp: Any, device: DeviceInfo, workspace: Any
) -> None:
    rng = np.random.default_rng(3)
    host_a, host_b = (draw(rng, (30_011, 56), "complex128", False) for _ in range(2))
    for host in (host_a, host_b):
        if small == "columns":
            host *= 10.0 ** -np.linspace(0, 14, host.shape[1])
        else:
            getattr(host, "real" if small == "real" else "imag")[...] *= 1e-12
    A, B, C = cp.asarray(host_a), cp.asarray(host_b), cp.empty((56, 56), "complex128")
    problem = describe_tsmttsm(A, B, conj, 1, 0)
    config = three_m.choose(problem, device)
    launch(three_m, problem, config, device, (A, B, C), (1, 0), workspace)
    left = (host_a.conj() if conj else host_a).astype(np.clongdouble)
    error = np.abs(C.get() - left.T @ host_b.astype(np.clongdouble))
    bound = 4 * UNIT_ROUNDOFF["complex128"] * (2 + np.sqrt(three_m.chain_length(problem, config, device)))
    assert np.all(error <= bound * (np.abs(host_a).T @ np.abs(host_b)))


def test_wide_complex_products_take_three_real_ones_unless_the_option_forbids_it(cp: Any) -> None:
    A = blockvec.BlockVector(cp.ones((40_000, 64), "complex128"))
    kernels = []
    for is_allowed in (True, False):
        with blockvec.option_context(three_m=is_allowed, tune="model"):
            kernels.append(blockvec.explain("dot", A, A.copy()).kernel)
    assert kernels == ["tsmttsm_3m", "tsmttsm_mma"]


@pytest.mark.parametrize("width", range(40, 97, 8))
def test_no_stage_of_a_basis_is_overwritten_before_it_is_read(
    width: int, cp: Any, device: DeviceInfo, workspace: Any
) -> None:
    numbers = cp.random.default_rng(width).integers(-1, 2, (2_000_000, width + 16)).astype(np.float64)
    A, B, C = numbers[:, :width], cp.ascontiguousarray(numbers[:, -8:]), cp.empty((width, 8))
    problem = describe_tsmttsm(A, B, False, 1, 0)
    config = family.choose(problem, device)
    for _ in range(20):
        C[...] = cp.nan
        run(problem, config, device, (A, B, C), (1, 0), workspace)
        assert bool((A.T @ B == C).all())


@pytest.mark.parametrize("width", [3, 8, 40])
def test_not_a_number_and_infinity_stay_in_their_columns(
    width: int, cp: Any, device: DeviceInfo, workspace: Any
) -> None:
    rng = np.random.default_rng(0)
    host_a, host_b = (draw(rng, (5003, width), "float64", True) for _ in range(2))
    host_a[4321, 1], host_b[17, 2] = np.nan, np.inf
    A, B, C = cp.asarray(host_a), cp.asarray(host_b), cp.empty((width, width))
    problem = describe_tsmttsm(A, B, False, 1, 0)
    run(problem, family.choose(problem, device), device, (A, B, C), (1, 0), workspace)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(C.get(), host_a.T @ host_b)


def test_two_streams_at_once_give_the_results_of_one(cp: Any, device: DeviceInfo) -> None:
    rng = np.random.default_rng(5)
    host = [draw(rng, (300_007, 24), "float64", True) for _ in range(2)]
    expected = [h.T @ h[:, ::-1] for h in host]
    streams = [cp.cuda.Stream(non_blocking=True) for _ in host]
    blocks = [(cp.asarray(h), cp.asarray(np.ascontiguousarray(h[:, ::-1]))) for h in host]
    results: list[list[Any]] = [[], []]
    spaces = [cp.zeros((16 << 20) // 8) for _ in host]
    cp.cuda.Device().synchronize()
    for _ in range(30):
        for stream, (A, B), mine, space in zip(streams, blocks, results, spaces, strict=True):
            with stream:
                C = cp.full((24, 24), cp.nan)
                problem = describe_tsmttsm(A, B, False, 1, 0)
                run(problem, family.choose(problem, device), device, (A, B, C), (1, 0), space)
                mine.append(C)
    cp.cuda.Device().synchronize()
    for mine, right in zip(results, expected, strict=True):
        for C in mine:
            np.testing.assert_array_equal(C.get(), right)


def test_a_captured_launch_replays(cp: Any, device: DeviceInfo, workspace: Any) -> None:
    A = cp.asarray(draw(np.random.default_rng(1), (10_007, 16), "float64", True))
    C = cp.full((16, 16), cp.nan)
    problem = describe_tsmttsm(A, A, False, 1, 0)
    config = family.choose(problem, device)
    run(problem, config, device, (A, A, C), (1, 0), workspace)  # compiles outside the capture
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        run(problem, config, device, (A, A, C), (1, 0), workspace)
        graph = stream.end_capture()
    cp.cuda.Device().synchronize()
    for _ in range(3):
        C.fill(cp.nan)
        cp.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(C.get(), (A.T @ A).get())


def test_rows_and_widths_past_two_to_the_31_elements(cp: Any, device: DeviceInfo, workspace: Any) -> None:
    K, width = (1 << 27) + 12_345, 17  # 2.3e9 elements, 18 GB
    if cp.cuda.runtime.memGetInfo()[0] < 22 << 30:
        pytest.skip("needs 22 GB of device memory")
    A = cp.zeros((K, width))
    rows = cp.asarray([0, 1, (1 << 31) // width, (1 << 31) // width + 1, K - 2, K - 1])
    A[rows] = cp.arange(1, width + 1)
    C = cp.full((width, width), cp.nan)
    problem = describe_tsmttsm(A, A, False, 1, 0)
    run(problem, family.choose(problem, device), device, (A, A, C), (1, 0), workspace)
    line = np.arange(1.0, width + 1)
    np.testing.assert_array_equal(C.get(), 6 * np.outer(line, line))
    apart = replace(problem, same=False)
    run(apart, family.choose(apart, device), device, (A, A, C), (1, 0), workspace)
    np.testing.assert_array_equal(C.get(), 6 * np.outer(line, line))
