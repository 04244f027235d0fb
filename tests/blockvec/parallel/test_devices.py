"""The GPU of each process, on pretended hosts: threads are the processes."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from blockvec.errors import DeviceError
from blockvec.parallel import choose_gpu, devices
from tests.contract.blocks import ThreadComm, in_parallel


class Hosts:
    """Processes, each with the GPUs that it can see and the number of its current one."""

    def __init__(self, visible: list[list[str]], current: list[int]) -> None:
        self._visible, self.current, self._ranks = visible, current, dict[int, int]()

    @property
    def _rank(self) -> int:
        return self._ranks[threading.get_ident()]

    def choose(self, comm: ThreadComm) -> str:
        self._ranks[threading.get_ident()] = comm.rank
        return choose_gpu(comm)

    def module(self) -> Any:
        """The parts of CuPy that `choose_gpu` uses."""
        runtime = SimpleNamespace(
            getDevice=lambda: self.current[self._rank],
            getDeviceCount=lambda: len(self._visible[self._rank]),
            deviceGetPCIBusId=lambda number: self._visible[self._rank][number],
        )
        return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, Device=self._device))

    def _device(self, number: int) -> Any:
        return SimpleNamespace(use=lambda: self.current.__setitem__(self._rank, number))


def chosen(monkeypatch: pytest.MonkeyPatch, visible: list[list[str]], current: list[int]) -> list[int]:
    hosts = Hosts(visible, current)
    monkeypatch.setitem(sys.modules, "cupy", hosts.module())
    monkeypatch.setattr(devices, "backend_for", lambda name: None)
    names = in_parallel(len(visible), hosts.choose)
    assert names == [f"cuda:{number}" for number in hosts.current]
    return hosts.current


def test_processes_of_a_host_take_its_gpus_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, [["a", "b", "c"]] * 3, [0, 0, 0]) == [0, 1, 2]
    assert chosen(monkeypatch, [["a", "b", "c"]] * 2, [1, 1]) == [0, 1]


def test_different_gpus_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, [["a", "b", "c"]] * 3, [2, 0, 1]) == [2, 0, 1]
    assert chosen(monkeypatch, [["a"], ["b"]], [0, 0]) == [0, 0]  # a launcher shows each its own


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match=r"3 processes of .* have 2 GPUs; start one process per GPU"):
        chosen(monkeypatch, [["a", "b"]] * 3, [0, 0, 0])
