"""Joins of the stages of a solve."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg as sl
import scipy.sparse as sp

from blockvec import models
from solvers import EigenResult, eigsh
from solvers.iterations.rayleigh_ritz import Selection, select
from solvers.stages.combine import lacks, one_after_other
from solvers.transform import solution
from solvers.transform.spectral_map import SpectralMap

SELECTIONS: tuple[Selection, ...] = ("LM", "LA", "SA", "BE")
MAPS = (None, SpectralMap(0.3), SpectralMap(0.3, "cayley"), SpectralMap(0.3, "buckling"))


@pytest.fixture(scope="module")
def some_result() -> EigenResult:
    """Return a result whose `info` others take over."""
    return eigsh(models.model("laplace1d:n=40"), 2, which="SA", rng=0, return_info=True)


def result_of(like: EigenResult, values: Any, converged: Any) -> EigenResult:
    limits = np.full(len(values), 1e-12)
    residuals = np.where(converged, 0.1, 1e9) * limits
    vectors = np.eye(50)[:, : len(values)]
    pairs = np.asarray(values), vectors, residuals, limits
    return EigenResult.from_pairs(*pairs, like.verification, like.info)


def is_among(values: Any, others: Any) -> bool:
    """Check that each value, counted with its copies, is one of others."""
    return not Counter(values) - Counter(others)


@pytest.mark.parametrize("which", SELECTIONS)
@pytest.mark.parametrize("map", MAPS)
def test_joined_stages_keep_every_settled_pair_that_is_wanted(
    which: Selection, map: SpectralMap | None, some_result: EigenResult
) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        spectrum = np.sort(rng.uniform(-1, 1, 20))
        spectrum[rng.integers(1, 20)] = spectrum[0]  # a copy
        seen = spectrum if map is None else map.transformed(spectrum)
        k = int(rng.integers(2, 8))
        order = select(seen, which)
        wanted = np.sort(spectrum[order[:k]])
        settled = rng.random(k) < 0.5
        first = result_of(some_result, np.where(settled, wanted, wanted + 0.01), settled)
        missed = rng.random(k) < rng.choice([0.0, 0.2])  # by the later stage, which has the next ones instead
        found = np.delete(order, np.flatnonzero(missed))[:k]
        later = result_of(some_result, np.sort(spectrum[found]), np.ones(k, bool))
        joined = one_after_other(first, later, which, map)
        assert is_among(wanted[settled].tolist(), joined.eigenvalues.tolist())
        if not missed.any():
            np.testing.assert_array_equal(joined.eigenvalues, wanted)
            assert joined.converged.all()
        columns = first.info["operator_columns"] + later.info["operator_columns"]
        assert joined.info["operator_columns"] == columns


def test_values_that_moved_within_their_errors_are_not_lost(some_result: EigenResult) -> None:
    values = np.array([1.0, 1.0, 2.0])
    first = result_of(some_result, values + 5e-13, np.ones(3, bool))
    assert not lacks(result_of(some_result, values, np.ones(3, bool)), first, "LA")
    assert lacks(result_of(some_result, values - 1e-11, np.ones(3, bool)), first, "LA")


def test_a_polished_result_without_a_settled_pair_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    polished, calls = solution._polished, 0

    def without_one(inner: EigenResult, inside: Any) -> EigenResult:
        nonlocal calls
        calls += 1
        result = polished(inner, inside)
        locked = result.eigenvectors[:, -1:]  # the value nearest to the shift
        other = replace(inside, locked=inside.blocks(locked), start=None, verify="never", method="lanczos")
        return solution.solve(other)

    A = models.model("laplace2d:n=24")
    M = sp.diags_array(np.linspace(1, 2, A.shape[0]), format="csr")
    values = sl.eigh(A.toarray(), M.toarray(), eigvals_only=True)
    sigma = float(values[0]) * (1 - 1e-9)
    monkeypatch.setattr(solution, "_polished", without_one)
    monkeypatch.setattr(solution, "solve_around", lambda form, inside: solution.solve(inside))
    result = eigsh(A, 4, M=M, sigma=sigma, rng=0, return_info=True, on_unconverged="return")
    assert calls
    settled = result.eigenvalues[result.converged]
    np.testing.assert_allclose(settled, values[: len(settled)], rtol=1e-9)
    assert abs(result.eigenvalues[0] - values[0]) < 1e-9
