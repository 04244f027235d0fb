"""Every implementation that a backend offers solves its problem, not only the one that dispatch takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockvec.backends import backend_for
from blockvec.operations import products
from tests.contract.blocks import DTYPES, PLAIN, Guarded, Layout, exact_values, host, on

PAIRS = list(itertools.product(DTYPES, repeat=2))
SIZES = [(1, 1, 1), (130, 2, 3), (4003, 8, 7), (20011, 1, 1), (2003, 33, 20)]
SIZES_OF_VIEWS = [(130, 2, 3), (20011, 5, 4)]
SIZES_IN_PLACE = [(1, 1, 1), (5003, 8, 8), (5003, 7, 1), (20011, 5, 4), (2003, 33, 20)]
# Rows enough for all ways to split them, and bases; more than a host wants to check.
SIZES_ON_GPU = [(120011, 5, 4), (300007, 1, 1)]
BASES_ON_GPU = [(20011, 130, 8), (5, 96, 5), (20011, 512, 16), (20011, 65, 1)]
LAYOUTS = pytest.mark.parametrize("layout", [PLAIN, Layout(1, 2)], ids=["contiguous", "view"])

Size = tuple[int, int, int]


def sizes(device: str, layout: Layout, *types: str) -> list[Size]:
    """Extents to try."""
    found = SIZES if layout is PLAIN else SIZES_OF_VIEWS
    of_gpu = SIZES_ON_GPU + (BASES_ON_GPU if len(set(types)) == 1 else [])
    return found + of_gpu if device == "gpu" else found


def usable(backend: Any, problem: Any, is_chosen: Callable[[Any], bool] | None = None) -> list[Any]:
    """The candidates that do not refuse a problem, or the chosen ones; there is always one."""
    candidates = [c for c in backend.candidates(problem) if not c.refusal and (not is_chosen or is_chosen(c))]
    assert candidates
    return candidates


def is_cublas(candidate: Any) -> bool:
    return candidate.name.startswith("cublas")


def check_tsmttsm(
    backend: Any, size: Size, left: str, right: str, layout: Layout, is_chosen: Any = None
) -> None:
    """Compare all candidates with exact products, from NaN where beta is zero."""
    rng, device, (K, M, N) = np.random.default_rng(1), backend.name, size
    X, Y = exact_values(rng, (K, M), left), exact_values(rng, (K, N), right)
    Z = exact_values(rng, (M, N), np.result_type(left, right))
    A, B = (Guarded(x, device, layout).block.array for x in (X, Y))
    for conj, alpha, beta in ((True, 1, 0), (False, 1, 0), (True, 2, -3)):
        problem = products.tsmttsm_problem(A, B, conj, alpha, beta)
        expected = alpha * ((X.conj() if conj else X).T.astype(complex) @ Y) + (beta * Z if beta else 0)
        for candidate in usable(backend, problem, is_chosen):
            C = on(device, Z if beta else np.full_like(Z, np.nan))
            candidate.run(problem, A, B, C, alpha, beta)
            assert np.array_equal(host(C), expected), (candidate.name, problem)


def check_gram(backend: Any, size: Size, dtype: str, layout: Layout, is_chosen: Any = None) -> None:
    """Compare all candidates with exact products, and look whether those of rounded numbers are Hermitian."""
    rng, device, (K, M, _) = np.random.default_rng(2), backend.name, size
    X = exact_values(rng, (K, M), dtype)
    A = Guarded(X, device, layout).block.array
    U = Guarded(rng.standard_normal((K, M)).astype(dtype) + X, device, layout).block.array
    for alpha, beta in ((1, 0), (-2, 1)):
        problem = products.tsmttsm_problem(A, A, True, alpha, beta)
        expected = alpha * (X.conj().T.astype(complex) @ X) + beta
        for candidate in usable(backend, problem, is_chosen):
            C = on(device, np.full((M, M), 1 if beta else np.nan, dtype))
            candidate.run(problem, A, A, C, alpha, beta)
            assert np.array_equal(host(C), expected), (candidate.name, problem)
            candidate.run(products.tsmttsm_problem(U, U, True), U, U, C, 1, 0)
            G = host(C)
            assert np.array_equal(G, G.conj().T), (candidate.name, problem)


def check_tsmm(
    backend: Any, size: Size, left: str, right: str, layout: Layout, is_chosen: Any = None, *, inplace: bool
) -> None:
    """Compare all candidates with exact products; nothing else is written."""
    rng, device, (K, M, N) = np.random.default_rng(3), backend.name, size
    X, Y = exact_values(rng, (K, M), left), exact_values(rng, (M, N), right)
    Z = X if inplace else exact_values(rng, (K, N), np.result_type(left, right))
    A, C, out = Guarded(X, device, layout).block.array, on(device, Y), Guarded(Z, device, layout)
    A, B = (out.block.array, out.block.array[:, :N]) if inplace else (A, out.block.array)
    for alpha, beta in ((1, 0), (1, 1), (2, -3)):
        problem = products.tsmm_problem(A, C, B, alpha, beta)
        assert problem.inplace == inplace
        expected = alpha * (X.astype(complex) @ Y) + (beta * Z[:, :N] if beta else 0)
        for candidate in usable(backend, problem, is_chosen):
            out.block.array[...] = on(device, Z if beta or inplace else np.full_like(Z, np.nan))
            candidate.run(problem, A, C, B, alpha, beta)
            assert np.array_equal(host(B), expected), (candidate.name, problem)
            assert np.array_equal(host(out.block)[:, N:], Z[:, N:])
            assert out.is_untouched_outside()


@pytest.mark.parametrize(("left", "right"), PAIRS)
@LAYOUTS
def test_every_tsmttsm_is_exact_where_the_terms_are(
    device: str, backend: Any, left: str, right: str, layout: Layout
) -> None:
    for size in sizes(device, layout, left, right):
        check_tsmttsm(backend, size, left, right, layout)


@pytest.mark.parametrize("dtype", DTYPES)
@LAYOUTS
def test_every_gram_is_exact_and_hermitian(device: str, backend: Any, dtype: str, layout: Layout) -> None:
    for size in sizes(device, layout, "any", dtype):
        check_gram(backend, size, dtype, layout)


@pytest.mark.parametrize(("left", "right"), PAIRS)
@LAYOUTS
def test_every_tsmm_is_exact_where_the_terms_are(
    device: str, backend: Any, left: str, right: str, layout: Layout
) -> None:
    for size in sizes(device, layout, left, right):
        check_tsmm(backend, size, left, right, layout, inplace=False)


@pytest.mark.parametrize("dtype", DTYPES)
@LAYOUTS
def test_every_tsmm_in_place_is_exact(device: str, backend: Any, dtype: str, layout: Layout) -> None:
    for size in SIZES_IN_PLACE + ([(20011, 128, 16)] if device == "gpu" else []):
        check_tsmm(backend, size, dtype, dtype, layout, inplace=True)


LIMITS: list[dict[str, int]] = [
    {"WORKSPACE_BYTES": 1 << 12},
    {"MAX_BATCH": 2},
    {"CHUNK_BYTES": 40000},
    {"MAX_INT": 30000},
    {"WORKSPACE_BYTES": 1, "CHUNK_BYTES": 1000, "MAX_INT": 5000},
]


@pytest.mark.gpu
@pytest.mark.parametrize("limits", LIMITS, ids=" ".join)
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_products_of_cublas_in_pieces_are_those_of_the_whole(
    left: str, right: str, limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits so low that a few thousand rows exceed them: workspaces, converted chunks, 32-bit sizes."""
    for name, value in limits.items():
        monkeypatch.setattr(f"blockvec.backends.cuda.cublas.{name}", value)
    backend, size, layout = backend_for("gpu"), (7001, 5, 3), Layout(1, 2)
    check_tsmttsm(backend, size, left, right, layout, is_cublas)
    for inplace in (False, True) if left == right else (False,):
        check_tsmm(backend, size, left, right, layout, is_cublas, inplace=inplace)
