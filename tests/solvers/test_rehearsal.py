"""Products that a solver rehearses are those that it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import solvers.block_lanczos
from blockvec import dispatch, models, rehearsing
from solvers import eigsh

FEW = 3  # the check for symmetry before, and a restart before its time


@pytest.mark.filterwarnings("ignore:invalid value")  # what a rehearsal returns holds anything
@pytest.mark.parametrize(("method", "k"), [("filter", 5), ("filter", 10), ("filter", 20), ("lanczos", 10)])
def test_all_products_of_a_run_but_a_few_are_rehearsed(
    method: Any, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed, run = set(), set()
    true = dispatch.run

    def watched(problem: Any, backend: Any, *operands: Any) -> None:
        (rehearsed if rehearsing() else run).add(problem)
        true(problem, backend, *operands)

    def rehearse(self: Any) -> None:
        with solvers.block_lanczos.rehearsal():
            self._rehearse()

    monkeypatch.setattr("blockvec.dispatch.run", watched)
    monkeypatch.setattr("solvers.block_lanczos.ThickRestart._rehearse_once", rehearse)
    A = models.model("laplace3d:n=14")
    result = eigsh(A, k, which="SA", method=method, rng=0, tol=1e-8, block_size=8, return_info=True)
    assert len(run - rehearsed) <= FEW
    assert len(rehearsed - run) <= len(run) / 4
    monkeypatch.undo()
    again = eigsh(A, k, which="SA", method=method, rng=0, tol=1e-8, block_size=8, return_info=True)
    assert np.array_equal(again.eigenvalues, result.eigenvalues)
    assert again.info["operator_columns"] == result.info["operator_columns"]
