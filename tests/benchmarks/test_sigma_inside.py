"""The table of shifts inside a spectrum: its record of a small case."""

from __future__ import annotations

from tests.benchmarks.sigma_inside import Case, line, random_symmetric, record


def test_both_solvers_find_the_same_values_to_the_same_accuracy() -> None:
    one = record(Case("random", random_symmetric(1, 300), None, 0.5, 3), turns=1)
    peer = one["peers"]["scipy"]
    assert one["converged"] == 3
    assert one["difference"] < 1e-12
    assert one["residual"] <= 10 * peer["residual"]
    assert min(one["time_s"], peer["time_s"]) > 0
    assert line(one).startswith("random")
