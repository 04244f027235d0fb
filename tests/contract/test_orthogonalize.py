"""Orthogonalisation on every backend: W = V S + Q R, orthonormal to rounding, whatever policy and block."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import BlockVector, as_operator
from solvers.orthogonalization import orthogonalize
from tests.contract.blocks import DTYPES, host, on, values
from tests.solvers.test_orthogonalize import check

K, M, N = 3001, 20, 4


def made_on(device: str) -> Callable[[np.ndarray], BlockVector]:
    return lambda array: BlockVector(on(device, array))


def wide(A: np.ndarray) -> np.ndarray:
    return A.astype("complex128" if A.dtype.kind == "c" else "float64")


def basis(dtype: str) -> np.ndarray:
    V = np.linalg.qr(wide(values(np.random.default_rng(1), (K, M), dtype)))[0]
    return np.ascontiguousarray(V).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["of full rank", "of lost directions", "ill-conditioned"])
def test_a_block_becomes_orthonormal_and_orthogonal_to_the_basis(device: str, dtype: str, kind: str) -> None:
    V, rng = basis(dtype), np.random.default_rng(2)
    W = (values(rng, (K, N), dtype) + V @ values(rng, (M, N), dtype) * 30).astype(dtype)
    if kind == "of lost directions":
        W[:, 1] = V @ values(rng, (M,), dtype)  # inside of the basis
        W[:, 2] = 0
        W[:, 3] = W[:, 0]
    elif kind == "ill-conditioned":
        U, X = (np.linalg.qr(wide(values(rng, (rows, N), dtype)))[0] for rows in (K, N))
        W = (U * np.logspace(0, np.log10(np.finfo(dtype).eps) + 3, N) @ X).astype(dtype)
    lost = [False, True, True, True] if kind == "of lost directions" else [False] * N
    assert check(W, V, made_on(device))[1].lost.tolist() == lost


@pytest.mark.parametrize("rows", [N, 100, 5000])
def test_blocks_of_any_height_are_factorised(device: str, rows: int) -> None:
    check(np.random.default_rng(5).standard_normal((rows, N)), None, made_on(device))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_second_copy_and_a_view_of_a_wider_array_are_written_and_nothing_else(
    device: str, dtype: str
) -> None:
    whole = np.hstack([basis(dtype), np.full((K, 3 * N), 7, dtype)])
    whole[:, M : M + N] = values(np.random.default_rng(6), (K, N), dtype)
    buffer = BlockVector(on(device, whole))
    W, into = buffer[:, M : M + N], buffer[:, M + 2 * N :]
    orthogonalize(W, buffer[:, :M], into=into)
    after = host(buffer)
    assert np.linalg.norm(after[:, M + 2 * N :] - after[:, M : M + N]) <= 1e-14
    rest = [*range(M), *range(M + N, M + 2 * N)]
    assert np.array_equal(after[:, rest], whole[:, rest])


@pytest.mark.parametrize("kind", ["as good as any", "short beside its operator", "of rank two"])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_a_step_of_lanczos_is_orthonormal_whatever_the_device_did_before_the_host_knew(
    device: str, dtype: str, kind: str
) -> None:
    V, rng, scale = basis(dtype), np.random.default_rng(9), 1.0
    W = (values(rng, (K, N), dtype) / K**0.5 + V[:, 12:] @ values(rng, (M - 12, N), dtype)).astype(dtype)
    W -= V[:, :12] @ (V[:, :12].conj().T @ W)
    if kind == "short beside its operator":
        scale = 0.01 / float(np.finfo(dtype).eps)
    elif kind == "of rank two":
        W[:, 2:] = W[:, :2]
    into = BlockVector.zeros(K, N, dtype, device=device)
    block, result = check(W, V, made_on(device), scale=scale, first=[(0, 2), (12, M)], into=into)
    assert np.array_equal(host(into), host(block))
    assert result.lost.sum() == (2 if kind == "of rank two" else 0)


def test_an_inner_product_is_that_of_m(device: str) -> None:
    h = np.logspace(0, 3, K)
    mass = sp.diags_array([h[1:] / 6, 2 * h / 3, h[1:] / 6], offsets=[-1, 0, 1]).tocsr()
    W = np.random.default_rng(7).standard_normal((K, N))
    block = BlockVector(on(device, W))
    result = orthogonalize(block, M=as_operator(mass, device=device))
    Q = host(block)
    assert np.linalg.norm(Q.T @ (mass @ Q) - np.eye(N)) <= 1e-13
    assert np.linalg.norm(W - Q @ result.R) <= 1e-14 * np.linalg.norm(W)


def test_the_same_call_gives_the_same_bits(device: str) -> None:
    V, W = basis("float64"), values(np.random.default_rng(8), (K, N), "float64")
    W[:, 3] = W[:, 2]
    found = []
    for _ in range(2):
        block = BlockVector(on(device, W))
        result = orthogonalize(block, BlockVector(on(device, V)), rng=5)
        found.append((host(block).tobytes(), result.S.tobytes(), result.R.tobytes()))
    assert found[0] == found[1]
