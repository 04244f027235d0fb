"""The kernel of steps of a recurrence without a GPU: compiled, and run thread by thread on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec.kernels.launch import GRID_HEADER_BYTES
from blockvec.kernels.steps import THREADS, RecurrenceKernel
from tests.blocks import address
from tests.contract.blocks import exact_values
from tests.emulator.host import HostKernel, needs_host_compiler, paired, sampled

KERNELS = [
    ("float64", 2),
    ("complex128", 8),
    ("float64", 8),
    ("float32", 1),
    ("complex64", 4),
    ("float32", 8),
    ("complex128", 1),
    ("float64", 1),
    ("complex64", 2),
    ("float32", 2),
]


@pytest.mark.parametrize("b", [0, 3, 6, 16])
def test_unusual_blocks_are_refused(b: int) -> None:
    assert not RecurrenceKernel("float64", b, lanczos=False).fits
    assert not RecurrenceKernel("complex128", 8, lanczos=True).fits


def hermitian(n: int, dtype: str, rng: np.random.Generator) -> Any:
    """Form a sparse matrix of small integers with a longer row, and an empty one."""
    A = sp.random_array((n, n), density=3 / n, format="lil", rng=rng, data_sampler=None).toarray()
    A = np.where(A, exact_values(rng, (n, n), dtype), 0).astype(dtype)
    A[3, : n // 4] = 1
    A = A + A.conj().T
    A[n // 2, :] = A[:, n // 2] = 0
    return sp.csr_array(A)


def launch(
    kernel: RecurrenceKernel,
    A: Any,
    X: np.ndarray[Any, Any],
    Y: np.ndarray[Any, Any],
    sums: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None,
    numbers: tuple[int, int],
    factors: tuple[float, float, float],
    seed: int = 0,
) -> None:
    """Run the kernel on the host, on two blocks of threads; numbers are steps and lanes per row."""
    blocks = 2
    indptr, indices = A.indptr.astype(np.int32), A.indices.astype(np.int32)
    work = np.zeros(kernel.work_bytes(blocks) // 8)
    work[GRID_HEADER_BYTES // 8 :] = np.nan
    arrays = indptr, indices, A.data, X, Y
    run = HostKernel(kernel.kernel().source(), readable=list(arrays), seed=seed)
    pointers = *map(address, arrays), *(map(address, sums) if sums else (0, 0)), address(work)
    run((blocks,), (THREADS,), (*pointers, len(X), *map(np.int32, numbers), *factors), 0)
    assert not work[: GRID_HEADER_BYTES // 8].any()


@needs_host_compiler
@pytest.mark.parametrize(
    ("dtype", "b", "steps", "group", "beta"),
    paired(sampled(KERNELS), [(1, 2, 0.0), (4, 8, -1.0), (3, 32, 0.5)]),
)
def test_blocks_take_turns(dtype: str, b: int, steps: int, group: int, beta: float) -> None:
    rng = np.random.default_rng(b)
    n = 523
    A, X, Y = hermitian(n, dtype, rng), exact_values(rng, (n, b), dtype), exact_values(rng, (n, b), dtype)
    expected = [X.copy(), np.where(beta, Y, np.nan).astype(dtype)]
    if not beta:
        Y[:] = np.nan
    for _ in range(steps):
        x, y = expected
        expected = [2 * (A @ x - 3 * x) + (beta * y if beta else 0), x]
    kernel = RecurrenceKernel(dtype, b, lanczos=False)
    launch(kernel, A, X, Y, None, (steps, group), (2.0, beta, 3.0))
    found = [Y, X] if steps % 2 else [X, Y]
    assert all(np.array_equal(*blocks) for blocks in zip(found, expected, strict=True))


@needs_host_compiler
@pytest.mark.parametrize(
    ("dtype", "b", "group", "scale"),
    paired(
        sampled([kind for kind in KERNELS if kind != ("complex128", 8)]),
        [(2, 1.0), (16, 2.0**-80), (16, 2.0**70)],
    ),
)
def test_columns_have_the_coefficients_of_lanczos(dtype: str, b: int, group: int, scale: float) -> None:
    rng = np.random.default_rng(b)
    n, steps = 353, 5
    A = hermitian(n, dtype, rng)
    A.data *= scale
    X, Y = (rng.standard_normal((n, b)).astype(dtype) for _ in range(2))
    start = X.astype(np.result_type(dtype, float))
    Y[:] = 0
    norms = np.linalg.norm(start, axis=0)
    scales, log = np.stack([np.ones(b), norms]), np.full((2 * steps, b), np.nan)
    kernel = RecurrenceKernel(dtype, b, lanczos=True)
    for begin, count in ((0, 3), (3, 2)):  # a second launch goes on
        blocks = (Y, X) if begin % 2 else (X, Y)
        part = log[2 * begin :]
        launch(kernel, A, *blocks, (scales, part), (count, group), (0.0, 0.0, 0.0))
    unit = 2.0**-24 if np.dtype(dtype).char in "fF" else 2.0**-53
    v, before, beta = start / norms, np.zeros_like(start), np.zeros(b)
    for step in range(steps):
        w = A @ v - beta * before
        alpha = (v.conj() * w).sum(axis=0).real
        w -= alpha * v
        beta = np.linalg.norm(w, axis=0)
        norm = abs(A).sum(axis=0).max()
        assert np.abs(log[2 * step] - alpha).max() <= 200 * unit * norm
        assert np.abs(log[2 * step + 1] - beta).max() <= 200 * unit * norm
        v, before = w / beta, v
    assert np.array_equal(scales, log[-3::2])
