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
from solvers.iterations.rayleigh_ritz import Tolerance
from solvers.problem import IterationOptions, Problem
from solvers.stages import drivers
from solvers.stages.window import SquaredTolerance, solve_window

CASES = {
    "a cluster of many copies": ("laplace3d:n=8", 6.0, 12),
    "a spectrum that is its own mirror image": ("graphene:nx=16,ny=20", 0.0, 9),
    "complex": ("hofstadter:nx=18,ny=18,p=1,q=3", 0.7, 6),
    "beyond an end": ("laplace2d:n=24", -1.0, 5),
}


def nearest(A: Any, sigma: float, k: int) -> np.ndarray:
    """Return the distances of the k nearest eigenvalues."""
    return np.sort(np.abs(np.linalg.eigvalsh(A.toarray()) - sigma))[:k]


def prepared(A: Any, k: int, sigma: float, tol: float = 1e-8) -> tuple[Problem, IterationOptions]:
    """Problem and options of `eigsh` with ``method="filter"``."""
    tolerance = Tolerance(tol, "norm", float(np.finfo(A.dtype).eps) / 2)
    source: dict[str, Any] = {"operator": as_operator(A), "rng": np.random.default_rng(0), "method": "filter"}
    return drivers.prepare(Problem(k=k, which="LM", target=sigma, tolerance=tolerance, **source))


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


def test_columns_are_those_of_the_matrix_itself() -> None:
    A = models.model("anderson:n=8,disorder=4")
    columns = 0

    def apply(X: np.ndarray) -> np.ndarray:
        nonlocal columns
        columns += X.shape[1]
        return np.ascontiguousarray(A @ X)

    result = eigsh(
        *(apply, 3),
        sigma=6.0,
        method="filter",
        tol=1e-8,
        rng=0,
        shape=A.shape,
        dtype=float,
        return_info=True,
        check_hermitian=False,
    )
    assert result.converged.all()
    np.testing.assert_allclose(np.sort(np.abs(result.eigenvalues - 6.0)), nearest(A, 6.0, 3), atol=1e-9)
    assert result.info["operator_columns"] == columns


def test_other_ends_of_the_shifted_spectrum_are_refused() -> None:
    with pytest.raises(OptionError, match=r"which: got 'SA' with sigma; method 'filter' has 'LM' only"):
        eigsh(models.model("laplace1d:n=9"), 2, sigma=1.0, which="SA", method="filter")


def test_a_residual_of_the_square_may_be_larger_by_the_distance_it_reaches() -> None:
    tolerance = SquaredTolerance(1e-3, "absolute", 1e-16, sigma=2.0, share=0.5)
    np.testing.assert_allclose(tolerance.limits(np.array([0.01, 0.25]), 9.0), 0.5 * 1e-3 * 0.5)
    floor = tolerance.limits(np.array([0.0]), 9.0)  # where it reaches nowhere, rounding is what is left
    np.testing.assert_allclose(floor, 100 * 1e-16 * 9.0)


def test_a_second_round_goes_on_from_vectors_that_are_not_good_enough() -> None:
    A = models.model("anderson:n=8,disorder=4")
    problems: list[Any] = []
    rounds: list[Any] = []

    def roughly(problem: Any, options: Any) -> Any:
        problems.append(problem)
        found = drivers.solve_iteratively(problem, options)
        rounds.append(found)
        if len(rounds) > 1:
            return found
        noise = np.random.default_rng(1).standard_normal(found.eigenvectors.shape) * 1e-5
        return replace(found, eigenvectors=np.linalg.qr(found.eigenvectors + noise)[0])

    result = solve_window(*prepared(A, 4, 0.3), roughly)
    assert len(rounds) == 2
    assert result.converged.all()
    np.testing.assert_allclose(np.sort(np.abs(result.eigenvalues - 0.3)), nearest(A, 0.3, 4), atol=1e-10)
    assert problems[1].k > problems[0].k
    assert problems[1].tolerance.share < problems[0].tolerance.share
    assert problems[1].start is not None
    assert problems[1].verify == "never"
    assert result.info["verification"] == rounds[0].info["verification"]
    columns = [found.info["operator_columns"] for found in rounds]
    assert result.info["operator_columns"] > 2 * sum(columns)
    assert len(result.history) == sum(len(found.history) for found in rounds)


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
