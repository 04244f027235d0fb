"""Chains without a matrix are their matrices, on every backend."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockvec import BlockVector, eigsh, models
from tests.contract.blocks import (
    DTYPES,
    Guarded,
    Layout,
    Reference,
    complex_factors,
    dtypes,
    exact_values,
    extended,
    host,
    layouts,
    on,
    seeds,
    values,
)
from tests.pairwise import pairwise

DOTS, GRAMS = ("xx", "xy", "yy"), ("xy", "yy")
numbers = st.sampled_from([0, 0.5, 1, -2, 0.3])
boundaries = st.sampled_from(["true", "false"])


@st.composite
def spins(draw: Any) -> str:
    """Descriptions of chains of spins in every sector."""
    sites = draw(st.integers(2, 11))
    up, periodic = draw(st.integers(0, sites)), draw(boundaries)
    return f"xxz:sites={sites},up={up},delta={draw(numbers)},j={draw(numbers)},periodic={periodic}"


@st.composite
def electrons(draw: Any) -> str:
    """Descriptions of chains of electrons in every sector."""
    sites = draw(st.integers(2, 5))
    up, down, periodic = draw(st.integers(0, sites)), draw(st.integers(0, sites)), draw(boundaries)
    return (
        f"hubbard:sites={sites},up={up},down={down},u={draw(numbers)},t={draw(numbers)},periodic={periodic}"
    )


chains = st.one_of(spins(), electrons())
widths = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 13, 16])


@given(chains, widths, dtypes, layouts, layouts, complex_factors, complex_factors, st.booleans(), seeds)
def test_products_are_within_the_rounding_bound_of_those_of_the_matrix(
    device: str,
    spec: str,
    width: int,
    dtype_x: str,
    layout_x: Layout,
    layout_y: Layout,
    alpha: complex,
    beta: complex,
    by_column: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    A, S = models.model(spec), models.operator(spec, device=device)
    assert S.shape == A.shape
    n = A.shape[0]
    X = values(rng, (n, width), dtype_x)
    shift = values(rng, (width,), dtype_x) if by_column else alpha
    dtype = np.result_type(A.dtype, X, alpha, beta, shift)
    V, out = Guarded(X, device, layout_x), Guarded(values(rng, (n, width), dtype), device, layout_y)
    Y = host(out.block)
    S.apply(V.block, out.block, alpha, beta, on(device, shift) if by_column else shift)
    stacked = np.hstack([A.toarray(), np.eye(n)])
    shifted = -extended(np.asarray(shift)) * extended(X)
    reference = Reference.of(stacked, np.vstack([extended(X), shifted]), dtype, alpha, beta, Y)
    assert Reference(reference.exact, 4 * reference.bound).accepts(out.block)
    assert out.is_untouched_outside()
    assert V.is_untouched_outside()


EXACT = (
    "xxz:sites=14,up=6,delta=0.5",
    "hubbard:sites=7,up=3,down=4,u=2,t=0.5",
    "xxz:sites=13,up=2,periodic=false",
)


@pytest.mark.parametrize(("spec", "dtype", "width"), pairwise(EXACT, DTYPES, [1, 4, 7, 8, 33]))
def test_everything_is_exact_where_the_terms_are_and_repeats(
    device: str, spec: str, dtype: str, width: int
) -> None:
    rng = np.random.default_rng(width)
    A, S = models.model(spec), models.operator(spec, device=device)
    X = exact_values(rng, (A.shape[0], width), dtype)
    result = np.result_type(A.dtype, dtype)
    Y, Z = (exact_values(rng, X.shape, result) for _ in range(2))
    found = []
    for _ in range(2):
        out, z = on(device, Y), on(device, Z)
        found.append(S.apply(on(device, X), out, 2, -1, 3, z=z, delta=2, eta=-1, dots=DOTS, gram=GRAMS))
        expected = 2 * (A @ X - 3 * X.astype(result)) - Y
        np.testing.assert_array_equal(host(out), expected)
        np.testing.assert_array_equal(host(z), 2 * Z - expected)
    first, second = found
    blocks = {"x": X.astype(result), "y": expected}
    for name in GRAMS:
        np.testing.assert_array_equal(host(first.gram[name]), blocks[name[0]].conj().T @ blocks[name[1]])
    for name in DOTS:
        sums = (blocks[name[0]].conj() * blocks[name[1]]).sum(axis=0)
        np.testing.assert_array_equal(host(first.dots[name]), sums)
        np.testing.assert_array_equal(host(first.dots[name]), host(second.dots[name]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_converted_chain_is_a_multiple_in_another_type(device: str, dtype: str) -> None:
    spec = EXACT[0]
    S = models.operator(spec, device=device).converted(dtype, 0.5)
    X = exact_values(np.random.default_rng(1), (S.shape[0], 3), dtype)
    Y = S @ BlockVector(on(device, X))
    assert Y.dtype == S.dtype == dtype
    np.testing.assert_array_equal(host(Y), 0.5 * models.model(spec) @ X)


@pytest.mark.parametrize(
    ("spec", "k"),
    [
        ("xxz:sites=12,up=6", 8),
        ("xxz:sites=11,up=5,delta=0,periodic=false", 5),
        ("hubbard:sites=6,up=3,down=2,u=4", 6),
    ],
)
@pytest.mark.parametrize("method", ["auto", "lanczos", "filter", "jd"])
def test_solvers_find_the_copies_that_the_matrix_has(device: str, spec: str, k: int, method: str) -> None:
    expected = np.linalg.eigvalsh(models.model(spec).toarray())[:k]
    w, V = eigsh(models.operator(spec, device=device), k=k, which="SA", method=method)
    np.testing.assert_allclose(host(w), expected, atol=1e-9)
    np.testing.assert_allclose(host(V.conj().T @ V), np.eye(k), atol=1e-12)


def test_filters_in_single_precision_take_a_chain(device: str) -> None:
    spec, k = "xxz:sites=12,up=6", 4
    S = models.operator(spec, device=device)
    w = eigsh(S, k=k, which="SA", method="filter", precision="mixed", tol=1e-8, return_eigenvectors=False)
    np.testing.assert_allclose(
        np.sort(host(w)), np.linalg.eigvalsh(models.model(spec).toarray())[:k], atol=1e-6
    )


def test_a_chain_describes_itself_in_one_line_and_is_hermitian(device: str) -> None:
    S = models.operator("hubbard:sites=6,up=3,down=3,u=4", device=device)
    assert re.fullmatch(r"ChainOperator\(400x400, float64, (cpu|cuda:0)\)", repr(S))
    assert S.nnz == models.model("hubbard:sites=6,up=3,down=3,u=4").nnz
    assert 0 < S.check_hermitian() <= abs(models.model("hubbard:sites=6,up=3,down=3,u=4")).sum(axis=1).max()
