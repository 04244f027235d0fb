"""Fixtures of the tests on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import blockvec
from blockvec.backends import backend_for
from blockvec.kernels.device import DeviceInfo, cuda_device
from blockvec.kernels.launch import GRID_HEADER_BYTES


@pytest.fixture(scope="module")
def cp() -> Any:
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def device(cp: Any) -> DeviceInfo:
    return cuda_device(cp.cuda.runtime.getDeviceProperties(0), str(cp.cuda.runtime.driverGetVersion()))


@pytest.fixture(scope="module")
def workspace(cp: Any) -> Any:
    """Workspace for sums over blocks: zero counters, as before a first launch, then NaN."""
    memory = cp.full((64 << 20) // 8, cp.nan)
    memory[: GRID_HEADER_BYTES // 8] = 0
    return memory


@pytest.fixture(scope="module")
def gpu() -> Any:
    """The device of the GPU backend, as the functions below the backend take it."""
    backend: Any = backend_for("gpu")
    return backend._gpu


@pytest.fixture
def prefer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Prefer a family for every sparse matrix that it takes, and convert after two products."""

    def prefer(family: Any) -> None:
        monkeypatch.setattr(family, "is_faster", lambda problem: True)
        monkeypatch.setattr(family, "converts_after", lambda problem: 2, raising=False)

    blockvec.operations.dispatch.forget()
    yield prefer
    blockvec.operations.dispatch.forget()


@pytest.fixture(autouse=True)
def memory_goes_back(cp: Any) -> Iterator[None]:
    """Free the memory of each test: other processes test on the same GPU, some with tens of gigabytes."""
    yield
    cp.get_default_memory_pool().free_all_blocks()
