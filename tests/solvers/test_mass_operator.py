"""Generalised problems whose M is an operator, without a factorisation: M^(-1/2) as a polynomial of M."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from blockvec import as_operator, models
from blockvec.errors import OptionError
from solvers import costs, eigsh
from solvers.factorization.gram import root_factor
from tests.matrices import element_mass, gauged
from tests.solvers.answers import answered, eigenvalues, solve


def operator(matrix: Any) -> LinearOperator:
    def product(X: Any) -> Any:
        return matrix @ X

    return LinearOperator(matrix.shape, matvec=product, matmat=product, dtype=matrix.dtype)


def mass(nx: int, ny: int, kind: str) -> Any:
    """Form the mass matrix of bilinear elements, or one that complex phases turn."""
    M = element_mass(nx, ny)
    return M if kind == "real" else gauged(M)


GRID, MASS = models.model("laplace2d:nx=14,ny=11"), mass(14, 11, "real")
PAIR = GRID, MASS, eigenvalues(GRID, MASS)


@pytest.fixture
def _no_dense_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "FEW_ROWS", 1)
    for rival in ("end", "inside"):
        monkeypatch.setitem(costs.DENSE_ROWS, rival, ((1, 0), (1, 0)))


@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("with_inverse", [True, False])
def test_the_root_of_an_operator_multiplies_back_and_solves(kind: str, with_inverse: bool) -> None:
    M = mass(12, 9, kind)
    Minv = as_operator(np.linalg.inv(M.toarray())) if with_inverse else None
    factor = root_factor(as_operator(operator(M)), Minv)
    assert factor.solve is not None
    X = np.random.default_rng(0).standard_normal((108, 3)).astype(M.dtype)
    assert np.linalg.norm(factor.apply(factor.adjoint(X)) - M @ X) <= 1e-13 * np.linalg.norm(X)
    assert np.linalg.norm(factor.apply(factor.solve(X)) - X) <= 1e-13 * np.linalg.norm(X)


@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("form", [operator, lambda M: lambda X: M @ X], ids=["LinearOperator", "function"])
@pytest.mark.usefixtures("_no_dense_matrices")
def test_pairs_with_an_operator_as_m_need_no_factorisation(kind: str, form: Any) -> None:
    M = mass(14, 11, kind)
    A = models.model("laplace2d:nx=14,ny=11").astype(M.dtype)
    result = answered(A, 4, M, mass=form(M), which="LA")
    assert "M^(-1/2) is a polynomial of degree" in result.info["why"]


@pytest.mark.parametrize("which", ["operators", pytest.param("M", marks=pytest.mark.slow), "A"])
@pytest.mark.usefixtures("_no_dense_matrices")
def test_operators_around_a_shift_are_solved_by_corrections(which: str) -> None:
    A, M = models.model("laplace2d:nx=6,ny=5"), mass(6, 5, "real")
    matrix, inner = (A if which == "M" else operator(A)), (M if which == "A" else operator(M))
    result = solve(matrix, 3, inner, sigma=0.0, tol=1e-8, convergence="norm")
    assert result.info["method"] == "jd"
    assert np.allclose(result.eigenvalues, eigenvalues(A, M)[:3], rtol=1e-8)


@pytest.mark.parametrize("mode", ["normal", "cayley"])
@pytest.mark.usefixtures("_no_dense_matrices")
def test_a_given_inverse_with_a_shift_goes_with_operators(mode: str) -> None:
    A, M, values = PAIR
    inverse = operator(np.linalg.inv((A - 3.0 * M).toarray()))
    forms: Any = {"apply_to": operator(A), "mass": operator(M)}
    options: Any = {"sigma": 3.0, "which": "LA", "mode": mode}
    answered(A, 3, M, exact=values, OPinv=inverse, **forms, **options)
    with pytest.raises(OptionError, match=r"M is a .*Operator; a factorisation needs .* or OPinv"):
        eigsh(operator(A), 3, operator(M), **options)


def test_an_inverse_of_m_replaces_its_factorisation() -> None:
    A, M, values = PAIR
    inverse = operator(np.linalg.inv(M.toarray()))
    answered(A, 4, M, exact=values, Minv=inverse, which="SA")
    with pytest.raises(OptionError, match="Minv: is not the inverse of M"):
        eigsh(A, 4, M=M, Minv=M)
    with pytest.raises(OptionError, match="Minv: is the inverse of M in A x = lambda M x without a shift"):
        eigsh(A, 4, M=M, Minv=inverse, sigma=0.0)


@pytest.mark.parametrize(
    ("diagonal", "message"),
    [
        (np.linspace(-1, 1, 300), "must be positive definite and well-conditioned"),
        (np.geomspace(1e-9, 1, 300), "M"),
        (np.r_[1e-6, np.linspace(0.5, 1, 299)], "needs a polynomial of degree"),
    ],
)
def test_an_operator_without_a_usable_root_is_refused(diagonal: np.ndarray, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        root_factor(as_operator(operator(sp.diags_array(diagonal).tocsr())))
