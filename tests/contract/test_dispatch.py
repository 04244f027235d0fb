"""Profiles, explanations and options: what ran, why, and that results repeat."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import blockvec
from blockvec import BlockVector, as_operator, models
from blockvec.backends import Candidate
from blockvec.kernels.problem import TsmttsmProblem
from blockvec.operations import dispatch
from tests.contract.blocks import DTYPES, host, on, values


@pytest.mark.usefixtures("known_ceilings")
def test_a_profile_records_every_operation_with_its_bytes(device: str) -> None:
    V = BlockVector.random(50000, 4, rng=0, device=device)
    W = V.copy()
    S = as_operator(on(device, np.eye(3)))
    with blockvec.profile() as p:
        V.dot(W)
        V.dot(W)
        V.gram()
        V.combine(on(device, np.eye(4)), out=W)
        V.axpy(1, W)
        V.norms()
        S @ BlockVector.zeros(3, 2, device=device)
    V.gram()  # not inside
    rows = {row["operation"]: row for row in p.rows()}
    assert {"tsmttsm", "gram", "tsmm", "axpby", "column_dot"} <= set(rows)
    assert (rows["tsmttsm"]["calls"], rows["gram"]["calls"]) == (2, 1)
    assert rows["tsmttsm"]["bytes_moved"] == 2 * (2 * V.nbytes + 4 * 4 * 8)
    assert rows["gram"]["bytes_moved"] == V.nbytes + 4 * 4 * 8
    assert rows["tsmm"]["bytes_moved"] == 2 * V.nbytes + 4 * 4 * 8
    for row in rows.values():
        assert row["device"] == V.device
        assert row["time_s"] > 0
        is_counted = row["operation"] != "product"  # a dense matrix is multiplied by a function
        assert (row["bandwidth_gb_s"] > 0) == (row["fraction"] > 0) == is_counted
    assert all(name in p.table() for name in rows)


def test_an_option_excludes_kernels_with_three_real_products() -> None:
    candidates = Candidate("three", print, three_m=True), Candidate("four", print)
    backend: Any = type("TwoKernels", (), {"candidates": lambda _self, _problem: candidates})()
    problem = TsmttsmProblem(1000, 64, 64, "complex128", "complex128", 64, 64)

    def chosen(**options: bool) -> str:
        with blockvec.option_context(**options):
            candidate = dispatch.preferred(problem, backend)
        return candidate.name if candidate else ""

    assert chosen() == "three"
    assert chosen(three_m=False) == "four"


@pytest.mark.usefixtures("known_ceilings")
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_explanation_names_the_kernel_that_then_runs(device: str, dtype: str) -> None:
    V = BlockVector.random(200000, 3, dtype, rng=0, device=device)
    C = on(device, np.eye(3, dtype=dtype))
    for operation, run in (("dot", lambda: V.dot(V)), ("combine", lambda: V.combine(C))):
        explanation = blockvec.explain(operation, V, V if operation == "dot" else C)
        with blockvec.profile() as p:
            run()
        (row,) = p.rows()
        assert explanation.kernel == row["kernel"]
        assert explanation.bytes_moved == row["bytes_moved"]
        assert explanation.time_limit_s > 0
        text = str(explanation)
        assert f"{explanation.kernel:20} chosen" in text
        assert V.device in text


@pytest.mark.usefixtures("known_ceilings")
def test_an_explanation_of_a_sparse_product_has_both_limits(device: str) -> None:
    A, V = as_operator(models.laplace1d(n=1000), device=device), BlockVector.zeros(1000, 4, device=device)
    explanation = blockvec.explain("apply", A, V)
    assert explanation.gather_time_s == pytest.approx(2998 * 4 * 8 / 20e9)
    assert "gathering" in str(explanation)
    assert blockvec.explain("dot", V, V).gather_time_s is None


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_repeat_bit_for_bit_for_a_fixed_thread_count(device: str, dtype: str, threads: int) -> None:
    rng = np.random.default_rng(2)
    A, c = values(rng, (50021, 6), dtype), values(rng, (6,), dtype)
    with blockvec.option_context(threads=threads):

        def everything() -> list[np.ndarray]:
            V = BlockVector(on(device, A))
            W = V.copy().axpy(on(device, c), V)
            return [host(x) for x in (V.gram(), V.T @ W, V @ V.gram(), W, V.norms(), V.column_dot(W))]

        first = everything()
        for _ in range(2):
            for result, expected in zip(everything(), first, strict=True):
                assert np.array_equal(result, expected)


def test_results_do_not_depend_on_other_threads_at_work(device: str) -> None:
    op = as_operator(models.laplace1d(n=30000), device=device)
    blocks = [BlockVector.random(30000, 5, rng=seed, device=device) for seed in range(4)]

    def sums(V: BlockVector) -> list[bytes]:
        results = ((V.gram(), op.apply(V, dots="xy").dots["xy"]) for _ in range(10))
        return [host(gram).tobytes() + host(dots).tobytes() for gram, dots in results]

    alone = [sums(V) for V in blocks]
    with ThreadPoolExecutor(len(blocks)) as pool:
        assert list(pool.map(sums, blocks)) == alone
