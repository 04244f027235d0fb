"""Rows that are split over two processes with a GPU each, or with one GPU; see `tests.gpu.distributed`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockvec import models
from solvers import eigsh
from tests.gpu.distributed import WORKS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", WORKS)
def test_two_processes_with_gpus(name: str, under_mpi: Callable[..., str], tmp_path: Path, cp: Any) -> None:
    assert cp.cuda.runtime.getDeviceCount() > 0
    assert "1 passed" in under_mpi(2, "-m", "tests.gpu.distributed", str(tmp_path), name)


def test_the_command_splits_rows_over_gpus(under_mpi: Callable[..., str], cp: Any) -> None:
    if cp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("two GPUs are needed, this machine has one")
    command = ("-m", "solvers", "laplace3d:n=30", "-k", "4", "--comm", "mpi", "--device", "gpu", "--json")
    found = json.loads(under_mpi(2, *command))
    alone = eigsh(models.model("laplace3d:n=30"), 4, which="SA", rng=0)[0]
    assert np.abs(np.array(found["eigenvalues"]) - alone).max() <= 1e-8


def test_more_processes_than_gpus_are_refused(under_mpi: Callable[..., str], cp: Any) -> None:
    size = cp.cuda.runtime.getDeviceCount() + 1
    command = ("-m", "solvers", "laplace3d:n=8", "--comm", "mpi", "--device", "gpu")
    assert "start one process per GPU" in under_mpi(size, *command, succeeds=False)
