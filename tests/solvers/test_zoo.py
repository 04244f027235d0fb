"""Answers to hard spectra: right, or refused with a true reason, within seconds; by "auto" always right."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator
from threadpoolctl import threadpool_limits

from solvers import NoConvergence, eigsh, sizes
from tests.matrices import random_sparse
from tests.solvers import zoo
from tests.solvers.answers import answered

PERIOD = 37  # of all cases by methods that were asked for, one in so many belongs to `make test`


CASES = list(itertools.product(zoo.ZOO, zoo.REQUESTS, zoo.METHODS))


def is_sampled(number: int) -> bool:
    """Check that a case belongs to `make test`; by "auto", one request of each spectrum does."""
    name, request, method = CASES[number]
    places = list(zoo.ZOO).index(name) + zoo.REQUESTS.index(request)
    return places % len(zoo.REQUESTS) == 0 if method == "auto" else number % PERIOD == 0


@pytest.mark.parametrize(
    ("name", "request_", "method"),
    [pytest.param(*case, marks=() if is_sampled(i) else pytest.mark.slow) for i, case in enumerate(CASES)],
)
def test_an_answer_is_right_or_refused_in_good_time(name: str, request_: str, method: str) -> None:
    with threadpool_limits(1):  # processor time is measured
        verdict = zoo.ask(name, request_, method)
    assert verdict.time_s <= zoo.LIMIT_S
    assert not verdict.reason.startswith(("BreakdownError", "raw "))
    assert verdict.outcome in (("right",) if method == "auto" else ("right", "refused", "excused", "warned"))
    lost = "digits of eigenvalues below that are lost"  # the answer is right to the limits that this tells
    assert method != "auto" or not verdict.warning or lost in verdict.warning


def function(A: Any) -> LinearOperator:
    """Hide the entries of a matrix."""
    return LinearOperator(A.shape, matvec=lambda x: A @ x, matmat=lambda X: A @ X, dtype=A.dtype)


@pytest.mark.parametrize("request_", [request for request in zoo.REQUESTS if request != "SM"])  # needs OPinv
@pytest.mark.parametrize(
    "name", ["glued Wilkinson 1e-14", "graded tridiagonal, 1e8", "random sparse complex"]
)
def test_a_function_of_few_rows_never_fails(name: str, request_: str) -> None:
    verdict = zoo.ask(name, request_, form="function")
    assert verdict.outcome == "right", verdict


def test_an_iteration_as_costly_as_dense_lapack_gives_way_to_it_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    A = function(zoo.matrix("graded tridiagonal, 1e8")[0])
    result = eigsh(A, 4, which="SA", rng=0, return_info=True)
    assert result.info["method"] == "dense"
    assert result.info["why"].startswith("lanczos took as many applications of A as dense LAPACK")
    assert result.info["verification"] == "not needed: dense LAPACK finds everything"
    with pytest.raises(NoConvergence, match="after 3 restarts"):  # who sets a limit gets it
        eigsh(A, 4, which="SA", rng=0, maxiter=3)
    monkeypatch.setattr(sizes, "PATIENCE", 0.1)
    with pytest.raises(NoConvergence, match="took far longer than dense LAPACK does: use method='auto'"):
        eigsh(A, 4, which="SA", rng=0, method="lanczos")


def test_dense_lapack_takes_over_in_the_complement_of_given_columns() -> None:
    A, values = zoo.matrix("graded tridiagonal, 1e8")
    vectors = np.linalg.eigh(A.toarray())[1]
    options: dict[str, Any] = {"orthogonal_to": vectors[:, :3], "rng": 0, "return_info": True}
    for method in ("auto", "dense"):
        result = eigsh(function(A), 4, which="SA", method=method, **options)
        assert result.info["method"] == "dense"
        np.testing.assert_allclose(result.eigenvalues, values[3:7], atol=1e-6)
        assert np.abs(vectors[:, :3].T @ result.eigenvectors).max() < 1e-13


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("options", [{"which": "SA"}, {"which": "LA"}, {"sigma": 1.3}])
def test_a_pair_of_matrices_never_fails(dtype: Any, options: dict[str, Any]) -> None:
    A = random_sparse(3, 600, dtype=dtype)
    M = sp.diags_array(10.0 ** np.random.default_rng(2).uniform(-3, 3, 600)).tocsr()
    answered(A, 4, M, rtol=1e-8, loss=1e-10, **options)


@pytest.mark.parametrize("which", ["LM", "LA", "SA", "BE"])
@pytest.mark.parametrize("method", ["dense", "auto"])
def test_dense_lapack_selects_around_a_shift_as_shift_invert_does(which: str, method: str) -> None:
    A, values = zoo.matrix("negative definite")
    answered(A, 4, exact=values, sigma=zoo.target(values), which=which, method=method)


@pytest.mark.parametrize("request_", ["LA", pytest.param("LM", marks=pytest.mark.slow)])
def test_no_copy_is_lost_in_a_cluster_wider_than_rounding(request_: str) -> None:
    verdict = zoo.ask("glued Wilkinson 1e-11", request_, "jd", k=16)  # the largest ones lie within 1e-11
    assert verdict.outcome == "right", verdict
