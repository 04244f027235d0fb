"""The call of a product on a GPU, down to the driver, with a CuPy that only records."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from blockvec.backends.cuda.dense import runner
from blockvec.backends.cuda.device import Gpu
from blockvec.errors import LayoutError
from blockvec.kernels.launch import Kernel, Launch, pack_product
from blockvec.kernels.problem import SweepProblem, TsmmProblem, TsmttsmProblem
from tests.devices import H200

DOT = TsmttsmProblem(1000, 8, 8, "float64", "float64", 8, 8)
WORKSPACE = 1 << 30


class Driver:
    """What the fake CuPy was asked to do."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.stacks: list[list[str]] = []
        self.device = 0

    def launch(self, *how: Any) -> None:
        self.launches.append((self.device, *how))
        self.stacks.append([frame.function for frame in inspect.stack()[1:]])


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    recorded = Driver()

    @contextlib.contextmanager
    def device(number: int) -> Iterator[None]:
        before, recorded.device = recorded.device, number
        yield
        recorded.device = before

    cuda: Any = ModuleType("cupy.cuda")
    launches = {"launchKernel": recorded.launch, "launchCooperativeKernel": recorded.launch}
    cuda.driver = SimpleNamespace(**launches, CUDADriverError=RuntimeError)
    cuda.get_current_stream = lambda: SimpleNamespace(ptr=5)
    cuda.runtime = SimpleNamespace(getDevice=lambda: recorded.device, free=lambda address: None)
    cuda.Device = device
    cupy: Any = ModuleType("cupy")
    cupy.cuda = cuda
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    return recorded


def array(address: int) -> Any:
    return SimpleNamespace(data=SimpleNamespace(ptr=address))


def run_of(problem: Any, device_id: int = 0) -> Any:
    kernel = Kernel(SimpleNamespace(ptr=77))
    loaded = kernel, Launch((7,), (64,), 1024, pack_product(problem)), lambda: WORKSPACE
    return runner(Gpu(device_id, H200), problem, lambda: loaded)


def test_another_current_device_is_changed_for_the_launch(driver: Driver) -> None:
    run_of(DOT, device_id=1)(DOT, array(1 << 20), array(2 << 20), array(3 << 20), 1, 0)
    ((device, function, blocks, _, _, threads, *_, stream, _, _),) = driver.launches
    assert (device, function, blocks, threads, stream) == (1, 77, 7, 64, 5)
    assert driver.device == 0


def test_an_address_that_is_less_aligned_than_described_is_refused(driver: Driver) -> None:
    with pytest.raises(LayoutError, match="aligned to 16 bytes"):
        run_of(DOT)(DOT, array((1 << 20) + 8), array(2 << 20), array(3 << 20), 1, 0)
    assert driver.launches == []


def test_no_rows_of_a_result_take_no_launch(driver: Driver) -> None:
    empty = TsmmProblem(0, 8, 8, "float64", "float64", 8, 8)
    run_of(empty)(empty, array(0), array(1 << 20), array(0), 1, 0)
    assert driver.launches == []


def test_a_sweep_takes_the_addresses_of_four_arrays(driver: Driver) -> None:
    sweep = SweepProblem("update_gram", 1000, 8, 4, "float64", "float64", "float64", 8, 4)
    packed: list[tuple[int, ...]] = []

    def pack(*addresses: int) -> tuple[int, ...]:
        packed.append(addresses)
        return addresses

    loaded = Kernel(SimpleNamespace(ptr=77)), Launch((7,), (64,), 0, pack), lambda: WORKSPACE
    run = runner(Gpu(0, H200), sweep, lambda: loaded)
    run(sweep, *map(array, (1, 2, 3, 4)))
    assert packed == [(1, 2, 3, 4, WORKSPACE)]
    assert len(driver.launches) == 1
