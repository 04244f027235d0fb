"""The Chebyshev recurrence: sums of polynomials and moments are those of the eigenvalues."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.polynomial import chebyshev

from blockvec import BlockVector, as_operator
from solvers.functions.recurrence import Recurrence


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_several_sums_and_moments_come_from_the_same_steps(dtype: str) -> None:
    rng = np.random.default_rng(0)
    values, n, b, degree = rng.uniform(-1, 1, 30), 30, 3, 9
    Q = np.linalg.qr(
        rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if dtype[0] == "c" else 0)
    )[0]
    A = (Q * values) @ Q.conj().T
    X = BlockVector.random(n, b, dtype, rng=1)
    x = X.array.copy()
    coefficients = rng.standard_normal((2, degree + 1))
    coefficients[0, 1::2] = coefficients[1, ::3] = 0
    sums: list[Any] = [X.copy().scale(c) for c in coefficients[:, 0]]
    steps = Recurrence(as_operator(A.astype(dtype)).affine(2, 0), X, X.like())
    found = [
        steps.step([(c, total) for c, total in zip(factors, sums, strict=True) if c], ("xy", "yy"))
        for factors in coefficients[:, 1:].T.tolist()
    ]
    assert steps.taken == degree
    for total, row in zip(sums, coefficients, strict=True):
        expected = (Q * chebyshev.chebval(values, row)) @ Q.conj().T @ x
        np.testing.assert_allclose(total.array, expected, atol=1e-13 * np.abs(expected).max())
    weights = np.abs(Q.conj().T @ x) ** 2
    moments = chebyshev.chebvander(values, 2 * degree).T @ weights
    for j, dots in enumerate(found):  # of T_j and T_(j+1)
        np.testing.assert_allclose(2 * dots["xy"].real - moments[1], moments[2 * j + 1], atol=1e-12)
        np.testing.assert_allclose(2 * dots["yy"] - moments[0], moments[2 * j + 2], atol=1e-12)
