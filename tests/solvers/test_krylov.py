"""The factorisation: A V = V T + Q B with [V Q] orthonormal, through steps, restarts and rank loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec import as_operator
from solvers.iterations.krylov import BlockKrylov
from solvers.iterations.rayleigh_ritz import ritz_pairs, select
from solvers.problem import Counts

DTYPES = ("float32", "float64", "complex64", "complex128")


def hermitian(n: int, dtype: str, seed: int = 0) -> Any:
    """A banded matrix with a norm of a few."""
    rng = np.random.default_rng(seed)
    band = rng.standard_normal((3, n))
    if np.dtype(dtype).kind == "c":
        band = band + 1j * rng.standard_normal((3, n))
    upper = sp.diags_array([band[0][: n - 1], band[1][: n - 7]], offsets=[1, 7], shape=(n, n))
    return sp.csr_array(upper + upper.conj().T + sp.diags_array(band[2].real)).astype(dtype)


class Case:
    """A factorisation of a matrix and its identities."""

    def __init__(
        self,
        matrix: Any,
        block_type: Any,
        b: int,
        capacity: int,
        locked: int = 0,
    ) -> None:
        self.matrix = matrix
        n, dtype = matrix.shape[0], matrix.dtype
        rng = np.random.default_rng(1)
        buffer = block_type(np.zeros((n, locked + capacity), dtype))
        Q = np.linalg.qr(rng.standard_normal((n, locked)))[0]
        buffer.array[:, :locked] = Q
        self.P = np.eye(n) - Q @ Q.conj().T
        self.counts = Counts()
        self.krylov = BlockKrylov(as_operator(matrix), buffer, locked, b, rng, self.counts)
        self.krylov.append(block_type.random(n, b, dtype, rng=rng))

    def check(self, bound: float = 300) -> None:
        krylov = self.krylov
        krylov.settle()
        m, w = krylov.m, krylov.w
        basis = krylov.columns(-krylov.n_locked, krylov.m + krylov.w).array
        unit = np.finfo(basis.dtype).eps / 2
        loss = np.linalg.norm(basis.conj().T @ basis - np.eye(basis.shape[1]))
        assert loss <= bound * unit
        VQ = krylov.columns(0, m + w).array
        A = self.P @ self.matrix.toarray() @ self.P
        H = krylov.H[: m + w, :m]
        T = (H[:m] + H[:m].conj().T) / 2
        defect = A @ VQ[:, :m] - VQ[:, :m] @ T - VQ[:, m:] @ H[m:]
        assert np.linalg.norm(defect) <= bound * unit * np.linalg.norm(A, 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("b", [1, 3, 4])
def test_the_decomposition_holds_after_every_step_and_restart(dtype: str, b: int, block_type: Any) -> None:
    case = Case(hermitian(150, dtype), block_type, b, capacity=24 + b)
    for _ in range(3):
        while case.krylov.can_expand():
            case.krylov.expand()
            case.check()
        ritz = case.krylov.ritz()
        case.krylov.restart(ritz, select(ritz.theta, "LA")[:9])
        case.check()


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_an_invariant_subspace_is_left_through_random_directions(value: float, block_type: Any) -> None:
    matrix = value * sp.eye_array(80, format="csr")
    case = Case(matrix, block_type, 3, capacity=24)
    while case.krylov.can_expand():
        case.krylov.expand()
        case.check()
    ritz = case.krylov.ritz()
    assert case.krylov.m == 21
    assert np.allclose(ritz.theta, value)
    assert np.allclose(ritz.residuals, 0)


def test_corrections_can_be_coupled_in(block_type: Any) -> None:
    """A decomposition of a slightly wrong operator becomes the right one's when it is told the difference."""
    matrix = hermitian(120, "float64")
    wrong = matrix + 1e-8 * sp.diags_array(np.random.default_rng(2).standard_normal(120))
    case = Case(sp.csr_array(wrong), block_type, 3, capacity=30)
    case.matrix = matrix
    krylov = case.krylov
    while krylov.can_expand():
        krylov.expand()
    ritz = krylov.ritz()
    order = select(ritz.theta, "LA")[:3]
    krylov.restart(ritz, order)
    VQ = krylov.columns(0, krylov.m + krylov.w).array
    H = krylov.H[: krylov.m + krylov.w, : krylov.m]
    defect = matrix @ VQ[:, : krylov.m] - VQ @ H
    S, R, count = krylov.append(block_type(np.ascontiguousarray(defect)), keep_random=True)
    krylov.couple(0, S, R, count)
    case.check()


def test_projected_matrices_are_solved_where_divide_and_conquer_gives_up(monkeypatch: Any) -> None:
    def give_up(T: Any) -> Any:
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    monkeypatch.setattr(np.linalg, "eigh", give_up)
    T = np.kron(np.eye(6), [[2.0, 1.0], [1.0, 2.0]])
    theta, Y = ritz_pairs(T)
    assert np.allclose(theta, np.repeat([1.0, 3.0], 6))
    assert np.allclose(Y @ np.diag(theta) @ Y.T, T)
