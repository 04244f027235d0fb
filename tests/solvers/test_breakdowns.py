"""Failing factorisations of small matrices, and errors of the caller's functions, as the caller sees them."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from blockvec.errors import BreakdownError
from blockvec.models import model
from solvers import eigsh
from solvers.small_matrices import gram_root

GRID = model("laplace2d:n=20")
MASS = sp.diags_array(np.linspace(1, 2, 400), format="csr")
CALLS: dict[str, dict[str, Any]] = {
    "lanczos": {"k": 4, "which": "SA", "method": "lanczos", "ncv": 12, "verify": "always"},
    "blocks": {"k": 4, "which": "SA", "method": "lanczos", "ncv": 16, "block_size": 4, "verify": "always"},
    "filter": {"k": 4, "which": "SA", "method": "filter"},
    "corrections": {"k": 3, "which": "SA", "method": "jd", "tol": 1e-6},
    "corrections inside": {"k": 2, "sigma": 0.31, "method": "jd", "tol": 1e-6},
    "slices": {"interval": (0.1, 0.4), "M": MASS, "tol": 1e-8},
    "shift": {"k": 4, "sigma": 0.31, "M": MASS},
}


@pytest.mark.parametrize("name", CALLS)
def test_a_cholesky_factor_that_fails_is_repaired_or_a_breakdown(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"rng": 0} | CALLS[name]
    expected = eigsh(GRID, **options)[0]
    factorise, calls = np.linalg.cholesky, 0

    def failing(G: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise np.linalg.LinAlgError("Matrix is not positive definite")
        return factorise(G)

    monkeypatch.setattr(np.linalg, "cholesky", failing)
    with contextlib.suppress(BreakdownError):
        assert np.allclose(eigsh(GRID, **options)[0], expected, atol=1e-6)
    assert calls or name in ("lanczos", "filter", "shift")  # which may need no such factor


@pytest.mark.parametrize("G", [np.diag([1.0, -1e-3]), np.full((2, 2), np.nan), np.zeros((1, 1))], ids=str)
def test_gram_matrices_without_a_factor_are_breakdowns(G: Any) -> None:
    with pytest.raises(BreakdownError, match="not positive definite"):
        gram_root(G)
