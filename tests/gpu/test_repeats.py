"""The same products again and again, one right behind the other, as solvers queue them.

A kernel whose copies overtake its loads is right most of the time, and always when it runs alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from blockvec import BlockVector, as_operator
from blockvec.models import model

pytestmark = pytest.mark.gpu

ROWS, REPEATS = 400_000, 20
TYPES = ("float32", "float64", "complex64", "complex128")
SHAPES = (
    (8, 8),
    (13, 13),
    (24, 3),
    (33, 33),
    (40, 8),
    (57, 57),
    (64, 16),
    (72, 8),
    (88, 8),
    (3, 31),
    (128, 4),
)


def integers(seed: int, columns: int, dtype: str, rows: int = ROWS) -> Any:
    """Entries of {-1, 0, 1}, on the GPU."""
    import cupy

    values = cupy.random.default_rng(seed).integers(-1, 2, (2, rows, columns))
    return (values[0] + 1j * values[1] if dtype.startswith("c") else values[0]).astype(dtype)


def check(call: Callable[[], Any], expected: Any) -> None:
    """Queue all repeats before any is looked at."""
    results = [call() for _ in range(REPEATS)]
    assert all(bool((result == expected).all()) for result in results)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("M", "N"), SHAPES)
@pytest.mark.parametrize("beside", [0, 3, 16])
def test_products_are_exact_every_time(M: int, N: int, dtype: str, beside: int) -> None:
    array, other = integers(M, M + beside, dtype), integers(N, N + beside, dtype)
    A, B = array[:, beside:], other[:, :N]
    V, W = BlockVector(A), BlockVector(B)
    check(lambda: V.dot(W), A.conj().T @ B)
    check(lambda: V.gram(), A.conj().T @ A)
    C = integers(5, N, dtype, M)
    out = BlockVector(B.copy())
    check(lambda: V.combine(C, out=out.like()).array, A @ C)
    check(lambda: V.combine(C, beta=1, out=W.copy()).array, A @ C + B)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("basis", [16, 72, 88, 256])
def test_sweeps_are_exact_every_time(basis: int, dtype: str) -> None:
    w, v, C = integers(1, basis, dtype), integers(2, 8, dtype), integers(3, 8, dtype, basis)
    W, updated = BlockVector(w), v - w @ C
    check(lambda: BlockVector(v.copy()).update_gram(W, C), updated.conj().T @ updated)
    D = integers(4, 8, dtype, 8)
    check(lambda: BlockVector(v.copy()).combine_dot(D, W), w.conj().T @ (v @ D))


@pytest.mark.parametrize("columns", [1, 2, 4, 8, 13, 32])
def test_sparse_products_are_exact_every_time(columns: int) -> None:
    import cupyx.scipy.sparse as sparse

    matrix = sparse.csr_matrix(model("laplace3d:n=110"))
    x = integers(columns, columns, "float64", matrix.shape[0])
    X, operator = BlockVector(x), as_operator(matrix)
    check(lambda: operator.apply(X).array, matrix @ x)
