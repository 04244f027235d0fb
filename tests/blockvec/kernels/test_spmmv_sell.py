"""SpMMV on SELL-C-sigma matrices: layouts, generated code, and the kernels run on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec.arrays import memory_of
from blockvec.kernels import spmmv_sell as family
from blockvec.kernels.csr_plan import Plan, address
from blockvec.kernels.device import H200
from blockvec.kernels.problem import SpmmvProblem, beta_class, itemsize, promote, scalar_class
from blockvec.kernels.spmmv_sell import Config
from tests.emulator import host as emulator
from tests.emulator.gathers import HostKernel, framed


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    values = rng.integers(-1, 2, shape).astype(dtype)
    if np.iscomplexobj(values):
        values.imag = rng.integers(-1, 2, shape)
    return values


def matrix(n_rows: int, n_cols: int, dtype: str, index: type, seed: int) -> sp.csr_array:
    """Rows of 0 to 12 entries, some stretches of empty ones."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 13, n_rows)
    lengths[40:75] = 0
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(index)
    columns = rng.integers(0, n_cols, indptr[-1]).astype(index)
    return sp.csr_array((numbers(rng, (int(indptr[-1]),), dtype), columns, indptr), shape=(n_rows, n_cols))


def converted(p: SpmmvProblem, plan: Plan, sigma: int, folder: Path) -> family.Sell:
    """The matrix converted by the kernel that does it on a GPU."""
    into = family.layout(plan, sigma)
    columns = np.zeros(into.entries, plan.indices.dtype)
    values = np.full(into.entries, np.nan, plan.data.dtype)
    order = [] if into.order is None else [into.order]
    readable = [plan.indptr, plan.indices, plan.data, into.starts, *order]
    fill = HostKernel(family.fill_source(p, sigma), folder, readable, [columns, values])
    return family.convert(fill, plan, into, columns, values)


SIMPLE: dict[str, Any] = {
    **{"alpha": 1, "beta": 0, "shift": None, "index": np.int32, "pitches": (0, 0), "align": 16, "cols": 130},
    **{"delta": None, "eta": 1, "line": 0, "plane": 0},
}
HOST_CASES: list[dict[str, Any]] = [
    {"width": 1, "types": "float64", "config": Config(1, 1, 7, 2, 2)},
    {"width": 2, "types": "float64", "config": Config(1, 2, 3, 2, 2, sigma=64), "beta": 1, "line": 32},
    {
        "width": 3,
        "types": "complex128",
        "config": Config(3, 1, 4, 2, 2, False, sigma=96),
        "shift": "column",
        "beta": 2j,
    },
    {
        "width": 4,
        "types": ("float64", "complex64"),
        "config": Config(4, 1, 4, 3, 1),
        "index": np.int64,
        "cols": 77,
    },
    {
        "width": 4,
        "types": "float32",
        "config": Config(1, 4, 5, 4, 1, planes=2),
        "delta": 2,
        "alpha": 3,
        "shift": "scalar",
    },
    {
        "width": 3,
        "types": ("complex64", "float32"),
        "config": Config(3, 1, 2, 2, 1, False),
        "pitches": (1, 2),
        "align": 8,
        "delta": 0,
        "eta": -2,
    },
    {
        "width": 1,
        "types": ("float64", "complex128"),
        "config": Config(1, 1, 4, 2, 1, aligned_x=False, aligned_y=False),
        "align": 8,
        "pitches": (1, 1),
    },
]


@pytest.mark.skipif(emulator.COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("case", HOST_CASES, ids=lambda case: f"{case['width']}-{case['types']}")
def test_the_kernels_run_on_the_host_are_exact(case: dict[str, Any], tmp_path: Path) -> None:
    case = SIMPLE | case
    rng = np.random.default_rng(case["width"])
    n, width, types = 130, case["width"], case["types"]
    dtype_s, dtype_x = (types, types) if isinstance(types, str) else types
    dtype = promote(dtype_s, dtype_x)
    S = matrix(n, case["cols"], dtype_s, case["index"], width)
    X, _ = framed(numbers(rng, (case["cols"], width), dtype_x), width + case["pitches"][0], case["align"])
    given_y, given_z = numbers(rng, (n, width), dtype), numbers(rng, (n, width), dtype)
    Y, memory_y = framed(given_y, width + case["pitches"][1], case["align"])
    Z, memory_z = framed(given_z, width, case["align"])
    alpha, beta, shift, delta, eta = (case[name] for name in ("alpha", "beta", "shift", "delta", "eta"))
    shifts = numbers(rng, (width,), dtype) if shift == "column" else np.zeros(0, dtype)
    p = SpmmvProblem(
        *(*S.shape, S.nnz, width, dtype_s, dtype_x, X.strides[0] // X.itemsize, Y.strides[0] // Y.itemsize),
        *(S.indices.itemsize, memory_of(X).align, memory_of(Y).align),
        *(scalar_class(alpha), beta_class(beta), shift or "none"),
        chain="none" if delta is None else beta_class(delta),
        ldz=width,
        align_z=memory_of(Z).align,
    )
    device, config = replace(H200, multiprocessors=3), case["config"]
    assert family.refuse(p, config, device) is None
    plan = Plan(S.indptr, S.indices, S.data)
    plan.line, plan.plane = case["line"], case["plane"]
    sell = converted(p, plan, config.sigma, tmp_path)
    order = [] if sell.layout.order is None else [sell.layout.order]
    readable = [sell.layout.starts, sell.columns, sell.values, *order, X, Y, Z, shifts]
    kernel = HostKernel(family.source(p, config), tmp_path, readable, [Y, Z])
    expected = S @ X.astype(dtype)
    if shift:
        expected = expected - (shifts if shift == "column" else 3) * X
    expected = alpha * expected + beta * given_y
    Y[...] = given_y if beta else np.nan
    Z[...] = given_z if delta else np.nan
    family.bind(kernel, p, config, device, plan, sell)(
        *(address(X), address(Y), alpha, beta),
        shift=3 if shift == "scalar" else 0,
        shifts_ptr=address(shifts) if shift == "column" else 0,
        Z_ptr=address(Z),
        delta=delta or 0,
        eta=eta,
    )
    np.testing.assert_array_equal(Y, expected.astype(dtype))
    if delta is not None:
        np.testing.assert_array_equal(Z, delta * given_z + eta * expected)
    for block, memory in ((Y, memory_y), (Z, memory_z)):
        block[...] = np.frombuffer(b"\xff" * itemsize(dtype), dtype)
        assert (memory == 0xFF).all(), "a write outside the results"
