"""cuDSS on matrices of the sizes that it factorises, and eigenvalues by its factors."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import Factorization, models
from solvers import eigsh

pytestmark = pytest.mark.gpu

SOLVES = """
import numpy as np, cupy, sys
from blockvec import BlockVector, factorize, models, option_context
for name in ("laplace2d:nx=150,ny=151", "laplace3d:n=30", "laplace2d:nx=300,ny=301", "laplace3d:n=40"):
    for dtype in ("float32", "float64", "complex64", "complex128"):
        A = models.model(name).astype(dtype)
        for sigma in (-0.5, 2.3003):
            with option_context(deterministic=bool(int(sys.argv[1]))):
                F = factorize(A, sigma=sigma, device="gpu")
                B = BlockVector.random(A.shape[0], 5, dtype, device="gpu", rng=0)
                X, again = F.solve(B), F.solve(B)
            x, b = X.array.get(), B.array.get()
            rounding = np.finfo(dtype).eps * (12 * np.linalg.norm(x) + np.linalg.norm(b))
            assert np.linalg.norm(A @ x - sigma * x - b) <= 50 * rounding, (name, dtype, sigma)
            assert sys.argv[1] == "0" or (X.array == again.array).all(), (name, dtype, sigma)
            print(name, dtype, sigma, F.inertia, F._refinements, flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def _needs_cudss() -> None:
    if not Factorization.is_available("gpu"):
        pytest.skip("cuDSS is not installed")


FAILS = pytest.mark.xfail(strict=False, reason="cuDSS 0.8 may end with an illegal instruction in this mode")


@pytest.mark.parametrize("repeats", [False, pytest.param(True, marks=FAILS)])
def test_solves_are_accurate_in_every_type_and_repeat_if_asked_to(repeats: bool) -> None:
    # In a process of its own: an error of the device ends all work on it.
    command = [sys.executable, "-c", SOLVES, str(int(repeats))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def rough(n: int) -> Any:
    """Return a stiffness matrix of n x n points with a coefficient of many magnitudes."""
    A = models.model(f"laplace2d:nx={n},ny={n}")
    scale = sp.diags_array(np.exp(2 * np.random.default_rng(0).standard_normal(n * n)))
    return sp.csr_array(scale @ A @ scale)


def test_a_stiff_end_is_factorised_and_proven() -> None:
    A = rough(150)
    expected, _ = eigsh(A, 6, sigma=0.0, rng=0)
    result = eigsh(A, 6, which="SA", device="gpu", rng=0, return_info=True)
    assert np.allclose(result.eigenvalues.get(), expected, rtol=1e-8)
    assert result.converged.all()


@pytest.mark.parametrize("mode", ["normal", "cayley", "buckling"])
def test_pairs_are_those_of_the_host(mode: str) -> None:
    n = 21_000
    A = models.laplace1d(n=n) + sp.diags_array(np.linspace(0, 1, n))
    beside = np.full(n - 1, 0.1)
    M = sp.csr_array(sp.diags_array([beside, np.linspace(1, 2, n), beside], offsets=[-1, 0, 1]))
    expected, _ = eigsh(A, 6, M=M, sigma=0.7, mode=mode, rng=0)
    w, X = eigsh(A, 6, M=M, sigma=0.7, mode=mode, device="gpu", rng=0)
    inner = A if mode == "buckling" else M
    G = X.get().T @ (inner @ X.get())
    assert np.allclose(w.get(), expected, rtol=1e-9)
    assert np.abs(G - np.eye(6)).max() < 1e-10


def test_values_inside_a_spectrum_are_those_of_the_host() -> None:
    A = models.model("laplace3d:n=28")
    w, _ = eigsh(A, 8, sigma=3.7, device="gpu", rng=0)
    assert np.allclose(w.get(), eigsh(A, 8, sigma=3.7, rng=0)[0], atol=1e-11)
