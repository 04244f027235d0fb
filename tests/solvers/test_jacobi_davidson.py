"""Block Jacobi-Davidson: inside a spectrum, with preconditioners, and honest where it gets stuck."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla

from blockvec import BlockVector, as_operator, models
from blockvec.errors import BreakdownError, ShapeError
from solvers import EigenResult, IterationState, NoConvergence, eigsh
from solvers.jacobi_davidson import FoldedOperator, JacobiDavidsonOptions, jacobi_davidson, least_basis
from solvers.krylov import Counts
from solvers.rayleigh_ritz import Tolerance
from solvers.search_space import SearchSpace


def solve(A: Any, k: int, **options: Any) -> EigenResult:
    options = {"method": "jd", "rng": 0, "return_info": True, "tol": 1e-9, "convergence": "norm", **options}
    result = eigsh(A, k, **options)
    assert isinstance(result, EigenResult)
    return result


def check_nearest(result: EigenResult, A: Any, sigma: float) -> None:
    """Assert that the values are those nearest to sigma, with true residuals and orthonormal vectors."""
    w, X, k = result.eigenvalues, result.eigenvectors, result.info["k"]
    values = np.linalg.eigvalsh(A.toarray())
    distances = np.sort(np.abs(values - sigma))[:k]
    assert np.allclose(np.sort(np.abs(w - sigma)), distances, atol=1e-7)  # ties may be cut either way
    assert np.allclose(np.min(np.abs(w[:, None] - values), axis=1), 0, atol=1e-12)
    assert np.linalg.norm(X.conj().T @ X - np.eye(k)) <= 1e-14
    residuals = np.linalg.norm(A @ X - X * w, axis=0)
    assert np.allclose(residuals, result.residuals, rtol=1e-2, atol=1e-14)
    assert result.converged.all()


@pytest.mark.parametrize("block_size", [1, 2, 4])
@pytest.mark.parametrize("disorder", [0.0, 0.1])
def test_values_of_graphene_around_zero_are_those_of_lapack(block_size: int, disorder: float) -> None:
    # The spectrum is symmetric: Ritz values between -E and E are everywhere, and none is to be believed.
    A = models.model(f"graphene:nx=16,ny=18,disorder={disorder}")
    result = solve(A, 10, sigma=0.0, block_size=block_size)
    check_nearest(result, A, 0.0)
    assert result.info["method"] == "jd"
    assert result.info["sigma"] == 0.0
    assert result.info["verification_columns"] > 0


@pytest.mark.parametrize(
    ("spec", "sigma", "k"),
    [
        ("laplace2d:n=12", 4.0, 9),  # twelve copies at the target itself
        ("laplace2d:nx=14,ny=11", 2.7, 6),
        ("hofstadter:nx=12,ny=9", 0.4, 7),
        ("xxz:sites=10,up=5", -0.35, 5),
        ("graphene:nx=12,ny=12,disorder=0.3,seed=2", 0.7, 4),
    ],
)
def test_interior_values_are_found_without_a_factor(spec: str, sigma: float, k: int) -> None:
    A = models.model(spec)
    check_nearest(solve(A, k, sigma=sigma), A, sigma)


def test_smallest_magnitude_means_around_zero() -> None:
    A = models.model("graphene:nx=10,ny=8,disorder=0.4")
    check_nearest(solve(A, 4, which="SM"), A, 0.0)


def test_all_copies_of_an_interior_value_are_found() -> None:
    values = np.r_[np.linspace(-5, -1, 80), np.repeat(0.3, 7), np.linspace(1, 5, 80)]
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((167, 167)))[0]
    A = sp.csr_array((Q * values) @ Q.T)
    A = (A + A.T) / 2
    for block_size in (1, 3):
        result = solve(A, 9, sigma=0.0, block_size=block_size, tol=1e-10)
        check_nearest(result, A, 0.0)
        assert max(count for _, count in result.multiplicities) == 7


def test_no_refined_vector_is_nearer_than_there_are_eigenvalues_for() -> None:
    values = np.r_[-np.linspace(1, 3, 30), np.linspace(1, 3, 30)]
    nearest = {"Ritz": np.inf, "refined": np.inf}
    for seed in range(20):
        buffer = BlockVector.zeros(60, 12)
        space = SearchSpace(as_operator(np.diag(values)), buffer, 0, "LM", 0.0, 0, Counts())
        space.extend(BlockVector.random(60, 12, rng=seed))
        V = space.vectors(space.extract().Y)
        distances = np.linalg.norm(values[:, None] * V.array, axis=0)
        assert np.all(np.diff(distances) >= -1e-14)
        nearest["refined"] = min(nearest["refined"], distances[0])
        nearest["Ritz"] = min(nearest["Ritz"], np.abs(space.ritz_values()).min())
    assert nearest["Ritz"] < 0.2
    assert nearest["refined"] >= 1


def test_values_on_both_sides_of_the_target_are_told_apart() -> None:
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((40, 40)))[0]
    values = np.r_[-0.5, 0.5, 0.0, np.linspace(1, 3, 37)]
    A = (Q * values) @ Q.T
    buffer = BlockVector.zeros(40, 8)
    space = SearchSpace(as_operator((A + A.T) / 2), buffer, 0, "LM", 0.0, 0, Counts())
    space.extend(BlockVector(np.ascontiguousarray(Q[:, :8] @ rng.standard_normal((8, 8)))))
    assert np.allclose(np.sort(space.extract().theta[:3]), [-0.5, 0, 0.5], atol=1e-13)


def test_a_search_space_keeps_its_relations(operator_for: Callable[[Any], Any], block_type: Any) -> None:
    A = models.model("hofstadter:nx=9,ny=8").toarray()
    for tau in (None, 0.3):
        buffer = block_type.random(72, 22, A.dtype, rng=0)
        C = np.linalg.qr(buffer.array[:, :2])[0]
        buffer.array[:, :2] = C
        P = np.eye(72) - C @ C.conj().T
        space = SearchSpace(operator_for(A), buffer, 2, "SA", tau, np.random.default_rng(0), Counts())

        def relations(space: SearchSpace = space, P: Any = P) -> None:
            m = space.m
            V, W = space.columns(0, m).array, space._W[:, :m].array
            shifted = P @ (A @ V - space.tau * V)
            assert np.allclose(V.conj().T @ V, np.eye(m), atol=1e-14)
            assert np.allclose(P @ V, V, atol=1e-14)
            assert np.allclose(W @ space._R[:m, :m], shifted, atol=1e-13)
            assert np.allclose(V.conj().T @ shifted, space._H[:m, :m], atol=1e-13)

        for width in (4, 3, 5):
            space.extend(block_type.random(72, width, A.dtype, rng=width))
        relations()
        found = space.extract()
        X = space.vectors(found.Y[:, :3])
        R = space.residuals(X, found.Y[:, :3], found.theta[:3])
        assert np.allclose(R.array, P @ A @ X.array - X.array * found.theta[:3], atol=1e-12)
        space.shrink(found.Y[:, :6])
        relations()
        space.extend(space.images(4))
        space.reorthonormalize()
        relations()
        space.refresh()
        assert space.m == 10
        relations()


def test_it_needs_nothing_but_the_block_interface(
    block_type: Any, operator_for: Callable[[Any], Any]
) -> None:
    A = models.model("laplace2d:nx=13,ny=11")
    values = np.linalg.eigvalsh(A.toarray())
    options = {"k": 5, "which": "SA", "tolerance": Tolerance(1e-9, "norm", 1.1e-16)}
    options |= {"block_size": 2, "ncv": 20, "maxiter": 300}
    for target in (None, 3.1):
        begin = block_type.random(143, 2, rng=1)
        jd = JacobiDavidsonOptions(**options, target=target)
        found = jacobi_davidson(operator_for(A), begin, jd, rng=2)
        assert found.reason == "converged"
        expected = values[:5] if target is None else values[np.argsort(np.abs(values - target))[:5]]
        assert np.allclose(np.sort(found.theta), np.sort(expected), atol=1e-9)


def test_jacobis_preconditioner_saves_work() -> None:
    A = sp.csr_array(sp.diags_array(np.linspace(0, 1e3, 900) ** 1.5) + models.model("laplace2d:n=30"))
    d = np.maximum(A.diagonal(), 1)[:, None]
    plain = solve(A, 6, which="SA", norm=1e4)
    better = solve(A, 6, which="SA", norm=1e4, preconditioner=lambda X: X / d)
    assert np.allclose(better.eigenvalues, np.linalg.eigvalsh(A.toarray())[:6], atol=1e-7)
    assert better.info["operator_columns"] < plain.info["operator_columns"] / 2
    assert (
        eigsh(A, 6, which="SA", preconditioner=sp.diags_array(1 / d[:, 0]), return_info=True, rng=0).info[
            "why"
        ]
        == "preconditioner is given"
    )


def test_an_indefinite_preconditioner_serves_inside_a_spectrum() -> None:
    A = sp.csr_array(sp.diags_array(np.linspace(-40, 60, 400)) + models.model("laplace1d:n=400"))
    sigma = 3.3
    d = A.diagonal() - sigma
    d[np.abs(d) < 0.5] = 0.5
    result = solve(A, 5, sigma=sigma, preconditioner=lambda X: X / d[:, None])
    check_nearest(result, A, sigma)
    assert result.info["operator_columns"] < solve(A, 5, sigma=sigma).info["operator_columns"]


def test_an_incomplete_factor_may_be_a_linear_operator() -> None:
    A = models.model("laplace2d:n=30")
    factor = sla.spilu(A.tocsc(), drop_tol=1e-3)
    form = sla.LinearOperator(A.shape, matvec=factor.solve, matmat=factor.solve, dtype=float)
    result = solve(A, 6, which="SA", preconditioner=form, norm=8.0)
    assert np.allclose(result.eigenvalues, np.linalg.eigvalsh(A.toarray())[:6], atol=1e-7)
    plain = solve(A, 6, which="SA", norm=8.0).info["operator_columns"]
    assert result.info["operator_columns"] < plain


def test_a_preconditioner_that_breaks_the_rules_is_refused() -> None:
    A = models.model("laplace2d:n=25")
    with pytest.raises(ShapeError, match=r"preconditioner has shape \(9, 9\) but A has \(625, 625\)"):
        solve(A, 3, preconditioner=np.eye(9))
    with pytest.raises(ShapeError, match=r"preconditioner: returned shape \(625, 1\)"):
        solve(A, 3, preconditioner=lambda X: X[:, :1])
    with pytest.raises(BreakdownError, match="the operator or the preconditioner returned NaN"):
        solve(A, 3, preconditioner=lambda X: X * np.nan)


@pytest.mark.parametrize("name", ["bcsstk09", "gr_30_30"])
def test_interior_values_of_real_matrices(name: str, real_matrix: Callable[[str], Any]) -> None:
    A = real_matrix(name)
    values = np.linalg.eigvalsh(A.toarray())
    sigma = float(values[len(values) // 20] + values[len(values) // 20 + 1]) / 2
    result = solve(A, 4, sigma=sigma, tol=1e-8)
    distances = np.sort(np.abs(values - sigma))[:4]
    assert np.allclose(np.sort(np.abs(result.eigenvalues - sigma)), distances, atol=1e-7 * values[-1])


def test_the_same_seed_gives_the_same_bits_inside_a_spectrum() -> None:
    A = models.model("graphene:nx=10,ny=8,disorder=0.2")
    first, second, other = (solve(A, 5, sigma=0.2, rng=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.eigenvectors, second.eigenvectors)
    assert not np.array_equal(first.eigenvectors, other.eigenvectors)


def test_callback_and_counts_are_those_of_every_method() -> None:
    matrix = models.model("graphene:nx=10,ny=8,disorder=0.2")
    columns: list[int] = []
    seen: list[IterationState] = []

    def apply(X: np.ndarray) -> np.ndarray:
        columns.append(X.shape[1])
        return matrix @ X

    info = solve(apply, 5, sigma=0.2, shape=matrix.shape, callback=seen.append).info
    assert info["operator_columns"] == sum(columns)
    assert info["block_applications"] == len(columns)
    assert info["restarts"] == len(seen)
    assert seen[-1].converged == 5
    assert all(len(state.residuals) == 5 for state in seen)
    with pytest.raises(NoConvergence, match="of 5 pairs converged after 2 restarts"):
        eigsh(matrix, 5, sigma=0.2, method="jd", maxiter=2, rng=0)


def test_stagnation_is_reported_and_no_endless_loop() -> None:
    A = models.model("laplace2d:n=25")
    noise = np.random.default_rng(0)

    def noisy(X: np.ndarray) -> np.ndarray:
        return A @ X + 1e-4 * noise.standard_normal(X.shape)

    options = {"shape": A.shape, "check_hermitian": False, "on_unconverged": "return", "norm": 8.0}
    result = solve(noisy, 4, which="SA", tol=1e-12, **options)
    assert result.info["stopped"] == "stagnated"
    assert not result.converged.all()
    assert np.all(result.residuals < 0.1)
    with pytest.raises(NoConvergence, match="before the residuals ceased to fall: raise ncv"):
        solve(noisy, 4, which="SA", tol=1e-12, **{**options, "on_unconverged": "raise"})


def test_a_folded_operator_is_the_square(block_type: Any, operator_for: Callable[[Any], Any]) -> None:
    A = models.model("hofstadter:nx=6,ny=6")
    X, Y = (block_type.random(36, 3, A.dtype, rng=seed) for seed in (0, 1))
    folded = FoldedOperator(operator_for(A), 0.7)
    square = np.linalg.matrix_power(A.toarray() - 0.7 * np.eye(36), 2)
    assert np.allclose(folded.apply(X).array, square @ X.array)
    expected = 2 * (square @ X.array - 0.4 * X.array) + 3 * Y.array
    assert np.allclose(folded.apply(X, out=Y, alpha=2, beta=3, shift=0.4).array, expected)


def test_a_restart_leaves_room_for_a_step() -> None:
    for k, ncv, b in ((1, 3, 2), (5, 33, 2), (5, 6, 1), (20, 76, 4)):
        assert k <= least_basis(k, ncv, b) <= ncv - b
