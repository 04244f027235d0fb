"""Sparse products to measure: what is called, on what, in which order."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io

from blockvec import BlockVector
from blockvec.backends import backend_for
from blockvec.bench import measure_case
from blockvec.errors import OptionError
from blockvec.kernels.device import H200
from blockvec.kernels.families import CSR
from blockvec.kernels.family import choose
from blockvec.kernels.roofline import Ceilings
from blockvec.models import generator
from tests.benchmarks import sparse_products as sparse
from tests.benchmarks.dense_products import Sizes
from tests.benchmarks.products import record_of
from tests.benchmarks.sparse_products import GPU_TABLE, HOST_TABLE, OPERATIONS, Table, sparse_cases

HOST = backend_for("cpu")
LIMITS = Ceilings(40.0, 20.0, 50.0, {"float32": 400.0, "float64": 200.0}, 100.0)
QUICK = Sizes(quick=True)
TABLE = Table(("laplace2d:n=9", "rmat:scale=5", "xxz:sites=6,up=3"), (1, 4), ("float64",), ("complex64",))


def flat(result: Any) -> list[np.ndarray]:
    """The arrays in a result: a block, or a block with dictionaries of sums."""
    if isinstance(result, BlockVector | np.ndarray):
        return [np.array(result)]
    block, *sums = result
    return [np.array(block), *(value for each in sums for value in each.values())]


def test_all_matrices_are_run_in_the_first_types_and_two_of_them_in_the_others() -> None:
    cases = list(sparse_cases(OPERATIONS, TABLE, HOST, QUICK))
    found = [(case.operation, case.problem.dtype, case.matrix, case.problem.width) for case in cases]
    plain = [entry for entry in found if entry[0] == "apply"]
    assert plain == [
        ("apply", dtype, matrix, width)
        for dtype, matrices in (("float64", TABLE.matrices), ("complex64", TABLE.matrices[:2]))
        for matrix in matrices
        for width in (1, 4)
    ]
    others = [entry for entry in found if entry[0] != "apply"]
    assert others == [
        (operation, "float64", matrix, 4)
        for matrix in TABLE.matrices
        for operation in ("apply_fused", "apply_gram")
    ]


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


@pytest.mark.parametrize("table", [GPU_TABLE, HOST_TABLE])
def test_the_matrices_of_the_tables_exist_and_are_large(table: Table) -> None:
    assert len(table.matrices) == 7
    for name in table.matrices:
        assert generator(name).n_rows > (10**6 if table is GPU_TABLE else 6 * 10**4)


def test_kernels_are_compiled_for_the_products_that_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled = []

    def build(source: str, architecture: str, *, cache_dir: Path) -> None:
        assert (architecture, cache_dir) == (H200.architecture, tmp_path)
        compiled.append(source)

    monkeypatch.setattr(sparse, "machine_code", build)
    table = Table(("laplace2d:n=9", "laplace2d:n=8", "rmat:scale=5"), (1, 4), ("float64",), ("complex64",))
    first, *_, last = table.matrices
    A = sparse._make(first, table, H200, tmp_path)
    assert A.shape == (81, 81)
    for case in sparse_cases(OPERATIONS, dataclasses.replace(table, matrices=(first,)), HOST, QUICK):
        sources = CSR.sources(case.problem, choose(CSR, case.problem, H200), H200)
        assert sources
        assert set(sources) <= set(compiled)
    compiled.clear()
    sparse._make(last, table, H200, tmp_path)
    assert len(compiled) == 2 + 1 + 2 + 2  # widths, a plain update, and two kinds of sums


def test_dense_matrices_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "dense.mtx"
    scipy.io.mmwrite(path, np.eye(3))
    with pytest.raises(OptionError, match="apply is measured on sparse matrices"):
        list(sparse_cases(["apply"], Table((str(path),), (1,)), HOST, QUICK))
