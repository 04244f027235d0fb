"""Y = alpha (A - shift I) X + beta Y, and what apply makes beside it, for every operator on every backend."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from blockvec import BlockVector, as_operator, models
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
    values,
)
from tests.matrices import unit
from tests.pairwise import pairwise

pytestmark = pytest.mark.usefixtures("jit", "many_blocks")
DOTS, GRAMS = ("xx", "xy", "yy"), ("xy", "yy")
widths = st.sampled_from([1, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 33])
heights = st.integers(0, 2) | st.integers(3, 60)
numbers, boundaries = st.sampled_from([0, 0.5, 1, -2, 0.3]), st.sampled_from(["true", "false"])


@pytest.fixture(scope="module")
def many_blocks() -> Iterator[None]:
    """Divide chains of few rows on the host into blocks, as long ones are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blockvec.backends.host.chain.BLOCK_ELEMENTS", 64)
        yield


@st.composite
def chains(draw: Any) -> str:
    """Descriptions of chains of spins and of electrons in every sector."""
    if draw(st.booleans()):
        sites = draw(st.integers(2, 11))
        filling = f"up={draw(st.integers(0, sites))},delta={draw(numbers)},j={draw(numbers)}"
        return f"xxz:sites={sites},{filling},periodic={draw(boundaries)}"
    sites = draw(st.integers(2, 5))
    up, down = (draw(st.integers(0, sites)) for _ in range(2))
    filling = f"up={up},down={down},u={draw(numbers)},t={draw(numbers)}"
    return f"hubbard:sites={sites},{filling},periodic={draw(boundaries)}"


@st.composite
def operators(draw: Any) -> tuple[str, Any]:
    """Classes of operators with a matrix, or the description of a chain."""
    kind = draw(st.sampled_from(["sparse", "sparse", "sparse", "dense", "function", "chain", "chain"]))
    if kind == "chain":
        return kind, draw(chains())
    n_rows = draw(heights)
    shape = n_rows, draw(heights) if draw(st.integers(0, 3)) == 0 else n_rows
    density = draw(st.sampled_from([0, 0.1, 0.2, 0.7]))
    return kind, random_matrix(np.random.default_rng(draw(seeds)), shape, draw(dtypes), density)


def make(kind: str, A: Any, device: str) -> tuple[Any, Any]:
    """Return an operator and its matrix."""
    if kind == "chain":
        return models.operator(A, device=device), models.model(A)
    if kind == "sparse":
        return as_operator(A, device=device), A
    dense = on(device, A.toarray())
    if kind == "dense":
        return as_operator(dense), A
    return as_operator(lambda X: dense @ X, shape=A.shape, dtype=A.dtype, device=device), A


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


@settings(max_examples=60)
@given(
    operators(),
    widths,
    dtypes,
    st.tuples(layouts, layouts, layouts),
    st.tuples(complex_factors, complex_factors, factors, factors),
    st.one_of(st.just("column"), complex_factors),
    st.lists(st.sampled_from(DOTS), unique=True),
    st.lists(st.sampled_from(GRAMS), unique=True),
    st.booleans(),
    st.booleans(),
    seeds,
)
def test_everything_is_made_of_the_new_product_within_the_rounding_bound(
    device: str,
    operator: tuple[str, Any],
    width: int,
    right: str,
    where: tuple[Layout, Layout, Layout],
    scalars: tuple[complex, complex, float, float],
    shift: Any,
    dots: list[str],
    gram: list[str],
    has_out: bool,
    chained: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    op, A = make(*operator, device)
    (n_rows, n_cols), (alpha, beta, delta, eta) = A.shape, scalars
    if n_rows != n_cols:
        shift, dots, gram = 0, ["yy"] * ("yy" in dots), ["yy"] * ("yy" in gram)
    beta = beta if has_out else 0
    X = values(rng, (n_cols, width), right)
    shifts = values(rng, (width,), right) if shift == "column" else shift
    dtype = np.result_type(A.dtype, X, alpha, beta, shifts)
    Y, Z = (  # with factors of zero they are not read
        values(rng, (n_rows, width), dtype) if factor else np.full((n_rows, width), np.nan, dtype)
        for factor in (beta, delta)
    )
    V, out, z = (Guarded(block, device, layout) for block, layout in zip((X, Y, Z), where, strict=True))
    here = on(device, shifts) if shift == "column" else shifts
    chain = {"z": z.block, "delta": delta, "eta": eta} if chained else {}
    found = op.apply(
        V.block, out.block if has_out else None, alpha, beta, here, dots=dots, gram=gram, **chain
    )
    product = found.Y if dots or gram else found
    if has_out:
        assert product is out.block
    assert (product.shape, product.dtype, product.device) == (Y.shape, dtype, V.block.device)
    if dots or gram:
        assert list(found.dots) == [name for name in DOTS if name in dots]
        assert list(found.gram) == [name for name in GRAMS if name in gram]
        # X takes the type of the result where a factor widens it.
        assert sums_are_right(found, X, host(product))
    stacked, inputs = A.toarray(), extended(X)
    if n_rows == n_cols:
        stacked = np.hstack([stacked, np.eye(n_rows)])
        inputs = np.vstack([inputs, -extended(np.asarray(shifts)) * inputs])
    reference = Reference.of(stacked, inputs, dtype, alpha, beta, Y)
    assert Reference(reference.exact, 4 * reference.bound).accepts(product)
    if chained:
        terms = [eta * extended(host(product)), *([delta * extended(Z)] if delta else [])]
        bound = 4 * unit(dtype) * sum(map(np.abs, terms)) + np.finfo(dtype).tiny
        assert Reference(sum(terms), bound).accepts(z.block)
    assert all(block.is_untouched_outside() for block in (V, out))
    assert z.is_untouched_outside()


CHAINS = (
    *("xxz:sites=14,up=6,delta=0.5", "hubbard:sites=7,up=3,down=4,u=2,t=0.5"),
    "xxz:sites=13,up=2,periodic=false",
)
WIDTHS, VIEWS = itertools.cycle([1, 2, 3, 4, 8, 17, 64]), itertools.cycle([Layout(0, 0), Layout(1, 2)])


def uneven(rng: np.random.Generator, n: int) -> sp.csr_array:
    """Draw a matrix with empty rows, long ones, and some that several blocks of threads share on a GPU."""
    lengths = np.minimum(rng.pareto(1.1, n) * 3, 20_000).astype(np.int64)
    lengths[7] = 30_000
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    columns = rng.integers(0, n, indptr[-1])
    return sp.csr_array((exact_values(rng, columns.shape, "float64"), columns, indptr), shape=(n, n))


@pytest.mark.parametrize(
    ("matrix", "dtype", "width", "layout"),
    [(*types, next(WIDTHS), next(VIEWS)) for types in itertools.product(DTYPES, repeat=2)]
    + [(*case, next(VIEWS)) for case in pairwise(CHAINS, DTYPES, [1, 4, 7, 8, 33])]
    + [("uneven", "float64", width, next(VIEWS)) for width in (1, 4, 5, 7, 16)],
)
def test_on_many_rows_everything_is_exact_where_the_terms_are_and_repeats(
    device: str, matrix: str, dtype: str, width: int, layout: Layout
) -> None:
    rng, n = np.random.default_rng(1), 20011
    if matrix in CHAINS:
        op, A = make("chain", matrix, device)
    elif matrix == "uneven":
        op, A = make("sparse", uneven(rng, 4000), device)
    else:
        diagonals = [exact_values(rng, (n,), matrix) for _ in range(3)]
        A = sp.diags_array(diagonals, offsets=[-150, 0, 149], shape=(n, n), format="csr", dtype=matrix)
        op = as_operator(A, device=device)
    X = exact_values(rng, (A.shape[0], width), dtype)
    Y = Z = exact_values(rng, X.shape, np.result_type(A, X))
    V, shifts = Guarded(X, device, layout).block, np.arange(width, dtype="float32") % 3
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
@pytest.mark.parametrize("kind", ["sparse", "chain"])
def test_sums_of_rounded_numbers_repeat_and_a_gram_matrix_is_hermitian(
    device: str, kind: str, dtype: str
) -> None:
    rng, n = np.random.default_rng(2), 30011
    diagonals = [rng.standard_normal(n) for _ in range(3)]
    matrix = sp.diags_array(diagonals, offsets=[-9, 0, 40], shape=(n, n), format="csr", dtype=dtype)
    A, _ = make(kind, "xxz:sites=16,up=8,delta=0.7" if kind == "chain" else matrix, device)
    V = BlockVector.random(A.shape[0], 5, dtype, rng=3, device=device)
    first, again = (A.apply(V, dots=DOTS, gram=GRAMS) for _ in range(2))
    for one, other in ((first.dots, again.dots), (first.gram, again.gram), ({"": first.Y}, {"": again.Y})):
        assert all(np.array_equal(host(one[name]), host(other[name])) for name in one)
    G = host(first.gram["yy"])
    assert np.array_equal(G, G.conj().T)
    assert first.dots["yy"].dtype == G.real.dtype


def test_a_single_name_may_stand_alone_and_without_out_a_block_is_made(device: str) -> None:
    A = as_operator(sp.eye_array(4, format="csr"), device=device)
    Y, dots, gram = A.apply(BlockVector.full(4, 2, 1, device=device), dots="xy", gram="yy")
    assert (list(dots), list(gram)) == (["xy"], ["yy"])
    assert np.array_equal(host(Y), np.ones((4, 2)))
    assert np.array_equal(host(dots["xy"]), [4, 4])
    assert np.array_equal(host(gram["yy"]), np.full((2, 2), 4))


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
