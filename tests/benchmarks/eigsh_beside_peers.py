"""Time solvers.eigsh beside its peers: SciPy's eigsh and lobpcg and PRIMME, or CuPy's on a GPU.

    python -m tests.benchmarks.eigsh_beside_peers --json docs/results/host-2core/eigsh.json
    python -m tests.benchmarks.eigsh_beside_peers --draw 1 --json docs/results/host-2core/eigsh_drawn.json

The second form takes problems drawn from a seed; see `drawn_problems`. With --resume, problems whose records
are in the file already are kept as they are.

A peer may take `--patience` times as long as blockvec did, or as long as the fastest peer that was right:
what is slower cannot be the best. Results are written as they come, and what the budget leaves no time for is
left out.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.harness import recorded, script_parser
from tests.benchmarks.records import read

from .drawn_problems import draw
from .eigen_problems import TARGET, Judged, Problem, Task, missed, problems, union
from .eigen_solvers import GPU_PEERS, HOST_PEERS, Solver, blockvec_runs, first_accepted

LEAST_LIMIT_S = 1.0  # that a peer may always have
PATIENCE = {"cpu": 3.0, "gpu": 10.0}  # times blockvec's time: more than what is hoped for
SLACK = 1.2  # times the best time so far, within which a run may still turn out to be the best

HOST_TASKS = [
    *(Task("xxz:sites=18,up=9", k) for k in (10, 20, 50)),
    *(Task("laplace3d:n=64", k) for k in (10, 20, 50)),
    *(Task("xxz:sites=20,up=10", k) for k in (10, 20, 50)),
    *(Task("hubbard:sites=12,up=6,down=6,U=8", k) for k in (10, 20, 50)),
    *(Task("graphene:nx=512,ny=512", k) for k in (10, 20, 50)),
    Task("bcsstk09", 10),
    Task("bcsstk16", 10, "LA"),
    Task("mhd1280b", 10, "LA"),
    *(Task("laplace3d:n=100", k) for k in (10, 20, 50)),
    *(Task("graphene:nx=1024,ny=1024", k) for k in (10, 20, 50)),
]
GPU_MATRICES = (
    "laplace3d:n=100",
    "xxz:sites=24,up=12",
    "laplace3d:n=160",
    "graphene:nx=2000,ny=2000",
    "hubbard:sites=14,up=7,down=7,U=8",  # takes longest to make
)
GPU_TASKS = [
    Task(matrix, k) for k in (10, 20, 50) for matrix in GPU_MATRICES
]  # a budget leaves out a k, not a matrix


def compare(
    problem: Problem, peers: dict[str, Solver], limit_s: float, patience: float = math.inf
) -> dict[str, Any]:
    """Run all solvers on a problem and return its record."""
    task = problem.task
    judged = {"blockvec": first_accepted(blockvec_runs, problem, limit_s)}
    tolerance = 2 * TARGET * problem.norm  # each value is that near to one of the matrix, twice for a pair
    ours = judged["blockvec"].run
    if ours and problem.reference is None:
        problem.least = float(np.abs(ours.values).min())
    for name, solver in peers.items():
        allowed_s = min(limit_s, max(LEAST_LIMIT_S, patience * ours.time_s)) if ours else limit_s
        wanted = _wanted(problem, judged, tolerance)
        right = [
            one.run.time_s
            for other, one in judged.items()
            if other != "blockvec" and one.run and not missed(one.values, wanted, tolerance)
        ]
        judged[name] = first_accepted(
            solver, problem, min([allowed_s, *(SLACK * time_s for time_s in right)])
        )
    wanted = _wanted(problem, judged, tolerance)
    entries = {name: _entry(one, wanted, tolerance) for name, one in judged.items()}
    record = entries.pop("blockvec")
    head = {"operation": "eigsh", "matrix": task.matrix, "n": problem.n, "k": task.k, "which": task.which}
    return head | {"norm": problem.norm} | record | {"peers": entries}


def _wanted(problem: Problem, judged: dict[str, Judged], tolerance: float) -> Any:
    if problem.reference is not None:
        return problem.reference
    return union([one.values for one in judged.values() if one.run], problem.task, tolerance)


def _entry(one: Judged, wanted: Any, tolerance: float) -> dict[str, Any]:
    entry: dict[str, Any] = {"time_s": one.run.time_s if one.run else None}
    if one.run:
        entry |= {"operator_columns": one.run.operator_columns, **one.run.facts}
        entry |= {"orthogonality": one.orthogonality, "missed": missed(one.values, wanted, tolerance)}
    else:
        entry |= {"note": one.note, "limit_s": one.limit_s}
    return entry | {"residual": one.residual if math.isfinite(one.residual) else None}


def advantage(record: dict[str, Any]) -> tuple[float, bool] | None:
    """Return how much longer the best right peer took, and whether that is known exactly.

    Where no right peer came to its end, the time at which the first of them was stopped is a lower bound.
    """
    if record["time_s"] is None or record["missed"]:
        return None
    peers = record["peers"].values()
    done = [peer["time_s"] for peer in peers if peer["time_s"] is not None and not peer["missed"]]
    stopped = [peer["limit_s"] for peer in peers if peer["time_s"] is None and peer["limit_s"]]
    if done:
        return min(done) / record["time_s"], True
    return (min(stopped) / record["time_s"], False) if stopped else None


def lines(record: dict[str, Any]) -> Iterator[str]:
    """Yield the table's rows of a record."""
    title = f"{record['matrix']} n={record['n']} k={record['k']} {record['which']}"
    for name, entry in {"blockvec": record, **record["peers"]}.items():
        if entry["time_s"] is None:
            best = "" if entry["residual"] is None else f", residual {entry['residual']:.1e}"
            yield f"{title:50} {name:13} gave up: {entry['note']}{best}"
        else:
            columns = entry["operator_columns"] or "-"
            cost = f"{entry['time_s']:9.3f} {columns:>9}"
            first = f"  first call {entry['first_s']:.2f} s" if "first_s" in entry else ""
            yield f"{title:50} {name:13} {cost} {entry['residual']:9.1e} {entry['missed']:7d}{first}"
        title = ""


def table(record: dict[str, Any]) -> str:
    """Return the table's rows of a record."""
    return "\n".join(lines(record))


def summary(records: Sequence[dict[str, Any]]) -> str:
    """Say how much faster blockvec was, over all records."""
    known = [pair for record in records if (pair := advantage(record))]
    if not known:
        return "no record with a right peer"
    mean = math.exp(sum(math.log(ratio) for ratio, _ in known) / len(known))
    bounds = sum(not exact for _, exact in known)
    least = min(ratio for ratio, _ in known)
    return (
        f"beside the best right peer: {mean:.2f} times as fast (geometric mean of {len(known)}, "
        f"{bounds} of them lower bounds), at least {least:.2f}"
    )


def main() -> None:
    parser = script_parser(__doc__, "cpu", "gpu")
    parser.add_argument(
        "--matrices",
        type=Path,
        default=os.environ.get("BLOCKVEC_TEST_MATRICES"),
        help="folder of the Matrix Market files (default: BLOCKVEC_TEST_MATRICES)",
    )
    parser.add_argument("--only", default="", metavar="NAME", help="tasks whose matrix begins like this")
    parser.add_argument("--k", type=int, metavar="K", help="tasks of so many pairs")
    parser.add_argument("--time-limit", type=float, default=120.0, metavar="S", help="for a run (120)")
    parser.add_argument("--patience", type=float, help="times blockvec's time for a peer (host 3, GPU 10)")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="S", help="for everything")
    parser.add_argument("--resume", action="store_true", help="keep the records of this file")
    parser.add_argument("--draw", type=int, metavar="SEED", help="problems drawn from this seed instead")
    parser.add_argument("--count", type=int, default=20, help="how many of them (20)")
    parser.add_argument("--largest", type=float, default=1e5, metavar="N", help="rows of the largest (1e5)")
    parser.add_argument("--functions", action="store_true", help="linear operators in place of matrices")
    parser.add_argument("--without", action="append", default=[], metavar="PEER", help="a peer to leave out")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.budget
    gpu = arguments.device == "gpu"
    patience = PATIENCE[arguments.device] if arguments.patience is None else arguments.patience
    tasks = GPU_TASKS if gpu else HOST_TASKS
    if arguments.draw is not None:
        tasks = [Task(*drawn) for drawn in draw(arguments.draw, arguments.count, arguments.largest)]
    tasks = [t for t in tasks if t.matrix.startswith(arguments.only) and arguments.k in (None, t.k)]
    peers = {
        name: solver
        for name, solver in (GPU_PEERS if gpu else HOST_PEERS).items()
        if name not in arguments.without
    }
    records = []
    if arguments.resume and arguments.json.exists():
        records = read(arguments.json)["records"]
        done = {Task(*(record[name] for name in ("matrix", "k", "which"))) for record in records}
        tasks = [task for task in tasks if task not in done]
    wanted = len(records) + len(tasks)
    print(f"{'problem':50} {'solver':13} {'s':>9} {'columns':>9} {'residual':>9} {'missed':>7}")
    source = problems(tasks, arguments.matrices, arguments.device)

    def rows() -> Iterator[dict[str, Any]]:
        for problem in source:
            if (left_s := deadline - time.monotonic()) <= 0:
                break
            if arguments.functions:
                problem.hide_entries()
            yield compare(problem, peers, min(arguments.time_limit, left_s), patience)

    try:
        records = recorded(
            rows(), arguments.json, arguments.device, lambda one: "\n".join(lines(one)), records
        )
    finally:
        source.close()
    print(summary(records))
    if len(records) < wanted:
        print(f"{wanted - len(records)} of {wanted} tasks were left out")


if __name__ == "__main__":
    main()
