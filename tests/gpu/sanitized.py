"""Run every family of kernels on small exact operands, for `test_sanitizer.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from blockvec import BlockVector, as_operator, inverse_factor, models
from blockvec.backends import backend_for
from blockvec.kernels.build import build
from blockvec.kernels.dense.tsmm_3m import ROWS as ROWS_3M
from blockvec.kernels.families import FAMILIES
from blockvec.operations import products
from tests.blocks import bind
from tests.contract.blocks import exact_values, host, on

ROWS = 1999  # of which no tile height is a divisor
LD = 3  # columns of a view's parent beside it


def tall(rng: np.random.Generator, width: int, dtype: str, view: bool) -> tuple[np.ndarray, Any]:
    """Draw exact values and copy them to a block on the GPU, optionally a view at an odd offset."""
    values = exact_values(rng, (ROWS, width + (LD if view else 0)), dtype)
    columns = slice(1, 1 + width) if view else slice(None)
    return values[:, columns], on("gpu", values)[:, columns]


def check(name: str, got: Any, expected: np.ndarray) -> None:
    """Fail if a product of small integers is not exact."""
    if not np.array_equal(host(got), expected):
        raise SystemExit(f"{name}: wrong result")


def run_products(M: int, N: int, dtype: str, view: bool) -> int:
    """Run all own kernels for both products of blocks; return their number."""
    rng, backend, count = np.random.default_rng(M), backend_for("gpu"), 0
    (x, A), (y, B), c = tall(rng, M, dtype, view), tall(rng, N, dtype, view), exact_values(rng, (M, N), dtype)
    dot = products.tsmttsm_problem(A, B, True)
    combine, update = (products.tsmm_problem(A, on("gpu", c), B, 1, beta) for beta in (0, 1))
    for problem in (dot, combine, update):
        for candidate in backend.candidates(problem):
            if candidate.refusal or candidate.name.startswith("cublas"):
                continue
            count += 1
            if problem is dot:
                C = on("gpu", np.full_like(c, np.nan))
                candidate.run(problem, A, B, C, 1, 0)
                check(candidate.name, C, x.conj().T @ y)
            else:
                beta = 1 if problem is update else 0
                B[...] = on("gpu", y)
                candidate.run(problem, A, on("gpu", c), B, 1, beta)
                check(candidate.name, B, x @ c + beta * y)
    return count


def run_gram(width: int, dtype: str) -> int:
    """Run all own kernels of a Gram matrix; return their number."""
    backend, count = backend_for("gpu"), 0
    x, A = tall(np.random.default_rng(width), width, dtype, False)
    problem = products.tsmttsm_problem(A, A, True)
    for candidate in backend.candidates(problem):
        if candidate.refusal or candidate.name.startswith("cublas"):
            continue
        count += 1
        C = on("gpu", np.full((width, width), np.nan, dtype))
        candidate.run(problem, A, A, C, 1, 0)
        check(candidate.name, C, x.conj().T @ x)
    return count


def run_dealt(M: int, N: int, dtype: str) -> int:
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
            teams = config.teams * config.blocks if family.name == "tsmm_fma" else config.groups
            first_rows = config.stages * teams * config.rows
        if len(a) <= few.multiprocessors * first_rows:
            raise SystemExit(f"{family.kernel_name(problem)}: too few rows to ask for more")
        source = family.source(problem, config, few)
        shared = family.shared_bytes(problem, config, few)
        kernel = build(source, family.kernel_name(problem), few.architecture, shared)
        addresses = (operand.data.ptr for operand in (A, C, B))
        bind(family, kernel, problem, config, few)(*addresses, 1, 0, queue.data.ptr)
        check(family.kernel_name(problem), B, a @ c)
        check("queue", queue, np.zeros(2, np.uint32))
    return len(supported)


def run_sweeps(M: int, N: int, dtype: str) -> int:
    """Run the two fused sweeps of a basis and a block."""
    rng = np.random.default_rng(N)
    (w, W), (v, V), c = (
        tall(rng, M, dtype, False),
        tall(rng, N, dtype, False),
        exact_values(rng, (N, N), dtype),
    )
    basis, block = BlockVector(W), BlockVector(V)
    check("combine_dot", block.combine_dot(on("gpu", c), basis), w.conj().T @ (v @ c))
    d = exact_values(rng, (M, N), dtype)
    updated = v @ c - w @ d
    check("update_gram", block.update_gram(basis, on("gpu", d)), updated.conj().T @ updated)
    return 2


def run_sparse(width: int) -> int:
    """Run sparse products with fused sums, of a grid, and with empty, long and very long rows."""
    import cupyx.scipy.sparse as gpu_sparse
    import scipy.sparse as sp

    rng = np.random.default_rng(width)
    matrix = sp.diags([1.0, -2.0, 1.0], [-40, 0, 1], shape=(ROWS, ROWS), format="csr")
    lengths = np.minimum(rng.pareto(1.1, ROWS) * 3, 6000).astype(np.int64)
    rows, columns = np.repeat(np.arange(ROWS), lengths), rng.integers(0, ROWS, lengths.sum())
    uneven = sp.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(ROWS, ROWS))
    x, X = tall(rng, width, "float64", False)
    for A in (matrix, uneven):
        applied = as_operator(gpu_sparse.csr_matrix(A)).apply(BlockVector(X), dots="xy", gram="yy")
        y = A @ x
        check("spmmv", applied.Y, y)
        check("spmmv dots", applied.dots["xy"], (x * y).sum(axis=0))
        check("spmmv gram", applied.gram["yy"], y.T @ y)
    return 2


def run_chain(spec: str, width: int) -> int:
    """Run a product with a chain that is not stored, with its fused sums."""
    A = models.model(spec)
    values = exact_values(np.random.default_rng(width), (A.shape[0], width + LD), "float64")
    x, X = values[:, 1 : 1 + width], on("gpu", values)[:, 1 : 1 + width]
    applied = models.operator(spec, device="gpu").apply(BlockVector(X), shift=2, dots=("xy", "yy"))
    y = A @ x - 2 * x
    check("spmmv_chain", applied.Y, y)
    check("spmmv_chain dots", applied.dots["xy"], (x * y).sum(axis=0))
    return 1


def run_small(width: int, dtype: str) -> int:
    """Run the inverse of a Cholesky factor that is bidiagonal, with ones."""
    R = np.eye(width, dtype=dtype) + np.eye(width, k=1, dtype=dtype)
    found = inverse_factor(on("gpu", R.T @ R))
    check("inverse_factor", found.T, np.linalg.inv(R).round())
    check("inverse_factor's report", on("gpu", found.wait().R), R)
    return 1


def run_krylov_steps(b: int, dtype: str, locked: int, ld: int) -> int:
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
    return 2


def run_recurrence(b: int, dtype: str) -> int:
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
    return 2


def main() -> None:
    """Run all kernels and print their number."""
    count = 0
    for M, N, dtype, view in (
        *((8, 8, "float64", False), (13, 7, "float64", True), (33, 33, "float64", False)),
        *((64, 64, "float64", False), (6, 6, "complex128", False), (47, 47, "complex128", False)),
        *((16, 16, "float32", False), (5, 9, "complex64", True), (130, 4, "float64", False)),
        (40, 32, "complex64", False),
        (41, 33, "float32", True),
    ):
        count += run_products(M, N, dtype, view)
    count += run_gram(53, "complex128")
    for M, N, dtype in ((64, 8, "float64"), (96, 3, "complex128")):
        count += run_sweeps(M, N, dtype)
    count += run_dealt(5, 3, "float64") + run_dealt(16, 16, "complex64")
    count += run_sparse(4) + run_sparse(7)
    count += run_chain("xxz:sites=14,up=6", 7) + run_chain("hubbard:sites=7,up=3,down=4,u=2", 16)
    count += run_small(5, "float32") + run_small(40, "complex128")
    count += run_krylov_steps(4, "float64", 0, 20) + run_krylov_steps(3, "float64", 5, 21)
    count += run_krylov_steps(2, "complex128", 3, 16)
    count += run_recurrence(4, "float64") + run_recurrence(2, "complex64") + run_recurrence(1, "float32")
    print(f"{count} kernels")


if __name__ == "__main__":
    main()
