"""The kernel of several Lanczos steps without a GPU: compiled, and run thread by thread on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec.kernels.launch import GRID_HEADER_BYTES
from blockvec.kernels.steps import KrylovStepsKernel
from tests.blocks import address
from tests.devices import H200
from tests.emulator.host import HostKernel, needs_host_compiler, paired, sampled

KERNELS = [
    ("float64", 2, 1),
    ("float64", 4, 3),
    ("complex128", 1, 1),
    ("complex128", 4, 3),
    ("float64", 8, 3),
    ("float64", 1, 2),
    ("float64", 8, 8),
    ("complex128", 4, 4),
]


def test_gpus_without_tensor_cores_for_double_precision_are_refused() -> None:
    older = replace(H200, architecture="sm_75", shared_bytes_per_block=65536)
    assert not KrylovStepsKernel("float64", 2, 1, piece=16).fits(older)


def test_blocks_wider_than_a_tile_and_wide_bases_are_refused() -> None:
    assert not KrylovStepsKernel("complex128", 8, 3, piece=16).fits(H200)
    assert not KrylovStepsKernel("float64", 8, 9, piece=16).fits(H200)


def hermitian(n: int, dtype: str, rng: np.random.Generator) -> Any:
    """Form a sparse matrix with a row that is far longer than the others, and an empty one."""
    A = sp.random_array((n, n), density=4 / n, format="lil", rng=rng).astype(dtype)
    A[3, :] = rng.standard_normal(n)
    if dtype == "complex128":
        A = A + 1j * sp.random_array((n, n), density=2 / n, rng=rng)
    A = (A + A.conj().T).tolil()
    A[n // 2, :] = A[:, n // 2] = 0
    return sp.csr_array(A)


def launch(
    kernel: KrylovStepsKernel,
    A: Any,
    operands: Sequence[np.ndarray[Any, Any]],
    numbers: Sequence[int],
    bounds: tuple[float, float],
    blocks: int = 2,
) -> None:
    """Run the kernel on the host for V, X, W, the report and the workspace, on so many blocks of threads."""
    V = operands[0]
    indptr, indices = A.indptr.astype(np.int32), A.indices.astype(np.int32)
    arrays = indptr, indices, A.data.astype(V.dtype), *operands
    made = kernel.kernel(H200)
    run = HostKernel(made.source(), readable=list(arrays[:6]))
    arguments = *map(address, arrays), *V.shape, *map(np.int32, numbers), *bounds
    run((blocks,), (made.threads,), arguments, made.shared_bytes)
    assert not operands[-1][: GRID_HEADER_BYTES // 8].any()  # the next launch begins with zeros


@needs_host_compiler
@pytest.mark.parametrize(
    ("dtype", "b", "tiles", "full_until", "locked", "piece", "enough"),
    paired(
        [
            ("float64", 4, 1),
            *sampled([("complex128", 2, 1), *KERNELS[:2], ("float64", 3, 1), ("float64", 8, 2)], 3),
        ],
        [(0, 0, 16, 1e6), (12, 0, 8, 1e6), (0, 3, 8, 1e6), (0, 0, 16, 0.0), (0, 3, 8, 0.0)],
        quick=2,
    ),
)
def test_steps_are_those_of_block_lanczos(
    dtype: str, b: int, tiles: int, full_until: int, locked: int, piece: int, enough: float
) -> None:
    n, begin, steps, blocks = 301, locked + b, 3, 2
    known = begin + b
    rng = np.random.default_rng(b)
    A = hermitian(n, dtype, rng)
    kernel = KrylovStepsKernel(dtype, b, tiles, piece=piece)
    ld = kernel.columns + (4 if piece == 16 else 3)
    V = np.full((n, ld), np.nan, dtype)
    V[:, :begin] = np.linalg.qr(rng.standard_normal((n, begin)).astype(dtype))[0]
    W = A @ V[:, locked:begin]
    W -= V[:, :begin] @ (V[:, :begin].conj().T @ W)
    V[:, begin:known] = np.linalg.qr(W)[0]
    X, other = np.ascontiguousarray(V[:, begin:known]), np.full((n, b), np.nan, dtype)
    report = np.full((steps, kernel.report_rows, b), np.nan, dtype)
    work = np.zeros(kernel.work_bytes(blocks) // 8)
    work[GRID_HEADER_BYTES // 8 :] = np.nan
    numbers = begin, known, b, full_until, locked, steps, True, 4
    launch(kernel, A, (V, X, other, report, work), numbers, (enough, 1e6), blocks=blocks)

    C = kernel.columns
    for step in range(steps):
        m, end = begin + b * step, known + b * step
        first = 0 if m < full_until else m - b
        S1, S2, (G, R, T) = (
            report[step, :C],
            report[step, C : 2 * C],
            report[step, 2 * C : -1].reshape(3, b, b),
        )
        S = S2[:end].copy()
        S[:locked] += S1[:locked]
        S[max(first, locked) : end] += S1[max(first, locked) : end]
        new = V[:, end : end + b]
        assert np.abs(A @ V[:, m : m + b] - V[:, :end] @ S - new @ R).max() < 1e-12
        assert np.abs(V[:, : end + b].conj().T @ V[:, : end + b] - np.eye(end + b)).max() < 1e-13
        assert np.allclose(T @ R, np.eye(b))
        assert np.allclose(R.conj().T @ R, G)
        growth = (np.diagonal(G).real[:, None] * np.abs(T) ** 2).sum()
        assert report[step, -1, 0].real == pytest.approx(growth)
    last = other if steps % 2 else X
    assert np.array_equal(last, V[:, known + b * (steps - 1) : known + b * steps])


@needs_host_compiler
@pytest.mark.parametrize(("enough", "least", "most"), [(10.0, 0.0, 1e-15), (1e8, 4e-15, 1e-9)])
def test_a_block_of_nearly_parallel_columns_is_factorised_again(
    enough: float, least: float, most: float
) -> None:
    """One factorisation of such a block leaves it orthonormal to many roundings, the second one to a few."""
    n, b = 96, 4
    rng = np.random.default_rng(0)
    p, rest = rng.standard_normal((n, 1)), rng.standard_normal((n, n))
    A = sp.csr_array(p @ p.T / n + 1e-3 * (rest + rest.T) / n**0.5)
    kernel = KrylovStepsKernel("float64", b, 1, piece=16)
    V = np.zeros((n, 32))
    V[:, :b] = np.linalg.qr(rng.standard_normal((n, b)))[0]
    X, other = np.ascontiguousarray(V[:, :b]), np.empty((n, b))
    report, work = np.zeros((1, kernel.report_rows, b)), np.zeros(kernel.work_bytes(2) // 8)
    numbers = 0, b, b, b, 0, 1, True, 32
    launch(kernel, A, (V, X, other, report, work), numbers, (enough, 1e8))
    new, (R, T) = V[:, b : 2 * b], report[0, 64 + b : -1].reshape(2, b, b)
    assert 1e3 < report[0, -1, 0] < 1e7
    assert least <= np.abs(new.T @ new - np.eye(b)).max() <= most
    assert np.allclose(T @ R, np.eye(b))
    left = A @ X - V[:, :b] @ (V[:, :b].T @ (A @ X))
    assert np.abs(left - new @ R).max() < 1e-14
