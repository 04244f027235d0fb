"""The table of intervals: its record of a small case."""

from __future__ import annotations

from tests.benchmarks.interval import case, line, plate, record


def test_a_record_of_a_small_plate_misses_nothing() -> None:
    K, M, values = plate(24)
    one = record(case("plate", K, M, values, 20, 50), "cpu")
    assert one["k"] == one["counted"] == one["found"] == one["converged"]
    assert one["missed"] == 0
    assert one["orthogonality"] < 1e-12
    assert one["peers"]["one shift"]["k"] == one["k"]
    assert line(one).startswith("plate ")
