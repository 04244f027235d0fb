"""Looking for missed eigenvalues: what is missing is found, what is complete passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec
from blockvec import BlockVector, as_operator, models
from solvers import eigsh
from solvers.blocks import ColumnBlock
from solvers.iterations.spectrum import recurrences
from solvers.iterations.verification import Search
from solvers.problem import Verification, ranking_key, select
from solvers.transform.inner_product import inner_product_blocks, inner_product_columns
from tests.matrices import orthonormal
from tests.pairwise import pairwise
from tests.pretended_gpu import pretended_gpu
from tests.solvers.answers import answered

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


def found(
    values: np.ndarray,
    kept: Any,
    which: Any = "LA",
    vectors: Any = None,
    *,
    blocks: Any = BlockVector,
    limit: float = 1e-8,
    locked: Any = None,
    operator: Any = None,
    copies: int = 2,
) -> Search:
    """Make the search beside what an iteration would have found: some of these values, with unit vectors."""
    X = (np.eye(N) if vectors is None else vectors)[:, kept]
    X = blocks(np.asfortranarray(X) if blocks is not BlockVector else np.ascontiguousarray(X))
    operator = as_operator(np.diag(values)) if operator is None else operator
    return Search(operator, X, values[kept], which, np.full(len(kept), limit), locked, copies)


def case(which: str, missing: list[int], k: int, dtype: str = "float64") -> Search:
    """The search of an iteration with random eigenvectors that has missed some of them."""
    values, vectors = spectrum(which), orthonormal(3, N, dtype=dtype)
    kept = np.delete(select(values, which), missing)[:k]
    operator = as_operator((vectors * values) @ vectors.conj().T)
    return found(values, kept, which, vectors, limit=1e-10, operator=operator)


def look(search: Search, width: int = 1, budget: int = 200, seed: int = 0, value: Any = None) -> Search:
    search.budget, search.value = budget, search.last if value is None else value
    return search.run(width, np.random.default_rng(seed), bool)


@pytest.mark.parametrize(
    ("which", "dtype", "missing", "seed"),
    pairwise(["LA", "SA", "LM"], ["float64", "complex128"], [[], [0], [2], [3], [0, 1], [0, 3, 4]], range(5)),
)
def test_missed_copies_are_found_and_a_complete_set_passes(
    which: str, dtype: str, missing: list[int], seed: int
) -> None:
    known = case(which, missing, 5 if missing else 6, dtype)
    verdict = look(known, width=max(len(missing), 1), seed=seed)
    if not missing:
        assert verdict.missed is None
        assert verdict.text.startswith("passed: a random vector")
        return
    assert verdict.missed is not None
    Z = verdict.missed.array
    assert np.allclose(Z.conj().T @ Z, np.eye(Z.shape[1]))
    assert np.allclose(known.X.array.conj().T @ Z, 0, atol=1e-8)
    image = known.operator.matrix @ Z  # type: ignore[attr-defined]
    ranks = np.sum(Z.conj() * image, axis=0).real
    assert np.all(
        (np.linalg.norm(image, axis=0) if which == "LM" else ranking_key(ranks, which)) > known.last
    )


@pytest.mark.parametrize("missed", [True, False])
@pytest.mark.parametrize(
    ("which", "seed"), [*pairwise(["LA", "SA", "LM"], range(5)), ("LA in an inner product", 0)]
)
def test_a_run_of_single_columns_finds_a_copy_or_proves_that_there_is_none(
    which: str, seed: int, missed: bool
) -> None:
    sign = -1 if which == "SA" else 1
    values = sign * np.r_[2.0, 2.0, 1.9, 1.8, 1.7, np.linspace(-1, 1.5, N - 5)]
    C, blocks = np.eye(N), ColumnBlock
    if "inner" in which:  # M = C^H C, and eigenvectors are columns of C^-1
        C += 0.5 * np.eye(N, k=1)
        blocks = inner_product_columns(inner_product_blocks(as_operator(C.T @ C)))
    vectors, kept = np.linalg.inv(C), np.r_[0, 2:5] if missed else np.r_[0:4]
    operator = as_operator(sp.csr_array(vectors @ np.diag(values) @ C))
    known = found(values, kept, which[:2], vectors, blocks=blocks, copies=1, operator=operator)
    verdict = look(known, budget=300, seed=seed, value=(1.8 if missed else 1.9) - 1e-7)
    assert verdict.counts.operator_columns < 100
    assert verdict.text.startswith("found 1" if missed else "passed")
    if missed:
        assert verdict.missed is not None
        assert isinstance(verdict.missed, blocks)  # what it is joined to is orthonormal in M
        assert np.linalg.norm(C[1] @ verdict.missed.array) > 0.9


def test_further_copies_of_the_last_value_are_no_miss() -> None:
    assert look(case("LA", [], 2)).missed is None  # two of the three copies of 1.6


def test_locked_columns_that_are_not_invariant_do_not_hide_what_is_missing() -> None:
    values = np.linspace(0, 1, N)
    values[-6:] = [60, 70, 80, 90, 0, 100]  # (e_n + e_n-1) / sqrt(2), locked, mixes 0 and 100
    locked = np.zeros((N, 1))
    locked[-2:] = 0.5**0.5
    verdict = look(found(values, [N - 3, N - 4, N - 6], locked=BlockVector(locked)))  # without 70
    assert verdict.missed is not None
    assert np.isclose(abs(verdict.missed.array[N - 5, 0]), 1)
    assert np.allclose(locked.T @ verdict.missed.array, 0, atol=1e-10)


def test_outliers_far_away_neither_overflow_nor_leak_back() -> None:
    values = np.linspace(0, 1, N)
    values[-4:] = [1.1, 1.2, 1e6, 1e7]
    assert look(found(values, [N - 1, N - 2, N - 3])).missed is None


def test_a_search_can_be_cut_short() -> None:
    verdict = case("LA", [0], 5).run(1, np.random.default_rng(0), lambda: True)
    assert verdict.missed is None
    assert verdict.text == "cut short"
    assert verdict.counts.operator_columns <= 12  # a group of steps


def test_copies_can_be_missing_only_where_the_block_was_full() -> None:
    theta, widths = np.array([5.0, 4.0, 4.0, 4.0, 3.0, 3.0]), np.full(6, 1e-9)
    any_block: Any = None
    doubtful = [Search(any_block, any_block, theta, "LA", widths, None, b).doubtful for b in (1, 3, 4)]
    assert doubtful[:2] == [pytest.approx(4.0, abs=1e-7)] * 2
    assert doubtful[2] is None
    # Only the last value: more copies change nothing.
    assert Search(any_block, any_block, np.full(6, 2.0), "LA", widths, None, 2).doubtful is None


def test_a_search_that_ends_early_says_from_where_it_has_looked() -> None:
    """The gap behind the last value is too narrow for the budget; only the values before have more copies."""
    values = np.r_[2.0, 1.5, 1.5, 1.0, np.linspace(0, 1 - 1e-7, N - 4)]
    verdict = look(found(values, range(4), limit=1e-9), budget=8)
    assert verdict.verification is Verification.SEARCHED
    assert "looked for values from 1.5 on" in verdict.text
    verdict = look(found(values, range(4), limit=1e-9, copies=0), budget=8)
    assert verdict.verification is Verification.UNDECIDED
    assert verdict.text.startswith("undecided after")


def test_what_a_given_start_may_lack_is_looked_for_up_to_the_last_value() -> None:
    values = np.r_[3.0, 2.0, 1.01, 1.0, np.linspace(-1, 0.9999, 3000)]
    start = np.random.default_rng(1).standard_normal((len(values), 1))
    start[2] = 0
    A = sp.diags_array(values, format="csr")
    result = answered(A, 3, exact=np.sort(values), which="LA", v0=start, method="jd", tol=1e-6)
    assert "looked for values" not in result.info["verification"]


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("kind", ["columns", "rows", "gpu"])
def test_coefficients_are_those_of_lanczos(kind: str, locked: bool) -> None:
    rng = np.random.default_rng(0)
    A, n = sp.csr_array(models.model("laplace2d:n=20")), 400
    Q, v = orthonormal(rng, n, 3), rng.standard_normal((n, 1))
    with pretended_gpu():
        operator: Any = blockvec.as_operator(A, device="gpu" if kind == "gpu" else "cpu")
        blocks: list[Any] = [BlockVector(v.copy()), BlockVector(Q.copy())]
        if kind == "gpu":
            blocks = [block.to_device("gpu") for block in blocks]
        if kind == "columns":
            blocks = [ColumnBlock.of(block) for block in blocks]
        run = recurrences(operator, blocks[0], (blocks[1] if locked else None,))
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
        locked = BlockVector(np.ascontiguousarray(unit[:, order[:1]])).to_device("gpu")
        known = found(values, kept, "LA", unit, limit=1e-5, locked=locked, copies=1, operator=A)
        known.X = known.X.to_device("gpu")  # type: ignore[attr-defined]
        verdict = look(known, width=2)
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
        result = eigsh(A, 6, device="gpu", return_info=True, **options)
    assert result.info["verification"].startswith(("passed", "not needed"))
    assert result.info["verification_columns"] < 1000
    second = 2 - 2 * np.cos(2 * np.pi / 17)
    assert np.allclose(result.eigenvalues.get(), [0, *[second] * 5], atol=1e-6)


@pytest.mark.parametrize("b", [4, 8])
def test_copies_are_searched_for_where_a_basis_has_no_room_for_two_steps(b: int) -> None:
    values = np.r_[np.linspace(-0.8, 0.7, 80), [0.85] * 3, [61.5] * 2, [61.6] * 3]
    A, k = sp.diags_array(values, format="csr"), 7
    for ncv, verification in ((k + b + 1, Verification.SEARCHED), (k + 2 * b, Verification.NOT_NEEDED)):
        result = eigsh(A, k, which="LA", method="lanczos", block_size=b, ncv=ncv, rng=3, return_info=True)
        assert result.verification is verification
        assert np.allclose(result.eigenvalues[:2], 0.85)


def test_a_value_that_vanishes_leaves_a_search_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    beyond = Search._vectors_beyond
    monkeypatch.setattr(Search, "_vectors_beyond", lambda self, run, key: beyond(self, run, 10.0))
    verdict = look(case("LA", [0], 5))
    assert (verdict.verification, verdict.missed) == (Verification.UNDECIDED, None)
    assert "vanished" in verdict.text


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_small_basis_takes_no_value_of_one_end_for_a_larger_one_of_the_other(seed: int) -> None:
    values = np.sort(np.random.default_rng(seed).uniform(0, 1, 60))
    A = sp.diags_array(np.r_[values, -0.995 * values], format="csr")
    answered(A, 3, method="lanczos", block_size=1, ncv=5, tol=1e-4)
