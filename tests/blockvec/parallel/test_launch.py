"""Waiting for the other processes of a launcher."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from blockvec.parallel import launch


def comm_of(late: int) -> Any:
    """Make a communicator whose other processes come after so many looks for them."""
    looks = iter([False] * late + [True])
    arrival = SimpleNamespace(Test=lambda: next(looks))
    return SimpleNamespace(Ibarrier=lambda: arrival, Get_rank=lambda: 1, Get_size=lambda: 3)


def test_a_process_that_waits_long_says_once_what_may_be_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PATIENCE_S", 0.0)
    with pytest.warns(RuntimeWarning, match="process 1 of 3 .* not given comm=") as said:
        launch.await_all(comm_of(5))
    assert len(said) == 1


def test_processes_that_come_in_time_are_met_in_silence() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launch.await_all(comm_of(5))
