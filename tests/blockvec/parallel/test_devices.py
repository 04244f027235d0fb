"""Processes of a launcher, their GPUs on pretended hosts, and rows made there: threads are the processes."""

from __future__ import annotations

import sys
import threading
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blockvec import RowLayout, as_operator, models
from blockvec.errors import DeviceError
from blockvec.parallel import agreement, choose_gpu, launch
from tests.contract.blocks import ThreadComm, in_parallel
from tests.pretended_gpu import pretended_gpu


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
    monkeypatch.setattr(agreement, "backend_for", lambda name: None)
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


@pytest.mark.parametrize(
    "spec", ["xxz:sites=8,up=4", "laplace3d:n=5", "hofstadter:nx=6,ny=4", "laplace1d:n=3"]
)
def test_operators_have_the_same_parts(spec: str) -> None:
    generator = models.generator(spec)

    def parts(comm: Any, device: str) -> Any:
        op: Any = as_operator(generator, layout=RowLayout.equal(generator.n_rows, comm), device=device)
        matrices = [part.to_host() for part in op._sparse_parts()]
        arrays = [array for S in matrices for array in (S.data, S.indices, S.indptr)]
        return [begin for begin, _ in op._coupling], [op._halo.wanted, *arrays]

    expected = in_parallel(3, lambda comm: parts(comm, "cpu"))
    with pretended_gpu():
        found = in_parallel(3, lambda comm: parts(comm, "cuda:0"))
    for (begins, arrays), (wanted, others) in zip(found, expected, strict=True):
        assert begins == wanted
        for array, other in zip(arrays, others, strict=True):
            assert array.dtype == other.dtype
            np.testing.assert_array_equal(array, other)


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
