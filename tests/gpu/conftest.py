"""Fixtures of the tests on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

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


@pytest.fixture(autouse=True)
def memory_goes_back(cp: Any) -> Iterator[None]:
    """Free the memory of each test: other processes test on the same GPU, some with tens of gigabytes."""
    yield
    cp.get_default_memory_pool().free_all_blocks()
