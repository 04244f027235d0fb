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
from solvers.stages import drivers

CASES = {
    "a cluster of many copies": ("laplace3d:n=8", 6.0, 12),
    "a spectrum that is its own mirror image": ("graphene:nx=16,ny=20", 0.0, 9),
    "complex": ("hofstadter:nx=18,ny=18,p=1,q=3", 0.7, 6),
    "beyond an end": ("laplace2d:n=24", -1.0, 5),
}


def nearest(A: Any, sigma: float, k: int) -> np.ndarray:
    """Return the distances of the k nearest eigenvalues."""
    return np.sort(np.abs(np.linalg.eigvalsh(A.toarray()) - sigma))[:k]


@pytest.mark.parametrize("tol", [0.0, 1e-6])
@pytest.mark.parametrize("case", CASES)
def test_the_nearest_values_are_found_with_their_copies(case: str, tol: float) -> None:
    name, sigma, k = CASES[case]
    A = models.model(name)
    result = eigsh(A, k, sigma=sigma, method="filter", tol=tol, convergence="norm", rng=0, return_info=True)
    w, V = result.eigenvalues, result.eigenvectors
    assert result.converged.all()
    assert (np.diff(w) >= 0).all()
    np.testing.assert_allclose(
        np.sort(np.abs(w - sigma)), nearest(A, sigma, k), atol=1e-12 if tol == 0 else 1e-9
    )
    residuals = np.linalg.norm(A @ V - V * w, axis=0)
    np.testing.assert_allclose(residuals, result.residuals, atol=1e-13)
    assert (residuals <= result.limits).all()
    assert np.abs(V.conj().T @ V - np.eye(k)).max() < 1e-13
    assert result.info["operator_columns"] > 2 * result.info["verification_columns"]


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
    solve = drivers.solve_iteratively

    def stuck(part: Any, options: Any) -> Any:
        if options.method != "jd":
            return solve(part, options)
        return solve(part, replace(options, maxiter=1)).with_info(stopped="stagnated")

    monkeypatch.setattr(drivers, "solve_iteratively", stuck)
    monkeypatch.setitem(costs.DENSE_ROWS, ("host", "inside"), (0, 0))
    monkeypatch.setattr(costs, "FEW_ROWS", 0)
    A = models.model("anderson:n=8,disorder=4")
    options: dict[str, Any] = {"tol": 1e-9, "rng": 0, "return_info": True}
    function = as_operator(lambda X: A @ X, shape=A.shape, dtype=A.dtype)
    result = eigsh(function, 4, sigma=6.0, **options)  # which is not factorised
    assert result.converged.all()
    assert result.info["method"] == "filter"
    assert "stagnated" in result.info["why"]
    np.testing.assert_allclose(np.sort(np.abs(result.eigenvalues - 6.0)), nearest(A, 6.0, 4), atol=1e-9)
    columns = [state.operator_columns for state in result.history]
    assert columns == sorted(columns)
    assert result.info["operator_columns"] >= columns[-1]
    asked = eigsh(as_operator(A), 4, sigma=6.0, method="jd", on_unconverged="return", **options)
    assert asked.info["stopped"] == "stagnated"  # who asks for a method gets it
