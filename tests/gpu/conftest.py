"""What tests of kernels on a GPU share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def memory_goes_back() -> Iterator[None]:
    """Return what a test took: other processes test on the same GPU, some with tens of gigabytes."""
    yield
    cupy = pytest.importorskip("cupy")
    cupy.get_default_memory_pool().free_all_blocks()
