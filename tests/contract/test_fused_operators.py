"""What apply makes beside its product, on every backend: chained updates, column dots, Gram matrices."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from blockvec import BlockVector, as_operator
from tests.contract.blocks import (
    DTYPES,
    Guarded,
    Layout,
    Reference,
    complex_factors,
    dtypes,
    exact_values,
    extended,
    factors,
    host,
    layouts,
    on,
    random_matrix,
    seeds,
    unit_roundoff,
    values,
)

pytestmark = pytest.mark.usefixtures("jit")
DOTS, GRAMS = ("xx", "xy", "yy"), ("xy", "yy")
widths = st.sampled_from([1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33])
some_dots = st.lists(st.sampled_from(DOTS), unique=True)
some_grams = st.lists(st.sampled_from(GRAMS), unique=True)


def make(kind: str, A: Any, device: str) -> Any:
    """An operator of each class for the same matrix."""
    if kind == "sparse":
        return as_operator(A, device=device)
    dense = on(device, A.toarray())
    if kind == "dense":
        return as_operator(dense)
    return as_operator(lambda X: dense @ X, shape=A.shape, dtype=A.dtype, device=device)


def sums_are_right(applied: Any, X: Any, Y: Any) -> bool:
    """Whether column dots and Gram matrices are those of the blocks, to the rounding bound of their sums."""
    blocks = {"x": X, "y": Y}
    for name, found in [*applied.dots.items(), *applied.gram.items()]:
        left, right = (blocks[letter] for letter in name)
        reference = Reference.of(left.conj().T, right, found.dtype)
        if found.ndim == 1:
            reference = Reference(np.diagonal(reference.exact), np.diagonal(reference.bound))
        if not reference.accepts(found):
            return False
    return True


@given(
    st.sampled_from(["sparse", "sparse", "sparse", "dense", "function"]),
    st.integers(0, 60),
    widths,
    dtypes,
    dtypes,
    st.tuples(layouts, layouts, layouts),
    st.tuples(complex_factors, complex_factors, factors, factors),
    st.one_of(st.just("column"), complex_factors),
    some_dots,
    some_grams,
    st.booleans(),
    seeds,
)
def test_everything_is_made_of_the_new_product_within_the_rounding_bound(
    device: str,
    kind: str,
    n: int,
    width: int,
    left: str,
    right: str,
    where: tuple[Layout, Layout, Layout],
    scalars: tuple[complex, complex, float, float],
    shift: Any,
    dots: list[str],
    gram: list[str],
    chained: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    alpha, beta, delta, eta = scalars
    A, X = random_matrix(rng, (n, n), left), values(rng, (n, width), right)
    shifts = values(rng, (width,), right) if shift == "column" else shift
    dtype = np.result_type(A.dtype, X, alpha, beta, shifts)
    Y, Z = values(rng, (n, width), dtype), values(rng, (n, width), dtype)
    V, out, z = (Guarded(block, device, layout) for block, layout in zip((X, Y, Z), where, strict=True))
    here = on(device, shifts) if shift == "column" else shifts
    chain = {"z": z.block, "delta": delta, "eta": eta} if chained else {}
    found = make(kind, A, device).apply(V.block, out.block, alpha, beta, here, dots=dots, gram=gram, **chain)
    if dots or gram:
        assert found.Y is out.block
        assert list(found.dots) == [name for name in DOTS if name in dots]
        assert list(found.gram) == [name for name in GRAMS if name in gram]
        # X takes the type of the result where a factor widens it.
        assert sums_are_right(found, X, host(out.block))
    else:
        assert found is out.block
    stacked = np.hstack([A.toarray(), np.eye(n)])
    shifted = -extended(np.asarray(shifts)) * extended(X)
    reference = Reference.of(stacked, np.vstack([extended(X), shifted]), dtype, alpha, beta, Y)
    assert Reference(reference.exact, 4 * reference.bound).accepts(out.block)
    if chained:
        product = host(out.block)
        exact = delta * extended(Z) + eta * extended(product)
        bound = 4 * unit_roundoff(dtype) * (np.abs(delta * Z) + np.abs(eta * product)) + np.finfo(dtype).tiny
        assert Reference(exact, bound).accepts(z.block)
    assert all(block.is_untouched_outside() for block in (V, out))
    assert z.is_untouched_outside()


WIDTHS, VIEWS = itertools.cycle([1, 2, 3, 4, 8, 17, 64]), itertools.cycle([Layout(0, 0), Layout(1, 2)])


@pytest.mark.parametrize(
    ("matrix", "dtype", "width", "layout"),
    [(*types, next(WIDTHS), next(VIEWS)) for types in itertools.product(DTYPES, repeat=2)],
)
def test_on_many_rows_everything_is_exact_where_the_terms_are_and_repeats(
    device: str, matrix: str, dtype: str, width: int, layout: Layout
) -> None:
    n = 20011
    rng = np.random.default_rng(1)
    diagonals = [exact_values(rng, (n,), matrix) for _ in range(3)]
    A = sp.diags_array(diagonals, offsets=[-150, 0, 149], shape=(n, n), format="csr", dtype=matrix)
    X = exact_values(rng, (n, width), dtype)
    Y = Z = exact_values(rng, (n, width), np.result_type(matrix, dtype))
    op, V = as_operator(A, device=device), Guarded(X, device, layout).block
    shifts = np.arange(width, dtype="float32") % 3
    new = A @ X - shifts * X - Y
    kept = []
    for _ in range(2):
        out, z = (Guarded(block, device, layout) for block in (Y, Z))
        found = op.apply(
            *(V, out.block, 1, -1, on(device, shifts)), z=z.block, delta=2, eta=-1, dots=DOTS, gram=GRAMS
        )
        assert np.array_equal(host(out.block), new)
        assert np.array_equal(host(z.block), 2 * Z - new)
        assert np.array_equal(host(found.gram["xy"]), X.conj().T @ new)
        assert np.array_equal(host(found.gram["yy"]), new.conj().T @ new)
        for name, (left, right) in {"xx": (X, X), "xy": (X, new), "yy": (new, new)}.items():
            assert np.array_equal(host(found.dots[name]), np.sum(left.conj() * right, axis=0))
        kept.append([host(array) for array in [*found.dots.values(), *found.gram.values()]])
    assert all(map(np.array_equal, *kept))
    op.apply(V, z.block, alpha=2, beta=-3, shift=2)  # a product alone
    assert np.array_equal(host(z.block), 2 * (A @ X - 2 * X) - 3 * (2 * Z - new))
    assert z.is_untouched_outside()
    assert np.array_equal(host(op @ V), A @ X)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_rounded_numbers_repeat_and_a_gram_matrix_is_hermitian(device: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    n = 30011
    diagonals = [rng.standard_normal(n) for _ in range(3)]
    matrix = sp.diags_array(diagonals, offsets=[-9, 0, 40], shape=(n, n), format="csr", dtype=dtype)
    A = as_operator(matrix, device=device)
    V = BlockVector.random(n, 5, dtype, rng=3, device=device)
    first, again = (A.apply(V, dots=DOTS, gram=GRAMS) for _ in range(2))
    for name in DOTS:
        assert np.array_equal(host(first.dots[name]), host(again.dots[name]))
    for name in GRAMS:
        assert np.array_equal(host(first.gram[name]), host(again.gram[name]))
    G = host(first.gram["yy"])
    assert np.array_equal(G, G.conj().T)
    assert first.dots["yy"].dtype == first.dots["xx"].dtype == G.real.dtype


@given(st.integers(0, 70), widths, dtypes, layouts, some_dots, some_grams, seeds)
def test_with_zero_factors_poisoned_blocks_are_not_read(
    device: str, n: int, width: int, dtype: str, layout: Layout, dots: list[str], gram: list[str], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    A, X = random_matrix(rng, (n, n), dtype), values(rng, (n, width), dtype)
    out, z = (Guarded(np.full((n, width), np.nan, dtype), device, layout) for _ in range(2))
    found = as_operator(A, device=device).apply(
        on(device, X), out.block, z=z.block, delta=0, eta=2, dots=dots, gram=gram
    )
    assert Reference.of(A.toarray(), X, dtype).accepts(out.block)
    assert np.array_equal(host(z.block), 2 * host(out.block))
    assert out.is_untouched_outside()
    assert z.is_untouched_outside()
    assert not (dots or gram) or sums_are_right(found, X, host(out.block))


def test_a_single_name_may_stand_alone_and_without_out_a_block_is_made(device: str) -> None:
    A = as_operator(sp.eye_array(4, format="csr"), device=device)
    Y, dots, gram = A.apply(BlockVector.full(4, 2, 1, device=device), dots="xy", gram="yy")
    assert (list(dots), list(gram)) == (["xy"], ["yy"])
    assert np.array_equal(host(Y), np.ones((4, 2)))
    assert np.array_equal(host(dots["xy"]), [4, 4])
    assert np.array_equal(host(gram["yy"]), np.full((2, 2), 4))


def test_rectangles_have_sums_of_their_product_alone(device: str) -> None:
    A = exact_values(np.random.default_rng(4), (9, 5), "float64")
    X = exact_values(np.random.default_rng(5), (5, 3), "float64")
    for op in (as_operator(sp.csr_array(A), device=device), as_operator(on(device, A))):
        _, dots, gram = op.apply(on(device, X), dots="yy", gram="yy")
        assert np.array_equal(host(dots["yy"]), ((A @ X) ** 2).sum(axis=0))
        assert np.array_equal(host(gram["yy"]), (A @ X).T @ (A @ X))


def test_no_rows_have_sums_of_zero(device: str) -> None:
    op = as_operator(sp.csr_array((0, 0)), device=device)
    _, dots, gram = op.apply(BlockVector.zeros(0, 3, device=device), dots=DOTS, gram=GRAMS)
    assert all(np.array_equal(host(d), np.zeros(3)) for d in dots.values())
    assert all(np.array_equal(host(g), np.zeros((3, 3))) for g in gram.values())


def test_a_matrix_without_entries_still_shifts_and_sums(device: str) -> None:
    op = as_operator(sp.csr_array((6, 6)), device=device)
    Y, dots, _ = op.apply(BlockVector.full(6, 2, 1, device=device), shift=2, dots="yy")
    assert np.array_equal(host(Y), np.full((6, 2), -2))
    assert np.array_equal(host(dots["yy"]), [24, 24])


@pytest.mark.parametrize("name", ["xx", "xy", "yy"])
def test_nan_and_inf_in_a_block_reach_its_own_sums_only(device: str, name: str) -> None:
    X = np.ones((50, 3))
    X[7, 1] = np.nan
    _, dots, _ = as_operator(sp.eye_array(50, format="csr"), device=device).apply(on(device, X), dots=name)
    assert np.isnan(host(dots[name])).tolist() == [False, True, False]


def test_columns_of_one_parent_may_be_all_three_blocks(device: str) -> None:
    parent = BlockVector.full(5, 6, 1, device=device)
    X, out, z = parent[:, 0:2], parent[:, 2:4], parent[:, 4:6]
    A = as_operator(2 * sp.eye_array(5, format="csr"), device=device)
    _, dots, _ = A.apply(X, out, beta=1, z=z, delta=-1, eta=2, dots="xy")
    assert np.array_equal(host(parent), np.tile([1.0, 1, 3, 3, 5, 5], (5, 1)))
    assert np.array_equal(host(dots["xy"]), [15, 15])
