"""The work of a factorisation, predicted from the graph of a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import Factorization, as_operator, factorize
from blockvec.models import model
from solvers import EigenResult, eigsh
from solvers.factorization.inertia import proof
from solvers.factorization.work import FactorWork
from solvers.problem import Problem, Tolerance
from solvers.stages import shift_invert
from solvers.transform import solution
from tests.solvers.answers import answered


def stored_by_one_factor(A: Any) -> float:
    entries = factorize(A, sigma=-1e3).entries
    return entries / 2 if Factorization.library() == "SuperLU" else entries


@pytest.mark.parametrize(
    "name",
    [
        "laplace1d:n=3000",
        "laplace2d:nx=90,ny=70",
        "laplace2d:nx=900,ny=8",
        "laplace3d:n=20",
        "xxz:sites=14,up=7",
    ],
)
def test_elements_are_predicted_to_a_factor_of_four(name: str) -> None:
    A = model(name)
    stored = stored_by_one_factor(A)
    assert stored / 4 < FactorWork.of(A).entries < 4 * stored


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_factors_of_a_matrix_with_values_far_out_are_near_the_others(
    sign: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solvers.sizes.outpaced", lambda *_: lambda calls, expected: calls > 500)
    rng = np.random.default_rng(0)
    values = np.sort(sign * np.r_[np.linspace(2, 40, 40) ** 1.5, rng.uniform(0, 1, 6_000)])
    which = "LA" if sign > 0 else "SA"
    info = answered(sp.diags_array(values, format="csr"), 70, exact=values, which=which).info
    assert info["method"] == "shift-invert"
    assert "values further out were computed" in info["why"]
    assert "proved by inertia" in info["verification"]
    assert info["operator_columns"] < 6000


def test_values_far_out_that_converge_from_a_shift_are_left_out_there() -> None:
    rng, n = np.random.default_rng(0), 40
    scale = sp.diags_array(np.exp(2 * rng.standard_normal(n * n)))
    far = sp.diags_array(np.r_[-1e3, -2e3, -3e3, np.zeros(n * n - 3)])
    A = sp.csr_array(scale @ model(f"laplace2d:n={n}") @ scale + far)
    result = answered(A, 8, which="SA")
    assert "once 3 values further out were computed" in result.info["why"]
    assert "proved by inertia" in result.info["verification"]
    assert result.info["operator_columns"] < 3000


@pytest.mark.parametrize("which", ["SA", "LA"])
def test_values_are_not_left_out_while_copies_of_them_are_missing(which: str) -> None:
    sign = 1 if which == "SA" else -1
    values = sign * np.r_[np.zeros(50), 5.0, 5.0, 6.0, np.arange(10.0, 300.0)]
    A = sp.diags_array(values, format="csr")
    done = eigsh(A, 12, which=which, rng=0, return_info=True)
    vectors = np.eye(len(values))[:, [0, 1, 2, 50, 51, 52] if sign > 0 else [52, 51, 50, 2, 1, 0]].copy("C")
    theta, limits = (vectors * values[:, None]).sum(axis=0), np.full(6, 1e-12)
    first = EigenResult.from_pairs(theta, vectors, np.zeros(6), limits, done.verification, done.info)
    problem = Problem(
        operator=as_operator(A),
        k=6,
        which=which,  # type: ignore[arg-type]
        tolerance=Tolerance(1e-10, "norm", 1e-16),
        rng=np.random.default_rng(0),
    )

    # Three zeros and a five would be left out, but there are more of them beyond the shift.
    assert shift_invert._beyond_outliers(first, A, problem, Factorization(A)) is None


@pytest.mark.parametrize("missing", [1, None])
def test_copies_are_searched_for_where_the_inertia_proves_nothing(
    missing: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = []

    def refuted(*arguments: Any) -> tuple[str, int | None]:
        outcomes.append(proof(*arguments))
        return ("refuted", missing) if len(outcomes) == 1 else outcomes[-1]

    monkeypatch.setattr(solution, "proof", refuted)
    scale = sp.diags_array(np.exp(3 * np.random.default_rng(0).standard_normal(900)))
    A = sp.csr_array(scale @ model("laplace2d:n=30") @ scale)
    A = sp.csr_array(sp.kron(A, sp.eye_array(2)))  # every value twice
    info = answered(A, 6, which="SA").info
    assert outcomes[0][1] == 0
    assert info["method"] == "shift-invert"
    assert info["verification_columns"] > 0
    assert info["missing"] == 0
    assert info["verification"].startswith("proved")
