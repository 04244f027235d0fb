"""The summary of results on record says what stands in them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

spec = importlib.util.spec_from_file_location("goals", Path(__file__).with_name("goals.py"))
assert spec is not None
assert spec.loader is not None
goals: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(goals)

PLAIN = {
    "operation": "tsmttsm",
    "family": "tsmttsm_mma",
    "dtype": "float64",
    "M": 8,
    "N": 8,
    "time_s": 1.0,
    "fraction": 0.9,
    "peers": {},
}


def test_own_kernels_are_judged_without_vendors_and_by_what_padding_leaves() -> None:
    assert goals.own_fraction(PLAIN) == 0.9
    assert goals.own_fraction(PLAIN | {"own_s": 2.0}) == 0.45
    assert goals.own_fraction(PLAIN | {"own_s": None}) is None
    assert goals.own_fraction(PLAIN | {"cap": 0.9}) == 1.0
    assert goals.own_fraction(PLAIN | {"cap": 0.96}) == 0.9
    assert goals.own_fraction(PLAIN | {"cap": 0.5, "family": "tsmttsm_fma"}) == 0.9
    assert goals.own_fraction(PLAIN | {"fraction_sectors": 0.95}) == 0.95


def test_every_table_is_summed_up_by_operation_and_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [
        PLAIN | {"peers": {"cublas": 4.0, "two calls": 0.5}, "choice_s": 1.21, "own_s": 1.0},
        PLAIN | {"M": 3, "fraction": 0.7, "peers": {"cublas": 1.0}, "choice_s": 1.0, "own_s": 1.0},
        PLAIN | {"operation": "tsmm", "inplace": True},
    ]
    document = {"environment": {}, "ceilings": {}, "records": records}
    (tmp_path / "t.json").write_text(json.dumps(document))
    goals.main([str(tmp_path)])
    dot, combine = capsys.readouterr().out.splitlines()
    assert "min 0.700 at   3 x 8   median 0.800" in dot
    assert "least  1.00x mean  2.00x" in dot
    assert "untuned: mean 1.100 worst 1.21" in dot
    assert "in place" in combine
