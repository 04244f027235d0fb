"""Eigenvalues inside a spectrum by a filter: the nearest ones, with all copies, to the residual asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import as_operator, models
from blockvec.errors import OptionError
from solvers import costs, eigsh
from solvers.stages import run
from tests.solvers.answers import answered, solve

CASES = {
    "a cluster of many copies": ("laplace3d:n=8", 6.0, 12),
    "a spectrum that is its own mirror image": ("graphene:nx=16,ny=20", 0.0, 9),
    "complex": ("hofstadter:nx=18,ny=18,p=1,q=3", 0.7, 6),
    "beyond an end": ("laplace2d:n=24", -1.0, 5),
}


@pytest.mark.parametrize("tol", [0.0, 1e-6])
@pytest.mark.parametrize("case", CASES)
def test_the_nearest_values_are_found_with_their_copies(case: str, tol: float) -> None:
    name, sigma, k = CASES[case]
    A = models.model(name)
    info = answered(A, k, sigma=sigma, method="filter", tol=tol, convergence="norm", loss=1e-13).info
    assert info["operator_columns"] > 2 * info["verification_columns"]


def test_the_window_lies_in_the_complement_of_given_columns() -> None:
    values = np.linspace(-3, 4, 800)
    A = sp.diags_array(values, format="csr")
    hidden = np.eye(800)[:, 400:403]
    w, V = eigsh(A, 4, sigma=values[401], method="filter", orthogonal_to=hidden, rng=0)
    np.testing.assert_allclose(w, values[[398, 399, 403, 404]], atol=1e-12)
    assert np.abs(hidden.T @ V).max() < 1e-13


def test_other_ends_of_the_shifted_spectrum_are_refused() -> None:
    with pytest.raises(OptionError, match=r"which: got 'SA' with sigma; method 'filter' has 'LM' only"):
        eigsh(models.model("laplace1d:n=9"), 2, sigma=1.0, which="SA", method="filter")


def test_where_corrections_stagnate_a_filter_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    iterate = run.solve_iteratively

    def stuck(part: Any, options: Any) -> Any:
        if options.method != "jd":
            return iterate(part, options)
        return iterate(part, replace(options, maxiter=1)).with_info(stopped="stagnated")

    monkeypatch.setattr(run, "solve_iteratively", stuck)
    monkeypatch.setitem(costs.DENSE_ROWS, "inside", ((0, 0), (0, 0)))
    monkeypatch.setattr(costs, "FEW_ROWS", 0)
    A = models.model("anderson:n=8,disorder=4")
    function = as_operator(lambda X: A @ X, shape=A.shape, dtype=A.dtype)  # which is not factorised
    result = answered(A, 4, apply_to=function, sigma=6.0, tol=1e-9)
    assert result.info["method"] == "filter"
    assert "stagnated" in result.info["why"]
    columns = [state.operator_columns for state in result.history]
    assert columns == sorted(columns)
    assert result.info["operator_columns"] >= columns[-1]
    asked = solve(as_operator(A), 4, sigma=6.0, method="jd", on_unconverged="return", tol=1e-9)
    assert asked.info["stopped"] == "stagnated"  # who asks for a method gets it
