"""One eigensolve through pytest-benchmark; what it cost beside time goes into extra_info."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockvec import models
from solvers import eigsh


def test_the_low_end_of_a_laplacian(benchmark: Any, rows: int) -> None:
    n = max(8, round(rows ** (1 / 3)))
    A = models.model(f"laplace3d:n={n}")
    options = {"which": "SA", "tol": 1e-8, "convergence": "norm", "method": "lanczos", "rng": 0}
    result = benchmark.pedantic(eigsh, (A, 4), options | {"return_info": True}, rounds=1)
    expected = models.spectra.laplace_eigenvalues([n] * 3)[:4]
    assert np.sort(result.eigenvalues) == pytest.approx(expected, abs=1e-6)
    for key in ("operator_columns", "block_applications", "restarts"):
        benchmark.extra_info[key] = result.info[key]
    benchmark.extra_info["residual"] = float(result.residuals.max())
