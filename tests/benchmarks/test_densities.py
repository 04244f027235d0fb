"""The times of moments have peers that compute the same moments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import densities
from tests.contract.blocks import CEILINGS


def test_a_record_compares_the_moments_of_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(densities, "ceilings", lambda backend: CEILINGS)
    record = densities.measured("graphene:nx=12,ny=12", 32, "cpu")
    assert record["difference"] < 1e-12
    assert record["fraction"] > 0
    assert record["speedup"] == record["peers"]["scipy"] / record["column_s"]
