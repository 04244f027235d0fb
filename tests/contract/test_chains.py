"""Chains without a matrix are their matrices, on every backend."""

from __future__ import annotations

import re

import numpy as np
import pytest

from blockvec import BlockVector, eigsh, models
from tests.contract.blocks import exact_values, host, on


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_converted_chain_is_a_multiple_in_another_type(device: str, dtype: str) -> None:
    spec = "xxz:sites=14,up=6,delta=0.5"
    S = models.operator(spec, device=device).converted(dtype, 0.5)
    X = exact_values(np.random.default_rng(1), (S.shape[0], 3), dtype)
    Y = S @ BlockVector(on(device, X))
    assert Y.dtype == S.dtype == dtype
    np.testing.assert_array_equal(host(Y), 0.5 * models.model(spec) @ X)


@pytest.mark.parametrize(
    ("spec", "k"),
    [
        ("xxz:sites=12,up=6", 8),
        ("xxz:sites=11,up=5,delta=0,periodic=false", 5),
        ("hubbard:sites=6,up=3,down=2,u=4", 6),
    ],
)
@pytest.mark.parametrize("method", ["auto", "lanczos", "filter", "jd"])
def test_solvers_find_the_copies_that_the_matrix_has(device: str, spec: str, k: int, method: str) -> None:
    expected = np.linalg.eigvalsh(models.model(spec).toarray())[:k]
    w, V = eigsh(models.operator(spec, device=device), k=k, which="SA", method=method)
    np.testing.assert_allclose(host(w), expected, atol=1e-9)
    np.testing.assert_allclose(host(V.conj().T @ V), np.eye(k), atol=1e-12)


def test_filters_in_single_precision_take_a_chain(device: str) -> None:
    spec, k = "xxz:sites=12,up=6", 4
    S = models.operator(spec, device=device)
    w = eigsh(S, k=k, which="SA", method="filter", precision="mixed", tol=1e-8, return_eigenvectors=False)
    np.testing.assert_allclose(
        np.sort(host(w)), np.linalg.eigvalsh(models.model(spec).toarray())[:k], atol=1e-6
    )


def test_a_chain_describes_itself_in_one_line_and_is_hermitian(device: str) -> None:
    S = models.operator("hubbard:sites=6,up=3,down=3,u=4", device=device)
    assert re.fullmatch(r"ChainOperator\(400x400, float64, (cpu|cuda:0)\)", repr(S))
    assert S.nnz == models.model("hubbard:sites=6,up=3,down=3,u=4").nnz
    assert 0 < S.check_hermitian() <= abs(models.model("hubbard:sites=6,up=3,down=3,u=4")).sum(axis=1).max()
