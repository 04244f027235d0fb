"""Block Jacobi-Davidson: inside a spectrum, with preconditioners, and honest where it gets stuck."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg as dense
import scipy.sparse as sp

from blockvec import BlockVector, as_operator, models
from blockvec.errors import BreakdownError, OptionError, ShapeError
from solvers import (
    CorrectionProblem,
    EigenResult,
    JacobiDavidsonOptions,
    JacobiPreconditioner,
    NoConvergence,
    block_minres,
    eigsh,
)
from solvers.iterations.correction import REMOVED
from solvers.iterations.rayleigh_ritz import Tolerance
from solvers.iterations.search_space import SearchSpace
from solvers.problem import Counts, Problem
from tests.matrices import with_values


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


@pytest.mark.parametrize(
    ("spec", "sigma", "k"),
    [
        ("laplace2d:n=12", 4.0, 9),  # twelve copies at the target itself
        ("hofstadter:nx=12,ny=9", 0.4, 7),
        ("xxz:sites=10,up=3", -0.35, 5),
        ("graphene:nx=12,ny=12,disorder=0.3,seed=2", 0.7, 4),
    ],
)
def test_interior_values_are_found_without_a_factor(spec: str, sigma: float, k: int) -> None:
    A = models.model(spec)
    check_nearest(solve(A, k, sigma=sigma), A, sigma)


def test_all_copies_of_an_interior_value_are_found() -> None:
    values = np.r_[np.linspace(-5, -1, 40), np.repeat(0.3, 7), np.linspace(1, 5, 40)]
    A = sp.csr_array(with_values(values, 0))
    for block_size in (1, 3):
        result = solve(A, 9, sigma=0.0, block_size=block_size, tol=1e-10)
        check_nearest(result, A, 0.0)
        assert max(count for _, count in result.multiplicities) == 7


@pytest.mark.parametrize("padding", [1, 8])
@pytest.mark.parametrize("tau", [None, 0.3])
def test_a_search_space_keeps_its_relations(tau: float | None, padding: int) -> None:
    A = models.model("hofstadter:nx=9,ny=8").toarray()
    C = np.linalg.qr(BlockVector.random(72, 2, A.dtype, rng=0).array)[0]
    P = np.eye(72) - C @ C.conj().T
    rng = np.random.default_rng(0)
    locked = BlockVector(np.ascontiguousarray(C))
    asked: Any = {"k": 1, "which": "SA", "tolerance": Tolerance(0.0, "value", 1e-16), "rng": rng}
    problem = Problem(operator=as_operator(A), locked=locked, target=tau, **asked)
    space = SearchSpace(problem, locked, 20, Counts(), padding)

    def relations() -> None:
        m = space.m
        V, W = space.columns(0, m).array, space._W[:, :m].array
        shifted = P @ (A @ V - space.tau * V)
        assert np.allclose(V.conj().T @ V, np.eye(m), atol=1e-14)
        assert np.allclose(P @ V, V, atol=1e-14)
        assert np.allclose(W @ space._R[:m, :m], shifted, atol=1e-13)
        assert np.allclose(V.conj().T @ shifted, space._H[:m, :m], atol=1e-13)

    for width in (4, 3, 5):
        space.extend(BlockVector.random(72, width, A.dtype, rng=width))
    relations()
    found = space.extract()
    X = space.vectors(found.Y[:, :3])
    R = space.residuals(X, found.Y[:, :3], found.theta[:3])
    assert np.allclose(R.array, P @ A @ X.array - X.array * found.theta[:3], atol=1e-12)
    space.shrink(found.Y[:, :6])
    relations()
    space.extend(space.images(4))
    space.columns(0, space.m).scale(1 + 1e-6 * np.arange(space.m))  # V is no longer normalised
    space.refresh()
    assert space.m == 10
    relations()


def test_an_indefinite_preconditioner_serves_inside_a_spectrum() -> None:
    A = sp.csr_array(sp.diags_array(np.linspace(-40, 60, 400)) + models.model("laplace1d:n=400"))
    sigma = 3.3
    d = A.diagonal() - sigma
    d[np.abs(d) < 0.5] = 0.5
    result = solve(A, 5, sigma=sigma, preconditioner=lambda X: X / d[:, None])
    check_nearest(result, A, sigma)
    plain = solve(A, 5, sigma=sigma, verify="never")
    columns = result.info["operator_columns"] - result.info["verification_columns"]
    assert columns < plain.info["operator_columns"]


def test_a_preconditioner_that_breaks_the_rules_is_refused() -> None:
    A = models.model("laplace2d:n=25")
    with pytest.raises(ShapeError, match=r"preconditioner has shape \(9, 9\) but A has \(625, 625\)"):
        solve(A, 3, preconditioner=np.eye(9))
    with pytest.raises(ShapeError, match=r"preconditioner: returned shape \(625, 1\)"):
        solve(A, 3, preconditioner=lambda X: X[:, :1])
    with pytest.raises(BreakdownError, match="preconditioner returned NaN or Inf"):
        solve(A, 3, preconditioner=lambda X: X * np.nan)


@pytest.mark.parametrize("correction", ["davidson", "olsen", "minres", "gmres"])
@pytest.mark.parametrize("which", ["SA", "LA"])
def test_every_correction_leads_to_the_end_of_a_spectrum(correction: Any, which: str) -> None:
    A = sp.csr_array(models.model("laplace2d:nx=30,ny=21") + sp.diags_array(np.linspace(0, 3, 630)))
    how = JacobiDavidsonOptions(correction=correction)
    d = A.diagonal()[:, None] + 1
    K = (lambda X: X / d) if which == "SA" else None
    result = solve(A, 6, which=which, jd_options=how, block_size=2, preconditioner=K)
    values = np.linalg.eigvalsh(A.toarray())
    assert np.allclose(result.eigenvalues, values[:6] if which == "SA" else values[-6:], atol=1e-12)
    assert result.info["restarts"] < 200
    assert (result.info["preconditioner_columns"] > 0) == (which == "SA")


def test_a_users_correction_is_taken_and_its_products_counted() -> None:
    A = models.model("laplace2d:nx=14,ny=11")
    exact = np.linalg.eigvalsh(A.toarray())
    seen: list[CorrectionProblem] = []

    def solver(problem: CorrectionProblem) -> BlockVector:
        seen.append(problem)
        Q = problem.Q.array
        assert np.allclose(Q.T @ Q, np.eye(Q.shape[1]), atol=1e-8)
        return block_minres(
            problem.operator, problem.R.copy().scale(-1), shift=problem.shift, Q=problem.Q, maxiter=8, tol=0.0
        ).X

    result = solve(A, 5, which="SA", jd_options=JacobiDavidsonOptions(correction=solver), verify="never")
    assert np.allclose(result.eigenvalues, exact[:5], atol=1e-12)
    assert len(seen) == result.info["restarts"] - 1
    assert result.info["operator_columns"] > 8 * sum(problem.X.shape[1] for problem in seen)
    for wrong, error in (
        ((lambda p: p.R[:, :0]), ShapeError),
        ((lambda p: p.R.scale(np.nan)), BreakdownError),
    ):
        with pytest.raises(error, match="correction: returned"):
            solve(A, 5, which="SA", jd_options=JacobiDavidsonOptions(correction=wrong))


def test_a_preconditioner_may_follow_the_values() -> None:
    class Diagonal(JacobiPreconditioner):
        thetas: list[float]

        def update(self, theta: float) -> None:
            self.thetas = [*getattr(self, "thetas", []), theta]
            super().update(theta)

    A = sp.csr_array(sp.diags_array(np.arange(300) ** 1.5) + models.model("laplace1d:n=300"))
    K = Diagonal(A)
    how = JacobiDavidsonOptions(correction="olsen")
    result = solve(A, 4, which="SA", preconditioner=K, jd_options=how, block_size=1)
    exact = np.linalg.eigvalsh(A.toarray())[:4]
    assert np.allclose(result.eigenvalues, exact, atol=1e-8)
    assert 4 < len(K.thetas) < result.info["restarts"]
    assert abs(K.thetas[-1] - exact[-1]) < 0.1


@pytest.mark.parametrize("options", [{"which": "SA"}, {"sigma": 0.4}, {"which": "LA", "precondition": True}])
def test_generalised_problems_need_a_factor_of_the_mass_only(options: dict[str, Any]) -> None:
    A, n = models.model("laplace2d:nx=16,ny=13"), 208
    M = sp.csr_array(sp.diags_array(np.linspace(1, 3, n)) + 0.1 * models.model(f"laplace1d:n={n}"))
    exact = dense.eigh(A.toarray(), M.toarray(), eigvals_only=True)
    options = dict(options)
    if options.pop("precondition", False):
        d = (A.diagonal() + 8 * M.diagonal())[:, None]
        options["preconditioner"] = lambda X: X / d
    result = solve(A, 5, M=M, **options)
    key = (
        np.abs(exact - options["sigma"]) if "sigma" in options else exact * (-1) ** (options["which"] == "LA")
    )
    assert np.allclose(result.eigenvalues, np.sort(exact[np.argsort(key)[:5]]), atol=1e-10)
    X = result.eigenvectors
    assert np.allclose(X.T @ (M @ X), np.eye(5), atol=1e-12)
    assert result.converged.all()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"correction": "magic"}, "correction: got 'magic'"),
        ({"inner_steps": 0}, "inner_steps: got 0"),
        ({"min_basis": 2}, "min_basis: got 2"),
    ],
)
def test_options_that_cannot_be_used_are_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        solve(models.model("laplace2d:n=10"), 5, which="SA", jd_options=JacobiDavidsonOptions(**how))


@pytest.mark.parametrize("name", REMOVED)
def test_an_option_of_an_earlier_version_names_what_replaces_it(name: str) -> None:
    with pytest.raises(OptionError, match=rf"^{name}: no longer an option .*; (give|vectors are) .*\.$"):
        JacobiDavidsonOptions(**{name: 1})


def test_values_inside_the_spectrum_of_a_function_are_found_by_themselves() -> None:
    matrix = models.model("graphene:nx=10,ny=8,disorder=0.2")
    options: dict[str, Any] = {"sigma": 0.2, "method": "auto"}
    result = solve(lambda X: matrix @ X, 5, shape=matrix.shape, block_size=4, maxiter=999, **options)
    check_nearest(result, matrix, 0.2)
    assert result.info["method"] == "jd"
    assert "no matrix of the host" in result.info["why"]
    few = solve(lambda X: matrix @ X, 5, shape=matrix.shape, **options)
    check_nearest(few, matrix, 0.2)
    assert few.info["method"] == "dense"
    assert few.info["operator_columns"] <= matrix.shape[0] + 10
    assert solve(matrix, 5, **options).info["method"] != "jd"  # by a factor


def test_stagnation_is_reported_and_no_endless_loop() -> None:
    A = models.model("laplace2d:n=25")
    noise = np.random.default_rng(0)

    def noisy(X: np.ndarray) -> np.ndarray:
        return A @ X + 1e-4 * noise.standard_normal(X.shape)

    options = {"shape": A.shape, "check_hermitian": False, "norm": 8.0}
    with pytest.raises(NoConvergence, match="before the residuals ceased to fall: raise ncv") as failure:
        solve(noisy, 4, which="SA", tol=1e-12, **options)
    result = failure.value.result
    assert result.info["stopped"] == "stagnated"
    assert not result.converged.all()
    assert np.all(result.residuals < 0.1)


@pytest.mark.parametrize("seed", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_copies_of_a_nearer_value_are_not_missed_behind_one_on_the_other_side(seed: int) -> None:
    """Of three copies at -0.028 one was found, and 0.032, which the search could not tell apart."""
    A = sp.csr_array(models.model("laplace3d:n=21") - 0.15 * sp.eye_array(21**3))
    w = eigsh(lambda X: A @ X, 2, sigma=0.0, shape=A.shape, rng=seed)[0]
    np.testing.assert_allclose(w, 2 * [eigsh(A, 1, sigma=0.0)[0][0]], atol=1e-10)
