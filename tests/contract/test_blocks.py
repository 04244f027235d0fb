"""What a block is: wrapped memory, views, constructors, and how other libraries see it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockvec import BlockVector
from tests.contract.blocks import DTYPES, dtypes, host, layouts, on, seeds, values


@given(st.integers(0, 9), st.integers(0, 9), dtypes, layouts)
def test_an_array_is_wrapped_without_a_copy(device: str, K: int, M: int, dtype: str, layout: Any) -> None:
    parent = on(device, np.zeros((K, layout.left + M + layout.right), dtype))
    view = parent[:, layout.left : layout.left + M]
    V = BlockVector(view)
    assert V.array is view
    assert (V.shape, V.n_rows, V.n_cols, V.dtype, V.ndim) == ((K, M), K, M, np.dtype(dtype), 2)
    assert V.ld == (layout.left + M + layout.right if K > 1 and M > 0 else max(M, 1))
    V.array[...] = 7
    assert (host(parent)[:, layout.left : layout.left + M] == 7).all()


@pytest.mark.parametrize("step", [1, 2])
def test_a_vector_or_every_other_element_of_it_is_a_column_of_the_same_memory(device: str, step: int) -> None:
    x, expected = on(device, np.arange(10.0)), np.arange(10.0)
    V = BlockVector(x[::step])
    assert (V.shape, V.ld) == ((10 // step, 1), step)
    assert host(V.gram())[0, 0] == (expected[::step] ** 2).sum()
    V *= 2
    expected[::step] *= 2
    assert np.array_equal(host(x), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("given", ["float64", "int8", "int64", "uint32", "bool"])
def test_copies_take_any_layout_and_convert(device: str, given: str, dtype: str) -> None:
    A = on(device, np.arange(24.0).reshape(4, 6).astype(given))
    for strided in (A, A.T, A[:, ::2], A[::-1], A[:, ::-1]):
        V = BlockVector(strided, copy=True, dtype=dtype)
        assert V.dtype == dtype
        assert V.array.flags.c_contiguous
        assert np.array_equal(host(V), host(strided))
    assert np.array_equal(host(BlockVector(A, dtype=dtype)), host(A))


def test_a_block_of_a_block_shares_memory_and_may_convert(device: str) -> None:
    V = BlockVector.zeros(4, 2, device=device)
    assert BlockVector(V).array is V.array
    assert BlockVector(V, dtype="complex64").dtype == np.complex64
    assert BlockVector(V, copy=True).array is not V.array


@given(st.integers(0, 12), st.integers(0, 9), st.data())
def test_ranges_are_views_with_the_same_leading_dimension(device: str, K: int, M: int, data: Any) -> None:
    A = np.arange(float(K * M)).reshape(K, M)
    V = BlockVector(on(device, A))
    bounds = st.one_of(st.none(), st.integers(-14, 14))
    rows, cols = (slice(data.draw(bounds), data.draw(bounds)) for _ in range(2))
    view = V[rows, cols]
    assert np.array_equal(host(view), A[rows, cols])
    assert np.array_equal(host(V[rows]), A[rows])
    if view.n_rows > 1 and view.n_cols > 0:
        assert view.ld == M
    view.array[...] = -1
    A[rows, cols] = -1
    assert np.array_equal(host(V), A)


def test_single_columns_and_rows_are_views_and_fancy_indices_copies(device: str) -> None:
    A = np.arange(12.0).reshape(4, 3)
    V = BlockVector(on(device, A))
    for index, kept in (
        ((slice(None), 1), A[:, 1:2]),
        ((slice(None), -1), A[:, 2:]),
        (2, A[2:3]),
        ((-1, 0), A[3:, :1]),
        ((slice(None), [2, 0]), A[:, [2, 0]]),
        ([0, 3], A[[0, 3]]),
        ((slice(None), np.array([True, False, True])), A[:, [0, 2]]),
    ):
        assert np.array_equal(host(V[index]), kept)
    V[:, [2, 0]].scale(0)
    assert np.array_equal(host(V), A)
    V[:, 1].scale(0)
    assert np.array_equal(host(V), A * [1, 0, 1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_constructors_make_what_they_say(device: str, dtype: str) -> None:
    assert not host(BlockVector.zeros(5, 3, dtype, device=device)).any()
    assert (host(BlockVector.full(5, 3, 2.5, dtype, device=device)) == 2.5).all()
    V = BlockVector.empty(5, 3, dtype, device=device)
    assert (V.shape, V.dtype, V.ld) == ((5, 3), np.dtype(dtype), 3)
    W = V.like(7, "complex64")
    assert (W.shape, W.dtype, W.device) == ((5, 7), np.dtype("complex64"), V.device)


def test_a_block_from_a_function_has_its_values_at_global_row_numbers(device: str) -> None:
    V = BlockVector.from_function(lambda i, j: 10.0 * i + j, 70000, 2, device=device)
    assert np.array_equal(host(V), 10.0 * np.arange(70000)[:, None] + np.arange(2))
    part = BlockVector.from_function(lambda i, j: 10.0 * i + j, 3, 2, first_row=100, device=device)
    assert np.array_equal(host(part), host(V)[100:103])


def test_copies_are_apart_from_their_source(device: str) -> None:
    V = BlockVector.full(5, 4, 1.0, device=device)[:, 1:3]
    W, X = V.copy(), copy.copy(V[:, :1].copy())
    W.scale(3)
    assert (host(V) == 1).all()
    assert W.ld == 2
    assert X.shape == (5, 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_travel_between_devices(device: str, dtype: str) -> None:
    A = values(np.random.default_rng(1), (33, 4), dtype)
    V = BlockVector(A[:, 1:3])
    there = V.to_device(device)
    assert there.device.startswith("cpu" if device == "cpu" else "cuda:")
    assert np.array_equal(host(there), A[:, 1:3])
    back = there[:, 1:].to_host()
    assert back.device == "cpu"
    assert np.array_equal(back.array, A[:, 2:3])


@given(st.integers(0, 40), st.integers(0, 5), dtypes, layouts, seeds)
def test_saved_blocks_load_with_the_same_bits(
    device: str,
    tmp_path_factory: pytest.TempPathFactory,
    K: int,
    M: int,
    dtype: str,
    layout: Any,
    seed: int,
) -> None:
    path: Path = tmp_path_factory.mktemp("blocks") / "V.npy"
    A = values(np.random.default_rng(seed), (K, layout.left + M + layout.right), dtype)
    V = BlockVector(on(device, A))[:, layout.left : layout.left + M]
    V.save(path)
    W = BlockVector.load(path, device=device)
    assert W.device == V.device
    assert W.dtype == V.dtype
    assert np.array_equal(host(W), host(V))
    assert np.array_equal(np.load(path), host(V))


def test_the_description_has_no_data_and_one_line(device: str) -> None:
    where = "cpu" if device == "cpu" else "cuda:0"
    V = BlockVector.zeros(1000, 8, device=device)
    assert repr(V) == f"BlockVector(1000x8, float64, ld=8, {where})"
    assert repr(V[:, 2:4]) == f"BlockVector(1000x2, float64, ld=8, {where})"
    assert repr(V.H) == repr(V) + ".H"
    assert V.T.shape == (8, 1000)
    assert V.nbytes == 64000


def test_dlpack_shares_memory_both_ways(device: str) -> None:
    V = BlockVector.zeros(6, 3, device=device)

    class Foreign:
        """An array of another library, known by its protocol alone."""

        def __dlpack__(self, **options: Any) -> Any:
            return V.array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return V.array.__dlpack_device__()

    W = BlockVector(Foreign())
    assert W.device == V.device
    W.array[...] = 4
    assert (host(V) == 4).all()
    exported = V.backend.xp.from_dlpack(V)
    exported[...] = 5
    assert (host(V) == 5).all()


def test_other_libraries_see_the_memory_of_a_block_and_numpy_a_clear_error_for_a_device(device: str) -> None:
    V = BlockVector(on(device, np.array([[1.0, 2.0j], [3.0j, 4.0], [5.0, 6.0]])))
    if device != "cpu":
        for block in (V, V.T):
            with pytest.raises(TypeError, match=r"to_host\(\)"):
                np.asarray(block)
        assert V.__cuda_array_interface__["shape"] == (3, 2)
        assert V.backend.xp.asarray(V).data.ptr == V.array.data.ptr
        return
    assert not hasattr(V, "__cuda_array_interface__")
    for block, array in ((V, V.array), (V.T, V.array.T)):
        assert np.shares_memory(np.asarray(block), V.array)
        assert np.array_equal(np.asarray(block), array)
        assert np.asarray(block, dtype="complex64").dtype == np.complex64
    assert (np.asarray(V.H) == V.array.conj().T).all()


def test_comparison_is_elementwise_and_hashes_are_identities(device: str) -> None:
    V = BlockVector(on(device, np.array([[1.0, 2.0], [3.0, 4.0]])))
    W = V.copy()
    W[1, 0] = 5.0
    W[0] = V[0]
    assert host(V == W).tolist() == [[True, True], [False, True]]
    assert host(V != W).tolist() == [[False, False], [True, False]]
    assert host(V == 3.0).tolist() == [[False, False], [True, False]]
    assert host(V.array == V).all()
    with pytest.raises(ValueError, match="ambiguous"):
        bool(V == W)
    assert {V: "V", W: "W"}[V] == "V"


@pytest.mark.parametrize("dtype", DTYPES)
def test_conversions_and_conjugates_are_contiguous_copies_with_numpys_values(device: str, dtype: str) -> None:
    V = BlockVector.random(50, 6, dtype, rng=3, device=device)[:, 1:4]
    host = V.to_host().array
    single = "complex64" if V.dtype.kind == "c" else "float32"
    for block, expected in ((V.conj(), host.conj()), (V.astype(single), host.astype(single))):
        assert block.array.flags.c_contiguous
        assert block.dtype == expected.dtype
        assert np.array_equal(block.to_host().array, expected)
    assert (V.size, V.nbytes) == (150, 150 * V.dtype.itemsize)
    V.conj().scale(0)
    assert np.array_equal(V.to_host().array, host)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_over_the_rows_are_products_with_ones(device: str, dtype: str) -> None:
    V = BlockVector.random(999, 3, dtype, rng=4, device=device)
    V.array[...] = V.backend.xp.sign(V.array.real)
    assert np.array_equal(V.backend.to_host(V.sum()), V.to_host().array.sum(axis=0))
