"""Orthogonalisation: W = V S + Q R with Q orthonormal and orthogonal to V, whatever W is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec import BlockVector, as_operator
from blockvec.errors import BreakdownError, ShapeError
from solvers.blocks import ColumnBlock
from solvers.orthogonalization import orthogonalize
from solvers.orthogonalization.host_step import host_step
from solvers.transform.inner_product import inner_product_blocks, inner_product_columns
from tests.matrices import normal, orthonormal

N, M, B = 1500, 24, 4


def graded(rng: np.random.Generator, kappa: float, dtype: str) -> np.ndarray:
    """A block with condition number kappa, its directions mixed over the columns."""
    U, X = orthonormal(rng, N, B, dtype), orthonormal(rng, B, B, dtype)
    return ((U * np.logspace(0, -np.log10(kappa), B)) @ X).astype(dtype)


def adversaries(dtype: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    column = normal(rng, N, 1, dtype=dtype)
    laeuchli = np.zeros((N, B), dtype)
    laeuchli[0] = 1
    laeuchli[range(1, B + 1), range(B)] = np.finfo(dtype).eps ** 0.6
    scales = np.array([1e-12, 1.0, 1e12, 1e-6])
    return {
        "random": normal(rng, N, B, dtype=dtype),
        "zero": np.zeros((N, B), dtype),
        "a zero column": normal(rng, N, B, dtype=dtype) * np.array([1, 0, 1, 1], dtype),
        "the same column again and again": np.hstack([column] * B),
        "wildly scaled columns": (normal(rng, N, B, dtype=dtype) * scales).astype(dtype),
        "Laeuchli": laeuchli,
    }


def check(W: np.ndarray, V: np.ndarray | None, block_type: Any, **options: Any) -> Any:
    """Assert the identities to 100 units in the last place; return the result."""
    bound = 100
    block = block_type(W.copy())
    result = orthogonalize(block, None if V is None else block_type(V), **options)
    Q, unit = block.array, np.finfo(W.dtype).eps / 2
    assert np.linalg.norm(Q.conj().T @ Q - np.eye(Q.shape[1])) <= bound * unit
    rebuilt = Q @ result.R
    if V is not None:
        assert np.linalg.norm(V.conj().T @ Q) <= bound * unit
        rebuilt = rebuilt + V @ result.S
    lengths = np.linalg.norm(W.astype("complex128"), axis=0)
    errors = np.linalg.norm((W - rebuilt).astype("complex128"), axis=0)
    assert np.all(errors <= bound * unit * lengths)
    assert not result.R[result.lost].any()
    return result


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("random", 4),
        ("zero", 0),
        ("a zero column", 3),
        ("the same column again and again", 1),
        ("wildly scaled columns", 4),
        ("Laeuchli", 4),
    ],
)
def test_the_rank_is_decided_by_what_is_noise(name: str, rank: int, block_type: Any) -> None:
    result = check(adversaries("float64")[name], None, block_type)
    assert B - int(result.lost.sum()) == rank
    assert result.lost.tolist() == [False] * rank + [True] * (B - rank)  # lost columns come last


def test_a_direction_above_the_rounding_noise_is_kept_and_one_below_is_not(block_type: Any) -> None:
    rng = np.random.default_rng(3)
    assert not check(graded(rng, 1e13, "float64"), None, block_type).lost.any()
    assert check(graded(rng, 1e18, "float64"), None, block_type).lost.sum() >= 1


def test_noise_of_the_operator_counts_in_short_columns(block_type: Any) -> None:
    W = 1e-9 * normal(np.random.default_rng(0), N, B) / N**0.5
    assert not orthogonalize(block_type(W.copy())).lost.any()
    assert orthogonalize(block_type(W.copy()), scale=1e8).lost.all()


def test_with_little_room_left_only_as_many_directions_are_kept(block_type: Any) -> None:
    rng = np.random.default_rng(5)
    whole = orthonormal(rng, 10, 10, "float64")
    V = np.ascontiguousarray(whole[:, :8])
    W = normal(rng, 10, B)
    block = block_type(W.copy())
    result = orthogonalize(block, block_type(V), max_rank=2)
    Q = block.array[:, :2]
    assert result.R.shape == (2, B)
    assert np.allclose(Q.T @ Q, np.eye(2), atol=1e-14)
    assert np.allclose(V.T @ Q, 0, atol=1e-14)
    assert np.allclose(V @ result.S + Q @ result.R, W, atol=1e-13)


def test_noisy_columns_take_nothing_from_accurate_ones(block_type: Any) -> None:
    """Short columns of an operator's rounding noise beside long ones, in a space with little room."""
    rng = np.random.default_rng(11)
    whole = orthonormal(rng, 40, 40, "float64")
    V, rest = np.ascontiguousarray(whole[:, :36]), whole[:, 36:]
    W = rest @ normal(rng, 4, 6) * np.array([1e-12, 1e-12, 5e-12, 1e-10, 1e-2, 1e-2])
    block = block_type(W.copy())
    result = orthogonalize(block, block_type(V), scale=150.0, max_rank=4)
    rebuilt = V @ result.S + block.array[:, :4] @ result.R
    assert np.max(np.abs(rebuilt - W)) <= 150 * 100 * 2.0**-53


def test_a_division_that_mixed_noise_into_an_accurate_column_is_taken_back(block_type: Any) -> None:
    """The first column is rounding noise of the operator, but as well conditioned as any."""
    W = normal(np.random.default_rng(13), N, 3) / N**0.5 * np.array([1e-13, 1.0, 1e-2])
    block = block_type(W.copy())
    result = orthogonalize(block, scale=100.0)
    assert result.lost.tolist() == [False, False, True]
    assert np.max(np.abs(block.array @ result.R - W)) <= 1e-12
    assert np.max(np.abs(block.array[:, :2] @ result.R[:2, 1:] - W[:, 1:])) <= 100 * 2.0**-53


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_is_an_error_and_not_a_rank_decision(bad: float, block_type: Any) -> None:
    W = normal(np.random.default_rng(0), N, B)
    W[3, 1] = bad
    with np.errstate(invalid="ignore"), pytest.raises(BreakdownError, match="NaN or Inf"):
        orthogonalize(block_type(W))


def test_a_block_that_has_no_room_is_refused_with_the_rank_that_has(block_type: Any) -> None:
    V = block_type(orthonormal(np.random.default_rng(6), 12, 11, "float64"))
    with pytest.raises(ShapeError, match=r"dimension 12 has no room for 2 columns .* of 11; give max_rank=1"):
        orthogonalize(block_type(np.ones((12, 2))), V)
    with pytest.raises(ShapeError, match=r"no room for 13 columns .* of 0; give max_rank=12"):
        orthogonalize(block_type(np.ones((12, 13))))


@pytest.mark.parametrize("seed", [2, 3, 11, 66])
def test_small_pivots_do_not_let_rounding_grow_without_end(seed: int) -> None:
    """Twenty graded columns of rank four: sixteen pivots, one after the other, are rounding."""
    rng = np.random.default_rng(seed)
    grades = 10 ** rng.uniform(-8, 0, (4, 1)), 10 ** rng.uniform(-4, 0, 20)
    W = rng.standard_normal((112, 4)) @ (rng.standard_normal((4, 20)) * grades[0]) * grades[1]
    X = BlockVector(W.copy())
    result = orthogonalize(X, rng=0, scale=1e-3)
    assert np.linalg.norm(X.array.T @ X.array - np.eye(20)) < 1e-13
    assert np.linalg.norm(X.array @ result.R - W) < 1e-13 * np.linalg.norm(W)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_the_step_of_column_major_blocks_is_that_of_others(dtype: str, width: int) -> None:
    rng = np.random.default_rng(11)
    V, W = orthonormal(rng, N, 12, dtype), normal(rng, N, width, dtype=dtype)
    options: dict[str, Any] = {"first": [(4, 12)], "scale": 1.0}
    basis, X, others = ColumnBlock(V), ColumnBlock(W.copy()), BlockVector(W.copy())
    result, other = orthogonalize(X, basis, **options), orthogonalize(others, BlockVector(V), **options)
    assert result.reductions < other.reductions
    assert np.allclose(result.S, other.S, rtol=0, atol=1e-12)
    assert np.allclose(X.array @ result.R, others.array @ other.R, rtol=0, atol=1e-12)
    assert np.linalg.norm(np.hstack([V, X.array]).conj().T @ X.array - np.eye(12 + width, width, -12)) < 1e-13


@pytest.mark.parametrize("width", [1, 2])
def test_a_length_that_rounding_makes_negative_is_left_to_other_policies(width: int) -> None:
    """In a semidefinite inner product, those of vectors of the null space are rounding errors."""
    rng = np.random.default_rng(0)
    M = as_operator(lambda X: -1e-17 * X, shape=(50, 50))
    blocks = inner_product_columns(inner_product_blocks(M))
    V, W = blocks(np.zeros((50, 3))), blocks(rng.standard_normal((50, width)))
    _, R, length, _ = host_step(W, V, [(0, 3)], 1.0)
    assert R is None
    assert length >= 1.0
