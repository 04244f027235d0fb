"""Rehearsals make kernels ready and compute nothing."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import blockvec
from blockvec import BlockVector, dispatch
from blockvec import precompile as rehearsals


def test_operations_leave_their_operands_alone() -> None:
    V, W = BlockVector.random(100, 3, rng=0), BlockVector.random(100, 3, rng=1)
    before = V.array.copy(), W.array.copy()
    with blockvec.rehearsal():
        assert blockvec.rehearsing()
        C = V.dot(W)
        V.combine(C, out=W, alpha=-1, beta=1)
        W.axpy(2.0, V)
        assert V.norms().shape == (3,)
    assert not blockvec.rehearsing()
    assert np.array_equal(V.array, before[0])
    assert np.array_equal(W.array, before[1])


def test_kernels_are_made_ready_by_other_threads_and_a_failure_waits_for_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, Any]] = []
    done = threading.Event()
    true = dispatch.choose

    def prepare(problem: Any, *operands: Any) -> None:
        seen.append((threading.current_thread().name, problem))
        done.set()
        raise RuntimeError("it would not compile")

    def choose(problem: Any, backend: Any, *operands: Any) -> Any:
        return replace(true(problem, backend, *operands), prepare=prepare)

    monkeypatch.setattr(dispatch, "choose", choose)
    V = BlockVector.random(100, 3, rng=0)
    with blockvec.rehearsal():
        V.gram()
    assert done.wait(10)
    assert seen[0][0].startswith("blockvec-rehearsal")
    assert seen[0][1].operation == "gram"
    assert np.allclose(V.gram(), V.array.T @ V.array)


def test_options_in_force_reach_the_threads(tmp_path: Any) -> None:
    found: list[Any] = []
    done = threading.Event()

    def look() -> None:
        found.append(blockvec.options().cache_dir)
        done.set()

    with blockvec.option_context(cache_dir=tmp_path):
        rehearsals.prepare(look)
    assert done.wait(10)
    assert found == [tmp_path]
