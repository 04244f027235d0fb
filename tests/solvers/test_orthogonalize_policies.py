"""Orthogonalisation of any block: what it promises, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from blockvec import BlockVector, as_operator
from blockvec.errors import BreakdownError, OptionError
from solvers.orthogonalization import orthogonalize
from tests.benchmarks import orthogonality

N, B = 1500, 4


# --- what they promise ----------------------------------------------------------------------------


def any_problem(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A block of any width, scale, rank and type, somewhere between inside and outside of a basis."""
    dtype = rng.choice(["float32", "float64", "complex64", "complex128"])
    width, m = int(rng.integers(1, 9)), int(rng.integers(0, 25))
    rows = m + width + int(rng.integers(0, 300) if rng.random() < 0.7 else rng.integers(0, 3))

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype[0] == "c" else 0)

    V = np.linalg.qr(draw(rows, m))[0].astype(dtype)
    reach = 6 if np.finfo(dtype).eps > 1e-10 else 16
    W = draw(rows, width) * 10.0 ** rng.uniform(-reach, reach, width)
    match rng.integers(0, 4):
        case 0:  # ill conditioned
            U, X = np.linalg.qr(W)[0], np.linalg.qr(draw(width, width))[0]
            W = U * np.logspace(0, -rng.uniform(0, reach), width) @ X
        case 1:  # without full rank
            W = W[:, : width // 2 + 1] @ draw(width // 2 + 1, width)
        case 2:  # with columns of zeros
            W = W * (rng.random(width) < 0.5)
    W = W + V @ draw(m, width) * 10.0 ** rng.uniform(-reach, reach, width) * (rng.random() < 0.7)
    return W.astype(dtype), V


@given(seed=st.integers(0, 2**32 - 1))
def test_the_identities_hold_for_any_block(seed: int) -> None:
    W, V = any_problem(np.random.default_rng(seed))
    block, unit = BlockVector(W, copy=True), np.finfo(W.dtype).eps / 2
    result = orthogonalize(block, BlockVector(V, copy=True), rng=seed)
    Q, (m, width) = block.array.astype("complex128"), result.S.shape
    assert np.linalg.norm(np.hstack([V, Q]).conj().T @ Q - np.eye(m + width, width, -m)) <= 150 * unit
    errors = np.linalg.norm(W - V @ result.S - Q @ result.R, axis=0)
    assert np.all(errors <= 150 * unit * np.linalg.norm(W.astype("complex128"), axis=0))


@pytest.mark.parametrize("matrix", orthogonality.MATRICES)
@pytest.mark.parametrize("width", orthogonality.WIDTHS)
def test_the_loss_of_orthogonality_stays_within_the_bound(width: int, matrix: str) -> None:
    for exponent in (0.5, 4, 7, 10, 15):
        entry = orthogonality.record(matrix, 10.0**exponent, width)
        assert entry["loss"] <= entry["bound"]
        assert entry["residual"] <= 100 * orthogonality.UNIT


def test_a_policy_is_refused() -> None:
    with pytest.raises(OptionError, match="suitable for every block"):
        orthogonalize(BlockVector(np.eye(3)), policy=lambda d: None)  # type: ignore[arg-type]


# --- inner products -------------------------------------------------------------------------------


def test_an_indefinite_m_is_refused(block_type: Any) -> None:
    indefinite = sp.diags_array(np.where(np.arange(N) % 2, 1.0, -1.1)).tocsr()
    block = block_type(np.random.default_rng(1).standard_normal((N, B)))
    with pytest.raises(BreakdownError, match=r"x\^H M x = -.* positive definite"):
        orthogonalize(block, M=as_operator(indefinite))


# --- what they cost -------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["solvers", "blockvec.solvers"])
def test_the_module_of_an_earlier_version_stands_for_the_renamed_one(package: str) -> None:
    code = f"""
from {package}.orthogonalize import Orthogonalized, orthogonalize
import blockvec, {package}, {package}.orthogonalization
assert {package}.orthogonalize is blockvec.orthogonalize is orthogonalize
assert {package}.orthogonalize.orthogonalize is orthogonalize
assert {package}.orthogonalization.Orthogonalized is Orthogonalized
try:
    from {package}.orthogonalize import SVQB
except ImportError as error:
    assert "without a policy" in str(error)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
