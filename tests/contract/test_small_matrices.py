"""Small matrices on every backend: copies to the host, and the inverse of a Cholesky factor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec import BlockVector, inverse_factor, start_copies, start_copy
from tests.contract.blocks import DTYPES, host, on, values


def gram(rng: np.random.Generator, width: int, dtype: str) -> np.ndarray:
    """A well-conditioned Gram matrix of columns from very short to very long."""
    X = values(rng, (8 * width + 8, width), dtype) * np.logspace(-8, 8, width)
    wide = X.astype("complex128" if X.dtype.kind == "c" else "float64")
    return (wide.conj().T @ wide).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [0, 1, 2, 4, 7, 8, 33, 64, 130])
def test_the_inverse_factor_makes_a_gram_matrix_the_identity(device: str, dtype: str, width: int) -> None:
    G = gram(np.random.default_rng(width), width, dtype)
    factor = inverse_factor(on(device, G))
    found, unit = factor.wait(), 2.0**-53
    assert inverse_factor(on(device, G)).wait().T.tobytes() == found.T.tobytes()
    assert np.array_equal(found.G, (found.G + found.G.conj().T) / 2)
    assert np.array_equal(host(factor.T), found.T.astype(dtype))
    assert not np.tril(found.R, -1).any()
    assert not np.tril(found.T, -1).any()
    for exact, product, left, right in (
        (found.G, found.R.conj().T @ found.R, found.R.conj().T, found.R),
        (np.eye(width), found.T @ found.R, found.T, found.R),
    ):
        assert np.all(np.abs(product - exact) <= 2 * (width + 4) * unit * (np.abs(left) @ np.abs(right)))
    lengths = np.linalg.norm(np.diagonal(found.G).real[:, None] ** 0.5 * np.abs(found.T))
    assert found.growth == pytest.approx(lengths**2, rel=1e-12)


def test_the_hermitian_part_counts_and_is_what_the_host_gets(device: str) -> None:
    G = np.array([[4.0, 3.0], [1.0, 9.0]])
    assert inverse_factor(on(device, G)).wait().G.tolist() == [[4, 2], [2, 9]]


REFUSED = {
    "rank one": np.ones((3, 3)),
    "zero": np.zeros((3, 3)),
    "indefinite": np.diag([1.0, -1.0, 1.0]),
    "NaN": np.diag([1.0, np.nan, 1.0]),
    "Inf": np.diag([1.0, np.inf, 1.0]),
    "ill conditioned": np.array([[1, 1, 0], [1, 1 + 1e-6, 0], [0, 0, 1]]),
}


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_factor_that_is_refused_leaves_a_block_as_it_is(device: str, name: str, dtype: str) -> None:
    with np.errstate(invalid="ignore"):
        factor = inverse_factor(on(device, REFUSED[name].astype(dtype)), 1e3)
        found = factor.wait()
    assert found.growth == np.inf
    for matrix in (host(factor.T), found.T, found.R):
        assert np.array_equal(matrix, np.eye(3))


def test_the_limit_is_for_the_growth(device: str) -> None:
    G = np.array([[1.0, 0.8], [0.8, 1.0]])
    growth = inverse_factor(on(device, G)).wait().growth
    assert inverse_factor(on(device, G), 1.01 * growth).wait().growth == growth
    assert inverse_factor(on(device, G), 0.99 * growth).wait().growth == np.inf


def test_a_block_is_divided_by_a_factor_that_the_host_has_not_seen(device: str) -> None:
    V = BlockVector.random(5001, 5, rng=1, device=device)
    before = host(V)
    factor = inverse_factor(V.gram())
    V.combine(factor.T, out=V)
    G = start_copy(V.gram())
    assert np.linalg.norm(before - host(V) @ factor.wait().R) <= 1e-14 * np.linalg.norm(before)
    assert np.linalg.norm(G() - np.eye(5)) <= 1e-14


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 3), (3, 4), (70, 16)])
def test_a_copy_holds_what_was_there_when_it_was_started(
    device: str, dtype: str, shape: tuple[int, int]
) -> None:
    A = values(np.random.default_rng(2), shape, dtype)
    there: Any = on(device, A)
    copies = [start_copy(there), start_copy(there[:, 1:])]
    several = start_copies(there[:, 1:], there.real, there)
    there[...] = 0
    for copy, array in zip(several(), (A[:, 1:], A.real, A), strict=True):
        assert copy.dtype == array.dtype
        assert np.array_equal(copy, array)
    assert np.array_equal(copies[0](), A)
    assert np.array_equal(copies[1](), A[:, 1:])
    assert np.array_equal(copies[0](), A)


def test_a_copy_that_nobody_waits_for_does_no_harm(device: str) -> None:
    A = on(device, np.ones((100, 100)))
    for _ in range(100):
        start_copy(A)
    assert np.array_equal(start_copy(A)(), np.ones((100, 100)))
