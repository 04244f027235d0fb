"""Run every family of kernels on small exact operands, for `test_sanitizer.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from blockvec import BlockVector, as_operator, inverse_factor, models
from blockvec.backends import backend_for
from blockvec.kernels.build import build
from blockvec.kernels.dense.tsmm_mma import ROWS_3M
from blockvec.kernels.families import FAMILIES
from blockvec.operations import products
from tests.blocks import bind
from tests.contract.blocks import PLAIN, Layout, exact_values, host, on
from tests.contract.test_apply import CHAINS
from tests.contract.test_apply import (
    test_on_many_rows_everything_is_exact_where_the_terms_are_and_repeats as exact_products,
)
from tests.contract.test_candidates import check_gram, check_tsmm, check_tsmttsm
from tests.contract.test_sweeps import test_exact_operands_give_exact_sweeps as exact_sweeps

ROWS = 1999  # of which no tile height is a divisor


def check(name: str, got: Any, expected: np.ndarray) -> None:
    """Fail if a product of small integers is not exact."""
    if not np.array_equal(host(got), expected):
        raise SystemExit(f"{name}: wrong result")


def is_own(candidate: Any) -> bool:
    return not candidate.name.startswith("cublas")


def run_products(M: int, N: int, dtype: str, view: bool) -> None:
    """Run all own kernels for both products of blocks."""
    how = backend_for("gpu"), (ROWS, M, N), dtype, dtype, Layout(1, 2) if view else PLAIN, is_own
    check_tsmttsm(*how)
    check_tsmm(*how, inplace=False)


def run_dealt(M: int, N: int, dtype: str) -> None:
    """Run kernels of A C on so few blocks that each takes tiles from the queue many times."""
    backend: Any = backend_for("gpu")
    few = replace(backend.device, multiprocessors=2)
    rng = np.random.default_rng(M)
    a, c = exact_values(rng, (10 * ROWS, M), dtype), exact_values(rng, (M, N), dtype)
    A, C, B = on("gpu", a), on("gpu", c), on("gpu", np.full((len(a), N), np.nan, dtype))
    problem, queue = products.tsmm_problem(A, C, B, 1, 0), on("gpu", np.zeros(2, np.uint32))
    families = [FAMILIES[name] for name in ("tsmm_fma", "tsmm_mma", "tsmm_3m")]
    supported = [family for family in families if family.supports(problem, few) is None]
    for family in supported:
        config: Any = family.choose(problem, few)
        if family.name == "tsmm_3m":
            first_rows = config.warps * ROWS_3M
        else:
            teams = (
                config.teams * config.blocks if family.name == "tsmm_fma" else config.warps // config.split
            )
            first_rows = config.stages * teams * config.rows
        if len(a) <= few.multiprocessors * first_rows:
            raise SystemExit(f"{family.name}: too few rows to ask for more")
        kernel = build(family.kernel(problem, config, few), few.architecture)
        addresses = (operand.data.ptr for operand in (A, C, B))
        bind(family, kernel, problem, config, few)(*addresses, 1, 0, queue.data.ptr)
        check(family.name, B, a @ c)
        check("queue", queue, np.zeros(2, np.uint32))


def run_small(width: int, dtype: str) -> None:
    """Run the inverse of a Cholesky factor that is bidiagonal, with ones."""
    R = np.eye(width, dtype=dtype) + np.eye(width, k=1, dtype=dtype)
    found = inverse_factor(on("gpu", R.T @ R))
    check("inverse_factor", found.T, np.linalg.inv(R).round())
    check("inverse_factor's report", on("gpu", found.wait().R), R)


def run_krylov_steps(b: int, dtype: str, locked: int, ld: int) -> None:
    """Run steps that factorise twice, on rows of `ld` elements, one launch with and one without products."""
    rng, A = np.random.default_rng(b), models.model(f"laplace1d:n={ROWS}").astype(dtype)
    start = np.linalg.qr(rng.standard_normal((ROWS, locked + b)))[0].astype(dtype)
    V = BlockVector(on("gpu", np.pad(start, ((0, 0), (0, ld - start.shape[1])))))
    operator: Any = as_operator(A, device="gpu")
    steps, end = operator.krylov_steps(V, b), start.shape[1]
    X, W = BlockVector(on("gpu", start[:, locked:])), BlockVector.empty(ROWS, b, dtype, device="gpu")
    steps.queue(X, W, locked, end, locked, locked, 2, 0.0, 1e6)()
    W = operator.apply(X, out=W)
    steps.without_products().queue(X, W, end + b, end + 2 * b, locked, locked, 1, 0.0, 1e6)()
    used = host(V.array)[:, : end + 3 * b]
    if not np.allclose(used.conj().T @ used, np.eye(used.shape[1]), rtol=0, atol=1e-12):
        raise SystemExit("krylov_steps: the basis is not orthonormal")


def run_recurrence(b: int, dtype: str) -> None:
    """Run steps of recurrences whose results are whole numbers, and those of Lanczos."""
    A = models.model(f"laplace1d:n={ROWS}").astype(dtype)
    operator: Any = as_operator(A, device="gpu")
    x, y = np.ones((ROWS, b), dtype), np.zeros((ROWS, b), dtype)
    X, Y = BlockVector(on("gpu", x)), BlockVector(on("gpu", y))
    operator.prepare(X, Y, 1, -1, 2, repeat=3)()
    for _ in range(3):
        x, y = A @ x - 2 * x - y, x
    check("recurrence", Y, x)
    check("recurrence", X, y)
    log = host(operator.lanczos_recurrence(X)(4))
    if not np.isfinite(log).all():
        raise SystemExit("lanczos_recurrence: coefficients are missing")


def main() -> None:
    """Run all kernels."""
    for M, N, dtype, view in (
        *((8, 8, "float64", False), (13, 7, "float64", True), (33, 33, "float64", False)),
        *((64, 64, "float64", False), (6, 6, "complex128", False), (47, 47, "complex128", False)),
        *((16, 16, "float32", False), (5, 9, "complex64", True), (130, 4, "float64", False)),
        *((40, 32, "complex64", False), (41, 33, "float32", True)),
    ):
        run_products(M, N, dtype, view)
    check_gram(backend_for("gpu"), (ROWS, 53, 53), "complex128", PLAIN, is_own)
    for M, N, dtype in ((64, 8, "float64"), (96, 3, "complex128")):
        exact_sweeps("gpu", dtype, ROWS, M, N, PLAIN)
    run_dealt(5, 3, "float64")
    run_dealt(16, 16, "complex64")
    for matrix, width in (("float64", 4), ("uneven", 4), ("uneven", 7), (CHAINS[0], 7), (CHAINS[1], 16)):
        exact_products("gpu", matrix, "float64", width, Layout(1, 2))
    run_small(5, "float32")
    run_small(40, "complex128")
    for steps in ((4, "float64", 0, 20), (3, "float64", 5, 21), (2, "complex128", 3, 16)):
        run_krylov_steps(*steps)
    for b, dtype in ((4, "float64"), (2, "complex64"), (1, "float32")):
        run_recurrence(b, dtype)
    print("all kernels")


if __name__ == "__main__":
    main()
