"""How arguments of kernels reach the driver: as CuPy would pass them."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import numpy as np
import pytest

from blockvec.kernels.launch import Kernel


class _Function:
    """CuPy's function, which only notes what it is called with."""

    ptr = 77

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *call: Any) -> None:
        self.calls.append(call)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    cuda = pytest.importorskip("cupy.cuda", reason="CuPy is not installed")
    launches: list[tuple[Any, ...]] = []

    def launch(*call: Any) -> None:
        *how, pointers, extra = call
        addresses = (ctypes.c_void_p * 4).from_address(pointers)
        numbers = [ctypes.c_int64.from_address(int(address or 0)).value for address in addresses[:3]]
        last = ctypes.c_double.from_address(int(addresses[3] or 0)).value
        launches.append((*how, numbers, last, extra, pointers))

    monkeypatch.setattr(cuda.driver, "launchKernel", launch)
    monkeypatch.setattr(cuda, "get_current_stream", lambda: type("Stream", (), {"ptr": 5}))
    return launches


def test_integers_and_floats_are_packed_into_memory_that_is_used_again(driver: list[tuple[Any, ...]]) -> None:
    function = _Function()
    kernel = Kernel(function)
    kernel((7,), (64,), (1 << 40, 2, 3, 0.5), 1024)
    others = [(ctypes.c_void_p * 4)() for _ in range(100)]  # would get memory that is free
    kernel((7,), (64,), (-3, 2, 3, 0.5), 1024)
    (*launch, memory), (*next_launch, memory_again) = driver
    assert launch == [77, 7, 1, 1, 64, 1, 1, 1024, 5, [1 << 40, 2, 3], 0.5, 0]
    assert next_launch == [77, 7, 1, 1, 64, 1, 1, 1024, 5, [-3, 2, 3], 0.5, 0]
    assert memory == memory_again
    assert memory not in map(ctypes.addressof, others)
    assert function.calls == []


@pytest.mark.parametrize("arguments", [(np.int32(1), 2), (True, 2), (np.zeros(1), 2)], ids=str)
def test_whatever_else_is_left_to_cupy(arguments: tuple[Any, ...], driver: list[tuple[Any, ...]]) -> None:
    function = _Function()
    Kernel(function)((7,), (64,), arguments)
    Kernel(function)((7, 2), (64,), (1, 2))
    assert function.calls == [((7,), (64,), arguments, 0), ((7, 2), (64,), (1, 2), 0)]
    assert driver == []


@pytest.mark.parametrize(("status", "left_to_cupy"), [(201, True), (700, False)])
def test_a_thread_without_a_context_gets_one_from_cupy(
    driver: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, status: int, left_to_cupy: bool
) -> None:
    import cupy.cuda

    class DriverError(RuntimeError):
        def __init__(self, status: int) -> None:
            self.status = status

    def fail(*_: Any) -> None:
        raise DriverError(status)

    monkeypatch.setattr(cupy.cuda.driver, "CUDADriverError", DriverError)
    monkeypatch.setattr(cupy.cuda.driver, "launchKernel", fail)
    function = _Function()
    with contextlib.nullcontext() if left_to_cupy else pytest.raises(DriverError):
        Kernel(function)((7,), (64,), (1, 2))
    assert function.calls == [((7,), (64,), (1, 2), 0)] * left_to_cupy
