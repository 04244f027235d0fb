"""Blocks with more elements than 32-bit indices can count."""

from __future__ import annotations

import numpy as np
import pytest

from blockvec import BlockVector

pytestmark = pytest.mark.gpu

K, M = 2**28 + 64, 8  # 8.6 GB in single precision; K is a float32
NEEDED_BYTES = 45 << 30


@pytest.fixture(autouse=True)
def memory() -> None:
    """Skip if the GPU has too little free memory."""
    import cupy

    if cupy.cuda.runtime.memGetInfo()[0] < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES >> 30} GB of free device memory")


def test_every_row_of_a_huge_block_counts() -> None:
    V = BlockVector.full(K, M, 1.0, "float32", device="gpu")
    V.array[-1] = 3
    expected = K + 8  # a multiple of 8 below 2^29, so a float32 number
    assert (V.gram().get() == expected).all()
    assert V.norms().get() ** 2 == pytest.approx(expected, rel=1e-6)
    assert (V.column_dot(V).get() == expected).all()
    W = V[:, :7]
    assert (W.dot(V[:, 1:]).get() == expected).all()
    assert W[:, 0].dot(W[:, 3]).get()[0, 0] == expected


def test_elementwise_passes_reach_the_last_row_of_a_huge_block() -> None:
    V = BlockVector.full(K, M, 1.0, "float32", device="gpu")
    V.array[-1] = 3
    W = V + V
    assert (W.array[-2:].get() == [[2] * M, [6] * M]).all()
    factors = V.backend.xp.arange(8, dtype="float32")
    W.axpy(factors, V)
    assert (W.array[-2:].get() == [2 + np.arange(8), 6 + 3 * np.arange(8)]).all()
    assert (W.array[0].get() == 2 + np.arange(8)).all()


def test_random_numbers_of_a_huge_block_are_the_host_s() -> None:
    V = BlockVector.random(K, M, "float32", rng=5, device="gpu")
    tail = BlockVector.random(1000, M, "float32", rng=5, first_row=K - 1000)
    assert np.array_equal(V.array[-1000:].get(), tail.array)
