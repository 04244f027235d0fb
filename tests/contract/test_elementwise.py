"""Sums, scalings, column dots and norms on every backend, against NumPy and against extended precision."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockvec import BlockVector, RowFunction
from blockvec.operations import elementwise
from blockvec.operations.arrays import REAL_TYPES
from tests.contract.blocks import (
    DTYPES,
    Guarded,
    Layout,
    complex_factors,
    dtypes,
    exact_values,
    extended,
    host,
    is_close,
    layouts,
    on,
    row_counts,
    seeds,
    values,
    widths,
)
from tests.matrices import unit

shapes = st.tuples(row_counts.filter(lambda K: K <= 1025), widths)


def factor(rng: np.random.Generator, M: int, dtype: str, scalar: complex | None) -> Any:
    """Return a scalar of the block's type, or one per column where there is none."""
    if scalar is None:
        return values(rng, (M,), dtype)
    return scalar if np.dtype(dtype).kind == "c" else complex(scalar).real


@given(
    shapes,
    dtypes,
    st.tuples(layouts, layouts),
    st.none() | complex_factors,
    st.none() | complex_factors,
    seeds,
)
def test_axpby_and_scale_update_a_block_and_nothing_beside_it(
    device: str,
    shape: tuple[int, int],
    dtype: str,
    where: tuple[Layout, Layout],
    alpha: complex | None,
    beta: complex | None,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    a, b = (factor(rng, shape[1], dtype, scalar) for scalar in (alpha, beta))
    X = values(rng, shape, dtype)
    Y = np.full(shape, np.nan, dtype) if beta == 0 else values(rng, shape, dtype)  # not read
    V, W = (Guarded(block, device, layout) for block, layout in zip((X, Y), where, strict=True))
    here = [on(device, f) if isinstance(f, np.ndarray) else f for f in (a, b)]
    assert W.block.axpby(here[0], V.block, here[1]) is W.block
    Y = np.zeros_like(Y) if beta == 0 else Y
    assert is_close(W.block, a * extended(X) + b * extended(Y), np.abs(a * X) + np.abs(b * Y), dtype)
    assert np.array_equal(host(V.block), X)
    assert V.block.scale(here[0]) is V.block
    assert is_close(V.block, a * extended(X), np.abs(a * X), dtype)
    assert V.is_untouched_outside()
    assert W.is_untouched_outside()


@given(shapes, dtypes, dtypes, layouts, complex_factors, st.booleans(), seeds)
def test_sums_of_mixed_types_promote_as_numpy_does(
    device: str,
    shape: tuple[int, int],
    left: str,
    right: str,
    layout: Layout,
    factor: complex,
    is_difference: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    X, Y = values(rng, shape, left), values(rng, shape, right)
    V, W = Guarded(X, device, layout).block, Guarded(Y, device).block
    combine = operator.sub if is_difference else operator.add
    total, expected = combine(V, W), combine(X, Y)
    assert total.dtype == expected.dtype
    assert is_close(total, combine(extended(X), extended(Y)), np.abs(X) + np.abs(Y), expected.dtype)
    scaled, expected = V * factor, X * factor
    assert scaled.dtype == expected.dtype
    assert is_close(scaled, extended(X) * factor, np.abs(X) * abs(factor), expected.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor_dtype", ["int64", "int8", "bool"])
def test_factors_may_be_integers(device: str, dtype: str, factor_dtype: str) -> None:
    X = exact_values(np.random.default_rng(5), (100, 3), dtype)
    factors = np.array([1, 0, 3]).astype(factor_dtype)
    V = BlockVector(on(device, X))
    V.scale(on(device, factors))
    assert V.dtype == dtype
    assert np.array_equal(host(V), X * factors)
    assert np.array_equal(host(V.scale([1, 2, 3])), X * factors * [1, 2, 3])


@pytest.mark.parametrize("dtype", DTYPES)
def test_axpy_of_a_block_with_itself_is_a_scaling(device: str, dtype: str) -> None:
    X = values(np.random.default_rng(1), (777, 5), dtype)
    V = BlockVector(on(device, X))
    V.axpy(2, V)
    assert is_close(V, 3 * extended(X), np.abs(X), dtype)
    V.axpby(1, V, -1)
    assert not host(V).any()


def test_factors_taken_from_the_block_itself_are_read_before_it_changes(device: str) -> None:
    X = np.random.default_rng(2).uniform(1, 2, (50001, 6))
    for row in (0, 25000, 50000):
        V = BlockVector(on(device, X))
        V.scale(V.array[row])
        assert np.array_equal(host(V), X * X[row])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(30007, 1), (30007, 3), (9001, 8), (4001, 31), (70, 600)])
def test_large_blocks_are_summed_and_copied_exactly(device: str, dtype: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(4)
    X, Y = (rng.integers(-100, 100, shape).astype(dtype) for _ in range(2))
    c = rng.integers(-3, 4, shape[1]).astype(dtype)
    V, W = Guarded(X, device, Layout(1, 2)).block, BlockVector(on(device, Y))
    assert np.array_equal(host(V + W), X + Y)
    assert np.array_equal(host(V.copy()), X)
    assert np.array_equal(host(W.copy().axpy(on(device, c), V)), Y + c * X)
    assert np.array_equal(host(W.copy().axpby(on(device, c), V, on(device, c))), c * Y + c * X)
    assert np.array_equal(host(V.copy().scale(on(device, c))), c * X)


@given(shapes, dtypes, dtypes, layouts, layouts, seeds)
def test_column_dots_are_within_the_rounding_bound(
    device: str, shape: tuple[int, int], left: str, right: str, layout_x: Layout, layout_y: Layout, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    X, Y = values(rng, shape, left), values(rng, shape, right)
    V, W = Guarded(X, device, layout_x).block, Guarded(Y, device, layout_y).block
    dots = V.column_dot(W)
    assert dots.shape == (shape[1],)
    assert dots.dtype == np.result_type(X, Y)
    exact = (extended(X).conj() * extended(Y)).sum(axis=0)
    scale = (np.abs(X) * np.abs(Y)).sum(axis=0, dtype=float)
    assert is_close(dots, exact, scale, dots.dtype, ulps=4 * (2 + np.sqrt(shape[0])))
    assert np.all(host(V.column_dot(V)).imag == 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(20003, 1), (6007, 7), (901, 64), (3, 3000)])
@pytest.mark.parametrize("ends", [(0, 1), (0, 0), (0.2, 0.7), (0, 0.5), (0.5, 1)])
def test_column_dots_of_both_ends_of_a_block(
    device: str, dtype: str, shape: tuple[int, int], ends: tuple[float, float]
) -> None:
    rng = np.random.default_rng(6)
    X, Y = (rng.integers(-2, 3, shape).astype(dtype) for _ in range(2))
    v, w = (BlockVector(on(device, block)).memory for block in (X, Y))
    begin, end = (int(share * shape[0]) for share in ends)
    for right, B, kind in ((w, Y, dtype), (v, X, REAL_TYPES[dtype])):
        terms = X.conj() * B
        expected = terms.sum(axis=0) - terms[begin:end].sum(axis=0)
        dots = elementwise.column_dot(v, right, kind, 0, (begin, end))
        assert np.array_equal(host(dots), expected)
        elementwise.column_dot(v, right, dots, 1, (begin, end))
        assert np.array_equal(host(dots), 2 * expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(200003, 1), (200003, 2), (60007, 7), (9001, 64), (501, 700), (3, 3000)])
def test_column_dots_of_large_blocks_are_exact_where_the_terms_are(
    device: str, dtype: str, shape: tuple[int, int]
) -> None:
    rng = np.random.default_rng(5)
    X, Y = (rng.integers(-2, 3, shape).astype(dtype) for _ in range(2))
    if np.dtype(dtype).kind == "c":
        X, Y = X + 1j * X[::-1], Y - 1j * Y[:, ::-1]
    V, W = Guarded(X.astype(dtype), device, Layout(1, 0)).block, BlockVector(on(device, Y.astype(dtype)))
    assert np.array_equal(host(V.column_dot(W)), (X.conj() * Y).sum(axis=0))
    squares = (X.real.astype(float) ** 2 + X.imag.astype(float) ** 2).sum(axis=0)
    assert np.array_equal(host(V.norms()), np.sqrt(squares.astype(X.real.dtype)))
    first = host(V.column_dot(W))
    assert all(np.array_equal(host(V.column_dot(W)), first) for _ in range(3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_normalize_leaves_zero_columns_zero_and_returns_the_norms(device: str, dtype: str) -> None:
    X = values(np.random.default_rng(6), (501, 4), dtype)
    X[:, 2] = 0
    V = BlockVector(on(device, X))
    norms = V.normalize()
    exact = np.sqrt((np.abs(extended(X)) ** 2).sum(axis=0))
    assert is_close(norms, exact, exact, dtype, ulps=100)
    assert not host(V)[:, 2].any()
    lengths = np.linalg.norm(host(V), axis=0)
    assert np.all(np.abs(lengths - [1, 1, 0, 1]) <= 200 * unit(dtype))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_nan_or_inf_reaches_its_own_column_alone(device: str, bad: float) -> None:
    X = np.random.default_rng(7).uniform(1, 2, (3001, 5))
    X[1500, 3] = bad
    V = BlockVector(on(device, X))
    assert np.array_equal(np.isfinite(host(V.norms())), [True, True, True, False, True])
    W = host(2 * V)
    assert np.array_equal(np.isfinite(W), np.isfinite(X))


OPERATIONS = (
    *("V + W", "V - W", "V * W", "V / W", "V + 2", "2 + V", "V - 2.5", "2.5 - V", "V * 3", "3 * V"),
    *("V * np.float64(0.1)", "V / 3", "-V", "V * 1j", "V + plain", "plain + V", "plain - V"),
    *("V * row", "row * V", "V + row", "V - row"),
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_arithmetic_means_what_it_does_for_arrays(device: str, operation: str, dtype: str) -> None:
    rng = np.random.default_rng(8)
    X, Y = (rng.uniform(1, 2, (301, 5)).astype(dtype) for _ in range(2))
    if np.dtype(dtype).kind == "c":
        X, Y = X * np.asarray(1 + 0.5j, dtype), Y * np.asarray(1 - 0.5j, dtype)
    expected = eval(operation, {"np": np, "V": X, "W": Y, "plain": Y, "row": Y[0]})
    there = {"V": BlockVector(on(device, X)), "W": BlockVector(on(device, Y))}
    result = eval(operation, {"np": np, **there, "plain": on(device, Y), "row": on(device, Y[0])})
    assert isinstance(result, BlockVector)
    assert result.dtype == expected.dtype
    # A sum of what is at most 5 in modulus, from operands that are exact in their own type.
    assert is_close(result, expected, np.abs(expected) + 5, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place_operators_keep_the_memory(device: str, dtype: str) -> None:
    rng = np.random.default_rng(10)
    X, Y = (rng.integers(1, 9, (101, 4)).astype(dtype) for _ in range(2))
    frame = Guarded(X, device, Layout(1, 1))
    V, W = frame.block, BlockVector(on(device, Y))
    data = V.array
    V += W
    V -= 2 * W
    V *= 2
    V /= 4
    V += 1
    V *= W
    assert V.array is data
    assert np.array_equal(host(V), (((X + Y) - 2 * Y) * 2 / 4 + 1) * Y)
    assert frame.is_untouched_outside()


@given(st.integers(1, 300), st.booleans(), st.sampled_from(["float32", "float64"]), seeds)
def test_functions_of_rows_are_those_of_numpy(
    device: str, count: int, has_gaps: bool, dtype: str, seed: int
) -> None:
    def halves(xp: Any, x: Any, mask: Any) -> tuple[Any, Any]:
        return xp.where(mask, xp.sqrt(xp.maximum(x, 0.0)) / 2, -1.0), mask & (x > 0)

    rng = np.random.default_rng(seed)
    x, mask = rng.standard_normal(2 * count).astype(dtype), rng.random(count) < 0.5
    part = slice(None, None, 2) if has_gaps else slice(count)
    x_there, mask_there = on(device, x), on(device, mask)
    row = x_there[part]
    RowFunction(halves)(row, mask_there, out=(row, mask_there))
    expected = x.copy()
    expected[part], expected_mask = halves(np, x[part], mask)
    np.testing.assert_allclose(host(x_there), expected, rtol=4 * unit(dtype))
    assert np.array_equal(host(mask_there), expected_mask)


@given(shapes, dtypes, dtypes, layouts, layouts, st.sampled_from([0, 1.5, "block"]), seeds)
def test_assignments_to_ranges_convert_and_leave_what_is_beside_them(
    device: str, shape: tuple[int, int], one: str, other: str, to: Layout, of: Layout, value: Any, seed: int
) -> None:
    dtype = np.result_type(one, other).name
    rng = np.random.default_rng(seed)
    V, W = Guarded(values(rng, shape, dtype), device, to), Guarded(values(rng, shape, other), device, of)
    V.block[:, :] = W.block if value == "block" else value
    expected = host(W.block) if value == "block" else np.full(shape, value)
    assert np.array_equal(host(V.block), expected.astype(dtype))
    assert V.is_untouched_outside()


@pytest.mark.parametrize(
    ("to", "of"),
    [
        ((slice(None), slice(1, 8)), (slice(None), slice(0, 7))),
        ((slice(1, None), slice(None)), (slice(None, -1), slice(None))),
        ((slice(None), slice(0, 4)), (slice(None), slice(4, 8))),
    ],
    ids=["columns", "rows", "beside"],
)
def test_assignments_between_ranges_of_one_block_read_before_they_write(
    device: str, to: tuple[slice, slice], of: tuple[slice, slice]
) -> None:
    x = np.random.default_rng(0).standard_normal((5000, 8))
    V = BlockVector(on(device, x))
    V[to] = V[of]
    expected = x.copy()
    expected[to] = x[of]
    assert np.array_equal(host(V), expected)


def test_functions_may_return_their_rows_in_another_order(device: str) -> None:
    a, b = on(device, np.array([1.0, 2.0])), on(device, np.array([3.0, 4.0]))
    RowFunction(lambda xp, x, y: (y, x))(a, b, out=(a, b))
    assert (host(a).tolist(), host(b).tolist()) == ([3.0, 4.0], [1.0, 2.0])
