"""Answers to hard spectra: right, or refused with a true reason, within seconds; by "auto" always right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator
from threadpoolctl import threadpool_limits

from solvers import NoConvergence, eigsh, sizes
from tests.matrices import random_sparse
from tests.solvers import zoo

PERIOD = 37  # of all cases by methods that were asked for, one in so many belongs to `make test`


def cases() -> list[Any]:
    """List all cases; those beyond the sample are marked as slow."""
    listed = []
    for i, name in enumerate(zoo.ZOO):
        for j, request in enumerate(zoo.REQUESTS):
            for method in zoo.METHODS:
                number = len(listed)
                sampled = (i + j) % len(zoo.REQUESTS) == 0 if method == "auto" else number % PERIOD == 0
                marks = () if sampled else pytest.mark.slow
                listed.append(
                    pytest.param(name, request, method, id=f"{name}-{request}-{method}", marks=marks)
                )
    return listed


@pytest.mark.parametrize(("name", "request_", "method"), cases())
def test_an_answer_is_right_or_refused_in_good_time(name: str, request_: str, method: str) -> None:
    A, values = zoo.matrix(name)
    with threadpool_limits(1):  # processor time is measured
        outcome = zoo.ask(A, values, request_, method=method, k=zoo.PAIRS.get(name, 6))
    assert outcome.kind in (("right",) if method == "auto" else ("right", "refused")), outcome


def function(A: Any) -> LinearOperator:
    """Hide the entries of a matrix."""
    return LinearOperator(A.shape, matvec=lambda x: A @ x, matmat=lambda X: A @ X, dtype=A.dtype)


@pytest.mark.parametrize("request_", zoo.REQUESTS)
@pytest.mark.parametrize(
    "name", ["glued Wilkinson 1e-14", "graded tridiagonal, 1e8", "random sparse complex"]
)
def test_a_function_of_few_rows_never_fails(name: str, request_: str) -> None:
    A, values = zoo.matrix(name)
    if request_ == "SM":
        pytest.skip("a function needs OPinv for shift-invert")
    outcome = zoo.ask(A, values, request_, apply_to=function(A))
    assert outcome.kind == "right", outcome


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
    rng = np.random.default_rng(2)
    A = random_sparse(3, 600, dtype=dtype)
    M = sp.diags_array(10.0 ** rng.uniform(-3, 3, 600)).tocsr()
    result = eigsh(A, 4, M=M, rng=0, return_info=True, **options)
    exact = scipy.linalg.eigvalsh(A.toarray(), M.toarray())
    sigma = options.get("sigma")
    key = np.abs(exact - sigma) if sigma else exact if options["which"] == "SA" else -exact
    wanted = np.sort(exact[np.argsort(key)[:4]])
    np.testing.assert_allclose(result.eigenvalues, wanted, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("which", ["LM", "LA", "SA", "BE"])
def test_dense_lapack_selects_around_a_shift_as_shift_invert_does(which: str) -> None:
    A, values = zoo.matrix("negative definite")
    sigma = zoo.target(values)
    order = np.argsort(1 / (values - sigma))
    chosen = {"LM": np.argsort(np.abs(values - sigma))[:4], "LA": order[-4:], "SA": order[:4]}
    chosen["BE"] = np.r_[order[:2], order[-2:]]
    for method in ("dense", "auto"):
        w = eigsh(A, 4, sigma=sigma, which=which, method=method, rng=0, return_eigenvectors=False)
        np.testing.assert_allclose(w, np.sort(values[chosen[which]]), atol=1e-11)


@pytest.mark.parametrize("request_", ["LA", pytest.param("LM", marks=pytest.mark.slow)])
def test_no_copy_is_lost_in_a_cluster_wider_than_rounding(request_: str) -> None:
    A, values = zoo.matrix("glued Wilkinson 1e-11")  # copies of the largest value lie within 1e-11
    outcome = zoo.ask(A, values, request_, method="jd", k=16)
    assert outcome.kind == "right", outcome
