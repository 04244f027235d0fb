"""The benchmark of linear systems: its record of a small case."""

from __future__ import annotations

import pytest

from tests.benchmarks.systems import problems, record


def test_both_solve_to_the_same_accuracy() -> None:
    pytest.importorskip("pyamg", reason="multigrid: pip install pyamg")
    for name, A, near_null in problems(scale=0.05):
        assert abs(A - A.T).max() <= 1e-12 * abs(A).max()
        one = record(name, A, near_null, "jacobi", 3, turns=1)
        assert max(one["residual"], one["scipy_residual"]) <= 1.1e-8
        assert 0 < one["iterations"] < 1000
