"""The measurements of Jacobi-Davidson, on problems small enough for a test."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.benchmarks.eigen_problems import TARGET, Task
from tests.benchmarks.jacobi_davidson import TABLES, Setting, line

SETTING = Setting("cpu", None, time.perf_counter() + 3600, 30.0, 6, (4,), (2,))


def test_preconditioned_rows_hold_both_solvers_under_one_rule() -> None:
    pytest.importorskip("pyamg")
    rows = list(TABLES["preconditioned"](SETTING))
    assert [row["preconditioner"] for row in rows] == ["jacobi", "multigrid"] * 2
    for row in rows:
        peer = row["peers"]["lobpcg"]
        assert row["converged"] == row["k"]
        assert max(row["residual"], peer["residual"]) <= TARGET
        assert 0 < row["preconditioner_columns"] < peer["preconditioner_columns"]
        assert row["matrix"] in line(row)


def test_interior_rows_agree_on_the_values(monkeypatch: Any) -> None:
    task = Task("graphene:nx=24,ny=24,disorder=0.1", 4, "LM")
    monkeypatch.setitem(TABLES["interior"].__globals__["INTERIOR"], "cpu", ((task, 0.05),))
    (row,) = TABLES["interior"](SETTING)
    for entry in (row, *row["peers"].values()):
        assert entry["time_s"] is not None
        assert entry["difference"] < 1e-7
    assert set(row["peers"]) == {"filter", "shift-invert"}
