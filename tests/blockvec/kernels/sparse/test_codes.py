"""Entries of matrices of few different values, encoded by the kernel run on the host."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from blockvec.kernels.source import Kernel
from blockvec.kernels.sparse import codes as codes_of_values
from blockvec.kernels.sparse.codes import _LEAST_ENTRIES as LEAST
from blockvec.kernels.sparse.codes import encode
from blockvec.kernels.sparse.csr_plan import CODE_BIT, MAX_VALUES, Codes, Plan
from tests.emulator.host import HostKernel, needs_host_compiler


def plan_of(values: np.ndarray, index: str = "int32") -> Plan:
    """A matrix of one entry per row."""
    n = len(values)
    columns = np.random.default_rng(0).permutation(n).astype(index)
    return Plan(np.arange(n + 1, dtype=index), columns, values)


def no_kernel(kernel: Kernel) -> Any:
    raise AssertionError(f"{kernel.name} is not needed")


@needs_host_compiler
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_coded_entries_keep_every_bit_also_of_values_that_the_sample_lacks(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes_of_values, "_LEAST_ENTRIES", few := 1 << 14)
    rng = np.random.default_rng(1)
    values = rng.choice(np.array([-1, 0.5, 2, -0.0], dtype), few + 5)
    rare = np.array([np.nan, np.inf, -3, 0, 7, 8], dtype)
    values[few // 3 : few // 3 + len(rare)] = rare  # between two samples
    plan = plan_of(values)

    def load(kernel: Kernel) -> Any:
        def launch(grid: tuple[int, ...], block: tuple[int], arguments: tuple[Any, ...]) -> None:
            memory = (ctypes.c_char * (MAX_VALUES * values.itemsize)).from_address(arguments[3])
            readable = [plan.indices, plan.data, np.frombuffer(memory, np.uint8)]
            HostKernel(kernel.source(), readable)(grid, block, arguments)

        return launch

    codes = encode(plan, len(values), 3, load)
    assert isinstance(codes, Codes)
    assert codes.entries.min() >= 0
    np.testing.assert_array_equal(codes.entries & (1 << CODE_BIT) - 1, plan.indices)
    assert codes.table[codes.entries >> CODE_BIT].tobytes() == values.tobytes()
    assert codes.entries.max() >> CODE_BIT == 4 + len(rare) - 1
    assert len(codes.table) == MAX_VALUES


def test_matrices_of_many_values_or_columns_and_small_ones_are_left_as_they_are() -> None:
    rng = np.random.default_rng(2)
    ones = np.ones(LEAST)
    assert encode(plan_of(rng.random(LEAST)), LEAST, 3, no_kernel) is None
    assert encode(plan_of(np.arange(LEAST) % (MAX_VALUES + 1.0)), LEAST, 3, no_kernel) is None
    assert encode(plan_of(ones), (1 << CODE_BIT) + 1, 3, no_kernel) is None
    assert encode(plan_of(ones, "int64"), LEAST, 3, no_kernel) is None
    assert encode(plan_of(ones[1:]), LEAST, 3, no_kernel) is None
