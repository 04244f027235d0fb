"""Sweeps over a basis and a block on the host, chunk by chunk."""

from __future__ import annotations

import numpy as np
import pytest

from blockvec.backends.host import sweeps as panel_sweeps
from blockvec.kernels.problem import SweepProblem
from blockvec.operations import products
from blockvec.system.config import option_context
from tests.contract.blocks import DTYPES, Guarded, Layout, exact_values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("K", "M", "N"), [(70001, 3, 5), (20011, 64, 8), (333, 130, 16), (1, 2, 2)])
@pytest.mark.parametrize("layout", [Layout(0, 0), Layout(2, 1)], ids=["contiguous", "view"])
def test_chunks_are_exact_where_the_terms_are(dtype: str, K: int, M: int, N: int, layout: Layout) -> None:
    rng = np.random.default_rng(M)
    X, A = exact_values(rng, (K, M), dtype), exact_values(rng, (K, N), dtype)
    C, D = exact_values(rng, (N, N), dtype), exact_values(rng, (M, N), dtype)
    W = Guarded(X, "cpu", layout).block.array
    for operation, coefficients, rows in (("combine_dot", C, M), ("update_gram", D, N)):
        V = Guarded(A, "cpu", layout)
        S = np.full((rows, N), np.nan, dtype)
        problem = products.sweep_problem(operation, V.block.array, coefficients, W)
        with option_context(threads=2):
            panel_sweeps.sweep(problem, W, V.block.array, coefficients, S)
        new = A @ C if operation == "combine_dot" else A - X @ D
        left = X if operation == "combine_dot" else new
        assert np.array_equal(V.block.array, new)
        assert V.is_untouched_outside()
        assert np.array_equal(S, left.conj().T.astype(np.complex128) @ new)


def test_blocks_that_stay_in_cache_take_two_calls() -> None:
    def problem(K: int, dtype_c: str = "float64") -> SweepProblem:
        return SweepProblem("update_gram", K, 64, 8, "float64", "float64", dtype_c, 64, 8)

    assert "cache" in (panel_sweeps.refusal(problem(10_000)) or "")
    assert panel_sweeps.refusal(problem(1_000_000)) is None
    assert "mixed" in (panel_sweeps.refusal(problem(1_000_000, "float32")) or "")
    assert "nothing" in (panel_sweeps.refusal(problem(0)) or "")
