"""SpMMV on SELL-C matrices, with the bits of those on compressed rows, and on chains that are not stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import BlockVector, as_operator, models
from blockvec.backends.cuda import sparse
from blockvec.kernels.families import SPARSE_FAMILIES
from tests.blocks import draw

pytestmark = pytest.mark.gpu

SELL, CHAIN = SPARSE_FAMILIES["spmmv_sell"], SPARSE_FAMILIES["spmmv_chain"]
CHAINS = (
    "xxz:sites=18,up=9,delta=0.5",
    "hubbard:sites=9,up=4,down=5,u=2",
    "xxz:sites=40,up=3,periodic=false",
)
HUGE_BYTES = 42 << 30  # two vectors of 34 spins, and tables
TYPES = ("float32", "float64", "complex64", "complex128")


@pytest.fixture(autouse=True)
def preferred(prefer: Callable[[Any], None]) -> None:
    """The family is preferred for every matrix that it takes, and converts after two products."""
    prefer(SELL)


def matrix(
    rng: np.random.Generator, shape: tuple[int, int], dtype: str, index: str, exact: bool
) -> sp.csr_array:
    """Rows of nearly one length, some of them empty."""
    lengths = rng.integers(14, 17, shape[0])
    lengths[rng.integers(0, shape[0], shape[0] // 50)] = 0
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(index)
    columns = rng.integers(0, shape[1], indptr[-1]).astype(index)
    return sp.csr_array((draw(rng, (int(indptr[-1]),), dtype, exact), columns, indptr), shape=shape)


def forms(operator: Any) -> list[str]:
    """The families whose form an operator's matrix was converted to."""
    return [name for name, form in operator.prepared.forms.items() if form is not None]


@pytest.mark.parametrize(
    ("dtype", "x", "index"),
    [*((a, b, "int32") for a in TYPES for b in TYPES), *((a, a, "int64") for a in TYPES)],
)
def test_results_are_exact_and_the_same_bits_before_and_after_conversion(
    dtype: str, x: str, index: str, cp: Any
) -> None:
    rng = np.random.default_rng(len(dtype) + len(x))
    shapes = (1, True, False), (2, False, True), (3, True, True), (4, False, False)
    for width, exact, square in shapes[TYPES.index(x) % 2 :: 2]:
        n = 10_007
        S = matrix(rng, (n, n if square else 999), dtype, index, exact)
        operator = as_operator(S, device="gpu")
        memory = draw(rng, (S.shape[1], width + 3), x, exact)
        X = cp.asarray(memory)[:, 1 : 1 + width] if width != 2 else cp.asarray(memory[:, :2].copy())
        kind = np.result_type(dtype, x)
        given = cp.asarray(draw(rng, (n, width + 2), kind.name, exact))[:, :width]
        given_z = cp.asarray(draw(rng, (n, width), kind.name, exact))
        factors = {"alpha": 2, "beta": -1, "shift": 3 if square else 0}
        found = []
        for _ in range(5):
            Y, Z = given.copy(), given_z.copy()
            operator.apply(X, Y, **factors, z=Z, delta=2, eta=-1)
            found.append((Y.get(), Z.get()))
        assert forms(operator)
        assert len({y.tobytes() + z.tobytes() for y, z in found}) == 1
        if exact:
            host_x = X.get()
            expected = 2 * (S @ host_x - (3 * host_x if square else 0)) - given.get()
            np.testing.assert_array_equal(found[0][0], expected)
            np.testing.assert_array_equal(found[0][1], 2 * given_z.get() - expected)


@pytest.mark.parametrize("given", ["laplace3d:n=20", "random", *CHAINS])
@pytest.mark.parametrize("dtype", TYPES)
def test_configurations_all_over_the_space_are_exact(given: str, dtype: str, cp: Any, gpu: Any) -> None:
    rng = np.random.default_rng(1)
    family, widths = (CHAIN, (1, 2, 3, 7, 8, 16, 33)) if given in CHAINS else (SELL, (1, 3))
    S = matrix(rng, (3001, 3001), dtype, "int32", True) if given == "random" else models.model(given)
    if given in CHAINS:
        operator: Any = models.operator(given, device="gpu")
    else:
        S = S.astype(dtype)
        operator = as_operator(S, device="gpu")
    for width in widths:
        host = draw(rng, (S.shape[1], width), dtype, exact=True)
        X, Y = cp.asarray(host), cp.empty(host.shape, np.result_type(S.dtype, dtype))
        problem, expected = operator.explain(BlockVector(X))[0], S @ host
        valid = family.configurations(problem, gpu.info)
        for config in valid[:: max(1, len(valid) // 6)]:
            launch, _ = sparse.launcher(gpu, family, problem, config, operator.prepared)
            for _ in range(2):
                Y.fill(cp.nan)
                launch(X.data.ptr, Y.data.ptr)
                np.testing.assert_array_equal(Y.get(), expected, err_msg=f"{width} {config}")


def test_a_graph_captured_before_the_conversion_stays_right(cp: Any) -> None:
    operator = as_operator(models.laplace3d(n=30), device="gpu")
    X = BlockVector.random(operator.shape[1], 2, device="gpu", rng=1)
    Y, again = X.like(), X.like()
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        for _ in range(2):
            operator.apply(X, out=Y)
        stream.begin_capture()
        operator.apply(X, out=Y)
        graph = stream.end_capture()
        assert not forms(operator), "nothing is converted while a graph is captured"
        operator.apply(X, out=again)
        assert forms(operator)
        Y.array.fill(cp.nan)
        graph.launch(stream)
    stream.synchronize()
    assert Y.array.get().tobytes() == again.array.get().tobytes()


def test_more_rows_than_32_bits_can_number(cp: Any) -> None:
    if cp.cuda.runtime.memGetInfo()[0] < HUGE_BYTES:
        pytest.skip(f"needs {HUGE_BYTES >> 30} GB of free device memory")
    S = models.operator("xxz:sites=34,up=17", device="gpu")
    X = BlockVector.full(S.shape[0], 1, 1.0, device="gpu")
    Y = S @ X  # every row sums up to the energy of the ferromagnet
    assert float(Y.array.min()) == float(Y.array.max()) == 34 / 4
