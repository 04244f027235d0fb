"""Column sums on the host: every row counts once, however rows are folded."""

from __future__ import annotations

import numpy as np
import pytest

from blockvec import BlockVector
from blockvec.backends.host.elementwise import DOT_ROWS, LONG_ROW
from tests.blocks import draw


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("width", [0, 1, 3, 8, LONG_ROW + 1])
def test_sums_over_any_number_of_rows_are_exact_on_small_integers(width: int, dtype: str) -> None:
    fold = max(1, LONG_ROW // max(width, 1))
    rng = np.random.default_rng(width)
    for n_rows in {0, 1, fold - 1, fold, 5 * fold + 3, DOT_ROWS * fold, 2 * DOT_ROWS * fold + 3 * fold + 1}:
        if n_rows * max(width, 1) > 1 << 18:
            continue
        for pitch in (width, width + 1):
            x, y = (a[:, :width] for a in draw(rng, (2, n_rows, pitch), dtype))
            X, Y = BlockVector(x), BlockVector(y)
            assert np.array_equal(X.column_dot(Y), (x.conj() * y).sum(axis=0))
            assert np.array_equal(X.column_dot(X), (abs(x.astype("c16")) ** 2).round().sum(axis=0))
