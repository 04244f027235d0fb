"""Rows that are split over processes: everything is as for one process; see `tests.under_mpi`."""

from __future__ import annotations

import errno
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockvec import models
from blockvec.backends import backend_for
from solvers import eigsh
from tests import distributed, distributed_solvers
from tests.contract.blocks import CEILINGS, in_parallel


@pytest.fixture(autouse=True)
def known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings of the host on record."""
    profile = importlib.import_module("blockvec.operations.profile")
    monkeypatch.setitem(profile.known_ceilings, backend_for("cpu").device.fingerprint, CEILINGS)


@pytest.mark.parametrize("name", distributed.WORKS)
def test_split_blocks(name: str, tmp_path: Path) -> None:
    in_parallel(3, lambda comm: distributed.WORKS[name](comm, tmp_path))


@pytest.mark.parametrize("name", distributed_solvers.WORKS)
def test_split_solves(name: str, tmp_path: Path) -> None:
    in_parallel(2, lambda comm: distributed_solvers.WORKS[name](comm, tmp_path))


def test_a_disk_that_fills_up_while_rows_arrive_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Any, parts: Any) -> None:
        next(parts["state/basis"][1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("solvers.runtime.checkpoint.write", full)
    A, options = models.model("laplace3d:n=7"), distributed_solvers.SAVED["lanczos"]
    wanted = eigsh(A, 6, rng=0, **options)[0]

    def solve(comm: Any) -> Any:
        return eigsh(A, 6, rng=0, comm=comm, checkpoint=tmp_path / "state", checkpoint_interval=0, **options)

    with pytest.warns(UserWarning, match="No space left on device; the solve goes on"):
        found = in_parallel(3, solve)
    assert all(np.abs(w - wanted).max() <= 1e-8 for w, _ in found)
    assert not list(tmp_path.iterdir())
