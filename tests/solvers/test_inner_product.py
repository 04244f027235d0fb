"""Shift-invert on blocks in the inner product of M, as on GPUs, on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg as sl
import scipy.sparse as sp

from blockvec import BlockVector, as_operator, models
from blockvec.errors import OptionError
from solvers import count_eigenvalues, eigsh
from solvers.iterations.spectrum import Recurrences, recurrences
from solvers.orthogonalization import orthogonalize
from solvers.transform.inner_product import inner_product_blocks, inner_product_columns
from solvers.transform.standard_form import standard_form
from tests.matrices import gauged
from tests.pairwise import pairwise
from tests.solvers.answers import answered, eigenvalues, torus, twice

N = 300
DIGITS: dict[str, float] = {"rtol": 1e-10, "loss": 1e-11}


@pytest.fixture(autouse=True, params=["rows", "columns"])
def _as_on_a_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def form(operator: Any, A: Any, M: Any, *shift_and_mode: Any, **others: Any) -> Any:
        return standard_form(operator, A, M, *shift_and_mode, on_vectors=True)

    if request.param == "columns" and "without_a_shift" in request.node.name:
        pytest.skip("forms without a shift have row-major blocks")
    if request.param == "rows":
        monkeypatch.setattr("solvers.sizes.SHORT_ROWS", 0)

    for module in ("transform.standard_form", "counting"):
        monkeypatch.setattr(f"solvers.{module}.standard_form", form)
    monkeypatch.setattr("solvers.call.fits_dense", lambda op: False)


def pencil(kind: str) -> tuple[Any, Any]:
    """Return a stiffness and a mass matrix of a kind."""
    A = models.laplace1d(n=N) + sp.diags_array(np.linspace(0, 1, N))
    M = sp.diags_array(
        [np.full(N - 1, 1 / 6), np.linspace(0.6, 1, N), np.full(N - 1, 1 / 6)], offsets=[-1, 0, 1]
    )
    if kind == "complex":
        A, M = gauged(A, 0.1), gauged(M, 0.1)
    if kind == "massless":
        keep = sp.diags_array((np.arange(N) % 3 != 1).astype(float))
        M = keep @ M @ keep
    return sp.csr_array(A), sp.csr_array(M)


@pytest.mark.parametrize("kind", ["real", "complex", "massless"])
@pytest.mark.parametrize("mode", ["normal", "cayley"])
def test_pairs_around_a_shift_are_those_of_lapack(kind: str, mode: str) -> None:
    A, M = pencil(kind)
    theta = sl.eigh(M.toarray(), A.toarray(), eigvals_only=True)
    exact = np.sort(1 / theta[theta > 1e-12])  # others are infinite
    info = answered(A, 9, M, exact=exact, sigma=0.9, mode=mode, **DIGITS).info
    assert info["method"] == "lanczos"
    assert info["restarts"] <= info["block_applications"]


@pytest.mark.parametrize("block_size", [None, 1, 2])
def test_all_copies_are_found_and_the_search_ends(block_size: int | None) -> None:
    A, M, values = torus(26)  # four copies, four, four, more
    info = answered(A, 14, M, exact=values, sigma=-0.01, block_size=block_size, maxiter=20).info
    assert info["verification"].startswith("passed")
    assert info["operator_columns"] < 550


@pytest.mark.parametrize(
    ("which", "rank", "is_dense"), pairwise(("LM", "SA", "BE"), (3, 5, 30), (False, True))
)
def test_rows_without_masses_leave_no_infinite_values(rank: int, which: str, is_dense: bool) -> None:
    """As many masses as values, somewhat more, and fewer than a basis has columns."""
    A, M = pencil("real")
    keep = np.zeros(N)
    keep[100 : 100 + rank] = 1
    M = sp.diags_array(keep) @ M @ sp.diags_array(keep)
    exact = np.sort(1 / sl.eigh(M.toarray(), A.toarray(), eigvals_only=True)[-rank:])
    answered(A, 3, M.toarray() if is_dense else M, exact=exact, sigma=0.0, which=which, **DIGITS)


@pytest.mark.parametrize("block_size", [1, 2])
@pytest.mark.parametrize("k", [2, 9])
def test_copies_on_rows_of_tiny_masses_are_found(block_size: int, k: int) -> None:
    """Two parts that are not connected, with the same values: the second one is light."""
    A, M, values = torus(24, 2.0**-56)
    w = eigsh(A, k, M=M, sigma=-0.01, tol=1e-4, block_size=block_size, rng=0)[0]
    assert np.abs(w - values[:k]).max() < 1e-4


@pytest.mark.parametrize("which", ["SA", "LA", "BE"])
def test_ends_without_a_shift_are_those_of_lapack(which: str) -> None:
    A, M = pencil("real")
    answered(A, 6, M, which=which, **DIGITS)


def test_masses_without_meaning_are_refused_whatever_converges() -> None:
    A, M = pencil("real")
    for mass, options, message in (
        (M - 2 * sp.eye_array(N), {"sigma": 0.0}, "M is indefinite"),
        (M + sp.eye_array(N, k=1) + sp.eye_array(N, k=-1), {}, "M is indefinite"),
        (pencil("massless")[1], {}, "M is singular"),
    ):
        with pytest.raises(OptionError, match=message):
            eigsh(A, 3, M=mass, **options)
    n = 1200  # no factor of M is computed
    A = sp.diags_array([-np.ones(n - 1), np.linspace(2, 50, n), -np.ones(n - 1)], offsets=[-1, 0, 1])
    M = sp.diags_array([1 / 6, 0.32, 1 / 6], offsets=[-1, 0, 1], shape=(n, n), format="csr")
    assert np.linalg.eigvalsh(M.toarray())[0] < 0
    for seed in range(6):
        with pytest.raises(OptionError, match="M is indefinite"):
            eigsh(sp.csr_array(A), 3, M=M, sigma=0.0, rng=seed)


def test_blocks_are_orthonormalised_in_their_inner_product() -> None:
    _, M = pencil("complex")
    blocks = inner_product_blocks(as_operator(M))
    V, W = (blocks.random(N, columns, np.complex128, rng=columns) for columns in (5, 3))
    orthogonalize(V)
    orthogonalize(W, V)
    both = np.hstack([V.array, W.array])
    assert type(V[:, :2].copy()) is blocks
    assert np.abs(both.conj().T @ (M @ both) - np.eye(8)).max() < 1e-13
    assert not isinstance(BlockVector(V.array), blocks)


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_recurrences_of_single_vectors_are_those_of_blocks(kind: str) -> None:
    A, M = pencil(kind)
    form = standard_form(as_operator(A), A, M, -0.1, on_vectors=True)
    V = form.blocks.random(N, 2, A.dtype, rng=0)
    Q = form.blocks.random(N, 3, A.dtype, rng=1)
    orthogonalize(Q, M=as_operator(M))
    columns = inner_product_columns(form.blocks)
    runs = [
        Recurrences(form.operator, V.copy(), (Q,)),
        recurrences(form.operator, columns.of(V), (columns.of(Q),)),
    ]
    for run in runs:
        run.extend(8)
    assert type(runs[1]) is not Recurrences
    for ours, others in zip(runs[1].coefficients(), runs[0].coefficients(), strict=True):
        np.testing.assert_allclose(ours, others, rtol=1e-8)


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_random_blocks_have_alike_components_along_all_vectors(kind: str) -> None:
    _, M = pencil(kind)
    scales = sp.diags_array(10.0 ** -np.linspace(0, 8, N))
    M = sp.csr_array(scales @ M @ scales)
    blocks = inner_product_blocks(as_operator(M), M.diagonal().real)
    for layout in (blocks, inner_product_columns(blocks)):
        Z = layout(np.zeros((N, 1), M.dtype, order="F")).random_like(400, 0)
        root = sl.cholesky(M.toarray(), lower=True)
        sizes = np.linalg.norm(root.conj().T @ Z.array, axis=1)  # along M-orthonormal vectors
        assert sizes.max() < 5 * sizes.min()


@pytest.mark.parametrize("kind", ["real", pytest.param("complex", marks=pytest.mark.slow)])
def test_an_interval_without_a_shift_is_complete_by_filters(kind: str) -> None:
    A, M = twice(*pencil(kind))
    values = eigenvalues(A, M)
    a, b = (values[100] + values[99]) / 2, (values[111] + values[112]) / 2
    # The search for copies is given up where factors would be cheaper, which a result would be warned of.
    w, X = eigsh(A, M=M, interval=(a, b), method="filter", tol=1e-6, rng=0, verify="never")
    assert np.allclose(w, values[100:112], rtol=1e-8)
    assert np.abs(X.conj().T @ (M @ X) - np.eye(len(w))).max() < 1e-10


def test_a_count_estimated_without_a_shift_weighs_all_vectors_alike() -> None:
    # Vectors of low values are smooth: M D^-1 M, with the diagonal D of M, is larger for them.
    A, M = models.laplace1d(n=N), sp.csr_array(pencil("real")[1])
    low = N // 3
    ends = -1.0, float(eigenvalues(A, M)[low - 1 : low + 1].mean())
    counts = [count_eigenvalues(A, *ends, M=M, method="estimate", rng=seed) for seed in range(4)]
    errors = np.array([count.value - low for count in counts])
    assert abs(errors.mean()) < 3 * np.mean([count.error for count in counts]) / np.sqrt(len(counts))
