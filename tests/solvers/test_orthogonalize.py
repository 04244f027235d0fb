"""Orthogonalisation: W = V S + Q R with Q orthonormal and orthogonal to V, whatever W is."""

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
from blockvec.errors import BreakdownError, OptionError, ShapeError
from solvers.blocks import ColumnBlock
from solvers.orthogonalization import host_step, orthogonalize
from solvers.transform.inner_product import inner_product_blocks, inner_product_columns
from tests.benchmarks import orthogonality
from tests.contract.blocks import host
from tests.matrices import normal, orthonormal

N, B = 1500, 4


def check(W: np.ndarray, V: Any, block_type: Any, bound: float = 100, **options: Any) -> Any:
    """Assert the identities to units in the last place; return the block and the result."""
    block = block_type(W.copy(order="F" if block_type is ColumnBlock else "C"))
    result = orthogonalize(block, None if V is None else block_type(V.copy()), **options)
    Q, unit = host(block.array).astype("complex128")[:, : len(result.R)], np.finfo(W.dtype).eps / 2
    V = np.zeros((len(W), 0)) if V is None else V
    m, rank = V.shape[1], Q.shape[1]
    assert np.linalg.norm(np.hstack([V, Q]).conj().T @ Q - np.eye(m + rank, rank, -m)) <= bound * unit
    errors = np.linalg.norm(W - V @ result.S - Q @ result.R, axis=0)
    longest = np.maximum(np.linalg.norm(W.astype("complex128"), axis=0), options.get("scale", 0.0))
    assert np.all(errors <= bound * unit * longest)
    assert not result.R[result.lost[:rank]].any()
    return block, result


def any_problem(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A block of any width, scale, rank and type, somewhere between inside and outside of a basis."""
    dtype = rng.choice(["float32", "float64", "complex64", "complex128"])
    width, m = int(rng.integers(1, 9)), int(rng.integers(0, 25))
    rows = m + width + int(rng.integers(0, 300) if rng.random() < 0.7 else rng.integers(0, 3))
    wide = "complex128" if dtype[0] == "c" else "float64"
    V, W = orthonormal(rng, rows, m, dtype), normal(rng, rows, width, dtype=wide)
    reach = 6 if np.finfo(dtype).eps > 1e-10 else 16
    W *= 10.0 ** rng.uniform(-reach, reach, width)
    match rng.integers(0, 4):
        case 0:  # ill conditioned
            grades = np.logspace(0, -rng.uniform(0, reach), width)
            W = np.linalg.qr(W)[0] * grades @ orthonormal(rng, width, dtype=wide)
        case 1:  # without full rank
            W = W[:, : width // 2 + 1] @ normal(rng, width // 2 + 1, width, dtype=wide)
        case 2:  # with columns of zeros
            W = W * (rng.random(width) < 0.5)
    inside = normal(rng, m, width, dtype=wide) * 10.0 ** rng.uniform(-reach, reach, width)
    return (W + V @ inside * (rng.random() < 0.7)).astype(dtype), V


@pytest.mark.parametrize("kind", [BlockVector, ColumnBlock])
@given(seed=st.integers(0, 2**32 - 1))
def test_the_identities_hold_for_any_block(kind: Any, seed: int) -> None:
    W, V = any_problem(np.random.default_rng(seed))
    check(W, V, kind, bound=150, rng=seed)


@pytest.mark.parametrize("matrix", orthogonality.MATRICES)
@pytest.mark.parametrize("width", orthogonality.WIDTHS)
def test_the_loss_of_orthogonality_stays_within_the_bound(width: int, matrix: str) -> None:
    for exponent in (0.5, 4, 7, 10, 15):
        entry = orthogonality.record(matrix, 10.0**exponent, width)
        assert entry["loss"] <= entry["bound"]
        assert entry["residual"] <= 100 * orthogonality.UNIT


def blocks_of_rank() -> dict[str, tuple[np.ndarray, int]]:
    """Make blocks, and the ranks that they are to be given."""
    rng = np.random.default_rng(7)
    draw, laeuchli = normal(rng, N, B), np.zeros((N, B))
    laeuchli[0] = 1
    laeuchli[range(1, B + 1), range(B)] = np.finfo(float).eps ** 0.6
    U, X = orthonormal(rng, N, B), orthonormal(rng, B)
    return {
        "random": (draw, 4),
        "zero": (np.zeros((N, B)), 0),
        "a zero column": (draw * np.array([1, 0, 1, 1]), 3),
        "the same column again and again": (np.hstack([draw[:, :1]] * B), 1),
        "wildly scaled columns": (draw * np.array([1e-12, 1.0, 1e12, 1e-6]), 4),
        "Laeuchli": (laeuchli, 4),
        "above the rounding noise": (U * np.logspace(0, -13, B) @ X, 4),
        "below the rounding noise": (U * np.array([1.0, 1e-6, 1e-12, 1e-18]) @ X, 3),
    }


@pytest.mark.parametrize("name", blocks_of_rank())
def test_the_rank_is_decided_by_what_is_noise(name: str, block_type: Any) -> None:
    W, rank = blocks_of_rank()[name]
    result = check(W, None, block_type)[1]
    assert result.lost.tolist() == [False] * rank + [True] * (B - rank)  # lost columns come last


def test_noise_of_the_operator_counts_in_short_columns(block_type: Any) -> None:
    W = 1e-9 * normal(0, N, B) / N**0.5
    assert not orthogonalize(block_type(W.copy())).lost.any()
    assert orthogonalize(block_type(W.copy()), scale=1e8).lost.all()


def test_with_little_room_left_only_as_many_directions_are_kept(block_type: Any) -> None:
    V = orthonormal(5, 10, 8)
    assert check(normal(6, 10, B), V, block_type, max_rank=2)[1].R.shape == (2, B)
    with pytest.raises(ShapeError, match=r"dimension 10 has no room for 3 columns .* of 8; give max_rank=2"):
        orthogonalize(block_type(np.ones((10, 3))), block_type(V))
    with pytest.raises(ShapeError, match=r"no room for 13 columns .* of 0; give max_rank=12"):
        orthogonalize(block_type(np.ones((12, 13))))


def test_noisy_columns_take_nothing_from_accurate_ones(block_type: Any) -> None:
    """Short columns of an operator's rounding noise beside long ones, in a space with little room."""
    rng = np.random.default_rng(11)
    whole = orthonormal(rng, 40)
    V, rest = np.ascontiguousarray(whole[:, :36]), whole[:, 36:]
    W = rest @ normal(rng, 4, 6) * np.array([1e-12, 1e-12, 5e-12, 1e-10, 1e-2, 1e-2])
    check(W, V, block_type, scale=150.0, max_rank=4)


@pytest.mark.parametrize("seed", [2, 3, 11, 66])
def test_small_pivots_do_not_let_rounding_grow_without_end(seed: int) -> None:
    """Twenty graded columns of rank four: sixteen pivots, one after the other, are rounding."""
    rng = np.random.default_rng(seed)
    grades = 10 ** rng.uniform(-8, 0, (4, 1)), 10 ** rng.uniform(-4, 0, 20)
    W = rng.standard_normal((112, 4)) @ (rng.standard_normal((4, 20)) * grades[0]) * grades[1]
    check(W, None, BlockVector, bound=1000, rng=0, scale=1e-3)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_the_step_of_column_major_blocks_is_that_of_others(dtype: str, width: int) -> None:
    V, W = orthonormal(11, N, 12, dtype), normal(12, N, width, dtype=dtype)
    (X, result), (Y, other) = (
        check(W, V, kind, bound=1000, first=[(4, 12)], scale=1.0) for kind in (ColumnBlock, BlockVector)
    )
    assert result.reductions < other.reductions
    assert np.allclose(result.S, other.S, rtol=0, atol=1e-12)
    assert np.allclose(X.array @ result.R, Y.array @ other.R, rtol=0, atol=1e-12)


@pytest.mark.parametrize("width", [1, 2])
def test_a_length_that_rounding_makes_negative_is_left_to_other_policies(width: int) -> None:
    """In a semidefinite inner product, those of vectors of the null space are rounding errors."""
    M = as_operator(lambda X: -1e-17 * X, shape=(50, 50))
    blocks = inner_product_columns(inner_product_blocks(M))
    _, R, length, _ = host_step(blocks(normal(0, 50, width)), blocks(np.zeros((50, 3))), [(0, 3)], 1.0)
    assert R is None
    assert length >= 1.0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_has_no_basis_is_an_error_and_not_a_rank_decision(bad: float, block_type: Any) -> None:
    W = normal(0, N, B)
    indefinite = sp.diags_array(np.where(np.arange(N) % 2, 1.0, -1.1)).tocsr()
    with pytest.raises(BreakdownError, match=r"x\^H M x = -.* positive definite"):
        orthogonalize(block_type(W.copy()), M=as_operator(indefinite))
    W[3, 1] = bad
    with np.errstate(invalid="ignore"), pytest.raises(BreakdownError, match="NaN or Inf"):
        orthogonalize(block_type(W))


def test_a_policy_is_refused() -> None:
    with pytest.raises(OptionError, match="suitable for every block"):
        orthogonalize(BlockVector(np.eye(3)), policy=lambda d: None)  # type: ignore[arg-type]


def test_the_module_of_an_earlier_version_stands_for_the_renamed_one() -> None:
    code = """
import blockvec, solvers
for package in ("solvers", "blockvec.solvers"):
    old = __import__(f"{package}.orthogonalize", fromlist=["orthogonalize"])
    new = __import__(f"{package}.orthogonalization", fromlist=["orthogonalize"])
    assert old.orthogonalize is new.orthogonalize is blockvec.orthogonalize
    assert solvers.orthogonalize.orthogonalize is blockvec.orthogonalize
    assert old.Orthogonalized is new.Orthogonalized
    try:
        from solvers.orthogonalize import SVQB
    except ImportError as error:
        assert "without a policy" in str(error)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
