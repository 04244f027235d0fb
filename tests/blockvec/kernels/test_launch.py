"""How arguments of kernels reach the driver: as CuPy would pass them."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from blockvec.backends.cuda.dense import runner
from blockvec.backends.cuda.device import Gpu
from blockvec.kernels.launch import LoadedKernel, pack_product
from blockvec.kernels.problem import SweepProblem, TsmmProblem
from tests.devices import H200


class _Function:
    """CuPy's function, which only notes what it is called with."""

    ptr = 77

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *call: Any, enable_cooperative_groups: bool) -> None:
        self.calls.append((*call, enable_cooperative_groups))


class _Array:
    """What kernels take of a CuPy array."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {}

    def __init__(self, address: int) -> None:
        self.data = SimpleNamespace(ptr=address)


KINDS: dict[type, Any] = {  # of arguments, as C sees them
    **{int: ctypes.c_int64, np.int64: ctypes.c_int64, np.uint64: ctypes.c_uint64, _Array: ctypes.c_void_p},
    **{float: ctypes.c_double, np.float64: ctypes.c_double, complex: ctypes.c_double * 2},
    **{np.int32: ctypes.c_int32, np.uint32: ctypes.c_uint32, np.float32: ctypes.c_float},
    type(None): ctypes.c_void_p,
}


def of_c(value: Any) -> Any:
    """Convert an argument to what a kernel is given."""
    if type(value) is complex:
        return [value.real, value.imag]
    return value.data.ptr if isinstance(value, _Array) else value


class Driver:
    """Reads arguments as the driver does."""

    def __init__(self) -> None:
        self.kinds: list[type] = []
        self.launches: list[tuple[Any, ...]] = []
        self.memory: list[int] = []
        self.device = 0

    @contextlib.contextmanager
    def on(self, number: int) -> Iterator[None]:
        before, self.device = self.device, number
        yield
        self.device = before

    def launch(self, *call: Any) -> None:
        *call, extra = call
        assert extra == 0
        self.launch_together(*call)

    def launch_together(self, *call: Any) -> None:
        *how, pointers = call
        addresses = (ctypes.c_void_p * len(self.kinds)).from_address(pointers)
        given = [KINDS[kind].from_address(at) for kind, at in zip(self.kinds, addresses, strict=True)]
        numbers = [list(value) if hasattr(value, "__len__") else value.value for value in given]
        self.launches.append((self.device, *how, numbers))
        self.memory.append(pointers)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    recorded = Driver()
    cuda: Any = ModuleType("cupy.cuda")
    launches = {"launchKernel": recorded.launch, "launchCooperativeKernel": recorded.launch_together}
    cuda.driver = SimpleNamespace(**launches, CUDADriverError=RuntimeError)
    cuda.runtime = SimpleNamespace(free=lambda address: None, getDevice=lambda: recorded.device)
    cuda.Device = recorded.on
    cuda.get_current_stream = lambda: SimpleNamespace(ptr=5)
    cupy: Any = ModuleType("cupy")
    cupy.cuda = cuda
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    return recorded


ARGUMENTS = {
    "integers and floats": (1 << 40, -2, 3, 0.5),
    "NumPy's": (
        np.int32(-7),
        2,
        np.uint32(1 << 31),
        np.int64(-(1 << 40)),
        np.uint64(1 << 63),
        np.float32(0.5),
    ),
    "complex": (np.int32(1), 0.25 - 3j, np.float64(1.5), 2j, 9),
    "arrays": (_Array(1 << 40), None, np.int32(4), _Array(0), 1.0),
    "none": (),
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_are_packed_into_memory_that_is_used_again(
    arguments: tuple[Any, ...], driver: Driver
) -> None:
    function = _Function()
    kernel = LoadedKernel(function)
    driver.kinds = [*map(type, arguments)]
    kernel((7,), (64,), arguments, 1024)
    others = [(ctypes.c_void_p * 4)() for _ in range(100)]  # would get memory that is free
    kernel((7, 2), (64,), arguments)
    kernel((0, 3, 2), (8, 4), arguments, is_cooperative=True)
    expected = [of_c(value) or None if isinstance(value, _Array) else of_c(value) for value in arguments]
    assert driver.launches == [
        (0, 77, 7, 1, 1, 64, 1, 1, 1024, 5, expected),
        (0, 77, 7, 2, 1, 64, 1, 1, 0, 5, expected),
        (0, 77, 1, 3, 2, 8, 4, 1, 0, 5, expected),
    ]
    assert len(set(driver.memory)) == 1
    assert driver.memory[0] not in map(ctypes.addressof, others)
    assert function.calls == []


def test_a_product_is_launched_on_its_device(driver: Driver) -> None:
    arrays = [_Array(place << 20) for place in (1, 2, 3)]
    problem = TsmmProblem(1000, 8, 8, "float64", "float64", 8, 8)
    loaded = LoadedKernel(_Function()), (7,), (64,), 1024, pack_product(problem, 1), lambda: 8
    runner(Gpu(1, H200), problem, lambda: loaded)(problem, *arrays, 1, 0)
    assert driver.launches == [(1, 77, 7, 1, 1, 64, 1, 1, 1024, 5, [])]
    assert driver.device == 0


def test_a_sweep_takes_the_addresses_of_four_arrays(driver: Driver) -> None:
    sweep = SweepProblem(1000, 8, 4, "float64", "float64", "float64", 8, 4)
    packed: list[tuple[int, ...]] = []
    loaded = LoadedKernel(_Function()), (7,), (64,), 0, lambda *all_: packed.append(all_) or all_, lambda: 99
    runner(Gpu(0, H200), sweep, lambda: loaded)(sweep, *map(_Array, (1, 2, 3, 4)))
    assert packed == [(1, 2, 3, 4, 99)]
    assert len(driver.launches) == 1
