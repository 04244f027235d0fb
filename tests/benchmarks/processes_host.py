"""Two processes of one thread beside one process of two threads, on a host with two cores.

    python -m tests.benchmarks.processes_host --json FILE

Both solve the same problems with the same start vectors, in turns, and so does one process of one thread. A
run is a new process, or two under mpiexec, that solves once and is timed while it solves again; of two
processes the slower one counts. BLAS has one thread, blockvec's operations have the others. `time_s` is the
least wall-clock time of all turns, `median_s` their median, `ratio` the median over turns of the time of
two processes over that of two threads in the same turn. On a machine with other work these are uncertain.
`cpu_s` is the least time of a processor, of the busier process; `cpu_ratio` is that of two processes over
half of that of one thread, which two threads reach if they divide all work. A process that waits polls,
which counts. `products_s` and `waiting_s` are its time in products, and waiting for halos and sums, in the
fastest turn.
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
from solvers import eigsh
from tests.benchmarks import records as results
from tests.benchmarks.harness import recorded, script_parser

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
SETUPS = {  # processes and threads
    "1 process, 1 thread": (1, 1),
    "1 process, 2 threads": (1, 2),
    "2 processes, 1 thread each": (2, 1),
}


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
        found["cpu_s"] = max(part["cpu_s"] for part in parts)
        shares = info["processes"]
        found["products_s"] = max(own["product_s"] for own in shares)
        found["waiting_s"] = max(own["exchange_s"] + own["reduction_s"] for own in shares)
    return found


def turn(model: str, processes: int, threads: int) -> dict[str, Any]:
    """Run a problem in a new process, or in several."""
    command = [sys.executable, "-m", "tests.benchmarks.processes_host", "--solve", model]
    if processes > 1:
        beside = Path(sys.executable).with_name("mpiexec")
        command = [str(beside) if beside.exists() else "mpiexec", "-n", str(processes), *command, "--comm"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "BLOCKVEC_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measured(model: str, turns: int) -> list[dict[str, Any]]:
    """Measure a problem in all setups, in turns."""
    runs: dict[str, list[dict[str, Any]]] = {setup: [] for setup in SETUPS}
    for number in range(turns):
        for setup in list(SETUPS)[:: 1 if number % 2 else -1]:
            runs[setup].append(turn(model, *SETUPS[setup]))
    rows = []
    for setup, found in runs.items():
        times = [run["time_s"] for run in found]
        row = {"operation": "processes", "matrix": model, "setup": setup, "turns": turns}
        row |= min(found, key=lambda run: run["time_s"])
        row |= {"median_s": statistics.median(times), "slowest_s": max(times)}
        rows.append(row | {"cpu_s": min(run["cpu_s"] for run in found)})
    _, threads, processes = runs.values()
    ratios = [two["time_s"] / beside["time_s"] for beside, two in zip(threads, processes, strict=True)]
    rows[-1] |= {"ratio": statistics.median(ratios), "ratios": ratios}
    rows[-1]["cpu_ratio"] = 2 * rows[-1]["cpu_s"] / rows[0]["cpu_s"]
    return rows


def main() -> None:
    """Measure, print and store; or solve in this process."""
    parser = script_parser(__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--only", default="", help="problems whose name contains this text; keep the others")
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
        return
    rows = []
    if arguments.only and arguments.json and arguments.json.exists():
        rows = [row for row in results.read(arguments.json)["records"] if arguments.only not in row["matrix"]]
    names = [model for model in PROBLEMS if arguments.only in model]
    found = (row for model in names for row in measured(model, arguments.turns))
    recorded(found, arguments.json, line=line, known=rows)


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    ratio = f", {row['ratio']:.2f} and {row['cpu_ratio']:.2f}" if "ratio" in row else ""
    return (
        f"{row['matrix']:24} {row['setup']:26} {row['time_s']:7.2f} s, median {row['median_s']:.2f} s, "
        f"processors {row['cpu_s']:.2f} s, {row['operator_columns']} columns{ratio}"
    )


if __name__ == "__main__":
    main()
