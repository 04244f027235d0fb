"""Steps that are queued without waiting: what steps with all care compute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import blockvec.backends
from blockvec import BlockVector, as_operator, models
from blockvec.errors import BreakdownError
from blockvec.operators.krylov_steps import KrylovSteps
from blockvec.operators.sparse import SparseOperator
from solvers import eigsh, sizes
from solvers.iterations import krylov
from solvers.iterations.krylov import BlockKrylov
from solvers.problem import Counts

DTYPES = ("float64", "complex128", "float32")


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queue steps on the host, too."""
    monkeypatch.setattr(krylov, "is_queued", lambda *_: True)
    monkeypatch.setattr(sizes, "SHORT_ROWS", 0)  # row-major blocks, as on a GPU


def decomposition_error(basis: BlockKrylov) -> float:
    """Compute the largest element of A V - [V Q] H, relative to that of H."""
    H = basis.snapshot()["H"]
    V, used = basis.columns(0, basis.m), basis.columns(0, basis.m + basis.w)
    image = basis.operator.apply(V, V.like())
    return float(np.abs(image.array - used.array @ H).max() / np.abs(H).max())


def cycles(A: Any, b: int, capacity: int = 24, restarts: int = 4) -> BlockKrylov:
    """Check the decomposition of an operator before some restarts, and return it before the last."""
    operator, dtype = as_operator(A), A.dtype
    scale, eps = float(abs(A).sum(axis=0).max()), float(np.finfo(dtype).eps)
    buffer = BlockVector.zeros(A.shape[0], capacity, dtype)
    basis = BlockKrylov(operator, buffer, 0, b, np.random.default_rng(1), Counts())
    basis.append_random(b)
    for restart in range(restarts):
        if restart:
            basis.restart(basis.ritz(), np.arange(2 * b))
        while basis.can_expand():
            basis.expand()
        H = basis.snapshot()["H"]
        V, used = basis.columns(0, basis.m), basis.columns(0, basis.m + basis.w)
        assert np.abs((operator @ V).array - used.array @ H).max() < 100 * eps * scale
        assert np.abs(used.gram() - np.eye(basis.m + basis.w)).max() < 100 * eps
    return basis


@pytest.mark.parametrize("b", [1, 3])
def test_queued_steps_compute_what_others_do(b: int, monkeypatch: pytest.MonkeyPatch) -> None:
    A = models.model("laplace1d:n=300")
    others = cycles(A, b)
    monkeypatch.setattr(krylov, "is_queued", lambda *_: True)
    queued = cycles(A, b)
    assert np.allclose(others.ritz().theta, queued.ritz().theta, rtol=0, atol=1e-13)
    # The host derives the Gram matrix of the projected block from the one before, and sums once less.
    assert replace(queued.counts, reductions=0) == replace(others.counts, reductions=0)
    assert queued.counts.reductions >= others.counts.reductions


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distinct", [1, 2, 4])
def test_steps_that_were_not_enough_are_repeated(dtype: str, distinct: int) -> None:
    """With few distinct values the space is invariant after as many steps, and blocks lose their rank."""
    A = sp.diags_array(np.arange(200) % distinct + 1.0).astype(dtype).tocsr()
    basis = cycles(A, 3)
    assert basis.counts.block_applications > (24 - 3) // 3  # also those that were queued too far
    assert np.allclose(np.unique(basis.ritz().theta.round(4)), np.arange(distinct) + 1, atol=1e-3)


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize("distinct", [2, 3, 4])
def test_a_function_may_fail_for_the_rounding_errors_of_an_earlier_step(distinct: int, raises: bool) -> None:
    """The space is invariant after as many blocks: the function is called for what is left of the last."""
    A, calls = sp.diags_array(np.arange(200) % distinct + 1.0).tocsr(), 0

    def product(X: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == distinct + 1 and raises:
            raise ArithmeticError("a block of noise")
        return A @ X * (np.nan if calls == distinct + 1 else 1.0)

    operator = as_operator(product, shape=A.shape, dtype=float)
    basis = BlockKrylov(operator, BlockVector.zeros(200, 24), 0, 3, np.random.default_rng(1), Counts())
    basis.append_random(3)
    while basis.can_go_on():
        basis.expand()
    assert calls > distinct + 1
    assert np.isfinite(basis.buffer.array).all()
    assert decomposition_error(basis) < 1e-13
    assert (
        np.abs(basis.columns(-basis.n_locked, basis.m + basis.w).gram() - np.eye(basis.m + basis.w)).max()
        < 1e-13
    )


@pytest.mark.usefixtures("queues")
def test_nan_is_reported_when_it_is_seen() -> None:
    A = sp.diags_array(np.arange(1.0, 101)).tocsr()
    calls = 0

    def product(X: Any) -> Any:
        nonlocal calls
        calls += 1
        return A @ X * (np.nan if calls >= 4 else 1.0)

    operator = as_operator(product, shape=A.shape, dtype=float)
    basis = BlockKrylov(operator, BlockVector.zeros(100, 24), 0, 2, np.random.default_rng(1), Counts())
    basis.append_random(2)
    for _ in range(6):
        basis.expand()
    with pytest.raises(BreakdownError, match="NaN"):
        basis.settle()


class SeveralSteps:
    """Several steps on the host by the rules of the kernel that takes them on a GPU."""

    def __init__(self, matrix: Any, V: Any, b: int) -> None:
        self.A, self.V, self.b, self.columns = matrix, V, b, V.shape[1]
        self.steps: list[int] = []
        self.multiplies = True

    def __call__(
        self,
        X: Any,
        W: Any,
        m: int,
        end: int,
        back: int,
        full_until: int,
        locked: int,
        steps: int,
        multiplies: bool,
        enough: float,
        limit: float,
        product: Any,
    ) -> Any:
        V, b, reports = self.V, self.b, []
        self.steps.append(steps if multiplies or product else 0)
        for _ in range(steps):
            if product:
                product(X, W)
            elif multiplies:
                W[...] = self.A @ X
            first, report = (
                0 if m < full_until else max(m - back, 0),
                np.full((2 * V.shape[1], b), np.nan, V.dtype),
            )
            window = np.r_[:locked, max(first, locked) : end]
            for i, columns in enumerate((window, np.arange(end))):
                S = V[:, columns].conj().T @ W
                W -= V[:, columns] @ S
                report[i * V.shape[1] + columns] = S
            T, factor = blockvec.backends.backend_of(W).inverse_factor(W.conj().T @ W, limit)
            W[...] = W @ T
            if enough < factor[-1, 0].real < np.inf:
                again, other = blockvec.backends.backend_of(W).inverse_factor(W.conj().T @ W, limit)
                W[...] = W @ again
                factor[b : 2 * b] = other[b : 2 * b] @ factor[b : 2 * b]
                factor[2 * b : 3 * b] = T @ again
            V[:, end : end + b] = W
            reports.append(np.vstack([report, factor]))
            m, end, X, W = m + b, end + b, W, X
        return np.stack(reports)


@pytest.fixture(params=[True, False], ids=["its own products", "products of others"])
def several(
    request: pytest.FixtureRequest, queues: None, monkeypatch: pytest.MonkeyPatch
) -> list[SeveralSteps]:
    """Take several steps by one call on the host, too."""
    made: list[SeveralSteps] = []

    def steps(operator: Any, V: Any, b: int) -> KrylovSteps | None:
        if V.dtype.char not in "dD":
            return None
        A = operator.to_host()
        made.append(SeveralSteps(A, V.array, b))
        return KrylovSteps(made[-1], b, product=None if request.param else lambda X, Y: np.copyto(Y, A @ X))

    monkeypatch.setattr(SparseOperator, "krylov_steps", steps)
    return made


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("b", [1, 3])
def test_the_decomposition_holds_after_several_steps(dtype: str, b: int, several: list[SeveralSteps]) -> None:
    cycles(models.model("laplace1d:n=300").astype(dtype), b)
    assert several


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize("form", ["returned", "column-major", "written"])
def test_functions_are_multiplied_by_between_launches(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    A = models.model("laplace2d:nx=20,ny=21").tocsr()

    def returning(X: Any) -> Any:
        return A @ X if form == "returned" else np.asfortranarray(A @ X)

    def writing(X: Any, out: Any) -> None:
        out[...] = A @ X

    operator = as_operator(writing if form == "written" else returning, shape=A.shape, dtype=float)
    made: list[SeveralSteps] = []

    def launcher(_: Any, matrix: Any, V: Any, b: int) -> SeveralSteps:
        made.append(SeveralSteps(matrix, V, b))
        return made[-1]

    monkeypatch.setattr(type(operator.backend), "krylov_steps", launcher)
    basis = BlockKrylov(operator, BlockVector.zeros(420, 40), 0, 3, np.random.default_rng(1), Counts())
    basis.append_random(3)
    while basis.can_expand():
        basis.expand(basis.capacity)
    basis.settle()
    assert decomposition_error(basis) < 1e-13
    assert set(made[0].steps) == {1}  # each queued by a call of its own


def test_several_steps_stay_in_the_complement_of_locked_columns(several: list[SeveralSteps]) -> None:
    A = models.model("laplace2d:nx=30,ny=31").tocsr()
    exact, vectors = np.linalg.eigh(A.toarray())
    w, V = eigsh(A, k=5, which="SA", rng=0, orthogonal_to=vectors[:, 1:4])
    assert np.allclose(w, np.r_[exact[0], exact[4:8]], rtol=0, atol=1e-12)
    assert np.abs(vectors[:, 1:4].T @ V).max() < 1e-12
    assert max(several[0].steps) > 4


def test_a_step_ahead_that_was_not_enough_is_taken_with_care(several: list[SeveralSteps]) -> None:
    A = as_operator(sp.diags_array(np.arange(200) % 3 + 1.0, format="csr"))  # invariant after three steps
    basis = BlockKrylov(A, BlockVector.zeros(200, 24), 0, 2, np.random.default_rng(1), Counts())
    basis.append_random(2)
    basis.expand(2)
    m = basis.m
    basis.steps.begin_ahead(basis, 8)
    assert len(basis.ritz(m).theta) == 2
    assert len(basis.ritz().theta) < basis.capacity  # without those after the step that failed
    assert several


@pytest.mark.usefixtures("queues")
def test_errors_of_a_function_are_those_of_the_caller() -> None:
    A, calls = models.model("laplace1d:n=300").tocsr(), 0

    def product(X: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 9:
            raise ArithmeticError("the tenth call")
        return A @ X

    with pytest.raises(ArithmeticError, match="the tenth call"):
        eigsh(product, 2, which="LA", shape=A.shape, method="lanczos")
