"""Two processes of one thread beside one process of two threads, on a host with two cores.

    python -m tests.benchmarks.processes_host --json FILE

Both solve the same problems with the same start vectors, in turns. A run is a new process, or two under
mpiexec, that solves once and is timed while it solves again; of two processes the slower one counts.
`time_s` is the least wall-clock time of all turns, `median_s` their median, `ratio` the median over turns of
the time of two processes over that of one process in the same turn, and `cpu_s` the least time of the
processors. A process that waits for the other polls and so uses its processor; `products_s` and `waiting_s`
are its time in products, and waiting for halos and sums, in the fastest turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from blockvec import models
from blockvec.backends import backend_for
from blockvec.bench import records as results
from blockvec.profile import ceilings
from solvers import eigsh

TURNS = 7
PROBLEMS: dict[str, dict[str, Any]] = {
    "laplace3d:n=50": {"k": 10, "which": "SA", "method": "filter", "tol": 1e-8, "convergence": "norm"},
    "xxz:sites=18,up=9": {"k": 10, "which": "SA", "method": "lanczos", "tol": 1e-8, "convergence": "norm"},
    "graphene:nx=100,ny=100": {
        "k": 10,
        "which": "LA",
        "method": "filter",
        "tol": 1e-8,
        "convergence": "norm",
    },
}
SETUPS = {1: ("1 process, 2 threads", "2"), 2: ("2 processes, 1 thread each", "1")}


def solved(model: str, comm: Any) -> dict[str, Any]:
    """Solve twice, and describe the second solve."""
    A = models.generator(model)
    for _ in range(2):
        if comm is not None:
            comm.Barrier()
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        info: Any = eigsh(A, rng=0, comm=comm, return_info=True, **PROBLEMS[model]).info
        found = {"time_s": time.perf_counter() - begin_s, "cpu_s": time.process_time() - begin_cpu_s}
    found |= {"n": info["n"], "operator_columns": info["operator_columns"]}
    if comm is not None:
        parts = comm.allgather(found)
        found["time_s"] = max(part["time_s"] for part in parts)
        found["cpu_s"] = sum(part["cpu_s"] for part in parts)
        shares = info["processes"]
        found["products_s"] = max(own["product_s"] for own in shares)
        found["waiting_s"] = max(own["exchange_s"] + own["reduction_s"] for own in shares)
    return found


def turn(model: str, size: int) -> dict[str, Any]:
    """Run a problem in a new process, or in several."""
    command = [sys.executable, "-m", "tests.benchmarks.processes_host", "--solve", model]
    if size > 1:
        beside = Path(sys.executable).with_name("mpiexec")
        command = [str(beside) if beside.exists() else "mpiexec", "-n", str(size), *command, "--comm"]
    threads = {f"{library}_NUM_THREADS": SETUPS[size][1] for library in ("OMP", "OPENBLAS", "BLOCKVEC")}
    environment = os.environ | threads
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measured(model: str, turns: int) -> list[dict[str, Any]]:
    """Measure a problem in both ways, in turns."""
    runs: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    for number in range(turns):
        for size in (1, 2) if number % 2 else (2, 1):
            runs[size].append(turn(model, size))
    ratios = [two["time_s"] / one["time_s"] for one, two in zip(runs[1], runs[2], strict=True)]
    rows = []
    for size, (setup, _) in SETUPS.items():
        best = min(runs[size], key=lambda run: run["time_s"])
        times = [run["time_s"] for run in runs[size]]
        row = {"operation": "eigsh", "matrix": model, "setup": setup, **best, "turns": turns}
        row |= {"median_s": statistics.median(times), "slowest_s": max(times)}
        row["cpu_s"] = min(run["cpu_s"] for run in runs[size])
        rows.append(row if size == 1 else row | {"ratio": statistics.median(ratios), "ratios": ratios})
    return rows


def main() -> int:
    """Measure, print and store; or solve in this process."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the records")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--solve", metavar="MODEL", help=argparse.SUPPRESS)
    parser.add_argument("--comm", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.solve:
        comm = None
        if arguments.comm:
            from mpi4py import MPI

            comm = MPI.COMM_WORLD
        found = solved(arguments.solve, comm)
        if comm is None or comm.rank == 0:
            print(json.dumps(found))
        return 0
    rows = []
    for model in PROBLEMS:
        for row in measured(model, arguments.turns):
            rows.append(row)
            ratio = f", {row['ratio']:.2f} times" if "ratio" in row else ""
            print(
                f"{model:24} {row['setup']:26} {row['time_s']:7.2f} s, median {row['median_s']:.2f} s, "
                f"processors {row['cpu_s']:.2f} s, {row['operator_columns']} columns{ratio}",
                flush=True,
            )
    if arguments.json:
        backend = backend_for("cpu")
        results.write(arguments.json, results.environment(backend), ceilings(backend), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
