"""Kernels that pass over row pointers, on a GPU: they find what NumPy does, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import as_operator, models
from blockvec.interchange import diagonal_of
from blockvec.kernels import build as compiler
from blockvec.kernels.device import DeviceInfo
from blockvec.kernels.sparse.arrays import Load
from blockvec.kernels.sparse.csr_plan import Plan
from blockvec.kernels.sparse.pieces import divide, structure_of
from blockvec.kernels.sparse.sell import layout
from tests.benchmarks.drawn_problems import is_drawn
from tests.benchmarks.drawn_problems import matrix as drawn
from tests.host_rows import HostPlan, assert_same, divided, laid_out

pytestmark = pytest.mark.gpu

SPECS = (
    *("laplace3d:n=40", "laplace2d:n=300", "laplace1d:n=5000", "stencil27:n=50"),
    *("rmat:scale=16,edges=16", "power_law_graph:n=20000,seed=1", "xxz:sites=16,up=8"),
)


@pytest.fixture(scope="module")
def load(device: DeviceInfo) -> Load:
    return lambda kernel: compiler.build(kernel, device.architecture)


def assert_finds_the_same(cp: Any, load: Load, S: Any, index: str) -> None:
    """Compare structure, layout and several divisions of a matrix with those of the host."""
    host = HostPlan(S.indptr.astype(index), S.indices.astype(index), S.data)
    arrays = cp.asarray(host.indptr), cp.asarray(host.indices)
    assert structure_of(*arrays, load) == host.structure
    plan = Plan(*arrays, cp.asarray(S.data), load=load)
    assert_same(layout(plan), laid_out(host))
    for rows, entries, long_row in (
        (32, 256, 128),
        (32, 4000, 4000),
        (20, 100, 64),
        (4, 64, 30),
        (1, 64, 64),
    ):
        expected = divided(host.indptr, rows, entries, long_row)
        assert_same(divide(arrays[0], rows, entries, long_row, load), expected)
        assert_same(plan.units(rows, entries, long_row), host.units(rows, entries, long_row))


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("spec", SPECS)
def test_matrices_are_seen_as_on_the_host(spec: str, index: str, cp: Any, load: Load) -> None:
    S = (drawn(spec) if is_drawn(spec) else models.model(spec)).tocsr()
    assert_finds_the_same(cp, load, S, index)
    shuffled = S[np.random.default_rng(0).permutation(S.shape[0])]
    assert_finds_the_same(cp, load, shuffled, index)


@pytest.mark.parametrize("spec", ["laplace3d:n=40", "rmat:scale=14,edges=16"])
def test_an_operator_copies_no_row_pointers_to_the_host(spec: str, cp: Any) -> None:
    from cupyx.scipy.sparse import csr_matrix

    S = models.model(spec)
    given = csr_matrix(S)
    expected = as_operator(S, device="gpu").prepared.structure  # found on the host
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blockvec.kernels.sparse.pieces.to_host", read_few)
        plan = as_operator(given, device="gpu").prepared
        assert plan.structure == expected
        plan.units(32, 256, 128)
        layout(plan)


def read_few(array: Any) -> Any:
    """Copy an array of counts or samples to the host."""
    assert array.size < 5000
    return array.get()


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_a_diagonal_is_read_where_it_is_and_the_matrix_stays_as_it_was(dtype: str, form: str) -> None:
    S = sp.csr_array(models.model("laplace2d:n=300")).astype(dtype)
    S = S + sp.diags_array((np.arange(S.shape[0]) % 7).astype(dtype))
    S.indices[:3] = S.indices[:3][::-1]
    S.data[:3] = S.data[:3][::-1]
    A = getattr(pytest.importorskip("cupyx.scipy.sparse"), f"{form}_matrix")(S.astype(dtype))
    before = A.indices.get()
    np.testing.assert_array_equal(diagonal_of(A).get(), S.diagonal().real)
    np.testing.assert_array_equal(A.indices.get(), before)
