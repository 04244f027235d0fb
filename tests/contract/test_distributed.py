"""Rows that are split over processes: everything is as for one process; see `tests.under_mpi`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import distributed, distributed_solvers
from tests.contract.blocks import in_parallel


@pytest.mark.parametrize("name", distributed.WORKS)
def test_split_blocks(name: str, tmp_path: Path) -> None:
    for size in (2, 4):
        in_parallel(size, lambda comm: distributed.WORKS[name](comm, tmp_path))


@pytest.mark.parametrize("name", distributed_solvers.WORKS)
def test_split_solves(name: str, tmp_path: Path) -> None:
    in_parallel(2, lambda comm: distributed_solvers.WORKS[name](comm, tmp_path))
