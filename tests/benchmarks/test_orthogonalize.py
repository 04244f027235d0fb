"""The benchmark of orthogonalisation: its model of traffic, its records, and a small run of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockvec.backends import backend_for
from blockvec.kernels.roofline import Ceilings
from tests.benchmarks import orthogonality
from tests.benchmarks.orthogonalize import Task, line, measure, model_time

LIMITS = Ceilings(read_gb_s=4.0, write_gb_s=2.0, copy_gb_s=4.0)


def test_the_model_is_the_time_of_its_columns() -> None:
    # 4 * 10 + 5 * 2 columns read, 3 * 2 written: six copied, and 44 more read
    assert model_time(1000, 10, 2, 8, LIMITS) == pytest.approx(8e3 * (44 / 4e9 + 12 / 4e9))


@pytest.mark.parametrize("columns", [8, 0])
def test_a_task_is_measured_and_judged(columns: int) -> None:
    record = measure(Task(3000, columns, 2), backend_for("cpu"), "float64", LIMITS, peers=True, runs=1)
    assert record["loss"] < 1e-14
    assert record["reductions"] == (4 if columns else 1)
    assert record["fraction"] == pytest.approx(record["model_s"] / record["time_s"], abs=1e-4)
    assert record["peers"]["numpy qr"] > 0
    assert "numpy qr" in line(record)


def test_recorded_losses_are_within_their_bounds(root: Path) -> None:
    path = root / "docs" / "results" / "host-2core" / "orthogonality.json"
    records = json.loads(path.read_text(encoding="utf-8"))["records"]
    assert {r["width"] for r in records} == set(orthogonality.WIDTHS)
    assert all(r["loss"] <= r["bound"] for r in records)
