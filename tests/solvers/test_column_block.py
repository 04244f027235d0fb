"""Column-major blocks: the operations of a block, and products with every kind of operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import blockvec
from blockvec import BlockVector
from blockvec.errors import LayoutError
from solvers.blocks import ColumnBlock

SHAPES = st.tuples(st.integers(0, 40), st.integers(0, 6), st.integers(0, 6))
TYPES = st.sampled_from(["float64", "complex128"])


def numbers(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> np.ndarray:
    """Draw from {-1, 0, 1}, times 1 or i: products are exact."""
    drawn = rng.integers(-1, 2, shape).astype(dtype)
    return np.asfortranarray(drawn * (1 if dtype == "float64" else rng.choice([1, 1j], shape)))


@given(shape=SHAPES, dtype=TYPES, seed=st.integers(0, 99))
def test_operations_are_those_of_a_plain_block(shape: tuple[int, int, int], dtype: str, seed: int) -> None:
    (n, m, b), rng = shape, np.random.default_rng(seed)
    V, W, C = (numbers(rng, extents, dtype) for extents in ((n, m), (n, b), (m, b)))
    A, B = ColumnBlock(V), ColumnBlock(W)
    assert np.array_equal(A.dot(B), V.conj().T @ W)
    assert np.array_equal(A.gram(), V.conj().T @ V)
    out = ColumnBlock(np.full((n, b), np.nan, dtype, order="F"))
    assert A.combine(C, out=out) is out
    assert np.array_equal(out.array, V @ C)
    assert np.array_equal(A.combine(C, alpha=-2, beta=3, out=B.copy()).array, 3 * W - 2 * (V @ C))
    assert np.array_equal(A.combine(C).array, V @ C)
    assert np.array_equal(B.copy().axpy(2, B).array, 3 * W)
    assert np.array_equal(B.copy().axpby(np.arange(b), B, -1).array, W * (np.arange(b) - 1))
    assert np.array_equal(B.copy().scale(np.arange(b)).array, W * np.arange(b))
    assert np.array_equal(B.column_dot(B), (W.conj() * W).sum(axis=0))
    assert np.allclose(B.norms() ** 2, (abs(W) ** 2).sum(axis=0), rtol=1e-15)
    rest = W - V @ C
    assert np.array_equal(B.update_gram(A, C), rest.conj().T @ rest)
    assert np.array_equal(B.array, rest)


@given(seed=st.integers(0, 99), dtype=TYPES, kept=st.integers(0, 5))
def test_a_block_may_be_combined_into_its_own_columns(seed: int, dtype: str, kept: int) -> None:
    rng = np.random.default_rng(seed)
    V, C = numbers(rng, (30, 5), dtype), numbers(rng, (5, kept), dtype)
    block = ColumnBlock(V.copy(order="F"))
    block.combine(C, out=block[:, :kept])
    assert np.array_equal(block.array[:, :kept], V @ C)
    assert np.array_equal(block.array[:, kept:], V[:, kept:])


def operators(n: int, dtype: str) -> dict[str, Any]:
    """A matrix in every form that a solve takes."""
    rng = np.random.default_rng(0)
    A = sp.random_array((n, n), density=0.2, rng=rng)
    A.data[:] = rng.integers(1, 4, A.nnz)
    A = sp.csr_array(A + A.T).astype(dtype)
    return {
        "sparse": A,
        "dense": A.toarray(),
        "linear operator": sp.linalg.aslinearoperator(A),
        "affine": blockvec.as_operator(A).affine(1, 0),
    }


@pytest.mark.parametrize("kind", operators(4, "float64"))
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("width", [0, 1, 2, 3, 5])
def test_products_by_columns_are_those_of_the_operator(kind: str, dtype: str, width: int) -> None:
    A = operators(50, dtype)
    X, Y = (numbers(np.random.default_rng(seed), (50, width), dtype) for seed in (1, 2))
    operator, dense = blockvec.as_operator(A[kind]), A["dense"]
    assert np.array_equal(operator.apply(ColumnBlock(X)).array, dense @ X)
    out = ColumnBlock(np.full((50, width), np.nan, dtype, order="F"))
    assert operator.apply(ColumnBlock(X), out=out) is out
    assert np.array_equal(out.array, dense @ X)
    found = operator.apply(ColumnBlock(X), ColumnBlock(Y.copy(order="F")), 2, -3, 0.5).array
    assert np.array_equal(found, 2 * (dense @ X) - X - 3 * Y)
    shifts = np.arange(width)
    assert np.array_equal(operator.apply(ColumnBlock(X), shift=shifts).array, dense @ X - X * shifts)
    assert np.array_equal(operator.affine(2, 1).apply(ColumnBlock(X)).array, 2 * (dense @ X - X))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_vectors_are_added_by_one_triangle_of_a_hermitian_matrix(order: Any, dtype: str) -> None:
    A = operators(50, dtype)["dense"].copy(order=order)
    x, y = (numbers(np.random.default_rng(seed), (50, 1), dtype)[:, 0] for seed in (1, 2))
    expected = A @ x + y
    blockvec.as_operator(A).vector_adder(is_hermitian=True)(x, y)
    assert np.array_equal(y, expected)


def test_checked_operations_refuse_column_major_blocks() -> None:
    X = np.ones((5, 2))
    for refused in (lambda: BlockVector(X).dot(ColumnBlock(X)), lambda: BlockVector(ColumnBlock(X))):
        with pytest.raises(LayoutError):
            refused()
