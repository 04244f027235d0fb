"""Compare chains without a matrix with their matrices: time of a product, and solves of long chains.

    python -m tests.benchmarks.chains                                    # on the host
    python -m tests.benchmarks.chains --device gpu xxz:sites=24,up=12 hubbard:sites=13,up=6,down=6,u=8
    python -m tests.benchmarks.chains --device gpu --solve -k 10 xxz:sites=30,up=15
    python -m tests.benchmarks.chains --device gpu --solve -k 4 --block-size 2 --ncv 12 xxz:sites=32,up=16

Prints a record per matrix and width, or per solve, as a line of JSON; ``--json`` writes the document of the
run. Products with and without a matrix alternate, and the fastest ones count. `shift` times the step of a
recurrence: a factor, a shift and an update in the same pass; `peers` the plain product of the matrix by other
libraries.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from blockvec import BlockVector, as_operator, models
from solvers import EigenResult, eigsh
from tests.benchmarks.harness import in_turns, recorded, script_parser

MATRICES = ("xxz:sites=20,up=10", "hubbard:sites=10,up=5,down=5,u=8")
WIDTHS = (1, 2, 3, 4, 7, 8, 16, 32, 64)
WARM, ROUNDS = 25, 7  # products before the measurement, while a GPU converts the matrix; measurements


def facts(result: EigenResult) -> dict[str, Any]:
    """Return what a solve took and reached."""
    told = ("operator_columns", "single_columns", "degree", "restarts", "reductions")
    residual = float(result.residuals.max() / result.info["norm"])
    return {**{name: result.info[name] for name in told}, "residual": residual}  # type: ignore[literal-required]


def seconds(calls: dict[str, Callable[[], Any]], device: str, count: int, **how: int) -> dict[str, float]:
    """Time calls in turn: of the processor on the host, which others share, and elapsed on a GPU."""
    several = {name: lambda call=call: [call() for _ in range(count)] for name, call in calls.items()}
    runs = in_turns(several, ROUNDS, device, **how)
    return {name: (run.cpu_s if device == "cpu" else run.time_s) / count for name, run in runs.items()}


def products(name: str, forms: dict[str, Any], width: int, device: str, steps: int) -> dict[str, Any]:
    """Measure the products with one matrix and width."""
    X = BlockVector.random(forms["chain"].shape[0], width, device=device, rng=0)
    Y = X.copy()
    plain = {form: (lambda S=S: S.apply(X, out=Y)) for form, S in forms.items()}
    update = {
        form: (lambda S=S: S.apply(X, out=Y, alpha=0.1, beta=-1, shift=0.3)) for form, S in forms.items()
    }
    record: dict[str, Any] = {"operation": "chain", "matrix": name, "n": X.n_rows, "width": width}
    for kind, calls in {"plain": plain, "shift": update}.items():
        best = seconds(calls, device, steps, warm=-(-WARM // steps) if device == "gpu" else 1)
        record[kind] = {**best, "speedup": best["matrix"] / best["chain"]}
    if device == "gpu":
        from tests.benchmarks.sparse_peers import peers

        others = peers([forms["matrix"]], [X], [Y])
        record["peers"] = seconds(others, device, 2)
    return record


def solve(name: str, k: int, device: str, **options: Any) -> dict[str, Any]:
    """Measure one solve; all copies are in the values."""
    A = models.operator(name, device=device)
    begin = time.perf_counter()
    result: Any = eigsh(A, k, which="SA", tol=1e-8, convergence="norm", rng=0, return_info=True, **options)
    record = {"operation": "eigsh", "matrix": name, "n": A.shape[0], "k": k, "which": "SA", "nnz": A.nnz}
    record |= {"time_s": time.perf_counter() - begin, **facts(result)}
    names = ("method", "block_size")
    return (
        record
        | {key: result.info.get(key) for key in names}
        | {"values": A.backend.to_host(result.eigenvalues).tolist()}
    )


def rows(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a record per matrix and width, or per solve."""
    device = arguments.device
    sizes = {"block_size": arguments.block_size, "ncv": arguments.ncv, "method": arguments.method}
    for name in arguments.matrices:
        if arguments.solve:
            yield solve(name, arguments.k, device, **sizes)
            continue
        forms: dict[str, Any] = {"chain": models.operator(name, device=device)}
        forms["matrix"] = as_operator(models.model(name), device=device)
        for width in WIDTHS:
            yield products(name, forms, width, device, arguments.steps)


def main() -> None:
    """Print the records."""
    parser = script_parser(__doc__, "cpu", "gpu")
    parser.add_argument("matrices", nargs="*", default=MATRICES)
    parser.add_argument("--solve", action="store_true", help="solve, instead of timing products")
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--block-size", type=int)
    parser.add_argument("--ncv", type=int)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--steps", type=int, default=5, help="products per measurement")
    arguments = parser.parse_args()
    recorded(rows(arguments), arguments.json, arguments.device, json.dumps)


if __name__ == "__main__":
    main()
