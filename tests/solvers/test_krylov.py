"""The decomposition A V = V T + Q B with [V Q] orthonormal: kinds of steps, restarts and rank loss."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import BlockVector, as_operator, models
from blockvec.backends import backend_for, backend_of
from blockvec.errors import BreakdownError
from solvers import eigsh, sizes
from solvers.blocks import ColumnBlock
from solvers.iterations import krylov
from solvers.iterations.device_krylov import DeviceKrylov
from solvers.problem import Counts, select
from solvers.small_matrices import oblique, ritz_pairs
from tests.matrices import normal, orthonormal, random_sparse
from tests.pairwise import pairwise

WIDE = tuple(itertools.product(("float64", "complex128"), (1, 3)))
KINDS = ("rows", "columns", "queued", "several at once", "several with products of others")


class SeveralSteps:
    """Several steps on the host by the rules of the kernel that takes them on a GPU."""

    def __init__(self, matrix: Any, V: Any, b: int) -> None:
        self.A, self.V, self.b, self.columns = matrix, V, b, V.shape[1]
        self.steps: list[int] = []
        self.multiplies = True

    def __call__(self, X: Any, W: Any, *sizes_and_limits: Any) -> Any:
        m, end, back, full_until, locked, steps, multiplies, enough, limit, product = sizes_and_limits
        V, b, reports = self.V, self.b, []
        factorise = backend_of(W).inverse_factor
        self.steps.append(steps if multiplies or product else 0)
        for _ in range(steps):
            if product:
                product(X, W)
            elif multiplies:
                W[...] = self.A @ X
            first = 0 if m < full_until else max(m - back, 0)
            report = np.full((2 * V.shape[1], b), np.nan, V.dtype)
            window = np.r_[:locked, max(first, locked) : end]
            for i, columns in enumerate((window, np.arange(end))):
                S = V[:, columns].conj().T @ W
                W -= V[:, columns] @ S
                report[i * V.shape[1] + columns] = S
            T, factor = factorise(W.conj().T @ W, limit)
            W[...] = W @ T
            if enough < factor[-1, 0].real < np.inf:
                again, other = factorise(W.conj().T @ W, limit)
                W[...] = W @ again
                factor[b : 2 * b] = other[b : 2 * b] @ factor[b : 2 * b]
                factor[2 * b : 3 * b] = T @ again
            V[:, end : end + b] = W
            reports.append(np.vstack([report, factor]))
            m, end, X, W = m + b, end + b, W, X
        return np.stack(reports)


@pytest.fixture
def steps_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[SeveralSteps]]:
    """Return a function that has steps taken by a kind, as on a GPU, and gives the launchers made."""

    def choose(kind: str) -> list[SeveralSteps]:
        made: list[SeveralSteps] = []
        if kind in ("rows", "columns"):
            return made
        monkeypatch.setattr(krylov, "is_queued", lambda *_: True)
        monkeypatch.setattr(sizes, "SHORT_ROWS", 0)  # row-major blocks

        def several(_: Any, matrix: Any, V: Any, b: int) -> SeveralSteps | None:
            if V.dtype.char not in "dD":
                return None
            made.append(SeveralSteps(matrix and matrix.scaled(1, V.dtype), V, b))
            made[-1].multiplies = kind == "several at once"
            return made[-1]

        if kind.startswith("several"):
            monkeypatch.setattr(type(backend_for("cpu")), "krylov_steps", several)
        return made

    return choose


def started(
    A: Any, b: int, capacity: int = 24, kind: str = "rows", locked: int = 0, dtype: Any = None
) -> krylov.BlockKrylov:
    """Begin a decomposition of a matrix or function in the complement of random columns."""
    n, dtype = A.shape[0], dtype or A.dtype
    buffer = (ColumnBlock if kind == "columns" else BlockVector)(np.zeros((n, locked + capacity), dtype))
    buffer.array[:, :locked] = orthonormal(2, n, locked, dtype)
    basis = krylov.krylov_of(as_operator(A), buffer, locked, b, np.random.default_rng(1), Counts())
    basis.append_random(b)
    return basis


def check(basis: krylov.BlockKrylov, A: Any, bound: float = 300) -> None:
    """Check the decomposition of A, restricted to the complement of the locked columns."""
    loss = 10 * krylov.LOSS if basis.takes_single_columns else 0.0  # kept Ritz vectors are sums of many
    basis.settle()
    m, locked = basis.m, basis.n_locked
    whole = basis.columns(-locked, m + basis.w).array.astype("complex128")
    unit = np.finfo(basis.buffer.array.dtype).eps / 2
    A, H, VQ, C = A.toarray(), basis.H[: m + basis.w, :m], whole[:, locked:], whole[:, :locked]
    if locked:
        A = A - C @ (C.conj().T @ A)
        A = A - (A @ C) @ C.conj().T
    T = (H[:m] + H[:m].conj().T) / 2 if not loss else H[:m]
    assert np.abs(whole.conj().T @ whole - np.eye(whole.shape[1])).max() <= max(bound * unit, loss)
    defect = A @ VQ[:, :m] - VQ[:, :m] @ T - VQ[:, m:] @ H[m:]
    assert np.linalg.norm(defect) <= bound * unit * np.linalg.norm(H, 2)


def filled(basis: krylov.BlockKrylov, A: Any, kind: str = "rows") -> krylov.BlockKrylov:
    """Take all steps; check each, or all where they are queued."""
    while basis.can_expand():
        basis.expand()
        if kind in ("rows", "columns") or not basis.can_expand():
            check(basis, A)
    return basis


def chain(dtype: str) -> Any:
    A = models.model("laplace1d:n=160") + 0.3 * random_sparse(0, 160, per_row=1, dtype=dtype)
    return sp.csr_array(A).astype(dtype)


@pytest.mark.parametrize(
    ("kind", "dtype_and_width", "locked"), pairwise(KINDS, (*WIDE, ("float32", 4), ("complex64", 3)), (0, 2))
)
def test_the_decomposition_holds_after_every_step_and_restart(
    kind: str, dtype_and_width: tuple[str, int], locked: int, steps_by: Any
) -> None:
    dtype, b = dtype_and_width
    made, A = steps_by(kind), chain(dtype)
    basis = started(A, b, 24 + b, kind, locked)
    for _ in range(3):
        ritz = filled(basis, A, kind).ritz()
        basis.restart(ritz, select(ritz.theta, "LA")[: 3 * b])
        check(basis, A)
    assert basis.counts.operator_columns == 24 + 2 * (24 - 3 * b)
    assert bool(made) == (kind.startswith("several") and dtype in ("float64", "complex128"))


@pytest.mark.parametrize(
    ("kind", "dtype", "distinct"), pairwise(KINDS, ("float64", "complex128", "float32"), (0, 1, 2, 4))
)
def test_an_invariant_subspace_is_left_through_random_directions(
    kind: str, dtype: str, distinct: int, steps_by: Any
) -> None:
    """With few distinct values the space is invariant after as many steps, and blocks lose their rank."""
    steps_by(kind)
    values = np.arange(200.0) % max(distinct, 1) + min(distinct, 1)
    A = sp.diags_array(values).astype(dtype).tocsr()
    basis = filled(started(A, 3, kind=kind), A, kind)
    for _ in range(3):
        basis.restart(basis.ritz(), np.arange(6))
        filled(basis, A, kind)
    assert basis.m == 21
    assert (np.abs(basis.ritz().theta[:, None] - values).min(axis=0) < 1e-5).all()
    if kind == "queued" and distinct:
        assert basis.counts.block_applications > 7 + 3 * 5  # also those that were queued too far


@pytest.mark.parametrize("is_complex", [False, True])
def test_single_columns_lose_no_more_orthogonality_than_permitted(is_complex: bool) -> None:
    A = random_sparse(1, 500, dtype=complex if is_complex else float)
    basis = started(A, 1, 120, "columns")
    for _ in range(6):  # neither grows with restarts
        while basis.can_expand():
            basis.expand(120)
        check(basis, A, bound=3000)
        ritz = basis.ritz()
        basis.restart(ritz, np.argsort(-ritz.theta)[:30])


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_corrections_can_be_coupled_in(kind: str) -> None:
    """A decomposition of a slightly wrong operator becomes the right one's when it is told the difference."""
    A = chain("float64")
    wrong = A + 1e-8 * sp.diags_array(np.random.default_rng(2).standard_normal(160))
    basis = filled(started(wrong, 3, 30, kind), wrong, kind)
    ritz = basis.ritz()
    basis.restart(ritz, select(ritz.theta, "LA")[:3])
    VQ = basis.columns(0, basis.m + basis.w).array
    defect = A @ VQ[:, : basis.m] - VQ @ basis.H[: basis.m + basis.w, : basis.m]
    S, R, count = basis.append(type(basis.buffer)(np.ascontiguousarray(defect)), keep_random=True)
    basis.couple(0, S, R, count)
    check(basis, A)


class Failing:
    """A function that is a diagonal matrix, but for one call."""

    def __init__(self, A: Any, at: int, fail: Callable[[Any], Any], *, once: bool = True) -> None:
        self.A, self.at, self.fail, self.once, self.calls = A, at, fail, once, 0
        self.operator = as_operator(self, shape=A.shape, dtype=float)

    def __call__(self, X: Any) -> Any:
        self.calls += 1
        fails = self.calls == self.at if self.once else self.calls >= self.at
        return self.fail(self.A @ X) if fails else self.A @ X


@pytest.mark.parametrize("fail", [lambda Y: 1 / 0, lambda Y: Y * np.nan], ids=["raises", "NaN"])
@pytest.mark.parametrize("distinct", [2, 3, 4])
def test_a_function_may_fail_for_the_rounding_errors_of_an_earlier_step(
    distinct: int, fail: Any, steps_by: Any
) -> None:
    """The space is invariant after as many blocks: the function is called for what is left of the last."""
    steps_by("queued")
    A = sp.diags_array(np.arange(200) % distinct + 1.0).tocsr()
    function = Failing(A, distinct + 1, fail)
    basis = started(function.operator, 3)
    while basis.can_expand():
        basis.expand()
    assert function.calls > distinct + 1
    check(basis, A)


def test_errors_of_a_function_are_seen(steps_by: Any) -> None:
    steps_by("queued")
    A = sp.diags_array(np.arange(1.0, 301)).tocsr()
    basis = started(Failing(A, 4, lambda Y: Y * np.nan, once=False).operator, 2)
    for _ in range(6):
        basis.expand()
    with pytest.raises(BreakdownError, match="NaN"):
        basis.settle()
    with pytest.raises(ZeroDivisionError):
        eigsh(Failing(A, 10, lambda Y: 1 / 0, once=False), 2, which="LA", shape=A.shape, method="lanczos")


@pytest.mark.parametrize("form", ["returned", "column-major", "written"])
def test_functions_are_multiplied_by_between_launches(form: str, steps_by: Any) -> None:
    made, A = steps_by("several with products of others"), models.model("laplace2d:nx=20,ny=21").tocsr()

    def returning(X: Any) -> Any:
        return A @ X if form == "returned" else np.asfortranarray(A @ X)

    def writing(X: Any, out: Any) -> None:
        out[...] = A @ X

    function = writing if form == "written" else returning
    basis = started(as_operator(function, shape=A.shape, dtype=float), 3, 40)
    while basis.can_expand():
        basis.expand(basis.capacity)
    check(basis, A)
    assert set(made[0].steps) == {1}  # each queued by a call of its own


def test_several_steps_stay_in_the_complement_of_locked_columns(steps_by: Any) -> None:
    made, A = steps_by("several at once"), models.model("laplace2d:nx=20,ny=21").tocsr()
    exact, vectors = np.linalg.eigh(A.toarray())
    w, V = eigsh(A, k=5, which="SA", rng=0, orthogonal_to=vectors[:, 1:4], method="lanczos")
    assert np.allclose(w, np.r_[exact[0], exact[4:8]], rtol=0, atol=1e-12)
    assert np.abs(vectors[:, 1:4].T @ V).max() < 1e-12
    assert max(made[0].steps) > 4


def test_a_step_ahead_that_was_not_enough_is_taken_with_care(steps_by: Any) -> None:
    made, A = steps_by("several at once"), sp.diags_array(np.arange(200) % 3 + 1.0, format="csr")
    basis = started(A, 2)  # invariant after three steps
    basis.expand(2)
    m = basis.m
    basis.begin_ahead(8)
    assert len(basis.ritz(m).theta) == 2
    assert len(basis.ritz().theta) < basis.capacity  # without those after the step that failed
    assert made


def test_projected_matrices_are_solved_where_divide_and_conquer_gives_up(monkeypatch: Any) -> None:
    def give_up(T: Any) -> Any:
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    monkeypatch.setattr(np.linalg, "eigh", give_up)
    T = np.kron(np.eye(6), [[2.0, 1.0], [1.0, 2.0]])
    theta, Y = ritz_pairs(T)
    assert np.allclose(theta, np.repeat([1.0, 3.0], 6))
    assert np.allclose(Y @ np.diag(theta) @ Y.T, T)


def test_copies_in_an_oblique_basis_have_a_coupling_that_is_reported() -> None:
    rng, n, loss = np.random.default_rng(0), 30, 1e-10
    Q, values = orthonormal(rng, n), np.arange(1.0, n + 1)
    values[1] = values[0] + 1e-13  # no correction of first order tells it from the first one
    K = normal(rng, n, n)
    T = (Q * values) @ Q.T + loss * (K - K.T)
    theta, Y = ritz_pairs(T)
    corrected, coupling = oblique(T, theta, Y)
    left = np.abs(T @ corrected - corrected * theta).max()
    assert 1e-11 <= left <= coupling <= 100 * loss
    assert oblique(T, theta, Y, 100 * loss)[0] is Y  # rounding errors are averaged


def test_products_beside_launched_steps_have_few_widths() -> None:
    buffer = BlockVector.empty(144, 96)
    krylov = DeviceKrylov(as_operator(models.model("laplace2d:n=12")), buffer, 0, 4, None, Counts())
    krylov.unit = 4  # as on a GPU
    assert [krylov._filled(columns) for columns in (3, 20, 68)] == [4, 20, 68]
    krylov.takes_launches = True
    assert [krylov._filled(columns) for columns in (3, 20, 68)] == [64, 64, 96]
