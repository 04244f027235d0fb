"""Tuning on a GPU: winners are right, on record, and what dispatch then runs."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockvec
from blockvec import BlockVector, as_operator, models, products
from blockvec.backends import backend_for
from blockvec.backends.cuda import dense as generated
from blockvec.backends.cuda.tuning.sparse import SparseOperands
from blockvec.bench import tuning
from blockvec.kernels.families import CSR, FAMILIES
from blockvec.kernels.measure import measure_beside
from blockvec.kernels.tuning import winners
from blockvec.kernels.tuning.selection import Variant, variants
from tests.contract.blocks import host

pytestmark = pytest.mark.gpu
CASES = list(tuning.problems(["dot", "gram", "combine", "inplace"], ["float64", "complex64"], [(3, 3)]))
VIEWS = list(tuning.problems(["dot", "combine"], ["float64"], [(5, 4)], ld=13, beta=True))


@pytest.fixture
def backend() -> Any:
    return backend_for("gpu")


@pytest.mark.parametrize("problem", CASES + VIEWS, ids=str)
def test_a_winner_is_right_and_runs_from_then_on(problem: Any, backend: Any, tmp_path: Path) -> None:
    with blockvec.option_context(cache_dir=tmp_path):
        (result,) = tuning.tune_all([tuning.Todo(problem, 0.2, {"first": 2})], backend)
        assert not result.outcome.faults
        first = next(c for c in backend.candidates(result.problem) if not c.refusal)
        assert first.name == result.winner.kernel
        if result.winner.config is not None:
            assert "tuned on this" in first.configuration()


def test_a_wrong_kernel_is_noticed(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = CASES[0]
    (variant, *_) = variants(problem, backend.device, first=1)
    setup = backend.tuning_operands(problem)
    assert setup.check(variant) == ""
    launch = FAMILIES[variant.kernel].launch

    def lossy(problem: Any, *rest: Any) -> Any:
        return launch(dataclasses.replace(problem, K=problem.K - 1), *rest)

    monkeypatch.setattr(FAMILIES[variant.kernel], "launch", lossy)
    generated.load.cache_clear()
    assert setup.check(variant) == "differs from the reference"
    generated.load.cache_clear()


def test_the_first_product_tunes_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winners, "shipped_records", lambda _: {})  # what is on record is not tuned again
    V = BlockVector.random(1 << 20, 11, rng=1, device="gpu")
    with blockvec.option_context(cache_dir=tmp_path, tune="auto", tune_budget_s=0.1):
        G = V.gram()
        assert len(list((tmp_path / "tuned").rglob("*.json"))) == 1
    with blockvec.option_context(tune="model"):
        assert abs(host(G) - host(V.gram())).max() < 1e-6


def test_sparse_products_are_tuned_with_their_matrix(
    tmp_path: Path, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winners, "shipped_records", lambda _: {})  # what is on record is not tuned again
    S = as_operator(models.laplace3d(n=100), device="gpu")
    V = BlockVector.random(S.shape[1], 6, rng=1, device="gpu")
    problem, _ = S.explain(V)
    with blockvec.option_context(cache_dir=tmp_path, tune="auto", tune_budget_s=0.1):
        plain = host(S @ V)
        assert len(list((tmp_path / "tuned").rglob("spmmv-*.json"))) == 1
        assert "tuned on this" in blockvec.explain("apply", S, V).configuration
        assert not backend.can_tune(problem, S.prepared)
    with blockvec.option_context(tune="model"):
        assert abs(plain - host(S @ V)).max() < 1e-13


@pytest.mark.parametrize("sums", [{}, {"dots": ("yy",)}, {"gram": ("yy",)}], ids=["plain", "dots", "gram"])
def test_a_wrong_sparse_product_is_noticed(
    backend: Any, gpu: Any, monkeypatch: pytest.MonkeyPatch, sums: dict[str, Any]
) -> None:
    S = as_operator(models.laplace2d(n=300), device="gpu")
    plain, _ = S.explain(BlockVector.empty(S.shape[1], 3, device="gpu"))
    problem = dataclasses.replace(plain, **sums).kind
    setup = SparseOperands(gpu, problem, S.prepared, {}, backend.stopwatch)
    variant = Variant("spmmv_csr", CSR.choose(problem, backend.device), 1.0, 0)
    assert setup.check(variant) == ""
    bind = CSR.bind
    monkeypatch.setattr(
        CSR,
        "bind",
        lambda kernels, p, *rest: bind(kernels, dataclasses.replace(p, ldx=p.ldx - 1), *rest),
    )
    assert setup.check(variant) == "differs from the reference"


def test_what_cublas_would_run_is_captured_all_the_same(backend: Any) -> None:
    cupy = backend.xp
    A, B = (BlockVector.random(200000, 32, rng=i, device="gpu") for i in range(2))
    expected = host(A.dot(B))
    out = cupy.empty((32, 32))
    stream = cupy.cuda.Stream(non_blocking=True)
    problem = products.tsmttsm_problem(A.array, B.array, True)
    (cublas,) = (c for c in backend.candidates(problem) if c.name == "cublas")
    with stream:
        stream.begin_capture()
        cublas.run(problem, A.array, B.array, out, 1, 0)
        graph = stream.end_capture()
        out.fill(0)
        graph.launch(stream)
        stream.synchronize()
    assert np.allclose(host(out), expected, rtol=1e-12, atol=1e-9)


def test_a_busy_device_times_short_calls_and_not_their_host(backend: Any) -> None:
    cupy = backend.xp
    tiny = cupy.zeros(8)

    def call() -> None:
        time.sleep(1e-4)
        tiny.fill(1)

    # Without the hold each time has the wait in it, unless other processes keep the GPU busy.
    (held,) = measure_beside({"": call}, backend.stopwatch, before_burst=backend.block_stream).values()
    assert held.best_s < 5e-5
