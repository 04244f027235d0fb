"""SpMMV on CSR matrices, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from blockvec import BlockVector, as_operator, models
from blockvec.kernels import build as compiler
from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.families import CSR
from blockvec.kernels.problem import SpmmvProblem, beta_class, promote, scalar_class
from blockvec.kernels.sparse import codes
from blockvec.kernels.sparse.arrays import address
from blockvec.kernels.sparse.csr import CsrConfig
from blockvec.kernels.sparse.csr_plan import Plan
from blockvec.operations.arrays import memory_of
from tests.benchmarks.drawn_problems import is_drawn
from tests.benchmarks.drawn_problems import matrix as drawn
from tests.blocks import UNIT_ROUNDOFF, draw, framed, wide
from tests.host_rows import HostPlan

pytestmark = pytest.mark.gpu

TYPES = tuple(UNIT_ROUNDOFF)


def plan_of(cp: Any, S: sp.csr_array) -> Plan:
    return HostPlan(cp.asarray(S.indptr), cp.asarray(S.indices), cp.asarray(S.data))


def describe(S: sp.csr_array, X: Any, Y: Any, alpha: complex, beta: complex, shift: Any) -> SpmmvProblem:
    shifted = "column" if np.ndim(shift) else "scalar" if shift != 0 else "none"
    return SpmmvProblem(
        *(*S.shape, S.nnz, X.shape[1], S.dtype.name, X.dtype.name),
        *(X.strides[0] // X.itemsize, Y.strides[0] // Y.itemsize, S.indices.itemsize),
        *(memory_of(X).align, memory_of(Y).align),
        *(scalar_class(alpha), beta_class(beta), shifted),
    )


def run(
    cp: Any,
    p: SpmmvProblem,
    config: CsrConfig,
    device: DeviceInfo,
    plan: Plan,
    X: Any,
    Y: Any,
    alpha: complex = 1,
    beta: complex = 0,
    shift: Any = 0,
) -> None:
    """Start a product, with a workspace that holds anything."""
    kernels = {
        part: compiler.build(kernel, device.architecture)
        for part, kernel in CSR.kernels(p, config, device, plan).items()
    }
    workspace = cp.full(CSR.workspace_bytes(p, config, device, plan) + 16, 0xFF, cp.uint8)
    shifts = cp.asarray(shift, p.dtype) if p.shift == "column" else None
    single = 0 if p.shift == "column" else shift
    launch = CSR.bind(kernels, p, config, device, plan)
    launch(address(X), address(Y), alpha, beta, single, address(shifts), workspace_ptr=address(workspace))


def sparse(
    rng: np.random.Generator,
    n_rows: int,
    n_cols: int,
    lengths: np.ndarray,
    dtype: str,
    index: str,
    exact: bool,
) -> sp.csr_array:
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(index)
    nnz = int(indptr[-1])
    columns = rng.integers(0, n_cols, nnz).astype(index)
    return sp.csr_array((draw(rng, (nnz,), dtype, exact), columns, indptr), shape=(n_rows, n_cols))


@st.composite
def cases(draw_: st.DrawFn) -> dict[str, Any]:
    kind = draw_(st.sampled_from(["short", "short", "empty", "dense row", "power law", "long rows"]))
    matrix = draw_(st.sampled_from(TYPES))
    x = draw_(st.sampled_from([matrix, matrix, draw_(st.sampled_from(TYPES))]))
    width = draw_(st.one_of(st.integers(1, 16), st.integers(1, 64), st.just(150)))
    square = draw_(st.booleans())
    n_rows = draw_(st.one_of(st.integers(1, 70), st.integers(71, 6000)))
    units = [1, 1j, 1 - 1j] if promote(matrix, x).startswith("complex") else [1]
    shift = draw_(st.sampled_from([0, 0, 2, "column"])) if square else 0
    return {
        "kind": kind,
        "types": (matrix, x),
        "index": draw_(st.sampled_from(["int32", "int32", "int64"])),
        "shape": (n_rows, n_rows if square else draw_(st.integers(1, 3000))),
        "width": width,
        "lds": (width + draw_(st.sampled_from([0, 0, 1, 4])), width + draw_(st.sampled_from([0, 0, 2, 5]))),
        "offsets": (draw_(st.sampled_from([0, 0, 1])), draw_(st.sampled_from([0, 0, 1]))),
        "alpha": draw_(st.sampled_from([1, 1, -2, 0.5])) * draw_(st.sampled_from(units)),
        "beta": draw_(st.sampled_from([0, 0, 1, -3])) * draw_(st.sampled_from(units)),
        "shift": shift,
        "exact": draw_(st.booleans()),
        "pick": draw_(st.integers(0, 10**6)),
        "seed": draw_(st.integers(0, 2**32 - 1)),
    }


def row_lengths(rng: np.random.Generator, kind: str, n_rows: int) -> np.ndarray:
    lengths = rng.integers(0, 12, n_rows)
    if kind == "empty":
        lengths[rng.random(n_rows) < 0.9] = 0
    elif kind == "dense row":
        lengths[rng.integers(n_rows)] = 30_000
    elif kind == "power law":
        lengths = np.minimum(rng.pareto(1.1, n_rows) * 3, 20_000).astype(np.int64)
    elif kind == "long rows":
        lengths = rng.integers(0, 400, n_rows)
    return lengths


@settings(max_examples=120)
@given(case=cases())
def test_results_are_within_the_error_bound_and_exact_on_small_integers(
    case: dict[str, Any], cp: Any, device: DeviceInfo
) -> None:
    rng = np.random.default_rng(case["seed"])
    (n_rows, n_cols), width, exact = case["shape"], case["width"], case["exact"]
    (matrix, x), alpha, beta = case["types"], case["alpha"], case["beta"]
    dtype = promote(matrix, x)
    S = sparse(rng, n_rows, n_cols, row_lengths(rng, case["kind"], n_rows), matrix, case["index"], exact)
    host_x, host_y = draw(rng, (n_cols, width), x, exact), draw(rng, (n_rows, width), dtype, exact)
    shift = draw(rng, (width,), dtype, exact) if case["shift"] == "column" else case["shift"]
    plan = plan_of(cp, S)
    results = []
    for _ in range(2):
        X, memory_x = framed(cp, host_x, case["lds"][0], case["offsets"][0])
        Y, memory_y = framed(
            cp, host_y if beta else np.full_like(host_y, np.nan), case["lds"][1], case["offsets"][1]
        )
        before = memory_x.copy()
        p = describe(S, X, Y, alpha, beta, shift)
        config = CSR.choose(p, device)
        if case["pick"] % 3 == 0:
            valid = CSR.configurations(p, device)
            config = valid[case["pick"] % len(valid)]
        run(cp, p, config, device, plan, X, Y, alpha, beta, shift)
        results.append(Y.get())
        Y[...] = cp.nan
        assert bool(cp.isnan(memory_y).all()), "a write outside Y"
        assert memory_x.tobytes() == before.tobytes(), "a write to X"
    assert results[0].tobytes() == results[1].tobytes()

    high = wide(dtype)
    expected = S.astype(high) @ host_x.astype(high)
    # abs(S) would add up entries of one place first, as the kernel does not.
    sizes = sp.csr_array((np.abs(S.data), S.indices, S.indptr), shape=S.shape)
    scale = sizes @ np.abs(host_x)
    if case["shift"]:
        expected, scale = expected - shift * host_x, scale + np.abs(shift) * np.abs(host_x)
    expected, scale = alpha * expected, abs(alpha) * scale
    if beta:
        expected, scale = expected + beta * host_y.astype(high), scale + abs(beta) * np.abs(host_y)
    if exact:
        np.testing.assert_array_equal(results[0], expected.astype(dtype))
        return
    length = 2 * np.diff(S.indptr).max() + 3
    bound = 4 * UNIT_ROUNDOFF[dtype] * (2 + np.sqrt(length)) * scale
    assert np.all(np.abs(results[0] - expected) <= bound)


@pytest.mark.parametrize("width", range(1, 65))
def test_every_width_is_exact_also_beside_nan_and_infinity(width: int, cp: Any, device: DeviceInfo) -> None:
    rng, dtype = np.random.default_rng(width), TYPES[width % 4 ^ width // 4 % 4]
    n = 10_007
    S = sparse(rng, n, n, rng.integers(0, 9, n), dtype, "int32", exact=True)
    host = draw(rng, (n, width), dtype, exact=True)
    host[17], host[10_000] = np.nan, np.inf
    X, Y = cp.asarray(host), cp.full((n, width), cp.nan, dtype)
    p = describe(S, X, Y, 1, 0, 0)
    run(cp, p, CSR.choose(p, device), device, plan_of(cp, S), X, Y)
    with np.errstate(invalid="ignore"):
        expected = S @ host
    is_finite = np.isfinite(expected)
    np.testing.assert_array_equal(Y.get()[is_finite], expected[is_finite])
    assert not np.isfinite(Y.get()[~is_finite]).any()


def test_blocks_beyond_32_bit_offsets_are_addressed_right(cp: Any, device: DeviceInfo) -> None:
    n, width = 2**25 + 77, 72  # 2.4e9 elements of four bytes
    if cp.cuda.runtime.memGetInfo()[0] < 30 << 30:
        pytest.skip("needs 30 GB of free device memory")
    ones = cp.ones(n, "float32")
    steps = cp.arange(n + 1, dtype="int32")
    columns = n - 1 - steps[:-1]  # the exchange matrix
    plan = HostPlan(steps, columns, ones)
    X = cp.broadcast_to((cp.arange(n, dtype="int32") % 4096).astype("float32")[:, None], (n, width)).copy()
    Y = cp.empty_like(X)
    p = SpmmvProblem(n, n, n, width, "float32", "float32", width, width)
    run(cp, p, CSR.choose(p, device), device, plan, X, Y)
    for i in (0, 1, n // 2, n - 2, n - 1):
        assert bool((Y[i] == X[n - 1 - i]).all())
    cp.get_default_memory_pool().free_all_blocks()


@pytest.mark.parametrize("spec", ["laplace3d:n=32", "rmat:scale=13,edges=16", "xxz:sites=16,up=8"])
@pytest.mark.parametrize("width", [1, 2, 8, 20, 64])
def test_coded_entries_give_the_same_products(spec: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codes, "_LEAST_ENTRIES", 1)
    rng = np.random.default_rng(width)
    S = models.model(spec)
    S.data = np.round(4 * S.data)  # few small integers: exact in any order
    X = rng.integers(-1, 2, (S.shape[1], width)).astype(float)
    A = as_operator(S, device="gpu")
    assert A.prepared.coded
    V = BlockVector(X).to_device()
    for _ in range(25):  # also after the matrix was converted
        found = (A @ V).to_host().array
        np.testing.assert_array_equal(found, S @ X)
    found = A.apply(V, alpha=0.5, beta=0, shift=2.0).to_host().array
    np.testing.assert_array_equal(found, 0.5 * (S @ X - 2 * X))


@pytest.mark.parametrize("is_there", [False, True], ids=["from the host", "of CuPy"])
@pytest.mark.parametrize(
    ("spec", "pattern"),
    [
        ("laplace3d:n=40", "planes"),
        ("power_law_graph:n=5000,seed=1", "uneven"),
        ("xxz:sites=12,up=6", "scattered"),
    ],
)
def test_indices_of_64_bits_are_halved_for_a_gpu(spec: str, pattern: str, is_there: bool) -> None:
    from cupyx.scipy.sparse import csr_matrix

    S = (drawn(spec) if is_drawn(spec) else models.model(spec)).tocsr()
    S.indices, S.indptr = S.indices.astype(np.int64), S.indptr.astype(np.int64)
    given = csr_matrix(S) if is_there else S
    A = as_operator(given, device="gpu")
    assert A.prepared.index_bytes == 4
    assert A.prepared.pattern == pattern
    X = np.arange(3.0 * S.shape[1]).reshape(-1, 3) % 7
    np.testing.assert_allclose(
        (A @ BlockVector(X).to_device()).to_host().array, S @ X, rtol=1e-14, atol=1e-13
    )
    assert given.indices.dtype == given.indptr.dtype == np.int64
