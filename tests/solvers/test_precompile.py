"""Products that a solver rehearses are those that it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec import dispatch, models, rehearsal, rehearsing
from solvers import eigsh
from solvers.iterations.search_space import PADDING, SearchSpace

FEW = 3  # the check for symmetry before, and a restart before its time


def rehearse(iteration: Any, *_: Any) -> None:
    """What is done before the first run of a kind on a GPU."""
    with rehearsal():
        iteration._rehearse()


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

    monkeypatch.setattr("blockvec.dispatch.run", watched)
    monkeypatch.setattr("solvers.iterations.base.Iteration._rehearse_once", rehearse)
    A = models.model("laplace3d:n=14")
    result = eigsh(A, k, which="SA", method=method, rng=0, tol=1e-8, block_size=8, return_info=True)
    assert len(run - rehearsed) <= FEW
    assert len(rehearsed - run) <= len(run) / 4
    monkeypatch.undo()
    again = eigsh(A, k, which="SA", method=method, rng=0, tol=1e-8, block_size=8, return_info=True)
    assert np.array_equal(again.eigenvalues, result.eigenvalues)
    assert again.info["operator_columns"] == result.info["operator_columns"]


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("k", [5, 20])
def test_all_products_of_jacobi_davidson_but_a_few_are_rehearsed(
    k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed, run = set(), set()
    true, space = dispatch.run, SearchSpace.__init__

    def watched(problem: Any, backend: Any, *operands: Any) -> None:
        (rehearsed if rehearsing() else run).add(problem)
        true(problem, backend, *operands)

    def padded(self: Any, *arguments: Any) -> None:
        space(self, *arguments, padding=PADDING)

    monkeypatch.setattr("blockvec.dispatch.run", watched)
    monkeypatch.setattr(SearchSpace, "__init__", padded)
    monkeypatch.setattr("solvers.iterations.base.Iteration._rehearse_once", rehearse)
    A = models.model("laplace3d:n=14")
    exact = models.spectra.laplace_eigenvalues([14] * 3)[:k]
    options = {"which": "SA", "tol": 1e-8, "block_size": 4, "verify": "never", "check_hermitian": False}
    w = eigsh(A, k, method="jd", rng=0, return_eigenvectors=False, **options)
    assert np.allclose(w, exact)
    assert len(run - rehearsed) <= FEW
    assert len(rehearsed - run) <= FEW
