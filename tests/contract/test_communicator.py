"""Blocks whose rows are split over processes: reductions are over all of them, and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec import BlockVector, RowLayout
from tests.contract.blocks import DTYPES, Hub, ThreadComm, exact_values, host, in_parallel, on, values

CUTS = [0, 700, 700, 1503, 2001]  # one of the parts is empty


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_over_parts_equal_those_of_the_whole(device: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    A, B = exact_values(rng, (CUTS[-1], 5), dtype), exact_values(rng, (CUTS[-1], 3), dtype)

    def work(comm: ThreadComm) -> list[Any]:
        layout = RowLayout(CUTS, comm)
        V, W = (BlockVector(on(device, whole[layout.rows]), layout=layout) for whole in (A, B))
        out = on(device, np.ones((5, 3), dtype))
        V.dot(W, alpha=2, beta=-3, out=out)
        results = [V.H @ W, V.T @ W, V.gram(), V.norms(), V[:, :3].column_dot(W), out]
        return [host(result) for result in results]

    V, W = BlockVector(on(device, A)), BlockVector(on(device, B))
    out = on(device, np.ones((5, 3), dtype))
    V.dot(W, alpha=2, beta=-3, out=out)
    whole = [V.H @ W, V.T @ W, V.gram(), V.norms(), V[:, :3].column_dot(W), out]
    for results in in_parallel(len(CUTS) - 1, work):
        for result, expected in zip(results, whole, strict=True):
            assert np.array_equal(result, host(expected))


def test_all_ranks_get_the_same_bits(device: str) -> None:
    A = values(np.random.default_rng(2), (CUTS[-1], 4), "float64")

    def work(comm: ThreadComm) -> Any:
        layout = RowLayout(CUTS, comm)
        return host(BlockVector(on(device, A[layout.rows]), layout=layout).gram())

    first, *rest = in_parallel(len(CUTS) - 1, work)
    assert all(np.array_equal(first, other) for other in rest)


def test_a_layout_is_inherited(device: str) -> None:
    layout = RowLayout([0, 10, 10], ThreadComm(0, Hub(2)))
    V = BlockVector.zeros(10, 3, device=device, layout=layout)
    C = on(device, np.ones((3, 2)))
    results = [V[:, 1:], V.copy(), V.like(2), V.random_like(1), V + V, 2 * V, V @ C, -V, V.to_host()]
    assert all(result.layout is layout for result in [*results, V[:, [0, 2]], BlockVector(V)])
