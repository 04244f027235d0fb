"""Factors, sums, adjoints and transposes of operators are those of their matrices, on every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

import blockvec
from blockvec import as_operator, models
from tests.contract.blocks import DTYPES, exact_values, host, on
from tests.contract.test_operators import linalg

COMBINATIONS: list[Callable[[Any, Any], Any]] = [
    lambda A, B: 2 * A - B / 2,
    lambda A, B: -(A + B) * np.float32(3),
    lambda A, B: 1j * A + B,
    lambda A, B: A - 0 * B,
    lambda A, B: 0 * A,
    lambda A, B: sum([A, B, 2 * (3 * A)]),
]


def kinds(A: Any, device: str) -> list[Any]:
    """The operator of a matrix, made of each of its forms."""
    sparse, dense = sp.csr_array(A), on(device, A)
    return [
        as_operator(sparse, device=device),
        as_operator(dense),
        as_operator(linalg(device).aslinearoperator(dense)),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(30, 30), (30, 20)])
def test_combinations_are_those_of_the_matrices(device: str, dtype: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    A, B = (exact_values(rng, shape, dtype) * (rng.random(shape) < 0.5) for _ in range(2))
    pairs = zip(kinds(A, device), reversed(kinds(B, device)), strict=True)
    for (a, b), combine in ((pair, combine) for pair in pairs for combine in COMBINATIONS):
        found, dense = combine(a, b), combine(A, B)
        assert found.dtype == dense.dtype
        for op, matrix in ((found, dense), (found.H, dense.conj().T), (found.T, dense.T)):
            X, Y = (exact_values(rng, (n, 3), dtype) for n in reversed(matrix.shape))
            Y = Y.astype(np.result_type(matrix, X))
            out = on(device, Y)
            assert np.array_equal(host(op @ on(device, X)), matrix @ X)
            op.apply(on(device, X), out, alpha=2, beta=-1)
            assert np.array_equal(host(out), 2 * (matrix @ X) - Y)
            if device == "cpu":
                x, y = (np.asfortranarray(part.astype(op.dtype)) for part in (X, Y))
                expected = 2 * (matrix @ x) + y
                op.apply_columns(x, y, alpha=2, beta=1)
                assert np.array_equal(y, expected)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_shifts_updates_and_sums_pass_through(device: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    A, B = (exact_values(rng, (40, 40), dtype) for _ in range(2))
    a, b = as_operator(sp.csr_array(A), device=device), as_operator(on(device, B))
    X, Z, shifts = exact_values(rng, (40, 3), dtype), exact_values(rng, (40, 3), dtype), np.array([1, 2, 0])
    for op, S in (
        (2 * a, 2 * A),
        (a - 2 * b, A - 2 * B),
        (0 * a, 0 * A),
        ((a + b).affine(2, 1), 2 * (A + B - np.eye(40))),
        (a.affine(2, -3), 2 * (A + 3 * np.eye(40))),
        (b.affine(2, -3).affine(2, 1), 4 * B + 10 * np.eye(40)),
    ):
        Y, z = (S - np.eye(40)).astype(dtype) @ X, on(device, Z)
        _, dots, gram = op.apply(on(device, X), shift=1, z=z, delta=2, eta=-1, dots=("xy", "yy"), gram="xy")
        assert np.array_equal(host(z), 2 * Z - Y)
        assert np.array_equal(host(dots["xy"]), (X.conj() * Y).sum(axis=0))
        assert np.array_equal(host(dots["yy"]), (Y.conj() * Y).sum(axis=0).real)
        assert np.array_equal(host(gram["xy"]), X.conj().T @ Y)
        per_column = op.apply(on(device, X), shift=on(device, shifts.astype(X.real.dtype)))
        assert np.array_equal(host(per_column), (S.astype(dtype) @ X - X * shifts).astype(dtype))


def test_it_is_known_which_operators_are_hermitian(device: str) -> None:
    A = as_operator(models.model("hofstadter:nx=6,ny=6,p=1,q=3"), device=device)
    assert A.is_hermitian is None
    assert A.H is A
    assert A.is_hermitian
    assert (2 * A).is_hermitian
    assert (2 * A - A / 3).H.is_hermitian
    assert (1j * A).is_hermitian is None
    assert (1j * A).H.scalar == -1j
    assert (1j * A).H.operator is A
    assert A.T is not A
    assert A.T.T is A
    f = as_operator(lambda X: 2 * X, shape=(5, 5), device=device)
    f.check_hermitian()
    assert f.H is f
    chain = models.operator("xxz:sites=6,up=3", device=device)
    assert chain.H is chain


def test_factors_are_numbers_and_multiply() -> None:
    A = as_operator(models.laplace1d(n=5))
    scaled = np.int64(3) * (A * 2)
    assert (scaled.scalar, scaled.operator) == (6, A)
    assert (A / 4).scalar == 0.25
    single = as_operator(np.eye(3, dtype="float32"))
    assert (2**70 * single @ np.ones((3, 1), "float32")).array[0, 0] == 2.0**70
    assert (single / np.int64(2)).dtype == single.dtype


def test_linear_operators_have_their_adjoint() -> None:
    A = np.arange(12.0).reshape(4, 3)
    whole = as_operator(aslinearoperator(A))
    assert np.array_equal((whole.H @ np.eye(4)).array, A.T)


@pytest.mark.parametrize("method", ["lanczos", "filter", "jd", "dense", "auto"])
def test_every_method_takes_sums(device: str, method: Any) -> None:
    A, V = models.model("laplace2d:n=16"), sp.diags_array(np.linspace(0, 1, 256)).tocsr()
    op = 2 * as_operator(A, device=device) + as_operator(V, device=device)
    w = blockvec.eigsh(op, k=4, which="SA", method=method, rng=0, return_eigenvectors=False)
    expected = np.linalg.eigvalsh((2 * A + V).toarray())[:4]
    assert np.abs(host(w) - expected).max() <= 1e-12 * 17


def test_the_adjoint_of_a_complex_multiple_of_a_hermitian_function() -> None:
    H, X = np.array([[1, 2j], [-2j, 3]]), np.eye(2)
    f = as_operator(lambda X: H @ X, shape=(2, 2), dtype=complex)
    f.is_hermitian = True
    assert np.array_equal(((1j * f + f).H @ X).array, (1 - 1j) * H)
