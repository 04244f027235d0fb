"""Sparse products to measure: what is called, on what, in which order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec import BlockVector
from blockvec.backends import backend_for
from blockvec.bench import measure_case
from blockvec.kernels.roofline import Ceilings
from tests.benchmarks.dense_products import Sizes
from tests.benchmarks.products import record_of
from tests.benchmarks.sparse_products import Table, sparse_cases

HOST = backend_for("cpu")
LIMITS = Ceilings(40.0, 20.0, 50.0, {"float32": 400.0, "float64": 200.0}, 100.0)
QUICK = Sizes(quick=True)


def flat(result: Any) -> list[np.ndarray]:
    """The arrays in a result: a block, or a block with dictionaries of sums."""
    if isinstance(result, BlockVector | np.ndarray):
        return [np.array(result)]
    block, *sums = result
    return [np.array(block), *(value for each in sums for value in each.values())]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_scipy_computes_the_same(dtype: str) -> None:
    table = Table(("rmat:scale=5",), (3,), (dtype,), ())
    (case,) = sparse_cases(["apply"], table, HOST, QUICK)
    ours, theirs = (flat(call())[0] for call in case.calls.values())
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("operation", ["apply_fused", "apply_gram"])
def test_separate_calls_compute_the_same(operation: str) -> None:
    table = Table(("laplace2d:n=9",), (4,), ("float64",), ())

    def result(name: str) -> list[np.ndarray]:
        (case,) = sparse_cases([operation], table, HOST, QUICK)  # anew: some change their operand
        assert case.problem.fused
        return flat(case.calls[name]())

    together, separate = result("blockvec"), result("separate")
    assert len(together) == len(separate) == 3
    for ours, theirs in zip(together, separate, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


class SmallCaches(Sizes):
    """Sizes for a device whose caches a mebibyte exceeds."""

    def footprint(self, backend: Any) -> int:
        return 1 << 20


def test_small_matrices_are_copied_until_they_exceed_the_caches() -> None:
    table = Table(("laplace1d:n=1000",), (4,), ("float64",), ())
    (case,) = sparse_cases(["apply"], table, HOST, SmallCaches())
    n_bytes = 2998 * 12 + 2 * 1000 * 4 * 8
    addresses = {case.calls["blockvec"]().array.ctypes.data for _ in range(50)}
    assert len(addresses) == -(-(1 << 20) // n_bytes)


def test_a_measured_case_has_both_fractions_and_what_is_fused() -> None:
    cases = list(sparse_cases(["apply", "apply_fused"], Table(("rmat:scale=5",), (4,)), HOST, QUICK))[:2]
    plain, fused = (measure_case(case, HOST, LIMITS, quick=True) for case in cases)
    assert list(record_of(plain)["peers"]) == ["scipy"]
    assert record_of(plain)["fraction_gather"] > 0
    assert list(record_of(fused)["peers"]) == ["plain", "separate"]
    assert record_of(fused)["dots"] == ["xy", "yy"]
    assert record_of(fused)["matrix"] == "rmat:scale=5"
    assert fused.line().split()[0] == "apply_fused"
