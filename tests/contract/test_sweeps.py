"""V <- V C with W^H V, and V <- V - W C with V^H V, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockvec import BlockVector
from tests.contract.blocks import (
    DTYPES,
    MAX_WORK,
    PLAIN,
    Guarded,
    Layout,
    Reference,
    Sizes,
    exact_values,
    host,
    layouts,
    on,
    row_counts,
    seeds,
    values,
)

# Few widths: each pair of them is a kernel to compile on a GPU.
block_widths = st.sampled_from([1, 2, 4, 7, 13, 16, 33])
basis_widths = st.sampled_from([1, 3, 17, 64, 65, 130])


@st.composite
def sizes(draw: Any) -> Sizes:
    """Extents whose reference product is affordable."""
    M, N = draw(basis_widths), draw(block_widths)
    return Sizes(min(draw(row_counts), MAX_WORK // max(1, M * N)), M, N)


@pytest.mark.parametrize("operation", ["combine_dot", "update_gram"])
@settings(max_examples=20)
@given(sizes(), st.sampled_from(DTYPES), layouts, layouts, seeds)
def test_a_block_is_updated_and_then_multiplied_as_it_was_stored(
    device: str, operation: str, size: Sizes, dtype: str, layout_v: Layout, layout_w: Layout, seed: int
) -> None:
    rng, combines = np.random.default_rng(seed), operation == "combine_dot"
    A, X = values(rng, (size.K, size.N), dtype), values(rng, (size.K, size.M), dtype)
    C = values(rng, (size.N if combines else size.M, size.N), dtype)
    V, W = Guarded(A, device, layout_v), Guarded(X, device, layout_w)
    if combines:  # V <- V C with W^H V
        S, new, left = V.block.combine_dot(on(device, C), W.block), Reference.of(A, C, dtype), X
    else:  # V <- V - W C with V^H V
        S, new = V.block.update_gram(W.block, on(device, C)), Reference.of(X, C, dtype, -1, 1, A)
        left = host(V.block)
        assert np.array_equal(host(S), host(S).conj().T)
    assert new.accepts(V.block)
    assert S.shape == (left.shape[1], size.N)
    assert Reference.of(left.conj().T, host(V.block), S.dtype).accepts(S)
    assert V.is_untouched_outside()
    assert np.array_equal(host(W.block), X)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("K", "M", "N"), [(20011, 64, 8), (9001, 130, 16), (3001, 512, 3)])
@pytest.mark.parametrize("layout", [PLAIN, Layout(3, 2)], ids=["contiguous", "view"])
def test_exact_operands_give_exact_sweeps(
    device: str, dtype: str, K: int, M: int, N: int, layout: Layout
) -> None:
    rng = np.random.default_rng(M)
    A, X = exact_values(rng, (K, N), dtype), exact_values(rng, (K, M), dtype)
    C, D = exact_values(rng, (N, N), dtype), exact_values(rng, (M, N), dtype)
    W = Guarded(X, device, layout).block
    V = Guarded(A, device, layout)
    S = V.block.combine_dot(on(device, C), W)
    assert np.array_equal(host(V.block), A @ C)
    assert np.array_equal(host(S), X.conj().T @ (A @ C))
    assert V.is_untouched_outside()
    if np.dtype(dtype).itemsize // (2 if np.dtype(dtype).kind == "c" else 1) == 4:
        K = min(K, 500)  # sums of squares of larger numbers are exact in double precision only
    V = Guarded(A[:K], device, layout)
    S = V.block.update_gram(W[:K], on(device, D))
    new = A[:K] - X[:K] @ D
    assert np.array_equal(host(V.block), new)
    assert np.array_equal(host(S), new.conj().T.astype(np.complex128) @ new)
    assert V.is_untouched_outside()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_and_its_basis_may_be_columns_of_one_array(device: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    whole = exact_values(rng, (20011, 24), dtype)
    C, D = exact_values(rng, (4, 4), dtype), exact_values(rng, (16, 4), dtype)
    Z = BlockVector(on(device, whole))
    W, V = Z[:, :16], Z[:, 16:20]
    S = V.combine_dot(on(device, C), W)
    new = whole[:, 16:20] @ C
    assert np.array_equal(host(S), whole[:, :16].conj().T @ new)
    V.update_gram(W, on(device, D))
    assert np.array_equal(host(V), new - whole[:, :16] @ D)
    rest = np.delete(host(Z), slice(16, 20), axis=1)
    assert np.array_equal(rest, np.delete(whole, slice(16, 20), axis=1))


@pytest.mark.parametrize(("block", "basis"), [("complex128", "float64"), ("float64", "float32")])
def test_a_narrower_type_of_the_basis_is_promoted(device: str, block: str, basis: str) -> None:
    rng = np.random.default_rng(2)
    A, X = exact_values(rng, (5003, 3), block), exact_values(rng, (5003, 7), basis)
    C, D = exact_values(rng, (3, 3), block), exact_values(rng, (7, 3), block)
    V, W = BlockVector(on(device, A)), BlockVector(on(device, X))
    assert np.array_equal(host(V.combine_dot(on(device, C), W)), X.conj().T @ (A @ C))
    new = A @ C - X @ D
    assert np.array_equal(host(V.update_gram(W, on(device, D))), new.conj().T @ new)
    assert V.dtype == block


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_repeated_sweeps_have_the_same_bits(device: str, dtype: str) -> None:
    rng = np.random.default_rng(6)
    A, X = values(rng, (40009, 5), dtype), values(rng, (40009, 96), dtype)
    C, D = on(device, values(rng, (5, 5), dtype)), on(device, values(rng, (96, 5), dtype))
    W, results = BlockVector(on(device, X)), []
    for _ in range(3):
        V = BlockVector(on(device, A))
        results.append([host(V.combine_dot(C, W)), host(V), host(V.update_gram(W, D)), host(V)])
    for again in results[1:]:
        assert all(np.array_equal(one, other) for one, other in zip(again, results[0], strict=True))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_nan_or_inf_in_one_column_spoils_no_other(device: str, bad: float) -> None:
    A, X = np.ones((9001, 3)), np.ones((9001, 70))
    A[1234, 1] = bad
    V, W = BlockVector(on(device, A)), BlockVector(on(device, X))
    with np.errstate(invalid="ignore"):  # BLAS on a host raises the flag for an infinity's neighbours
        S = V.update_gram(W, on(device, np.ones((70, 3))))
    new = host(V)
    assert np.array_equal(np.isfinite(new).all(axis=0), [True, False, True])
    assert np.array_equal(host(S)[::2, ::2], new[:, ::2].T @ new[:, ::2])
    assert not np.isfinite(host(S)[1, 1])


@pytest.mark.parametrize("K", [0, 1, 5])
def test_few_rows_and_no_columns_are_no_special_case(device: str, K: int) -> None:
    for M, N in ((3, 2), (0, 2), (3, 0)):
        V, W = (BlockVector.full(K, width, 2, device=device) for width in (N, M))
        S = V.combine_dot(on(device, np.eye(N)), W)
        assert np.array_equal(host(S), np.full((M, N), 4.0 * K))
        S = V.update_gram(W, on(device, np.zeros((M, N))))
        assert np.array_equal(host(S), np.full((N, N), 4.0 * K))
