"""Every implementation that a backend offers solves its problem, not only the one that dispatch takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec.operations import products
from tests.contract.blocks import DTYPES, PLAIN, Guarded, Layout, exact_values, host, on

PAIRS = [(left, right) for left in DTYPES for right in DTYPES]
SIZES = [(1, 1, 1), (130, 2, 3), (4003, 8, 7), (20011, 1, 1), (2003, 33, 20)]
SIZES_OF_VIEWS = [(130, 2, 3), (20011, 5, 4)]
# Rows enough for all ways to split them; more than a host wants to check.
SIZES_ON_GPU = [(120011, 5, 4), (300007, 1, 1)]


def sizes(device: str, layout: Layout) -> list[tuple[int, int, int]]:
    """Extents to try."""
    return (SIZES if layout is PLAIN else SIZES_OF_VIEWS) + (SIZES_ON_GPU if device == "gpu" else [])


def usable(backend: Any, problem: Any) -> list[Any]:
    """The candidates that do not refuse a problem; there is always one."""
    candidates = [candidate for candidate in backend.candidates(problem) if not candidate.refusal]
    assert candidates
    return candidates


@pytest.mark.parametrize(("left", "right"), PAIRS)
@pytest.mark.parametrize("layout", [PLAIN, Layout(1, 2)], ids=["contiguous", "view"])
def test_every_tsmttsm_is_exact_where_the_terms_are(
    device: str, backend: Any, left: str, right: str, layout: Layout
) -> None:
    rng = np.random.default_rng(1)
    for K, M, N in sizes(device, layout):
        X, Y = exact_values(rng, (K, M), left), exact_values(rng, (K, N), right)
        dtype = np.result_type(left, right)
        Z = exact_values(rng, (M, N), dtype)
        A, B = (Guarded(x, device, layout).block.array for x in (X, Y))
        for conj, alpha, beta in ((True, 1, 0), (False, 1, 0), (True, 2, -3)):
            problem = products.tsmttsm_problem(A, B, conj, alpha, beta)
            expected = alpha * ((X.conj() if conj else X).T.astype(complex) @ Y) + (beta * Z if beta else 0)
            for candidate in usable(backend, problem):
                C = on(device, Z if beta else np.full_like(Z, np.nan))
                candidate.run(problem, A, B, C, alpha, beta)
                assert np.array_equal(host(C), expected), (candidate.name, problem)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [PLAIN, Layout(1, 2)], ids=["contiguous", "view"])
def test_every_gram_is_exact_and_hermitian(device: str, backend: Any, dtype: str, layout: Layout) -> None:
    rng = np.random.default_rng(2)
    for K, M, _ in sizes(device, layout):
        X = exact_values(rng, (K, M), dtype)
        A = Guarded(X, device, layout).block.array
        U = Guarded(rng.standard_normal((K, M)).astype(dtype) + X, device, layout).block.array
        for alpha, beta in ((1, 0), (-2, 1)):
            problem = products.tsmttsm_problem(A, A, True, alpha, beta)
            for candidate in usable(backend, problem):
                C = on(device, np.full((M, M), 1 if beta else np.nan, dtype))
                candidate.run(problem, A, A, C, alpha, beta)
                assert np.array_equal(host(C), alpha * (X.conj().T.astype(complex) @ X) + beta), (
                    candidate.name
                )
                candidate.run(products.tsmttsm_problem(U, U, True), U, U, C, 1, 0)
                G = host(C)
                assert np.array_equal(G, G.conj().T), candidate.name


@pytest.mark.parametrize(("left", "right"), PAIRS)
@pytest.mark.parametrize("layout", [PLAIN, Layout(1, 2)], ids=["contiguous", "view"])
def test_every_tsmm_is_exact_where_the_terms_are(
    device: str, backend: Any, left: str, right: str, layout: Layout
) -> None:
    rng = np.random.default_rng(3)
    for K, M, N in sizes(device, layout):
        X, Y = exact_values(rng, (K, M), left), exact_values(rng, (M, N), right)
        dtype = np.result_type(left, right)
        Z = exact_values(rng, (K, N), dtype)
        A, C = Guarded(X, device, layout).block.array, on(device, Y)
        for alpha, beta in ((1, 0), (1, 1), (2, -3)):
            out = Guarded(Z, device, layout)
            problem = products.tsmm_problem(A, C, out.block.array, alpha, beta)
            expected = alpha * (X.astype(complex) @ Y) + (beta * Z if beta else 0)
            for candidate in usable(backend, problem):
                out.block.array[...] = on(device, Z if beta else np.full_like(Z, np.nan))
                candidate.run(problem, A, C, out.block.array, alpha, beta)
                assert np.array_equal(host(out.block), expected), (candidate.name, problem)
                assert out.is_untouched_outside()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [PLAIN, Layout(1, 2)], ids=["contiguous", "view"])
def test_every_tsmm_in_place_is_exact(device: str, backend: Any, dtype: str, layout: Layout) -> None:
    rng = np.random.default_rng(4)
    for K, M, N in [(1, 1, 1), (5003, 8, 8), (5003, 7, 1), (20011, 5, 4), (2003, 33, 20)]:
        X, Y = exact_values(rng, (K, M), dtype), exact_values(rng, (M, N), dtype)
        C = on(device, Y)
        for alpha, beta in ((1, 0), (2, -1)):
            whole = Guarded(X, device, layout)
            A = whole.block.array
            problem = products.tsmm_problem(A, C, A[:, :N], alpha, beta)
            assert problem.inplace
            for candidate in usable(backend, problem):
                A[...] = on(device, X)
                candidate.run(problem, A, C, A[:, :N], alpha, beta)
                assert np.array_equal(host(A)[:, :N], alpha * (X.astype(complex) @ Y) + beta * X[:, :N]), (
                    candidate.name
                )
                assert np.array_equal(host(A)[:, N:], X[:, N:])
                assert whole.is_untouched_outside()
