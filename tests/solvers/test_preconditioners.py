"""Preconditioners at hand: Hermitian approximations of an inverse that save products and leave the values."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import models
from blockvec.errors import OptionError
from solvers import FactorPreconditioner, MultigridPreconditioner, cg, eigsh
from tests.matrices import gauged

OPTIONS: dict[str, Any] = {"tol": 1e-9, "convergence": "norm", "rng": 0, "return_info": True, "method": "jd"}


@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("fill", [None, 4.0])
@pytest.mark.parametrize("unit", [1.0, 1e-60])
def test_factors_of_single_precision_are_a_hermitian_approximation_of_the_inverse(
    kind: str, fill: float | None, unit: float
) -> None:
    A = models.model("laplace2d:n=20")
    M = sp.diags_array(np.linspace(1, 2, 400)).tocsr()
    sigma = -0.5
    S = A - sigma * M
    A, M, S = (gauged(matrix) if kind == "complex" else matrix for matrix in (A, M, S))
    K = FactorPreconditioner(A * unit, M * unit, sigma, fill=fill)
    inverse = K(np.eye(400, dtype=A.dtype)) * unit
    error = 1e-6 if fill is None else 0.1
    assert inverse.dtype == A.dtype
    assert np.linalg.norm(inverse - inverse.conj().T) <= 1e-5 * np.linalg.norm(inverse)
    assert np.linalg.norm(S @ inverse - np.eye(400), 2) <= error
    assert not K(np.zeros((400, 1))).any()


def test_incomplete_factors_take_less_memory() -> None:
    A = models.model("laplace3d:n=10")
    assert FactorPreconditioner(A, fill=2).entries < FactorPreconditioner(A).entries / 2


@pytest.mark.parametrize("M", [None, sp.diags_array(np.linspace(1, 2, 1400), format="csr")], ids=["I", "M"])
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (FactorPreconditioner, {}),
        (FactorPreconditioner, {"fill": 5.0}),
        (MultigridPreconditioner, {}),
        (MultigridPreconditioner, {"near_null": np.ones((1400, 1)), "max_coarse": 50}),
    ],
)
def test_a_preconditioner_saves_products_and_leaves_the_eigenvalues(make: Any, options: Any, M: Any) -> None:
    if make is MultigridPreconditioner:
        pytest.importorskip("pyamg", reason="multigrid: pip install pyamg")
    A = models.model("laplace2d:nx=40,ny=35")
    plain = eigsh(A, 5, M=M, which="SA", **OPTIONS)
    better = eigsh(A, 5, M=M, which="SA", preconditioner=make(A, **options), **OPTIONS)
    assert np.allclose(better.eigenvalues, plain.eigenvalues, rtol=1e-8)
    assert better.info["operator_columns"] < plain.info["operator_columns"] / 3


def test_what_has_no_factors_is_refused() -> None:
    for A, sigma, message in (
        (sp.diags_array(np.arange(9.0)), 0.0, "singular in single precision"),
        (abs, 0.0, "A: got .*; give a square matrix of the host"),
        (np.eye(3), 1.0, "the largest entry of A - sigma M is 0"),
    ):
        with pytest.raises(OptionError, match=message):
            FactorPreconditioner(A, sigma=sigma)


@pytest.mark.skipif(importlib.util.find_spec("pyamg") is not None, reason="PyAMG is installed")
def test_without_pyamg_multigrid_says_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError, match="install it with 'pip install pyamg'"):
        MultigridPreconditioner(models.model("laplace2d:n=5"))


def test_multigrid_is_a_hermitian_map_of_blocks_that_leaves_out_null_vectors() -> None:
    pytest.importorskip("pyamg", reason="multigrid: pip install pyamg")
    A = models.model("laplace2d:n=30")
    L = sp.csr_array(sp.csgraph.laplacian(sp.csr_array(abs(A - sp.diags_array(A.diagonal())))))
    for matrix in (A, L):
        K = MultigridPreconditioner(matrix, max_coarse=10)
        X = np.random.default_rng(0).standard_normal((900, 6))
        G = X.T @ K(X)
        assert np.abs(G - G.T).max() <= 1e-10 * np.abs(G).max()
        assert np.allclose(K(X)[:, 2:3], K(X[:, 2:3]))
        B = matrix @ X
        solved, info = cg(matrix, B, M=K, rtol=1e-9, maxiter=25)
        assert info == 0
        assert np.linalg.norm(matrix @ solved - B) <= 1e-8 * np.linalg.norm(B)
