"""Times of short products."""

from __future__ import annotations

import pytest

from blockvec.backends import backend_for
from blockvec.kernels.roofline import Ceilings
from tests.benchmarks import latency

HOST = backend_for("cpu")
LIMITS = Ceilings(40.0, 20.0, 50.0, {"float32": 400.0, "float64": 200.0})


def test_every_width_and_number_of_rows_has_a_record() -> None:
    records = list(latency.measure_latency(HOST, LIMITS, (2, 5), "complex128", (1, 40)))
    assert [(r["M"], r["K"]) for r in records] == [(2, 1), (2, 40), (5, 1), (5, 40)]
    for record in records:
        assert record["time_s"] > 0
        assert record["peers"]["numpy"] > 0
        assert record["replay_s"] is None
        assert len(latency.line(record).split()) == len(latency.heading().split()) - 2


def test_times_are_those_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1

    monkeypatch.setattr(latency.time, "perf_counter", lambda: 0.004 * calls)
    assert latency._call_time(call, HOST) == pytest.approx(0.004)
    assert calls >= 11
