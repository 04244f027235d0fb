"""The measurements of Jacobi-Davidson, on problems small enough for a test."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from tests.benchmarks.jacobi_davidson import TABLES, TARGET, Run, anisotropic, factorised, line, norm_of

RUN = Run("cpu", None, time.perf_counter() + 3600, 30.0, 6, (4,), (2,))


def test_preconditioned_rows_hold_both_solvers_under_one_rule() -> None:
    pytest.importorskip("pyamg")
    rows = list(TABLES["preconditioned"](RUN))
    assert [row["preconditioner"] for row in rows] == ["jacobi", "amg"] * 2
    for row in rows:
        assert row["converged"] == row["k"]
        assert row["residual"] <= TARGET
        assert 0 < row["preconditioner_columns"] < row["peers"]["lobpcg"]["preconditioner_columns"]
        assert row["matrix"] in line(row)


def test_block_rows_differ_in_the_block_alone(monkeypatch: Any) -> None:
    monkeypatch.setitem(TABLES["blocks"].__globals__["BLOCKS"], "cpu", ("laplace3d:n=6",))
    (row,) = TABLES["blocks"](RUN)
    assert (row["k"], row["block_size"], row["converged"]) == (4, 2, 4)


def test_the_factorised_peer_finds_what_is_near() -> None:
    A = anisotropic(5)
    values = np.linalg.eigvalsh(A.toarray())
    found = factorised(A, 3, 1.0)
    assert np.allclose(found["values"], np.sort(values[np.argsort(np.abs(values - 1.0))[:3]]))
    assert found["factor_bytes"] > A.nnz * 8
    assert abs(norm_of(A) / values[-1] - 1) < 0.02
