"""SpMMV by plane sweeps, on a GPU: the results are those on compressed rows, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec
from blockvec import BlockVector, as_operator, models
from blockvec.backends.cuda import sparse
from blockvec.kernels.families import SPARSE_FAMILIES
from tests.blocks import draw

pytestmark = pytest.mark.gpu

PLANES = SPARSE_FAMILIES["spmmv_planes"]
TYPES = ("float32", "float64", "complex64", "complex128")


@pytest.fixture(autouse=True)
def preferred(prefer: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The family is preferred for all matrices it takes, small ones too, and plans after two products."""
    prefer(PLANES)
    monkeypatch.setattr(PLANES, "most_imbalance", math.inf)


def stencil(name: str, dtype: str, exact: bool) -> sp.csr_array:
    """The pattern of a stencil with other values."""
    A = sp.csr_array({"7": models.laplace3d, "27": models.stencil27}[name](n=41))
    values = draw(np.random.default_rng(1), A.data.shape, dtype, exact)
    return sp.csr_array((values, A.indices, A.indptr), shape=A.shape)


def plans(operator: Any) -> list[Any]:
    """The sweeps that were planned for an operator's matrix."""
    return [form for form in operator.prepared.forms.values() if form is not None]


@pytest.mark.parametrize("points", ["7", "27"])
@pytest.mark.parametrize("dtype", TYPES)
def test_results_are_exact_and_the_same_bits_before_and_after_planning(
    dtype: str, points: str, cp: Any
) -> None:
    rng = np.random.default_rng(len(dtype))
    real = dtype.replace("complex64", "float32").replace("complex128", "float64")
    for width, exact, matrix_type in ((16, True, dtype), (24, False, real), (64, False, dtype)):
        S = stencil(points, matrix_type, exact)
        operator, n = as_operator(S, device="gpu"), S.shape[0]
        X = cp.asarray(draw(rng, (n, width + 8), dtype, exact))[:, 4 : 4 + width]
        given = cp.asarray(draw(rng, (n, width + 3), dtype, exact))[:, 1 : 1 + width]
        given_z = cp.asarray(draw(rng, (n, width), dtype, exact))
        found = []
        for _ in range(6):
            Y, Z = given.copy(), given_z.copy()
            operator.apply(X, Y, alpha=2, beta=-1, shift=3, z=Z, delta=2, eta=-1)
            found.append((Y.get(), Z.get()))
        assert plans(operator)
        assert len({y.tobytes() + z.tobytes() for y, z in found}) == 1
        if exact:
            expected = 2 * (S @ X.get() - 3 * X.get()) - given.get()
            np.testing.assert_array_equal(found[0][0], expected)
            np.testing.assert_array_equal(found[0][1], 2 * given_z.get() - expected)


@pytest.mark.parametrize("dtype", TYPES)
def test_configurations_all_over_the_space_are_exact(dtype: str, cp: Any, gpu: Any) -> None:
    rng = np.random.default_rng(2)
    for points in ("7", "27"):
        S = stencil(points, dtype, exact=True)
        operator: Any = as_operator(S, device="gpu")
        for width in (16, 24, 64):
            host = draw(rng, (S.shape[0], width), dtype, exact=True)
            X, Y = cp.asarray(host), cp.empty(host.shape, dtype)
            problem, expected = operator.explain(BlockVector(X))[0], S @ host
            valid = PLANES.configurations(problem, gpu.info)
            for config in valid[:: max(1, len(valid) // 5)]:
                launch, _ = sparse.launcher(gpu, PLANES, problem, config, operator.prepared)
                for _ in range(3):
                    Y.fill(cp.nan)
                    launch(X.data.ptr, Y.data.ptr)
                    np.testing.assert_array_equal(Y.get(), expected, err_msg=str(config))


def test_a_matrix_that_has_no_sweep_stays_as_it_is(cp: Any) -> None:
    rng = np.random.default_rng(3)
    grid = sp.coo_array(models.laplace3d(n=32))
    n = grid.shape[0]
    far = sp.coo_array((np.ones(n), (np.arange(n), rng.integers(0, n, n))), shape=(n, n))
    S = sp.csr_array(grid + far)
    S.indices, S.indptr = S.indices.astype(np.int32), S.indptr.astype(np.int32)
    operator: Any = as_operator(S, device="gpu")
    assert operator.prepared.pattern == "planes"
    host = draw(rng, (n, 16), "float64", exact=True)
    for _ in range(4):
        np.testing.assert_array_equal((operator @ cp.asarray(host)).array.get(), S @ host)
    assert operator.prepared.forms
    assert not plans(operator)


def test_explain_says_what_is_planned_when_and_what_that_takes() -> None:
    operator: Any = as_operator(models.laplace3d(n=40), device="gpu")
    X = BlockVector.random(operator.shape[1], 16, device="gpu", rng=1)
    text = str(blockvec.explain("apply", operator, X))
    assert "spmmv_planes" in text.splitlines()[0]
    assert "after 2 products" in text
    assert "MB" in text
