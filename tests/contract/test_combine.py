"""B = alpha A C + beta B on every backend."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from blockvec import BlockVector
from blockvec.errors import ShapeError
from tests.contract.blocks import (
    DTYPES,
    Guarded,
    Layout,
    Reference,
    Sizes,
    complex_factors,
    dtypes,
    exact_values,
    host,
    layouts,
    on,
    seeds,
    sizes,
    values,
)


@given(sizes(), dtypes, dtypes, layouts, seeds)
def test_combine_is_within_the_rounding_bound_for_all_shapes_types_and_views(
    device: str, size: Sizes, left: str, right: str, layout: Layout, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    A, C = values(rng, (size.K, size.M), left), values(rng, (size.M, size.N), right)
    W = Guarded(A, device, layout).block @ on(device, C)
    assert W.shape == (size.K, size.N)
    assert W.dtype == np.result_type(A, C)
    assert Reference.of(A, C, W.dtype).accepts(W)


@given(sizes(), dtypes, dtypes, layouts, complex_factors, complex_factors, seeds)
def test_alpha_and_beta_update_an_output_as_the_formula_says(
    device: str, size: Sizes, left: str, right: str, layout: Layout, alpha: complex, beta: complex, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    A, C = values(rng, (size.K, size.M), left), values(rng, (size.M, size.N), right)
    dtype = np.result_type(A, C, alpha, beta)
    B = values(rng, (size.K, size.N), dtype)
    out = Guarded(B, device, layout)
    V = BlockVector(on(device, A))
    assert V.combine(on(device, C), alpha=alpha, beta=beta, out=out.block) is out.block
    assert Reference.of(A, C, dtype, alpha, beta, B).accepts(out.block)
    assert out.is_untouched_outside()


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place_products_spell_the_same(device: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    A, C = exact_values(rng, (70001, 6), dtype), exact_values(rng, (6, 6), dtype)
    V = BlockVector(on(device, A))
    data = V.array
    V @= on(device, C)
    assert V.array is data or V.array.shape == data.shape
    assert np.array_equal(host(V), A @ C)
    V @= on(device, C[:, :2])
    assert V.shape == (70001, 2)
    assert np.array_equal(host(V), A @ C @ C[:, :2])
    with pytest.raises(ShapeError, match="3 columns but V only 2"):
        V @= on(device, np.ones((2, 3), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_vector_of_coefficients_gives_one_column(device: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    A, c = exact_values(rng, (301, 4), dtype), exact_values(rng, (4,), dtype)
    W = BlockVector(on(device, A)) @ on(device, c)
    assert W.shape == (301, 1)
    assert np.array_equal(host(W)[:, 0], A @ c)


@pytest.mark.parametrize("integer", ["int64", "int32", "bool"])
def test_coefficients_may_be_integers(device: str, integer: str) -> None:
    A = exact_values(np.random.default_rng(3), (50, 3), "float64")
    C = np.array([[1, 0], [0, 1], [1, 1]], integer)
    W = BlockVector(on(device, A)) @ on(device, C)
    assert W.dtype == np.float64
    assert np.array_equal(host(W), A @ C)


def test_coefficients_may_have_any_layout(device: str) -> None:
    rng = np.random.default_rng(4)
    A, C = exact_values(rng, (50, 3), "float64"), exact_values(rng, (4, 6), "float64")
    V = BlockVector(on(device, A))
    for strided in (C.T[:3], C[:3, ::2], C[::-1][:3]):
        whole = on(device, C)
        view = (
            whole.T[:3]
            if strided.shape[1] == 4
            else whole[:3, ::2]
            if strided.shape[1] == 3
            else whole[::-1][:3]
        )
        assert np.array_equal(host(V @ view), A @ strided)
