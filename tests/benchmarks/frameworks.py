"""Time `eigsh` with matrices and functions of torch and JAX beside CuPy's (on a host: NumPy's and SciPy's).

    python -m tests.benchmarks.frameworks --json docs/results/h200/frameworks.json

The matrix is the Laplacian of a cube, the method the filter. Each case of torch and JAX has one with equal
work: the matrix in CSR form; a function that calls blockvec's own product, so that the difference of both
times is that of the conversions; and, for torch, the 7-point stencil on slices, whose time includes the
libraries' own kernels. Repeats alternate between the cases. Overhead is the ratio of the fastest times, less
one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from blockvec import BlockVector, as_operator, models
from blockvec.interchange import ArrayKind, native
from solvers import EigenResult, eigsh
from tests.array_libraries import Jax, Torch, host_copies, stencil
from tests.benchmarks import records as results
from tests.benchmarks.harness import Run, in_turns, recorded, script_parser

BASES = {
    "torch csr": "native csr",
    "jax csr": "native csr",
    "torch product": "native product",
    "jax product": "native product",
    "torch stencil": "native stencil",
}
CONVERSIONS = 200  # round trips of a block that are timed together


def cases(n: int, device: str, **how: Any) -> dict[str, Callable[[], EigenResult]]:
    """Return the solves by name."""
    matrix = models.laplace3d(n=n)
    Jax()  # leaves memory of the GPU to the others; without JAX, the message says so
    import jax  # here, because the collection of doctests imports this file also without these libraries
    import torch
    from jax.experimental import sparse

    jax.config.update("jax_enable_x64", True)
    tensor = Torch().sparse["csr"](matrix)
    tensor = tensor.cuda() if device == "gpu" else tensor
    ours = native(tensor) if device == "gpu" else matrix
    S = as_operator(ours)
    example = torch.zeros(0, dtype=torch.float64, device="cuda" if device == "gpu" else "cpu")

    def solve(A: Any, **options: Any) -> Callable[[], EigenResult]:
        return lambda: eigsh(A, **how, **options, return_info=True)

    def product(library: str) -> Callable[[Any], Any]:
        share = ArrayKind(library).share
        return lambda X: share(S.apply(BlockVector(X)).array)

    at_home: dict[str, Any] = {"shape": matrix.shape, "device": device}
    in_torch: dict[str, Any] = {"shape": matrix.shape, "like": example}
    return {
        "native csr": solve(ours),
        "torch csr": solve(tensor),
        "jax csr": solve(sparse.BCSR.from_scipy_sparse(matrix.tocsr())),
        "native product": solve(lambda X: S.apply(X).array, **at_home),
        "torch product": solve(product("torch"), **in_torch),
        "jax product": solve(product("jax"), **at_home, like="jax"),
        "native stencil": solve(stencil(n), **at_home),
        "torch stencil": solve(stencil(n), **in_torch),
    }


def conversion_s(library: str, device: str) -> float:
    """Time one conversion of a block to an array of a library and back."""
    X, share = BlockVector.random(10_000, 8, rng=0, device=device).array, ArrayKind(library).share
    begin = time.perf_counter()
    for _ in range(CONVERSIONS):
        BlockVector(share(X))
    return (time.perf_counter() - begin) / CONVERSIONS


def main() -> None:
    """Measure, print a table, and write records."""
    parser = script_parser(__doc__, "gpu", "cpu")
    parser.add_argument("--n", type=int, default=160, help="points per edge of the cube")
    parser.add_argument("--k", type=int, default=10, help="eigenvalues")
    parser.add_argument("--repeats", type=int, default=5)
    forms = ("csr", "product", "stencil")
    parser.add_argument("--forms", nargs="+", choices=forms, default=forms, help="kinds of A; default: all")
    given = parser.parse_args()
    every = cases(given.n, given.device, k=given.k, which="SA", method="filter", tol=1e-8, rng=0)
    solves = {name: solve for name, solve in every.items() if name.split()[1] in given.forms}
    runs = in_turns(solves, given.repeats, given.device, warm=1)
    print(f"{'case':16}{'fastest s':>12}{'median s':>12}{'columns':>10}{'overhead':>10}{'largest copy':>16}")
    recorded(rows(given, solves, runs), given.json, given.device, line)


def rows(
    given: argparse.Namespace, solves: dict[str, Callable[[], EigenResult]], runs: dict[str, Run]
) -> Iterator[results.Record]:
    """Yield a record per case, and one per library of the time of a conversion."""
    for name, run in runs.items():
        base = BASES.get(name)
        info = run.result.info
        copies = host_copies(solves[name])[1] if given.device == "gpu" else []
        yield {
            "operation": "eigsh",
            "matrix": f"laplace3d:n={given.n}",
            "n": given.n**3,
            "k": given.k,
            "which": "SA",
            "method": "filter",
            "arrays": name,
            "block_size": info["block_size"],
            "operator_columns": info["operator_columns"],
            "time_s": run.time_s,
            "median_s": statistics.median(run.all_s),
            "overhead": None if base is None else run.time_s / runs[base].time_s - 1,
            "largest_host_copy_bytes": max(copies, default=None),
            "residual": float(run.result.residuals.max()),
        }
    for library in ("torch", "jax"):
        conversion_s(library, given.device)
        yield {"operation": "conversion", "arrays": library, "time_s": conversion_s(library, given.device)}


def line(record: results.Record) -> str:
    """Return a row of the table."""
    if record["operation"] == "conversion":
        return f"one block to {record['arrays']} and back: {1e6 * record['time_s']:.1f} us"
    percent = "" if record["overhead"] is None else f"{100 * record['overhead']:9.1f}%"
    return (
        f"{record['arrays']:16}{record['time_s']:12.4f}{record['median_s']:12.4f}{record['operator_columns']:10d}"
        f"{percent:>10}{record['largest_host_copy_bytes'] or '':>16}"
    )


if __name__ == "__main__":
    main()
