"""SpMMV on SELL-C matrices, on a GPU: the results are those on compressed rows, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import BlockVector, as_operator, models
from blockvec.backends.cuda import sparse
from blockvec.kernels.families import SPARSE_FAMILIES
from blockvec.operators.sparse import SparseOperator
from tests.blocks import draw

pytestmark = pytest.mark.gpu

SELL = SPARSE_FAMILIES["spmmv_sell"]
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


@pytest.mark.parametrize("dtype", TYPES)
def test_configurations_all_over_the_space_are_exact(dtype: str, cp: Any, gpu: Any) -> None:
    rng = np.random.default_rng(1)
    for A in (
        models.laplace3d(n=20),
        matrix(rng, (3001, 3001), dtype, "int32", True),
    ):
        S = A.astype(dtype)
        operator = as_operator(S, device="gpu")
        assert isinstance(operator, SparseOperator)
        backend: Any = operator.backend
        for width in (1, 3):
            host = draw(rng, (S.shape[1], width), dtype, exact=True)
            X, Y = cp.asarray(host), cp.empty(host.shape, dtype)
            problem = operator.explain(BlockVector(X))[0]
            valid = SELL.configurations(problem, backend.device)
            for config in valid[:: max(1, len(valid) // 4)]:
                launch, _ = sparse.launcher(gpu, SELL, problem, config, operator.prepared)
                Y.fill(cp.nan)
                launch(X.data.ptr, Y.data.ptr)
                np.testing.assert_array_equal(Y.get(), S @ host, err_msg=str(config))


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


def test_a_matrix_that_would_grow_too_much_stays_as_it_is(cp: Any) -> None:
    rng = np.random.default_rng(2)
    lengths = np.where(np.arange(4096) % 32 == 0, 12, 3)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    columns = rng.integers(0, 4096, indptr[-1]).astype(np.int32)
    S = sp.csr_array((np.ones(indptr[-1]), columns, indptr), shape=(4096, 4096))
    operator = as_operator(S, device="gpu")
    host = draw(rng, (4096, 1), "float64", exact=True)
    for _ in range(4):
        np.testing.assert_array_equal((operator @ cp.asarray(host)).array.get(), S @ host)
    assert operator.prepared.forms
    assert not forms(operator)
