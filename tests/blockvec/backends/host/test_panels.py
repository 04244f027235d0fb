"""What panels, folds and chunks must not change: bits, neighbours, memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockvec
from blockvec import BlockVector
from blockvec.backends.host import panels

K = 20_011  # several panels of each kind, and rows left over


@pytest.fixture(autouse=True)
def panels_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the panels' path at every size, over several threads and ranges."""
    monkeypatch.setattr(panels, "SERIAL_BYTES", 1 << 12)
    with blockvec.option_context(threads=3):
        yield


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e308])
@pytest.mark.parametrize("M", [1, 2, 3, 4])
def test_what_one_row_holds_reaches_only_what_it_is_multiplied_with(value: float, M: int) -> None:
    # Rows that are folded side by side meet in products that are thrown away.
    A, B = np.ones((K, M)), np.ones((K, M))
    A[1000, 0] = value
    B[1000] = 0
    B[1001] = value
    A[1001] = 0
    with np.errstate(all="ignore"):
        expected = A.T @ B
        found = BlockVector(A).dot(BlockVector(B))
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    assert np.array_equal(np.isinf(found), np.isinf(expected))
    product = (BlockVector(A) @ np.ones((M, M))).array
    assert np.isfinite(np.delete(product, 1000, axis=0)).all()
    assert (np.delete(product, [1000, 1001], axis=0) == M).all()


def test_single_precision_sums_are_better_than_single_precision() -> None:
    # A naive float32 sum of ones stops at 2^24.
    n_rows = 1 << 25
    V = BlockVector.full(n_rows, 1, 1, "float32")
    assert V.norms()[0] ** 2 == pytest.approx(n_rows, rel=1e-6)
    W = BlockVector(V.array.reshape(-1, 2))
    assert W.gram().tolist() == [[n_rows / 2] * 2] * 2


LARGE = 300_000
FEW_MB = 6e6


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(
    "operation", ["dot", "gram", "combine", "update", "in place", "axpby", "scale", "norms", "mixed"]
)
def test_memory_beyond_operands_is_a_few_megabytes(
    operation: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # ranges as they are
    A, B = BlockVector.random(LARGE, 8, dtype, rng=1), BlockVector.random(LARGE, 8, dtype, rng=2)
    C = np.eye(8).astype(dtype)
    single = BlockVector.random(LARGE, 8, "float32", rng=3)
    run: dict[str, Callable[[], Any]] = {
        "dot": lambda: A.dot(B),
        "gram": A.gram,
        "combine": lambda: A.combine(C, out=B),
        "update": lambda: A.combine(C, alpha=-1, beta=1, out=B),
        "in place": lambda: A.combine(C, out=A),
        "axpby": lambda: B.axpby(0.5, A, 0.5),
        "scale": lambda: A.scale(np.full(8, 0.5)),
        "norms": A.norms,
        "mixed": lambda: single.dot(A),
    }
    assert A.nbytes > 3 * FEW_MB
    with blockvec.option_context(threads=2):
        run[operation]()
        tracemalloc.start()
        try:
            run[operation]()
            assert tracemalloc.get_traced_memory()[1] < FEW_MB
        finally:
            tracemalloc.stop()
