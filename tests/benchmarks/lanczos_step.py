"""Time a step of block Lanczos on a GPU, of problems that take hardly longer than the calls from Python.

    python tests/benchmarks/lanczos_step.py
    python tests/benchmarks/lanczos_step.py --bare      # launches of steps beside single products, more rows

A run of a fixed number of restarts is divided by its number of steps; restarts and checks are part of it,
but for the last form, which takes the steps of one cycle. The first line describes the machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import blockvec
from blockvec.backends import backend_for
from solvers import eigsh
from solvers.iterations import krylov
from solvers.problem import Counts
from tests.benchmarks.records import environment

PROBLEMS: tuple[tuple[str, str, int, int, int], ...] = (
    # matrix, element type, block size, eigenpairs, restarts
    *(("laplace2d:n=100", "float64", b, 6, 20) for b in (1, 2, 4, 8)),
    ("laplace2d:n=100", "complex128", 4, 6, 20),
    ("laplace3d:n=40", "float64", 8, 10, 20),
    ("laplace3d:n=100", "float64", 4, 6, 5),
)
CUBES = (22, 39, 57, 67, 100, 128)  # points along an edge
BASES = (  # element type, block size, columns
    *(("float64", 1, 40), ("float64", 2, 32), ("float64", 4, 64), ("float64", 8, 88)),
    ("complex128", 4, 64),
)
REPEATS = 5


def measure(matrix: str, dtype: str, b: int, k: int, restarts: int) -> dict[str, Any]:
    """Return the fastest time of a run, in all and per step."""
    A = blockvec.as_operator(blockvec.models.model(matrix).astype(dtype), device="gpu")
    wait = backend_for("gpu").synchronize
    times = []
    for _ in range(2 + REPEATS):
        wait()
        begin = time.perf_counter()
        result: Any = eigsh(
            *(A, k),
            **{"method": "lanczos", "which": "SA", "block_size": b, "maxiter": restarts, "tol": 1e-12},
            **{"rng": 0, "on_unconverged": "return", "return_info": True},
        )
        wait()
        times.append(time.perf_counter() - begin)
    steps = result.info["block_applications"]
    sizes = {"matrix": matrix, "dtype": dtype, "block_size": b, "k": k, "restarts": restarts, "steps": steps}
    return {"operation": "lanczos_step", **sizes, "time_s": min(times), "step_s": min(times) / steps}


def bare(points: int, dtype: str, b: int, columns: int) -> dict[str, Any]:
    """Return the fastest time per step of a first cycle on a cube, by launches of steps and by products."""
    A = blockvec.as_operator(blockvec.models.model(f"laplace3d:n={points}").astype(dtype), device="gpu")
    n, wait = A.shape[0], backend_for("gpu").synchronize
    buffer = blockvec.BlockVector.zeros(n, columns, dtype, device="gpu")
    record: dict[str, Any] = {"operation": "lanczos_step", "matrix": f"laplace3d:n={points}", "n": n}
    record |= {"dtype": dtype, "block_size": b, "columns": columns}
    for name in ("launches_s", "products_s"):
        times = []
        for _ in range(REPEATS):
            basis = krylov.BlockKrylov(A, buffer, 0, b, np.random.default_rng(1), Counts())
            if name == "products_s":
                basis.steps._launches = None
            basis.append_random(b)
            wait()
            begin = time.perf_counter()
            while basis.can_expand():
                basis.expand(basis.capacity)
            basis.settle()
            wait()
            times.append((time.perf_counter() - begin) / (basis.m // b))
        record[name] = min(times)
    return record


def main() -> None:
    """Print a record per problem."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bare", action="store_true", help="the steps of a cycle alone, on cubes")
    arguments = parser.parse_args()
    print(json.dumps({"environment": environment(backend_for("gpu"))}), flush=True)
    if arguments.bare:
        for points, basis in itertools.product(CUBES, BASES):
            print(json.dumps(bare(points, *basis)), flush=True)
        return
    for problem in PROBLEMS:
        print(json.dumps(measure(*problem)), flush=True)


if __name__ == "__main__":
    main()
