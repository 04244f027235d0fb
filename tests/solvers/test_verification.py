"""Looking for missed eigenvalues: what is missing is found, what is complete passes."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec
import solvers
from blockvec import BlockVector, models
from solvers import blocks, eigsh
from solvers.iterations import probe, verification
from solvers.iterations.chebyshev import Recurrence
from solvers.iterations.rayleigh_ritz import ranking_key, select
from solvers.iterations.search_interval import Found, choose_interval, may_have_missed
from solvers.iterations.verification import Search, Verdict, _error_bound
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


def case(
    which: str, missing: list[int], k: int, plain: Any, dtype: str = "float64"
) -> tuple[Any, Found, np.ndarray]:
    """An operator with random eigenvectors, and what an iteration would know that has missed some of them."""
    rng = np.random.default_rng(3)
    values = spectrum(which)
    vectors = rng.standard_normal((N, N))
    if dtype == "complex128":
        vectors = vectors + 1j * rng.standard_normal((N, N))
    vectors = np.linalg.qr(vectors)[0]
    order = select(values, which)
    kept = np.delete(order, missing)[: k + 3]
    operator = plain.PlainOperator((vectors * values) @ vectors.conj().T)
    found = Found(
        X=plain.PlainBlock(np.ascontiguousarray(vectors[:, kept])),
        theta=values[kept],
        residuals=np.full(len(kept), 1e-12),
        k=k,
        which=which,  # type: ignore[arg-type]
        limits=np.full(k, 1e-10),
        norm=1.6,
        least=float(ranking_key(values, which).min()),
        locked=None,
        block_size=2,
    )
    return operator, found, values[order]


def look(operator: Any, found: Found, width: int = 1, budget: int = 200, seed: int = 0) -> Verdict:
    return Search(operator, found, width, budget, np.random.default_rng(seed), lambda: False).run()


@pytest.mark.parametrize("which", ["LA", "SA", "LM"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("seed", range(5))
def test_a_complete_set_passes(which: str, dtype: str, seed: int, plain: Any) -> None:
    operator, found, _ = case(which, [], 6, plain, dtype)
    verdict = look(operator, found, seed=seed)
    assert verdict.missed is None
    assert verdict.text.startswith("passed: nothing grew")
    assert verdict.counts.operator_columns == operator.columns


@pytest.mark.parametrize("which", ["LA", "SA", "LM"])
@pytest.mark.parametrize("missing", [[0], [2], [3], [0, 1], [0, 3, 4]])
@pytest.mark.parametrize("seed", range(5))
def test_a_missed_copy_is_found(which: str, missing: list[int], seed: int, plain: Any) -> None:
    operator, found, _ = case(which, missing, 5, plain)
    verdict = look(operator, found, width=len(missing), seed=seed)
    assert verdict.missed is not None
    Z = verdict.missed.array
    assert np.allclose(Z.conj().T @ Z, np.eye(Z.shape[1]))
    assert np.allclose(found.X.array[:, : found.k].T @ Z, 0, atol=1e-8)
    norms = np.linalg.norm(operator.matrix @ Z, axis=0) if which == "LM" else None
    rayleigh = norms if norms is not None else ranking_key(np.sum(Z * (operator.matrix @ Z), axis=0), which)
    assert np.all(rayleigh > found.wanted)


def test_further_copies_of_the_last_value_are_no_miss(plain: Any) -> None:
    operator, found, _ = case("LA", [], 2, plain)  # two of the three copies of 1.6
    assert look(operator, found).missed is None


def test_locked_columns_that_are_not_invariant_do_not_hide_what_is_missing(plain: Any) -> None:
    values = np.linspace(0, 1, N)
    values[-6:] = [60, 70, 80, 90, 0, 100]  # (e_n + e_n-1) / sqrt(2), locked, mixes 0 and 100
    operator = plain.PlainOperator(np.diag(values))
    locked = np.zeros((N, 1))
    locked[-2:] = 0.5**0.5
    found = Found(
        X=plain.PlainBlock(np.ascontiguousarray(np.eye(N)[:, [N - 3, N - 4, N - 6]])),  # without 70
        theta=np.array([90.0, 80, 60]),
        residuals=np.full(3, 1e-10),
        k=3,
        which="LA",
        limits=np.full(3, 1e-8),
        norm=100.0,
        least=0.0,
        locked=plain.PlainBlock(locked),
        block_size=2,
    )
    verdict = look(operator, found)
    assert verdict.missed is not None
    assert np.isclose(abs(verdict.missed.array[N - 5, 0]), 1)
    assert np.allclose(locked.T @ verdict.missed.array, 0, atol=1e-10)


def test_outliers_far_away_neither_overflow_nor_leak_back(plain: Any) -> None:
    values = np.linspace(0, 1, N)
    values[-4:] = [1.1, 1.2, 1e6, 1e7]
    operator = plain.PlainOperator(np.diag(values))
    kept = [N - 1, N - 2, N - 3, N - 4]
    found = Found(
        X=plain.PlainBlock(np.ascontiguousarray(np.eye(N)[:, kept])),
        theta=values[kept],
        residuals=np.full(4, 1e-9),
        k=3,
        which="LA",
        limits=np.full(3, 1e-8),
        norm=1e7,
        least=0.0,
        locked=None,
        block_size=2,
    )
    assert look(operator, found).missed is None


def test_a_wrong_bound_of_the_far_end_is_noticed(plain: Any) -> None:
    operator, found, _ = case("LA", [], 6, plain)
    operator.matrix = operator.matrix - 3 * np.outer(
        found.X.array[:, -1], found.X.array[:, -1]
    )  # a value at -1.8
    knows_too_little = Found(
        X=plain.PlainBlock(np.ascontiguousarray(found.X.array[:, :7])),
        theta=found.theta[:7],
        residuals=found.residuals[:7],
        k=6,
        which="LA",
        limits=found.limits,
        norm=1.6,
        least=0.5,
        locked=None,
        block_size=2,
    )
    verdict = look(operator, knows_too_little)
    assert verdict.missed is None
    assert verdict.text.startswith("passed")


def test_the_interval_leaves_out_vectors_that_are_known_well_enough(plain: Any) -> None:
    _, found, _ = case("LA", [], 6, plain)
    interval = choose_interval(found, 1e6, 200)
    assert interval.deflated == 8
    assert interval.edge < found.wanted <= interval.target
    poor = np.where(np.arange(9) < 6, 1e-12, 1e-2)
    vague = Found(found.X, found.theta, poor, 6, "LA", found.limits, 1.6, 0.0, None, 2)
    assert choose_interval(vague, 1e6, 200).deflated == 6


def test_a_search_can_be_cut_short(plain: Any) -> None:
    operator, found, _ = case("LA", [0], 5, plain)
    verdict = Search(operator, found, 1, 200, np.random.default_rng(0), lambda: True).run()
    assert verdict.missed is None
    assert verdict.text == "cut short"
    assert operator.columns <= 2


def test_copies_can_be_missing_only_where_the_block_was_full() -> None:
    theta, widths = np.array([5.0, 4.0, 4.0, 4.0, 3.0, 3.0]), np.full(6, 1e-9)
    assert may_have_missed(theta, widths, "LA", 1)
    assert may_have_missed(theta, widths, "LA", 3)
    assert not may_have_missed(theta, widths, "LA", 4)
    assert not may_have_missed(
        np.full(6, 2.0), widths, "LA", 2
    )  # only the last value: more copies change nothing


def test_the_edge_moves_where_missed_copies_could_lie_too_near_to_grow(plain: Any) -> None:
    _, found, _ = case("LA", [], 6, plain)
    near = found.wanted + 1e-7 * np.array([1.0, 1.0, 1.0, 0.5, 0.2, 0.0])
    found = replace(found, theta=np.r_[near, found.theta[6:]][:6], X=found.X[:, :6], residuals=np.zeros(6))
    interval = choose_interval(found, 1e6, 20)
    assert interval.target == found.wanted > interval.edge
    alone = replace(found, block_size=4)  # a block of four would have found all copies
    assert choose_interval(alone, 1e6, 20).target > found.wanted + 1e-7


def test_what_a_given_start_may_lack_is_looked_for_up_to_the_last_value() -> None:
    A = sp.diags_array(np.r_[3.0, 2.0, 1.01, 1.0, np.linspace(-1, 0.9999, 3000)], format="csr")
    start = np.random.default_rng(1).standard_normal((A.shape[0], 1))
    start[2] = 0
    result = eigsh(A, 3, which="LA", v0=start, method="jd", rng=0, tol=1e-6, return_info=True)
    assert np.allclose(result.eigenvalues, [1.01, 2, 3], atol=1e-6)
    assert "looked for values" not in result.info["verification"]


class EndingEarly:
    """A recorder that computes nothing, ends a recording early, and returns the operations."""

    def __init__(self, *blocks: BlockVector) -> None:
        self.blocks, self.at_most = blocks, 0

    def __enter__(self) -> EndingEarly:
        return self

    def __exit__(self, *_: object) -> None:
        self.at_most = 0

    def record(self, operations: Any) -> Any:
        """Call the operations until `interrupt` ends them, and undo what they have changed."""
        saved, self.at_most = [block.array.copy() for block in self.blocks], 2
        with contextlib.suppress(RuntimeError):
            operations()
        for block, array in zip(self.blocks, saved, strict=True):
            block.array[...] = array
        self.at_most = 0
        return operations

    def interrupt(self) -> None:
        """Raise at the second call while a recording is made."""
        if self.at_most:
            self.at_most -= 1
            if not self.at_most:
                raise RuntimeError


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("is_projected", [False, True])
def test_groups_of_steps_are_those_of_the_recurrence(
    every: int, is_recorded: bool, is_projected: bool
) -> None:
    A = blockvec.as_operator(sp.diags_array(np.linspace(-3, 3, 50)).tocsr())
    doubled = A.affine(1.0, 0.25)
    X = BlockVector.random(50, 2, rng=0)
    calls: list[int] = []
    blocks = X.copy(), X.like()
    recorder: Any = EndingEarly(*blocks)

    def project(step: int, current: BlockVector, previous: BlockVector) -> None:
        recorder.interrupt()
        calls.append(step)
        current.scale(0.5)

    given = project if is_projected else None
    steps = Recurrence(doubled, *blocks, given, recorder if is_recorded else None, project_every=every)
    for count in (2, 4, 4, 3):
        steps.take(count)
        calls.clear()
    Y = X.copy()
    one_by_one = Recurrence(doubled, Y, Y.like())
    ends = {end for begin, count in ((0, 2), (2, 4), (6, 4), (10, 3)) for end in _ends(begin, count, every)}
    for step in range(1, 14):
        one_by_one.take(1)
        if is_projected and step in ends:
            one_by_one.current.scale(0.5)
    assert steps.taken == 13
    assert np.array_equal(steps.current.array, one_by_one.current.array)


def _ends(begin: int, count: int, every: int) -> list[int]:
    """The steps of a group after which it is projected: each `every`-th, and the last one."""
    return [*range(begin + every, begin + count, every), begin + count]


@pytest.mark.parametrize("residual", [1e-12, 1e-3], ids=["projected at times", "projected every step"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize("missing", [[], [0], [1, 2]])
def test_searches_on_a_gpu_take_several_steps_at_once_and_find_the_same(
    missing: list[int], dtype: str, residual: float
) -> None:
    values = np.concatenate([np.linspace(0, 1, N - 10), np.linspace(1.05, 1.1, 6), [1.2, 1.3, 1.3, 50.0]])
    order = select(values, "LA")
    kept = np.delete(order, [0, *(i + 1 for i in missing)])[:6]
    with pretended_gpu():
        A = blockvec.as_operator(sp.diags_array(values).tocsr().astype(dtype), device="gpu")
        unit = np.eye(N, dtype=dtype)
        found = Found(
            X=BlockVector(np.ascontiguousarray(unit[:, kept])).to_device("gpu"),
            theta=values[kept],
            residuals=np.full(6, residual),
            k=4,
            which="LA",
            limits=np.full(4, 1e-5),
            norm=50.0,
            least=0.0,
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


@pytest.mark.parametrize(
    ("count", "room", "padding", "memory"),
    [(3, 20, 4, 0), (3, 3, 4, 1 << 20), (3, 3, 4, 0), (4, 20, 4, 0), (3, 20, 1, 1 << 20)],
)
def test_deflated_vectors_are_filled_up_by_zeros_where_there_is_memory(
    count: int, room: int, padding: int, memory: int, plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "FILLED_BYTES", memory)
    monkeypatch.setattr(blocks, "width_padding", lambda block: padding)
    operator, found, _ = case("LA", [], 4, plain)
    scratch = plain.PlainBlock(np.full((N, room), np.nan))
    search = Search(
        operator, replace(found, scratch=scratch), 1, 200, np.random.default_rng(0), lambda: False
    )
    filled = search._filled_up(count)
    fits = padding > 1 and count % padding and (room >= padding or memory)
    assert filled.shape[1] == (padding if fits else count)
    assert np.array_equal(filled.array[:, :count], found.X.array[:, :count])
    assert not filled.array[:, count:].any()


@pytest.mark.parametrize("angle", [1e-1, 1e-3, 1e-6])
@pytest.mark.parametrize("copies", [1, 3])
def test_the_error_of_a_ritz_value_is_bounded_by_the_square_of_its_residual(
    angle: float, copies: int
) -> None:
    rng = np.random.default_rng(copies)
    values = np.r_[np.full(copies, 2.0), 1.0, 0.9, rng.uniform(-1, 0.5, 20)]
    start = np.eye(len(values))[:, : copies + 2]
    X = np.linalg.qr(start + angle * rng.standard_normal(start.shape))[0]
    theta, U = np.linalg.eigh(X.T * values @ X)
    theta, Y = theta[::-1], X @ U[:, ::-1]
    residual = float(np.linalg.norm(values * Y[:, 0] - theta[0] * Y[:, 0]))
    bound = _error_bound(theta, residual, copies + 1)
    assert _error_bound(theta, residual, copies) == residual  # there may be more of them
    assert theta[0] <= 2.0 <= theta[0] + bound + 1e-14
    assert bound <= residual
    if residual < 1e-3:
        assert bound <= 2 * copies * residual**2


@pytest.mark.parametrize("seed", [0, 3, 6])  # others end without a search, or take 3,000 columns
def test_a_search_beside_vectors_that_have_not_converged_ends(seed: int) -> None:
    """Six of the seven lowest values of a torus: one of six copies stays in the complement."""
    A = sp.csr_array(blockvec.models.model("laplace3d:n=17,periodic=True"))
    options: dict[str, Any] = {"which": "SA", "tol": 1.2e-7, "convergence": "absolute", "rng": seed}
    with pretended_gpu():
        result = solvers.eigsh(A, 6, device="gpu", return_info=True, **options)
    assert result.info["verification"].startswith("passed")
    assert result.info["verification_columns"] < 1000
    second = 2 - 2 * np.cos(2 * np.pi / 17)
    assert np.allclose(result.eigenvalues.get(), [0, *[second] * 5], atol=1e-6)


def test_products_of_a_search_that_decides_nothing_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    A = sp.csr_array(models.model("laplace3d:n=12"))
    monkeypatch.setattr(probe, "MOST_BYTES", 8 * 8 * A.shape[0])  # eight steps
    columns = 0

    def product(X: Any) -> Any:
        nonlocal columns
        columns += 1 if X.ndim == 1 else X.shape[1]
        return A @ X

    result = eigsh(product, 4, which="SA", shape=A.shape, rng=0, return_info=True)
    assert result.info["operator_columns"] == columns
    assert result.info["verification_columns"] > 8
