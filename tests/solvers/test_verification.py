"""Looking for missed eigenvalues: what is missing is found, what is complete passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec
import solvers
from blockvec import BlockVector, as_operator, models
from solvers import eigsh
from solvers.blocks import ColumnBlock
from solvers.iterations.rayleigh_ritz import ranking_key, select
from solvers.iterations.spectrum import recurrences
from solvers.iterations.verification import Found, Search, Verdict, least_doubtful
from solvers.problem import Verification
from tests.pairwise import pairwise
from tests.pretended_gpu import pretended_gpu

N = 400


def spectrum(which: str) -> np.ndarray:
    """Values with multiplicities 1, 3, 2, 1, 2 ... at the wanted end."""
    values = np.linspace(0, 1, N)
    values[-9:] = [1.2, 1.3, 1.3, 1.4, 1.5, 1.5, 1.6, 1.6, 1.6]
    if which == "SA":
        return -values
    if which == "LM":
        values[:4] = [-1.6, -1.4, -0.9, -0.8]
    return values


def case(which: str, missing: list[int], k: int, dtype: str = "float64") -> tuple[Any, Found, np.ndarray]:
    """An operator with random eigenvectors, and what an iteration would know that has missed some of them."""
    rng = np.random.default_rng(3)
    values = spectrum(which)
    vectors = rng.standard_normal((N, N))
    if dtype == "complex128":
        vectors = vectors + 1j * rng.standard_normal((N, N))
    vectors = np.linalg.qr(vectors)[0]
    order = select(values, which)
    kept = np.delete(order, missing)[:k]
    operator = as_operator((vectors * values) @ vectors.conj().T)
    found = Found(
        X=BlockVector(np.ascontiguousarray(vectors[:, kept])),
        theta=values[kept],
        which=which,  # type: ignore[arg-type]
        limits=np.full(k, 1e-10),
        locked=None,
        block_size=2,
    )
    return operator, found, values[order]


def look(operator: Any, found: Found, width: int = 1, budget: int = 200, seed: int = 0) -> Verdict:
    rng = np.random.default_rng(seed)
    return Search(operator, found, found.last, width, budget, rng, lambda: False).run()


@pytest.mark.parametrize(
    ("which", "dtype", "seed"), pairwise(["LA", "SA", "LM"], ["float64", "complex128"], range(5))
)
def test_a_complete_set_passes(which: str, dtype: str, seed: int) -> None:
    operator, found, _ = case(which, [], 6, dtype)
    verdict = look(operator, found, seed=seed)
    assert verdict.missed is None
    assert verdict.text.startswith("passed: a random vector")


@pytest.mark.parametrize(
    ("which", "missing", "seed"), pairwise(["LA", "SA", "LM"], [[0], [2], [3], [0, 1], [0, 3, 4]], range(5))
)
def test_a_missed_copy_is_found(which: str, missing: list[int], seed: int) -> None:
    operator, found, _ = case(which, missing, 5)
    verdict = look(operator, found, width=len(missing), seed=seed)
    assert verdict.missed is not None
    Z = verdict.missed.array
    assert np.allclose(Z.conj().T @ Z, np.eye(Z.shape[1]))
    assert np.allclose(found.X.array.T @ Z, 0, atol=1e-8)
    norms = np.linalg.norm(operator.matrix @ Z, axis=0) if which == "LM" else None
    rayleigh = norms if norms is not None else ranking_key(np.sum(Z * (operator.matrix @ Z), axis=0), which)
    assert np.all(rayleigh > found.last)


def test_further_copies_of_the_last_value_are_no_miss() -> None:
    operator, found, _ = case("LA", [], 2)  # two of the three copies of 1.6
    assert look(operator, found).missed is None


def test_locked_columns_that_are_not_invariant_do_not_hide_what_is_missing() -> None:
    values = np.linspace(0, 1, N)
    values[-6:] = [60, 70, 80, 90, 0, 100]  # (e_n + e_n-1) / sqrt(2), locked, mixes 0 and 100
    operator = as_operator(np.diag(values))
    locked = np.zeros((N, 1))
    locked[-2:] = 0.5**0.5
    found = Found(
        X=BlockVector(np.ascontiguousarray(np.eye(N)[:, [N - 3, N - 4, N - 6]])),  # without 70
        theta=np.array([90.0, 80, 60]),
        which="LA",
        limits=np.full(3, 1e-8),
        locked=BlockVector(locked),
        block_size=2,
    )
    verdict = look(operator, found)
    assert verdict.missed is not None
    assert np.isclose(abs(verdict.missed.array[N - 5, 0]), 1)
    assert np.allclose(locked.T @ verdict.missed.array, 0, atol=1e-10)


def test_outliers_far_away_neither_overflow_nor_leak_back() -> None:
    values = np.linspace(0, 1, N)
    values[-4:] = [1.1, 1.2, 1e6, 1e7]
    operator = as_operator(np.diag(values))
    kept = [N - 1, N - 2, N - 3]
    found = Found(
        X=BlockVector(np.ascontiguousarray(np.eye(N)[:, kept])),
        theta=values[kept],
        which="LA",
        limits=np.full(3, 1e-8),
        locked=None,
        block_size=2,
    )
    assert look(operator, found).missed is None


def test_a_search_can_be_cut_short() -> None:
    operator, found, _ = case("LA", [0], 5)
    verdict = Search(operator, found, found.last, 1, 200, np.random.default_rng(0), lambda: True).run()
    assert verdict.missed is None
    assert verdict.text == "cut short"
    assert verdict.counts.operator_columns <= 12  # a group of steps


def test_copies_can_be_missing_only_where_the_block_was_full() -> None:
    theta, widths = np.array([5.0, 4.0, 4.0, 4.0, 3.0, 3.0]), np.full(6, 1e-9)
    doubtful = [least_doubtful(theta, widths, "LA", b) for b in (1, 3, 4)]
    assert doubtful[:2] == [pytest.approx(4.0, abs=1e-7)] * 2
    assert doubtful[2] is None
    # Only the last value: more copies change nothing.
    assert least_doubtful(np.full(6, 2.0), widths, "LA", 2) is None


def test_a_search_that_ends_early_says_from_where_it_has_looked() -> None:
    """The gap behind the last value is too narrow for the budget; only the values before have more copies."""
    values = np.r_[2.0, 1.5, 1.5, 1.0, np.linspace(0, 1 - 1e-7, N - 4)]
    operator = as_operator(np.diag(values))
    X = BlockVector(np.ascontiguousarray(np.eye(N)[:, :4]))
    found = Found(X, values[:4], "LA", np.full(4, 1e-9), None, 2)
    verdict = look(operator, found, budget=8)
    assert verdict.verification is Verification.SEARCHED
    assert "looked for values from 1.5 on" in verdict.text
    verdict = look(operator, replace(found, block_size=0), budget=8)
    assert verdict.verification is Verification.UNDECIDED
    assert verdict.text.startswith("undecided after")


def test_what_a_given_start_may_lack_is_looked_for_up_to_the_last_value() -> None:
    A = sp.diags_array(np.r_[3.0, 2.0, 1.01, 1.0, np.linspace(-1, 0.9999, 3000)], format="csr")
    start = np.random.default_rng(1).standard_normal((A.shape[0], 1))
    start[2] = 0
    result = eigsh(A, 3, which="LA", v0=start, method="jd", rng=0, tol=1e-6, return_info=True)
    assert np.allclose(result.eigenvalues, [1.01, 2, 3], atol=1e-6)
    assert "looked for values" not in result.info["verification"]


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("kind", ["columns", "rows", "gpu"])
def test_coefficients_are_those_of_lanczos(kind: str, locked: bool) -> None:
    rng = np.random.default_rng(0)
    A, n = sp.csr_array(models.model("laplace2d:n=20")), 400
    Q, v = np.linalg.qr(rng.standard_normal((n, 3)))[0], rng.standard_normal((n, 1))
    with pretended_gpu():
        operator: Any = blockvec.as_operator(A, device="gpu" if kind == "gpu" else "cpu")
        blocks: list[Any] = [BlockVector(v.copy()), BlockVector(Q.copy())]
        recorder = None
        if kind == "gpu":
            blocks, recorder = [block.to_device("gpu") for block in blocks], blockvec.Recorder("gpu")
        if kind == "columns":
            blocks = [ColumnBlock.of(block) for block in blocks]
        run = recurrences(operator, blocks[0], (blocks[1] if locked else None,), recorder)
        run.extend(36)
        alphas, betas = run.coefficients()
    P = np.eye(n) - Q @ Q.T if locked else np.eye(n)
    v = P @ v
    v, before, beta = v / np.linalg.norm(v), np.zeros_like(v), 0.0
    for step in range(36):
        w = P @ (A @ v) - beta * before
        alpha = float((v * w).sum())
        w -= alpha * v
        beta = float(np.linalg.norm(w))
        assert abs(alphas[step, 0] - alpha) <= 1e-9
        assert abs(betas[step, 0] - beta) <= 1e-9
        v, before = w / beta, v


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize("missing", [[], [0], [1, 2]])
def test_searches_on_a_gpu_take_several_steps_at_once_and_find_the_same(
    missing: list[int], dtype: str
) -> None:
    values = np.concatenate([np.linspace(0, 1, N - 10), np.linspace(1.05, 1.1, 6), [1.2, 1.3, 1.3, 50.0]])
    order = select(values, "LA")
    kept = np.delete(order, [0, *(i + 1 for i in missing)])[:4]
    with pretended_gpu():
        A = blockvec.as_operator(sp.diags_array(values).tocsr().astype(dtype), device="gpu")
        unit = np.eye(N, dtype=dtype)
        found = Found(
            X=BlockVector(np.ascontiguousarray(unit[:, kept])).to_device("gpu"),
            theta=values[kept],
            which="LA",
            limits=np.full(4, 1e-5),
            locked=BlockVector(np.ascontiguousarray(unit[:, order[:1]])).to_device("gpu"),
            block_size=1,
        )
        verdict = look(A, found, width=2)
    if not missing:
        assert verdict.missed is None
        assert verdict.text.startswith("passed")
        return
    assert verdict.missed is not None
    weights = np.linalg.norm(verdict.missed.array.get(), axis=1)
    assert np.allclose(weights[order[[i + 1 for i in missing]]], 1, atol=1e-3)
    assert verdict.missed.shape[1] == len(missing)


@pytest.mark.parametrize("seed", [0, 3, 6])  # others end without a search, or take 3,000 columns
def test_a_search_beside_vectors_that_have_not_converged_ends(seed: int) -> None:
    """Six of the seven lowest values of a torus: one of six copies stays in the complement."""
    A = sp.csr_array(blockvec.models.model("laplace3d:n=17,periodic=True"))
    options: dict[str, Any] = {"which": "SA", "tol": 1.2e-7, "convergence": "absolute", "rng": seed}
    with pretended_gpu():
        result = solvers.eigsh(A, 6, device="gpu", return_info=True, **options)
    assert result.info["verification"].startswith(("passed", "not needed"))
    assert result.info["verification_columns"] < 1000
    second = 2 - 2 * np.cos(2 * np.pi / 17)
    assert np.allclose(result.eigenvalues.get(), [0, *[second] * 5], atol=1e-6)


def test_products_of_a_search_are_counted() -> None:
    A = sp.csr_array(models.model("laplace3d:n=12"))
    columns = 0

    def product(X: Any) -> Any:
        nonlocal columns
        columns += 1 if X.ndim == 1 else X.shape[1]
        return A @ X

    result = eigsh(product, 4, which="SA", shape=A.shape, rng=0, return_info=True)
    assert result.info["operator_columns"] == columns
    assert result.info["verification_columns"] > 8
