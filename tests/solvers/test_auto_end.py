"""Values nearest to a number beside the spectrum, found as those of an end without factors."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from blockvec.models import model
from solvers import eigsh
from solvers.stages import end
from tests.benchmarks.eigsh_easy import laplacian, power_law_graph, regular_graph
from tests.matrices import orthonormal
from tests.solvers.answers import answered, eigenvalues, solve

NEAREST = {"which": "SM"}, {"sigma": 0.0}


def random_graph(n: int = 1500, degree: int = 6, seed: int = 0) -> Any:
    return laplacian(regular_graph(np.random.default_rng(seed), n, degree))


def counted(A: Any) -> tuple[Any, list[int]]:
    """Make a function that notes the columns that it is applied to."""
    columns: list[int] = []

    def apply(X: Any) -> Any:
        columns.append(X.shape[1])
        return A @ X

    return apply, columns


def see_one_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let looks see values above zero only."""
    sketch_of = end.sketch_of

    def one_side(operator: Any, steps: int) -> Any:
        seen = sketch_of(operator, steps)
        return replace(seen, theta=np.abs(seen.theta) + 0.1)

    monkeypatch.setattr(end, "sketch_of", one_side)


@pytest.fixture(name="no_factors")
def _no_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a factorisation")

    monkeypatch.setattr("solvers.transform.standard_form.Factorization", refuse)


@pytest.mark.usefixtures("no_factors")
@pytest.mark.parametrize(
    ("asked", "dtype"),
    list(zip(itertools.cycle(NEAREST), (np.float32, np.float64, np.complex64, np.complex128), strict=False)),
)
def test_the_smallest_values_of_a_random_graph_need_no_factors(asked: dict[str, Any], dtype: Any) -> None:
    result = answered(random_graph().astype(dtype), 6, atol=1e-14, **asked)
    assert "no value below 0, the nearest are the lowest" in result.info["why"]


@pytest.mark.usefixtures("no_factors")
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 99), sign=st.sampled_from([1.0, -1.0]), distance=st.floats(1e-6, 30.0))
def test_values_nearest_to_a_number_on_either_side_are_those_of_that_end(
    seed: int, sign: float, distance: float
) -> None:
    result = answered(sign * random_graph(800, seed=seed), 5, sigma=-sign * distance, atol=1e-13)
    assert f"the nearest are the {'lowest' if sign > 0 else 'highest'}" in result.info["why"]


@pytest.mark.usefixtures("no_factors")
def test_as_many_zeros_are_found_as_a_graph_has_components() -> None:
    A = sp.block_diag([random_graph(n, seed=n) for n in (300, 400, 500, 600)], format="csr")
    result = answered(A, 6, which="SM", atol=1e-13)
    assert (np.abs(result.eigenvalues) < 1e-12).sum() == 4


@pytest.mark.usefixtures("no_factors")
@pytest.mark.parametrize(("n", "seed"), [(2378, 357), (2094, 349)])
def test_zeros_of_vectors_that_are_not_quite_orthogonal_are_not_beyond_zero(n: int, seed: int) -> None:
    A = laplacian(power_law_graph(np.random.default_rng(seed), n))
    result = answered(A, 5, which="SM", tol=1e-8, convergence="norm")
    assert "the nearest are the lowest" in result.info["why"]


@pytest.mark.parametrize("explicit", [True, False])
def test_a_few_values_beyond_the_number_are_noticed(explicit: bool) -> None:
    n = 800
    A = random_graph(n).toarray() + np.eye(n)  # values of 1 to 13
    Q = orthonormal(1, n, 3)
    A = sp.csr_array(A - Q @ np.diag([2.0, 3.0, 4.0]) @ Q.T * np.linalg.norm(A, 2) / 4)
    assert 0 < (eigenvalues(A) < 0).sum() <= 3
    function, columns = counted(A)
    result = answered(A, 4, apply_to=None if explicit else function, which="SM", shape=(n, n))
    assert explicit or result.info["operator_columns"] == sum(columns)


def test_a_value_beyond_the_number_that_no_step_shows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    A = sp.csr_array(random_graph() - 0.3 * sp.eye_array(1500))
    see_one_side(monkeypatch)
    function, columns = counted(A)
    for operand, told in ((None, "is factorised"), (function, "")):
        result = answered(A, 4, apply_to=operand, which="SM", shape=A.shape)
        assert told in result.info["why"]
        assert "the nearest are the lowest" not in result.info["why"]
    assert result.info["operator_columns"] == sum(columns)


def shifted_cube() -> Any:
    """Make a matrix with one value of -0.089, three of -0.028, and others above zero."""
    return sp.csr_array(model("laplace3d:n=21") - 0.15 * sp.eye_array(21**3))


@pytest.mark.parametrize("convergence", ["norm", "absolute", "value"])
def test_a_value_beyond_the_number_by_less_than_the_tolerance_is_noticed(convergence: Any) -> None:
    tol = {"norm": 0.01, "absolute": 0.12, "value": 1.0}[convergence]
    result = solve(shifted_cube(), 1, which="SM", tol=tol, convergence=convergence)
    assert "no value below" not in result.info["why"]
    assert abs(result.eigenvalues[0]) < 0.035


@pytest.mark.parametrize("seed", [484, 485, 486])
def test_copies_are_searched_for_before_an_attempt_is_over(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    rng.integers(3, 7)
    A = sp.block_diag([laplacian(regular_graph(rng, 100, 4))] * 6, format="csr")
    answered(A, 11, which="SM", block_size=4, checkpoint=tmp_path / "state")
    assert not list(tmp_path.iterdir())


def test_a_function_is_iterated_on_at_the_end() -> None:
    A = random_graph(3000)
    result = solve(lambda X: A @ X, 6, which="SM", shape=A.shape, dtype="float64")
    assert "the nearest are the lowest" in result.info["why"]


@pytest.mark.gpu
@pytest.mark.parametrize("is_function", [False, True])
def test_a_gpu_finds_the_smallest_values_of_a_random_graph_by_steps(is_function: bool) -> None:
    import cupyx.scipy.sparse as csp

    A = random_graph(30_000)
    on_gpu = csp.csr_matrix(sp.csr_matrix(A))
    operand = (lambda X: on_gpu @ X) if is_function else on_gpu
    options: dict[str, Any] = {"shape": A.shape, "device": "gpu"} if is_function else {}
    result = solve(operand, 6, which="SM", **options)
    assert "the nearest are the lowest" in result.info["why"]
    lowest = eigsh(A, 6, which="SA", rng=0)[0]
    np.testing.assert_allclose(result.eigenvalues.get(), lowest, atol=1e-12)
