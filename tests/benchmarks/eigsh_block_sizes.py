"""What blocking costs and gains: operator columns and time of block sizes 1 to 16, beside PRIMME's GD+k.

    python -m tests.benchmarks.eigsh_block_sizes --json docs/results/host-2core/blocks.json

All methods get the same block size, basis size and residual (1e-8 ||A||). PRIMME is left out where it is not
installed, and beyond block size 8.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blockvec.backends import backend_for
from blockvec.operations.profile import ceilings
from tests.benchmarks import records as results

from .eigen_problems import Judged, Problem, Task, problems
from .eigen_solvers import Solver, blockvec_runs, first_accepted, primme_runs

BLOCK_SIZES = (1, 2, 4, 8, 16)
MAX_BLOCK_PRIMME = 8
BASIS_STEPS = 10  # blocks in a basis, beside the wanted pairs

BESIDE_PRIMME = [
    *(Task("1138_bus", 10, which) for which in ("LA", "SA")),
    Task("bcsstk09", 10),
    Task("bcsstk16", 10),
    Task("gr_30_30", 10),
    *(Task("mhd1280b", 10, which) for which in ("LA", "SA")),
    Task("graphene:nx=128,ny=64", 10),
    Task("xxz:sites=16,up=8", 10),
]
BY_PAIRS = [Task(name, k) for name in ("laplace3d:n=40", "xxz:sites=18,up=9") for k in (5, 10, 20, 50)]


def methods(b: int, ncv: int, peer: bool) -> dict[str, Solver]:
    """Return what is compared, at one block size and basis size."""
    ours = {
        name: functools.partial(blockvec_runs, method=name, block_size=b, ncv=ncv)
        for name in ("lanczos", "filter")
    }
    if not peer or b > MAX_BLOCK_PRIMME:
        return ours
    gd = functools.partial(primme_runs, method="PRIMME_GD_Olsen_plusK", maxBlockSize=b, ncv=ncv)
    return ours | {"primme gd+k": gd}


def records_of(problem: Problem, limit_s: float, peer: bool) -> Iterator[dict[str, Any]]:
    """Yield a record a block size."""
    task = problem.task
    for b in BLOCK_SIZES:
        ncv = min(-(-(task.k + BASIS_STEPS * b) // b) * b, problem.n)
        runs = {
            name: first_accepted(solver, problem, limit_s) for name, solver in methods(b, ncv, peer).items()
        }
        head = {"operation": "eigsh_blocks", "matrix": task.matrix, "n": problem.n, "k": task.k}
        head |= {"which": task.which, "block_size": b, "ncv": ncv}
        yield head | {"methods": {name: _entry(one) for name, one in runs.items()}}


def _entry(one: Judged) -> dict[str, Any]:
    if one.run is None:
        return {"time_s": None, "operator_columns": None, "note": one.note}
    return {
        "time_s": one.run.time_s,
        "operator_columns": one.run.operator_columns,
        "residual": one.residual,
    }


def line(record: dict[str, Any]) -> str:
    """Return the table's row of a record."""
    cells = [
        f"{name} {entry['operator_columns'] or '-':>6} {entry['time_s'] or math.nan:8.3f} s"
        for name, entry in record["methods"].items()
    ]
    head = f"{record['matrix']:24} {record['which']} k={record['k']:<3} b={record['block_size']:<3}"
    return f"{head} {'   '.join(cells)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--matrices",
        type=Path,
        default=os.environ.get("BLOCKVEC_TEST_MATRICES"),
        help="folder of the Matrix Market files (default: BLOCKVEC_TEST_MATRICES)",
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--only", default="", metavar="NAME", help="tasks whose matrix begins like this")
    parser.add_argument("--time-limit", type=float, default=20.0, metavar="S", help="for a run (20)")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="S", help="for everything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.budget
    on_host = arguments.device == "cpu"
    peer = on_host and importlib.util.find_spec("primme") is not None
    tasks = [t for t in (BESIDE_PRIMME if on_host else []) + BY_PAIRS if t.matrix.startswith(arguments.only)]
    backend = backend_for(arguments.device)
    limits = ceilings(backend) if arguments.json else None
    records = []
    for problem in problems(tasks, arguments.matrices, arguments.device):
        for record in records_of(problem, arguments.time_limit, peer and problem.task in BESIDE_PRIMME):
            records.append(record)
            print(line(record), flush=True)
            if limits:
                results.write(arguments.json, results.environment(backend), limits, records)
        if time.monotonic() > deadline:
            print("ended by the budget")
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
