"""C = alpha A^H B + beta C on every backend."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockvec import BlockVector
from tests.contract.blocks import (
    DTYPES,
    PLAIN,
    Guarded,
    Layout,
    Reference,
    Sizes,
    adjoint,
    complex_factors,
    dtypes,
    host,
    layouts,
    on,
    seeds,
    sizes,
    values,
)


@given(sizes(), dtypes, dtypes, layouts, layouts, st.booleans(), seeds)
def test_dot_is_within_the_rounding_bound_for_all_shapes_types_and_views(
    device: str, size: Sizes, left: str, right: str, layout_a: Layout, layout_b: Layout, conj: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    A, B = values(rng, (size.K, size.M), left), values(rng, (size.K, size.N), right)
    V, W = Guarded(A, device, layout_a).block, Guarded(B, device, layout_b).block
    C = V.dot(W, conj=conj)
    assert C.shape == (size.M, size.N)
    assert C.dtype == np.result_type(A, B)
    assert Reference.of(adjoint(A, conj), B, C.dtype).accepts(C)


@given(sizes(), st.booleans(), dtypes, dtypes, layouts, complex_factors, complex_factors, seeds)
def test_alpha_and_beta_update_an_output_as_the_formula_says(
    device: str,
    size: Sizes,
    is_complex: bool,
    left: str,
    right: str,
    layout: Layout,
    alpha: complex,
    beta: complex,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    A, B = values(rng, (size.K, size.M), left), values(rng, (size.K, size.N), right)
    if not is_complex:
        alpha, beta = complex(alpha).real, complex(beta).real
    dtype = np.result_type(A, B, np.array([], "complex64") if is_complex else A)
    C = values(rng, (size.M, size.N), dtype)
    out = on(device, C)
    V, W = Guarded(A, device, layout).block, Guarded(B, device).block
    if np.result_type(A, B, alpha, beta) != dtype:
        dtype = np.result_type(A, B, alpha, beta)
        out = on(device, C.real.astype(dtype))
        C = host(out)
    result = V.dot(W, alpha=alpha, beta=beta, out=out)
    assert result is out
    assert Reference.of(adjoint(A, True), B, dtype, alpha, beta, C).accepts(out)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_small_imaginary_parts_keep_their_accuracy_up_to_the_bound_of_the_real_ones(
    device: str, dtype: str
) -> None:
    rng = np.random.default_rng(5)
    A = (rng.uniform(1, 2, (5000, 8)) + 1e-6j * rng.uniform(1, 2, (5000, 8))).astype(dtype)
    B = (rng.uniform(1, 2, (5000, 6)) + 1e-6j * rng.uniform(1, 2, (5000, 6))).astype(dtype)
    C = BlockVector(on(device, A)).dot(BlockVector(on(device, B)))
    assert Reference.of(adjoint(A, True), B, dtype).accepts(C)


@given(sizes(), dtypes, seeds)
def test_the_markers_spell_the_same_products(device: str, size: Sizes, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    A, B = values(rng, (size.K, size.M), dtype), values(rng, (size.K, size.N), dtype)
    V, W = BlockVector(on(device, A)), BlockVector(on(device, B))
    assert np.array_equal(host(V.H @ W), host(V.dot(W)))
    assert np.array_equal(host(V.T @ W), host(V.dot(W, conj=False)))
    assert np.array_equal(host(V.T @ W.array), host(V.T @ W))
    # The plain array A^T is a view whose transpose is A.
    assert np.array_equal(host(V.array.T @ W), host(V.T @ W))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_vector_gives_a_vector(device: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    A, b = values(rng, (501, 4), dtype), values(rng, (501,), dtype)
    V, w = BlockVector(on(device, A)), on(device, b)
    product = V.H @ w
    assert product.shape == (4,)
    assert Reference.of(adjoint(A, True), b[:, None], dtype).accepts(product[:, None])
    out = on(device, np.zeros(4, dtype))
    V.dot(w, out=out)
    assert np.array_equal(host(out), host(product))


def test_outputs_may_be_strided(device: str) -> None:
    rng = np.random.default_rng(4)
    A, B = values(rng, (100, 3), "float64"), values(rng, (100, 2), "float64")
    frame = on(device, np.full((3, 5), np.nan))
    BlockVector(on(device, A)).dot(on(device, B), out=frame[:, 1:3])
    assert Reference.of(A.T, B, "float64").accepts(frame[:, 1:3])
    assert np.isnan(host(frame)[:, [0, 3, 4]]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("K", [1, 700, 30011])
def test_a_nan_or_inf_reaches_its_row_and_column_of_the_product_alone(
    device: str, bad: float, K: int
) -> None:
    rng = np.random.default_rng(6)
    A, B = rng.uniform(1, 2, (K, 5)), rng.uniform(1, 2, (K, 4))
    A[K // 2, 3] = bad
    with np.errstate(invalid="ignore"):  # BLAS on a host raises the flag for an infinity's neighbours
        C = host(BlockVector(on(device, A)).dot(BlockVector(on(device, B))))
    assert np.array_equal(np.isfinite(C), np.arange(5)[:, None] != np.full(4, 3))
    assert np.isinf(C[3]).all() if np.isinf(bad) else np.isnan(C[3]).all()


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_denormal_numbers_are_kept(device: str, dtype: str) -> None:
    tiny = np.finfo(dtype).tiny / 8
    A, ones = np.full((40, 2), tiny, dtype), np.ones((40, 2), dtype)
    V, W = BlockVector(on(device, A)), BlockVector(on(device, ones))
    assert (host(V.column_dot(W)) == np.full(2, 40 * tiny, dtype)).all()
    assert (host(V + V) == 2 * A).all()
    assert (host(V.copy()) == A).all()


def test_an_empty_sum_is_zero_or_the_scaled_output(device: str) -> None:
    V, W = BlockVector.empty(0, 3, device=device), BlockVector.empty(0, 2, device=device)
    assert np.array_equal(host(V.dot(W)), np.zeros((3, 2)))
    out = on(device, np.ones((3, 2)))
    V.dot(W, beta=2, out=out)
    assert np.array_equal(host(out), np.full((3, 2), 2.0))


def test_views_of_other_columns_do_not_change_the_bits(device: str) -> None:
    A = values(np.random.default_rng(9), (3001, 4), "float64")
    results = [
        host(Guarded(A, device, layout).block.gram()) for layout in (PLAIN, Layout(1, 0), Layout(2, 1))
    ]
    assert all(Reference.of(A.T, A, "float64").accepts(G) for G in results)
