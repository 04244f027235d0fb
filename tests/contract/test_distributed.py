"""Rows that are split over processes: everything is as for one process; see `tests.distributed`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.blocks import in_parallel
from tests.distributed import WORKS


@pytest.mark.parametrize("name", WORKS)
def test_split_rows(name: str, tmp_path: Path) -> None:
    for size in (2, 4):
        in_parallel(size, lambda comm: WORKS[name](comm, tmp_path))
