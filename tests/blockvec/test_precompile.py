"""Kernels are compiled ahead from lists of what earlier runs asked for; failures wait for the real run."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockvec
from blockvec import BlockVector, as_operator, models
from blockvec.backends import Candidate
from blockvec.kernels.device import H200, DeviceInfo
from blockvec.kernels.elementwise import AxpbyKernel, Factor, FoldKernel
from blockvec.kernels.inverse_factor import InverseFactorKernel
from blockvec.kernels.problem import SpmmvProblem, SweepProblem, TsmmProblem, TsmttsmProblem
from blockvec.kernels.requests import decode, encode, logged, note
from blockvec.precompile import Precompilation, shipped

A = as_operator(models.model("laplace2d:n=30"))
N = A.shape[0]
PRODUCT, MATRIX = A.sparse_product()
assert PRODUCT is not None


class Device:
    """A device that only notes what is prepared on it, and by whom."""

    name = "cuda:0"
    device: DeviceInfo = H200

    def __init__(self, happens: Callable[[], object] = lambda: None) -> None:
        self.prepared: list[Any] = []
        self.threads: set[str] = set()
        self.happens = happens

    def candidates(self, problem: Any) -> list[Candidate]:
        return [Candidate("only", lambda *_: None, prepare=self.prepare)]

    def load_kernel(self, kernel: Any) -> None:
        self.prepare(kernel)

    def prepare(self, *request: Any) -> None:
        self.threads.add(threading.current_thread().name)
        self.prepared.append(request)
        self.happens()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    with blockvec.option_context(cache_dir=tmp_path):
        yield tmp_path / "precompiled"


def run(device: Device, *requests: Any, method: str = "own", dtype: Any = None, **sizes: int) -> list[Any]:
    """Precompile a run and store what it asks for; return what was prepared."""
    precompilation = Precompilation(method, A, dtype, sizes, device)  # type: ignore[arg-type]
    wait(precompilation.start())
    precompilation.store(requests)
    return device.prepared


DOT = TsmttsmProblem(N, 12, 4, "float64", "float64", 24, 4, 16, 8)
SPARSE = SpmmvProblem(
    *(N, N, PRODUCT.nnz, 4, "float64", "float64", 24, 4),
    **{"pattern": PRODUCT.pattern, "longest": PRODUCT.longest, "dots": ("xy", "yy"), "align_x": 8},  # type: ignore[arg-type]
)
REQUESTS = (
    DOT,
    TsmmProblem(N, 12, 4, "complex128", "float64", 12, 4, 16, 16, "general", "one", True),
    SweepProblem("update_gram", N, 12, 4, "float64", "float64", "float64", 24, 4, 16, 8),
    SPARSE,
    AxpbyKernel("float64", None, "float64", Factor(False, "float64"), flat=False),
    FoldKernel("float64", "float64", 4, hermitian=True),
    InverseFactorKernel("float64"),
)


def test_products_are_prepared_for_the_matrix_of_a_run_not_for_that_of_an_earlier_one() -> None:
    entry = encode(SPARSE, N, PRODUCT)
    other = replace(PRODUCT, nnz=5, pattern="planes", coded=True)
    [found] = decode(entry, {"n": N}, "float64", other)
    assert isinstance(found, SpmmvProblem)
    assert (found.nnz, found.pattern, found.coded, found.width) == (5, "planes", True, SPARSE.width)


def test_what_a_run_asks_for_is_prepared_before_the_next_one(cache: Path) -> None:
    assert run(Device(), *REQUESTS) == []
    prepared = run(Device())
    assert [request for request, *_ in prepared] == list(REQUESTS)
    assert [operands for _, *operands in prepared] == [[MATRIX] if r is SPARSE else [] for r in REQUESTS]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: type(r).__name__)
def test_requests_come_back_from_their_entries_with_the_rows_of_the_run(request_: Any) -> None:
    entry = json.loads(json.dumps(encode(request_, N, PRODUCT)))
    assert list(decode(entry, {"n": N}, "float64", PRODUCT)) == [request_]
    if hasattr(request_, "K"):
        (other,) = decode(entry, {"n": 5 * N}, "float64", PRODUCT)
        assert other.K == 5 * N


def test_lists_are_those_of_a_method_its_types_and_its_sizes() -> None:
    run(Device(), DOT, b=4)
    assert len(run(Device(), b=4)) == 1
    assert run(Device(), b=5) == []
    assert run(Device(), b=4, dtype="complex128") == []
    assert run(Device(), b=4, method="another") == []


def test_only_news_are_written(cache: Path) -> None:
    run(Device(), DOT, SPARSE)
    (path,) = cache.iterdir()
    before = path.stat().st_mtime_ns, path.read_bytes()
    run(Device(), SPARSE)
    run(Device(), DOT)
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before
    run(Device(), REQUESTS[1])
    assert [request for request, *_ in run(Device())] == [DOT, SPARSE, REQUESTS[1]]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"entries": [["TsmttsmProblem", {}]]}',
        b'{"kind": null, "entries": 3}',
        b'{"kind":' * 100_000,
    ],
)
def test_damaged_and_foreign_lists_count_as_missing(content: bytes, cache: Path) -> None:
    run(Device(), DOT)
    (path,) = cache.iterdir()
    path.write_bytes(content)
    assert run(Device(), SPARSE) == []
    assert [request for request, *_ in run(Device())] == [SPARSE]


@pytest.mark.parametrize(
    "entry",
    [
        3,
        ["Path", {"K": 1}],
        ["TsmttsmProblem", {}],
        ["TsmttsmProblem", [1]],
        ["TsmmProblem", {"unknown": 1}],
        ["AxpbyKernel", {"dtype_x": "float64", "alpha": {"values": 1}}],
        ["AxpbyKernel", {"dtype_x": "float64", "alpha": {"is_complex": 1, "columns": []}}],
        ["TsmttsmProblem", {name: [[]] for name in encode(DOT, N, None)[1]}],  # type: ignore[index]
        ["TsmttsmProblem", encode(DOT, N, None)[1] | {"M": -3}],  # type: ignore[index]
        ["TsmttsmProblem", encode(DOT, N, None)[1] | {"M": 10**30, "lda": 10**30}],  # type: ignore[index]
        ["TsmttsmProblem", encode(DOT, N, None)[1] | {"M": True, "K": "9" * 5000}],  # type: ignore[index]
        ["TsmttsmProblem", encode(DOT, N, None)[1] | {"M": "0..n"}],  # type: ignore[index]
        ["TsmttsmProblem", encode(DOT, N, None)[1] | {"conj": "no"}],  # type: ignore[index]
        [["TsmttsmProblem"], {}],
        ["TsmttsmProblem", encode(DOT, N, None)[1] | {"M": "elsewhere+2b"}],  # type: ignore[index]
    ],
)
def test_damaged_entries_count_as_missing(entry: Any, cache: Path) -> None:
    run(Device(), DOT)
    (path,) = cache.iterdir()
    record = json.loads(path.read_bytes())
    del record["sha256"]
    record["entries"].insert(0, entry)
    path.write_text(json.dumps(record))
    assert [request for request, *_ in run(Device())] == [DOT]


def test_a_range_without_end_is_cut() -> None:
    entry = ["TsmttsmProblem", encode(DOT, N, None)[1] | {"M": "1b..999999999999b", "lda": 10**12}]  # type: ignore[index]
    assert len(list(decode(entry, {"n": N, "b": 1}, "float64", None))) == 1000


def test_a_list_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockvec.precompile.MAX_ENTRIES", 3)
    run(Device(), *REQUESTS)
    run(Device(), *reversed(REQUESTS))
    assert [request for request, *_ in run(Device())] == list(REQUESTS[:3])


def test_other_threads_prepare_and_a_failure_waits_for_the_run() -> None:
    def fail() -> None:
        raise RuntimeError("it would not compile")

    run(Device(), DOT)
    device = Device(fail)
    assert len(run(device, DOT)) == 1
    assert all(name.startswith("blockvec-precompile") for name in device.threads)


def test_options_in_force_reach_the_threads(tmp_path: Path) -> None:
    found: list[Any] = []
    run(Device(), DOT)
    run(Device(lambda: found.append(blockvec.options().cache_dir)))
    assert found == [tmp_path]


def test_sizes_by_name_ranges_and_offsets_fit_another_run() -> None:
    entry = [
        "TsmttsmProblem",
        {"K": "n", "M": "1b..capacity-1b", "N": "b", "dtype_a": "T", "dtype_b": "R", "conj": True}
        | {"lda": "capacity", "ldb": "2b+keep", "offset_a": "0", "offset_b": "1b"},
    ]
    sizes = {"n": 100, "b": 3, "capacity": 12, "keep": 4}
    found = list(decode(entry, sizes, "complex64", None))
    assert [problem.M for problem in found] == [3, 6, 9]  # type: ignore[union-attr]
    assert found[0] == TsmttsmProblem(100, 3, 3, "complex64", "float32", 12, 10, 16, 4, True)
    (real,) = decode([entry[0], entry[1] | {"M": "b"}], sizes, "float64", None)  # type: ignore[operator]
    assert real == TsmttsmProblem(100, 3, 3, "float64", "float64", 12, 10, 16, 8, False)
    assert not list(decode(entry, sizes | {"capacity": 2}, "float64", None))


def test_products_with_other_matrices_are_not_stored() -> None:
    other, _ = as_operator(models.model("laplace1d:n=900")).sparse_product()
    assert encode(other, N, PRODUCT) is None
    assert encode(PRODUCT, N, None) is None
    assert encode(object(), N, PRODUCT) is None


def test_operations_are_logged_inside_the_context_only() -> None:
    V = BlockVector.random(N, 4, rng=0)
    V.gram()
    with logged() as log:
        A.apply(V, dots="xy")
        V.gram()
    V.norms()
    note(DOT)
    assert [type(request) for request in log.values()] == [SpmmvProblem, TsmttsmProblem]


def test_on_the_host_nothing_is_stored_and_results_are_the_same(cache: Path) -> None:
    V = BlockVector.random(N, 4, rng=0)
    expected = V.gram()
    with blockvec.precompiled("own", A, b=4):
        assert np.array_equal(V.gram(), expected)
    assert not cache.exists()


def test_an_operator_without_a_matrix_is_not_called() -> None:
    def refuse(X: Any) -> Any:
        raise AssertionError("called")

    function = as_operator(refuse, shape=(N, N))
    precompilation = Precompilation("own", function, None, {}, Device())  # type: ignore[arg-type]
    precompilation.store([DOT, SPARSE])
    assert precompilation.requests([encode(DOT, N, None), encode(SPARSE, N, PRODUCT)]) == [DOT]  # type: ignore[list-item]


def test_there_is_no_list_for_methods_that_are_not_known() -> None:
    assert not shipped("own", "float64")
