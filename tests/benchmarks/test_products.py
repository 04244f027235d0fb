"""Products and a solve through pytest-benchmark; bytes and the fraction of the roofline go into extra_info.

Small by default, so that they run as tests (`--benchmark-disable`); sizes that say something:

    pytest tests/benchmarks --benchmark-enable --benchmark-rows 1000000
    pytest tests/benchmarks --benchmark-enable --benchmark-rows 10000000 --gpu -m gpu
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockvec import BlockVector, as_operator, models
from blockvec.backends import backend_for
from blockvec.kernels.problem import Problem
from blockvec.kernels.roofline import fraction, traffic
from blockvec.operations import products
from blockvec.operations.profile import ceilings
from solvers import eigsh

DTYPES = ["float64", "complex128"]
WIDTHS = [1, 4, 13]
ON_DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])


def timed(benchmark: Any, device: str, call: Callable[..., Any], *operands: Any, **named: Any) -> Any:
    """Benchmark a call until the device is done with it; return its result."""
    backend = backend_for(device)

    def until_done() -> Any:
        result = call(*operands, **named)
        backend.synchronize()
        return result

    return benchmark(until_done)


def note(benchmark: Any, problem: Problem, device: str = "cpu") -> None:
    """Add what the problem moves, and how near to the roofline the median came, if it was timed."""
    benchmark.extra_info["bytes_moved"] = traffic(problem).total_bytes
    if benchmark.stats is not None:
        median_s = benchmark.stats.stats.median
        benchmark.extra_info["fraction"] = fraction(problem, median_s, ceilings(backend_for(device)))


@ON_DEVICES
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("M", WIDTHS)
def test_dot(benchmark: Any, rows: int, M: int, dtype: str, device: str) -> None:
    A, B = (BlockVector.random(rows, M, dtype, rng=seed, device=device) for seed in (1, 2))
    C = timed(benchmark, device, A.dot, B)
    assert C.shape == (M, M)
    note(benchmark, products.tsmttsm_problem(A.array, B.array, True), device)


@ON_DEVICES
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("M", WIDTHS)
def test_combine(benchmark: Any, rows: int, M: int, dtype: str, device: str) -> None:
    A = BlockVector.random(rows, M, dtype, rng=1, device=device)
    B = BlockVector.empty(rows, M, dtype, device=device)
    C = backend_for(device).from_host(np.eye(M, dtype=dtype))
    timed(benchmark, device, A.combine, C, out=B)
    assert bool((B.array == A.array).all())
    note(benchmark, products.tsmm_problem(A.array, C, B.array), device)


@pytest.mark.parametrize("M", WIDTHS)
def test_apply(benchmark: Any, rows: int, M: int) -> None:
    n = max(2, round(rows ** (1 / 3)))
    S = as_operator(models.model(f"laplace3d:n={n}"))
    X, Y = BlockVector.full(n**3, M, 1), BlockVector.empty(n**3, M)
    benchmark(S.apply, X, out=Y)
    assert Y.array.min() == 0  # inside
    assert Y.array.max() == 3  # at the corners
    known = S.explain(X)
    assert known is not None
    note(benchmark, known[0])


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
