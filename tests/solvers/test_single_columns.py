"""Single columns of the host: partial reorthogonalisation, and the Lanczos run in search of copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import as_operator, models
from solvers import eigsh
from solvers.blocks import ColumnBlock
from solvers.iterations import filtering
from solvers.iterations.krylov import BlockKrylov
from solvers.iterations.verification import Found, Search
from solvers.problem import Counts
from solvers.transform.inner_product import inner_product_blocks, inner_product_columns
from tests.matrices import random_sparse


def krylov_space(A: Any, capacity: int, loss: float) -> BlockKrylov:
    """Return a decomposition of single columns that fills its buffer."""
    operator = as_operator(A)
    start = ColumnBlock.random(A.shape[0], 1, A.dtype, rng=0)
    space = BlockKrylov(operator, start.like(capacity), 0, 1, np.random.default_rng(0), Counts())
    space.append(start)
    space.loss = loss
    while space.can_expand():
        space.expand(capacity)
    return space


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("loss", [1e-9, 1e-11])
def test_the_decomposition_holds_and_its_vectors_lose_no_more_than_permitted(
    loss: float, is_complex: bool
) -> None:
    A = random_sparse(1, 800, dtype=complex if is_complex else float)
    space = krylov_space(A, 120, loss)
    for _ in range(12):  # neither grows with restarts
        m = space.m
        V, H = space.columns(0, m + 1).array, space.H[: m + 1, :m]
        norm = np.linalg.norm(H, 2)
        deviation = np.abs(V.conj().T @ V - np.eye(m + 1))
        assert deviation.max() <= 10 * loss  # kept Ritz vectors are sums of many
        assert np.linalg.norm(A @ V[:, :m] - V @ H, axis=0).max() <= 1e-13 * norm
        ritz = space.ritz()
        space.restart(ritz, np.argsort(-ritz.theta)[:30])
        while space.can_expand():
            space.expand(120)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("which", ["LA", "SA", "LM"])
def test_a_run_in_the_complement_finds_a_copy_or_proves_that_there_is_none(which: Any, seed: int) -> None:
    n, k = 600, 4
    sign = -1 if which == "SA" else 1
    values = sign * np.r_[2.0, 2.0, 1.9, 1.8, 1.7, np.linspace(-1, 1.5, n - 5)]
    A = sp.diags_array(values, format="csr")
    operator = as_operator(A)
    rng = np.random.default_rng(seed)
    for missed in (True, False):
        known = np.r_[0, 2:5] if missed else np.r_[0:4]
        X = ColumnBlock(np.asfortranarray(np.eye(n)[:, known]))
        theta, limits = values[known], np.full(k, 1e-8)
        found = Found(X, theta, which, limits, None, 1)
        lowest = 1.8 if missed else 1.9
        verdict = Search(operator, found, lowest - 1e-7, 1, 300, rng, bool).run()
        assert verdict.counts.operator_columns < 100
        if missed:
            assert verdict.missed is not None
            assert np.linalg.norm(verdict.missed.array[1]) > 0.9
        else:
            assert verdict.missed is None
            assert verdict.text.startswith("passed")


@pytest.mark.parametrize("missed", [True, False])
def test_a_run_in_an_inner_product_finds_a_copy_or_proves_that_there_is_none(missed: bool) -> None:
    n, k = 600, 4
    values = np.r_[2.0, 2.0, 1.9, 1.8, 1.7, np.linspace(-1, 1.5, n - 5)]
    C = np.eye(n) + 0.5 * np.eye(n, k=1)  # M = C^H C, and eigenvectors are columns of C^-1
    vectors = np.linalg.inv(C)
    operator = as_operator(sp.csr_array(vectors @ np.diag(values) @ C))
    blocks = inner_product_columns(inner_product_blocks(as_operator(C.T @ C)))
    known = np.r_[0, 2:5] if missed else np.r_[0:4]
    X, lowest = blocks(np.asfortranarray(vectors[:, known])), 1.8 if missed else 1.9
    limits = np.full(k, 1e-8)
    found = Found(X, values[known], "LA", limits, None, 1)
    verdict = Search(operator, found, lowest - 1e-7, 1, 300, np.random.default_rng(0), bool).run()
    assert verdict.text.startswith("found 1" if missed else "passed")
    if missed:
        assert verdict.missed is not None
        assert isinstance(verdict.missed, blocks)  # what it is joined to is orthonormal in M
        assert np.linalg.norm(C[1] @ verdict.missed.array) > 0.9


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_a_wider_filter_after_single_columns_finds_all_copies(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its start, two mixtures of one Krylov space, has one copy of every value, not two.
    monkeypatch.setattr(filtering, "SINGLE_CYCLES", 2)
    monkeypatch.setattr(filtering, "MOST_SINGLE_CYCLES", 0.0)
    place = np.abs(np.arange(48) - 23.5)
    inside = np.flatnonzero(np.hypot(place[:, None], place[None, :]) < 24)
    A = sp.csr_array(models.model("laplace2d:n=48")[inside][:, inside]) * 24**2  # has many double values
    result = eigsh(A, 10, which="SA", tol=1e-9, convergence="norm", rng=seed, return_info=True)
    assert result.info["method"] == "filter"
    assert result.info["block_size"] == 1
    assert np.allclose(result.eigenvalues, np.linalg.eigvalsh(A.toarray())[:10], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("is_dense", [False, True])
def test_a_short_matrix_in_single_precision_has_results_of_its_type_with_their_own_residuals(
    dtype: Any, is_dense: bool
) -> None:
    A = random_sparse(1, 700, dtype=dtype)
    result = eigsh(A.toarray() if is_dense else A, 4, which="LA", rng=0, return_info=True)
    w, X, info = result.eigenvalues, result.eigenvectors, result.info
    assert (w.dtype, X.dtype, info["dtype"]) == (dtype(0).real.dtype, np.dtype(dtype), np.dtype(dtype).name)
    exact, Y = A.astype(np.result_type(dtype, np.float64)), X.astype(np.result_type(dtype, np.float64))
    residuals = np.linalg.norm(exact @ Y - Y * w.astype(np.float64), axis=0)
    assert result.converged.all()
    assert np.allclose(result.residuals, residuals, rtol=1e-3)
    assert np.abs(Y.conj().T @ Y - np.eye(4)).max() <= 10 * np.finfo(np.float32).eps
