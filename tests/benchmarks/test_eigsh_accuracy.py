"""The table of accuracy: its judgement, and a quick part of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.eigsh_accuracy import (
    Case,
    every_k,
    judge,
    line,
    pairs,
    real_matrices,
    record,
    refusals,
    solve,
    zoo,
)


def test_what_is_wrong_is_called_wrong() -> None:
    values = np.array([0.0, 1.0, 1.0, 3.0])
    case = Case("diagonal", np.diag(values), None, values)
    result, _ = solve(case, 3, "SA", {})
    assert judge(case, result, values[:3])["right"]
    assert not judge(case, result, np.array([0.0, 1.0, 3.0]))["right"]  # a copy too many
    assert not judge(case, result, values[:2])["right"]
    off = replace(result, eigenvalues=result.eigenvalues + 1e-10)
    assert not judge(case, off, values[:3])["right"]
    slanted = result.eigenvectors.copy()
    slanted[:, 0] += 1e-12 * slanted[:, 1]
    assert not judge(case, replace(result, eigenvectors=slanted), values[:3])["right"]
    assert not judge(case, replace(result, info=result.info | {"missing": 1}), values[:3])["right"]
    assert not record(case, 9, "SA")["right"]


@pytest.mark.parametrize("name", ["bcsstk03", "lund_a", "elast_A"])
def test_both_ends_of_real_matrices_are_right(name: str, matrices: Path) -> None:
    records = list(real_matrices(matrices, (name,)))
    assert len(records) == 9
    assert [line(one) for one in records if not one["right"]] == []


def test_a_pair_is_right_by_every_way(matrices: Path) -> None:
    records = list(pairs(matrices, ("elast_A elast_B",)))
    assert [line(one) for one in records if not one["right"]] == []


@pytest.mark.parametrize("which", ["SA", pytest.param("BE", marks=pytest.mark.slow)])
def test_every_k_of_degenerate_matrices_is_right(which: str) -> None:
    for case in zoo(16):
        for method in ("lanczos", "filter", "jd"):
            one = every_k(case, which, method)
            assert one["right"], line(one)


def test_what_must_be_refused_is(matrices: Path) -> None:
    for one in refusals(matrices):
        assert one["right"]
        assert "refused" in line(one)
