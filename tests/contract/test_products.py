"""C = alpha A^H B + beta C (dot) and B = alpha A C + beta B (combine) on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
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
    exact_values,
    host,
    layouts,
    on,
    seeds,
    sizes,
    values,
)

updates = st.none() | st.tuples(complex_factors, complex_factors)
outputs = st.just(PLAIN) | layouts  # contiguous small results have kernels of their own


@pytest.mark.parametrize("operation", ["dot", "combine"])
@settings(max_examples=60)
@given(sizes(), dtypes, dtypes, st.tuples(layouts, layouts, outputs), st.booleans(), updates, seeds)
def test_products_are_within_the_rounding_bound_and_write_nothing_beside_their_output(
    device: str,
    operation: str,
    size: Sizes,
    left: str,
    right: str,
    where: tuple[Layout, Layout, Layout],
    conj: bool,
    update: tuple[complex, complex] | None,
    seed: int,
) -> None:
    rng, is_dot = np.random.default_rng(seed), operation == "dot"
    alpha, beta = update or (1, 0)
    A, B = values(rng, (size.K, size.M), left), values(rng, (size.K if is_dot else size.M, size.N), right)
    X, dtype = adjoint(A, conj) if is_dot else A, np.result_type(A, B, alpha, beta)
    V = Guarded(A, device, where[0]).block
    W = Guarded(B, device, where[1]).block if is_dot else on(device, B)
    more: dict[str, Any] = {"conj": conj} if is_dot else {}
    old = values(rng, (X.shape[0], size.N), dtype)
    if update is None:
        found = getattr(V, operation)(W, **more)
    else:
        frame = Guarded(old, device, where[2])
        out = frame.block.array if is_dot else frame.block
        found = getattr(V, operation)(W, alpha=alpha, beta=beta, out=out, **more)
        assert found is out
        assert frame.is_untouched_outside()
    assert (found.shape, found.dtype) == (old.shape, dtype)
    assert Reference.of(X, B, dtype, alpha, beta, old).accepts(found)


@given(sizes(), dtypes, seeds)
def test_the_markers_spell_the_same_products(device: str, size: Sizes, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    V, W = (BlockVector(on(device, values(rng, (size.K, M), dtype))) for M in (size.M, size.N))
    assert np.array_equal(host(V.H @ W), host(V.dot(W)))
    for product in (V.T @ W, V.T @ W.array, V.array.T @ W):  # the last: a view whose transpose is A
        assert np.array_equal(host(product), host(V.dot(W, conj=False)))
    C = on(device, values(rng, (size.M, 2), dtype))
    assert np.array_equal(host(V @ C), host(V.combine(C)))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_small_imaginary_parts_keep_their_accuracy_up_to_the_bound_of_the_real_ones(
    device: str, dtype: str
) -> None:
    rng = np.random.default_rng(5)
    A, B = (
        (rng.uniform(1, 2, (5000, M)) + 1e-6j * rng.uniform(1, 2, (5000, M))).astype(dtype) for M in (8, 6)
    )
    C = BlockVector(on(device, A)).dot(BlockVector(on(device, B)))
    assert Reference.of(adjoint(A, True), B, dtype).accepts(C)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_vector_gives_a_vector(device: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    A, b = values(rng, (501, 4), dtype), values(rng, (501,), dtype)
    V, w, out = BlockVector(on(device, A)), on(device, b), on(device, np.zeros(4, dtype))
    product = V.H @ w
    assert product.shape == (4,)
    assert Reference.of(adjoint(A, True), b[:, None], dtype).accepts(product[:, None])
    V.dot(w, out=out)
    assert np.array_equal(host(out), host(product))


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place_products_spell_the_same(device: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    A, C = exact_values(rng, (70001, 6), dtype), exact_values(rng, (6, 6), dtype)
    V = BlockVector(on(device, A))
    V @= on(device, C)
    assert np.array_equal(host(V), A @ C)
    V @= on(device, C[:, :2])
    assert V.shape == (70001, 2)
    assert np.array_equal(host(V), A @ C @ C[:, :2])


def test_coefficients_may_be_vectors_integers_and_of_any_layout(device: str) -> None:
    rng = np.random.default_rng(4)
    A, C = exact_values(rng, (50, 3), "float64"), exact_values(rng, (4, 6), "float64")
    V, whole = BlockVector(on(device, A)), on(device, C)
    for take in (
        lambda C: C.T[:3],
        lambda C: C[:3, ::2],
        lambda C: C[::-1][:3],
        lambda C: C[:3, 1],
        lambda C: C[:3].astype("int32"),
        lambda C: C[:3].astype("int64"),
        lambda C: C[:3] > 0,
    ):
        found, expected = V @ take(whole), A @ take(C)
        assert found.dtype == np.float64
        assert np.array_equal(host(found), expected.reshape(50, -1))


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
    with np.errstate(invalid="ignore"):
        rows = host(BlockVector(on(device, A)) @ on(device, np.ones((5, 4))))
    assert np.array_equal(np.isfinite(rows), np.arange(K)[:, None] != np.full(4, K // 2))


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_denormal_numbers_are_kept(device: str, dtype: str) -> None:
    tiny = np.finfo(dtype).tiny / 8
    A, ones = np.full((40, 2), tiny, dtype), np.ones((40, 2), dtype)
    V, W = BlockVector(on(device, A)), BlockVector(on(device, ones))
    assert (host(V.column_dot(W)) == np.full(2, 40 * tiny, dtype)).all()
    assert (host(V.dot(W)) == np.full((2, 2), 40 * tiny, dtype)).all()
    assert (host(V @ on(device, ones[:2])) == 2 * A).all()
    assert (host(V + V) == 2 * A).all()
    assert (host(V.copy()) == A).all()


def test_views_of_other_columns_do_not_change_the_bits(device: str) -> None:
    A = values(np.random.default_rng(9), (3001, 4), "float64")
    results = [
        host(Guarded(A, device, layout).block.gram()) for layout in (PLAIN, Layout(1, 0), Layout(2, 1))
    ]
    assert all(Reference.of(A.T, A, "float64").accepts(G) for G in results)
