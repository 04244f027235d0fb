"""The contract of families for products of two tall blocks (dot) and of a block and a matrix (combine)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from blockvec.kernels import build as compiler
from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.families import FAMILIES
from blockvec.kernels.problem import TsmttsmProblem, is_complex, promote
from tests.blocks import (
    UNIT_ROUNDOFF,
    bind,
    counters_are_ready,
    describe_tsmm,
    describe_tsmttsm,
    draw,
    framed,
    wide,
)

pytestmark = pytest.mark.gpu

TYPES = ("float32", "float64", "complex64", "complex128")
DOTS = ("tsmttsm_fma", "tsmttsm_mma", "tsmttsm_3m")
COMBINATIONS = ("tsmm_fma", "tsmm_mma", "tsmm_3m")
ON_FAMILIES = pytest.mark.parametrize("name", [*DOTS, *COMBINATIONS])
Run = Callable[..., Any]


class RefusedError(Exception):
    """A family cannot run a problem."""


@pytest.fixture(scope="module")
def run(cp: Any, device: DeviceInfo, workspace: Any) -> Run:
    """Launch a family on arrays, whose order is that of the kernels; return its problem and configuration."""

    def launch(
        name: str,
        operands: tuple[Any, Any, Any],
        factors: tuple[complex, complex] = (1, 0),
        conj: bool = True,
        *,
        on: DeviceInfo = device,
        pick: int = 1,
        **changes: Any,
    ) -> tuple[Any, Any]:
        family, is_dot = FAMILIES[name], name in DOTS
        A, other, out = operands
        problem: Any = (
            describe_tsmttsm(A, other, conj, *factors) if is_dot else describe_tsmm(A, other, out, *factors)
        )
        problem = replace(problem, **{k: v for k, v in changes.items() if hasattr(problem, k)})
        if reason := family.refuse_problem(problem, on):
            raise RefusedError(reason)
        config = family.choose(problem, on)
        if pick % 3 == 0:  # another one of the list
            valid = family.configurations(problem, on)
            config = valid[pick // 3 % len(valid)]
        config = replace(config, **{k: v for k, v in changes.items() if hasattr(config, k)})
        assert family.refuse(problem, config, on) is None
        needed = family.workspace_bytes(problem, config, on)
        space = workspace if is_dot else cp.zeros(needed, cp.uint8)
        assert needed <= space.nbytes
        kernel = compiler.build(family.kernel(problem, config, on), on.architecture)
        addresses = [operand.data.ptr for operand in operands]
        bind(family, kernel, problem, config, on)(*addresses, *factors, space.data.ptr)
        assert counters_are_ready(space.get()) if is_dot else not space.any()
        return problem, config

    return launch


def exact(rng: np.random.Generator, name: str, rows: int, widths: tuple[int, int], *types: str) -> list[Any]:
    """Draw the operands of a product, and its result."""
    A = draw(rng, (rows, widths[0]), types[0])
    other = draw(rng, (rows if name in DOTS else widths[0], widths[1]), types[-1])
    return [A, other, product(name, A, other)]


def additions(name: str, problem: Any) -> int:
    """Bound the additions in the type of the result that make one of its elements."""
    if problem.dtype in ("float32", "complex64"):
        return 2 + (2048 if name == "tsmttsm_fma" else 2 * problem.M if name == "tsmm_fma" else 0)
    # Three real products are of rounded sums.
    return 8 + 6 * (problem.K if name in DOTS else problem.M)


def product(name: str, A: np.ndarray, other: np.ndarray, conj: bool = True) -> np.ndarray:
    """Compute a product in higher precision; numpy's long double adds up to nothing less."""
    left = (A.conj() if conj else A).T if name in DOTS else A
    return np.asarray(left.astype(wide(A.dtype)) @ other.astype(wide(other.dtype)))


# ---- drawn products


@st.composite
def cases(draw_: st.DrawFn, name: str) -> dict[str, Any]:
    of_three, is_plain = name.endswith("3m"), name == "tsmm_3m"  # what these families take
    dtype = draw_(st.sampled_from(TYPES[2:] if of_three else TYPES))
    shares = draw_(st.booleans()) and draw_(st.booleans())  # a Gram matrix, or in place
    M = draw_(st.integers(1, 64))
    N = draw_(st.integers(1, M if shares else 64))
    other = dtype if shares or of_three or draw_(st.integers(0, 3)) else draw_(st.sampled_from(TYPES))
    units = [1, 1j, 1 - 1j] if is_complex(promote(dtype, other)) else [1]
    return {
        "K": draw_(st.one_of(st.integers(1, 70), st.integers(71, 5000), st.integers(5001, 80_000))),
        "widths": (M, N),
        "lds": (
            0 if is_plain else draw_(st.sampled_from([0, 0, 1, 3, 8])),
            draw_(st.sampled_from([0, 0, 2, 5])),
        ),
        "offsets": (
            0 if is_plain else draw_(st.sampled_from([0, 0, 1, 3])),
            draw_(st.sampled_from([0, 0, 1, 2])),
        ),
        "types": (dtype, other),
        "shares": shares,
        "conj": draw_(st.booleans()),
        "alpha": draw_(st.sampled_from([1, 1, -2, 0.5])) * draw_(st.sampled_from(units)),
        "beta": draw_(st.sampled_from([0, 0, 1, -3])) * draw_(st.sampled_from(units)),
        "few_blocks": draw_(st.booleans()),  # so that each has many chunks
        "exact": draw_(st.booleans()),
        "pick": draw_(st.integers(0, 10**6)),
        "seed": draw_(st.integers(0, 2**32 - 1)),
    }


@ON_FAMILIES
@settings(max_examples=100)
@given(data=st.data())
def test_products_are_within_the_error_bound_and_nothing_else_is_written(
    name: str, data: st.DataObject, cp: Any, device: DeviceInfo, run: Run
) -> None:
    case = data.draw(cases(name))
    rng, is_dot = np.random.default_rng(case["seed"]), name in DOTS
    (dtype_a, dtype_b), (M, N), K = case["types"], case["widths"], case["K"]
    alpha, beta = factors = case["alpha"], case["beta"]
    dtype, lds, offsets = promote(dtype_a, dtype_b), case["lds"], case["offsets"]
    N = M if is_dot and case["shares"] else N
    device = replace(device, multiprocessors=2) if case["few_blocks"] else device
    host_a = draw(rng, (K, M), dtype_a, case["exact"])
    host_b = draw(rng, (K if is_dot else M, N), dtype_b, case["exact"])
    old = draw(rng, (M if is_dot else K, N), dtype, case["exact"])
    if case["shares"]:
        host_b, old = (host_a, old) if is_dot else (host_b, host_a[:, :N])
    results = []
    for _ in range(2):
        A, memory_a = framed(cp, host_a, M + lds[0], offsets[0])
        if is_dot:
            same = (A, memory_a)
            B, memory_b = same if case["shares"] else framed(cp, host_b, N + lds[1], offsets[1])
        else:
            B, memory_b = framed(cp, host_b, N)
        poisoned = old if beta else np.full_like(old, np.nan)
        if case["shares"] and not is_dot:
            out, memory_out = A[:, :N], memory_a
        else:
            out, memory_out = framed(cp, poisoned, N + (0 if is_dot else lds[1]), 0 if is_dot else offsets[1])
        before = [memory_a.copy(), memory_b.copy()]
        try:
            problem, _ = run(name, (A, B, out), factors, case["conj"], on=device, pick=case["pick"])
        except RefusedError:
            reject()
        results.append(out.get())
        if memory_out is memory_a:
            out[...] = cp.asarray(host_a[:, :N])
        else:
            out[...] = cp.nan
            assert bool(cp.isnan(memory_out).all()), "a write outside the result"
        for memory, copy in zip((memory_a, memory_b), before, strict=True):
            assert memory.tobytes() == copy.tobytes(), "a write to an operand"
    assert results[0].tobytes() == results[1].tobytes()

    conj = is_dot and isinstance(problem, TsmttsmProblem) and problem.conj
    expected = alpha * product(name, host_a, host_b, conj)
    terms = abs(alpha) * product(name, np.abs(host_a), np.abs(host_b))
    if beta:
        expected, terms = expected + beta * old.astype(wide(dtype)), terms + abs(beta) * np.abs(old)
    if case["exact"]:
        np.testing.assert_array_equal(results[0], expected.astype(dtype))
        return
    length = additions(name, problem)
    assert np.all(np.abs(results[0] - expected) <= 4 * UNIT_ROUNDOFF[dtype] * (2 + np.sqrt(length)) * terms)


@pytest.mark.parametrize("width", range(1, 65))
@ON_FAMILIES
def test_every_width_is_exact_at_a_ragged_number_of_rows(name: str, width: int, cp: Any, run: Run) -> None:
    of_family = TYPES[2:] if name.endswith("3m") else TYPES
    for dtype in of_family[width % 2 :: 2]:  # every type at every other width
        rng = np.random.default_rng(width)
        A, other, expected = exact(rng, name, 20_011 + width, (width, width), dtype)
        out = cp.full(expected.shape, cp.nan, dtype)
        run(name, (cp.asarray(A), cp.asarray(other), out))
        np.testing.assert_array_equal(out.get(), expected)
        if name in COMBINATIONS:
            inplace = cp.asarray(A)
            run(name, (inplace, cp.asarray(other), inplace))
            np.testing.assert_array_equal(inplace.get(), expected)


# ---- numbers of all sizes


@pytest.mark.parametrize("small", ["real", "imaginary", "columns", "opposite"])
@pytest.mark.parametrize("name", ["tsmttsm_3m", "tsmm_3m"])
def test_three_real_products_keep_the_error_bound_where_parts_differ_in_size(
    name: str, small: str, cp: Any, device: DeviceInfo, run: Run
) -> None:
    rng = np.random.default_rng(3)
    for dtype in ("complex64", "complex128"):
        A, other, _ = exact(rng, name, 30_011, (56, 57), dtype)
        for host in (A, other):
            host[...] = draw(rng, host.shape, dtype, False)
            if small == "columns":
                host *= 10.0 ** -np.linspace(0, 14, host.shape[1]).astype(host.real.dtype)
            elif small == "opposite":
                host.imag = -host.real * (1 + 2 * np.finfo(dtype).eps)
            else:
                getattr(host, "real" if small == "real" else "imag")[...] *= 1e-12
        expected, terms = product(name, A, other), product(name, np.abs(A), np.abs(other))
        out = cp.empty(expected.shape, dtype)
        problem, _ = run(name, (cp.asarray(A), cp.asarray(other), out))
        bound = 4 * UNIT_ROUNDOFF[dtype] * (2 + np.sqrt(additions(name, problem)))
        assert np.all(np.abs(out.get() - expected) <= bound * terms)


@pytest.mark.parametrize("name", ["fma", "mma"])
def test_rows_and_widths_past_two_to_the_31_elements(name: str, cp: Any, run: Run) -> None:
    K, width = (1 << 28) + 12_345, 9  # 2.4e9 elements, twice
    dtype = "float32" if name == "fma" else "float64"
    if cp.cuda.runtime.memGetInfo()[0] < 10 * K * np.dtype(dtype).itemsize * 2.5:
        pytest.skip("needs more free device memory")
    A = cp.zeros((K, width), dtype)
    rows = cp.asarray([0, 1, (1 << 31) // width, (1 << 31) // width + 1, K - 2, K - 1])
    A[rows] = cp.arange(1, width + 1, dtype=dtype)
    S, line = cp.full((width, width), cp.nan, dtype), np.arange(1.0, width + 1)
    for same in (True, False):
        run(f"tsmttsm_{name}", (A, A, S), same=same)
        np.testing.assert_array_equal(S.get(), 6 * np.outer(line, line))
    C, B = cp.eye(width, dtype=dtype)[:, ::-1].copy(), cp.full((K, width), cp.nan, dtype)
    run(f"tsmm_{name}", (A, C, B))
    assert bool((B[rows] == cp.arange(width, 0, -1)).all())
    assert float(cp.abs(B).sum(dtype="float64")) == 6 * width * (width + 1) / 2
